// Keeps the live part of a page as the server last sent it, without touching what stayed the same:
// focus, selection, scroll positions and opened details survive an update.
"use strict";

(() => {
  const main = document.querySelector("main[data-live]");
  const part = document.getElementById("live");
  const pulse = document.getElementById("pulse");
  if (!main || !part || !pulse || !window.EventSource) return;

  const sameKind = (a, b) =>
    a.nodeType === b.nodeType &&
    a.nodeName === b.nodeName &&
    (a.nodeType !== Node.ELEMENT_NODE || a.dataset.key === b.dataset.key);

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
      if (child.dataset.key !== undefined) found.set(child.dataset.key, child);
    }
    return found;
  };

  const morph = (from, to) => {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    morphAttributes(from, to);
    if (from.nodeName === "INPUT") return; // what is being typed stays
    const known = keyed(from);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const key = wanted.nodeType === Node.ELEMENT_NODE ? wanted.dataset.key : undefined;
      const held = key === undefined ? null : known.get(key);
      if (held && held !== at && sameKind(held, wanted)) {
        from.insertBefore(held, at);
        morph(held, wanted);
      } else if (at && sameKind(at, wanted)) {
        const next = at.nextSibling;
        morph(at, wanted);
        at = next;
      } else {
        from.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
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
      const page = new DOMParser().parseFromString(JSON.parse(event.data), "text/html");
      const wanted = page.createElement("div");
      wanted.id = part.id;
      wanted.append(...page.body.childNodes);
      morph(part, wanted);
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
