"""Every verdict of every claim, from made-up measurements on both sides of each threshold."""

import json
import re

import pytest

from ident_utils.claims import (
    CLAIMS,
    IN_DIRECTION,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    check,
    judge,
    judgement,
    summary,
    verdict,
    verdict_table,
)
from ident_utils.errors import IdentError
from ident_utils.paths import NOTEBOOKS, ROOT

NAN = float("nan")


def layers(*lows: float) -> list[dict]:
    return [{"layer": i, "value": low + 0.01, "low": low, "high": low + 0.02} for i, low in enumerate(lows, start=1)]


# A measurement that reproduces its claim.
GOOD = {
    "C1": {"value": 1.0, "low": 1.0, "high": 1.0, "heads": 500, "heads_below_bound": 0, "heads_above_bound": 0}
    | {"output_difference": 1e-12},
    "C2": {"value": 0.5, "low": 0.4, "high": 0.6, "up_to_bound": 1.0},
    "C3": {"value": 0.7, "low": 0.6, "high": 0.8, "chance": 0.02, "mapping": "ridge"},
    "C4": {"value": -1.0, "low": -1.0, "high": -0.9, "largest_drop_share": 0.3, "by_layer": layers(0.9, 0.8, 0.7)},
    "C5": {"value": 0.0, "low": -0.01, "high": 0.01, "largest_norm_share": 0.1, "worst_layer": "layer 2"},
    "C6": {"value": 0.7, "low": 0.6, "high": 0.8, "lowest_layer": "layer 1", "by_layer": layers(0.6, 0.9)},
    "C7": {"value": 0.3, "low": 0.2, "high": 0.4},
    "C8": {"value": 0.07, "low": 0.06, "high": 0.08, "trend": -1.0}
    | {"by_layer": [{"layer": 1, "value": 0.3}, {"layer": 2, "value": 0.07}]},
    "C9": {"value": 0.6, "low": 0.55, "high": 0.7, "by_layer": layers(0.9, 0.8, 0.55)},
}

# claim, what differs from the good measurement, verdict
CASES = [
    ("C1", {"output_difference": 9e-6}, REPRODUCED),
    ("C1", {"output_difference": 1e-5}, IN_DIRECTION),
    ("C1", {"heads_above_bound": 1}, IN_DIRECTION),
    ("C1", {"heads_below_bound": 1}, NOT_REPRODUCED),
    ("C2", {"high": 0.899}, REPRODUCED),
    ("C2", {"high": 0.9}, IN_DIRECTION),
    ("C2", {"up_to_bound": 0.99}, IN_DIRECTION),
    ("C2", {"high": 1.0}, NOT_REPRODUCED),
    ("C2", {"high": NAN}, NOT_TESTED),
    ("C3", {"low": 0.5}, REPRODUCED),
    ("C3", {"low": 0.499}, IN_DIRECTION),
    ("C3", {"low": 0.2}, IN_DIRECTION),
    ("C3", {"low": 0.199}, NOT_REPRODUCED),
    ("C3", {"chance": 0.07}, NOT_REPRODUCED),  # 0.6 is more than half but not ten times chance
    ("C4", {"value": -0.901}, REPRODUCED),
    ("C4", {"value": -0.9}, NOT_REPRODUCED),
    ("C4", {"largest_drop_share": 0.5}, REPRODUCED),
    ("C4", {"largest_drop_share": 0.501}, IN_DIRECTION),
    ("C4", {"value": NAN}, NOT_REPRODUCED),
    ("C4", {"value": None}, NOT_REPRODUCED),
    ("C5", {"low": -0.019}, REPRODUCED),
    ("C5", {"low": -0.02}, IN_DIRECTION),
    ("C5", {"low": -0.03, "value": -0.02}, NOT_REPRODUCED),
    ("C5", {"largest_norm_share": 0.249}, REPRODUCED),
    ("C5", {"largest_norm_share": 0.25}, NOT_REPRODUCED),
    ("C6", {"low": 0.501}, REPRODUCED),
    ("C6", {"low": 0.5}, IN_DIRECTION),
    ("C6", {"low": 0.5, "by_layer": layers(0.9, 0.5)}, NOT_REPRODUCED),
    ("C7", {"high": 0.499}, REPRODUCED),
    ("C7", {"high": 0.5}, IN_DIRECTION),
    ("C7", {"high": 0.6, "value": 0.5}, NOT_REPRODUCED),
    ("C8", {"value": 0.051}, REPRODUCED),
    ("C8", {"value": 0.049}, IN_DIRECTION),
    ("C8", {"value": 0.099, "high": 0.0999}, REPRODUCED),
    ("C8", {"high": 0.1}, NOT_REPRODUCED),
    ("C8", {"trend": -0.9}, NOT_REPRODUCED),
    ("C8", {"trend": NAN}, NOT_REPRODUCED),
    ("C9", {"by_layer": layers(0.9, 0.8, 0.501)}, REPRODUCED),
    ("C9", {"by_layer": layers(0.9, 0.8, 0.5)}, IN_DIRECTION),
    ("C9", {"by_layer": layers(0.9, 0.4)}, NOT_REPRODUCED),  # half of the layers is not most of them
    ("C9", {"by_layer": layers(0.4, 0.4, 0.9)}, NOT_REPRODUCED),
]


def test_every_claim_has_its_notebook_and_a_good_measurement():
    assert list(CLAIMS) == [f"C{i}" for i in range(1, 10)] == list(GOOD)
    for name, claim in CLAIMS.items():
        assert claim.id == name
        assert re.fullmatch(r"0[1-6]_[a-z_]+", claim.notebook)
        assert claim.source in ("paper", "v1")


@pytest.mark.parametrize("claim", CLAIMS)
def test_good_measurement_reproduces(claim):
    assert verdict(claim, GOOD[claim]) == REPRODUCED
    assert verdict(claim, None) == NOT_TESTED


@pytest.mark.parametrize(("claim", "change", "expected"), CASES)
def test_verdict_on_both_sides_of_each_threshold(claim, change, expected):
    assert verdict(claim, GOOD[claim] | change) == expected


# What must hold for any model: claim, what breaks it.
BROKEN = [
    ("C1", {"heads_below_bound": 1}),
    ("C2", {"high": 1.0}),
    ("C3", {"low": 0.1}),
    ("C4", {"by_layer": layers(0.7, 0.8, 0.7)}),
    ("C5", {"largest_norm_share": 1.0}),
    ("C6", {"by_layer": layers(0.9, 0.5)}),
    ("C7", {"value": 0.5}),
    ("C8", {"by_layer": [{"value": 0.06}, {"value": 0.07}]}),
    ("C9", {"by_layer": layers(0.5, 0.9)}),
]


@pytest.mark.parametrize(("claim", "change"), BROKEN)
def test_lines_that_hold_for_every_model_can_fail(claim, change):
    good, bad = check({claim: GOOD[claim]}), check({claim: GOOD[claim] | change})
    assert good == f"{claim}: {CLAIMS[claim].always[0]}: yes"
    assert bad == f"{claim}: {CLAIMS[claim].always[0]}: NO"


def test_summary_and_judgement_print_value_interval_and_verdict():
    assert summary({"C7": GOOD["C7"]}) == "C7: reproduced; 0.30 [0.20, 0.40] in layer 1"
    table = judgement({"C7": GOOD["C7"]}).set_index("claim")
    assert list(table.index) == list(CLAIMS)
    assert table.loc["C7", "verdict"] == REPRODUCED and table.loc["C7", "measured"].startswith("0.30 [0.20, 0.40]")
    assert table.loc["C1", "verdict"] == NOT_TESTED and table.loc["C1", "measured"] == "run 01_rank_bound first"
    assert list(judgement(GOOD, ["C2", "C3"])["claim"]) == ["C2", "C3"]


@pytest.mark.parametrize("missing", [None, NAN])
def test_unknown_interval_is_shown_as_a_dash(missing):
    for claim in ("C2", "C3", "C5", "C6", "C7", "C8"):
        shown = CLAIMS[claim].show(GOOD[claim] | {"low": missing, "high": missing})
        assert "[–, –]" in shown and "nan" not in shown
    assert "largest step – of" in CLAIMS["C4"].show(GOOD["C4"] | {"largest_drop_share": missing})


# From the results folder.


@pytest.fixture
def figures(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENT_FIGURES", str(tmp_path))
    monkeypatch.delenv("IDENT_PROFILE", raising=False)
    (tmp_path / "smoke").mkdir()
    return tmp_path


def write(folder, notebook: str, measurements: dict) -> None:
    content = {"measurements": measurements, "provenance": {"notebook": notebook}}
    (folder / f"{notebook}.json").write_text(json.dumps(content))


def test_with_nothing_written_no_claim_is_tested(figures):
    table = judge("smoke")
    assert list(table["claim"]) == list(CLAIMS)
    assert set(table["verdict"]) == {NOT_TESTED}
    assert set(judge("full")["verdict"]) == {NOT_TESTED}  # its folder does not even exist
    with pytest.raises(IdentError, match="no profile 'tiny'"):
        judge("tiny")


def test_verdicts_follow_what_the_notebooks_wrote(figures):
    write(figures / "smoke", "05_contribution_decay", {"C7": GOOD["C7"], "C8": GOOD["C8"] | {"high": 0.2}})
    table = judge("smoke").set_index("claim")["verdict"]
    assert (table["C7"], table["C8"], table["C6"]) == (REPRODUCED, NOT_REPRODUCED, NOT_TESTED)
    assert set(judge("base")["verdict"]) == {NOT_TESTED}


def test_null_in_a_results_file_is_judged_and_shown(figures):
    nothing = {"low": None, "high": None}
    written = {c: m | {k: v for k, v in nothing.items() if k in m} for c, m in GOOD.items()}
    written["C4"] = written["C4"] | {"largest_drop_share": None, "value": -0.95}
    write(figures / "smoke", "any", written)
    table = judge("smoke").set_index("claim")
    assert set(table.loc[["C2", "C4", "C7"], "verdict"]) == {NOT_TESTED}  # a number without an interval is no verdict
    assert not re.search(r"\bnan\b|inf", " ".join(table["measured"]))


def test_table_has_one_row_a_claim_with_a_link(figures):
    write(figures / "smoke", "05_contribution_decay", {"C7": GOOD["C7"]})
    lines = verdict_table("smoke").splitlines()
    assert len(lines) == 2 + len(CLAIMS)
    assert len({line.count("|") for line in lines}) == 1
    assert "**reproduced**" in lines[8] and "[05](notebooks/05_contribution_decay.ipynb)" in lines[8]
    for line in lines[2:]:
        assert re.search(r"\]\(notebooks/\d\d_[a-z_]+\.ipynb\)", line)


def test_readme_shows_the_verdicts_that_the_committed_results_give(monkeypatch):
    monkeypatch.delenv("IDENT_FIGURES", raising=False)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- verdicts:begin -->\n(.*?)\n?<!-- verdicts:end -->", readme, re.DOTALL)
    assert found, "README.md has no verdicts between its two markers."
    assert found[1].strip() == verdict_table("base")
    for claim in CLAIMS.values():
        assert (NOTEBOOKS / f"{claim.notebook}.ipynb").is_file()
