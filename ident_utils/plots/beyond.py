"""Figures of notebook 08: intervals of weights, and a model with other attention."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import COLOURS, draw_curves, draw_map, finish, new_figure, reference, styled


@styled
def plot_row_intervals(example: dict) -> Figure:
    """Draw every weight of one row with its identifiability interval; ``example`` as from ``readable_head``."""
    table = example["table"]
    figure, (ax,) = new_figure(3.6, width=max(6.4, 0.125 * len(table)))
    x = np.arange(len(table))
    ax.vlines(x, table["low"], table["high"], color=COLOURS[0], lw=3, alpha=0.45, label="what gives the same output")
    ax.plot(x, table["weight"], "o", color=COLOURS[3], markersize=3, label="what the model shows")
    ax.set_xticks(x, [t.replace("$", r"\$") for t in table["token"]], rotation=90, fontsize=6)
    ax.set(ylabel="weight", ylim=(-0.01, None), xlim=(-1, len(table)))
    ax.legend()
    token = example["tokens"][example["row"]]
    certain = int(((table["low"] > 0.01) & (table["weight"] > 0.05)).sum())
    title = f"Of the {int((table['weight'] > 0.05).sum())} weights above 0.05 of this row, {certain} cannot vanish"
    note = f"layer {example['layer']}, head {example['head']}, the row of “{token}” (token {example['row'] + 1})"
    return finish(figure, title, f"{note}; n = {len(table)}; gaps up to {table['gap'].max():.0e}")


@styled
def plot_certain_part(example: dict) -> Figure:
    """Draw one head's attention beside the part of its notable weights that the output makes certain."""
    figure, axes = new_figure(3.9, 2, width=8.2)
    raw, low = example["raw"], example["low"]
    every = max(1, len(raw) // 40)
    top = float(np.quantile(raw, 0.995))
    for ax, matrix, name in ((axes[0], raw, "what the model shows"), (axes[1], low, "what the output makes certain")):
        image = draw_map(ax, matrix, example["tokens"], top=top, every=every)
        ax.set(title=name, xlabel="attended token")
    axes[0].set_ylabel("attending token")
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight")
    shown, certain = raw[raw > 0.05].sum(), low.sum()
    title = f"{certain / shown:.0%} of what this head's weights above 0.05 show is certain"
    note = (
        f"layer {example['layer']}, head {example['head']}; right: lower ends of weights above 0.05; cut at {top:.2f}"
    )
    return finish(figure, title, note)


@styled
def plot_wide_intervals(by_length: pd.DataFrame, by_concentration: pd.DataFrame) -> Figure:
    """Draw the share of wide intervals by length, and their width by the concentration of the row."""
    figure, (left, right) = new_figure(3.4, 2, width=8.4, share=False)
    names = by_length["model"] + ", " + by_length["which"]
    draw_curves(left, by_length.assign(name=names, ratio=by_length["n"] / by_length["head_dim"]), "name", x="ratio")
    reference(left, 1, "n = d_v", axis="x", place=0.98)
    left.set(xlabel="length n / d_v", ylabel="share with an interval\nwider than 0.05", ylim=(-0.02, 1.02))
    left.legend(fontsize=6.5)
    classes = ["below 3", "3 to 6", "6 to 12", "above 12"]
    table = by_concentration.assign(x=by_concentration["perplexity"].map(classes.index))
    draw_curves(right, table, "model", x="x")
    right.set_xticks(range(len(classes)), classes)
    right.set(
        xlabel="perplexity of the row (tokens it spreads over)",
        ylabel="mean width of the interval\nof a row's largest weight",
    )
    right.set_ylim(0, None)
    right.legend(fontsize=7)
    note = f"{int(by_length['n_sequences'].max())} passages; bands: 95% bootstrap over passages; right: n ≥ 1.5 d_v"
    return finish(figure, "Short texts pin weights down; long ones do not, least in rows that spread", note)


@styled
def plot_replacement(table: pd.DataFrame) -> Figure:
    """Draw how much the last hidden states change against how far attention moved; as ``compare_replacements``."""
    figure, (ax,) = new_figure(3.6)
    order = ("put in place", "by new weights", "put in place, float32", "control", "new weights, other text")
    for i, how in enumerate(order):
        part = table[table["how"] == how]
        ax.semilogy(part["total_variation"], part["final_hidden"], "os^Dv"[i], color=COLOURS[i], label=how)
    reference(ax, 1e-10, "bar: 1e-10", place=1.0)
    ax.set(xlabel="total variation from the model's attention\n(mean over rows of all heads)", xlim=(0, None))
    ax.set_ylabel("relative change of the\nlast hidden states")
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    note = ", ".join(
        f"{model}: n = {', '.join(map(str, sorted(set(part['n']))))}" for model, part in table.groupby("model")
    )
    return finish(figure, "All attention of all layers replaced: the same output, to rounding", note)


@styled
def plot_moved_by_head(by_head: np.ndarray, tokens: Sequence[str]) -> Figure:
    """Draw how far the alternative of every layer and head lies from the model's attention: [L, H]."""
    figure, (ax,) = new_figure(3.2, width=4.6)
    image = ax.imshow(by_head, cmap="cividis", vmin=0, aspect="auto", origin="lower")
    ax.set_xticks(range(by_head.shape[1]), range(1, by_head.shape[1] + 1), fontsize=7)
    ax.set_yticks(range(len(by_head)), range(1, len(by_head) + 1), fontsize=7)
    ax.set(xlabel="head", ylabel="layer")
    ax.grid(False)
    figure.colorbar(image, ax=ax, label="total variation (mean over rows)")
    return finish(figure, "The alternative moves some heads far and others hardly", f"n = {len(tokens)} tokens")
