"""How a run of notebooks is shown: bars on a terminal, plain lines elsewhere, lines of JSON for scripts."""

import json
import sys
import time
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from ident_utils.history import in_time
from ident_utils.reporting import new_console, new_table

if TYPE_CHECKING:
    from ident_utils.suite import Estimate, NotebookRun, Progress
    from ident_utils.verify import Compared

MESSAGE_LENGTH = 300  # characters of an error in the summary; the executed copy has all of it

DIFFERENT_SHOWN = 20  # numbers that differ, beyond which the table in the folder of runs has them


class Display:
    """Show nothing but failures; what others show more is up to them."""

    def __init__(self) -> None:
        self.finished: list[NotebookRun] = []
        self._began = time.perf_counter()

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""

    @property
    def seconds(self) -> float:
        """Return the time since the first notebook could start."""
        return time.perf_counter() - self._began

    def start(self, estimate: "Estimate") -> None:
        """Take in how long everything will take."""

    def show(self, progress: "Progress") -> None:
        """Take in one event of a run."""
        if progress.run is not None:
            self.finished.append(progress.run)
            self.ended(progress.run)

    def ended(self, run: "NotebookRun") -> None:
        """Take in that a notebook has ended."""
        if not run.ok:
            print_line(run)

    def summarise(self) -> None:
        """Show what became of all notebooks: here, of failed ones only."""
        print_failures(self.finished)


class Lines(Display):
    """Print a plain line when a notebook has ended, for log files."""

    def start(self, estimate: "Estimate") -> None:
        """Print the estimate."""
        print(estimate, file=sys.stderr, flush=True)

    def ended(self, run: "NotebookRun") -> None:
        """Print how a notebook has ended."""
        print_line(run)

    def summarise(self) -> None:
        """Print a table of all notebooks, and why some failed."""
        print_summary(self.finished, self.seconds)
        print_failures(self.finished)


class Bars(Lines):
    """Show a bar over the cells of each notebook, the loop that runs in it, and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, int] = {}
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            _State(),
            console=new_console(stderr=True),
        )

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def show(self, progress: "Progress") -> None:
        """Take in one event of a run."""
        run, at = progress.run, time.monotonic()
        if progress.name not in self._tasks:
            task = self._bars.add_task(progress.name, total=progress.total, progress=progress, at=at)
            self._tasks[progress.name] = task
        # The bar of a failed notebook stays where it stopped.
        share = progress.stage.share if progress.stage else 0
        done = {"completed": progress.done + share} if run is None or run.ok else {}
        self._bars.update(self._tasks[progress.name], **done, progress=progress, at=at)
        super().show(progress)

    def ended(self, run: "NotebookRun") -> None:
        """Stop the clock of a notebook."""
        self._bars.stop_task(self._tasks[run.name])


class _State(ProgressColumn):
    """Say what runs and how long it will still take, counting down between two events."""

    def render(self, task: Task) -> Text:
        progress: Progress = task.fields["progress"]
        if progress.run is not None:
            return Text.from_markup(f"{_coloured_state(progress.run)} {_measures(progress.run)}")
        return Text(in_words(progress, time.monotonic() - task.fields["at"]))


def in_words(progress: "Progress", since: float = 0.0) -> str:
    """Say how far a notebook is, ``since`` seconds after the event: its cell, its loop, and the time left."""
    words = [f"cell {min(progress.done + 1, progress.total)}/{progress.total}"]
    if progress.stage is not None:
        words.append(f"{progress.stage.what} {progress.stage.done}/{progress.stage.total}")
    if progress.seconds_left is not None:
        words.append(f"about {in_time(max(0.0, progress.seconds_left - since))} left")
    return " · ".join(words)


class JsonLines(Display):
    """Print one JSON object a line on stdout for every event, and one at the end for all."""

    def start(self, estimate: "Estimate") -> None:
        """Print the estimate."""
        self._print("estimate", seconds=estimate.seconds, known=estimate.known, notebooks=estimate.total)

    def show(self, progress: "Progress") -> None:
        """Print one event of a run: ``done`` and ``total`` count a loop where ``stage`` names one, else cells."""
        stage, run = progress.stage, progress.run
        counted = stage or progress
        left = progress.seconds_left
        self._print(
            "progress" if run is None else "ended",
            notebook=progress.name,
            cell=min(progress.done + 1, progress.total),
            cells=progress.total,
            stage=stage.what if stage else None,
            done=counted.done,
            total=counted.total,
            seconds=round(progress.seconds, 1),
            seconds_left=None if left is None else round(left, 1),
            **({} if run is None else _about(run)),
        )
        super().show(progress)

    def ended(self, run: "NotebookRun") -> None:
        """Print nothing: the event has said it."""

    def summarise(self) -> None:
        """Print what became of all notebooks."""
        failed = sorted(run.name for run in self.finished if not run.ok)
        self._print("summary", ok=len(self.finished) - len(failed), failed=failed, seconds=round(self.seconds, 1))

    def _print(self, event: str, **about: object) -> None:
        print(json.dumps({"event": event} | about), flush=True)


def _about(run: "NotebookRun") -> dict[str, object]:
    names = ("ok", "error", "message", "peak_memory_mb")
    return {name: getattr(run, name) for name in names} | {"failed_cell": run.cell, "copy": str(run.path)}


def choose_display(*, quiet: bool = False, as_json: bool = False) -> Display:
    """Return what a run is shown by: as asked for, else bars on a terminal and lines elsewhere."""
    if as_json:
        return JsonLines()
    if quiet:
        return Display()
    return Bars() if new_console(stderr=True).is_terminal else Lines()


def _state(run: "NotebookRun") -> str:
    return "ok" if run.ok else "failed"


def _coloured_state(run: "NotebookRun") -> str:
    return f"[{'green' if run.ok else 'red'}]{_state(run)}[/]"


def _measures(run: "NotebookRun") -> str:
    return f"{run.seconds:.1f} s, {_memory(run)} MB"


def _memory(run: "NotebookRun") -> str:
    return "?" if run.peak_memory_mb is None else f"{run.peak_memory_mb:.0f}"


def print_line(run: "NotebookRun") -> None:
    """Print on stderr how a notebook has ended."""
    print(f"{run.name}: {_state(run)}, {_measures(run)}", file=sys.stderr, flush=True)


def print_summary(runs: "list[NotebookRun]", seconds: float) -> None:
    """Print a table of finished notebooks, which together took ``seconds``."""
    if not runs:
        return
    table = new_table("notebook", "result", ">seconds", ">peak MB")
    for run in sorted(runs, key=lambda run: run.name):
        table.add_row(run.name, _coloured_state(run), f"{run.seconds:.1f}", _memory(run))
    known = [run.peak_memory_mb for run in runs if run.peak_memory_mb is not None]
    peak = f"{max(known):.0f}" if known else "?"
    table.add_section()
    table.add_row("together", "", f"{seconds:.1f}", peak)
    new_console().print(table)


def print_failures(runs: "list[NotebookRun]", *, copies: bool = True) -> None:
    """Print cell and error of failed notebooks, and where their executed copies are."""
    console = new_console()
    for run in sorted(runs, key=lambda run: run.name):
        if not run.ok:
            where = f"cell In [{run.cell}]" if run.cell else "before any cell"
            text = f"{run.name}, {where}: {run.error}: {_shortened(run.message or '')}"
            console.print(f"[red]failed[/] {escape(text)}", soft_wrap=True)
            if copies and run.path.exists():
                console.print(f"       the copy shows it: {escape(str(run.path))}", soft_wrap=True)


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MESSAGE_LENGTH else f"{line[:MESSAGE_LENGTH]} …"


def print_compared(found: "list[Compared]") -> None:
    """Print a line for each result that was computed once more, and the numbers that differ, the first of many."""
    console, table = new_console(), new_table("result", ">compared", ">differ", ">largest difference")
    for result in dict.fromkeys(each.result for each in found):
        of_result = [each for each in found if each.result == result]
        largest = max((abs(each.difference) for each in of_result if each.difference is not None), default=0.0)
        differ = sum(not each.agrees for each in of_result)
        table.add_row(result, f"{len(of_result):,}", f"[red]{differ:,}[/]" if differ else "0", f"{largest:.1g}")
    console.print(table)
    wrong = [each for each in found if not each.agrees]
    for each in wrong[:DIFFERENT_SHOWN]:
        by = "" if each.difference is None else f", {each.difference:+.2g}"
        text = f"{each.result}, {each.where}: saved {each.saved}, now {each.recomputed}{by}"
        console.print(f"[red]differs[/] {escape(text)}", soft_wrap=True)
    if len(wrong) > DIFFERENT_SHOWN:
        console.print(f"and {len(wrong) - DIFFERENT_SHOWN:,} more")
