"""Can the input token be recovered from a hidden state?

x_i is the embedding block's output for token i, e_i its hidden state after some layer. A mapping predicts x_i
from e_i; token i is *identified* when x_i is the nearest neighbour of the prediction among the candidates
(paper, section on token identifiability). Candidates are the inputs of the same sequence (the paper's
setting, chance 1/n) or of all sequences at hand. Data are split by sequence, never by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ident_utils.checks import check_finite
from ident_utils.mappings import Mapping, fit_mapping
from ident_utils.models import Encoder, Text
from ident_utils.progress import track
from ident_utils.trace import hidden_states

__all__ = ["Mapping", "TokenStates", "fit_mapping", "identification_rate", "identify", "split_sequences"]

METRICS = ("cosine", "l2")


@dataclass(frozen=True)
class TokenStates:
    """Hold the hidden states of all tokens of many sequences, one after the other (N tokens in all)."""

    hidden: Tensor  # [L + 1, N, d]; hidden[0] are the inputs x
    sequence: Tensor  # [N], which sequence a token belongs to
    word: Tensor  # [N], vocabulary index of the word piece
    position: Tensor  # [N], place in the sequence
    special: Tensor  # [N], True for tokens the tokenizer added

    @property
    def inputs(self) -> Tensor:
        """Return x, the embedding block's output: [N, d]."""
        return self.hidden[0]

    def of(self, sequences: Sequence[int]) -> "TokenStates":
        """Return only the tokens of the given sequences, in the order they are held."""
        keep = torch.isin(self.sequence, torch.as_tensor(sequences))
        return TokenStates(
            self.hidden[:, keep],
            self.sequence[keep],
            self.word[keep],
            self.position[keep],
            self.special[keep],
        )


def collect_states(encoder: Encoder, texts: Sequence[Text]) -> TokenStates:
    """Run every text alone and keep its hidden states in float32."""
    hidden, sequence, word, position, special = [], [], [], [], []
    for number, text in enumerate(track(texts, "texts")):
        encoding = encoder.encode(text)
        n = encoding.input_ids.shape[1]
        hidden.append(hidden_states(encoder, text).float().cpu())
        sequence.append(torch.full((n,), number))
        word.append(encoding.input_ids[0].cpu())
        position.append(torch.arange(n))
        special.append(encoding.special)
    return TokenStates(
        torch.cat(hidden, dim=1),
        torch.cat(sequence),
        torch.cat(word),
        torch.cat(position),
        torch.cat(special),
    )


def split_sequences(
    n_sequences: int, *, fractions: tuple[float, float] = (0.7, 0.15), seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split sequences into training, validation and test; the test part is what the fractions leave.

    Raises ValueError when a part would be empty.
    """
    order = np.random.default_rng(seed).permutation(n_sequences)
    train, validation = (round(n_sequences * f) for f in fractions)
    parts = np.split(order, [train, train + validation])
    if min(map(len, parts)) == 0:
        raise ValueError(
            f"{n_sequences} sequences are too few to split {fractions[0]:.0%}/{fractions[1]:.0%}/rest; "
            "take at least 7."
        )
    return tuple(np.sort(part) for part in parts)


def identify(predicted: Tensor, inputs: Tensor, metric: str = "cosine", pool: Tensor | None = None) -> Tensor:
    """Return for each prediction [N, d] the index [N] of its nearest input [N, d].

    ``pool`` [N] names each token's sequence and keeps the search inside it; None searches all tokens. Among
    inputs that are exactly as near, the token's own wins: rows that are the same cannot be told apart, and
    count as one candidate. ``metric`` is "cosine" or "l2".

    Raises ValueError for shapes that do not fit, an unknown metric, or numbers that are not finite.
    """
    if predicted.shape != inputs.shape or predicted.ndim != 2:
        raise ValueError(f"predicted {tuple(predicted.shape)} and inputs {tuple(inputs.shape)} must both be [N, d].")
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}.")
    if pool is not None and pool.shape != predicted.shape[:1]:
        raise ValueError(f"pool {tuple(pool.shape)} must name the sequence of each of {len(predicted)} tokens.")
    check_finite(predicted, "predicted")
    check_finite(inputs, "inputs")
    found = torch.empty(len(predicted), dtype=torch.long)
    groups = [torch.arange(len(predicted))] if pool is None else _groups(pool)
    for group in groups:
        found[group] = group[_nearest(predicted[group], inputs[group], metric)]
    return found


def _groups(pool: Tensor) -> list[Tensor]:
    order = torch.argsort(pool, stable=True)
    return list(order.split(torch.unique(pool, return_counts=True)[1].tolist()))


def _nearest(predicted: Tensor, inputs: Tensor, metric: str, rows: int = 2048) -> Tensor:
    """Return the nearest row of ``inputs`` for each prediction, where twins count as the row itself."""
    _, twin = torch.unique(inputs, dim=0, return_inverse=True)
    first = torch.full((int(twin.max()) + 1,), len(twin)).scatter_reduce_(0, twin, torch.arange(len(twin)), "amin")
    distinct = inputs[first].double()
    found = torch.cat([_distance(p.double(), distinct, metric).argmin(1) for p in predicted.split(rows)])
    own = found == twin
    return torch.where(own, torch.arange(len(twin)), first[found])


def _distance(predicted: Tensor, candidates: Tensor, metric: str) -> Tensor:
    """Return a number [P, C] that orders the candidates as the distance does."""
    if metric == "cosine":
        return -predicted @ torch.nn.functional.normalize(candidates, dim=-1).T
    return candidates.square().sum(-1) - 2 * predicted @ candidates.T


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
    """Say for each token whether what :func:`identify` found is the token itself, or of the same word piece."""
    if words is None:
        return found == torch.arange(len(found))
    return words[found] == words


def by_sequence(values: Tensor, sequence: Tensor) -> list[np.ndarray]:
    """Split a per-token result [N] into one array a sequence, ready for the bootstrap."""
    return [values[group].double().numpy() for group in _groups(sequence)]


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
