"""Say by content what a result depends on: arguments, models, code and libraries."""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedTokenizerBase

PACKAGE = Path(__file__).parent
LIBRARIES = (
    "highspy",
    "numpy",
    "scikit-learn",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
)  # what numbers owe to
NO_MATTER = ("_name_or_path", "transformers_version", "dtype")
LARGE = 2**20  # bytes, from which a tensor's hash is worth remembering

_known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # object -> (its version, its hash)


def fingerprint(value: object) -> str:
    """Return a hash of what a value holds, the same on every machine.

    Takes plain values, sequences, mappings with text keys, tensors, arrays, models, tokenizers, and dataclasses of
    these, whose fields with ``compare=False`` are left out. Raises TypeError for anything else.
    """
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: object) -> Iterator[bytes | memoryview]:
    """Yield the bytes that tell a value from all others."""
    yield f"<{type(value).__name__}>".encode()
    match value:
        case None | bool() | int() | float() | str() | bytes() | range() | torch.dtype() | np.generic():
            yield repr(value).encode()
        case Tensor():
            yield _once(value, _hash_of_tensor).encode()
        case np.ndarray():
            yield f"{value.dtype} {value.shape}".encode()
            yield np.ascontiguousarray(value).data.cast("B")
        case nn.Module():
            yield _once(value, _hash_of_model).encode()
        case PreTrainedTokenizerBase():
            yield _once(value, _hash_of_tokenizer).encode()
        case Mapping():
            for key, item in value.items():
                yield f"{key}:".encode()
                yield from _parts(item)
        case Sequence():
            yield f"{len(value)}:".encode()
            for item in value:
                yield from _parts(item)
        case _ if is_dataclass(value):
            yield from _parts({f.name: getattr(value, f.name) for f in fields(value) if f.compare})
        case _:
            raise TypeError(f"a {type(value).__name__} has no fingerprint; pass plain values, tensors or models.")


def _once(value: Tensor | nn.Module | PreTrainedTokenizerBase, hash_of: object) -> str:
    """Return the hash of a large object, computed again only after it was changed in place."""
    state = _state(value)
    if state is None:
        return hash_of(value)
    if value not in _known or _known[value][0] != state:
        _known[value] = state, hash_of(value)
    return _known[value][1]


def _state(value: object) -> tuple[int, ...] | None:
    """Return numbers that change with the object, None where nothing tells of a change or it is not worth it."""
    tensors = [*value.state_dict(keep_vars=True).values()] if isinstance(value, nn.Module) else [value]
    if isinstance(value, PreTrainedTokenizerBase):
        return (len(value),)
    if any(tensor.is_inference() for tensor in tensors) or sum(t.nbytes for t in tensors) < LARGE:
        return None
    return tuple(number for tensor in tensors for number in (id(tensor), tensor._version))


def _hash_of_tensor(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    flat = tensor.detach().cpu().contiguous().flatten()
    digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def _hash_of_model(model: nn.Module) -> str:
    digest = hashlib.sha256(f"{type(model).__name__} {model.training}".encode())
    configuration = model.config.to_dict() if hasattr(model, "config") else {}
    kept = {key: value for key, value in configuration.items() if key not in NO_MATTER}
    digest.update(json.dumps(kept, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.device.type} {_hash_of_tensor(tensor)}".encode())
    return digest.hexdigest()


def _hash_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {key: value for key, value in content.items() if key not in ("truncation", "padding")}
    else:
        content = tokenizer.get_vocab()
    about = [type(tokenizer).__name__, tokenizer.special_tokens_map, content]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


@cache
def libraries() -> str:
    """Return the versions of the libraries that numbers owe to, as one text."""
    return ", ".join(f"{name} {version(name)}" for name in LIBRARIES)


@cache
def code_version(module: str) -> str:
    """Return a hash of a module of this package with all it imports from the package, directly or not.

    Comments, docstrings and the way a line is written do not count.
    """
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or (path := _file_of(name)) is None:
            continue
        seen[name], imported = _code(path, path.stat().st_mtime_ns)
        waiting += imported
    return hashlib.sha256("\n".join(f"{name} {seen[name]}" for name in sorted(seen)).encode()).hexdigest()


@cache
def _code(path: Path, _modified: int) -> tuple[str, tuple[str, ...]]:
    """Return what a file of code does, and the names that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = tuple(_imported(tree))
    return ast.dump(_without_docstrings(tree)), imported


def _file_of(module: str) -> Path | None:
    """Return the file of a module of this package, None for what is none."""
    package, *inside = module.split(".")
    if package != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*inside)
    found = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    return found if found.is_file() else None


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
