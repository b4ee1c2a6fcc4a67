"""How far weights can move, other attention with the same output, and results kept on disk."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from encoders import WORDS, tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ident_utils.attention import (
    RowPolytope,
    alternative_attention,
    effective_attention,
    load_result,
    nullity,
    row_intervals,
    save_result,
    total_variation,
    weight_interval,
    write_attention,
)
from ident_utils.errors import IdentError
from ident_utils.families import position_bias
from ident_utils.trace import hidden_with_attention

few = settings(max_examples=12, deadline=None)
sizes = st.tuples(st.integers(1, 14), st.integers(1, 5), st.integers(0, 2**31 - 1))


def random_head(n: int, d_v: int, seed: int, *, sharpness: float = 1.0):
    """Make attention [n, n] whose rows are probabilities, and values [n, d_v], in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, n, generator=generator, dtype=torch.float64)
    return torch.softmax(logits, -1), torch.randn(n, d_v, generator=generator, dtype=torch.float64)


def by_linprog(row: np.ndarray, values: np.ndarray, j: int) -> tuple[float, float]:
    constraints = np.c_[values, np.ones(len(row))].T
    direction = np.eye(len(row))[j]
    ends = [
        linprog(sign * direction, A_eq=constraints, b_eq=constraints @ row, method="highs").fun for sign in (1, -1)
    ]
    return ends[0], -ends[1]


# Intervals.


@few
@given(sizes)
def test_intervals_agree_with_another_solver_and_are_certified(size):
    n, d_v, seed = size
    attention, values = random_head(n, d_v, seed, sharpness=2.0)
    found = row_intervals(attention[:2], values)
    assert found.low.shape == (min(2, n), n) and float(found.gap.max()) <= 1e-6
    for r, row in enumerate(attention[:2].numpy()):
        for j in {0, int(row.argmax()), n - 1}:
            low, high = by_linprog(row, values.numpy(), j)
            assert float(found.low[r, j]) == pytest.approx(low, abs=1e-6)
            assert float(found.high[r, j]) == pytest.approx(high, abs=1e-6)
    assert (found.low <= attention[:2]).all() and (attention[:2] <= found.high).all()
    if n <= d_v + 1:
        assert torch.equal(found.low, attention[:2]) and torch.equal(found.high, attention[:2])


def test_repeated_tokens_trade_all_they_have():
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    row = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    found = row_intervals(row, values)
    np.testing.assert_allclose(found.low, [[0, 0, 0.3]], atol=1e-9)
    np.testing.assert_allclose(found.high, [[0.7, 0.7, 0.3]], atol=1e-9)


def test_values_that_are_all_equal_pin_nothing_down():
    found = row_intervals(torch.tensor([0.2, 0.3, 0.5]), torch.ones(3, 2))
    np.testing.assert_allclose(found.low, 0, atol=1e-9)
    np.testing.assert_allclose(found.high, 1, atol=1e-6)


def test_single_token_and_short_texts_are_pinned_down():
    assert weight_interval(torch.ones(1), torch.tensor([[3.0, 4.0]]), 0) == (1.0, 1.0, 0.0)
    attention, values = random_head(5, 4, seed=1)
    low, high, gap = weight_interval(attention[2], values, 1)
    assert low == high == float(attention[2, 1]) and gap == 0


def test_row_that_is_nearly_one_hot_is_nearly_pinned_down():
    _, values = random_head(12, 3, seed=2)
    values[4] *= 5  # outside the hull of the others
    row = torch.full((12,), 1e-12, dtype=torch.float64)
    row[4] = 1 - 11e-12
    low, high, gap = weight_interval(row, values, 4)
    assert high - low < 1e-9 and gap < 1e-9 and low <= float(row[4]) <= high


def test_scale_of_the_values_does_not_move_an_interval():
    attention, values = random_head(12, 4, seed=3)
    plain, scaled = (weight_interval(attention[0], factor * values, 2) for factor in (1.0, 1e-9))
    np.testing.assert_allclose(plain, scaled, atol=1e-8)


def test_bounds_of_a_solver_that_stopped_early_are_still_true():
    attention, values = random_head(20, 4, seed=4)
    row = attention[0].numpy()
    direction = np.eye(20)[int(row.argmax())]
    polytope = RowPolytope(values)
    polytope._solver.setOptionValue("simplex_iteration_limit", 2)
    _, value, bound = polytope.extreme(row, direction)
    low, _ = by_linprog(row, values.numpy(), int(row.argmax()))
    assert value >= low - 1e-9 and bound <= low + 1e-9  # wide, but not wrong


@pytest.mark.parametrize(
    ("rows", "values", "tokens", "words"),
    [
        (torch.ones(3), torch.ones(4, 2), None, r"\(1, 3\).*\(4, 2\)"),
        (torch.full((4,), 0.25), torch.full((4, 2), torch.nan), None, "values has NaN or Inf"),
        (torch.tensor([torch.inf, 0, 0, 0]), torch.ones(4, 2), None, "rows has NaN or Inf"),
        (torch.tensor([1.5, -0.5, 0, 0]), torch.ones(4, 2), None, "must be probability distributions"),
        (torch.ones(4), torch.ones(4, 2), None, "must be probability distributions"),
        (torch.full((4,), 0.25), torch.ones(4, 2), [4], "reach beyond the 4 tokens"),
    ],
)
def test_bad_input_to_intervals_is_named(rows, values, tokens, words):
    with pytest.raises(ValueError, match=words):
        row_intervals(rows, values, tokens)


# The maximum-entropy alternative.


@few
@given(sizes, st.sampled_from([0.5, 2.0, 6.0]), st.booleans())
def test_alternative_gives_the_same_output_by_a_softmax_over_the_values(size, sharpness, biased):
    n, d_v, seed = size
    attention, values = random_head(n, d_v, seed, sharpness=sharpness)
    bias = random_head(n, n, seed + 1)[1] if biased else None
    found = alternative_attention(attention, values, bias=bias)
    assert bool(found.converged.all()) and float(found.error.max()) < 1e-10
    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.weights @ values, attention @ values, rtol=0, atol=1e-10)
    made = torch.softmax((0 if bias is None else bias) + found.slopes @ values.mT, -1)
    torch.testing.assert_close(made, found.weights, rtol=0, atol=1e-8)
    if bias is None:
        entropy = [-(a * a.clamp_min(1e-300).log()).sum(-1) for a in (attention, found.weights)]
        assert (entropy[1] >= entropy[0] - 1e-9).all()
    if n <= d_v + 1:
        torch.testing.assert_close(found.weights, attention, rtol=0, atol=1e-10)


def test_copies_of_a_token_share_its_weight_and_one_token_keeps_it():
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    attention = torch.tensor([[0.6, 0.2, 0.2]] * 3, dtype=torch.float64)
    np.testing.assert_allclose(alternative_attention(attention, values).weights, [[0.4, 0.4, 0.2]] * 3, atol=1e-12)
    one = alternative_attention(torch.ones(1, 1), torch.tensor([[3.0, 4.0]]))
    assert float(one.weights) == 1 and bool(one.converged.all())
    equal = alternative_attention(attention, torch.ones(3, 2))
    np.testing.assert_allclose(equal.weights, 1 / 3, atol=1e-12)


def test_rows_that_are_nearly_one_hot_are_solved_or_left_alone():
    _, values = random_head(12, 3, seed=5)
    attention = torch.full((12, 12), 1e-12, dtype=torch.float64)
    attention.fill_diagonal_(1 - 11e-12)
    exact = torch.eye(12, dtype=torch.float64)
    for rows in (attention, exact):
        found = alternative_attention(rows, values)
        assert torch.isfinite(found.weights).all() and (found.weights >= 0).all()
        torch.testing.assert_close(found.weights @ values, rows @ values, rtol=0, atol=1e-8)
        assert torch.equal(found.weights[~found.converged], rows[~found.converged])
    assert bool(alternative_attention(attention, values).converged.any())


def test_heads_of_a_batch_are_solved_as_if_alone():
    parts = [random_head(9, 3, seed) for seed in range(4)]
    attention = torch.stack([a for a, _ in parts]).reshape(2, 2, 9, 9)
    values = torch.stack([10.0 ** (3 * i) * v for i, (_, v) in enumerate(parts)]).reshape(2, 2, 9, 3)
    together = alternative_attention(attention, values)
    assert together.weights.shape == (2, 2, 9, 9) and together.slopes.shape == (2, 2, 9, 3)
    alone = alternative_attention(attention[1, 0], values[1, 0])
    torch.testing.assert_close(together.weights[1, 0], alone.weights, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="values has NaN or Inf in layer 2, head 1"):
        values[1, 0, 3, 0] = torch.nan
        alternative_attention(attention, values)


# A whole model.


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert", "roberta"])
def test_whole_model_keeps_its_output_with_other_attention_put_in_place_or_made_by_weights(family):
    encoder = tiny_encoder(family, layers=3, width=32)
    text = " ".join(w for w in WORDS if not w.startswith("##"))[:130]
    trace = encoder.trace(text)
    bias = position_bias(encoder.model, trace.n_tokens)
    assert (bias is None) == (family != "mpnet")
    found = alternative_attention(trace.attention, trace.values, bias=bias)
    assert total_variation(trace.attention, found.weights).max() > 0.01
    patched = hidden_with_attention(encoder, text, dict(enumerate(found.weights, start=1)))
    torch.testing.assert_close(patched, trace.hidden, rtol=0, atol=1e-10)
    before = {name: weight.clone() for name, weight in encoder.model.state_dict().items()}
    made = write_attention(encoder, trace.hidden, found.slopes).trace(text)
    torch.testing.assert_close(made.attention, found.weights, rtol=0, atol=1e-8)
    torch.testing.assert_close(made.hidden, trace.hidden, rtol=0, atol=1e-8)
    assert all(torch.equal(weight, before[name]) for name, weight in encoder.model.state_dict().items())


def test_position_bias_must_be_taken_off_before_logits_have_a_small_rank():
    encoder = tiny_encoder("mpnet", width=16)  # heads of width 8
    trace = encoder.trace(" ".join(w for w in WORDS[:24] if not w.startswith("##")))
    logits = trace.attention[0, 0].log()
    centred = [x - x.mean(-1, keepdim=True) for x in (logits, logits - position_bias(encoder.model, len(logits))[0])]
    assert [int(torch.linalg.matrix_rank(x, rtol=1e-9)) for x in centred][1] <= encoder.head_dim
    assert int(torch.linalg.matrix_rank(centred[0], rtol=1e-9)) > encoder.head_dim


def test_slopes_of_another_shape_are_refused():
    encoder = tiny_encoder("bert")
    hidden = torch.zeros(3, 5, encoder.width)
    with pytest.raises(ValueError, match=r"slopes \(2, 2, 4, 8\).*needs slopes \(2, 2, 5, 8\)"):
        write_attention(encoder, hidden, torch.zeros(2, 2, 4, 8))


# Two wrong methods, told apart from the right one.


def test_one_tolerance_for_all_heads_is_told_apart():
    attention, values = random_head(12, 4, seed=6)
    both = torch.stack([values, 1e-16 * values])
    right = nullity(both).rank.tolist()
    singular = torch.linalg.svdvals(both)
    wrong = (singular > singular.max() * 12 * torch.finfo(torch.float64).eps).sum(-1).tolist()
    assert right == [4, 4] and wrong == [4, 0]
    effective = effective_attention(torch.stack([attention, attention]), both).weights
    torch.testing.assert_close(effective[1], effective[0], rtol=0, atol=1e-12)


def test_transformed_values_made_in_float32_are_told_apart():
    attention, values = random_head(40, 8, seed=7)
    projection = torch.randn(8, 64, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    made = (values.float() @ projection.float()).double()
    wrong = effective_attention(attention, made)
    right = effective_attention(attention, values)
    assert int(wrong.rank.rank) == 40 and torch.equal(wrong.weights, attention)  # nothing seems to be removable
    assert int(right.rank.rank) == 8 and total_variation(attention, right.weights).max() > 0.1
    again = effective_attention(attention, (values.float() @ projection.float()))  # the tolerance of its precision
    torch.testing.assert_close(again.weights, right.weights, rtol=0, atol=1e-4)


# Results on disk.


def test_results_come_back_as_they_were(tmp_path):
    attention, values = random_head(9, 3, seed=9)
    results = [
        nullity(values),
        effective_attention(attention, values),
        row_intervals(attention[:2], values, [1, 4]),
        alternative_attention(attention, values),
    ]
    for number, result in enumerate(results):
        back = load_result(save_result(result, tmp_path / f"{number}.npz"))
        assert type(back) is type(result)
        for field in fields(result):
            left, right = getattr(result, field.name), getattr(back, field.name)
            assert left == right if not torch.is_tensor(left) and field.name != "rank" else True
            if torch.is_tensor(left):
                assert torch.equal(left, right) and left.dtype == right.dtype
    back = load_result(tmp_path / "1.npz")
    assert torch.equal(back.rank.tolerance, results[1].rank.tolerance)
    with np.load(tmp_path / "1.npz") as arrays:
        assert {"kind", "weights", "rank.rank", "rank.nullity"} <= set(arrays)


def test_other_files_and_objects_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", kind="Something", weights=np.ones(2))
    whole = save_result(nullity(random_head(9, 3, seed=9)[1]), tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "other.npz", "missing.npz", "half.npz"):
        with pytest.raises(IdentError, match=rf"{name} holds no saved result"):
            load_result(tmp_path / name)
    with pytest.raises(TypeError, match="dict is no result of this package"):
        save_result({}, tmp_path / "x.npz")
