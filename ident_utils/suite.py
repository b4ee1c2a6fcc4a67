"""Run the notebooks headlessly, on papermill, and say what became of each."""

import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from ident_utils.corpora import corpus_catalogue
from ident_utils.errors import IdentError
from ident_utils.fetch import model_catalogue
from ident_utils.kernels import KERNEL_NAME, KernelWatch, kernel_environment, kernel_manager_class
from ident_utils.notebooks import check_parameters, read_notebook, select_notebooks
from ident_utils.paths import runs_root
from ident_utils.publishing import publish
from ident_utils.settings import load_settings

__all__ = ["NotebookRun", "Progress", "publish", "reproduce"]

CELL_TIMEOUT = 3600  # seconds
START_TIMEOUT = 120  # seconds for a kernel to answer; a cold disk and two busy cores need more than a few


@dataclass(frozen=True)
class NotebookRun:
    """Say what became of one notebook; ``cell``, ``error`` and ``message`` are None where it ran through."""

    name: str
    path: Path  # the executed copy
    ok: bool
    cell: int | None  # the n of In [n] where it stopped; None too where the kernel never started
    error: str | None  # class of the error
    message: str | None
    seconds: float
    peak_memory_mb: float | None  # resident memory of the kernel with its children, 10^6 bytes


@dataclass(frozen=True)
class Progress:
    """Tell how far a notebook is: before its first cell, before each cell, and with ``run`` at its end."""

    name: str
    done: int  # cells
    total: int  # cells
    run: NotebookRun | None = None


def reproduce(
    notebooks: Iterable[str] | None = None,
    *,
    profile: str | None = None,
    model: str | None = None,
    corpus: str | None = None,
    seed: int | None = None,
    parameters: Mapping[str, object] | None = None,
    timeout: int | None = None,
    on_event: Callable[[Progress], None] | None = None,
) -> list[NotebookRun]:
    """Execute notebooks in the order of their numbers and return one NotebookRun each, failed ones included.

    Notebooks are named by number, name or file name; None means all. The profile reaches them through
    ``IDENT_PROFILE`` in the kernel's environment; model, corpus, seed and ``parameters`` are injected only
    where given. Every cell may take ``timeout`` seconds. Executed copies, of failed notebooks too, go to
    ``runs_root()/PROFILE``, and to a folder of their own where model, corpus or seed are changed.

    Raises IdentError before anything runs where a notebook, profile, model or corpus is unknown, a notebook
    does not declare a parameter that is given, or the folder for the copies cannot be written.
    """
    if timeout is not None and timeout <= 0:
        raise IdentError(f"the timeout must be a positive number of seconds, not {timeout}")
    given = _merged(parameters, profile=profile, model=model, corpus=corpus, seed=seed)
    profile = given.pop("profile", None)
    for name, known in (("model", model_catalogue), ("corpus", corpus_catalogue)):
        if name in given:
            given[name] = _known_or_path(name, given[name], list(known()))
    settings = load_settings(
        profile, model=given.get("model"), corpus=given.get("corpus"), seed=given.get("seed", 0)
    )
    chosen = select_notebooks(notebooks)
    for path in chosen:
        check_parameters(path, given)
    folder = _writable(runs_root() / settings.folder.name)
    environment = kernel_environment(settings.profile)
    return [
        _run(path, folder, given, environment, math.ceil(timeout or CELL_TIMEOUT), on_event or _ignore)
        for path in chosen
    ]


def _ignore(progress: Progress) -> None:
    """Let an event pass."""


def _merged(parameters: Mapping[str, object] | None, **named: object) -> dict[str, object]:
    """Join the named arguments with the free parameters; None means not given."""
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in (parameters or {}).items():
        if name in given and given[name] != value:
            raise IdentError(f"'{name}' is given twice, as {given[name]!r} and as {value!r}; give it once")
        given[name] = value
    return given


def _known_or_path(what: str, value: object, known: list[str]) -> str:
    """Return a known name as it is and a path as an absolute one, since kernels run in another folder."""
    if value in known:
        return str(value)
    path = Path(str(value)).expanduser()
    if path.exists():
        return str(path.resolve())
    raise IdentError(f"there is no {what} {value!r}; name one of {', '.join(known)}, or a path that exists")


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise IdentError(
            f"executed notebooks cannot be written to {folder} ({error.strerror}); "
            "free it or set IDENT_RUNS to another folder"
        ) from error


def _run(
    source: Path,
    folder: Path,
    parameters: dict[str, object],
    environment: dict[str, str],
    timeout: int,
    on_event: Callable[[Progress], None],
) -> NotebookRun:
    name, started = source.stem, time.perf_counter()
    total = len(read_notebook(source).cells) + bool(parameters)
    index = None  # of the cell that runs, among all cells

    def at_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal index
        index = cell_index
        on_event(Progress(name, cell_index, total))

    on_event(Progress(name, 0, total))
    # The copy gets its final name only when the notebook has ended, so that no half of one ever bears it.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
        copy, watch = Path(scratch) / source.name, KernelWatch(Path(scratch) / "kernel.log")
        failure = None
        try:
            with _quiet():
                papermill.execute_notebook(
                    # papermill fills in {fields} of paths, so braces in a folder's name must be doubled
                    _escaped(source),
                    _escaped(copy),
                    parameters=parameters,
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
        found = _diagnosis(failure, copy, index, timeout, watch)
        final = folder / source.name
        if copy.exists():
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
    )
    on_event(Progress(name, total, total, run))
    return run


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
    return papermill.exceptions.strip_color(text).strip()


def _escaped(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep papermill's and nbclient's own log and warnings off the terminal; failures are reported by us."""
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
