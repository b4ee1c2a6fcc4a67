"""Notebook 03: how often the input token can be found again from a hidden state, layer by layer."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ident_utils.fitting import mapping_loss
from ident_utils.identity import Candidates, Mapping, by_sequence, fit_mapping, hits
from ident_utils.progress import track
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates
from ident_utils.stats import bootstrap_mean, trend_with_depth

NAIVE_AND_RIDGE = (("naive", "l2"), ("ridge", "l2"))
EVERY_MAPPING = (*NAIVE_AND_RIDGE, ("linear", "cosine"), ("linear", "l2"), ("mlp", "cosine"), ("mlp", "l2"))

Fits = dict[tuple[str, int], Mapping]  # mapping name and layer -> the mapping
Found = dict[tuple[str, int], dict[str, Tensor]]  # mapping name and layer -> lookup -> was each token hit, [N]


def fit_mappings(
    split: Split,
    mappings: Sequence[tuple[str, str]] = EVERY_MAPPING,
    *,
    layers: Sequence[int] | None = None,
    seed: int = 0,
) -> Fits:
    """Fit every mapping (kind, loss) on every layer; validation texts choose strengths and epochs."""
    fits = {}
    for layer in track(layers or split.layers, "fitting layers"):
        for kind, loss in mappings:
            mapping = fit_layer(split, layer, kind, loss, seed)
            fits[mapping.name, layer] = mapping
    return fits


@remembered
def fit_layer(split: Split, layer: int, kind: str, loss: str, seed: int) -> Mapping:
    """Fit one mapping on one layer; see :func:`fit_mappings`."""
    return fit_mapping(
        split.train.hidden[layer],
        split.train.inputs,
        kind,
        loss,
        validation=(split.validation.hidden[layer], split.validation.inputs),
        score=missed(split.validation),
        moments=None if kind == "naive" else split.moments(layer),
        seed=seed,
    )


def missed(held: TokenStates) -> Callable[[Tensor], float]:
    """Return what validation chooses by: the share of ``held`` tokens that predictions fail to identify.

    The loss is no substitute, it does not rank mappings by what they identify. It only decides between equals.
    """
    candidates = Candidates(held.inputs, held.sequence)

    def score(predicted: Tensor) -> float:
        rate = hits(candidates.nearest(predicted)).double().mean().item()
        return 1 - rate + 1e-6 * mapping_loss(predicted, held.inputs, "cosine").item()

    return score


def own_hits(predicted: Tensor, states: TokenStates, metric: str = "cosine") -> Tensor:
    """Say for each token whether its own input is the nearest of its sequence: [N]."""
    return hits(Candidates(states.inputs, states.sequence).nearest(predicted, metric))


@remembered
def find_tokens(fits: Fits, split: Split) -> Found:
    """Look the test tokens up in their own sequence by cosine, with every mapping.

    ``own``: the token's own row is the nearest; ``word``: one of the same word piece; ``validation``: own row, of the
    validation tokens.
    """
    test, held = (Candidates(part.inputs, part.sequence) for part in (split.test, split.validation))
    found = {}
    for (name, layer), mapping in fits.items():
        nearest = test.nearest(mapping.predict(split.test.hidden[layer]))
        found[name, layer] = {
            "own": hits(nearest),
            "word": hits(nearest, split.test.word),
            "validation": hits(held.nearest(mapping.predict(split.validation.hidden[layer]))),
        }
    return found


@remembered
def find_in_all_sequences(fits: Fits, split: Split, name: str) -> Found:
    """Look the test tokens up among the inputs of all test sequences: ``own all`` and ``word all``."""
    candidates = Candidates(split.test.inputs)
    found = {}
    for layer in split.layers:
        nearest = candidates.nearest(fits[name, layer].predict(split.test.hidden[layer]))
        found[name, layer] = {"own all": hits(nearest), "word all": hits(nearest, split.test.word)}
    return found


def best_mapping(found: Found) -> str:
    """Name the mapping with the highest validation rate, averaged over layers: the test tokens have no say."""
    names = dict.fromkeys(name for name, _ in found)
    rate = {
        name: np.mean([f["validation"].double().mean() for (other, _), f in found.items() if other == name])
        for name in names
    }
    return max(rate, key=rate.get)


def retention_table(found: Found, test: TokenStates, resamples: int) -> pd.DataFrame:
    """Summarise hits as rates with intervals from resampling test sequences.

    Columns: mapping, layer, lookup ("own", "word", "own all", "word all"), value, low, high, n_sequences.
    """
    rows = []
    for (mapping, layer), lookups in found.items():
        for lookup, hit in lookups.items():
            if lookup != "validation":
                interval = bootstrap_mean(by_sequence(hit, test.sequence), resamples=resamples)
                rows.append({"mapping": mapping, "layer": layer, "lookup": lookup} | interval.as_dict())
    return pd.DataFrame(rows)


def chance(test: TokenStates) -> float:
    """Return the rate of blind guessing within the own sequence: the mean over tokens of 1/n."""
    return test.n_sequences / len(test.sequence)


def judge_c3_c4(found: Found, test: TokenStates, mapping: str, resamples: int) -> dict[str, dict]:
    """Return the measurements of C3 (the last layer's rate) and C4 (its trend with depth)."""
    table = retention_table({k: v for k, v in found.items() if k[0] == mapping}, test, resamples)
    curve = table[table["lookup"] == "own"].sort_values("layer")
    by_layer = curve[["layer", "value", "low", "high"]].to_dict("records")
    last = curve.iloc[-1]
    c3 = {key: last[key] for key in ("value", "low", "high", "n_sequences")} | {
        "unit": "share of test tokens whose own input is the nearest in their sequence (cosine), last layer",
        "mapping": mapping,
        "chance": chance(test),
        "by_layer": by_layer,
    }
    steps = -np.diff(curve["value"])
    total = curve["value"].iloc[0] - curve["value"].iloc[-1]
    low, high = _trend_interval([found[mapping, layer["layer"]]["own"] for layer in by_layer], test, resamples)
    c4 = {"value": trend_with_depth(curve["value"]), "low": low, "high": high} | {
        "unit": "Spearman correlation of the identification rate with depth",
        "n_sequences": int(last["n_sequences"]),
        "largest_drop_share": steps.max() / total if total > 0 else float("inf"),
        "by_layer": by_layer,
    }
    return {"C3": c3, "C4": c4}


def _trend_interval(by_layer: Sequence[Tensor], test: TokenStates, resamples: int) -> tuple[float, float]:
    """Resample test sequences, all layers together, and return the 95% interval of the trend."""
    sums = np.array([[g.sum() for g in by_sequence(own, test.sequence)] for own in by_layer])
    counts = torch.unique(test.sequence, return_counts=True)[1].numpy()
    draws = np.random.default_rng(0).integers(len(counts), size=(resamples, len(counts)))
    trends = [trend_with_depth(sums[:, draw].sum(1) / counts[draw].sum()) for draw in draws]
    return tuple(np.nanquantile(trends, [0.025, 0.975]))
