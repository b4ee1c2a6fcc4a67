"""The same seed gives the same numbers, to the digits that are printed, on one, two and four threads."""

from collections.abc import Iterator

import pytest
import torch
from encoders import make_texts, tiny_encoder

from ident_utils.attention import RowPolytope, alternative_attention, effective_attention
from ident_utils.attribution import attribute
from ident_utils.experiments.identity_retention import fit_layer, own_hits
from ident_utils.states import collect_split

DIGITS = 6  # notebooks print at most four, results keep six


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def measured(threads: int) -> dict[str, list[str]]:
    """Measure a little of everything on some threads, and return it as printed."""
    torch.set_num_threads(threads)
    encoder, texts = tiny_encoder("bert", layers=2, dtype=torch.float32), make_texts(30, 20)
    double = tiny_encoder("bert", layers=2, dtype=torch.float64)
    trace = double.trace(texts[0])
    split = collect_split(encoder, texts, seed=0)
    found = {"effective": effective_attention(trace.attention, trace.values).weights}
    row, values = trace.attention[0, 0, 3], trace.values[0, 0]
    found["interval"] = torch.tensor(RowPolytope(values).intervals(row.numpy(), [0, 3]))[:, :2]
    found["alternative"] = alternative_attention(row[None], values).weights
    found["contribution"] = attribute(encoder, texts[1], probes=2, seed=0).contributions
    for kind, loss in (("ridge", "l2"), ("linear", "cosine"), ("mlp", "l2")):
        mapping = fit_layer.function(split, 2, kind, loss, 0)
        found[f"{kind}, {loss}"] = own_hits(mapping.predict(split.test.hidden[2]), split.test).float().mean()
    return {name: [f"{x:.{DIGITS}f}" for x in value.flatten().tolist()] for name, value in found.items()}


def test_numbers_do_not_depend_on_the_threads():
    one = measured(1)
    assert len(one) == 7
    assert measured(2) == one
    assert measured(4) == one
