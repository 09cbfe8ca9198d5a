// The list of runs: rows are selected to draw their curves over each other or to compare them. The selection outlives a refresh of the list.
(() => {
  "use strict";
  const MOST = 64;
  const MOST_OVER_EACH_OTHER = 8;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const key = `rlviewer-picked:${location.pathname}`;
  const bar = $("#selection");
  let picked = [];
  try { picked = JSON.parse(sessionStorage.getItem(key) ?? "[]") } catch { /* private window */ }

  function marks() {
    for (const input of $$("[data-pick]")) {
      input.checked = picked.includes(input.value);
      input.closest("tr").setAttribute("aria-selected", String(input.checked));
    }
    bar.hidden = !picked.length;
    $("[data-picked]", bar).textContent = `${picked.length} selected`;
    const [first, ...rest] = picked;
    const link = $("[data-overlay]", bar);
    link.href = `${link.dataset.overlay.replace("/0/", `/${first}/`)}?with=${rest.join(",")}`;
    link.hidden = picked.length < 2 || picked.length > MOST_OVER_EACH_OTHER;
    const compare = $("[data-compare]", bar);
    compare.href = `${compare.dataset.compare}?runs=${picked.join(",")}`;
    compare.hidden = picked.length < 2;
    try { sessionStorage.setItem(key, JSON.stringify(picked)) } catch { /* private window */ }
  }
  function pick(id, isPicked) {
    picked = picked.filter((one) => one !== id);
    if (isPicked && picked.length >= MOST) rlviewer.toast(`At most ${MOST} runs at once.`, "warning");
    else if (isPicked) picked.push(id);
    marks();
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick]")) pick(event.target.value, event.target.checked);
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-unpick]")) { picked = []; marks() }
  });
  document.addEventListener("keydown", (event) => {
    const input = $("[data-pick]", document.activeElement?.closest("[data-row]") ?? bar);
    if (event.key !== "x" || !input || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    event.preventDefault();
    pick(input.value, !input.checked);
  });
  document.addEventListener("htmx:afterSettle", marks);
  marks();
})();
