"""Texts that a user brings: a file with one text a line, or two with a tab between them."""

from dataclasses import dataclass
from pathlib import Path

from ident_utils.errors import IdentError

Text = str | tuple[str, str]


@dataclass(frozen=True)
class TextFile:
    """Hold the texts of a file, the number of the line each stands on, and how many lines were empty."""

    path: Path
    texts: tuple[Text, ...]
    lines: tuple[int, ...]
    empty: int


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file that end in LF or CRLF, and only there: texts may hold other separators.

    A byte order mark is passed over. Raises IdentError for a file that cannot be read, naming the line where it is
    not UTF-8.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise IdentError(f"{file} cannot be read: {error.strerror}; name a text file in UTF-8.") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw[: error.start].count(b"\n") + 1
        raise IdentError(f"Line {number} of {file.name} is not UTF-8 text; save the file as UTF-8.") from error
    if "\0" in text:
        number = text[: text.index("\0")].count("\n") + 1
        raise IdentError(f"Line {number} of {file.name} holds a zero byte, so it is no text; save the file as UTF-8.")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_text_file(path: str | Path) -> TextFile:
    """Read one text a line, or a pair with a tab between its halves; empty lines are counted and passed over.

    Raises IdentError, naming the line, for a wrong encoding, more than two fields or half a pair, and for a file
    that is missing, a folder, or without a text.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise IdentError(f"{path} is a folder; name a text file in it, with one text a line.")
    if not path.is_file():
        raise IdentError(f"There is no text file {path}; name one that exists, with one text a line.")
    texts, numbers, empty = [], [], 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            empty += 1
            continue
        texts.append(_text(line, number, path))
        numbers.append(number)
    if not texts:
        raise IdentError(f"{path} holds no text, only {empty} empty lines; write one text a line.")
    return TextFile(path, tuple(texts), tuple(numbers), empty)


def _text(line: str, number: int, path: Path) -> Text:
    fields = line.split("\t")
    if len(fields) == 1:
        return line.strip()
    if len(fields) > 2:
        raise IdentError(f"Line {number} of {path.name} has {len(fields)} tab-separated fields, not 1 or 2.")
    if not all(field.strip() for field in fields):
        raise IdentError(f"Line {number} of {path.name} has a tab but only half a pair; write both texts, or no tab.")
    return fields[0].strip(), fields[1].strip()


def in_words(numbers: list[int], most: int = 10) -> str:
    """Print line numbers, the first ones only where there are many.

    >>> in_words([3, 7])
    'lines 3, 7'
    """
    shown = ", ".join(map(str, numbers[:most]))
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{' …' if len(numbers) > most else ''}"
