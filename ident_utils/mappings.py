"""Mappings that predict a token's input x from its hidden state e: fit once, predict many."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

KINDS = ("naive", "ridge", "linear", "mlp")
LOSSES = ("l2", "cosine")
RIDGE_STRENGTHS = tuple(10.0**power for power in range(-4, 5))  # times the mean variance of the inputs
DEVIATION_FLOOR = 1e-2  # of the root mean square deviation: below it a dimension is dead
WHITENING_FLOOR = 1e-2  # of the mean eigenvalue, for the trained mappings
RATES = {"linear": 3e-3, "mlp": 2e-3}
EPOCHS, BATCH = 6, 256


@dataclass(frozen=True)
class Mapping:
    """Predict inputs [N, d] from hidden states [N, d_e]; made by :func:`fit_mapping`."""

    kind: str
    loss: str
    chosen: dict[str, float] = field(default_factory=dict)  # what validation chose, and its validation loss
    module: nn.Module = field(default_factory=nn.Identity, repr=False)

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """Return the predicted inputs for hidden states [N, d_e]."""
        return self.module(hidden.float())


def fit_mapping(
    hidden: Tensor,
    inputs: Tensor,
    kind: str = "ridge",
    loss: str = "l2",
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
) -> Mapping:
    """Fit a mapping from hidden states [N, d_e] to inputs [N, d].

    ``kind``: "naive" takes the hidden state itself; "ridge" is linear in closed form; "linear" and "mlp" (one
    hidden layer as wide as the input, GELU) are trained on ``loss``, the mean squared error ("l2") or the cosine
    distance ("cosine"). ``validation`` (hidden, inputs) chooses the ridge strength and the best epoch; it must
    come from other sequences than the training data. Training is deterministic for a ``seed``.

    Raises ValueError for an unknown kind or loss, for shapes that do not fit, for fewer than two tokens, and for
    numbers that are not finite.
    """
    _check(hidden, inputs, kind, loss, validation)
    if kind == "naive":
        return Mapping(kind, loss)
    if kind == "ridge":
        return _fit_ridge(hidden.double(), inputs.double(), loss, validation)
    return _fit_by_descent(hidden.float(), inputs.float(), kind, loss, validation, seed)


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
    if kind == "naive" and hidden.shape[1] != inputs.shape[1]:
        raise ValueError(f"the naive mapping needs equal widths, not {hidden.shape[1]} and {inputs.shape[1]}.")


def mapping_loss(predicted: Tensor, inputs: Tensor, loss: str) -> Tensor:
    """Return the mean squared error or the mean cosine distance of predictions [N, d]."""
    if loss == "l2":
        return (predicted - inputs).square().mean()
    return 1 - nn.functional.cosine_similarity(predicted, inputs, dim=-1).mean()


def _floored_deviation(hidden: Tensor) -> Tensor:
    """Return the standard deviation of each dimension, dead dimensions lifted to a floor.

    Some dimensions of a last layer hardly vary over the training tokens; divided by their own deviation they
    would blow up on any other text.
    """
    deviation = hidden.std(dim=0, correction=0)
    floor = DEVIATION_FLOOR * deviation.square().mean().sqrt()
    return deviation.clamp_min(floor if floor > 0 else 1.0)


def _affine(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, device="meta")  # no initialisation: it would draw from the global generator
    layer.weight = nn.Parameter(weight.T.float().contiguous(), requires_grad=False)
    layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer


def _fit_ridge(hidden: Tensor, inputs: Tensor, loss: str, validation: tuple[Tensor, Tensor] | None) -> Mapping:
    """Solve for every strength from one eigendecomposition, and keep the one with the least validation loss."""
    mean, target_mean = hidden.mean(0), inputs.mean(0)
    deviation = _floored_deviation(hidden)
    x, y = (hidden - mean) / deviation, inputs - target_mean
    eigenvalues, basis = torch.linalg.eigh(x.T @ x / len(x))
    projected = basis.T @ (x.T @ y) / len(x)
    scale = eigenvalues.clamp_min(0).mean().clamp_min(torch.finfo(torch.float64).tiny)

    def solve(strength: float) -> nn.Linear:
        weight = basis @ (projected / (eigenvalues.clamp_min(0) + strength * scale)[:, None])
        weight = weight / deviation[:, None]
        return _affine(weight, target_mean - mean @ weight)

    if validation is None:
        return Mapping("ridge", loss, {"strength": 1e-2}, solve(1e-2))
    held, truth = validation[0].float(), validation[1].float()
    losses = {s: mapping_loss(solve(s)(held), truth, loss).item() for s in RIDGE_STRENGTHS}
    best = min(losses, key=losses.get)
    return Mapping("ridge", loss, {"strength": best, "validation_loss": losses[best]}, solve(best))


def _whitener(hidden: Tensor) -> nn.Linear:
    """Return the PCA-whitening of hidden states, small eigenvalues floored."""
    mean, deviation = hidden.double().mean(0), _floored_deviation(hidden.double())
    x = (hidden.double() - mean) / deviation
    eigenvalues, basis = torch.linalg.eigh(x.T @ x / len(x))
    mean_eigenvalue = eigenvalues.mean()
    floor = WHITENING_FLOOR * (mean_eigenvalue if mean_eigenvalue > 0 else torch.ones_like(mean_eigenvalue))
    weight = (basis / eigenvalues.clamp_min(floor).sqrt()) / deviation[:, None]
    return _affine(weight, -mean @ weight)


def _fit_by_descent(
    hidden: Tensor, inputs: Tensor, kind: str, loss: str, validation: tuple[Tensor, Tensor] | None, seed: int
) -> Mapping:
    """Train with AdamW: half an epoch of warm-up, then cosine decay; keep the epoch validation likes best."""
    d_e, d = hidden.shape[1], inputs.shape[1]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Linear(d_e, d) if kind == "linear" else nn.Sequential(nn.Linear(d_e, d), nn.GELU(), nn.Linear(d, d))
    last = body if kind == "linear" else body[-1]
    nn.init.zeros_(last.bias).data += inputs.mean(0)
    whiten = _whitener(hidden)
    with torch.no_grad():
        white = whiten(hidden)
    steps = EPOCHS * max(1, -(-len(white) // BATCH))
    warm = max(1, steps // (2 * EPOCHS))
    optimiser = torch.optim.AdamW(body.parameters(), lr=RATES[kind])
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps - warm))
    ramp = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / warm, total_iters=warm)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimiser, [ramp, decay], [warm])
    curve, best = [], None
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(white), generator=generator).split(BATCH):
            optimiser.zero_grad()
            mapping_loss(body(white[batch]), inputs[batch], loss).backward()
            optimiser.step()
            schedule.step()
        if validation is not None:
            with torch.no_grad():
                curve.append(mapping_loss(body(whiten(validation[0].float())), validation[1].float(), loss).item())
            if curve[-1] == min(curve):
                best = {k: v.clone() for k, v in body.state_dict().items()}
    if best is not None:
        body.load_state_dict(best)
    module = nn.Sequential(whiten, body).requires_grad_(False)
    return Mapping(kind, loss, {f"validation_loss_{i}": v for i, v in enumerate(curve, start=1)}, module)
