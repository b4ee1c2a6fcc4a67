"""Notebook 03: what a mapping learns with more texts, and whether it holds in other layers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ident_utils.experiments.identity_retention import Fits, find_tokens, fit_mappings
from ident_utils.identity import Candidates, by_sequence, hits
from ident_utils.remembering import remembered
from ident_utils.states import Split
from ident_utils.stats import bootstrap_mean
from ident_utils.threads import one_thread

LEARNERS = (("ridge", "l2"), ("linear", "cosine"), ("mlp", "cosine"))
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)  # of the training sequences


@remembered
@one_thread()  # fits on few sequences turn on rounding, which must not depend on the number of threads
def learning_curves(fits: Fits, split: Split, layer: int, resamples: int, *, seed: int = 0) -> pd.DataFrame:
    """Fit mappings on growing parts of the training sequences, tested on the same test sequences.

    ``fits`` has the mappings that saw all of them. Columns: mapping, sequences, tokens (of training), value, low,
    high, n_sequences.
    """
    rows = []
    total = split.train.n_sequences
    whole = {key: mapping for key, mapping in fits.items() if (mapping.kind, mapping.loss) in LEARNERS}
    for sequences in sorted({max(1, round(share * total)) for share in SHARES}):
        part = Split(split.train.first(sequences), split.validation, split.test)
        if sequences == total:
            fits = {key: mapping for key, mapping in whole.items() if key[1] == layer}
        else:
            fits = fit_mappings(part, LEARNERS, layers=[layer], seed=seed)
        for (name, _), lookups in find_tokens(fits, part).items():
            interval = bootstrap_mean(by_sequence(lookups["own"], split.test.sequence), resamples=resamples)
            size = {"sequences": sequences, "tokens": len(part.train.word)}
            rows.append({"mapping": name} | size | interval.as_dict())
    return pd.DataFrame(rows)


def some_layers(n_layers: int, at_most: int = 7) -> list[int]:
    """Choose layers from the first to the last, evenly spread, when there are too many to take all.

    >>> some_layers(6), some_layers(12)
    ([1, 2, 3, 4, 5, 6], [1, 3, 5, 6, 8, 10, 12])
    """
    return sorted({round(x) for x in np.linspace(1, n_layers, min(n_layers, at_most))})


@remembered
def across_layers(fits: Fits, split: Split, name: str, layers: Sequence[int]) -> pd.DataFrame:
    """Test mappings fitted on one layer on the states of another: trained, tested, value.

    Each layer's states are moved to the training layer's mean first, so that what is compared is how inputs are
    encoded around the mean.
    """
    candidates = Candidates(split.test.inputs, split.test.sequence)
    rows = []
    for trained in layers:
        for tested in layers:
            shift = (split.moments(trained).mean - split.moments(tested).mean).float()
            predicted = fits[name, trained].predict(split.test.hidden[tested] + shift)
            rate = hits(candidates.nearest(predicted)).double().mean().item()
            rows.append({"trained": trained, "tested": tested, "value": rate})
    return pd.DataFrame(rows)
