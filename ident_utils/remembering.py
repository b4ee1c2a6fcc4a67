"""Results that take long are kept on disk, each under a hash of all that it depends on."""

import inspect
import os
import time
from collections.abc import Callable
from functools import cached_property, partial, update_wrapper

import joblib

from ident_utils import cache
from ident_utils.errors import IdentError
from ident_utils.fingerprints import code_version, fingerprint, libraries
from ident_utils.paths import cache_root


class Remembered:
    """A function whose results are kept; made by decorating it with :func:`remembered`."""

    def __init__(self, function: Callable) -> None:
        """Take the place of ``function``."""
        self.function = function
        update_wrapper(self, function)

    @property
    def path(self) -> str:
        """Name the function as MODULE:NAME."""
        return f"{self.__module__}:{self.__qualname__}"

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def key(self, *args: object, **kwargs: object) -> str:
        """Return the hash of all that a call depends on: code, libraries and arguments, however they are passed."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return fingerprint((self.path, code_version(self.__module__), libraries(), dict(bound.arguments)))

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return what is kept for these arguments, or call the function and keep what it returns."""
        return _store()(self.path, self.key(*args, **kwargs), partial(self.function, *args, **kwargs))

    def is_kept(self, *args: object, **kwargs: object) -> bool:
        """Say whether a call would be answered from disk."""
        return _store().check_call_in_cache(self.path, self.key(*args, **kwargs), None)

    def keep(self, result: object, *args: object, **kwargs: object) -> None:
        """Keep a result that was computed elsewhere."""
        _store()(self.path, self.key(*args, **kwargs), lambda: result)


def remembered(function: Callable) -> Remembered:
    """Keep the results of a function on disk, under a hash of its code, of libraries, and of its arguments' content.

    The code is that of the function's module and of all that this imports from the package. An entry that cannot be
    read is computed again. With the environment variable IDENT_FRESH only what was kept after that time is used.
    """
    return Remembered(function)


def _measure(function: str, key: str, compute: Callable[[], object]) -> object:  # what joblib sees of a call
    return compute()


def _store() -> Callable:
    begun = float(os.environ.get(cache.FRESH, 0))

    def valid(about: dict) -> bool:
        # Where only what is new counts, a time to come is one that a clock has told which was set back since.
        return not begun or begun <= about.get("time", 0) <= time.time()

    try:
        memory = joblib.Memory(cache_root() / cache.RESULTS, verbose=0)
        return memory.cache(_measure, ignore=["compute"], cache_validation_callback=valid)
    except OSError as error:
        raise IdentError(
            f"Results cannot be kept in {cache_root()}: {error.strerror}; set IDENT_CACHE to another folder."
        ) from error
