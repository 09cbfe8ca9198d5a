// Draws the figures that Python made: [data-figure=KEY] shows figure KEY of #figures. One step cursor and one zoom for all.
(() => {
  "use strict";
  delete document.head.appendChild; // set by plotly_before.js
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", scrollZoom: false };
  const DARK = matchMedia("(prefers-color-scheme: dark)");
  const PRINT = matchMedia("print");
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  let figures = {};
  const drawn = new WeakMap(); // plot -> what it shows, to leave alone what did not change
  const ready = new WeakSet(); // plots that plotly has finished drawing once
  const cursors = new WeakMap(); // plot -> place of the keyboard's cursor

  // ---- colours: a figure names CSS, plotly needs numbers
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  let colours = new Map();
  function resolved(text) {
    if (!colours.has(text)) {
      probe.style.color = text;
      colours.set(text, getComputedStyle(probe).color);
    }
    return colours.get(text);
  }
  function coloured(value) {
    if (typeof value === "string") return /^(var|light-dark)\(/.test(value) ? resolved(value) : value;
    if (Array.isArray(value)) return value.length && typeof value[0] === "object" ? value.map(coloured) : value;
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
    }
    return value;
  }

  // ---- drawing
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.isSeen = entry.isIntersecting;
      if (entry.isIntersecting) draw(entry.target);
    }
  }, { rootMargin: "200px" });

  const zoom = () => {
    const [from, to] = (new URLSearchParams(location.search).get("x") ?? "").split(":").map(Number);
    return Number.isFinite(from) && Number.isFinite(to) && to > from ? [from, to] : null;
  };

  async function draw(plot) {
    const figure = figures[plot.dataset.figure];
    if (!figure) return;
    const key = JSON.stringify([figure, document.documentElement.dataset.theme, DARK.matches, PRINT.matches]);
    if (drawn.get(plot) === key) return;
    const first = !drawn.has(plot);
    drawn.set(plot, key);
    const { data, layout } = coloured(figure);
    if (first && zoom()) layout.xaxis = { ...layout.xaxis, range: zoom(), autorange: false };
    await Plotly.react(plot, data, layout, CONFIG);
    if (first) {
      ready.add(plot);
      plot.on("plotly_hover", (event) => share(plot, event.points[0].x));
      plot.on("plotly_unhover", () => unshare(plot));
      plot.on("plotly_relayout", (change) => shareZoom(plot, change));
    }
  }

  function drawAll() {
    const source = document.getElementById("figures");
    if (!source) return;
    figures = JSON.parse(source.textContent || "{}");
    for (const plot of $$("[data-figure]")) {
      seen.observe(plot);
      if (plot.isSeen || PRINT.matches) draw(plot);
      if ($(".chart-table", plot.closest("figure"))) fillTable(plot);
    }
  }

  // ---- one cursor
  let sharing = false;
  const others = (plot) => $$("[data-figure]").filter((other) => other !== plot && other.isSeen && ready.has(other));
  function share(plot, step) {
    if (sharing) return;
    sharing = true;
    for (const other of others(plot)) Plotly.Fx.hover(other, { xval: step }, "xy");
    sharing = false;
  }
  function unshare(plot) {
    if (sharing) return;
    sharing = true;
    for (const other of others(plot)) Plotly.Fx.unhover(other);
    sharing = false;
  }

  // ---- one zoom, kept in the address
  let zooming = false;
  async function shareZoom(plot, change) {
    if (zooming) return;
    const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
    if (!range && !change["xaxis.autorange"]) return;
    const address = new URL(location.href);
    if (range) address.searchParams.set("x", range.map((x) => Number(x.toPrecision(6))).join(":"));
    else address.searchParams.delete("x");
    history.replaceState(history.state, "", address);
    zooming = true;
    const update = range ? { "xaxis.range": range, "xaxis.autorange": false } : { "xaxis.autorange": true };
    await Promise.all($$("[data-figure]").filter((other) => other !== plot && ready.has(other)).map((other) => Plotly.relayout(other, update)));
    zooming = false;
  }

  // ---- keyboard: arrows move the cursor and read the values out
  const say = document.createElement("p");
  say.className = "visually-hidden";
  say.setAttribute("aria-live", "polite");
  document.body.append(say);
  document.addEventListener("keydown", async (event) => {
    const plot = event.target.closest?.("[data-figure]");
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!plot || !(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { steps, rows } = table(figures[plot.dataset.figure]);
    const [from, to] = zoom() ?? [-Infinity, Infinity];
    const first = steps.findIndex((step) => step >= from);
    const last = steps.findLastIndex((step) => step <= to);
    if (first < 0 || last < first) return;
    event.preventDefault();
    const at = Math.max(first, Math.min(last, (cursors.get(plot) ?? last + 1) + moves[event.key]));
    cursors.set(plot, at);
    await draw(plot);
    if (!ready.has(plot)) return;
    Plotly.Fx.hover(plot, { xval: steps[at] }, "xy");
    const told = rows[at].filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`);
    say.textContent = `step ${steps[at]}: ${told.join(", ") || "no value"}`;
  });

  // ---- the same numbers as a table and as files
  function table(figure) {
    const traces = figure.data.filter((trace) => !trace.yaxis);
    const marks = figure.data.filter((trace) => trace.yaxis);
    const steps = [...new Set(traces.flatMap((trace) => trace.x))].sort((a, b) => a - b);
    const lookups = traces.map((trace) => new Map(trace.x.map((x, i) => [x, trace.y[i]])));
    const broken = new Map(marks.flatMap((trace) => trace.x.map((x, i) => [`${trace.name.replace(/, not finite$/, "")} ${x}`, trace.text[i]])));
    const rows = steps.map((step) => traces.map((trace, i) => [trace.name, lookups[i].get(step) ?? broken.get(`${trace.name} ${step}`) ?? null]));
    return { names: traces.map((trace) => trace.name), steps, rows };
  }
  function cell(kind, text) {
    const element = document.createElement(kind);
    element.textContent = text;
    return element;
  }
  function toggleTable(plot) {
    const figure = plot.closest("figure");
    const shown = $(".chart-table", figure);
    plot.hidden = !shown;
    if (shown) {
      shown.remove();
      Plotly.Plots.resize(plot);
      return;
    }
    const wrap = document.createElement("div");
    wrap.className = "chart-table";
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "region");
    wrap.setAttribute("aria-label", `${plot.dataset.title} as a table`);
    figure.append(wrap);
    fillTable(plot);
  }
  function fillTable(plot) {
    const { names, steps, rows } = table(figures[plot.dataset.figure]);
    const grid = document.createElement("table");
    grid.className = "plain";
    grid.createTHead().insertRow().append(cell("th", "step"), ...names.map((name) => cell("th", name)));
    const body = grid.createTBody();
    steps.forEach((step, i) => {
      body.insertRow().append(cell("td", step), ...rows[i].map(([, value]) => cell("td", value ?? "—")));
    });
    $(".chart-table", plot.closest("figure")).replaceChildren(grid);
  }
  function save(plot, kind) {
    const name = `${document.title.split(" · ")[0]} ${plot.dataset.title}`.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase();
    if (kind !== "csv") {
      Plotly.downloadImage(plot, { format: kind, filename: name, width: 960, height: 480 });
      return;
    }
    const { names, steps, rows } = table(figures[plot.dataset.figure]);
    const quoted = (text) => (/[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text);
    const lines = [["step", ...names].map(quoted), ...steps.map((step, i) => [step, ...rows[i].map(([, value]) => value ?? "")])];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.map((line) => line.join(",")).join("\n") + "\n"], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-table], [data-chart-save], [data-chart-reset]");
    if (!button) return;
    const plot = $(`[data-figure="${button.dataset.of}"]`);
    button.closest("details").open = false;
    if ("chartTable" in button.dataset) toggleTable(plot);
    else if ("chartReset" in button.dataset) Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
    else save(plot, button.dataset.chartSave);
  });

  function recolour() {
    colours = new Map();
    drawAll();
  }
  document.body.addEventListener("theme-changed", recolour);
  DARK.addEventListener("change", recolour);
  PRINT.addEventListener("change", recolour); // paper is light and shows what was not scrolled to
  document.addEventListener("htmx:afterSettle", drawAll);
  drawAll();
})();
