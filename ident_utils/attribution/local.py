"""Attribution within one layer, and attention rolled out over layers: what raw attention is compared with."""

import torch
from torch import Tensor

from ident_utils.attribution.engine import span_of
from ident_utils.attribution.estimate import sampled_squares, shares
from ident_utils.models import Encoder, Text


def local_attribution(
    encoder: Encoder, text: Text, *, probes: int = 2, seed: int = 0, truncate: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return what each token of a layer's *input* contributes within that layer.

    First to the layer's output, [L, n_out, n_in], then to the output A V of each head, [L, H, n_out, n_in].
    """
    encoding = encoder.encode(text, truncate=truncate)
    found = []
    for layer in range(1, encoder.n_layers + 1):
        span = span_of(encoder, layer - 1, [layer], heads=True)
        found.append(shares(sampled_squares(encoder, encoding, span, probes, seed + layer).mean))
    together = torch.stack(found).cpu()
    return together[:, -1], together[:, :-1]


def attention_rollout(attention: Tensor) -> Tensor:
    """Multiply the layers' mean attention, half identity for the residual, up to each layer: [L, n, n].

    ``attention`` is [L, H, n, n]; rows of the result sum to one (Abnar and Zuidema 2020, arXiv 2005.00928).
    Raises ValueError for another shape.
    """
    if attention.ndim != 4 or attention.shape[-1] != attention.shape[-2]:
        raise ValueError(f"attention must have the shape [L, H, n, n], not {tuple(attention.shape)}.")
    mixed = 0.5 * attention.double().mean(1) + 0.5 * torch.eye(attention.shape[-1], dtype=torch.float64)
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return torch.stack(rolled)
