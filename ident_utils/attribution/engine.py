"""Push random tangents forward through the stock model and measure what arrives, at every layer at once.

The contribution of input token i to hidden state j after layer l is the norm of the Jacobian block de_j^l / dx_i.
The blocks are never formed: for u ~ N(0, I) at token i, E ||J_ij u||^2 = ||J_ij||_F^2, so a few tangents for each
input token estimate all norms without bias. In forward mode one tangent gives its image in every token of every
layer; reverse mode would need a pass for each output token and layer.

A *target* is what the contribution is to: a hidden state after a layer, or one head's output. T counts targets.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import jvp, vmap

from ident_utils.errors import IdentError
from ident_utils.families import layers_of, output_projections
from ident_utils.hooks import rewrite_input, substitute_output
from ident_utils.memory import available_memory, check_room
from ident_utils.models import Encoder, Encoding

CHUNK_BYTES = 384 * 2**20  # memory that one chunk of tangents may take, whatever the length of the text

# What may be summed of the tangents that arrive, from [T, n, w] to [T, n].
Reading = Callable[[Tensor], Tensor]
Run = Callable[[Tensor], tuple[Tensor, ...]]  # from the source state [1, n, d] to targets [t, n, w]


@dataclass(frozen=True)
class Span:
    """Name a part of the model: from the state after layer ``source`` (0: the embedding block) to ``layers``."""

    source: int
    layers: tuple[int, ...]  # counted from 1, ascending
    heads: bool = False  # the targets are the heads' outputs A V of these layers, and after them the hidden states

    def targets(self, n_heads: int) -> int:
        """Count the targets."""
        return len(self.layers) * (n_heads + 1 if self.heads else 1)


def span_of(encoder: Encoder, source: int = 0, layers: Sequence[int] | None = None, *, heads: bool = False) -> Span:
    """Check source and layers against the model; by default every layer after the source.

    Raises ValueError where they are not in it, and IdentError for a model whose attention is not eager.
    """
    if not 0 <= source < encoder.n_layers:
        raise ValueError(f"source must be 0 (the embedding block) to {encoder.n_layers - 1}, not {source}.")
    wanted = tuple(range(source + 1, encoder.n_layers + 1)) if layers is None else tuple(layers)
    in_order = all(a < b for a, b in pairwise(wanted))
    if not wanted or not in_order or not source < wanted[0] <= wanted[-1] <= encoder.n_layers:
        raise ValueError(
            f"layers must ascend from {source + 1} to {encoder.n_layers}, those after the source; got {wanted}."
        )
    kind = encoder.model.config._attn_implementation
    if kind != "eager":
        raise IdentError(
            f"{encoder.name} computes attention by {kind!r}, which has no forward derivative; "
            "load it with load_encoder, which asks for eager attention."
        )
    if source and encoder.family.shares_layers:
        raise IdentError(
            f"The layers of {encoder.name} share their weights and cannot be run one without the others; ask for "
            "contributions of the embedding block's output (source 0)."
        )
    return Span(source, wanted, heads)


def source_state(encoder: Encoder, encoding: Encoding, span: Span) -> Tensor:
    """Return the state the span starts from: [1, n, d], or [1, n, d_in] of narrower inputs."""
    if span.source == 0:
        return encoder.embedded(encoding)
    with torch.no_grad():
        return encoder.run(encoding).hidden_states[span.source]


def span_function(encoder: Encoder, encoding: Encoding, span: Span) -> Run:
    """Return the function from the source state [1, n, d] to the targets, a tuple of [t, n, w], T in all.

    It is the stock model with the layers outside the span left out.
    """

    def run(state: Tensor) -> tuple[Tensor, ...]:
        contexts: dict[int, Tensor] = {}

        def keep(layer: int, given: Tensor) -> Tensor:
            contexts[layer] = given
            return given

        with ExitStack() as stack:
            if span.heads:
                projections = output_projections(encoder.model, encoder.family)
                stack.enter_context(rewrite_input([projections[layer - 1] for layer in span.layers], keep))
            stack.enter_context(_only_layers(encoder, span))
            stack.enter_context(substitute_output(_entrance(encoder, span), state))
            hidden = encoder.run(encoding).hidden_states
        heads = tuple(encoder.split_heads(contexts[i][0]) for i in range(len(span.layers))) if span.heads else ()
        return heads + tuple(hidden[layer - span.source] for layer in span.layers)

    return run


def _entrance(encoder: Encoder, span: Span) -> torch.nn.Module:
    """Return the module whose output the first layer of the span gets: what widens inputs, where states come in."""
    widening = encoder.family.widening
    if span.source and widening and hasattr(encoder.model, widening):
        return encoder.model.get_submodule(widening)
    return encoder.embeddings


@contextmanager
def _only_layers(encoder: Encoder, span: Span) -> Iterator[None]:
    """Let the model run only the layers of the span, and those after it where more than layers follows.

    A final norm would otherwise act on the wrong layer's state, and shared layers cannot be told apart.
    """
    family, layers = encoder.family, layers_of(encoder.model, encoder.family)
    last = len(layers) if family.final_norm or family.shares_layers else span.layers[-1]
    if (span.source, last) == (0, len(layers)):
        yield
        return
    path, _, name = family.layers.rpartition(".")
    parent = encoder.model.get_submodule(path)
    whole = getattr(parent, name)
    setattr(parent, name, torch.nn.ModuleList(layers[span.source : last]))
    try:
        yield
    finally:
        setattr(parent, name, whole)


def squared_norm(pushed: Tensor) -> Tensor:
    """Return the squared norm over the last axis."""
    return pushed.float().square().sum(-1) if pushed.dtype is torch.bfloat16 else pushed.square().sum(-1)


@dataclass(frozen=True)
class Tangents:
    """Hold what is pushed: directions [N, d], each at one input token [N]."""

    tokens: Tensor
    directions: Tensor

    def split(self, size: int) -> list["Tangents"]:
        """Cut into chunks of at most ``size`` tangents."""
        pieces = zip(self.tokens.split(size), self.directions.split(size), strict=True)
        return [Tangents(*piece) for piece in pieces]


def random_tangents(n: int, d: int, probes: int, seed: int) -> Tangents:
    """Draw ``probes`` tangents from N(0, I) for each of n input tokens."""
    generator = torch.Generator().manual_seed(seed)
    return Tangents(torch.arange(n).repeat(probes), torch.randn(n * probes, d, generator=generator))


def unit_tangents(n: int, d: int) -> Tangents:
    """Return the d unit vectors for each of n input tokens: no sampling, n * d passes."""
    return Tangents(torch.arange(n).repeat_interleave(d), torch.eye(d).repeat(n, 1))


def push(run: Run, state: Tensor, tangents: Tangents, read: Reading, *, bf16: bool = False) -> Tensor:
    """Push one chunk of b tangents through ``run`` and read off what arrives: [b, T, n].

    With ``bf16`` matrix products are made in bfloat16, everything else as before.
    """
    mixed = torch.autocast(state.device.type, torch.bfloat16) if bf16 else nullcontext()

    def one(token: Tensor, direction: Tensor) -> Tensor:
        tangent = torch.zeros_like(state).index_put((torch.zeros_like(token), token), direction)
        with mixed:
            return torch.cat([read(target) for target in jvp(run, (state,), (tangent,))[1]])

    return vmap(one)(tangents.tokens.to(state.device), tangents.directions.to(state))


def tangents_per_chunk(encoder: Encoder, n: int) -> int:
    """Return how many tangents of an n-token text fit in CHUNK_BYTES, at least one."""
    return max(1, CHUNK_BYTES // tangent_bytes(encoder, n))


def tangent_bytes(encoder: Encoder, n: int) -> int:
    """Return the bytes that one tangent of an n-token text takes on its way."""
    numbers = n * (encoder.width * (encoder.n_layers + 8) + 3 * inner_width(encoder) + 3 * encoder.n_heads * n)
    return numbers * encoder.dtype.itemsize


def tangents_at_once(encoder: Encoder, n: int) -> int:
    """Return how many tangents are pushed at once: as many as CHUNK_BYTES and the free memory hold.

    Warns where memory is what limits it. Raises IdentError where it holds not even one.
    """
    wanted = tangents_per_chunk(encoder, n)
    if encoder.model.device.type != "cpu":
        return wanted
    return fitting(wanted, tangent_bytes(encoder, n), available_memory())


def fitting(wanted: int, each: int, free: int) -> int:
    """Return how many of the ``wanted`` tangents of ``each`` so many bytes fit in the free ones; see above."""
    check_room(each, "One tangent of this text", "cut the text", free)
    most = free // each
    if most < wanted:
        warnings.warn(
            f"{free / 1e9:.2f} GB of memory are free: {most} instead of {wanted} tangents go at once.", stacklevel=2
        )
    return min(wanted, most)


def inner_width(encoder: Encoder) -> int:
    """Return the width of the feed-forward block's inner layer."""
    config = encoder.model.config
    return getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 4 * encoder.width)
