"""Other attention with the same output, as far away as it may go, and controls at the same distance."""

import numpy as np
import torch
from torch import Tensor

from ident_utils.attention.polytope import RowPolytope
from ident_utils.checks import check_attention_and_values, check_rows_are_probabilities


def second_attention(attention: Tensor, values: Tensor, *, share: float = 0.95) -> Tensor:
    """Return another probability matrix [n, n] with the same head output, away from the most attended tokens.

    In every row the weight of the most attended token is made as small as the head's output allows: a linear
    program over the probability vectors a' with a' V = a V. The row goes ``share`` of the way there, so that all
    its weights stay positive. Rows that the output pins down come back as they were.

    Raises ValueError when the shapes do not fit, when a row is not a probability distribution, or when
    n <= d_v + 1 leaves no freedom.
    """
    check_attention_and_values(attention, values)
    check_rows_are_probabilities(attention)
    polytope = RowPolytope(values)
    if polytope.free == 0:
        raise ValueError(f"values {tuple(values.shape)} leave no freedom: take a text of more than d_v + 1 tokens.")
    rows = []
    for row in attention.double().numpy():
        direction = np.zeros(len(row))
        direction[row.argmax()] = 1.0
        point, _, _ = polytope.extreme(row, direction)
        rows.append(towards(row, point, polytope.basis, share))
    return torch.from_numpy(np.stack(rows))


def towards(row: np.ndarray, point: np.ndarray, basis: np.ndarray, share: float) -> np.ndarray:
    """Go ``share`` of the way from a row [n] to a point [n] with the same output, without the solver's rounding.

    ``basis`` [n, k] is that of :class:`RowPolytope`. Weights stay positive, if need be by going less far.
    """
    step = point - row
    step -= basis @ (basis.T @ step)
    room = np.min(row[step < 0] / -step[step < 0], initial=1 / share)
    return np.maximum(row + min(share, room) * step, 0.0)


def displaced_attention(attention: Tensor, other: Tensor, *, seed: int = 0) -> Tensor:
    """Return a control [n, n]: probability rows exactly as far from ``attention`` as those of ``other``.

    Every row gives up the same weights as in ``other``, and deals them out at random among the tokens that did
    not give: the same total variation, but not along the null space, so the head's output must change.
    """
    generator = torch.Generator().manual_seed(seed)
    raw = attention.double()
    rows = []
    for row, change in zip(raw, other - raw, strict=True):
        takes = torch.nonzero(change >= 0).squeeze(-1)
        dealt = change.clone()
        dealt[takes] = change[takes[torch.randperm(len(takes), generator=generator)]]
        rows.append(row + dealt)
    return torch.stack(rows)


def total_variation(attention: Tensor, other: Tensor) -> Tensor:
    """Return half the sum of absolute differences of two rows of weights: [...] from [..., n], 0 to 1."""
    return (attention.double() - other.double()).abs().sum(-1) / 2
