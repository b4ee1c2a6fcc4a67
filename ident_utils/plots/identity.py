"""Figures of notebooks 03 and 04: identification rates by layer."""

import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import draw_curves, finish, layer_axis, new_figure, reference, styled

RATE = "share of tokens identified"


def _note(table: pd.DataFrame) -> str:
    return f"{int(table['n_sequences'].max())} test sequences; bands: 95% bootstrap over sequences"


@styled
def plot_retention(table: pd.DataFrame, mapping: str, chance: float) -> Figure:
    """Draw how much identity is left by layer, for one mapping: own row and same word, both pools."""
    names = {
        "own": "own token, same sequence",
        "word": "same word, same sequence",
        "own all": "own token, all sequences",
        "word all": "same word, all sequences",
    }
    part = table[(table["mapping"] == mapping) & table["lookup"].isin(names)]
    figure, (ax,) = new_figure(3.6)
    draw_curves(ax, part.assign(lookup=part["lookup"].map(names)), "lookup", list(names.values()))
    reference(ax, chance, f"chance in the own sequence: {chance:.3f}", place=0.02)
    reference(ax, 0.5, "criterion for the last layer: 0.5", place=0.02)
    layer_axis(ax, part["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    ax.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 0.1))
    last = part[(part["lookup"] == "own") & (part["layer"] == part["layer"].max())]["value"].iloc[0]
    title = f"In the last layer {last:.0%} of the tokens are still found again"
    return finish(figure, title, f"{mapping}, cosine lookup; {_note(part)}")


@styled
def plot_mappings(table: pd.DataFrame, chance: float) -> Figure:
    """Draw what the choice of mapping does: own token, same sequence."""
    part = table[table["lookup"] == "own"]
    figure, (ax,) = new_figure(3.4)
    draw_curves(ax, part, "mapping")
    reference(ax, chance, f"chance: {chance:.3f}", place=0.02)
    layer_axis(ax, part["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 0.08))
    return finish(figure, "A linear mapping finds what the bare hidden state hides", f"cosine lookup; {_note(part)}")


@styled
def plot_kinds_of_token(table: pd.DataFrame) -> Figure:
    """Draw the rate by kind of token and layer."""
    figure, (ax,) = new_figure(3.2)
    draw_curves(ax, table, "kind")
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    ax.legend(loc="lower left")
    return finish(
        figure, "Who is lost: tokens with a twin, and special tokens", f"own token, same sequence; {_note(table)}"
    )


@styled
def plot_parts(table: pd.DataFrame, chance: float) -> Figure:
    """Draw the rate of mappings that see the full state, its direction, its norm, or one coordinate."""
    figure, (ax,) = new_figure(3.4)
    draw_curves(ax, table, "seen", ("full", "direction", "norm", "one coordinate"))
    reference(ax, chance, f"chance: {chance:.3f}", place=0.02)
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    ax.legend(loc="center left", title="the mapping sees", title_fontsize=8)
    return finish(
        figure, "The direction alone identifies as well as the full state; the norm hardly does", _note(table)
    )


@styled
def plot_interventions(table: pd.DataFrame) -> Figure:
    """Draw the rate after moving states equally far along the norm and across it."""
    figure, (ax,) = new_figure(3.2)
    draw_curves(ax, table, "state", ("as it is", "norm exchanged", "turned as far"))
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE)
    ax.legend(loc="lower left")
    return finish(figure, "What a step along the norm costs, and an equally long step across it", _note(table))


@styled
def plot_lookups(table: pd.DataFrame) -> Figure:
    """Draw cosine against L2 lookup for the naive and the ridge mapping, rescaled predictions too."""
    figure, axes = new_figure(3.2, 2, width=7.6)
    for ax, mapping in zip(axes, ("naive", "ridge"), strict=True):
        draw_curves(ax, table[table["mapping"] == mapping], "lookup", ("cosine", "L2", "L2, rescaled"))
        layer_axis(ax, table["layer"])
        ax.set_title(mapping)
    axes[0].set(ylabel=RATE, ylim=(0, 1.03))
    axes[0].legend(loc="lower left")
    return finish(figure, "L2 lookup finds less than cosine lookup, for a reason of its own", _note(table))
