"""Notebook 08: a whole model with other attention and the same output, by patching and by weights."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from ident_utils.attention import (
    alternative_attention,
    displaced_attention,
    takes_attention,
    total_variation,
    write_attention,
)
from ident_utils.experiments.lengths import lengths_at, with_further_models
from ident_utils.experiments.rank_bound import relative_change
from ident_utils.families import position_bias
from ident_utils.models import Encoder, Text, in_precision
from ident_utils.remembering import remembered
from ident_utils.settings import Settings
from ident_utils.threads import one_thread
from ident_utils.trace import Trace, hidden_states, hidden_with_attention


def replace_everywhere(
    encoder: Encoder, text: Text, n: int, *, seed: int = 0
) -> tuple[Trace, Tensor, Tensor, Tensor]:
    """Find other attention for all heads of all layers: trace, alternative, control [L, H, n, n], slopes.

    All are computed on the untouched trace: since no output changes, no later layer's values change either. The
    model's own position bias, where it has one, stays in the logits. The control moves as much weight in each row.
    """
    trace = encoder.trace(text, truncate=n)
    found = alternative_attention(trace.attention, trace.values, bias=_bias_for(encoder, trace))
    pairs = zip(trace.attention.flatten(0, 1), found.weights.flatten(0, 1), strict=True)
    control = torch.stack([displaced_attention(a, b, seed=seed + i) for i, (a, b) in enumerate(pairs)])
    return trace, found.weights, control.reshape(found.weights.shape), found.slopes


def _bias_for(encoder: Encoder, trace: Trace) -> Tensor | None:
    bias = position_bias(encoder.model, trace.n_tokens)
    return None if bias is None else bias.double().expand(trace.attention.shape)


@remembered
@one_thread()
def compare_replacements(encoder: Encoder, text: Text, other_text: Text, n: int) -> tuple[pd.DataFrame, dict]:
    """Compare a model with its own and with other attention: what changes in the last hidden states?

    Columns: n, how, total_variation (mean over rows), top_changed (share of rows with another most attended token),
    head_output and final_hidden (largest change of a row over the largest row). The ways (``how``): other attention
    put in place in float64 and in float32, or made by new W_Q and W_K; the control; and the new weights on another
    text. There rounding in the weights shows in the fifth digit, so one thread computes, however many there are. New
    weights are left out where a family cannot hold them. Returns also the matrices of the head that changed most.
    """
    trace, other, control, slopes = replace_everywhere(encoder, text, n)
    rounded = _change_in_float32(encoder, text, other, n)  # its copy of the model goes before the next one comes
    lines = [
        _line("put in place", trace, other, _patched(encoder, text, other, n)),
        _line("control", trace, control, _patched(encoder, text, control, n)),
    ]
    lines.append(lines[0] | {"how": "put in place, float32", "head_output": float("nan"), "final_hidden": rounded})
    if takes_attention(encoder):
        written = write_attention(encoder, trace.hidden, slopes)
        made = written.trace(text, truncate=n)
        lines.insert(1, _line("by new weights", trace, made.attention, made.hidden))
        elsewhere, mistaken = (each.trace(other_text, truncate=n) for each in (encoder, written))
        lines.append(_line("new weights, other text", elsewhere, mistaken.attention, mistaken.hidden))
    return pd.DataFrame(lines).assign(n=n), _most_changed(trace, other, control)


def _change_in_float32(encoder: Encoder, text: Text, other: Tensor, n: int) -> float:
    single = in_precision(encoder, torch.float32)
    return relative_change(hidden_states(single, text, truncate=n)[-1], _patched(single, text, other, n)[-1])


def _patched(encoder: Encoder, text: Text, attention: Tensor, n: int) -> Tensor:
    return hidden_with_attention(encoder, text, dict(enumerate(attention, start=1)), truncate=n)


def _line(how: str, trace: Trace, other: Tensor, hidden: Tensor) -> dict[str, object]:
    raw = trace.attention.double()
    before, after = raw @ trace.values.double(), other.double() @ trace.values.double()
    change = (after - before).norm(dim=-1).amax(-1) / before.norm(dim=-1).amax(-1)
    return {
        "how": how,
        "total_variation": total_variation(raw, other).mean().item(),
        "top_changed": (raw.argmax(-1) != other.argmax(-1)).double().mean().item(),
        "head_output": change.max().item(),
        "final_hidden": relative_change(trace.hidden[-1], hidden[-1]),
    }


def _most_changed(trace: Trace, other: Tensor, control: Tensor) -> dict[str, object]:
    """Return the head whose rows moved most: layer and head (from 1), tokens, raw, second and control [n, n]."""
    moved = total_variation(trace.attention, other).mean(-1)
    layer, head = divmod(int(moved.argmax()), moved.shape[1])
    found = {"layer": layer + 1, "head": head + 1, "tokens": trace.tokens, "by_head": moved.numpy()}
    return found | {
        "raw": trace.attention[layer, head].double(),
        "second": other[layer, head],
        "control": control[layer, head],
    }


def replacements_of_models(encoder: Encoder, settings: Settings, texts: Sequence[Text]) -> tuple[pd.DataFrame, dict]:
    """Replace all attention of a model and the profile's further ones; the example is the first model's longest."""
    tables, example = [], {}
    for each in with_further_models(encoder, settings):
        each.require_all_visible("Replacing a whole model's attention")
        for n in lengths_at(each, settings.replacement_ratios):
            table, found = compare_replacements(each, texts[0], texts[1], n)
            tables.append(table.assign(model=each.name))
            example = found if each is encoder else example
    return pd.concat(tables, ignore_index=True), example


def findings(intervals: pd.DataFrame, replacements: pd.DataFrame) -> dict[str, dict]:
    """Return what notebook 08 keeps: the worst certified gap, and the worst and the mean of the replacements."""
    by_how = replacements.groupby("how")["final_hidden"]
    return {
        "intervals": {"weights": len(intervals), "largest_gap": intervals["gap"].max()},
        "replacement": {
            "largest_change": by_how.max()["put in place"],
            "largest_change_by_weights": by_how.max().get("by new weights", float("nan")),
            "smallest_change_of_control": by_how.min()["control"],
            "by_model": replacements.to_dict("records"),
        },
    }


def checks(found: dict[str, dict]) -> str:
    """Return lines, ready to print, of what must hold for every model and profile."""
    intervals, replacement = found["intervals"], found["replacement"]
    lines = {
        "every interval certified to 1e-6": intervals["largest_gap"] <= 1e-6,
        "other attention everywhere, last hidden state changed by less than 1e-10": (
            replacement["largest_change"] <= 1e-10
        ),
        "control at the same distance, changed by more than 1e-3": replacement["smallest_change_of_control"] > 1e-3,
    }
    return "\n".join(f"{what}: {'yes' if holds else 'NO'}" for what, holds in lines.items())
