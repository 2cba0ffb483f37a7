"""A real browser: the system's Chromium, driven by Playwright."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    """Its path. Without one the tests are skipped, or fail where they must run."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        found = None
    if found is not None:
        return found
    why = 'no browser: apt-get install chromium, and pip install "lodeq[dev]" for playwright'
    if os.environ.get("LODEQ_NEEDS_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)


# For each piece of text that can be seen: how its colour stands out from what is behind it.
CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a !== 0) throw new Error(`half transparent: ${at.outerHTML.slice(0, 80)}`);
    }
    throw new Error("nothing is behind it");
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const text = node.data.trim();
    if (!text || !element.checkVisibility() || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const [r, g, b, a = 1] = parse(style.color);
    if (a !== 1 || style.opacity !== "1") throw new Error(`half transparent: ${text}`);
    const pair = [light([r, g, b]), light(behind(element))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    found.push({ text, ratio: (pair[0] + 0.05) / (pair[1] + 0.05), need: isLarge ? 3 : 4.5 });
  }
  return found;
}"""

# What is too low to be hit. One call: between two, a live page may have put other elements there.
LOW = """() => [...document.querySelectorAll("button, a.act, .tabs a")]
    .filter(one => one.getBoundingClientRect().height < 24).map(one => one.outerHTML)"""

# What a reader without eyes needs: names, labels, one heading of each page, unique ids.
FLAWS = """() => {
  const flaws = [];
  const say = (what, element) => flaws.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) flaws.push(`id twice: ${id}`);
  if (!document.documentElement.lang) flaws.push("no language");
  if (!document.title.trim()) flaws.push("no title");
  if (document.querySelectorAll("h1").length !== 1) flaws.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) flaws.push("not one main");
  for (const one of document.querySelectorAll("input:not([type=hidden], [hidden])"))
    if (!one.labels.length && !(one.ariaLabel || "").trim()) say("no label", one);
  for (const one of document.querySelectorAll("a, button, summary, h1, h2, th, label"))
    if (!one.textContent.trim()) say("no text", one);
  for (const one of document.querySelectorAll("svg"))
    if (!one.ariaLabel && one.ariaHidden !== "true") say("no name", one);
  for (const one of document.querySelectorAll("[role=region], nav"))
    if (!one.ariaLabel) say("no name", one);
  for (const one of document.querySelectorAll("th")) if (!one.scope) say("no scope", one);
  for (const one of document.querySelectorAll("[aria-labelledby]"))
    if (!document.getElementById(one.getAttribute("aria-labelledby"))) say("label is gone", one);
  for (const one of document.querySelectorAll("*")) {
    const style = getComputedStyle(one);
    const scrolls = /auto|scroll/.test(style.overflowX) && one.scrollWidth > one.clientWidth;
    if (scrolls && one.tabIndex < 0) say("scrolls without a keyboard", one);
  }
  let level = 0;
  for (const one of document.querySelectorAll("h1, h2, h3")) {
    const next = Number(one.nodeName[1]);
    if (next > level + 1) say("a level is left out", one);
    level = next;
  }
  return flaws;
}"""

# A picture as the browser itself decodes it: its size, its colours, what part is not background.
LOOKS = """async (data) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(
    context.getImageData(0, 0, image.width, image.height).data.buffer
  );
  const counts = new Map();
  for (const one of pixels) counts.set(one, (counts.get(one) || 0) + 1);
  const [most, times] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a));
  const bands = [];
  const high = Math.floor(image.height / 8);
  for (let band = 0; band < 8; band++) {
    const part = pixels.subarray(band * high * image.width, (band + 1) * high * image.width);
    bands.push(part.reduce((n, one) => n + (one !== most), 0) / part.length);
  }
  const [r, g, b] = [most & 255, (most >> 8) & 255, (most >> 16) & 255];
  return {
    width: image.width, height: image.height, colours: counts.size, ink: 1 - times / pixels.length,
    bands, brightness: (r + g + b) / 765,
  };
}"""
