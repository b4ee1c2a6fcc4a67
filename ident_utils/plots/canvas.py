"""What every figure shares: the style sheet, colours with markers, bands, reference lines."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ident_utils.replay import Replay, freeze, thaw

STYLE = Path(__file__).parent.parent / "ident.mplstyle"
COLOURS = sns.color_palette("colorblind")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
WIDTH = 6.4  # inches: one text column


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Let a plotting function run under the suite's style sheet, and its figure remember what it was drawn from.

    See :mod:`ident_utils.replay` for what arguments may be.
    """

    @wraps(draw)
    def drawn(*args: object, **options: object) -> Figure:
        frozen = freeze([args, options])
        args, options = thaw(frozen)
        with mpl.style.context(STYLE):
            figure = draw(*args, **options)
        figure.replay = Replay(draw.__name__, frozen)
        return figure

    return drawn


def new_figure(
    height: float = 3.4, columns: int = 1, *, width: float = WIDTH, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, and its axes from left to right.

    Made without pyplot, so that a notebook shows it once and no global state is left.
    """
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(1, columns, sharey=share, squeeze=False)[0]
    for ax in axes:
        ax.tick_params(length=2)
    return figure, list(axes)


def draw_curves(ax: Axes, table: pd.DataFrame, by: str, order: Sequence[str] | None = None, x: str = "layer") -> None:
    """Draw value against ``x`` for every group of ``by``, with the interval as a band.

    Groups differ by colour, marker and dashes, so that grey print and colour-blind eyes can tell them.
    """
    names = list(order) if order is not None else list(dict.fromkeys(table[by]))
    for i, name in enumerate(names):
        part = table[table[by] == name].sort_values(x)
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % 7], "linestyle": DASHES[i % 7]}
        ax.plot(part[x], part["value"], label=str(name), markersize=4, **style)
        if "low" in part:
            low, high = part["low"].astype(float), part["high"].astype(float)
            ax.fill_between(part[x], low, high, color=style["color"], alpha=0.18, lw=0)


def reference(ax: Axes, value: float, text: str, *, axis: str = "y", place: float = 1.0) -> None:
    """Draw a thin grey line at a reference value, named in words at its end."""
    line = ax.axhline if axis == "y" else ax.axvline
    line(value, color="0.35", linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    if axis == "y":
        anchor = {
            "xy": (place, value),
            "xycoords": ("axes fraction", "data"),
            "ha": "right" if place > 0.5 else "left",
        }
        ax.annotate(text, xytext=(0, 2), textcoords="offset points", va="bottom", fontsize=8, color="0.3", **anchor)
    else:
        anchor = {"xy": (value, place), "xycoords": ("data", "axes fraction"), "va": "top"}
        ax.annotate(text, xytext=(3, 0), textcoords="offset points", ha="left", fontsize=8, color="0.3", **anchor)


def layer_axis(ax: Axes, layers: Sequence[int]) -> None:
    """Label the x axis with whole layers."""
    ax.set_xticks(sorted(set(layers)))
    ax.set_xlabel("layer")


def finish(figure: Figure, title: str, note: str = "") -> Figure:
    """Set the finding as the title and the sample as a note under it."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    if note:
        figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color="0.35")
    return figure


def token_ticks(ax: Axes, tokens: Sequence[str], every: int = 1) -> None:
    """Label both axes of a map with tokens, every ``every``-th one."""
    at = np.arange(0, len(tokens), every)
    labels = [tokens[i].replace("$", r"\$") for i in at]
    ax.set_xticks(at, labels, rotation=90, fontsize=5)
    ax.set_yticks(at, labels, fontsize=5)
    ax.grid(False)


def draw_map(
    ax: Axes, matrix: np.ndarray, tokens: Sequence[str], *, top: float, signed: bool = False, every: int = 1
) -> object:
    """Draw an n x n map of weights up to ``top``; ``signed`` takes a diverging map around zero."""
    limits = {"cmap": "RdBu_r", "vmin": -top, "vmax": top} if signed else {"cmap": "viridis", "vmin": 0, "vmax": top}
    image = ax.imshow(matrix, aspect="equal", interpolation="nearest", rasterized=True, **limits)
    token_ticks(ax, tokens, every)
    return image
