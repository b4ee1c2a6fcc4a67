"""From word pieces to words: labels that can be read, and results by word that keep their totals."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase

SPACE = "␣"  # stands for a piece that is nothing but white space
HOW = ("sum", "mean")


def readable_pieces(
    tokenizer: PreTrainedTokenizerBase, batch: BatchEncoding, parts: Sequence[str]
) -> tuple[str, ...]:
    """Return a label for each of the n pieces of a text, in the order of the text (for right-to-left text too).

    WordPiece tokens are readable as they are. A vocabulary of bytes or with marks for spaces is not: there a label is
    the piece of the text itself, with ``##`` before pieces that go on with a word, and a count where a character
    takes several pieces (``é[1/2]``).
    """
    tokens = tuple(tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist()))
    if not batch.is_fast or type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece":
        return tokens
    encoding = batch.encodings[0]
    places = list(zip(encoding.sequence_ids, encoding.offsets, strict=True))
    labels, words, times, seen = [], piece_words(batch), Counter(places), Counter()
    for i, (token, (part, (start, end))) in enumerate(zip(tokens, places, strict=True)):
        if part is None:
            labels.append(token)
            continue
        piece = parts[part][start:end].strip() or SPACE
        seen[places[i]] += 1
        count = f"[{seen[places[i]]}/{times[places[i]]}]" if times[places[i]] > 1 else ""
        goes_on = i > 0 and words[i] == words[i - 1] and seen[places[i]] == 1
        labels.append(f"{'##' if goes_on else ''}{piece}{count}")
    return tuple(labels)


def piece_words(batch: BatchEncoding) -> tuple[int, ...]:
    """Return for each piece the number of its word, counted through the text; a special token is a word of its own.

    Words are what the tokenizer splits a text into before it looks for pieces. Without that knowledge every piece is
    a word.
    """
    if not batch.is_fast:
        return tuple(range(batch["input_ids"].shape[1]))
    encoding = batch.encodings[0]
    words, last = [], object()
    for i, (part, word) in enumerate(zip(encoding.sequence_ids, encoding.word_ids, strict=True)):
        this = (part, word) if part is not None and word is not None else i
        words.append((words[-1] if words else -1) + (this != last))
        last = this
    return tuple(words)


def word_labels(batch: BatchEncoding, parts: Sequence[str], pieces: Sequence[str]) -> tuple[str, ...]:
    """Return each word as it stands in the text; a special token by its own label."""
    words = piece_words(batch)
    if not batch.is_fast:
        return tuple(pieces)
    encoding, labels = batch.encodings[0], []
    for word in range(max(words) + 1):
        own = [i for i, number in enumerate(words) if number == word]
        part = encoding.sequence_ids[own[0]]
        start, end = encoding.offsets[own[0]][0], encoding.offsets[own[-1]][1]
        labels.append(pieces[own[0]] if part is None else parts[part][start:end].strip() or SPACE)
    return tuple(labels)


def pool_words(contributions: Tensor, words: Sequence[int], how: str = "sum") -> Tensor:
    """Return contributions by word, [..., w, w] from contributions by piece, [..., n_out, n_in].

    Over the pieces of an output word the mean is taken. Over the pieces of an input word ``sum`` (the default) takes
    all that the word gives, so that rows that sum to one still do; ``mean`` takes what one of its pieces gives, so
    that words of many pieces do not win by their number, and rows no longer sum to one.

    Raises ValueError for another ``how``, or when the number of pieces differs.

    >>> pool_words(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.0, 0.1, 0.9]]), [0, 1, 1])
    tensor([[0.5000, 0.5000],
            [0.0500, 0.9500]])
    """
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(HOW)}, not {how!r}.")
    if contributions.shape[-1] != len(words) or contributions.shape[-2] != len(words):
        raise ValueError(f"contributions {tuple(contributions.shape)} do not fit {len(words)} pieces.")
    member = torch.nn.functional.one_hot(torch.as_tensor(words)).to(contributions)  # [n, w]
    share = member / member.sum(0)
    return share.T @ contributions @ (member if how == "sum" else share)
