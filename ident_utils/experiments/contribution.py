"""Notebooks 05 and 06: Hidden Token Attribution over a corpus, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from ident_utils.attribution import by_relative_position, hidden_token_attribution, own_is_largest
from ident_utils.cache import code_hash, remember
from ident_utils.experiments.effective_attention import TOKEN_GROUPS, token_groups
from ident_utils.models import Encoder, Text
from ident_utils.progress import track
from ident_utils.settings import Settings
from ident_utils.stats import Interval, bootstrap_mean, bootstrap_median, trend_with_depth

CODE = (
    "attribution/engine",
    "attribution/estimate",
    "attribution/methods",
    "models",
    "trace",
    "families",
    "hooks",
)  # what a contribution depends on


DISTANCES = {
    "own token": (0, 0),
    "1 away": (1, 1),
    "2 or 3 away": (2, 3),
    "4 to 10 away": (4, 10),
    "further": (11, 10**6),
}


@dataclass(frozen=True)
class Attributed:
    """Hold one text with its contributions [L, n_out, n_in] and the group of each token."""

    tokens: tuple[str, ...]
    groups: tuple[str, ...]
    contributions: np.ndarray

    @property
    def own(self) -> np.ndarray:
        """Return the contribution of each token to its own hidden state: [L, n]."""
        return np.diagonal(self.contributions, axis1=1, axis2=2)


def attribute_corpus(
    encoder: Encoder, texts: Sequence[Text], settings: Settings, *, truncate: int | None = None
) -> list[Attributed]:
    """Attribute the hidden states of every text to its input tokens; finished texts are kept on disk."""
    attribute = remember(_attribute, ignore=["encoder"])
    weights = encoder.provenance.get("sha256") or encoder.name
    key = {"weights": weights, "dtype": str(encoder.dtype), "code": code_hash(*CODE)}
    return [
        attribute(encoder, text, probes=settings.probes, seed=settings.seed + number, key=key, truncate=truncate)
        for number, text in enumerate(track(texts, "texts"))
    ]


def _attribute(
    encoder: Encoder, text: Text, *, probes: int, seed: int, key: dict[str, str], truncate: int | None = None
) -> Attributed:
    contributions = hidden_token_attribution(encoder, text, probes=probes, seed=seed, truncate=truncate)
    trace = encoder.trace(text, truncate=truncate)
    return Attributed(trace.tokens, tuple(token_groups(trace)), contributions.float().cpu().numpy())


def _layers(attributed: Sequence[Attributed]) -> range:
    return range(len(attributed[0].contributions))


def _by_layer(attributed: Sequence[Attributed], per_token: str | list, interval_of, resamples: int) -> pd.DataFrame:
    """Collect an interval for every layer from per-token numbers [L, n] of every text."""
    rows = []
    for layer in _layers(attributed):
        interval: Interval = interval_of([values[layer] for values in per_token], resamples=resamples)
        rows.append({"layer": layer + 1} | interval.as_dict())
    return pd.DataFrame(rows)


def own_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the median own contribution by layer: layer, value, low, high, n_sequences, and the quartiles."""
    table = _by_layer(attributed, [a.own for a in attributed], bootstrap_median, resamples)
    pooled = np.concatenate([a.own for a in attributed], axis=1)
    return table.assign(quarter=np.quantile(pooled, 0.25, axis=1), three_quarters=np.quantile(pooled, 0.75, axis=1))


def other_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the mean share on other tokens by layer: layer, value, low, high, n_sequences."""
    return _by_layer(attributed, [1 - a.own for a in attributed], bootstrap_mean, resamples)


def largest_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the share of tokens that are their own largest contributor: layer, value, low, high, n_sequences."""
    flags = [own_is_largest(torch.from_numpy(a.contributions)).double().numpy() for a in attributed]
    return _by_layer(attributed, flags, bootstrap_mean, resamples)


def own_by_group(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the median own contribution by layer and group of tokens: group, layer, value, low, high."""
    tables = []
    for group in TOKEN_GROUPS:
        picked = [a.own[:, np.array(a.groups) == group] for a in attributed]
        picked = [p for p in picked if p.shape[1]]
        if picked:
            tables.append(_by_layer(attributed, picked, bootstrap_median, resamples).assign(group=group))
    return pd.concat(tables, ignore_index=True)


def own_by_length(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Return one row a text: n, and the median own contribution in the first and the last layer."""
    return pd.DataFrame(
        {
            "n": [len(a.tokens) for a in attributed],
            "first layer": [np.median(a.own[0]) for a in attributed],
            "last layer": [np.median(a.own[-1]) for a in attributed],
        }
    )


def contribution_by_offset(attributed: Sequence[Attributed], reach: int = 10) -> pd.DataFrame:
    """Return the mean contribution of the token at each relative position: layer, offset, value.

    Averaged over the tokens of a text, then over the texts that are long enough to have such a neighbour.
    """
    profiles = np.stack([by_relative_position(torch.from_numpy(a.contributions), reach).numpy() for a in attributed])
    mean = np.nanmean(profiles, axis=0)
    return pd.DataFrame(
        [
            {"layer": layer + 1, "offset": offset, "value": mean[layer, offset + reach]}
            for layer in _layers(attributed)
            for offset in range(-reach, reach + 1)
        ]
    )


def contribution_of_groups(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return how much each group of *other* tokens contributes to a hidden state: group, layer, value, low, high."""
    tables = []
    for group in TOKEN_GROUPS:
        shares = []
        for a in attributed:
            others = a.contributions * ~np.eye(len(a.tokens), dtype=bool)
            shares.append(others[:, :, np.array(a.groups) == group].sum(-1))
        tables.append(_by_layer(attributed, shares, bootstrap_mean, resamples).assign(group=group))
    own = _by_layer(attributed, [a.own for a in attributed], bootstrap_mean, resamples).assign(group="own token")
    return pd.concat([own, *tables], ignore_index=True)


def distance_groups(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return how much of a hidden state comes from how far: distance, layer, value, low, high, n_sequences."""
    tables = []
    for name, (near, far) in DISTANCES.items():
        shares = []
        for a in attributed:
            places = np.arange(len(a.tokens))
            away = np.abs(places[:, None] - places)
            shares.append((a.contributions * ((away >= near) & (away <= far))).sum(-1))
        tables.append(_by_layer(attributed, shares, bootstrap_mean, resamples).assign(distance=name))
    return pd.concat(tables, ignore_index=True)


def twin_table(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Compare tokens that have a twin (the same word piece elsewhere in the text) with all others, by layer.

    Columns: layer, ``twin``: mean contribution of a twin, ``others``: of any other input token that is neither the
    own nor a twin, ``twin leads``: share of the tokens with a twin whose largest contributor is a twin.
    """
    rows = []
    for layer in _layers(attributed):
        of_twins, of_others, leads = [], [], []
        for a in attributed:
            tokens = np.array(a.tokens)
            same = (tokens[:, None] == tokens) & ~np.eye(len(tokens), dtype=bool)
            has_twin = same.any(1)
            others = ~same & ~np.eye(len(tokens), dtype=bool)
            weights = a.contributions[layer]
            of_twins.append(weights[same])
            of_others.append(weights[has_twin][others[has_twin]])
            leads.append(same[np.arange(len(tokens)), weights.argmax(-1)][has_twin])
        means = [float(np.mean(np.concatenate(x))) for x in (of_twins, of_others, leads)]
        rows.append({"layer": layer + 1} | dict(zip(("twin", "others", "twin leads"), means, strict=True)))
    return pd.DataFrame(rows)


def special_exchange(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Return the mean share that flows between special tokens and words: layer, flow, value.

    ``words from special`` is the share of a word's state that comes from special tokens; ``special from words`` the
    share of a special token's state that comes from words.
    """
    rows = []
    for layer in _layers(attributed):
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


def compare_own(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Put the medians of several models under each other, model, layer, depth (a share), value, low, high."""
    return pd.concat(
        [table.assign(model=name, depth=table["layer"] / table["layer"].max()) for name, table in tables.items()],
        ignore_index=True,
    )


def own_by_cut(
    encoder: Encoder, passages: Sequence[Text], lengths: Sequence[int], settings: Settings
) -> pd.DataFrame:
    """Cut the same passages to several lengths: model, n, layer (first, last), value (median own contribution)."""
    rows = []
    for n in lengths:
        cuts = [" ".join(str(passage).split()[:n]) for passage in passages]
        attributed = attribute_corpus(encoder, cuts, settings, truncate=n)
        for name, layer in (("first layer", 0), ("last layer", -1)):
            value = float(np.median(np.concatenate([a.own[layer] for a in attributed])))
            rows.append({"model": encoder.name, "n": n, "layer": name, "value": value})
    return pd.DataFrame(rows)


def main_contributors(attributed: Sequence[Attributed]) -> pd.DataFrame:
    """Return who the largest contributor is, as shares of tokens: layer, who, value.

    ``who`` is the own token, a neighbour (one or two places away), a special token, or any other token.
    """
    rows = []
    for layer in _layers(attributed):
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


def judge_c6_c7_c8(attributed: Sequence[Attributed], resamples: int) -> dict[str, dict]:
    """Return the measurements of C6 (share on others), C7 (layer 1) and C8 (last layer and trend)."""
    own, others = own_by_layer(attributed, resamples), other_by_layer(attributed, resamples)
    columns = ["layer", "value", "low", "high"]
    ends = ["value", "low", "high", "n_sequences"]
    lowest = others.loc[others["low"].idxmin()]
    n = {"mean_tokens": float(np.mean([len(a.tokens) for a in attributed]))}
    return {
        "C6": lowest[ends].to_dict()
        | n
        | {
            "unit": "mean share of the attribution on other tokens, lowest layer",
            "lowest_layer": f"layer {int(lowest['layer'])}",
            "by_layer": others[columns].to_dict("records"),
        },
        "C7": own.iloc[0][ends].to_dict() | n | {"unit": "median own contribution after layer 1"},
        "C8": own.iloc[-1][ends].to_dict()
        | n
        | {
            "unit": "median own contribution after the last layer",
            "trend": trend_with_depth(own["value"]),
            "by_layer": own[columns].to_dict("records"),
        },
    }


def judge_c9(attributed: Sequence[Attributed], resamples: int) -> dict[str, object]:
    """Return the measurement of C9: the share of tokens that are their own largest contributor, by layer."""
    table = largest_by_layer(attributed, resamples)
    return table.iloc[-1][["value", "low", "high", "n_sequences"]].to_dict() | {
        "unit": "share of tokens that are the largest contributor to their own hidden state, last layer",
        "mean_tokens": float(np.mean([len(a.tokens) for a in attributed])),
        "by_layer": table[["layer", "value", "low", "high"]].to_dict("records"),
    }
