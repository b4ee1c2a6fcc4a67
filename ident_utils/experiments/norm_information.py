"""Notebook 04: how many bits about the word a norm holds, against any single coordinate of the direction."""

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import mutual_info_score

from ident_utils.geometry import direction
from ident_utils.progress import track
from ident_utils.remembering import remembered
from ident_utils.states import TokenStates

BINS = 16  # of equal numbers of tokens
SHUFFLES = 8
COORDINATES = 8


@remembered
def measure_information(states: TokenStates, *, seed: int = 0) -> pd.DataFrame:
    """Measure the mutual information of the word piece with a number per token, for every layer.

    The numbers are the norm, and as a control COORDINATES random coordinates of the direction; each is cut into BINS
    bins. With many words and few tokens the plain estimate is far too high; the mean over shuffled numbers, which
    know nothing, is subtracted.

    Columns: number ("norm" or "one coordinate"), layer, value (bits; of coordinates the mean), low, high (of
    coordinates the least and the most; of the norm NaN), chance (bits of shuffled numbers).
    """
    rng = np.random.default_rng(seed)
    word = np.unique(states.word.numpy(), return_inverse=True)[1]
    rows = []
    for layer in track(range(1, states.n_layers + 1), "layers"):
        hidden = states.hidden[layer]
        columns = rng.choice(hidden.shape[1], size=min(COORDINATES, hidden.shape[1]), replace=False)
        coordinates = direction(hidden)[:, torch.from_numpy(columns)].numpy().T
        chance = np.mean(
            [_bits(word, rng.permutation(_binned(hidden.norm(dim=-1).numpy()))) for _ in range(SHUFFLES)]
        )
        norm = _bits(word, _binned(hidden.norm(dim=-1).numpy())) - chance
        single = np.array([_bits(word, _binned(c)) for c in coordinates]) - chance
        rows.append({"number": "norm", "layer": layer, "value": norm, "low": np.nan, "high": np.nan})
        rows.append({"number": "one coordinate", "layer": layer, "value": single.mean()})
        rows[-1] |= {"low": single.min(), "high": single.max()}
        rows[-2]["chance"] = rows[-1]["chance"] = chance
    return pd.DataFrame(rows)


def word_entropy(states: TokenStates) -> float:
    """Return the entropy of the word pieces in bits: what a number would hold that told the word for sure."""
    counts = torch.unique(states.word, return_counts=True)[1].double()
    share = counts / counts.sum()
    return -(share * share.log2()).sum().item()


def _binned(numbers: np.ndarray) -> np.ndarray:
    """Cut numbers [N] into BINS bins of as many tokens each."""
    return np.searchsorted(np.quantile(numbers, np.arange(1, BINS) / BINS), numbers)


def _bits(words: np.ndarray, bins: np.ndarray) -> float:
    return mutual_info_score(words, bins) / np.log(2)
