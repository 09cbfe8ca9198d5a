// Starts the page of a rollout: at once, or where it is long with its text first and its numbers as soon as they are read.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("rollout-data").textContent);
  const place = document.getElementById("tokens");
  const note = document.getElementById("token-note");
  const BEGINNING = 3000; // tokens that are shown meanwhile
  if (data.fields.every((field) => field.data !== null)) return rlviewer.showRollout(data);

  function showText() {
    if (data.pieces.source !== "vocabulary") return;
    const ids = rlviewer.tokens.numbers("i4", data.ids).subarray(0, BEGINNING);
    place.append(...rlviewer.raw.nodes(Array.from(ids, (id) => data.pieces.by_id[id] ?? "").join("")));
  }
  async function read() {
    const answer = await fetch(`${document.getElementById("raw").dataset.address}numbers/`);
    if (!answer.ok) throw new Error(String(answer.status));
    rlviewer.tokens.fromBuffer(data.fields, data.count, await answer.arrayBuffer());
  }
  async function start() {
    // Labels may be there before the tokens that they mark.
    let labels = null;
    const keep = (event) => { labels = event.detail };
    place.addEventListener("labels-shown", keep);
    place.setAttribute("aria-busy", "true");
    note.hidden = false;
    note.textContent = `Reading the numbers of ${data.count.toLocaleString("en")} tokens …`;
    showText();
    try {
      await read();
    } catch {
      note.textContent = "The numbers of the tokens could not be read; reload to try again. Text, ids and JSON have their own addresses.";
      return;
    }
    place.removeEventListener("labels-shown", keep);
    place.removeAttribute("aria-busy");
    place.replaceChildren();
    rlviewer.showRollout(data);
    if (labels) place.dispatchEvent(new CustomEvent("labels-shown", { detail: labels }));
  }
  start();
})();
