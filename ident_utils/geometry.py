"""Direction and norm of hidden states: taking them apart, exchanging them, turning states."""

import torch
from torch import Tensor


def direction(hidden: Tensor) -> Tensor:
    """Return hidden states [N, d] brought to the same length sqrt(d): only the angle is left."""
    return torch.nn.functional.normalize(hidden, dim=-1) * hidden.shape[-1] ** 0.5


def basis_centres(number: Tensor, count: int = 32) -> Tensor:
    """Return ``count`` quantiles of a number per token [N]: where :func:`radial_basis` puts its bumps."""
    return torch.quantile(number.double(), torch.linspace(0, 1, count, dtype=torch.float64))


def radial_basis(number: Tensor, centres: Tensor) -> Tensor:
    """Expand a number per token [N] in Gaussian bumps [N, C] at ``centres`` [C], which must be sorted.

    A linear mapping of the bumps can be any smooth function of the number, so that a single number gets a
    fair chance. Take the centres from the training tokens.
    """
    gaps = centres[1:] - centres[:-1]
    width = torch.cat([gaps, gaps[-1:]]).clamp_min((centres[-1] - centres[0]) / (4 * len(centres)) + 1e-12)
    return torch.exp(-0.5 * ((number[:, None].double() - centres) / width).square()).float()


def exchange_norms(hidden: Tensor, donors: Tensor) -> Tensor:
    """Give each hidden state [N, d] the norm of another token, ``donors`` [N], and keep its direction."""
    norms = hidden.norm(dim=-1, keepdim=True)
    return hidden / norms * norms[donors]


def rotate_by_chord(hidden: Tensor, chord: Tensor, *, seed: int = 0) -> Tensor:
    """Turn each hidden state [N, d] in a random direction so that it moves by ``chord`` [N], its norm kept.

    A chord longer than twice the norm is cut to that.
    """
    generator = torch.Generator().manual_seed(seed)
    norms = hidden.norm(dim=-1, keepdim=True)
    unit = hidden / norms
    noise = torch.randn(hidden.shape, generator=generator, dtype=hidden.dtype)
    sideways = torch.nn.functional.normalize(noise - (noise * unit).sum(-1, keepdim=True) * unit, dim=-1)
    angle = 2 * torch.asin((chord[:, None] / (2 * norms)).clamp(max=1.0))
    return norms * (torch.cos(angle) * unit + torch.sin(angle) * sideways)
