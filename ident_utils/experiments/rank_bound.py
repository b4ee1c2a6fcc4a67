"""Notebook 01: the null space of the values, and a second attention matrix with the same output."""

from collections.abc import Sequence
from itertools import chain

import pandas as pd
import torch
from torch import Tensor

from ident_utils.attention import (
    displaced_attention,
    nullity,
    rank_bound,
    second_attention,
    total_variation,
)
from ident_utils.experiments.lengths import (
    by_layer_and_head,
    lengths_at,
    measure_by_length,
    trace_cut,
    with_further_models,
)
from ident_utils.models import Encoder, Text, untrained
from ident_utils.remembering import remembered
from ident_utils.settings import Settings
from ident_utils.stats import bootstrap_mean
from ident_utils.trace import Trace, hidden_with_attention


def measure_nullity(encoder: Encoder, texts: Sequence[Text], lengths: Sequence[int]) -> pd.DataFrame:
    """Count the dimensions in which a row of weights is free, for every text, length, layer and head.

    Columns: sequence, n, layer, head, nullity (of V), free (of [V, 1]: rows that sum to one), bound
    (n - d_v - 1, at least 0), gap (smallest singular value of [V, 1] that counts, over the largest).
    """
    return measure_by_length(nullity_of_text, encoder, texts, lengths)


@remembered
def nullity_of_text(encoder: Encoder, text: Text, n: int, number: int) -> pd.DataFrame:
    """Count the dimensions in which rows are free, of one text cut to n tokens; see :func:`measure_nullity`."""
    trace = trace_cut(encoder, text, n, number)
    plain, summed = nullity(trace.values), nullity(trace.values, rows_sum_to_one=True)
    columns = {"nullity": plain.nullity, "free": summed.nullity, "gap": summed.smallest_kept}
    return by_layer_and_head(columns).assign(bound=rank_bound(n, encoder.head_dim))


SHORTEST = 8  # tokens


def measure_models(encoder: Encoder, settings: Settings, texts: Sequence[Text]) -> pd.DataFrame:
    """Measure null spaces in a model, in its untrained architecture, and in the profile's further models.

    Lengths go from 8 tokens to the profile's largest multiple of d_v, the three around the bound among them. Columns
    as in :func:`measure_nullity`, and model and head_dim.
    """
    tables = []
    trained = with_further_models(encoder, settings)
    for each in chain([next(trained), untrained(encoder, settings.seed)], trained):
        d_v = each.head_dim
        lengths = lengths_at(each, settings.rank_ratios, (SHORTEST, d_v + 1, d_v + 2))
        table = measure_nullity(each, texts[: settings.rank_sequences], lengths)
        tables.append(table.assign(model=each.name, head_dim=d_v))
    return pd.concat(tables, ignore_index=True)


def nullity_by_length(nullities: pd.DataFrame) -> pd.DataFrame:
    """Summarise over texts, layers and heads: smallest and largest freedom by length, next to the bound.

    One row for each length, and for each model where there is more than one.
    """
    keys = [key for key in ("model", "head_dim") if key in nullities]
    return nullities.groupby([*keys, "n"], as_index=False, sort=False).agg(
        bound=("bound", "first"),
        smallest=("free", "min"),
        largest=("free", "max"),
        smallest_of_v=("nullity", "min"),
        largest_of_v=("nullity", "max"),
        heads=("free", "size"),
        gap=("gap", "min"),
    )


@remembered
def compare_with_second(encoder: Encoder, text: Text, n: int, layers: Sequence[int]) -> tuple[pd.DataFrame, dict]:
    """Put a second attention matrix with the same output into every head of some layers, and a control beside it.

    The layers (counted from 1) are changed one at a time, all heads at once. Returns a table (columns: layer,
    attention "second" or "control", total_variation, top_changed: share of rows with another most attended token,
    head_output and final_hidden: relative changes) and one example head's matrices.
    """
    trace = encoder.trace(text, truncate=n)
    rows, example = [], {}
    for layer in layers:
        raw, values = trace.attention[layer - 1], trace.values[layer - 1]
        second = torch.stack([second_attention(a, v) for a, v in zip(raw, values, strict=True)])
        control = torch.stack([displaced_attention(a, b, seed=layer) for a, b in zip(raw, second, strict=True)])
        for name, other in (("second", second), ("control", control)):
            rows.append({"layer": layer, "attention": name} | _difference(encoder, text, trace, layer, other))
        head = int(total_variation(raw, second).mean(-1).argmax())
        example = {"layer": layer, "head": head + 1, "tokens": trace.tokens, "raw": raw[head]}
        example |= {"second": second[head], "control": control[head]}
    return pd.DataFrame(rows), example


def _difference(encoder: Encoder, text: Text, trace: Trace, layer: int, other: Tensor) -> dict[str, float]:
    raw, values = trace.attention[layer - 1].double(), trace.values[layer - 1].double()
    hidden = hidden_with_attention(encoder, text, {layer: other}, truncate=trace.n_tokens)
    return {
        "total_variation": total_variation(raw, other).mean().item(),
        "top_changed": (raw.argmax(-1) != other.argmax(-1)).double().mean().item(),
        "head_output": relative_change(raw @ values, other @ values),
        "final_hidden": relative_change(trace.hidden[-1], hidden[-1]),
    }


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the largest change of a row relative to the largest row: [..., n, d] to one number."""
    return ((after - before).norm(dim=-1).max() / before.norm(dim=-1).max()).item()


def judge_c1(nullities: pd.DataFrame, seconds: pd.DataFrame, resamples: int) -> dict[str, object]:
    """Return the measurement of C1: the share of heads that sit exactly on the bound, and what a second A changes."""
    on_bound = nullities["free"] == nullities["bound"]
    groups = [on_bound[rows].to_numpy() for rows in nullities.groupby("sequence").groups.values()]
    second = seconds[seconds["attention"] == "second"]
    control = seconds[seconds["attention"] == "control"]
    return bootstrap_mean(groups, resamples=resamples).as_dict() | {
        "unit": "share of heads whose freedom is exactly max(0, n - d_v - 1)",
        "heads": len(nullities),
        "heads_below_bound": int((nullities["free"] < nullities["bound"]).sum()),
        "heads_above_bound": int((nullities["free"] > nullities["bound"]).sum()),
        "output_difference": second["head_output"].max(),
        "final_hidden_difference": second["final_hidden"].max(),
        "control_final_hidden_difference": control["final_hidden"].min(),
        "total_variation": second["total_variation"].mean(),
    }
