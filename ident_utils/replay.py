"""Figures that can be drawn again: a plotting function's name and what it was given, to six digits.

Plotting functions draw what comes back from :func:`thaw`, never what they were handed, so that a figure drawn
again from its file is the same to the byte.
"""

import gzip
import json
import zlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from ident_utils.errors import IdentError


@dataclass(frozen=True)
class Replay:
    """Hold what a figure was drawn by and from."""

    function: str  # its name in ident_utils.plots
    frozen: object  # arguments and options, as JSON holds them

    def to_bytes(self, alt: str) -> bytes:
        """Return the content of a replay file; the same content has the same bytes."""
        content = {"function": self.function, "alt": alt, "inputs": self.frozen}
        return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def read_replay(data: bytes) -> tuple[Replay, str]:
    """Return the replay and the alternative text of a replay file's content.

    Raises IdentError for anything else.
    """
    try:
        content = json.loads(gzip.decompress(data))
        return Replay(content["function"], content["inputs"]), content["alt"]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise IdentError(f"This is no file of saved numbers ({error}); run the notebook again.") from error


def freeze(value: object) -> object:
    """Turn plain values, containers, arrays, tensors and tables into what JSON holds, numbers to six digits.

    Raises TypeError for anything else: a figure is drawn from numbers and words.
    """
    if isinstance(value, pd.DataFrame):
        columns = [[freeze(cell) for cell in column.tolist()] for _, column in value.items()]
        counted = value.index.equals(pd.RangeIndex(len(value)))
        index = None if counted else [freeze(label) for label in value.index.tolist()]
        names = [freeze(name) for name in value.columns.tolist()]
        return {"table": columns, "columns": names, "index": index, "of": value.index.name}
    if isinstance(value, pd.Series):
        return {"series": freeze(value.to_frame("values"))}
    if isinstance(value, torch.Tensor):
        return {"tensor": freeze(value.detach().cpu().numpy())}
    if isinstance(value, np.ndarray):
        flat = [freeze(number) for number in value.ravel().tolist()]
        return {"array": flat, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, tuple):
        return {"tuple": [freeze(each) for each in value]}
    if isinstance(value, list):
        return [freeze(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[freeze(key), freeze(each)] for key, each in value.items()]}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"A figure cannot be drawn again from a {type(value).__name__}; pass numbers, words and tables.")


def thaw(frozen: object) -> object:
    """Undo :func:`freeze`, up to the digits."""
    if isinstance(frozen, list):
        return [thaw(each) for each in frozen]
    if not isinstance(frozen, dict):
        return frozen
    if "table" in frozen:
        columns = dict(enumerate(frozen["table"]))
        index = None if frozen["index"] is None else [thaw(label) for label in frozen["index"]]
        table = pd.DataFrame(columns, index=index)
        table.columns = [thaw(name) for name in frozen["columns"]]
        table.index.name = frozen["of"]
        return table
    if "series" in frozen:
        return thaw(frozen["series"])["values"]
    if "tensor" in frozen:
        return torch.from_numpy(thaw(frozen["tensor"]))
    if "array" in frozen:
        return np.array(frozen["array"], dtype=frozen["dtype"]).reshape(frozen["shape"])
    if "tuple" in frozen:
        return tuple(thaw(each) for each in frozen["tuple"])
    return {thaw(key): thaw(each) for key, each in frozen["dict"]}
