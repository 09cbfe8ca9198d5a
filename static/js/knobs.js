// Sliders of constants: each moves the number beside it, which is what a form sends.
(() => {
  "use strict";
  document.addEventListener("input", (event) => {
    const from = event.target;
    if (!(from instanceof HTMLInputElement)) return;
    const row = from.closest(".knob");
    if (!row) return;
    if (from.type === "range") row.querySelector(`[name="${from.dataset.knob}"]`).value = from.value;
    else {
      const slider = row.querySelector("[data-knob]");
      if (slider && from.value.trim() !== "" && Number.isFinite(Number(from.value))) slider.value = from.value;
    }
  }, true);
})();
