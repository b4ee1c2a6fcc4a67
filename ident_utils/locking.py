"""One run at a time writes into a folder of results."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ident_utils.errors import IdentError
from ident_utils.results import write_atomically


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of results; the system frees it however the process ends.

    Raises IdentError, which says who holds it, while another run does.
    """
    lock, holder = (folder.with_name(f".{folder.name}.{kind}") for kind in ("lock", "holder"))
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0):
            started = datetime.now().isoformat(sep=" ", timespec="seconds")
            about = {"process": os.getpid(), "host": socket.gethostname(), "since": started}
            write_atomically(holder, json.dumps(about))
            try:
                yield
            finally:
                holder.unlink(missing_ok=True)
    except Timeout:
        raise IdentError(
            f"Another run{_who(holder)} is writing the results of {folder.name}; wait until it has ended, or set "
            "IDENT_FIGURES and IDENT_RUNS to other folders."
        ) from None
    except OSError as error:
        raise IdentError(f"Results cannot be written to {folder}: {error.strerror}; set IDENT_FIGURES.") from error


def _who(holder: Path) -> str:
    try:
        about = json.loads(holder.read_text(encoding="utf-8"))
        return f" (process {about['process']} on {about['host']}, since {about['since']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun, or has just ended
        return ""
