"""Find a model by what a user calls it: a name of the catalogue, a folder, or a name on a hub. Loads nothing slow."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.fetch import fetch_model, model_catalogue
from ident_utils.hub import PICKLED, WEIGHTS, hub_model, parse_hub_name

INSIST = "IDENT_UNSAFE_WEIGHTS"  # set to 1 by those who trust a pickle's author


@dataclass(frozen=True)
class Located:
    """Say where a model's files lie and where they come from."""

    folder: Path
    source: str  # a repository on a hub, or "local folder"
    revision: str


def locate_model(name: str, *, progress: bool = True) -> Located:
    """Return the folder of a model, fetched where that is needed.

    ``name`` is tried as a name of ``data/models.toml``, then as a folder, then as a name on a hub, with @REVISION or
    without. Raises IdentError saying what was looked for, and which models exist.
    """
    known = model_catalogue()
    if name in known:
        entry = known[name]
        return Located(fetch_model(name, progress=progress), entry.hub, entry.revision)
    folder, unsafe = Path(name).expanduser(), os.environ.get(INSIST) == "1"
    if folder.is_dir():
        return Located(_checked(name, folder, unsafe), "local folder", "none")
    hub_name = None if _looks_like_a_path(name) else parse_hub_name(name)
    if hub_name is None or get_close_matches(name, known, cutoff=0.8):
        raise _unknown(name, f"{folder} is no folder")
    found = hub_model(*hub_name, unsafe=unsafe)
    return Located(found, hub_name[0], found.name)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name or name.count("/") > 1


def _checked(name: str, folder: Path, unsafe: bool) -> Path:
    if not (folder / "config.json").is_file():
        raise _unknown(name, f"{folder} has no config.json")
    pickled = (folder / PICKLED).is_file()
    if not (folder / WEIGHTS).is_file() and not (unsafe and pickled):
        remedy = f" (its {PICKLED} can run code while it is read; set {INSIST}=1 if you trust it)" if pickled else ""
        raise _unknown(name, f"{folder} has no {WEIGHTS}{remedy}")
    return folder


def _unknown(name: str, what: str) -> IdentError:
    return IdentError(
        f"There is no model {name!r}: {what}; models that come with the suite: {', '.join(model_catalogue())}."
    )
