"""Work on many texts: here, or on the workers of a Dask cluster, each of which loads the model once.

What travels is small: the name of a function, the recipe of an encoder, and a text with some numbers; contributions
or a table come back. Results are the same wherever they are computed, and kept on disk here
(:mod:`ident_utils.cache`).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from threading import Lock

from ident_utils.errors import IdentError
from ident_utils.fingerprints import code_version, fingerprint, libraries
from ident_utils.models import Encoder, Step, made_again
from ident_utils.progress import track
from ident_utils.remembering import Remembered

SCHEDULER = "IDENT_SCHEDULER"  # address of the cluster that a notebook sends its work to; unset: none
ANSWER_TIMEOUT = 10  # seconds

_loading = Lock()


def for_each(
    function: Remembered, encoder: Encoder, items: Sequence[Mapping[str, object]], what: str
) -> list[object]:
    """Call ``function(encoder, **item)`` for every item and return the results in their order.

    ``what`` names the items on a progress bar. Where IDENT_SCHEDULER names a cluster, what is not kept on disk yet is
    computed there, unless no other process could make this encoder. Raises IdentError where no scheduler answers,
    or its workers compute with other code, libraries or weights.
    """
    address = os.environ.get(SCHEDULER)
    if address and encoder.recipe:
        missing = [item for item in items if not function.is_kept(encoder, **item)]
        compute_on_cluster(address, function, encoder, missing, what)
    return [function(encoder, **item) for item in track(items, what)]


def compute_on_cluster(
    address: str, function: Remembered, encoder: Encoder, items: Sequence[Mapping[str, object]], what: str
) -> float:
    """Compute items on a cluster's workers, keep the results here, and return the seconds the workers computed for.

    A worker that dies is done without; what it worked on goes to another.
    """
    from distributed import KilledWorker, as_completed

    if not items:
        return 0.0
    client = _connected(address)
    about = function.path, encoder.recipe, fingerprint(encoder), code_version(function.__module__), libraries()
    futures = {client.submit(_compute, *about, dict(item), key=function.key(encoder, **item)): item for item in items}
    seconds = 0.0
    try:
        done = as_completed(futures, loop=client.loop)
        for _ in track(range(len(futures)), what):
            future = next(done)
            result, taken = future.result()
            function.keep(result, encoder, **futures[future])
            seconds += taken
    except KilledWorker as error:
        raise IdentError(
            f"Several workers died of the same work on {what}, one after the other. Most often memory ran out: give "
            "each worker more, or cut the texts."
        ) from error
    finally:
        client.cancel(list(futures))
    return seconds


def _compute(
    path: str, recipe: tuple[Step, ...], weights: str, code: str, versions: str, item: dict[str, object]
) -> tuple[object, float]:
    """Compute one item on a worker; returns the result and the seconds it took."""
    module, _, name = path.partition(":")
    if (code, versions) != (code_version(module), libraries()):
        raise IdentError("A worker computes with other code or libraries; install the same on all machines.")
    encoder = _encoder(recipe)
    if fingerprint(encoder) != weights:
        raise IdentError(f"A worker has other weights of {encoder.name}; give all machines the same model.")
    began = time.perf_counter()
    return getattr(import_module(module), name).function(encoder, **item), time.perf_counter() - began


def _encoder(recipe: tuple[Step, ...]) -> Encoder:
    with _loading:  # a worker with several threads loads a model once, too
        return _made_once(recipe)


_made_once = lru_cache(maxsize=2)(made_again)


@cache
def _connected(address: str) -> object:
    from distributed import Client

    try:
        client = Client(address, timeout=ANSWER_TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise IdentError(
            f"No Dask scheduler answers at {address}; start one with 'dask scheduler', or leave --scheduler out."
        ) from error
    return client


def check_cluster(address: str) -> int:
    """Return how many workers a cluster has.

    Raises IdentError where no scheduler answers within ten seconds, it has no worker, or workers have other code or
    libraries than this process.
    """
    client = _connected(address)
    try:
        client.wait_for_workers(1, timeout=ANSWER_TIMEOUT)
    except TimeoutError as error:
        raise IdentError(
            f"The scheduler at {address} has no worker; start some with 'dask worker {address}'."
        ) from error
    here = about_this_process()
    try:
        found = client.run(about_this_process)
    except Exception as error:  # whatever a worker without the package answers
        raise IdentError(f"A worker of {address} cannot import ident_utils ({error}); install it there.") from error
    for worker, about in found.items():
        for name, value in here.items():
            if about.get(name) != value:
                raise IdentError(
                    f"The worker {worker} has {name} {about.get(name)}, not {value}; install the same there."
                )
    return len(found)


def about_this_process() -> dict[str, str]:
    """Return what must be the same on all machines: code and libraries."""
    return {"ident_utils": code_version("ident_utils.suite")[:12], "libraries": libraries()}


@contextmanager
def local_cluster(workers: int) -> Iterator[str]:
    """Start a cluster of processes on this machine, with one thread each, and yield its address."""
    from distributed import LocalCluster

    if workers < 1:
        raise IdentError(f"The number of workers must be at least 1, not {workers}.")
    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address
