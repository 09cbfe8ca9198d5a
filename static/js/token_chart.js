// Value against position, as an SVG of its own: one or two lines, a cursor, and a brush over tokens.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 132;
  const INSET = { left: 72, right: 12, top: 10, bottom: 22 };

  function element(name, attributes, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  /** Draws into `figure`; tells `onHover(i | null)`, `onPick(i)` and `onBrush(from, to)`; `table` is where its numbers are. */
  function tokenChart(figure, { count, onHover, onPick, onBrush, table }) {
    let width = 0;
    let svg = null;
    let cursor = null;
    let band = null;
    let shown = [];
    let at = null;
    let range = null;
    let screen = null;
    let screenBand = null;

    const across = () => Math.max(1, width - INSET.left - INSET.right);
    const x = (i) => INSET.left + (count > 1 ? (i / (count - 1)) * across() : across() / 2);
    const index = (event) => {
      const place = event.clientX - svg.getBoundingClientRect().left - INSET.left;
      return Math.max(0, Math.min(count - 1, Math.round((place / across()) * (count - 1))));
    };

    function line(series, place) {
      const { values, low, high } = series;
      const span = high - low || 1;
      const y = (value) => HEIGHT - INSET.bottom - (high === low ? 0.5 : (value - low) / span) * (HEIGHT - INSET.top - INSET.bottom);
      const parts = [];
      const broken = [];
      let pen = "M";
      // One column of pixels keeps its first, smallest, largest and last value: no spike is lost.
      const step = Math.max(1, Math.floor(count / across()));
      for (let from = 0; from < count; from += step) {
        const to = Math.min(count, from + step);
        let least = -1, most = -1, gap = -1;
        for (let i = from; i < to; i += 1) {
          const value = values(i);
          if (!Number.isFinite(value)) { if (gap < 0) gap = i; continue }
          if (least < 0 || value < values(least)) least = i;
          if (most < 0 || value > values(most)) most = i;
        }
        if (gap >= 0) { broken.push(gap); pen = step === 1 ? "M" : pen }
        if (least < 0) { pen = "M"; continue }
        for (const i of least === most ? [least] : [least, most].sort((a, b) => a - b)) {
          parts.push(`${pen}${x(i).toFixed(1)},${y(values(i)).toFixed(1)}${pen === "M" ? "h0" : ""}`);
          pen = "L";
        }
      }
      const group = element("g", { class: `series series-${place}` });
      group.append(element("path", { d: parts.join(""), "vector-effect": "non-scaling-stroke" }));
      for (const i of broken.slice(0, 400)) {
        const mark = element("path", { class: "broken", d: `M${x(i) - 3},${HEIGHT - INSET.bottom - 6}l6,6m0,-6l-6,6` });
        mark.append(element("title", {}, `token ${i}: not finite`));
        group.append(mark);
      }
      return group;
    }

    function draw() {
      width = figure.clientWidth;
      if (!width || !shown.length) return;
      svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" });
      const [main] = shown;
      const bottom = HEIGHT - INSET.bottom;
      svg.append(
        element("line", { class: "axis", x1: INSET.left, x2: width - INSET.right, y1: bottom, y2: bottom }),
        element("text", { class: "tick", x: INSET.left - 6, y: INSET.top + 8, "text-anchor": "end" }, main.high === main.low ? "" : main.label(main.high)),
        element("text", { class: "tick", x: INSET.left - 6, y: main.high === main.low ? (INSET.top + bottom) / 2 + 4 : bottom, "text-anchor": "end" }, main.label(main.low)),
        element("text", { class: "tick", x: INSET.left, y: HEIGHT - 6 }, "0"),
        element("text", { class: "tick", x: width - INSET.right, y: HEIGHT - 6, "text-anchor": "end" }, `token ${count - 1}`),
      );
      if (main.low < 0 && main.high > 0) {
        const zero = bottom - (-main.low / (main.high - main.low)) * (bottom - INSET.top);
        svg.append(element("line", { class: "axis zero", x1: INSET.left, x2: width - INSET.right, y1: zero, y2: zero }));
      }
      [...shown].reverse().forEach((series, place) => svg.append(line(series, shown.length - 1 - place)));
      band = element("rect", { class: "band", y: INSET.top, height: bottom - INSET.top, x: 0, width: 0 });
      cursor = element("line", { class: "cursor", y1: INSET.top, y2: bottom, x1: -9, x2: -9 });
      screenBand = element("rect", { class: "screen", y: bottom + 1, height: 4, x: 0, width: 0 });
      svg.append(band, cursor, screenBand);
      const caption = document.createElement("figcaption");
      caption.className = "small muted";
      shown.forEach((series, place) => {
        const name = document.createElement("span");
        name.className = `series-name series-${place}`;
        name.textContent = series.title;
        caption.append(name, " ");
      });
      const link = document.createElement("a");
      link.href = table;
      link.className = "push";
      link.textContent = "Table (CSV)";
      caption.append("against position; drag to select tokens", link);
      figure.replaceChildren(caption, svg);
      move(at);
      brush(range);
      onScreen(screen);
      listen();
    }

    function listen() {
      let start = null;
      svg.addEventListener("pointerdown", (event) => {
        start = index(event);
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        const i = index(event);
        move(i);
        onHover(i);
        if (start !== null && Math.abs(i - start) > 0) brush([Math.min(start, i), Math.max(start, i)]);
      });
      svg.addEventListener("pointerup", (event) => {
        const i = index(event);
        if (start !== null && start !== i) onBrush(Math.min(start, i), Math.max(start, i));
        else if (start !== null) { brush(null); onPick(i) }
        start = null;
      });
      svg.addEventListener("pointerleave", () => onHover(null));
    }

    function move(i) {
      at = i;
      const place = i === null ? -9 : x(i);
      cursor?.setAttribute("x1", place);
      cursor?.setAttribute("x2", place);
    }
    function stretch(rect, ends) {
      rect?.setAttribute("x", ends ? x(ends[0]) : 0);
      rect?.setAttribute("width", ends ? Math.max(1, x(ends[1]) - x(ends[0])) : 0);
    }
    function brush(chosen) {
      range = chosen;
      stretch(band, range);
    }
    /** Which tokens are on the screen; null: all. */
    function onScreen(ends) {
      screen = ends;
      stretch(screenBand, screen);
    }

    new ResizeObserver(() => { if (figure.clientWidth !== width) draw() }).observe(figure);
    return { show: (series) => { shown = series; draw() }, move, brush, window: onScreen };
  }
  rlviewer.tokenChart = tokenChart;
})();
