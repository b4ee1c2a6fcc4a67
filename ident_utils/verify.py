"""Compute some of the saved numbers once more, by the notebooks' own code, and compare."""

import csv
import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.history import in_time
from ident_utils.notebooks import select_notebooks
from ident_utils.paths import runs_root
from ident_utils.results import write_atomically
from ident_utils.settings import Settings, describe, load_settings
from ident_utils.slicing import results_of, slice_notebook
from ident_utils.suite import NotebookRun, Progress, reproduce

DIGITS = 6  # significant digits that are saved
ROUNDING = 1e-12  # below this nothing is measured but rounding
ABSENT = "absent"


@dataclass(frozen=True)
class Compared:
    """Hold one number, or word, as it was saved and as it came out again."""

    result: str  # a figure's table or a notebook's measurements
    where: str
    saved: str
    recomputed: str
    agrees: bool

    @property
    def difference(self) -> float | None:
        """Return by how much the recomputed number is larger, None where one of the two is no number."""
        numbers = _number(self.saved), _number(self.recomputed)
        return None if None in numbers else numbers[1] - numbers[0]


@dataclass(frozen=True)
class Draw:
    """Hold what was drawn to be computed once more."""

    settings: Settings
    chosen: dict[Path, list[str]]  # results of each notebook
    saved: dict[str, dict[str, str]]  # the numbers and words of each of them
    total_results: int
    total_numbers: int
    seed: int

    @property
    def results(self) -> list[str]:
        """Name the results drawn."""
        return [name for names in self.chosen.values() for name in names]

    def __str__(self) -> str:
        """Say what was drawn, and what it was made with where that is another library."""
        numbers = sum(_count_numbers(self.saved[name]) for name in self.results)
        lines = [
            f"{len(self.results)} of {self.total_results} results of {self.settings.folder.name}, with {numbers:,} "
            f"of {self.total_numbers:,} numbers (seed {self.seed}): {', '.join(self.results)}",
            "computed anew from texts and weights, by the statements of the notebooks that they depend on; nothing "
            "kept from earlier runs is used",
            *_about_the_run(self.settings, self.chosen),
        ]
        return "\n".join(lines)


def draw(
    profile: str | None = None,
    *,
    notebooks: Iterable[str] | None = None,
    share: float = 0.05,
    seed: int | None = None,
) -> Draw:
    """Draw a share of the saved results of a profile at random, one at least; ``seed=None`` draws others each time.

    A result is a figure's table or the measurements of a notebook. Raises IdentError for a share that is not in
    (0, 1], and where nothing is saved.
    """
    if not 0 < share <= 1:
        raise IdentError(f"the share must be more than 0 and at most 1, not {share}")
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    settings = load_settings(profile)
    of_notebook = {path: results_of(path) for path in select_notebooks(notebooks)}
    saved = {name: read_saved(settings.folder, name) for names in of_notebook.values() for name in names}
    saved = {name: entries for name, entries in saved.items() if entries}
    if not saved:
        raise IdentError(
            f"there are no results of {settings.folder.name} to verify; make some with "
            f"'ident reproduce --profile {settings.profile}'"
        )
    drawn = set(random.Random(seed).sample(sorted(saved), math.ceil(share * len(saved) - 1e-9)))
    chosen = {path: [name for name in names if name in drawn] for path, names in of_notebook.items()}
    chosen = {path: names for path, names in chosen.items() if names}
    return Draw(settings, chosen, saved, len(saved), sum(map(_count_numbers, saved.values())), seed)


def verify(
    drawn: Draw, *, digits: int = DIGITS, jobs: int | None = None, on_event: Callable[[Progress], None] | None = None
) -> tuple[list[Compared], list[NotebookRun]]:
    """Run what the drawn results depend on, from the start, and compare every number and word of theirs.

    Numbers agree when they differ by at most one in the last of ``digits`` significant digits, or by rounding only.
    What a notebook that failed did not save is compared as absent.
    """
    with tempfile.TemporaryDirectory(prefix="ident-verify-") as scratch:
        folders = {f"IDENT_{name}": Path(scratch) / name.lower() for name in ("NOTEBOOKS", "FIGURES", "RUNS")}
        for folder in folders.values():
            folder.mkdir()
        for path, names in drawn.chosen.items():
            content = json.dumps(slice_notebook(path, names))
            (folders["IDENT_NOTEBOOKS"] / path.name).write_text(content, encoding="utf-8")
        with _environment(folders):
            runs = reproduce(profile=drawn.settings.profile, fresh=True, jobs=jobs, on_event=on_event)
        made = folders["IDENT_FIGURES"] / drawn.settings.folder.name
        found = [
            entry
            for name in drawn.results
            for entry in compare(name, drawn.saved[name], read_saved(made, name), digits)
        ]
    return found, runs


@contextmanager
def _environment(variables: Mapping[str, Path]) -> Iterator[None]:
    """Set environment variables, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def read_saved(folder: Path, name: str) -> dict[str, str]:
    """Return all cells of a figure's table, or all measurements of a notebook, each under the place where it stands.

    Empty where neither file is there. Raises IdentError for one that cannot be read.
    """
    table, measurements = folder / f"{name}.csv", folder / f"{name}.json"
    try:
        if table.exists():
            with table.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            return {f"row {i}, {key}": str(cell) for i, row in enumerate(rows, 1) for key, cell in row.items()}
        if measurements.exists():
            return dict(_leaves(json.loads(measurements.read_text(encoding="utf-8"))["measurements"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IdentError(f"the results {name} in {folder} cannot be read ({error}); make them again") from error
    return {}


def _leaves(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value, 1)
        for key, item in items:
            yield from _leaves(item, f"{where}, {key}" if where else str(key))
    else:
        yield where, str(value)


def compare(result: str, saved: Mapping[str, str], made: Mapping[str, str], digits: int = DIGITS) -> list[Compared]:
    """Compare all that stands in one result with what came out again; places that only one of them has differ."""
    places = dict.fromkeys([*saved, *made])
    pairs = [(where, saved.get(where, ABSENT), made.get(where, ABSENT)) for where in places]
    return [Compared(result, where, old, new, agree(old, new, digits)) for where, old, new in pairs]


def agree(saved: str, made: str, digits: int = DIGITS) -> bool:
    """Say whether two numbers differ by at most one in the last of some digits; words must be the same.

    >>> agree("0.123456", "0.123457"), agree("0.123456", "0.123458"), agree("7e-16", "2e-16"), agree("own", "own")
    (True, False, True, True)
    """
    a, b = _number(saved), _number(made)
    if saved == made or a is None or b is None:
        return saved == made
    largest = max(abs(a), abs(b))
    unit = 10.0 ** (math.floor(math.log10(largest)) - digits + 1) if largest else 0.0
    return abs(a - b) <= max(unit * (1 + 1e-6), ROUNDING)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _count_numbers(entries: Mapping[str, str]) -> int:
    return sum(_number(text) is not None for text in entries.values())


def _about_the_run(settings: Settings, chosen: Iterable[Path]) -> Iterator[str]:
    """Say how long the notebooks took as a whole, and which libraries and settings are others here."""
    seconds, others, changed = 0.0, {}, {}
    now = describe(settings)
    for path in chosen:
        try:
            about = json.loads((settings.folder / f"{path.stem}.json").read_text(encoding="utf-8"))
            seconds += about["run"]["seconds"]
            origin = about["provenance"]
            others |= {name: used for name, used in origin["packages"].items() if version(name) != used}
            changed |= {name: was for name, was in origin["settings"].items() if now.get(name) != was}
        except (OSError, ValueError, KeyError, TypeError, ImportError):
            continue
    if seconds:
        yield f"the notebooks as a whole took {in_time(seconds)} when these numbers were made"
    if others:
        made = ", ".join(f"{name} {used} (here {version(name)})" for name, used in others.items())
        yield f"made with other libraries, so that last digits may differ: {made}"
    if changed:
        made = ", ".join(f"{name} {was} (now {now.get(name)})" for name, was in changed.items())
        yield f"made with other settings, so that numbers will differ: {made}"


def write_report(found: Sequence[Compared], settings: Settings) -> Path:
    """Write every number, what came out again and the difference to a table in the folder of runs."""
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["result", "where", "saved", "recomputed", "difference", "agrees"])
    for each in found:
        difference = "" if each.difference is None else f"{each.difference:.3g}"
        writer.writerow([each.result, each.where, each.saved, each.recomputed, difference, each.agrees])
    path = runs_root() / f"{settings.folder.name}.verified.csv"
    write_atomically(path, text.getvalue())
    return path
