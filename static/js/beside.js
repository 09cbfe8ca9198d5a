// Completions side by side: one key goes to where each text parts from the one it is compared with, then from difference to difference.
(() => {
  "use strict";
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const DIFFERENCES = "mark, .gone";
  let at = -1;

  function go() {
    const texts = $$("[data-diff]").map((text) => [text, $$(DIFFERENCES, text)]);
    const most = Math.max(0, ...texts.map(([, found]) => found.length));
    if (!most) return rlviewer.toast("These texts do not differ.");
    at = (at + 1) % most;
    $$(".is-here").forEach((mark) => mark.classList.remove("is-here"));
    // Within each text; the page itself moves only when none of them is in sight.
    const here = texts.filter(([, found]) => found[at]).map(([text, found]) => {
      const mark = found[at];
      mark.classList.add("is-here");
      text.scrollTop += mark.getBoundingClientRect().top - text.getBoundingClientRect().top - text.clientHeight / 3;
      return mark;
    });
    const inSight = (mark) => { const box = mark.getBoundingClientRect(); return box.top > 48 && box.bottom < innerHeight };
    const own = document.activeElement?.closest?.("[data-row]");
    const wanted = here.find((mark) => own?.contains(mark)) ?? here[0];
    if (!here.some(inSight) || own?.contains(wanted)) wanted.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  document.addEventListener("click", (event) => { if (event.target.closest("[data-next-difference]")) go() });
  document.addEventListener("htmx:afterSwap", () => { at = -1 });
})();
