"""Every algorithm by name. A recipe is data: names of parts and defaults; the run resolves names to functions.

Imports no torch.
"""

from training.recipes import grpo
from training.recipes.base import Recipe

__all__ = ["RECIPES", "Recipe"]

RECIPES: dict[str, Recipe] = {
    "grpo": grpo.RECIPE,
}
