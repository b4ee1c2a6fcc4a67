"""Notebook 03: how often the input token can be found again from a hidden state, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from ident_utils.identity import (
    Mapping,
    TokenStates,
    by_sequence,
    fit_mapping,
    hits,
    identify,
    split_sequences,
)
from ident_utils.stats import bootstrap_mean, trend_with_depth

NAIVE_AND_RIDGE = (("naive", "l2"), ("ridge", "l2"))
EVERY_MAPPING = (*NAIVE_AND_RIDGE, ("linear", "cosine"), ("linear", "l2"), ("mlp", "cosine"), ("mlp", "l2"))


@dataclass(frozen=True)
class Split:
    """Hold the tokens of the training, validation and test sequences."""

    train: TokenStates
    validation: TokenStates
    test: TokenStates

    @property
    def n_test_sequences(self) -> int:
        """Count the test sequences."""
        return len(torch.unique(self.test.sequence))


def split_states(states: TokenStates, seed: int) -> Split:
    """Split by sequence, 70/15/15."""
    parts = split_sequences(len(torch.unique(states.sequence)), seed=seed)
    return Split(*(states.of(part.tolist()) for part in parts))


def fit_layer(split: Split, layer: int, kind: str, loss: str, seed: int = 0) -> Mapping:
    """Fit one mapping from layer ``layer`` (from 1) to the inputs."""
    return fit_mapping(
        split.train.hidden[layer],
        split.train.inputs,
        kind,
        loss,
        validation=(split.validation.hidden[layer], split.validation.inputs),
        seed=seed,
    )


def measure_retention(
    split: Split, mappings: Sequence[tuple[str, str]] = NAIVE_AND_RIDGE, *, seed: int = 0
) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """Fit every mapping on every layer, and find the nearest inputs of the test tokens.

    Returns for (mapping name, layer) whether each test token was hit, [N]: ``own`` (its own row, cosine, same
    sequence), ``word`` (the same word piece), ``own l2`` (L2 lookup), ``own all`` and ``word all`` (among the
    inputs of all test sequences), and the ``validation`` rate of the own row.
    """
    found = {}
    for kind, loss in mappings:
        name = kind if kind in ("naive", "ridge") else f"{kind}, {loss} loss"
        for layer in range(1, len(split.train.hidden)):
            mapping = fit_layer(split, layer, kind, loss, seed)
            found[name, layer] = _lookups(mapping.predict(split.test.hidden[layer]), split.test)
            held = split.validation
            own = hits(identify(mapping.predict(held.hidden[layer]), held.inputs, pool=held.sequence))
            found[name, layer]["validation"] = own
    return found


def _lookups(predicted: torch.Tensor, test: TokenStates) -> dict[str, torch.Tensor]:
    same = identify(predicted, test.inputs, "cosine", test.sequence)
    anywhere = identify(predicted, test.inputs, "cosine")
    by_l2 = identify(predicted, test.inputs, "l2", test.sequence)
    return {
        "own": hits(same),
        "word": hits(same, test.word),
        "own l2": hits(by_l2),
        "own all": hits(anywhere),
        "word all": hits(anywhere, test.word),
    }


def retention_table(
    found: dict[tuple[str, int], dict[str, torch.Tensor]], test: TokenStates, resamples: int
) -> pd.DataFrame:
    """Summarise hits as rates with intervals from resampling test sequences.

    Columns: mapping, layer, lookup ("own", "word", "own l2", "own all", "word all"), value, low, high, n_sequences.
    """
    rows = []
    for (mapping, layer), lookups in found.items():
        for lookup in ("own", "word", "own l2", "own all", "word all"):
            groups = by_sequence(lookups[lookup], test.sequence)
            interval = bootstrap_mean(groups, resamples=resamples).as_dict()
            rows.append({"mapping": mapping, "layer": layer, "lookup": lookup} | interval)
    return pd.DataFrame(rows)


def naive_retention(states: TokenStates, resamples: int) -> pd.DataFrame:
    """Return the rate of the bare hidden states, own token in the same sequence: layer, value, low, high."""
    rows = []
    for layer in range(1, len(states.hidden)):
        hit = hits(identify(states.hidden[layer], states.inputs, pool=states.sequence))
        rows.append(
            {"layer": layer} | bootstrap_mean(by_sequence(hit, states.sequence), resamples=resamples).as_dict()
        )
    return pd.DataFrame(rows)


def chance(test: TokenStates) -> float:
    """Return the rate of blind guessing within the own sequence: the mean over tokens of 1/n."""
    _, counts = torch.unique(test.sequence, return_counts=True)
    return len(counts) / len(test.sequence)


def best_mapping(found: dict[tuple[str, int], dict[str, torch.Tensor]]) -> str:
    """Name the mapping with the highest validation rate, averaged over layers: the test tokens have no say."""
    names = dict.fromkeys(name for name, _ in found)
    rate = {
        name: np.mean([f["validation"].double().mean() for (other, _), f in found.items() if other == name])
        for name in names
    }
    return max(rate, key=rate.get)


def rates_by_kind_of_token(
    found: dict[tuple[str, int], dict[str, torch.Tensor]], test: TokenStates, mapping: str, resamples: int
) -> pd.DataFrame:
    """Split the own-row rate by whether the token has a twin in its sequence, and by special tokens.

    Columns: layer, kind, value, low, high, n_sequences.
    """
    kinds = {
        "no twin in the sequence": ~has_twin(test) & ~test.special,
        "twin in the sequence": has_twin(test) & ~test.special,
        "special token": test.special,
    }
    rows = []
    for (name, layer), lookups in found.items():
        if name != mapping:
            continue
        for kind, where in kinds.items():
            if where.any():
                groups = by_sequence(lookups["own"][where], test.sequence[where])
                rows.append({"layer": layer, "kind": kind} | bootstrap_mean(groups, resamples=resamples).as_dict())
    return pd.DataFrame(rows)


def has_twin(states: TokenStates) -> torch.Tensor:
    """Say for each token whether its word piece occurs again in the same sequence: [N]."""
    key = states.sequence * (states.word.max() + 1) + states.word
    _, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
    return counts[inverse] > 1


def judge_c3_c4(
    found: dict[tuple[str, int], dict[str, torch.Tensor]], test: TokenStates, mapping: str, resamples: int
) -> dict[str, dict]:
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
    per_sequence = np.array(
        [[g.mean() for g in by_sequence(found[mapping, layer["layer"]]["own"], test.sequence)] for layer in by_layer]
    )
    draws = np.random.default_rng(0).integers(per_sequence.shape[1], size=(resamples, per_sequence.shape[1]))
    trends = [trend_with_depth(per_sequence[:, draw].mean(1)) for draw in draws]
    low, high = np.nanquantile(trends, [0.025, 0.975])
    steps = -np.diff(curve["value"])
    total = curve["value"].iloc[0] - curve["value"].iloc[-1]
    c4 = {"value": trend_with_depth(curve["value"]), "low": low, "high": high} | {
        "unit": "Spearman correlation of the identification rate with depth",
        "n_sequences": int(last["n_sequences"]),
        "largest_drop_share": steps.max() / total if total > 0 else float("inf"),
        "by_layer": by_layer,
    }
    return {"C3": c3, "C4": c4}
