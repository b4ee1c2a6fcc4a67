"""From texts to verdicts on a tiny model: every measuring function runs, and its numbers mean what they say."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from encoders import make_texts, tiny_encoder

from ident_utils.claims import CLAIMS, verdict
from ident_utils.errors import IdentError
from ident_utils.experiments import (
    angle_vs_norm,
    context_mixing,
    contribution,
    effective_attention,
    identity_controls,
    identity_losses,
    identity_neighbours,
    identity_retention,
    identity_transfer,
    intervals,
    layer_norm_caveat,
    lengths,
    norm_information,
    norm_moves,
    precision,
    rank_bound,
    replacement,
)
from ident_utils.experiments.contribution import Attributed
from ident_utils.families import layer_norms
from ident_utils.models import permuted
from ident_utils.settings import load_settings
from ident_utils.states import Split, TokenStates, collect_split, collect_states

VERDICTS = {"reproduced", "reproduced in direction", "not reproduced"}
RESAMPLES = 50


def assert_judged(measurements: dict[str, dict]) -> None:
    for claim, measurement in measurements.items():
        assert verdict(claim, measurement) in VERDICTS
        assert CLAIMS[claim].show(measurement)
        assert {"value", "low", "high", "n_sequences", "unit"} <= set(measurement)


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder("bert", layers=3)  # two heads of width 8


@pytest.fixture(scope="module")
def texts():
    return make_texts(3, 30)


def test_lengths_lie_on_both_sides_of_the_bound(encoder):
    found = lengths.lengths_for(encoder, load_settings("smoke"))
    assert {8, 9, 10, 16} <= set(found) and found == sorted(found)
    assert all(4 <= n <= encoder.max_tokens for n in found)


def test_text_shorter_than_the_length_asked_for_is_refused(encoder):
    with pytest.raises(IdentError, match="Text 1 has only 6 tokens, not 12; choose a corpus of longer texts"):
        rank_bound.measure_nullity(encoder, [*make_texts(1, 30), "the river sings ."], [12])


def test_rank_bound_is_met_exactly_and_a_second_attention_changes_nothing(encoder, texts):
    nullities = rank_bound.measure_nullity(encoder, texts, [8, 9, 10, 16])
    assert len(nullities) == 3 * 4 * 3 * 2
    assert (nullities["free"] == nullities["bound"]).all() and (
        nullities["nullity"] == (nullities["n"] - 8).clip(0)
    ).all()
    summary = rank_bound.nullity_by_length(nullities).set_index("n")
    assert summary["bound"].to_dict() == {8: 0, 9: 0, 10: 1, 16: 7}
    assert set(summary["heads"]) == {18}
    seconds, example = rank_bound.compare_with_second(encoder, texts[0], 20, [1, 3])
    second, control = (seconds[seconds["attention"] == kind] for kind in ("second", "control"))
    assert (second["head_output"] < 1e-9).all() and (second["final_hidden"] < 1e-9).all()
    assert (control["head_output"] > 1e-3).all() and (control["final_hidden"] > 1e-3).all()
    np.testing.assert_allclose(second["total_variation"], control["total_variation"], atol=1e-12)
    assert example["raw"].shape == example["second"].shape == (20, 20) and len(example["tokens"]) == 20
    c1 = rank_bound.judge_c1(nullities, seconds, RESAMPLES)
    assert_judged({"C1": c1})
    assert verdict("C1", c1) == "reproduced" and c1["n_sequences"] == 3


def test_effective_attention_differs_beyond_the_bound_only(encoder, texts):
    table = effective_attention.measure_correlation(encoder, texts, [6, 8, 12, 20])
    short, beyond = table[table["n"] <= 8], table[table["n"] > 8]
    np.testing.assert_allclose(short["correlation"], 1, atol=1e-12)
    assert (
        (short["removed"] == 0).all() and (beyond["removed"] > 1e-4).all() and (beyond["correlation"] < 0.999).all()
    )
    kinds = [f"raw to {group}" for group in effective_attention.TOKEN_GROUPS]
    np.testing.assert_allclose(table[kinds].sum(axis=1), 1, atol=1e-12)  # the groups share all the attention
    assert_judged({"C2": effective_attention.judge_c2(table, encoder.head_dim, RESAMPLES)})
    received = effective_attention.attention_received(table, 20, RESAMPLES)
    assert len(received) == 2 * 4 * 3
    typical = effective_attention.typical_head(encoder.trace(texts[0], truncate=20))
    assert typical["raw"].shape == typical["effective"].shape == (20, 20)
    assert 1 <= typical["layer"] <= 3 and typical["head"] in (1, 2)
    both = np.corrcoef(typical["raw"].flatten(), typical["effective"].flatten())[0, 1]
    assert typical["correlation"] == pytest.approx(both, abs=1e-9)


def test_rows_of_effective_attention_are_distributions_up_to_the_bound_only(encoder, texts):
    table = effective_attention.measure_correlation(encoder, texts, [8, 20])
    short, beyond = (table[table["n"] == n] for n in (8, 20))
    assert (short["negative"] == 0).all() and (short["top_kept"] == 1).all()
    np.testing.assert_allclose(short[["row_sum_low", "row_sum_high"]], 1, atol=1e-12)
    assert (beyond["negative_mass"] > 0.01).mean() > 0.5 and (beyond["row_sum_low"] < beyond["row_sum_high"]).all()
    per_head = effective_attention.by_head(table, 20, "correlation")
    assert per_head.shape == (3, 2)
    chosen = beyond[(beyond["layer"] == 2) & (beyond["head"] == 1)]["correlation"].mean()
    assert per_head[1, 0] == pytest.approx(chosen)


def test_ranks_are_read_rightly_but_for_float32_products_cut_as_float64(encoder, texts):
    spectra = precision.measure_spectra(encoder, texts[0], 14)  # width 16, heads of width 8
    ranks = precision.ranks_read(spectra, 14, 8, 16).set_index("method")
    wrong = "T made in float32, float64's tolerance"
    assert (ranks.drop(wrong)["right"].iloc[:4] == 1).all()
    assert ranks.loc[wrong, "right"] == 0 and ranks.loc[wrong, "largest"] == 14
    spectrum = precision.spectrum_of_head(spectra, 2, 1)
    assert spectrum.groupby("matrix")["value"].max().eq(1).all()


def test_intervals_widen_beyond_the_bound_and_hold_the_weights(encoder, texts):
    table = intervals.measure_intervals(encoder, texts, [9, 24], 12)
    assert (table["gap"] <= 1e-6).all() and (table["width"] >= 0).all()
    assert (table["low"] <= table["weight"]).all() and (table["weight"] <= table["high"]).all()
    assert (table["low"] - 1e-7 <= table["alternative"]).all() and (
        table["alternative"] <= table["high"] + 1e-7
    ).all()
    assert (table.loc[table["n"] == 9, "width"] == 0).all() and (table.loc[table["n"] == 24, "width"] > 0.05).any()
    table = table.assign(model="tiny", head_dim=8)
    wide = intervals.wide_by_length(table, RESAMPLES).set_index(["which", "n"])["value"]
    assert wide["weights above 0.05", 9] == 0 < wide["weights above 0.05", 24]
    assert intervals.width_by_concentration(table, RESAMPLES)["rows"].sum() == 36
    readings = intervals.compare_readings(table)
    assert readings["weights"].item() == ((table["n"] == 24) & (table["weight"] > 0.05)).sum()
    head = intervals.readable_head(encoder.trace(texts[0], truncate=20))
    assert len(head["table"]) == 20 and (head["low"] <= head["raw"]).all()


def test_perplexity_counts_the_tokens_of_an_even_row():
    rows = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    np.testing.assert_allclose(intervals.perplexity(rows), [4, 1, 2], rtol=1e-12)


def test_whole_model_is_replaced_without_a_change_but_for_the_controls(encoder, texts):
    encoder = tiny_encoder("mpnet", layers=3, width=32)
    table, example = replacement.compare_replacements(encoder, texts[0], texts[1], 24)
    change = table.set_index("how")["final_hidden"]
    assert change["put in place"] < 1e-10 and change["by new weights"] < 1e-8
    assert 1e-10 < change["put in place, float32"] < 1e-3
    assert change["control"] > 1e-4 and change["new weights, other text"] > 1e-2
    moved = table.set_index("how")["total_variation"]
    assert moved["control"] == pytest.approx(moved["put in place"], abs=1e-12)
    assert example["raw"].shape == (24, 24) and example["by_head"].shape == (3, 2)


def test_groups_of_tokens(encoder):
    trace = encoder.trace(("the boat , slowly !", "rings ?"))
    groups = dict(zip(enumerate(trace.tokens), effective_attention.token_groups(trace), strict=True))
    assert [g for (_, t), g in groups.items() if t == "[CLS]"] == ["first token"]
    assert [g for (_, t), g in groups.items() if t == "[SEP]"] == ["separators"] * 2
    assert [t for (_, t), g in groups.items() if g == "punctuation"] == [",", "!", "?"]
    assert [t for (_, t), g in groups.items() if g == "other"] == ["the", "boat", "slowly", "ring", "##s"]


@pytest.fixture(scope="module")
def split(encoder):
    return collect_split(encoder, make_texts(30, 12), seed=0)


def test_identity_is_measured_by_layer_and_judged(split):
    fits = identity_retention.fit_mappings(split, identity_retention.NAIVE_AND_RIDGE)
    found = identity_retention.find_tokens(fits, split)
    assert set(found) == {(mapping, layer) for mapping in ("naive", "ridge") for layer in (1, 2, 3)}
    best = identity_retention.best_mapping(found)
    assert best == max(
        ("naive", "ridge"), key=lambda m: np.mean([found[m, i]["validation"].double().mean() for i in (1, 2, 3)])
    )
    everywhere = identity_retention.find_in_all_sequences(fits, split, "ridge")
    tables = [identity_retention.retention_table(f, split.test, RESAMPLES) for f in (found, everywhere)]
    rate = pd.concat(tables).set_index(["mapping", "layer", "lookup"])["value"]
    for layer in split.layers:
        # A larger pool is harder, a looser hit is easier: these orders hold whatever the model.
        assert rate["ridge", layer, "own all"] <= rate["ridge", layer, "own"] <= rate["ridge", layer, "word"]
        assert rate["ridge", layer, "own all"] <= rate["ridge", layer, "word all"]
    assert rate["ridge", 1, "own"] > 5 * identity_retention.chance(split.test)
    measurements = identity_retention.judge_c3_c4(found, split.test, best, RESAMPLES)
    assert_judged(measurements)
    assert measurements["C3"]["value"] == pytest.approx(rate[best, 3, "own"])
    assert measurements["C3"]["n_sequences"] == split.test.n_sequences


def test_validation_chooses_by_what_it_identifies(split):
    score = identity_retention.missed(split.validation)
    assert score(split.validation.inputs) == pytest.approx(0, abs=1e-5)
    assert score(-split.validation.inputs) > 0.9
    assert score(3 * split.validation.inputs) == pytest.approx(0, abs=1e-5)


def test_kinds_of_token_and_twins(encoder, split):
    kinds = identity_losses.kinds_of_token(encoder, split)
    tokens = encoder.tokenizer.convert_ids_to_tokens(split.test.word.tolist())
    by_token = dict(zip(tokens, kinds, strict=True))
    assert (
        by_token["[CLS]"] == "special token" and by_token["the"] == "function word" and by_token["!"] == "punctuation"
    )
    seen = set(split.train.word.tolist())
    for word, kind in zip(split.test.word.tolist(), kinds, strict=True):
        assert (kind == "unseen in training") <= (word not in seen)
    own = {1: torch.ones(len(kinds), dtype=torch.bool), 2: split.test.special}
    table = identity_losses.rates_by(own, split.test, kinds, identity_losses.KINDS, RESAMPLES)
    rate = table.set_index(["layer", "kind"])["value"]
    assert (rate[1] == 1).all() and rate[2, "special token"] == 1 and rate[2, "function word"] == 0
    assert table[table["layer"] == 1]["share"].sum() == pytest.approx(1)
    crossed = identity_losses.kinds_and_twins(own[2], split.test, kinds)
    assert crossed["count"].to_numpy()[~np.isnan(crossed["count"])].sum() == len(kinds)


def test_controls_that_know_nothing_identify_nothing(encoder, split):
    table = identity_controls.measure_controls(encoder, split, RESAMPLES).set_index(["mapping", "layer"])["value"]
    chance = identity_retention.chance(split.test)
    assert table["targets shuffled"].mean() < 3 * chance
    assert table["word only"].nunique() == table["position only"].nunique() == 1
    assert table["word only", 1] > 3 * chance  # most words of these texts occur once


def test_permuted_model_keeps_numbers_and_inputs_only(encoder):
    scrambled = permuted(encoder, seed=1)
    texts = make_texts(2, 8)
    before, after = collect_states(encoder, texts), collect_states(scrambled, texts)
    assert torch.equal(before.inputs, after.inputs)
    assert not torch.allclose(before.hidden[1], after.hidden[1])
    for old, new in zip(encoder.model.parameters(), scrambled.model.parameters(), strict=True):
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)


def test_steps_by_hand():
    inputs = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    step = torch.tensor([[5.0, 0.0], [5.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])  # one sequence in step, one not
    states = TokenStates(
        torch.stack([inputs, inputs + step]), torch.tensor([0, 0, 1, 1]), *[torch.zeros(4).long()] * 2, torch.zeros(4)
    )
    found = identity_controls.measure_steps(states).iloc[0]
    assert found["common"] == pytest.approx(50 / 52)
    assert found["moved"] == pytest.approx(1)  # the median of 1, 5, 1, 1


def test_learning_uses_the_first_texts_only(split):
    fits = identity_retention.fit_mappings(split, identity_transfer.LEARNERS, layers=[1])
    table = identity_transfer.learning_curves(fits, split, 1, RESAMPLES)
    assert sorted(set(table["sequences"])) == [3, 5, 10, 21]
    assert table.groupby("mapping").size().eq(4).all()
    tokens = table.drop_duplicates("sequences").set_index("sequences")["tokens"]
    assert tokens[21] == len(split.train.word) and tokens[3] == len(split.train.first(3).word)


def test_mapping_is_tested_on_other_layers(split):
    fits = identity_retention.fit_mappings(split, [("ridge", "l2")])
    table = identity_transfer.across_layers(fits, split, "ridge", [1, 3]).set_index(["trained", "tested"])["value"]
    own = identity_retention.find_tokens(fits, split)
    for layer in (1, 3):
        assert table[layer, layer] == pytest.approx(own["ridge", layer]["own"].double().mean().item())
    assert table[1, 3] < table[1, 1]


def test_neighbours_are_looked_up_at_their_own_place(encoder, split):
    """With states that hold the next token's input, the next token is found and the one before is not."""
    parts = []
    for part in split.parts:
        told = part.inputs.roll(-1, 0)
        parts.append(replace(part, hidden=torch.stack([part.inputs, told])))
    table = identity_neighbours.measure_neighbours(Split(*parts), [1], RESAMPLES, offsets=(-1, 1))
    rate = table[table["lookup"] == "own"].set_index(["seen", "offset"])["value"]
    assert rate[1, 1] > 0.9 and rate[1, -1] < 0.5
    with pytest.raises(ValueError, match="No token has 50 neighbours"):
        identity_neighbours.measure_neighbours(split, [1], RESAMPLES, offsets=(50,))


def test_angle_and_norm_are_measured_and_judged(split):
    found = angle_vs_norm.measure_parts(split)
    rates = angle_vs_norm.parts_table(found, split.test, RESAMPLES).set_index(["seen", "layer"])["value"]
    for seen in ("norm", "one coordinate"):  # the later layers of a random model keep too little to compare
        assert rates["direction", 1] > 3 * rates[seen, 1] and rates["full", 1] > 3 * rates[seen, 1]
    c5 = angle_vs_norm.judge_c5(found, split.test, RESAMPLES)
    assert_judged({"C5": c5})
    assert c5["largest_norm_share"] == pytest.approx(max(rates["norm"] / rates["full"]))
    fits = identity_retention.fit_mappings(split, identity_retention.NAIVE_AND_RIDGE)
    moved = norm_moves.measure_interventions(fits, split, RESAMPLES)
    assert set(moved["state"]) == {"as it is", "norm exchanged", "turned as far"}
    lookups = norm_moves.measure_lookups(fits, split, RESAMPLES)
    assert lookups["small"].between(0, 1).all() and len(lookups) == 3 * 2 * 3


def test_information_is_the_entropy_of_what_tells_the_word_and_nothing_of_noise(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    word = torch.randint(4, (4000,), generator=generator)
    hidden = torch.randn(4000, 6, generator=generator)
    told = hidden / hidden.norm(dim=-1, keepdim=True) * (word[:, None] + 1 + 0.01 * torch.rand(4000, 1))
    states = TokenStates(torch.stack([hidden, told, hidden]), word, word, word, word == 9)
    table = norm_information.measure_information(states).set_index(["number", "layer"])["value"]
    assert norm_information.word_entropy(states) == pytest.approx(2, abs=0.01)
    assert table["norm", 1] == pytest.approx(2, abs=0.1)
    for name in ("norm", "one coordinate"):
        assert table[name, 2] == pytest.approx(0, abs=0.02)
    assert table["one coordinate", 1] == pytest.approx(0, abs=0.02)


def test_states_before_the_norm_become_those_after_it(encoder):
    texts = make_texts(3, 6)
    after, before = collect_states(encoder, texts), layer_norm_caveat.collect_before_norm(encoder, texts)
    assert torch.equal(before.inputs, after.inputs)
    for layer, norm in enumerate(layer_norms(encoder.model, encoder.family), start=1):
        torch.testing.assert_close(norm(before.hidden[layer].double()).float(), after.hidden[layer])
    errors = layer_norm_caveat.norm_errors(encoder, after)
    assert (errors["median"] < 1e-4).all()


# Contributions. Two texts by hand: tokens of the first are special, other, special.

BY_HAND = [
    Attributed(
        ("[CLS]", "river", "[SEP]"),
        ("first token", "other", "separators"),
        np.array([[[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.7, 0.2]]]),
    ),
    Attributed(
        ("[CLS]", "a", "an", "the", "."),
        ("first token", "other", "other", "other", "punctuation"),
        np.array([np.eye(5)[[0, 4, 2, 1, 1]] * 0.5 + 0.1]),
    ),
]


def test_who_contributes_most_is_counted_by_hand():
    found = context_mixing.main_contributors(BY_HAND).set_index("who")["value"] * 8
    # First text: own, special, neighbour. Second: own, punctuation three away, own, neighbour two away, three away.
    assert found.round(9).to_dict() == {
        "own token": 3,
        "neighbour (1 or 2 away)": 2,
        "special token": 1,
        "other token": 2,
    }


def test_own_contributions_are_pooled_over_tokens():
    own = contribution.own_by_layer(BY_HAND, RESAMPLES)
    assert own["value"].tolist() == pytest.approx([np.median([0.6, 0.4, 0.2, 0.6, 0.1, 0.6, 0.1, 0.1])])
    others = contribution.other_by_layer(BY_HAND, RESAMPLES)
    assert others["value"].tolist() == pytest.approx([1 - 2.7 / 8])
    assert context_mixing.largest_by_layer(BY_HAND, RESAMPLES)["value"].tolist() == pytest.approx([3 / 8])
    groups = contribution.own_by_group(BY_HAND, RESAMPLES).set_index("group")["value"]
    assert groups["separators"] == pytest.approx(0.2) and groups["first token"] == pytest.approx(0.6)
    shares = context_mixing.contribution_of_groups(BY_HAND, RESAMPLES).set_index("group")["value"]
    assert shares.sum() == pytest.approx(1)
    assert shares["separators"] == pytest.approx((0.1 + 0.1) / 8)  # the separator's share in itself is its own
    offsets = context_mixing.contribution_by_offset(BY_HAND[:1], reach=2).set_index("offset")["value"]
    assert offsets.to_dict() == pytest.approx({-2: 0.1, -1: 0.6, 0: 0.4, 1: 0.2, 2: 0.1})


def test_corpus_is_attributed_once_and_judged(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path))
    encoder = tiny_encoder("bert")
    texts, settings = make_texts(3, 5), load_settings("smoke")
    attributed = contribution.attribute_corpus(encoder, texts, settings)
    assert [a.tokens for a in attributed] == [encoder.trace(t).tokens for t in texts]
    for a in attributed:
        np.testing.assert_allclose(a.contributions.sum(-1), 1, atol=1e-5)
    assert_judged(
        contribution.judge_c6_c7_c8(attributed, RESAMPLES) | {"C9": context_mixing.judge_c9(attributed, RESAMPLES)}
    )
    assert len(contribution.own_by_length(attributed)) == 3

    def fail(*_args):
        raise AssertionError("computed again")

    encoder.model.register_forward_pre_hook(fail)  # whatever is kept needs no model
    again = contribution.attribute_corpus(encoder, texts, settings)
    assert all(np.array_equal(a.contributions, b.contributions) for a, b in zip(attributed, again, strict=True))
    with pytest.raises(AssertionError, match="computed again"):
        contribution.attribute_corpus(encoder, texts, load_settings("smoke", seed=1))


def test_relative_change_by_hand():
    before = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert rank_bound.relative_change(before, before + torch.tensor([[0.0, 0.0], [0.5, 0.0]])) == pytest.approx(0.1)
