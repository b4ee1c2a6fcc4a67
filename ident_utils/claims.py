"""The claims, their criteria and their verdicts. Criteria were fixed before anything was measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import pandas as pd

from ident_utils.results import load_measurements
from ident_utils.settings import Settings, load_settings

REPRODUCED = "reproduced"
IN_DIRECTION = "reproduced in direction"
NOT_REPRODUCED = "not reproduced"
NOT_TESTED = "not tested"

PAPER = "paper"  # ICLR 2020, arXiv 1908.04211v4
V1 = "v1"  # August 2019, arXiv 1908.04211v1

Measurement = dict


@dataclass(frozen=True)
class Claim:
    """Hold one claim: what is said where, how it is judged, and how the number is shown."""

    id: str
    text: str
    source: str
    notebook: str
    criterion: str
    decide: Callable[[Measurement], str]
    show: Callable[[Measurement], str]
    always: tuple[str, Callable[[Measurement], bool]]  # what must hold for every model and profile


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or not isfinite(value) else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None or not isfinite(value) else f"{value:.0%}"


def interval(m: Measurement, digits: int = 3) -> str:
    """Print a measured value with its 95% interval."""
    return f"{_number(m['value'], digits)} [{_number(m['low'], digits)}, {_number(m['high'], digits)}]"


def _grade(reproduced: bool, in_direction: bool) -> str:
    return REPRODUCED if reproduced else IN_DIRECTION if in_direction else NOT_REPRODUCED


def _c1(m: Measurement) -> str:
    exact = m["heads_below_bound"] == 0 and m["heads_above_bound"] == 0
    return _grade(exact and m["output_difference"] < 1e-5, m["heads_below_bound"] == 0)


def _c2(m: Measurement) -> str:
    return _grade(m["up_to_bound"] > 0.99 and m["high"] < 0.9, m["high"] < m["up_to_bound"])


def _c3(m: Measurement) -> str:
    return _grade(m["low"] >= max(0.5, 10 * m["chance"]), m["low"] >= 10 * m["chance"])


def _c4(m: Measurement) -> str:
    falls = m["value"] is not None and m["value"] < -0.9
    return _grade(falls and m["largest_drop_share"] <= 0.5, falls)


def _c5(m: Measurement) -> str:
    weak_norm = m["largest_norm_share"] < 0.25
    return _grade(weak_norm and m["low"] > -0.02, weak_norm and m["value"] > -0.02)


def _c8(m: Measurement) -> str:
    direction = m["trend"] is not None and m["trend"] < -0.9 and m["high"] < 0.10
    return _grade(direction and abs(m["value"] - 0.075) <= 0.025, direction)


def _c9(m: Measurement) -> str:
    holds = [layer["low"] > 0.5 for layer in m["by_layer"]]
    return _grade(all(holds), sum(holds) > len(holds) / 2)


def _layers_held(m: Measurement) -> str:
    held = [layer["layer"] for layer in m["by_layer"] if layer["low"] > 0.5]
    return f"holds in {len(held)} of {len(m['by_layer'])} layers; last layer {interval(m, 2)}"


CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim(
            "C1",
            "attention weights are not identifiable once the sequence is longer than the head dimension",
            PAPER,
            "01_rank_bound",
            "nullity of [V, 1] is n − d_v − 1 beyond the bound and 0 below it, in every head of every text; "
            "another attention matrix changes the head's output by less than 1e-5 (relative)",
            _c1,
            lambda m: (
                f"{m['heads_below_bound'] + m['heads_above_bound']} of {m['heads']:,} counts off the bound; "
                f"other attention, output changed by {m['output_difference']:.0e}"
            ),
            ("no head has less freedom than the bound", lambda m: m["heads_below_bound"] == 0),
        ),
        Claim(
            "C2",
            "effective attention differs from raw attention beyond the bound",
            PAPER,
            "02_effective_attention",
            "Pearson correlation ≈ 1 (> 0.99) for n ≤ d_v, and its upper 95% bound < 0.9 at n ≥ 1.5 d_v",
            _c2,
            lambda m: f"correlation {interval(m, 2)} at n ≥ 1.5 d_v, {_number(m['up_to_bound'], 2)} up to n = d_v",
            ("correlation is lower beyond the bound", lambda m: m["high"] < m["up_to_bound"]),
        ),
        Claim(
            "C3",
            "input tokens retain their identity to a large degree through all layers",
            PAPER,
            "03_identity_retention",
            "lower 95% bound of the identification rate at the last layer ≥ 0.5 and ≥ 10 × chance",
            _c3,
            lambda m: f"{interval(m, 2)} at the last layer ({m['mapping']}; chance {_number(m['chance'])})",
            ("identified at least ten times as often as by chance", lambda m: m["low"] >= 10 * m["chance"]),
        ),
        Claim(
            "C4",
            "the identity gradually decreases with depth",
            PAPER,
            "03_identity_retention",
            "Spearman correlation of the rate with depth < −0.9, and no step between neighbouring layers takes "
            "more than half of the whole drop",
            _c4,
            lambda m: (
                f"Spearman {interval(m, 2)}; {m['by_layer'][0]['value']:.2f} → {m['by_layer'][-1]['value']:.2f}, "
                f"largest step {_percent(m['largest_drop_share'])} of the drop"
            ),
            (
                "fewer tokens are identified in the last layer than in the first",
                lambda m: m["by_layer"][-1]["value"] < m["by_layer"][0]["value"],
            ),
        ),
        Claim(
            "C5",
            "the identity is encoded mainly in the angle of the embeddings, not in their norm",
            PAPER,
            "04_angle_vs_norm",
            "in every layer the direction alone is not worse than the full state by more than 0.02 (paired, lower "
            "95% bound), and the norm alone reaches less than a quarter of it",
            _c5,
            lambda m: (
                f"direction minus full {interval(m)} in the worst layer ({m['worst_layer']}); norm alone reaches at "
                f"most {_percent(m['largest_norm_share'])} of full"
            ),
            (
                "the norm alone identifies less than the direction alone",
                lambda m: m["largest_norm_share"] < 1,
            ),
        ),
        Claim(
            "C6",
            "contextual embeddings mix the information of many input tokens",
            PAPER,
            "05_contribution_decay",
            "share of the attribution on other tokens: lower 95% bound > 0.5 in every layer",
            lambda m: _grade(m["low"] > 0.5, m["by_layer"][-1]["low"] > 0.5),
            lambda m: f"{interval(m, 2)} on other tokens in the lowest layer ({m['lowest_layer']})",
            (
                "most of the last layer's attribution is on other tokens",
                lambda m: m["by_layer"][-1]["low"] > 0.5,
            ),
        ),
        Claim(
            "C7",
            "after the first layer less than 50% is attributed to the own token",
            V1,
            "05_contribution_decay",
            "median own contribution in layer 1: upper 95% bound < 0.5",
            lambda m: _grade(m["high"] < 0.5, m["value"] < 0.5),
            lambda m: f"{interval(m, 2)} in layer 1",
            ("the median after layer 1 is below one half", lambda m: m["value"] < 0.5),
        ),
        Claim(
            "C8",
            "the median own contribution declines to 7.5% in the last layer (BERT-base)",
            V1,
            "05_contribution_decay",
            "in direction: Spearman with depth < −0.9 and the last layer's upper 95% bound < 10%; reproduced: also "
            "the median within 2.5 points of 7.5%",
            _c8,
            lambda m: f"{interval(m)} in the last layer; Spearman with depth {_number(m['trend'], 2)}",
            (
                "the last layer's median is the lowest",
                lambda m: min(x["value"] for x in m["by_layer"]) == m["value"],
            ),
        ),
        Claim(
            "C9",
            "throughout the layers the own token remains the largest contributor",
            V1,
            "06_context_mixing",
            "share of tokens whose own contribution is the largest: lower 95% bound > 0.5 in every layer; "
            "in direction, in more than half of the layers",
            _c9,
            _layers_held,
            ("it is the largest for most tokens in the first layer", lambda m: m["by_layer"][0]["low"] > 0.5),
        ),
    )
}


def verdict(claim: str, measurement: Measurement | None) -> str:
    """Judge one claim by its criterion; without a measurement, or without an interval to it, it is not tested."""
    if measurement is None or not all(isfinite(measurement[end]) for end in ("low", "high") if end in measurement):
        return NOT_TESTED
    return CLAIMS[claim].decide(measurement)


def check(measurements: dict[str, Measurement]) -> str:
    """Print-ready lines of what must hold for these claims whatever the model and profile."""
    lines = []
    for claim, measurement in measurements.items():
        statement, holds = CLAIMS[claim].always
        lines.append(f"{claim}: {statement}: {'yes' if holds(measurement) else 'NO'}")
    return "\n".join(lines)


def summary(measurements: dict[str, Measurement]) -> str:
    """Return one line a claim: its verdict and what was measured."""
    return "\n".join(f"{c}: {verdict(c, m)}; {CLAIMS[c].show(m)}" for c, m in measurements.items())


def judgement(measurements: dict[str, Measurement], claims: Sequence[str] = tuple(CLAIMS)) -> pd.DataFrame:
    """Return one row a claim, strings ready to print: claim, text, source, notebook, criterion, measured, verdict."""
    rows = []
    for name in claims:
        claim, measured = CLAIMS[name], measurements.get(name)
        rows.append(
            {
                "claim": name,
                "text": claim.text,
                "source": claim.source,
                "notebook": claim.notebook,
                "criterion": claim.criterion,
                "measured": claim.show(measured) if measured else f"run {claim.notebook} first",
                "verdict": verdict(name, measured),
            }
        )
    return pd.DataFrame(rows)


def judge(profile: str | Settings = "base") -> pd.DataFrame:
    """Judge every claim by what the notebooks wrote for a profile; columns as in :func:`judgement`."""
    settings = load_settings(profile) if isinstance(profile, str) else profile
    return judgement(load_measurements(settings.folder))


def in_papers_setting() -> list[str]:
    """Return, for each claim, what the profile ``paper`` has measured and its verdict, or *not tested here*."""
    rows = judge("paper").to_dict("records")
    return [
        f"{NOT_TESTED} here" if row["verdict"] == NOT_TESTED else f"{row['measured']}: {row['verdict']}"
        for row in rows
    ]


def verdict_table(profile: str = "base") -> str:
    """Return the verdicts as a markdown table with links to the notebooks, beside those in the paper's setting."""
    table = judge(profile).assign(there=in_papers_setting())
    lines = [
        "| | claim | source | measured here [95% interval] | verdict | BERT-base on MRPC (`paper`) | notebook |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        link = f"[{row.notebook[:2]}](notebooks/{row.notebook}.ipynb)"
        here = f"{row.text} | {row.source} | {row.measured} | **{row.verdict}**"
        lines.append(f"| {row.claim} | {here} | {row.there} | {link} |")
    return "\n".join(lines)
