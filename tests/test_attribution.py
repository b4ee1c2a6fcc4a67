"""Hidden Token Attribution against Jacobians computed another way, and the statistics of the estimate."""

import numpy as np
import pytest
import torch
from encoders import tiny_encoder

from ident_utils import attribution
from ident_utils.attribution import (
    by_relative_position,
    hidden_token_attribution,
    own_contribution,
    own_is_largest,
    squared_block_norms,
    tangents_per_chunk,
)
from ident_utils.errors import IdentError
from ident_utils.hooks import substitute_output

TEXT = "The old boat opens slowly."


def reverse_mode_norms(encoder, text) -> torch.Tensor:
    """Compute all ||de_j/dx_i||_F by reverse mode: [L, n_out, n_in]."""
    encoding = encoder.encode(text)
    inputs = encoder.run(encoding).hidden_states[0].detach()

    def layers(embedded):
        with substitute_output(encoder.embeddings, embedded):
            return torch.cat(encoder.run(encoding).hidden_states[1:])

    jacobian = torch.autograd.functional.jacobian(layers, inputs)  # [L, n_out, d, 1, n_in, d]
    return jacobian.square().sum((2, 3, 5)).sqrt()


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_exact_contributions_equal_those_of_reverse_mode(family):
    encoder = tiny_encoder(family)
    norms = reverse_mode_norms(encoder, TEXT)
    found = hidden_token_attribution(encoder, TEXT, exact=True)
    torch.testing.assert_close(found, norms / norms.sum(-1, keepdim=True), rtol=1e-9, atol=1e-12)
    squares = squared_block_norms(encoder, encoder.encode(TEXT), None, 0)
    torch.testing.assert_close(squares, norms.square(), rtol=1e-9, atol=1e-12)
    # Rows and columns are not the same thing: the transpose is far away.
    assert (found - found.mT).abs().max() > 0.01


@pytest.fixture(scope="module")
def draws():
    """Return the exact squares of a tiny model and 40 independent estimates of them."""
    encoder = tiny_encoder("bert")
    encoding = encoder.encode("river lamp")
    exact = squared_block_norms(encoder, encoding, None, 0)
    many = torch.stack([squared_block_norms(encoder, encoding, 8, seed) for seed in range(40)])
    return exact, many


def test_estimate_is_unbiased_over_seeds(draws):
    exact, many = draws
    error = many.std(0) / len(many) ** 0.5
    assert ((many.mean(0) - exact).abs() < 4.5 * error).all()
    assert (many.mean() / exact.mean() - 1).abs() < 0.05
    assert (many.std(0) > 0).all()  # seeds do differ


def test_more_probes_come_closer():
    encoder = tiny_encoder("mpnet")
    exact = hidden_token_attribution(encoder, TEXT, exact=True)
    errors = []
    for probes in (1, 8, 64):
        found = [hidden_token_attribution(encoder, TEXT, probes=probes, seed=s) for s in range(3)]
        errors.append(np.mean([float((f - exact).square().mean().sqrt()) for f in found]))
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]
    assert errors[2] < 0.02


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("options", [{"probes": 1}, {"probes": 3, "seed": 5}, {"exact": True}])
def test_rows_sum_to_one(family, options):
    encoder = tiny_encoder(family, dtype=torch.float32)
    found = hidden_token_attribution(encoder, TEXT, **options)
    n = encoder.encode(TEXT).input_ids.shape[1]
    assert found.shape == (2, n, n) and found.dtype == torch.float64
    assert found.min() > 0
    torch.testing.assert_close(found.sum(-1), torch.ones(2, n, dtype=torch.float64), rtol=0, atol=1e-12)


def test_single_token_contributes_everything():
    encoder = tiny_encoder("bert")
    encoder.tokenizer.backend_tokenizer.post_processor = None
    assert torch.equal(hidden_token_attribution(encoder, "river"), torch.ones(2, 1, 1, dtype=torch.float64))


def test_chunk_size_changes_rounding_only(monkeypatch):
    encoder = tiny_encoder("bert")
    whole = hidden_token_attribution(encoder, TEXT, probes=2, seed=3)
    for chunk in (1, 3, 7, 1000):
        found = hidden_token_attribution(encoder, TEXT, probes=2, seed=3, chunk=chunk)
        torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-14)
    encoding = encoder.encode(TEXT)
    monkeypatch.setattr(attribution, "CHUNK_BYTES", 1)
    assert tangents_per_chunk(encoder, encoding.input_ids.shape[1]) == 1
    torch.testing.assert_close(
        hidden_token_attribution(encoder, TEXT, probes=2, seed=3), whole, rtol=1e-10, atol=1e-14
    )


def test_longer_texts_get_smaller_chunks():
    encoder = tiny_encoder("distilbert")
    sizes = [tangents_per_chunk(encoder, n) for n in (8, 64, 512)]
    assert sizes[0] > sizes[1] > sizes[2] >= 1
    assert tangents_per_chunk(tiny_encoder("distilbert", dtype=torch.float32), 64) == pytest.approx(
        2 * sizes[1], rel=1e-3
    )


def test_seed_decides_and_model_is_left_as_it_was():
    encoder = tiny_encoder("bert")
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    before = encoder.trace(TEXT).hidden
    one, same, other = (hidden_token_attribution(encoder, TEXT, seed=s) for s in (4, 4, 5))
    assert torch.equal(one, same) and not torch.allclose(one, other, atol=1e-4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(encoder.trace(TEXT).hidden, before)


def test_bad_requests_are_refused():
    encoder = tiny_encoder("bert")
    with pytest.raises(ValueError, match="method must be one of jacobian, not 'lime'"):
        hidden_token_attribution(encoder, TEXT, method="lime")
    for probes in (0, -2):
        with pytest.raises(ValueError, match=f"probes must be at least 1, not {probes}"):
            hidden_token_attribution(encoder, TEXT, probes=probes)
    with pytest.raises(IdentError, match="takes at most 40"):
        hidden_token_attribution(encoder, " ".join(["river"] * 60))
    assert hidden_token_attribution(encoder, " ".join(["river"] * 60), truncate=5).shape == (2, 5, 5)
    with pytest.raises(ValueError, match="reach must not be negative, got -1"):
        by_relative_position(torch.ones(1, 2, 2), -1)


# What is read off the contributions, by hand. Rows are hidden states, columns input tokens.

BY_HAND = torch.tensor(
    [[[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], [[0.2, 0.2, 0.6], [0.1, 0.9, 0.0], [0.4, 0.3, 0.3]]]
)


def test_own_contribution_is_the_diagonal():
    np.testing.assert_allclose(own_contribution(BY_HAND), [[0.6, 0.2, 0.8], [0.2, 0.9, 0.3]])


def test_own_is_largest_compares_along_the_inputs():
    assert own_is_largest(BY_HAND).tolist() == [[True, False, True], [False, True, False]]


def test_relative_position_counts_from_the_hidden_state():
    found = by_relative_position(BY_HAND, 3)
    assert found.shape == (2, 7)
    expected = [0.1, (0.5 + 0.1) / 2, (0.6 + 0.2 + 0.8) / 3, (0.3 + 0.3) / 2, 0.1]  # offsets -2 ... 2
    np.testing.assert_allclose(found[0, 1:-1], expected, rtol=1e-6)
    assert torch.isnan(found[:, [0, -1]]).all()  # no token is three places away
    # Offset +1 is the input after the hidden state: of two tokens only the first has that.
    after = by_relative_position(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), 1)
    assert after.tolist() == [[0.0, 0.0, 1.0]]
