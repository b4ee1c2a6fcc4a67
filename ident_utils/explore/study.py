"""What the page asks of one text: attention of a head, how free a weight is, contributions, who is identified."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ident_utils.attention import RowPolytope, effective_attention, total_variation, towards
from ident_utils.attribution import Attribution, attribute
from ident_utils.corpora import load_corpus
from ident_utils.experiments.identity_retention import fit_layer
from ident_utils.identity import Candidates, hits
from ident_utils.mappings import Mapping
from ident_utils.models import Encoder, Encoding, Text, in_precision
from ident_utils.states import collect_split
from ident_utils.trace import Trace

PROBES = 4  # random tangents for each input token
CORPUS, TEXTS = "sotu-pairs", 120  # what the mapping is fitted on; as profile smoke does, whose work is then found
MAPPINGS = (("naive", "l2"), ("ridge", "l2"))


@dataclass(frozen=True)
class Read:
    """Hold a text as the model reads it: its pieces, and one forward pass in float64 with everything kept."""

    encoder: Encoder
    text: Text
    encoding: Encoding
    trace: Trace

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return the n readable word pieces."""
        return self.encoding.tokens

    @property
    def n(self) -> int:
        """Count the tokens."""
        return len(self.tokens)

    @property
    def freedom(self) -> int:
        """Return the fewest dimensions in which a row of this length is free: n - d_v - 1, at least 0."""
        return max(0, self.n - self.encoder.head_dim - 1)

    def head(self, layer: int, head: int) -> "Head":
        """Return one head's attention; both numbers count from 1."""
        raw, values = self.trace.attention[layer - 1, head - 1], self.trace.values[layer - 1, head - 1]
        effective = None if self.encoder.causal else effective_attention(raw, values).weights
        return Head(layer, head, self.tokens, raw, values, effective)


@dataclass(frozen=True)
class Head:
    """Hold what one head attends to, and the part of it that its output depends on."""

    layer: int
    number: int
    tokens: tuple[str, ...]
    raw: Tensor  # [n, n]
    values: Tensor  # [n, d_v]
    effective: Tensor | None  # [n, n]; None for a causal head, where it would give weight to tokens not seen

    @property
    def removed(self) -> Tensor | None:
        """Return raw - effective [n, n]: what the head's output cannot depend on."""
        return None if self.effective is None else self.raw - self.effective

    def freedom(self, row: int, column: int) -> "Freedom":
        """Find how small and large a weight can be with the same output, and a row that goes to the further end.

        Tokens are counted from 0. A causal row is free only among the tokens that it sees.
        """
        seen = len(self.tokens) if self.effective is not None else row + 1
        own = self.raw[row, :seen].double().numpy()
        polytope = RowPolytope(self.values[:seen])
        low, high, gap = polytope.interval(own, column) if column < seen else (0.0, 0.0, 0.0)
        other = np.zeros(len(self.tokens))
        other[:seen] = self._extreme(polytope, own, column, low, high) if column < seen and polytope.free else own
        return Freedom(self, row, column, low, high, gap, torch.from_numpy(other))

    def least_certain(self, rows: int = 32) -> "Freedom":
        """Find the widest interval among the largest weights of up to ``rows`` rows, spread over the text."""
        n = len(self.tokens)
        some = np.unique(np.linspace(0, n - 1, min(n, rows)).round().astype(int)).tolist()
        found = [self.freedom(row, int(self.raw[row].argmax())) for row in some]
        return max(found, key=lambda each: (each.high - each.low, each.own[each.column]))

    @staticmethod
    def _extreme(polytope: RowPolytope, own: np.ndarray, column: int, low: float, high: float) -> np.ndarray:
        direction = np.zeros(len(own))
        direction[column] = 1.0 if own[column] - low > high - own[column] else -1.0
        point, _, _ = polytope.extreme(own, direction)
        return towards(own, point, polytope.basis, 1.0)


@dataclass(frozen=True)
class Freedom:
    """Hold the identifiability interval of one weight, and another row [n] with the same output of the head."""

    head: Head
    row: int
    column: int
    low: float
    high: float
    gap: float  # the true ends lie no further out than this
    other: Tensor

    @property
    def own(self) -> Tensor:
        """Return the model's own row [n]."""
        return self.head.raw[self.row].double()

    @property
    def moved(self) -> float:
        """Return the total variation distance between the two rows, 0 to 1."""
        return float(total_variation(self.own, self.other))

    @property
    def output_change(self) -> float:
        """Return the largest change of the head's output, over the largest component of that output."""
        values = self.head.values.double()
        output = self.own @ values
        return float((self.other @ values - output).abs().max() / output.abs().max())


def read_text(encoder: Encoder, text: Text, *, truncate: bool = False) -> Read:
    """Run the text through the model in float64. Raises IdentError where it does not fit."""
    limit = encoder.max_tokens if truncate else None
    return Read(
        encoder,
        text,
        encoder.encode(text, truncate=limit),
        in_precision(encoder, torch.float64).trace(text, truncate=limit),
    )


def contributions(read: Read, *, seed: int = 0) -> Attribution:
    """Measure what each token contributes to each hidden state: [L, n, n]."""
    return attribute(read.encoder, read.text, probes=PROBES, seed=seed, truncate=read.n)


def identified(read: Read, texts: Sequence[Text] | None = None) -> dict[str, Tensor]:
    """Say by mapping which tokens would be found again among those of this text: bool [L, n].

    Of tokens with the same input any counts. The mappings are fitted on other ``texts``, by default some of the
    suite's own, and kept.
    """
    split = collect_split(read.encoder, texts or load_corpus(CORPUS, TEXTS))
    hidden = read.trace.hidden.float()
    candidates = Candidates(hidden[0])
    found = {}
    for kind, loss in MAPPINGS:
        fits: Sequence[Mapping] = [fit_layer(split, layer, kind, loss, 0) for layer in split.layers]
        nearest = [candidates.nearest(fit.predict(hidden[layer])) for layer, fit in enumerate(fits, start=1)]
        found[fits[0].name] = torch.stack([hits(each) for each in nearest])
    return found
