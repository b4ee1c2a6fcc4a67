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
def plot_nullity(table: pd.DataFrame) -> Figure:
    """Draw the freedom of a row of weights by length for every model, with the bound; as ``nullity_by_length``."""
    models = list(dict.fromkeys(table["model"]))
    figure, axes = new_figure(3.2, len(models), width=max(5.0, 2.7 * len(models)) + 2.2)
    for ax, model in zip(axes, models, strict=True):
        part = table[table["model"] == model]
        n, head_dim = np.arange(0, part["n"].max() + 1), int(part["head_dim"].iloc[0])
        ax.plot(n, np.maximum(0, n - head_dim - 1), color="0.35", lw=1.2, label="bound: n − d_v − 1")
        ax.plot(part["n"], part["smallest"], "o", color=COLOURS[0], label="[V, 1]: smallest\nof all heads and texts")
        ax.plot(part["n"], part["largest"], "x", color=COLOURS[1], markersize=7, label="[V, 1]: largest")
        ax.plot(part["n"], part["smallest_of_v"], "^", color=COLOURS[2], markersize=3, label="V: smallest")
        reference(ax, head_dim, f"d_v = {head_dim}", axis="x", place=0.6)
        ax.set(xlabel="sequence length n (tokens)", title=model)
    axes[0].set_ylabel("free dimensions of a row\n(nullity)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    exact = (table["smallest"] == table["bound"]).all() and (table["largest"] == table["bound"]).all()
    below = int((table["smallest"] < table["bound"]).sum())
    title = "Every head is exactly as free as the bound says" if exact else f"Lengths below the bound: {below}"
    note = f"{table['heads'].min():,} to {table['heads'].max():,} heads per length; float64"
    return finish(figure, title, note)


@styled
def plot_spectrum(spectrum: pd.DataFrame, ranks: pd.DataFrame, n: int, head_dim: int, width: int) -> Figure:
    """Draw one head's singular values, and how every head's rank is read in several ways.

    Columns as in ``spectrum_of_head`` and ``ranks_read``.
    """
    figure, (left, right) = new_figure(3.4, 2, width=8.6, share=False)
    for i, (name, part) in enumerate(spectrum.groupby("matrix", sort=False)):
        marker, size = "osx^"[i], 2.5
        values = part["value"].clip(lower=1e-20)
        left.semilogy(part["index"], values, marker, color=COLOURS[i], markersize=size, label=name)
    for eps, name in ((2.0**-52, "float64"), (2.0**-23, "float32")):
        reference(left, max(n, width) * eps, f"tolerance for T, {name}", place=0.02)
    reference(left, head_dim, f"d_v = {head_dim}", axis="x", place=0.98)
    left.set(xlabel="index", ylabel="singular value over the largest", ylim=(1e-19, 5))
    left.legend(loc="lower left", fontsize=7)
    y = np.arange(len(ranks))[::-1]
    right.hlines(y, ranks["smallest"], ranks["largest"], color=COLOURS[1], lw=3, alpha=0.5)
    right.plot(ranks["smallest"], y, "o", color=COLOURS[1])
    right.plot(ranks["largest"], y, "o", color=COLOURS[1])
    reference(right, min(n, head_dim), "true rank", axis="x", place=1.0)
    names = [
        f"{m.replace(', ', chr(10))}: {r:.0%} right" for m, r in zip(ranks["method"], ranks["right"], strict=True)
    ]
    right.set_yticks(y, names, fontsize=7)
    right.set(xlabel="rank read (smallest to largest of all heads)", xlim=(0, None))
    return finish(figure, "V has no singular value near the cut; a T made in float32 reads as full rank", f"n = {n}")


@styled
def plot_attention_triptych(example: dict, title: str) -> Figure:
    """Draw one head's attention, another attention with the same output, and their difference."""
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
    reference(left, 0.9, "criterion: below 0.9", place=1.0)
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
def plot_by_head(maps: dict[str, np.ndarray], n: int, title: str) -> Figure:
    """Draw numbers between 0 and 1 for every layer and head, one map [L, H] a name."""
    figure, axes = new_figure(3.2, len(maps), width=3.6 * len(maps))
    for ax, (name, values) in zip(axes, maps.items(), strict=True):
        image = ax.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="lower")
        ax.set_xticks(range(values.shape[1]), range(1, values.shape[1] + 1), fontsize=7)
        ax.set_yticks(range(len(values)), range(1, len(values) + 1), fontsize=7)
        ax.set(title=name, xlabel="head")
        ax.grid(False)
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, shrink=0.9)
    return finish(figure, title, f"n = {n} tokens; mean over passages")


@styled
def plot_not_a_distribution(table: pd.DataFrame, head_dim: int) -> Figure:
    """Draw by length how far effective attention is from probabilities; a row a length, as ``not_a_distribution``."""
    figure, (left, middle, right) = new_figure(3.0, 3, width=8.8, share=False)
    n = table["n"]
    left.plot(n, table["negative"], "o-", color=COLOURS[0], label="share of weights below zero")
    left.plot(n, table["negative_mass"], "s--", color=COLOURS[1], label="what they sum to in a row")
    left.legend(fontsize=7)
    left.set_title("negative weights")
    middle.fill_between(n, table["row_sum_low"], table["row_sum_high"], color=COLOURS[0], alpha=0.3, lw=0)
    middle.plot(n, table["row_sum_low"], "o-", color=COLOURS[0])
    middle.plot(n, table["row_sum_high"], "o-", color=COLOURS[0])
    reference(middle, 1, "a distribution", place=0.02)
    middle.set_title("sum of a row, 5% to 95%")
    right.plot(n, table["top_kept"], "o-", color=COLOURS[0])
    right.set(title="rows with the same top token", ylim=(0, 1.05))
    for ax in (left, middle, right):
        reference(ax, head_dim, "d_v", axis="x", place=0.98)
        ax.set_xlabel("sequence length n (tokens)")
    title = "Beyond the bound effective weights are negative in part, and rows no longer sum to one"
    return finish(figure, title, "means over passages, layers and heads")


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
