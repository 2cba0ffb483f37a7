// Keeps the live part of a page as the server last sent it, without touching what stayed the same:
// focus, selection, scroll positions and opened details survive an update.
"use strict";

(() => {
  const main = document.querySelector("main[data-live]");
  const part = document.getElementById("live");
  const pulse = document.getElementById("pulse");
  if (!main || !part || !pulse || !window.EventSource) return;

  const FOCUSABLE = "a, button, input, summary, [tabindex]";

  // What makes a node the one it is among its siblings: a link is where it leads.
  const keyOf = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return undefined;
    if (node.dataset.key !== undefined) return node.dataset.key;
    return node.nodeName === "A" ? node.getAttribute("href") : undefined;
  };

  const sameKind = (a, b) =>
    a.nodeName === b.nodeName &&
    keyOf(a) === keyOf(b) &&
    (keyOf(a) !== undefined ||
      a.nodeType !== Node.ELEMENT_NODE ||
      a.getAttribute("class") === b.getAttribute("class"));

  const morphAttributes = (from, to) => {
    for (const { name } of [...from.attributes]) {
      const isOpened = name === "open" && from.nodeName === "DETAILS"; // the reader's choice
      if (!to.hasAttribute(name) && !isOpened) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      const isFolded = name === "open" && from.nodeName === "DETAILS";
      if (from.getAttribute(name) !== value && !isFolded) from.setAttribute(name, value);
    }
  };

  const keyed = (node) => {
    const found = new Map();
    for (const child of node.children) {
      const key = keyOf(child);
      if (key !== undefined) found.set(key, child);
    }
    return found;
  };

  // The sibling from `at` on that becomes `wanted`.
  const findHeld = (at, wanted) => {
    if (at && sameKind(at, wanted)) return at;
    if (wanted.nodeType !== Node.ELEMENT_NODE) return null;
    let held = at;
    while (held && !sameKind(held, wanted)) held = held.nextSibling;
    return held;
  };

  const morph = (from, to) => {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    morphAttributes(from, to);
    if (from.nodeName === "INPUT") return; // what is being typed stays
    const staying = keyed(to);
    for (const [key, child] of keyed(from)) {
      if (!staying.has(key)) child.remove(); // first, so that what stays need not move
    }
    const known = keyed(from);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const key = keyOf(wanted);
      const held = key === undefined ? findHeld(at, wanted) : known.get(key);
      if (!held || !sameKind(held, wanted)) {
        from.insertBefore(document.importNode(wanted, true), at);
        continue;
      }
      known.delete(key);
      while (at !== held && at && keyOf(at) === undefined) {
        const next = at.nextSibling; // what has no key and is not wanted here
        at.remove();
        at = next;
      }
      if (at === held) at = at.nextSibling;
      else from.insertBefore(held, at);
      morph(held, wanted);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  };

  // A node that is moved or removed loses the focus: it gets it back, or what was around it does.
  const update = (wanted) => {
    const around = [];
    for (let node = document.activeElement; node && part.contains(node); node = node.parentElement) {
      around.push(node);
    }
    morph(part, wanted);
    if (!around.length || document.activeElement === around[0]) return;
    const kept = around.find((node) => node.isConnected && node.matches(FOCUSABLE));
    (kept || main).focus({ preventScroll: true });
  };

  const tell = (state, text) => {
    if (pulse.dataset.state === state) return;
    pulse.dataset.state = state;
    pulse.textContent = text;
  };

  let source = null;

  const stop = () => {
    if (source) source.close();
    source = null;
  };

  const start = () => {
    stop();
    source = new EventSource(main.dataset.live);
    source.addEventListener("show", (event) => {
      // Inside of an element, as on the page: a parser drops the space before the first one.
      const html = `<div id="live">\n${JSON.parse(event.data)}\n</div>`;
      update(new DOMParser().parseFromString(html, "text/html").body.firstChild);
      tell("live", "live");
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) tell("gone", "ended: reload");
      else tell("lost", "connecting…");
    });
  };

  // A hidden page holds no connection: browsers have six for a server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stop();
      tell("still", "not live");
    } else if (!source) start();
  });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", () => source || document.hidden || start());
})();
