"""The notebooks of the suite as files: which there are, their names, the parameters they declare."""

import ast
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ident_utils import paths
from ident_utils.errors import IdentError

if TYPE_CHECKING:
    from nbformat import NotebookNode

PARAMETERS_TAG = "parameters"
EXPLORER = "10_explore"  # a page that answers to clicks; nothing in it can be reproduced, so it is none of the suite


def notebook_folder() -> Path:
    """Return the folder of the numbered notebooks (``IDENT_NOTEBOOKS`` moves it)."""
    return Path(os.environ.get("IDENT_NOTEBOOKS") or paths.NOTEBOOKS).expanduser().resolve()


def notebook_paths(folder: Path | None = None) -> list[Path]:
    """List the notebooks of a folder that are run, in the order of their numbers.

    Raises IdentError where the folder holds none.
    """
    folder = folder or notebook_folder()
    found = sorted(path for path in folder.glob("[0-9]*.ipynb") if path.is_file() and path.stem != EXPLORER)
    if not found:
        raise IdentError(f"there is no numbered notebook in {folder}; check IDENT_NOTEBOOKS or the checkout")
    return found


def select_notebooks(names: Iterable[str] | None = None, folder: Path | None = None) -> list[Path]:
    """Find notebooks by number, name or file name, in number order and each once; None or nothing means all.

    Raises IdentError for a name that fits none, naming those that exist.
    """
    available = notebook_paths(folder)
    wanted = [str(name) for name in names or []]
    if not wanted:
        return available
    chosen = set()
    for name in wanted:
        stem = Path(name).name.removesuffix(".ipynb")
        number = stem.zfill(2)
        fitting = [path for path in available if path.stem == stem or path.stem.split("_")[0] == number]
        if not fitting:
            known = ", ".join(path.stem for path in available)
            raise IdentError(f"there is no notebook '{name}'; those that exist are {known}")
        chosen.update(fitting)
    return [path for path in available if path in chosen]


def read_raw(path: Path) -> dict:
    """Read a notebook as plain JSON, with each cell's source as one string.

    Raises IdentError where the file is missing or is no notebook of format 4.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if notebook["nbformat"] != 4:
            raise ValueError("not format 4")
        for cell in notebook["cells"]:
            cell["source"] = joined(cell["source"])
    except OSError as error:
        raise IdentError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IdentError(f"{path.name} is no readable notebook ({error}); restore the file") from error
    return notebook


def read_notebook(path: Path) -> "NotebookNode":
    """Read a notebook as it is written, without the repairs and random cell ids of ``nbformat.read``.

    Raises IdentError where the file is missing or is no notebook of format 4.
    """
    import nbformat  # here, because its validator takes seconds to import

    return nbformat.from_dict(read_raw(path))


def joined(text: str | list[str]) -> str:
    """Return text that a notebook may hold as one string or as a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def title(path: Path) -> str:
    """Return the first heading of a notebook, or an empty string where there is none."""
    for cell in read_raw(path)["cells"]:
        for line in cell["source"].splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("#"):
                return line.lstrip("#").strip()
    return ""


def declared_parameters(path: Path) -> set[str]:
    """Return the names that the one cell tagged ``parameters`` assigns.

    The cell is parsed as Python, because papermill's own line-by-line reading overlooks a name whose value
    or comment holds a second equals sign. Raises IdentError where there is not exactly one such cell, or
    where it does not parse.
    """
    cells = [c for c in read_raw(path)["cells"] if PARAMETERS_TAG in c.get("metadata", {}).get("tags", [])]
    if len(cells) != 1:
        count = "no cell" if not cells else f"{len(cells)} cells"
        raise IdentError(f"{path.name} has {count} tagged '{PARAMETERS_TAG}'; tag exactly one code cell")
    try:
        statements = ast.parse(cells[0]["source"]).body
    except SyntaxError as error:
        raise IdentError(
            f"{path.name}: the cell tagged '{PARAMETERS_TAG}' is no plain Python ({error.msg}); "
            "keep only assignments in it"
        ) from error
    targets = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return {target.id for target in targets if isinstance(target, ast.Name)}


def check_parameters(path: Path, given: Iterable[str]) -> None:
    """Check that a notebook declares every given parameter.

    Raises IdentError for a name it lacks, since papermill itself would only warn and run on with the default.
    """
    declared = declared_parameters(path)
    unknown = sorted(set(given) - declared)
    if unknown:
        known = ", ".join(sorted(declared)) or "none"
        raise IdentError(f"{path.name} has no parameter '{unknown[0]}'; it declares {known}")
