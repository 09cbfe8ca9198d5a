"""RESTRAIN: every answer is a label to some degree, and doubt is punished. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="restrain",
    title="RESTRAIN",
    summary="Without an answer key: GRPO's advantages under each answer as the label, weighed by its votes; prompts without a "
    "clear answer push all completions down.",
    formula="w_j = g(votes_j / G), normalised; g(s) = exp(-(s - label_centre)^2 / (2 label_width^2));  "
    "A_i = u sum_j w_j A_i(label j), u = g(share of the base model's most frequent answer);  "
    "A_i = -u doubt_penalty where no answer has least_share of the group",
    source="RESTRAIN, arXiv:2510.02172 (centre, width, least share and penalty ours)",
    parent="ttrl",
    changes={"H4": "soft_labels", "H5": "voted", "H9": "base_profile"},
    defaults={"preset": "all"},
)
