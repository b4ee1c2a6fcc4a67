"""Writing results: figures with their numbers, measurements with their provenance, each file whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ident_utils.errors import IdentError
from ident_utils.provenance import describe_origin, describe_run
from ident_utils.settings import Settings

if TYPE_CHECKING:  # reading results must not wait for torch and matplotlib
    import pandas as pd
    from IPython.display import Image
    from matplotlib.figure import Figure

    from ident_utils.models import Encoder, Text


REPLAY = "replay"  # folder for what figures were drawn from


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file so that it is either the old one or all of the new one, never half.

    Raises IdentError when the folder cannot be written to or the disk is full.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise IdentError(f"Cannot write {path}: {error.strerror}; free space or choose another folder.") from error


def save_figure(settings: Settings, name: str, figure: Figure, data: pd.DataFrame, *, alt: str) -> Image:
    """Write ``name``.svg, .png and .csv (the numbers drawn) and return the picture for display.

    A figure of a plotting function of the suite also leaves what it was drawn from in the folder ``replay``, for
    ``ident figures``. Saving the same figure twice gives the same bytes.
    """
    from IPython.display import Image

    pictures = render(figure, name)
    files = {f"{name}.csv": data.to_csv(index=False, float_format="%.6g").encode()}
    files |= {f"{name}{suffix}": picture for suffix, picture in pictures.items()}
    if (replay := getattr(figure, "replay", None)) is not None:
        files[f"{REPLAY}/{name}.json.gz"] = replay.to_bytes(alt)
    for path, content in files.items():
        write_atomically(settings.folder / path, content)
    return Image(data=pictures[".png"], alt=alt)


def render(figure: Figure, name: str) -> dict[str, bytes]:
    """Return the bytes of a figure as ".svg" and ".png", the same for the same figure and name."""
    import matplotlib as mpl

    files = {}
    ours = {"svg.hashsalt": name, "svg.fonttype": "none"}
    ours |= {"font.sans-serif": mpl.rcParamsDefault["font.sans-serif"]}  # a user's choice may lack on this machine
    with mpl.rc_context(ours):
        for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
            buffer = BytesIO()
            figure.savefig(buffer, format=suffix[1:], dpi=130, metadata=metadata)
            files[suffix] = buffer.getvalue()
    return files | {".png": with_palette(files[".png"])}


def with_palette(png: bytes, colours: int = 256) -> bytes:
    """Bring a PNG down to a palette of its own colours: a third of the bytes, and nothing that an eye would miss."""
    from PIL import Image as Picture

    picture = Picture.open(BytesIO(png)).convert("RGB")
    buffer = BytesIO()
    picture.quantize(colours, method=Picture.Quantize.MEDIANCUT, dither=Picture.Dither.NONE).save(
        buffer, format="PNG", optimize=True
    )
    return buffer.getvalue()


def save_measurements(
    settings: Settings,
    notebook: str,
    measurements: dict[str, dict],
    *,
    encoder: Encoder,
    texts: Sequence[Text],
    corpus: str,
    precision: str,
) -> Path:
    """Write ``notebook``.json: the measurements of its claims, what decides them, and the run that made them."""
    content = {
        "measurements": {claim: _plain(values) for claim, values in measurements.items()},
        "provenance": describe_origin(
            settings, notebook, encoder=encoder, texts=texts, corpus=corpus, precision=precision
        ),
        "run": describe_run(),
    }
    path = settings.folder / f"{notebook}.json"
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return path


def load_measurements(folder: Path) -> dict[str, dict]:
    """Read the measurements of every claim that the notebooks have written into ``folder``.

    Each comes with its ``provenance``; null is NaN again. Raises IdentError naming a file that is not a results file.
    """
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            for claim, values in content["measurements"].items():
                found[claim] = _with_nan(values) | {"provenance": content["provenance"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IdentError(f"{file} is not a results file ({error}); rerun notebook {file.stem}.") from error
    return found


def _with_nan(value: object) -> object:
    """Turn null back into NaN, with which every comparison is false, so that a criterion is simply not met."""
    if isinstance(value, dict):
        return {k: _with_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_nan(v) for v in value]
    return float("nan") if value is None else value


def _plain(value: object) -> object:
    """Turn numpy and nested containers into what JSON holds; numbers keep six digits, NaN becomes null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
