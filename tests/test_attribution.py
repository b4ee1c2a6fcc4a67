"""Hidden Token Attribution against Jacobians computed another way, and the statistics of the estimate."""

import numpy as np
import pytest
import torch
from encoders import tiny_encoder

from ident_utils.attribution import (
    METHODS,
    attribute,
    by_relative_position,
    engine,
    hidden_token_attribution,
    own_contribution,
    own_is_largest,
)
from ident_utils.attribution.engine import span_of, tangents_per_chunk
from ident_utils.attribution.estimate import exact_squares, sampled_squares
from ident_utils.errors import IdentError
from ident_utils.families import layers_of
from ident_utils.hooks import rewrite_input, substitute_output

TEXT = "The old boat opens slowly."


def reverse_mode_jacobian(encoder, text, source: int = 0) -> torch.Tensor:
    """Compute all blocks de_j/dx_i by reverse mode, x_i the state after layer ``source``: [L, n_out, n_in, d, d]."""
    encoding = encoder.encode(text)
    start = encoder.run(encoding).hidden_states[source]
    inner = layers_of(encoder.model, encoder.family)

    def layers(state):
        swap = (
            substitute_output(encoder.embeddings, state)
            if source == 0
            else rewrite_input([inner[source]], lambda _layer, _given: state)
        )
        with swap:
            return torch.cat(encoder.run(encoding).hidden_states[source + 1 :])

    jacobian = torch.func.jacrev(layers)(start)  # [L, n_out, d, 1, n_in, d]
    return jacobian[:, :, :, 0].transpose(2, 3)


def size_of(blocks: torch.Tensor, method: str, inputs: torch.Tensor) -> torch.Tensor:
    """Return the size of each block by a definition: [L, n_out, n_in] from [L, n_out, n_in, d, d]."""
    return {
        "jacobian": lambda: blocks.square().sum((-2, -1)).sqrt(),
        "spectral": lambda: torch.linalg.matrix_norm(blocks, 2),
        "sum-gradient": lambda: blocks.sum(-2).norm(dim=-1),
        "gradient-x-input": lambda: (blocks @ inputs[:, :, None])[..., 0].norm(dim=-1),
    }[method]()


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
@pytest.mark.parametrize("method", METHODS)
def test_every_definition_equals_that_of_reverse_mode(family, method):
    encoder = tiny_encoder(family)
    inputs = encoder.trace(TEXT).hidden[0].clone()
    sizes = size_of(reverse_mode_jacobian(encoder, TEXT), method, inputs)
    found = hidden_token_attribution(encoder, TEXT, method=method, exact=True)
    torch.testing.assert_close(found, sizes / sizes.sum(-1, keepdim=True), rtol=1e-8, atol=1e-11)
    # Rows and columns are not the same thing: the transpose is far away.
    assert (found - found.mT).abs().max() > 0.01


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_exact_squares_are_those_of_the_blocks(family):
    encoder = tiny_encoder(family)
    squares = exact_squares(encoder, encoder.encode(TEXT), span_of(encoder)).mean
    blocks = reverse_mode_jacobian(encoder, TEXT)
    torch.testing.assert_close(squares, blocks.square().sum((-2, -1)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
@pytest.mark.parametrize("method", METHODS)
def test_the_input_of_any_layer_can_be_the_source(family, method):
    encoder = tiny_encoder(family, layers=3)
    inputs = encoder.trace(TEXT).hidden[1].clone()
    sizes = size_of(reverse_mode_jacobian(encoder, TEXT, source=1), method, inputs)
    expected = sizes / sizes.sum(-1, keepdim=True)
    found = attribute(encoder, TEXT, method=method, exact=True, source=1, layers=[2], outputs=[3, 1])
    assert (found.layers, found.outputs, found.source) == ((2,), (3, 1), 1)
    torch.testing.assert_close(found.contributions, expected[:1, [3, 1]], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_leaving_layers_out_changes_no_state_and_leaves_the_model_whole(family):
    encoder = tiny_encoder(family, layers=3)
    before = encoder.trace(TEXT).hidden
    everything = hidden_token_attribution(encoder, TEXT)
    part = attribute(encoder, TEXT, layers=[1, 2])
    torch.testing.assert_close(part.contributions, everything[:2], rtol=1e-10, atol=1e-14)
    assert torch.equal(encoder.trace(TEXT).hidden, before)
    with pytest.raises(RuntimeError):  # an error on the way out must not leave a shortened model behind
        engine.span_function(encoder, encoder.encode(TEXT), span_of(encoder, 1, [2]))(torch.ones(1, 3, 3))
    assert torch.equal(encoder.trace(TEXT).hidden, before)


@pytest.fixture(scope="module")
def draws():
    """Return the exact squares of a tiny model and 40 independent estimates of them."""
    encoder = tiny_encoder("bert")
    encoding = encoder.encode("river lamp")
    span = span_of(encoder)
    exact = exact_squares(encoder, encoding, span).mean
    many = torch.stack([sampled_squares(encoder, encoding, span, 8, seed).mean for seed in range(40)])
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
@pytest.mark.parametrize(
    "options",
    [
        {"probes": 1},
        {"probes": 3, "seed": 5},
        {"exact": True},
        {"method": "sum-gradient"},
        {"method": "gradient-x-input"},
        {"method": "spectral", "exact": True},
    ],
)
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
    for method in METHODS:
        found = attribute(encoder, "river", method=method, exact=method == "spectral")
        assert torch.equal(found.contributions, torch.ones(2, 1, 1, dtype=torch.float64))
        assert torch.equal(found.standard_error, torch.zeros(2, 1, 1, dtype=torch.float64))


def test_chunk_size_changes_rounding_only(monkeypatch):
    encoder = tiny_encoder("bert")
    whole = hidden_token_attribution(encoder, TEXT, probes=2, seed=3)
    for chunk in (1, 3, 7, 1000):
        found = hidden_token_attribution(encoder, TEXT, probes=2, seed=3, chunk=chunk)
        torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-14)
    encoding = encoder.encode(TEXT)
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)
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
    with pytest.raises(
        ValueError, match="method must be one of jacobian, sum-gradient, spectral, gradient-x-input, not 'lime'"
    ):
        hidden_token_attribution(encoder, TEXT, method="lime")
    for probes in (0, -2):
        with pytest.raises(ValueError, match=f"probes must be at least 1, not {probes}"):
            hidden_token_attribution(encoder, TEXT, probes=probes)
    with pytest.raises(ValueError, match=r"pass exact=True, for short texts"):
        hidden_token_attribution(encoder, TEXT, method="spectral")
    for source in (-1, 2):
        with pytest.raises(ValueError, match=f"source must be 0 .* to 1, not {source}"):
            attribute(encoder, TEXT, source=source)
    for layers in ([], [1], [3], [2, 2]):
        with pytest.raises(ValueError, match="layers must ascend from 2 to 2"):
            attribute(encoder, TEXT, source=1, layers=layers)
    for outputs in ([], [8], [-1], [1, 1]):
        with pytest.raises(ValueError, match="outputs must be different places from 0 to 7"):
            attribute(encoder, TEXT, outputs=outputs)
    with pytest.raises(IdentError, match="takes at most 40"):
        hidden_token_attribution(encoder, " ".join(["river"] * 60))
    assert hidden_token_attribution(encoder, " ".join(["river"] * 60), truncate=5).shape == (2, 5, 5)
    with pytest.raises(ValueError, match="reach must not be negative, got -1"):
        by_relative_position(torch.ones(1, 2, 2), -1)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_in_train_mode_is_refused(method):
    encoder = tiny_encoder("bert")
    encoder.model.train()
    with pytest.raises(IdentError, match="is in train mode"):
        hidden_token_attribution(encoder, TEXT, method=method, exact=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_is_not_eager_is_refused(method):
    encoder = tiny_encoder("bert")
    encoder.model.set_attn_implementation("sdpa")
    with pytest.raises(IdentError, match="computes attention by 'sdpa', which has no forward derivative"):
        hidden_token_attribution(encoder, TEXT, method=method, exact=True)


def test_threads_change_rounding_only():
    encoder = tiny_encoder("mpnet", width=64, heads=4)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(hidden_token_attribution(encoder, TEXT, probes=3))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-14)


def test_chosen_outputs_are_rows_of_all():
    encoder = tiny_encoder("distilbert")
    for method in ("jacobian", "sum-gradient", "gradient-x-input"):
        whole = attribute(encoder, TEXT, method=method)
        some = attribute(encoder, TEXT, method=method, outputs=[4, 2])
        torch.testing.assert_close(some.contributions, whole.contributions[:, [4, 2]], rtol=1e-10, atol=1e-14)
        assert some.standard_error.shape == some.contributions.shape


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
