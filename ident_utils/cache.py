"""Results that take minutes are kept on disk, under a key that names all they depend on."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import joblib

from ident_utils.paths import cache_root

PACKAGE = Path(__file__).parent


def code_hash(*modules: str) -> str:
    """Return a short hash of the source of some modules of the package: a changed method is measured anew."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((PACKAGE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]


def remember(function: Callable, *, ignore: list[str]) -> Callable:
    """Let joblib keep ``function``'s results under the cache folder; arguments in ``ignore`` are not in the key."""
    return joblib.Memory(cache_root() / "results", verbose=0).cache(function, ignore=ignore)
