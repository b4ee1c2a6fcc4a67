"""Notebook 07: contributions where something is missing: word order, variety, what was learned, training at all."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch

from ident_utils.attribution import own_contribution
from ident_utils.cluster import for_each
from ident_utils.experiments.definitions import contributions
from ident_utils.models import Encoder, permuted, untrained

REPEATED = "again"  # the word of the text that says one thing only


def control_conditions(encoder: Encoder, seed: int) -> dict[str, tuple[Encoder, Callable[[str], str]]]:
    """Return the model and the change of the text for every control."""
    generator = np.random.default_rng(seed)

    def shuffled(text: str) -> str:
        return " ".join(generator.permutation(text.split()))

    def repeated(text: str) -> str:
        return " ".join([REPEATED] * len(text.split()))

    def same(text: str) -> str:
        return text

    return {
        "trained model": (encoder, same),
        "words shuffled": (encoder, shuffled),
        "one word repeated": (encoder, repeated),
        "weights permuted": (permuted(encoder, seed), same),
        "untrained": (untrained(encoder, seed), same),
    }


def measure_controls(encoder: Encoder, texts: Sequence[str], probes: int, seed: int = 0) -> pd.DataFrame:
    """Return the own contribution under every control: condition, layer, value (median over texts' tokens), n."""
    rows = []
    for name, (model, change) in control_conditions(encoder, seed).items():
        items = [{"text": change(text), "probes": probes, "seed": seed + i} for i, text in enumerate(texts)]
        own = [own_contribution(found) for found in for_each(contributions, model, items, name)]
        tokens = int(np.mean([one.shape[1] for one in own]))
        values = torch.cat(own, dim=1).median(-1).values.tolist()
        rows += [
            {"condition": name, "layer": layer, "value": value, "tokens": tokens}
            for layer, value in enumerate(values, start=1)
        ]
    return pd.DataFrame(rows)
