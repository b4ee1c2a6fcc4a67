"""Mappings that predict a token's input x from its hidden state e: fit, predict, save, load."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ident_utils.errors import IdentError
from ident_utils.fitting import Affine, Score, apply, fit_by_descent, fit_ridge, mapping_loss
from ident_utils.results import write_atomically
from ident_utils.whitening import Spectrum, spectrum

KINDS = ("naive", "ridge", "linear", "mlp")
LOSSES = ("l2", "cosine")


@dataclass(frozen=True)
class Mapping:
    """Predict inputs [N, d] from hidden states [N, d_e]; made by :func:`fit_mapping` or :meth:`load`."""

    kind: str
    loss: str
    layers: tuple[Affine, ...] = field(default=(), repr=False)  # weight [d_in, d_out] and bias, a GELU between
    chosen: float | None = None  # the ridge strength, or the epoch, that validation chose
    validation: dict[float, float] = field(default_factory=dict)  # strength or epoch -> validation score

    @property
    def name(self) -> str:
        """Name the mapping for tables and figures."""
        return self.kind if self.kind in ("naive", "ridge") else f"{self.kind}, {self.loss} loss"

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the predicted inputs for hidden states [N, d_e].

        Raises ValueError for states of another width than the mapping was fitted on.
        """
        if self.layers and (hidden.ndim != 2 or hidden.shape[1] != len(self.layers[0][0])):
            raise ValueError(f"hidden {tuple(hidden.shape)} must be [N, {len(self.layers[0][0])}] for this mapping.")
        return apply(self.layers, hidden.float())

    def save(self, path: Path) -> None:
        """Write the mapping to a safetensors file, whole or not at all."""
        tensors = {
            f"{what}.{i}": t for i, layer in enumerate(self.layers) for what, t in zip("wb", layer, strict=True)
        }
        about = {
            "kind": self.kind,
            "loss": self.loss,
            "chosen": self.chosen,
            "validation": [*self.validation.items()],
        }
        write_atomically(Path(path), save(tensors, {"mapping": json.dumps(about)}))

    @classmethod
    def load(cls, path: Path) -> "Mapping":
        """Read what :meth:`save` wrote.

        Raises IdentError for a file that is missing or holds something else.
        """
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})["mapping"])
                depth = len(file.keys()) // 2
                layers = tuple((file.get_tensor(f"w.{i}"), file.get_tensor(f"b.{i}")) for i in range(depth))
            return cls(about["kind"], about["loss"], layers, about["chosen"], dict(map(tuple, about["validation"])))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise IdentError(f"{path} holds no mapping ({error}); fit it and save it again.") from error


def fit_mapping(
    hidden: Tensor,
    inputs: Tensor,
    kind: str = "ridge",
    loss: str = "l2",
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    score: Callable[[Tensor], float] | None = None,
    moments: Spectrum | None = None,
    seed: int = 0,
) -> Mapping:
    """Fit a mapping from hidden states [N, d_e] to inputs [N, d].

    ``kind``: "naive" takes the hidden state itself; "ridge" is linear in closed form; "linear" and "mlp" (one
    hidden layer as wide as the input, GELU) are trained on ``loss``, the mean squared error ("l2") or the cosine
    distance ("cosine"). ``validation`` (hidden, inputs) chooses the ridge strength and the best epoch; it must
    come from other sequences than the training data. What it chooses by is ``score``, a number to be made small
    from the predictions for the validation tokens; by default the loss. ``moments``, the :func:`spectrum` of
    ``hidden``, saves computing it for every mapping anew. Training is deterministic for a ``seed``.

    Raises ValueError for an unknown kind or loss, for shapes that do not fit, for fewer than two tokens, for
    inputs that are all the same, and for numbers that are not finite.
    """
    _check(hidden, inputs, kind, loss, validation)
    if kind == "naive":
        return Mapping(kind, loss)
    held, score = _scored(validation, score, loss)
    if moments is None:
        moments = spectrum(hidden)
    if kind == "ridge":
        return Mapping(kind, loss, *fit_ridge(hidden, inputs, moments, held, score))
    return Mapping(kind, loss, *fit_by_descent(hidden, inputs, kind, loss, moments, held, score, seed))


def _scored(
    validation: tuple[Tensor, Tensor] | None, score: Score | None, loss: str
) -> tuple[Tensor | None, Score | None]:
    """Return the validation tokens' hidden states and what to judge predictions for them by."""
    if validation is None:
        return None, None
    held, truth = validation[0], validation[1].float()
    return held, score or (lambda predicted: mapping_loss(predicted, truth, loss).item())


def _check(hidden: Tensor, inputs: Tensor, kind: str, loss: str, validation: tuple[Tensor, Tensor] | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}.")
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, not {loss!r}.")
    for what, h, x in (("training", hidden, inputs), *([("validation", *validation)] if validation else [])):
        if h.ndim != 2 or x.ndim != 2 or len(h) != len(x):
            raise ValueError(
                f"{what} hidden {tuple(h.shape)} and inputs {tuple(x.shape)} must be [N, d_e] and [N, d]."
            )
        if not (torch.isfinite(h).all() and torch.isfinite(x).all()):
            raise ValueError(f"{what} data hold NaN or Inf; check the hidden states they come from.")
    if validation and (validation[0].shape[1:], validation[1].shape[1:]) != (hidden.shape[1:], inputs.shape[1:]):
        raise ValueError(
            f"validation hidden {tuple(validation[0].shape)} and inputs {tuple(validation[1].shape)} must have the "
            f"widths of the training data, {hidden.shape[1]} and {inputs.shape[1]}."
        )
    if validation and not len(validation[0]):
        raise ValueError("validation data hold no token; pass more sequences.")
    if len(hidden) < 2:
        raise ValueError(f"{len(hidden)} token is not enough to fit a mapping; pass more sequences.")
    if (inputs == inputs[0]).all():
        raise ValueError(f"the inputs of all {len(inputs)} training tokens are the same: nothing tells them apart.")
    if kind == "naive" and hidden.shape[1] != inputs.shape[1]:
        raise ValueError(f"the naive mapping needs equal widths, not {hidden.shape[1]} and {inputs.shape[1]}.")
