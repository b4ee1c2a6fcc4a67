"""Long loops say how far they are: with a bar on a terminal, and to the run that a notebook belongs to."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

PROGRESS = "IDENT_PROGRESS"  # a file that the run reads, and to which a kernel adds one line of JSON a report
EVERY = 0.5  # seconds between two reports of one loop

Item = TypeVar("Item")
_outermost = threading.Lock()  # held by the loop that reports; those within it keep silent
_listener: ContextVar["Callable[[Stage], None] | None"] = ContextVar("listener", default=None)


@dataclass(frozen=True)
class Stage:
    """Say how far a long loop is: ``done`` of ``total`` of what it goes through."""

    what: str
    done: int
    total: int

    @property
    def share(self) -> float:
        """Return the share that is done, 1 of a loop over nothing."""
        return self.done / self.total if self.total else 1.0


def track(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Iterate with a bar on a terminal, and silently everywhere else but for what the run is told.

    Where IDENT_PROGRESS names a file, the outermost loop reports there; within :func:`listening`, every loop reports
    to the listener instead.
    """
    if (listener := _listener.get()) is not None:
        return _heard(items, what, listener)
    bar = tqdm(items, desc=what, leave=False, disable=None, delay=2)
    file = os.environ.get(PROGRESS)
    return _reported(bar, len(items), what, Path(file)) if file else bar


@contextmanager
def listening(listener: Callable[[Stage], None]) -> Iterator[None]:
    """Let loops of this thread report every step to ``listener``; what it raises ends the loop that reports."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def _heard(items: Sequence[Item], what: str, listener: Callable[[Stage], None]) -> Iterator[Item]:
    for done, item in enumerate(items):
        listener(Stage(what, done, len(items)))
        yield item
    listener(Stage(what, len(items), len(items)))


def _reported(items: Iterable[Item], total: int, what: str, file: Path) -> Iterator[Item]:
    if not _outermost.acquire(blocking=False):
        yield from items
        return
    try:
        last = float("-inf")
        for done, item in enumerate(items):
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                _report(file, Stage(what, done, total))
            yield item
        _report(file, Stage(what, total, total))
    finally:
        _outermost.release()


def _report(file: Path, stage: Stage) -> None:
    """Add a line to the file; a report that cannot be written is not worth a measurement."""
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(stage)) + "\n")
    except OSError:
        return


class StageReader:
    """Read the reports of a kernel as they come in."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = 0  # bytes

    def latest(self) -> Stage | None:
        """Return the last whole report since the last call, None where there is none."""
        try:
            with self.file.open("rb") as stream:
                stream.seek(self._read)
                new = stream.read()
        except OSError:
            return None
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return Stage(**json.loads(whole.splitlines()[-1])) if whole else None
