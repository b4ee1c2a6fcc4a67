"""Figures, one function each: a table in, a Figure out. Nothing here measures anything."""

from ident_utils.plots.attention import (
    plot_attention_received,
    plot_attention_triptych,
    plot_by_head,
    plot_correlation,
    plot_heads,
    plot_not_a_distribution,
    plot_nullity,
    plot_raw_and_effective,
    plot_spectrum,
)
from ident_utils.plots.beyond import (
    plot_certain_part,
    plot_moved_by_head,
    plot_replacement,
    plot_row_intervals,
    plot_wide_intervals,
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
    plot_interventions,
    plot_kinds_of_token,
    plot_lookups,
    plot_mappings,
    plot_parts,
    plot_retention,
)

__all__ = [
    "plot_attention_received",
    "plot_attention_triptych",
    "plot_by_head",
    "plot_certain_part",
    "plot_contribution_map",
    "plot_correlation",
    "plot_group_contribution",
    "plot_heads",
    "plot_interventions",
    "plot_kinds_of_token",
    "plot_largest",
    "plot_lookups",
    "plot_main_contributors",
    "plot_mappings",
    "plot_moved_by_head",
    "plot_not_a_distribution",
    "plot_nullity",
    "plot_offsets",
    "plot_own_by_group",
    "plot_own_by_length",
    "plot_own_contribution",
    "plot_parts",
    "plot_raw_and_effective",
    "plot_replacement",
    "plot_retention",
    "plot_row_intervals",
    "plot_spectrum",
    "plot_wide_intervals",
]
