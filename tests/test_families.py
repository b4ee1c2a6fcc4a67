"""Every supported family: what is captured, checked and attributed is what the stock model computes."""

import pytest
import torch
from encoders import EVERY_FAMILY, WIDEST, WORDS, tiny_encoder
from transformers import BartConfig, T5Config

from ident_utils.attention import effective_attention, write_attention
from ident_utils.attribution import hidden_token_attribution
from ident_utils.errors import IdentError
from ident_utils.families import (
    FAMILIES,
    family_of,
    layer_norms,
    layers_of,
    output_weights,
    position_bias,
    query_projections,
    value_projections,
)
from ident_utils.fidelity import check_encoder, refuse_unfaithful
from ident_utils.hooks import substitute_output
from ident_utils.mappings import fit_mapping
from ident_utils.states import collect_split, collect_states
from ident_utils.trace import hidden_with_attention

SHORT = "The old boat opens."
PAIR = ("Two young birds sing near the river, slowly.", "The child finds a green stone under the window!")
# These take a softmax, a rotation or a norm in float32 whatever the precision of the rest.
COARSE = ("modernbert", "deberta")

each_family = pytest.mark.parametrize("family", EVERY_FAMILY)


def tolerance(family: str, fine: float = 1e-12) -> float:
    return 2e-6 if family in COARSE else fine


@each_family
def test_what_is_traced_is_what_the_model_computes(family):
    encoder = tiny_encoder(family, layers=3)
    trace = encoder.trace(PAIR)
    n = trace.n_tokens
    assert trace.attention.shape == (3, 2, n, n) and trace.values.shape == (3, 2, n, 8)
    assert trace.hidden.shape == (4, n, 16)
    torch.testing.assert_close(trace.attention @ trace.values, trace.context, rtol=0, atol=1e-13)
    assert (trace.attention.sum(-1) - 1).abs().max() < tolerance(family)
    assert (trace.attention > 1 / n + 0.1).any()  # far from uniform, so that mistakes show
    # Heads, one after the other, times W_O and its bias are what the attention block adds.
    layer = layers_of(encoder.model, encoder.family)[1]
    module = layer.get_submodule(encoder.family.output_projection)
    heads = trace.context[1].transpose(0, 1).flatten(1)
    product = (
        heads @ output_weights(encoder.model, encoder.family)[1] + module.bias if module.bias is not None else None
    )
    if product is not None:
        torch.testing.assert_close(product, module(heads[None])[0], rtol=0, atol=1e-12)


@each_family
def test_effective_attention_agrees_with_the_plain_formula(family):
    encoder = tiny_encoder(family)
    trace = encoder.trace(PAIR)
    effective = effective_attention(trace.attention, trace.values).weights
    for layer in range(2):
        for head in range(2):
            values = trace.values[layer, head]
            plain = trace.attention[layer, head] @ values @ torch.linalg.pinv(values)
            torch.testing.assert_close(effective[layer, head], plain, rtol=0, atol=1e-9)
    removed = (effective - trace.attention).abs().max()
    assert removed > 1e-2  # 20 tokens and more, heads of 8


@each_family
def test_attribution_agrees_with_jacobians_of_automatic_differentiation(family):
    encoder = tiny_encoder(family)
    encoding = encoder.encode(SHORT)
    inputs = encoder.embedded(encoding)

    def last(embedded: torch.Tensor) -> torch.Tensor:
        with substitute_output(encoder.embeddings, embedded):
            return encoder.run(encoding).hidden_states[-1][0]

    jacobian = torch.autograd.functional.jacobian(last, inputs)[:, :, 0]  # [n, d, n, d_in]
    norms = jacobian.square().sum((1, 3)).sqrt()
    plain = norms / norms.sum(-1, keepdim=True)
    ours = hidden_token_attribution(encoder, SHORT, exact=True)
    torch.testing.assert_close(ours[-1], plain, rtol=0, atol=tolerance(family, 1e-9))
    torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]), rtol=0, atol=1e-12)


@each_family
def test_identity_can_be_measured(family):
    encoder = tiny_encoder(family, dtype=torch.float32)
    words = WORDS[3:11]
    texts = [f"the {a} {b} sings under every {c}" for a in words for b in words[:4] for c in words[6:]]
    split = collect_split(encoder, texts)
    mapping = fit_mapping(split.train.hidden[1], split.train.inputs, "linear", "l2")
    assert mapping.predict(split.test.hidden[1]).shape == split.test.inputs.shape == (len(split.test.word), 16)


@each_family
def test_text_alone_equals_the_same_text_in_a_padded_batch(family):
    encoder = tiny_encoder(family, dtype=torch.float32)
    texts = [SHORT, PAIR[1]]
    encoder.tokenizer.padding_side = "right"
    batch = encoder.tokenizer(texts, padding=True, return_tensors="pt")
    output = encoder.model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
    )
    for i, text in enumerate(texts):
        trace = encoder.trace(text)
        hidden = torch.stack(output.hidden_states)[:, i, : trace.n_tokens]
        torch.testing.assert_close(trace.hidden, hidden, rtol=0, atol=2e-5)


@each_family
def test_own_weights_given_back_change_nothing_and_others_are_felt(family):
    encoder = tiny_encoder(family, layers=3)
    trace = encoder.trace(SHORT)
    told = {layer: trace.attention[layer - 1] for layer in (1, 2, 3)}
    again = hidden_with_attention(encoder, SHORT, told)
    torch.testing.assert_close(again, trace.hidden, rtol=0, atol=tolerance(family))
    n = trace.n_tokens
    changed = hidden_with_attention(encoder, SHORT, {2: torch.full((2, n, n), 1 / n, dtype=torch.float64)})
    assert (
        torch.equal(changed[:2], trace.hidden[:2])
        and (changed[2:] - trace.hidden[2:]).abs().amax((1, 2)).min() > 1e-3
    )


@each_family
def test_length_limit_is_known_and_the_longest_text_runs(family):
    encoder = tiny_encoder(family)
    limit = encoder.max_tokens
    assert limit == WIDEST - (2 if family in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0)
    framed = encoder.encode("river").input_ids.shape[1] - 1
    assert encoder.trace(" ".join(["river"] * (limit - framed))).n_tokens == limit
    with pytest.raises(IdentError, match=rf"has {limit + 1} tokens and tiny {family} takes at most {limit};"):
        encoder.trace(" ".join(["river"] * (limit - framed + 1)))


def test_places_that_are_counted_from_a_later_padding_token_leave_fewer():
    encoder = tiny_encoder("roberta", pad_token_id=4)
    assert encoder.max_tokens == WIDEST - 5
    assert encoder.trace(" ".join(["river"] * (WIDEST - 7))).n_tokens == WIDEST - 5


# Differences between families.


@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_albert_counts_layers_by_calls(groups, inner):
    encoder = tiny_encoder("albert", layers=4, num_hidden_groups=groups, inner_group_num=inner)
    assert encoder.n_layers == 4 * inner
    assert len({id(m) for m in value_projections(encoder.model, encoder.family)}) == groups * inner
    trace = encoder.trace(SHORT)
    assert len(trace.attention) == len(trace.hidden) - 1 == 4 * inner
    torch.testing.assert_close(trace.attention @ trace.values, trace.context, rtol=0, atol=1e-13)
    # Each call's values are made of the state before that very call.
    for layer, module in enumerate(value_projections(encoder.model, encoder.family)):
        expected = encoder.split_heads(module(trace.hidden[layer]))
        torch.testing.assert_close(trace.values[layer], expected, rtol=0, atol=1e-13)
    assert all(check.holds for check in check_encoder(encoder))


@pytest.mark.parametrize("family", ["electra", "albert"])
def test_narrow_inputs_are_attributed_as_they_are_and_identified_as_they_are_widened(family):
    encoder = tiny_encoder(family, dtype=torch.float32)
    encoding = encoder.encode(SHORT)
    narrow, states = encoder.embedded(encoding), collect_states(encoder, [SHORT])
    assert narrow.shape == (1, states.inputs.shape[0], 8) and states.inputs.shape[1] == 16
    widened = encoder.model.get_submodule(encoder.family.widening)(narrow)[0]
    torch.testing.assert_close(states.inputs, widened, rtol=0, atol=1e-6)
    assert "inputs are 8 wide, and widened" in "; ".join(encoder.notes)


def test_electra_as_wide_as_its_inputs_has_nothing_to_widen():
    encoder = tiny_encoder("electra", embedding_size=16)
    assert encoder.notes == () and torch.equal(
        encoder.embedded(encoder.encode(SHORT))[0], encoder.trace(SHORT).hidden[0]
    )
    assert all(check.holds for check in check_encoder(encoder))


def test_gpt2_looks_back_only_and_says_so():
    encoder = tiny_encoder("gpt2")
    trace = encoder.trace(SHORT)
    assert encoder.causal and trace.attention.triu(1).abs().max() == 0
    assert hidden_token_attribution(encoder, SHORT).triu(1).abs().max() == 0
    assert "masked zeros are no evidence" in str(replace_source(encoder))
    assert trace.tokens[0] == "the" and not trace.special.any()


def replace_source(encoder):
    encoder.provenance.update(source="here", revision="none")
    return encoder


def test_bert_as_a_decoder_is_causal():
    encoder = tiny_encoder("bert", is_decoder=True)
    assert encoder.causal and encoder.trace(SHORT).attention.triu(1).abs().max() == 0
    assert not tiny_encoder("bert").causal


@pytest.mark.parametrize("family", ["modernbert", "gpt2"])
def test_last_state_after_a_final_norm_is_flagged(family):
    encoder = tiny_encoder(family)
    assert any("after a final norm" in note for note in encoder.notes)
    norm, seen = encoder.model.get_submodule(encoder.family.final_norm), []
    handle = norm.register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
    assert torch.equal(encoder.trace(SHORT).hidden[-1], seen[0])
    handle.remove()
    with pytest.raises(IdentError, match="has no layer norm of its own"):
        layer_norms(encoder.model, encoder.family)


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "deberta"])
def test_queries_made_together_with_values_cannot_be_had_alone(family):
    encoder = tiny_encoder(family)
    with pytest.raises(IdentError, match="has no query projection of its own in a layer"):
        query_projections(encoder.model, encoder.family)


@pytest.mark.parametrize("family", ["albert", "deberta-v2", "gpt2"])
def test_attention_is_not_written_into_weights_that_cannot_hold_it(family):
    encoder = tiny_encoder(family)
    trace = encoder.trace(SHORT)
    slopes = torch.zeros(2, 2, trace.n_tokens, 8, dtype=torch.float64)
    with pytest.raises(IdentError, match="cannot be written into the weights"):
        write_attention(encoder, trace.hidden, slopes)


def test_weights_on_any_token_are_not_asked_of_a_causal_model():
    with pytest.raises(IdentError, match="tiny gpt2 is causal"):
        tiny_encoder("gpt2").require_all_visible("An interval")
    tiny_encoder("bert").require_all_visible("An interval")


def test_only_mpnet_adds_to_the_logits_what_depends_on_places_alone():
    biased = [f for f in EVERY_FAMILY if position_bias(tiny_encoder(f).model, 5) is not None]
    assert biased == ["mpnet"]


# Refusals.


@pytest.mark.parametrize("config", [BartConfig(), T5Config()], ids=["bart", "t5"])
def test_encoder_decoders_are_refused_by_name(config):
    with pytest.raises(IdentError, match=r"x is an encoder with a decoder \(family '(bart|t5)'\)"):
        family_of(config, "x")


def test_unknown_family_is_told_where_a_new_one_goes():
    config = tiny_encoder("bert").model.config
    config.model_type = "mamba"
    with pytest.raises(IdentError, match=r"family 'mamba', which is not supported; .*ident_utils/families\.py"):
        family_of(config, "x")


# The check finds what is wrong.


@each_family
def test_every_check_holds_for_every_family(family):
    checks = check_encoder(tiny_encoder(family))
    assert all(check.holds for check in checks) and len(checks) == (9 if family == "gpt2" else 8)
    refuse_unfaithful(tiny_encoder(family))


def failed(encoder) -> str:
    with pytest.raises(IdentError) as caught:
        refuse_unfaithful(encoder)
    assert "`ident check`" in str(caught.value)
    return str(caught.value)


def test_model_with_another_backend_is_refused():
    encoder = tiny_encoder("bert")
    encoder.model.set_attn_implementation("sdpa")
    assert "one attention matrix a layer (0 of 2)" in failed(encoder)


def test_train_mode_and_dropout_are_refused():
    encoder = tiny_encoder("bert")
    encoder.model.train()
    assert "train mode" in failed(encoder)


def test_weights_mixed_after_the_softmax_are_refused():
    # DeBERTa's talking heads mix the heads' weights: rows no longer sum to one.
    assert "attention rows sum to one" in failed(tiny_encoder("deberta", talking_head=True))


def test_values_that_are_not_the_models_are_refused(monkeypatch):
    encoder = tiny_encoder("bert")
    for layer in layers_of(encoder.model, encoder.family):
        value = layer.attention.self.value
        layer.attention.self.value = torch.nn.Sequential(value, torch.nn.Linear(16, 16).double())
    # The family's path now leads to the first of two maps.
    wrong = type(encoder.family)("attention.self.value.0", "attention.output.dense")
    monkeypatch.setitem(FAMILIES, "bert", wrong)
    assert "A V equals the context vectors" in failed(encoder)


def test_words_that_reach_the_layers_past_the_embedding_block_are_refused(monkeypatch):
    encoder = tiny_encoder("bert")
    wrong = type(encoder.family)(
        "attention.self.value", "attention.output.dense", embeddings="embeddings.position_embeddings"
    )
    monkeypatch.setitem(FAMILIES, "bert", wrong)
    assert "substituting the embedding output changes nothing" in failed(encoder)


def test_tokenizer_larger_than_the_model_is_refused():
    encoder = tiny_encoder("bert")
    encoder.tokenizer.add_tokens(["zebra", "yak"])
    assert "every token of the tokenizer has a row in the model" in failed(encoder)


def test_path_that_leads_nowhere_is_a_failed_check(monkeypatch):
    wrong = type(tiny_encoder("bert").family)("attention.self.nothing", "attention.output.dense")
    monkeypatch.setitem(FAMILIES, "bert", wrong)
    assert "the model runs and can be traced" in failed(tiny_encoder("bert"))
