"""Hidden states of many texts, split by text: what mappings are fitted and tested on."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ident_utils.checks import check_finite
from ident_utils.errors import IdentError
from ident_utils.models import Encoder, Encoding, Text
from ident_utils.paths import cache_root
from ident_utils.progress import track
from ident_utils.remembering import remembered
from ident_utils.whitening import Spectrum, spectrum

IN_MEMORY = 2**30  # bytes of hidden states; more than that lie in a file that the system pages in and out
TOGETHER = 2**10  # tokens in one forward pass, beyond which a larger batch gains nothing


@dataclass(frozen=True)
class TokenStates:
    """Hold the hidden states of all tokens of many sequences, one after the other (N tokens in all)."""

    hidden: Tensor  # [L + 1, N, d]; hidden[0] are the inputs x
    sequence: Tensor  # [N], which sequence a token belongs to
    word: Tensor  # [N], vocabulary index of the word piece
    position: Tensor  # [N], place in the sequence
    special: Tensor  # [N], True for tokens the tokenizer added

    @property
    def inputs(self) -> Tensor:
        """Return x, the embedding block's output: [N, d]."""
        return self.hidden[0]

    @property
    def n_layers(self) -> int:
        """Return L."""
        return len(self.hidden) - 1

    @property
    def n_sequences(self) -> int:
        """Count the sequences."""
        return len(torch.unique(self.sequence))

    def first(self, sequences: int) -> "TokenStates":
        """Return only the first sequences held; nothing is copied.

        Raises ValueError when fewer are held.
        """
        known = torch.unique_consecutive(self.sequence)
        if not 1 <= sequences <= len(known):
            raise ValueError(f"{sequences} sequences were asked for, and 1 to {len(known)} can be given.")
        end = int((self.sequence == known[sequences - 1]).nonzero().max()) + 1
        return TokenStates(
            self.hidden[:, :end], self.sequence[:end], self.word[:end], self.position[:end], self.special[:end]
        )


def collect_states(encoder: Encoder, texts: Sequence[Text]) -> TokenStates:
    """Keep the hidden states of every text in float32, in the order of the texts.

    Texts of the same length run together, so that nothing is ever padded. What exceeds a gigabyte is not kept for
    another run, and lies in an unnamed file in the cache folder. Raises IdentError without a text.
    """
    if not len(texts):
        raise IdentError("There is no text to collect hidden states of; pass at least one.")
    encodings = [encoder.encode(text) for text in texts]
    lengths = [encoding.input_ids.shape[1] for encoding in encodings]
    shape = encoder.n_layers + 1, sum(lengths), encoder.width
    if 4 * np.prod(shape) <= IN_MEMORY:
        hidden = torch.from_numpy(hidden_states(encoder, texts))
    else:
        hidden = _run_all(encoder, encodings, lengths, _file_for(shape))
    return TokenStates(
        hidden,
        torch.repeat_interleave(torch.arange(len(texts)), torch.tensor(lengths)),
        torch.cat([encoding.input_ids[0].cpu() for encoding in encodings]),
        torch.cat([torch.arange(n) for n in lengths]),
        torch.cat([encoding.special for encoding in encodings]),
    )


@remembered
def hidden_states(encoder: Encoder, texts: Sequence[Text]) -> np.ndarray:
    """Return the hidden states [L + 1, N, d] of all tokens of many texts, one after the other, in float32."""
    encodings = [encoder.encode(text) for text in texts]
    lengths = [encoding.input_ids.shape[1] for encoding in encodings]
    return _run_all(
        encoder, encodings, lengths, torch.empty(encoder.n_layers + 1, sum(lengths), encoder.width)
    ).numpy()


def _run_all(encoder: Encoder, encodings: Sequence[Encoding], lengths: Sequence[int], hidden: Tensor) -> Tensor:
    """Fill ``hidden`` [L + 1, N, d] with the states of all texts."""
    ends = np.cumsum(lengths)
    for batch in track(list(_batches(lengths)), "batches of texts"):
        states = _run_together(encoder, [encodings[i] for i in batch])
        for number, i in enumerate(batch):
            hidden[:, ends[i] - lengths[i] : ends[i]] = states[:, number]
    return hidden


def _file_for(shape: tuple[int, ...]) -> Tensor:
    """Return an empty tensor in a file that vanishes with it."""
    cache_root().mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=cache_root()) as file:
            os.posix_fallocate(file.fileno(), 0, 4 * int(np.prod(shape)))  # a full disk is noticed here, not later
            return torch.from_numpy(np.memmap(file, dtype=np.float32, mode="r+", shape=shape))
    except OSError as error:
        raise IdentError(
            f"Hidden states of {4 * np.prod(shape) / 2**30:.1f} GB do not fit into {cache_root()}: {error.strerror}; "
            "free space, or take fewer texts."
        ) from error


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group the indices of texts of equal length, up to TOGETHER tokens in a group."""
    for length in sorted(set(lengths)):
        same = [i for i, n in enumerate(lengths) if n == length]
        size = max(1, TOGETHER // length)
        yield from (same[start : start + size] for start in range(0, len(same), size))


@torch.inference_mode()
def _run_together(encoder: Encoder, encodings: Sequence[Encoding]) -> Tensor:
    """Return the hidden states [L + 1, B, n, d] of B texts of one length."""
    types = [encoding.token_type_ids for encoding in encodings]
    together = replace(
        encodings[0],
        input_ids=torch.cat([encoding.input_ids for encoding in encodings]),
        token_type_ids=None if types[0] is None else torch.cat(types),
    )
    hidden = torch.stack(encoder.run(together).hidden_states)
    check_finite(hidden[0], "the embedding block's output")
    check_finite(hidden[1:], "hidden state", ("layer",))
    return hidden.float().cpu()


def split_sequences(
    n_sequences: int, *, fractions: tuple[float, float] = (0.7, 0.15), seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split sequences into training, validation and test; the test part is what the fractions leave.

    Raises ValueError when a part would be empty.
    """
    sizes = _sizes(n_sequences, fractions)
    if min(sizes) <= 0:
        enough = next((n for n in range(n_sequences + 1, 10_000) if min(_sizes(n, fractions)) > 0), "other fractions")
        raise ValueError(
            f"{n_sequences} sequences are too few to split {fractions[0]:.0%}/{fractions[1]:.0%}/rest; "
            f"take at least {enough}."
        )
    order = np.random.default_rng(seed).permutation(n_sequences)
    return tuple(np.split(order, np.cumsum(sizes)[:-1]))


def _sizes(n_sequences: int, fractions: tuple[float, float]) -> tuple[int, int, int]:
    train, validation = (round(n_sequences * f) for f in fractions)
    return train, validation, n_sequences - train - validation


@dataclass(frozen=True)
class Split:
    """Hold the tokens of the training, validation and test sequences."""

    train: TokenStates
    validation: TokenStates
    test: TokenStates
    _moments: dict[int, Spectrum] = field(default_factory=dict, repr=False, compare=False)

    @property
    def layers(self) -> range:
        """Return the layers' numbers, 1 to L."""
        return range(1, self.test.n_layers + 1)

    def moments(self, layer: int) -> Spectrum:
        """Return the spectrum of the training tokens' states of a layer, computed when first asked for."""
        if layer not in self._moments:
            self._moments[layer] = spectrum(self.train.hidden[layer])
        return self._moments[layer]

    @property
    def parts(self) -> tuple[TokenStates, TokenStates, TokenStates]:
        """Return training, validation and test."""
        return self.train, self.validation, self.test


def collect_split(encoder: Encoder, texts: Sequence[Text], *, seed: int = 0) -> Split:
    """Split the texts 70/15/15 and keep the hidden states of each part.

    A text is in one part only, whatever tokens it has: tokens of one text know too much about each other to
    stand on both sides. Raises ValueError for texts that are too few.
    """
    return Split(
        *(collect_states(encoder, [texts[i] for i in part]) for part in split_sequences(len(texts), seed=seed))
    )
