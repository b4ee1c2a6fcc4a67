"""What the page says in words and tables, and what it hands out as files. Words of the user are escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ident_utils.attention import head_correlation
from ident_utils.attribution import Attribution, own_contribution
from ident_utils.explore.study import Freedom, Head, Read
from ident_utils.plots.attention import plot_raw_and_effective
from ident_utils.results import render


def tokens_html(read: Read) -> str:
    """Return the words of the text in order, each with its pieces; special tokens are marked."""
    words: list[list[int]] = [[] for _ in read.encoding.word_labels]
    for piece, word in enumerate(read.encoding.words):
        words[word].append(piece)
    return f'<ol class="ident-words">{"".join(_word(read, pieces) for pieces in words)}</ol>'


def _word(read: Read, pieces: Sequence[int]) -> str:
    special = bool(read.encoding.special[pieces[0]])
    each = "".join(f"<span>{escape(read.tokens[i])}<sub>{i + 1}</sub></span>" for i in pieces)
    return f"<li{' class=ident-special' if special else ''}>{each}</li>"


def length_html(read: Read) -> str:
    """Say how long the text is, and what follows from that for all heads."""
    encoder, n = read.encoder, read.n
    bound = encoder.head_dim + 1
    if n > bound:
        follows = (
            f"longer than d<sub>v</sub> + 1 = {bound}, so that every row of weights is free in at least "
            f"{n - bound} dimension{'s' if n - bound > 1 else ''}: attention is not identifiable"
        )
    else:
        follows = (
            f"no longer than d<sub>v</sub> + 1 = {bound}, so that the output of a head can pin its weights down; "
            "a longer text leaves them free"
        )
    special = int(read.encoding.special.sum())
    return f"<p>n = {n} tokens, {special} of them special: {follows}. {escape(str(encoder))}.</p>"


def head_html(head: Head) -> str:
    """Say what was removed from a head."""
    if head.effective is None:
        return "<p>The model is causal: effective attention would give weight to tokens that it cannot see.</p>"
    largest = float(head.removed.abs().max())
    if largest < 1e-9:
        return f"<p>Layer {head.layer}, head {head.number}: nothing is removed, effective attention is attention.</p>"
    correlation = float(head_correlation(head.raw, head.effective))
    negative = float((head.effective < -1e-9).double().mean())
    return (
        f"<p>Layer {head.layer}, head {head.number}: raw and effective attention give the same output and correlate "
        f"at <b>{correlation:.2f}</b>; up to {largest:.2f} of a weight is removed, and {negative:.0%} of the "
        "effective weights are negative.</p>"
    )


def named(tokens: Sequence[str], index: int) -> str:
    """Return a token and its place in the text, for HTML: ‘the’ (51); many a text has the same token twice."""
    return f"‘{escape(tokens[index])}’ ({index + 1})"


def freedom_html(found: Freedom) -> str:
    """Say how free one weight is, and what the other row is."""
    weight, row = (named(found.head.tokens, place) for place in (found.column, found.row))
    start = f"The weight of {weight} in the row of {row} is <b>{float(found.own[found.column]):.3f}</b>"
    if found.high - found.low < 1e-9:
        return f"<p>{start}, and the output of the head pins it down.</p>"
    return (
        f"<p>{start}. With the same output it could be anything from <b>{found.low:.3f}</b> to "
        f"<b>{found.high:.3f}</b>. The other row shown gives it {float(found.other[found.column]):.3f}, differs in "
        f"{found.moved:.0%} of its weight, and changes the output by {found.output_change:.0e} of its largest "
        "component.</p>"
    )


def contribution_html(found: Attribution, token: int) -> str:
    """Say what is a token's own share of its hidden state, by layer, and who leads at the end."""
    own = own_contribution(found.contributions)[:, token].tolist()
    last = found.contributions[-1, token]
    leader = int(last.argmax())
    shares = ", ".join(f"{share:.0%}" for share in own)
    who = "the token itself" if leader == token else named(found.tokens, leader)
    error = float(found.standard_error[-1, token, token])
    return (
        f"<p>Own contribution of {named(found.tokens, token)} by layer: {shares} (standard error of the last: "
        f"{error:.1%}). Most of its last hidden state comes from {who}: {float(last[leader]):.0%}.</p>"
    )


def identified_html(read: Read, found: dict[str, Tensor]) -> str:
    """Return a table by mapping and layer of the tokens that would be found again, and a sentence before it."""
    said = "; ".join(f"{escape(name)}: {float(hit[-1].double().mean()):.0%}" for name, hit in found.items())
    heads = "".join(f'<th scope="col">{escape(token)}</th>' for token in read.tokens)
    rows = "".join(row for name, hit in found.items() for row in _identified_rows(name, hit))
    return (
        f"<p>Identified from the last hidden state, of {read.n} tokens (chance {1 / read.n:.1%}): {said}.</p>"
        '<div class="ident-scroll" tabindex="0" role="region" aria-label="identified tokens by layer">'
        f'<table class="ident-found"><thead><tr><th scope="col">mapping</th><th scope="col">layer</th>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _identified_rows(name: str, hit: Tensor) -> Iterable[str]:
    for layer, row in enumerate(hit.tolist(), start=1):
        cells = "".join(f'<td class="{"yes" if each else "no"}">{"✓" if each else "–"}</td>' for each in row)
        yield f'<tr><th scope="row">{escape(name)}</th><th scope="row">{layer}</th>{cells}</tr>'


def head_csv(head: Head) -> bytes:
    """Return a head's weights as CSV: row, column, their tokens, raw, effective and removed weight."""
    n = len(head.tokens)
    rows, columns = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    table = {"row": rows + 1, "column": columns + 1}
    table |= {"row_token": [head.tokens[i] for i in rows], "column_token": [head.tokens[i] for i in columns]}
    table["raw"] = head.raw.flatten().numpy()
    if head.effective is not None:
        table |= {"effective": head.effective.flatten().numpy(), "removed": head.removed.flatten().numpy()}
    return pd.DataFrame(table).to_csv(index=False, float_format="%.6g").encode()


def contributions_csv(found: Attribution) -> bytes:
    """Return contributions as CSV: layer, output and input token with their places, contribution, standard error."""
    layers, n, _ = found.contributions.shape
    layer, output, given = (axis.ravel() for axis in np.indices((layers, n, n)))
    table = {"layer": layer + 1, "output": output + 1, "input": given + 1}
    table |= {"output_token": [found.tokens[i] for i in output], "input_token": [found.tokens[i] for i in given]}
    table["contribution"] = found.contributions.flatten().numpy()
    table["standard_error"] = found.standard_error.flatten().numpy()
    return pd.DataFrame(table).to_csv(index=False, float_format="%.6g").encode()


def everything_npz(read: Read, head: Head, found: Attribution | None, identified: dict[str, Tensor] | None) -> bytes:
    """Return the numbers of the page as one npz file, with what they were measured on."""
    about = read.encoder.provenance | {"text": repr(read.text), "layer": head.layer, "head": head.number}
    arrays = {"tokens": np.array(read.tokens), "raw": head.raw.numpy(), "values": head.values.numpy()}
    if head.effective is not None:
        arrays["effective"] = head.effective.numpy()
    if found is not None:
        arrays |= {"contributions": found.contributions.numpy(), "standard_error": found.standard_error.numpy()}
        about |= {"method": found.method, "probes": found.probes, "seed": found.seed, "precision": found.precision}
    for name, hit in (identified or {}).items():
        arrays[f"identified {name}"] = hit.numpy()
    arrays["about"] = np.array([f"{key}: {value}" for key, value in about.items()])
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def head_svg(head: Head) -> bytes:
    """Return the maps of a head as the suite draws them in its notebooks."""
    effective = head.raw if head.effective is None else head.effective
    example = {"raw": head.raw.numpy(), "effective": effective.numpy(), "layer": head.layer, "head": head.number}
    example["correlation"] = float(head_correlation(head.raw, torch.as_tensor(effective)))
    return render(plot_raw_and_effective(example, list(head.tokens)), "explore")[".svg"]
