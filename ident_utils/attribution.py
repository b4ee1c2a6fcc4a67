"""Hidden Token Attribution: how much of a hidden state comes from each input token.

The contribution of input token i to hidden state j after layer l is the Frobenius norm of the Jacobian block
de_j^l / dx_i, divided by the sum of these norms over all input tokens (paper, section on Hidden Token
Attribution). x_i is the embedding block's output, ``hidden[0]``.

The blocks are never formed. For u ~ N(0, I) at input token i, E ||J_ij u||^2 = ||J_ij||_F^2, so a few random
tangents per input token estimate all norms without bias. Pushed through the model in forward mode, one tangent
gives its image in every token of every layer; reverse mode would need a pass for each output token and layer.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import jvp, vmap

from ident_utils.hooks import substitute_output
from ident_utils.models import Encoder, Encoding, Text
from ident_utils.progress import track

METHODS = ("jacobian",)
CHUNK_BYTES = 384 * 2**20  # memory that one chunk of tangents may take, whatever the length of the text


def hidden_token_attribution(
    encoder: Encoder,
    text: Text,
    *,
    method: str = "jacobian",
    probes: int = 2,
    exact: bool = False,
    seed: int = 0,
    truncate: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return the contribution of every input token to every hidden state: [L, n_out, n_in], rows sum to one.

    ``probes`` random tangents per input token are used; ``exact`` takes the d unit vectors instead (n * d
    passes: short texts only). ``chunk`` is the number of tangents pushed at once, by default as many as
    CHUNK_BYTES holds; it changes the result by rounding only. A text of a single token gives one.

    Raises ValueError for an unknown method or fewer than one probe, IdentError for a text that does not fit.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    if probes < 1:
        raise ValueError(f"probes must be at least 1, not {probes}.")
    encoding = encoder.encode(text, truncate=truncate)
    squares = squared_block_norms(encoder, encoding, None if exact else probes, seed, chunk)
    norms = squares.sqrt()
    return norms / norms.sum(-1, keepdim=True)


def squared_block_norms(
    encoder: Encoder, encoding: Encoding, probes: int | None, seed: int, chunk: int | None = None
) -> Tensor:
    """Return ||de_j^l/dx_i||_F^2 for all l, j, i: [L, n_out, n_in]; ``probes=None`` means exactly."""
    with torch.no_grad():
        inputs = encoder.embedded(encoding)
    n, d = inputs.shape[1:]

    def layers(embedded: Tensor) -> Tensor:
        with substitute_output(encoder.embeddings, embedded):
            return torch.cat(encoder.run(encoding).hidden_states[1:])

    def pushed_square(token: Tensor, direction: Tensor) -> Tensor:
        tangent = torch.zeros_like(inputs).index_put((torch.zeros_like(token), token), direction)
        return jvp(layers, (inputs,), (tangent,))[1].square().sum(-1)

    size = chunk or tangents_per_chunk(encoder, n)
    squares = torch.zeros(encoder.n_layers, n, n, dtype=torch.float64, device=inputs.device)
    for tokens, directions in track(list(_chunks(n, d, probes, seed, size)), "tangents"):
        pushed = vmap(pushed_square)(tokens.to(inputs.device), directions.to(inputs))
        squares.index_add_(2, tokens.to(inputs.device), pushed.permute(1, 2, 0).double())
    return squares / (probes or 1)


def _chunks(n: int, d: int, probes: int | None, seed: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input tokens [b], directions [b, d]) until every token has had all its tangents."""
    if probes is None:
        directions, tokens = torch.eye(d).repeat(n, 1), torch.arange(n).repeat_interleave(d)
    else:
        generator = torch.Generator().manual_seed(seed)
        directions, tokens = torch.randn(n * probes, d, generator=generator), torch.arange(n).repeat(probes)
    yield from zip(tokens.split(size), directions.split(size), strict=True)


def tangents_per_chunk(encoder: Encoder, n: int) -> int:
    """Return how many tangents of an n-token text fit in CHUNK_BYTES, at least one."""
    config = encoder.model.config
    inner = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 4 * encoder.width)
    numbers = n * (encoder.width * (encoder.n_layers + 8) + 3 * inner + 3 * encoder.n_heads * n)
    return max(1, CHUNK_BYTES // (numbers * encoder.dtype.itemsize))


def own_contribution(contributions: Tensor) -> Tensor:
    """Return each token's contribution to its own hidden state: [L, n] from [L, n_out, n_in]."""
    return contributions.diagonal(dim1=1, dim2=2)


def own_is_largest(contributions: Tensor) -> Tensor:
    """Say for each hidden state whether its own token contributes most: bool [L, n] from [L, n_out, n_in]."""
    n = contributions.shape[-1]
    return contributions.argmax(-1) == torch.arange(n, device=contributions.device)


def by_relative_position(contributions: Tensor, reach: int) -> Tensor:
    """Return the mean contribution by offset: [L, 2 * reach + 1] from [L, n_out, n_in]; NaN where no pair is.

    Column ``reach + o`` averages over hidden states j the contribution of input token j + o.
    """
    if reach < 0:
        raise ValueError(f"reach must not be negative, got {reach}.")
    offsets = range(-reach, reach + 1)
    return torch.stack([contributions.diagonal(o, dim1=1, dim2=2).mean(-1) for o in offsets], dim=-1)
