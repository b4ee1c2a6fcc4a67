"""Run several notebooks side by side, on their share of the machine each."""

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ident_utils.errors import IdentError

if TYPE_CHECKING:
    from ident_utils.suite import NotebookRun, Progress

MOST_JOBS = 4  # by default: beyond that a notebook gains more from threads than the suite from company
MEMORY_EACH = 4e9  # bytes that a notebook may need
# What a notebook finds done by another, so that it is not computed twice. 09 reads what all others write.
AFTER = {"04": ("03",), "06": ("05",), "07": ("05",)}
LAST = "09"

Report = Callable[["Progress"], None]


def choose_jobs(jobs: int | None, notebooks: int) -> int:
    """Return how many notebooks run at a time: ``jobs``, or what processors and free memory allow when None.

    Raises IdentError for a number below one.
    """
    if jobs is None:
        jobs = min(processors(), MOST_JOBS, int(psutil.virtual_memory().available / MEMORY_EACH))
    elif jobs < 1:
        raise IdentError(f"The number of jobs must be at least 1, not {jobs}.")
    return max(1, min(jobs, notebooks))


def processors() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(jobs: int) -> int:
    """Return the threads that each of ``jobs`` kernels computes with, so that together they fill the machine."""
    return max(1, processors() // jobs)


def waits_for(names: Sequence[str]) -> dict[str, set[str]]:
    """Say for every notebook which of the others must have ended before it starts.

    >>> waits_for(["05_own", "06_mixing", "09_verdicts"])["06_mixing"]
    {'05_own'}
    """
    return {
        name: {
            other for other in names if other != name and (name[:2] == LAST or other[:2] in AFTER.get(name[:2], ()))
        }
        for name in names
    }


def run_side_by_side(
    paths: Sequence[Path],
    jobs: int,
    run: Callable[[Path, Report, threading.Event], "NotebookRun"],
    on_event: Report,
) -> list["NotebookRun"]:
    """Run notebooks, at most ``jobs`` at a time and in their order as far as :func:`waits_for` allows.

    ``run`` works in a thread of its own; it reports through its second argument and gives up when the third is set.
    ``on_event`` is called here, in the caller's thread, one event at a time. An interrupt stops all notebooks that
    run, and goes through when they have ended.
    """
    events: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    left, needs = {path.stem: path for path in paths}, waits_for([path.stem for path in paths])
    running, ended = set(), {}

    def work(path: Path) -> None:
        try:
            run(path, events.put, stop)
        except BaseException as error:
            events.put(error)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            while len(ended) < len(paths):
                for name in _startable(left, needs, ended)[: jobs - len(running)]:
                    running.add(name)
                    pool.submit(work, left.pop(name))
                event = events.get()
                if isinstance(event, BaseException):
                    raise event
                if event.run is not None:
                    running.discard(event.name)
                    ended[event.name] = event.run
                on_event(event)
        except BaseException:
            stop.set()
            raise
    return [ended[path.stem] for path in paths]


def _startable(left: Mapping[str, Path], needs: Mapping[str, set[str]], ended: Mapping[str, object]) -> list[str]:
    return [name for name in left if needs[name] <= ended.keys()]
