"""One forward pass with everything kept: attention weights, values and hidden states of one text."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ident_utils.checks import check_finite
from ident_utils.errors import IdentError
from ident_utils.families import output_projections, value_projections
from ident_utils.hooks import rewrite_input, watch

if TYPE_CHECKING:
    from ident_utils.models import Encoder, Encoding, Text


@dataclass(frozen=True)
class Trace:
    """Hold one text's way through an encoder (L layers, H heads, n tokens, d width, d_v head width)."""

    tokens: tuple[str, ...]  # n readable word pieces
    input_ids: Tensor  # [n]
    special: Tensor  # [n], True for tokens the tokenizer added
    attention: Tensor  # [L, H, n, n], rows sum to one
    values: Tensor  # [L, H, n, d_v], V = X W_V + b_V
    context: Tensor  # [L, H, n, d_v], the model's own A V
    hidden: Tensor  # [L + 1, n, d], hidden[0] is the embedding block's output, widened where that is narrower

    @property
    def n_tokens(self) -> int:
        """Count the word pieces, special tokens included."""
        return len(self.tokens)


def trace(encoder: "Encoder", text: "Text", *, truncate: int | None = None) -> Trace:
    """Run ``text`` alone, unpadded, through the stock model and keep all of it.

    ``truncate`` cuts the text to that many tokens; without it a text over the model's limit is refused.
    Raises IdentError for an empty or too long text, and when the model does not give one attention matrix
    per layer whose rows sum to one; ValueError when a weight or state is not finite.
    """
    return trace_encoding(encoder, encoder.encode(text, truncate=truncate))


@torch.inference_mode()
def trace_encoding(encoder: "Encoder", encoding: "Encoding") -> Trace:
    """Do what :func:`trace` does with a text that is tokenised already."""
    values: dict[int, Tensor] = {}
    context: dict[int, Tensor] = {}

    def keep_context(layer: int, given: Tensor) -> Tensor:
        context[layer] = given
        return given

    with ExitStack() as stack:
        stack.enter_context(watch(value_projections(encoder.model, encoder.family), values.__setitem__))
        projections = output_projections(encoder.model, encoder.family)
        stack.enter_context(rewrite_input(projections, keep_context))
        output = encoder.run(encoding, output_attentions=True)

    attention = _checked_attention(encoder, output.attentions)
    hidden = torch.stack([h[0] for h in output.hidden_states])
    per_head = torch.stack([encoder.values_of_heads(i, values[i]) for i in range(encoder.n_layers)])
    _check_finite_in_order(attention, per_head, hidden)
    return Trace(
        tokens=encoding.tokens,
        input_ids=encoding.input_ids[0],
        special=encoding.special,
        attention=attention,
        values=per_head,
        context=torch.stack([encoder.split_heads(context[i][0]) for i in range(encoder.n_layers)]),
        hidden=hidden,
    )


def _checked_attention(encoder: "Encoder", attentions: tuple[Tensor, ...] | None) -> Tensor:
    if not attentions or len(attentions) != encoder.n_layers:
        raise IdentError(
            f"{encoder.name} gave {len(attentions or ())} attention matrices for {encoder.n_layers} layers; "
            "load it with load_encoder, which asks for eager attention."
        )
    attention = torch.cat(list(attentions))
    worst = (attention.sum(-1) - 1).abs().max().item()
    if worst > 1e-4:
        raise IdentError(
            f"Attention rows of {encoder.name} miss a sum of one by {worst:.1e}; is the model in train mode?"
        )
    return attention


def _check_finite_in_order(attention: Tensor, values: Tensor, hidden: Tensor) -> None:
    """Raise ValueError for the first number that is not finite, in the order of computing."""
    check_finite(hidden[0], "the embedding block's output")
    for layer in range(1, len(hidden)):
        check_finite(values[layer - 1], f"values of layer {layer}", ("head",))
        check_finite(attention[layer - 1], f"attention of layer {layer}", ("head",))
        check_finite(hidden[layer], f"hidden state after layer {layer}")


@torch.inference_mode()
def hidden_states(encoder: "Encoder", text: "Text", *, truncate: int | None = None) -> Tensor:
    """Return only the hidden states, [L + 1, n, d]; ``[0]`` is the embedding block's output."""
    output = encoder.run(encoder.encode(text, truncate=truncate))
    hidden = torch.stack([h[0] for h in output.hidden_states])
    check_finite(hidden[0], "the embedding block's output")
    check_finite(hidden[1:], "hidden state", ("layer",))
    return hidden


@torch.inference_mode()
def hidden_with_attention(
    encoder: "Encoder", text: "Text", attention: dict[int, Tensor], *, truncate: int | None = None
) -> Tensor:
    """Return the hidden states [L + 1, n, d] when the heads of some layers attend as told.

    ``attention`` maps a layer (counted from 1) to weights [H, n, n]; they take the place of the model's own,
    applied to the values of the running forward pass, so that a change in one layer is felt in the next.
    """
    encoding = encoder.encode(text, truncate=truncate)
    n = encoding.input_ids.shape[1]
    expected = (encoder.n_heads, n, n)
    for layer, weights in attention.items():
        if not 1 <= layer <= encoder.n_layers or tuple(weights.shape) != expected:
            raise ValueError(
                f"attention for layer {layer} has shape {tuple(weights.shape)}; "
                f"{encoder.name} needs {expected} for layers 1 to {encoder.n_layers}."
            )
        check_finite(weights, f"attention for layer {layer}", ("head",))
    values: dict[int, Tensor] = {}

    def attend_as_told(index: int, given: Tensor) -> Tensor:
        weights = attention.get(index + 1)
        if weights is None:
            return given
        heads = weights.to(given.dtype) @ encoder.values_of_heads(index, values[index])
        return heads.transpose(0, 1).reshape(given.shape)

    projections = output_projections(encoder.model, encoder.family)
    with (
        watch(value_projections(encoder.model, encoder.family), values.__setitem__),
        rewrite_input(projections, attend_as_told),
    ):
        output = encoder.run(encoding)
    return torch.stack([h[0] for h in output.hidden_states])
