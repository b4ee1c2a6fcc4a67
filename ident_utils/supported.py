"""Which families of models are supported, shown by running the check on a tiny random model of each."""

import pandas as pd

from ident_utils.families import FAMILIES, Family
from ident_utils.fidelity import check_encoder
from ident_utils.tiny import tiny_encoder


def supported_families() -> pd.DataFrame:
    """Check a tiny model of every family: one row each, with what differs and how many checks hold.

    Nothing in the table depends on the weights.
    """
    return pd.DataFrame([_row(kind, family) for kind, family in FAMILIES.items()])


def _row(kind: str, family: Family) -> dict[str, str]:
    checks = check_encoder(tiny_encoder(kind))
    held = sum(check.holds for check in checks)
    wide = "embedding block, widened before the first layer" if family.widening else "embedding block"
    return {
        "family": kind,
        "layers": "shared, counted by calls" if family.shares_layers else "one set of weights each",
        "input tokens x": "word and position, summed" if family.embeddings == "drop" else wide,
        "values": "a projection of their own" if family.query_projection else "made with queries and keys",
        "last hidden state": "after a final norm" if family.final_norm else "after the last layer",
        "attention": "causal, which is stated" if family.causal else "to all tokens",
        "checks": f"{held} of {len(checks)}" + ("" if held == len(checks) else f", fails: {checks[-1].what}"),
    }


def supported_table() -> str:
    """Return the families as a Markdown table."""
    table = supported_families()
    lines = [list(table.columns), ["---"] * len(table.columns), *table.values.tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
