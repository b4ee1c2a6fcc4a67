"""Notebook 02: raw attention against effective attention."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ident_utils.attention import effective_attention, head_correlation
from ident_utils.experiments.lengths import by_layer_and_head, measure_by_length, trace_cut
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered
from ident_utils.stats import bootstrap_mean
from ident_utils.trace import Trace

TOKEN_GROUPS = ("first token", "separators", "punctuation", "other")
PUNCTUATION = frozenset(".,;:!?'\"-()")


def token_groups(trace: Trace) -> list[str]:
    """Name the group of each token: first token ([CLS] or <s>), separators, punctuation, other."""
    groups = []
    for i, (token, special) in enumerate(zip(trace.tokens, trace.special.tolist(), strict=True)):
        if special:
            groups.append("first token" if i == 0 else "separators")
        else:
            groups.append("punctuation" if set(token) <= PUNCTUATION else "other")
    return groups


def measure_correlation(encoder: Encoder, texts: Sequence[Text], lengths: Sequence[int]) -> pd.DataFrame:
    """Compare raw and effective attention of every text, length, layer and head.

    Columns: sequence, n, layer, head, correlation (Pearson, all weights of a head), removed (squared share of the
    weights that cannot matter), what :func:`not_a_distribution` returns, and for each group of tokens the attention
    it receives, raw and effective (mean over rows of the summed weights).
    """
    return measure_by_length(correlation_of_text, encoder, texts, lengths)


@remembered
def correlation_of_text(encoder: Encoder, text: Text, n: int, number: int) -> pd.DataFrame:
    """Compare raw and effective attention of one text cut to n tokens; see :func:`measure_correlation`."""
    trace = trace_cut(encoder, text, n, number)
    raw = trace.attention.double()
    effective = effective_attention(raw, trace.values).weights
    columns = {
        "correlation": head_correlation(raw, effective),
        "removed": (raw - effective).square().sum((-2, -1)) / raw.square().sum((-2, -1)),
        **not_a_distribution(raw, effective),
    }
    groups = np.array(token_groups(trace))
    for group in TOKEN_GROUPS:
        where = torch.from_numpy(groups == group)
        columns[f"raw to {group}"] = raw[..., where].sum(-1).mean(-1)
        columns[f"effective to {group}"] = effective[..., where].sum(-1).mean(-1)
    return by_layer_and_head(columns)


def not_a_distribution(raw: Tensor, effective: Tensor) -> dict[str, Tensor]:
    """Say how far the rows of effective attention [L, H, n, n] are from probabilities, a number a head: [L, H].

    negative: share of weights below zero; negative_mass: what they sum to in a row; row_sum_error: distance of a
    row's sum from one; row_sum_low and row_sum_high: the 5% and 95% quantiles of the sums; top_kept: share of rows
    whose most attended token is the same in raw and effective attention.
    """
    sums = effective.sum(-1)
    return {
        "negative": (effective < 0).double().mean((-2, -1)),
        "negative_mass": -effective.clamp_max(0).sum(-1).mean(-1),
        "row_sum_error": (sums - 1).abs().mean(-1),
        "row_sum_low": sums.quantile(0.05, dim=-1),
        "row_sum_high": sums.quantile(0.95, dim=-1),
        "top_kept": (raw.argmax(-1) == effective.argmax(-1)).double().mean(-1),
    }


def by_head(table: pd.DataFrame, n: int, column: str) -> np.ndarray:
    """Average a column at length n over texts: [L, H]."""
    return table[table["n"] == n].pivot_table(index="layer", columns="head", values=column).to_numpy()


def interval_by(table: pd.DataFrame, keys: list[str], column: str, resamples: int) -> pd.DataFrame:
    """Average a column within groups of rows, with intervals from resampling sequences.

    Returns the keys with value, low, high and n_sequences.
    """
    rows = []
    for key, part in table.groupby(keys, sort=True):
        groups = [g.to_numpy() for _, g in part.groupby("sequence")[column]]
        key = key if isinstance(key, tuple) else (key,)
        rows.append(dict(zip(keys, key, strict=True)) | bootstrap_mean(groups, resamples=resamples).as_dict())
    return pd.DataFrame(rows)


def attention_received(table: pd.DataFrame, n: int, resamples: int) -> pd.DataFrame:
    """Return what groups of tokens receive at length n: layer, group, kind (raw or effective), value, low, high."""
    at_length = table[table["n"] == n]
    parts = []
    for kind in ("raw", "effective"):
        for group in TOKEN_GROUPS:
            part = interval_by(at_length, ["layer"], f"{kind} to {group}", resamples)
            parts.append(part.assign(group=group, kind=kind))
    return pd.concat(parts, ignore_index=True)


def typical_head(trace: Trace) -> dict[str, object]:
    """Pick the head of median correlation: layer and head (from 1), raw and effective [n, n], correlation."""
    raw = trace.attention.double()
    effective = effective_attention(raw, trace.values).weights
    correlation = head_correlation(raw, effective).flatten()
    at = int(correlation.argsort()[len(correlation) // 2])
    layer, head = divmod(at, raw.shape[1])
    return {
        "layer": layer + 1,
        "head": head + 1,
        "raw": raw[layer, head].numpy(),
        "effective": effective[layer, head].numpy(),
        "correlation": float(correlation[at]),
    }


def judge_c2(table: pd.DataFrame, head_dim: int, resamples: int) -> dict[str, object]:
    """Return the measurement of C2: the correlation at n >= 1.5 d_v, and up to n = d_v."""
    beyond = table[table["n"] >= 1.5 * head_dim]
    groups = [g.to_numpy() for _, g in beyond.groupby("sequence")["correlation"]]
    return bootstrap_mean(groups, resamples=resamples).as_dict() | {
        "unit": "Pearson correlation of raw and effective weights, mean over heads, layers and texts",
        "up_to_bound": table.loc[table["n"] <= head_dim, "correlation"].mean(),
        "by_length": interval_by(table, ["n"], "correlation", resamples).to_dict("records"),
    }
