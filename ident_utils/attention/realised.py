"""Other attention realised by weights: new W_Q and W_K in a copy of the model, all else as it was."""

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ident_utils.errors import IdentError
from ident_utils.families import key_projections, query_projections, value_projections

if TYPE_CHECKING:
    from ident_utils.models import Encoder


def takes_attention(encoder: "Encoder") -> bool:
    """Say whether :func:`write_attention` can do its work in models of this family."""
    family = encoder.family
    unlike = family.shares_layers or family.words_meet_places or family.query_projection is None or encoder.causal
    return not unlike


def write_attention(encoder: "Encoder", hidden: Tensor, slopes: Tensor) -> "Encoder":
    """Return a copy of ``encoder`` whose heads attend by softmax(bias + V s) on one text.

    ``hidden`` [L + 1, n, d] are the text's hidden states and ``slopes`` [L, H, n, d_v] those of
    :func:`alternative_attention`, found with the model's own position bias. Keys become the values (W_K' = W_V),
    and W_Q' is the smallest matrix with X W_Q' = sqrt(d_k) s, by least squares: exact while the n <= d input states
    are linearly independent. On another text the new queries mean nothing.

    Raises ValueError when the shapes do not fit the model, or when keys and values differ in width; IdentError for a
    family whose weights cannot do it.
    """
    expected = (encoder.n_layers, encoder.n_heads, hidden.shape[1], encoder.head_dim)
    if tuple(slopes.shape) != expected or len(hidden) != encoder.n_layers + 1:
        raise ValueError(
            f"slopes {tuple(slopes.shape)} and hidden {tuple(hidden.shape)} do not fit {encoder.name}, which needs "
            f"slopes {expected} and hidden states of {encoder.n_layers} layers and the embeddings."
        )
    if not takes_attention(encoder):
        raise IdentError(
            f"Other attention cannot be written into the weights of {encoder.name}: that needs layers of their own, "
            "logits that are queries times keys, and attention to all tokens."
        )
    made_anew = {
        id(parameter)
        for part in (query_projections, key_projections)
        for module in part(encoder.model, encoder.family)
        for parameter in module.parameters()
    }
    shared = {id(each): each for each in encoder.model.parameters() if id(each) not in made_anew}
    model = deepcopy(encoder.model, shared)  # all other weights are the encoder's own, not copies
    parts = (part(model, encoder.family) for part in (query_projections, key_projections, value_projections))
    for layer, (query, key, value) in enumerate(zip(*parts, strict=True)):
        if key.weight.shape != value.weight.shape:
            raise ValueError(
                f"keys {tuple(key.weight.shape)} and values {tuple(value.weight.shape)} differ in width."
            )
        wanted = slopes[layer].transpose(0, 1).flatten(1).double() * encoder.head_dim**0.5  # [n, H * d_v]
        # An orthogonal decomposition that cuts dependent states, and works when n < d.
        solution = torch.linalg.lstsq(hidden[layer].double().cpu(), wanted.cpu(), driver="gelsd").solution
        with torch.no_grad():
            key.weight.copy_(value.weight)
            key.bias.copy_(value.bias)
            query.weight.copy_(solution.T)
            query.bias.zero_()
    name = f"{encoder.name} with other attention"
    return replace(encoder, name=name, model=model, provenance=encoder.provenance | {"name": name}, recipe=())
