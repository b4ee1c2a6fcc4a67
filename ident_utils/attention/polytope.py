"""How far a single weight can move: the probability vectors with the same output, and their extent.

For a row a of attention and values V, P(a) = {a' >= 0, sum a' = 1, a' V = a V}. The identifiability interval of
weight j is [min a'_j, max a'_j] over P(a): two linear programs over the same polytope, so that the second, and
those of all other weights of the row, start from the vertex where the last one ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import torch
from highspy._core import (
    _Highs,
)  # highspy.Highs without callbacks, which print a banner before they can be told not to
from torch import Tensor

from ident_utils.attention.ranks import column_space
from ident_utils.checks import check_finite, check_rows_are_probabilities

SCALE = 1e4  # the solver's tolerances are absolute, and many weights are smaller than 1e-7
OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "presolve": "off",  # would throw the last vertex away
    "simplex_strategy": 4,  # primal: the last vertex stays feasible when the objective changes
    "simplex_scale_strategy": 0,  # the basis of the constraints is orthonormal already
    "primal_simplex_bound_perturbation_multiplier": 0.0,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
}


@dataclass(frozen=True)
class WeightIntervals:
    """Hold the identifiability intervals of k weights in each of r rows of one head."""

    tokens: Tensor  # [k], which weights
    low: Tensor  # [r, k], smallest weight that a row with the same output gives to the token
    high: Tensor  # [r, k], largest
    gap: Tensor  # [r, k], the true ends lie no further out than this: weak duality

    @property
    def width(self) -> Tensor:
        """Return high - low, [r, k]: 0 where the output pins a weight down."""
        return self.high - self.low


class RowPolytope:
    """Solve linear programs over the rows of attention that give one head's output."""

    def __init__(self, values: Tensor) -> None:
        """Prepare the head with ``values`` [n, d_v]; raise ValueError when one is not finite."""
        check_finite(values, "values")
        # An orthonormal basis of [1, V]: the constraints a' B = a B are the same, and as well-conditioned as can be.
        basis, rank = column_space(values, rows_sum_to_one=True)
        self.basis = basis[:, : int(rank.rank)].numpy()  # [n, k]
        self.n, self.free = len(self.basis), int(rank.nullity)
        self._ones = self.basis.sum(0)  # B @ this is the vector of ones
        self._solver = _Highs()
        for name, value in OPTIONS.items():
            self._solver.setOptionValue(name, value)
        self._row: np.ndarray | None = None

    def extreme(self, row: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Minimise a' . ``direction`` over P(``row``): the minimiser [n], its value, and a certified lower bound.

        Any y with B y <= direction bounds the minimum from below by (row B) y. The solver's y misses that by
        rounding; since B reaches the vector of ones, a shift by the largest miss makes it hold exactly.
        """
        self._set_row(row)
        self._solver.changeColsCost(self.n, np.arange(self.n, dtype=np.int32), direction)
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self._solver.clearSolver()  # once more from the beginning
            self._solver.run()
        solution = self._solver.getSolution()
        dual = np.array(solution.row_dual)
        miss = (self.basis @ dual - direction).max()
        bound = (row @ self.basis) @ (dual - max(miss, 0.0) * self._ones)
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return row, float(row @ direction), bound  # where we are, and what is certain all the same
        point = np.maximum(np.array(solution.col_value) / SCALE, 0.0)
        return point, float(point @ direction), bound

    def interval(self, row: np.ndarray, token: int) -> tuple[float, float, float]:
        """Return (low, high, gap) of one weight of ``row`` [n]."""
        return self.intervals(row, [token])[0]

    def intervals(self, row: np.ndarray, tokens: Sequence[int]) -> list[tuple[float, float, float]]:
        """Return (low, high, gap) of several weights of ``row`` [n].

        Every program starts from the vertex that is best for it among those already visited. A vertex where a weight
        is zero is its minimum, since no weight can be less, and needs no program: so all lower ends come first.
        """
        if self.free == 0:
            return [(row[token], row[token], 0.0) for token in tokens]
        direction = np.zeros(self.n)
        ends, visited = {}, []
        for sign in (1.0, -1.0):
            for token in tokens:
                nearest = min(visited, key=lambda vertex: sign * vertex[0][token], default=None)
                if nearest is not None and sign > 0 and nearest[0][token] == 0:
                    ends[token, sign] = 0.0, 0.0
                    continue
                if nearest is not None and nearest is not visited[-1]:
                    self._solver.setBasis(nearest[1])
                direction[token] = sign
                point, value, bound = self.extreme(row, direction)
                direction[token] = 0.0
                ends[token, sign] = sign * value, max(value - bound, 0.0)
                visited.append((point, self._solver.getBasis()))
        # The row itself is one of those with the same output: the solver's rounding must not exclude it.
        return [
            (min(low, row[token]), max(high, row[token]), max(one, other))
            for token in tokens
            for (low, one), (high, other) in [(ends[token, 1.0], ends[token, -1.0])]
        ]

    def _set_row(self, row: np.ndarray) -> None:
        """Hand the solver the constraints of another row, or leave it at its last vertex."""
        if self._row is not None and np.array_equal(row, self._row):
            return
        right = SCALE * (row @ self.basis)
        if self._row is None:
            self._solver.passModel(self._program(right))
        else:
            k = len(right)
            self._solver.changeRowsBounds(k, np.arange(k, dtype=np.int32), right, right)
        self._row = row.copy()

    def _program(self, right: np.ndarray) -> highspy.HighsLp:
        k = self.basis.shape[1]
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.n, k
        program.col_cost_, program.col_lower_ = np.zeros(self.n), np.zeros(self.n)
        program.col_upper_ = np.full(self.n, highspy.kHighsInf)
        program.row_lower_ = program.row_upper_ = right
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.arange(k + 1, dtype=np.int32) * self.n
        program.a_matrix_.index_ = np.tile(np.arange(self.n, dtype=np.int32), k)
        program.a_matrix_.value_ = self.basis.T.ravel()
        return program


def row_intervals(rows: Tensor, values: Tensor, tokens: Sequence[int] | None = None) -> WeightIntervals:
    """Return the identifiability intervals of weights of ``rows`` [r, n] or [n] of a head with ``values`` [n, d_v].

    ``tokens`` says which weights; None means all n. Everything in float64, up to the returned gap.

    Raises ValueError when the shapes do not fit, a number is not finite, a row is not a probability distribution or
    a token does not exist.
    """
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or values.ndim != 2 or rows.shape[1] != len(values):
        raise ValueError(
            f"rows {tuple(rows.shape)} and values {tuple(values.shape)} do not fit: pass rows [r, n] and values "
            "[n, d_v] of one head."
        )
    check_finite(rows, "rows")
    check_rows_are_probabilities(rows)
    n = len(values)
    chosen = list(range(n)) if tokens is None else [int(j) for j in tokens]
    if any(not 0 <= j < n for j in chosen):
        raise ValueError(f"tokens {chosen} reach beyond the {n} tokens of the row; count them from 0 to {n - 1}.")
    polytope = RowPolytope(values)
    found = [polytope.intervals(row, chosen) for row in rows.double().numpy()]
    ends = torch.tensor(found, dtype=torch.float64).reshape(len(rows), len(chosen), 3)
    return WeightIntervals(torch.tensor(chosen), ends[..., 0], ends[..., 1], ends[..., 2])


def weight_interval(row: Tensor, values: Tensor, j: int) -> tuple[float, float, float]:
    """Return (low, high, gap): how small and how large weight ``j`` can be without a change of the head's output.

    ``row`` [n] is one row of attention, ``values`` [n, d_v] the values of its head; see :func:`row_intervals`.

    >>> values = torch.tensor([[1.0], [1.0], [2.0]])  # the first two tokens say the same
    >>> low, high, gap = weight_interval(torch.tensor([0.6, 0.1, 0.3]), values, 0)
    >>> round(low, 6), round(high, 6), gap < 1e-9
    (0.0, 0.7, True)
    """
    found = row_intervals(row, values, [j])
    return found.low.item(), found.high.item(), found.gap.item()
