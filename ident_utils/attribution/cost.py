"""What an attribution will cost, before it is started."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ident_utils.attribution.engine import Span, inner_width, span_of, tangents_per_chunk
from ident_utils.attribution.precision import matrix_rate
from ident_utils.models import Encoder

USUAL_SHARE = 0.6  # of the speed of a lone matrix product that a whole attribution reaches


@dataclass(frozen=True)
class Cost:
    """Hold the number of tangents, how many go at once, and the work of pushing them."""

    tangents: int
    chunk: int
    operations: float  # floating point operations in matrix products
    rate: float  # operations a second that a matrix product reaches here

    @property
    def seconds(self) -> float:
        """Estimate the time."""
        return self.operations / (USUAL_SHARE * self.rate)

    def __str__(self) -> str:
        """Print the estimate in one line."""
        return f"{self.tangents} tangents, {self.operations / 1e12:.2f} TFLOP, about {self.seconds:.0f} s"


def tangent_operations(encoder: Encoder, n: int, layers: int) -> float:
    """Count the floating point operations that push one tangent of n tokens through some layers.

    Only matrix products count: projections and feed-forward on every token, and the two halves of the product rule
    in the scores and in the weighted values.
    """
    d = encoder.width
    return 2.0 * n * layers * (4 * d * d + 2 * d * inner_width(encoder) + 4 * n * d)


def attribution_cost(
    encoder: Encoder, n: int, probes: int = 2, *, exact: bool = False, span: Span | None = None
) -> Cost:
    """Estimate the cost of attributing a text of n tokens; ``exact`` means d tangents for each."""
    span = span or span_of(encoder)
    tangents = n * (encoder.width if exact else probes)
    operations = tangents * tangent_operations(encoder, n, span.layers[-1] - span.source)
    dtype = torch.float64 if exact else encoder.dtype
    return Cost(tangents, tangents_per_chunk(encoder, n), operations, matrix_rate(encoder.model.device.type, dtype))


def together(costs: Sequence[Cost]) -> Cost:
    """Add up the costs of several texts."""
    return Cost(
        sum(c.tangents for c in costs), max(c.chunk for c in costs), sum(c.operations for c in costs), costs[0].rate
    )
