"""Second moments of hidden states, computed once for every mapping that starts from them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DEVIATION_FLOOR = 1e-2  # of the root mean square deviation: below it a dimension is dead
WHITENING_FLOOR = 1e-2  # of the mean eigenvalue
ROWS = 8192  # tokens in float64 at a time: memory does not grow with the corpus


@dataclass(frozen=True)
class Spectrum:
    """Hold how hidden states vary: standardised by ``mean`` and ``deviation``, they have these eigenvalues."""

    mean: Tensor  # [d_e]
    deviation: Tensor  # [d_e], dead dimensions lifted to a floor
    eigenvalues: Tensor  # [d_e], rising, none negative
    basis: Tensor  # [d_e, d_e], eigenvectors as columns

    def principal(self) -> tuple[Tensor, Tensor]:
        """Return weight [d_e, d_e] and bias [d_e] that turn hidden states into principal components."""
        weight = self.basis / self.deviation[:, None]
        return weight, -self.mean @ weight

    def whitening(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the PCA-whitening, small eigenvalues floored."""
        mean = self.eigenvalues.mean()
        floor = WHITENING_FLOOR * (mean if mean > 0 else torch.ones_like(mean))
        weight, bias = self.principal()
        scale = self.eigenvalues.clamp_min(floor).rsqrt()
        return weight * scale, bias * scale


def spectrum(hidden: Tensor) -> Spectrum:
    """Compute the spectrum of hidden states [N, d_e] in float64.

    Some dimensions of a last layer hardly vary over the training tokens; divided by their own deviation they
    would blow up on any other text, so deviations are floored.
    """
    mean = hidden.mean(0, dtype=torch.float64)
    covariance = sum(chunk.T @ chunk for chunk in _centred(hidden, mean)) / len(hidden)
    deviation = covariance.diagonal().sqrt()
    floor = DEVIATION_FLOOR * deviation.square().mean().sqrt()
    deviation = deviation.clamp_min(floor if floor > 0 else 1.0)
    eigenvalues, basis = torch.linalg.eigh(covariance / deviation / deviation[:, None])
    return Spectrum(mean, deviation, eigenvalues.clamp_min(0), basis)


def cross_moments(spectrum: Spectrum, hidden: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the covariance [d_e, d] of principal components with inputs [N, d], and the inputs' mean [d]."""
    mean = inputs.mean(0, dtype=torch.float64)
    pairs = zip(_centred(hidden, spectrum.mean), _centred(inputs, mean), strict=True)
    covariance = sum(h.T @ x for h, x in pairs) / len(hidden)
    return spectrum.basis.T @ (covariance / spectrum.deviation[:, None]), mean


def _centred(rows: Tensor, mean: Tensor) -> Iterator[Tensor]:
    for chunk in rows.split(ROWS):
        yield chunk.double() - mean
