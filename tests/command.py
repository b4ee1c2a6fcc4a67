"""Run the command line as a user does."""

import os
import subprocess
import sys
from pathlib import Path

from ident_utils.paths import ROOT


def ident(
    *arguments: str, cwd: Path | None = None, timeout: float = 60, **variables: str
) -> subprocess.CompletedProcess:
    """Run ``ident`` in a process of its own, in any folder, with some environment variables set."""
    return python("-m", "ident_utils.cli", *arguments, cwd=cwd, timeout=timeout, **variables)


def python(
    *arguments: str, cwd: Path | None = None, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess:
    """Run this interpreter, which then finds the package, in any folder, with some environment variables set."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
