// The what-if: a rule and its sliders, and how many tokens it would cut in this rollout, in its group and, when asked, in its step.
(() => {
  "use strict";
  const { RULES, KNOBS, STEPS, inputs, applies, flags, tally, toSlider, fromSlider, ownRule, start, KEPT } = rlviewer.whatIf;
  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  };
  const share = (part, whole) => whole ? ` (${(100 * part / whole).toPrecision(part && part < whole ? 2 : 3).replace(/\.0+$/, "")} %)` : "";

  /** Builds into `box`, with its explanations in `notes`; `onFlags(flags)` hears every change, `onMark(name)` a press on a count of this rollout. */
  function whatIfPanel(box, notes, { columns, told, advantage, stored, number, address, onFlags, onMark }) {
    const data = inputs(columns, advantage);
    if (!data) return null;
    const knobs = {};
    let rule = null, now = null, group, step, settled = 0;
    const stepRow = element("tr");

    const select = element("select", { id: "rule" });
    for (const [name, { title }] of Object.entries(RULES)) {
      const fits = applies(name, data);
      select.append(element("option", { value: name, disabled: !fits, textContent: fits ? title : `${title} (needs ${RULES[name].needs} log-probabilities)` }));
    }
    const sliders = element("div", { className: "knobs" });
    const reset = element("button", { type: "button", className: "button quiet small", textContent: "As the run", title: "The rule and the limits that the run trained with, as far as it told" });
    const table = element("table", { className: "plain cuts" });
    const note = element("p", { className: "small muted" });
    const label = element("label", { className: "row-nowrap" }, element("span", { className: "muted small", textContent: "rule" }), select);
    const mostCut = element("p", { className: "small" });
    box.append(element("div", { className: "row" }, label, reset), sliders, element("div", { className: "cuts-wrap row" }, table, mostCut));
    notes.append(note);

    function drawKnobs() {
      sliders.replaceChildren(...RULES[rule].knobs.map((knob) => {
        const { title, tip, top } = KNOBS[knob];
        const range = element("input", { type: "range", min: 0, max: STEPS, step: 1, ariaLabel: title });
        const exact = element("input", { type: "number", min: 0, step: "any", ariaLabel: `${title}, exact` });
        const show = (from) => {
          if (from !== range) range.value = toSlider(knob, knobs[knob]);
          if (from !== exact) exact.value = knobs[knob];
        };
        range.addEventListener("input", () => { knobs[knob] = fromSlider(knob, Number(range.value)); show(range); update() });
        exact.addEventListener("input", () => { const value = exact.valueAsNumber; if (value >= 0) { knobs[knob] = value; show(exact); update() } });
        show();
        return element("label", { className: "knob", title: `${tip} The slider ends at ${top}; type for more.` }, element("span", { className: "small", textContent: title }), range, exact);
      }));
    }
    function choose(name, values = {}) {
      rule = RULES[name] && applies(name, data) ? name : "clipped";
      select.value = rule;
      for (const knob of [...RULES[rule].knobs, ...RULES[rule].also]) knobs[knob] = values[knob] ?? (KNOBS[knob] ? start(told, knob) : told[knob]);
      drawKnobs();
      update();
    }
    function update() {
      now = flags(rule, data, knobs);
      drawCounts();
      onFlags(now);
    }

    // ---- counts
    function row(head, found, canMark) {
      const cell = (sign) => {
        const text = `${found.cut[sign].toLocaleString("en")} of ${found.counted[sign].toLocaleString("en")}${share(found.cut[sign], found.counted[sign])}`;
        if (!canMark || !found.cut[sign]) return element("td", { textContent: text });
        const press = element("button", { type: "button", className: "link tnum", textContent: text, title: "Mark these tokens" });
        press.addEventListener("click", () => onMark(`cut-${sign}`));
        return element("td", {}, press);
      };
      return element("tr", {}, element("th", { scope: "row", textContent: head }), cell("positive"), cell("negative"));
    }
    function drawCounts() {
      const mine = tally(data, now);
      const head = element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "tokens cut" }), ...["advantage > 0", "advantage < 0"].map((text) => element("th", { scope: "col", textContent: text }))));
      const body = element("tbody", {}, row("this rollout", mine, true));
      if (Array.isArray(group)) {
        const { all, most } = together(group);
        body.append(row(`its group, ${rollouts(group)}`, all, false));
        drawMost(most);
      }
      body.append(stepRow);
      // A step is many tokens: it is counted when the slider rests.
      clearTimeout(settled);
      if (Array.isArray(step)) settled = setTimeout(drawStep, 120);
      else drawStep();
      table.replaceChildren(head, body);
      drawNote(mine);
    }
    const rollouts = (some) => `${some.length.toLocaleString("en")} rollout${some.length === 1 ? "" : "s"}`;
    /** Counts over several rollouts, and the one with most tokens cut. */
    function together(some) {
      const all = { counted: { positive: 0, negative: 0 }, cut: { positive: 0, negative: 0 } };
      const most = { cut: 0, id: null };
      for (const other of some.filter((one) => applies(rule, one.data))) {
        const found = tally(other.data, flags(rule, other.data, knobs));
        for (const part of ["counted", "cut"]) for (const sign of ["positive", "negative"]) all[part][sign] += found[part][sign];
        const cut = found.cut.positive + found.cut.negative;
        if (cut > most.cut) Object.assign(most, { cut, id: other.id, number: other.number });
      }
      return { all, most };
    }
    function drawStep() {
      if (Array.isArray(step)) return stepRow.replaceChildren(...row(`its step, ${rollouts(step)}`, together(step).all, false).children);
      const told = element("td", { colSpan: 2, className: "muted" });
      stepRow.replaceChildren(element("th", { scope: "row", textContent: "its step" }), told);
      if (step !== undefined) return void (told.textContent = step);
      const press = element("button", { type: "button", className: "button small", textContent: "Count", title: "Read the tokens of every rollout of this step" });
      press.addEventListener("click", readStep);
      told.append(press);
    }
    function drawMost({ cut, id, number: its }) {
      mostCut.replaceChildren();
      if (!cut) return;
      const link = element("a", { href: `/rollouts/${id}/${location.search}`, textContent: `rollout ${its}` });
      mostCut.append("Most in ", its === number ? "this rollout" : link, `: ${cut.toLocaleString("en")}.`);
    }
    function drawNote({ counted: { zero } }) {
      const words = [RULES[rule].meaning];
      const also = RULES[rule].also.filter((name) => knobs[name] && knobs[name] !== "token").map((name) => `${name.replaceAll("_", " ")} ${knobs[name]}`);
      if (also.length) words.push(`With the run's ${also.join(", ")}.`);
      if (zero) words.push(`${zero.toLocaleString("en")} counted tokens have no advantage: nothing is cut there.`);
      if (!columns.loss_mask) words.push("No loss mask was recorded: every token counts here.");
      if (!columns.token_advantages) words.push("No advantage of tokens was recorded: the rollout's is taken for each.");
      if (stored && isOwn()) {
        const differ = now.reduce((n, flag, i) => n + (flag !== stored[i]), 0);
        words.push(differ ? `${differ.toLocaleString("en")} tokens differ from the clip that the trainer stored.` : "Equal to the clip that the trainer stored, at every token.");
      }
      if (group === undefined) words.push("Reading the group…");
      else if (!Array.isArray(group)) words.push(group);
      words.push("Exact for the stored ratios; it does not say how training would have gone on.");
      note.textContent = words.join(" ");
    }
    const isOwn = () => rule === ownRule(told) && Boolean(told.loss) && RULES[rule].knobs.every((knob) => knobs[knob] === start(told, knob));

    /** The rollouts of the group or the step, or in words why they are not there. */
    async function read(what) {
      try {
        const answer = await fetch(`${address}${what}/`);
        if (!answer.ok) throw new Error(String(answer.status));
        const found = await answer.json();
        if (!found.rollouts) return `The ${what} has ${found.tokens.toLocaleString("en")} tokens, more than the ${found.limit.toLocaleString("en")} that are counted here.`;
        const read = found.rollouts.map((one) => ({ ...one, fields: null, data: inputs(Object.fromEntries(one.fields.map((field) => [field.name, rlviewer.tokens.numbers(field.type, field.data)])), one.advantage) }));
        return read.filter((one) => applies("clipped", one.data));
      } catch { return `The ${what} could not be read; reload to try again.` }
    }
    async function readGroup() { group = await read("group"); drawCounts() }
    async function readStep() {
      step = "Reading the step…";
      drawStep();
      step = await read("step");
      drawStep();
    }

    select.addEventListener("change", () => choose(select.value));
    reset.addEventListener("click", () => choose(ownRule(told)));
    return {
      open(name, values) {
        choose(name ?? ownRule(told), values);
        if (group === undefined) readGroup();
      },
      state: () => ({ rule, ...Object.fromEntries(RULES[rule].knobs.map((knob) => [knob, knobs[knob]])) }),
      isCut: (sign) => (i) => now !== null && now[i] !== KEPT && data.counts(i) && (sign === "positive" ? data.advantages[i] > 0 : data.advantages[i] < 0),
      knobs: Object.keys(KNOBS),
    };
  }
  rlviewer.whatIfPanel = whatIfPanel;
})();
