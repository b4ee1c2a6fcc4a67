"""Where things lie, seen from the package and never from the working directory."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"


def _folder(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().resolve()


def figures_root() -> Path:
    """Return the folder that holds one results folder per profile (``IDENT_FIGURES`` moves it)."""
    return _folder("IDENT_FIGURES", ROOT / "figures")


def runs_root() -> Path:
    """Return the folder that holds the executed copies of the notebooks (``IDENT_RUNS`` moves it)."""
    return _folder("IDENT_RUNS", ROOT / "runs")


def cache_root() -> Path:
    """Return the folder that holds fetched models and cached results (``IDENT_CACHE`` moves it)."""
    return _folder("IDENT_CACHE", DATA / "cache")
