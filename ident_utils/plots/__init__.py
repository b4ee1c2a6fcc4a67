"""Figures, one function each: a table in, a Figure out. Nothing here measures anything."""

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
    plot_distances,
    plot_group_contribution,
    plot_largest,
    plot_main_contributors,
    plot_models,
    plot_offsets,
    plot_own_by_cut,
    plot_own_by_group,
    plot_own_by_length,
    plot_own_contribution,
)
from ident_utils.plots.definitions import (
    plot_controls,
    plot_definitions,
    plot_error_by_probes,
    plot_heads_against_attribution,
    plot_rollout,
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
    "plot_contribution_map",
    "plot_controls",
    "plot_correlation",
    "plot_definitions",
    "plot_distances",
    "plot_error_by_probes",
    "plot_group_contribution",
    "plot_heads",
    "plot_heads_against_attribution",
    "plot_interventions",
    "plot_kinds_of_token",
    "plot_largest",
    "plot_lookups",
    "plot_main_contributors",
    "plot_mappings",
    "plot_models",
    "plot_nullity",
    "plot_offsets",
    "plot_own_by_cut",
    "plot_own_by_group",
    "plot_own_by_length",
    "plot_own_contribution",
    "plot_parts",
    "plot_raw_and_effective",
    "plot_retention",
    "plot_rollout",
]
