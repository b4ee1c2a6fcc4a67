"""Benchmarks of Hidden Token Attribution: forward mode against reverse mode, against exact, and by length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ident_utils.attribution import attribute
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
from ident_utils.attribution.estimate import Squares, sampled_squares, shares, standard_error
from ident_utils.attribution.precision import matrix_rate
from ident_utils.corpora import load_corpus
from ident_utils.hooks import substitute_output
from ident_utils.models import Encoder, Encoding, load_encoder
from ident_utils.settings import load_settings
from ident_utils.timing import Line, forget_peak_memory, peak_memory, seconds

ABOUT = 68  # tokens
PROBES = 4


@cache
def _forward() -> tuple[Encoder, Encoding, float, Squares]:
    """Attribute one text to all its tokens in all layers, once for all lines: model, text, seconds, squares."""
    settings = load_settings()
    encoder = load_encoder(settings.model)
    encodings = [encoder.encode(text) for text in load_corpus(settings.corpus, 60)]
    encoding = min(encodings, key=lambda each: abs(len(each.tokens) - ABOUT))
    ours, found = seconds(lambda: sampled_squares(encoder, encoding, span_of(encoder), PROBES, seed=0), repeats=1)
    return encoder, encoding, ours, found


def bench_attribution() -> Line:
    """Compare forward mode with one reverse pass for each output token, layer and probe."""
    return _against_reverse([1 / 3], batched=False)


def bench_attribution_batched() -> Line:
    """Compare forward mode with reverse passes batched over output tokens and probes, a batch a layer."""
    return _against_reverse([0.1, 0.3, 0.6, 0.9], batched=True)


def _against_reverse(places: Sequence[float], *, batched: bool) -> Line:
    """Time reverse mode on some output tokens, named by their place in the text from 0 to 1, and scale it to all."""
    encoder, encoding, ours, found = _forward()
    n = len(encoding.tokens)
    tokens = [round(place * (n - 1)) for place in places]
    part, slow = seconds(lambda: _by_reverse(encoder, encoding, tokens, batched=batched), repeats=1)
    operations = n * PROBES * tangent_operations(encoder, n, encoder.n_layers)
    share = operations / ours / matrix_rate("cpu", torch.float32, 8192)
    apart = (shares(found.mean)[:, tokens] - shares(slow.double())).square().mean().sqrt().item()
    stated = standard_error(found)[:, tokens].square().mean().sqrt().item()
    ways = "in batches" if batched else "one by one"
    return Line(
        f"attribution, reverse mode {ways} / forward mode",
        f"{encoder.name}, n = {n}, {PROBES} probes, {encoder.n_layers} layers, float32",
        part * n / len(tokens),
        ours,
        f"reverse timed on {len(tokens)} of {n} output tokens and scaled to all; forward at "
        f"{operations / ours / 1e9:.0f} GFLOP/s, {share:.0%} of a lone product's; "
        f"shares apart by {apart:.1e} where each has a standard error of {stated:.1e}",
    )


def _by_reverse(encoder: Encoder, encoding: Encoding, tokens: Sequence[int], *, batched: bool) -> Tensor:
    """Estimate ||de_j^l/dx_i||_F^2 by vector-Jacobian products: [L, len(tokens), n_in]."""
    generator = torch.Generator().manual_seed(0)
    inputs = source_state(encoder, encoding, span_of(encoder)).clone().requires_grad_()
    with torch.enable_grad(), substitute_output(encoder.embeddings, inputs):
        hidden = encoder.run(encoding).hidden_states[1:]
    squares = torch.zeros(len(hidden), len(tokens), inputs.shape[1])
    rows = torch.arange(len(tokens)).repeat_interleave(PROBES)
    for layer, states in enumerate(hidden):
        cotangents = torch.zeros(len(rows), *states.shape)
        drawn = torch.randn(len(rows), inputs.shape[-1], generator=generator)
        cotangents[torch.arange(len(rows)), 0, torch.tensor(tokens)[rows]] = drawn
        if batched:
            gradients = torch.autograd.grad(states, inputs, cotangents, retain_graph=True, is_grads_batched=True)[0]
        else:
            gradients = [torch.autograd.grad(states, inputs, one, retain_graph=True)[0] for one in cotangents]
        for row, gradient in zip(rows.tolist(), gradients, strict=True):
            squares[layer, row] += gradient[0].square().sum(-1) / PROBES
    return squares


def bench_attribution_exact(tokens: int = 10) -> Line:
    """Compare estimates with exact contributions, on a small model and a short text: what whole Jacobians cost."""
    encoder = load_encoder("minilm-l6")
    text = load_corpus(load_settings().corpus, 1)[0]
    plain, exact = seconds(lambda: attribute(encoder, text, exact=True, truncate=tokens), repeats=1)
    ours, found = seconds(lambda: attribute(encoder, text, probes=PROBES, truncate=tokens, precision="float32"))
    error = found.contributions - exact.contributions
    ratio = (error.square().mean() / found.standard_error.square().mean()).sqrt().item()
    within = (error.abs() < 2 * found.standard_error).double().mean().item()
    return Line(
        "attribution, exact / estimated",
        f"{encoder.name}, n = {tokens}, {PROBES} probes, {encoder.n_layers} layers, float64 / float32",
        plain,
        ours,
        f"error {ratio:.2f} of the stated standard error, {within:.0%} within twice of it",
    )


@dataclass(frozen=True)
class Scaling:
    """Hold what a chunk of tangents costs, by the length of the text."""

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]  # of a whole attribution with one probe, scaled from one chunk
    chunks: tuple[int, ...]  # tangents in it
    peaks: tuple[float, ...]  # resident bytes while it was pushed
    setting: str

    def __str__(self) -> str:
        """Print the line, with the exponent of time against length."""
        exponent = np.polyfit(np.log(self.lengths), np.log(self.seconds), 1)[0]
        columns = zip(self.lengths, self.seconds, self.chunks, self.peaks, strict=True)
        points = "; ".join(f"n = {n}: {s:.0f} s, {c} at once, {peak / 1e9:.1f} GB" for n, s, c, peak in columns)
        return (
            f"attribution by length, scaled from one chunk: time grows as n^{exponent:.2f} ({self.setting}; {points})"
        )


def bench_lengths(lengths: Sequence[int] = (32, 64, 128, 256, 512)) -> Scaling:
    """Time one chunk of tangents at each length and scale it to the whole text; watch the memory."""
    settings = load_settings()
    encoder = load_encoder(settings.model)
    text = " ".join(str(t) for t in load_corpus(settings.long_corpus, 3))
    times, chunks, peaks = [], [], []
    for n in lengths:
        encoding, span = encoder.encode(text, truncate=n), span_of(encoder)
        forget_peak_memory()
        run, state = span_function(encoder, encoding, span), source_state(encoder, encoding, span)
        size = min(n, tangents_per_chunk(encoder, n))
        part = random_tangents(n, encoder.width, 1, 0).split(size)[0]
        once, _ = seconds(lambda run=run, state=state, part=part: push(run, state, part, squared_norm), repeats=1)
        times.append(once * n / size)
        chunks.append(size)
        peaks.append(peak_memory())
    setting = f"{encoder.name}, one probe, {encoder.n_layers} layers, float32"
    return Scaling(tuple(lengths), tuple(times), tuple(chunks), tuple(peaks), setting)
