"""What all tests share: results are kept in a folder of their own, so that nothing measured before is used."""

from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from books import PARAMETERS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ident_utils import cache


@pytest.fixture(scope="session", autouse=True)
def own_results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "RESULTS", str(tmp_path_factory.mktemp("results")))
        yield


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the suite at empty folders of its own; braces in the name because papermill formats paths."""
    home = tmp_path / "some {place}"
    for name in ("notebooks", "runs", "figures"):
        (home / name).mkdir(parents=True)
        monkeypatch.setenv(f"IDENT_{name.upper()}", str(home / name))
    monkeypatch.delenv("IDENT_PROFILE", raising=False)
    return home


@pytest.fixture
def write(folders: Path) -> Callable[..., Path]:
    """Return a function that writes a notebook from sources of code cells, after title and parameters."""

    def write_notebook(name: str, *sources: str, parameters: tuple[str, ...] = (PARAMETERS,)) -> Path:
        cells = [new_markdown_cell(f"# The title of {name}", id="title")]
        tagged = {"tags": ["parameters"]}
        cells += [new_code_cell(p, metadata=dict(tagged), id=f"parameters-{i}") for i, p in enumerate(parameters)]
        cells += [new_code_cell(source, id=f"code-{i}") for i, source in enumerate(sources)]
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = folders / "notebooks" / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
        return path

    return write_notebook
