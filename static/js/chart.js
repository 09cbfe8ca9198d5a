// Draws the figures that Python made: [data-figure] shows what the .chart-json beside it says. Charts over the same axis share one
// cursor (?at=) and one zoom (?x=); a zoomed chart that had to leave out points asks for that window alone.
(() => {
  "use strict";
  delete document.head.appendChild; // set by plotly_before.js
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false };
  const DARK = matchMedia("(prefers-color-scheme: dark)");
  const PRINT = matchMedia("print");
  const DOUBLE_CLICK_MS = 300;
  const REST_MS = 250; // so long a cursor rests before the address names it
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const plots = () => $$("[data-figure]");
  const drawn = new WeakMap(); // plot -> what it shows, to leave alone what did not change
  const ready = new WeakSet(); // plots that plotly has finished drawing once
  const cursors = new WeakMap(); // plot -> where the keyboard's cursor stands
  const sorts = new WeakMap(); // plot -> how its table is sorted
  const parsed = new WeakMap(); // plot -> its figure and the text it was read from
  const windows = new Map(); // key of a figure -> its zoomed part

  const holder = (plot) => plot.closest("figure");
  const source = (plot) => $(".chart-json", holder(plot)).textContent;
  function whole(plot) {
    const text = source(plot);
    if (parsed.get(plot)?.text !== text) parsed.set(plot, { text, figure: JSON.parse(text) });
    return parsed.get(plot).figure;
  }
  const figureOf = (plot) => windows.get(plot.dataset.figure) ?? whole(plot);
  const remember = (name, value) => {
    const address = new URL(location.href);
    if (value === null) address.searchParams.delete(name); else address.searchParams.set(name, value);
    if (address.href !== location.href) history.replaceState(history.state, "", address);
  };
  const asked = (name) => new URLSearchParams(location.search).get(name);

  // ---- colours: a figure names CSS, plotly needs numbers
  const IS_CSS = /^(var|light-dark|color-mix)\(/;
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  let colours = new Map();
  function resolved(text) {
    if (!colours.has(text)) {
      probe.style.color = text;
      const mixed = getComputedStyle(probe).color.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)/);
      colours.set(text, mixed ? `rgb(${mixed.slice(1).map((part) => Math.round(255 * part)).join(", ")})` : getComputedStyle(probe).color);
    }
    return colours.get(text);
  }
  function coloured(value) {
    if (typeof value === "string") return IS_CSS.test(value) ? resolved(value) : value;
    // Long rows of numbers need no look at each.
    if (Array.isArray(value)) return value.slice(0, 2).some((item) => typeof item === "object" || IS_CSS.test(item)) ? value.map(coloured) : value;
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
    return value;
  }

  // ---- drawing: one chart after the other, those in sight first, and whatever fails says so in its place
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.isSeen = entry.isIntersecting;
      if (entry.isIntersecting) want(entry.target);
    }
  }, { rootMargin: "200px" });
  const queue = new Set();
  let isDrawing = false;
  async function want(plot) {
    queue.add(plot);
    if (isDrawing) return;
    isDrawing = true;
    for (const next of queue) {
      queue.delete(next);
      if (next.isConnected) await tried(next);
      await new Promise((resolve) => setTimeout(resolve)); // the page stays usable meanwhile
    }
    isDrawing = false;
  }
  async function tried(plot) {
    try {
      await draw(plot);
      if (plot.isConnected) trouble(plot, "draw", null);
    } catch (error) {
      drawn.delete(plot);
      if (!plot.isConnected) return; // swapped away meanwhile
      trouble(plot, "draw", "This chart could not be drawn; its numbers are in the table of its menu.", () => want(plot));
      console.error(error);
    }
  }
  async function draw(plot) {
    const figure = figureOf(plot);
    const key = [document.documentElement.dataset.theme, DARK.matches, PRINT.matches, figure === whole(plot) ? source(plot) : JSON.stringify(figure)].join();
    if (drawn.get(plot) === key) return;
    drawn.set(plot, key);
    const first = !ready.has(plot);
    const { data, layout } = coloured(figure);
    if (zoom() && isShared(plot)) layout.xaxis = { ...layout.xaxis, range: zoom(), autorange: false };
    await Plotly.react(plot, data, layout, CONFIG);
    if (!first || !plot.isConnected) return;
    ready.add(plot);
    plot.on("plotly_hover", (event) => share(plot, event.points[0].x));
    plot.on("plotly_unhover", () => unshare(plot));
    plot.on("plotly_relayout", (change) => shareZoom(plot, change));
    plot.on("plotly_click", (event) => follow(plot, event));
    plot.on("plotly_doubleclick", () => reset(plot));
    if (isShared(plot) && asked("at")) hover(plot, Number(asked("at")));
  }
  function trouble(plot, kind, text, again) {
    const old = $(`.retry[data-kind=${kind}]`, holder(plot));
    if (!text) return old?.remove();
    if (old) return; // it says so already, and may be about to be pressed
    const box = document.createElement("div");
    box.className = "retry";
    box.dataset.kind = kind;
    box.setAttribute("role", "alert");
    const words = document.createElement("span");
    words.textContent = text;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button small";
    button.textContent = "Try again";
    button.addEventListener("click", () => { box.remove(); again() });
    box.append(words, button);
    plot.before(box);
  }
  function drawAll() {
    for (const plot of plots()) {
      seen.observe(plot);
      if (plot.isSeen || PRINT.matches) want(plot);
      if ($(".chart-table", holder(plot))) fillTable(plot);
    }
  }

  // ---- one cursor for all charts over the same steps
  const axisOf = (plot) => figureOf(plot).table.x;
  const isShared = (plot) => figureOf(plot).layout.hovermode === "x unified" && axisOf(plot) === "step";
  const others = (plot) => (isShared(plot) ? plots().filter((other) => other !== plot && ready.has(other) && isShared(other)) : []);
  const hover = (plot, x) => Plotly.Fx.hover(plot, { xval: x }, "xy");
  let resting = 0;
  // A hover that a script asks for is no event of its own: the others do not share theirs in turn.
  function share(plot, step) {
    for (const other of others(plot)) if (other.isSeen) hover(other, step);
    clearTimeout(resting);
    if (isShared(plot)) resting = setTimeout(() => remember("at", step), REST_MS);
  }
  function unshare(plot) {
    for (const other of others(plot)) if (other.isSeen) Plotly.Fx.unhover(other);
  }

  // ---- one zoom, kept in the address
  function zoom() {
    const [from, to] = (asked("x") ?? "").split(":").map(Number);
    return Number.isFinite(from) && Number.isFinite(to) && to > from ? [from, to] : null;
  }
  let zooming = false;
  async function shareZoom(plot, change) {
    if (zooming || !isShared(plot)) return;
    const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
    if (!range && !change["xaxis.autorange"]) return;
    remember("x", range && range.map((x) => Number(x.toPrecision(6))).join(":"));
    zooming = true;
    const update = range ? { "xaxis.range": range, "xaxis.autorange": false } : { "xaxis.autorange": true };
    await Promise.all(others(plot).map((other) => Plotly.relayout(other, update)));
    zooming = false;
    await loadWindow();
  }
  const reset = (plot) => Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });

  // ---- the zoomed part in full, of charts that had to leave out points
  let loading = null;
  async function loadWindow() {
    loading?.abort();
    loading = new AbortController();
    const { signal } = loading;
    const range = zoom();
    const thinned = plots().filter((plot) => plot.dataset.window && whole(plot).is_thinned);
    if (!range) {
      windows.clear();
      return thinned.forEach((plot) => { trouble(plot, "window", null); if (plot.isSeen) want(plot) });
    }
    await Promise.all([...new Set(thinned.map((plot) => plot.dataset.window))].map(async (place) => {
      const charts = thinned.filter((plot) => plot.dataset.window === place);
      const there = () => charts.filter((plot) => plot.isConnected); // the page may be swapped while it is asked
      const address = new URL(place, location.href);
      address.searchParams.set("keys", charts.map((plot) => plot.dataset.figure).join(","));
      address.searchParams.set("from", Math.floor(range[0]));
      address.searchParams.set("to", Math.ceil(range[1]));
      try {
        const answer = await fetch(address, { signal, headers: { Accept: "application/json" } });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        for (const [key, figure] of Object.entries(await answer.json())) windows.set(key, figure);
        there().forEach((plot) => { trouble(plot, "window", null); if (plot.isSeen) want(plot); if ($(".chart-table", holder(plot))) fillTable(plot) });
      } catch (error) {
        if (signal.aborted) return;
        there().forEach((plot) => trouble(plot, "window", "The zoomed part could not be loaded; some points are left out.", loadWindow));
      }
    }));
  }

  // ---- a mark leads to what it was made of
  function nearest(points, event) {
    const pointer = event.clientY - event.target.getBoundingClientRect().top; // of the plot's area
    const away = ({ yaxis, y }) => Math.abs((yaxis && typeof y === "number" ? yaxis.d2p(y) : pointer) - pointer);
    return points.toSorted((a, b) => away(a) - away(b))[0];
  }
  const addressOf = (plot, { curveNumber, pointNumber, x, y }) => chartData.href(figureOf(plot).data[curveNumber], pointNumber, x, y);
  let leaving = 0;
  function follow(plot, { points, event }) {
    const linked = points.filter((point) => addressOf(plot, point));
    if (!linked.length) return;
    const address = addressOf(plot, nearest(linked, event));
    if (event.ctrlKey || event.metaKey) return void window.open(address);
    clearTimeout(leaving);
    // A second click resets a zoom and stays: only then is it worth waiting for.
    if (event.detail < 2) leaving = setTimeout(() => location.assign(address), zoom() ? DOUBLE_CLICK_MS : 0);
  }

  // ---- keyboard: arrows move the cursor and read the values out, Enter goes where the value leads
  const say = document.createElement("p");
  say.className = "visually-hidden";
  say.setAttribute("aria-live", "polite");
  document.body.append(say);
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], Home: [-Infinity, 0], End: [Infinity, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const within = (value, low, high) => Math.max(low, Math.min(high, value));

  function reach(plot, { xs }) {
    const [from, to] = (isShared(plot) && zoom()) || [-Infinity, Infinity];
    const inside = (x) => typeof x !== "number" || (x >= from && x <= to);
    return [xs.findIndex(inside), xs.findLastIndex(inside)];
  }
  function told({ x, places, columns, cells }, { at, column }, isOne) {
    const values = cells[at].map((cell, i) => cell && `${columns[i]} ${cell.value}`).filter((text, i) => text && (!isOne || i === column));
    return `${x} ${places[at]}: ${values.join(", ") || (isOne ? `${columns[column]} no value` : "no value")}`;
  }
  async function show(plot, { xs, cells }, { at, column }) {
    await tried(plot);
    if (!ready.has(plot)) return;
    if (figureOf(plot).layout.hovermode === "x unified") {
      const { type, _categories } = plot._fullLayout.xaxis;
      hover(plot, type === "category" ? _categories.indexOf(xs[at]) : xs[at]);
      return share(plot, xs[at]);
    }
    const cell = cells[at][column];
    if (cell?.point !== undefined) Plotly.Fx.hover(plot, [{ curveNumber: cell.curve, pointNumber: cell.point }], "xy");
  }
  document.addEventListener("keydown", async (event) => {
    const plot = event.target.closest?.("[data-figure]");
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = cursors.get(plot);
    const grid = chartData.grid(figureOf(plot));
    if (event.key === "Enter" && cursor) {
      const row = grid.cells[cursor.at] ?? [];
      const address = row[cursor.column]?.href ?? row.find((cell) => cell?.href)?.href;
      if (address) location.assign(address);
      return;
    }
    if (!(event.key in MOVES)) return;
    const [first, last] = reach(plot, grid);
    if (first < 0 || last < first) return;
    event.preventDefault();
    const [across, down] = MOVES[event.key];
    const next = {
      at: within((cursor?.at ?? last + 1) + (across || (cursor ? 0 : -1)), first, last),
      column: within((cursor?.column ?? 0) + (cursor ? down : 0), 0, grid.columns.length - 1),
    };
    cursors.set(plot, next);
    say.textContent = told(grid, next, Boolean(down) || figureOf(plot).table.kind === "matrix");
    await show(plot, grid, next);
  });

  // ---- the same numbers as a table and as files
  function toggleTable(plot) {
    const shown = $(".chart-table", holder(plot));
    plot.hidden = !shown;
    if (shown) {
      shown.remove();
      if (ready.has(plot)) Plotly.Plots.resize(plot); else want(plot);
      return;
    }
    const wrap = document.createElement("div");
    wrap.className = "chart-table";
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "region");
    wrap.setAttribute("aria-label", `${plot.dataset.title} as a table`);
    plot.after(wrap);
    fillTable(plot);
  }
  function fillTable(plot) {
    const wrap = $(".chart-table", holder(plot));
    const focused = $(":focus", wrap)?.dataset.sort;
    wrap.replaceChildren(chartData.table(figureOf(plot), sorts.get(plot)));
    if (focused) $(`[data-sort="${focused}"]`, wrap).focus();
  }
  function save(plot, kind) {
    const title = plot.dataset.title;
    const filename = `${document.title.split(" · ")[0]} ${title}`.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase();
    if (kind !== "csv") {
      const { data, layout } = ready.has(plot) ? plot : coloured(figureOf(plot));
      const named = { ...layout, paper_bgcolor: resolved("var(--page)"), margin: { ...layout.margin, t: layout.margin.t + 36 }, title: { text: title, y: 0.98, yanchor: "top", font: { size: 15 } } };
      return Plotly.downloadImage({ data, layout: named, config: CONFIG }, { format: kind, filename, width: 960, height: 480, scale: kind === "png" ? 2 : 1 });
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([chartData.csv(figureOf(plot))], { type: "text/csv" }));
    link.download = `${filename}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-table], [data-chart-save], [data-chart-reset], .chart-table [data-sort]");
    if (!button) return;
    const plot = $("[data-figure]", holder(button));
    if ("sort" in button.dataset) {
      const column = Number(button.dataset.sort);
      const sort = sorts.get(plot);
      sorts.set(plot, { column, down: sort?.column === column ? !sort.down : column >= 0 });
      return fillTable(plot);
    }
    button.closest("details").open = false;
    if ("chartTable" in button.dataset) toggleTable(plot);
    else if ("chartReset" in button.dataset) reset(plot);
    else save(plot, button.dataset.chartSave);
  });

  function refreshed() {
    drawAll();
    if (zoom()) loadWindow();
  }
  function recolour() {
    colours = new Map();
    drawAll();
  }
  document.body.addEventListener("theme-changed", recolour);
  DARK.addEventListener("change", recolour);
  PRINT.addEventListener("change", recolour); // paper is light and shows what was not scrolled to
  document.addEventListener("htmx:afterSettle", refreshed);
  refreshed();
})();
