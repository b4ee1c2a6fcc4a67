"""Notebook 07: what a contribution depends on, besides the text: definition, estimator, precision, controls."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ident_utils.attention import effective_attention
from ident_utils.attribution import (
    METHODS,
    Attribution,
    attention_rollout,
    attribute,
    head_attribution,
    local_attribution,
    own_contribution,
)
from ident_utils.attribution.engine import span_of
from ident_utils.attribution.estimate import block_squares, sampled_squares, shares, sum_gradient_squares
from ident_utils.models import Encoder, Text, permuted, untrained
from ident_utils.progress import track

REPEATED = "again"  # the word of the text that says one thing only


def cut(encoder: Encoder, text: Text, tokens: int) -> str:
    """Return the words of a text that fit into so many tokens, as one string."""
    words = (text if isinstance(text, str) else " ".join(text)).split()
    while len(words) > 1 and len(encoder.encode(" ".join(words)).tokens) > tokens:
        words.pop()
    return " ".join(words)


def all_definitions(encoder: Encoder, text: Text) -> dict[str, Tensor]:
    """Compute the contributions by every definition, exactly and in float64: [L, n_out, n_in] each."""
    precise = _double(encoder)
    found = block_squares(precise, precise.encode(text), span_of(precise))
    return {method: shares(found[method]) for method in METHODS}


def _double(encoder: Encoder) -> Encoder:
    return replace(encoder, model=deepcopy(encoder.model).double())


def definitions_table(found: dict[str, Tensor]) -> pd.DataFrame:
    """Return the median own contribution: method, layer, value."""
    rows = []
    for method, contributions in found.items():
        for layer, own in enumerate(own_contribution(contributions), start=1):
            rows.append({"method": method, "layer": layer, "value": own.median().item()})
    return pd.DataFrame(rows)


def agreement_table(found: dict[str, Tensor]) -> pd.DataFrame:
    """Correlate definitions by rank over all pairs of tokens of a layer: methods, first, middle and last layer."""
    n_layers = len(found["jacobian"])
    rows = []
    for one, other in combinations(found, 2):
        row = {"definitions": f"{one} / {other}"}
        for name, layer in (("first", 0), ("middle", (n_layers - 1) // 2), ("last", n_layers - 1)):
            row[f"{name} layer"] = _rank_correlation(found[one][layer], found[other][layer])
        rows.append(row)
    return pd.DataFrame(rows)


def _rank_correlation(one: Tensor, other: Tensor) -> float:
    return float(spearmanr(one.flatten().numpy(), other.flatten().numpy()).statistic)


def sum_gradient_of_untrained(encoder: Encoder, text: Text, seed: int = 0) -> pd.DataFrame:
    """Compare the sum-gradient with the Jacobian, trained and untrained, in float32 and float64, in the last layer.

    Columns: model, precision, relative size (root of the summed squares over that of the Jacobian), rows not
    zero (share of hidden states), own contribution (mean over those rows, as if it were a result; NaN if none).
    """
    rows = []
    for model in (encoder, untrained(encoder, seed)):
        for version in (model, _double(model)):
            encoding, span = version.encode(text), span_of(version, layers=[version.n_layers])
            places = tuple(range(len(encoding.tokens)))
            gradient = sum_gradient_squares(version, encoding, span, places).mean
            jacobian = sampled_squares(version, encoding, span, 4, seed).mean
            rows.append(
                {
                    "model": "untrained" if model is not encoder else "trained",
                    "precision": str(version.dtype).removeprefix("torch."),
                    "relative size": (gradient.sum() / jacobian.sum()).sqrt().item(),
                    "rows not zero": (gradient.sum(-1) > 0).double().mean().item(),
                    "own contribution": own_contribution(shares(gradient))[gradient.sum(-1) > 0].mean().item(),
                }
            )
    return pd.DataFrame(rows)


def error_by_probes(encoder: Encoder, text: Text, exact: Tensor, probes: Sequence[int], seeds: int) -> pd.DataFrame:
    """Compare estimates of the own contribution with the exact: probes, layer, error, stated, median_error.

    ``error`` and ``stated`` (standard error) are root mean squares over tokens and seeds, relative to the mean own
    contribution of the layer; ``median_error`` is the relative error of the median over tokens.
    """
    rows = []
    truth = own_contribution(exact)  # [L, n]
    for count in probes:
        many = [attribute(encoder, text, probes=count, seed=seed, precision="float32") for seed in range(seeds)]
        own = torch.stack([own_contribution(one.contributions) for one in many])
        stated = torch.stack([own_contribution(one.standard_error) for one in many])
        scale = truth.mean(-1)
        columns = {
            "error": (own - truth).square().mean((0, 2)).sqrt() / scale,
            "stated": stated.square().mean((0, 2)).sqrt() / scale,
            "median_error": _relative_median_error(own, truth),
        }
        for layer in range(len(truth)):
            rows.append({"probes": count, "layer": layer + 1} | {k: v[layer].item() for k, v in columns.items()})
    return pd.DataFrame(rows)


def _relative_median_error(own: Tensor, truth: Tensor) -> Tensor:
    median = truth.median(-1).values
    return ((own.median(-1).values - median) / median).square().mean(0).sqrt()


def compare_precisions(encoder: Encoder, text: Text, probes: int, seed: int = 0) -> pd.DataFrame:
    """Push the same tangents in three precisions: how far the contributions are from those in float64.

    Columns: what, total variation (mean over rows and layers). The last row is the sampling: another seed.
    """
    reference = attribute(_double(encoder), text, probes=probes, seed=seed).contributions
    options = {"float32": ("float32", seed), "bfloat16": ("bfloat16", seed), "other probes": ("float32", seed + 1)}
    rows = []
    for what, (precision, drawn) in options.items():
        found = attribute(encoder, text, probes=probes, seed=drawn, precision=precision).contributions
        rows.append({"what": what, "total variation": _total_variation(found, reference)})
    return pd.DataFrame(rows)


def compare_threads(encoder: Encoder, text: Text, probes: int) -> float:
    """Return the total variation between results on one thread and on all."""
    threads = torch.get_num_threads()
    try:
        everything = hidden(encoder, text, probes)
        torch.set_num_threads(1)
        return _total_variation(hidden(encoder, text, probes), everything)
    finally:
        torch.set_num_threads(threads)


def hidden(encoder: Encoder, text: Text, probes: int, seed: int = 0) -> Tensor:
    """Return contributions by the default definition."""
    return attribute(encoder, text, probes=probes, seed=seed).contributions


def _total_variation(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum(-1).mean() / 2)


def compare_seeds(encoder: Encoder, text: Text, probes: int, seeds: int) -> pd.DataFrame:
    """Return the median own contribution by seed of the probes: seed, layer, value."""
    rows = []
    for seed in range(seeds):
        own = own_contribution(hidden(encoder, text, probes, seed)).median(-1).values
        rows += [{"seed": seed, "layer": i + 1, "value": value} for i, value in enumerate(own.tolist())]
    return pd.DataFrame(rows)


def control_conditions(encoder: Encoder, seed: int) -> dict[str, tuple[Encoder, Callable[[str], str]]]:
    """Return the model and the change of the text for every control."""
    generator = np.random.default_rng(seed)

    def shuffled(text: str) -> str:
        return " ".join(generator.permutation(text.split()))

    def repeated(text: str) -> str:
        return " ".join([REPEATED] * len(text.split()))

    def same(text: str) -> str:
        return text

    return {
        "trained model": (encoder, same),
        "words shuffled": (encoder, shuffled),
        "one word repeated": (encoder, repeated),
        "weights permuted": (permuted(encoder, seed), same),
        "untrained": (untrained(encoder, seed), same),
    }


def measure_controls(encoder: Encoder, texts: Sequence[str], probes: int, seed: int = 0) -> pd.DataFrame:
    """Return the own contribution under every control: condition, layer, value (median over texts' tokens), n."""
    rows = []
    for name, (model, change) in control_conditions(encoder, seed).items():
        own = [
            own_contribution(hidden(model, change(text), probes, seed + i))
            for i, text in enumerate(track(texts, name))
        ]
        tokens = int(np.mean([one.shape[1] for one in own]))
        values = torch.cat(own, dim=1).median(-1).values.tolist()
        rows += [
            {"condition": name, "layer": layer, "value": value, "tokens": tokens}
            for layer, value in enumerate(values, start=1)
        ]
    return pd.DataFrame(rows)


def attention_against_attribution(encoder: Encoder, text: Text, tokens: int, probes: int = 1, seed: int = 0) -> dict:
    """Correlate attention weights with attribution inside the layer, and rolled-out attention with that to the input.

    Returns ``heads`` (layer, head, raw, effective: Pearson correlation over all pairs of tokens of the head's
    attention with the local attribution of the head's output to the layer's input) and ``layers`` (layer, mean
    attention against local attribution of the layer's output, rollout against attribution to the input).
    """
    text = cut(encoder, text, tokens)
    trace = encoder.trace(text)
    raw = trace.attention.double()
    effective = effective_attention(raw, trace.values).weights.abs()
    heads = head_attribution(encoder, text, probes=probes, seed=seed)
    layers = local_attribution(encoder, text, probes=probes, seed=seed)
    whole: Attribution = attribute(encoder, text, probes=probes, seed=seed)
    rolled = attention_rollout(raw)
    head_rows = [
        {
            "layer": layer + 1,
            "head": head + 1,
            "raw": _pearson(raw[layer, head], heads[layer, head]),
            "effective": _pearson(effective[layer, head], heads[layer, head]),
        }
        for layer in range(encoder.n_layers)
        for head in range(encoder.n_heads)
    ]
    layer_rows = [
        {
            "layer": layer + 1,
            "mean attention, layer by layer": _off_diagonal(raw[layer].mean(0), layers[layer]),
            "rollout, from the input": _off_diagonal(rolled[layer], whole.contributions[layer]),
        }
        for layer in range(encoder.n_layers)
    ]
    return {"heads": pd.DataFrame(head_rows), "layers": pd.DataFrame(layer_rows), "tokens": trace.n_tokens}


def _pearson(one: Tensor, other: Tensor) -> float:
    return float(np.corrcoef(one.flatten().numpy(), other.flatten().numpy())[0, 1])


def _off_diagonal(one: Tensor, other: Tensor) -> float:
    """Correlate by rank without the diagonal: the residual puts the own token first in both."""
    others = ~torch.eye(len(one), dtype=torch.bool)
    return _rank_correlation(one[others], other[others])
