"""Notebook 03: can the input of a neighbouring token be recovered from a hidden state?"""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from ident_utils.experiments.identity_controls import one_hot_positions
from ident_utils.identity import Candidates, by_sequence, fit_mapping, hits
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates
from ident_utils.stats import bootstrap_mean
from ident_utils.whitening import spectrum

OFFSETS = (-3, -2, -1, 1, 2, 3)


def inner_tokens(states: TokenStates, reach: int) -> Tensor:
    """Return the indices of tokens with ``reach`` neighbours on either side."""
    _, inverse, counts = torch.unique(states.sequence, return_inverse=True, return_counts=True)
    inside = (states.position >= reach) & (states.position < counts[inverse] - reach)
    return inside.nonzero().squeeze(-1)


@remembered
def measure_neighbours(
    split: Split, layers: Sequence[int], resamples: int, offsets: Sequence[int] = OFFSETS
) -> pd.DataFrame:
    """Predict x_(i+k) from e_i by ridge, for every offset k, and look it up in the same sequence by cosine.

    Only tokens with neighbours at all offsets take part, so that offsets are compared on the same ones. Layer 0 sees
    the input of token i itself: what its own word and place give away. ``position only`` sees only the place.

    Columns: seen (a layer's number or "position only"), offset, lookup ("own", "word"), value, low, high,
    n_sequences. Raises ValueError when the texts are too short for the offsets.
    """
    inner = [inner_tokens(part, max(map(abs, offsets))) for part in split.parts]
    if min(map(len, inner)) < 2:
        raise ValueError(f"No token has {max(map(abs, offsets))} neighbours on either side; take longer texts.")
    seen = {"position only": one_hot_positions(split)}
    candidates = Candidates(split.test.inputs, split.test.sequence)
    rows = []
    for name in ("position only", *layers):
        features = seen.get(name) or [part.hidden[name] for part in split.parts]
        train, held, test = (f[i] for f, i in zip(features, inner, strict=True))
        moments = spectrum(train)
        for offset in offsets:
            targets = [part.inputs[i + offset] for part, i in zip(split.parts, inner, strict=True)]
            mapping = fit_mapping(
                train, targets[0], "ridge", "cosine", validation=(held, targets[1]), moments=moments
            )
            where = inner[2] + offset
            predicted = torch.zeros_like(split.test.inputs)
            predicted[where] = mapping.predict(test)
            nearest = candidates.nearest(predicted)
            for lookup, words in (("own", None), ("word", split.test.word)):
                groups = by_sequence(hits(nearest, words)[where], split.test.sequence[where])
                interval = bootstrap_mean(groups, resamples=resamples)
                rows.append({"seen": name, "offset": offset, "lookup": lookup} | interval.as_dict())
    return pd.DataFrame(rows)
