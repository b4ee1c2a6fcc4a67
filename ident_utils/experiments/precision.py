"""Notebook 01: how the rank of a head is read from numbers with rounding errors, rightly and wrongly."""

import pandas as pd
import torch
from torch import Tensor

from ident_utils.families import output_weights
from ident_utils.models import Encoder, Text, in_precision
from ident_utils.remembering import remembered

DOUBLE, SINGLE = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps


def values_and_transformed(encoder: Encoder, text: Text, n: int) -> tuple[Tensor, Tensor]:
    """Return V [L, H, n, d_v] and T = V W_O [L, H, n, d] of one text, in the encoder's precision."""
    trace = encoder.trace(text, truncate=n)
    weights = output_weights(encoder.model, encoder.family)
    blocks = torch.stack([w.unflatten(0, (encoder.n_heads, encoder.head_dim)) for w in weights])
    return trace.values, trace.values @ blocks


@remembered
def measure_spectra(encoder: Encoder, text: Text, n: int) -> dict[str, Tensor]:
    """Return singular values [L, H, k] of V and T, made in float64 and made in float32, all taken in float64."""
    found = {}
    for precision, each in (("float64", encoder), ("float32", in_precision(encoder, torch.float32))):
        for name, matrix in zip("VT", values_and_transformed(each, text, n), strict=True):
            found[f"{name}, {precision}"] = torch.linalg.svdvals(matrix.double())
    return found


def spectrum_of_head(spectra: dict[str, Tensor], layer: int, head: int) -> pd.DataFrame:
    """Return one head's singular values (layer and head from 1): matrix, index (from 1), value over the largest."""
    parts = []
    for name, singular in spectra.items():
        values = singular[layer - 1, head - 1]
        part = {"matrix": name, "index": range(1, len(values) + 1), "value": (values / values[0]).numpy()}
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def ranks_read(spectra: dict[str, Tensor], n: int, head_dim: int, width: int) -> pd.DataFrame:
    """Read every head's rank in several ways: method, smallest, largest, right (share of heads with min(n, d_v)).

    The tolerance is sigma_max * max(n, columns) * eps, with sigma_max of the head itself or, by mistake, of the
    largest head of the model; and with eps of the precision the matrix was made in or, by mistake, of float64.
    """
    ways = (
        ("V made in float64, each head's tolerance", "V, float64", DOUBLE, head_dim, False),
        ("V made in float32, float32's tolerance", "V, float32", SINGLE, head_dim, False),
        ("T made in float64, each head's tolerance", "T, float64", DOUBLE, width, False),
        ("T made in float32, float32's tolerance", "T, float32", SINGLE, width, False),
        ("T made in float32, float64's tolerance", "T, float32", DOUBLE, width, False),
        ("T made in float32, one tolerance for all heads", "T, float32", SINGLE, width, True),
    )
    rows = []
    for method, name, eps, columns, shared in ways:
        singular = spectra[name]
        largest = singular.max() if shared else singular[..., :1]
        ranks = (singular > largest * max(n, columns) * eps).sum(-1)
        right = (ranks == min(n, head_dim)).double().mean().item()
        rows.append({"method": method, "smallest": int(ranks.min()), "largest": int(ranks.max()), "right": right})
    return pd.DataFrame(rows)
