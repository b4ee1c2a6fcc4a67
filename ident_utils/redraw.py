"""Draw the figures of a profile again from their saved numbers, the README's in dark as well; no model is loaded."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from ident_utils import plots
from ident_utils.errors import IdentError
from ident_utils.replay import read_replay, thaw
from ident_utils.results import REPLAY, render, write_atomically
from ident_utils.shades import draw_dark


def draw_again(file: Path) -> Figure:
    """Return the figure of a replay file.

    Raises IdentError for a file that is none, or that names a function the suite does not have.
    """
    try:
        replay, _ = read_replay(file.read_bytes())
    except (OSError, IdentError) as error:
        raise IdentError(f"{file} cannot be read: {error}") from error
    if replay.function not in plots.__all__:
        raise IdentError(f"{file} was drawn by {replay.function!r}, which the suite no longer has; run its notebook.")
    args, options = thaw(replay.frozen)
    return getattr(plots, replay.function)(*args, **options)


def redraw(folder: Path) -> Iterator[tuple[str, bool]]:
    """Draw all figures of a folder of results again; yield each one's name and whether its pictures changed.

    Dark variants follow, from :func:`ident_utils.shades.draw_dark`.
    Raises IdentError when the folder holds no saved numbers.
    """
    files = sorted((folder / REPLAY).glob("*.json.gz"))
    if not files:
        raise IdentError(f"{folder} holds no saved numbers; run the notebooks first: ident reproduce.")
    for file in files:
        name, changed = file.name.removesuffix(".json.gz"), False
        for suffix, picture in render(draw_again(file), name).items():
            path = folder / f"{name}{suffix}"
            if not path.exists() or path.read_bytes() != picture:
                write_atomically(path, picture)
                changed = True
        yield name, changed
    yield from draw_dark(folder)
