"""One text of the user's, looked at: by piece and by word, with what identifiability says about it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch

from ident_utils.attention import effective_attention, nullity
from ident_utils.attribution import hidden_token_attribution
from ident_utils.models import Encoder, Text
from ident_utils.trace import Trace
from ident_utils.words import pool_words


@dataclass(frozen=True)
class Look:
    """Hold what was found for one text; the tables have one row a piece, and one a word."""

    facts: tuple[str, ...]
    pieces: pd.DataFrame
    words: pd.DataFrame


def look_at(
    encoder: Encoder, text: Text, *, truncate: bool = False, how: str = "sum", probes: int = 4, seed: int = 0
) -> Look:
    """Measure one text. Columns of both tables, for the first and the last layer:

    ``own``: the token's contribution to its own hidden state; ``main``: who contributes most to it; ``gives``: the
    mean of what it contributes to all hidden states. Over pieces ``gives`` sums to one; over words too with ``how``
    "sum", see :func:`ident_utils.words.pool_words`.

    Raises IdentError for a text that does not fit, unless ``truncate`` says to cut it.
    """
    limit = encoder.max_tokens if truncate else None
    cut = encoder.count_tokens(text) - encoder.max_tokens if truncate else 0
    encoding, trace = encoder.encode(text, truncate=limit), encoder.trace(text, truncate=limit)
    whole = hidden_token_attribution(encoder, text, probes=probes, seed=seed, truncate=limit)
    by_word = pool_words(whole, encoding.words, how)
    pieces = _table(whole, encoding.tokens).assign(word=[encoding.word_labels[w] for w in encoding.words])
    words = _table(by_word, encoding.word_labels)
    words.insert(1, "pieces", torch.bincount(torch.tensor(encoding.words)).tolist())
    return Look(tuple(_facts(encoder, trace, max(0, cut))), pieces, words)


def _table(contributions: torch.Tensor, labels: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, list] = {"token": list(labels)}
    for name, layer in (("layer 1", contributions[0]), (f"layer {len(contributions)}", contributions[-1])):
        columns[f"own, {name}"] = layer.diagonal().tolist()
        columns[f"main, {name}"] = [labels[i] for i in layer.argmax(-1).tolist()]
        columns[f"gives, {name}"] = layer.mean(0).tolist()
    return pd.DataFrame(columns)


def _facts(encoder: Encoder, trace: Trace, cut: int) -> Iterator[str]:
    n, bound = trace.n_tokens, encoder.head_dim + 1
    was_cut = f", the last {cut} cut off" if cut else ""
    yield f"n = {n} tokens, {int(trace.special.sum())} of them special; {encoder.max_tokens} at most{was_cut}"
    free = nullity(trace.values, rows_sum_to_one=True).nullity
    yield (
        f"heads whose attention could be other with the same output: {int((free > 0).sum())} of {free.numel()} "
        f"(n {'>' if n > bound else '≤'} d_v + 1 = {bound}), with up to {int(free.max())} free dimensions"
    )
    change = (effective_attention(trace.attention, trace.values).weights - trace.attention).abs().max()
    yield f"largest difference between a raw and an effective attention weight: {change:.2f}"
    yield from encoder.notes
