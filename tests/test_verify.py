"""Numbers computed once more: which statements that takes, what counts as the same, and what a change is called."""

import ast
import csv
import json
import os
import shutil
from pathlib import Path

import pytest
from command import ident

from ident_utils.errors import IdentError
from ident_utils.notebooks import notebook_paths
from ident_utils.paths import ROOT
from ident_utils.slicing import results_of, slice_notebook
from ident_utils.suite import reproduce
from ident_utils.verify import Compared, agree, compare, draw, read_saved, verify

SETTINGS = "from ident_utils.settings import load_settings\nsettings = load_settings(profile, seed=seed)"
SAVE = """
import os, pathlib
import pandas as pd
from matplotlib.figure import Figure
from ident_utils.results import save_figure
"""


def table(name: str, numbers: str) -> str:
    """Return a cell that saves a table of numbers as a figure."""
    return f"drawn = pd.DataFrame({{'x': {numbers}}})\nsave_figure(settings, '{name}', Figure(), drawn, alt='a')"


# Which statements a result depends on.


def kept(write, names: list[str], *sources: str) -> list[str]:
    """Return the statements that a slice keeps, after imports and parameters."""
    notebook = slice_notebook(write("01_one", *sources), names)
    cells = [cell["source"] for cell in notebook["cells"] if not cell["metadata"].get("tags")]
    return [line for source in cells for line in ast.unparse(ast.parse(source)).splitlines()]


def test_a_slice_holds_what_its_result_depends_on_and_nothing_else(write):
    sources = (
        "import numpy as np",
        "data = np.ones(3); other = 5",
        "print(data)\nslow = other ** 2",
        "save_figure(settings, '01_other', f, slow, alt='')",
        "total = data.sum()",
        "save_figure(settings, '01_total', f, total, alt='')",
    )
    assert kept(write, ["01_total"], *sources) == [
        "import numpy as np",
        "data = np.ones(3)",
        "total = data.sum()",
        "save_figure(settings, '01_total', f, total, alt='')",
    ]
    assert len(kept(write, ["01_total", "01_other"], *sources)) == 7
    assert results_of(write("01_one", *sources)) == ["01_other", "01_total"]


@pytest.mark.parametrize(
    "change",
    [
        "x.append(1)", "x[0] = 1", "x.y = 1", "x += [1]", "for i in y:\n    x.append(i)", "x.y[0].z(1)",
        "if y:\n    x = 2", "with y as x:\n    pass", "x, z = (y, 1)", "for x in y:\n    pass", "x |= y", "del x[0]",
    ],
)  # fmt: skip
def test_what_changes_a_variable_is_kept(write, change):
    save = "save_figure(s, '01_x', f, x, alt='')"
    assert "\n".join(kept(write, ["01_x"], "x = []", change, save)).endswith(f"{change}\n{save}")


def test_what_is_overwritten_is_not_kept(write):
    save = "save_figure(s, '01_x', f, x, alt='')"
    assert kept(write, ["01_x"], "x = slow()", "x = 1", save, "x = 2") == ["x = 1", save]
    assert kept(write, ["01_x"], "x = slow()", "x = x + 1", save) == ["x = slow()", "x = x + 1", save]


def test_an_unknown_result_and_code_that_is_no_python_are_refused(write):
    with pytest.raises(IdentError, match=r"01_one.ipynb saves no result '01_y'"):
        slice_notebook(write("01_one", "x = 1"), ["01_y"])
    with pytest.raises(IdentError, match="no plain Python"):
        slice_notebook(write("01_one", "%magic"), ["01_y"])


def test_every_committed_number_leads_back_to_a_notebook():
    saved = {path.stem for pattern in ("*.csv", "*.json") for path in (ROOT / "figures" / "base").glob(pattern)}
    named = [name for path in notebook_paths(ROOT / "notebooks") for name in results_of(path)]
    assert sorted(saved) == sorted(named)
    for path in notebook_paths(ROOT / "notebooks"):
        for name in results_of(path):
            cells = slice_notebook(path, [name])["cells"]
            assert name in cells[-1]["source"] and "load_settings(profile" in "".join(c["source"] for c in cells)


# What counts as the same.


@pytest.mark.parametrize(
    ("saved", "made", "digits", "same"),
    [
        ("0.123456", "0.123457", 6, True), ("0.123456", "0.123458", 6, False), ("0.123456", "0.1239", 3, True),
        ("999999", "1e+06", 6, True), ("-0.5", "0.5", 6, False), ("0", "0.0", 6, True), ("0", "1e-9", 6, False),
        ("7e-16", "-2e-16", 6, True), ("12", "13", 6, False), ("nan", "nan", 6, True), ("nan", "1", 6, False),
        ("inf", "1", 6, False), ("own", "own", 6, True), ("own", "word", 6, False), ("True", "False", 6, False),
        ("", "0", 6, False), ("absent", "0", 6, False), ("100000", "100001", 6, True), ("100000", "100002", 6, False),
    ],
)  # fmt: skip
def test_numbers_agree_in_their_digits_and_words_as_they_are(saved, made, digits, same):
    assert agree(saved, made, digits) is agree(made, saved, digits) is same


def test_places_that_only_one_side_has_differ():
    found = compare("01_one", {"row 1, x": "1", "row 2, x": "2"}, {"row 1, x": "1", "row 3, x": "3"})
    assert [(each.where, each.agrees) for each in found] == [
        ("row 1, x", True),
        ("row 2, x", False),
        ("row 3, x", False),
    ]
    assert Compared("01_one", "row 1, x", "1.5", "1.25", False).difference == -0.25
    assert Compared("01_one", "row 1, x", "own", "1.25", False).difference is None


def test_a_tampered_copy_of_the_committed_numbers_is_told_from_them(tmp_path):
    base = ROOT / "figures" / "base"
    for name in ("03_identity_retention", "05_own_contribution"):
        saved = read_saved(base, name)
        assert len(saved) > 50 and all(each.agrees for each in compare(name, saved, read_saved(base, name)))
    content = json.loads((base / "03_identity_retention.json").read_text())
    content["measurements"]["C3"]["value"] *= 1.0001
    (tmp_path / "03_identity_retention.json").write_text(json.dumps(content))
    found = compare("03", read_saved(base, "03_identity_retention"), read_saved(tmp_path, "03_identity_retention"))
    assert [each.where for each in found if not each.agrees] == ["C3, value"]
    (tmp_path / "03_identity_retention.json").write_text("{}")
    with pytest.raises(IdentError, match=r"03_identity_retention in .* cannot be read"):
        read_saved(tmp_path, "03_identity_retention")


# What is drawn.


def test_a_draw_is_a_share_repeats_with_its_seed_and_covers_everything(monkeypatch):
    monkeypatch.delenv("IDENT_FIGURES", raising=False)
    drawn = draw("base", seed=3)
    assert len(drawn.results) == -(-drawn.total_results * 5 // 100) and drawn.total_numbers > 100_000
    assert draw("base", seed=3).results == drawn.results
    assert len({tuple(draw("base", seed=seed).results) for seed in range(9)}) > 5
    assert len(draw("base", share=1, seed=0).results) == drawn.total_results
    assert {name[:2] for name in draw("base", notebooks=["3"], share=1, seed=0).results} == {"03"}
    assert "seed 3" in str(drawn) and all(name in str(drawn) for name in drawn.results)


def test_what_was_made_with_other_settings_or_libraries_is_said(folders, monkeypatch):
    monkeypatch.delenv("IDENT_NOTEBOOKS")
    target = folders / "figures" / "base"
    shutil.copytree(
        ROOT / "figures" / "base", target, ignore=shutil.ignore_patterns("*.svg", "*.png", "replay", "dark")
    )
    file = target / "02_effective_attention.json"
    content = json.loads(file.read_text())
    content["provenance"]["settings"] |= {"attention_sequences": 99}
    content["provenance"]["packages"] |= {"torch": "0.1"}
    file.write_text(json.dumps(content))
    said = str(draw("base", notebooks=["2"], share=1, seed=0))
    assert "attention_sequences 99 (now " in said and "torch 0.1 (here " in said


def test_a_senseless_share_and_missing_results_are_refused(folders, write):
    write("01_one", SAVE, SETTINGS, table("01_x", "[1]"))
    for share in (0, -1, 1.5, float("nan")):
        with pytest.raises(IdentError, match="more than 0 and at most 1"):
            draw("smoke", share=share)
    with pytest.raises(IdentError, match="no results of smoke to verify; make some with 'ident reproduce"):
        draw("smoke")


# All of it.


@pytest.fixture
def reproduced(write, folders) -> Path:
    """Run a notebook of two tables, of which the first leaves a mark, and return the folder of results."""
    mark = f"with open({str(folders / 'mark')!r}, 'a') as file:\n    file.write('x')\n"
    first = mark + "x = [len(file.name)] + [i / 7 for i in range(5)]\n" + table("01_first", "x")
    write("01_one", SAVE, SETTINGS, first, table("01_second", "[2 / 3, 1e-16]"))
    assert reproduce(profile="smoke")[0].ok
    return folders / "figures" / "smoke"


def test_honest_numbers_pass_and_each_is_reported(reproduced, folders):
    before = {path.name: path.read_bytes() for path in reproduced.iterdir() if path.is_file()}
    result = ident("verify", "--profile", "smoke", "--share", "1", cwd=folders)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 of 2 results of smoke, with 8 of 8 numbers" in result.stdout
    with (folders / "runs" / "smoke.verified.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {row["agrees"] for row in rows} == {"True"}
    assert list(rows[1].values()) == ["01_first", "row 2, x", "0", "0", "0", "True"]
    assert before == {path.name: path.read_bytes() for path in reproduced.iterdir() if path.is_file()}
    assert (folders / "mark").read_text() == "xx", "it was not computed once more"


def test_a_tampered_number_is_found_and_named(reproduced, folders):
    file = reproduced / "01_second.csv"
    file.write_text(file.read_text().replace("0.666667", "0.666669"))
    result = ident("verify", "--profile", "smoke", "--share", "1", cwd=folders)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "differs 01_second, row 1, x: saved 0.666669, now 0.666667, -2e-06" in result.stdout
    assert result.stdout.count("differs ") == 1
    found, _ = verify(draw("smoke", share=1), digits=4)
    assert len(found) == 8 and all(each.agrees for each in found)


def test_only_what_was_drawn_is_computed(reproduced, folders):
    draws = {tuple(drawn.results): drawn for drawn in (draw("smoke", share=0.5, seed=seed) for seed in range(20))}
    found, runs = verify(draws["01_second",])
    assert [each.result for each in found] == ["01_second"] * 2 and all(each.agrees for each in found) and runs[0].ok
    assert "IDENT_FIGURES" in os.environ and os.environ["IDENT_FIGURES"] == str(folders / "figures")
    assert (folders / "mark").read_text() == "x", "a table that was not drawn was computed"


def test_a_notebook_that_fails_does_not_pass(reproduced, write, folders):
    write("01_one", SAVE, SETTINGS, "x = 1 / 0\n" + table("01_first", "x"), table("01_second", "[2 / 3, 1e-16]"))
    found, [run] = verify(draw("smoke", share=1))
    assert (run.ok, run.error) == (False, "ZeroDivisionError")
    assert (
        len(found) == 8
        and not any(each.agrees for each in found)
        and {each.recomputed for each in found} == {"absent"}
    )


def test_results_without_their_notebook_are_not_passed_over(reproduced, folders):
    shutil.rmtree(reproduced)
    result = ident("verify", "--profile", "smoke", cwd=folders)
    assert result.returncode == 2 and "no results of smoke" in result.stderr
