"""Uncertainty: tokens of one text are not independent, so texts are resampled, not tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """Hold an estimate with its percentile bootstrap interval."""

    value: float
    low: float
    high: float
    n_sequences: int

    def as_dict(self) -> dict[str, float | int]:
        """Return plain numbers for a results file."""
        return {"value": self.value, "low": self.low, "high": self.high, "n_sequences": self.n_sequences}


def bootstrap(
    groups: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], float],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Estimate ``statistic`` of all tokens pooled, with an interval from resampling whole sequences.

    ``groups`` holds one array per sequence, tokens along its first axis. With a single sequence the interval
    is unknown and its ends are NaN. Raises ValueError when there is no sequence or an empty one.
    """
    arrays = [np.asarray(g, dtype=float) for g in groups]
    if not arrays or any(len(a) == 0 for a in arrays):
        raise ValueError(f"Need at least one sequence and a token in each; got lengths {[len(a) for a in arrays]}.")
    value = float(statistic(np.concatenate(arrays)))
    if len(arrays) == 1:
        return Interval(value, float("nan"), float("nan"), 1)
    draws = np.random.default_rng(seed).integers(len(arrays), size=(resamples, len(arrays)))
    estimates = [statistic(np.concatenate([arrays[i] for i in draw])) for draw in draws]
    low, high = np.quantile(estimates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), len(arrays))


def bootstrap_median(groups: Sequence[np.ndarray], **options: float) -> Interval:
    """Estimate the median over tokens, resampling sequences; options as in :func:`bootstrap`.

    >>> bootstrap_median([np.array([1.0, 2.0]), np.array([3.0])], resamples=10).value
    2.0
    """
    return bootstrap(groups, np.median, **options)


def bootstrap_mean(
    groups: Sequence[np.ndarray], *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Estimate the mean over tokens, resampling sequences.

    The same draws as :func:`bootstrap`, from the sums and counts of the sequences, so in a fraction of the time.
    """
    if not len(groups) or any(len(g) == 0 for g in groups):
        raise ValueError(f"Need at least one sequence and a token in each; got lengths {[len(g) for g in groups]}.")
    sums = np.array([np.sum(g, dtype=float) for g in groups])
    counts = np.array([len(g) for g in groups])
    value = float(sums.sum() / counts.sum())
    if len(sums) == 1:
        return Interval(value, float("nan"), float("nan"), 1)
    draws = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    estimates = sums[draws].sum(1) / counts[draws].sum(1)
    low, high = np.quantile(estimates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), len(sums))


def trend_with_depth(by_layer: Sequence[float]) -> float:
    """Return Spearman's rank correlation of a per-layer number with the layer; -1 falls at every step.

    >>> trend_with_depth([0.9, 0.5, 0.4])
    -1.0
    """
    if len(by_layer) < 2 or np.ptp(by_layer) == 0:
        return float("nan")
    return float(round(stats.spearmanr(np.arange(len(by_layer)), by_layer).statistic, 12))
