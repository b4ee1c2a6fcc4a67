"""What of a row of weights the head's output can tell: known answers, and laws that hold for any input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ident_utils.attention import (
    column_space,
    displaced_attention,
    effective_attention,
    head_correlation,
    left_null_space,
    nullity,
    rank_bound,
    second_attention,
    total_variation,
)


def random_head(n: int, d_v: int, seed: int, *, sharpness: float = 1.0, dtype=torch.float64):
    """Make attention [n, n] whose rows are probabilities, and values [n, d_v]."""
    generator = torch.Generator().manual_seed(seed)
    attention = torch.softmax(sharpness * torch.randn(n, n, generator=generator, dtype=dtype), -1)
    return attention, torch.randn(n, d_v, generator=generator, dtype=dtype)


sizes = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31 - 1))
few = settings(max_examples=40, deadline=None)


# Known answers.


def test_identical_rows_of_values_share_their_attention_evenly():
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    attention = torch.tensor([[0.7, 0.1, 0.2], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]], dtype=torch.float64)
    effective = effective_attention(attention, values).weights
    expected = [[0.4, 0.4, 0.2], [0.25, 0.25, 0.5], [0.3, 0.3, 0.4]]
    np.testing.assert_allclose(effective, expected, atol=1e-15)


def test_values_that_are_all_equal_leave_uniform_attention():
    attention, _ = random_head(5, 3, seed=0)
    effective = effective_attention(attention, torch.ones(5, 3))
    np.testing.assert_allclose(effective.weights, np.full((5, 5), 0.2), atol=1e-15)
    assert int(effective.rank.rank) == 1 and int(effective.rank.nullity) == 4


def test_one_dimensional_values_project_as_computed_by_hand():
    values = torch.tensor([[1.0], [2.0], [2.0]], dtype=torch.float64)  # v / |v| = (1, 2, 2) / 3
    attention = torch.tensor([[0.5, 0.3, 0.2]] * 3, dtype=torch.float64)  # a . v = 1.5, times v / 9
    effective = effective_attention(attention, values).weights
    np.testing.assert_allclose(effective, [[1 / 6, 1 / 3, 1 / 3]] * 3, atol=1e-15)


def test_null_space_of_ones_depends_on_whether_sums_must_be_kept():
    values = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    plain, summed = nullity(values), nullity(values, rows_sum_to_one=True)
    assert (int(plain.nullity), int(summed.nullity)) == (2, 1)
    # Values that are constant already contain the ones: the requirement costs nothing.
    assert int(nullity(torch.ones(3, 1), rows_sum_to_one=True).nullity) == 2
    # By hand: z with z . (1, 2, 4) = 0 and sum 0 is along (2, -3, 1).
    basis = left_null_space(values)
    expected = torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64) / 14**0.5
    assert basis.shape == (3, 1)
    assert abs(float(basis[:, 0] @ expected)) == pytest.approx(1, abs=1e-14)


def test_values_of_zero_make_every_weight_ineffective():
    attention, _ = random_head(4, 2, seed=1)
    effective = effective_attention(attention, torch.zeros(4, 2))
    assert torch.equal(effective.weights, torch.zeros(4, 4, dtype=torch.float64))
    assert int(effective.rank.rank) == 0 and bool(effective.removed)
    assert float(effective.rank.smallest_kept) == 0 and float(effective.rank.largest_cut) == 0
    assert left_null_space(torch.zeros(4, 2), rows_sum_to_one=False).shape == (4, 4)


def test_single_token_attends_to_itself():
    one = torch.ones(1, 1, dtype=torch.float64)
    effective = effective_attention(one, torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    assert torch.equal(effective.weights, one) and not bool(effective.removed)
    assert left_null_space(torch.tensor([[3.0, 4.0]])).shape == (1, 0)


def test_attention_that_is_one_hot_nearly_keeps_the_output():
    _, values = random_head(9, 3, seed=2)
    attention = torch.full((9, 9), 1e-12, dtype=torch.float64)
    attention.fill_diagonal_(1 - 8e-12)
    effective = effective_attention(attention, values).weights
    torch.testing.assert_close(effective @ values, attention @ values, rtol=0, atol=1e-12)
    assert torch.isfinite(effective).all()
    second = second_attention(attention, values)
    assert second.min() >= 0
    torch.testing.assert_close(second.sum(-1), torch.ones(9, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rank_bound_begins_two_tokens_past_the_head_dimension():
    assert [rank_bound(n, 4) for n in (1, 4, 5, 6, 7, 12)] == [0, 0, 0, 1, 2, 7]
    for n, d_v in ((0, 4), (4, 0), (-1, 2)):
        with pytest.raises(ValueError, match=f"not {n} and {d_v}"):
            rank_bound(n, d_v)


# Laws.


@few
@given(sizes)
def test_projector_is_idempotent_symmetric_and_its_trace_is_the_rank(size):
    n, d_v, seed = size
    _, values = random_head(n, d_v, seed)
    basis, rank = column_space(values)
    projector = basis @ basis.mT
    torch.testing.assert_close(projector @ projector, projector, rtol=0, atol=1e-12)
    torch.testing.assert_close(projector, projector.mT, rtol=0, atol=1e-15)
    assert float(projector.trace()) == pytest.approx(int(rank.rank), abs=1e-10)
    assert int(rank.rank) == np.linalg.matrix_rank(values.numpy())
    # What is projected away is exactly the left null space: another wrong projector passes A V = A_eff V.
    null = left_null_space(values, rows_sum_to_one=False)
    assert null.shape[1] == int(rank.nullity)
    torch.testing.assert_close(projector + null @ null.mT, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-12)


@few
@given(sizes)
def test_effective_attention_gives_the_same_output_and_is_never_larger(size):
    attention, values = random_head(*size)
    effective = effective_attention(attention, values).weights
    torch.testing.assert_close(effective @ values, attention @ values, rtol=0, atol=1e-12)
    assert (effective.norm(dim=-1) <= attention.norm(dim=-1) + 1e-12).all()


@few
@given(sizes, st.sampled_from([1e-9, 1e-3, 7.0, 1e6]))
def test_scale_of_the_values_changes_nothing(size, scale):
    attention, values = random_head(*size)
    small, plain = effective_attention(attention, scale * values), effective_attention(attention, values)
    torch.testing.assert_close(small.weights, plain.weights, rtol=0, atol=1e-12)
    assert int(small.rank.rank) == int(plain.rank.rank)
    for summed in (False, True):
        scaled, unscaled = (nullity(v, rows_sum_to_one=summed) for v in (scale * values, values))
        assert int(scaled.nullity) == int(unscaled.nullity)


@few
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**31 - 1))
def test_short_texts_keep_their_attention_to_the_last_bit(n, spare, seed):
    attention, values = random_head(n, n + spare, seed)
    effective = effective_attention(attention, values)
    assert torch.equal(effective.weights, attention)
    assert not bool(effective.removed)


@few
@given(sizes)
def test_freedom_is_never_below_the_bound(size):
    n, d_v, seed = size
    _, values = random_head(n, d_v, seed)
    assert int(nullity(values, rows_sum_to_one=True).nullity) >= rank_bound(n, d_v)
    assert int(nullity(values, rows_sum_to_one=True).nullity) == rank_bound(n, d_v)  # random values are generic
    duplicated = torch.cat([values, values])
    assert int(nullity(duplicated, rows_sum_to_one=True).nullity) >= n  # copies can trade their attention


@few
@given(sizes)
def test_left_null_space_is_orthonormal_and_moves_neither_output_nor_sum(size):
    n, d_v, seed = size
    _, values = random_head(n, d_v, seed)
    basis = left_null_space(values)
    k = basis.shape[1]
    assert k == rank_bound(n, d_v)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(basis.mT @ values, torch.zeros(k, d_v, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(basis.sum(0), torch.zeros(k, dtype=torch.float64), rtol=0, atol=1e-12)


# Rank is decided per head, at the right tolerance.


def test_heads_of_very_different_scale_each_keep_their_rank():
    _, large = random_head(10, 3, seed=3)
    _, small = random_head(10, 3, seed=4)
    values = torch.stack([1e9 * large, 1e-9 * small, torch.cat([small[:, :2], small[:, :1]], 1)])[None]
    rank = nullity(values)
    assert rank.rank.tolist() == [[3, 3, 2]]
    assert rank.nullity.tolist() == [[7, 7, 8]]
    # One tolerance for all heads, taken from the largest, would call the small head empty.
    singular = torch.linalg.svdvals(values)
    shared = singular.max() * 10 * torch.finfo(torch.float64).eps
    assert (singular > shared).sum(-1).tolist() == [[3, 0, 2]]
    # And one rank for all heads would leave directions of the third that are noise.
    attention = torch.softmax(torch.randn(1, 3, 10, 10, generator=torch.Generator().manual_seed(5)).double(), -1)
    effective = effective_attention(attention, values).weights
    for head in range(3):
        alone = effective_attention(attention[0, head], values[0, head]).weights
        torch.testing.assert_close(effective[0, head], alone, rtol=0, atol=1e-12)


def test_repeated_tokens_need_a_rank_revealing_basis():
    attention, values = random_head(6, 4, seed=6)
    values = values.clone()
    values[1] = values[4] = values[0]
    values = torch.cat([values[:, :2], values[:, :1] + values[:, 1:2], values[:, 3:]], 1)  # rank 3 of 4
    effective = effective_attention(attention, values)
    assert int(effective.rank.rank) == 3
    truth = attention @ torch.from_numpy(values.numpy() @ np.linalg.pinv(values.numpy(), rcond=1e-12))
    torch.testing.assert_close(effective.weights, truth, rtol=0, atol=1e-12)
    plain, _ = torch.linalg.qr(values)  # its third column is noise blown up to length one
    assert float((attention @ plain @ plain.mT - truth).abs().max()) > 1e-2


def test_rounding_in_float32_does_not_count_as_rank():
    _, values = random_head(40, 8, seed=7, dtype=torch.float32)
    projection = torch.randn(8, 64, generator=torch.Generator().manual_seed(8))
    combined = values @ projection  # true rank 8, made in float32
    assert int(nullity(combined).rank) == 8
    clear = nullity(combined)
    assert float(clear.smallest_kept) > 1e-2 and 0 < float(clear.largest_cut) < 1e-6
    assert int(column_space(combined)[1].rank) == 8
    assert left_null_space(combined, rows_sum_to_one=False).shape == (40, 32)
    attention, _ = random_head(40, 8, seed=9)
    with_values, with_combined = (effective_attention(attention, v).weights for v in (values, combined))
    torch.testing.assert_close(with_combined, with_values, rtol=0, atol=1e-5)
    assert (with_combined - attention).abs().max() > 0.01
    # The same numbers, with nothing to say that they were made in float32, look like full rank.
    assert int(nullity(combined.double()).rank) == 40


def test_tolerance_is_the_documented_one():
    _, values = random_head(7, 3, seed=9)
    largest = float(torch.linalg.svdvals(values)[0])
    assert float(nullity(values).tolerance) == pytest.approx(largest * 7 * 2.0**-52, rel=1e-12)
    assert float(nullity(values.float()).tolerance) == pytest.approx(largest * 7 * 2.0**-23, rel=1e-5)


# Bad input.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_with_layer_and_head(bad):
    attention = torch.full((2, 3, 4, 4), 0.25)
    values = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(10))
    values[1, 2, 0, 1] = bad
    for call in (
        lambda: nullity(values),
        lambda: column_space(values),
        lambda: effective_attention(attention, values),
    ):
        with pytest.raises(ValueError, match=r"values has NaN or Inf in layer 2, head 3 \(1 of 48 values\)"):
            call()
    attention[0, 1, 2, 3] = bad
    with pytest.raises(ValueError, match="attention has NaN or Inf in layer 1, head 2"):
        effective_attention(attention, values)
    with pytest.raises(ValueError, match="values has NaN or Inf"):
        left_null_space(values[1, 2])


@pytest.mark.parametrize(
    ("attention", "values", "words"),
    [
        ((4, 4), (5, 2), "last axis"),
        ((2, 4, 4), (3, 4, 2), "leading axes"),
        ((4, 4), (2, 4, 2), "leading axes"),
        ((4,), (4, 2), "last axis"),
    ],
)
def test_shapes_that_do_not_fit_are_both_named(attention, values, words):
    with pytest.raises(ValueError) as caught:
        effective_attention(torch.ones(attention), torch.ones(values))
    assert str(tuple(attention)) in str(caught.value) and str(tuple(values)) in str(caught.value)
    assert words in str(caught.value)


# Other attention with the same output, and the control.


@pytest.mark.parametrize(("n", "d_v", "sharpness"), [(12, 4, 1.0), (20, 6, 3.0), (8, 6, 1.0), (24, 4, 8.0)])
def test_second_attention_is_another_probability_matrix_with_the_same_output(n, d_v, sharpness):
    attention, values = random_head(n, d_v, seed=n, sharpness=sharpness)
    second = second_attention(attention, values)
    assert second.min() >= 0
    torch.testing.assert_close(second.sum(-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(second @ values, attention @ values, rtol=0, atol=1e-12)
    top = attention.argmax(-1, keepdim=True)
    assert (second.gather(-1, top) <= attention.gather(-1, top) + 1e-12).all()
    assert total_variation(attention, second).max() > 0.01


def test_second_attention_goes_as_far_as_the_share_says():
    # Two copies of one token: the top weight can go down to nothing, its copy takes it all.
    values = torch.tensor([[1.0], [1.0], [2.0]], dtype=torch.float64)
    attention = torch.tensor([[0.6, 0.1, 0.3]] * 3, dtype=torch.float64)
    second = second_attention(attention, values, share=0.5)
    np.testing.assert_allclose(second, [[0.3, 0.4, 0.3]] * 3, atol=1e-9)
    np.testing.assert_allclose(second_attention(attention, values, share=1.0)[:, 0], 0, atol=1e-9)


def test_second_attention_says_when_there_is_no_freedom():
    attention, values = random_head(5, 4, seed=11)
    with pytest.raises(ValueError, match=r"\(5, 4\) leave no freedom"):
        second_attention(attention, values)
    with pytest.raises(ValueError, match=r"\(5, 5\).*\(6, 4\)"):
        second_attention(attention, torch.randn(6, 4))


@few
@given(st.integers(7, 12), st.integers(0, 2**31 - 1))
def test_control_moves_as_much_weight_but_changes_the_output(n, seed):
    attention, values = random_head(n, 3, seed)
    second = second_attention(attention, values)
    control = displaced_attention(attention, second, seed=seed)
    assert control.min() >= 0
    torch.testing.assert_close(control.sum(-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        total_variation(attention, control), total_variation(attention, second), rtol=0, atol=1e-14
    )
    assert ((control - attention) @ values).norm() > 1e-3
    assert torch.equal(control, displaced_attention(attention, second, seed=seed))


def test_total_variation_by_hand():
    a = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    b = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(total_variation(a, b), [0.5, 1.0, 0.0], atol=1e-8)


def test_head_correlation_agrees_with_numpy_head_by_head():
    raw, effective = torch.rand(2, 2, 3, 5, 5, generator=torch.Generator().manual_seed(12)).double()
    found = head_correlation(raw, effective)
    assert found.shape == (2, 3)
    for layer in range(2):
        for head in range(3):
            expected = np.corrcoef(raw[layer, head].flatten(), effective[layer, head].flatten())[0, 1]
            assert float(found[layer, head]) == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(head_correlation(raw, raw), 1, atol=1e-12)
