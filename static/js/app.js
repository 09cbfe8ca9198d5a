// The shell of every page: theme, palette, keys, tooltips, copying, and what happens when a request fails.
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const remember = (key, value) => {
    try { value ? localStorage.setItem(key, value) : localStorage.removeItem(key) } catch { /* private window */ }
  };

  // ---- what a person types is never overwritten: an answer to what stood there before is thrown away
  Idiomorph.defaults.ignoreActiveValue = true;
  // Drawn charts, opened menus, ticks not sent yet, and parts that refresh on their own are not the morphing's business.
  Object.assign(Idiomorph.defaults.callbacks, {
    beforeNodeMorphed: (old, fresh) =>
      !(fresh.hasAttribute?.("data-placeholder") || (old.type === "checkbox" && old.checked !== old.defaultChecked) || (old.matches?.("[data-figure]") && fresh.matches?.("[data-figure]"))),
    beforeNodeRemoved: (node) => !node.matches?.(".chart-table, .chart > .retry"),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details, dialog")),
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest?.("form[hx-get]");
    if (form) htmx.trigger(form, "htmx:abort");
  });

  // ---- toasts
  function toast(text, kind = "info") {
    const box = document.createElement("div");
    box.className = `toast ${kind}`;
    const words = document.createElement("div");
    words.className = "grow";
    words.textContent = text;
    const close = document.createElement("button");
    close.type = "button";
    close.className = "button quiet small";
    close.dataset.dismiss = "";
    close.textContent = "Dismiss";
    box.append(words, close);
    $("#toasts")?.append(box);
    if (kind !== "error") setTimeout(() => box.remove(), 6000);
  }
  setTimeout(() => $$("#toasts > .success, #toasts > .info").forEach((box) => box.remove()), 8000);

  // ---- on a narrow screen the chosen tab may lie beyond the edge
  for (const tab of $$(".tabs [aria-current]")) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 48;

  // ---- theme and sidebar
  const THEMES = { "": "As the system says", light: "Light", dark: "Dark" };
  function nextTheme() {
    const order = Object.keys(THEMES);
    const now = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
    if (now) root.dataset.theme = now; else delete root.dataset.theme;
    remember("rlviewer-theme", now);
    document.body.dispatchEvent(new CustomEvent("theme-changed"));
    toast(`Theme: ${THEMES[now].toLowerCase()}`);
  }
  function collapse() {
    if (root.dataset.nav) delete root.dataset.nav; else root.dataset.nav = "icons";
    remember("rlviewer-nav", root.dataset.nav);
  }

  // ---- command palette: actions of this page first, then what the server finds
  const entries = () => $$("#palette-list a, #palette-list button");
  function select(entry) {
    entries().forEach((item) => item.setAttribute("aria-selected", item === entry));
    entry?.scrollIntoView({ block: "nearest" });
    const input = $("#palette input");
    if (entry) {
      entry.id ||= `place-${entries().indexOf(entry)}`;
      input.setAttribute("aria-activedescendant", entry.id);
    } else input.removeAttribute("aria-activedescendant");
  }
  function listHere() {
    const query = $("#palette input").value.trim().toLowerCase();
    const found = $$("[data-key-help], [data-palette]").filter((el) => el.checkVisibility() && !el.disabled)
      .map((el) => [el.dataset.palette || el.dataset.keyHelp, el])
      .filter(([label]) => label.toLowerCase().includes(query));
    $("#palette-here").replaceChildren(...found.map(([label, el]) => {
      const item = document.createElement("button");
      item.type = "button";
      item.setAttribute("role", "option");
      item.textContent = label;
      if (el.dataset.key) {
        const key = document.createElement("kbd");
        key.className = "push";
        key.textContent = el.dataset.key;
        item.append(key);
      }
      item.addEventListener("click", () => { $("#palette").close(); el.click() });
      return item;
    }));
    select(entries()[0]);
  }
  function openPalette() {
    $$("details[data-menu][open]").forEach((menu) => { menu.open = false });
    const input = $("#palette input");
    $("#palette").showModal();
    input.value = "";
    input.focus();
    listHere();
    htmx.trigger(input, "palette-open");
  }
  function paletteKey(event) {
    const all = entries();
    const at = all.findIndex((item) => item.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown") select(all[Math.min(all.length - 1, at + 1)]);
    else if (event.key === "ArrowUp") select(all[Math.max(0, at - 1)]);
    else if (event.key === "Enter") (all[at] ?? all[0])?.click();
    else return;
    event.preventDefault();
  }
  document.addEventListener("input", (event) => { if (event.target.closest("#palette")) listHere() });

  // ---- help: the page's own keys are read from its controls
  function openHelp() {
    const list = $("#keys");
    $$("[data-own]", list).forEach((el) => el.remove());
    $$("[data-key]").forEach((el) => {
      const term = document.createElement("dt");
      const key = document.createElement("kbd");
      const words = document.createElement("dd");
      key.textContent = el.dataset.key;
      words.textContent = el.dataset.keyHelp || el.textContent.trim();
      term.append(key);
      term.dataset.own = words.dataset.own = "";
      list.append(term, words);
    });
    $("#help").showModal();
  }

  // ---- keys
  function moveRow(by) {
    const links = $$("[data-rows] [data-row]").map((row) => row.matches("a, button") ? row : $("a[href]", row)).filter(Boolean);
    const at = links.findIndex((link) => link === document.activeElement || link.closest("[data-row]").contains(document.activeElement));
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
    next?.focus();
    next?.closest("[data-row]").scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if ($("#palette")?.open) $("#palette").close(); else openPalette();
      return;
    }
    if ($("#palette")?.open) return paletteKey(event);
    if (event.key === "Escape") {
      hideTip();
      $$("details[data-menu][open]").forEach((menu) => { menu.open = false; $("summary", menu).focus() });
      if (event.target.matches("[data-filter]")) {
        event.preventDefault(); // browsers empty a search field on Escape; what was filtered stays
        event.target.blur();
      }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const own = $$("[data-key]").find((el) => el.dataset.key === event.key && el.checkVisibility());
    const act = own ? () => own.click()
      : event.key === "j" ? () => moveRow(1)
      : event.key === "k" ? () => moveRow(-1)
      : event.key === "/" ? () => { const box = $("[data-filter]"); box?.focus(); box?.select() }
      : event.key === "?" ? openHelp : null;
    if (!act) return;
    event.preventDefault();
    act();
  });

  // ---- clicks
  const busy = new WeakSet();
  document.addEventListener("click", async (event) => {
    const at = (selector) => event.target.closest(selector);
    $$("details[data-menu][open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false });
    if (at("[data-theme-toggle]")) nextTheme();
    else if (at("[data-collapse]")) collapse();
    else if (at("[data-dismiss]")) at(".toast")?.remove();
    else if (at("[data-close]")) at("dialog")?.close();
    else if (at("[data-open]")) {
      const name = at("[data-open]").dataset.open;
      if (name === "palette") openPalette(); else if (name === "help") openHelp(); else document.getElementById(name)?.showModal();
    } else if (at("[data-copy]")) {
      const button = at("[data-copy]");
      const label = $("span", button) ?? button;
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      label.textContent = "Copied";
      setTimeout(() => { label.textContent = "Copy" }, 1500);
    } else if (event.target.matches("dialog")) event.target.close();
  });
  document.addEventListener("submit", (event) => {
    // A second press of the same button must not send the form twice.
    if (event.defaultPrevented) return;
    if (busy.has(event.target)) return event.preventDefault();
    busy.add(event.target);
    event.submitter?.classList.add("is-busy");
  });
  // What is typed during one visit to a box is one entry of the history, and an address that is there already is none.
  let typedIn = null;
  document.addEventListener("htmx:beforeHistoryUpdate", ({ detail: { history: update } }) => {
    const box = document.activeElement?.matches("[data-filter]") ? document.activeElement : null;
    if (new URL(update.path, location.href).href === location.href || (box && box === typedIn)) update.type = "replace";
    typedIn = box;
  });
  document.addEventListener("focusout", () => { typedIn = null });
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload() });

  // Copied numbers are exact: a shown number is replaced by the value it stands for.
  document.addEventListener("copy", (event) => {
    const chosen = getSelection();
    if (!chosen.rangeCount || event.target.closest?.("input, textarea")) return;
    const part = chosen.getRangeAt(0).cloneContents();
    const numbers = $$("data[value]", part);
    if (!numbers.length) return;
    numbers.forEach((el) => { el.textContent = el.value });
    const rows = $$("tr", part);
    const text = rows.length ? rows.map((tr) => [...tr.cells].map((td) => td.textContent.trim()).join("\t")).join("\n") : part.textContent;
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  });

  // ---- tooltips
  let tip = null;
  function showTip(owner) {
    hideTip();
    tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("role", "tooltip");
    tip.textContent = owner.dataset.tip + (owner.dataset.key ? ` (${owner.dataset.key})` : "");
    (owner.closest("dialog") ?? document.body).append(tip);
    const box = owner.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  }
  function hideTip() { tip?.remove(); tip = null }
  for (const name of ["mouseover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const owner = event.target.closest?.("[data-tip]");
      if (owner) showTip(owner); else if (name === "mouseover") hideTip();
    });
  }
  document.addEventListener("focusout", hideTip);
  document.addEventListener("scroll", hideTip, true);

  // ---- htmx: a failed fragment offers to try again in its own place, the rest of the page lives on
  function failed(event, words) {
    const { elt, target, requestConfig } = event.detail;
    elt.closest("form")?.classList.remove("htmx-request");
    if (requestConfig && requestConfig.verb !== "get") return toast(words, "error");
    const place = target?.isConnected ? target : elt;
    const wrap = place.closest("table")?.parentElement ?? place;
    const old = wrap.previousElementSibling;
    const box = old?.matches(".retry") ? old : document.createElement("div");
    box.className = "retry";
    box.setAttribute("role", "alert");
    const text = document.createElement("span");
    text.textContent = words;
    const again = document.createElement("button");
    again.type = "button";
    again.className = "button small";
    again.textContent = "Try again";
    again.addEventListener("click", () => {
      box.remove();
      htmx.ajax("GET", requestConfig.path, { source: elt, target: place, values: requestConfig.parameters, swap: "morph:outerHTML" });
    });
    box.replaceChildren(text, again);
    if (box !== old) wrap.before(box);
  }
  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    failed(event, status === 404 ? "This is no longer here, or you may not see it." :
      status === 403 ? "You may not do this, or the page is too old: reload it." :
      `The server could not answer (${status}). What you see is from before.`);
  });
  document.addEventListener("htmx:sendError", (event) => failed(event, "The server does not answer. What you see is from before."));
  document.addEventListener("htmx:timeout", (event) => failed(event, "The server took too long. What you see is from before."));
  document.addEventListener("htmx:beforeSwap", (event) => {
    // Signed out meanwhile: the answer is the sign-in page, which belongs in the window, not in a fragment.
    if (new URL(event.detail.xhr?.responseURL || location.href).pathname === "/sign-in/" && location.pathname !== "/sign-in/") {
      event.detail.shouldSwap = false;
      location.reload();
    }
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const place = event.detail.target;
    if (!place?.isConnected) return;
    const box = (place.closest("table")?.parentElement ?? place).previousElementSibling;
    if (box?.matches(".retry")) box.remove();
    if (place.id === "palette-found") select(entries()[0]);
  });
  // A filter's address names only what it narrows.
  document.addEventListener("htmx:configRequest", (event) => {
    const { elt, parameters } = event.detail;
    if (elt.closest("form.filters")) [...parameters.entries()].forEach(([name, value]) => { if (value === "") parameters.delete(name) });
  });
  // A list that refreshes itself holds new rows back while somebody reads further down.
  document.addEventListener("htmx:configRequest", (event) => {
    const list = event.detail.elt.closest?.("[data-hold]");
    if (list && (event.detail.triggeringEvent?.type ?? "").startsWith("live:") && scrollY > 120) {
      event.detail.parameters.set?.("upto", list.dataset.hold);
    }
  });

  // ---- ages stay true while the page is open
  const UNITS = [[31536000, "y"], [604800, "w"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  setInterval(() => $$("time[data-age]").forEach((el) => {
    const seconds = (Date.now() - Date.parse(el.dateTime)) / 1000;
    const [size, unit] = UNITS.find(([size]) => Math.max(10, seconds) >= size);
    el.textContent = seconds < 5 ? "now" : `${Math.floor(Math.max(10, seconds) / size)} ${unit} ago`;
  }), 10000);

  window.rlviewer = { toast };
})();
