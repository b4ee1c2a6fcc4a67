"""Notebooks 05 to 07 on tiny models: tables by hand, and controls whose answer is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from encoders import WORDS, tiny_encoder

from ident_utils.attribution import METHODS, attribute
from ident_utils.experiments import (
    attention_attribution,
    attribution_sampling,
    context_mixing,
    contribution,
    definitions,
)
from ident_utils.experiments.attribution_controls import measure_controls
from ident_utils.experiments.contribution import Attributed
from ident_utils.models import untrained
from ident_utils.settings import load_settings

TEXT = "The old boat opens slowly."
RESAMPLES = 50
CONDITIONS = {"trained model", "words shuffled", "one word repeated", "weights permuted", "untrained"}


def attributed(tokens: str, weights: list, groups: str = "") -> Attributed:
    """Make a text of one layer from words, rows of weights and the first letters of its groups."""
    names = {"f": "first token", "s": "separators", "p": "punctuation", "o": "other"}
    return Attributed(
        tuple(tokens.split()),
        tuple(names[g] for g in groups or "o" * len(tokens.split())),
        np.array([weights], float),
    )


# Notebook 06, by hand: rows are hidden states.


def test_distances_are_counted_both_ways_and_sum_to_one():
    five = np.zeros((5, 5))
    five[0] = [0.5, 0.2, 0.1, 0.05, 0.15]
    five[1:, 0] = 1  # the others take everything from the first token
    found = context_mixing.distance_groups([attributed("a b c d e", five)], RESAMPLES).set_index("distance")["value"]
    assert found["own token"] == pytest.approx(0.5 / 5)
    assert found["1 away"] == pytest.approx((0.2 + 1) / 5)
    assert found["2 or 3 away"] == pytest.approx((0.1 + 0.05 + 2) / 5)
    assert found["4 to 10 away"] == pytest.approx((0.15 + 1) / 5)
    assert found.sum() == pytest.approx(1)


def test_a_twin_is_compared_with_tokens_as_far_away():
    weights = [[0.4, 0.1, 0.5, 0.0], [0.2, 0.6, 0.1, 0.1], [0.3, 0.1, 0.5, 0.1], [0.0, 0.2, 0.1, 0.7]]
    row = context_mixing.twin_table([attributed("a b a c", weights)]).iloc[0]
    assert row["pairs"] == 2 and row["twin"] == pytest.approx((0.5 + 0.3) / 2)
    assert row["same distance"] == pytest.approx((0.1 + 0.2) / 2)  # b and c, two places apart
    assert row["twin leads"] == pytest.approx(0.5)  # for the first a its twin does, for the second it is itself


def test_special_tokens_and_punctuation_are_no_twins():
    even = np.full((4, 4), 0.25)
    assert context_mixing.twin_table([attributed("s . s .", even, "spsp")]).empty


def test_exchange_with_special_tokens_goes_both_ways():
    weights = [[0.7, 0.1, 0.2], [0.3, 0.6, 0.1], [0.0, 0.5, 0.5]]
    found = context_mixing.special_exchange([attributed("<s> a b", weights, "foo")]).set_index("flow")["value"]
    assert found["special from words"] == pytest.approx(0.3)
    assert found["words from special"] == pytest.approx((0.3 + 0.0) / 2)


def test_a_map_has_a_row_for_every_pair_and_layer():
    one = attributed("a b", [[0.9, 0.1], [0.3, 0.7]])
    table = context_mixing.map_table(one, [1]).set_index(["hidden_state", "input_token"])["value"]
    assert table[1, 0] == 0.3 and len(table) == 4


# Notebook 05.


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path))
    return load_settings("smoke")


def test_the_same_passage_is_cut_to_every_length(settings):
    encoder = tiny_encoder("bert")
    passage = " ".join(w for w in WORDS if not w.startswith("##"))
    with pytest.raises(Exception, match="takes at most"):
        encoder.encode(passage)
    table = contribution.own_by_cut(encoder, [passage], [4, 9], settings)
    assert table["n"].tolist() == [4, 4, 9, 9] and set(table["layer"]) == {"first layer", "last layer"}
    first = attribute(encoder, passage, probes=1, truncate=9).contributions.diagonal(dim1=1, dim2=2)
    assert table["value"].iloc[2] == pytest.approx(float(first[0].median()), abs=0.2)


def test_cost_of_a_corpus_is_that_of_its_texts(settings):
    encoder = tiny_encoder("bert")
    one = contribution.corpus_cost(encoder, [TEXT], settings)
    three = contribution.corpus_cost(encoder, [TEXT] * 3, settings)
    assert three.tangents == 3 * one.tangents and three.operations == pytest.approx(3 * one.operations)
    assert three.chunk == one.chunk


def test_precision_is_kept_with_the_result(settings):
    found = contribution.attribute_corpus(tiny_encoder("bert"), [TEXT], settings)
    assert contribution.precision_of(found) == "float64"  # the tiny model's own
    assert contribution.precision_of([*found, replace(found[0], precision="float32")]) == "float32 and float64"


def test_a_layer_alone_is_measured_from_its_own_input():
    encoder = tiny_encoder("bert", layers=3)
    table = contribution.within_layers(encoder, [TEXT], 8, seed=0)
    alone = attribute(encoder, TEXT, probes=1, seed=3, source=2, layers=[3], truncate=8).contributions[0]
    assert table["own"].iloc[-1] == pytest.approx(float(alone.diagonal().median()))
    hidden = encoder.trace(TEXT).hidden[-1]
    similar = torch.nn.functional.cosine_similarity(hidden[:, None], hidden, dim=-1)
    n = len(hidden)
    assert table["alike"].iloc[-1] == pytest.approx(float((similar.sum() - n) / (n * (n - 1))))
    assert table["depth"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])


# Notebook 07.


@pytest.fixture(scope="module")
def exact():
    return definitions.all_definitions(tiny_encoder("mpnet", dtype=torch.float32), TEXT)


def test_all_definitions_at_once_are_those_one_by_one(exact):
    encoder = tiny_encoder("mpnet", dtype=torch.float32)
    assert tuple(exact) == METHODS
    for method, shared in exact.items():
        alone = attribute(encoder, TEXT, method=method, exact=True).contributions
        torch.testing.assert_close(shared, alone, rtol=1e-8, atol=1e-11)


def test_definitions_agree_with_themselves_only(exact):
    same = definitions.agreement_table({"one": exact["jacobian"], "two": exact["jacobian"] ** 3})
    assert same[["first layer", "middle layer", "last layer"]].to_numpy() == pytest.approx(np.ones((1, 3)))
    table = definitions.agreement_table(exact)
    assert len(table) == 6 and (table["last layer"] < 1).all()
    medians = definitions.definitions_table(exact).set_index(["method", "layer"])["value"]
    assert medians["spectral", 2] == pytest.approx(float(exact["spectral"][1].diagonal().median()))


def test_the_sum_gradient_of_equal_gains_is_nothing_but_rounding():
    encoder = tiny_encoder("bert", dtype=torch.float32)
    table = definitions.sum_gradient_of_untrained(encoder, TEXT).set_index(["model", "precision"])["relative size"]
    assert (table["trained"] > 0.1).all()
    assert table["untrained", "float32"] < 1e-5 and table["untrained", "float64"] < 1e-13
    gains = [w for name, w in untrained(encoder).model.named_parameters() if "LayerNorm.weight" in name]
    assert all((gain == 1).all() for gain in gains)


def test_the_error_falls_with_the_number_of_tangents(exact):
    encoder = tiny_encoder("mpnet", dtype=torch.float32)
    table = attribution_sampling.error_by_probes(encoder, TEXT, exact["jacobian"], [2, 32], seeds=4)
    few, many = (table[table["probes"] == k] for k in (2, 32))
    for column in ("error", "stated"):
        ratio = few[column].mean() / many[column].mean()
        assert 2.5 < ratio < 6.5, column  # the root of 16 is four
    assert table["stated"].mean() == pytest.approx(table["error"].mean(), rel=0.4)


def test_precision_and_threads_change_less_than_other_tangents():
    encoder = tiny_encoder("bert", dtype=torch.float32, width=32)
    table = attribution_sampling.compare_precisions(encoder, TEXT, 2).set_index("what")["total variation"]
    assert 0 < table["float32"] < 1e-5 < table["bfloat16"] < table["other tangents"]
    threads = torch.get_num_threads()
    assert attribution_sampling.compare_threads(encoder, TEXT, 2) < 1e-5
    assert torch.get_num_threads() == threads
    seeds = attribution_sampling.compare_seeds(encoder, TEXT, 2, 3)
    assert seeds.groupby("layer")["value"].std().min() > 0 and len(seeds) == 3 * encoder.n_layers


def test_controls_change_what_they_say_and_nothing_else():
    encoder = tiny_encoder("bert", dtype=torch.float32)
    before = {name: weight.clone() for name, weight in encoder.model.state_dict().items()}
    table = measure_controls(encoder, [TEXT], 2)
    assert set(table["condition"]) == CONDITIONS and len(table) == len(CONDITIONS) * encoder.n_layers
    assert all(torch.equal(weight, before[name]) for name, weight in encoder.model.state_dict().items())
    values = table.set_index(["condition", "layer"])["value"]
    own = attribute(encoder, TEXT, probes=2).contributions.diagonal(dim1=1, dim2=2)
    assert values["trained model", 1] == pytest.approx(float(own[0].median()))
    assert len({round(values[name, 2], 6) for name in CONDITIONS}) == len(CONDITIONS)
    assert table["tokens"].nunique() <= 3


def test_a_text_is_cut_to_whole_words_that_fit():
    encoder = tiny_encoder("bert")
    short = definitions.cut(encoder, ("The old boat", "opens slowly"), 6)
    assert short == "The old boat opens" and len(encoder.encode(short).tokens) == 6
    assert definitions.cut(encoder, "river", 1) == "river"  # never less than a word


def test_attention_is_compared_with_what_heads_pass_on():
    encoder = tiny_encoder("bert", dtype=torch.float32)
    told = attention_attribution.attention_against_attribution(encoder, TEXT, 8, probes=400)
    heads = told["heads"]
    assert len(heads) == encoder.n_layers * encoder.n_heads and told["tokens"] == 8
    assert heads["raw"].between(-1, 1).all()
    # A text no longer than a head is wide: nothing can be removed, effective attention is raw attention.
    np.testing.assert_allclose(heads["raw"], heads["effective"], atol=1e-5)
    layers = told["layers"]
    np.testing.assert_allclose(layers["raw, within the layer"], layers["effective, within the layer"], atol=1e-5)


def found_by_hand() -> dict:
    """Return findings of the kind that a good model gives."""
    agreement = pd.DataFrame(
        {"definitions": ["jacobian / spectral", "jacobian / gradient-x-input"], "first layer": [0.9, 0.3]}
    )
    nothing = pd.DataFrame({"model": ["trained", "untrained"], "relative size": [0.5, 1e-8]})
    errors = pd.DataFrame({"error": [0.1, 0.2], "stated": [0.1, 0.2]})
    precisions = pd.DataFrame(
        {"what": ["float32", "bfloat16", "other tangents"], "total variation": [1e-7, 1e-3, 1e-2]}
    )
    controls = pd.DataFrame(
        {"layer": [1, 2, 1, 2], "condition": ["trained model"] * 2 + ["untrained"] * 2, "value": [0.4, 0.1, 0.3, 0.7]}
    )
    told = {
        "heads": pd.DataFrame({"raw": [0.8, 0.9], "effective": [0.5, 0.6]}),
        "layers": pd.DataFrame({"layer": [1]}),
    }
    return definitions.findings(agreement, nothing, errors, precisions, 0.0, controls, told)


def test_findings_keep_the_worst_and_the_last():
    found = found_by_hand()
    assert found["definitions"] == {
        "smallest_rank_correlation_of_three": 0.9,
        "largest_with_gradient_x_input": 0.3,
    }
    assert found["controls"]["own_contribution_in_the_last_layer"] == {"trained model": 0.1, "untrained": 0.7}
    assert found["sampling"]["stated_over_measured_error"] == pytest.approx(1)
    assert "NO" not in definitions.checks(found)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("untrained_sum_gradient", {"relative_size": 0.1}),
        ("sampling", {"stated_over_measured_error": 3.0}),
        ("sampling", {"total_variation_of_threads": 0.1}),
        ("controls", {"own_contribution_in_the_last_layer": {"trained model": 0.5, "untrained": 0.4}}),
    ],
)
def test_every_check_of_notebook_07_can_fail(part, change):
    found = found_by_hand()
    found[part] |= change
    assert definitions.checks(found).count(": NO") == 1


def test_small_numbers_are_written_in_their_own_format():
    table = definitions.formatted(pd.DataFrame({"a": [1e-8], "b": [2.5]}), {"a": "{:.0e}"})
    assert table["a"].tolist() == ["1e-08"] and table["b"].tolist() == [2.5]
