"""Figures, one function each: a table in, a Figure out. Nothing here measures anything."""

from ident_utils.plots.angle import (
    plot_before_norm,
    plot_information,
    plot_interventions,
    plot_lookups,
    plot_parts,
)
from ident_utils.plots.attention import (
    plot_attention_received,
    plot_attention_triptych,
    plot_correlation,
    plot_heads,
    plot_nullity,
    plot_raw_and_effective,
)
from ident_utils.plots.contribution import (
    plot_contribution_map,
    plot_group_contribution,
    plot_largest,
    plot_main_contributors,
    plot_offsets,
    plot_own_by_group,
    plot_own_by_length,
    plot_own_contribution,
)
from ident_utils.plots.identity import (
    plot_across_layers,
    plot_controls,
    plot_learning,
    plot_losses,
    plot_mappings,
    plot_neighbours,
    plot_retention,
    plot_steps,
)

__all__ = [
    "plot_across_layers",
    "plot_attention_received",
    "plot_attention_triptych",
    "plot_before_norm",
    "plot_contribution_map",
    "plot_controls",
    "plot_correlation",
    "plot_group_contribution",
    "plot_heads",
    "plot_information",
    "plot_interventions",
    "plot_largest",
    "plot_learning",
    "plot_lookups",
    "plot_losses",
    "plot_main_contributors",
    "plot_mappings",
    "plot_neighbours",
    "plot_nullity",
    "plot_offsets",
    "plot_own_by_group",
    "plot_own_by_length",
    "plot_own_contribution",
    "plot_parts",
    "plot_raw_and_effective",
    "plot_retention",
    "plot_steps",
]
