"""How long notebooks took on this machine, and how long one that runs will still take."""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ident_utils.progress import Stage

if TYPE_CHECKING:
    from ident_utils.suite import NotebookRun

TRUSTED = 5.0  # seconds of finished cells, from which on they say how fast this run is against the earlier one
MOST = 10.0  # times faster or slower that the rest is expected to be, since cells differ in what they find kept


@dataclass(frozen=True)
class Earlier:
    """Hold the seconds of every cell and the peak memory (10^6 bytes) of an earlier run of one notebook."""

    cells: tuple[float, ...]
    peak_memory_mb: float | None = None

    @property
    def seconds(self) -> float:
        """Return how long the run took."""
        return sum(self.cells)


class Durations:
    """Take the time of each of ``total`` cells; the first also has what goes before it."""

    def __init__(self, total: int) -> None:
        self._seconds = [0.0] * total
        self._cell, self._began = 0, time.perf_counter()

    def begin(self, cell: int) -> None:
        """Note that a cell begins, and thus that the one before it has ended."""
        self.end()
        self._cell = cell

    def end(self) -> None:
        """Note that the cell has ended."""
        now = time.perf_counter()
        if self._seconds:
            self._seconds[self._cell] += now - self._began
        self._began = now

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return the seconds of every cell so far."""
        return tuple(round(seconds, 3) for seconds in self._seconds)


class History:
    """Keep, in one file, the last and the longest run of each notebook on each machine.

    The longest tells what a run takes that finds nothing kept from earlier ones. A file that cannot be read or
    written is done without.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def earlier(self, notebook: str, *, longest: bool = False) -> Earlier | None:
        """Return the last run of a notebook here, or the longest; None where it has not run here."""
        try:
            kept = self._read()[platform.node()][notebook]["longest" if longest else "last"]
            return Earlier(tuple(map(float, kept["cells"])), kept["peak_memory_mb"])
        except (KeyError, TypeError, ValueError):
            return None

    def add(self, run: "NotebookRun") -> None:
        """Keep what a run took; one that failed says nothing."""
        from ident_utils.errors import IdentError
        from ident_utils.results import write_atomically

        if not run.ok or not run.cell_seconds:
            return
        this, before = Earlier(run.cell_seconds, run.peak_memory_mb), self.earlier(run.name, longest=True)
        longest = this if before is None or before.seconds < this.seconds else before
        everything = self._read()
        here = everything.setdefault(platform.node(), {})
        here[run.name] = {"last": asdict(this), "longest": asdict(longest)}
        try:
            write_atomically(self.file, json.dumps(everything, sort_keys=True) + "\n")
        except IdentError:  # the notebook itself has ended well
            return

    def _read(self) -> dict[str, dict]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class Forecast:
    """Say how long a notebook that runs will still take, from an earlier run or, without one, from what is done."""

    def __init__(self, earlier: Earlier | None, total: int) -> None:
        fits = earlier is not None and len(earlier.cells) == total
        self.earlier = earlier.cells if fits else None
        self.total = total
        self._began = self._cell_began = self._stage_began = time.perf_counter()
        self._cell, self._stage = 0, ""

    @property
    def seconds(self) -> float:
        """Return the time since the notebook began."""
        return time.perf_counter() - self._began

    def left(self, cell: int, stage: Stage | None) -> float | None:
        """Return the seconds left when so many cells are done, and ``stage`` of the next; None while unknown."""
        now = time.perf_counter()
        if cell != self._cell:
            self._cell, self._cell_began, self._stage = cell, now, ""
        if stage is not None and (stage.what != self._stage or stage.done == 0):
            self._stage, self._stage_began = stage.what, now
        if self.earlier is None:
            done = (cell + (stage.share if stage else 0)) / self.total if self.total else 1.0
            return seconds_for_the_rest(now - self._began, done)
        return self._from_earlier(cell, stage, now, self.earlier)

    def _from_earlier(self, cell: int, stage: Stage | None, now: float, earlier: Sequence[float]) -> float:
        before = sum(earlier[:cell])
        pace = (self._cell_began - self._began) / before if before > TRUSTED else 1.0
        pace = min(max(pace, 1 / MOST), MOST)
        of_cell = max(0.0, pace * sum(earlier[cell : cell + 1]) - (now - self._cell_began))
        of_stage = seconds_for_the_rest(now - self._stage_began, stage.share) if stage else None
        return pace * sum(earlier[cell + 1 :]) + max(of_cell, of_stage or 0.0)


def seconds_for_the_rest(seconds: float, share: float) -> float | None:
    """Return how long the rest takes when a share took some seconds; None where nothing is done yet.

    >>> seconds_for_the_rest(30, 0.75)
    10.0
    """
    return seconds * (1 - share) / share if share > 0 else None


def in_time(seconds: float) -> str:
    """Print a time as one would say it.

    >>> [in_time(seconds) for seconds in (0.4, 42, 170, 5400)]
    ['1 s', '42 s', '3 min', '1 h 30 min']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def side_by_side(seconds: Mapping[str, float], waits: Mapping[str, set[str]], jobs: int) -> float:
    """Return how long notebooks take, ``jobs`` at a time, when each waits for some of the others.

    >>> side_by_side({"a": 3, "b": 2, "c": 2}, {"c": {"b"}}, 2)
    4.0
    """
    free, ends = [0.0] * jobs, {}
    for name, taken in seconds.items():
        ready = max((ends[other] for other in waits.get(name, ()) if other in ends), default=0)
        worker = min(range(jobs), key=free.__getitem__)
        ends[name] = free[worker] = max(free[worker], ready) + taken
    return max(ends.values(), default=0)
