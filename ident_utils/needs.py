"""How much memory a notebook needs at least, from the shapes of its models' weights."""

import json
import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.fetch import model_catalogue
from ident_utils.hub import weights_in
from ident_utils.locate import locate_model
from ident_utils.notebooks import read_raw
from ident_utils.settings import Settings

LIBRARIES = 500_000_000  # bytes that a kernel takes with all it imports, before it loads a model
SINGLE, DOUBLE = 4, 8  # bytes of a weight


def least_memory(notebook: Path, settings: Settings) -> int:
    """Return the bytes that a notebook takes at least: libraries and the weights of its largest model.

    Float64, where a notebook loads its model in it, is made from what is read in float32, so both are there at once.
    """
    source = "\n".join(cell["source"] for cell in read_raw(notebook)["cells"] if cell["cell_type"] == "code")
    if "load_encoder(" not in source:
        return 0
    each = SINGLE + DOUBLE if "dtype=torch.float64" in source else SINGLE
    return LIBRARIES + each * max(count_weights(name) for name in settings.models)


def count_weights(model: str) -> int:
    """Count a model's weights: by the header of its file, or by what the catalogue says of one that may be missing.

    Raises IdentError for a model that cannot be found.
    """
    known = model_catalogue()
    if model in known:
        return known[model].unpacked // SINGLE
    file = weights_in(locate_model(model).folder)
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(map(math.prod, shapes))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # loading says what is wrong
        return 0


def check_memory(needs: Mapping[str, int], jobs: int, available: int) -> None:
    """Compare what notebooks need at least, ``jobs`` of them at a time, with the bytes that there are.

    Raises IdentError, in one sentence, where a notebook could not run at all, or so many not at once.
    """
    name, most = max(needs.items(), key=lambda item: item[1], default=("", 0))
    if most > available:
        raise IdentError(
            f"{name} needs at least {most / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free; end other "
            "programs, or choose a smaller profile or model"
        )
    fitting = at_once(needs.values(), available)
    if jobs > fitting:
        raise IdentError(
            f"{jobs} notebooks at a time need at least {sum(sorted(needs.values())[-jobs:]) / 1e9:.1f} GB of memory "
            f"and {available / 1e9:.1f} GB are free; take --jobs {fitting}"
        )


def at_once(needs: Iterable[int], available: int) -> int:
    """Return how many of the needs, the largest first, fit together.

    >>> at_once([3, 4, 5], 9)
    2
    """
    together = accumulate(sorted(needs, reverse=True))
    return sum(needed <= available for needed in together)
