"""Notebook 04: is the identity in the direction of a hidden state or in its norm?"""

import pandas as pd
import torch
from torch import Tensor

from ident_utils.experiments.identity_retention import Split, fit_layer
from ident_utils.families import layer_norms
from ident_utils.identity import (
    TokenStates,
    basis_centres,
    by_sequence,
    direction,
    exchange_norms,
    fit_mapping,
    hits,
    identify,
    radial_basis,
    rotate_by_chord,
)
from ident_utils.models import Encoder
from ident_utils.stats import bootstrap_mean

SEEN = ("full", "direction", "norm", "one coordinate")


def measure_parts(split: Split, *, seed: int = 0) -> dict[tuple[str, int], Tensor]:
    """Fit ridge mappings that see only a part of the hidden state: was each test token hit, [N]?

    Keys are (what is seen, layer): the full state; its direction, all states brought to one length; its norm, in
    radial basis functions; and as a control one random coordinate of the direction, in the same functions.
    """
    found = {}
    width = split.train.hidden.shape[-1]
    coordinates = torch.randint(width, (len(split.train.hidden),), generator=torch.Generator().manual_seed(seed))
    for layer in range(1, len(split.train.hidden)):
        for seen in SEEN:
            states = _features(split, layer, seen, int(coordinates[layer]))
            mapping = fit_mapping(states[0], split.train.inputs, validation=(states[1], split.validation.inputs))
            found[seen, layer] = own_hits(mapping.predict(states[2]), split.test)
    return found


def _features(split: Split, layer: int, seen: str, coordinate: int) -> list[Tensor]:
    """Return what a mapping sees of the training, validation and test tokens."""
    states = [part.hidden[layer] for part in (split.train, split.validation, split.test)]
    if seen == "full":
        return states
    if seen == "direction":
        return [direction(h) for h in states]
    numbers = [h.norm(dim=-1) if seen == "norm" else direction(h)[:, coordinate] for h in states]
    centres = basis_centres(numbers[0])
    return [radial_basis(number, centres) for number in numbers]


def own_hits(predicted: Tensor, test: TokenStates, metric: str = "cosine") -> Tensor:
    """Say for each test token whether its own input is the nearest of its sequence: [N]."""
    return hits(identify(predicted, test.inputs, metric, test.sequence))


def parts_table(found: dict[tuple[str, int], Tensor], test: TokenStates, resamples: int) -> pd.DataFrame:
    """Summarise as rates with intervals; columns: seen, layer, value, low, high, n_sequences."""
    rows = []
    for (seen, layer), hit in found.items():
        interval = bootstrap_mean(by_sequence(hit, test.sequence), resamples=resamples)
        rows.append({"seen": seen, "layer": layer} | interval.as_dict())
    return pd.DataFrame(rows)


def paired_difference(found: dict[tuple[str, int], Tensor], test: TokenStates, resamples: int) -> pd.DataFrame:
    """Compare direction-only with full on the same tokens: layer, value (direction - full), low, high."""
    rows = []
    for layer in sorted({layer for _, layer in found}):
        change = found["direction", layer].double() - found["full", layer].double()
        interval = bootstrap_mean(by_sequence(change, test.sequence), resamples=resamples)
        rows.append({"layer": layer} | interval.as_dict())
    return pd.DataFrame(rows)


def measure_interventions(split: Split, resamples: int, *, seed: int = 0) -> pd.DataFrame:
    """Move test states by equal distances, along the norm and across it, and read them with the full mapping.

    ``norm exchanged``: each token gets the norm of another test token. ``turned as far``: it is rotated in a
    random direction, by a chord as long as that change of norm. Columns: state, layer, value, low, high.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for layer in range(1, len(split.train.hidden)):
        mapping = fit_layer(split, layer, "ridge", "l2")
        hidden = split.test.hidden[layer]
        exchanged = exchange_norms(hidden, torch.randperm(len(hidden), generator=generator))
        turned = rotate_by_chord(hidden, (exchanged - hidden).norm(dim=-1), seed=seed + layer)
        for name, states in (("as it is", hidden), ("norm exchanged", exchanged), ("turned as far", turned)):
            hit = own_hits(mapping.predict(states), split.test)
            interval = bootstrap_mean(by_sequence(hit, split.test.sequence), resamples=resamples)
            rows.append({"state": name, "layer": layer} | interval.as_dict())
    return pd.DataFrame(rows)


def measure_lookups(split: Split, resamples: int) -> pd.DataFrame:
    """Compare cosine lookup, L2 lookup, and L2 lookup of predictions rescaled to the inputs' mean norm.

    ``small`` is the share of retrieved inputs that are among the three of smallest norm in their sequence.
    Columns: mapping, lookup, layer, value, low, high, n_sequences, small.
    """
    rows = []
    typical = split.train.inputs.norm(dim=-1).mean()
    for layer in range(1, len(split.train.hidden)):
        for kind in ("naive", "ridge"):
            predicted = fit_layer(split, layer, kind, "l2").predict(split.test.hidden[layer])
            rescaled = torch.nn.functional.normalize(predicted, dim=-1) * typical
            for lookup, states, metric in (
                ("cosine", predicted, "cosine"),
                ("L2", predicted, "l2"),
                ("L2, rescaled", rescaled, "l2"),
            ):
                found = identify(states, split.test.inputs, metric, split.test.sequence)
                interval = bootstrap_mean(by_sequence(hits(found), split.test.sequence), resamples=resamples)
                small = smallest_three(split.test)[found].double().mean().item()
                rows.append(
                    {"mapping": kind, "lookup": lookup, "layer": layer} | interval.as_dict() | {"small": small}
                )
    return pd.DataFrame(rows)


def smallest_three(states: TokenStates) -> Tensor:
    """Say for each token whether its input is among the three of smallest norm in its sequence: [N]."""
    small = torch.zeros(len(states.sequence), dtype=torch.bool)
    norms = states.inputs.norm(dim=-1)
    for sequence in torch.unique(states.sequence):
        tokens = torch.nonzero(states.sequence == sequence).squeeze(-1)
        small[tokens[norms[tokens].argsort()[:3]]] = True
    return small


def norm_from_direction(hidden: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Compute the norm of a LayerNorm's output [N, d] from its direction alone.

    e = gain * z + bias, where z has mean zero and mean square one. With u = e/||e|| the constraints on z leave
    one unknown, the norm r: the sum of (r u - bias) / gain is zero. Returns r, [N].
    """
    u = torch.nn.functional.normalize(hidden.double(), dim=-1)
    weighted = u / gain.double()
    return (bias.double() / gain.double()).sum() / weighted.sum(-1)


def norm_errors(encoder: Encoder, test: TokenStates) -> pd.DataFrame:
    """Compare norms computed from the direction with the true ones: layer, median and largest relative error."""
    rows = []
    for layer, norm in enumerate(layer_norms(encoder.model, encoder.family), start=1):
        true = test.hidden[layer].double().norm(dim=-1)
        error = (norm_from_direction(test.hidden[layer], norm.weight, norm.bias) - true).abs() / true
        rows.append({"layer": layer, "median": error.median().item(), "largest": error.max().item()})
    return pd.DataFrame(rows)


def judge_c5(found: dict[tuple[str, int], Tensor], test: TokenStates, resamples: int) -> dict[str, object]:
    """Return the measurement of C5: direction minus full in the worst layer, and the norm's share of full."""
    pairs = paired_difference(found, test, resamples)
    rates = {key: hit.double().mean().item() for key, hit in found.items()}
    worst = pairs.loc[pairs["low"].idxmin()]
    shares = {layer: rates["norm", layer] / max(rates["full", layer], 1e-12) for layer in pairs["layer"]}
    return {key: worst[key] for key in ("value", "low", "high", "n_sequences")} | {
        "unit": "identification rate from the direction alone minus from the full state, worst layer",
        "worst_layer": f"layer {int(worst['layer'])}",
        "largest_norm_share": max(shares.values()),
        "by_layer": [
            {
                "layer": row.layer,
                "value": row.value,
                "low": row.low,
                "high": row.high,
                "norm_share": shares[row.layer],
            }
            for row in pairs.itertuples()
        ],
    }
