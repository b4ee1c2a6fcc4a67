"""Progress bars that stay out of notebooks, tests and log files."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def track(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Iterate with a bar on a terminal, and silently everywhere else."""
    return tqdm(items, desc=what, leave=False, disable=None, delay=2)
