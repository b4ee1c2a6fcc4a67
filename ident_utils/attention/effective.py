"""Effective attention: what is left of a head's weights without the part that its output cannot depend on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ident_utils.attention.ranks import Rank, column_space
from ident_utils.checks import check_attention_and_values


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


def head_correlation(raw: Tensor, effective: Tensor) -> Tensor:
    """Return the Pearson correlation of all weights of a head, raw against effective: [...] from [..., n, n]."""
    x = raw.double().flatten(-2)
    y = effective.double().flatten(-2)
    x = x - x.mean(-1, keepdim=True)
    y = y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
