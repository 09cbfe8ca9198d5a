// The stored bytes of a rollout as text, ids or JSON: shown in blocks, copied and downloaded exactly.
(() => {
  "use strict";
  const box = document.getElementById("raw");
  if (!box) return;
  const BLOCK = 8192;
  // A byte that is no UTF-8 travels as U+10FF00 + byte, as in rlviewer/lib/text.py.
  const ESCAPE = 0x10ff00;
  // Controls, formats, private and unassigned characters, and spaces other than the plain one: as in rlviewer/lib/visible.py.
  const HIDDEN = /[^\P{C}\n\t]|[^\P{Z} ]/gu;

  /** Name of a character that would not show by itself. */
  function nameOf(char) {
    const code = char.codePointAt(0);
    if (code >= ESCAPE) return (code - ESCAPE).toString(16).toUpperCase().padStart(2, "0");
    return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  }
  /** Nodes that show `text` exactly; what hides is named in a box of its own. */
  function nodes(text) {
    if (text.search(HIDDEN) < 0) return [document.createTextNode(text)];
    const out = [];
    let from = 0;
    for (const match of text.matchAll(HIDDEN)) {
      if (match.index > from) out.push(document.createTextNode(text.slice(from, match.index)));
      const mark = document.createElement("i");
      mark.className = "hidden-char";
      mark.textContent = nameOf(match[0]);
      out.push(mark);
      from = match.index + match[0].length;
    }
    if (from < text.length) out.push(document.createTextNode(text.slice(from)));
    return out;
  }
  /** UTF-8 to text; every byte that is none is escaped. Also tells how many those were. */
  function decoded(bytes) {
    try { return { text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes), invalid: 0 } } catch { /* go byte by byte */ }
    const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const parts = [];
    let invalid = 0;
    for (let i = 0; i < bytes.length;) {
      const lead = bytes[i];
      const size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
      let char = null;
      if (size === 1) char = String.fromCharCode(lead);
      else if (size) { try { char = strict.decode(bytes.subarray(i, i + size)) } catch { char = null } }
      if (char === null) { char = String.fromCodePoint(ESCAPE + lead); invalid += 1; i += 1 } else i += size;
      parts.push(char);
    }
    return { text: parts.join(""), invalid };
  }
  function* blocks(text) {
    for (let from = 0; from < text.length;) {
      let to = Math.min(text.length, from + BLOCK);
      if (to < text.length) {
        const line = text.lastIndexOf("\n", to);
        if (line > from + BLOCK / 4) to = line + 1;
        else if (text.charCodeAt(to - 1) >= 0xd800 && text.charCodeAt(to - 1) < 0xdc00) to -= 1;
      }
      yield text.slice(from, to);
      from = to;
    }
  }

  const loaded = new Map();
  async function load(what) {
    if (!loaded.has(what)) {
      const answer = await fetch(`${box.dataset.address}${what}/`);
      if (!answer.ok) throw new Error(`The server could not answer (${answer.status}).`);
      loaded.set(what, new Uint8Array(await answer.arrayBuffer()));
    }
    return loaded.get(what);
  }
  function button(label, act) {
    const element = document.createElement("button");
    element.type = "button";
    element.className = "button small";
    element.textContent = label;
    element.addEventListener("click", act);
    return element;
  }
  async function copy(bytes, invalid) {
    if (invalid) {
      rlviewer.toast(`${invalid} bytes are not UTF-8, and a clipboard holds only text. Download the file, or copy the JSON.`, "error");
      return;
    }
    try {
      await navigator.clipboard.writeText(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes));
      rlviewer.toast("Copied exactly as stored", "success");
    } catch {
      rlviewer.toast("The browser did not let the page copy. Download it instead.", "error");
    }
  }
  async function show(what) {
    box.hidden = false;
    box.setAttribute("aria-busy", "true");
    let bytes;
    try { bytes = await load(what) } catch (error) {
      const words = document.createElement("p");
      words.setAttribute("role", "alert");
      words.textContent = error.message || "The server does not answer.";
      box.replaceChildren(words, button("Try again", () => show(what)));
      box.removeAttribute("aria-busy");
      return;
    }
    if (box.hidden) return;
    const { text, invalid } = decoded(bytes);
    const bar = document.createElement("div");
    bar.className = "row";
    const facts = document.createElement("span");
    facts.className = "muted small";
    facts.textContent = `${bytes.length.toLocaleString("en")} bytes${invalid ? `, ${invalid} of them not UTF-8` : ""}`;
    const link = document.createElement("a");
    link.className = "button small";
    link.href = `${box.dataset.address}${what}/?download`;
    link.textContent = "Download";
    bar.append(button("Copy", () => copy(bytes, invalid)), link, facts);
    const pre = document.createElement("div");
    pre.className = "raw-text";
    pre.tabIndex = 0;
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", { text: "Raw text", ids: "Token ids", json: "Everything stored, as JSON" }[what]);
    for (const part of blocks(text)) {
      const block = document.createElement("div");
      block.className = "block";
      block.append(...nodes(part));
      pre.append(block);
    }
    if (!text) pre.textContent = "(empty completion)";
    box.replaceChildren(bar, pre);
    box.removeAttribute("aria-busy");
  }
  rlviewer.raw = { show, hide: () => { box.hidden = true; box.replaceChildren() }, nodes, blocks, ESCAPE };
})();
