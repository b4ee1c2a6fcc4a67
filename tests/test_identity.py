"""Finding tokens again: known answers, chance, pools and lookups, and the split by sequence."""

import os

import numpy as np
import pytest
import torch
from encoders import WORDS, tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from ident_utils import states as states_module
from ident_utils.errors import IdentError
from ident_utils.experiments.identity_losses import has_twin
from ident_utils.experiments.identity_retention import chance
from ident_utils.experiments.layer_norm_caveat import norm_from_direction
from ident_utils.experiments.norm_moves import smallest_three
from ident_utils.geometry import basis_centres, direction, exchange_norms, radial_basis, rotate_by_chord
from ident_utils.identity import Candidates, by_sequence, hits, identification_rate, identify
from ident_utils.states import TokenStates, collect_split, collect_states, split_sequences

few = settings(max_examples=40, deadline=None)


def states_of(inputs, sequence, word=None, special=None) -> TokenStates:
    inputs, n = torch.as_tensor(inputs, dtype=torch.float32), len(inputs)
    return TokenStates(
        inputs[None],
        torch.as_tensor(sequence),
        torch.arange(n) if word is None else torch.as_tensor(word),
        torch.arange(n),
        torch.zeros(n, dtype=torch.bool) if special is None else torch.as_tensor(special),
    )


# Identification by hand.

INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def test_nearest_input_is_found_by_hand():
    predicted = torch.tensor([[2.0, 0.5], [1.0, 0.2], [-3.0, -1.0]])
    assert identify(predicted, INPUTS).tolist() == [0, 0, 2]
    assert identification_rate(predicted, INPUTS) == pytest.approx(2 / 3)
    assert identification_rate(INPUTS, INPUTS) == 1.0
    assert identification_rate(-INPUTS[[0, 2]], INPUTS[[0, 2]]) == 0.0


def test_cosine_and_l2_differ_where_norms_do():
    inputs = torch.tensor([[4.0, 0.0], [0.6, 0.8]])  # the first points the right way, the second is near
    predicted = torch.tensor([[1.0, 0.1], [1.0, 0.1]])
    assert identify(predicted, inputs, "cosine").tolist() == [0, 0]
    assert identify(predicted, inputs, "l2").tolist() == [1, 1]
    # The distance is the true one.
    generator = torch.Generator().manual_seed(0)
    predicted, inputs = torch.randn(2, 30, 4, generator=generator)
    expected = torch.cdist(predicted.double(), inputs.double()).argmin(1)
    assert torch.equal(identify(predicted, inputs, "l2"), expected)
    cosine = torch.nn.functional.cosine_similarity(predicted[:, None], inputs[None], dim=-1).argmax(1)
    assert torch.equal(identify(predicted, inputs, "cosine"), cosine)


def test_candidates_come_from_the_pool_only():
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [-1.0, 0.0]])
    predicted = torch.tensor([[0.9, 0.1], [0.0, 1.0], [0.9, 0.1], [-1.0, 0.0]])
    pool = torch.tensor([7, 7, 3, 3])
    assert identify(predicted, inputs).tolist() == [2, 1, 2, 3]
    assert identify(predicted, inputs, pool=pool).tolist() == [0, 1, 2, 3]
    interleaved = torch.tensor([7, 3, 7, 3])
    assert identify(predicted, inputs, pool=interleaved).tolist() == [2, 1, 2, 3]
    # A token alone in its sequence cannot be mistaken.
    assert identification_rate(-inputs, inputs, pool=torch.arange(4)) == 1.0


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_identical_rows_count_as_one_candidate(metric):
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert identify(inputs, inputs, metric).tolist() == [0, 1, 2, 3]
    assert identification_rate(inputs, inputs, metric) == 1.0
    # Taking the first of the nearest rows instead would blame two of the three twins.
    first = torch.cdist(inputs, inputs).argmin(1)
    assert hits(first).tolist() == [True, True, False, False]
    # A twin is not a licence: who points at the other row is still wrong.
    assert identify(inputs[[1, 0, 1, 1]], inputs, metric).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_merging_of_rows_does_not_depend_on_their_scale(scale):
    generator = torch.Generator().manual_seed(1)
    inputs = scale * torch.randn(20, 3, generator=generator)
    for metric in ("cosine", "l2"):
        assert identification_rate(inputs, inputs, metric) == 1.0
        assert identification_rate(inputs.roll(1, 0), inputs, metric) == 0.0
    twice = torch.cat([inputs, inputs])
    assert identification_rate(twice.roll(20, 0), twice) == 1.0


def test_same_word_counts_with_words():
    inputs = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    predicted = inputs[[1, 0, 1]]
    words = torch.tensor([5, 5, 9])
    assert identification_rate(predicted, inputs) == 0.0
    assert identification_rate(predicted, inputs, words=words) == pytest.approx(2 / 3)
    assert hits(identify(predicted, inputs), words).tolist() == [True, True, False]


def test_random_predictions_identify_at_chance():
    generator = torch.Generator().manual_seed(2)
    n, sequences = 10, 150
    predicted, inputs = torch.randn(2, n * sequences, 8, generator=generator)
    pool = torch.arange(sequences).repeat_interleave(n)
    error = (0.1 * 0.9 / len(pool)) ** 0.5
    for metric in ("cosine", "l2"):
        assert abs(identification_rate(predicted, inputs, metric, pool) - 0.1) < 4 * error
    assert identification_rate(predicted, inputs) < 0.01  # against all 1500
    assert chance(states_of(inputs, pool)) == pytest.approx(0.1)


def test_chance_is_the_mean_of_one_over_n():
    assert chance(states_of(torch.zeros(6, 2), [0, 0, 1, 1, 1, 1])) == pytest.approx((2 * 1 / 2 + 4 * 1 / 4) / 6)


def test_bad_lookups_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 2\) and inputs \(2, 2\)"):
        identify(INPUTS, INPUTS[:2])
    with pytest.raises(ValueError, match=r"must both be \[N, d\]"):
        identify(INPUTS[0], INPUTS[0])
    with pytest.raises(ValueError, match="one of cosine, l2, not 'dot'"):
        identify(INPUTS, INPUTS, "dot")
    with pytest.raises(ValueError, match=r"pool \(2,\).*3 tokens"):
        identify(INPUTS, INPUTS, pool=torch.tensor([0, 0]))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="predicted has NaN or Inf"):
            identify(INPUTS + torch.tensor([bad, 0.0]), INPUTS)
        with pytest.raises(ValueError, match="inputs has NaN or Inf"):
            identify(INPUTS, INPUTS + torch.tensor([bad, 0.0]))


# Splitting.


@given(st.integers(6, 300), st.integers(0, 1000))
@few
def test_no_sequence_is_in_two_parts(n, seed):
    parts = split_sequences(n, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(n))
    train, validation, test = map(len, parts)
    assert abs(train - 0.7 * n) <= 1 and abs(validation - 0.15 * n) <= 1 and test >= 1


def test_tokens_of_a_sequence_stay_together():
    """A split by token would put every word of these texts on both sides; by sequence each is on one."""
    encoder = tiny_encoder("bert")
    words = [w for w in WORDS if w.isalpha()][:20]
    texts = [f"{word} {word}" for word in words]  # a word that belongs to one text alone
    split = collect_split(encoder, texts, seed=0)
    assert [part.n_sequences for part in split.parts] == [14, 3, 3]
    seen = [set(part.word[~part.special].tolist()) for part in split.parts]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    for part in split.parts:
        assert (torch.unique(part.sequence, return_counts=True)[1] == 4).all()
    other = collect_split(encoder, texts, seed=1)
    assert not torch.equal(other.test.word, split.test.word)
    assert torch.equal(collect_split(encoder, texts, seed=0).test.word, split.test.word)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_too_few_sequences_are_refused(n):
    with pytest.raises(ValueError, match=f"^{n} sequences are too few .* take at least 6"):
        split_sequences(n)


def test_states_come_from_the_encoder_text_by_text():
    encoder = tiny_encoder("bert")
    texts = ["The river sings.", ("A bell", "a lamp rings")]
    states = collect_states(encoder, texts)
    traces = [encoder.trace(text) for text in texts]
    torch.testing.assert_close(states.hidden, torch.cat([t.hidden for t in traces], 1).float())
    assert states.sequence.tolist() == [0] * traces[0].n_tokens + [1] * traces[1].n_tokens
    assert torch.equal(states.word, torch.cat([t.input_ids for t in traces]))
    assert torch.equal(states.special, torch.cat([t.special for t in traces]))
    assert states.position.tolist() == [*range(traces[0].n_tokens), *range(traces[1].n_tokens)]
    # Without a mapping, the inputs themselves are all found; those of other layers are not all.
    assert identification_rate(states.inputs, states.inputs, pool=states.sequence) == 1.0


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_texts_run_together_as_they_run_alone(family):
    encoder = tiny_encoder(family)
    texts = ["The river sings.", "boat lamp", ("A bell", "a lamp rings"), "A bell rings.", "stone cloud"]
    states = collect_states(encoder, texts)
    for number, text in enumerate(texts):
        alone = encoder.trace(text).hidden.float()
        torch.testing.assert_close(states.hidden[:, states.sequence == number], alone)


def test_large_states_lie_in_a_file_and_are_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path))
    encoder, texts = tiny_encoder("bert"), ["The river sings.", "boat lamp"]
    inside = collect_states(encoder, texts).hidden
    monkeypatch.setattr(states_module, "IN_MEMORY", 0)
    sizes = []
    allocate = os.posix_fallocate
    monkeypatch.setattr("os.posix_fallocate", lambda *given: (sizes.append(given[-1]), allocate(*given)))
    outside = collect_states(encoder, texts).hidden
    assert torch.equal(inside, outside)
    assert sizes == [4 * inside.numel()]
    assert not list(tmp_path.iterdir())  # the file has no name, so nothing is left behind


def test_a_cache_that_cannot_hold_the_states_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path))
    monkeypatch.setattr(states_module, "IN_MEMORY", 0)

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(IdentError, match=r"do not fit into .*No space left on device; free space"):
        collect_states(tiny_encoder("bert"), ["boat"])


def test_no_text_is_refused():
    with pytest.raises(IdentError, match="no text"):
        collect_states(tiny_encoder("bert"), [])


def test_first_sequences_are_the_first_held():
    states = states_of(torch.arange(12.0).reshape(6, 2), [4, 4, 1, 1, 1, 7])
    assert states.first(2).sequence.tolist() == [4, 4, 1, 1, 1]
    assert torch.equal(states.first(3).inputs, states.inputs)
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=f"{wrong} sequences were asked for, and 1 to 3"):
            states.first(wrong)


def test_candidates_serve_many_predictions_alike():
    generator = torch.Generator().manual_seed(4)
    inputs, pool = torch.randn(40, 5, generator=generator), torch.arange(40) // 8
    candidates = Candidates(inputs, pool)
    for metric in ("cosine", "l2"):
        predicted = torch.randn(40, 5, generator=generator)
        assert torch.equal(candidates.nearest(predicted, metric), identify(predicted, inputs, metric, pool))
    with pytest.raises(ValueError, match="one for one"):
        candidates.nearest(predicted[:39])


def test_results_are_grouped_by_sequence_in_order():
    groups = by_sequence(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5, 2, 5, 2]))
    assert [g.tolist() for g in groups] == [[2.0, 4.0], [1.0, 3.0]]


# Who has a twin, who is small.


def test_twins_share_word_and_sequence():
    states = states_of(torch.zeros(7, 2), [0, 0, 0, 1, 1, 1, 1], word=[3, 4, 3, 4, 5, 5, 3])
    assert has_twin(states).tolist() == [True, False, True, False, True, True, False]


def test_three_smallest_norms_of_each_sequence_are_marked():
    norms = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0])
    states = states_of(norms[:, None] * torch.tensor([[0.6, -0.8]]), [0, 0, 0, 0, 0, 1, 1])
    assert smallest_three(states).tolist() == [False, True, False, True, True, True, True]


# Angle and norm.

vectors = st.tuples(st.integers(2, 12), st.integers(2, 9), st.integers(0, 2**31 - 1))


def random_hidden(size) -> torch.Tensor:
    n, d, seed = size
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) * (1 + torch.arange(n))[:, None]


@few
@given(vectors)
def test_direction_keeps_the_angle_only(size):
    hidden = random_hidden(size)
    found = direction(hidden)
    torch.testing.assert_close(found.norm(dim=-1), torch.full((len(hidden),), size[1] ** 0.5).double())
    cosine = torch.nn.functional.cosine_similarity(found, hidden)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    torch.testing.assert_close(direction(3.7 * hidden), found)


@few
@given(vectors)
def test_exchanged_norms_are_the_donors_and_directions_stay(size):
    hidden = random_hidden(size)
    donors = torch.randperm(len(hidden), generator=torch.Generator().manual_seed(size[2]))
    found = exchange_norms(hidden, donors)
    torch.testing.assert_close(found.norm(dim=-1), hidden.norm(dim=-1)[donors])
    torch.testing.assert_close(direction(found), direction(hidden))
    torch.testing.assert_close(exchange_norms(hidden, torch.arange(len(hidden))), hidden)


@few
@given(vectors, st.floats(0.0, 1.0))
def test_rotation_keeps_the_norm_and_moves_by_the_chord(size, share):
    hidden = random_hidden(size)
    chord = 2 * share * hidden.norm(dim=-1)
    found = rotate_by_chord(hidden, chord, seed=size[2] + 1)  # not the seed that made the states
    torch.testing.assert_close(found.norm(dim=-1), hidden.norm(dim=-1), rtol=1e-10, atol=0)
    torch.testing.assert_close((found - hidden).norm(dim=-1), chord, rtol=1e-7, atol=1e-7)


def test_chord_longer_than_the_diameter_is_cut():
    hidden = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    found = rotate_by_chord(hidden, torch.tensor([100.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([[-3.0, -4.0], [0.0, 1.0]], dtype=torch.float64))
    quarter = torch.tensor([5 * 2**0.5, 2**0.5], dtype=torch.float64)
    once, twice = (rotate_by_chord(torch.randn(2, 5).double(), quarter, seed=s) for s in (0, 1))
    assert not torch.allclose(once, twice)


@few
@given(vectors)
def test_norm_of_a_layer_norm_follows_from_its_direction(size):
    n, d, seed = size
    generator = torch.Generator().manual_seed(seed)
    norm = torch.nn.LayerNorm(d + 3, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(0.5 + torch.rand(d + 3, generator=generator))
        norm.bias.copy_(0.3 * torch.randn(d + 3, generator=generator) + 0.5)
        hidden = norm(torch.randn(n, d + 3, generator=generator, dtype=torch.float64))
    found = norm_from_direction(hidden, norm.weight.detach(), norm.bias.detach())
    torch.testing.assert_close(found, hidden.norm(dim=-1), rtol=1e-6, atol=1e-6)
    # The length of what comes in plays no part.
    torch.testing.assert_close(norm_from_direction(5 * hidden, norm.weight, norm.bias), found, rtol=1e-6, atol=1e-6)


def test_radial_basis_is_one_at_its_centre_and_lets_a_line_be_any_curve():
    number = torch.linspace(-2, 3, 200)
    centres = basis_centres(number, count=16)
    assert centres.shape == (16,) and centres[0] == -2 and centres[-1] == 3
    bumps = radial_basis(number, centres)
    assert bumps.shape == (200, 16) and bumps.max() <= 1 and bumps.min() >= 0
    np.testing.assert_allclose(radial_basis(centres, centres).diagonal(), 1, atol=1e-6)
    curve = torch.sin(3 * number)[:, None].double()
    fit = bumps.double() @ torch.linalg.lstsq(bumps.double(), curve).solution
    assert (fit - curve).abs().max() < 0.05
    constant = radial_basis(torch.ones(5), basis_centres(torch.ones(5)))  # a number that never changes
    assert torch.isfinite(constant).all()
