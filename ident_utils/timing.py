"""Timing two ways to the same result, and the memory that one of them takes."""

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """Hold one comparison: seconds of the plain way and of ours, and how far their results differ."""

    name: str
    setting: str
    plain: float
    ours: float
    difference: str

    def __str__(self) -> str:
        """Print the line."""
        ratio = self.plain / self.ours
        times = f"{self.plain:.2f} s against {self.ours:.2f} s, ×{ratio:.1f}"
        return f"{self.name}: {times} ({self.setting}; {self.difference})"


def seconds(run: Callable[[], object], repeats: int = 3) -> tuple[float, object]:
    """Return the shortest time of a few runs, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def forget_peak_memory() -> None:
    """Start measuring the peak of resident memory anew, where the system (Linux) can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Return the peak of resident memory in bytes since it was last forgotten, else since the process began."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
