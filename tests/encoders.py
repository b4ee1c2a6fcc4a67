"""Small random encoders of every family, with a vocabulary of our own: made in milliseconds, no file needed."""

from copy import deepcopy
from functools import cache

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from ident_utils.models import Encoder

torch.set_num_threads(1)  # more than one only get in each other's way on matrices this small

FAMILIES = ("bert", "mpnet", "distilbert", "roberta")
_TEXT = """
the a an river boat lamp stone cloud garden letter window old young green quick sleeps carries finds under over
near two three birds winter road sings opens slowly again and or not with from every child horse market bell
ring ##s ##ed ##ing ##ly ##er . , ! ?
"""
WORDS = _TEXT.split()
WIDEST = 40  # max_position_embeddings of every tiny model


def special_tokens(family: str) -> dict[str, str]:
    """Return the special tokens of a family, in the order of their ids."""
    if family in ("mpnet", "roberta"):
        tokens = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>"}
    else:
        tokens = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return tokens | {"unk_token": "[UNK]", "mask_token": "[MASK]"}


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Make a WordPiece tokenizer over WORDS that frames texts as the family does."""
    special = special_tokens(family)
    vocabulary = {token: i for i, token in enumerate([*special.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = special["cls_token"], special["sep_token"]
    between = [last, last] if family in ("mpnet", "roberta") else [last]
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
    pad = 1 if family in ("mpnet", "roberta") else 0
    common = {
        "vocab_size": len(special_tokens(family)) + len(WORDS),
        "max_position_embeddings": WIDEST,
        "pad_token_id": pad,
        "initializer_range": 0.4,
    }
    if family == "distilbert":
        return DistilBertConfig(n_layers=layers, n_heads=heads, dim=width, hidden_dim=2 * width, **common)
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": 2 * width,
    }
    kind = {"bert": BertConfig, "mpnet": MPNetConfig, "roberta": RobertaConfig}[family]
    return kind(**sizes, **common, **({} if family == "bert" else {"bos_token_id": 0, "eos_token_id": 2}))


def tiny_encoder(
    family: str,
    seed: int = 0,
    *,
    layers: int = 2,
    heads: int = 2,
    width: int = 16,
    dtype: torch.dtype = torch.float64,
) -> Encoder:
    """Make a random encoder; the same arguments give the same weights, biases and gains included."""
    model, tokenizer = deepcopy(_parts(family, seed, layers, heads, width))
    return Encoder(f"tiny {family}", model.to(dtype), tokenizer, {"name": f"tiny {family}"})


@cache
def _parts(family: str, seed: int, layers: int, heads: int, width: int) -> tuple:
    config = tiny_config(family, layers=layers, heads=heads, width=width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 1:  # a fresh model has biases of zero and gains of one, which hides mistakes
                    weight.copy_(
                        0.2 * torch.randn_like(weight) + ("LayerNorm.weight" in name or "norm.weight" in name)
                    )
    return model.eval().requires_grad_(False), tiny_tokenizer(family)
