"""Notebook 03: which tokens are lost, by kind of token, by twins, and by position."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor

from ident_utils.identity import by_sequence
from ident_utils.models import Encoder
from ident_utils.states import Split, TokenStates
from ident_utils.stats import bootstrap_mean

RARE = 5  # a word piece with fewer training tokens is rare
KINDS = ("special token", "punctuation", "function word", "frequent word", "rare word", "unseen in training")
TWINS = ("no twin in the sequence", "a twin in the sequence")
POSITION_STEP = 10  # tokens a bin of positions


def kinds_of_token(encoder: Encoder, split: Split) -> np.ndarray:
    """Name the kind of each test token, one of KINDS: [N].

    Punctuation has no letter or digit; function words are scikit-learn's English stop words; all other word pieces
    are frequent, rare (fewer than RARE training tokens) or unseen in training.
    """
    test = split.test
    seen = torch.bincount(split.train.word, minlength=int(test.word.max()) + 1)[test.word].tolist()
    pieces = encoder.tokenizer.convert_ids_to_tokens(test.word.tolist())
    kinds = []
    for piece, special, count in zip(pieces, test.special.tolist(), seen, strict=True):
        bare = piece.removeprefix("##").lstrip("Ġ▁").lower()
        if special:
            kinds.append("special token")
        elif not any(c.isalnum() for c in bare):
            kinds.append("punctuation")
        elif bare in ENGLISH_STOP_WORDS and not piece.startswith("##"):
            kinds.append("function word")
        else:
            kinds.append("frequent word" if count >= RARE else "rare word" if count else "unseen in training")
    return np.array(kinds)


def has_twin(states: TokenStates) -> Tensor:
    """Say for each token whether its word piece occurs again in the same sequence: [N]."""
    key = states.sequence * (states.word.max() + 1) + states.word
    _, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
    return counts[inverse] > 1


def twins(states: TokenStates) -> np.ndarray:
    """Name for each token whether it has a twin, one of TWINS: [N]."""
    return np.where(has_twin(states).numpy(), TWINS[1], TWINS[0])


def places(states: TokenStates) -> np.ndarray:
    """Return the middle of the bin of positions that each token is in: [N]."""
    return (states.position // POSITION_STEP * POSITION_STEP + POSITION_STEP // 2).numpy()


def rates_by(
    own: dict[int, Tensor], states: TokenStates, labels: np.ndarray, order: Sequence, resamples: int
) -> pd.DataFrame:
    """Split rates by a label per token [N]; ``own`` holds for every layer whether each token was hit.

    Columns: layer, kind, share (of all tokens), value, low, high, n_sequences; labels in fewer than two sequences
    are left out.
    """
    rows = []
    for layer, hit in own.items():
        for kind in order:
            where = torch.from_numpy(labels == kind)
            if len(torch.unique(states.sequence[where])) < 2:
                continue
            interval = bootstrap_mean(by_sequence(hit[where], states.sequence[where]), resamples=resamples)
            rows.append({"layer": layer, "kind": kind, "share": where.double().mean().item()} | interval.as_dict())
    return pd.DataFrame(rows)


def kinds_and_twins(own: Tensor, test: TokenStates, kinds: np.ndarray) -> pd.DataFrame:
    """Cross kinds of token with twins for one layer: rates and counts of tokens, kinds as rows, twins as columns."""
    table = pd.DataFrame({"kind": kinds, "twin": twins(test), "own": own.double().numpy()})
    rates = table.pivot_table(index="kind", columns="twin", values="own", aggfunc=["mean", "count"], observed=True)
    return rates.reindex([kind for kind in KINDS if kind in rates.index])
