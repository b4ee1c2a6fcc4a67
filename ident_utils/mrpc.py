"""The Microsoft Research Paraphrase Corpus, the paper's own text: from a folder, or as GLUE's validation split."""

import json
import os
from functools import cache
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.paths import cache_root
from ident_utils.textfiles import read_lines

FILE = "msr_paraphrase_test.txt"
HUB = "nyu-mll/glue"
REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
SPLIT = "validation"  # 408 pairs


def mrpc() -> tuple[tuple[str, str], ...]:
    """Return the pairs of the folder that ``IDENT_MRPC`` names, else of GLUE's validation split on the hub.

    Raises IdentError where neither can be had, and for a line that is no pair.
    """
    folder = os.environ.get("IDENT_MRPC")
    if folder:
        return mrpc_folder(Path(folder).expanduser(), "IDENT_MRPC names")
    return _from_hub()


def mrpc_folder(folder: Path, who: str = "You named") -> tuple[tuple[str, str], ...]:
    """Return the pairs of a folder's test file; GLUE's split cannot be told from the plain files."""
    file = folder / FILE
    if not file.is_file():
        raise IdentError(f"{who} {folder}, which holds no {FILE}.")
    return tuple(_pairs(file))


def _pairs(file: Path) -> list[tuple[str, str]]:
    pairs, lines = [], read_lines(file)
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) != 5:
            raise IdentError(f"Line {number} of {file.name} has {len(fields)} tab-separated fields, not 5.")
        pairs.append((fields[3], fields[4]))
    return pairs


@cache
def _from_hub() -> tuple[tuple[str, str], ...]:
    """Ask the hub once; then the pairs lie in the cache as they came, and neither hub nor library is needed."""
    kept = cache_root() / "texts" / f"glue-mrpc-{SPLIT}-{REVISION[:12]}.json"
    if not kept.is_file():
        from ident_utils.results import write_atomically  # here: it imports torch

        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(_download(), ensure_ascii=False))
    try:
        return tuple((first, second) for first, second in json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise IdentError(f"{kept} holds no pairs of texts ({error}); remove it, and it is fetched again.") from error


def _download() -> list[tuple[str, str]]:
    from huggingface_hub import HfApi

    from ident_utils.hub import SECONDS, explain, within

    try:
        # First, because the library below goes on asking a hub that does not answer for half a minute.
        within(SECONDS, lambda: HfApi().dataset_info(HUB, revision=REVISION, timeout=SECONDS / 2))
        from datasets import load_dataset

        table = load_dataset(HUB, "mrpc", split=SPLIT, revision=REVISION)
        return list(zip(table["sentence1"], table["sentence2"], strict=True))
    except Exception as error:
        reason = explain(error, HUB, REVISION, kind="data set").rstrip(".")
        raise IdentError(
            f"{reason}, set IDENT_MRPC to a folder that holds {FILE}, or choose another corpus, such as sotu-pairs."
        ) from error
