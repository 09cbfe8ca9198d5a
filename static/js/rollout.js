// One rollout: every token coloured by one field and underlined by another, its numbers in the inspector, all state in the address.
rlviewer.showRollout = (data) => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const place = $("#tokens");
  const inspector = $("#inspector");
  const count = data.count;

  const { numbers, prepared, measured, significant, exact, shown, colourClass, underlineClass } = rlviewer.tokens;
  const ids = data.ids === null ? null : numbers("i4", data.ids);
  const fields = new Map(data.fields.map((field) => [field.name, prepared(field)]));
  const stored = Object.fromEntries([...fields].map(([name, field]) => [name, field.values]));
  const firstField = fields.values().next().value ?? null;

  // ---- text of a token
  const source = data.pieces?.source ?? "none";
  function piece(i) {
    if (source === "vocabulary") return data.pieces.by_id[ids[i]] ?? null;
    if (source === "characters") return data.pieces.by_place[i] ?? "";
    return null;
  }
  const SPECIAL = /^(<\|[^|]*\|>|<\/?[A-Za-z_]{1,24}>|\[[A-Z]{2,12}\])$/;
  let allSpaces = false;
  function fill(span, i) {
    const text = piece(i);
    if (text === null) { span.textContent = String(ids[i]); return "token-id" }
    if (text === "") { span.textContent = "∅"; return "token-empty" }
    if (SPECIAL.test(text)) { span.textContent = text; return "token-special" }
    if (/^[\x21-\x7e]+$/.test(text)) { span.textContent = text; return "" }
    const onlySpace = /^\s+$/.test(text);
    const visible = text.replace(/[ \t\n]/g, (char) => char === "\n" ? "⏎\n" : char === "\t" ? "⇥\t" : onlySpace || allSpaces ? "·" : char);
    span.append(...rlviewer.raw.nodes(visible));
    return onlySpace ? "token-space" : "";
  }

  // ---- drawing, in blocks the browser may leave out while they are off the screen
  const AT_ONCE = 1500, LATER = 3000;
  const spans = [], kinds = [], painted = [], blocks = [];
  const starts = new Set(data.boundaries);
  const origins = fields.get("origin");
  const isMixed = origins !== undefined && origins.counts.filter(Boolean).length > 1;
  let colour = null, under = null, marks = null, labelled = null;
  let chosen = null, pointed = null, range = null;
  const inRange = (i) => range !== null && i >= range[0] && i <= range[1];
  const classes = (i) => `tk ${colour ? colourClass(colour, i) : ""}${under ? underlineClass(under, i) : ""}${kinds[i]}${i === chosen ? " is-chosen" : ""}${i === pointed ? " is-pointed" : ""}${inRange(i) ? " is-ranged" : ""}${marks?.[i] ? " is-marked" : ""}${labelled?.[i] ? " is-labelled" : ""}`;
  function paint(i) {
    const now = classes(i);
    if (painted[i] !== now) painted[i] = spans[i].className = now;
  }
  // Only what is near the screen takes on new colours at once; the rest does when it comes near.
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const part = blocks[target.dataset.block];
      if (part?.element !== target) continue;
      part.isFar = !isIntersecting;
      if (!part.isFar && part.isStale) paintBlock(part);
    }
  }, { rootMargin: "600px 0px" });
  function paintBlock(part) {
    part.isStale = false;
    for (let i = part.from; i < part.to; i += 1) paint(i);
  }
  function recolour(all = false) {
    for (const part of blocks) if (part.isFar && !all) part.isStale = true; else paintBlock(part);
  }
  addEventListener("beforeprint", () => recolour(true));

  let block = null;
  function startBlock(i) {
    const element = document.createElement("div");
    element.className = "block";
    element.dataset.block = blocks.length;
    block = { element, from: i, to: i, isFar: false, isStale: false };
    blocks.push(block);
    place.append(element);
    watcher.observe(element);
  }
  function drawUpTo(end) {
    const stop = Math.min(count, end);
    for (let i = spans.length; i < stop; i += 1) {
      if (!block) startBlock(i);
      if (isMixed && (i === 0 || origins.values[i] !== origins.values[i - 1])) {
        const said = document.createElement("span");
        said.className = "said-by";
        said.dataset.by = shown(origins, i);
        block.element.append(said);
      }
      const span = document.createElement("span");
      span.dataset.i = i;
      const kind = fill(span, i);
      kinds[i] = `${kind ? ` ${kind}` : ""}${stored.loss_mask?.[i] === 0 ? " is-out" : ""}${i > 0 && starts.has(i) ? " starts-step" : ""}`;
      spans[i] = span;
      paint(i);
      block.element.append(span);
      block.to = i + 1;
      const size = block.to - block.from;
      if ((piece(i)?.endsWith("\n") && size >= 300) || size >= 4000) block = null;
    }
    if (stop < count) setTimeout(() => { if (spans.length === stop) drawUpTo(stop + LATER) });
  }
  function redraw() {
    watcher.disconnect();
    place.replaceChildren();
    spans.length = painted.length = blocks.length = 0;
    block = null;
    drawUpTo(AT_ONCE);
  }

  // ---- legend
  function legend() {
    const box = $("#legend");
    box.replaceChildren();
    if (!colour) return;
    box.append(...rlviewer.tokens.legend(colour, false));
    if (colour.nan || colour.infinite) {
      const jump = document.createElement("button");
      jump.type = "button";
      jump.className = "chip red";
      jump.textContent = [colour.nan && `${colour.nan} NaN`, colour.infinite && `${colour.infinite} infinite`].filter(Boolean).join(", ");
      jump.title = "Go to the first";
      jump.addEventListener("click", () => choose(colour.broken, true));
      box.append(jump);
    }
    if (under) box.append(...rlviewer.tokens.legend(under, true));
    if (fields.get("loss_mask")?.counts[0]) {
      const out = document.createElement("span");
      out.className = "is-out small";
      out.textContent = "left out of the loss";
      box.append(out);
    }
  }

  // ---- inspector
  function row(list, name, value, title) {
    const term = document.createElement("dt");
    const words = document.createElement("dd");
    term.textContent = name;
    words.textContent = value;
    words.className = "tnum";
    if (title) words.title = title;
    list.append(term, words);
    return words;
  }
  function bytesOf(text) {
    return [...text].flatMap((char) => {
      const code = char.codePointAt(0);
      return code >= rlviewer.raw.ESCAPE ? [code - rlviewer.raw.ESCAPE] : [...new TextEncoder().encode(char)];
    });
  }
  function inspect() {
    const i = pointed ?? chosen;
    inspector.replaceChildren();
    inspector.classList.toggle("is-empty", i === null && range === null);
    const title = document.createElement("h2");
    title.className = "small";
    inspector.append(title);
    if (i === null && range === null) {
      title.textContent = "Token";
      const hint = document.createElement("p");
      hint.className = "muted small";
      hint.textContent = count ? "Point at a token, or press the right arrow." : "This rollout has no tokens.";
      inspector.append(hint);
      return;
    }
    const list = document.createElement("dl");
    list.className = "pairs tight";
    if (i === null) summarise(title, list); else {
      title.textContent = `Token ${i} of 0–${count - 1}`;
      const text = piece(i);
      const words = document.createElement("p");
      words.className = "mono token-text";
      words.dir = "ltr";
      if (text === null) words.textContent = "text not known"; else if (text === "") words.textContent = "(empty)"; else words.append(...rlviewer.raw.nodes(text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥")));
      inspector.append(words);
      row(list, "id", String(ids[i]));
      if (text && !/^[\x20-\x7e]+$/.test(text)) row(list, "bytes", bytesOf(text).map((byte) => byte.toString(16).padStart(2, "0")).join(" "));
      const ordered = [colour, ...[...fields.values()].filter((field) => field !== colour)].filter(Boolean);
      for (const field of ordered) {
        const value = row(list, field.title, shown(field, i), field.scale === "named" ? field.meaning : `${exact(field.values[i])}${field.unit ? ` ${field.unit}` : ""}. ${field.meaning}`);
        if (field === colour) value.classList.add("strong");
        if (field.scale === "signed" && field.values[i]) value.classList.add(field.values[i] > 0 ? "positive" : "negative");
        if (field.scale !== "named" && !Number.isFinite(field.values[i])) value.classList.add("not-finite");
      }
    }
    inspector.append(list);
  }
  function summarise(title, list) {
    const [from, to] = range;
    title.textContent = `Tokens ${from} to ${to}`;
    row(list, "tokens", String(to - from + 1));
    for (const field of fields.values()) {
      if (field.scale === "named") continue;
      const values = Array.from(field.values.subarray(from, to + 1)).filter(Number.isFinite);
      if (!values.length) { row(list, field.title, "no finite value"); continue }
      const sum = values.reduce((a, b) => a + b, 0);
      const total = field.unit === "steps" ? "" : `, sum ${significant(sum)}`; // versions do not add up
      row(list, field.title, `mean ${significant(sum / values.length)}${total}`);
    }
  }

  // ---- pointing and choosing
  const refreshSpan = (i) => { if (i !== null && spans[i]) paint(i) };
  function point(i) {
    if (i === pointed) return;
    const before = pointed;
    pointed = i;
    refreshSpan(before);
    refreshSpan(i);
    chart?.move(i ?? chosen);
    picture?.move(i ?? chosen);
    inspect();
  }
  function choose(i, scroll) {
    if (!count) return;
    const before = chosen;
    chosen = i === null ? null : Math.max(0, Math.min(count - 1, i));
    pointed = null;
    if (range) { range = null; chart?.brush(null); recolour() }
    if (chosen !== null && !spans[chosen]) drawUpTo(chosen + 1);
    refreshSpan(before);
    refreshSpan(chosen);
    if (scroll && chosen !== null) {
      spans[chosen].closest(".block").classList.add("is-near");
      const at = spans[chosen].getBoundingClientRect();
      if (at.top < 120 || at.bottom > innerHeight * (innerWidth <= 640 ? 0.6 : 0.8)) spans[chosen].scrollIntoView({ block: "center" });
    }
    chart?.move(chosen);
    picture?.move(chosen);
    inspect();
    remember();
    tellChosen();
  }
  // What else stands on the page, such as labels, speaks of the tokens that are chosen: first, and one past the last.
  function tellChosen() {
    const detail = range ? [range[0], range[1] + 1] : chosen === null ? null : [chosen, chosen + 1];
    place.dispatchEvent(new CustomEvent("tokens-chosen", { detail, bubbles: true }));
  }
  function chooseRange(from, to) {
    range = [from, to];
    chosen = pointed = null;
    if (!spans[to]) drawUpTo(to + 1);
    recolour();
    chart?.brush(range);
    chart?.move(null);
    inspect();
    remember();
    tellChosen();
    spans[from]?.scrollIntoView({ block: "nearest" });
  }
  /** Shift and an arrow: one token more or less at the end of the range. */
  function extend(by) {
    const [from, to] = range ?? [chosen ?? 0, chosen ?? 0];
    chooseRange(from, Math.max(from, Math.min(count - 1, to + by)));
  }
  function lineAbove(direction) {
    const at = spans[chosen ?? 0].getBoundingClientRect();
    let best = chosen, distance = Infinity, line = null;
    for (let i = (chosen ?? 0) + direction; i >= 0 && i < spans.length; i += direction) {
      const box = spans[i].getBoundingClientRect();
      if (Math.abs(box.top - at.top) < 4) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) >= 4) break;
      const away = Math.abs(box.left - at.left);
      if (away < distance) [best, distance] = [i, away];
    }
    return best;
  }

  // A text that moves under a resting mouse is not pointed at.
  let mouse = "";
  place.addEventListener("mouseover", (event) => {
    const span = event.target.closest("[data-i]"), now = `${event.clientX},${event.clientY}`;
    if (span && now !== mouse) point(Number(span.dataset.i));
    mouse = now;
  });
  document.addEventListener("mousemove", (event) => { mouse = `${event.clientX},${event.clientY}` }, { passive: true });
  place.addEventListener("mouseleave", () => point(null));
  place.addEventListener("click", (event) => {
    const span = event.target.closest("[data-i]");
    if (span && getSelection().isCollapsed) choose(Number(span.dataset.i), false);
  });
  // Text that is selected over several tokens chooses them.
  document.addEventListener("mouseup", () => {
    const selection = getSelection();
    if (selection.isCollapsed || !place.contains(selection.anchorNode) || !place.contains(selection.focusNode)) return;
    const [a, b] = [selection.anchorNode, selection.focusNode].map((node) => (node.nodeType === Node.TEXT_NODE ? node.parentElement : node).closest("[data-i]")?.dataset.i);
    if (a !== undefined && b !== undefined && a !== b) chooseRange(Math.min(a, b), Math.max(a, b));
  });
  place.addEventListener("labels-shown", (event) => {
    labelled = new Uint8Array(count);
    for (const [start, end] of event.detail) labelled.fill(1, start, end);
    recolour();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || view !== "tokens" || !count) return;
    const here = event.target === place;
    if (!here && event.target.closest("input, select, textarea, button, summary, [tabindex='0']")) return;
    const moves = event.shiftKey ? { ArrowRight: () => extend(1), ArrowLeft: () => extend(-1) } : {
      ArrowRight: () => choose(chosen === null ? 0 : chosen + 1, true),
      ArrowLeft: () => choose(chosen === null ? count - 1 : chosen - 1, true),
      ...(here && { ArrowDown: () => choose(lineAbove(1), true), ArrowUp: () => choose(lineAbove(-1), true), Home: () => choose(0, true), End: () => choose(count - 1, true) }),
      ...((chosen !== null || range || marks) && { Escape: () => { if (chosen === null && !range) mark(null); else choose(null) } }),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
  // Copying a stretch of tokens gives their text, without the marks that make spaces and line ends visible.
  place.addEventListener("copy", (event) => {
    const part = getSelection().getRangeAt(0).cloneContents();
    const places = $$("[data-i]", part).map((span) => Number(span.dataset.i));
    if (!places.length || source === "none") return;
    const plain = (text) => text.replace(/[\u{10ff00}-\u{10ffff}]/gu, (char) => char.codePointAt(0) === 0x10ff00 ? "\0" : "\ufffd");
    event.clipboardData.setData("text/plain", places.map((i) => plain(piece(i) ?? "")).join(""));
    event.preventDefault();
    event.stopPropagation();
  });

  // ---- tokens marked by a count: a quadrant, or what a rule would cut
  function markTest(name) {
    if (name in (picture?.names ?? {})) return picture.holds(name);
    if (whatIf && isTrying && /^cut-(positive|negative)$/.test(name)) return whatIf.isCut(name.slice(4));
    return null;
  }
  const markWords = (name) => picture?.names[name] ?? `cut, advantage ${name === "cut-positive" ? "> 0" : "< 0"}`;
  let markName = null;
  function mark(name) {
    const test = name === null ? null : markTest(name);
    markName = test ? name : null;
    marks = test ? Uint8Array.from({ length: count }, (_, i) => test(i) ? 1 : 0) : null;
    const total = marks?.reduce((a, b) => a + b, 0) ?? 0;
    $("#marks").hidden = !marks;
    if (marks) $("[data-marks-words]").textContent = `${total.toLocaleString("en")} token${total === 1 ? "" : "s"} marked: ${markWords(name)}`;
    recolour();
    remember();
  }
  function nextMark(direction) {
    for (let step = 1; step <= count; step += 1) {
      const i = (((chosen ?? (direction > 0 ? -1 : count)) + direction * step) % count + count) % count;
      if (marks[i]) return choose(i, true);
    }
  }

  // ---- state: in the address, carried along to the siblings; the fields also stay with the person
  const KEPT = `rlviewer-tokens-${place.dataset.person}`;
  const asked = new URLSearchParams(location.search);
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem(KEPT)) ?? {} } catch { /* private window */ }
  // An address that names a field is what somebody meant; only a bare one takes what the person last used.
  const isBare = !asked.has("color") && !asked.has("under");
  let isTold = !isBare || Object.keys(kept).length > 0;
  let view = "tokens", before = "tokens", timer = 0, isTrying = false;
  function state() {
    const tried = isTrying && whatIf ? whatIf.state() : {};
    return {
      color: isTold ? colour?.name : null, under: under?.name, view: view === "tokens" ? null : view, quad: picture?.state(), mark: markName,
      rule: null, ...Object.fromEntries((whatIf?.knobs ?? []).map((knob) => [knob, null])), ...tried,
    };
  }
  function write(address, values) {
    for (const [name, value] of Object.entries(values)) if (value === null || value === undefined || value === "") address.searchParams.delete(name); else address.searchParams.set(name, value);
    return address;
  }
  function remember() {
    // At once, since a key may follow them in the next moment; browsers limit how often the address may change.
    for (const link of $$("a[data-carry]")) link.href = write(new URL(link.href), state());
    clearTimeout(timer);
    timer = setTimeout(() => history.replaceState(history.state, "", write(new URL(location.href), { token: chosen, tokens: range?.join("-"), ...state() })), 150);
  }
  function keep() {
    isTold = true;
    const own = colour?.name === "what_if" ? kept.color : colour?.name;
    kept = { color: own, under: under?.name, spaces: allSpaces || undefined };
    try { localStorage.setItem(KEPT, JSON.stringify(kept)) } catch { /* private window */ }
  }

  // ---- chart
  let chart = null;
  function drawChart() {
    if (!chart || !colour) return;
    const series = [colour, under].filter(Boolean).map((field) => field.scale === "named"
      ? { title: field.title, low: 0, high: Math.max(1, field.names.length - 1), values: (i) => field.values[i], label: (v) => field.names[v] ?? "" }
      : { title: field.title + (field.unit ? `, ${field.unit}` : ""), low: Math.min(field.low, field.scale === "signed" ? 0 : field.low), high: Math.max(field.high, field.scale === "signed" ? 0 : field.high), values: (i) => field.values[i], label: significant });
    chart.show(series.filter((one) => one.low <= one.high));
  }
  /** The chart shows which stretch of the tokens is on the screen. */
  function showWindow() {
    const top = 48, bottom = innerHeight;
    let from = null, to = null;
    for (const part of blocks) {
      if (part.isFar) continue;
      const box = part.element.getBoundingClientRect();
      if (box.bottom <= top || box.top >= bottom || !box.height) continue;
      const at = (y) => part.from + Math.round((part.to - part.from) * Math.max(0, Math.min(1, (y - box.top) / box.height)));
      from ??= at(top);
      to = at(bottom);
    }
    chart?.window(from === null || to - from >= count ? null : [from, Math.min(count - 1, to)]);
  }
  let isAsked = false;
  addEventListener("scroll", () => {
    if (isAsked || !chart) return;
    isAsked = true;
    requestAnimationFrame(() => { isAsked = false; showWindow() });
  }, { passive: true });

  // ---- controls
  function setFields(colourName, underName) {
    colour = fields.get(colourName) ?? firstField;
    under = fields.get(underName) ?? null;
    if ($("#colour")) { $("#colour").value = colour?.name ?? ""; $("#underline").value = under?.name ?? "" }
  }
  function show() {
    recolour();
    legend();
    drawChart();
    inspect();
    remember();
  }
  function colourBy(name) { setFields(name, under?.name); keep(); show() }
  function underlineBy(name) { setFields(colour?.name, name); keep(); show() }
  const VIEWS = ["tokens", "read", "text", "ids", "json"];
  function look(name) {
    const next = VIEWS.includes(name) ? name : "tokens";
    if (next !== view) before = view;
    view = next;
    $$("[data-view]").forEach((button) => button.setAttribute("aria-pressed", button.dataset.view === view));
    $$(".token-only").forEach((element) => element.classList.toggle("is-away", view !== "tokens"));
    // The conversation has the prompt as its first turn.
    $(".prompt-fold").classList.toggle("is-away", view === "read");
    if (view === "read") rlviewer.conversation.show(); else rlviewer.conversation.hide();
    if (view === "tokens" || view === "read") rlviewer.raw.hide(); else rlviewer.raw.show(view);
    remember();
  }
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    if (at("[data-view]")) look(at("[data-view]").dataset.view);
    else if (at("[data-next-view]")) look(VIEWS[(VIEWS.indexOf(view) + 1) % VIEWS.length]);
    else if (at("[data-raw-view]")) look(view === "text" ? before : "text");
    else if (at("#next-field")) {
      const all = [...fields.keys()];
      colourBy(all[(all.indexOf(colour.name) + 1) % all.length]);
    } else if (at("#spaces")) {
      showSpaces(!allSpaces);
      keep();
      redraw();
    } else if (at("#try")) tryRule(!isTrying);
    else if (at("[data-mark-step]")) nextMark(Number(at("[data-mark-step]").dataset.markStep));
    else if (at("[data-mark-none]")) mark(null);
    else if (at("[data-range]")) {
      const [from, to] = at("[data-range]").dataset.range.split(":").map(Number);
      if (count) { look("tokens"); chooseRange(Math.max(0, Math.min(count - 1, from)), Math.max(0, Math.min(count - 1, to > from ? to - 1 : to))) }
    }
  });
  $("#colour")?.addEventListener("change", (event) => colourBy(event.target.value));
  $("#underline")?.addEventListener("change", (event) => underlineBy(event.target.value));
  function showSpaces(on) {
    allSpaces = on;
    $("#spaces")?.setAttribute("aria-pressed", on);
  }

  // ---- the what-if is one more field, worked out here
  const CUT_NAMES = ["kept", "cut, ratio high", "cut, ratio low", "not counted"];
  const whatIf = count && $("#what-if") ? rlviewer.whatIfPanel($("#what-if"), $("#what-if-notes"), {
    columns: stored, told: data.rule, advantage: data.advantage, stored: stored.clip_flag, number: data.number, address: $("#raw").dataset.address, onMark: mark,
    onFlags(flags) {
      fields.set("what_if", measured({ name: "what_if", title: "what-if", unit: "", scale: "named", names: CUT_NAMES, meaning: "What the rule below would do to each token.", values: flags }));
      if (colour?.name === "what_if") colour = fields.get("what_if");
      if (under?.name === "what_if") under = fields.get("what_if");
      if (!isTrying) return;
      if (markName?.startsWith("cut-")) mark(markName);
      show();
    },
  }) : null;
  if ($("#try")) $("#try").hidden = !whatIf;
  let colourBefore = null;
  function tryRule(on, rule, values) {
    if (!whatIf) return;
    isTrying = on;
    $("#what-if").hidden = $("#what-if-notes").hidden = !on;
    $("#try").setAttribute("aria-expanded", on);
    for (const select of [$("#colour"), $("#underline")]) {
      select.querySelector("[value=what_if]")?.remove();
      if (on) select.append(new Option("what-if", "what_if"));
    }
    if (on) {
      whatIf.open(rule, values);
      colourBefore = colour?.name;
      setFields(rule ? colour?.name : "what_if", under?.name);
    } else {
      fields.delete("what_if");
      if (markName?.startsWith("cut-")) mark(null);
      setFields(colour?.name === "what_if" ? colourBefore : colour?.name, under?.name);
    }
    isTold = true;
    show();
  }

  // ---- quadrants, where entropy and a divergence were recorded
  const divergences = [...fields.values()].filter((field) => /^x_.*(divergence|kl)/i.test(field.name)).concat(fields.get("probability_change") ?? []);
  const given = rlviewer.whatIf.inputs(stored, data.advantage);
  const box = $("#quadrants");
  const picture = box && fields.has("entropy") && divergences.length ? rlviewer.quadrants(box, {
    entropy: fields.get("entropy"), divergences, onHover: point, onPick: (i) => choose(i, true), onMark: mark, onChange: () => { if (markName in picture.names) mark(markName); remember() },
    counts: (i) => stored.loss_mask?.[i] !== 0,
    push: given && ((i) => stored.clip_flag?.[i] === 1 || stored.clip_flag?.[i] === 2 ? 0 : Math.abs(given.advantages[i]) * Math.exp(Math.max(-20, Math.min(20, given.logRatio[i]))) || 0),
  }) : null;
  if (box) box.hidden = !picture;

  // ---- first drawing
  const note = $("#token-note");
  const NOTES = {
    characters: "This run recorded no vocabulary. There are as many characters as tokens, so each token is shown as one character: a guess.",
    none: "This run recorded no vocabulary: tokens are shown by their ids. The text is under “Text”.",
    unjoined: "The tokens' texts joined are not exactly the stored completion: the decoder that wrote it changed something.",
  };
  const words = !count ? "" : source !== "vocabulary" ? NOTES[source] : data.pieces.joins ? "" : NOTES.unjoined;
  note.textContent = words;
  note.hidden = !words;
  place.hidden = !count;
  const wanted = isBare ? kept : { color: asked.get("color"), under: asked.get("under") };
  if (kept.spaces) showSpaces(true);
  setFields(wanted.color, wanted.under);
  drawUpTo(AT_ONCE);
  legend();
  if (count && fields.size) {
    $("#token-chart").hidden = false;
    chart = rlviewer.tokenChart($("#token-chart"), { count, onHover: point, onPick: (i) => choose(i, true), onBrush: chooseRange, table: `${$("#raw").dataset.address}csv/?download` });
    drawChart();
    showWindow();
  }
  if (asked.has("rule")) {
    const values = Object.fromEntries((whatIf?.knobs ?? []).filter((knob) => Number(asked.get(knob)) >= 0 && asked.get(knob)).map((knob) => [knob, Number(asked.get(knob))]));
    tryRule(true, asked.get("rule"), values);
    if (asked.get("color") === "what_if") setFields("what_if", under?.name), show();
  }
  if (asked.has("quad") && picture) picture.open(asked.get("quad"));
  if (asked.has("mark")) mark(asked.get("mark"));
  const token = asked.get("token");
  if (token !== null && /^\d+$/.test(token)) choose(Number(token), true);
  const [first, last] = /^(\d{1,9})-(\d{1,9})$/.exec(asked.get("tokens"))?.slice(1).map(Number) ?? [];
  if (first <= last && last < count) chooseRange(first, last);
  look(asked.get("view") ?? (count ? "tokens" : "text"));
};
