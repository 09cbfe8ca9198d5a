"""How token losses become one number, without torch: what each rollout's sum over tokens is multiplied by.

With N rollouts that have counted tokens, T_i counted tokens of rollout i, as `training.batching.rollout_scale`:

| aggregation | factor of rollout i |
| --- | --- |
| `token_mean` | 1 / sum of all T |
| `rollout_mean` | 1 / (N T_i) |
| `rollout_sum` | 1 / N |
| `token_sum_constant` | 1 / (N C), C a token budget of the configuration |
| `prompt_mean` | 1 / (prompts x counted tokens of its prompt) |
| `token_sum` | 1 |

So three sums over a step serve all of them: plain, by the tokens of the rollout, by those of its prompt. What remains is one
divisor a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.runs.models import Run
from rlviewer.signal.material import Floats, Integers
from training.recipes import named
from training.recipes.knobs import AGGREGATIONS

# The sum that an aggregation needs, as stored: plain, per token of the rollout, per token of the prompt.
PLAIN, PER_ROLLOUT, PER_PROMPT = "mass", "mass_per_rollout", "mass_per_prompt"
SUM_OF = dict.fromkeys(AGGREGATIONS, PLAIN) | {"rollout_mean": PER_ROLLOUT, "prompt_mean": PER_PROMPT}
TITLES = {
    "rollout_mean": "mean over rollouts of their token means",
    "token_mean": "mean over all tokens",
    "rollout_sum": "mean over rollouts of their token sums",
    "token_sum_constant": "token sums over a fixed budget",
    "prompt_mean": "mean over prompts of their token means",
    "token_sum": "sum over all tokens",
}

USUAL = "token_mean"  # where a source tells no aggregation
# As `divisor`, of the columns of a `signal_stepsignal g`.
SQL_DIVISORS = {
    "token_mean": "greatest(g.counted_tokens, 1)",
    "rollout_mean": "greatest(g.counted_rollouts, 1)",
    "rollout_sum": "greatest(g.counted_rollouts, 1)",
    "token_sum_constant": "greatest(g.counted_rollouts * %(constant)s, 1)",
    "prompt_mean": "greatest(g.counted_prompts, 1)",
    "token_sum": "1",
}


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What of a step a divisor is made of."""

    tokens: int  # counted
    rollouts: int  # with a counted token
    prompts: int  # with one


def divisor(aggregation: str, counts: StepCounts, constant_tokens: int = 1) -> float:
    """What the step's sum is divided by; never 0.

    Raises:
        ValueError: the aggregation is unknown.
    """
    found = {
        "token_mean": counts.tokens,
        "rollout_mean": counts.rollouts,
        "rollout_sum": counts.rollouts,
        "token_sum_constant": counts.rollouts * constant_tokens,
        "prompt_mean": counts.prompts,
        "token_sum": 1,
    }.get(aggregation)
    if found is None:
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(AGGREGATIONS)}")
    return float(max(found, 1))


def sums(mass: Floats, tokens: Integers, prompt: Integers) -> dict[str, Floats]:
    """The three stored sums of every rollout from its plain one.

    Args:
        mass: `[B]` sum over the tokens of a rollout.
        tokens: `[B]` its counted tokens.
        prompt: `[B]` equal for rollouts of one prompt.
    """
    _, place = np.unique(prompt, return_inverse=True)
    of_prompt = np.bincount(place, weights=tokens)[place] if len(place) else tokens
    return {PLAIN: mass, PER_ROLLOUT: mass / np.maximum(tokens, 1), PER_PROMPT: mass / np.maximum(of_prompt, 1)}


def aggregation_of(run: Run) -> str | None:
    """The run's own, from its configuration or its recipe; None when its source told neither."""
    given = _params(run).get("aggregation")
    recipe = named(run.algorithm)
    if given is None and recipe is not None:
        given = recipe.params["aggregation"].default
    return given if given in SUM_OF else None


def constant_tokens(run: Run) -> int:
    """C of `token_sum_constant`: the knob, else the longest completion allowed, else 1."""
    sampling = run.config.get("sampling") if isinstance(run.config, Mapping) else None
    longest = sampling.get("max_new_tokens") if isinstance(sampling, Mapping) else None
    for value in (_params(run).get("constant_tokens"), longest):
        if isinstance(value, int) and value > 0:
            return value
    return 1


def _params(run: Run) -> Mapping[str, Any]:
    given = run.config.get("algorithm_params") if isinstance(run.config, Mapping) else None
    return given if isinstance(given, Mapping) else {}
