"""Hidden Token Attribution: how much of a hidden state comes from each input token, in four definitions.

``engine`` pushes tangents through the stock model, ``estimate`` turns what arrives into squared norms and sampling
errors, ``methods`` has the calls, ``precision`` and ``cost`` decide and predict, ``result`` keeps what was found.
"""

from ident_utils.attribution.cost import Cost, attribution_cost, together
from ident_utils.attribution.local import attention_rollout, local_attribution
from ident_utils.attribution.methods import METHODS, attribute, hidden_token_attribution
from ident_utils.attribution.result import Attribution
from ident_utils.attribution.summaries import by_relative_position, own_contribution, own_is_largest

__all__ = [
    "METHODS",
    "Attribution",
    "Cost",
    "attention_rollout",
    "attribute",
    "attribution_cost",
    "by_relative_position",
    "hidden_token_attribution",
    "local_attribution",
    "own_contribution",
    "own_is_largest",
    "together",
]
