"""What the command line shows: progress on stderr, tables on stdout."""

import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from ident_utils import paths
from ident_utils.errors import IdentError

if TYPE_CHECKING:
    import pandas as pd

    from ident_utils.fidelity import Check
    from ident_utils.suite import NotebookRun, Progress

README_MARKS = "<!-- {}:begin -->", "<!-- {}:end -->"  # around what a command writes
README_BEGIN, README_END = (mark.format("verdicts") for mark in README_MARKS)
PLAIN_WIDTH = 140  # columns of a table that goes to a file or a pipe
MESSAGE_LENGTH = 300  # characters of an error in the summary; the executed copy has all of it


def _console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


class NotebookBars:
    """Show a bar over the cells of each notebook; without a terminal, a plain line when it has finished."""

    def __init__(self) -> None:
        self.finished: list[NotebookRun] = []
        self._began = time.perf_counter()
        self._tasks: dict[str, int] = {}
        console = _console(stderr=True)
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "NotebookBars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    @property
    def seconds(self) -> float:
        """Return the time since the first notebook could start."""
        return time.perf_counter() - self._began

    def show(self, progress: "Progress") -> None:
        """Take in one event of a run."""
        run = progress.run
        if run is not None:
            self.finished.append(run)
        if self._bars.disable:
            if run is not None:
                print(f"{run.name}: {_state(run)}, {_measures(run)}", file=sys.stderr, flush=True)
            return
        if progress.name not in self._tasks:
            self._tasks[progress.name] = self._bars.add_task(progress.name, total=progress.total, state="")
        task = self._tasks[progress.name]
        # The bar of a failed notebook stays where it stopped.
        if run is None or run.ok:
            self._bars.update(task, completed=progress.done)
        if run is not None:
            self._bars.update(task, state=f"{_coloured_state(run)} {_measures(run)}")
            self._bars.stop_task(task)


def _state(run: "NotebookRun") -> str:
    return "ok" if run.ok else "failed"


def _coloured_state(run: "NotebookRun") -> str:
    return f"[{'green' if run.ok else 'red'}]{_state(run)}[/]"


def _measures(run: "NotebookRun") -> str:
    return f"{run.seconds:.1f} s, {_memory(run)} MB"


def _memory(run: "NotebookRun") -> str:
    return "?" if run.peak_memory_mb is None else f"{run.peak_memory_mb:.0f}"


def print_summary(runs: Iterable["NotebookRun"], seconds: float) -> None:
    """Print a table of finished notebooks, which together took ``seconds``, and cell and error of failed ones."""
    runs = sorted(runs, key=lambda run: run.name)
    if not runs:
        return
    console = _console()
    table = _table("notebook", "result", ">seconds", ">peak MB")
    for run in runs:
        table.add_row(run.name, _coloured_state(run), f"{run.seconds:.1f}", _memory(run))
    known = [run.peak_memory_mb for run in runs if run.peak_memory_mb is not None]
    peak = f"{max(known):.0f}" if known else "?"
    table.add_section()
    table.add_row("together", "", f"{seconds:.1f}", peak)
    console.print(table)
    for run in runs:
        if not run.ok:
            where = f"cell In [{run.cell}]" if run.cell else "before any cell"
            text = f"{run.name}, {where}: {run.error}: {_shortened(run.message or '')}"
            console.print(f"[red]failed[/] {escape(text)}", soft_wrap=True)
            console.print(f"       the copy shows it: {escape(str(run.path))}", soft_wrap=True)


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MESSAGE_LENGTH else f"{line[:MESSAGE_LENGTH]} …"


def _table(*headers: str, title: str | None = None) -> Table:
    """Make a table; a header that begins with ``>`` stands over a right-aligned column."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for header in headers:
        right = header.startswith(">")
        table.add_column(header.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return table


def print_inventory() -> None:
    """Print the notebooks, claims, models, texts and profiles that there are."""
    from ident_utils.claims import CLAIMS
    from ident_utils.corpora import corpus_catalogue
    from ident_utils.fetch import model_catalogue, model_folder
    from ident_utils.notebooks import notebook_paths, title
    from ident_utils.settings import load_settings, profile_names

    console = _console()
    notebooks = _table("notebook", "title", title="Notebooks")
    for path in notebook_paths():
        notebooks.add_row(path.stem, escape(title(path)))
    claims = _table("claim", "text", "source", "notebook", title="Claims")
    for claim in CLAIMS.values():
        claims.add_row(claim.id, escape(claim.text), escape(claim.source), claim.notebook)
    models = _table("model", "what", "here", title="Models")
    for name, entry in model_catalogue().items():
        models.add_row(name, escape(entry.about), "fetched" if model_folder(name) else "not fetched yet")
    texts = _table("corpus", "what", "source", title="Texts")
    for name, about in corpus_catalogue().items():
        texts.add_row(name, escape(about["title"]), escape(about["source"]))
    profiles = _table("profile", "model", "corpus", title="Profiles")
    for name in profile_names():
        settings = load_settings(name)
        profiles.add_row(name, settings.model, settings.corpus)
    for table in (notebooks, claims, models, texts, profiles):
        console.print(table)


def print_cache(sizes: Mapping[str, tuple[int, int]], folder: str) -> None:
    """Print the number of files and the size of each part of the cache."""
    table = _table("part", ">files", ">MB", title=f"Cache in {folder}")
    for part, (files, size) in sizes.items():
        table.add_row(part, f"{files:,}", f"{size / 1e6:,.1f}")
    _console().print(table)


def print_verdicts(profile: str) -> None:
    """Print the table of claims and verdicts of a profile."""
    from ident_utils.claims import in_papers_setting, judge

    judged = judge(profile)
    columns = ["claim", "text", "source", "criterion", "measured", "verdict"]
    if profile != "paper":
        judged, columns = judged.assign(paper=in_papers_setting()), [*columns, "paper"]
    table = _table(*columns, title=f"Verdicts at profile {profile}; paper: BERT-base on MRPC, profile paper")
    for row in judged.to_dict("records"):
        cells = (str(row[column.header]) for column in table.columns)
        table.add_row(*map(escape, cells))
    table.show_lines = True
    _console().print(table)


def print_frame(frame: "pd.DataFrame", title: str) -> None:
    """Print a table of numbers and words; numbers with three digits."""
    table = _table(*(f">{c}" if frame[c].dtype.kind == "f" else str(c) for c in frame.columns), title=title)
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    _console().print(table)


def print_checks(name: str, checks: Iterable["Check"]) -> None:
    """Print what the check of a model found."""
    table = _table("check", "holds", "seen", title=f"Check of {name}")
    for check in checks:
        table.add_row(escape(check.what), "yes" if check.holds else "[red]NO[/]", escape(check.seen))
    _console().print(table)


def write_readme_table(table: str, readme: Path | None = None, what: str = "verdicts") -> Path:
    """Replace what stands between the two marks of the README by a table and return the README's path.

    Raises IdentError where the README does not hold both marks once, in order.
    """
    from ident_utils.results import write_atomically  # here: it imports torch

    readme = readme or paths.ROOT / "README.md"
    begin, end = (mark.format(what) for mark in README_MARKS)
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise IdentError(f"{readme} cannot be read: {error.strerror}") from error
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    if text.count(begin) != 1 or text.count(end) != 1 or not pattern.search(text):
        raise IdentError(f"{readme} must hold {begin} and, after it, {end}, each once")
    block = f"{begin}\n{table.strip()}\n{end}"
    write_atomically(readme, pattern.sub(lambda _: block, text))
    return readme
