"""What comes with contributions: their standard error, the precision of the tangents, the cost, the saved file."""

import numpy as np
import pytest
import torch
from encoders import tiny_encoder

from ident_utils.attribution import (
    Attribution,
    attention_rollout,
    attribute,
    attribution_cost,
    local_attribution,
    precision,
)
from ident_utils.attribution.cost import tangent_operations
from ident_utils.attribution.engine import span_of
from ident_utils.attribution.estimate import Squares, standard_error
from ident_utils.errors import IdentError
from ident_utils.families import layers_of

TEXT = "The old boat opens slowly."


@pytest.mark.parametrize("probes", [2, 4])
def test_standard_error_is_calibrated(probes):
    encoder = tiny_encoder("bert", width=32)
    exact = attribute(encoder, TEXT, exact=True).contributions
    found = [attribute(encoder, TEXT, probes=probes, seed=seed) for seed in range(60)]
    own = torch.eye(exact.shape[-1], dtype=torch.bool)
    for where in (own, ~own):
        errors = torch.stack([(f.contributions - exact)[:, where] for f in found])
        stated = torch.stack([f.standard_error[:, where] for f in found])
        ratio = (errors.square().mean((0, 2)) / stated.square().mean((0, 2))).sqrt()
        assert ((ratio > 0.75) & (ratio < 1.33)).all(), ratio
        assert (errors.abs() < 2 * stated).double().mean() > 0.84  # of a normal variable 0.95, of few probes less


def test_standard_error_by_hand():
    # One target of two tokens with equal norms: contributions of one half, relative variances .04 and .16.
    mean, variance = torch.ones(1, 2, 2), torch.tensor([[[0.04, 0.16], [0.16, 0.04]]])
    own, other = 0.04 / 0.96, 0.16 / 0.84  # v / m^2 underestimates, as m^2 is too large on average
    expected = 0.25 * np.sqrt(0.25 * own + 0.25 * other)  # c / 2 * sqrt((1 - c)^2 w_own + c^2 w_other)
    np.testing.assert_allclose(standard_error(Squares(mean, variance)), np.full((1, 2, 2), expected), rtol=1e-6)
    assert torch.equal(standard_error(Squares(mean)), torch.zeros(1, 2, 2))


def test_one_probe_has_no_standard_error_and_exact_has_none_to_state():
    encoder = tiny_encoder("mpnet")
    assert attribute(encoder, TEXT, probes=1).standard_error.isnan().all()
    exact = attribute(encoder, TEXT, exact=True)
    assert exact.probes is None and not exact.standard_error.any()


def test_exact_works_in_double_precision_on_a_model_in_single():
    encoder = tiny_encoder("bert", dtype=torch.float32)
    found = attribute(encoder, TEXT, exact=True)
    assert found.precision.startswith("float64") and encoder.dtype is torch.float32
    double = attribute(tiny_encoder("bert"), TEXT, exact=True)  # the same weights, drawn in single precision
    torch.testing.assert_close(found.contributions, double.contributions, rtol=1e-5, atol=1e-7)


# Precision of the tangents.


def test_both_precisions_can_be_forced_and_are_reported():
    encoder = tiny_encoder("bert", dtype=torch.float32, width=32)
    single, coarse = (attribute(encoder, TEXT, precision=p) for p in ("float32", "bfloat16"))
    assert (single.precision, coarse.precision) == ("float32 (asked for)", "bfloat16 (asked for)")
    apart = (single.contributions - coarse.contributions).abs().max()
    assert 1e-5 < apart < 0.05


@pytest.mark.parametrize(
    ("speedup", "error", "expected"), [(4.0, 0.0, "bfloat16"), (4.0, 1.0, "float32"), (0.2, 0.0, "float32")]
)
def test_bfloat16_is_taken_only_where_it_pays_and_does_not_show(monkeypatch, speedup, error, expected):
    encoder = tiny_encoder("bert", dtype=torch.float32)
    monkeypatch.setattr(precision, "bf16_speedup", lambda device: speedup)
    monkeypatch.setattr(precision, "bf16_error", lambda *_: (error, 1.0))
    assert attribute(encoder, TEXT, probes=4).precision == "float32 (the model's own)", "no matter what is faster"
    found = attribute(encoder, TEXT, probes=4, precision="auto")
    assert found.precision.startswith(expected) and "times as fast" in found.precision


def test_error_of_bfloat16_is_measured_once_a_model(monkeypatch):
    encoder = tiny_encoder("bert", dtype=torch.float32)
    span, encoding = span_of(encoder), encoder.encode(TEXT)
    error, sampling = precision.bf16_error(encoder, encoding, span)
    assert 0 < error < sampling
    monkeypatch.setattr(precision, "sampled_squares", None)  # measuring again would fail
    assert precision.bf16_error(encoder, encoding, span) == (error, sampling)


def test_speed_is_measured_and_positive():
    assert precision.bf16_speedup("cpu") > 0
    assert precision.matrix_rate("cpu") > 1e8


def test_wrong_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be one of own, auto, float32, bfloat16, not 'half'"):
        attribute(tiny_encoder("bert", dtype=torch.float32), TEXT, precision="half")
    with pytest.raises(ValueError, match="is in float64; load it in float32"):
        attribute(tiny_encoder("bert"), TEXT, precision="bfloat16")


# Cost.


def test_cost_counts_the_matrix_products_of_a_layer():
    encoder = tiny_encoder("bert", layers=3)
    n, d = 8, 16
    projections = 4 * n * d * d + 2 * n * d * 2 * d  # q, k, v, o and two feed-forward layers twice as wide
    scores_and_context = 4 * n * n * d  # the product rule has two terms in each
    assert tangent_operations(encoder, n, 3) == 3 * 2 * (projections + scores_and_context)
    sampled, exact = attribution_cost(encoder, n, 2), attribution_cost(encoder, n, exact=True)
    assert (sampled.tangents, exact.tangents) == (16, 128)
    assert exact.operations == 8 * sampled.operations
    assert "16 tangents" in str(sampled) and sampled.seconds > 0


# The file.


def test_a_saved_attribution_is_the_same_when_read_again(tmp_path):
    encoder = tiny_encoder("mpnet", dtype=torch.float32)
    for options in ({"probes": 3, "seed": 4, "outputs": [2, 0]}, {"exact": True, "source": 1}):
        found = attribute(encoder, ("river boat", "old lamp"), **options)
        again = Attribution.load(found.save(tmp_path / "one.npz"))
        for name, value in vars(found).items():
            other = getattr(again, name)
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name
        assert again.provenance == encoder.provenance and repr(again) == repr(found)


def test_other_files_are_refused(tmp_path):
    found = attribute(tiny_encoder("bert"), TEXT)
    with pytest.raises(ValueError, match=r"saved as .npz, not as 'one.pt'"):
        found.save(tmp_path / "one.pt")
    with pytest.raises(IdentError, match="There is no file"):
        Attribution.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", contributions=np.ones(2))
    whole = found.save(tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-200])
    for name in ("text", "other", "cut"):
        with pytest.raises(IdentError, match=f"{name}.npz is not a saved attribution"):
            Attribution.load(tmp_path / f"{name}.npz")


# One layer at a time, and attention rolled out.


def test_local_attribution_is_each_layers_own():
    encoder = tiny_encoder("bert", layers=3)
    found, heads = local_attribution(encoder, TEXT, probes=3, seed=5)
    n = found.shape[-1]
    assert found.shape == (3, n, n) and heads.shape == (3, encoder.n_heads, n, n)
    for layer in (1, 2, 3):
        alone = attribute(encoder, TEXT, probes=3, seed=5 + layer, source=layer - 1, layers=[layer])
        torch.testing.assert_close(found[layer - 1], alone.contributions[0], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_a_head_whose_attention_is_fixed_passes_on_what_it_attends_to(family):
    encoder = tiny_encoder(family)
    for layer in layers_of(encoder.model, encoder.family):  # without queries no score depends on the input
        for name, module in layer.named_modules():
            if name.endswith(("self.query", "attn.q", "q_lin")):
                module.weight.zero_()
                module.bias.zero_()
    # J_ij = a_ji W_V: all blocks are the same but for their weight of attention.
    _, found = local_attribution(encoder, TEXT, probes=1000)
    torch.testing.assert_close(found, encoder.trace(TEXT).attention, rtol=0.1, atol=0.005)


def test_rollout_by_hand():
    attention = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]], [[[0.0, 1.0], [0.5, 0.5]]]])
    first = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    second = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    np.testing.assert_allclose(attention_rollout(attention), torch.stack([first, second @ first]))
    with pytest.raises(ValueError, match=r"must have the shape \[L, H, n, n\]"):
        attention_rollout(attention[0])
