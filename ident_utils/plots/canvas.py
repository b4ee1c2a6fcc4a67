"""What every figure shares: the style sheet, two widths, colours with markers and dashes, bands, reference lines.

A figure of one panel is drawn ``COLUMN`` wide and shrinks to 0.72 in a column of 3.3 inches, where its smallest type
is 6 points high; a wider one is drawn as wide as a page of 7 inches and keeps its sizes.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Bbox, ScaledTranslation

from ident_utils.replay import Replay, freeze, thaw
from ident_utils.shades import ON_COLOUR

STYLE = Path(__file__).parent.parent / "ident.mplstyle"
COLUMN, PAGE = 4.6, 7.0  # inches
# The first four differ in lightness as well, and all of them to eyes without green receptors.
COLOURS = ("#0b6fb0", "#cf7f00", "#2a2360", "#8c2a1b", "#2a9d8f", "#b565a7", "#5c5c5c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)), (0, (3, 1)), (0, (8, 2)), (0, (2, 2, 1, 2)))
SIGNED = LinearSegmentedColormap.from_list("signed", ["#cf7f00", "#f4c983", "#fafafa", "#7fa9cf", "#123a6b"])
TITLE, SMALL, TOKEN = 11, 8.5, 6  # points
LINE = 1.25  # height of a line of type over its size
EDGE = 0.06  # inches around a figure
HINTED = 1.05  # how much wider type is in pixels than its outlines, at most


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Let a plotting function run under the suite's style sheet, and its figure remember what it was drawn from.

    See :mod:`ident_utils.replay` for what arguments may be.
    """

    @wraps(draw)
    def drawn(*args: object, **options: object) -> Figure:
        frozen = freeze([args, options])
        args, options = thaw(frozen)
        with style.context(STYLE):
            figure = draw(*args, **options)
        figure.replay = Replay(draw.__name__, frozen)
        return figure

    return drawn


def new_figure(height: float = 3.4, columns: int = 1, *, share: bool = True) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, as wide as a column or, with several panels, a page; and its axes from left to right.

    Made without pyplot, so that a notebook shows it once and no global state is left.
    """
    figure = Figure(figsize=(COLUMN if columns == 1 else PAGE, height))
    axes = figure.subplots(1, columns, sharey=share, squeeze=False)[0]
    return figure, list(axes)


def draw_curves(
    ax: Axes,
    table: pd.DataFrame,
    by: str,
    order: Sequence[str] | None = None,
    x: str = "layer",
    *,
    ordered: bool = False,
) -> None:
    """Draw value against ``x`` for every group of ``by``, with the interval as a band.

    Groups differ by colour, marker and dashes, so that grey print and colour-blind eyes can tell them. Groups that
    are ``ordered``, such as lengths, go from dark to light.
    """
    names = list(order) if order is not None else list(dict.fromkeys(table[by]))
    shades = mpl.colormaps["viridis"](np.linspace(0.05, 0.6, len(names)))
    for i, name in enumerate(names):
        part = table[table[by] == name].sort_values(x)
        colour = to_hex(shades[i]) if ordered else COLOURS[i % len(COLOURS)]
        looks = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)]}
        ax.plot(part[x], part["value"], label=str(name), **looks)
        if "low" in part:
            low, high = part["low"].astype(float), part["high"].astype(float)
            ax.fill_between(part[x], low, high, color=colour, alpha=0.18, lw=0)


def reference(
    ax: Axes, value: float, text: str, *, axis: str = "y", place: float = 1.0, in_key: bool = False
) -> None:
    """Draw a thin grey line at a reference value, named beside it or, where data would hide the words, in the key.

    ``place`` is where along the line the words stand, from 0 to 1.
    """
    line = ax.axhline if axis == "y" else ax.axvline
    line(value, color="0.35", lw=1, ls=(0, (4, 2)), zorder=1, label=text if in_key else None)
    if in_key:
        return
    words = {"textcoords": "offset points", "fontsize": SMALL, "color": "0.3", "zorder": 5}
    words["bbox"] = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5}
    if axis == "y":
        side = "right" if place > 0.5 else "left"
        ax.annotate(text, (place, value), (0, 3), xycoords=("axes fraction", "data"), ha=side, va="bottom", **words)
    else:
        ax.annotate(text, (value, place), (4, 0), xycoords=("data", "axes fraction"), ha="left", va="top", **words)


def layer_axis(ax: Axes, layers: Sequence[int]) -> None:
    """Mark every layer on the x axis, and name as many as a narrow panel holds, the first among them."""
    marked = sorted(set(layers))
    step = max(1, round(len(marked) / 6))
    named = [layer for layer in marked if layer % step == 0 or layer == 1] if len(marked) > 8 else marked
    ax.set_xticks(named)
    ax.set_xticks(marked, minor=True)
    ax.set_xlabel("layer")


def finish(figure: Figure, title: str, note: str = "", *, key: Axes | None = None, key_title: str = "") -> Figure:
    """Set the finding as the title, the key of ``key``'s curves under it, and the sample as a note at the bottom.

    They stand outside of the panels, so that nothing hides data whatever is drawn.
    """
    width, height = figure.get_size_inches()
    top = EDGE
    top += _words(figure, title, 1 - top / height, TITLE, va="top", weight="bold")
    if key is not None:
        top += 0.04 + _key(figure, key, key_title, 1 - (top + 0.04) / height)
    top += 0.04
    bottom = EDGE
    if note:
        bottom += 0.05 + _words(figure, note, bottom / height, SMALL, va="bottom", color="0.35")
    side = 0.02 / width
    figure.get_layout_engine().set(rect=(side, bottom / height, 1 - 2 * side, 1 - (top + bottom) / height))
    _settle(figure)
    return figure


def _settle(figure: Figure) -> None:
    """Lay the panels out once and for all, at rounded places: the solver's last digits differ from run to run."""
    for _ in range(2):  # square panels shrink at the first, and leave room that the second deals out
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        ax.set_position(Bbox(ax.get_position(original=True).get_points().round(4)))


def _words(figure: Figure, text: str, y: float, size: float, **looks: object) -> float:
    """Write a text broken into the width of the figure and return its height in inches."""
    width = figure.get_figwidth()
    lines = break_lines(text, 72 * (width - 2 * EDGE) / HINTED, size, str(looks.get("weight", "normal")))
    written = figure.text(EDGE / width, y, "\n".join(lines), size=size, linespacing=LINE, **looks)
    written.set_in_layout(False)
    return len(lines) * size * LINE / 72


def break_lines(text: str, points: float, size: float, weight: str = "normal") -> list[str]:
    """Break a text between words into lines of at most so many points, as far as its words allow."""
    font = FontProperties(size=size, weight=weight)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_to_path.get_text_width_height_descent(longer, font, False)[0] <= points:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _key(figure: Figure, ax: Axes, title: str, y: float) -> float:
    """Draw the key of the curves of ``ax`` in as many columns as fit and return its height in inches."""
    handles, labels = ax.get_legend_handles_labels()
    font = FontProperties(size=SMALL)
    widths = [text_to_path.get_text_width_height_descent(label, font, False)[0] for label in labels]
    room, handle = 72 * (figure.get_figwidth() - 2 * EDGE), (2.6 + 0.5 + 1.2) * SMALL

    def needed(columns: int) -> float:
        return sum(max(part) + handle for part in np.array_split(widths, columns))

    columns = max(c for c in range(1, len(labels) + 1) if c == 1 or needed(c) <= room)
    place = {"loc": "upper left", "bbox_to_anchor": (EDGE / figure.get_figwidth(), y)}
    heading = {"title": title, "title_fontsize": SMALL, "alignment": "left"} if title else {}
    figure.legend(handles, labels, ncols=columns, **place, **heading).set_in_layout(False)
    return (-(-len(labels) // columns) + bool(title)) * SMALL * 1.4 / 72


def key_below(ax: Axes) -> None:
    """Draw a panel's own key under its x label."""
    under = ScaledTranslation(0, -0.52, ax.get_figure().dpi_scale_trans)
    ax.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=ax.transAxes + under)


def token_ticks(ax: Axes, tokens: Sequence[str]) -> None:
    """Label both axes of a map with tokens, as many as can be read."""
    panels = ax.get_subplotspec().get_geometry()[1]
    room = 72 * 0.95 * (ax.get_figure().get_figwidth() - 0.7) / panels
    at = np.arange(0, len(tokens), int(np.ceil(len(tokens) * TOKEN / room)))
    labels = [plain(tokens[i]) for i in at]
    ax.set_xticks(at, labels, rotation=90, fontsize=TOKEN)
    ax.set_yticks(at, labels, fontsize=TOKEN)
    ax.grid(False)


def plain(token: str) -> str:
    """Return a token as matplotlib must be given it, to print its dollar signs."""
    return token.replace("$", r"\$")


def draw_map(ax: Axes, matrix: np.ndarray, tokens: Sequence[str], *, top: float, signed: bool = False) -> AxesImage:
    """Draw an n x n map of weights up to ``top``; ``signed`` takes a diverging map around zero.

    Its two ends differ in lightness, so that the sign is left in grey print.
    """
    limits = {"cmap": SIGNED, "vmin": -top, "vmax": top} if signed else {"cmap": "viridis", "vmin": 0, "vmax": top}
    image = ax.imshow(matrix, aspect="equal", interpolation="nearest", rasterized=True, **limits)
    token_ticks(ax, tokens)
    return image


def draw_grid(
    ax: Axes, values: np.ndarray, cmap: str, top: float | None = None, *, upwards: bool = False, digits: bool = False
) -> ScalarMappable:
    """Draw a table of numbers from zero to ``top``, its rows and columns counted from 1, with its numbers if wanted.

    Layers that grow ``upwards`` begin at the bottom. Numbers keep their ink on dark pages, as their cells do.
    """
    rows, columns = (range(1, size + 1) for size in values.shape)
    scale = {"cmap": cmap, "vmin": 0, "vmax": top, "cbar": False}
    written = {"annot": digits, "fmt": ".2f", "annot_kws": {"fontsize": SMALL}}
    sns.heatmap(values, ax=ax, xticklabels=columns, yticklabels=rows, **scale, **written)
    for i, text in enumerate(ax.texts):
        text.set_gid(f"{ON_COLOUR}-{i}")
    if upwards:
        ax.invert_yaxis()
    ax.tick_params(axis="y", rotation=0)
    return ax.collections[0]


def colour_bar(figure: Figure, image: ScalarMappable, axes: Sequence[Axes], label: str, **options: object) -> None:
    """Draw the scale of maps under them."""
    figure.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, label=label, **options)
