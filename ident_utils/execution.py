"""Execute one notebook on papermill and find out how it ended."""

import logging
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError, strip_color

from ident_utils.errors import IdentError
from ident_utils.history import Durations
from ident_utils.kernels import KERNEL_NAME, KernelWatch, kernel_manager_class
from ident_utils.notebooks import read_notebook
from ident_utils.progress import Stage
from ident_utils.suite import NotebookRun, Progress

START_TIMEOUT = 120  # seconds for a kernel to answer; a cold disk and two busy cores need more than a few


def run_notebook(
    source: Path,
    folder: Path,
    parameters: Mapping[str, object],
    environment: Mapping[str, str],
    timeout: int,
    on_event: Callable[[Progress], None],
    stop: threading.Event,
) -> NotebookRun:
    """Execute one notebook, put its copy into ``folder`` and return what became of it.

    ``timeout`` is in seconds and holds for each cell; ``environment`` is the kernel's. A notebook that fails in
    whatever way is reported in the result. When ``stop`` is set the kernel is ended, nothing is kept, and
    KeyboardInterrupt is raised.
    """
    name, started = source.stem, time.perf_counter()
    total = len(read_notebook(source).cells) + bool(parameters)
    index = None  # of the cell that runs, among all cells
    cells = Durations(total)

    def at_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal index
        watch.read_reports()  # those of the cell before
        index = cell_index
        cells.begin(index)
        on_event(Progress(name, index, total))

    def at_stage(stage: Stage) -> None:
        on_event(Progress(name, index or 0, total, stage))

    on_event(Progress(name, 0, total))
    # The copy gets its final name only when the notebook has ended, so that no half of one ever bears it.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
        copy, watch = Path(scratch) / source.name, KernelWatch(Path(scratch), stop, at_stage)
        failure = None
        try:
            papermill.execute_notebook(
                # papermill fills in {fields} of paths, so braces in a folder's name must be doubled
                _escaped(source),
                _escaped(copy),
                parameters=dict(parameters),
                kernel_name=KERNEL_NAME,
                language="python",
                progress_bar=False,
                start_timeout=START_TIMEOUT,
                execution_timeout=timeout,
                resources={"metadata": {"path": str(source.parent)}},
                kernel_manager_class=kernel_manager_class(environment, watch),
                on_cell_start=at_cell,
            )
        except Exception as error:
            failure = error
        finally:
            watch.finish()
            cells.end()
        if stop.is_set():
            raise KeyboardInterrupt
        found = _diagnosis(failure, copy, index, timeout, watch)
        final = folder / source.name
        if _is_whole(copy):
            copy.replace(final)
    cell, error_name, message = found or (None, None, None)
    run = NotebookRun(
        name=name,
        path=final,
        ok=found is None,
        cell=cell,
        error=error_name,
        message=message,
        seconds=time.perf_counter() - started,
        peak_memory_mb=watch.peak_memory_mb,
        cell_seconds=cells.seconds,
    )
    on_event(Progress(name, total if run.ok else index or 0, total, run=run))
    return run


def _is_whole(copy: Path) -> bool:
    """Say whether a copy can be read: a full disk leaves half of one."""
    try:
        return bool(read_notebook(copy).cells)
    except IdentError:
        return False


def _diagnosis(
    failure: Exception | None, copy: Path, index: int | None, timeout: int, watch: KernelWatch
) -> tuple[int | None, str, str] | None:
    """Return cell number, error class and message of a failed run, or None where every cell ran through."""
    if failure is None:
        # papermill lets a notebook pass that leaves by sys.exit(0), though its other cells never ran
        return _recorded_error(copy)
    if isinstance(failure, PapermillExecutionError):
        return failure.exec_count, failure.ename, _plain(failure.evalue)
    if isinstance(failure, DeadKernelError):
        message = f"the kernel died: {watch.how_it_ended()}"
    elif isinstance(failure, CellTimeoutError):
        message = f"the cell took longer than the limit of {timeout} s; a longer one is set by --timeout"
    else:
        message = _plain(str(failure))
    error_name = type(failure).__name__
    if index is None:
        return None, error_name, message
    return _mark(copy, index, error_name, message), error_name, message


def _mark(copy: Path, index: int, error_name: str, message: str) -> int | None:
    """Write an error into the copy that a kernel could not write itself; return the n of In [n]."""
    try:
        notebook = read_notebook(copy)
        cell = notebook.cells[index]
        if cell.cell_type == "code":
            cell.outputs.append(
                nbformat.v4.new_output("error", ename=error_name, evalue=message, traceback=[message])
            )
        nbformat.write(notebook, copy)
    except (IdentError, OSError, IndexError):  # the failure itself may have been a full disk
        return None
    return sum(c.cell_type == "code" and bool(c.source.strip()) for c in notebook.cells[: index + 1])


def _recorded_error(copy: Path) -> tuple[int | None, str, str] | None:
    for cell in read_notebook(copy).cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return cell.execution_count, output.ename, _plain(output.evalue) or "the notebook ended early"
    return None


def _plain(text: str) -> str:
    """Return text without colour codes."""
    return strip_color(text).strip()


def _escaped(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep papermill's and nbclient's own log and warnings off the terminal; failures are reported by us.

    It changes what all threads share, so it is entered once, around all notebooks.
    """
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
