"""One forward pass: what is captured is what the stock model computes, and nothing is left behind."""

from dataclasses import replace

import pytest
import torch
from encoders import FAMILIES, WORDS, tiny_encoder
from transformers import AutoModel

from ident_utils.errors import IdentError
from ident_utils.families import layers_of
from ident_utils.fetch import fetch_model
from ident_utils.hooks import rewrite_input, substitute_output, watch
from ident_utils.models import load_encoder
from ident_utils.trace import hidden_states, hidden_with_attention

SHORT = "The old boat opens."
LONG = ("Two young birds sing near the river, slowly.", "The child finds a green stone under the window!")

each_family = pytest.mark.parametrize("family", FAMILIES)


def hooks_left(model: torch.nn.Module) -> int:
    """Count the hooks of our making; transformers leaves some of its own on the first call."""
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return sum(h.__module__.startswith("ident_utils") for h in hooks)


@each_family
def test_weights_times_values_are_the_models_own_context(family):
    encoder = tiny_encoder(family, layers=3)
    trace = encoder.trace(LONG)
    n = trace.n_tokens
    assert trace.attention.shape == (3, 2, n, n)
    assert trace.values.shape == trace.context.shape == (3, 2, n, 8)
    assert trace.hidden.shape == (4, n, 16)
    torch.testing.assert_close(trace.attention @ trace.values, trace.context, rtol=0, atol=1e-13)
    torch.testing.assert_close(trace.attention.sum(-1), torch.ones(3, 2, n, dtype=torch.float64), rtol=0, atol=1e-13)
    # The values are this layer's projection of the state before it, not some other layer's.
    layer = layers_of(encoder.model, encoder.family)[1]
    value = layer.get_submodule(encoder.family.value_projection)(trace.hidden[1])
    torch.testing.assert_close(trace.values[1], encoder.split_heads(value), rtol=0, atol=1e-13)


@each_family
def test_first_hidden_state_is_the_embedding_block_and_substituting_it_changes_nothing(family):
    encoder = tiny_encoder(family)
    trace = encoder.trace(LONG)
    encoding = encoder.encode(LONG)
    seen = {}
    with watch([encoder.embeddings], seen.__setitem__):
        encoder.run(encoding)
    assert torch.equal(trace.hidden[0], seen[0][0])
    with substitute_output(encoder.embeddings, trace.hidden[0][None]):
        again = torch.cat(encoder.run(encoding).hidden_states)
    assert torch.equal(again, trace.hidden)
    with substitute_output(encoder.embeddings, 2 * trace.hidden[0][None]):
        other = torch.cat(encoder.run(encoding).hidden_states)
    assert (other[1:] - trace.hidden[1:]).abs().max() > 1e-3  # the substitution is felt


@each_family
def test_text_alone_equals_the_same_text_in_a_padded_batch(family):
    encoder = tiny_encoder(family, dtype=torch.float32)
    texts = [(SHORT, "A bell rings."), LONG]
    batch = encoder.tokenizer([t[0] for t in texts], [t[1] for t in texts], padding=True, return_tensors="pt")
    batch = {k: v for k, v in batch.items() if k != "token_type_ids" or family in ("bert", "roberta")}
    output = encoder.model(**batch, output_attentions=True, output_hidden_states=True)
    for i, text in enumerate(texts):
        trace = encoder.trace(text)
        n = trace.n_tokens
        assert n == int(batch["attention_mask"][i].sum())
        hidden = torch.stack(output.hidden_states)[:, i, :n]
        torch.testing.assert_close(trace.hidden, hidden, rtol=0, atol=1e-5)
        attention = torch.stack(output.attentions)[:, i, :, :n, :n]
        torch.testing.assert_close(trace.attention, attention, rtol=0, atol=1e-6)
    assert encoder.trace(SHORT).n_tokens < encoder.trace(LONG).n_tokens


def test_states_without_attention_are_the_same_states():
    encoder = tiny_encoder("bert")
    torch.testing.assert_close(hidden_states(encoder, LONG), encoder.trace(LONG).hidden, rtol=0, atol=0)


def test_tokens_specials_and_a_single_word():
    trace = tiny_encoder("mpnet").trace("rivers")
    assert trace.tokens == ("<s>", "river", "##s", "</s>")
    assert trace.special.tolist() == [True, False, False, True]
    assert trace.input_ids.shape == (4,)


def test_single_token_attends_fully_to_itself():
    encoder = tiny_encoder("bert")
    encoder.tokenizer.backend_tokenizer.post_processor = None  # as with special tokens switched off
    trace = encoder.trace("river")
    assert trace.tokens == ("river",)
    assert torch.equal(trace.attention, torch.ones(2, 2, 1, 1, dtype=torch.float64))


# Nothing is left behind.


@each_family
def test_hooks_are_gone_after_a_trace(family):
    encoder = tiny_encoder(family)
    with watch([encoder.embeddings], lambda _i, _x: None), rewrite_input([encoder.embeddings], lambda _i, x: x):
        assert hooks_left(encoder.model) == 2  # the count does see them
    before = encoder.trace(SHORT).hidden
    assert hooks_left(encoder.model) == 0
    assert torch.equal(encoder.trace(SHORT).hidden, before)


def test_hooks_are_gone_after_an_exception_in_the_model():
    encoder = tiny_encoder("bert", layers=3)
    broken = layers_of(encoder.model, encoder.family)[1].intermediate

    def fail(*_args, **_kwargs):
        raise RuntimeError("out of memory")

    handle = broken.register_forward_pre_hook(fail)
    n = encoder.encode(SHORT).input_ids.shape[1]
    for call in (
        lambda: encoder.trace(SHORT),
        lambda: hidden_with_attention(encoder, SHORT, {1: torch.full((2, n, n), 1 / n)}),
    ):
        with pytest.raises(RuntimeError, match="out of memory"):
            call()
        assert hooks_left(encoder.model) == 0
    handle.remove()
    with pytest.raises(KeyError), substitute_output(encoder.embeddings, torch.zeros(1)):
        raise KeyError
    with pytest.raises(KeyError), rewrite_input([encoder.embeddings], lambda _i, x: x):
        raise KeyError
    assert hooks_left(encoder.model) == 0


# What must be refused.


def test_train_mode_is_refused_and_eval_mode_is_not():
    encoder = tiny_encoder("bert")
    encoder.model.train()
    for call in (encoder.trace, lambda text: hidden_states(encoder, text)):
        with pytest.raises(IdentError, match=r"train mode.*eval"):
            call(SHORT)
    encoder.model.eval()
    assert encoder.trace(SHORT).n_tokens


def test_model_without_eager_attention_is_refused():
    encoder = tiny_encoder("bert")
    model = AutoModel.from_config(encoder.model.config, attn_implementation="sdpa").eval().double()
    with pytest.raises(IdentError, match=r"0 attention matrices for 2 layers; load it with load_encoder"):
        replace(encoder, model=model).trace(SHORT)


def test_dropout_of_attention_alone_is_caught_by_the_row_sums():
    encoder = tiny_encoder("bert")
    attention = layers_of(encoder.model, encoder.family)[0].attention.self
    attention.training = True  # the model as a whole says that it is in eval mode
    attention.dropout.p = 0.5
    attention.dropout.train()
    torch.manual_seed(0)
    with pytest.raises(IdentError, match="miss a sum of one"):
        encoder.trace(LONG)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ("embeddings.word_embeddings.weight", "the embedding block's output has NaN or Inf"),
        ("encoder.layer.0.attention.self.value.bias", "values of layer 1 has NaN or Inf in head 2"),
        ("encoder.layer.1.attention.self.value.bias", "values of layer 2 has NaN or Inf in head 2"),
        ("encoder.layer.1.attention.self.query.bias", "attention of layer 2 has NaN or Inf in head 2"),
        ("encoder.layer.1.output.dense.bias", "hidden state after layer 2 has NaN or Inf"),
    ],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named_with_layer_and_head(weight, words, bad):
    encoder = tiny_encoder("bert", layers=3)
    encoder.model.get_parameter(weight).data[..., -1] = bad
    with pytest.raises(ValueError, match=words):
        encoder.trace(SHORT)
    with pytest.raises(ValueError, match="has NaN or Inf"):
        hidden_states(encoder, SHORT)


# Attention that is told from outside.


@each_family
def test_a_models_own_weights_given_back_change_nothing(family):
    encoder = tiny_encoder(family, layers=3)
    trace = encoder.trace(LONG)
    told = {layer: trace.attention[layer - 1] for layer in (1, 2, 3)}
    torch.testing.assert_close(hidden_with_attention(encoder, LONG, told), trace.hidden, rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden_with_attention(encoder, LONG, {}), trace.hidden, rtol=0, atol=0)


def test_other_weights_are_felt_from_their_layer_on():
    encoder = tiny_encoder("mpnet", layers=3)
    trace = encoder.trace(LONG)
    n = trace.n_tokens
    uniform = torch.full((2, n, n), 1 / n, dtype=torch.float64)
    changed = hidden_with_attention(encoder, LONG, {2: uniform})
    assert torch.equal(changed[:2], trace.hidden[:2])
    assert (changed[2] - trace.hidden[2]).abs().max() > 1e-2
    assert (changed[3] - trace.hidden[3]).abs().max() > 1e-2
    # A swap of the two heads shows that every head gets its own weights.
    swapped = hidden_with_attention(encoder, LONG, {2: trace.attention[1].flip(0)})
    assert (swapped[2] - trace.hidden[2]).abs().max() > 1e-3


def test_told_attention_of_a_wrong_shape_layer_or_value_is_refused():
    encoder = tiny_encoder("bert")
    n = encoder.encode(SHORT).input_ids.shape[1]
    right = torch.full((2, n, n), 1 / n, dtype=torch.float64)
    for layer, weights in ((1, right[:1]), (1, right[:, :, 1:]), (1, right[0]), (0, right), (3, right)):
        with pytest.raises(ValueError, match=rf"layer {layer} has shape .*needs \(2, {n}, {n}\) for layers 1 to 2"):
            hidden_with_attention(encoder, SHORT, {layer: weights})
    with pytest.raises(ValueError, match="attention for layer 2 has NaN or Inf in head 1"):
        hidden_with_attention(encoder, SHORT, {2: right.clone().index_fill_(2, torch.tensor([0]), float("nan"))})


# Lengths.


@pytest.mark.parametrize(("family", "limit"), [("bert", 40), ("distilbert", 40), ("mpnet", 38), ("roberta", 38)])
def test_length_is_checked_before_the_forward_pass(family, limit):
    encoder = tiny_encoder(family)
    assert encoder.max_tokens == limit
    assert encoder.trace(" ".join(["river"] * (limit - 2))).n_tokens == limit  # the longest that fits does run
    ran = []
    handle = encoder.model.register_forward_pre_hook(lambda *_: ran.append(1))
    for words in (limit - 1, limit, limit + 50):
        with pytest.raises(IdentError, match=f"has {words + 2} tokens and tiny {family} takes at most {limit};"):
            encoder.trace(" ".join(["river"] * words))
    handle.remove()
    assert ran == []


@each_family
def test_text_is_cut_only_on_request(family):
    encoder = tiny_encoder(family)
    text = " ".join(WORDS[:36])
    assert encoder.trace(text).n_tokens == 38
    cut = encoder.trace(text, truncate=10)
    assert cut.n_tokens == 10
    assert cut.tokens[1:9] == tuple(WORDS[:8])
    assert cut.special.tolist() == [True, *[False] * 8, True]
    assert encoder.trace(text, truncate=38).n_tokens == 38
    assert encoder.trace(SHORT, truncate=38).n_tokens == encoder.trace(SHORT).n_tokens
    assert len(hidden_states(encoder, text, truncate=10)[0]) == 10


# On a real model.


@pytest.fixture(scope="module")
def minilm():
    fetch_model("minilm-l6", progress=False)
    return load_encoder("minilm-l6", dtype=torch.float64)


def test_trained_model_alone_equals_a_padded_batch_of_the_stock_model(minilm):
    texts = ["It rained all night.", "The committee met again in the morning and argued about the budget until noon."]
    batch = minilm.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = minilm.model(**batch, output_attentions=True, output_hidden_states=True)
    for i, text in enumerate(texts):
        trace = minilm.trace(text)
        n = trace.n_tokens
        torch.testing.assert_close(trace.hidden, torch.stack(output.hidden_states)[:, i, :n], rtol=0, atol=1e-6)
        stock = torch.stack(output.attentions)[:, i, :, :n, :n]
        torch.testing.assert_close(trace.attention, stock, rtol=0, atol=1e-6)
        torch.testing.assert_close(trace.context, stock @ trace.values, rtol=0, atol=1e-6)
        assert trace.tokens[:4] == (("[CLS]", "it", "rained", "all"), ("[CLS]", "the", "committee", "met"))[i]
