"""How mappings are fitted: ridge in closed form for every strength at once, and descent with a schedule."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ident_utils.whitening import Spectrum, cross_moments

Affine = tuple[Tensor, Tensor]  # weight [d_in, d_out] and bias [d_out]
Score = Callable[[Tensor], float]  # of predictions for the validation tokens; less is better

RIDGE_STRENGTHS = tuple(10.0**power for power in range(-4, 5))  # times the mean variance of the states
DEFAULT_STRENGTH = 1e-2  # without validation
RATES = {"linear": 3e-3, "mlp": 2e-3}
EPOCHS = {"linear": 4, "mlp": 6}
BATCH = 256
STEPS = 180  # at least, so that little data does not also mean little training


def mapping_loss(predicted: Tensor, inputs: Tensor, loss: str) -> Tensor:
    """Return the mean squared error or the mean cosine distance of predictions [N, d]."""
    if loss == "l2":
        return (predicted - inputs).square().mean()
    return 1 - nn.functional.cosine_similarity(predicted, inputs, dim=-1).mean()


def apply(layers: tuple[Affine, ...], hidden: Tensor) -> Tensor:
    """Send hidden states [N, d_e] through affine layers with a GELU between neighbours."""
    for number, (weight, bias) in enumerate(layers):
        hidden = torch.addmm(bias, nn.functional.gelu(hidden) if number else hidden, weight)
    return hidden


def fit_ridge(
    hidden: Tensor, inputs: Tensor, moments: Spectrum, held: Tensor | None, score: Score | None
) -> tuple[tuple[Affine, ...], float, dict[float, float]]:
    """Solve for every strength from one spectrum; return the layer, strength and scores of all strengths.

    ``held`` are the validation tokens' hidden states; without a ``score`` of what is predicted for them the
    default strength is taken.
    """
    covariance, target_mean = cross_moments(moments, hidden, inputs)
    weight, bias = moments.principal()
    tiny = torch.finfo(torch.float64).tiny
    scale = moments.eigenvalues.mean().clamp_min(tiny)

    def in_basis(strength: float) -> Tensor:
        return covariance / (moments.eigenvalues + strength * scale)[:, None]

    scores = {}
    if score is not None:
        components = apply((_float(weight, bias),), held.float())
        for strength in RIDGE_STRENGTHS:
            scores[strength] = score(apply((_float(in_basis(strength), target_mean),), components))
    best = min(scores, key=scores.get) if scores else DEFAULT_STRENGTH
    solved = in_basis(best)
    return (_float(weight @ solved, bias @ solved + target_mean),), best, scores


def _float(weight: Tensor, bias: Tensor) -> Affine:
    return weight.float().contiguous(), bias.float()


def fit_by_descent(
    hidden: Tensor,
    inputs: Tensor,
    kind: str,
    loss: str,
    moments: Spectrum,
    held: Tensor | None,
    score: Score | None,
    seed: int,
) -> tuple[tuple[Affine, ...], float, dict[float, float]]:
    """Train on whitened states with AdamW: half an epoch of warm-up, then cosine decay.

    Returns the layers (the whitening is part of the first), the epoch that ``score`` likes best (without it the
    last), and the scores of all epochs.
    """
    whiten = _float(*moments.whitening())
    white, held_white = apply((whiten,), hidden.float()), None if held is None else apply((whiten,), held.float())
    inputs = inputs.float()
    body = _initialised(kind, hidden.shape[1], inputs, seed)
    per_epoch = -(-len(white) // BATCH)
    epochs = max(EPOCHS[kind], -(-STEPS // per_epoch))
    step = _stepper(body, kind, per_epoch, epochs)
    generator = torch.Generator().manual_seed(seed)
    scores, layers, best = {}, None, epochs
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(white), generator=generator).split(BATCH):
            step(mapping_loss(body(white[batch]), inputs[batch], loss))
        if score is not None:
            scores[epoch] = score(apply(_layers(body), held_white))
            best = min(scores, key=scores.get)
        if score is None or best == epoch:
            layers = _layers(body)
    weight, bias = (part.double() for part in layers[0])
    first = whiten[0].double() @ weight, whiten[1].double() @ weight + bias
    return (_float(*first), *layers[1:]), best, scores


def _initialised(kind: str, width: int, inputs: Tensor, seed: int) -> nn.Sequential:
    """Return a fresh linear layer or MLP that starts from the mean input; the global generator is left alone."""
    d = inputs.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        steps = [nn.Linear(width, d)] if kind == "linear" else [nn.Linear(width, d), nn.GELU(), nn.Linear(d, d)]
    with torch.no_grad():
        steps[-1].bias.copy_(inputs.mean(0))
    return nn.Sequential(*steps)


def _stepper(body: nn.Module, kind: str, per_epoch: int, epochs: int) -> Callable[[Tensor], None]:
    """Return a function that takes one step down a loss."""
    warm = max(1, per_epoch // 2)
    optimiser = torch.optim.AdamW(body.parameters(), lr=RATES[kind], fused=True)
    ramp = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / warm, total_iters=warm)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, epochs * per_epoch - warm))
    schedule = torch.optim.lr_scheduler.SequentialLR(optimiser, [ramp, decay], [warm])

    def step(loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    return step


def _layers(body: nn.Sequential) -> tuple[Affine, ...]:
    """Copy the affine layers out of a module."""
    return tuple(
        (part.weight.detach().T.contiguous().clone(), part.bias.detach().clone())
        for part in body
        if isinstance(part, nn.Linear)
    )
