"""Ranks and null spaces of values: how free a row of attention weights is.

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
from torch import Tensor

from ident_utils.checks import check_finite
from ident_utils.threads import one_thread


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
        matrix = with_ones(matrix)
    with one_thread():
        singular = torch.linalg.svdvals(matrix)
    return decide_rank(singular, matrix.shape[-2:], torch.finfo(values.dtype).eps)


def with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, with the values brought to the same length so that scale does not matter."""
    length = torch.linalg.matrix_norm(values, keepdim=True)
    scaled = values / torch.where(length > 0, length, torch.ones_like(length))
    ones = torch.full_like(scaled[..., :1], values.shape[-2] ** -0.5)
    return torch.cat([scaled, ones], dim=-1)


def decide_rank(singular: Tensor, shape: tuple[int, ...], eps: float) -> Rank:
    """Count the ``singular`` values [..., k] of matrices of a shape [n, columns] that are more than rounding."""
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


def column_space(values: Tensor, *, rows_sum_to_one: bool = False) -> tuple[Tensor, Rank]:
    """Return an orthonormal basis of the column space of ``values`` [..., n, d_v], and its rank.

    The basis [..., n, min(n, d_v)] has zero columns where a matrix has lower rank than others of the batch. With
    ``rows_sum_to_one`` a column of ones is appended first. A QR decomposition, whose small factor R has the singular
    values of the whole: where they say full rank, Q is the basis; where they do not, plain QR would be wrong, and R's
    left singular vectors say which part of Q counts. V^T V is never formed, it squares the condition number.
    """
    check_finite(values, "values", ("layer", "head") if values.ndim == 4 else ())
    matrix = values.double()
    if rows_sum_to_one:
        matrix = with_ones(matrix)
    with one_thread():
        basis, triangular = torch.linalg.qr(matrix)
        singular = torch.linalg.svdvals(triangular)
    rank = decide_rank(singular, matrix.shape[-2:], torch.finfo(values.dtype).eps)
    short = rank.rank < singular.shape[-1]
    if short.any():
        left = torch.linalg.svd(triangular[short], full_matrices=False).U
        counts = torch.arange(singular.shape[-1], device=values.device) < rank.rank[short][..., None]
        basis[short] = basis[short] @ (left * counts[..., None, :])
    return basis, rank


def left_null_space(values: Tensor, *, rows_sum_to_one: bool = True) -> Tensor:
    """Return an orthonormal basis [n, k] of the left null space of ``values`` [n, d_v] of one head.

    With ``rows_sum_to_one`` (default) its vectors also sum to zero, so that adding them to a row of weights
    keeps the row's sum.
    """
    check_finite(values, "values")
    matrix = values.double()
    if rows_sum_to_one:
        matrix = with_ones(matrix)
    basis, singular, _ = torch.linalg.svd(matrix, full_matrices=True)
    rank = decide_rank(singular, matrix.shape, torch.finfo(values.dtype).eps)
    return basis[:, int(rank.rank) :]
