"""Figures of notebook 07: definitions, sampling error, controls, attention against attribution."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import COLOURS, draw_curves, finish, layer_axis, new_figure, reference, styled
from ident_utils.plots.contribution import OWN


@styled
def plot_definitions(table: pd.DataFrame, note: str) -> Figure:
    """Draw the median own contribution by layer for every definition; columns method, layer, value."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "method")
    layer_axis(ax, table["layer"])
    ax.set(ylabel=OWN, ylim=(0, None))
    last = table[table["layer"] == table["layer"].max()]["value"]
    title = f"In the last layer the definitions give {last.min():.0%} to {last.max():.0%} to the own token"
    return finish(figure, title, note, key=ax)


@styled
def plot_error_by_probes(table: pd.DataFrame, note: str) -> Figure:
    """Draw the error of a token's own contribution, the stated one, and that of the median over tokens, by probes."""
    figure, axes = new_figure(3.4, 2)
    layers = (table["layer"].min(), table["layer"].max())
    names = {"error": "one token", "stated": "one token, stated", "median_error": "median over tokens"}
    for ax, layer, where in zip(axes, layers, ("first", "last"), strict=True):
        part = table[table["layer"] == layer].melt("probes", list(names), var_name="what").dropna()
        draw_curves(ax, part.assign(what=part["what"].map(names)), "what", list(names.values()), x="probes")
        ax.set(xscale="log", yscale="log", xlabel="random tangents for each input token")
        ax.set_xticks(sorted(table["probes"].unique()), [str(k) for k in sorted(table["probes"].unique())])
        ax.set_yticks([0.005, 0.01, 0.02, 0.05, 0.1, 0.2], ["0.5%", "1%", "2%", "5%", "10%", "20%"])
        ax.minorticks_off()
        ax.set_title(f"{where} layer")
    drawn = table[list(names)].to_numpy()
    axes[0].set(ylabel="relative error", ylim=(0.8 * np.nanmin(drawn), 1.25 * np.nanmax(drawn)))
    few = table[table["probes"] == table["probes"].min()].set_index("layer")["error"]
    title = f"At {table['probes'].min()} tangents one token's share is off by {few[layers[0]]:.0%} in the first layer"
    return finish(figure, f"{title}, {few[layers[1]]:.0%} in the last", note, key=axes[0])


@styled
def plot_attribution_controls(table: pd.DataFrame, note: str) -> Figure:
    """Draw the median own contribution by layer under every control; columns condition, layer, value."""
    figure, (ax,) = new_figure(3.6)
    draw_curves(ax, table, "condition")
    layer_axis(ax, table["layer"])
    ax.set(ylabel=OWN, ylim=(0, 1))
    reference(ax, 0.5, "one half", place=0.02)
    last = table[table["layer"] == table["layer"].max()].set_index("condition")["value"]
    names = {"untrained": "untrained", "weights permuted": "permuted", "trained model": "trained"}
    title = "Own share in the last layer: " + ", ".join(f"{last[k]:.0%} {name}" for k, name in names.items())
    return finish(figure, title, note, key=ax)


@styled
def plot_heads_against_attribution(table: pd.DataFrame, note: str) -> Figure:
    """Draw each head's correlation of attention with local attribution, raw and effective, by layer."""
    figure, (ax,) = new_figure()
    for i, (kind, marker) in enumerate((("raw", "o"), ("effective", "x"))):
        shift = (i - 0.5) * 0.3
        ax.plot(table["layer"] + shift, table[kind], marker, color=COLOURS[i], mec=COLOURS[i], alpha=0.5, ms=3.5)
        median = table.groupby("layer")[kind].median()
        ax.plot(median.index + shift, median, "-" if i == 0 else "--", color=COLOURS[i], label=f"{kind}, median head")
    layer_axis(ax, table["layer"])
    ax.set(ylabel="Pearson correlation with\nthe head's local attribution")
    medians = table[["raw", "effective"]].median()
    title = f"Median correlation of a head: {medians['raw']:.2f} raw, {medians['effective']:.2f} effective"
    return finish(figure, title, note, key=ax)


@styled
def plot_rollout(table: pd.DataFrame, note: str) -> Figure:
    """Draw by layer how attention agrees with attribution, inside a layer and from the input on."""
    figure, (ax,) = new_figure(3.6)
    long = table.melt("layer", var_name="what")
    draw_curves(ax, long, "what")
    layer_axis(ax, table["layer"])
    ax.set(ylabel="rank correlation\nwith attribution")
    lowest = float(np.nanmin(long["value"]))
    ax.set_ylim(min(0, lowest - 0.05), 1.03)
    column = "rollout, from the input"
    first, last = table[column].iloc[0], table[column].iloc[-1]
    title = f"Rolled-out attention agrees with attribution by {first:.2f} in layer 1, {last:.2f} in the last"
    return finish(figure, title, note, key=ax, key_title="attention to other tokens")
