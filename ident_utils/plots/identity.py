"""Figures of notebook 03: identification rates by layer."""

import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import (
    draw_curves,
    draw_grid,
    finish,
    key_below,
    layer_axis,
    new_figure,
    reference,
    styled,
)

RATE = "share of tokens identified"


def sample_note(table: pd.DataFrame) -> str:
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
    reference(ax, chance, f"chance in the same sequence: {chance:.3f}", place=0.02)
    reference(ax, 0.5, "criterion, last layer: 0.5", place=1)
    layer_axis(ax, part["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    last = part[(part["lookup"] == "own") & (part["layer"] == part["layer"].max())]["value"].iloc[0]
    title = f"In the last layer {last:.0%} of the tokens are still found again"
    return finish(figure, title, f"{mapping}, cosine lookup; {sample_note(part)}", key=ax)


@styled
def plot_mappings(table: pd.DataFrame, chance: float) -> Figure:
    """Draw what the choice of mapping does: own token, same sequence."""
    part = table[table["lookup"] == "own"]
    figure, (ax,) = new_figure(3.8)
    draw_curves(ax, part, "mapping")
    reference(ax, chance, f"chance: {chance:.3f}", place=0.02)
    layer_axis(ax, part["layer"])
    ax.set(ylabel=RATE, ylim=(0, 1.03))
    last = part[part["layer"] == part["layer"].max()].set_index("mapping")["value"]
    fitted = last.drop("naive", errors="ignore")
    title = f"In the last layer fitted mappings find {fitted.min():.0%} to {fitted.max():.0%}"
    if "naive" in last:
        title += f", the bare state {last['naive']:.0%}"
    return finish(figure, title, f"cosine lookup; {sample_note(part)}", key=ax)


@styled
def plot_controls(table: pd.DataFrame, mapping: str, chance: float) -> Figure:
    """Draw the result of ``mapping`` among its controls, all in the column mapping."""
    figure, (ax,) = new_figure(4.2)
    draw_curves(
        ax, table, "mapping", [mapping, *(name for name in dict.fromkeys(table["mapping"]) if name != mapping)]
    )
    reference(ax, chance, f"chance: {chance:.3f}", in_key=True)
    layer_axis(ax, table["layer"])
    ax.set(ylabel=RATE, ylim=(-0.01, 1.03))
    last = table[table["layer"] == table["layer"].max()].set_index("mapping")["value"]
    title = (
        f"Knowing the word alone would find {last['word only']:.0%}, the position alone {last['position only']:.0%}"
    )
    counts = table.drop_duplicates("n_sequences")["n_sequences"].sort_values()
    note = " or ".join(str(int(n)) for n in counts) + " test sequences; bands: 95% bootstrap over sequences"
    return finish(figure, title, note, key=ax)


@styled
def plot_steps(table: pd.DataFrame) -> Figure:
    """Draw how far layers move states, and how much of it all tokens share, for several models."""
    figure, axes = new_figure(3.2, 2, share=False)
    labels = ("length of the step,\nrelative to the state's", "share of the step that is\ncommon to the sequence")
    for ax, column, label in zip(axes, ("moved", "common"), labels, strict=True):
        draw_curves(ax, table.rename(columns={column: "value"}), "model")
        layer_axis(ax, table["layer"])
        ax.set(ylabel=label, ylim=(0, None))
    moved = table.groupby("model", sort=False)["moved"].mean()
    title = (
        f"A layer moves a state by {moved['trained']:.0%} of its length, an untrained one {moved['untrained']:.0%}"
    )
    note = "left: median over the tokens of the test sequences; right: of all squared steps"
    return finish(figure, title, note, key=axes[0])


@styled
def plot_losses(kinds: pd.DataFrame, twins: pd.DataFrame, places: pd.DataFrame) -> Figure:
    """Draw the rate by kind of token, by twins, and by position (three layers), side by side."""
    figure, axes = new_figure(4.6, 3)
    for ax, table in zip(axes, (kinds, twins), strict=False):
        draw_curves(ax, table, "kind")
        layer_axis(ax, table["layer"])
    layers = sorted(set(places["layer"]))
    chosen = [layers[0], layers[len(layers) // 2], layers[-1]]
    by_layer = places[places["layer"].isin(chosen)].assign(
        where=[f"layer {layer}" for layer in places["layer"] if layer in chosen]
    )
    draw_curves(axes[2], by_layer, "where", x="kind", ordered=True)
    axes[2].set_xlabel("position in the sequence")
    axes[0].set(ylabel=RATE, ylim=(0, 1.03))
    for ax, name in zip(axes, ("kind of token", "twins", "position"), strict=True):
        ax.set_title(name)
        key_below(ax)
    last = twins[twins["layer"] == twins["layer"].max()].set_index("kind")["value"]
    without, with_twin = last["no twin in the sequence"], last["a twin in the sequence"]
    title = (
        f"In the last layer {without:.0%} of tokens without a twin are found, and {with_twin:.0%} of those with one"
    )
    return finish(figure, title, sample_note(kinds))


@styled
def plot_learning(table: pd.DataFrame) -> Figure:
    """Draw the rate in the last layer against the number of training sequences, which is shown by doubling."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "mapping", x="sequences")
    ticks = sorted(set(table["sequences"]))
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.set(xlabel="training sequences", ylabel=RATE)
    ends = table[table["sequences"].isin(ticks[-2:])].pivot(index="mapping", columns="sequences", values="value")
    gain = ends[ticks[-1]] - ends[ticks[-2]]
    title = "Last doubling of the texts: " + ", ".join(
        f"{name.split(',')[0]} {gain[name]:+.3f}" for name in gain.index
    )
    return finish(figure, title, f"last layer, own token, same sequence; {sample_note(table)}", key=ax)


@styled
def plot_across_layers(table: pd.DataFrame) -> Figure:
    """Draw the rate of mappings trained on one layer (rows) and tested on another (columns)."""
    matrix = table.pivot(index="trained", columns="tested", values="value")
    figure, (ax,) = new_figure(4.2)
    image = draw_grid(ax, matrix.to_numpy(), "viridis", 1, digits=True)
    ax.set_xticks(ax.get_xticks(), matrix.columns)
    ax.set_yticks(ax.get_yticks(), matrix.index)
    ax.set(xlabel="tested on layer", ylabel="trained on layer")
    figure.colorbar(image, label=RATE)
    forward = matrix.iloc[0, -1]
    own = matrix.iloc[-1, -1]
    title = f"The first layer's mapping finds {forward:.0%} in the last layer, its own {own:.0%}"
    return finish(figure, title, "own token, same sequence, cosine lookup")


@styled
def plot_neighbours(table: pd.DataFrame) -> Figure:
    """Draw by layer the rate of recovering a neighbour's input: before on the left, after on the right."""
    part = table[table["lookup"] == "own"]
    place = part[part["seen"] == "position only"].set_index("offset")["value"]
    curves = part[part["seen"] != "position only"].assign(layer=lambda t: t["seen"].astype(int))
    figure, axes = new_figure(3.4, 2)
    for ax, side in zip(axes, (-1, 1), strict=True):
        offsets = sorted((o for o in place.index if o * side > 0), key=abs)
        named = curves.assign(named=[f"{abs(o)} away" for o in curves["offset"]])[curves["offset"] * side > 0]
        draw_curves(ax, named, "named", [f"{abs(o)} away" for o in offsets])
        reference(ax, place[offsets].mean(), "position only, mean", in_key=True)
        layer_axis(ax, curves["layer"])
        ax.set_title("tokens before" if side < 0 else "tokens after")
    axes[0].set(ylabel="neighbours' inputs identified", ylim=(0, 1.03))
    near = curves[curves["offset"].abs() == 1].groupby("layer")["value"].mean()
    title = f"A token's state tells most about its direct neighbours in layer {near.idxmax()}, not in the last"
    if near.idxmax() == near.index.max():
        title = "A token's state tells most about its direct neighbours in the last layer"
    return finish(figure, title, f"layer 0: the input of the token itself; {sample_note(part)}", key=axes[0])
