// What a clipping or masking rule does to stored tokens: the definitions of training/losses.py, in float32 as the trainer.
(() => {
  "use strict";
  const f32 = Math.fround;
  const LOG_RATIO_LIMIT = 20;
  // Values of the clip flag, as training.records.CLIP_FLAGS.
  const KEPT = 0, HIGH = 1, LOW = 2, MASKED = 3;

  /** Columns of one rollout by name to what every rule reads; null where the rule's numbers were not recorded. */
  function inputs(columns, rolloutAdvantage) {
    const { policy_logprobs: policy, sampler_logprobs: sampler, recomputed_logprobs: recomputed, loss_mask: mask, token_weights: weights } = columns;
    const anchor = recomputed ?? sampler;
    const given = columns.token_advantages;
    if (!policy || !anchor || (!given && rolloutAdvantage === null)) return null;
    const count = policy.length;
    const counts = (i) => !mask || mask[i] !== 0;
    const advantages = Float32Array.from({ length: count }, (_, i) => counts(i) ? (given ? given[i] : rolloutAdvantage) * (weights ? weights[i] : 1) : 0);
    const logRatio = Float64Array.from({ length: count }, (_, i) => counts(i) ? f32(policy[i] - anchor[i]) : 0);
    return { policy, sampler, recomputed, advantages, logRatio, counts, count };
  }
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const counted = (data) => { let n = 0; for (let i = 0; i < data.count; i += 1) n += data.counts(i); return n };
  const total = (data, limit = Infinity) => data.logRatio.reduce((sum, value) => sum + clamp(value, -limit, limit), 0);

  /** Importance ratio of token i at the run's level. */
  function ratios(data, level) {
    if (level !== "token") {
      const sum = total(data);
      const one = f32(Math.exp(clamp(level === "sequence_sum" ? sum : sum / Math.max(1, counted(data)), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)));
      return () => one;
    }
    return (i) => f32(Math.exp(clamp(data.logRatio[i], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)));
  }

  const RULES = {
    clipped: {
      title: "ratio clip", knobs: ["clip_low", "clip_high"], also: ["ratio_level", "dual_clip", "drift_limit"],
      meaning: "min(ratio A, clip(ratio, 1 − low, 1 + high) A): a token is cut where the clipped branch is the smaller, so where it has no gradient.",
      flag(data, { clip_low, clip_high, ratio_level = "token", dual_clip = 0, drift_limit = 0 }) {
        const ratio = ratios(data, ratio_level);
        const low = f32(1 - clip_low), high = f32(1 + clip_high);
        const isDropped = drift_limit > 0 && -total(data, LOG_RATIO_LIMIT) / Math.max(1, counted(data)) > f32(drift_limit);
        return (i, A) => {
          const r = ratio(i);
          const objective = f32(r * A), clipped = f32(clamp(r, low, high) * A);
          if (isDropped && A < 0) return LOW;
          if (dual_clip && A < 0 && Math.min(objective, clipped) < f32(dual_clip * A)) return HIGH;
          return clipped < objective ? (A > 0 ? HIGH : LOW) : KEPT;
        };
      },
    },
    tv: {
      title: "DPPO, total variation", knobs: ["tv_limit"], also: [],
      meaning: "A token is cut when its probability changed by more than the limit, and where the advantage pushes it.",
      needs: "sampler",
      flag: (data, { tv_limit }) => divergence(data, tv_limit, (q, m) => Math.abs(f32(q - m))),
    },
    kl: {
      title: "DPPO, KL", knobs: ["kl_limit"], also: [],
      meaning: "A token is cut when the KL between (token, any other) under sampler and policy is above the limit, and where the advantage pushes it.",
      needs: "sampler",
      flag: (data, { kl_limit }) => divergence(data, kl_limit, (q, m, i) => f32(f32((1 - m) * Math.log((1 - m + 1e-8) / (1 - q + 1e-8))) - f32(m * clamp(f32(data.policy[i] - data.sampler[i]), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)))),
    },
    detached_clip: {
      title: "CISPO bounds", knobs: ["ratio_low", "ratio_high"], also: [],
      meaning: "A token beyond a bound keeps a gradient that is bounded there: it is marked, not cut.",
      flag(data, { ratio_low, ratio_high }) {
        const ratio = ratios(data, "token");
        return (i) => ratio(i) > f32(ratio_high) ? HIGH : ratio(i) < f32(ratio_low) ? LOW : KEPT;
      },
    },
    tis: {
      title: "mismatch cap (TIS)", knobs: ["mismatch_cap"], also: [],
      meaning: "Recomputed over sampler probability above the cap: the token's weight is held there.",
      needs: "recomputed",
      flag: (data, { mismatch_cap }) => (i) => f32(Math.exp(clamp(f32(data.recomputed[i] - data.sampler[i]), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))) > f32(mismatch_cap) ? HIGH : KEPT,
    },
  };
  function divergence(data, limit, distance) {
    return (i, A) => {
      const q = f32(Math.exp(data.policy[i])), m = f32(Math.exp(data.sampler[i]));
      if (!(distance(q, m, i) > f32(limit))) return KEPT;
      return A > 0 && q > m ? HIGH : A < 0 && q < m ? LOW : KEPT;
    };
  }
  const applies = (rule, data) => data !== null && (!RULES[rule].needs || Boolean(data[RULES[rule].needs] && data.sampler));

  /** The clip flag of every token of one rollout under a rule. */
  function flags(rule, data, knobs) {
    const flag = RULES[rule].flag(data, knobs);
    return Uint8Array.from({ length: data.count }, (_, i) => data.counts(i) ? flag(i, data.advantages[i]) : MASKED);
  }
  /** Counted and cut tokens by the sign of their advantage. */
  function tally(data, flagged) {
    const found = { counted: { positive: 0, negative: 0, zero: 0 }, cut: { positive: 0, negative: 0, zero: 0 } };
    for (let i = 0; i < data.count; i += 1) {
      if (flagged[i] === MASKED) continue;
      const sign = data.advantages[i] > 0 ? "positive" : data.advantages[i] < 0 ? "negative" : "zero";
      found.counted[sign] += 1;
      found.cut[sign] += flagged[i] === KEPT ? 0 : 1;
    }
    return found;
  }

  // Where each slider starts when the run tells nothing, its end, and what it means. Positions are cubed: small values matter.
  const KNOBS = {
    clip_low: { start: 0.2, top: 1, title: "clip low", tip: "A ratio below 1 − this is cut where the advantage is negative." },
    clip_high: { start: 0.2, top: 4, title: "clip high", tip: "A ratio above 1 + this is cut where the advantage is positive." },
    tv_limit: { start: 0.15, top: 1, title: "limit", tip: "Largest change of a token's probability." },
    kl_limit: { start: 0.05, top: 2, title: "limit, nats", tip: "Largest KL between sampler and policy at a token." },
    ratio_low: { start: 0, top: 1, title: "lowest ratio", tip: "Lowest weight of a token." },
    ratio_high: { start: 5, top: 20, title: "highest ratio", tip: "Highest weight of a token; a ratio, not a distance from 1." },
    mismatch_cap: { start: 2, top: 20, title: "cap", tip: "Highest weight for the mismatch of engine and trainer." },
  };
  const STEPS = 1000;
  const toSlider = (knob, value) => Math.round(STEPS * Math.cbrt(clamp(value / KNOBS[knob].top, 0, 1)));
  const fromSlider = (knob, place) => Number((KNOBS[knob].top * (place / STEPS) ** 3).toPrecision(3));
  const ownRule = (told) => told.loss === "divergence_masked" ? (told.divergence === "kl" ? "kl" : "tv") : told.loss in RULES ? told.loss : "clipped";
  const start = (told, knob) => typeof told[knob] === "number" ? told[knob] : KNOBS[knob].start;

  rlviewer.whatIf = { RULES, KNOBS, STEPS, inputs, applies, flags, tally, toSlider, fromSlider, ownRule, start, KEPT, MASKED };
})();
