"""Results that take minutes are kept on disk, under a key that names all they depend on."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import joblib

from ident_utils.errors import IdentError
from ident_utils.paths import cache_root

PACKAGE = Path(__file__).parent
RESULTS = "results"
FRESH = "IDENT_FRESH"  # set to 1: measure anew, and keep that


def code_hash(*modules: str) -> str:
    """Return a short hash of the source of some modules of the package: a changed method is measured anew."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((PACKAGE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]


def remember(function: Callable, *, ignore: list[str]) -> Callable:
    """Let joblib keep ``function``'s results under the cache folder; arguments in ``ignore`` are not in the key.

    With the environment variable IDENT_FRESH at 1 nothing kept is used, and what is measured takes its place.
    """
    valid = (lambda _metadata: False) if os.environ.get(FRESH) == "1" else None
    memory = joblib.Memory(cache_root() / RESULTS, verbose=0)
    return memory.cache(function, ignore=ignore, cache_validation_callback=valid)


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
