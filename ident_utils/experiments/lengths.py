"""Texts cut to lengths that are round numbers of head dimensions."""

from collections.abc import Iterator, Sequence

import torch

from ident_utils.errors import IdentError
from ident_utils.models import Encoder, Text
from ident_utils.progress import track
from ident_utils.settings import Settings
from ident_utils.trace import Trace


def lengths_for(encoder: Encoder, settings: Settings) -> list[int]:
    """Return the lengths looked at, in tokens: the profile's ratios times d_v, and the three around the bound."""
    d_v = encoder.head_dim
    lengths = {round(ratio * d_v) for ratio in settings.length_ratios} | {d_v + 1, d_v + 2}
    return sorted(n for n in lengths if 4 <= n <= encoder.max_tokens)


def traces_by_length(encoder: Encoder, texts: Sequence[Text], lengths: Sequence[int]) -> Iterator[tuple[int, Trace]]:
    """Yield (number of the text, trace) for every text cut to every length.

    Raises IdentError when a text is shorter than the longest length asked for.
    """
    for number, text in enumerate(track(texts, "texts")):
        for n in lengths:
            trace = encoder.trace(text, truncate=n)
            if trace.n_tokens < n:
                raise IdentError(
                    f"Text {number} has only {trace.n_tokens} tokens, not {n}; choose a corpus of longer texts."
                )
            yield number, trace


def mean_over_heads(per_head: torch.Tensor) -> list[float]:
    """Average [L, H] over heads, one number a layer."""
    return per_head.double().mean(1).tolist()
