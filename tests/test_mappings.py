"""Mappings against closed forms and scikit-learn, and the traps of real hidden states."""

import itertools

import pytest
import torch
from sklearn.linear_model import Ridge

from ident_utils import fitting, whitening
from ident_utils.errors import IdentError
from ident_utils.fitting import RIDGE_STRENGTHS, mapping_loss
from ident_utils.identity import identification_rate
from ident_utils.mappings import Mapping, fit_mapping
from ident_utils.whitening import spectrum

KINDS = (("naive", "l2"), ("ridge", "l2"), ("linear", "l2"), ("linear", "cosine"), ("mlp", "l2"), ("mlp", "cosine"))


def data(n: int, d_e: int, d: int, seed: int = 0, *, noise: float = 0.1):
    """Make hidden states [n, d_e] of uneven scale and inputs [n, d] that depend on them linearly."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d_e, generator=generator) * torch.linspace(0.3, 3, d_e) + 1.5
    weight = torch.randn(d_e, d, generator=torch.Generator().manual_seed(99))
    return hidden, hidden @ weight + 0.7 + noise * torch.randn(n, d, generator=generator)


def rotated(n: int, d: int, seed: int):
    """Make inputs [n, d] and hidden states that are the inputs, rotated."""
    rotation = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(7)))[0]
    inputs = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return inputs @ rotation, inputs


# Ridge.


@pytest.mark.parametrize("strength", RIDGE_STRENGTHS)
def test_ridge_equals_scikit_learn_at_every_strength(strength, monkeypatch):
    monkeypatch.setattr(fitting, "RIDGE_STRENGTHS", (strength,))
    hidden, inputs = data(80, 6, 4)
    fresh, truth = data(20, 6, 4, seed=1)
    mapping = fit_mapping(hidden, inputs, "ridge", validation=(fresh, truth))
    mean, deviation = hidden.mean(0), hidden.std(0, correction=0)
    # The penalty is relative to the mean variance, which is one after scaling, and to the number of tokens.
    model = Ridge(alpha=strength * len(hidden)).fit(((hidden - mean) / deviation).double(), inputs.double())
    expected = torch.from_numpy(model.predict(((fresh - mean) / deviation).double()))
    torch.testing.assert_close(mapping.predict(fresh).double(), expected, rtol=1e-4, atol=1e-4)
    assert mapping.chosen == strength


def test_ridge_equals_the_normal_equations():
    hidden, inputs = data(60, 5, 3)
    mapping = fit_mapping(hidden, inputs, "ridge")
    x = ((hidden - hidden.mean(0)) / hidden.std(0, correction=0)).double()
    y = (inputs - inputs.mean(0)).double()
    weight = torch.linalg.solve(x.T @ x + mapping.chosen * 60 * torch.eye(5).double(), x.T @ y)
    torch.testing.assert_close(mapping.predict(hidden).double(), x @ weight + inputs.mean(0), rtol=1e-4, atol=1e-4)


def test_strength_is_chosen_on_the_validation_tokens():
    hidden, inputs = data(40, 30, 3, noise=3.0)
    fresh, truth = data(200, 30, 3, seed=1, noise=3.0)
    chosen = fit_mapping(hidden, inputs, "ridge", validation=(fresh, truth))
    losses = {}
    for strength in RIDGE_STRENGTHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fitting, "RIDGE_STRENGTHS", (strength,))
            alone = fit_mapping(hidden, inputs, "ridge", validation=(fresh, truth))
        losses[strength] = mapping_loss(alone.predict(fresh), truth, "l2").item()
    best = min(losses, key=losses.get)
    assert chosen.chosen == best
    assert chosen.validation == pytest.approx(losses, rel=1e-4)
    # Had the training tokens chosen, the answer would be the weakest: the choice is not theirs.
    assert best > min(RIDGE_STRENGTHS)
    assert fit_mapping(hidden, inputs, "ridge", validation=(hidden, inputs)).chosen == min(RIDGE_STRENGTHS)


def test_cosine_loss_can_choose_another_strength_than_l2():
    hidden, inputs = data(30, 25, 3, noise=8.0)
    fresh, truth = data(200, 25, 3, seed=1, noise=8.0)
    by_loss = {
        loss: fit_mapping(hidden, inputs, "ridge", loss, validation=(fresh, truth)).validation
        for loss in ("l2", "cosine")
    }
    assert 0 < min(by_loss["cosine"].values()) < 2 < min(by_loss["l2"].values())


@pytest.mark.parametrize(("kind", "loss"), KINDS[1:])
def test_dead_dimension_that_stirs_does_no_harm(kind, loss):
    """A dimension that never varies in training moves a little in other texts: without a floor it rules."""
    hidden, inputs = rotated(6000, 32, seed=0)
    fresh, truth = rotated(200, 32, seed=1)
    generator = torch.Generator().manual_seed(2)
    dead = 1e-9 * torch.randn(6000, 1, generator=generator)
    stirred = torch.cat([fresh, 1e-3 * torch.randn(200, 1, generator=generator)], 1)
    mapping = fit_mapping(torch.cat([hidden, dead], 1), inputs, kind, loss)
    assert identification_rate(mapping.predict(stirred), truth) > 0.9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whitening, "DEVIATION_FLOOR", 1e-12)
        unfloored = fit_mapping(torch.cat([hidden, dead], 1), inputs, kind, loss)
    assert identification_rate(unfloored.predict(stirred), truth) < 0.5


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_constant_states_give_finite_predictions(kind, loss):
    _, inputs = data(10, 4, 4)
    mapping = fit_mapping(torch.full((10, 4), 2.5), inputs, kind, loss)
    assert torch.isfinite(mapping.predict(torch.full((3, 4), 2.5))).all()
    assert torch.isfinite(mapping.predict(torch.full((3, 4), 2.6))).all()


# Trained mappings.


@pytest.mark.parametrize(("kind", "loss"), KINDS[1:])
def test_mapping_learns_a_rotation(kind, loss):
    hidden, inputs = rotated(6000, 32, seed=0)
    fresh, truth = rotated(300, 32, seed=1)
    held = rotated(300, 32, seed=2)
    mapping = fit_mapping(hidden, inputs, kind, loss, validation=held)
    assert (mapping.kind, mapping.loss) == (kind, loss)
    assert identification_rate(mapping.predict(fresh), truth) > 0.95
    assert identification_rate(fit_mapping(hidden, inputs, "naive").predict(fresh), truth) < 0.1
    shuffled = fit_mapping(hidden, inputs.roll(1, 0), kind, loss, validation=held)
    assert identification_rate(shuffled.predict(fresh), truth) < 0.1


@pytest.mark.parametrize(("kind", "loss"), KINDS[2:])
def test_training_is_decided_by_its_seed_alone(kind, loss):
    hidden, inputs = rotated(200, 6, seed=0)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = fit_mapping(hidden, inputs, kind, loss, seed=3).predict(hidden)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(fit_mapping(hidden, inputs, kind, loss, seed=3).predict(hidden), first)
    assert not torch.equal(fit_mapping(hidden, inputs, kind, loss, seed=4).predict(hidden), first)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_best_epoch_by_validation_is_kept(kind):
    hidden, inputs = data(120, 10, 4, noise=20.0)
    fresh, truth = data(120, 10, 4, seed=1, noise=20.0)
    mapping = fit_mapping(hidden, inputs, kind, "l2", validation=(fresh, truth))
    curve = mapping.validation
    assert list(curve) == list(range(1, len(curve) + 1)) and mapping.chosen == min(curve, key=curve.get)
    assert mapping_loss(mapping.predict(fresh), truth, "l2").item() == pytest.approx(min(curve.values()), rel=1e-4)
    # A validation set that wants the opposite is best served by the first epochs.
    target = inputs.mean(0) - 5 * (inputs - inputs.mean(0))
    against = fit_mapping(hidden, inputs, kind, "l2", validation=(hidden, target))
    assert against.chosen < max(against.validation)
    best = against.validation[against.chosen]
    assert best == min(against.validation.values())
    assert mapping_loss(against.predict(hidden), target, "l2").item() == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize(("kind", "loss"), KINDS[1:])
def test_score_chooses_in_place_of_the_loss(kind, loss):
    hidden, inputs = data(120, 10, 4, noise=3.0)
    fresh, truth = data(60, 10, 4, seed=1, noise=3.0)
    calls = itertools.count()  # the later the better: what is chosen must be what was tried last
    mapping = fit_mapping(hidden, inputs, kind, loss, validation=(fresh, truth), score=lambda _: -next(calls))
    assert mapping.chosen == list(mapping.validation)[-1]


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_saved_mapping_comes_back_as_it_was(kind, loss, tmp_path):
    hidden, inputs = data(80, 4, 4)
    mapping = fit_mapping(hidden, inputs, kind, loss, validation=data(30, 4, 4, seed=1))
    mapping.save(tmp_path / "mapping.safetensors")
    again = Mapping.load(tmp_path / "mapping.safetensors")
    assert torch.equal(again.predict(hidden), mapping.predict(hidden))
    assert (again.name, again.chosen, again.validation) == (mapping.name, mapping.chosen, mapping.validation)


def test_file_that_holds_no_mapping_is_named(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("no mapping at all, only a line of text")
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    for name in ("missing", "text", "other"):
        with pytest.raises(IdentError, match=f"{name} holds no mapping"):
            Mapping.load(tmp_path / name)


@pytest.mark.parametrize(("kind", "loss"), KINDS[1:])
def test_shared_spectrum_changes_nothing(kind, loss):
    hidden, inputs = data(80, 6, 4)
    alone = fit_mapping(hidden, inputs, kind, loss).predict(hidden)
    assert torch.equal(fit_mapping(hidden, inputs, kind, loss, moments=spectrum(hidden)).predict(hidden), alone)


def test_spectrum_does_not_depend_on_the_chunks(monkeypatch):
    hidden, inputs = data(100, 6, 4)
    whole = fit_mapping(hidden, inputs).predict(hidden)
    monkeypatch.setattr(whitening, "ROWS", 7)
    torch.testing.assert_close(fit_mapping(hidden, inputs).predict(hidden), whole)


def test_whitened_states_are_white():
    hidden, _ = data(500, 6, 4)
    weight, bias = spectrum(hidden).whitening()
    white = hidden.double() @ weight + bias
    torch.testing.assert_close(white.T @ white / 500, torch.eye(6).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "loss"), KINDS[1:])
def test_widths_may_differ_and_any_precision_is_taken(kind, loss):
    hidden, inputs = data(50, 6, 3)
    mapping = fit_mapping(hidden.double(), inputs.double(), kind, loss)
    assert mapping.predict(hidden).shape == (50, 3)
    assert mapping.predict(hidden.double()).dtype == torch.float32
    assert not mapping.predict(hidden).requires_grad


def test_naive_takes_the_state_itself():
    hidden, inputs = data(10, 4, 4)
    assert torch.equal(fit_mapping(hidden, inputs, "naive").predict(hidden), hidden)


def test_losses_by_hand():
    predicted, inputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert mapping_loss(predicted, inputs, "l2").item() == pytest.approx((1 + 0 + 1 + 1) / 4)
    assert mapping_loss(predicted, inputs, "cosine").item() == pytest.approx(1 - (1 + 0) / 2)


# Bad input.


def test_bad_requests_are_refused():
    hidden, inputs = data(10, 4, 3)
    with pytest.raises(ValueError, match="one of naive, ridge, linear, mlp, not 'forest'"):
        fit_mapping(hidden, inputs, "forest")
    with pytest.raises(ValueError, match="one of l2, cosine, not 'l1'"):
        fit_mapping(hidden, inputs, "ridge", "l1")
    with pytest.raises(ValueError, match="equal widths, not 4 and 3"):
        fit_mapping(hidden, inputs, "naive")
    with pytest.raises(ValueError, match=r"training hidden \(10, 4\) and inputs \(9, 3\)"):
        fit_mapping(hidden, inputs[:9])
    with pytest.raises(ValueError, match=r"\(4,\)"):
        fit_mapping(hidden[0], inputs)
    with pytest.raises(ValueError, match="inputs of all 10 training tokens are the same"):
        fit_mapping(hidden, torch.ones(10, 3))
    with pytest.raises(ValueError, match=r"hidden \(10, 3\) must be \[N, 4\]"):
        fit_mapping(hidden, inputs).predict(hidden[:, :3])
    for n in (0, 1):
        with pytest.raises(ValueError, match=f"{n} token.* not enough"):
            fit_mapping(hidden[:n], inputs[:n])
    with pytest.raises(ValueError, match=r"validation hidden \(2, 4\) and inputs \(3, 3\)"):
        fit_mapping(hidden, inputs, validation=(hidden[:2], inputs[:3]))
    for held in ((hidden[:, :3], inputs), (hidden, inputs[:, :2])):
        with pytest.raises(ValueError, match=r"validation.*widths"):
            fit_mapping(hidden, inputs, validation=held)
    with pytest.raises(ValueError, match=r"validation.*no token"):
        fit_mapping(hidden, inputs, validation=(hidden[:0], inputs[:0]))
    for bad in (float("nan"), float("inf")):
        spoilt = hidden.clone().index_fill_(0, torch.tensor([3]), bad)
        with pytest.raises(ValueError, match="training data hold NaN or Inf"):
            fit_mapping(spoilt, inputs)
        with pytest.raises(ValueError, match="validation data hold NaN or Inf"):
            fit_mapping(hidden, inputs, validation=(spoilt, inputs))
