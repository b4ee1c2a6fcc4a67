"""What differs between families of encoders: where the parts sit inside a stock transformers model.

To support another family, add an entry to ``FAMILIES`` under the ``model_type`` of its configuration: the paths of
its parts, and where a part does not behave like BERT's, a small function (``_last_third`` is one). Then see in
``ident_utils/tiny.py`` that a tiny model of it can be made, and run ``ident models --write-readme``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ident_utils.errors import IdentError

ENCODER_DECODERS = {"bart", "mbart", "t5", "mt5", "umt5", "longt5", "pegasus", "marian", "led", "m2m_100"}


def _as_they_are(_layer: nn.Module, projected: Tensor, _heads: int) -> Tensor:
    return projected


def _last_third(_layer: nn.Module, projected: Tensor, _heads: int) -> Tensor:
    """Take V from a projection that makes Q, K and V side by side."""
    return projected.chunk(3, dim=-1)[2]


def _last_third_of_each_head(layer: nn.Module, projected: Tensor, heads: int) -> Tensor:
    """Take V from a projection that makes Q, K and V of one head after the other; its bias is added later."""
    values = projected.unflatten(-1, (heads, -1)).chunk(3, dim=-1)[2]
    return values.flatten(-2) + layer.get_submodule("attention.self").v_bias


def _listed(model: nn.Module, family: "Family") -> list[nn.Module]:
    return list(model.get_submodule(family.layers))


def _shared(model: nn.Module, family: "Family") -> list[nn.Module]:
    """List ALBERT's layers in the order of their calls: a group of one or more layers serves several times."""
    groups, times = model.get_submodule(family.layers), model.config.num_hidden_layers
    order = (groups[int(i / (times / len(groups)))] for i in range(times))
    return [layer for group in order for layer in group.albert_layers]


@dataclass(frozen=True)
class Family:
    """Name the modules of one family; the projections and the norm are paths inside a layer."""

    value_projection: str
    output_projection: str
    query_projection: str | None = "attention.self.query"  # None: made together with the values
    key_projection: str | None = "attention.self.key"
    layers: str = "encoder.layer"
    layer_norm: str | None = "output.LayerNorm"  # what a layer ends with; None: it ends with a sum
    embeddings: str = "embeddings"  # its output is x, the input tokens
    widening: str | None = None  # what brings narrow inputs to the width of hidden states, where a model has it
    final_norm: str | None = None  # what the last hidden state has been through besides the layers
    reserved_positions: int = 0  # rows of the position table that no token uses
    causal: bool = False  # a token sees only itself and those before it
    take_values: Callable[[nn.Module, Tensor, int], Tensor] = _as_they_are  # (layer, projected, H) -> [..., H * d_v]
    in_order: Callable[[nn.Module, "Family"], list[nn.Module]] = _listed  # the layers as they are called
    shares_layers: bool = False  # one layer's weights serve several calls
    words_meet_places: bool = False  # the logits hold products of words with relative places


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
    "electra": Family("attention.self.value", "attention.output.dense", widening="embeddings_project"),
    "albert": Family(
        "attention.value",
        "attention.dense",
        "attention.query",
        "attention.key",
        layers="encoder.albert_layer_groups",
        layer_norm="full_layer_layer_norm",
        widening="encoder.embedding_hidden_mapping_in",
        in_order=_shared,
        shares_layers=True,
    ),
    "deberta": Family(
        "attention.self.in_proj",
        "attention.output.dense",
        None,
        None,
        take_values=_last_third_of_each_head,
        words_meet_places=True,
    ),
    "deberta-v2": Family(
        "attention.self.value_proj",
        "attention.output.dense",
        "attention.self.query_proj",
        "attention.self.key_proj",
        words_meet_places=True,
    ),
    "modernbert": Family(
        "attn.Wqkv",
        "attn.Wo",
        None,
        None,
        layers="layers",
        layer_norm=None,
        final_norm="final_norm",
        take_values=_last_third,
    ),
    "gpt2": Family(
        "attn.c_attn",
        "attn.c_proj",
        None,
        None,
        layers="h",
        layer_norm=None,
        embeddings="drop",  # what the word's and the position's embedding pass through together
        final_norm="ln_f",
        causal=True,
        take_values=_last_third,
    ),
}


def family_of(config: object, name: str) -> Family:
    """Look up the family of a model's configuration; raise IdentError for one that is not known."""
    kind = getattr(config, "model_type", None)
    if getattr(config, "is_encoder_decoder", False) or kind in ENCODER_DECODERS:
        raise IdentError(
            f"{name} is an encoder with a decoder (family {kind!r}), whose tokens attend in three ways at once; "
            f"the suite asks about models of one stack, such as {', '.join(list(FAMILIES)[:3])}."
        )
    if kind not in FAMILIES:
        raise IdentError(
            f"{name} is of the family {kind!r}, which is not supported; known are {', '.join(FAMILIES)} "
            "(a new one is a line in ident_utils/families.py)."
        )
    return FAMILIES[kind]


def layers_of(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the encoder's layers in the order of their calls; a shared layer is listed once a call."""
    return family.in_order(model, family)


def _parts(model: nn.Module, family: Family, part: str) -> list[nn.Module]:
    path = getattr(family, part)
    if path is None:
        what = part.replace("_", " ")
        raise IdentError(f"{type(model).__name__} has no {what} of its own in a layer, which this measurement needs.")
    return [layer.get_submodule(path) for layer in layers_of(model, family)]


def layer_norms(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the LayerNorm that a layer ends with, for every layer; IdentError where layers end with a sum."""
    return _parts(model, family, "layer_norm")


def value_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes V = X W_V + b_V, alone or with Q and K, for every layer."""
    return _parts(model, family, "value_projection")


def output_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that applies W_O to the concatenated heads, for every layer."""
    return _parts(model, family, "output_projection")


def output_weights(model: nn.Module, family: Family) -> list[Tensor]:
    """Return W_O of every layer as [H * d_v, d], so that the heads times it are the output."""
    modules = output_projections(model, family)
    # A Linear holds the transpose; gpt2's Conv1D holds the matrix itself.
    return [module.weight.T if isinstance(module, nn.Linear) else module.weight for module in modules]


def query_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes the queries, for every layer; IdentError where one module makes Q, K and V."""
    return _parts(model, family, "query_projection")


def key_projections(model: nn.Module, family: Family) -> list[nn.Module]:
    """Return the module that makes the keys, for every layer; IdentError where one module makes Q, K and V."""
    return _parts(model, family, "key_projection")


def position_bias(model: nn.Module, n: int) -> Tensor | None:
    """Return what the architecture adds to the logits of every layer, [H, n, n], or None where it adds nothing.

    Of the known families only mpnet does: a learned bias for each relative position and head. (What deberta adds
    depends on the words too, and belongs to the logits.)
    """
    make = getattr(getattr(model, "encoder", None), "compute_position_bias", None)
    if make is None:
        return None
    with torch.no_grad():
        return make(torch.zeros(1, n, model.config.hidden_size, dtype=model.dtype, device=model.device))[0]
