"""The numbers of a step and of an evaluation, by the names that the dashboard knows."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from training.credit import Signal
from training.divergences import kl_k1, kl_k3
from training.learner import LearnerBatch, Update
from training.losses import CLIPPED_HIGH, CLIPPED_LOW, ratio_statistics
from training.mismatch import effective_sample_share
from training.rollouts import Rollouts, ScoredRollouts

# A reward function that names its parts by the answer would make a curve of each.
MOST_REWARD_PARTS = 20


def training_metrics(
    rollouts: Rollouts,
    scores: ScoredRollouts,
    signal: Signal,
    batch: LearnerBatch,
    updates: Sequence[Update],
) -> dict[str, float]:
    """Of one training step. Without an update there is nothing to say of loss, gradient, ratio and KL.

    Moments of the advantage are over the rollouts that entered the update, entropy over the tokens that count; where there is
    none, neither is said.
    """
    mask, sampled = batch.loss_mask, ~rollouts.is_greedy
    reward_mean, reward_std = scored_moments(scores.rewards[sampled])
    metrics = {
        "reward_mean": reward_mean,
        "reward_std": reward_std,
        "pass_rate": scores.correct[sampled].double().mean().item(),
        **signal.groups.diagnostics(),
        **reward_part_means(scores, sampled),
        "length_mean": rollouts.lengths.double().mean().item(),
        "length_min": float(rollouts.lengths.min()),
        "length_max": float(rollouts.lengths.max()),
        "truncated_share": 1 - rollouts.is_finished.double().mean().item(),
        "tokens_sampled": float(rollouts.generated.sum()),
        "tokens_trained": float(mask.sum()),
    }
    if bool(signal.kept.any()):
        kept = signal.advantage[signal.kept]
        metrics["advantage_mean"], metrics["advantage_std"] = scored_moments(kept)
        metrics["advantage_min"], metrics["advantage_max"] = kept.min().item(), kept.max().item()
        metrics["advantage_positive_share"] = (kept > 0).double().mean().item()
    if bool(mask.any()):
        metrics["entropy"] = counted_mean(rollouts.entropy, mask)
    if not bool(sampled.all()):
        metrics["greedy_reward_mean"] = scored_moments(scores.rewards[~sampled])[0]
        metrics["beats_greedy_share"] = (signal.groups.advantage > 0).sum().item() / int(sampled.sum())
    return metrics | (_update_metrics(batch, updates) if updates else {})


def _update_metrics(batch: LearnerBatch, updates: Sequence[Update]) -> dict[str, float]:
    first, last = updates[0], updates[-1]
    mask = batch.loss_mask & last.policy_logprobs.isfinite()
    ratios = ratio_statistics(last.importance_ratio, last.clip_flag)
    is_clipped = ((last.clip_flag == CLIPPED_HIGH) | (last.clip_flag == CLIPPED_LOW)).double()
    metrics = {
        "loss": mean_of_updates([update.loss for update in updates]),
        "grad_norm": mean_of_updates([update.grad_norm for update in updates]),
        "learning_rate": last.learning_rate,
        "kl_k1": counted_mean(kl_k1(last.policy_logprobs, batch.sampler_logprobs), mask),
        "kl_k3": counted_mean(kl_k3(last.policy_logprobs, batch.sampler_logprobs), mask),
        "clip_fraction": ratios.clip_fraction,
        "clip_high_fraction": ratios.clip_high_fraction,
        "clip_low_fraction": ratios.clip_low_fraction,
        "ratio_mean": ratios.ratio_mean,
        "ratio_min": ratios.ratio_min,
        "ratio_max": ratios.ratio_max,
        "ratio_clamped_tokens": float(last.clamped_tokens),
        # On which side the rule cut: of the counted tokens whose advantage has that sign.
        "clip_positive_fraction": counted_mean(is_clipped, mask & (batch.token_advantages > 0)),
        "clip_negative_fraction": counted_mean(is_clipped, mask & (batch.token_advantages < 0)),
        "sampler_policy_gap": counted_mean((first.policy_logprobs - batch.sampler_logprobs).abs(), mask),
    }
    metrics |= last.metrics
    if len(last.loss_parts) > 1:
        metrics |= {
            f"loss_{name}": mean_of_updates([update.loss_parts[name] for update in updates]) for name in last.loss_parts
        }
    if batch.ref_logprobs is not None:
        metrics["ref_kl_k1"] = counted_mean(kl_k1(last.policy_logprobs, batch.ref_logprobs), mask)
        metrics["ref_kl_k3"] = counted_mean(kl_k3(last.policy_logprobs, batch.ref_logprobs), mask)
    if batch.recomputed_logprobs is not None:
        gap = batch.recomputed_logprobs - batch.sampler_logprobs
        metrics["mismatch_ratio_mean"] = counted_mean(gap.exp(), batch.loss_mask)
        metrics["mismatch_mean"] = counted_mean(gap.abs(), batch.loss_mask)
        metrics["mismatch_max"] = gap[batch.loss_mask].abs().max().item()
        metrics["mismatch_dropped_share"] = counted_mean((batch.token_weights == 0).double(), batch.loss_mask)
        metrics["effective_sample_share"] = effective_sample_share(batch.token_weights, batch.loss_mask)
    return metrics


def reward_part_means(scores: ScoredRollouts, sampled: Tensor) -> dict[str, float]:
    """Mean of every named part of the reward over the scored rollouts that are `sampled` (`[B]` bool), where there are several."""
    rows = [one for one, counts in zip(scores.scored, sampled.tolist(), strict=True) if counts and one.spans]
    totals: dict[str, list[float]] = {}
    for row in rows:
        for span in row.spans:
            totals.setdefault(span.name, []).append(span.value)
    if not 1 < len(totals) <= MOST_REWARD_PARTS:
        return {}
    return {f"reward_part_{name}": math.fsum(values) / len(rows) for name, values in totals.items()}


def mean_of_updates(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def evaluation_metrics(rollouts: Rollouts, scores: ScoredRollouts, *, samples: int) -> dict[str, float]:
    """Of one evaluation with `samples` completions a prompt."""
    correct = correct_per_prompt(rollouts, scores)
    passes = {
        f"eval_pass_at_{k}": math.fsum(pass_at_k(samples, right, k) for right in correct) / len(correct)
        for k in sorted({1, samples})
    }
    parsed = sum(one.parsed_answer is not None for one in scores.scored)
    return passes | {
        "eval_parsed_share": parsed / len(scores.scored),
        "eval_reward_mean": scored_moments(scores.rewards)[0],
        "eval_length_mean": rollouts.lengths.double().mean().item(),
    }


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that at least one of `k` of the `samples` is correct, without bias.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"needs 1 <= k <= samples and 0 <= correct <= samples, got k={k}, {correct} of {samples}")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def correct_per_prompt(rollouts: Rollouts, scores: ScoredRollouts) -> list[int]:
    counts = torch.zeros(len(rollouts.prompts), dtype=torch.int64)
    return counts.index_add_(0, rollouts.group_index.cpu(), scores.correct.long().cpu()).tolist()


def counted_mean(values: Tensor, mask: Tensor) -> float:
    """Mean over the counted tokens in float64; 0 when none counts."""
    counted = values[mask].double()
    return counted.mean().item() if counted.numel() else 0.0


def scored_moments(rewards: Tensor) -> tuple[float, float]:
    """Mean and population deviation of the scored rewards; NaN when nothing was scored."""
    scored = rewards[~rewards.isnan()]
    if not scored.numel():
        return math.nan, math.nan
    return scored.mean().item(), torch.std(scored, correction=0).item()
