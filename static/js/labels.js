// Labels of a rollout: buttons that say and take back, for the whole rollout or for the tokens that are chosen; marks on tokens.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  let chosen = null; // first token, and one past the last; null for the whole rollout

  const rows = () => $$("#labels [data-label-id]");
  const isOf = (row, tokens) => tokens === null ? row.dataset.start === undefined : Number(row.dataset.start) === tokens[0] && Number(row.dataset.end) === tokens[1];
  const ownOf = (said) => rows().find((row) => row.dataset.own === said && isOf(row, chosen)); // what this person said of it before
  function wordsOf(tokens) {
    if (tokens === null) return "Of the whole rollout";
    return tokens[1] - tokens[0] === 1 ? `Of token ${tokens[0]}` : `Of tokens ${tokens[0]}–${tokens[1] - 1}`;
  }

  /** The buttons as they are for what is chosen: pressed where the person has said it already. */
  function show() {
    const form = $("[data-label-form]");
    if (!form) return;
    $("[data-label-place]", form).textContent = wordsOf(chosen);
    $("[data-label-whole]", form).hidden = chosen === null;
    for (const button of $$("button[aria-pressed]", form)) button.setAttribute("aria-pressed", ownOf(button.value) !== undefined);
  }
  const mark = () => $("#tokens")?.dispatchEvent(new CustomEvent("labels-shown", {
    detail: rows().filter((row) => row.dataset.start !== undefined).map((row) => [Number(row.dataset.start), Number(row.dataset.end)]),
  }));

  document.addEventListener("tokens-chosen", (event) => { chosen = event.detail; show() });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-label-whole]")) { chosen = null; show() }
    if (event.target.closest("[data-label-write]")) $("#label-note").focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.id !== "label-note") return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit($(".label-note button"));
    if (event.key === "Escape") event.target.blur();
  });
  // A pressed button takes back what it said. What is sent is worked out now, from what is chosen and from the list as it is:
  // the form may have been swapped since it was last brought up to date.
  document.addEventListener("htmx:configRequest", (event) => {
    const { elt, triggeringEvent, parameters } = event.detail;
    if (!elt.matches("[data-label-form]")) return;
    parameters.token_start = chosen?.[0] ?? "";
    parameters.token_end = chosen?.[1] ?? "";
    const said = triggeringEvent?.submitter?.value;
    const own = said && ownOf(said);
    if (own) event.detail.path = `/labels/${own.dataset.labelId}/remove/`;
  });
  // What was typed is stored with whatever was pressed; the box is free for the next.
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt.matches("[data-label-form]") && event.detail.successful) $("#label-note").value = "";
  });
  // At once: until then the form would speak of the whole rollout.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "labels" || event.target.id === "labels") { show(); mark() }
  });
})();
