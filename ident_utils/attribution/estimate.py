"""Squared norms of all Jacobian blocks by each definition, and the sampling error of those that are estimated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ident_utils.attribution.engine import (
    Span,
    Tangents,
    push,
    random_tangents,
    source_state,
    span_function,
    squared_norm,
    tangents_at_once,
    unit_tangents,
)
from ident_utils.memory import check_room
from ident_utils.models import Encoder, Encoding
from ident_utils.progress import track
from ident_utils.threads import one_thread


@dataclass(frozen=True)
class Squares:
    """Hold squared block norms [T, n_out, n_in] and, where they were sampled, the variance of each."""

    mean: Tensor
    variance: Tensor | None = None


def sampled_squares(
    encoder: Encoder,
    encoding: Encoding,
    span: Span,
    probes: int,
    seed: int,
    *,
    chunk: int | None = None,
    bf16: bool = False,
    label: str = "tangents",
) -> Squares:
    """Estimate the squared Frobenius norms from ``probes`` random tangents for each input token, without bias.

    The variance is that of the mean over the probes; NaN for a single probe.
    """
    state = source_state(encoder, encoding, span)
    tangents = random_tangents(*state.shape[1:], probes, seed)
    sums = _accumulate(encoder, encoding, span, state, tangents, (1, 2), chunk=chunk, bf16=bf16, label=label)
    mean, mean_of_squares = sums[0] / probes, sums[1] / probes
    unbiased = (mean_of_squares - mean.square()).clamp(min=0) / (probes - 1) if probes > 1 else torch.nan
    return Squares(mean, torch.zeros_like(mean) + unbiased)


def exact_squares(encoder: Encoder, encoding: Encoding, span: Span, *, chunk: int | None = None) -> Squares:
    """Compute the squared Frobenius norms from the d unit vectors at each input token."""
    state = source_state(encoder, encoding, span)
    tangents = unit_tangents(*state.shape[1:])
    return Squares(_accumulate(encoder, encoding, span, state, tangents, (1,), chunk=chunk)[0])


def input_squares(encoder: Encoder, encoding: Encoding, span: Span, *, chunk: int | None = None) -> Squares:
    """Compute ||J_ij x_i||^2, the gradient-x-input reading: one tangent for each input token, its own state."""
    state = source_state(encoder, encoding, span)
    tangents = Tangents(torch.arange(state.shape[1]), state[0].cpu())
    return Squares(_accumulate(encoder, encoding, span, state, tangents, (1,), chunk=chunk)[0])


def _accumulate(
    encoder: Encoder,
    encoding: Encoding,
    span: Span,
    state: Tensor,
    tangents: Tangents,
    powers: tuple[int, ...],
    *,
    chunk: int | None,
    bf16: bool = False,
    label: str = "tangents",
) -> list[Tensor]:
    """Sum powers of the squared norms over the tangents of each input token: [T, n_out, n_in] for each power."""
    run, n = span_function(encoder, encoding, span), state.shape[1]
    sums = [
        torch.zeros(span.targets(encoder.n_heads), n, n, dtype=torch.float64, device=state.device) for _ in powers
    ]
    for part in track(tangents.split(chunk or tangents_at_once(encoder, n)), label):
        squares = push(run, state, part, squared_norm, bf16=bf16).permute(1, 2, 0).double()
        for total, power in zip(sums, powers, strict=True):
            total.index_add_(2, part.tokens.to(state.device), squares.pow(power))
    return sums


def spectral_squares(encoder: Encoder, encoding: Encoding, span: Span, *, chunk: int | None = None) -> Squares:
    """Compute the squared spectral norms: whole blocks, one input token at a time (short texts only)."""
    return Squares(block_squares(encoder, encoding, span, chunk=chunk)["spectral"])


def block_squares(encoder: Encoder, encoding: Encoding, span: Span, *, chunk: int | None = None) -> dict[str, Tensor]:
    """Compute the squared size of every block by every definition at once: [T, n_out, n_in] each."""
    state, run = source_state(encoder, encoding, span), span_function(encoder, encoding, span)
    _check_blocks(encoder, span, *state.shape[1:])
    (n, d), size = state.shape[1:], chunk or tangents_at_once(encoder, state.shape[1])
    columns: list[dict[str, Tensor]] = []
    for token in track(range(n), "input tokens"):
        tangents = Tangents(torch.full((d,), token), torch.eye(d))
        pushed = [push(run, state, part, lambda t: t) for part in tangents.split(size)]
        blocks = torch.cat(pushed).permute(1, 2, 3, 0).double()  # [T, n_out, w, d]
        columns.append(
            {
                "jacobian": blocks.square().sum((-2, -1)),
                "spectral": _largest_eigenvalue(blocks @ blocks.mT),
                "sum-gradient": blocks.sum(-2).square().sum(-1),
                "gradient-x-input": (blocks @ state[0, token].double()).square().sum(-1),
            }
        )
    return {method: torch.stack([column[method] for column in columns], dim=-1) for method in columns[0]}


def _check_blocks(encoder: Encoder, span: Span, n: int, d: int) -> None:
    """Refuse whole blocks of one input token, [T, n_out, w, d] in float64 and once more, that memory cannot hold."""
    if encoder.model.device.type == "cpu":
        needed = 2 * 8 * span.targets(encoder.n_heads) * n * encoder.width * d
        check_room(needed, f"Computing whole Jacobian blocks of {n} tokens", "cut the text, or sample")


def sum_gradient_squares(
    encoder: Encoder, encoding: Encoding, span: Span, outputs: tuple[int, ...], *, chunk: int | None = None
) -> Squares:
    """Compute the squared norm of the gradient of the sum of a target's components, by reverse mode.

    Only the rows of ``outputs`` are computed, the others are zero. One pass for each target and output token,
    batched; a tangent and a cotangent take about the same memory.
    """
    state = source_state(encoder, encoding, span).clone().requires_grad_()
    n = state.shape[1]
    size = chunk or tangents_at_once(encoder, n)
    with torch.enable_grad():
        targets = [t for target in span_function(encoder, encoding, span)(state) for t in target]
    squares = torch.zeros(len(targets), n, n, dtype=torch.float64, device=state.device)
    for number, target in enumerate(track(targets, "targets")):
        for rows in torch.tensor(outputs, device=state.device).split(size):
            ones = torch.zeros(len(rows), *target.shape, dtype=target.dtype, device=state.device)
            ones[torch.arange(len(rows)), rows] = 1
            (gradient,) = torch.autograd.grad(target, state, ones, retain_graph=True, is_grads_batched=True)
            squares[number, rows] = gradient[:, 0].double().square().sum(-1)
    return Squares(squares)


def shares(squares: Tensor) -> Tensor:
    """Turn squared norms [..., n_out, n_in] into contributions: their roots, each row divided by its sum.

    A row of zeros stays zero: the target does not depend on the source at all.
    """
    norms = squares.sqrt()
    total = norms.sum(-1, keepdim=True)
    return norms / total.where(total > 0, 1)


def standard_error(squares: Squares) -> Tensor:
    """Return the standard error of each contribution from the spread of the probes, by the delta method.

    With w_k the relative variance of the squared norm of block k, and c the contributions of a row,
    var c_i = c_i^2 / 4 * ((1 - c_i)^2 w_i + sum_{k != i} c_k^2 w_k): probes at different inputs are independent.
    A few probes say little about one block, so w is pooled over the tokens of a target, the own blocks apart from
    the others. Zero where nothing was sampled, NaN for one probe. Shape [T, n_out, n_in].
    """
    c = shares(squares.mean)
    if squares.variance is None:
        return torch.zeros_like(c)
    w = _pooled_relative_variance(squares.mean, squares.variance)
    everyone = (c.square() * w).sum(-1, keepdim=True)
    return c / 2 * ((1 - 2 * c) * w + everyone).clamp(min=0).sqrt()


def _pooled_relative_variance(mean: Tensor, variance: Tensor) -> Tensor:
    relative = variance / mean.square().clamp(min=torch.finfo(mean.dtype).tiny)
    own = torch.eye(mean.shape[-1], dtype=torch.bool, device=mean.device).expand_as(mean)
    pooled = torch.empty_like(relative)
    for where in (own, ~own):
        count = where.sum((-2, -1), keepdim=True).clamp(min=1)
        average = relative.where(where, 0).sum((-2, -1), keepdim=True) / count
        # A squared norm is close to a gamma variable, for which the average of v / m^2 is w / (1 + w).
        pooled = torch.where(where, average / (1 - average), pooled)
    return pooled


def _largest_eigenvalue(matrices: Tensor) -> Tensor:
    """Return the largest eigenvalue of symmetric matrices [..., w, w]: [...].

    On one thread: the solver's many small steps make threads wait for each other, longer than they work.
    """
    with one_thread():
        return torch.linalg.eigvalsh(matrices)[..., -1].clamp(min=0)
