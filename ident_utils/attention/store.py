"""Results on disk: one .npz file with the names of the fields, read back as the same kind of object."""

import zlib
from dataclasses import fields, is_dataclass
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from ident_utils.attention.effective import EffectiveAttention
from ident_utils.attention.entropy import Alternative
from ident_utils.attention.polytope import WeightIntervals
from ident_utils.attention.ranks import Rank
from ident_utils.errors import IdentError
from ident_utils.results import write_atomically

KINDS = {kind.__name__: kind for kind in (Rank, EffectiveAttention, WeightIntervals, Alternative)}
Result = Rank | EffectiveAttention | WeightIntervals | Alternative


def save_result(result: Result, path: Path | str) -> Path:
    """Write a result of this package as one ``.npz``: ``kind`` and an array a field, ``rank.rank`` for a nested one.

    Raises TypeError for another kind of object, IdentError when the file cannot be written.
    """
    if type(result).__name__ not in KINDS:
        raise TypeError(f"{type(result).__name__} is no result of this package; those are {', '.join(KINDS)}.")
    buffer = BytesIO()
    np.savez(buffer, kind=type(result).__name__, **_arrays(result, ""))
    path = Path(path)
    write_atomically(path, buffer.getvalue())
    return path


def _arrays(result: Result, prefix: str) -> dict[str, np.ndarray]:
    arrays = {}
    for field in fields(result):
        value = getattr(result, field.name)
        if is_dataclass(value):
            arrays |= _arrays(value, f"{prefix}{field.name}.")
        else:
            arrays[f"{prefix}{field.name}"] = value.cpu().numpy()
    return arrays


def load_result(path: Path | str) -> Result:
    """Read back what :func:`save_result` wrote; raise IdentError for any other file."""
    try:
        with np.load(Path(path), allow_pickle=False) as arrays:
            return _result(KINDS[str(arrays["kind"])], dict(arrays), "")
    except (OSError, BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError) as error:
        raise IdentError(f"{path} holds no saved result ({error}); write one with save_result.") from error


def _result(kind: type, arrays: dict[str, np.ndarray], prefix: str) -> Result:
    parts = {}
    for field in fields(kind):
        nested = KINDS.get(getattr(field.type, "__name__", ""))
        name = f"{prefix}{field.name}"
        parts[field.name] = _result(nested, arrays, f"{name}.") if nested else torch.from_numpy(arrays[name])
    return kind(**parts)
