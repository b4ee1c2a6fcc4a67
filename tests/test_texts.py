"""A user's own texts: files of every make, labels that can be read, words with their totals, any Unicode at all."""

import json
import os
import re
import shutil
import sys

import pytest
import torch
from encoders import tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ident_utils.attribution import hidden_token_attribution
from ident_utils.cli import app, main
from ident_utils.corpora import describe_texts, load_corpus
from ident_utils.errors import IdentError
from ident_utils.look import look_at
from ident_utils.suite import reproduce
from ident_utils.textfiles import read_text_file
from ident_utils.words import SPACE, piece_words, pool_words, readable_pieces, word_labels

# Files.


@pytest.fixture
def write(tmp_path):
    def put(raw: bytes | str) -> str:
        (tmp_path / "mine.txt").write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return str(tmp_path / "mine.txt")

    return put


@pytest.mark.parametrize(
    "raw",
    ["One.\nTwo.\n", "One.\nTwo.", "One.\r\nTwo.\r\n", "\ufeffOne.\nTwo.\n", "\ufeffOne.\r\n Two. \r\n"],
    ids=["LF", "no end", "CRLF", "BOM", "BOM, CRLF and blanks"],
)
def test_file_is_read_whatever_its_line_ends(write, raw):
    file = read_text_file(write(raw))
    assert file.texts == ("One.", "Two.") and file.lines == (1, 2) and file.empty == 0


def test_pairs_and_single_texts_may_stand_in_one_file_and_empty_lines_are_counted(write):
    path = write("One.\tAnother.\n\n  \nTwo\u2028still two.\n\nThree.\n")
    file = read_text_file(path)
    assert file.texts == (("One.", "Another."), "Two\u2028still two.", "Three.")
    assert file.lines == (1, 4, 6) and file.empty == 3
    texts = load_corpus(path, 400, seed=1)  # fewer than asked for: all of them
    assert set(texts) == set(file.texts)
    assert "3 texts in the file, 3 empty lines passed over" in describe_texts(path, texts, 1)
    assert path not in describe_texts(path, texts, 1)  # no path of this machine in a notebook
    assert load_corpus(path, 2, seed=1) == texts[:2]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("fine\na\tb\tc\n", r"Line 2 of mine\.txt has 3 tab-separated fields, not 1 or 2"),
        ("fine\n\nleft\t \n", r"Line 3 of mine\.txt has a tab but only half a pair"),
        ("fine\nÉté\n".encode("latin-1"), r"Line 2 of mine\.txt is not UTF-8 text; save the file as UTF-8"),
        ("fine\n".encode("utf-16"), r"Line 1 of mine\.txt is not UTF-8"),
        ("fine\n".encode("utf-16-le"), r"Line 1 of mine\.txt holds a zero byte"),
        ("\n \n", "holds no text, only 2 empty lines"),
        ("", "holds no text"),
    ],
)
def test_file_that_cannot_be_used_names_the_line(write, raw, words):
    with pytest.raises(IdentError, match=words):
        load_corpus(write(raw), 1)


def test_folders_and_missing_files_are_named(tmp_path, write):
    with pytest.raises(IdentError, match=r"You named .*, which holds no msr_paraphrase_test\.txt"):
        load_corpus(str(tmp_path), 1)
    with pytest.raises(IdentError, match=r"There is no text file .*none\.txt"):
        load_corpus(str(tmp_path / "none.txt"), 1)
    (tmp_path / "msr_paraphrase_test.txt").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t2\t3\ta\tb\n")
    assert load_corpus(str(tmp_path), 1) == [("a", "b")]
    (tmp_path / "sub.txt").mkdir()
    with pytest.raises(IdentError, match="is a folder; name a text file in it"):
        read_text_file(tmp_path / "sub.txt")


# Labels and words.


def byte_level() -> PreTrainedTokenizerFast:
    """Make a vocabulary of bytes, with the pieces ``bo`` and ``at`` besides."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", "<pad>", *alphabet, "bo", "at"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("b", "o"), ("a", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def metaspace() -> PreTrainedTokenizerFast:
    """Make a vocabulary that marks the beginning of words, as sentencepiece does."""
    pieces = ["<unk>", "</s>", "▁boat", "s", "▁", "שלום", "עולם", "a", "b", "o", "t"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def labels(tokenizer, *parts: str) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    batch = tokenizer(*parts, return_tensors="pt")
    pieces = readable_pieces(tokenizer, batch, parts)
    return pieces, piece_words(batch), word_labels(batch, parts, pieces)


def test_bytes_are_shown_as_the_characters_they_belong_to():
    pieces, words, names = labels(byte_level(), "boat é")
    assert pieces == ("<s>", "bo", "##at", SPACE, "é[1/2]", "##é[2/2]", "</s>") or pieces[:3] == ("<s>", "bo", "##at")
    assert "Ġ" not in "".join(pieces) and "Ã" not in "".join(pieces)
    assert names == ("<s>", "boat", "é", "</s>") and words[0] == 0 and words[-1] == 3


def test_marks_of_spaces_are_left_out_and_right_to_left_text_stays_in_logical_order():
    pieces, words, names = labels(metaspace(), "boats שלום עולם")
    assert "▁" not in "".join(pieces)
    assert pieces[:2] == ("boat", "##s") and names == ("boats", "שלום", "עולם", "</s>")
    assert list(words) == sorted(words) and words[:2] == (0, 0)
    assert names[1][0] == "ש"  # the first letter of the word, which is drawn at its right


def test_wordpiece_labels_are_its_tokens_and_words_those_of_the_text():
    encoder = tiny_encoder("bert")
    encoding = encoder.encode(("Rivers sing.", "The Boats!"))
    assert encoding.tokens == ("[CLS]", "river", "##s", "[UNK]", ".", "[SEP]", "the", "boat", "##s", "!", "[SEP]")
    assert encoding.words == (0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 8)
    assert encoding.word_labels == ("[CLS]", "Rivers", "sing", ".", "[SEP]", "The", "Boats", "!", "[SEP]")


def test_pair_without_separators_is_joined_by_a_space():
    encoder = tiny_encoder("gpt2")
    assert encoder.encode(("the boat", "opens")).tokens == encoder.encode("the boat opens").tokens


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_pooling_agrees_with_plain_loops_and_sums_keep_their_totals(how):
    words = [0, 1, 1, 1, 2, 3, 3]
    piecewise = torch.rand(3, 7, 7, dtype=torch.float64)
    piecewise /= piecewise.sum(-1, keepdim=True)
    pooled = pool_words(piecewise, words, how)
    for layer in range(3):
        for out in range(4):
            for into in range(4):
                rows = [i for i, w in enumerate(words) if w == out]
                columns = [j for j, w in enumerate(words) if w == into]
                sums = [sum(piecewise[layer, i, j].item() for j in columns) for i in rows]
                plain = sum(sums) / len(rows) / (1 if how == "sum" else len(columns))
                assert pooled[layer, out, into].item() == pytest.approx(plain, abs=1e-12)
    if how == "sum":
        torch.testing.assert_close(pooled.sum(-1), torch.ones(3, 4, dtype=torch.float64))


def test_wrong_pooling_is_refused():
    with pytest.raises(ValueError, match="how must be one of sum, mean, not 'max'"):
        pool_words(torch.zeros(2, 2), [0, 1], "max")
    with pytest.raises(ValueError, match=r"\(2, 2\) do not fit 3 pieces"):
        pool_words(torch.zeros(2, 2), [0, 1, 1])


# Looking at a text.


def test_look_shows_pieces_beside_words_with_the_same_totals():
    encoder = tiny_encoder("bert")
    found = look_at(encoder, ("Rivers sing slowly.", "The boats!"))
    assert found.pieces["gives, layer 1"].sum() == pytest.approx(1)
    assert found.words["gives, layer 2"].sum() == pytest.approx(1)
    assert found.words["pieces"].sum() == len(found.pieces) == 12
    assert found.words.loc[1, "token"] == "Rivers" and found.words.loc[1, "pieces"] == 2
    whole = hidden_token_attribution(encoder, ("Rivers sing slowly.", "The boats!"), probes=4)
    assert found.pieces["own, layer 2"].tolist() == pytest.approx(whole[-1].diagonal().tolist())
    assert "4 of 4 (n > d_v + 1 = 9)" in found.facts[1]


def test_one_word_and_one_token_are_enough():
    assert len(look_at(tiny_encoder("bert"), "river").words) == 3
    alone = look_at(tiny_encoder("gpt2"), "river")
    assert alone.words["own, layer 1"].tolist() == [1.0] and "masked zeros are no evidence" in " ".join(alone.facts)


def test_text_that_is_too_long_is_cut_on_request_only_and_that_is_said(monkeypatch):
    encoder = tiny_encoder("bert")
    text = " ".join(["river"] * 50)
    with pytest.raises(IdentError, match="has 52 tokens and tiny bert takes at most 40"):
        look_at(encoder, text)
    assert (
        look_at(encoder, text, truncate=True).facts[0]
        == "n = 40 tokens, 2 of them special; 40 at most, the last 12 cut off"
    )
    assert look_at(encoder, "river", truncate=True).facts[0] == "n = 3 tokens, 2 of them special; 40 at most"
    monkeypatch.setenv("IDENT_TRUNCATE", "1")
    with pytest.warns(UserWarning, match="a text of 52 tokens was cut to the 40 that tiny bert takes"):
        assert encoder.trace(text).n_tokens == 40


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    encoder = tiny_encoder("bert", dtype=torch.float32)
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return folder


@given(text=st.text(max_size=60), pair=st.none() | st.text(max_size=20))
@settings(max_examples=25, deadline=None)
def test_no_text_ends_in_a_traceback(folder, text, pair):
    second = [] if pair is None else [f"--pair={pair}"]
    try:
        app(["look", "--model", str(folder), f"--text={text}", *second], standalone_mode=False)
    except IdentError as error:
        assert str(error) and "\n" not in str(error)


def test_file_with_texts_that_are_too_long_is_refused_by_lines_or_cut(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.txt").write_text("The river.\n\n" + "river " * 60 + "\n" + "boat " * 39 + "\nThe boat.\n")
    for name in ("RUNS", "FIGURES"):
        monkeypatch.setenv(f"IDENT_{name}", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    given = {"profile": "smoke", "model": str(folder), "corpus": "mine.txt"}
    about = "mine.txt: 4 texts, 1 empty lines passed over, 2 too long"
    with pytest.raises(IdentError, match=rf"{about} .*takes 40 tokens \(lines 3, 4\); .* cut them with --truncate"):
        reproduce(["09"], **given)
    (run,) = reproduce(["09"], **given, truncate=True)
    assert run.ok and re.search(rf"{about} .* \(lines 3, 4\), cut to fit", capsys.readouterr().err)
    assert "IDENT_TRUNCATE" not in os.environ


def test_readme_shows_the_families_that_the_check_gives():
    from ident_utils.paths import ROOT
    from ident_utils.supported import supported_table

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- models:begin -->\n{supported_table()}\n<!-- models:end -->" in readme


def test_commands_refuse_in_one_sentence(folder, tmp_path, monkeypatch, capsys):
    for arguments, words in (
        (("look", "--text", "river", "--words", "max"), "--words must be sum or mean, not 'max'"),
        (("look", "--text", " ", "--model", str(folder)), "none of them blank"),
        (("check", str(tmp_path)), "has no config.json"),
    ):
        monkeypatch.setattr(sys, "argv", ["ident", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        (line,) = capsys.readouterr().err.splitlines()
        assert left.value.code == 2 and line.startswith("ident: ") and words in line


def test_check_of_a_model_that_fails_says_which_and_ends_with_one(folder, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    declared = json.loads((copy / "config.json").read_text()) | {"is_decoder": True}
    (copy / "config.json").write_text(json.dumps(declared))
    monkeypatch.setattr(sys, "argv", ["ident", "check", str(copy)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0 and "causal: no attention to later tokens" in capsys.readouterr().out
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][:] = 1.0  # all words alike
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    word = copy / "tokenizer.json"
    word.write_text(word.read_text().replace('"bell": ', '"bell": 9'))
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr().out
    assert left.value.code == 1 and "every token of the tokenizer has a row in the model" in shown and "NO" in shown
