// The rollout browser: completion in the filter box, selected rows, the scrubber, new rollouts while the page is open.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const box = $("#filter");
  const list = $("#filter-list");
  const fields = JSON.parse($("#filter-fields").textContent);
  const OPERATORS = { int: [":", "<", ">"], float: [":", "<", ">"] };

  // ---- completion: names of fields, then what may follow them
  // The condition under the cursor: what stands before it back to a space or bracket outside of quotes.
  function condition() {
    const at = box.selectionStart ?? box.value.length;
    let start = 0;
    let quote = "";
    for (let i = 0; i < at; i += 1) {
      const char = box.value[i];
      if (quote) { if (char === quote && box.value[i - 1] !== "\\") quote = "" }
      else if (char === '"' || char === "'" && /[\s(:=,]|^$/.test(box.value[i - 1] ?? "") || char === "/" && /[\s(]|^$/.test(box.value[i - 1] ?? "")) quote = char;
      else if (/[\s(]/.test(char)) start = i + 1;
    }
    if (box.value[start] === "-") start += 1;
    return { start, at, text: box.value.slice(start, at), quoted: quote !== "" };
  }
  function ways() {
    const { text, quoted } = condition();
    if (quoted) return [];
    const named = /^([a-z_]+)(<=|>=|!=|[:<>=])(.*)$/i.exec(text);
    if (named) {
      const field = fields.find((one) => one.name === named[1].toLowerCase());
      const last = named[3].split(",").pop();
      const before = text.slice(0, text.length - last.length);
      return (field?.values ?? []).filter((value) => value.startsWith(last.toLowerCase()) && value !== last)
        .map((value) => ({ write: before + value + " ", shown: value, help: field.help }));
    }
    const begins = fields.filter((field) => field.name.startsWith(text.toLowerCase()));
    const holds = text.length > 1 ? fields.filter((field) => !begins.includes(field) && field.help.toLowerCase().includes(text.toLowerCase())) : [];
    return [...begins, ...holds].map((field) => ({ write: `${field.name}${(OPERATORS[field.kind] ?? [":"])[0]}`, shown: field.example || field.name, help: field.help }));
  }
  let chosen = -1;
  function show() {
    const found = document.activeElement === box ? ways().slice(0, 12) : [];
    chosen = -1;
    box.removeAttribute("aria-activedescendant");
    list.replaceChildren(...found.map((way, index) => {
      const item = document.createElement("li");
      item.id = `way-${index}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      const shown = document.createElement("span");
      shown.className = "mono";
      shown.textContent = way.shown;
      const help = document.createElement("span");
      help.className = "muted";
      help.textContent = way.help;
      item.append(shown, help);
      item.addEventListener("mousedown", (event) => { event.preventDefault(); write(way.write) });
      item.dataset.write = way.write;
      return item;
    }));
    list.hidden = !found.length;
    box.setAttribute("aria-expanded", String(found.length > 0));
  }
  function hide() { list.hidden = true; box.setAttribute("aria-expanded", "false"); chosen = -1; box.removeAttribute("aria-activedescendant") }
  function choose(by) {
    const items = $$("li", list);
    chosen = (chosen + by + items.length) % items.length;
    items.forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
    box.setAttribute("aria-activedescendant", items[chosen].id);
    items[chosen].scrollIntoView({ block: "nearest" });
  }
  function write(text) {
    const { start, at } = condition();
    box.setRangeText(text, start, at, "end");
    box.focus();
    show();
    settle();
  }
  // Asks when the typing pauses, but not for a condition that is still being written.
  let timer = 0;
  function settle() {
    clearTimeout(timer);
    const { text, quoted } = condition();
    if (quoted || /[:<>=,.!(-]$/.test(text) || (!list.hidden && text)) return;
    timer = setTimeout(() => htmx.trigger(box.form, "filter-changed"), 450);
  }
  box.addEventListener("input", () => { show(); settle() });
  box.addEventListener("focus", show);
  box.addEventListener("click", show);
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!isOpen) show();
      if (!list.hidden) choose(event.key === "ArrowDown" ? 1 : -1);
    } else if (isOpen && (event.key === "Tab" && !event.shiftKey && condition().text || event.key === "Enter" && chosen >= 0)) {
      write($$("li", list)[Math.max(0, chosen)].dataset.write);
    } else if (event.key === "Escape" && isOpen) {
      hide();
      event.stopPropagation();
    } else if (event.key === "Enter") {
      clearTimeout(timer);
      hide();
      return;
    } else return;
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const example = event.target.closest("[data-example]");
    if (!example) return;
    box.value = `${box.value.trim()} ${example.dataset.example}`.trim();
    example.closest("dialog").close();
    box.focus();
    settle();
  });

  // ---- an answer arrived: what was wrong is right again
  document.addEventListener("htmx:afterSwap", (event) => {
    const id = event.detail.target?.id;
    if (id === "rollouts") {
      const problem = $("#filter-problem");
      problem.className = "";
      problem.replaceChildren();
      box.removeAttribute("aria-invalid");
      $$("[data-here]").forEach((input) => { input.value = location.pathname + location.search });
      marks();
    } else if (id === "filter-problem") box.setAttribute("aria-invalid", "true");
    else if (event.detail.target?.matches?.(".scan-on")) marks();
  });

  // ---- selected rows, kept while pages are turned
  const KEY = `rlviewer-picked:${location.pathname}`;
  const MOST = 8;
  let picked = [];
  try { picked = JSON.parse(sessionStorage.getItem(KEY) ?? "[]") } catch { /* private window */ }
  const bar = $("#selection");
  function marks() {
    for (const input of $$("[data-pick]")) {
      input.checked = picked.includes(input.value);
      input.closest("tr").setAttribute("aria-selected", String(input.checked));
    }
    bar.hidden = !picked.length;
    $("[data-picked]", bar).textContent = `${picked.length} selected`;
    const compare = $("[data-compare]", bar);
    compare.href = `${compare.dataset.compare}?ids=${picked.join(",")}`;
    compare.toggleAttribute("hidden", picked.length < 2);
    try { sessionStorage.setItem(KEY, JSON.stringify(picked)) } catch { /* private window */ }
  }
  function pick(id, isPicked) {
    picked = picked.filter((one) => one !== id);
    if (isPicked && picked.length >= MOST) rlviewer.toast(`At most ${MOST} rollouts side by side.`, "warning");
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
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    const row = document.activeElement?.closest?.("[data-row]");
    if (event.key === "x" && row && !event.target.closest("input:not([type=checkbox]), textarea, select")) {
      const input = $("[data-pick]", row);
      pick(input.value, !input.checked);
      event.preventDefault();
    }
  });

  // ---- the scrubber: the value under the thumb is shown at once, the list follows when it is let go
  document.addEventListener("input", (event) => {
    if (!event.target.matches(".scrubber input[type=range]")) return;
    const value = Number(event.target.value);
    $("output", event.target.form).textContent = Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(3);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches(".scrubber input[type=range]")) event.target.form.requestSubmit();
  });

  // ---- new rollouts wait behind a pill
  document.body.addEventListener("live:step-stored", () => {
    if ($("#rollouts")?.dataset.first === "yes") $("#newer").hidden = false;
  });
  marks();
})();
