"""The result of an attribution with all that is needed to read it again, in one file."""

import json
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ident_utils.errors import IdentError
from ident_utils.results import write_atomically

_ARRAYS = ("contributions", "standard_error")
_TUPLES = ("tokens", "outputs", "layers")


@dataclass(frozen=True)
class Attribution:
    """Hold the contributions of input tokens to hidden states, how they were measured, and of what.

    ``contributions`` and ``standard_error`` have the shape [L, n_out, n_in]: one row for each of ``outputs`` (places
    in the text) after each of ``layers`` (counted from 1). Rows of contributions sum to one. The standard error is
    that of sampling: zero where nothing was sampled, NaN for a single probe.
    """

    contributions: Tensor
    standard_error: Tensor
    tokens: tuple[str, ...]  # n_in readable word pieces
    outputs: tuple[int, ...]
    layers: tuple[int, ...]
    source: int  # contributions are to the state after this layer; 0: the embedding block's output
    method: str
    probes: int | None  # random tangents for each input token; None: no sampling
    seed: int
    precision: str  # of the tangents, with the reason
    provenance: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Say in one line what this is; tensors of thousands of numbers are not printed."""
        how = "without sampling" if self.probes is None else f"{self.probes} probes, seed {self.seed}"
        shape = " x ".join(map(str, self.contributions.shape))
        return f"Attribution [{shape}] by {self.method}, {how}, {self.precision}"

    def save(self, path: str | Path) -> Path:
        """Write everything to one ``.npz`` file, whole or not at all, and return its path.

        Raises ValueError for another suffix, IdentError when the file cannot be written.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"An attribution is saved as .npz, not as {path.name!r}.")
        described = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        buffer = BytesIO()
        arrays = {name: getattr(self, name).cpu().numpy() for name in _ARRAYS}
        np.savez_compressed(buffer, **arrays, described=np.array(json.dumps(described)))
        write_atomically(path, buffer.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Attribution":
        """Read what :meth:`save` wrote; raise IdentError for a file that is something else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: torch.from_numpy(file[name]) for name in _ARRAYS}
                described = json.loads(str(file["described"]))
            return cls(**arrays, **described | {name: tuple(described[name]) for name in _TUPLES})
        except FileNotFoundError as error:
            raise IdentError(f"There is no file {path}.") from error
        except Exception as error:  # numpy raises whatever its zip and header readers do
            raise IdentError(
                f"{path} is not a saved attribution ({type(error).__name__}); measure it again."
            ) from error
