"""What a recipe would have made of a stored step, in numbers beside what the step was really trained on."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from training.counterfactual import Outcome
from training.losses import CLIPPED_HIGH, CLIPPED_LOW, MASKED
from training.ranks import SAME, rank_correlation
from training.rollouts import ScoredRollouts
from training.stored import StoredStep

Floats = npt.NDArray[np.float64]
LENGTH_PARTS = 4


def columns_of(step: StoredStep, found: Outcome) -> dict[str, npt.NDArray[Any]]:
    """A value a rollout, in the order of the step; what cannot be said is left out."""
    columns: dict[str, npt.NDArray[Any]] = {}
    if found.scores is not None:
        columns["reward"] = found.scores.rewards.numpy()
    if found.signal is not None:
        columns |= {"advantage": found.signal.advantage.numpy(), "kept": found.signal.kept.numpy()}
    if found.policy is not None:
        flag = found.policy.clip_flag
        counted = (flag != MASKED).sum(dim=1)
        clipped = ((flag == CLIPPED_HIGH) | (flag == CLIPPED_LOW)).sum(dim=1)
        columns |= {"counted": counted.int().numpy(), "clipped": clipped.int().numpy()}
    if found.gradient is not None:
        columns["gradient"] = found.gradient.double().abs().sum(dim=1).numpy()
    return columns


def measures(step: StoredStep, found: Outcome) -> dict[str, Any]:
    """JSON-ready. None: it cannot be said, or there is nothing to take it of."""
    said: dict[str, Any] = {"loss": found.loss}
    if found.signal is None:
        return said
    was, now = taught(step.advantage, step.kept), taught(found.signal.advantage, found.signal.kept)
    owner, groups = step.rollouts.group_index.numpy(), len(step.rollouts.prompts)
    alive_was, alive = (np.bincount(owner[np.abs(one) > SAME], minlength=groups) > 0 for one in (was, now))
    said |= {
        "rollouts": len(was),
        "entered": int(found.signal.kept.sum()),
        "groups": groups,
        "alive": int(alive.sum()),
        "woken": np.flatnonzero(alive & ~alive_was).tolist(),
        "died": np.flatnonzero(alive_was & ~alive).tolist(),
        "flips": int((np.sign(_rounded(was)) * np.sign(_rounded(now)) < 0).sum()),
        "largest_difference": float(np.abs(was - now).max(initial=0)),
        "rank_correlation": rank_correlation(*(one[entered_both(step, found)] for one in (was, now))),
        "counted_tokens": int(found.signal.loss_mask.sum()),
    }
    if found.policy is not None:
        flag = found.policy.clip_flag
        counted = max(int((flag != MASKED).sum()), 1)
        said |= {
            "clip_high": int((flag == CLIPPED_HIGH).sum()) / counted,
            "clip_low": int((flag == CLIPPED_LOW).sum()) / counted,
        }
    return said | _of_gradient(step, found.gradient, now)


def reward_changes(step: StoredStep, scores: ScoredRollouts) -> dict[str, Any]:
    """Rewards judged anew against those that are stored, over rollouts that have both."""
    was, now = step.scores.rewards.numpy(), scores.rewards.numpy()
    both = np.isfinite(was) & np.isfinite(now)
    change = (now - was)[both]
    return {
        "reward_both": int(both.sum()),
        "reward_was": float(was[both].mean()) if len(change) else None,
        "reward_now": float(now[both].mean()) if len(change) else None,
        "reward_higher": int((change > SAME).sum()),
        "reward_lower": int((change < -SAME).sum()),
        "reward_unscored": int((np.isfinite(was) & ~np.isfinite(now)).sum()),
        "correct_gained": int((~step.scores.correct & scores.correct).sum()),
        "correct_lost": int((step.scores.correct & ~scores.correct).sum()),
    }


def taught(advantage: Tensor, kept: Tensor) -> Floats:
    """`[B]` the advantage of what entered the update, 0 of what did not."""
    return np.where(kept.numpy(), np.nan_to_num(advantage.numpy()), 0.0)


def _rounded(values: Floats) -> Floats:
    return np.where(np.abs(values) > SAME, values, 0.0)


def entered_both(step: StoredStep, found: Outcome) -> npt.NDArray[np.bool_]:
    assert found.signal is not None
    return np.asarray((step.kept & found.signal.kept).numpy())


def _of_gradient(step: StoredStep, gradient: Tensor | None, advantage: Floats) -> dict[str, Any]:
    """How the sum of |gradient| is spread: over tokens, outcomes, signs of the advantage and lengths."""
    if gradient is None:
        return {}
    mass = gradient.double().abs().numpy()
    of_rollout, whole = mass.sum(axis=1), float(mass.sum())
    if not whole:
        return {"moved_tokens": 0}
    correct, lengths = step.scores.correct.numpy(), step.rollouts.lengths.numpy()
    bounds = np.quantile(lengths, np.linspace(0, 1, LENGTH_PARTS + 1)[1:-1])
    part = np.searchsorted(bounds, lengths, side="left")
    shares = [
        {
            "low": int(lengths[part == place].min()),
            "high": int(lengths[part == place].max()),
            "rollouts": int((part == place).sum()),
            "share": float(of_rollout[part == place].sum() / whole),
        }
        for place in np.unique(part).tolist()
    ]
    largest = np.sort(of_rollout)[::-1][: max(len(of_rollout) // 10, 1)]
    return {
        "moved_tokens": int((mass > 0).sum()),
        "effective_tokens": whole**2 / float((mass**2).sum()),
        "share_correct": float(of_rollout[correct].sum() / whole),
        "share_positive": float(of_rollout[advantage > SAME].sum() / whole),
        "share_top_tenth": float(largest.sum() / whole),
        "share_lengths": shares,
    }
