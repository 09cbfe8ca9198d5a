// Facets beside the list: a value adds or takes away a term of the filter, a range is brushed over its bars or typed.
(() => {
  "use strict";
  const box = document.getElementById("filter");
  const fold = document.getElementById("facets-fold");
  if (matchMedia("(max-width: 1080px)").matches) fold.open = false;
  fold.dataset.ready = "";

  function use(filter) {
    box.value = filter;
    htmx.trigger(box.form, "filter-changed");
  }
  function tidy(value, isWhole, round) {
    return isWhole ? String(round(value)) : String(Number(value.toPrecision(6)));
  }
  // The term of a range's two fields; empty without either.
  function term(form) {
    const [low, high] = [form.elements.low.value.trim(), form.elements.high.value.trim()];
    return low || high ? `${form.dataset.field}:${low}..${high}` : "";
  }
  function mark(form) {
    const chosen = form.querySelector(".chosen");
    if (!("filtered" in form.dataset)) return;
    const bars = form.querySelectorAll(".hit").length;
    const [from, to] = [Number(form.dataset.low), Number(form.dataset.high)];
    const place = (text, otherwise) => text.trim() && to > from ? Math.min(bars, Math.max(0, (Number(text) - from) / (to - from) * bars)) : otherwise;
    const left = place(form.elements.low.value, 0);
    chosen.setAttribute("x", left);
    chosen.setAttribute("width", Math.max(0.2, place(form.elements.high.value, bars) - left));
  }
  const markAll = () => document.querySelectorAll(".facet-range").forEach(mark);

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-facet]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    use(link.dataset.facet);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest(".facet-range");
    if (!form) return;
    event.preventDefault();
    use(`${form.dataset.rest} ${term(form)}`.trim());
  });

  // ---- the brush: whole bars, from where the press began to where it ends
  let brush = null;
  const barAt = (svg, x, bars) => {
    const frame = svg.getBoundingClientRect();
    return Math.min(bars - 1, Math.max(0, Math.floor((x - frame.left) / frame.width * bars)));
  };
  function draw(x) {
    const { svg, form, bars, start } = brush;
    const now = barAt(svg, x, bars);
    const [first, last] = [Math.min(start, now), Math.max(start, now)];
    const [low, high] = [Number(form.dataset.low), Number(form.dataset.high)];
    const isWhole = "whole" in form.dataset;
    const edge = (place) => low + (high - low) / bars * place;
    const chosen = svg.querySelector(".chosen");
    chosen.setAttribute("x", first);
    chosen.setAttribute("width", last - first + 1);
    form.elements.low.value = tidy(edge(first), isWhole, Math.ceil);
    // Bars hold their lower end; the last one also its upper.
    const top = edge(last + 1);
    form.elements.high.value = tidy(isWhole && last + 1 < bars && Number.isInteger(top) ? top - 1 : top, isWhole, Math.floor);
  }
  document.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest("[data-brush]");
    if (!svg || event.button) return;
    event.preventDefault();
    const bars = svg.querySelectorAll(".hit").length;
    brush = { svg, form: svg.closest("form"), bars, start: barAt(svg, event.clientX, bars) };
    svg.setPointerCapture(event.pointerId);
    draw(event.clientX);
  });
  document.addEventListener("pointermove", (event) => { if (brush) draw(event.clientX) });
  document.addEventListener("pointerup", () => {
    const form = brush?.form;
    brush = null;
    form?.requestSubmit();
  });
  document.addEventListener("pointercancel", () => { brush = null; markAll() });

  // ---- counts follow the list
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.id === "rollouts") {
      const address = document.getElementById("rollouts")?.dataset.facets;
      if (address !== undefined && document.getElementById("facets")) htmx.ajax("GET", address, { target: "#facets", swap: "outerHTML" });
    } else if (event.detail.target?.id === "facets" || document.querySelector(".facet-range")) markAll();
  });
})();
