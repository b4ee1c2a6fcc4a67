"""The tables that the command line prints on stdout; :mod:`ident_utils.display` shows runs."""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ident_utils import paths
from ident_utils.errors import IdentError

if TYPE_CHECKING:
    import pandas as pd

    from ident_utils.fidelity import Check

README_MARKS = "<!-- {}:begin -->", "<!-- {}:end -->"  # around what a command writes
README_BEGIN, README_END = (mark.format("verdicts") for mark in README_MARKS)
PLAIN_WIDTH = 140  # columns of a table that goes to a file or a pipe


def new_console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


def new_table(*headers: str, title: str | None = None) -> Table:
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

    console = new_console()
    notebooks = new_table("notebook", "title", title="Notebooks")
    for path in notebook_paths():
        notebooks.add_row(path.stem, escape(title(path)))
    claims = new_table("claim", "text", "source", "notebook", title="Claims")
    for claim in CLAIMS.values():
        claims.add_row(claim.id, escape(claim.text), escape(claim.source), claim.notebook)
    models = new_table("model", "what", "here", title="Models")
    for name, entry in model_catalogue().items():
        models.add_row(name, escape(entry.about), "fetched" if model_folder(name) else "not fetched yet")
    texts = new_table("corpus", "what", "source", title="Texts")
    for name, about in corpus_catalogue().items():
        texts.add_row(name, escape(about["title"]), escape(about["source"]))
    profiles = new_table("profile", "model", "corpus", title="Profiles")
    for name in profile_names():
        settings = load_settings(name)
        profiles.add_row(name, settings.model, settings.corpus)
    for table in (notebooks, claims, models, texts, profiles):
        console.print(table)


def print_cache(sizes: Mapping[str, tuple[int, int]], folder: str) -> None:
    """Print the number of files and the size of each part of the cache."""
    table = new_table("part", ">files", ">MB", title=f"Cache in {folder}")
    for part, (files, size) in sizes.items():
        table.add_row(part, f"{files:,}", f"{size / 1e6:,.1f}")
    new_console().print(table)


def print_verdicts(profile: str) -> None:
    """Print the table of claims and verdicts of a profile."""
    from ident_utils.claims import in_papers_setting, judge

    judged = judge(profile)
    columns = ["claim", "text", "source", "criterion", "measured", "verdict"]
    if profile != "paper":
        judged, columns = judged.assign(paper=in_papers_setting()), [*columns, "paper"]
    table = new_table(*columns, title=f"Verdicts at profile {profile}; paper: BERT-base on MRPC, profile paper")
    for row in judged.to_dict("records"):
        cells = (str(row[column.header]) for column in table.columns)
        table.add_row(*map(escape, cells))
    table.show_lines = True
    new_console().print(table)


def print_frame(frame: "pd.DataFrame", title: str) -> None:
    """Print a table of numbers and words; numbers with three digits."""
    table = new_table(*(f">{c}" if frame[c].dtype.kind == "f" else str(c) for c in frame.columns), title=title)
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    new_console().print(table)


def print_checks(name: str, checks: Iterable["Check"]) -> None:
    """Print what the check of a model found."""
    table = new_table("check", "holds", "seen", title=f"Check of {name}")
    for check in checks:
        table.add_row(escape(check.what), "yes" if check.holds else "[red]NO[/]", escape(check.seen))
    new_console().print(table)


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
