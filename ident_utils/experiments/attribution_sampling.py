"""Notebook 07: what an estimated contribution owes to the random tangents, to precision, seed and threads."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from ident_utils.attribution import attribute, own_contribution
from ident_utils.experiments.definitions import contributions
from ident_utils.models import Encoder, Text, in_precision
from ident_utils.remembering import remembered
from ident_utils.scheduling import processors


@remembered
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


@remembered
def compare_precisions(encoder: Encoder, text: Text, probes: int, seed: int = 0) -> pd.DataFrame:
    """Push the same tangents in three precisions: how far the contributions are from those in float64.

    Columns: what, total variation (mean over rows and layers). The last row is the sampling: another seed.
    """
    reference = attribute(in_precision(encoder, torch.float64), text, probes=probes, seed=seed).contributions
    options = {"float32": ("float32", seed), "bfloat16": ("bfloat16", seed), "other tangents": ("float32", seed + 1)}
    rows = []
    for what, (precision, drawn) in options.items():
        found = attribute(encoder, text, probes=probes, seed=drawn, precision=precision).contributions
        rows.append({"what": what, "total variation": _total_variation(found, reference)})
    return pd.DataFrame(rows)


@remembered
def compare_threads(encoder: Encoder, text: Text, probes: int) -> float:
    """Return the total variation between results on one thread and on all, two at least.

    How many threads the process was given does not matter: side by side with others it may be one.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(max(2, processors()))
        everything = contributions.function(encoder, text, probes)
        torch.set_num_threads(1)
        return _total_variation(contributions.function(encoder, text, probes), everything)
    finally:
        torch.set_num_threads(threads)


def compare_seeds(encoder: Encoder, text: Text, probes: int, seeds: int) -> pd.DataFrame:
    """Return the median own contribution by seed of the probes: seed, layer, value."""
    rows = []
    for seed in range(seeds):
        own = own_contribution(contributions(encoder, text, probes, seed)).median(-1).values
        rows += [{"seed": seed, "layer": i + 1, "value": value} for i, value in enumerate(own.tolist())]
    return pd.DataFrame(rows)


def _total_variation(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum(-1).mean() / 2)
