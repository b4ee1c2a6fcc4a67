"""Texts: drawn by seed, split into sentences, and read from a folder that may hold anything."""

import pytest

from ident_utils.corpora import PASSAGE_WORDS, SENTENCE_WORDS, corpus_catalogue, load_corpus, split_sentences
from ident_utils.errors import IdentError
from ident_utils.mrpc import REVISION, SPLIT, _from_hub

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@pytest.fixture
def mrpc(tmp_path, monkeypatch):
    """Return a function that writes raw bytes where the corpus mrpc is read from."""
    monkeypatch.setenv("IDENT_MRPC", str(tmp_path))

    def write(raw: bytes) -> None:
        (tmp_path / "msr_paraphrase_test.txt").write_bytes(raw)

    return write


def rows(n: int) -> list[str]:
    return [f"1\t{i}\t{i + 100}\tFirst boat {i}.\tSecond boat {i}." for i in range(n)]


# Drawing.


def test_drawing_is_decided_by_the_seed(mrpc):
    mrpc("\n".join([HEADER, *rows(30)]).encode())
    first = load_corpus("mrpc", 30, seed=1)
    assert load_corpus("mrpc", 30, seed=1) == first
    assert len(set(first)) == 30  # without replacement
    other = load_corpus("mrpc", 30, seed=2)
    assert other != first and sorted(other) == sorted(first)
    assert load_corpus("mrpc", 30) != sorted(first)


def test_fewer_texts_are_the_beginning_of_more(mrpc):
    mrpc("\n".join([HEADER, *rows(30)]).encode())
    for n in (1, 7, 29):
        assert load_corpus("mrpc", n, seed=3) == load_corpus("mrpc", 30, seed=3)[:n]


def test_impossible_requests_are_refused(mrpc):
    mrpc("\n".join([HEADER, *rows(5)]).encode())
    with pytest.raises(IdentError, match="mrpc holds 5 texts, fewer than the 6 asked for"):
        load_corpus("mrpc", 6)
    for n in (0, -3):
        with pytest.raises(IdentError, match=f"at least one text of mrpc, not {n}"):
            load_corpus("mrpc", n)
    with pytest.raises(IdentError, match="no corpus 'mprc'; choose one of sotu-pairs, sotu-passages, mrpc"):
        load_corpus("mprc", 1)


def test_every_corpus_has_a_title_and_a_source():
    assert list(corpus_catalogue()) == ["sotu-pairs", "sotu-passages", "mrpc"]
    assert all({"title", "source"} <= set(entry) for entry in corpus_catalogue().values())


# MRPC from a folder.

PAIR = ("The boat left.", "A boat departed.")
LINE = "1\t12\t34\tThe boat left.\tA boat departed."


@pytest.mark.parametrize(
    "raw",
    [
        f"{HEADER}\n{LINE}\n".encode(),
        f"{HEADER}\n{LINE}".encode(),
        f"{HEADER}\r\n{LINE}\r\n".encode(),
        f"\ufeff{HEADER}\r\n{LINE}\r\n".encode(),
        f"{HEADER}\n{LINE}\n\n".encode(),
    ],
    ids=["LF", "no end", "CRLF", "BOM", "empty last line"],
)
def test_mrpc_is_read_whatever_its_line_ends(mrpc, raw):
    mrpc(raw)
    assert load_corpus("mrpc", 1) == [PAIR]


def test_mrpc_keeps_quotes_and_unusual_separators_inside_a_sentence(mrpc):
    first = 'He said "no"\u2028and\x0bleft\x85at\rnoon.'
    mrpc(f"{HEADER}\n0\t1\t2\t{first}\tÉtienne's 'boat'.\n".encode())
    assert load_corpus("mrpc", 1) == [(first, "Étienne's 'boat'.")]


@pytest.mark.parametrize(
    ("bad", "fields"), [("1\t2\t3\tonly one", 4), ("", 1), (f"{LINE}\tmore", 6), ("1 2 3 a b", 1)]
)
def test_line_with_another_number_of_fields_is_named(mrpc, bad, fields):
    mrpc("\n".join([HEADER, LINE, bad, LINE]).encode())
    with pytest.raises(
        IdentError, match=f"Line 3 of msr_paraphrase_test.txt has {fields} tab-separated fields, not 5"
    ):
        load_corpus("mrpc", 1)


def test_wrong_encoding_names_the_line(mrpc):
    mrpc(f"{HEADER}\n{LINE}\n".encode() + "1\t2\t3\tÉtienne\tleft\n".encode("latin-1"))
    with pytest.raises(IdentError, match=r"Line 3 of msr_paraphrase_test\.txt is not UTF-8"):
        load_corpus("mrpc", 1)


def test_file_without_texts_is_too_few(mrpc):
    for raw in (b"", HEADER.encode(), f"{HEADER}\n".encode()):
        mrpc(raw)
        with pytest.raises(IdentError, match="mrpc holds 0 texts"):
            load_corpus("mrpc", 1)


def test_missing_folder_file_or_variable_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("IDENT_MRPC", raising=False)
    with pytest.raises(IdentError, match="set IDENT_MRPC to a folder that holds msr_paraphrase_test"):
        load_corpus("mrpc", 1)
    monkeypatch.setenv("IDENT_MRPC", str(tmp_path / "none"))
    with pytest.raises(IdentError, match=r"none, which holds no msr_paraphrase_test\.txt"):
        load_corpus("mrpc", 1)
    (tmp_path / "msr_paraphrase_test.txt").mkdir()
    monkeypatch.setenv("IDENT_MRPC", str(tmp_path))
    with pytest.raises(IdentError, match="holds no"):
        load_corpus("mrpc", 1)


# Sentences.


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("", []),
        ("One sentence", ["One sentence"]),
        ("It rained. We stayed.", ["It rained.", "We stayed."]),
        ("Did it rain? Yes! Then we stay.", ["Did it rain?", "Yes!", "Then we stay."]),
        ("Mr. Lee met Dr. Roe. They left.", ["Mr. Lee met Dr. Roe.", "They left."]),
        ("The U.S. Senate met. It voted.", ["The U.S. Senate met.", "It voted."]),
        ("John F. Kennedy spoke. We heard.", ["John F. Kennedy spoke.", "We heard."]),
        ('"We can." He paused.', ['"We can."', "He paused."]),
        ('He asked, "Why?" "Because," she said.', ['He asked, "Why?"', '"Because," she said.']),
        ("It cost 3.5 million. No more.", ["It cost 3.5 million.", "No more."]),
        ("It rose to 4. then fell.", ["It rose to 4. then fell."]),
        ("Wait... The boat left.", ["Wait...", "The boat left."]),
    ],
)
def test_sentences_are_split_where_a_reader_would(paragraph, sentences):
    assert split_sentences(paragraph) == sentences


def test_splitting_loses_no_word():
    paragraph = 'Mr. A. Smith left. "Did he?" (Yes, in the U.S. Navy.) He did! Gen. Roe stayed.'
    assert " ".join(split_sentences(paragraph)).split() == paragraph.split()


# The addresses.


def test_pairs_are_two_sentences_of_ordinary_length_each_used_once():
    pairs = load_corpus("sotu-pairs", 400, seed=0)
    shortest, longest = SENTENCE_WORDS
    for pair in pairs:
        assert isinstance(pair, tuple) and len(pair) == 2
        for sentence in pair:
            assert shortest <= len(sentence.split()) <= longest
            assert sentence == " ".join(sentence.split()) and "[" not in sentence and "\n" not in sentence
    assert len(set(pairs)) == 400
    assert load_corpus("sotu-pairs", 10, seed=0) == pairs[:10] != load_corpus("sotu-pairs", 10, seed=1)


def test_passages_are_long_enough_for_the_largest_ratio():
    passages = load_corpus("sotu-passages", 60, seed=0)
    assert all(isinstance(p, str) and len(p.split()) >= PASSAGE_WORDS for p in passages)
    assert len({p[:80] for p in passages}) == 60


def test_kept_pairs_that_are_half_there_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("IDENT_MRPC", raising=False)
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path))
    _from_hub.cache_clear()
    kept = tmp_path / "texts" / f"glue-mrpc-{SPLIT}-{REVISION[:12]}.json"
    kept.parent.mkdir()
    kept.write_text('[["One boat.", "Two bo')
    with pytest.raises(IdentError, match=rf"{kept.name} holds no pairs of texts .*; remove it"):
        load_corpus("mrpc", 1)
    kept.write_text('[["One boat.", "Two boats."]]')
    assert load_corpus("mrpc", 1) == [("One boat.", "Two boats.")]
    _from_hub.cache_clear()
