"""Small random encoders for the tests; see ``ident_utils.tiny``."""

import torch

from ident_utils.families import FAMILIES as ALL_FAMILIES
from ident_utils.tiny import WIDEST, WORDS, special_tokens, tiny_config, tiny_encoder, tiny_tokenizer

torch.set_num_threads(1)  # more than one only get in each other's way on matrices this small

FAMILIES = ("bert", "mpnet", "distilbert", "roberta")  # BERT-like enough for every measurement
EVERY_FAMILY = tuple(ALL_FAMILIES)

__all__ = [
    "EVERY_FAMILY",
    "FAMILIES",
    "WIDEST",
    "WORDS",
    "special_tokens",
    "tiny_config",
    "tiny_encoder",
    "tiny_tokenizer",
]
