"""Benchmarks: two ways to the same result, side by side in one run, as a ratio of times.

Absolute times depend on the machine; ratios much less. Each line also says how far the two results are apart.
"""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from ident_utils.attention import RowPolytope, effective_attention
from ident_utils.attribution.cost import tangent_operations
from ident_utils.attribution.engine import (
    push,
    random_tangents,
    source_state,
    span_function,
    span_of,
    squared_norm,
    tangents_per_chunk,
)
from ident_utils.attribution.estimate import sampled_squares, shares, standard_error
from ident_utils.attribution.precision import matrix_rate
from ident_utils.corpora import load_corpus
from ident_utils.errors import IdentError
from ident_utils.experiments.rank_bound import relative_change
from ident_utils.experiments.replacement import replace_everywhere
from ident_utils.families import output_projections
from ident_utils.hooks import substitute_output
from ident_utils.models import Encoder, Encoding, load_encoder
from ident_utils.settings import load_settings
from ident_utils.trace import hidden_with_attention


@dataclass(frozen=True)
class Line:
    """Hold one comparison: seconds of the plain way and of ours, and how far their results differ."""

    name: str
    setting: str
    plain: float
    ours: float
    difference: str

    def __str__(self) -> str:
        """Print the line."""
        ratio = self.plain / self.ours
        times = f"{self.plain:.2f} s against {self.ours:.2f} s, ×{ratio:.1f}"
        return f"{self.name}: {times} ({self.setting}; {self.difference})"


def seconds(run: Callable[[], object], repeats: int = 3) -> tuple[float, object]:
    """Return the shortest time of a few runs, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


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
    return Line("effective attention, full SVD of T / thin SVD of V", setting, plain, ours, f"differ by {worst:.0e}")


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
    polytope = RowPolytope(values)
    return [polytope.interval(row, j) for j in tokens]


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


def bench_attribution(probes: int = 4, sampled: int = 2) -> Line:
    """Compare forward mode, all layers at once, with one reverse pass per output token, layer and probe.

    The reverse passes of ``sampled`` output tokens are timed in every layer, and scaled to all tokens.
    """
    return _forward_against_reverse(probes, sampled, batched=False)


def bench_attribution_batched(probes: int = 4, sampled: int = 4) -> Line:
    """Compare forward mode with reverse passes batched over output tokens and probes, one batch a layer."""
    return _forward_against_reverse(probes, sampled, batched=True)


def _forward_against_reverse(probes: int, sampled: int, *, batched: bool) -> Line:
    settings = load_settings()
    encoder = load_encoder(settings.model)
    encoding = _encoding_of_about(encoder, settings.corpus, 68)
    n, span = len(encoding.tokens), span_of(encoder)
    tokens = torch.linspace(0, n - 1, sampled).long().tolist()

    ours, found = seconds(lambda: sampled_squares(encoder, encoding, span, probes, seed=0), repeats=1)
    part, slow = seconds(lambda: _by_reverse(encoder, encoding, tokens, probes, batched=batched), repeats=1)
    operations = n * probes * tangent_operations(encoder, n, encoder.n_layers)
    peak = matrix_rate("cpu", torch.float32)
    apart = (shares(found.mean)[:, tokens] - shares(slow.double())).square().mean().sqrt().item()
    stated = standard_error(found)[:, tokens].square().mean().sqrt().item()
    ways = "reverse, batched" if batched else "reverse per output token and layer"
    return Line(
        f"attribution, {ways} / forward",
        f"{encoder.name}, n = {n}, {probes} probes, {encoder.n_layers} layers, float32",
        part * n / sampled,
        ours,
        f"{sampled} of {n} tokens timed in reverse; forward at {operations / ours / 1e9:.0f} GFLOP/s, "
        f"{operations / ours / peak:.0%} of a lone product's; shares apart by {apart:.1e}, "
        f"standard error of the forward ones {stated:.1e}",
    )


def _encoding_of_about(encoder: Encoder, corpus: str, n: int) -> Encoding:
    encodings = [encoder.encode(text) for text in load_corpus(corpus, 60)]
    return min(encodings, key=lambda encoding: abs(len(encoding.tokens) - n))


def _by_reverse(
    encoder: Encoder, encoding: Encoding, tokens: Sequence[int], probes: int, *, batched: bool = False
) -> Tensor:
    """Estimate ||de_j^l/dx_i||_F^2 by vector-Jacobian products: [L, len(tokens), n_in]."""
    generator = torch.Generator().manual_seed(0)
    inputs = source_state(encoder, encoding, span_of(encoder)).clone().requires_grad_()
    with torch.enable_grad(), substitute_output(encoder.embeddings, inputs):
        hidden = encoder.run(encoding).hidden_states[1:]
    squares = torch.zeros(len(hidden), len(tokens), inputs.shape[1])
    rows = torch.arange(len(tokens)).repeat_interleave(probes)
    for layer, states in enumerate(hidden):
        cotangents = torch.zeros(len(rows), *states.shape)
        drawn = torch.randn(len(rows), inputs.shape[-1], generator=generator)
        cotangents[torch.arange(len(rows)), 0, torch.tensor(tokens)[rows]] = drawn
        if batched:
            gradients = torch.autograd.grad(states, inputs, cotangents, retain_graph=True, is_grads_batched=True)[0]
        else:
            gradients = [torch.autograd.grad(states, inputs, one, retain_graph=True)[0] for one in cotangents]
        for row, gradient in zip(rows.tolist(), gradients, strict=True):
            squares[layer, row] += gradient[0].square().sum(-1) / probes
    return squares


@dataclass(frozen=True)
class Scaling:
    """Hold seconds and peak memory of one chunk of tangents, by the length of the text."""

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]  # of a whole attribution with one probe, from one chunk
    chunks: tuple[int, ...]

    def __str__(self) -> str:
        """Print the line, with the exponent of time against length."""
        exponent = np.polyfit(np.log(self.lengths), np.log(self.seconds), 1)[0]
        points = ", ".join(
            f"n = {n}: {s:.1f} s in chunks of {c}"
            for n, s, c in zip(self.lengths, self.seconds, self.chunks, strict=True)
        )
        return (
            f"attribution by length, one probe: {points}; time grows as n^{exponent:.2f}; peak memory {peak_memory()}"
        )


def peak_memory() -> str:
    """Say the largest resident set of this process so far."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB"


def bench_lengths(lengths: Sequence[int] = (32, 64, 128, 256, 512)) -> Scaling:
    """Time one chunk of tangents at each length, and scale it to the whole text."""
    settings = load_settings()
    encoder = load_encoder(settings.model)
    text = " ".join(str(t) for t in load_corpus(settings.long_corpus, 3))
    times, chunks = [], []
    for n in lengths:
        encoding, span = encoder.encode(text, truncate=n), span_of(encoder)
        run, state = span_function(encoder, encoding, span), source_state(encoder, encoding, span)
        size = min(n, tangents_per_chunk(encoder, n))
        part = random_tangents(n, encoder.width, 1, 0).split(size)[0]
        once, _ = seconds(lambda run=run, state=state, part=part: push(run, state, part, squared_norm), repeats=2)
        times.append(once * n / size)
        chunks.append(size)
    return Scaling(tuple(lengths), tuple(times), tuple(chunks))


BENCHMARKS: dict[str, Callable[[], Line | Scaling]] = {
    "effective-attention": bench_effective_attention,
    "interval": bench_interval,
    "replacement": bench_replacement,
    "attribution": bench_attribution,
    "attribution-batched": bench_attribution_batched,
    "attribution-lengths": bench_lengths,
}


def main(names: Sequence[str] = ()) -> None:
    """Run the named benchmarks, or all, and print a line for each."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise IdentError(f"There is no benchmark {unknown[0]!r}; choose among {', '.join(BENCHMARKS)}.")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for name in names or BENCHMARKS:
        print(BENCHMARKS[name](), flush=True)
