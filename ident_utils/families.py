"""What differs between families of encoders: where the parts sit inside a stock transformers model.

To support another family, add one line to ``FAMILIES`` under the ``model_type`` of its configuration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ident_utils.errors import IdentError


@dataclass(frozen=True)
class Family:
    """Name the modules of one family; the projections are paths inside a layer."""

    value_projection: str
    output_projection: str
    query_projection: str = "attention.self.query"
    key_projection: str = "attention.self.key"
    layers: str = "encoder.layer"
    layer_norm: str = "output.LayerNorm"  # what a layer ends with
    embeddings: str = "embeddings"
    reserved_positions: int = 0  # rows of the position table that no token uses


_BERT_LIKE = Family("attention.self.value", "attention.output.dense")
_ROBERTA_LIKE = Family("attention.self.value", "attention.output.dense", reserved_positions=2)

FAMILIES = {
    "bert": _BERT_LIKE,
    "roberta": _ROBERTA_LIKE,
    "xlm-roberta": _ROBERTA_LIKE,
    "camembert": _ROBERTA_LIKE,
    "mpnet": Family(
        "attention.attn.v", "attention.attn.o", "attention.attn.q", "attention.attn.k", reserved_positions=2
    ),
    "distilbert": Family(
        "attention.v_lin",
        "attention.out_lin",
        "attention.q_lin",
        "attention.k_lin",
        layers="transformer.layer",
        layer_norm="output_layer_norm",
    ),
}


def family_of(config: object, name: str) -> Family:
    """Look up the family of a model's configuration; raise IdentError for one that is not known."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise IdentError(
            f"{name} is of the family {kind!r}, which is not supported; known are {', '.join(FAMILIES)} "
            "(a new one is a line in ident_utils/families.py)."
        )
    return FAMILIES[kind]


def layers_of(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the encoder's layers, first to last."""
    return list(model.get_submodule(family.layers))


def layer_norms(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the LayerNorm that a layer ends with, for every layer."""
    return [layer.get_submodule(family.layer_norm) for layer in layers_of(model, family)]


def value_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes V = X W_V + b_V, for every layer."""
    return [layer.get_submodule(family.value_projection) for layer in layers_of(model, family)]


def output_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that applies W_O to the concatenated heads, for every layer."""
    return [layer.get_submodule(family.output_projection) for layer in layers_of(model, family)]


def query_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes the queries, for every layer."""
    return [layer.get_submodule(family.query_projection) for layer in layers_of(model, family)]


def key_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes the keys, for every layer."""
    return [layer.get_submodule(family.key_projection) for layer in layers_of(model, family)]


def position_bias(model: nn.Module, n: int) -> Tensor | None:
    """Return what the architecture adds to the logits of every layer, [H, n, n], or None where it adds nothing.

    Of the known families only mpnet does: a learned bias for each relative position and head.
    """
    make = getattr(getattr(model, "encoder", None), "compute_position_bias", None)
    if make is None:
        return None
    with torch.no_grad():
        return make(torch.zeros(1, n, model.config.hidden_size, dtype=model.dtype, device=model.device))[0]
