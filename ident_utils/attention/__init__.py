"""What the weights of an attention head can be told from its output, and what cannot.

``ranks`` counts the free directions, ``effective`` takes them out, ``polytope`` finds how far single weights can
move, ``entropy`` and ``alternatives`` make other attention with the same output, and ``store`` keeps results.
"""

from ident_utils.attention.alternatives import displaced_attention, second_attention, total_variation, towards
from ident_utils.attention.effective import EffectiveAttention, effective_attention, head_correlation
from ident_utils.attention.entropy import Alternative, alternative_attention
from ident_utils.attention.polytope import RowPolytope, WeightIntervals, row_intervals, weight_interval
from ident_utils.attention.ranks import Rank, column_space, left_null_space, nullity, rank_bound
from ident_utils.attention.realised import takes_attention, write_attention
from ident_utils.attention.store import load_result, save_result

__all__ = [
    "Alternative",
    "EffectiveAttention",
    "Rank",
    "RowPolytope",
    "WeightIntervals",
    "alternative_attention",
    "column_space",
    "displaced_attention",
    "effective_attention",
    "head_correlation",
    "left_null_space",
    "load_result",
    "nullity",
    "rank_bound",
    "row_intervals",
    "save_result",
    "second_attention",
    "takes_attention",
    "total_variation",
    "towards",
    "weight_interval",
    "write_attention",
]
