"""Notebook 03: what could imitate identity: position, word, shuffled targets, untrained and scrambled models."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from ident_utils.experiments.identity_retention import (
    NAIVE_AND_RIDGE,
    find_tokens,
    fit_mappings,
    missed,
    own_hits,
    retention_table,
)
from ident_utils.experiments.identity_transfer import some_layers
from ident_utils.identity import by_sequence, fit_mapping
from ident_utils.models import Encoder, Text
from ident_utils.remembering import remembered
from ident_utils.states import Split, TokenStates, collect_split
from ident_utils.stats import bootstrap_mean


def one_hot_positions(split: Split) -> list[Tensor]:
    """Return for each part of the split its tokens' positions, one-hot [N, P]; P is what training has seen."""
    width = int(split.train.position.max()) + 1
    return [(part.position[:, None] == torch.arange(width)).float() for part in split.parts]


def word_embeddings(encoder: Encoder, split: Split) -> list[Tensor]:
    """Return for each part of the split its tokens' rows of the word embedding table [N, d_w]: no position in it."""
    table = encoder.model.get_input_embeddings().weight
    return [table[part.word].float() for part in split.parts]


def control_hits(split: Split, features: Sequence[Tensor]) -> Tensor:
    """Fit ridge from features of the three parts to the inputs: was each test token identified, [N]?"""
    train, held, test = features
    inputs = split.train.inputs, split.validation.inputs
    mapping = fit_mapping(train, inputs[0], validation=(held, inputs[1]), score=missed(split.validation))
    return own_hits(mapping.predict(test), split.test)


def shuffled_hits(split: Split, layer: int, *, seed: int = 0) -> Tensor:
    """Fit ridge to targets that are shuffled over all training tokens: was each test token identified, [N]?

    Within a sequence would not do: some tokens keep their place, and leak.
    """
    generator = torch.Generator().manual_seed(seed)
    train, held = (part.inputs[torch.randperm(len(part.word), generator=generator)] for part in split.parts[:2])
    mapping = fit_mapping(
        split.train.hidden[layer],
        train,
        validation=(split.validation.hidden[layer], held),
        moments=split.moments(layer),
    )
    return own_hits(mapping.predict(split.test.hidden[layer]), split.test)


@remembered
def measure_controls(encoder: Encoder, split: Split, resamples: int, *, seed: int = 0) -> pd.DataFrame:
    """Measure controls on the texts of the main result: mapping, layer, value, low, high, n_sequences.

    ``position only`` and ``word only`` see no hidden state and are the same for every layer; shuffled targets are
    tried in five layers.
    """
    constant = {
        "word only": control_hits(split, word_embeddings(encoder, split)),
        "position only": control_hits(split, one_hot_positions(split)),
    }
    hit = {(name, layer): of_all for name, of_all in constant.items() for layer in split.layers}
    for layer in some_layers(len(split.layers), 5):
        hit["targets shuffled", layer] = shuffled_hits(split, layer, seed=seed)
    rows = []
    for (name, layer), of_tokens in hit.items():
        interval = bootstrap_mean(by_sequence(of_tokens, split.test.sequence), resamples=resamples)
        rows.append({"mapping": name, "layer": layer} | interval.as_dict())
    return pd.DataFrame(rows)


@remembered
def measure_model(
    encoder: Encoder,
    texts: Sequence[Text],
    name: str,
    resamples: int,
    mappings: Sequence[tuple[str, str]] = NAIVE_AND_RIDGE,
    *,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure retention and steps of a control model.

    Returns a table of own-row rates of the ``mappings`` (mapping, layer, value, low, high, n_sequences) and the steps
    of :func:`measure_steps`.
    """
    split = collect_split(encoder, texts, seed=seed)
    table = retention_table(find_tokens(fit_mappings(split, mappings), split), split.test, resamples)
    own = table[table["lookup"] == "own"].drop(columns="lookup")
    return own.assign(mapping=f"{name}, " + own["mapping"]), measure_steps(split.test).assign(model=name)


@remembered
def measure_steps(states: TokenStates) -> pd.DataFrame:
    """Say how far each layer moves the states, and how much of that movement all tokens of a sequence share.

    Columns: layer; ``moved``, the median length of the step e^l - e^(l-1) relative to e^(l-1); ``common``, the share
    of the squared steps that their mean over the sequence accounts for: it shifts all candidates alike.
    """
    _, sequence, counts = torch.unique(states.sequence, return_inverse=True, return_counts=True)
    rows = []
    for layer in range(1, states.n_layers + 1):
        before, step = states.hidden[layer - 1], states.hidden[layer] - states.hidden[layer - 1]
        mean = torch.zeros(len(counts), step.shape[1]).index_add_(0, sequence, step) / counts[:, None]
        common = (counts[:, None] * mean.square()).sum() / step.square().sum()
        moved = (step.norm(dim=-1) / before.norm(dim=-1)).median()
        rows.append({"layer": layer, "moved": moved.item(), "common": common.item()})
    return pd.DataFrame(rows)
