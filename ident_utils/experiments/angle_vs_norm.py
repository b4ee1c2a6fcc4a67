"""Notebook 04: is the identity in the direction of a hidden state or in its norm?"""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from ident_utils.experiments.identity_retention import missed, own_hits
from ident_utils.geometry import basis_centres, direction, radial_basis
from ident_utils.identity import by_sequence, fit_mapping
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates
from ident_utils.stats import bootstrap_mean

SEEN = ("full", "direction", "norm", "one coordinate")


def measure_parts(
    split: Split, *, layers: Sequence[int] | None = None, seed: int = 0
) -> dict[tuple[str, int], Tensor]:
    """Fit ridge mappings that see only a part of the hidden state: was each test token hit, [N]?

    Keys are (what is seen, layer): the full state; its direction, all states brought to one length; its norm, in
    radial basis functions; and as a control one random coordinate of the direction, in the same functions.
    """
    found = {}
    width = split.train.hidden.shape[-1]
    coordinates = torch.randint(width, (len(split.train.hidden),), generator=torch.Generator().manual_seed(seed))
    for layer in layers or split.layers:
        for seen in SEEN:
            found[seen, layer] = hits_of_part(split, layer, seen, int(coordinates[layer]))
    return found


@remembered
def hits_of_part(split: Split, layer: int, seen: str, coordinate: int) -> Tensor:
    """Fit ridge to one part of the states of one layer: was each test token hit, [N]? See :func:`measure_parts`."""
    train, held, test = _features(split, layer, seen, coordinate)
    mapping = fit_mapping(
        train,
        split.train.inputs,
        validation=(held, split.validation.inputs),
        score=missed(split.validation),
        moments=split.moments(layer) if seen == "full" else None,
    )
    return own_hits(mapping.predict(test), split.test)


def _features(split: Split, layer: int, seen: str, coordinate: int) -> list[Tensor]:
    """Return what a mapping sees of the training, validation and test tokens."""
    states = [part.hidden[layer] for part in split.parts]
    if seen == "full":
        return states
    if seen == "direction":
        return [direction(h) for h in states]
    numbers = [h.norm(dim=-1) if seen == "norm" else direction(h)[:, coordinate] for h in states]
    centres = basis_centres(numbers[0])
    return [radial_basis(number, centres) for number in numbers]


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
