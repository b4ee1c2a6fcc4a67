"""Another attention with the same output that a softmax over d_v-dimensional keys can make.

Among all rows a' with a' V = a V there is exactly one of the form softmax(bias + V s): the one closest to
softmax(bias), of maximum entropy where there is no bias. Its slopes s are the minimum of a convex function in
d_v unknowns,

    f(s) = log sum_j exp(bias_j + V_j s) - (a V) s,

whose gradient is softmax(bias + V s) V - a V. So V can serve as keys, and s as the query.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ident_utils.attention.ranks import decide_rank
from ident_utils.checks import check_attention_and_values, check_finite, check_rows_are_probabilities

TOLERANCE = 1e-13  # of the gradient in an orthonormal basis: weights sum to one, so this is absolute and relative
FAILED = 1e-9  # a row that stays further away than this keeps its own attention
LONGEST_STEP = 40.0  # in logits
SMALLEST_LOG = -690.0  # log of about 1e-300, in place of log 0


@dataclass(frozen=True)
class Alternative:
    """Hold attention that a softmax over the values as keys makes, with the same output as the one given."""

    weights: Tensor  # [..., r, n], float64, rows sum to one; positive, but a weight below 1e-323 becomes zero
    slopes: Tensor  # [..., r, d_v]: weights = softmax(bias + slopes V^T) up to rounding
    error: Tensor  # [..., r], largest change of a component of the output, over the largest value
    converged: Tensor  # [..., r], False: no such row was found, and the row is the one given
    steps: Tensor  # [..., r], Newton steps taken


def alternative_attention(
    attention: Tensor, values: Tensor, *, bias: Tensor | None = None, max_steps: int = 100
) -> Alternative:
    """Return the attention softmax(bias + V s) that gives the same output as ``attention`` [..., n, n].

    ``values`` is [..., n, d_v] over the same leading axes; ``bias`` [..., n, n], such as a relative position bias,
    is what the architecture adds to the logits; None means no bias and so the alternative of maximum entropy.
    Every head is solved on its own, all its rows together, in float64.

    Raises ValueError when the shapes do not fit, a number is not finite, or a row is not a probability distribution.
    """
    check_attention_and_values(attention, values)
    check_rows_are_probabilities(attention)
    if bias is None:
        bias = torch.zeros((), dtype=torch.float64)
    check_finite(bias, "bias")
    raw = attention.double()
    heads = [
        _solve_head(a, v, b, torch.finfo(values.dtype).eps, max_steps)
        for a, v, b in zip(
            raw.flatten(0, -3) if raw.ndim > 2 else raw[None],
            values.double().flatten(0, -3) if raw.ndim > 2 else values.double()[None],
            bias.double().expand_as(raw).reshape(-1, *raw.shape[-2:]),
            strict=True,
        )
    ]
    leading = raw.shape[:-2]
    return Alternative(*(torch.stack(part).reshape(*leading, *part[0].shape) for part in zip(*heads, strict=True)))


def _solve_head(raw: Tensor, values: Tensor, bias: Tensor, eps: float, max_steps: int) -> tuple[Tensor, ...]:
    """Return the five fields of :class:`Alternative` for one head: raw [r, n], values [n, d_v], bias [r, n]."""
    # Adding a constant to all logits changes nothing, so the values may be centred; in an orthonormal basis of them
    # the curvature is bounded by one.
    basis, singular, turn = torch.linalg.svd(values - values.mean(0), full_matrices=False)
    k = int(decide_rank(singular, values.shape, eps).rank)
    basis = basis[:, :k]
    slopes, steps = _newton(raw, basis, bias, max_steps)
    weights = _polished(torch.softmax(bias + slopes @ basis.mT, -1), raw, basis)
    far = ((weights - raw) @ basis).abs().amax(-1) if k else torch.zeros(len(raw), dtype=raw.dtype)
    converged = far < FAILED
    weights = torch.where(converged[:, None], weights, raw)
    scale = values.abs().max().clamp_min(torch.finfo(raw.dtype).tiny)
    error = ((weights - raw) @ values).abs().amax(-1) / scale
    return weights, (slopes / singular[:k]) @ turn[:k], error, converged, steps


def _newton(raw: Tensor, basis: Tensor, bias: Tensor, max_steps: int) -> tuple[Tensor, Tensor]:
    """Minimise f for every row: slopes [r, k] in the coordinates of ``basis`` [n, k], and steps taken [r]."""
    n, k = basis.shape
    target = raw @ basis
    slopes = _start(raw, basis, bias, target)
    steps = torch.zeros(len(raw), dtype=torch.int64)
    damping = torch.full((len(raw),), 1e-14, dtype=raw.dtype)
    products = (basis[:, :, None] * basis[:, None, :]).reshape(n, k * k)
    active = torch.arange(len(raw))
    for _ in range(max_steps if k else 0):
        s, b, goal = slopes[active], bias[active], target[active]
        weights, gradient, value = _dual(s, basis, b, goal)
        unfinished = gradient.abs().amax(-1) > TOLERANCE
        if not bool(unfinished.any()):
            break
        active = active[unfinished]
        s, b, goal, weights = s[unfinished], b[unfinished], goal[unfinished], weights[unfinished]
        gradient, value = gradient[unfinished], value[unfinished]
        step = _newton_step(_curvature(weights, basis, products), gradient, damping[active])
        taken, accepted = _line_search(s, step, basis, b, goal, value, gradient)
        slopes[active] = taken
        steps[active] += 1
        damping[active] = torch.where(accepted, damping[active] / 10, damping[active] * 100).clamp(1e-18, 1e3)
    return slopes, steps


def _start(raw: Tensor, basis: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """Return the better of two beginnings: no slope, and least squares on log a."""
    logits = raw.log().clamp_min(SMALLEST_LOG) - bias
    fitted = logits @ basis
    plain = torch.zeros_like(fitted)
    better = _dual(fitted, basis, bias, target)[2] < _dual(plain, basis, bias, target)[2]
    return torch.where(better[:, None], fitted, plain)


def _curvature(weights: Tensor, basis: Tensor, products: Tensor) -> Tensor:
    """Return the second derivative of f, U^T (diag p - p p^T) U, of every row: [r, k, k]."""
    k = basis.shape[1]
    mean = weights @ basis
    second = (weights @ products).reshape(-1, k, k)
    return second.baddbmm_(mean[:, :, None], mean[:, None, :], alpha=-1)


def _dual(slopes: Tensor, basis: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights [r, n], gradient [r, k] and value [r] of f."""
    logits = bias + slopes @ basis.mT
    total = torch.logsumexp(logits, -1, keepdim=True)
    weights = torch.exp(logits - total)
    return weights, weights @ basis - target, total[:, 0] - (slopes * target).sum(-1)


def _newton_step(curvature: Tensor, gradient: Tensor, damping: Tensor) -> Tensor:
    """Solve (curvature + damping) step = -gradient, with more damping where the curvature is singular to rounding."""
    curvature.diagonal(dim1=-2, dim2=-1).add_(damping[:, None])
    factor, info = torch.linalg.cholesky_ex(curvature)
    more = damping * 100
    while bool((bad := info > 0).any()):
        curvature.diagonal(dim1=-2, dim2=-1).add_((more * bad)[:, None])
        factor[bad], info[bad] = torch.linalg.cholesky_ex(curvature[bad])
        more = more * 100
    return -torch.cholesky_solve(gradient[..., None], factor)[..., 0]


def _line_search(
    slopes: Tensor, step: Tensor, basis: Tensor, bias: Tensor, target: Tensor, value: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Halve the step of each row until f or, near the minimum, its gradient falls: new slopes, and was one found."""
    descent = (step * gradient).sum(-1)
    size = gradient.norm(dim=-1)
    # A step that changes a logit by many units leaves the region in which the curvature means anything.
    length = (LONGEST_STEP / (step @ basis.mT).abs().amax(-1)).clamp_max(1.0)
    waiting = torch.ones_like(descent, dtype=torch.bool)
    result = slopes.clone()
    for _ in range(30):
        rows = torch.nonzero(waiting).squeeze(-1)
        if not len(rows):
            break
        tried = slopes[rows] + length[rows, None] * step[rows]
        _, new_gradient, new_value = _dual(tried, basis, bias[rows], target[rows])
        fine = new_value <= value[rows] + 1e-4 * length[rows] * descent[rows]
        level = new_value <= value[rows] + 1e-12 * (1 + value[rows].abs())
        fine |= level & (new_gradient.norm(dim=-1) < 0.9 * size[rows])  # f no longer changes but in its last digit
        result[rows[fine]] = tried[fine]
        waiting[rows[fine]] = False
        length[rows[~fine]] /= 2
    return result, ~waiting


def _polished(weights: Tensor, raw: Tensor, basis: Tensor) -> Tensor:
    """Take away what is left of the difference in output, in rows where no weight changes by more than half."""
    whole = torch.cat([basis, torch.full_like(raw[:1].mT, len(basis) ** -0.5)], dim=-1)
    for _ in range(2):  # the second time removes the rounding of the first
        correction = ((raw - weights) @ whole) @ whole.mT
        small = (correction.abs() <= weights / 2).all(-1, keepdim=True)
        weights = torch.where(small, weights + correction, weights)
    return weights
