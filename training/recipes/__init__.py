"""Every algorithm by name. A recipe is data: names of parts and defaults; the run resolves names to functions.

Imports no torch.
"""

from training.recipes import (
    cispo,
    dapo,
    dppo,
    dr_grpo,
    gmpo,
    grpo,
    gspo,
    gspo_token,
    maxrl,
    nsr,
    psr,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    sapo,
    vpg,
    w_reinforce,
)
from training.recipes.base import Recipe

__all__ = ["RECIPES", "Recipe"]

RECIPES: dict[str, Recipe] = {
    "vpg": vpg.RECIPE,
    "reinforce": reinforce.RECIPE,
    "rloo": rloo.RECIPE,
    "grpo": grpo.RECIPE,
    "dr_grpo": dr_grpo.RECIPE,
    "dapo": dapo.RECIPE,
    "reinforce_plus_plus": reinforce_plus_plus.RECIPE,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline.RECIPE,
    "psr": psr.RECIPE,
    "nsr": nsr.RECIPE,
    "w_reinforce": w_reinforce.RECIPE,
    "maxrl": maxrl.RECIPE,
    "gspo": gspo.RECIPE,
    "gspo_token": gspo_token.RECIPE,
    "cispo": cispo.RECIPE,
    "sapo": sapo.RECIPE,
    "gmpo": gmpo.RECIPE,
    "dppo": dppo.RECIPE,
}
