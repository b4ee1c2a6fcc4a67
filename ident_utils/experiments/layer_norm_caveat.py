"""Notebook 04: how far the architecture makes a state's norm a function of its direction, and where it does not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ident_utils.families import layer_norms
from ident_utils.hooks import rewrite_input
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates, collect_states, split_sequences

DEAD_GAIN = 1e-3  # of the median gain: what a LayerNorm multiplies by less does not vary any more


def norm_from_direction(hidden: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Compute the norm of a LayerNorm's output [N, d] from its direction alone.

    e = gain * z + bias, where z has mean zero and mean square one. With u = e/||e|| the constraints on z leave
    one unknown, the norm r: the sum of (r u - bias) / gain is zero. Returns r, [N].
    """
    u = torch.nn.functional.normalize(hidden.double(), dim=-1)
    weighted = u / gain.double()
    return (bias.double() / gain.double()).sum() / weighted.sum(-1)


@remembered
def norm_errors(encoder: Encoder, states: TokenStates) -> pd.DataFrame:
    """Compare norms computed from the direction with the true ones.

    Where layers end with a sum, as in gpt2, the norm is free, and there is nothing to compare: NaN. Columns: layer;
    ``median`` and ``largest`` relative error; ``dead``, how many dimensions have next to no gain; and
    ``without dead``, the median error when those cannot be read, as no mapping with a floor under its deviations can.
    """
    if encoder.family.layer_norm is None:
        nothing = dict.fromkeys(("median", "largest", "dead", "without dead"), float("nan"))
        return pd.DataFrame([{"layer": layer} | nothing for layer in range(1, encoder.n_layers + 1)])
    rows = []
    for layer, norm in enumerate(layer_norms(encoder.model, encoder.family), start=1):
        hidden = states.hidden[layer].double()
        true = hidden.norm(dim=-1)
        live = norm.weight.abs() > DEAD_GAIN * norm.weight.abs().median()
        u = hidden / true[:, None]
        error, blind = (
            (norm_from_direction(part, norm.weight[keep], norm.bias[keep]) / scale - true).abs() / true
            for part, keep, scale in (
                (hidden, slice(None), 1.0),
                (hidden[:, live], live, u[:, live].norm(dim=-1)),
            )
        )
        rows.append(
            {
                "layer": layer,
                "median": error.median().item(),
                "largest": error.max().item(),
                "dead": int((~live).sum()),
                "without dead": blind.median().item(),
            }
        )
    return pd.DataFrame(rows)


def collect_before_norm(encoder: Encoder, texts: Sequence[Text]) -> TokenStates:
    """Keep what goes into the LayerNorm that a layer ends with, in place of what comes out of it.

    There the norm is free: nothing makes it a function of the direction. ``hidden[0]`` is as ever. Where layers end
    with a sum there is nothing to go behind, and the states are as ever.
    """
    states = collect_states(encoder, texts)
    if encoder.family.layer_norm is None:
        return states
    return replace(states, hidden=torch.from_numpy(states_before_norm(encoder, texts)))


@remembered
def states_before_norm(encoder: Encoder, texts: Sequence[Text]) -> np.ndarray:
    """Return the states [L + 1, N, d] of :func:`collect_before_norm`, in float32."""
    hidden = collect_states(encoder, texts).hidden.clone()
    before: dict[int, Tensor] = {}

    def keep(index: int, given: Tensor) -> Tensor:
        before[index] = given
        return given

    start = 0
    with torch.inference_mode(), rewrite_input(layer_norms(encoder.model, encoder.family), keep):
        for text in texts:
            encoder.run(encoder.encode(text))
            end = start + before[0].shape[1]
            for index, given in before.items():
                hidden[index + 1, start:end] = given[0].float().cpu()
            start = end
    return hidden.numpy()


def split_before_norm(encoder: Encoder, texts: Sequence[Text], *, seed: int = 0) -> Split:
    """Split the texts as ever, and keep states from before each layer's LayerNorm."""
    parts = split_sequences(len(texts), seed=seed)
    return Split(*(collect_before_norm(encoder, [texts[i] for i in part]) for part in parts))


def spread_of_norms(split: Split) -> pd.DataFrame:
    """Say how much norms vary between test tokens: layer, and the standard deviation over the mean."""
    norms = split.test.hidden.norm(dim=-1)
    return pd.DataFrame({"layer": split.layers, "spread": (norms.std(-1) / norms.mean(-1))[1:].tolist()})
