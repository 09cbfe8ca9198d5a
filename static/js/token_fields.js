// Numbers of tokens: as stored, as words, as one of the colours of scales.css, and as a legend.
(() => {
  "use strict";
  const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  function numbers(type, text) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new TYPES[type](bytes.buffer);
  }

  /** A field of the page's data with its values and all that its colours need. */
  const prepared = (field) => measured({ ...field, values: field.values ?? numbers(field.type, field.data) });
  /** Gives the fields their values out of one buffer: the widest types first, else in their order. */
  function fromBuffer(fields, count, buffer) {
    let at = 0;
    for (const field of [...fields].sort((a, b) => TYPES[b.type].BYTES_PER_ELEMENT - TYPES[a.type].BYTES_PER_ELEMENT)) {
      field.values = new TYPES[field.type](buffer, at, count);
      at += field.values.byteLength;
    }
    if (at !== buffer.byteLength) throw new Error(`${buffer.byteLength} bytes of numbers, ${at} expected`);
  }
  function measured(field) {
    const { values, names } = field;
    // What decides the colour: surprise for log-probabilities, the logarithm for ratios, the value itself else.
    const isLogprob = field.name.endsWith("_logprobs");
    const strength = field.scale === "ratio" ? (v) => Math.log(v) : isLogprob ? (v) => -v : (v) => v;
    let low = Infinity, high = -Infinity, largest = 0, top = -Infinity, bottom = Infinity, nan = 0, infinite = 0, broken = -1;
    const counts = names.map(() => 0);
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
    return { ...field, strength, isLogprob, low, high, largest, top, floor, nan, infinite, broken, counts };
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
  function shown(field, i) {
    const value = field.values[i];
    if (field.scale === "named") return field.names[value] ?? `unknown (${value})`;
    const sign = field.scale === "signed" && value > 0 ? "+" : "";
    return `${sign}${significant(value)}${field.unit ? ` ${field.unit}` : ""}`;
  }

  // Whatever a rule left alone stays calm; what does not count is grey.
  const RULE_TONES = ["nm-kept", "nm1", "nm2", "nm0"];
  function tone(field, value) {
    if (field.name === "clip_flag" || field.name === "what_if") return RULE_TONES[value] ?? "nm3";
    return `nm${field.name === "loss_mask" ? (value ? 1 : 0) : value}`;
  }

  // ---- colours: the same 64 buckets as rlviewer/lib/colour.py
  function colourClass(field, i) {
    const value = field.values[i];
    if (field.scale === "named") return tone(field, value);
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
    const value = field.values[i];
    if (field.scale === "named") return value ? ` u${Math.min(8, 2 * value)}` : "";
    const s = field.strength(value);
    if (Number.isNaN(s)) return " u8 ubad";
    const share = field.scale === "sequential" ? (field.top > field.floor ? (s - field.floor) / (field.top - field.floor) : 0) : field.largest ? Math.abs(s) / field.largest : 0;
    const level = Math.ceil(Math.min(1, share) * 8);
    return level ? ` u${level}${field.scale === "sequential" ? "" : s < 0 ? " uneg" : " upos"}` : "";
  }

  // ---- legend
  function words(text, css = "tnum") {
    const span = document.createElement("span");
    span.className = css;
    span.textContent = text;
    return span;
  }
  /** The ends of a field's scale in its own numbers; null where all values are the same. */
  function ends(field) {
    const unit = field.unit ? ` ${field.unit}` : "";
    if (field.low > field.high) return { text: "no finite value" };
    if (field.low === field.high && (field.scale === "sequential" || field.low === (field.scale === "ratio" ? 1 : 0))) return { text: `${significant(field.low)}${unit} at every token` };
    if (field.scale === "sequential") {
      const [from, to] = field.isLogprob ? [-field.floor + 0, -field.top] : [field.floor, field.top];
      return { from: `${significant(from)}${unit}`, to: `${significant(to)}${unit}` };
    }
    const isRatio = field.scale === "ratio";
    const [from, to] = isRatio ? [Math.exp(-field.largest), Math.exp(field.largest)] : [-field.largest, field.largest];
    return { from: significant(from), to: `${isRatio ? "" : "+"}${significant(to)}${unit}`, middle: isRatio ? "1" : "0" };
  }
  function strip(classes) {
    const bar = words("", "bar");
    bar.setAttribute("aria-hidden", "true");
    bar.append(...classes.map((name) => { const part = document.createElement("i"); part.className = name; return part }));
    return bar;
  }
  /** Nodes of the legend of one field, as colour or as underline. */
  function legend(field, isUnderline) {
    const scale = words("", "scale");
    scale.append(words(`${isUnderline ? "underline" : "colour"}: ${field.title}`, "strong"));
    if (field.scale === "named") {
      field.names.forEach((name, value) => {
        if (!field.counts[value]) return;
        const css = isUnderline ? `legend-chip ${value ? `u${Math.min(8, 2 * value)}` : ""}` : `tk ${tone(field, value)} legend-chip`;
        scale.append(words(`${name} ${field.counts[value].toLocaleString("en")}`, css));
      });
    } else {
      const { text, from, to, middle } = ends(field);
      if (text) scale.append(words(text));
      else if (isUnderline) scale.append(...(middle ? [words(from), strip(["u8 uneg", "u4 uneg", "", "u4 upos", "u8 upos"]), words(to)] : [words(from), strip(["", "u2", "u4", "u6", "u8"]), words(to)]));
      else {
        const steps = [...Array(16).keys()].map((n) => Math.round(n * 63 / 15));
        scale.append(words(from), strip(steps.map((n) => middle ? `sg${Math.max(1, n)}` : `sq${n}`)), words(to));
        if (middle) scale.append(words(`uncoloured at ${middle}`, "muted"));
      }
    }
    const meaning = words(field.meaning, "muted small");
    return isUnderline ? [scale] : [scale, meaning];
  }

  rlviewer.tokens = { numbers, fromBuffer, prepared, measured, significant, exact, shown, colourClass, underlineClass, legend };
})();
