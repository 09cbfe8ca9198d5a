// The rollout as a person reads it: turns with thinking, tool calls and results; Markdown and maths rendered, nothing in it alive.
(() => {
  "use strict";
  const box = document.getElementById("read");
  if (!box) return;
  // A longer text is shown as it is: laying it out would hold up the page.
  const RENDER_LIMIT = 100_000;
  const LONG_THOUGHT = 6000;
  const ROLE_WORDS = { prompt: "Prompt", user: "User", system: "System", assistant: "Model", tool: "Tool", environment: "Environment", feedback: "Feedback" };
  const PART_WORDS = { thinking: "Thinking", tool_call: "Tool call", tool_result: "Result", answer: "Answer", data: "Data" };
  const ALLOWED = ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td", "span"];
  const MATHS = ["math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "mtable", "mtr", "mtd", "mlabeledtr", "mstyle", "mpadded", "mphantom", "menclose", "merror", "ms"];
  const MATHS_ATTRIBUTES = ["encoding", "display", "displaystyle", "scriptlevel", "mathvariant", "fence", "stretchy", "symmetric", "separator", "form", "lspace", "rspace", "accent", "accentunder", "movablelimits", "largeop", "linethickness", "rowspacing", "columnspacing", "columnalign", "rowalign", "columnlines", "rowlines", "width", "height", "depth", "voffset", "notation", "minsize", "maxsize"];

  const make = (name, css, ...children) => {
    const made = document.createElement(name);
    if (css) made.className = css;
    made.append(...children);
    return made;
  };

  // ---- Markdown and maths
  let markdown = null;
  const script = (address) => new Promise((resolve, reject) => {
    const element = make("script");
    element.src = address;
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Error(`${address} could not be loaded.`)));
    document.head.append(element);
  });
  async function loadRenderer() {
    if (markdown) return;
    await Promise.all(box.dataset.libraries.split(" ").map(script));
    markdown = markdownit({ html: false, linkify: false, breaks: true, typographer: false });
    // Nothing that a model wrote is fetched or followed: a picture is its words, a link tells its address.
    markdown.disable("image");
    markdown.renderer.rules.link_open = () => "<span>";
    markdown.renderer.rules.link_close = (tokens, at) => {
      let open = at - 1;
      while (tokens[open].type !== "link_open") open -= 1;
      return `</span> <code>${markdown.utils.escapeHtml(tokens[open].attrGet("href") ?? "")}</code>`;
    };
    for (const kind of ["th_open", "td_open"]) {
      markdown.renderer.rules[kind] = (tokens, at, options, env, self) => {
        const align = /text-align:(\w+)/.exec(tokens[at].attrGet("style") ?? "");
        tokens[at].attrs = align ? [["class", `align-${align[1]}`]] : null;
        return self.renderToken(tokens, at, options);
      };
    }
    addMaths(markdown);
  }
  function texHtml(source, isBlock) {
    // What asks for trust (links, pictures, attributes of HTML) is shown as its source, like what does not parse.
    const trust = ({ command }) => { throw new Error(`${command} is not rendered`) };
    try { return katex.renderToString(source, { output: "mathml", displayMode: isBlock, throwOnError: true, trust, strict: "ignore", maxExpand: 500, maxSize: 20 }) } catch {
      return `<code class="tex-error">${markdown.utils.escapeHtml(source)}</code>`;
    }
  }
  // [opening, closing, whether it is a block]; a lone dollar must hug its formula, so that prices stay prices.
  const DELIMITERS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
  function mathsAt(source, start, end) {
    for (const [opening, closing, isBlock] of DELIMITERS) {
      if (!source.startsWith(opening, start)) continue;
      const from = start + opening.length;
      let to = source.indexOf(closing, from);
      while (to > 0 && opening === "$" && source[to - 1] === "\\") to = source.indexOf(closing, to + 1);
      if (to < 0 || to + closing.length > end) continue;
      const inner = source.slice(from, to);
      if (!inner.trim()) continue;
      if (opening === "$" && (/^\s|\s$|\n/.test(inner) || /\d/.test(source[to + 1] ?? ""))) continue;
      return { source: inner.trim(), isBlock, next: to + closing.length };
    }
    return null;
  }
  function addMaths(md) {
    md.inline.ruler.before("escape", "maths", (state, silent) => {
      const char = state.src.charCodeAt(state.pos);
      if (char !== 0x24 && char !== 0x5c) return false;
      const found = mathsAt(state.src, state.pos, state.posMax);
      if (!found) return false;
      if (!silent) Object.assign(state.push("maths", "", 0), { content: found.source, block: found.isBlock });
      state.pos = found.next;
      return true;
    });
    // A formula of several lines may hold what else would begin a list or a heading.
    md.block.ruler.before("fence", "maths_block", (state, line, lastLine, silent) => {
      const start = state.bMarks[line] + state.tShift[line];
      if (!state.src.startsWith("$$", start) && !state.src.startsWith("\\[", start)) return false;
      const found = mathsAt(state.src, start, state.eMarks[lastLine - 1]);
      if (!found) return false;
      let next = line;
      while (next < lastLine && state.eMarks[next] < found.next) next += 1;
      if (state.src.slice(found.next, state.eMarks[next]).trim()) return false;
      if (!silent) {
        Object.assign(state.push("maths", "", 0), { content: found.source, block: true });
        state.line = next + 1;
      }
      return true;
    }, { alt: ["paragraph", "blockquote", "list"] });
    md.renderer.rules.maths = (tokens, at) => texHtml(tokens[at].content, tokens[at].block);
  }
  /** A fragment that shows `text` rendered; characters that hide are named in it as everywhere. */
  function rendered(text) {
    const html = markdown.render(text.replaceAll("\0", String.fromCodePoint(rlviewer.raw.ESCAPE)));
    const clean = DOMPurify.sanitize(html, { ALLOWED_TAGS: [...ALLOWED, ...MATHS], ALLOWED_ATTR: ["class", "start", "xmlns", ...MATHS_ATTRIBUTES], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true });
    const walker = document.createTreeWalker(clean, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) if (!walker.currentNode.parentElement?.closest("math")) texts.push(walker.currentNode);
    for (const node of texts) node.replaceWith(...rlviewer.raw.nodes(node.data));
    for (const wide of clean.querySelectorAll("pre, table, math[display=block]")) { wide.tabIndex = 0; wide.classList.add("wide") }
    return clean;
  }

  // ---- turns
  function plain(text) {
    const pre = make("pre", "plain-text");
    pre.dir = "ltr";
    pre.tabIndex = 0;
    for (const part of rlviewer.raw.blocks(text)) pre.append(make("span", "", ...rlviewer.raw.nodes(part)));
    return pre;
  }
  function tokenButton({ tokens }) {
    if (!tokens) return "";
    const button = make("button", "link small tnum", `tokens ${tokens[0]}–${tokens[1] - 1}`);
    button.type = "button";
    button.dataset.range = `${tokens[0]}:${tokens[1]}`;
    button.title = "Show these tokens with their numbers";
    return button;
  }
  function partNode(part, role) {
    const isProse = !["tool_call", "tool_result", "data"].includes(part.kind) && part.text.length <= RENDER_LIMIT;
    const body = isProse ? make("div", "prose-text", rendered(part.text)) : plain(part.text);
    if (isProse) { body.dir = "auto" }
    if (part.kind === "text" || (part.kind === "tool_result" && role === "tool")) return make("div", "part", body, tokenButton(part));
    const words = [PART_WORDS[part.kind] ?? part.kind, part.name].filter(Boolean).join(" ");
    const size = `${part.text.length.toLocaleString("en")} characters${part.is_open ? ", not closed" : ""}`;
    const fold = make("details", `fold part part-${part.kind}`, make("summary", "", words, " ", make("span", "muted small", size)), body, tokenButton(part));
    fold.open = part.kind !== "thinking" || part.text.length <= LONG_THOUGHT;
    return fold;
  }
  function turnNode(turn) {
    const head = make("header", "row", make("h3", "small", ROLE_WORDS[turn.role] ?? turn.role));
    if (turn.name) head.append(make("code", "small", turn.name));
    if (turn.seconds !== null) head.append(make("span", "muted small tnum", `${rlviewer.tokens.significant(turn.seconds)} s`));
    const body = turn.parts.length ? turn.parts.map((part) => partNode(part, turn.role)) : [make("p", "muted small", "Nothing was said.")];
    const node = make("article", "turn", head, ...body);
    node.dataset.role = turn.role in ROLE_WORDS ? turn.role : "other";
    return node;
  }
  let turns = null;
  async function show() {
    box.hidden = false;
    if (turns) return;
    box.setAttribute("aria-busy", "true");
    try {
      const [answer] = await Promise.all([fetch(`${box.dataset.address}turns/`), loadRenderer()]);
      if (!answer.ok) throw new Error(`The server could not answer (${answer.status}).`);
      ({ turns } = await answer.json());
      box.replaceChildren(...turns.map(turnNode));
      if (!turns.some((turn) => turn.role !== "prompt")) box.append(make("p", "muted", "The completion is empty."));
    } catch (error) {
      const again = make("button", "button small", "Try again");
      again.type = "button";
      again.addEventListener("click", show);
      const words = make("p", "", error.message || "The server does not answer.");
      words.setAttribute("role", "alert");
      box.replaceChildren(words, again);
    }
    box.removeAttribute("aria-busy");
  }
  rlviewer.conversation = { show, hide: () => { box.hidden = true } };
})();
