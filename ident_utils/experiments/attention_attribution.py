"""Notebook 07: attention weights against attribution, inside each layer and from the input on."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ident_utils.attention import effective_attention
from ident_utils.attribution import attention_rollout, local_attribution
from ident_utils.experiments.definitions import contributions, cut, rank_correlation
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered


@remembered
def attention_against_attribution(encoder: Encoder, text: Text, tokens: int, probes: int = 1, seed: int = 0) -> dict:
    """Correlate attention weights with attribution inside the layer, and rolled-out attention with that to the input.

    Returns ``heads`` (layer, head, raw, effective: Pearson correlation over all pairs of tokens of the head's
    attention with the local attribution of the head's output to the layer's input) and ``layers`` (layer, rank
    correlation of the mean attention of a layer, raw and effective, with the local attribution of the layer's output,
    and of rollout with attribution to the input; own tokens left out).
    """
    text = cut(encoder, text, tokens)
    trace = encoder.trace(text)
    raw = trace.attention.double()
    effective = effective_attention(raw, trace.values).weights.abs()
    layers, heads = local_attribution(encoder, text, probes=probes, seed=seed)
    whole = contributions(encoder, text, probes, seed)
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
            "raw, within the layer": _off_diagonal(raw[layer].mean(0), layers[layer]),
            "effective, within the layer": _off_diagonal(effective[layer].mean(0), layers[layer]),
            "rollout, from the input": _off_diagonal(rolled[layer], whole[layer]),
        }
        for layer in range(encoder.n_layers)
    ]
    return {"heads": pd.DataFrame(head_rows), "layers": pd.DataFrame(layer_rows), "tokens": trace.n_tokens}


def _pearson(one: Tensor, other: Tensor) -> float:
    return float(np.corrcoef(one.flatten().numpy(), other.flatten().numpy())[0, 1])


def _off_diagonal(one: Tensor, other: Tensor) -> float:
    """Correlate by rank without the diagonal: the residual puts the own token first in both."""
    others = ~torch.eye(len(one), dtype=torch.bool)
    return rank_correlation(one[others], other[others])
