"""Small random encoders of every family, with a vocabulary of our own: made in milliseconds, no file needed.

They show that a family is read rightly (``ident models``) and serve the tests; what they compute means nothing.
"""

from copy import deepcopy
from functools import cache

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedTokenizerFast

from ident_utils.models import Encoder

_TEXT = """
the a an river boat lamp stone cloud garden letter window old young green quick sleeps carries finds under over
near two three birds winter road sings opens slowly again and or not with from every child horse market bell
ring ##s ##ed ##ing ##ly ##er . , ! ?
"""
WORDS = _TEXT.split()
WIDEST = 40  # max_position_embeddings of every tiny model
_ROBERTA_LIKE = ("mpnet", "roberta", "xlm-roberta", "camembert")
_NO_POSITIONS = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
# What a configuration holds besides the sizes; the values of a family's published models where they matter.
_FURTHER = {
    "electra": {"embedding_size": 8},
    "albert": {"embedding_size": 8, "num_hidden_groups": 1, "inner_group_num": 1},
    "deberta": _NO_POSITIONS | {"type_vocab_size": 0},
    "deberta-v2": _NO_POSITIONS
    | {"type_vocab_size": 0, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
    | {"share_att_key": True, "conv_kernel_size": 3, "conv_act": "gelu"},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
}


def special_tokens(family: str) -> dict[str, str]:
    """Return the special tokens of a family, in the order of their ids."""
    if family in _ROBERTA_LIKE:
        tokens = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>"}
    else:
        tokens = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return tokens | {"unk_token": "[UNK]", "mask_token": "[MASK]"}


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Make a WordPiece tokenizer over WORDS that frames texts as the family does (gpt2: not at all)."""
    special = special_tokens(family)
    vocabulary = {token: i for i, token in enumerate([*special.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = special["cls_token"], special["sep_token"]
    between = [last, last] if family in _ROBERTA_LIKE else [last]
    if family != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=[first, "$A", *between, "$B:1", f"{last}:1"],
            special_tokens=[(t, vocabulary[t]) for t in (first, last)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **special,
    )


def tiny_config(family: str, *, layers: int = 2, heads: int = 2, width: int = 16) -> PreTrainedConfig:
    """Make a configuration whose random weights are large enough for attention that is far from uniform."""
    sizes = {
        "vocab_size": len(special_tokens(family)) + len(WORDS),
        "max_position_embeddings": WIDEST,
        "pad_token_id": 1 if family in _ROBERTA_LIKE else 0,
        "initializer_range": 0.4,
    }
    if family == "distilbert":
        sizes |= {"n_layers": layers, "n_heads": heads, "dim": width, "hidden_dim": 2 * width}
    elif family == "gpt2":
        sizes |= {"n_layer": layers, "n_head": heads, "n_embd": width, "bos_token_id": 1, "eos_token_id": 2}
    else:
        sizes |= {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
        sizes |= {"intermediate_size": 2 * width}
    if family in (*_ROBERTA_LIKE, "albert", "modernbert"):
        sizes |= {"bos_token_id": 0, "eos_token_id": 2}
    return AutoConfig.for_model(family, **sizes | _FURTHER.get(family, {}))


def tiny_encoder(
    family: str,
    seed: int = 0,
    *,
    layers: int = 2,
    heads: int = 2,
    width: int = 16,
    dtype: torch.dtype = torch.float64,
    **further: object,
) -> Encoder:
    """Make a random encoder; the same arguments give the same weights, biases and gains included.

    ``further`` are fields of the family's configuration, such as ``num_hidden_groups`` of albert.
    """
    model, tokenizer = deepcopy(_parts(family, seed, layers, heads, width, tuple(sorted(further.items()))))
    return Encoder(f"tiny {family}", model.to(dtype), tokenizer, {"name": f"tiny {family}"})


@cache
def _parts(family: str, seed: int, layers: int, heads: int, width: int, further: tuple) -> tuple:
    config = tiny_config(family, layers=layers, heads=heads, width=width)
    config.update(dict(further))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 1:  # a fresh model has biases of zero and gains of one, which hides mistakes
                    gain = name.endswith("weight")  # the only vectors called so are gains of norms
                    weight.copy_(0.2 * torch.randn_like(weight) + gain)
    return model.eval().requires_grad_(False), tiny_tokenizer(family)
