"""The definitions of a contribution, and the two calls that measure them."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from ident_utils.attribution.cost import attribution_cost
from ident_utils.attribution.engine import Span, span_of
from ident_utils.attribution.estimate import (
    Squares,
    exact_squares,
    input_squares,
    sampled_squares,
    shares,
    spectral_squares,
    standard_error,
    sum_gradient_squares,
)
from ident_utils.attribution.precision import Precision, choose_precision
from ident_utils.attribution.result import Attribution
from ident_utils.models import Encoder, Encoding, Text

METHODS = ("jacobian", "sum-gradient", "spectral", "gradient-x-input")


def hidden_token_attribution(
    encoder: Encoder,
    text: Text,
    *,
    method: str = "jacobian",
    probes: int = 2,
    exact: bool = False,
    **options: object,
) -> Tensor:
    """Return the contribution of every input token to every hidden state: [L, n_out, n_in], rows sum to one.

    A text of a single token gives one. Options, checks and definitions as in :func:`attribute`, which returns the
    standard error too.
    """
    return attribute(encoder, text, method=method, probes=probes, exact=exact, **options).contributions


def attribute(
    encoder: Encoder,
    text: Text,
    *,
    method: str = "jacobian",
    probes: int = 2,
    exact: bool = False,
    seed: int = 0,
    source: int = 0,
    layers: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    precision: str = "own",
    device: str | None = None,
    truncate: int | None = None,
    chunk: int | None = None,
) -> Attribution:
    """Measure how much of the hidden states comes from each token of the source.

    J_ij is the Jacobian block of output token j with respect to input token i. ``method`` takes as its size

    - ``jacobian``: the Frobenius norm, estimated from ``probes`` random tangents (paper, section on Hidden Token
      Attribution);
    - ``spectral``: the largest singular value; whole blocks are needed, so ``exact`` must be asked for;
    - ``sum-gradient``: the norm of the gradient of the sum of the components of e_j;
    - ``gradient-x-input``: the norm of J_ij x_i. The last two need no sampling.

    ``exact`` computes without sampling and in float64 (n * d passes for the first two: short texts only).
    ``source`` is the layer whose output the contribution is of: 0 is the embedding block, l - 1 is the input of
    layer l. ``layers`` (from 1, by default all after the source) and ``outputs`` (places of tokens, by default all)
    choose what it is to. ``precision`` of the tangents: the model's own, float32, bfloat16, or the faster of
    the two by a measurement on this machine (``auto``).
    ``device`` moves a copy of the model there. ``chunk`` is the number of tangents pushed at once, by default as
    many as CHUNK_BYTES and the free memory hold; it changes the result by rounding only.

    Raises ValueError for a request that makes no sense, IdentError for a text or model that does not fit.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    if probes < 1:
        raise ValueError(f"probes must be at least 1, not {probes}.")
    if method == "spectral" and not exact:
        raise ValueError("Spectral norms need whole Jacobian blocks: pass exact=True, for short texts only.")
    placed = _placed(encoder, device, torch.float64 if exact else encoder.dtype)
    encoding = placed.encode(text, truncate=truncate)
    rows = _checked_outputs(outputs, len(encoding.tokens))
    span = span_of(placed, source, layers)
    sampled = method == "jacobian" and not exact
    chosen = choose_precision(placed, encoding, span, probes, precision) if sampled else None
    squares = _squares(placed, encoding, span, method, probes if sampled else None, seed, chunk, chosen, rows)
    return Attribution(
        contributions=shares(squares.mean)[:, list(rows)].cpu(),
        standard_error=standard_error(squares)[:, list(rows)].cpu(),
        tokens=encoding.tokens,
        outputs=rows,
        layers=span.layers,
        source=source,
        method=method,
        probes=probes if sampled else None,
        seed=seed,
        precision=str(chosen or Precision(str(placed.dtype).removeprefix("torch."), "not sampled")),
        provenance=dict(encoder.provenance),
    )


def _squares(
    encoder: Encoder,
    encoding: Encoding,
    span: Span,
    method: str,
    probes: int | None,
    seed: int,
    chunk: int | None,
    precision: Precision | None,
    rows: tuple[int, ...],
) -> Squares:
    if method == "sum-gradient":
        return sum_gradient_squares(encoder, encoding, span, rows, chunk=chunk)
    if method == "gradient-x-input":
        return input_squares(encoder, encoding, span, chunk=chunk)
    if method == "spectral":
        return spectral_squares(encoder, encoding, span, chunk=chunk)
    if probes is None:
        return exact_squares(encoder, encoding, span, chunk=chunk)
    cost = attribution_cost(encoder, len(encoding.tokens), probes, span=span)
    bf16 = precision is not None and precision.name == "bfloat16"
    return sampled_squares(encoder, encoding, span, probes, seed, chunk=chunk, bf16=bf16, label=str(cost))


def _placed(encoder: Encoder, device: str | None, dtype: torch.dtype) -> Encoder:
    """Return the encoder itself, or one with a copy of the model on another device or in another precision."""
    there = encoder.model.device if device is None else torch.device(device)
    if there.type == encoder.model.device.type and dtype is encoder.dtype:
        return encoder
    return replace(encoder, model=deepcopy(encoder.model).to(there, dtype))


def _checked_outputs(outputs: Sequence[int] | None, n: int) -> tuple[int, ...]:
    rows = tuple(range(n)) if outputs is None else tuple(int(place) for place in outputs)
    if not rows or not all(0 <= place < n for place in rows) or len(set(rows)) < len(rows):
        raise ValueError(f"outputs must be different places from 0 to {n - 1} in a text of {n} tokens; got {rows}.")
    return rows
