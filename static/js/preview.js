// The preview beside the list: Space opens and closes it, it follows the focus of j and k, Enter opens the rollout itself.
(() => {
  "use strict";
  const pane = document.getElementById("preview");
  const body = document.getElementById("preview-body");
  const browse = document.getElementById("browse");
  let shown = "";
  let timer = 0;
  let asked = null;

  const rowOf = (element) => element?.closest?.("#rollouts [data-preview]");
  const isOpen = () => !pane.hidden;

  async function load(row) {
    if (!row || shown === row.dataset.id) return;
    shown = row.dataset.id;
    document.querySelectorAll("#rollouts [data-previewed]").forEach((other) => delete other.dataset.previewed);
    row.dataset.previewed = "";
    asked?.abort();
    asked = new AbortController();
    body.setAttribute("aria-busy", "true");
    try {
      const filter = new URLSearchParams(location.search).get("filter") ?? "";
      const answer = await fetch(`${row.dataset.preview}?${new URLSearchParams({ filter })}`, { signal: asked.signal });
      if (new URL(answer.url).pathname === "/sign-in/") return location.reload();
      if (!answer.ok) throw new Error(String(answer.status));
      body.innerHTML = await answer.text();
      const text = body.querySelector("[data-preview-text]");
      const first = text.querySelector("mark");
      text.scrollTop = first ? first.offsetTop - text.offsetTop - 40 : text.scrollHeight;
    } catch (error) {
      if (error.name === "AbortError") return;
      shown = "";
      body.textContent = error.message === "404" ? "This rollout is no longer here, or you may not see it." : "The server does not answer. Press Space to try again.";
    } finally {
      body.removeAttribute("aria-busy");
    }
  }
  function open(row) {
    pane.hidden = false;
    browse.classList.add("has-preview");
    load(row);
    row.querySelector("a[href]").focus();
    row.scrollIntoView({ block: "nearest" });
  }
  function close() {
    pane.hidden = true;
    browse.classList.remove("has-preview");
    document.querySelectorAll("#rollouts [data-previewed]").forEach((row) => delete row.dataset.previewed);
    shown = "";
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && isOpen() && !event.target.closest("input, details[open][data-menu]")) return close();
    // Space keeps its meaning on controls; on the link of a row it has none.
    const onControl = event.target.closest("input, textarea, select, button, summary, [contenteditable], pre");
    if (event.key !== " " || onControl) return;
    const row = rowOf(document.activeElement) ?? document.querySelector("#rollouts [data-preview]");
    if (!row) return;
    event.preventDefault();
    if (isOpen() && shown === row.dataset.id) close(); else open(row);
  });
  document.addEventListener("focusin", (event) => {
    const row = rowOf(event.target);
    if (!row || !isOpen()) return;
    clearTimeout(timer);
    timer = setTimeout(() => load(row), 60);
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-preview-close]")) return close();
    const button = event.target.closest("[data-preview-open]");
    if (button) open(rowOf(button));
  });
  // Another filter marks other words; a row that is gone stays in the pane until another one is pointed at.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.id !== "rollouts" || !isOpen()) return;
    const row = document.querySelector(`#rollouts [data-id="${shown}"]`);
    shown = "";
    load(row);
  });
})();
