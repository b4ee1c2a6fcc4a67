"""Which attention weights a head's output can tell apart, and which it cannot.

A head computes A V: row i of the weights A mixes the rows of the values V (n x d_v). Adding to a row of A any
vector of V's left null space leaves the head's output as it is. The output projection W_O does not change this
space while its block has full row rank, so all of it is done with V and not with T = V W_O: V is smaller, and
forming T in floating point adds noise that fills the null space up (paper, section on attention
identifiability).

Ranks are decided in float64, for every head and text on its own, at the tolerance
sigma_max * max(n, d_v) * eps, with eps of the precision the values were *made* in.
"""

from dataclasses import dataclass

import torch
from scipy.optimize import linprog
from torch import Tensor

from ident_utils.checks import check_attention_and_values, check_finite


def rank_bound(n: int, head_dim: int) -> int:
    """Return the smallest possible dimension of the freedom in a row of weights that must sum to one.

    The left null space of [V, 1] has at least n - d_v - 1 dimensions (paper, section on attention
    identifiability, with the requirement that rows sum to one).

    >>> [rank_bound(n, 64) for n in (64, 65, 66, 128)]
    [0, 0, 1, 63]
    """
    if n < 1 or head_dim < 1:
        raise ValueError(f"n and head_dim must be at least 1, not {n} and {head_dim}.")
    return max(0, n - head_dim - 1)


@dataclass(frozen=True)
class Rank:
    """Hold the numerical rank of matrices with n rows, over any leading axes, and how clear it is."""

    rank: Tensor  # [...], integers
    nullity: Tensor  # [...], n - rank: dimension of the left null space
    tolerance: Tensor  # [...], singular values at or below it count as zero
    smallest_kept: Tensor  # [...], smallest singular value above the tolerance over the largest
    largest_cut: Tensor  # [...], largest singular value at or below the tolerance over the largest; 0 if none


def nullity(values: Tensor, *, rows_sum_to_one: bool = False) -> Rank:
    """Measure the dimension of the left null space of ``values`` [..., n, d_v].

    With ``rows_sum_to_one`` a column of ones is appended, which leaves the directions that keep the sum of a
    row of weights. The answer does not change when all values are multiplied by a constant.

    Raises ValueError when a value is not finite.
    """
    check_finite(values, "values", ("layer", "head") if values.ndim == 4 else ())
    matrix = values.double()
    if rows_sum_to_one:
        matrix = _with_ones(matrix)
    singular = torch.linalg.svdvals(matrix)
    return _rank(singular, matrix.shape[-2:], torch.finfo(values.dtype).eps)


def _with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, with the values brought to the same length so that scale does not matter."""
    length = torch.linalg.matrix_norm(values, keepdim=True)
    scaled = values / torch.where(length > 0, length, torch.ones_like(length))
    ones = torch.full_like(scaled[..., :1], values.shape[-2] ** -0.5)
    return torch.cat([scaled, ones], dim=-1)


def _rank(singular: Tensor, shape: tuple[int, ...], eps: float) -> Rank:
    n, columns = shape
    largest = singular[..., :1]
    tolerance = largest * max(n, columns) * eps
    keep = singular > tolerance
    rank = keep.sum(-1)
    relative = singular / torch.where(largest > 0, largest, torch.ones_like(largest))
    return Rank(
        rank=rank,
        nullity=n - rank,
        tolerance=tolerance[..., 0],
        smallest_kept=relative.masked_fill(~keep, torch.inf).amin(-1).nan_to_num(posinf=0.0),
        largest_cut=relative.masked_fill(keep, 0.0).amax(-1),
    )


def column_space(values: Tensor) -> tuple[Tensor, Rank]:
    """Return an orthonormal basis of the column space of ``values`` [..., n, d_v], and its rank.

    The basis [..., n, min(n, d_v)] has zero columns where a matrix has lower rank than others of the batch.
    A thin singular value decomposition: rank-revealing, unlike a plain QR, and without squaring the condition
    number, unlike V^T V.
    """
    check_finite(values, "values", ("layer", "head") if values.ndim == 4 else ())
    basis, singular, _ = torch.linalg.svd(values.double(), full_matrices=False)
    rank = _rank(singular, values.shape[-2:], torch.finfo(values.dtype).eps)
    keep = torch.arange(singular.shape[-1], device=values.device) < rank.rank[..., None]
    return basis * keep[..., None, :], rank


@dataclass(frozen=True)
class EffectiveAttention:
    """Hold effective attention and the rank decision behind it."""

    weights: Tensor  # [..., n, n], float64; rows need not be positive nor sum to one
    rank: Rank

    @property
    def removed(self) -> Tensor:
        """Say where anything was removed at all: [...], True for heads with a left null space."""
        return self.rank.nullity > 0


def effective_attention(attention: Tensor, values: Tensor) -> EffectiveAttention:
    """Remove from ``attention`` [..., n, n] what the head's output cannot depend on.

    Every row is projected onto the column space of ``values`` [..., n, d_v]: A_eff = A U U^T (paper, section
    on effective attention). A_eff V = A V, and A_eff is the smallest matrix for which this holds. Where the
    values have rank n there is nothing to remove and A is returned as it is.

    Raises ValueError when the shapes do not fit or a number is not finite.
    """
    check_attention_and_values(attention, values)
    basis, rank = column_space(values)
    raw = attention.double()
    projected = (raw @ basis) @ basis.mT
    full = (rank.nullity == 0)[..., None, None]
    return EffectiveAttention(weights=torch.where(full, raw, projected), rank=rank)


def left_null_space(values: Tensor, *, rows_sum_to_one: bool = True) -> Tensor:
    """Return an orthonormal basis [n, k] of the left null space of ``values`` [n, d_v] of one head.

    With ``rows_sum_to_one`` (default) its vectors also sum to zero, so that adding them to a row of weights
    keeps the row's sum.
    """
    check_finite(values, "values")
    matrix = values.double()
    if rows_sum_to_one:
        matrix = _with_ones(matrix)
    basis, singular, _ = torch.linalg.svd(matrix, full_matrices=True)
    rank = _rank(singular, matrix.shape, torch.finfo(values.dtype).eps)
    return basis[:, int(rank.rank) :]


def second_attention(attention: Tensor, values: Tensor, *, share: float = 0.95) -> Tensor:
    """Return another probability matrix [n, n] with the same head output, away from the most attended tokens.

    In every row the weight of the most attended token is made as small as the head's output allows: a linear
    program over the probability vectors a' with a' V = a V. The row goes ``share`` of the way there, so that all
    its weights stay positive. Rows that the output pins down come back as they were.

    Raises ValueError when the shapes do not fit, or when n <= d_v + 1 leaves no freedom.
    """
    check_attention_and_values(attention, values)
    null = left_null_space(values)
    if null.shape[1] == 0:
        raise ValueError(f"values {tuple(values.shape)} leave no freedom: take a text of more than d_v + 1 tokens.")
    raw = attention.double()
    return torch.stack([_least_of_largest(row, null, share) for row in raw])


def _least_of_largest(row: Tensor, null: Tensor, share: float) -> Tensor:
    """Move one row within {row + null z >= 0} as far as possible from its largest weight."""
    top = int(row.argmax())
    scale = 1e4  # many weights are smaller than the solver's tolerance
    answer = linprog(
        null[top].numpy(), A_ub=-null.numpy(), b_ub=scale * row.numpy(), bounds=(None, None), method="highs"
    )
    if answer.x is None:
        return row
    step = null @ torch.from_numpy(answer.x) / scale
    moved = row + share * step
    return moved if moved.min() >= 0 else row + _room(row, step) * share * step


def _room(row: Tensor, step: Tensor) -> float:
    """Return how many times ``step`` can be taken before a weight of ``row`` turns negative."""
    return torch.where(step < 0, -row / step, torch.inf).amin().item()


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


def head_correlation(raw: Tensor, effective: Tensor) -> Tensor:
    """Return the Pearson correlation of all weights of a head, raw against effective: [...] from [..., n, n]."""
    x = raw.double().flatten(-2)
    y = effective.double().flatten(-2)
    x = x - x.mean(-1, keepdim=True)
    y = y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
