"""Rewards of single steps by the oracle's own. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="reward_spans",
    title="Reward spans",
    summary="GRPO whose reward is a sum of spans: every shown step that the oracle shows too earns a part, the answer the "
    "rest.",
    formula="r_i = sum of the values of its spans;  step j: steps_weight / oracle steps if it is one of them, else "
    "-wrong_step_penalty times that;  answer: (1 - steps_weight) if right;  A_i and loss as GRPO",
    source="our reward contract: a list of spans over tokens, whose sum is the reward",
    parent="grpo",
    changes={"H4": "step_labels"},
)
