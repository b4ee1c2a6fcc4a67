"""Checks of shapes and values, shared by every module that takes tensors."""

import torch
from torch import Tensor


def check_finite(tensor: Tensor, name: str, axes: tuple[str, ...] = ()) -> None:
    """Raise ValueError if ``tensor`` holds NaN or Inf, naming the first bad place.

    ``axes`` names the leading axes (for instance ``("layer", "head")``); layers and heads are counted from 1.
    """
    bad = ~torch.isfinite(tensor)
    if not bool(bad.any()):
        return
    first = torch.nonzero(bad)[0].tolist()
    place = [f"{axis} {i + (axis in ('layer', 'head'))}" for axis, i in zip(axes, first, strict=False)]
    where = f" in {', '.join(place)}" if place else ""
    raise ValueError(
        f"{name} has NaN or Inf{where} ({int(bad.sum())} of {tensor.numel()} values); "
        "check the weights, or load the model in float32 or float64."
    )


def check_attention_and_values(attention: Tensor, values: Tensor) -> None:
    """Raise ValueError unless ``attention`` is [..., n, n] and ``values`` is [..., n, d_v] over the same axes."""
    if attention.ndim < 2 or values.ndim < 2 or attention.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"attention {tuple(attention.shape)} and values {tuple(values.shape)} do not fit: the last axis of "
            "attention and the second last of values must both count the tokens attended to."
        )
    if attention.shape[:-2] != values.shape[:-2]:
        raise ValueError(
            f"attention {tuple(attention.shape)} and values {tuple(values.shape)} differ in their leading axes; "
            "pass both for the same layers and heads."
        )
    axes = ("layer", "head") if attention.ndim == 4 else ()
    check_finite(attention, "attention", axes)
    check_finite(values, "values", axes)


def check_rows_are_probabilities(attention: Tensor) -> None:
    """Raise ValueError unless every row of ``attention`` [..., n] is non-negative and sums to one.

    Sums may be off by the rounding of half precision.
    """
    worst = (attention.double().sum(-1) - 1).abs().max().item() if attention.numel() else 0.0
    if worst > 1e-2 or attention.min() < 0:
        raise ValueError(
            f"rows of attention must be probability distributions; the smallest weight is {attention.min():.1e} and "
            f"a sum is off by {worst:.1e}: pass attention after the softmax."
        )
