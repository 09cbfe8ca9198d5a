"""Every algorithm by name. A recipe is data: names of parts and defaults; the run resolves names to functions.

Imports no torch.
"""

from dataclasses import replace

from training.recipes import (
    a2c,
    cispo,
    clip_cov,
    dapo,
    dppo,
    dr_grpo,
    forking_tokens,
    gmpo,
    grpo,
    grpo_lead,
    grpo_process,
    gspo,
    gspo_token,
    icepop,
    kl_cov,
    maxrl,
    nat_rpc,
    nat_urs,
    nsr,
    offpolicy_mask,
    passk_training,
    pkpo,
    ppo,
    psr,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rl_zvp,
    rloo,
    sapo,
    sequence_mask,
    stratified_grpo,
    tailrl,
    temporal_shaping,
    tis,
    trpo,
    vpg,
    w_reinforce,
)
from training.recipes.base import Recipe
from training.recipes.presets import PRESETS

__all__ = ["PRESETS", "RECIPES", "Recipe", "named"]

RECIPES: dict[str, Recipe] = {
    "vpg": vpg.RECIPE,
    "reinforce": reinforce.RECIPE,
    "rloo": rloo.RECIPE,
    "remax": remax.RECIPE,
    "reinforce_plus_plus": reinforce_plus_plus.RECIPE,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline.RECIPE,
    "a2c": a2c.RECIPE,
    "ppo": ppo.RECIPE,
    "trpo": trpo.RECIPE,
    "grpo": grpo.RECIPE,
    "grpo_process": grpo_process.RECIPE,
    "dr_grpo": dr_grpo.RECIPE,
    "dapo": dapo.RECIPE,
    "gspo": gspo.RECIPE,
    "gspo_token": gspo_token.RECIPE,
    "cispo": cispo.RECIPE,
    "gmpo": gmpo.RECIPE,
    "sapo": sapo.RECIPE,
    "dppo": dppo.RECIPE,
    "tis": tis.RECIPE,
    "icepop": icepop.RECIPE,
    "sequence_mask": sequence_mask.RECIPE,
    "offpolicy_mask": offpolicy_mask.RECIPE,
    "clip_cov": clip_cov.RECIPE,
    "kl_cov": kl_cov.RECIPE,
    "forking_tokens": forking_tokens.RECIPE,
    "rl_zvp": rl_zvp.RECIPE,
    "psr": psr.RECIPE,
    "nsr": nsr.RECIPE,
    "w_reinforce": w_reinforce.RECIPE,
    "maxrl": maxrl.RECIPE,
    "tailrl": tailrl.RECIPE,
    "pkpo": pkpo.RECIPE,
    "passk_training": passk_training.RECIPE,
    "grpo_lead": grpo_lead.RECIPE,
    "stratified_grpo": stratified_grpo.RECIPE,
    "temporal_shaping": temporal_shaping.RECIPE,
    "nat_urs": nat_urs.RECIPE,
    "nat_rpc": nat_rpc.RECIPE,
}


def named(name: str) -> Recipe | None:
    """The recipe of that name; of `recipe@trainer` with what that trainer sets. None: there is none."""
    if name in PRESETS:
        recipe = RECIPES[name.split("@")[0]]
        return replace(recipe, name=name, defaults={**recipe.defaults, **PRESETS[name]})
    return RECIPES.get(name)
