"""The command line as a user meets it: quick help, one sentence for every mistake, tables that fill."""

import os
import subprocess
import sys

import pytest
from command import ident

from ident_utils.cli import _parameter
from ident_utils.errors import IdentError
from ident_utils.paths import ROOT
from ident_utils.reporting import README_BEGIN, README_END, write_readme_table
from ident_utils.settings import profile_names


def test_help_loads_nothing_slow():
    code = (
        "import sys\n"
        "from ident_utils.cli import main\n"
        "sys.argv = ['ident', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as leaving:\n"
        "    assert not leaving.code, leaving.code\n"
        "slow = {'torch', 'transformers', 'pandas', 'papermill', 'matplotlib'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for command in ("reproduce", "list", "fetch", "verdict", "report", "publish", "bench"):
        assert command in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("reproduce", "--profile", "nonsense"), "'nonsense'"),
        (("reproduce", "nonsense"), "there is no notebook 'nonsense'; those that exist are 00_"),
        (("reproduce", "--model", "nonsense"), "There is no model 'nonsense'"),
        (("reproduce", "--corpus", "nonsense"), "There is no corpus 'nonsense'"),
        (("reproduce", "--seed", "five"), "--seed"),
        (("reproduce", "--seed", "-5"), "-5"),
        (("reproduce", "--timeout", "0"), "positive number of seconds, not 0"),
        (("reproduce", "-p", "seed"), "NAME=VALUE, not as 'seed'"),
        (("reproduce", "-p", "sede=3"), "no parameter 'sede'"),
        (("fetch", "nonsense"), "nonsense"),
        (("fetch", "--profile", "nonsense"), "'nonsense'"),
        (("verdict", "--profile", "nonsense"), "'nonsense'"),
        (("report", "--profile", "nonsense"), "'nonsense'"),
        (("publish", "--profile", "nonsense"), "'nonsense'"),
        (("reproduced",), "No such command 'reproduced'"),
    ],
)
def test_a_mistake_costs_one_sentence_and_code_2(tmp_path, arguments, sentence):
    result = ident(*arguments, cwd=tmp_path, IDENT_RUNS=str(tmp_path), IDENT_CACHE=str(tmp_path))
    assert result.returncode == 2, result.stdout + result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("ident: ")
    assert sentence in line
    assert result.stdout == ""


def test_list_shows_everything_there_is():
    result = ident("list")
    assert result.returncode == 0, result.stderr
    for name in ("00_start_here", "C1", "C9", "mpnet-base", "minilm-l6", "sotu-pairs", *profile_names()):
        assert name in result.stdout


def test_verdict_prints_every_claim_even_before_anything_was_measured(tmp_path):
    table = ident("verdict", "--profile", "smoke", IDENT_FIGURES=str(tmp_path))
    assert table.returncode == 0, table.stderr
    markdown = ident("verdict", "--profile", "smoke", "--markdown", IDENT_FIGURES=str(tmp_path))
    assert markdown.returncode == 0, markdown.stderr
    for number in range(1, 10):
        assert f"C{number}" in table.stdout
        assert f"C{number}" in markdown.stdout
    assert "not tested" in table.stdout


def test_version_is_printed():
    result = ident("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("ident ")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("seed=3", ("seed", 3)),
        ("model=None", ("model", None)),
        ("corpus=sotu-pairs", ("corpus", "sotu-pairs")),
        ("formula=a=b", ("formula", "a=b")),
    ],
)
def test_parameters_are_read_as_literals_or_text(text, pair):
    assert _parameter(text) == pair


class TestReadme:
    def test_only_what_stands_between_the_marks_changes(self, tmp_path):
        readme = tmp_path / "README.md"
        readme.write_text(f"before\n{README_BEGIN}\nold\n{README_END}\nafter\n")
        table = "| C1 | \\alpha \\1 |"
        assert write_readme_table(table, readme) == readme
        assert readme.read_text() == f"before\n{README_BEGIN}\n{table}\n{README_END}\nafter\n"
        write_readme_table(table, readme)
        assert readme.read_text().count(table) == 1

    @pytest.mark.parametrize(
        "text",
        ["no marks", README_BEGIN, f"{README_END} {README_BEGIN}", f"{README_BEGIN}{README_END}{README_END}"],
    )
    def test_marks_that_are_missing_or_crossed_are_refused(self, tmp_path, text):
        readme = tmp_path / "README.md"
        readme.write_text(text)
        with pytest.raises(IdentError, match="each once"):
            write_readme_table("table", readme)
        assert readme.read_text() == text

    def test_a_missing_readme_is_refused(self, tmp_path):
        with pytest.raises(IdentError, match="cannot be read"):
            write_readme_table("table", tmp_path / "README.md")
