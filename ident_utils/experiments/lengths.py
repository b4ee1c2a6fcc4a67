"""What notebooks 01, 02 and 08 measure on: models in turn, and texts cut to round numbers of head dimensions."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from ident_utils.cluster import for_each
from ident_utils.errors import IdentError
from ident_utils.models import Encoder, Text, load_encoder
from ident_utils.remembering import Remembered
from ident_utils.settings import Settings
from ident_utils.trace import Trace


def with_further_models(encoder: Encoder, settings: Settings) -> Iterator[Encoder]:
    """Yield the encoder at hand, then the profile's further models in its precision, one at a time."""
    yield encoder
    for name in settings.compare_models:
        yield load_encoder(name, dtype=encoder.dtype)


def lengths_for(encoder: Encoder, settings: Settings) -> list[int]:
    """Return the lengths looked at, in tokens: the profile's ratios times d_v, and the three around the bound."""
    return lengths_at(encoder, settings.length_ratios, (encoder.head_dim + 1, encoder.head_dim + 2))


def lengths_at(encoder: Encoder, ratios: Sequence[float], further: Sequence[int] = ()) -> list[int]:
    """Return ``ratios`` times d_v and ``further`` lengths in tokens, as far as the encoder takes them."""
    lengths = {round(ratio * encoder.head_dim) for ratio in ratios} | set(further)
    return sorted(n for n in lengths if 4 <= n <= encoder.max_tokens)


def measure_by_length(
    measure: Remembered, encoder: Encoder, texts: Sequence[Text], lengths: Sequence[int], **options: object
) -> pd.DataFrame:
    """Call ``measure(encoder, text=, n=, number=, ...)`` for every text cut to every length.

    Puts its tables under each other, with the number of the text as ``sequence`` and its length ``n``.
    """
    pairs = [(number, n) for number in range(len(texts)) for n in lengths]
    items = [{"text": texts[number], "n": n, "number": number} | options for number, n in pairs]
    tables = for_each(measure, encoder, items, "texts")
    where = zip(pairs, tables, strict=True)
    return pd.concat([table.assign(sequence=number, n=n) for (number, n), table in where], ignore_index=True)


def trace_cut(encoder: Encoder, text: Text, n: int, number: int) -> Trace:
    """Trace a text cut to n tokens; IdentError, naming it by its number, where it has fewer."""
    trace = encoder.trace(text, truncate=n)
    if trace.n_tokens < n:
        raise IdentError(f"Text {number} has only {trace.n_tokens} tokens, not {n}; choose a corpus of longer texts.")
    return trace


def by_layer_and_head(columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """Make a table of numbers [L, H] each: layer and head (from 1), and a column for every name."""
    layer, head = np.indices(next(iter(columns.values())).shape)
    where = {"layer": layer.ravel() + 1, "head": head.ravel() + 1}
    return pd.DataFrame(where | {name: part.flatten().numpy() for name, part in columns.items()})
