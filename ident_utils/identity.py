"""Can the input token be recovered from a hidden state?

x_i is the embedding block's output for token i, e_i its hidden state after some layer. A mapping predicts x_i
from e_i; token i is *identified* when x_i is the nearest neighbour of the prediction among the candidates
(paper, section on token identifiability). Candidates are the inputs of the same sequence (the paper's
setting, chance 1/n) or of all sequences at hand.
"""

import numpy as np
import torch
from torch import Tensor

from ident_utils.checks import check_finite
from ident_utils.mappings import Mapping, fit_mapping

__all__ = ["Candidates", "Mapping", "by_sequence", "fit_mapping", "hits", "identification_rate", "identify"]

METRICS = ("cosine", "l2")
ROWS = 2048  # predictions compared with all candidates at a time


class Candidates:
    """Search the inputs of some tokens for the nearest to a prediction; prepared once, for many predictions.

    Rows that are the same cannot be told apart, and count as one candidate.
    """

    def __init__(self, inputs: Tensor, pool: Tensor | None = None) -> None:
        """Prepare inputs [N, d]; ``pool`` [N] names each token's sequence and keeps the search inside it.

        Raises ValueError for shapes that do not fit or numbers that are not finite.
        """
        if inputs.ndim != 2:
            raise ValueError(f"inputs {tuple(inputs.shape)} must be [N, d].")
        if pool is not None and pool.shape != inputs.shape[:1]:
            raise ValueError(f"pool {tuple(pool.shape)} must name the sequence of each of {len(inputs)} tokens.")
        check_finite(inputs, "inputs")
        self.shape = inputs.shape
        groups = [torch.arange(len(inputs))] if pool is None else _groups(pool)
        self._groups = [(group, *_distinct(inputs[group])) for group in groups]

    def nearest(self, predicted: Tensor, metric: str = "cosine") -> Tensor:
        """Return for each prediction [N, d] the index [N] of the nearest input; of twins, the token's own.

        Raises ValueError for predictions of another shape than the inputs, an unknown ``metric`` ("cosine" or
        "l2"), or numbers that are not finite.
        """
        if predicted.shape != self.shape:
            raise ValueError(
                f"predicted {tuple(predicted.shape)} and inputs {tuple(self.shape)} must both be [N, d], one for one."
            )
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}.")
        check_finite(predicted, "predicted")
        found = torch.empty(len(predicted), dtype=torch.long)
        for group, rows, first, twin in self._groups:
            chunks = predicted[group].split(ROWS)
            nearest = torch.cat([_distance(chunk.double(), rows, metric).argmin(1) for chunk in chunks])
            found[group] = group[torch.where(nearest == twin, torch.arange(len(twin)), first[nearest])]
        return found


def _groups(pool: Tensor) -> list[Tensor]:
    order = torch.argsort(pool, stable=True)
    return list(order.split(torch.unique(pool, return_counts=True)[1].tolist()))


def _distinct(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct rows in float64, the index of the first of each, and which of them each row is."""
    _, twin = torch.unique(inputs, dim=0, return_inverse=True)
    first = torch.full((int(twin.max()) + 1,), len(twin)).scatter_reduce_(0, twin, torch.arange(len(twin)), "amin")
    return inputs[first].double(), first, twin


def _distance(predicted: Tensor, candidates: Tensor, metric: str) -> Tensor:
    """Return a number [P, C] that orders the candidates as the distance does."""
    if metric == "cosine":
        return -predicted @ torch.nn.functional.normalize(candidates, dim=-1).T
    return candidates.square().sum(-1) - 2 * predicted @ candidates.T


def identify(predicted: Tensor, inputs: Tensor, metric: str = "cosine", pool: Tensor | None = None) -> Tensor:
    """Return for each prediction [N, d] the index [N] of its nearest input [N, d].

    One search with :class:`Candidates`, whose arguments and errors these are.
    """
    if predicted.shape != inputs.shape or predicted.ndim != 2:
        raise ValueError(f"predicted {tuple(predicted.shape)} and inputs {tuple(inputs.shape)} must both be [N, d].")
    return Candidates(inputs, pool).nearest(predicted, metric)


def identification_rate(
    predicted: Tensor,
    inputs: Tensor,
    metric: str = "cosine",
    pool: Tensor | None = None,
    words: Tensor | None = None,
) -> float:
    """Return the share of tokens identified: predictions [N, d] whose nearest input [N, d] is the token's own.

    With ``words`` [N] any candidate of the same word piece counts. Chance is the mean of 1/n in the same
    sequence. Arguments and errors as in :func:`identify`.
    """
    return hits(identify(predicted, inputs, metric, pool), words).double().mean().item()


def hits(found: Tensor, words: Tensor | None = None) -> Tensor:
    """Say for each token whether what was found [N] is the token itself, or of the same word piece."""
    if words is None:
        return found == torch.arange(len(found))
    return words[found] == words


def by_sequence(values: Tensor, sequence: Tensor) -> list[np.ndarray]:
    """Split a per-token result [N] into one array a sequence, ready for the bootstrap."""
    return [values[group].double().numpy() for group in _groups(sequence)]
