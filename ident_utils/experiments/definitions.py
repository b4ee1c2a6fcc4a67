"""Notebook 07: the definitions of a contribution side by side, and what the notebook keeps of its findings."""

from collections.abc import Mapping
from itertools import combinations

import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ident_utils.attribution import (
    METHODS,
    attribute,
    own_contribution,
)
from ident_utils.attribution.engine import span_of
from ident_utils.attribution.estimate import block_squares, sampled_squares, shares, sum_gradient_squares
from ident_utils.models import Encoder, Text, in_precision, untrained
from ident_utils.remembering import remembered


def cut(encoder: Encoder, text: Text, tokens: int) -> str:
    """Return the words of a text that fit into so many tokens, as one string."""
    words = (text if isinstance(text, str) else " ".join(text)).split()
    while len(words) > 1 and len(encoder.encode(" ".join(words)).tokens) > tokens:
        words.pop()
    return " ".join(words)


@remembered
def all_definitions(encoder: Encoder, text: Text) -> dict[str, Tensor]:
    """Compute the contributions by every definition, exactly and in float64: [L, n_out, n_in] each."""
    precise = in_precision(encoder, torch.float64)
    found = block_squares(precise, precise.encode(text), span_of(precise))
    return {method: shares(found[method]) for method in METHODS}


def definitions_table(found: dict[str, Tensor]) -> pd.DataFrame:
    """Return the median own contribution: method, layer, value."""
    rows = []
    for method, shared in found.items():
        for layer, own in enumerate(own_contribution(shared), start=1):
            rows.append({"method": method, "layer": layer, "value": own.median().item()})
    return pd.DataFrame(rows)


def agreement_table(found: dict[str, Tensor]) -> pd.DataFrame:
    """Correlate definitions by rank over all pairs of tokens of a layer: methods, first, middle and last layer."""
    n_layers = len(next(iter(found.values())))
    rows = []
    for one, other in combinations(found, 2):
        row = {"definitions": f"{one} / {other}"}
        for name, layer in (("first", 0), ("middle", (n_layers - 1) // 2), ("last", n_layers - 1)):
            row[f"{name} layer"] = rank_correlation(found[one][layer], found[other][layer])
        rows.append(row)
    return pd.DataFrame(rows)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Return Spearman's rank correlation of all entries."""
    return float(spearmanr(one.flatten().numpy(), other.flatten().numpy()).statistic)


@remembered
def sum_gradient_of_untrained(encoder: Encoder, text: Text, seed: int = 0) -> pd.DataFrame:
    """Compare the sum-gradient with the Jacobian, trained and untrained, in float32 and float64, in the last layer.

    Columns: model, precision, relative size (root of the summed squares over that of the Jacobian), rows not
    zero (share of hidden states), own contribution (mean over those rows, as if it were a result; NaN if none).
    """
    rows = []
    for model in (encoder, untrained(encoder, seed)):
        for version in (model, in_precision(model, torch.float64)):
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


@remembered
def contributions(encoder: Encoder, text: Text, probes: int, seed: int = 0) -> Tensor:
    """Return contributions by the default definition: [L, n_out, n_in]."""
    return attribute(encoder, text, probes=probes, seed=seed).contributions


def formatted(table: pd.DataFrame, formats: Mapping[str, str]) -> pd.DataFrame:
    """Return the table with some columns as text, by format: numbers of very different size in one table."""
    return table.assign(**{column: table[column].map(form.format) for column, form in formats.items()})


def findings(
    agreement: pd.DataFrame,
    nothing: pd.DataFrame,
    errors: pd.DataFrame,
    precisions: pd.DataFrame,
    threads: float,
    controls: pd.DataFrame,
    told: Mapping[str, object],
) -> dict[str, dict]:
    """Return what notebook 07 keeps, from its tables."""
    at = agreement.set_index("definitions")
    apart = at.index.str.contains("gradient-x-input")
    last = controls[controls["layer"] == controls["layer"].max()].set_index("condition")["value"]
    return {
        "definitions": {
            "smallest_rank_correlation_of_three": at[~apart].min(axis=None),
            "largest_with_gradient_x_input": at[apart].max(axis=None),
        },
        "untrained_sum_gradient": {
            "relative_size": nothing[nothing["model"] == "untrained"]["relative size"].max(),
            "relative_size_trained": nothing[nothing["model"] == "trained"]["relative size"].min(),
        },
        "sampling": {
            "stated_over_measured_error": (errors["stated"].pow(2).mean() / errors["error"].pow(2).mean()) ** 0.5,
            "total_variation": precisions.set_index("what")["total variation"].to_dict(),
            "total_variation_of_threads": threads,
        },
        "controls": {"own_contribution_in_the_last_layer": last.to_dict()},
        "attention": {
            "median_correlation_of_heads": told["heads"][["raw", "effective"]].median().to_dict(),
            "by_layer": told["layers"].to_dict("records"),
        },
    }


def checks(found: Mapping[str, dict]) -> str:
    """Return lines, ready to print, of what must hold for every model and profile."""
    apart = found["sampling"]["total_variation"]
    last = found["controls"]["own_contribution_in_the_last_layer"]
    lines = {
        "sum-gradient of an untrained model below 1e-5 of its Jacobian": (
            found["untrained_sum_gradient"]["relative_size"] < 1e-5
        ),
        "stated standard error within a factor of two of the measured": (
            0.5 < found["sampling"]["stated_over_measured_error"] < 2
        ),
        "float32 and threads change less than a hundredth of what other tangents change": (
            max(apart["float32"], found["sampling"]["total_variation_of_threads"]) < apart["other tangents"] / 100
        ),
        "an untrained model mixes less than the trained one": last["untrained"] > last["trained model"],
    }
    return "\n".join(f"{what}: {'yes' if holds else 'NO'}" for what, holds in lines.items())
