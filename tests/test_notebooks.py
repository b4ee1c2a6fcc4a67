"""The committed notebooks are fit to be read: outputs present and in order, nothing of one machine."""

import ast
import json
import re
from collections.abc import Callable, Iterator

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from ident_utils.notebooks import EXPLORER, read_notebook
from ident_utils.paths import NOTEBOOKS, ROOT

MAX_BYTES = 500_000
MAX_CODE_LINES = 15
MAX_FUNCTION_LINES = 5
MAX_DIGITS = 3
PARAMETERS = {"profile", "model", "corpus", "seed"}
CHECKED = "nbval-check-output"
# Only folders after the drive letter: a map in LaTeX, T:\mathbb{R}, looks like a drive too.
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|tmp|Users)/|\b[A-Z]:\\(?:Users|Temp|Windows)\b")
IMAGES = re.compile(r"image/(?!png$)|application/pdf$")

Notebook = nbformat.NotebookNode


def code_cells(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def outputs(notebook: Notebook) -> Iterator[Notebook]:
    for cell in code_cells(notebook):
        yield from cell.outputs


def tags(cell: Notebook) -> list[str]:
    return cell.metadata.get("tags", [])


def has_outputs(notebook: Notebook, name: str) -> bool:
    return any(outputs(notebook))


def ran_in_order(notebook: Notebook, name: str) -> bool:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    return counts == list(range(1, len(counts) + 1))


def holds_no_error(notebook: Notebook, name: str) -> bool:
    return all(output.output_type != "error" for output in outputs(notebook))


def holds_no_stderr(notebook: Notebook, name: str) -> bool:
    return all(output.get("name") != "stderr" for output in outputs(notebook))


def asks_for_python3(notebook: Notebook, name: str) -> bool:
    return notebook.metadata.get("kernelspec", {}).get("name") == "python3"


def has_one_parameters_cell(notebook: Notebook, name: str) -> bool:
    tagged = [cell for cell in notebook.cells if "parameters" in tags(cell)]
    if len(tagged) != 1 or tagged[0].cell_type != "code":
        return False
    statements = ast.parse(tagged[0].source).body
    assigned = [s.targets[0].id for s in statements if isinstance(s, ast.Assign)]
    return sorted(assigned) == sorted(PARAMETERS)


def has_no_absolute_path(notebook: Notebook, name: str) -> bool:
    texts = [cell.source for cell in notebook.cells]
    for output in outputs(notebook):
        # A picture in base64 may hold anything.
        data = {kind: text for kind, text in output.get("data", {}).items() if not kind.startswith("image/")}
        texts += [_as_text(text) for text in (output.get("text", ""), *data.values())]
    return not any(ABSOLUTE_PATH.search(text) for text in texts)


def is_small(notebook: Notebook, name: str) -> bool:
    return len(nbformat.writes(notebook).encode()) <= MAX_BYTES


def has_short_cells(notebook: Notebook, name: str) -> bool:
    return all(lines_to_read(cell.source) <= MAX_CODE_LINES for cell in code_cells(notebook))


def lines_to_read(source: str) -> int:
    """Count lines; in the cell of imports, where ruff may give each name a line, count statements."""
    statements = ast.parse(source).body
    only_imports = all(isinstance(node, ast.Import | ast.ImportFrom) for node in statements)
    return len(statements) if only_imports else len(source.splitlines())


def has_short_functions(notebook: Notebook, name: str) -> bool:
    nodes = [node for cell in code_cells(notebook) for node in ast.walk(ast.parse(cell.source))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return all(f.end_lineno - f.lineno < MAX_FUNCTION_LINES for f in functions)


def tells_a_story(notebook: Notebook, name: str) -> bool:
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    return 2 * len(prose) >= len(code_cells(notebook))


def has_no_marks_of_a_run(notebook: Notebook, name: str) -> bool:
    metadata = [notebook.metadata, *(cell.metadata for cell in notebook.cells)]
    return not any({"papermill", "execution"} & set(m) for m in metadata) and not any(
        "injected-parameters" in tags(cell) for cell in notebook.cells
    )


def begins_with_a_title(notebook: Notebook, name: str) -> bool:
    first = notebook.cells[0]
    return first.cell_type == "markdown" and first.source.startswith("# ")


def shows_figures_as_png(notebook: Notebook, name: str) -> bool:
    return not any(IMAGES.match(kind) for output in outputs(notebook) for kind in output.get("data", {}))


def has_a_checked_cell(notebook: Notebook, name: str) -> bool:
    return not re.match(r"0[1-8]_", name) or any(CHECKED in tags(cell) for cell in code_cells(notebook))


def prints_few_digits_where_checked(notebook: Notebook, name: str) -> bool:
    for cell in code_cells(notebook):
        if CHECKED in tags(cell):
            for output in cell.outputs:
                text = _as_text(output.get("text", "")) + _as_text(output.get("data", {}).get("text/plain", ""))
                if re.search(rf"\d\.\d{{{MAX_DIGITS + 1},}}", text):
                    return False
    return True


def _as_text(text: object) -> str:
    if isinstance(text, list):
        return "".join(text)
    return text if isinstance(text, str) else json.dumps(text)


CHECKS: list[Callable[[Notebook, str], bool]] = [
    *(has_outputs, ran_in_order, holds_no_error, holds_no_stderr, asks_for_python3, has_one_parameters_cell),
    *(has_no_absolute_path, is_small, has_short_cells, has_short_functions, tells_a_story),
    *(has_no_marks_of_a_run, begins_with_a_title, shows_figures_as_png),
    *(has_a_checked_cell, prints_few_digits_where_checked),
]
SANITIZER = ROOT / "tests" / "nbval.cfg"
SANITIZER_RULES = get_sanitize_patterns(SANITIZER.read_text())
COMMITTED = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.stem != EXPLORER]


def test_the_suite_is_complete():
    assert len(COMMITTED) >= 8
    assert all(re.match(r"\d\d_\w+$", path.stem) for path in COMMITTED), "a notebook has no number"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_notebook_is_fit_to_be_read(path):
    nbformat.validate(nbformat.read(path, as_version=4))
    failed = [check.__name__ for check in CHECKS if not check(read_notebook(path), path.stem)]
    assert not failed
    assert path.stat().st_size <= MAX_BYTES


def good_notebook() -> Notebook:
    """Return a notebook that passes every check."""
    picture = new_output("display_data", data={"image/png": "Zm9v/tmp/", "text/plain": "<Figure>"})
    parameters = "profile = None\nmodel = None\ncorpus = None\nseed = 0"
    cells = [
        new_markdown_cell("# A title"),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}, execution_count=1),
        new_markdown_cell("See https://example.org/home/page, ../tmp/x and $T:\\mathbb{R}$."),
        new_code_cell("def f():\n    a = 1\n    b = 2\n    c = 3\n    return a", execution_count=2),
        new_code_cell(
            "print(f())",
            metadata={"tags": [CHECKED]},
            execution_count=3,
            outputs=[new_output("stream", name="stdout", text="C1 0.125 reproduced\n"), picture],
        ),
        new_code_cell(""),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def _last(notebook: Notebook) -> Notebook:
    return code_cells(notebook)[-1]


def _clear(n: Notebook) -> None:
    _last(n).outputs = []


def _skip_a_count(n: Notebook) -> None:
    _last(n).execution_count = 4


def _not_run(n: Notebook) -> None:
    _last(n).execution_count = None


def _error(n: Notebook) -> None:
    _last(n).outputs.append(new_output("error", ename="E", evalue="", traceback=[]))


def _stderr(n: Notebook) -> None:
    _last(n).outputs.append(new_output("stream", name="stderr", text="a warning"))


def _other_kernel(n: Notebook) -> None:
    n.metadata.kernelspec.name = "my-venv"


def _no_kernel(n: Notebook) -> None:
    del n.metadata["kernelspec"]


def _no_parameters(n: Notebook) -> None:
    n.cells[1].metadata.tags = []


def _two_parameters(n: Notebook) -> None:
    n.cells[3].metadata.tags = ["parameters"]


def _a_parameter_less(n: Notebook) -> None:
    n.cells[1].source = "profile = None\nmodel = None\ncorpus = None"


def _path_in_source(n: Notebook) -> None:
    n.cells[3].source = "open('/home/me/x')"


def _path_in_prose(n: Notebook) -> None:
    n.cells[2].source = "See C:\\Users\\me."


def _path_in_stream(n: Notebook) -> None:
    _last(n).outputs[0].text = "saved to " + "/".join(["", "root", "x"]) + "\n"


def _path_in_table(n: Notebook) -> None:
    _last(n).outputs[1].data["text/html"] = "<td>/tmp/x</td>"


def _large(n: Notebook) -> None:
    _last(n).outputs[1].data["image/png"] = "x" * MAX_BYTES


def _long_cell(n: Notebook) -> None:
    n.cells[3].source = "\n".join("a = 1" for _ in range(MAX_CODE_LINES + 1))


def _long_function(n: Notebook) -> None:
    n.cells[3].source += "\n\n\ndef g():\n" + "    a = 1\n" * MAX_FUNCTION_LINES


def _little_prose(n: Notebook) -> None:
    n.cells[2:2] = [new_code_cell("1") for _ in range(3)]


def _papermill_notebook(n: Notebook) -> None:
    n.metadata.papermill = {}


def _papermill_cell(n: Notebook) -> None:
    n.cells[0].metadata.papermill = {}


def _timing(n: Notebook) -> None:
    n.cells[3].metadata.execution = {}


def _injected(n: Notebook) -> None:
    n.cells[3].metadata.tags = ["injected-parameters"]


def _no_title(n: Notebook) -> None:
    n.cells[0].source = "## A section"


def _svg(n: Notebook) -> None:
    _last(n).outputs[1].data["image/svg+xml"] = "<svg/>"


def _unchecked(n: Notebook) -> None:
    _last(n).metadata.tags = []


def _many_digits(n: Notebook) -> None:
    _last(n).outputs[0].text = "C1 0.1254\n"


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_passes_a_good_notebook(check):
    assert check(good_notebook(), "01_good")


@pytest.mark.parametrize(
    ("check", "spoil"),
    [
        (has_outputs, _clear),
        (ran_in_order, _skip_a_count),
        (ran_in_order, _not_run),
        (holds_no_error, _error),
        (holds_no_stderr, _stderr),
        (asks_for_python3, _other_kernel),
        (asks_for_python3, _no_kernel),
        (has_one_parameters_cell, _no_parameters),
        (has_one_parameters_cell, _two_parameters),
        (has_one_parameters_cell, _a_parameter_less),
        (has_no_absolute_path, _path_in_source),
        (has_no_absolute_path, _path_in_prose),
        (has_no_absolute_path, _path_in_stream),
        (has_no_absolute_path, _path_in_table),
        (is_small, _large),
        (has_short_cells, _long_cell),
        (has_short_functions, _long_function),
        (tells_a_story, _little_prose),
        (has_no_marks_of_a_run, _papermill_notebook),
        (has_no_marks_of_a_run, _papermill_cell),
        (has_no_marks_of_a_run, _timing),
        (has_no_marks_of_a_run, _injected),
        (begins_with_a_title, _no_title),
        (shows_figures_as_png, _svg),
        (has_a_checked_cell, _unchecked),
        (prints_few_digits_where_checked, _many_digits),
    ],
)
def test_every_check_fires_on_a_bad_notebook(check, spoil):
    notebook = good_notebook()
    spoil(notebook)
    assert not check(notebook, "01_bad")


def test_every_check_has_a_notebook_on_which_it_fires():
    [marks] = [m for m in test_every_check_fires_on_a_bad_notebook.pytestmark if m.name == "parametrize"]
    assert {check for check, _ in marks.args[1]} == set(CHECKS)


def test_only_the_measuring_notebooks_need_a_checked_cell():
    notebook = good_notebook()
    _unchecked(notebook)
    assert has_a_checked_cell(notebook, "09_verdicts")


@pytest.mark.parametrize(
    ("output", "cleaned"),
    [
        ("<function f at 0x7f3c2a1b4d30>", "<function f at ADDRESS>"),
        ("loaded 438 MB and 1.5 GiB", "loaded SIZE and SIZE"),
        ("took 12.3 s, then 2 min", "took DURATION, then DURATION"),
        ("in /home/me/x.csv, '/tmp/y'", "in PATH, 'PATH'"),
        (r"in C:\Users\me\x.csv", "in PATH"),
        ("C7 0.125 [0.1, 0.15] n = 12 reproduced", "C7 0.125 [0.1, 0.15] n = 12 reproduced"),
        ("https://example.org/home/page", "https://example.org/home/page"),
    ],
)
def test_sanitizer_rules_replace_what_differs_and_leave_results(output, cleaned):
    for pattern, replacement in SANITIZER_RULES:
        output = re.sub(pattern, replacement, output)
    assert output == cleaned


def test_no_sanitizer_rule_is_dropped():
    text = SANITIZER.read_text()
    assert text.count("\nregex:") == text.count("\nreplace:") == text.count("\n[") == len(SANITIZER_RULES)
