// The run's page: refreshes what is shown when the run moves on, at most once a second, and never loses the last word.
(() => {
  "use strict";
  const EVERY_MS = 1000;
  const $$ = (selector) => [...document.querySelectorAll(selector)];

  const timers = new WeakMap();
  const refreshedAt = new WeakMap();
  // The first news is answered at once, the rest after the second is over: the last one is always followed by a look.
  function refreshSoon(element) {
    if (timers.has(element)) return;
    const wait = Math.max(0, (refreshedAt.get(element) ?? -EVERY_MS) + EVERY_MS - performance.now());
    timers.set(element, setTimeout(() => {
      timers.delete(element);
      if (document.hidden) { stale.add(element); return }
      refreshedAt.set(element, performance.now());
      if (element.isConnected) htmx.trigger(element, "refresh");
    }, wait));
  }
  // A page in the background asks for nothing and catches up when it is looked at.
  const stale = new Set();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    stale.forEach(refreshSoon);
    stale.clear();
  });

  function hear(name, frame) {
    for (const element of $$("[data-refresh]")) {
      if (name === "refetch" || element.dataset.refresh.split(" ").includes(name)) refreshSoon(element);
    }
    for (const element of $$("[data-refresh-list]")) {
      if (name !== "refetch" && !element.dataset.refreshList.split(" ").includes(name)) continue;
      if (isRead(element)) announce(element, frame); else refreshSoon(element);
    }
  }
  for (const name of ["step-stored", "state-changed", "run-changed", "checkpoint-saved", "signal-computed", "refetch"]) {
    document.body.addEventListener(`live:${name}`, (event) => hear(name, event.detail ?? {}));
  }

  // Somebody reads further down, or has a row focused: new rows wait behind the pill.
  const waiting = new WeakMap();
  function isRead(element) {
    const list = element.querySelector("[data-rows]");
    return Boolean(list) && (list.scrollTop > 8 || list.contains(document.activeElement) || list.matches(":hover"));
  }
  function announce(element, frame) {
    const count = (waiting.get(element) ?? 0) + (frame.rollouts ?? 0);
    waiting.set(element, count);
    const pill = element.querySelector("[data-pill]");
    pill.textContent = count ? `${count} new rollouts` : "New rollouts";
    pill.hidden = false;
  }
  document.addEventListener("click", (event) => {
    const pill = event.target.closest("[data-pill]");
    if (!pill) return;
    const element = pill.closest("[data-refresh-list]");
    waiting.delete(element);
    pill.hidden = true;
    element.querySelector("[data-rows]").scrollTop = 0;
    htmx.trigger(element, "refresh");
  });

  // The name is edited in place.
  for (const input of $$(".title-input")) {
    const stored = input.value;
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      input.value = stored;
      input.blur();
    });
    input.addEventListener("change", () => {
      if (input.value.trim() && input.value !== stored) input.form.requestSubmit();
      else input.value = stored;
    });
  }

  // A log is read from its end.
  const toEnd = () => {
    const log = document.getElementById("log-lines");
    if (log && !log.matches(":hover, :focus")) log.scrollTop = log.scrollHeight;
  };
  toEnd();
  document.addEventListener("htmx:afterSettle", toEnd);
})();
