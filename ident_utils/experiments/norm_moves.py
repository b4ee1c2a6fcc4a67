"""Notebook 04: moving states along and across their norm, and looking predictions up by cosine and by L2."""

import pandas as pd
import torch
from torch import Tensor

from ident_utils.experiments.identity_retention import Fits, own_hits
from ident_utils.geometry import exchange_norms, rotate_by_chord
from ident_utils.identity import Candidates, by_sequence, hits
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates
from ident_utils.stats import bootstrap_mean


@remembered
def measure_interventions(fits: Fits, split: Split, resamples: int, *, seed: int = 0) -> pd.DataFrame:
    """Move test states by equal distances, along the norm and across it, and read them with ridge mappings.

    ``norm exchanged``: each token gets the norm of another test token. ``turned as far``: it is rotated in a
    random direction, by a chord as long as that change of norm. Columns: state, layer, value, low, high.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for layer in split.layers:
        mapping = fits["ridge", layer]
        hidden = split.test.hidden[layer]
        exchanged = exchange_norms(hidden, torch.randperm(len(hidden), generator=generator))
        turned = rotate_by_chord(hidden, (exchanged - hidden).norm(dim=-1), seed=seed + layer)
        for name, states in (("as it is", hidden), ("norm exchanged", exchanged), ("turned as far", turned)):
            hit = own_hits(mapping.predict(states), split.test)
            interval = bootstrap_mean(by_sequence(hit, split.test.sequence), resamples=resamples)
            rows.append({"state": name, "layer": layer} | interval.as_dict())
    return pd.DataFrame(rows)


@remembered
def measure_lookups(fits: Fits, split: Split, resamples: int) -> pd.DataFrame:
    """Compare cosine lookup, L2 lookup, and L2 lookup of predictions rescaled to the inputs' mean norm.

    For every mapping in ``fits``. ``small`` is the share of retrieved inputs that are among the three of smallest
    norm in their sequence; ``length`` the median norm of the predictions, relative to that of the inputs.
    Columns: mapping, lookup, layer, value, low, high, n_sequences, small, length.
    """
    rows = []
    typical = split.train.inputs.norm(dim=-1).mean()
    candidates = Candidates(split.test.inputs, split.test.sequence)
    small = smallest_three(split.test)
    for (name, layer), mapping in fits.items():
        predicted = mapping.predict(split.test.hidden[layer])
        rescaled = torch.nn.functional.normalize(predicted, dim=-1) * typical
        length = (predicted.norm(dim=-1) / split.test.inputs.norm(dim=-1)).median().item()
        for lookup, states, metric in (
            ("cosine", predicted, "cosine"),
            ("L2", predicted, "l2"),
            ("L2, rescaled", rescaled, "l2"),
        ):
            found = candidates.nearest(states, metric)
            interval = bootstrap_mean(by_sequence(hits(found), split.test.sequence), resamples=resamples).as_dict()
            shares = {"small": small[found].double().mean().item(), "length": length}
            rows.append({"mapping": name, "lookup": lookup, "layer": layer} | interval | shares)
    return pd.DataFrame(rows)


def smallest_three(states: TokenStates) -> Tensor:
    """Say for each token whether its input is among the three of smallest norm in its sequence: [N]."""
    small = torch.zeros(len(states.sequence), dtype=torch.bool)
    norms = states.inputs.norm(dim=-1)
    for sequence in torch.unique(states.sequence):
        tokens = torch.nonzero(states.sequence == sequence).squeeze(-1)
        small[tokens[norms[tokens].argsort()[:3]]] = True
    return small
