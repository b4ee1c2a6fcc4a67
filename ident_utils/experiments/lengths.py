"""What notebooks 01, 02 and 08 measure on: models in turn, and texts cut to round numbers of head dimensions."""

from collections.abc import Iterator, Sequence

from ident_utils.errors import IdentError
from ident_utils.models import Encoder, Text, load_encoder
from ident_utils.progress import track
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
