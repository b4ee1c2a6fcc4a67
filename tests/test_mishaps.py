"""What goes wrong on real machines: edits during a run, no fonts, one core, clocks that jump, folders and disks."""

import os
import time

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from books import printed
from command import ident, python
from matplotlib.figure import Figure

from ident_utils import suite
from ident_utils.errors import IdentError
from ident_utils.paths import ROOT
from ident_utils.plots import plot_across_layers
from ident_utils.results import render, save_figure
from ident_utils.settings import load_settings

FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.argv = ["ident", "reproduce", "--profile", "smoke", "--jobs", "1"]
from ident_utils.cli import main
main()
"""


def test_a_notebook_that_is_edited_during_its_run_ends_as_it_began_and_is_not_published(write, folders):
    edit = "import pathlib\npath = pathlib.Path('01_edited.ipynb')\n"
    edit += "path.write_text(path.read_text().replace('before', 'after'))"
    source = write("01_edited", edit, "print('before')")
    [run] = suite.reproduce(profile="base")
    assert run.ok
    assert printed(run.path) == ["before"]
    assert "print('after')" in source.read_text()
    with pytest.raises(IdentError, match="other code"):
        suite.publish()


def test_a_font_that_is_missing_changes_no_figure(monkeypatch):
    """A user's style may ask for a font that this machine lacks; figures have a style of their own."""
    table = pd.DataFrame([(1, 1, 0.9), (1, 2, 0.2), (2, 1, 0.3), (2, 2, 0.8)], columns=["trained", "tested", "value"])
    usual = render(plot_across_layers(table), "x")
    with mpl.rc_context({"font.family": "A Font That Nobody Has", "font.sans-serif": ["Neither This"]}):
        assert render(plot_across_layers(table), "x") == usual


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a core")
def test_one_core_runs_one_notebook_at_a_time_on_one_thread(write, folders, monkeypatch):
    write("01_one", "import os\nprint(os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))")
    write("02_two", "print('two')")
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from ident_utils import scheduling, suite\n"
        "print(scheduling.choose_jobs(None, 9), scheduling.threads_each(1))\n"
        "print([run.ok for run in suite.reproduce(profile='smoke')])"
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["1 1", "[True, True]"]
    assert printed(folders / "runs" / "smoke" / "01_one.ipynb") == ["1 1"]


@pytest.mark.parametrize("jump", [-3e7, 3e7], ids=["a year back", "a year on"])
def test_a_clock_that_jumps_changes_no_duration(write, folders, monkeypatch, jump):
    write("01_good", "print('one')")
    real, began, events = time.time, time.monotonic(), []
    # Jupyter waits for a kernel to start by the same clock, so it jumps once the kernel has.
    monkeypatch.setattr(time, "time", lambda: real() + (jump if any(event.done for event in events) else 0))
    [run] = suite.reproduce(profile="smoke", on_event=events.append)
    assert run.ok
    assert 0 < run.seconds <= time.monotonic() - began
    assert all(event.seconds_left is None or event.seconds_left >= 0 for event in events)


def test_on_a_full_disk_finished_work_stays_and_a_sentence_says_why(write, folders):
    """A limit on the size of files stands in for the disk: the small copy is written, the large one is not."""
    write("01_small", "print('one')")
    write("02_large", "print('x' * 3_000_000)")
    result = python("-c", FULL_DISK.format(limit=1_000_000))
    runs = folders / "runs" / "smoke"
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert "02_large" in result.stdout
    assert "File too large" in result.stdout, "the sentence names the reason"
    assert printed(runs / "01_small.ipynb") == ["one"]
    assert sorted(os.listdir(runs)) == ["01_small.ipynb"], "no half of the other is left"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_read_only_results_are_refused_before_anything_runs(write, folders):
    write("01_good", "print('one')")
    (folders / "figures").mkdir(mode=0o555)
    result = ident("reproduce", "--profile", "smoke", cwd=folders)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("where", ["root", "notebooks"])
def test_papermill_itself_runs_a_notebook_from_any_folder(where, tmp_path):
    """Paths come from where the package lies, not from the working directory."""
    source = ROOT / "notebooks" / "09_verdicts.ipynb"
    cwd = ROOT if where == "root" else ROOT / "notebooks"
    command = ["-m", "papermill", str(source.relative_to(cwd)), str(tmp_path / "out.ipynb")]
    result = python(*command, "--kernel", "python3", "--no-progress-bar", cwd=cwd, IDENT_PROFILE="base")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "claims judged: 9 of 9" in printed(tmp_path / "out.ipynb")


@pytest.mark.parametrize("where", ["root", "notebooks"])
def test_nbval_itself_checks_a_notebook_from_any_folder_and_has_a_limit_of_time(where, tmp_path):
    cwd = ROOT if where == "root" else ROOT / "notebooks"
    source = (ROOT / "notebooks" / "09_verdicts.ipynb").relative_to(cwd)
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=100"]
    options += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval.cfg"), "-p", "no:cacheprovider"]
    result = python("-m", "pytest", str(source), "-q", *options, cwd=cwd, IDENT_PROFILE="base")
    assert result.returncode == 0, result.stdout[-2000:]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--nbval-cell-timeout=" in makefile
    assert 0 < suite.CELL_TIMEOUT <= 7200


def test_figures_saved_after_a_failed_one_are_whole(tmp_path, monkeypatch):
    """A figure whose writing fails leaves nothing, and its neighbour is as it would have been."""
    monkeypatch.setenv("IDENT_FIGURES", str(tmp_path))
    settings = load_settings("smoke")
    table = pd.DataFrame({"x": np.arange(3)})
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "01_bad.csv").mkdir()
    with pytest.raises(IdentError, match=r"Cannot write .*01_bad\.csv"):
        save_figure(settings, "01_bad", Figure(), table, alt="Nothing.")
    save_figure(settings, "02_good", Figure(), table, alt="Nothing.")
    assert not list((tmp_path / "smoke").glob(".*.part"))
    assert {path.suffix for path in (tmp_path / "smoke").glob("02_good.*")} == {".csv", ".svg", ".png"}


@pytest.mark.parametrize("command", [["verdict"], ["verdict", "--markdown"]], ids=" ".join)
def test_half_written_measurements_cost_one_sentence_that_names_them(folders, command):
    half = folders / "figures" / "smoke" / "01_rank_bound.json"
    half.parent.mkdir()
    half.write_text('{"measurements": {"C1": {"va')
    result = ident(*command, "--profile", "smoke", cwd=folders)
    said = " ".join(result.stderr.split())
    assert result.returncode == 2
    assert "Traceback" not in said and "rerun notebook 01_rank_bound" in said


def test_nbval_ends_with_kernels_that_hang_or_die(write):
    hangs, dies = write("01_hangs", "import time; time.sleep(600)"), write("02_dies", "import os; os._exit(3)")
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=2", "-p", "no:cacheprovider"]
    result = python("-m", "pytest", str(hangs), str(dies), "-q", *options, cwd=hangs.parent)
    assert result.returncode == 1, result.stdout[-2000:]
    assert "Timeout of 2 seconds exceeded" in result.stdout
    failed = [line.partition(" - ")[0] for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["FAILED 01_hangs.ipynb::Cell 1", "FAILED 02_dies.ipynb::Cell 1"]
