"""Notebook 05: Hidden Token Attribution over a corpus, and the own token's share by layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from ident_utils.attribution import Cost, attribute, attribution_cost, local_attribution, own_contribution, together
from ident_utils.cluster import for_each
from ident_utils.experiments.effective_attention import TOKEN_GROUPS, token_groups
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered
from ident_utils.settings import Settings
from ident_utils.stats import Interval, bootstrap_mean, bootstrap_median, trend_with_depth


@dataclass(frozen=True)
class Attributed:
    """Hold one text with its contributions [L, n_out, n_in], the group of each token, and how it was measured."""

    tokens: tuple[str, ...]
    groups: tuple[str, ...]
    contributions: np.ndarray
    precision: str = "float32"  # of the tangents

    @property
    def own(self) -> np.ndarray:
        """Return the contribution of each token to its own hidden state: [L, n]."""
        return np.diagonal(self.contributions, axis1=1, axis2=2)


def corpus_cost(encoder: Encoder, texts: Sequence[Text], settings: Settings) -> Cost:
    """Estimate what :func:`attribute_corpus` will take where nothing is kept on disk yet."""
    return together([attribution_cost(encoder, len(encoder.encode(text).tokens), settings.probes) for text in texts])


def attribute_corpus(
    encoder: Encoder, texts: Sequence[Text], settings: Settings, *, truncate: int | None = None
) -> list[Attributed]:
    """Attribute the hidden states of every text to its input tokens; finished texts are kept on disk."""
    items = [
        {"text": text, "probes": settings.probes, "seed": settings.seed + number, "truncate": truncate}
        for number, text in enumerate(texts)
    ]
    return for_each(attribute_text, encoder, items, "texts")


@remembered
def attribute_text(encoder: Encoder, text: Text, probes: int, seed: int, truncate: int | None) -> Attributed:
    """Attribute the hidden states of one text to its input tokens."""
    found = attribute(encoder, text, probes=probes, seed=seed, truncate=truncate)
    trace = encoder.trace(text, truncate=truncate)
    contributions = found.contributions.float().cpu().numpy()
    return Attributed(trace.tokens, tuple(token_groups(trace)), contributions, found.precision.split()[0])


def precision_of(attributed: Sequence[Attributed]) -> str:
    """Name the precision, or precisions, in which the tangents of these texts were pushed."""
    return " and ".join(sorted({a.precision for a in attributed}))


def layers_of(attributed: Sequence[Attributed]) -> range:
    return range(len(attributed[0].contributions))


def by_layer(attributed: Sequence[Attributed], per_token: str | list, interval_of, resamples: int) -> pd.DataFrame:
    """Collect an interval for every layer from per-token numbers [L, n] of every text."""
    rows = []
    for layer in layers_of(attributed):
        interval: Interval = interval_of([values[layer] for values in per_token], resamples=resamples)
        rows.append({"layer": layer + 1} | interval.as_dict())
    return pd.DataFrame(rows)


def own_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the median own contribution by layer: layer, value, low, high, n_sequences, and the quartiles."""
    table = by_layer(attributed, [a.own for a in attributed], bootstrap_median, resamples)
    pooled = np.concatenate([a.own for a in attributed], axis=1)
    return table.assign(quarter=np.quantile(pooled, 0.25, axis=1), three_quarters=np.quantile(pooled, 0.75, axis=1))


def other_by_layer(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the mean share on other tokens by layer: layer, value, low, high, n_sequences."""
    return by_layer(attributed, [1 - a.own for a in attributed], bootstrap_mean, resamples)


def own_by_group(attributed: Sequence[Attributed], resamples: int) -> pd.DataFrame:
    """Return the median own contribution by layer and group of tokens: group, layer, value, low, high."""
    tables = []
    for group in TOKEN_GROUPS:
        picked = [a.own[:, np.array(a.groups) == group] for a in attributed]
        picked = [p for p in picked if p.shape[1]]
        if picked:
            tables.append(by_layer(attributed, picked, bootstrap_median, resamples).assign(group=group))
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


def compare_own(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Put the medians of several models under each other, model, layer, depth (a share), value, low, high."""
    return pd.concat(
        [table.assign(model=name, depth=table["layer"] / table["layer"].max()) for name, table in tables.items()],
        ignore_index=True,
    )


def own_by_cut(
    encoder: Encoder, passages: Sequence[Text], lengths: Sequence[int], settings: Settings
) -> pd.DataFrame:
    """Cut the same passages to several lengths: model, n, layer (first, last), value (median own contribution).

    One random tangent for each input token: sampling errors of single tokens cancel in the median over all.
    """
    rows, one_probe = [], replace(settings, probes=1)
    for n in lengths:
        attributed = attribute_corpus(encoder, passages, one_probe, truncate=n)
        for name, layer in (("first layer", 0), ("last layer", -1)):
            value = float(np.median(np.concatenate([a.own[layer] for a in attributed])))
            rows.append({"model": encoder.name, "n": n, "layer": name, "value": value})
    return pd.DataFrame(rows)


def within_layers(encoder: Encoder, texts: Sequence[Text], tokens: int, seed: int = 0) -> pd.DataFrame:
    """Look at each layer alone, from its own input to its output: model, layer, depth, own, alike.

    ``own``: median share of a token's own input in its output; ``alike``: mean cosine similarity between the outputs
    of different tokens of a text. Texts are cut to ``tokens``; one random tangent for each input token.
    """
    items = [{"text": text, "tokens": tokens, "seed": seed + 100 * number} for number, text in enumerate(texts)]
    own, alike = zip(*for_each(within_layers_of_text, encoder, items, f"layers of {encoder.name}"), strict=True)
    by_depth = torch.stack(alike).mean(0)
    layers = range(1, encoder.n_layers + 1)
    return pd.DataFrame(
        {
            "model": encoder.name,
            "layer": layers,
            "depth": [layer / encoder.n_layers for layer in layers],
            "own": torch.cat(own, dim=1).median(-1).values.tolist(),
            "alike": by_depth[1:].tolist(),
        }
    )


@remembered
def within_layers_of_text(encoder: Encoder, text: Text, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each layer's own shares [L, n] and the mean cosine between tokens, inputs first [L + 1]."""
    shares, _ = local_attribution(encoder, text, probes=1, seed=seed, truncate=tokens)
    return own_contribution(shares), _mean_cosine(encoder.trace(text, truncate=tokens).hidden)


def _mean_cosine(hidden: torch.Tensor) -> torch.Tensor:
    """Return the mean cosine similarity between different tokens: [L+1] from [L+1, n, d]."""
    unit = hidden / hidden.norm(dim=-1, keepdim=True)
    n = hidden.shape[1]
    return ((unit.sum(1).square().sum(-1)) - n) / (n * (n - 1))


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
