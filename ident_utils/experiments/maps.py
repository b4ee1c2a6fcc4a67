"""Square maps as tables, so that a drawn map has its numbers beside it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor


def map_rows(attention: Tensor, heads: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Return maps [L, H, n, n] of some (layer, head) pairs, counted from 1, as rows.

    Columns: layer, head, row, column, weight.
    """
    n = attention.shape[-1]
    return pd.concat(
        pd.DataFrame(
            {
                "layer": layer,
                "head": head,
                "row": np.repeat(np.arange(n), n),
                "column": np.tile(np.arange(n), n),
                "weight": attention[layer - 1, head - 1].numpy().ravel(),
            }
        )
        for layer, head in heads
    )
