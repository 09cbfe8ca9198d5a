// One rollout: every token coloured by one field and underlined by another, its numbers in the inspector, all state in the address.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const data = JSON.parse($("#rollout-data").textContent);
  const place = $("#tokens");
  const inspector = $("#inspector");
  const count = data.count;

  // ---- numbers, as stored
  const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  function numbers(type, text) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new TYPES[type](bytes.buffer);
  }
  const ids = data.ids === null ? null : numbers("i4", data.ids);
  const fields = new Map(data.fields.map((field) => [field.name, prepared(field)]));

  function prepared(field) {
    const values = numbers(field.type, field.data);
    // What decides the colour: surprise for log-probabilities, the logarithm for ratios, the value itself else.
    const isLogprob = field.name.endsWith("_logprobs");
    const strength = field.scale === "ratio" ? (v) => Math.log(v) : isLogprob ? (v) => -v : (v) => v;
    let low = Infinity, high = -Infinity, largest = 0, top = -Infinity, bottom = Infinity, nan = 0, infinite = 0, broken = -1;
    const counts = field.names.map(() => 0);
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i];
      if (field.scale === "named") { counts[value] = (counts[value] ?? 0) + 1; continue }
      if (!Number.isFinite(value)) {
        if (Number.isNaN(value)) nan += 1; else infinite += 1;
        if (broken < 0) broken = i;
        continue;
      }
      const s = strength(value);
      if (value < low) low = value;
      if (value > high) high = value;
      if (!Number.isFinite(s)) continue;
      if (Math.abs(s) > largest) largest = Math.abs(s);
      if (s > top) top = s;
      if (s < bottom) bottom = s;
    }
    const floor = field.name === "token_policy_version" ? bottom : Math.min(0, bottom);
    return { ...field, values, strength, isLogprob, low, high, largest, top, floor, nan, infinite, broken, counts };
  }

  // ---- words for numbers
  function significant(value) {
    if (value === undefined || value === null) return "—";
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = Number.isInteger(value) && size < 1e6 ? String(value) : size < 1e-4 || size >= 1e6 ? value.toExponential(2) : value.toPrecision(size >= 1000 ? 4 : 3);
    return text.replace("-", "−");
  }
  /** The shortest decimal that is this float32 and no other. */
  function exact(value) {
    if (!Number.isFinite(value)) return String(value);
    for (let digits = 1; digits <= 9; digits += 1) {
      const text = Number(value.toPrecision(digits));
      if (Math.fround(text) === value) return String(text);
    }
    return String(value);
  }
  const shown = (field, i) => {
    const value = field.values[i];
    if (field.scale === "named") return field.names[value] ?? `unknown (${value})`;
    const sign = field.scale === "signed" && value > 0 ? "+" : "";
    return `${sign}${significant(value)}${field.unit ? ` ${field.unit}` : ""}`;
  };

  // ---- colours: the same 64 buckets as rlviewer/lib/colour.py
  function colourClass(field, i) {
    const value = field.values[i];
    if (field.scale === "named") return `nm${field.name === "loss_mask" ? (value ? 1 : 0) : value}`;
    const s = field.strength(value);
    if (Number.isNaN(s)) return "scale-none broken-value";
    const mark = Number.isFinite(value) ? "" : " broken-value";
    if (field.scale === "sequential") {
      const span = field.top - field.floor;
      const share = span > 0 ? Math.max(0, Math.min(1, (s - field.floor) / span)) : 0;
      return `sq${Math.round(share * 63)}${mark}`;
    }
    const share = field.largest > 0 ? Math.max(-1, Math.min(1, s / field.largest)) : Math.sign(s);
    const step = Math.ceil(Math.abs(share) * 31);
    return `sg${32 + (share > 0 ? step : -step)}${mark}`;
  }
  function underlineClass(field, i) {
    if (!field) return "";
    const value = field.values[i];
    if (field.scale === "named") return value ? ` u${Math.min(8, 2 * value)}` : "";
    const s = field.strength(value);
    if (Number.isNaN(s)) return " u8 ubad";
    const share = field.scale === "sequential" ? (field.top > field.floor ? (s - field.floor) / (field.top - field.floor) : 0) : field.largest ? Math.abs(s) / field.largest : 0;
    const level = Math.ceil(Math.min(1, share) * 8);
    return level ? ` u${level}${field.scale === "sequential" ? "" : s < 0 ? " uneg" : " upos"}` : "";
  }

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
  const spans = [];
  const kinds = [];
  const AT_ONCE = 4000;
  let colour = null, under = null;
  const classes = (i) => `tk ${colour ? colourClass(colour, i) : ""}${underlineClass(under, i)} ${kinds[i]}${i === chosen ? " is-chosen" : ""}${i === pointed ? " is-pointed" : ""}${inRange(i) ? " is-ranged" : ""}`;
  let block = null, inBlock = 0;
  function drawUpTo(end) {
    const stop = Math.min(count, end);
    for (let i = spans.length; i < stop; i += 1) {
      if (!block) { block = document.createElement("div"); block.className = "block"; inBlock = 0; place.append(block) }
      const span = document.createElement("span");
      span.dataset.i = i;
      kinds[i] = fill(span, i);
      spans[i] = span;
      span.className = classes(i);
      block.append(span);
      inBlock += 1;
      const endsLine = piece(i)?.endsWith("\n");
      if ((endsLine && inBlock >= 400) || inBlock >= 4000) block = null;
    }
    if (stop < count) setTimeout(() => { if (spans.length === stop) drawUpTo(stop + AT_ONCE) });
  }
  function redraw() {
    place.replaceChildren();
    spans.length = 0;
    block = null;
    drawUpTo(AT_ONCE);
  }
  const recolour = () => spans.forEach((span, i) => { span.className = classes(i) });

  // ---- legend
  function legend() {
    const box = $("#legend");
    box.replaceChildren();
    if (!colour) return;
    const bar = (name, buckets) => {
      const strip = document.createElement("span");
      strip.className = "bar";
      strip.setAttribute("aria-hidden", "true");
      buckets.forEach((bucket) => { const part = document.createElement("i"); part.className = `${name}${bucket}`; strip.append(part) });
      return strip;
    };
    const words = (text, css = "tnum") => { const span = document.createElement("span"); span.className = css; span.textContent = text; return span };
    const scale = document.createElement("span");
    scale.className = "scale";
    if (colour.scale === "named") {
      colour.names.forEach((name, value) => {
        if (!colour.counts[value]) return;
        const chip = words(`${name} ${colour.counts[value].toLocaleString("en")}`, `tk nm${value} legend-chip`);
        scale.append(chip);
      });
    } else if (colour.low > colour.high) scale.append(words("no finite value"));
    else if (colour.low === 0 && colour.high === 0) scale.append(words(`0${colour.unit ? ` ${colour.unit}` : ""} at every token`));
    else {
      const steps = [...Array(16).keys()].map((n) => Math.round(n * 63 / 15));
      const unit = colour.unit ? ` ${colour.unit}` : "";
      if (colour.scale === "sequential") {
        const ends = colour.isLogprob ? [-colour.floor, -colour.top] : [colour.floor, colour.top];
        scale.append(words(`${significant(ends[0] + 0)}${unit}`), bar("sq", steps), words(`${significant(ends[1])}${unit}`));
      } else {
        const signedSteps = steps.map((n) => Math.max(1, n));
        const ends = colour.scale === "ratio" ? [Math.exp(-colour.largest), 1, Math.exp(colour.largest)] : [-colour.largest, 0, colour.largest];
        scale.append(words(significant(ends[0])), bar("sg", signedSteps), words(`${colour.scale === "ratio" ? "" : "+"}${significant(ends[2])}${unit}`), words(`uncoloured at ${ends[1]}`, "muted"));
      }
    }
    box.append(scale, words(colour.meaning, "muted small"));
    if (colour.nan || colour.infinite) {
      const jump = document.createElement("button");
      jump.type = "button";
      jump.className = "chip red";
      jump.textContent = [colour.nan && `${colour.nan} NaN`, colour.infinite && `${colour.infinite} infinite`].filter(Boolean).join(", ");
      jump.title = "Go to the first";
      jump.addEventListener("click", () => choose(colour.broken, true));
      box.append(jump);
    }
  }

  // ---- inspector
  let chosen = null, pointed = null, range = null;
  const inRange = (i) => range !== null && i >= range[0] && i <= range[1];
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
      row(list, field.title, `mean ${significant(sum / values.length)}, sum ${significant(sum)}`);
    }
  }

  // ---- pointing and choosing
  const refreshSpan = (i) => { if (i !== null && spans[i]) spans[i].className = classes(i) };
  function point(i) {
    if (i === pointed) return;
    const before = pointed;
    pointed = i;
    refreshSpan(before);
    refreshSpan(i);
    chart?.move(i ?? chosen);
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
    inspect();
    remember();
  }
  function chooseRange(from, to) {
    range = [from, to];
    chosen = pointed = null;
    if (!spans[to]) drawUpTo(to + 1);
    recolour();
    chart?.brush(range);
    chart?.move(null);
    inspect();
    spans[from]?.scrollIntoView({ block: "nearest" });
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

  place.addEventListener("mouseover", (event) => { const span = event.target.closest("[data-i]"); if (span) point(Number(span.dataset.i)) });
  place.addEventListener("mouseleave", () => point(null));
  place.addEventListener("click", (event) => {
    const span = event.target.closest("[data-i]");
    if (span && getSelection().isCollapsed) choose(Number(span.dataset.i), false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || view !== "tokens" || !count) return;
    const here = event.target === place;
    if (!here && event.target.closest("input, select, textarea, button, summary, [tabindex='0']")) return;
    const moves = {
      ArrowRight: () => choose(chosen === null ? 0 : chosen + 1, true),
      ArrowLeft: () => choose(chosen === null ? count - 1 : chosen - 1, true),
      ...(here && { ArrowDown: () => choose(lineAbove(1), true), ArrowUp: () => choose(lineAbove(-1), true), Home: () => choose(0, true), End: () => choose(count - 1, true) }),
      ...((chosen !== null || range) && { Escape: () => choose(null) }),
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

  // ---- state in the address, carried along to the siblings
  let view = "tokens";
  let timer = 0;
  function remember() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const address = new URL(location.href);
      const set = (name, value) => value === null || value === "" ? address.searchParams.delete(name) : address.searchParams.set(name, value);
      set("token", chosen);
      set("color", colour && colour !== firstField ? colour.name : null);
      set("under", under?.name ?? null);
      set("view", view === "tokens" ? null : view);
      history.replaceState(history.state, "", address);
    }, 150);
    for (const link of $$("a[data-carry]")) {
      const address = new URL(link.href);
      for (const [name, value] of [["color", colour !== firstField && colour?.name], ["under", under?.name], ["view", view !== "tokens" && view]]) {
        if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
      }
      link.href = address;
    }
  }

  // ---- controls
  const firstField = fields.values().next().value ?? null;
  let chart = null;
  function drawChart() {
    if (!chart || !colour) return;
    const series = [colour, under].filter(Boolean).map((field) => field.scale === "named"
      ? { title: field.title, low: 0, high: Math.max(1, field.names.length - 1), values: (i) => field.values[i], label: (v) => field.names[v] ?? "" }
      : { title: field.title + (field.unit ? `, ${field.unit}` : ""), low: Math.min(field.low, field.scale === "signed" ? 0 : field.low), high: Math.max(field.high, field.scale === "signed" ? 0 : field.high), values: (i) => field.values[i], label: significant });
    chart.show(series.filter((one) => one.low <= one.high));
  }
  function colourBy(name) {
    colour = fields.get(name) ?? firstField;
    if ($("#colour")) $("#colour").value = colour?.name ?? "";
    recolour();
    legend();
    drawChart();
    inspect();
    remember();
  }
  function underlineBy(name) {
    under = fields.get(name) ?? null;
    if ($("#underline")) $("#underline").value = under?.name ?? "";
    recolour();
    drawChart();
    remember();
  }
  function look(name) {
    view = ["tokens", "text", "ids", "json"].includes(name) ? name : "tokens";
    $$("[data-view]").forEach((button) => button.setAttribute("aria-pressed", button.dataset.view === view));
    $$(".token-only").forEach((element) => element.classList.toggle("is-away", view !== "tokens"));
    if (view === "tokens") rlviewer.raw.hide(); else rlviewer.raw.show(view);
    remember();
  }
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    if (at("[data-view]")) look(at("[data-view]").dataset.view);
    else if (at("[data-next-view]")) {
      const all = $$("[data-view]").map((button) => button.dataset.view);
      look(all[(all.indexOf(view) + 1) % all.length]);
    } else if (at("#next-field")) {
      const all = [...fields.keys()];
      colourBy(all[(all.indexOf(colour.name) + 1) % all.length]);
    } else if (at("#spaces")) {
      allSpaces = !allSpaces;
      $("#spaces").setAttribute("aria-pressed", allSpaces);
      redraw();
    } else if (at("[data-range]")) {
      const [from, to] = at("[data-range]").dataset.range.split(":").map(Number);
      if (count) { look("tokens"); chooseRange(Math.max(0, Math.min(count - 1, from)), Math.max(0, Math.min(count - 1, to > from ? to - 1 : to))) }
    }
  });
  $("#colour")?.addEventListener("change", (event) => colourBy(event.target.value));
  $("#underline")?.addEventListener("change", (event) => underlineBy(event.target.value));

  // ---- first drawing
  const asked = new URLSearchParams(location.search);
  const note = $("#token-note");
  const NOTES = {
    characters: "This run recorded no vocabulary. There are as many characters as tokens, so each token is shown as one character: a guess.",
    none: "This run recorded no vocabulary: tokens are shown by their ids. The text is under “Text”.",
    unjoined: "The tokens' texts joined are not exactly the stored completion: the decoder that wrote it changed something.",
  };
  const words = !count ? "" : source !== "vocabulary" ? NOTES[source] : data.pieces.joins ? "" : NOTES.unjoined;
  note.textContent = words;
  note.hidden = !words;
  if (count && fields.size) {
    $("#token-chart").hidden = false;
    chart = rlviewer.tokenChart($("#token-chart"), { count, onHover: point, onPick: (i) => choose(i, true), onBrush: chooseRange });
  }
  place.hidden = !count;
  colour = fields.get(asked.get("color")) ?? firstField;
  under = fields.get(asked.get("under")) ?? null;
  drawUpTo(AT_ONCE);
  colourBy(colour?.name);
  underlineBy(under?.name);
  const token = asked.get("token");
  if (token !== null && /^\d+$/.test(token)) choose(Number(token), true);
  look(asked.get("view") ?? (count ? "tokens" : "text"));
})();
