"""H9 by name. Imports no torch."""

from training.selection import MixedOnly, Uniform
from training.trackers import BaseProfile, Tracked

SELECTIONS: dict[str, type[Uniform]] = {
    "uniform": Uniform,
    "mixed_only": MixedOnly,
    "base_profile": BaseProfile,
    "tracked": Tracked,
}
