"""Notebook 08: how far single attention weights can move, and what three readings of attention say of them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from ident_utils.attention import RowPolytope, alternative_attention, effective_attention
from ident_utils.experiments.effective_attention import interval_by
from ident_utils.experiments.lengths import lengths_at, measure_by_length, trace_cut, with_further_models
from ident_utils.families import position_bias
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered
from ident_utils.settings import Settings
from ident_utils.trace import Trace

NOTABLE = 0.05  # weights above it are what a reader would point at
CONCENTRATION = (1, 3, 6, 12, np.inf)  # bounds of the classes of perplexity


def perplexity(rows: torch.Tensor) -> torch.Tensor:
    """Return exp(entropy), the number of tokens that a row [..., n] spreads over: [...]."""
    return torch.exp(-(rows * rows.clamp_min(1e-300).log()).sum(-1))


def measure_intervals(
    encoder: Encoder, texts: Sequence[Text], lengths: Sequence[int], rows_per_text: int, *, seed: int = 0
) -> pd.DataFrame:
    """Bound the notable weights of random rows: the layers in turn, heads and rows drawn by ``seed``.

    One line a weight above 0.05 (and the largest of its row): sequence, n, layer, head, row, token, top (is it the
    row's largest?), perplexity of the row, weight, low, high, gap, width, and the weight that effective attention
    and the maximum-entropy alternative give to the same token.
    """
    return measure_by_length(intervals_of_text, encoder, texts, lengths, rows=rows_per_text, seed=seed)


@remembered
def intervals_of_text(encoder: Encoder, text: Text, n: int, number: int, rows: int, seed: int) -> pd.DataFrame:
    """Bound the notable weights of random rows of one text cut to n tokens; see :func:`measure_intervals`."""
    trace = trace_cut(encoder, text, n, number)
    bias = position_bias(encoder.model, n)
    generator = np.random.default_rng((seed, number, n))
    lines = []
    for count in range(rows):
        layer, head = count % encoder.n_layers, int(generator.integers(encoder.n_heads))
        row = int(generator.integers(n))
        where = {"layer": layer + 1, "head": head + 1, "row": row}
        lines += [where | line for line in _bound_row(trace, bias, layer, head, row)]
    table = pd.DataFrame(lines)
    return table.assign(width=table["high"] - table["low"])


def _bound_row(trace: Trace, bias: torch.Tensor | None, layer: int, head: int, row: int) -> list[dict]:
    weights, values = trace.attention[layer, head, row].double(), trace.values[layer, head]
    effective = effective_attention(weights[None], values).weights[0]
    own_bias = None if bias is None else bias[head, row][None]
    alternative = alternative_attention(weights[None], values, bias=own_bias).weights[0]
    polytope = RowPolytope(values)
    top, spread = int(weights.argmax()), perplexity(weights).item()
    lines = []
    tokens = torch.nonzero((weights > NOTABLE) | (weights == weights.max())).squeeze(-1).tolist()
    for token, (low, high, gap) in zip(tokens, polytope.intervals(weights.numpy(), tokens), strict=True):
        readings = {"effective": effective[token].item(), "alternative": alternative[token].item()}
        ends = {"weight": weights[token].item(), "low": low, "high": high, "gap": gap}
        lines.append({"token": token, "top": token == top, "perplexity": spread} | ends | readings)
    return lines


def intervals_of_models(encoder: Encoder, settings: Settings, texts: Sequence[Text]) -> pd.DataFrame:
    """Measure intervals in a model and the profile's further ones: :func:`measure_intervals`, model, head_dim."""
    tables = []
    for each in with_further_models(encoder, settings):
        each.require_all_visible("An identifiability interval")
        lengths = lengths_at(each, settings.interval_ratios)
        chosen = texts[: settings.interval_sequences]
        table = measure_intervals(each, chosen, lengths, settings.interval_rows, seed=settings.seed)
        tables.append(table.assign(model=each.name, head_dim=each.head_dim))
    return pd.concat(tables, ignore_index=True)


def wide_by_length(table: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the share of weights with an interval wider than 0.05: model, head_dim, which, n, value, low, high.

    ``which``: all weights above 0.05, or each row's largest.
    """
    table = table.assign(wide=(table["width"] > NOTABLE).astype(float))
    keys = ["model", "head_dim", "n"]
    parts = [
        interval_by(table[table["weight"] > NOTABLE], keys, "wide", resamples).assign(which="weights above 0.05"),
        interval_by(table[table["top"]], keys, "wide", resamples).assign(which="largest of each row"),
    ]
    return pd.concat(parts, ignore_index=True)


def width_by_concentration(table: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the mean width of the interval of a row's largest weight by the row's perplexity, at n >= 1.5 d_v.

    Columns: model, perplexity (class), value, low, high, n_sequences, rows.
    """
    beyond = table[table["top"] & (table["n"] >= 1.5 * table["head_dim"])]
    names = ["below 3", "3 to 6", "6 to 12", "above 12"]
    beyond = beyond.assign(perplexity=pd.cut(beyond["perplexity"], CONCENTRATION, labels=names).astype(str))
    found = interval_by(beyond, ["model", "perplexity"], "width", resamples)
    rows = beyond.groupby(["model", "perplexity"], as_index=False).size().rename(columns={"size": "rows"})
    found = found.merge(rows, on=["model", "perplexity"])
    return found.sort_values(["model", "perplexity"], key=lambda c: c.map(names.index) if c.name != "model" else c)


def compare_readings(table: pd.DataFrame) -> pd.DataFrame:
    """Hold effective attention and the alternative against the intervals, for weights above 0.05 at n >= 1.5 d_v.

    Columns by model: weights (how many), may_vanish (share whose interval begins below 0.01), half_certain (share
    that cannot fall below half of what the model shows), effective_outside (share whose effective weight no row of
    attention with this output has), effective_error and alternative_error (mean distance from the model's weight).
    """
    slack = 1e-6
    beyond = table[(table["weight"] > NOTABLE) & (table["n"] >= 1.5 * table["head_dim"])]
    outside = (beyond["effective"] < beyond["low"] - slack) | (beyond["effective"] > beyond["high"] + slack)
    found = pd.DataFrame(
        {
            "model": beyond["model"],
            "may_vanish": beyond["low"] < 0.01,
            "half_certain": beyond["low"] >= beyond["weight"] / 2,
            "effective_outside": outside,
            "effective_error": (beyond["effective"] - beyond["weight"]).abs(),
            "alternative_error": (beyond["alternative"] - beyond["weight"]).abs(),
        }
    )
    return found.groupby("model").mean().assign(weights=found.groupby("model").size()).reset_index()


@remembered
def readable_head(trace: Trace) -> dict[str, object]:
    """Pick the head whose rows spread as those of the median head do, and bound what it shows.

    Returns layer and head (from 1), tokens, raw [n, n], low [n, n] (lower ends of weights above 0.05, else 0), and
    for one row (upper quartile of the head's rows by their widest interval) a table of all its weights: token,
    weight, low, high, gap.
    """
    spread = perplexity(trace.attention.double()).mean(-1)
    typical = int(spread.flatten().argsort()[spread.numel() // 2])
    layer, head = divmod(typical, spread.shape[1])
    raw, polytope = trace.attention[layer, head].double(), RowPolytope(trace.values[layer, head])
    low, widths = torch.zeros_like(raw), []
    for i, row in enumerate(raw.numpy()):
        notable = np.flatnonzero(row > NOTABLE)
        ends = dict(zip(notable, polytope.intervals(row, notable), strict=True))
        for j, (least, _, _) in ends.items():
            low[i, j] = least
        widths.append(max((most - least for least, most, _ in ends.values()), default=0.0))
    row = int(np.argsort(widths)[3 * len(widths) // 4])
    ends = polytope.intervals(raw[row].numpy(), range(len(raw)))
    table = pd.DataFrame(ends, columns=["low", "high", "gap"]).assign(weight=raw[row].numpy(), token=trace.tokens)
    found = {"layer": layer + 1, "head": head + 1, "row": row, "tokens": trace.tokens}
    return found | {"raw": raw.numpy(), "low": low.numpy(), "table": table}
