"""Bring executed notebooks back into the repository, clean enough to be committed."""

from pathlib import Path
from typing import TYPE_CHECKING

from ident_utils.errors import IdentError
from ident_utils.notebooks import joined, notebook_folder, read_notebook
from ident_utils.paths import runs_root
from ident_utils.settings import load_settings
from ident_utils.shades import draw_dark

if TYPE_CHECKING:
    from nbformat import NotebookNode

# Metadata that says where and when a notebook ran rather than what it is.
_RUN_METADATA = ("papermill", "execution", "widgets", "ExecuteTime")
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# No version: a patch release of Python would change every notebook.
_LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


def publish(profile: str = "base") -> list[Path]:
    """Put the outputs of the executed copies of a profile into the notebooks and return the paths written.

    The dark variants of the README's figures follow, where the profile's results hold these figures.

    Text and tags come from ``notebooks/``, outputs and counts from the copy, so that prose can be polished
    after a run while code cannot. Everything is checked before anything is written, and the same copies
    always give the same bytes. Raises IdentError naming every copy that holds an error, an injected
    parameter, output on stderr, a cell that did not run in order, or code other than in ``notebooks/``.
    """
    settings = load_settings(profile)
    folder = runs_root() / settings.profile
    copies = sorted(folder.glob("*.ipynb"))
    if not copies:
        raise IdentError(f"there is nothing to publish in {folder}; run `ident reproduce --profile {profile}` first")
    pages, objections = {}, []
    for copy in copies:
        target = notebook_folder() / copy.name
        if not target.is_file():
            objections.append(f"{copy.name} is not in {target.parent}")
            continue
        source, executed = read_notebook(target), read_notebook(copy)
        objection = _objection(source, executed)
        if objection:
            objections.append(f"{copy.name} {objection}")
        else:
            pages[target] = _page(source, executed)
    if objections:
        raise IdentError(f"nothing was published: {'; '.join(objections)}; mend that and run them again")
    from ident_utils.results import write_atomically  # here: it imports torch

    for target, page in pages.items():
        write_atomically(target, page)
    return [*pages, *(settings.folder / f"{name}.svg" for name, _ in draw_dark(settings.folder))]


def _code_cells(notebook: "NotebookNode") -> list["NotebookNode"]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _objection(source: "NotebookNode", executed: "NotebookNode") -> str | None:
    """Say what keeps an executed copy from being published, or None."""
    cells = _code_cells(executed)
    if any("injected-parameters" in cell.metadata.get("tags", []) for cell in cells):
        return "ran with injected parameters"
    outputs = [output for cell in cells for output in cell.outputs]
    if any(output.output_type == "error" for output in outputs):
        return "holds an error"
    if any(output.output_type == "stream" and output.name == "stderr" for output in outputs):
        return "holds output on stderr, where bars and warnings go"
    if [cell.source for cell in cells] != [cell.source for cell in _code_cells(source)]:
        return "has other code than the notebook of that name"
    counts = [cell.execution_count for cell in cells if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        return "did not run from top to bottom"
    return None


def _page(source: "NotebookNode", executed: "NotebookNode") -> str:
    """Return the text of the notebook to commit: the source's cells with the copy's outputs."""
    import nbformat  # here, because its validator takes seconds to import

    for cell, run in zip(_code_cells(source), _code_cells(executed), strict=True):
        cell.execution_count = run.execution_count
        cell.outputs = _merged(run.outputs)
    for number, cell in enumerate(source.cells):
        _drop(cell.metadata)
        cell.setdefault("id", f"cell-{number:02d}")
    _drop(source.metadata)
    source.metadata.kernelspec = nbformat.from_dict(_KERNELSPEC)
    source.metadata.language_info = nbformat.from_dict(_LANGUAGE_INFO)
    source.nbformat_minor = 5
    nbformat.validate(source)
    return nbformat.writes(source).rstrip("\n") + "\n"


def _merged(outputs: list["NotebookNode"]) -> list["NotebookNode"]:
    """Join neighbouring pieces of one stream, since a kernel cuts a stream where time falls."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if output.output_type == "stream":
            output.text = joined(output.text)
            if last is not None and last.output_type == "stream" and last.name == output.name:
                last.text += output.text
                continue
        merged.append(output)
    return merged


def _drop(metadata: dict) -> None:
    for key in _RUN_METADATA:
        metadata.pop(key, None)
