"""Figures of notebook 04: the direction of hidden states against their norm."""

import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import draw_curves, finish, layer_axis, new_figure, reference, styled
from ident_utils.plots.identity import RATE, sample_note


@styled
def plot_parts(table: pd.DataFrame, chance: float) -> Figure:
    """Draw the rate of mappings that see the full state, its direction, its norm, or one coordinate."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "seen", ("full", "direction", "norm", "one coordinate"))
    reference(ax, chance, f"chance: {chance:.3f}", in_key=True)
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    title = "The direction alone identifies as well as the full state; the norm hardly does"
    return finish(figure, title, sample_note(table), key=ax, key_title="the mapping sees")


@styled
def plot_interventions(table: pd.DataFrame) -> Figure:
    """Draw the rate after moving states equally far along the norm and across it."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "state", ("as it is", "norm exchanged", "turned as far"))
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE)
    rates = table.pivot(index="layer", columns="state", values="value")
    norm, turn = (100 * (rates["as it is"] - rates[moved]).max() for moved in ("norm exchanged", "turned as far"))
    title = f"A step along the norm costs at most {norm:.0f} points, an equally long turn at most {turn:.0f}"
    return finish(figure, title, sample_note(table), key=ax, key_title="the state is")


@styled
def plot_lookups(table: pd.DataFrame) -> Figure:
    """Draw cosine against L2 lookup for every mapping, rescaled predictions too."""
    mappings = list(dict.fromkeys(table["mapping"]))
    figure, axes = new_figure(3.2, len(mappings))
    for ax, mapping in zip(axes, mappings, strict=True):
        part = table[table["mapping"] == mapping]
        draw_curves(ax, part, "lookup", ("cosine", "L2", "L2, rescaled"))
        layer_axis(ax, table["layer"])
        ax.set_title(mapping)
    axes[0].set(ylabel=RATE, ylim=(0, 1.03))
    title = "L2 lookup finds less than cosine lookup, for a reason of its own"
    return finish(figure, title, sample_note(table), key=axes[0])


@styled
def plot_information(table: pd.DataFrame) -> Figure:
    """Draw bits about the word piece by layer: the norm, and single coordinates as a band."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "number", ("norm", "one coordinate"))
    layer_axis(ax, table["layer"])
    ax.set(ylabel="mutual information\nwith the word (bits)", ylim=(0, None))
    bits = table.pivot(index="layer", columns="number", values="value")
    ratio = bits["norm"] / bits["one coordinate"]
    title = f"The norm says {ratio.min():.1f} to {ratio.max():.1f} times as much about the word as one coordinate"
    return finish(figure, title, "corrected by shuffling; band: least and most of the coordinates drawn", key=ax)


@styled
def plot_before_norm(after: pd.DataFrame, before: pd.DataFrame) -> Figure:
    """Draw what mappings find that see a part of the state, after each layer's LayerNorm and before it."""
    figure, axes = new_figure(3.4, 2)
    for ax, table, name in zip(axes, (after, before), ("after the LayerNorm", "before the LayerNorm"), strict=True):
        draw_curves(ax, table, "seen", ("full", "direction", "norm", "one coordinate"))
        layer_axis(ax, table["layer"])
        ax.set_title(name)
    axes[0].set(ylabel=RATE, ylim=(0, 1.03))
    rates = before.pivot(index="layer", columns="seen", values="value")
    gap = (rates["direction"] - rates["full"]).min()
    title = f"Where the norm is free, direction minus full is {gap:+.3f} in the worst layer"
    note = f"after: {sample_note(after)}; before: {int(before['n_sequences'].max())} test sequences"
    return finish(figure, title, note, key=axes[1], key_title="the mapping sees")
