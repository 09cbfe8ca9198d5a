// Entropy against divergence: every counted token a point, four quadrants with their counts and their share of the push.
(() => {
  "use strict";
  const SIZE = { width: 236, height: 168, inset: 8 };
  const NAMES = { lh: "low entropy, high divergence", hh: "high entropy, high divergence", ll: "low entropy, low divergence", hl: "high entropy, low divergence" };

  /** Value below which the given percentage of `sorted` lies. */
  const quantile = (sorted, percent) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * percent / 100))];

  /**
   * Fills `box`, whose template has the selects and sliders.
   * `entropy` and `divergences` are fields, `counts(i)` says which tokens count, `push(i)` is null or a token's weight in the gradient.
   */
  function quadrants(box, { entropy, divergences, counts, push, onHover, onPick, onMark, onChange }) {
    const $ = (selector) => box.querySelector(selector);
    const canvas = $("canvas"), measure = $("#divergence"), sliders = { x: $("#split-x"), y: $("#split-y") };
    const cells = Object.fromEntries(Object.keys(NAMES).map((name) => [name, $(`[data-quadrant="${name}"]`)]));
    let field = divergences[0], places = [], split = { x: 0, y: 0 }, top = { x: 1, y: 1 }, at = null;
    measure.replaceChildren(...divergences.map(({ name, title }) => new Option(title, name)));

    const nameOf = (i) => `${entropy.values[i] >= split.x ? "h" : "l"}${field.values[i] >= split.y ? "h" : "l"}`;
    function read() {
      places = [];
      for (let i = 0; i < entropy.values.length; i += 1) if (counts(i) && Number.isFinite(entropy.values[i]) && Number.isFinite(field.values[i])) places.push(i);
      for (const [axis, of] of [["x", entropy], ["y", field]]) {
        const sorted = Float64Array.from(places, (i) => of.values[i]).sort();
        split[axis] = quantile(sorted, Number(sliders[axis].value)) ?? 0;
        top[axis] = sorted.at(-1) || 1;
        sliders[axis].setAttribute("aria-valuetext", `${sliders[axis].value} % of tokens below ${rlviewer.tokens.significant(split[axis])} nats`);
      }
      const sums = Object.fromEntries(Object.keys(NAMES).map((name) => [name, { tokens: 0, push: 0 }]));
      let all = 0;
      for (const i of places) {
        const sum = sums[nameOf(i)], weight = push ? push(i) : 0;
        sum.tokens += 1;
        sum.push += weight;
        all += weight;
      }
      for (const [name, { tokens, push: own }] of Object.entries(sums)) {
        const words = document.createElement("span");
        words.className = "small";
        words.textContent = all ? `${(100 * own / all).toFixed(0)} % of push` : push ? "no push" : "push not known";
        cells[name].replaceChildren(tokens.toLocaleString("en"), words);
        cells[name].disabled = !tokens;
        cells[name].title = `Mark the tokens of ${NAMES[name]}`;
      }
      $("[data-split-words]").textContent = `Split at entropy ${rlviewer.tokens.significant(split.x)} nats (${sliders.x.value} % of tokens below) and ${field.title} ${rlviewer.tokens.significant(split.y)}${field.unit ? ` ${field.unit}` : ""} (${sliders.y.value} %). ${places.length.toLocaleString("en")} counted tokens.`;
      draw();
    }

    // ---- the picture; square roots, since most tokens lie near zero
    const { width, height, inset } = SIZE;
    const across = (value, axis) => Math.sqrt(Math.max(0, value) / top[axis]);
    const x = (i) => inset + across(entropy.values[i], "x") * (width - 2 * inset);
    const y = (i) => height - inset - across(field.values[i], "y") * (height - 2 * inset);
    function draw() {
      const scale = devicePixelRatio;
      canvas.width = width * scale;
      canvas.height = height * scale;
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      const { color, outlineColor } = getComputedStyle(canvas);
      pen.fillStyle = color;
      pen.globalAlpha = places.length > 2000 ? 0.25 : 0.55;
      for (const i of places) pen.fillRect(x(i) - 1.5, y(i) - 1.5, 3, 3);
      pen.globalAlpha = 1;
      pen.strokeStyle = outlineColor;
      pen.setLineDash([4, 3]);
      const cross = { x: inset + across(split.x, "x") * (width - 2 * inset), y: height - inset - across(split.y, "y") * (height - 2 * inset) };
      pen.beginPath();
      pen.moveTo(cross.x, 0); pen.lineTo(cross.x, height); pen.moveTo(0, cross.y); pen.lineTo(width, cross.y);
      pen.stroke();
      if (at !== null && Number.isFinite(field.values[at]) && Number.isFinite(entropy.values[at])) {
        pen.setLineDash([]);
        pen.lineWidth = 2;
        pen.strokeRect(x(at) - 4, y(at) - 4, 8, 8);
      }
    }
    function nearest(event) {
      const frame = canvas.getBoundingClientRect(), px = event.clientX - frame.left, py = event.clientY - frame.top;
      let best = null, distance = 144;
      for (const i of places) {
        const away = (x(i) - px) ** 2 + (y(i) - py) ** 2;
        if (away < distance) [best, distance] = [i, away];
      }
      return best;
    }
    canvas.addEventListener("pointermove", (event) => onHover(nearest(event)));
    canvas.addEventListener("pointerleave", () => onHover(null));
    canvas.addEventListener("click", (event) => { const i = nearest(event); if (i !== null) onPick(i) });
    for (const [name, cell] of Object.entries(cells)) cell.addEventListener("click", () => onMark(name));
    const changed = () => { field = divergences.find(({ name }) => name === measure.value) ?? field; if (box.open) read(); onChange() };
    for (const control of [measure, sliders.x, sliders.y]) control.addEventListener("input", changed);
    box.addEventListener("toggle", changed);
    document.body.addEventListener("theme-changed", draw);

    return {
      names: NAMES,
      holds: (name) => (i) => counts(i) && Number.isFinite(entropy.values[i]) && Number.isFinite(field.values[i]) && nameOf(i) === name,
      move(i) { if (box.open && i !== at) { at = i; draw() } },
      state: () => box.open ? `${field.name},${sliders.x.value},${sliders.y.value}` : null,
      open(state) {
        const [name, px, py] = state.split(",");
        field = divergences.find((one) => one.name === name) ?? field;
        measure.value = field.name;
        for (const [slider, value] of [[sliders.x, px], [sliders.y, py]]) if (Number(value) > 0 && Number(value) < 100) slider.value = value;
        box.open = true;
        read();
      },
    };
  }
  rlviewer.quadrants = quadrants;
})();
