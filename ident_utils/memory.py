"""How much memory there is."""

from contextlib import suppress
from pathlib import Path

import psutil

GROUP = Path("/sys/fs/cgroup")  # limits of a container


def available_memory(group: Path = GROUP) -> int:
    """Return the bytes that may still be taken: what the system has free, and what a container's limit leaves."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # without such a limit the file is missing, or says "max"
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, limit - used))
    return free
