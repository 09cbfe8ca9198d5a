"""Boolean DAGs, of which no step can be skipped, with the values of their nodes as labels. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="natbool_dag",
    title="Boolean DAG with step labels",
    summary="Process rewards on boolean circuits with named nodes: each node's value is a step that can be checked.",
    formula="task: a DAG of gates, True and False equally likely, no input decides alone;  "
    "reward of a shown node: its part of steps_weight if the value is the node's;  A_t and loss as GRPO, process rewards",
    source="after the natural-language boolean DAGs of arXiv:2601.21576 (our reading)",
    parent="grpo_process",
    changes={"H4": "step_labels", "H5": "process", "H6": "process"},
    settings={"task": {"name": "natbool_dag"}},
)
