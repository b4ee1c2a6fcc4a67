"""Figures of notebooks 05 and 06: contributions by layer, by neighbour and by kind of token."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ident_utils.plots.canvas import (
    COLOURS,
    colour_bar,
    draw_curves,
    draw_map,
    finish,
    layer_axis,
    new_figure,
    reference,
    styled,
)

OWN = "median contribution\nof the own token"


def _note(table: pd.DataFrame) -> str:
    return f"{int(table['n_sequences'].max())} texts; bands: 95% bootstrap over texts"


def _span(shares: pd.Series) -> str:
    low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
    return low if low == high else f"{low} to {high}"


@styled
def plot_own_contribution(table: pd.DataFrame, mean_tokens: float) -> Figure:
    """Draw the median own contribution by layer with v1's 50% and 7.5%; columns as in ``own_by_layer``."""
    figure, (ax,) = new_figure(3.6)
    ax.fill_between(
        table["layer"],
        table["quarter"],
        table["three_quarters"],
        color="0.85",
        lw=0,
        label="middle half of the tokens",
    )
    draw_curves(ax, table.assign(what="median, with its 95% interval"), "what")
    reference(ax, 0.5, "v1: less than 50% after the first layer")
    reference(ax, 0.075, "v1: 7.5%", place=0.02)
    reference(ax, 1 / mean_tokens, f"1/n = {1 / mean_tokens:.1%}", place=0.02)
    ax.plot(table["layer"].max(), 0.075, "*", color=COLOURS[3], ms=11, label="v1, BERT-base: 7.5% in its last layer")
    layer_axis(ax, table["layer"])
    ax.set(ylabel="contribution of the own token", ylim=(0, 0.6))
    first, last = table["value"].iloc[0], table["value"].iloc[-1]
    title = f"The own token's share falls from {first:.0%} to {last:.1%}"
    note = f"{_note(table)}; on average {mean_tokens:.0f} tokens, 1/n: an equal share"
    return finish(figure, title, note, key=ax)


@styled
def plot_own_by_length(table: pd.DataFrame) -> Figure:
    """Draw each text's median own contribution against its length, first and last layer."""
    figure, axes = new_figure(3.0, 2, share=False)
    for ax, column, colour in zip(axes, ("first layer", "last layer"), COLOURS, strict=False):
        ax.plot(table["n"], table[column], "o", color=colour)
        ax.set(xlabel="length of the text n (tokens)", ylim=(0, 1.2 * max(table[column].max(), 0.08)))
        ax.set_title(column)
    reference(axes[1], 0.075, "v1: 7.5%", place=0.02)
    axes[0].set_ylabel("median own contribution\nof the text")
    rank = table.corr("spearman")["n"]
    first, last = rank["first layer"], rank["last layer"]
    title = f"Rank correlation with length: {first:.2f} in the first layer, {last:.2f} in the last"
    return finish(figure, title, f"one point a text, {len(table)} texts")


@styled
def plot_own_by_group(table: pd.DataFrame) -> Figure:
    """Draw the median own contribution by layer for every group of tokens."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "group")
    layer_axis(ax, table["layer"])
    ax.set(ylabel=OWN, ylim=(0, None))
    title = "First tokens lose their own share within a few layers, words more slowly"
    return finish(figure, title, _note(table), key=ax)


@styled
def plot_largest(table: pd.DataFrame) -> Figure:
    """Draw the share of tokens that are their own largest contributor by layer."""
    figure, (ax,) = new_figure(3.1)
    draw_curves(ax, table.assign(what="own token contributes most"), "what")
    reference(ax, 0.5, "criterion: 0.5", place=0.02)
    layer_axis(ax, table["layer"])
    ax.set(ylabel="share of tokens whose own\ncontribution is the largest", ylim=(0, 1.03))
    first, last = table["value"].iloc[0], table["value"].iloc[-1]
    title = f"The own token leads for {first:.0%} of the tokens in layer 1, for {last:.0%} in the last"
    return finish(figure, title, _note(table))


@styled
def plot_offsets(table: pd.DataFrame, layers: Sequence[int], n_texts: int) -> Figure:
    """Draw the mean contribution by relative position for some layers; columns layer, offset, value."""
    figure, (ax,) = new_figure()
    picked = table[table["layer"].isin(layers)]
    named = picked.assign(layer=[f"layer {n}" for n in picked["layer"]])
    draw_curves(ax, named, "layer", x="offset", ordered=True)
    ax.set_yscale("log")
    ax.set_xticks(sorted(o for o in picked["offset"].unique() if o % 5 == 0))
    ax.set(xlabel="place of the input token relative to the state's", ylabel="mean contribution")
    title = "On average the own place stands out in every layer, on ever flatter ground"
    return finish(figure, title, f"{n_texts} texts", key=ax)


@styled
def plot_main_contributors(table: pd.DataFrame, n_texts: int) -> Figure:
    """Draw who the largest contributor is, as stacked shares of tokens by layer."""
    figure, (ax,) = new_figure(3.6)
    layers = sorted(table["layer"].unique())
    bottom = np.zeros(len(layers))
    fills = (COLOURS[0], COLOURS[1], COLOURS[2], "0.75")  # told apart by lightness
    for i, (who, part) in enumerate(table.groupby("who", sort=False)):
        values = part.sort_values("layer")["value"].to_numpy()
        ax.bar(layers, values, bottom=bottom, color=fills[i], label=who, edgecolor="white", lw=0.5)
        bottom += values
    layer_axis(ax, layers)
    ax.set(ylabel="share of tokens", ylim=(0, 1))
    last = table[table["layer"] == layers[-1]].set_index("who")["value"].sort_values(ascending=False)
    title = "Main contributor in the last layer: " + ", ".join(f"{who} {v:.0%}" for who, v in last.head(2).items())
    return finish(figure, title, f"{n_texts} texts", key=ax)


@styled
def plot_group_contribution(table: pd.DataFrame) -> Figure:
    """Draw how much the own token and the groups of other tokens contribute by layer."""
    figure, (ax,) = new_figure(3.6)
    draw_curves(ax, table, "group")
    layer_axis(ax, table["layer"])
    ax.set(ylabel="mean contribution\nto a hidden state", ylim=(0, 1))
    return finish(figure, "Other words take over from the own token", _note(table), key=ax)


@styled
def plot_contribution_map(contributions: np.ndarray, tokens: Sequence[str], layers: Sequence[int]) -> Figure:
    """Draw one text's contributions [L, n_out, n_in] as a map for each of some layers (from 1)."""
    figure, axes = new_figure(4.1, len(layers))
    top = float(np.quantile(contributions, 0.995))
    for ax, layer in zip(axes, layers, strict=True):
        image = draw_map(ax, contributions[layer - 1], tokens, top=top)
        ax.set_title(f"layer {layer}")
        ax.set_xlabel("input token")
    axes[0].set_ylabel("hidden state")
    colour_bar(figure, image, axes, "contribution", extend="max")
    note = f"n = {len(tokens)} tokens; panels share their scale, which is cut at {top:.2f}"
    return finish(figure, "The diagonal fades and columns appear", note)


@styled
def plot_models(table: pd.DataFrame, note: str) -> Figure:
    """Draw the median own contribution of several models against relative depth; columns as in ``compare_own``."""
    figure, (ax,) = new_figure()
    draw_curves(ax, table, "model", x="depth")
    reference(ax, 0.075, "v1: 7.5%", place=0.02)
    ax.set(xlabel="layer, as a share of all layers", ylabel=OWN, ylim=(0, None))
    ends = table[table["depth"] == 1].set_index("model")["value"]
    title = "Last layer: " + ", ".join(f"{value:.1%} in {name}" for name, value in ends.items())
    return finish(figure, title, note, key=ax)


@styled
def plot_own_by_cut(table: pd.DataFrame, note: str) -> Figure:
    """Draw the median own contribution of the same passages cut to several lengths, beside an equal share 1/n."""
    figure, axes = new_figure(3.2, 2, share=False)
    for ax, layer in zip(axes, ("first layer", "last layer"), strict=True):
        part = table[table["layer"] == layer]
        draw_curves(ax, part, "model", x="n")
        lengths = sorted(part["n"].unique())
        ax.plot(lengths, [1 / n for n in lengths], color="0.35", lw=1, ls=(0, (4, 2)), label="equal share 1/n")
        ax.set(xlabel="tokens kept n", ylim=(0, None))
        ax.set_xticks(lengths)
        ax.set_title(layer)
    axes[0].set_ylabel("median own contribution")
    last = table[table["layer"] == "last layer"].pivot(index="n", columns="model", values="value")
    times, kept = last.index.max() / last.index.min(), last.loc[last.index.max()] / last.loc[last.index.min()]
    title = f"{times:.0f} times the tokens leave {_span(kept)} of the own share in the last layer"
    return finish(figure, f"{title}; an equal share would leave {1 / times:.0%}", note, key=axes[1])


@styled
def plot_distances(table: pd.DataFrame) -> Figure:
    """Draw the share that comes from each distance by layer; columns as in ``distance_groups``."""
    figure, (ax,) = new_figure(3.6)
    draw_curves(ax, table, "distance")
    layer_axis(ax, table["layer"])
    ax.set(ylabel="share of a hidden state", ylim=(0, None))
    far = table[table["distance"] == "further"].sort_values("layer")["value"]
    title = f"From more than ten places away: {far.iloc[0]:.0%} in layer 1, {far.iloc[-1]:.0%} in the last"
    return finish(figure, title, _note(table), key=ax, key_title="distance of the input token")


@styled
def plot_within_layers(table: pd.DataFrame, note: str) -> Figure:
    """Draw each layer alone: what a token keeps of its own input, and how alike tokens come out, by depth."""
    figure, axes = new_figure(3.2, 2, share=False)
    labels = {
        "own": "own share within\nthe layer, median",
        "alike": "cosine similarity between\ntokens of a text, mean",
    }
    for ax, (column, label) in zip(axes, labels.items(), strict=True):
        draw_curves(ax, table.assign(value=table[column]), "model", x="depth")
        ax.set(xlabel="layer, as a share of all layers", ylabel=label, ylim=(0, 1))
    ends = table[table["depth"] == 1]
    kept = ", ".join(f"{own:.0%} ({name})" for name, own in zip(ends["model"], ends["own"], strict=True))
    title = f"Own input kept by the last layer alone: {kept}"
    return finish(figure, title, note, key=axes[0])
