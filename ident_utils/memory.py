"""How much memory there is, and what does not fit in it."""

from contextlib import suppress
from pathlib import Path

import psutil

from ident_utils.errors import IdentError

GROUP = Path("/sys/fs/cgroup")  # limits of a container


def available_memory(group: Path = GROUP) -> int:
    """Return the bytes that may still be taken: what the system has free, and what a container's limit leaves."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # without such a limit the file is missing, or says "max"
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, limit - used))
    return free


def check_room(needed: int, what: str, remedy: str, free: int | None = None) -> None:
    """Compare the bytes that something takes with those that there are.

    Raises IdentError, in one sentence that ends with the remedy, where they do not suffice.
    """
    free = available_memory() if free is None else free
    if needed > free:
        raise IdentError(f"{what} needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free; {remedy}.")
