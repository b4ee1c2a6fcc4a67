"""In which precision tangents are pushed: the model's own, unless another is asked for; reported with the result.

So no result depends on a measurement of time. With ``auto`` tangents are pushed in bfloat16 where the processor
multiplies it faster. Two things are then measured, each once in a process: how much faster matrix products are on a
device, and how far a model's contributions in bfloat16 are from those in float32: that must stay under a tenth of the
sampling error.
"""

import time
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ident_utils.attribution.engine import Span
from ident_utils.attribution.estimate import sampled_squares, shares, standard_error
from ident_utils.models import Encoder, Encoding

CHOICES = ("own", "auto", "float32", "bfloat16")
WORTH_IT = 1.3  # bfloat16 must be faster by this factor
TOLERATED = 0.1  # of the sampling error


@dataclass(frozen=True)
class Precision:
    """Say in which precision tangents are pushed, and why."""

    name: str  # float32, float64 or bfloat16
    reason: str

    def __str__(self) -> str:
        """Print both."""
        return f"{self.name} ({self.reason})"


_measured: WeakKeyDictionary[nn.Module, tuple[float, float]] = WeakKeyDictionary()


def choose_precision(encoder: Encoder, encoding: Encoding, span: Span, probes: int, choice: str = "own") -> Precision:
    """Keep the model's own precision, or decide for one in float32 between that and bfloat16 tangents.

    Raises ValueError for an unknown choice, and for bfloat16 with a model that is not in float32.
    """
    if choice not in CHOICES:
        raise ValueError(f"precision must be one of {', '.join(CHOICES)}, not {choice!r}.")
    own = str(encoder.dtype).removeprefix("torch.")
    if encoder.dtype is not torch.float32:
        if choice not in ("own", "auto", own):
            raise ValueError(f"{encoder.name} is in {own}; load it in float32 to push tangents in {choice}.")
        return Precision(own, "the model's own")
    if choice == "own":
        return Precision(own, "the model's own")
    if choice != "auto":
        return Precision(choice, "asked for")
    faster = bf16_speedup(encoder.model.device.type)
    if faster < WORTH_IT:
        return Precision("float32", f"bfloat16 products are {faster:.1f} times as fast here")
    error, sampling = bf16_error(encoder, encoding, span)
    sampling /= probes**0.5
    ratio = error / sampling if sampling else float("inf")
    name = "bfloat16" if ratio <= TOLERATED else "float32"
    return Precision(name, f"bfloat16: {faster:.1f} times as fast, error {ratio:.2f} of the sampling error")


@cache
def bf16_speedup(device: str) -> float:
    """Measure how much faster a matrix product is in bfloat16 than in float32 on a kind of device."""
    return matrix_rate(device, torch.bfloat16) / matrix_rate(device, torch.float32)


@cache
def matrix_rate(device: str, dtype: torch.dtype = torch.float32, rows: int | None = None) -> float:
    """Measure the speed of a matrix product, in floating point operations a second (best of five, or of 0.2 s).

    Large products come closest to what the processor can do; without bfloat16 units even small ones take long.
    """
    rows, width = rows or (512 if device == "cpu" else 8192), 768 if device == "cpu" else 4096
    a, b = (torch.ones(n, width, dtype=dtype, device=device) for n in (rows, width))
    best, begun = float("inf"), time.perf_counter()
    for run in range(6):  # the first warms up
        start = time.perf_counter()
        (a @ b)[0, 0].item()
        now = time.perf_counter()
        best = min(best, now - start)
        if run and now - begun > 0.2:
            break
    return 2 * rows * width * width / best


def bf16_error(encoder: Encoder, encoding: Encoding, span: Span) -> tuple[float, float]:
    """Measure a model's error in bfloat16 and its sampling error for one probe, on the first text it is asked for.

    Both are root mean squares over tokens and layers of the own contribution. The same two probes are pushed in
    both precisions.
    """
    if encoder.model not in _measured:
        plain, coarse = (sampled_squares(encoder, encoding, span, 2, 0, bf16=bf16) for bf16 in (False, True))
        error = _own(shares(coarse.mean) - shares(plain.mean))
        _measured[encoder.model] = error, _own(standard_error(plain)) * 2**0.5
    return _measured[encoder.model]


def _own(difference: Tensor) -> float:
    return difference.diagonal(dim1=-2, dim2=-1).square().mean().sqrt().item()
