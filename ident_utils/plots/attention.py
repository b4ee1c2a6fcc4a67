"""Figures of notebooks 01 and 02: null spaces, and raw against effective attention."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import COLOURS, draw_curves, draw_map, finish, layer_axis, new_figure, reference, styled


@styled
def plot_heads(attention: np.ndarray, tokens: Sequence[str], heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the attention [L, H, n, n] of a few (layer, head) pairs, both counted from 1."""
    figure, axes = new_figure(3.2, len(heads), width=2.9 * len(heads))
    for ax, (layer, head) in zip(axes, heads, strict=True):
        image = draw_map(ax, attention[layer - 1, head - 1], tokens, top=float(attention.max()))
        ax.set_title(f"layer {layer}, head {head}")
        ax.set_xlabel("attended token")
    axes[0].set_ylabel("attending token")
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight")
    return finish(figure, "Every row is a probability distribution over the tokens", f"n = {len(tokens)} tokens")


@styled
def plot_nullity(table: pd.DataFrame, head_dim: int, n_heads: int) -> Figure:
    """Draw the freedom of a row of weights by length, with the bound; columns as in ``nullity_by_length``."""
    figure, (ax,) = new_figure(3.4)
    n = np.arange(0, table["n"].max() + 1)
    ax.plot(n, np.maximum(0, n - head_dim - 1), color="0.35", lw=1.2, label="bound: n − d_v − 1")
    ax.vlines(table["n"], table["smallest"], table["largest"], color=COLOURS[0], lw=4, alpha=0.4)
    ax.plot(table["n"], table["smallest"], "o", color=COLOURS[0], label="smallest of all heads and texts")
    ax.plot(table["n"], table["largest"], "x", color=COLOURS[1], markersize=7, label="largest of all heads and texts")
    reference(ax, head_dim, f"n = d_v = {head_dim}", axis="x", place=0.98)
    ax.set(xlabel="sequence length n (tokens)", ylabel="free dimensions of a row\n(nullity of [V, 1])")
    ax.legend(loc="center left")
    note = f"{table['heads'].min():,} to {table['heads'].max():,} heads per length ({n_heads} a text); float64"
    return finish(figure, "Every head is exactly as free as the bound says", note)


@styled
def plot_attention_triptych(example: dict, title: str) -> Figure:
    """Draw one head's attention, the second attention with the same output, and their difference."""
    figure, axes = new_figure(3.0, 3, width=8.6)
    raw, second = example["raw"].numpy(), example["second"].numpy()
    top, every = float(max(raw.max(), second.max())), max(1, len(raw) // 24)
    for ax, matrix, name in ((axes[0], raw, "the model's attention"), (axes[1], second, "another attention")):
        image = draw_map(ax, matrix, example["tokens"], top=top, every=every)
        ax.set_title(name)
    figure.colorbar(image, ax=axes[1], shrink=0.8, label="weight")
    change = second - raw
    image = draw_map(axes[2], change, example["tokens"], top=float(abs(change).max()), signed=True, every=every)
    axes[2].set_title("difference")
    figure.colorbar(image, ax=axes[2], shrink=0.8, label="change of weight")
    axes[0].set(xlabel="attended token", ylabel="attending token")
    return finish(figure, title, f"layer {example['layer']}, head {example['head']}, n = {len(raw)} tokens")


@styled
def plot_correlation(by_length: pd.DataFrame, by_layer: pd.DataFrame, head_dim: int, n_heads: int) -> Figure:
    """Draw the correlation of raw and effective attention by length, and by layer beyond the bound."""
    figure, (left, right) = new_figure(3.3, 2, width=7.6)
    draw_curves(left, by_length.assign(what="mean over heads and layers"), "what", x="n")
    reference(left, head_dim, f"n = d_v = {head_dim}", axis="x", place=0.12)
    reference(left, 0.9, "criterion: below 0.9 from 1.5 d_v on", place=1.0)
    left.set(xlabel="sequence length n (tokens)", ylabel="Pearson correlation\nraw against effective", ylim=(0, 1.05))
    lengths = sorted(by_layer["n"].unique())
    draw_curves(right, by_layer.assign(length=[f"n = {n}" for n in by_layer["n"]]), "length")
    layer_axis(right, by_layer["layer"])
    right.legend(title=None, ncols=2)
    note = (
        f"{int(by_length['n_sequences'].min())} passages, {n_heads} heads a layer; bands: 95% bootstrap over passages"
    )
    title = f"Up to n = d_v nothing is removed; at n = {lengths[-1]} raw and effective attention hardly agree"
    return finish(figure, title, note)


@styled
def plot_attention_received(table: pd.DataFrame, n: int) -> Figure:
    """Draw the attention that special tokens and punctuation receive by layer, raw and effective."""
    groups = [g for g in ("first token", "separators", "punctuation") if g in set(table["group"])]
    figure, axes = new_figure(3.1, len(groups), width=8.2)
    for ax, group in zip(axes, groups, strict=True):
        draw_curves(ax, table[table["group"] == group], "kind", ("raw", "effective"))
        layer_axis(ax, table["layer"])
        ax.set_title(f"to {group}")
        ax.axhline(0, color="0.35", lw=0.8)
    axes[0].set_ylabel("attention received\n(mean over rows and heads)")
    axes[0].legend()
    note = f"n = {n} tokens, {int(table['n_sequences'].min())} passages; bands: 95% bootstrap over passages"
    return finish(figure, "The attention parked on the first token is the part that cannot matter", note)


@styled
def plot_raw_and_effective(example: dict, tokens: Sequence[str]) -> Figure:
    """Draw one head's raw and effective attention on one signed scale; ``example`` as from ``most_changed_head``."""
    raw, effective = example["raw"], example["effective"]
    every = max(1, len(raw) // 40)
    figure, axes = new_figure(3.9, 2, width=8.2)
    top = float(np.quantile(raw, 0.995))
    for ax, matrix, name in ((axes[0], raw, "raw"), (axes[1], effective, "effective")):
        image = draw_map(ax, matrix, tokens, top=top, signed=True, every=every)
        ax.set_title(name)
        ax.set_xlabel("attended token")
    axes[0].set_ylabel("attending token")
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight (negative: blue)")
    title = "Layer {layer}, head {head}: the same output, a correlation of {correlation:.2f}".format_map(example)
    return finish(figure, title, f"n = {len(raw)} tokens, every {every}. named; one scale, cut at {top:.2f}")
