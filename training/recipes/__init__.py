"""Every algorithm by name. A recipe is data: names of parts and defaults; the run resolves names to functions.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training.recipes import (
    a2c,
    cbrl,
    cispo,
    clip_cov,
    dapo,
    dare,
    dppo,
    dr_grpo,
    forking_tokens,
    gmpo,
    grpo,
    grpo_lead,
    grpo_process,
    gspo,
    gspo_token,
    hardest_decile,
    icepop,
    kl_cov,
    luspo,
    maxrl,
    nat_rpc,
    nat_urs,
    natbool_dag,
    nsr,
    offpolicy_mask,
    opo,
    passk_training,
    pkpo,
    ppo,
    psr,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    restrain,
    reward_spans,
    rl_zvp,
    rloo,
    rlve_window,
    sapo,
    sequence_mask,
    spo,
    stratified_grpo,
    tailrl,
    temporal_shaping,
    tis,
    trpo,
    ttrl,
    vpg,
    w_reinforce,
)
from training.recipes.base import Recipe
from training.recipes.presets import PRESETS

__all__ = ["PRESETS", "RECIPES", "Recipe", "named", "with_settings"]

RECIPES: dict[str, Recipe] = {
    "vpg": vpg.RECIPE,
    "reinforce": reinforce.RECIPE,
    "rloo": rloo.RECIPE,
    "remax": remax.RECIPE,
    "opo": opo.RECIPE,
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
    "luspo": luspo.RECIPE,
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
    "spo": spo.RECIPE,
    "reward_spans": reward_spans.RECIPE,
    "natbool_dag": natbool_dag.RECIPE,
    "rlve_window": rlve_window.RECIPE,
    "hardest_decile": hardest_decile.RECIPE,
    "cbrl": cbrl.RECIPE,
    "ttrl": ttrl.RECIPE,
    "dare": dare.RECIPE,
    "restrain": restrain.RECIPE,
}


def named(name: str) -> Recipe | None:
    """The recipe of that name; of `recipe@trainer` with what that trainer sets. None: there is none."""
    if name in PRESETS:
        recipe = RECIPES[name.split("@")[0]]
        return replace(recipe, name=name, defaults={**recipe.defaults, **PRESETS[name]})
    return RECIPES.get(name)


def with_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's tables, completed with what its recipe starts from where they are silent."""
    recipe = named(str(raw.get("algorithm", "")))
    tables = {} if recipe is None else recipe.settings
    return dict(raw) | {
        name: {**table, **raw.get(name, {})} for name, table in tables.items() if isinstance(raw.get(name, {}), Mapping)
    }
