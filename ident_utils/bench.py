"""Benchmarks: two ways to the same result, side by side in one run, as a ratio of times.

Absolute times depend on the machine; ratios much less. Each line also says how far the two results are apart.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from ident_utils.attention import RowPolytope, effective_attention
from ident_utils.bench_attribution import (
    bench_attribution,
    bench_attribution_batched,
    bench_attribution_exact,
    bench_lengths,
)
from ident_utils.bench_cluster import bench_workers
from ident_utils.corpora import load_corpus
from ident_utils.errors import IdentError
from ident_utils.experiments.identity_retention import missed
from ident_utils.experiments.rank_bound import relative_change
from ident_utils.experiments.replacement import replace_everywhere
from ident_utils.families import output_projections
from ident_utils.fitting import RIDGE_STRENGTHS, fit_ridge
from ident_utils.models import load_encoder
from ident_utils.settings import load_settings
from ident_utils.states import collect_split
from ident_utils.timing import Line, seconds
from ident_utils.trace import hidden_with_attention
from ident_utils.whitening import DEVIATION_FLOOR, spectrum


def bench_effective_attention() -> Line:
    """Compare a thin decomposition of V with the full singular value decomposition of T = V W_O."""
    settings = load_settings()
    encoder = load_encoder(settings.model, dtype=torch.float64)
    trace = encoder.trace(load_corpus(settings.long_corpus, 1)[0], truncate=128)
    weights = [p.weight for p in output_projections(encoder.model, encoder.family)]
    blocks = torch.stack([w.T.unflatten(0, (encoder.n_heads, encoder.head_dim)) for w in weights])

    ours, fast = seconds(lambda: effective_attention(trace.attention, trace.values).weights)
    plain, slow = seconds(lambda: _by_full_svd(trace.attention, trace.values @ blocks), repeats=1)
    setting = f"{encoder.name}, n = {trace.n_tokens}, {encoder.n_layers * encoder.n_heads} heads, float64"
    worst = (fast - slow).abs().max().item()
    return Line(
        "effective attention, full SVD of T / QR of V and svdvals of R",
        setting,
        plain,
        ours,
        f"differ by {worst:.0e}",
    )


def _by_full_svd(attention: Tensor, transformed: Tensor) -> Tensor:
    """Project head by head onto the complement of the left null space of T, as published code does."""
    rows = []
    for weights, matrix in zip(attention.flatten(0, 1), transformed.flatten(0, 1), strict=True):
        basis, singular, _ = torch.linalg.svd(matrix, full_matrices=True)
        rank = int((singular > singular[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps).sum())
        null = basis[:, rank:]
        rows.append(weights - weights @ null @ null.T)
    return torch.stack(rows).reshape(attention.shape)


def bench_interval(rows: int = 12) -> Line:
    """Compare intervals of the weights above 0.05 of some rows with two calls of scipy's ``linprog`` for each."""
    settings = load_settings()
    encoder = load_encoder(settings.model, dtype=torch.float64)
    trace = encoder.trace(load_corpus(settings.long_corpus, 1)[0], truncate=128)
    heads = [(i % encoder.n_layers, i % encoder.n_heads) for i in range(rows)]
    cases = [(trace.attention[at][60].numpy(), trace.values[at]) for at in heads]
    tokens = [np.flatnonzero(row >= min(0.05, row.max())) for row, _ in cases]
    count = sum(len(t) for t in tokens)

    ours, fast = seconds(lambda: [_intervals(*case, t) for case, t in zip(cases, tokens, strict=True)])
    plain, slow = seconds(
        lambda: [_by_linprog(row, v.numpy(), t) for (row, v), t in zip(cases, tokens, strict=True)], 1
    )
    worst = max(np.abs(np.array(a)[:, :2] - np.array(b)).max() for a, b in zip(fast, slow, strict=True))
    gap = max(np.array(a)[:, 2].max() for a in fast)
    setting = f"{encoder.name}, n = {trace.n_tokens}, {count} weights of {rows} rows, float64"
    difference = (
        f"per interval {1e3 * plain / count:.0f} ms against {1e3 * ours / count:.0f} ms, differ by {worst:.0e}"
    )
    return Line(
        "interval of a weight, linprog / highspy", setting, plain, ours, f"{difference}, certified to {gap:.0e}"
    )


def _intervals(row: np.ndarray, values: Tensor, tokens: Sequence[int]) -> list[tuple[float, float, float]]:
    return RowPolytope(values).intervals(row, tokens)


def _by_linprog(row: np.ndarray, values: np.ndarray, tokens: Sequence[int]) -> list[tuple[float, float]]:
    constraints = np.c_[values, np.ones(len(row))].T
    found = []
    for j in tokens:
        direction = np.eye(len(row))[j]
        ends = [
            linprog(sign * direction, A_eq=constraints, b_eq=constraints @ row, method="highs").fun
            for sign in (1, -1)
        ]
        found.append((ends[0], -ends[1]))
    return found


def bench_replacement(limit: float = 40.0) -> Line:
    """Time other attention for every head of every layer, alternative, control and forward passes together."""
    settings = load_settings()
    encoder = load_encoder(settings.model, dtype=torch.float64)
    text = load_corpus(settings.long_corpus, 1)[0]

    def replaced() -> float:
        trace, other, _, _ = replace_everywhere(encoder, text, 128)
        hidden = hidden_with_attention(encoder, text, dict(enumerate(other, start=1)), truncate=128)
        return relative_change(trace.hidden[-1], hidden[-1])

    ours, change = seconds(replaced, repeats=1)
    setting = f"{encoder.name}, n = 128, {encoder.n_layers * encoder.n_heads} heads, float64"
    return Line("all attention replaced, bar / measured", setting, limit, ours, f"last hidden states by {change:.0e}")


def bench_ridge(texts: int = 60) -> Line:
    """Compare ridge regression at all strengths from one spectrum with a solve for each; validation rates agree."""
    settings = load_settings()
    encoder = load_encoder(settings.model)
    split = collect_split(encoder, load_corpus(settings.corpus, texts))
    layer = encoder.n_layers // 2
    hidden, inputs, held = split.train.hidden[layer], split.train.inputs, split.validation.hidden[layer]
    score = missed(split.validation)

    plain, slow = seconds(lambda: {s: score(_ridge(hidden, inputs, s)(held)) for s in RIDGE_STRENGTHS}, 1)
    ours, fast = seconds(lambda: fit_ridge(hidden, inputs, spectrum(hidden), held, score)[2])
    worst = max(abs(fast[strength] - slow[strength]) for strength in RIDGE_STRENGTHS)
    setting = f"{encoder.name}, layer {layer}, {len(hidden)} tokens, {len(RIDGE_STRENGTHS)} strengths, float64"
    return Line(
        "ridge, a solve for each strength / one spectrum", setting, plain, ours, f"rates differ by {worst:.0e}"
    )


def _ridge(hidden: Tensor, inputs: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    """Solve the normal equations of standardised states, as anyone would."""
    mean, target = hidden.double().mean(0), inputs.double().mean(0)
    deviation = hidden.double().std(0, correction=0)
    deviation = deviation.clamp_min(DEVIATION_FLOOR * deviation.square().mean().sqrt())
    white = (hidden.double() - mean) / deviation
    gram = white.T @ white / len(white)
    gram.diagonal().add_(strength * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, white.T @ (inputs.double() - target) / len(white))
    return lambda states: ((states.double() - mean) / deviation @ weight + target).float()


BENCHMARKS: dict[str, Callable[[], object]] = {
    "effective-attention": bench_effective_attention,
    "interval": bench_interval,
    "replacement": bench_replacement,
    "ridge": bench_ridge,
    "attribution": bench_attribution,
    "attribution-batched": bench_attribution_batched,
    "attribution-exact": bench_attribution_exact,
    "attribution-lengths": bench_lengths,
    "workers": bench_workers,
}


def main(names: Sequence[str] = ()) -> None:
    """Run the named benchmarks, or all, and print a line for each."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise IdentError(f"There is no benchmark {unknown[0]!r}; choose among {', '.join(BENCHMARKS)}.")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for name in names or BENCHMARKS:
        print(BENCHMARKS[name](), flush=True)
