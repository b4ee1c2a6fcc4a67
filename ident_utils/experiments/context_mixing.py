"""Notebook 06: who contributes to a hidden state instead of its own token."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from ident_utils.attribution import by_relative_position, own_is_largest
from ident_utils.experiments.contribution import Attributed, by_layer, layers_of
from ident_utils.experiments.effective_attention import TOKEN_GROUPS
from ident_utils.stats import bootstrap_mean

DISTANCES = {
    "own token": (0, 0),
    "1 away": (1, 1),
    "2 or 3 away": (2, 3),
    "4 to 10 away": (4, 10),
    "further": (11, 10**6),
}


def largest_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the share of tokens that are their own largest contributor: layer, value, low, high, n_sequences."""
    flags = [own_is_largest(torch.from_numpy(a.contributions)).double().numpy() for a in attributed]
    return by_layer(attributed, flags, bootstrap_mean, resamples)


def main_contributors(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Return who the largest contributor is, as shares of tokens: layer, who, value.

    ``who`` is the own token, a neighbour (one or two places away), a special token, or any other token.
    """
    rows = []
    for layer in layers_of(attributed):
        counts = dict.fromkeys(("own token", "neighbour (1 or 2 away)", "special token", "other token"), 0)
        for a in attributed:
            special = np.isin(a.groups, ("first token", "separators"))
            for place, top in enumerate(a.contributions[layer].argmax(-1)):
                counts[_who(place, int(top), bool(special[top]))] += 1
        total = sum(counts.values())
        rows += [{"layer": layer + 1, "who": who, "value": count / total} for who, count in counts.items()]
    return pd.DataFrame(rows)


def _who(place: int, top: int, special: bool) -> str:
    if top == place:
        return "own token"
    if special:
        return "special token"
    return "neighbour (1 or 2 away)" if abs(top - place) <= 2 else "other token"


def contribution_by_offset(attributed: Sequence[Attributed], reach: int = 10) -> pd.DataFrame:
    """Return the mean contribution of the token at each relative position: layer, offset, value.

    Averaged over the tokens of a text, then over the texts that are long enough to have such a neighbour.
    """
    profiles = np.stack([by_relative_position(torch.from_numpy(a.contributions), reach).numpy() for a in attributed])
    mean = np.nanmean(profiles, axis=0)
    return pd.DataFrame(
        [
            {"layer": layer + 1, "offset": offset, "value": mean[layer, offset + reach]}
            for layer in layers_of(attributed)
            for offset in range(-reach, reach + 1)
        ]
    )


def distance_groups(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return how much of a hidden state comes from how far: distance, layer, value, low, high, n_sequences."""
    tables = []
    for name, (near, far) in DISTANCES.items():
        shares = []
        for a in attributed:
            places = np.arange(len(a.tokens))
            away = np.abs(places[:, None] - places)
            shares.append((a.contributions * ((away >= near) & (away <= far))).sum(-1))
        tables.append(by_layer(attributed, shares, bootstrap_mean, resamples).assign(distance=name))
    return pd.concat(tables, ignore_index=True)


def contribution_of_groups(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return how much each group of *other* tokens contributes to a hidden state: group, layer, value, low, high."""
    tables = []
    for group in TOKEN_GROUPS:
        shares = []
        for a in attributed:
            others = a.contributions * ~np.eye(len(a.tokens), dtype=bool)
            shares.append(others[:, :, np.array(a.groups) == group].sum(-1))
        tables.append(by_layer(attributed, shares, bootstrap_mean, resamples).assign(group=group))
    own = by_layer(attributed, [a.own for a in attributed], bootstrap_mean, resamples).assign(group="own token")
    return pd.concat([own, *tables], ignore_index=True)


def twin_table(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Compare twins (the same word elsewhere in the text) with other tokens at the same distances, by layer.

    Columns: layer, ``twin``: mean contribution of a word's twin, ``same distance``: what tokens that are no twins
    contribute on average from as far in the same text, ``ratio``: of the two, ``twin leads``: share of the words with
    a twin whose largest contributor is one, ``pairs``: how many. Special tokens and punctuation are no words.
    """
    rows = []
    for layer in layers_of(attributed):
        twins, expected, leads = [], [], []
        for a in attributed:
            same, weights = _twins(a), a.contributions[layer]
            twins.append(weights[same])
            expected.append(_at_same_distance(weights, same)[same])
            leads.append(same[np.arange(len(same)), weights.argmax(-1)][same.any(1)])
        of_twins, of_others, leading = (np.concatenate(x) for x in (twins, expected, leads))
        if not len(of_twins):
            return pd.DataFrame(columns=["layer", "twin", "same distance", "ratio", "twin leads", "pairs"])
        means = {"twin": of_twins.mean(), "same distance": of_others.mean()}
        ratio = {"ratio": means["twin"] / means["same distance"]}
        rows.append({"layer": layer + 1} | means | ratio | {"twin leads": leading.mean(), "pairs": len(of_twins)})
    return pd.DataFrame(rows)


def _twins(a: Attributed) -> np.ndarray:
    """Say which pairs of different places hold the same word: bool [n, n]."""
    tokens, words = np.array(a.tokens), np.array(a.groups) == "other"
    return (tokens[:, None] == tokens) & words & ~np.eye(len(tokens), dtype=bool)


def _at_same_distance(weights: np.ndarray, twins: np.ndarray) -> np.ndarray:
    """Average the contributions [n, n] of other tokens over each distance, and put them where they belong: [n, n]."""
    places = np.arange(len(weights))
    away = np.abs(places[:, None] - places)
    total = np.bincount(away[~twins], weights[~twins], minlength=len(weights))
    count = np.bincount(away[~twins], minlength=len(weights))
    return (total / np.maximum(count, 1))[away]


def special_exchange(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Return the mean share that flows between special tokens and words: layer, flow, value.

    ``words from special`` is the share of a word's state that comes from special tokens; ``special from words`` the
    share of a special token's state that comes from words.
    """
    rows = []
    for layer in layers_of(attributed):
        flows: dict[str, list[np.ndarray]] = {"words from special": [], "special from words": []}
        for a in attributed:
            special = np.isin(a.groups, ("first token", "separators"))
            weights = a.contributions[layer]
            flows["words from special"].append(weights[~special][:, special].sum(-1))
            flows["special from words"].append(weights[special][:, ~special].sum(-1))
        rows += [
            {"layer": layer + 1, "flow": f, "value": float(np.mean(np.concatenate(v)))} for f, v in flows.items()
        ]
    return pd.DataFrame(rows)


def map_table(attributed: Attributed, layers: Sequence[int]) -> pd.DataFrame:
    """Return one text's contributions as rows: layer, hidden state, input token (both as places), value."""
    n = len(attributed.tokens)
    return pd.concat(
        pd.DataFrame(
            {
                "layer": layer,
                "hidden_state": np.repeat(np.arange(n), n),
                "input_token": np.tile(np.arange(n), n),
                "value": attributed.contributions[layer - 1].ravel(),
            }
        )
        for layer in layers
    )


def judge_c9(attributed: Sequence[Attributed], resamples: int) -> dict[str, object]:
    """Return the measurement of C9: the share of tokens that are their own largest contributor, by layer."""
    table = largest_by_layer(attributed, resamples)
    return table.iloc[-1][["value", "low", "high", "n_sequences"]].to_dict() | {
        "unit": "share of tokens that are the largest contributor to their own hidden state, last layer",
        "mean_tokens": float(np.mean([len(a.tokens) for a in attributed])),
        "by_layer": table[["layer", "value", "low", "high"]].to_dict("records"),
    }
