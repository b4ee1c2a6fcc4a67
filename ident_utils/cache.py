"""The folder of what is kept: models, and results that take long (:mod:`ident_utils.remembering`)."""

import shutil
from pathlib import Path

import psutil

from ident_utils.errors import IdentError
from ident_utils.paths import cache_root

RESULTS = "results"
FRESH = "IDENT_FRESH"  # a time in seconds since 1970: results that were kept before it count for nothing
PART = ".*.part"  # files that are to be renamed, as results.write_atomically names them
COPY = ".part-*"  # folders of notebooks that run, as execution.run_notebook names them
HALF_WRITTEN = "*.*.*-[0-9]*-[0-9]*"  # kept results, as joblib names them: NAME.HASH-PROCESS-THREAD


def cache_sizes() -> dict[str, tuple[int, int]]:
    """Return for each folder of the cache, models and results, its number of files and its bytes."""
    if not cache_root().is_dir():
        return {}
    found = {}
    for folder in sorted(path for path in cache_root().iterdir() if path.is_dir()):
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        found[folder.name] = len(sizes), sum(sizes)
    return found


def clear_results() -> int:
    """Remove the results that are kept, models stay; return the bytes that this frees.

    Raises IdentError where they cannot be removed.
    """
    freed = cache_sizes().get(RESULTS, (0, 0))[1]
    try:
        shutil.rmtree(cache_root() / RESULTS)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise IdentError(f"{error.filename} cannot be removed: {error.strerror}.") from error
    return freed


def remove_leftovers(*folders: Path) -> None:
    """Remove what runs that were killed have left half written, in folders of results and in the cache.

    Nobody else may be writing to the folders.
    """
    for folder in folders:
        for path in [*folder.rglob(PART), *folder.glob(COPY)]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    for file in (cache_root() / RESULTS).rglob(HALF_WRITTEN):
        if not psutil.pid_exists(int(file.name.split("-")[-2])):
            file.unlink(missing_ok=True)
