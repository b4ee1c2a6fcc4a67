"""Measure what attention weights, token identities and contributions can be told from a transformer.

Shapes are written with these letters everywhere: L layers, H heads, n tokens, d hidden width, d_v head width,
V vocabulary, N tokens of many sequences together. Arrays of layers start at layer 1; ``hidden[0]`` is the
embedding block's output.
"""

from importlib import import_module

_HOME = {
    "load_encoder": "models",
    "Encoder": "models",
    "load_corpus": "corpora",
    "Trace": "trace",
    "rank_bound": "attention",
    "nullity": "attention",
    "effective_attention": "attention",
    "weight_interval": "attention",
    "row_intervals": "attention",
    "alternative_attention": "attention",
    "fit_mapping": "identity",
    "identification_rate": "identity",
    "hidden_token_attribution": "attribution",
    "bootstrap_median": "stats",
    "CLAIMS": "claims",
    "judge": "claims",
    "load_settings": "settings",
    "reproduce": "suite",
    "IdentError": "errors",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    """Import a public name from its module when it is first used: torch takes seconds to load."""
    if name not in _HOME:
        raise AttributeError(f"module 'ident_utils' has no attribute {name!r}")
    return getattr(import_module(f"ident_utils.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
