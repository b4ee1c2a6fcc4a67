"""Cut a notebook down to the statements that some of its results depend on."""

import ast
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.notebooks import PARAMETERS_TAG, read_raw

SAVING = ("save_figure", "save_measurements")  # functions of results.py that take settings and a name first
IMPORTS = ast.Import | ast.ImportFrom
COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


def saved_names(statement: ast.stmt) -> set[str]:
    """Name the figures and measurements that a statement saves."""
    return {
        call.args[1].value
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in SAVING
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
    }


def results_of(path: Path) -> list[str]:
    """Name the figures and measurements that a notebook saves, in its order."""
    cells = [cell for cell in read_raw(path)["cells"] if cell["cell_type"] == "code"]
    names = [name for cell in cells for statement in _parsed(path, cell["source"]) for name in saved_names(statement)]
    return list(dict.fromkeys(names))


def slice_notebook(path: Path, names: Sequence[str]) -> dict:
    """Return a notebook with only the imports, the parameters, and what the results of these names depend on.

    A statement is kept when it saves one of them, or assigns or changes a variable that a later one reads. A
    variable counts as changed by ``x[...] = ``, ``x.y = ``, ``x += `` and by a method called for its effect,
    ``x.append(...)``. Raises IdentError for a result that the notebook does not save, and for code that is no plain
    Python.
    """
    notebook = copy.deepcopy(read_raw(path))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    statements = [(cell, statement) for cell in cells for statement in _parsed(path, cell["source"])]
    missing = set(names) - {name for _, statement in statements for name in saved_names(statement)}
    if missing:
        raise IdentError(f"{path.name} saves no result '{min(missing)}'; run it again, so that its results fit it")
    kept = _needed(statements, set(names))
    for cell in cells:
        lines = [ast.unparse(statement) for of, statement in statements if of is cell and statement in kept]
        cell |= {"source": "\n".join(lines), "outputs": [], "execution_count": None}
    notebook["cells"] = [cell for cell in cells if cell["source"] or _is_parameters(cell)]
    return notebook


def _parsed(path: Path, source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError as error:
        raise IdentError(f"{path.name} holds a cell that is no plain Python ({error.msg})") from error


def _is_parameters(cell: dict) -> bool:
    return PARAMETERS_TAG in cell["metadata"].get("tags", [])


def _needed(statements: Sequence[tuple[dict, ast.stmt]], names: set[str]) -> set[ast.stmt]:
    """Go backwards from what saves the results, and keep what assigns or changes a variable that is still needed."""
    imported = {
        alias.asname or alias.name.split(".")[0]
        for _, statement in statements
        if isinstance(statement, IMPORTS)
        for alias in statement.names
    }
    kept, needed = set(), set()
    for cell, statement in reversed(statements):
        if isinstance(statement, IMPORTS) or _is_parameters(cell):
            kept.add(statement)
        elif saved_names(statement) & names or (set(_written(statement)) - imported) & needed:
            kept.add(statement)
            if not isinstance(statement, (*COMPOUND, ast.AugAssign)):
                needed -= _assigned(statement)
            needed |= {node.id for node in ast.walk(statement) if _is_read(node, statement)} - imported
    return kept


def _is_read(node: ast.AST, statement: ast.stmt) -> bool:
    if not isinstance(node, ast.Name):
        return False
    return isinstance(node.ctx, ast.Load) or isinstance(statement, ast.AugAssign)


def _assigned(statement: ast.stmt) -> set[str]:
    """Name the variables that a simple statement gives a new value, whatever they were before."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    flat = [each for target in targets if target is not None for each in getattr(target, "elts", [target])]
    return {target.id for target in flat if isinstance(target, ast.Name)}


def _written(statement: ast.stmt) -> Iterator[str]:
    """Name the variables that a statement assigns or changes."""
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield _base(node)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                yield _base(method)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def _base(node: ast.AST) -> str:
    """Name the variable that an expression such as ``x.y[0].z()`` begins with, an empty string without one."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
