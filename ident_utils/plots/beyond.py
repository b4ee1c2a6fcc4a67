"""Figures of notebook 08: intervals of weights, and a model with other attention."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.attention import CUT
from ident_utils.plots.canvas import (
    COLOURS,
    PAGE,
    SMALL,
    TOKEN,
    colour_bar,
    draw_curves,
    draw_grid,
    draw_map,
    finish,
    key_below,
    new_figure,
    plain,
    reference,
    styled,
)

HOW = {  # the ways of replacing attention, in the words of the figure
    "put in place": "other attention,\nput in place",
    "by new weights": "other attention,\nmade by new weights",
    "put in place, float32": "put in place,\nin float32",
    "control": "control: as far away,\ndealt out at random",
    "new weights, other text": "the new weights\non another text",
}


@styled
def plot_row_intervals(example: dict) -> Figure:
    """Draw every weight of one row with its identifiability interval; ``example`` as from ``readable_head``."""
    table = example["table"]
    figure, (ax,) = new_figure(3.6)
    figure.set_figwidth(PAGE)
    x = np.arange(len(table))
    ax.vlines(x, table["low"], table["high"], color=COLOURS[1], lw=3, label="what gives the same output")
    ax.plot(x, table["weight"], "o", color=COLOURS[2], ms=4, label="what the model shows")
    ax.set_xticks(x, [plain(token) for token in table["token"]], rotation=90, fontsize=TOKEN)
    ax.set(ylabel="weight", ylim=(-0.01, None), xlim=(-1, len(table)))
    ax.grid(axis="x", visible=False)
    token = example["tokens"][example["row"]]
    certain = int(((table["low"] > 0.01) & (table["weight"] > 0.05)).sum())
    title = f"Weights above 0.05 in this row: {int((table['weight'] > 0.05).sum())}, of which {certain} cannot vanish"
    note = f"layer {example['layer']}, head {example['head']}, the row of “{token}” (token {example['row'] + 1})"
    return finish(figure, title, f"{note}; n = {len(table)}; gaps up to {table['gap'].max():.0e}", key=ax)


@styled
def plot_certain_part(example: dict) -> Figure:
    """Draw one head's attention beside the part of its notable weights that the output makes certain."""
    figure, axes = new_figure(4.7, 2)
    raw, low = example["raw"], example["low"]
    top = float(np.quantile(raw, CUT))
    for ax, matrix, name in ((axes[0], raw, "what the model shows"), (axes[1], low, "what the output makes certain")):
        image = draw_map(ax, matrix, example["tokens"], top=top)
        ax.set(title=name, xlabel="attended token")
    axes[0].set_ylabel("attending token")
    colour_bar(figure, image, axes, "weight", extend="max")
    shown, certain = raw[raw > 0.05].sum(), low.sum()
    title = f"{certain / shown:.0%} of what this head's weights above 0.05 show is certain"
    note = (
        f"layer {example['layer']}, head {example['head']}; right: lower ends of weights above 0.05; cut at {top:.2f}"
    )
    return finish(figure, title, note)


@styled
def plot_wide_intervals(by_length: pd.DataFrame, by_concentration: pd.DataFrame) -> Figure:
    """Draw the share of wide intervals by length, and their width by the concentration of the row."""
    figure, (left, right) = new_figure(4.0, 2, share=False)
    names = by_length["model"] + ", " + by_length["which"]
    draw_curves(left, by_length.assign(name=names, ratio=by_length["n"] / by_length["head_dim"]), "name", x="ratio")
    reference(left, 1, "n = d_v", axis="x", place=0.98)
    left.set(xlabel="length n / d_v", ylabel="share with an interval\nwider than 0.05", ylim=(-0.02, 1.02))
    key_below(left)
    classes = ["below 3", "3 to 6", "6 to 12", "above 12"]
    table = by_concentration.assign(x=by_concentration["perplexity"].map(classes.index))
    draw_curves(right, table, "model", x="x")
    right.set_xticks(range(len(classes)), classes)
    right.set(
        xlabel="perplexity of the row (tokens)",
        ylabel="mean width of the interval\nof a row's largest weight",
    )
    right.set_ylim(0, None)
    key_below(right)
    note = f"{int(by_length['n_sequences'].max())} passages; bands: 95% bootstrap over passages; right: n ≥ 1.5 d_v"
    longest = by_length[by_length["n"] / by_length["head_dim"] == (by_length["n"] / by_length["head_dim"]).max()]
    ratio = longest["n"].iloc[0] / longest["head_dim"].iloc[0]
    title = (
        f"At n = {ratio:g} d_v {longest['value'].min():.0%} to {longest['value'].max():.0%} of the intervals are wide"
    )
    return finish(figure, title, note)


@styled
def plot_replacement(table: pd.DataFrame) -> Figure:
    """Draw how far attention moved, and beside it what that changed in the last hidden states.

    Columns as in ``compare_replacements``.
    """
    figure, (left, right) = new_figure(3.9, 2)
    models = list(dict.fromkeys(table["model"]))
    for i, model in enumerate(models):
        part = table[table["model"] == model]
        y = [list(HOW).index(how) + 0.22 * (i - (len(models) - 1) / 2) for how in part["how"]]
        for ax, column in ((left, "total_variation"), (right, "final_hidden")):
            ax.plot(part[column], y, "os^D"[i % 4], color=COLOURS[i], ms=7, label=model)
    left.set_yticks(range(len(HOW)), list(HOW.values()))
    left.set(xlim=(0, 1), ylim=(len(HOW) - 0.5, -0.5), title="how far attention moved")
    left.set_xlabel("total variation, mean over\nthe rows of all heads")
    right.set(xscale="log", xlim=(1e-16, 1e2), title="what that changed")
    right.set_xlabel("relative change of the\nlast hidden states")
    right.set_xticks([1e-15, 1e-10, 1e-5, 1])
    right.axvspan(1e-16, 1e-10, color="0.93", lw=0, zorder=0)
    words = {"textcoords": "offset points", "ha": "right", "fontsize": SMALL, "color": "0.3"}
    right.annotate("criterion:\nbelow 1e-10", (1e-10, 4.3), (-3, 0), **words)
    lengths = "; ".join(f"{m}: n = {', '.join(map(str, sorted(set(p['n']))))}" for m, p in table.groupby("model"))
    exact = table.loc[table["how"].isin(["put in place", "by new weights"]), "final_hidden"]
    title = f"Every head of every layer replaced: the output stays, to {exact.max():.0e} at most in float64"
    return finish(figure, title, f"one mark for each length: {lengths}", key=left)


@styled
def plot_moved_by_head(by_head: np.ndarray, tokens: Sequence[str]) -> Figure:
    """Draw how far the alternative of every layer and head lies from the model's attention: [L, H]."""
    figure, (ax,) = new_figure(3.8)
    image = draw_grid(ax, by_head, "cividis", upwards=True)
    ax.set(xlabel="head", ylabel="layer")
    colour_bar(figure, image, [ax], "total variation (mean over rows)")
    return finish(figure, "The alternative moves some heads far and others hardly", f"n = {len(tokens)} tokens")
