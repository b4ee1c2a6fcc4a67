"""What is read off contributions: a token's own share, who leads, shares by relative position."""

import torch
from torch import Tensor


def own_contribution(contributions: Tensor) -> Tensor:
    """Return each token's contribution to its own hidden state: [L, n] from [L, n_out, n_in]."""
    return contributions.diagonal(dim1=1, dim2=2)


def own_is_largest(contributions: Tensor) -> Tensor:
    """Say for each hidden state whether its own token contributes most: bool [L, n] from [L, n_out, n_in]."""
    n = contributions.shape[-1]
    return contributions.argmax(-1) == torch.arange(n, device=contributions.device)


def by_relative_position(contributions: Tensor, reach: int) -> Tensor:
    """Return the mean contribution by offset: [L, 2 * reach + 1] from [L, n_out, n_in]; NaN where no pair is.

    Column ``reach + o`` averages over hidden states j the contribution of input token j + o.
    """
    if reach < 0:
        raise ValueError(f"reach must not be negative, got {reach}.")
    offsets = range(-reach, reach + 1)
    return torch.stack([contributions.diagonal(o, dim1=1, dim2=2).mean(-1) for o in offsets], dim=-1)
