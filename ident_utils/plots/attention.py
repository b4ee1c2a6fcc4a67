"""Figures of notebooks 01 and 02: null spaces, and raw against effective attention."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import (
    COLOURS,
    colour_bar,
    draw_curves,
    draw_grid,
    draw_map,
    finish,
    key_below,
    layer_axis,
    new_figure,
    reference,
    styled,
)

CUT = 0.995  # where scales of maps are cut: a few large weights would leave the rest dark


@styled
def plot_heads(attention: np.ndarray, tokens: Sequence[str], heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the attention [L, H, n, n] of a few (layer, head) pairs, both counted from 1."""
    figure, axes = new_figure(4.0, len(heads))
    for ax, (layer, head) in zip(axes, heads, strict=True):
        image = draw_map(ax, attention[layer - 1, head - 1], tokens, top=float(attention.max()))
        ax.set_title(f"layer {layer}, head {head}")
        ax.set_xlabel("attended token")
    axes[0].set_ylabel("attending token")
    colour_bar(figure, image, axes, "weight")
    return finish(figure, "Every row is a probability distribution over the tokens", f"n = {len(tokens)} tokens")


@styled
def plot_nullity(table: pd.DataFrame) -> Figure:
    """Draw the freedom of a row of weights by length for every model, with the bound; as ``nullity_by_length``."""
    models = list(dict.fromkeys(table["model"]))
    figure, axes = new_figure(3.4, len(models))
    for ax, model in zip(axes, models, strict=True):
        part = table[table["model"] == model]
        n, head_dim = np.arange(0, part["n"].max() + 1), int(part["head_dim"].iloc[0])
        ax.plot(n, np.maximum(0, n - head_dim - 1), color="0.35", lw=1.2, label="bound: n − d_v − 1")
        ring = {"ms": 8, "mfc": "none", "mew": 1.4}
        ax.plot(
            part["n"], part["smallest"], "o", mec=COLOURS[0], **ring, label="[V, 1], smallest of all heads and texts"
        )
        ax.plot(part["n"], part["largest"], "x", mec=COLOURS[3], ms=6, mew=1.4, label="[V, 1], largest")
        ax.plot(part["n"], part["smallest_of_v"], "^", color=COLOURS[1], ms=4, label="V, smallest")
        reference(ax, head_dim, f"d_v = {head_dim}", axis="x", place=0.6)
        ax.set(xlabel="length n (tokens)", title=model)
    axes[0].set_ylabel("free dimensions of a row\n(nullity)")
    exact = (table["smallest"] == table["bound"]).all() and (table["largest"] == table["bound"]).all()
    below = int((table["smallest"] < table["bound"]).sum())
    title = "Every head is exactly as free as the bound says" if exact else f"Lengths below the bound: {below}"
    note = f"layers × heads × texts: {table['heads'].min():,} to {table['heads'].max():,} at each length; float64"
    return finish(figure, title, note, key=axes[0])


@styled
def plot_spectrum(spectrum: pd.DataFrame, ranks: pd.DataFrame, n: int, head_dim: int, width: int) -> Figure:
    """Draw one head's singular values, and how every head's rank is read in several ways.

    Columns as in ``spectrum_of_head`` and ``ranks_read``.
    """
    figure, (left, right) = new_figure(3.8, 2, share=False)
    for i, (name, part) in enumerate(spectrum.groupby("matrix", sort=False)):
        values = part["value"].clip(lower=1e-20)
        left.semilogy(part["index"], values, "os^D"[i], color=COLOURS[i], mec=COLOURS[i], ms=(5, 3.5, 2.5, 1.5)[i])
        left.plot([], [], "os^D"[i], color=COLOURS[i], label=name)
    for eps, name in ((2.0**-52, "float64"), (2.0**-23, "float32")):
        reference(left, max(n, width) * eps, f"tolerance for T, {name}", place=0.02)
    reference(left, head_dim, f"d_v = {head_dim}", axis="x", place=0.98)
    left.set(xlabel="number of the singular value", ylabel="singular value\nover the largest", ylim=(1e-19, 5))
    y = np.arange(len(ranks))[::-1]
    right.hlines(y, ranks["smallest"], ranks["largest"], color=COLOURS[1], lw=3, alpha=0.5)
    right.plot(ranks["smallest"], y, "o", color=COLOURS[1])
    right.plot(ranks["largest"], y, "o", color=COLOURS[1])
    reference(right, min(n, head_dim), "true rank", axis="x", place=1.0)
    names = [
        f"{m.replace(', ', chr(10))}: {r:.0%} right" for m, r in zip(ranks["method"], ranks["right"], strict=True)
    ]
    right.set_yticks(y, names, fontsize=7)
    right.set(xlabel="rank read, smallest\nto largest of all heads", xlim=(0, None))
    title = "V has no singular value near the cut; a float32 T reads as full rank by float64's tolerance"
    return finish(figure, title, f"one text of n = {n} tokens; left: one head, right: all heads", key=left)


@styled
def plot_attention_triptych(example: dict, title: str) -> Figure:
    """Draw one head's attention, another attention with the same output, and their difference."""
    figure, axes = new_figure(4.0, 3)
    raw, second = example["raw"].numpy(), example["second"].numpy()
    change = second - raw
    top, most = (float(np.quantile(values, CUT)) for values in (np.maximum(raw, second), abs(change)))
    for ax, matrix, name in ((axes[0], raw, "the model's attention"), (axes[1], second, "another attention")):
        image = draw_map(ax, matrix, example["tokens"], top=top)
        ax.set(title=name, xlabel="attended token")
    colour_bar(figure, image, axes[:2], "weight", extend="max")
    image = draw_map(axes[2], change, example["tokens"], top=most, signed=True)
    axes[2].set(title="difference", xlabel="attended token")
    figure.colorbar(image, ax=axes[2], location="bottom", aspect=15, label="change of weight", extend="both")
    axes[0].set_ylabel("attending token")
    note = f"layer {example['layer']}, head {example['head']}, n = {len(raw)} tokens; scales are cut"
    return finish(figure, title, note)


@styled
def plot_correlation(by_length: pd.DataFrame, by_layer: pd.DataFrame, head_dim: int, n_heads: int) -> Figure:
    """Draw the correlation of raw and effective attention by length, and by layer beyond the bound."""
    figure, (left, right) = new_figure(3.4, 2)
    draw_curves(left, by_length.assign(what="mean over heads and layers"), "what", x="n")
    reference(left, head_dim, f"n = d_v = {head_dim}", axis="x", place=0.12)
    reference(left, 0.9, "criterion: below 0.9", place=1.0)
    left.set(xlabel="length n (tokens)", ylabel="Pearson correlation,\nraw against effective", ylim=(0, 1.05))
    left.set_title("mean over layers")
    lengths = sorted(by_layer["n"].unique())
    draw_curves(right, by_layer.assign(length=[f"n = {n}" for n in by_layer["n"]]), "length", ordered=True)
    layer_axis(right, by_layer["layer"])
    right.set_title("beyond the bound, by layer")
    note = (
        f"{int(by_length['n_sequences'].min())} passages, {n_heads} heads a layer; bands: 95% bootstrap over passages"
    )
    last = by_length["value"].iloc[-1]
    title = (
        f"Nothing is removed up to n = d_v; at n = {lengths[-1]} raw and effective attention correlate at {last:.2f}"
    )
    return finish(figure, title, note, key=right)


@styled
def plot_attention_received(table: pd.DataFrame, n: int) -> Figure:
    """Draw the attention that special tokens and punctuation receive by layer, raw and effective."""
    groups = [g for g in ("first token", "separators", "punctuation") if g in set(table["group"])]
    figure, axes = new_figure(3.3, len(groups))
    for ax, group in zip(axes, groups, strict=True):
        draw_curves(ax, table[table["group"] == group], "kind", ("raw", "effective"))
        layer_axis(ax, table["layer"])
        ax.set_title(f"to {group}")
        ax.axhline(0, color="0.35", lw=0.8)
    axes[0].set_ylabel("attention received\n(mean over rows and heads)")
    note = f"n = {n} tokens, {int(table['n_sequences'].min())} passages; bands: 95% bootstrap over passages"
    title = "The attention parked on the first token is the part that cannot matter"
    return finish(figure, title, note, key=axes[0])


@styled
def plot_by_head(maps: dict[str, np.ndarray], n: int, title: str) -> Figure:
    """Draw numbers between 0 and 1 for every layer and head, one map [L, H] a name."""
    figure, axes = new_figure(3.6, len(maps))
    for ax, (name, values) in zip(axes, maps.items(), strict=True):
        image = draw_grid(ax, values, "cividis", 1, upwards=True)
        ax.set(title=name, xlabel="head")
    axes[0].set_ylabel("layer")
    colour_bar(figure, image, axes, " / ".join(maps))
    return finish(figure, title, f"n = {n} tokens; mean over passages")


@styled
def plot_not_a_distribution(table: pd.DataFrame, head_dim: int) -> Figure:
    """Draw by length how far effective attention is from probabilities; a row a length, as ``not_a_distribution``."""
    figure, (left, middle, right) = new_figure(3.6, 3, share=False)
    n = table["n"]
    left.plot(n, table["negative"], "o-", color=COLOURS[0], label="share of weights below zero")
    left.plot(n, table["negative_mass"], "s--", color=COLOURS[1], label="their sum in a row")
    key_below(left)
    left.set_title("negative weights")
    middle.fill_between(n, table["row_sum_low"], table["row_sum_high"], color=COLOURS[0], alpha=0.3, lw=0)
    middle.plot(n, table["row_sum_low"], "v-", color=COLOURS[0], label="5% of the rows are below")
    middle.plot(n, table["row_sum_high"], "^-", color=COLOURS[0], label="5% are above")
    key_below(middle)
    middle.set(title="sum of a row", ylim=(0, 1.1))
    right.plot(n, table["top_kept"], "o-", color=COLOURS[0])
    right.set(title="rows, same top token", ylim=(0, 1.1))
    for ax in (left, middle, right):
        reference(ax, head_dim, "", axis="x")
        ax.set_xlabel("length n (tokens)")
    left.set_ylabel("share")
    title = "Beyond the bound effective weights are negative in part, and rows no longer sum to one"
    return finish(figure, title, f"means over passages, layers and heads; dashed: n = d_v = {head_dim}")


@styled
def plot_raw_and_effective(example: dict, tokens: Sequence[str]) -> Figure:
    """Draw one head's raw and effective attention on one signed scale; ``example`` as from ``most_changed_head``."""
    raw, effective = example["raw"], example["effective"]
    figure, axes = new_figure(4.7, 2)
    top = float(np.quantile(raw, CUT))
    for ax, matrix, name in ((axes[0], raw, "raw"), (axes[1], effective, "effective")):
        image = draw_map(ax, matrix, tokens, top=top, signed=True)
        ax.set_title(name)
        ax.set_xlabel("attended token")
    axes[0].set_ylabel("attending token")
    colour_bar(figure, image, axes, "weight (negative: orange)", extend="both")
    title = "Layer {layer}, head {head}: the same output, a correlation of {correlation:.2f}".format_map(example)
    return finish(figure, title, f"n = {len(raw)} tokens; one scale, cut at {top:.2f}")
