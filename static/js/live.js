// Tells the page what changed. Opens the socket named by [data-live-url] and dispatches on document.body:
//   live:<event>   one announcement; detail is its frame {topic, seq, event, ...}
//   live:refetch   something was missed: ask for everything again
// [data-live-seq] beside the address is the topic's number when the page was rendered; without it the page refetches once.
// Every [data-live-dot] gets data-state: live, reconnecting, or paused (hidden for a while, or refused).
(() => {
  "use strict";

  const RETRY_MIN_MS = 500;
  const RETRY_MAX_MS = 30_000;
  const SILENT_MS = 60_000; // the server speaks at least every 25 s
  const HIDDEN_MS = 120_000;
  const REFETCH_EVERY_MS = 1_000;
  const REFUSED = new Set([4403, 4404]);
  const LABELS = { live: "Live", reconnecting: "Reconnecting", paused: "Paused" };

  let url = null;
  let seq = null;
  let socket = null;
  let retries = 0;
  let retryTimer = 0;
  let silentTimer = 0;
  let hiddenTimer = 0;
  let refetchTimer = 0;
  let refetchedAt = -Infinity;
  let refused = false;

  const dispatch = (name, detail) => document.body.dispatchEvent(new CustomEvent(`live:${name}`, { detail }));

  function show(state) {
    for (const dot of document.querySelectorAll("[data-live-dot]")) {
      dot.dataset.state = state;
      dot.title = LABELS[state];
      const label = dot.querySelector("[data-live-label]");
      if (label) label.textContent = LABELS[state];
    }
  }

  // At most one a second: a burst costs the page one more look, not a hundred.
  function refetch() {
    if (refetchTimer) return;
    const wait = Math.max(0, refetchedAt + REFETCH_EVERY_MS - performance.now());
    refetchTimer = setTimeout(() => {
      refetchTimer = 0;
      refetchedAt = performance.now();
      dispatch("refetch", { seq });
    }, wait);
  }

  function hear(message) {
    const frame = JSON.parse(message.data);
    clearTimeout(silentTimer);
    silentTimer = setTimeout(reopen, SILENT_MS);
    const previous = seq;
    if (frame.event === "hello" || frame.event === "beat") {
      seq = frame.seq;
      if (frame.event === "hello") {
        retries = 0;
        show("live");
      }
      if (previous !== seq) refetch();
    } else if (frame.event === "refetch") {
      seq = frame.seq;
      refetch();
    } else if (previous === null || frame.seq > previous) {
      seq = frame.seq;
      dispatch(frame.event, frame);
      if (previous !== null && frame.seq !== previous + 1) refetch();
    }
  }

  function shut() {
    clearTimeout(retryTimer);
    clearTimeout(silentTimer);
    if (!socket) return;
    socket.onmessage = socket.onclose = null;
    socket.close();
    socket = null;
  }

  function open() {
    shut();
    if (!url || refused) return;
    show("reconnecting");
    const address = new URL(url, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(address);
    socket.onmessage = hear;
    socket.onclose = (event) => {
      clearTimeout(silentTimer);
      socket = null;
      if (REFUSED.has(event.code)) {
        // Signed out or no longer a member: the next request of the page says so in words.
        refused = true;
        show("paused");
        refetch();
        return;
      }
      show("reconnecting");
      // Jitter, so that a restarted server is not asked by every page in the same instant.
      const delay = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** retries) * (0.5 + Math.random() / 2);
      retries += 1;
      retryTimer = setTimeout(open, delay);
    };
  }

  function reopen() {
    retries = 0;
    open();
  }

  // After a swap the page may be about something else.
  function follow() {
    const element = document.querySelector("[data-live-url]");
    const wanted = element ? element.dataset.liveUrl : null;
    if (wanted === url) return;
    url = wanted;
    refused = false;
    seq = element && element.dataset.liveSeq ? Number(element.dataset.liveSeq) : null;
    if (url) reopen();
    else shut();
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (!document.hidden) {
      if (!socket) reopen();
      return;
    }
    hiddenTimer = setTimeout(() => {
      shut();
      show("paused");
    }, HIDDEN_MS);
  });
  window.addEventListener("online", reopen);
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) reopen(); // back from the browser's page cache, where sockets are closed
  });
  document.addEventListener("htmx:afterSettle", follow);
  // Not before htmx has begun to listen, which it does when all scripts have come.
  if (document.readyState === "complete") follow();
  else document.addEventListener("DOMContentLoaded", follow);
})();
