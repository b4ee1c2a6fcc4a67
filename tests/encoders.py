"""Small random encoders for the tests; see ``ident_utils.tiny``."""

import random
from pathlib import Path

import torch

from ident_utils.families import FAMILIES as ALL_FAMILIES
from ident_utils.models import Encoder, load_encoder
from ident_utils.tiny import WIDEST, WORDS, special_tokens, tiny_config, tiny_encoder, tiny_tokenizer

torch.set_num_threads(1)  # more than one only get in each other's way on matrices this small

FAMILIES = ("bert", "mpnet", "distilbert", "roberta")  # BERT-like enough for every measurement
EVERY_FAMILY = tuple(ALL_FAMILIES)

__all__ = [
    "EVERY_FAMILY",
    "FAMILIES",
    "WIDEST",
    "WORDS",
    "make_texts",
    "saved_encoder",
    "special_tokens",
    "tiny_config",
    "tiny_encoder",
    "tiny_tokenizer",
]


def make_texts(count: int, words: int) -> list[str]:
    """Return random texts of so many words, the same every time."""
    draw = random.Random(0)
    plain = [w for w in WORDS if not w.startswith("##")]
    return [" ".join(draw.choices(plain, k=words)) for _ in range(count)]


def saved_encoder(folder: Path, dtype: torch.dtype = torch.float32) -> Encoder:
    """Save a tiny BERT to a folder and load it from there, as another process could."""
    encoder = tiny_encoder("bert", dtype=torch.float32)
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return load_encoder(str(folder), dtype=dtype)
