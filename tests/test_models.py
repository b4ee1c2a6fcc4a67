"""Loading: what is read, in which precision, and one sentence for everything that can be wrong with a folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from encoders import tiny_encoder
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM

from ident_utils.errors import IdentError
from ident_utils.families import FAMILIES, family_of, output_projections, value_projections
from ident_utils.models import load_encoder, untrained


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    encoder = tiny_encoder("bert", dtype=torch.float32)
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """Return a fresh copy of a model's folder, to be damaged."""
    return shutil.copytree(saved, tmp_path / "tiny")


def refused(name: str | Path) -> str:
    """Return the one sentence with which a model is refused."""
    with pytest.raises(IdentError) as caught:
        load_encoder(str(name))
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def test_folder_loads_as_it_was_saved(folder):
    encoder, original = load_encoder(str(folder)), tiny_encoder("bert", dtype=torch.float32)
    assert not encoder.model.training
    assert encoder.model.config._attn_implementation == "eager"
    assert encoder.model.pooler is None
    assert not any(p.requires_grad for p in encoder.model.parameters())
    assert (encoder.n_layers, encoder.n_heads, encoder.width, encoder.head_dim) == (2, 2, 16, 8)
    assert encoder.provenance["name"] == str(folder) and len(encoder.provenance["sha256"]) == 64
    text = "The old boat opens."
    assert torch.equal(encoder.trace(text).hidden, original.trace(text).hidden)
    assert encoder.trace(text).tokens == original.trace(text).tokens


@pytest.mark.parametrize("saved_as", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoint_loads_as_float32(folder, saved_as):
    tiny_encoder("bert", dtype=saved_as).model.save_pretrained(folder)
    assert load_encoder(str(folder)).dtype == torch.float32
    encoder = load_encoder(str(folder), dtype=torch.float64)
    assert encoder.dtype == torch.float64
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float64}
    assert encoder.trace("The old boat opens.").attention.dtype == torch.float64


def test_checkpoint_with_another_head_gives_its_encoder(folder):
    encoder = tiny_encoder("bert", dtype=torch.float32)
    whole = BertForMaskedLM(encoder.model.config)
    whole.bert.load_state_dict(encoder.model.state_dict(), strict=False)  # it has no pooler
    whole.save_pretrained(folder)
    text = "The old boat opens."
    assert torch.equal(load_encoder(str(folder)).trace(text).hidden, encoder.trace(text).hidden)


# What a folder can lack.


def test_misspelt_name_lists_the_models_that_exist():
    message = refused("minilm-16")
    assert "no model 'minilm-16'" in message and "minilm-l6" in message and "mpnet-base" in message


def test_empty_folder_says_what_was_looked_for(tmp_path):
    assert f"{tmp_path} has no config.json" in refused(tmp_path)


@pytest.mark.parametrize("only", [None, "pytorch_model.bin"])
def test_folder_without_safetensors_is_refused(folder, only):
    (folder / "model.safetensors").unlink()
    if only:
        torch.save({}, folder / only)
    message = refused(folder)
    assert f"{folder} has no model.safetensors" in message
    assert ("set IDENT_UNSAFE_WEIGHTS=1 if you trust it" in message) == bool(only)


def test_pickled_weights_are_read_by_those_who_insist(folder, monkeypatch):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    monkeypatch.setenv("IDENT_UNSAFE_WEIGHTS", "1")
    encoder, original = load_encoder(str(folder)), tiny_encoder("bert", dtype=torch.float32)
    assert torch.equal(encoder.trace("The river").hidden, original.trace("The river").hidden)
    assert len(encoder.provenance["sha256"]) == 64


def test_code_that_comes_with_a_checkpoint_is_not_run(folder):
    declared = json.loads((folder / "config.json").read_text())
    declared["auto_map"] = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}
    (folder / "config.json").write_text(json.dumps(declared))
    (folder / "mine.py").write_text("raise SystemExit('run')")
    assert type(load_encoder(str(folder)).model).__name__ == "BertModel"


def test_model_that_fails_a_check_is_refused_and_can_be_looked_at(folder):
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 30}
    (folder / "config.json").write_text(json.dumps(config))
    word = "embeddings.word_embeddings.weight"
    change_weights(folder, lambda weights: weights | {word: weights[word][:30].clone()})
    assert "every token of the tokenizer has a row in the model" in refused(folder)
    assert load_encoder(str(folder), check=False).n_layers == 2


def test_folder_without_a_vocabulary_is_refused(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    assert "has no vocabulary" in refused(folder)


@pytest.mark.parametrize("kept", [0, 7, 200, 5000])
def test_truncated_weights_are_refused_by_name(folder, kept):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:kept])
    assert len(whole) > kept
    assert "model.safetensors is damaged" in refused(folder)


def test_missing_encoder_weights_are_named(folder):
    gone = ("encoder.layer.1.attention.self.value.weight", "encoder.layer.1.attention.self.value.bias")
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if k not in gone})
    message = refused(folder)
    assert "lacks 2 weights" in message and "encoder.layer.1.attention.self.value." in message


def test_missing_pooler_is_no_loss(folder):
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if not k.startswith("pooler.")})
    assert load_encoder(str(folder)).trace("The river").n_tokens == 4


def test_weights_of_another_model_or_another_shape_are_refused(folder):
    change_weights(
        folder, lambda weights: weights | {"encoder.layer.1.attention.self.value.weight": torch.zeros(8, 16)}
    )
    assert "model.safetensors is damaged or does not fit" in refused(folder)
    change_weights(folder, lambda _weights: {"transformer.h.0.attn.weight": torch.zeros(4, 4)})
    assert "lacks" in refused(folder)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_with_a_decoder_is_refused_before_anything_is_read(folder, kind):
    declared = json.loads((folder / "config.json").read_text()) | {"model_type": kind}
    (folder / "config.json").write_text(json.dumps(declared))
    (folder / "model.safetensors").write_bytes(b"unread")
    assert f"an encoder with a decoder (family {kind!r})" in refused(folder)


@pytest.mark.parametrize("kind", ["mamba", "no_such_kind", None])
def test_family_that_is_not_known_is_refused_before_anything_is_read(folder, kind):
    declared = json.loads((folder / "config.json").read_text()) | {"model_type": kind}
    (folder / "config.json").write_text(json.dumps(declared))
    (folder / "model.safetensors").write_bytes(b"unread")
    message = refused(folder)
    assert f"of the family {kind!r}" in message and "bert, roberta" in message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_half_written_json_is_refused_by_name(folder, file):
    text = (folder / file).read_text()
    (folder / file).write_text(text[: len(text) // 2])
    named = "config.json" if file == "config.json" else "the tokenizer"
    assert f"{named} is damaged" in refused(folder)


# Texts.


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    "text", ["", "   ", "\n\t", None, 5, [], b"river", ("river", ""), ("a", "b", "c"), ["river", 3], {"river": 1}]
)
def test_text_that_is_none_is_refused(family, text):
    with pytest.raises(IdentError, match="one string or two, none of them blank; got"):
        tiny_encoder(family).encode(text)


def test_text_that_the_tokenizer_drops_is_refused():
    encoder = tiny_encoder("bert")
    with pytest.raises(IdentError, match="finds no word in 2 tokens"):
        encoder.encode("river lamp", truncate=2)
    assert encoder.encode("river lamp", truncate=3).tokens == ("[CLS]", "river", "[SEP]")
    with pytest.raises(IdentError, match="finds no word in 2 tokens"):
        encoder.encode("\u200b\u200b")  # not blank, but dropped as a control character


@pytest.mark.parametrize("truncate", [0, -1, 41, 1000])
def test_length_to_cut_to_must_be_possible(truncate):
    with pytest.raises(IdentError, match=rf"takes 1 to 40 tokens, not {truncate}\."):
        tiny_encoder("bert").encode("river", truncate=truncate)


def test_no_room_for_special_tokens_is_said():
    with pytest.raises(IdentError, match="leave room for the special tokens"):
        tiny_encoder("mpnet").encode(("river", "lamp"), truncate=3)


def test_pair_keeps_its_segments_where_the_model_has_them():
    pair = ("river lamp", "bell")
    assert tiny_encoder("bert").encode(pair).token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1]]
    assert tiny_encoder("bert").encode(list(pair)).tokens == ("[CLS]", "river", "lamp", "[SEP]", "bell", "[SEP]")
    assert tiny_encoder("distilbert").encode(pair).token_type_ids is None
    assert tiny_encoder("mpnet").encode(pair).token_type_ids is None


def test_segments_reach_the_model():
    encoder = tiny_encoder("bert")
    pair = encoder.encode(("river lamp", "bell"))
    hidden = encoder.run(pair).hidden_states[0][0]
    table = encoder.model.embeddings.token_type_embeddings.weight
    with torch.no_grad():
        table[1] += 1.0 * torch.arange(16)
    changed = (encoder.run(pair).hidden_states[0][0] - hidden).abs().amax(-1) > 1e-6
    assert changed.tolist() == [False, False, False, False, True, True]


# Families.


@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert", "roberta"])
def test_every_family_finds_one_projection_a_layer(kind):
    encoder = tiny_encoder(kind, layers=3)
    assert family_of(encoder.model.config, "x") is FAMILIES[kind]
    for projections in (value_projections, output_projections):
        found = projections(encoder.model, encoder.family)
        assert len({id(m) for m in found}) == 3
        assert all(m.weight.shape == (16, 16) for m in found)
    values, outputs = (p(encoder.model, encoder.family) for p in (value_projections, output_projections))
    assert not {id(m) for m in values} & {id(m) for m in outputs}


# The control.


def test_untrained_differs_by_seed_and_leaves_the_global_generator_alone():
    encoder = tiny_encoder("bert", dtype=torch.float32)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    first, again, other = untrained(encoder, 0), untrained(encoder, 0), untrained(encoder, 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    text = "The old boat opens."
    assert torch.equal(first.trace(text).hidden, again.trace(text).hidden)
    for different in (encoder, other):
        assert (first.trace(text).hidden - different.trace(text).hidden).abs().max() > 1e-2
    assert first.dtype == torch.float32 and untrained(tiny_encoder("bert")).dtype == torch.float64
    assert first.name == "untrained tiny bert" and first.provenance["seed"] == "0"
    assert not first.model.training
    assert torch.equal(encoder.trace(text).hidden, tiny_encoder("bert", dtype=torch.float32).trace(text).hidden)
