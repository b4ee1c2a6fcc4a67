"""Run the notebooks headlessly, on papermill, and say what became of each."""

import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from ident_utils.cache import FRESH, remove_leftovers
from ident_utils.corpora import corpus_catalogue, corpus_texts
from ident_utils.errors import IdentError
from ident_utils.fetch import model_catalogue
from ident_utils.history import Forecast, History, in_time, side_by_side
from ident_utils.locate import locate_model
from ident_utils.locking import only_run
from ident_utils.memory import available_memory
from ident_utils.needs import at_once, check_memory, least_memory
from ident_utils.notebooks import check_parameters, select_notebooks
from ident_utils.paths import runs_root
from ident_utils.progress import Stage
from ident_utils.publishing import publish
from ident_utils.scheduling import choose_jobs, run_side_by_side, threads_each, waits_for
from ident_utils.settings import Settings, load_settings
from ident_utils.textfiles import in_words, read_text_file

__all__ = ["Estimate", "NotebookRun", "Progress", "publish", "reproduce"]

CELL_TIMEOUT = 3600  # seconds
TRUNCATE = "IDENT_TRUNCATE"  # see ident_utils.models
OTHERS = "; the others have not run here"
SCHEDULER = "IDENT_SCHEDULER"  # see ident_utils.cluster


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
    cell_seconds: tuple[float, ...] = field(default=(), repr=False)  # of all cells, those of text too


@dataclass(frozen=True)
class Progress:
    """Tell how far a notebook is: before each cell, within a long loop of one, and with ``run`` at its end."""

    name: str
    done: int  # cells
    total: int  # cells
    stage: Stage | None = None  # the loop that runs in this cell
    run: NotebookRun | None = None
    seconds: float = 0.0  # since the notebook began
    seconds_left: float | None = None  # None while nothing is known


@dataclass(frozen=True)
class Estimate:
    """Say before notebooks run how long they will take, as far as they have run here before."""

    seconds: float
    known: tuple[str, ...]  # names of the notebooks that have run here
    total: int  # notebooks

    def __str__(self) -> str:
        """Print the estimate in one line."""
        count = f"{self.total} notebook{'s' if self.total > 1 else ''}"
        which, rest = (count, "") if len(self.known) == self.total else (f"{len(self.known)} of {count}", OTHERS)
        return f"about {in_time(self.seconds)} for {which}, by earlier runs on this machine{rest}"


def reproduce(
    notebooks: Iterable[str] | None = None,
    *,
    profile: str | None = None,
    model: str | None = None,
    corpus: str | None = None,
    seed: int | None = None,
    parameters: Mapping[str, object] | None = None,
    truncate: bool = False,
    timeout: int | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    scheduler: str | None = None,
    workers: int | None = None,
    on_start: Callable[[Estimate], None] | None = None,
    on_event: Callable[[Progress], None] | None = None,
) -> list[NotebookRun]:
    """Execute notebooks and return one NotebookRun each in the order of their numbers, failed ones included.

    Notebooks are named by number, name or file name; None means all. The profile reaches them through
    ``IDENT_PROFILE`` in the kernel's environment; model, corpus, seed and ``parameters`` are injected only
    where given. Texts of a user's file that are too long for the model are refused, or cut with ``truncate``.
    Every cell may take ``timeout`` seconds. ``jobs`` notebooks run side by side, with an equal share of
    the processors each; None means as many as processors and memory allow. ``fresh`` measures anew what the cache
    holds. Work on single texts goes to the Dask cluster whose ``scheduler`` has this address, or to one of so many
    ``workers`` processes on this machine. ``on_start`` is called before anything runs where some notebook has run
    here before, ``on_event`` whenever there is something to tell, both in the caller's thread. Executed copies, of
    failed notebooks too, go to ``runs_root()/PROFILE``, and to a folder of their own where model, corpus or seed are
    changed.

    Raises IdentError before anything runs where a notebook, profile, model or corpus is unknown, a notebook
    does not declare a parameter that is given, a folder cannot be written, memory does not suffice, or another run
    writes the same results.
    """
    if timeout is not None and timeout <= 0:
        raise IdentError(f"the timeout must be a positive number of seconds, not {timeout}")
    given = _merged(parameters, profile=profile, model=model, corpus=corpus, seed=seed)
    profile = given.pop("profile", None)
    if "model" in given:
        given["model"] = _found_model(str(given["model"]))
    if "corpus" in given:
        given["corpus"] = _found_corpus(str(given["corpus"]))
    settings = load_settings(profile, model=given.get("model"), corpus=given.get("corpus"), seed=given.get("seed", 0))
    chosen = select_notebooks(notebooks)
    for path in chosen:
        check_parameters(path, given)
    _check_lengths(settings, truncate)
    folder = _writable(runs_root() / settings.folder.name)
    limit = math.ceil(timeout or CELL_TIMEOUT)
    asked, jobs = jobs, choose_jobs(1 if jobs is None and workers else jobs, len(chosen))  # workers take the others
    jobs = _jobs_in_memory(jobs, bool(asked), {path.stem: least_memory(path, settings) for path in chosen})
    history = History(runs_root() / f"{settings.folder.name}.seconds.json")
    from ident_utils.execution import quiet, run_notebook  # here: it takes seconds to import, a refusal should not
    from ident_utils.kernels import kernel_environment

    environment = kernel_environment(settings.profile, threads_each(jobs))
    environment |= {TRUNCATE: "1"} if truncate else {}
    environment |= {FRESH: str(time.time())} if fresh else {}

    def run(path: Path, report: Callable[[Progress], None], stop: threading.Event) -> NotebookRun:
        return run_notebook(path, folder, given, environment, limit, report, stop)

    with quiet(), only_run(settings.folder), _cluster(scheduler, workers) as address:
        environment |= {SCHEDULER: address} if address else {}
        remove_leftovers(folder, settings.folder)
        estimate = estimated([path.stem for path in chosen], jobs, history, fresh)
        if estimate.known and on_start:
            on_start(estimate)
        return run_side_by_side(chosen, jobs, run, _with_times(on_event or _ignore, history, fresh))


def _jobs_in_memory(jobs: int, asked: bool, needs: Mapping[str, int]) -> int:
    """Return how many notebooks may run at a time; IdentError where memory has no room for what was asked."""
    available = available_memory()
    if not asked:
        jobs = max(1, min(jobs, at_once(needs.values(), available)))
    check_memory(needs, jobs, available)
    return jobs


def estimated(names: Sequence[str], jobs: int, history: History, fresh: bool) -> Estimate:
    """Estimate how long notebooks take, from their last run or, with ``fresh``, from their longest."""
    earlier = {name: history.earlier(name, longest=fresh) for name in names}
    seconds = {name: run.seconds for name, run in earlier.items() if run is not None}
    return Estimate(side_by_side(seconds, waits_for(names), jobs), tuple(seconds), len(names))


def _with_times(on_event: Callable[[Progress], None], history: History, fresh: bool) -> Callable[[Progress], None]:
    """Add to events how long a notebook has run and will run, and keep what it took when it ends."""
    forecasts: dict[str, Forecast] = {}

    def told(event: Progress) -> None:
        if event.name not in forecasts:
            forecasts[event.name] = Forecast(history.earlier(event.name, longest=fresh), event.total)
        forecast = forecasts[event.name]
        if event.run is not None:
            history.add(event.run)
        left = 0.0 if event.run else forecast.left(event.done, event.stage)
        on_event(replace(event, seconds=forecast.seconds, seconds_left=left))

    return told


@contextmanager
def _cluster(scheduler: str | None, workers: int | None) -> Iterator[str | None]:
    """Yield the address of the cluster to work on, None for none; one that cannot be used costs no run."""
    if scheduler and workers:
        raise IdentError("Give the address of a scheduler or a number of workers here, not both.")
    if not scheduler and workers is None:
        yield None
        return
    from ident_utils.cluster import check_cluster, local_cluster  # here: it takes seconds to import

    with local_cluster(workers) if workers is not None else nullcontext(scheduler) as address:
        check_cluster(address)
        yield address


def _ignore(progress: Progress) -> None:
    """Let an event pass."""


def _merged(parameters: Mapping[str, object] | None, **named: object) -> dict[str, object]:
    """Join the named arguments with the free parameters; None means not given."""
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in (parameters or {}).items():
        if name in named and value is None:
            continue
        if name in given and given[name] != value:
            raise IdentError(f"'{name}' is given twice, as {given[name]!r} and as {value!r}; give it once")
        given[name] = value
    return given


def _found_model(name: str) -> str:
    """Return a model's name as it is and a folder as an absolute path, since kernels run in another folder.

    A model from a hub is fetched here, so that what is wrong with its name costs no run.
    """
    if name in model_catalogue():
        return name
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve())
    locate_model(name)
    return name


def _found_corpus(name: str) -> str:
    """Return a corpus' name as it is and a file as an absolute path; it is read, so that its faults cost no run."""
    if name in corpus_catalogue():
        return name
    path = Path(name).expanduser()
    corpus_texts(str(path.resolve()) if path.exists() else name)
    return str(path.resolve())


def _check_lengths(settings: Settings, truncate: bool) -> None:
    """Compare every text of a user's file with what the model takes, before any notebook runs.

    Texts that are cut are told of on stderr. Raises IdentError naming their lines, unless ``truncate`` is set.
    """
    if settings.corpus in corpus_catalogue() or not Path(settings.corpus).is_file():
        return
    from ident_utils.models import load_encoder  # here: it takes seconds to import

    file, encoder = read_text_file(settings.corpus), load_encoder(settings.model, check=False)
    counted = zip(file.lines, file.texts, strict=True)
    long = [number for number, text in counted if encoder.count_tokens(text) > encoder.max_tokens]
    about = f"{file.path.name}: {len(file.texts)} texts, {file.empty} empty lines passed over, {len(long)} too long"
    if long:
        about += f" for {settings.model}, which takes {encoder.max_tokens} tokens ({in_words(long)})"
    if long and not truncate:
        raise IdentError(f"{about}; shorten them, or cut them with --truncate")
    print(about + (", cut to fit" if long else ""), file=sys.stderr, flush=True)


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
