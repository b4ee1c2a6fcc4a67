"""Is what can be traced through a model what it computes? Checked on a few tokens, before anything is measured."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ident_utils.attribution.engine import span_of
from ident_utils.attribution.estimate import sampled_squares, shares
from ident_utils.errors import IdentError
from ident_utils.hooks import substitute_output, watch
from ident_utils.models import Encoder, Encoding
from ident_utils.trace import trace_encoding

TOKENS = 5
TOLERANCE = {torch.float64: 1e-6}  # eager attention of some families takes its softmax in float32
COARSE = 1e-4  # in any other precision


@dataclass(frozen=True)
class Check:
    """Hold one finding: what was checked, whether it holds, and what was seen."""

    what: str
    holds: bool
    seen: str


def check_encoder(encoder: Encoder) -> list[Check]:
    """Run all checks on a few tokens of the vocabulary; a check that cannot be run does not hold.

    Nothing is raised for what a model does; the first check that fails ends the list, since the others need it.
    """
    found: list[Check] = []
    checks = _checks(encoder)
    while True:
        try:
            found.append(next(checks))
        except StopIteration:
            return found
        except Exception as error:  # a family that is read wrongly can fail anywhere
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [*found, Check("the model runs and can be traced", False, reason)]
        if not found[-1].holds:
            return found


def refuse_unfaithful(encoder: Encoder) -> None:
    """Raise IdentError, naming the check, where a model fails one."""
    failed = [check for check in check_encoder(encoder) if not check.holds]
    if failed:
        raise IdentError(
            f"{encoder.name} is refused because a check fails: {failed[0].what} ({failed[0].seen.rstrip('.')}); "
            "`ident check` shows them all."
        )


def sample(encoder: Encoder) -> Encoding:
    """Take a few ordinary tokens from all over the vocabulary, so that no text has to fit it: n = 5."""
    special = set(encoder.tokenizer.all_special_ids)
    ordinary = [i for i in sorted(encoder.tokenizer.get_vocab().values()) if i not in special]
    ids = [ordinary[(2 * k + 1) * len(ordinary) // (2 * TOKENS)] for k in range(TOKENS)]
    input_ids = torch.tensor([ids[: encoder.max_tokens]], device=encoder.model.device)
    types = torch.zeros_like(input_ids) if getattr(encoder.model.config, "type_vocab_size", 0) > 1 else None
    tokens = tuple(encoder.tokenizer.convert_ids_to_tokens(input_ids[0].tolist()))
    return Encoding(input_ids, types, tokens, torch.zeros(input_ids.shape[1], dtype=torch.bool))


def _checks(encoder: Encoder) -> Iterator[Check]:
    rows, largest = encoder.model.get_input_embeddings().num_embeddings, max(encoder.tokenizer.get_vocab().values())
    yield Check("every token of the tokenizer has a row in the model", largest < rows, f"{largest + 1} of {rows}")
    encoding = sample(encoder)
    tolerance = TOLERANCE.get(encoder.dtype, COARSE)
    inputs: dict[int, Tensor] = {}
    with torch.inference_mode(), watch([encoder.embeddings], inputs.__setitem__):
        output = encoder.run(encoding, output_attentions=True)
    seen, wanted = len(output.attentions or ()), encoder.n_layers
    yield Check("one attention matrix a layer", seen == wanted, f"{seen} of {wanted}")
    seen = len(output.hidden_states)
    yield Check("a hidden state after every layer, and one before", seen == wanted + 1, f"{seen} of {wanted + 1}")
    rows_off = max((a.sum(-1) - 1).abs().max().item() for a in output.attentions)
    yield _small("attention rows sum to one", rows_off, tolerance)
    trace = trace_encoding(encoder, encoding)
    yield _small("A V equals the context vectors", _apart(trace.attention @ trace.values, trace.context), tolerance)
    if encoder.causal:
        ahead = trace.attention.triu(1).abs().max().item()
        yield _small("causal: no attention to later tokens", ahead, tolerance)
    yield from _substitution(encoder, encoding, inputs[0], trace.hidden, tolerance)
    contributions = shares(sampled_squares(encoder, encoding, span_of(encoder), probes=1, seed=0).mean)
    yield _small("attribution rows sum to one", (contributions.sum(-1) - 1).abs().max().item(), tolerance)


def _substitution(
    encoder: Encoder, encoding: Encoding, inputs: Tensor, hidden: Tensor, tolerance: float
) -> Iterator[Check]:
    """Check that the embedding block's output is all that the layers get, and that they get it."""
    other_words = replace(encoding, input_ids=encoding.input_ids.flip(1))

    def given(embedded: Tensor) -> Tensor:
        with torch.inference_mode(), substitute_output(encoder.embeddings, embedded):
            return torch.cat(encoder.run(other_words).hidden_states)

    same = _apart(given(inputs), hidden)
    yield _small("substituting the embedding output changes nothing, whatever the words", same, tolerance)
    felt = _apart(given(inputs.flip(1)), hidden)
    yield Check("another embedding output is felt", felt > tolerance, f"changed by {felt:.0e}")


def _apart(one: Tensor, other: Tensor) -> float:
    return ((one - other).abs().max() / other.abs().max().clamp_min(torch.finfo(other.dtype).tiny)).item()


def _small(what: str, size: float, tolerance: float) -> Check:
    return Check(what, size <= tolerance, f"off by {size:.0e}")  # NaN does not hold
