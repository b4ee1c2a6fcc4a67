"""What a run tells while it goes on: cells, loops within them, time left, on a terminal, in a file, to a script."""

import json
import os
import pty
import subprocess
import sys
import time

import nbformat
import pytest
from command import ident

from ident_utils import suite
from ident_utils.display import in_words
from ident_utils.history import Earlier, Forecast, History
from ident_utils.paths import ROOT
from ident_utils.progress import Stage, StageReader, track

LOOP = """
import time
from ident_utils.progress import track
for step in track(range(4), "steps"):
    for _ in track(range(2), "within"):
        time.sleep(0.35)
"""


def outputs(path) -> list:
    """Return all outputs of an executed notebook."""
    return [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]


def test_the_outermost_loop_reports_and_leaves_no_trace_in_the_notebook(write):
    write("01_loop", LOOP)
    events = []
    [run] = suite.reproduce(profile="smoke", on_event=events.append)
    assert run.ok and outputs(run.path) == []
    stages = [event.stage for event in events if event.stage]
    assert {(stage.what, stage.total) for stage in stages} == {("steps", 4)}
    done = [stage.done for stage in stages]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 4 and len(set(done)) >= 4
    assert {event.done for event in events if event.stage} == {2}, "a loop is told of in another cell than its own"
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds) and 2.8 < seconds[-1] < 60
    assert events[-1].seconds_left == 0


def test_a_loop_gives_all_items_whether_it_reports_or_not(tmp_path, monkeypatch):
    plain = list(track(range(5), "items"))
    monkeypatch.setenv("IDENT_PROGRESS", str(tmp_path / "reports"))
    assert list(track(range(5), "items")) == plain == [0, 1, 2, 3, 4]
    assert StageReader(tmp_path / "reports").latest() == Stage("items", 5, 5)
    for item in track(range(5), "left early"):
        if item == 2:
            break
    assert list(track(range(0), "nothing")) == []
    reader = StageReader(tmp_path / "reports")
    assert reader.latest() == Stage("nothing", 0, 0) and reader.latest() is None
    monkeypatch.setenv("IDENT_PROGRESS", str(tmp_path / "no folder" / "reports"))
    assert list(track(range(5), "items")) == plain, "a report that cannot be written stops the loop"


def test_half_a_report_is_left_for_later(tmp_path):
    file = tmp_path / "reports"
    reader = StageReader(file)
    assert reader.latest() is None
    file.write_text('{"what": "layers", "done": 1, "total": 9}\n{"what": "lay')
    assert reader.latest() == Stage("layers", 1, 9)
    with file.open("a") as stream:
        stream.write('ers", "done": 2, "total": 9}\n')
    assert reader.latest() == Stage("layers", 2, 9)


# Time left.


def test_an_earlier_run_says_how_long_is_left():
    forecast = Forecast(Earlier((1.0, 2.0, 80.0, 9.0)), total=4)
    assert forecast.left(0, None) == pytest.approx(92, abs=0.5)
    assert forecast.left(1, None) == pytest.approx(91, abs=0.5)
    assert forecast.left(2, None) == pytest.approx(89, abs=0.5)
    assert forecast.left(3, None) == pytest.approx(0.9, abs=0.2), (
        "what was kept says nothing of the rest, but a tenth"
    )
    assert Forecast(Earlier((1.0, 2.0)), total=3).left(0, None) is None, "a notebook with other cells was trusted"


def test_a_faster_machine_and_a_slow_loop_are_noticed():
    slower = Forecast(Earlier((6.0, 60.0)), total=2)
    time.sleep(0.6)  # a tenth of what the first cell took
    assert slower.left(1, None) == pytest.approx(6, rel=0.2)
    loop = Forecast(Earlier((0.0, 0.0)), total=2)
    assert loop.left(1, Stage("layers", 0, 10)) == pytest.approx(0, abs=0.1)
    time.sleep(0.5)
    assert loop.left(1, Stage("layers", 1, 10)) == pytest.approx(4.5, rel=0.2)


def test_without_an_earlier_run_the_share_that_is_done_tells():
    forecast = Forecast(None, total=4)
    assert forecast.left(0, None) is None
    time.sleep(0.4)
    assert forecast.left(1, None) == pytest.approx(1.2, rel=0.2)
    assert forecast.left(1, Stage("layers", 1, 1)) == pytest.approx(0.4, rel=0.2)


def test_the_second_run_knows_how_long_the_first_took(write, folders):
    write("01_slow", "import time\ntime.sleep(1.5)", "time.sleep(0.5)")
    write("02_bad", "1 / 0")
    told, events = [], []
    first = suite.reproduce(profile="smoke", on_start=told.append, jobs=1)
    assert told == []
    suite.reproduce(profile="smoke", on_start=told.append, on_event=events.append, jobs=1)
    [estimate] = told
    assert estimate.known == ("01_slow",) and estimate.total == 2, "a run that failed was taken for a whole one"
    assert 2 < estimate.seconds == pytest.approx(first[0].seconds, rel=0.3)
    assert events[0].seconds_left == pytest.approx(estimate.seconds, rel=0.1)
    assert str(estimate).endswith(
        "for 1 of 2 notebooks, by earlier runs on this machine; the others have not run here"
    )


def test_the_longest_run_is_kept_beside_the_last(folders, tmp_path):
    history = History(tmp_path / "seconds.json")

    def run(*seconds: float) -> suite.NotebookRun:
        return suite.NotebookRun("01_one", tmp_path, True, None, None, None, sum(seconds), 100.0, seconds)

    for seconds in ((9.0, 1.0), (0.5, 0.5)):
        history.add(run(*seconds))
    assert history.earlier("01_one").seconds == 1 and history.earlier("01_one", longest=True).seconds == 10
    assert history.earlier("02_two") is None
    history.file.write_text("not JSON")
    assert history.earlier("01_one") is None
    history.add(run(2.0))
    assert history.earlier("01_one").cells == (2.0,)


# What is shown.


def test_the_line_of_a_notebook():
    at = suite.Progress("03", 6, 31, Stage("fitting layers", 5, 12), seconds=400, seconds_left=200)
    assert in_words(at) == "cell 7/31 · fitting layers 5/12 · about 3 min left"
    assert in_words(at, since=180) == "cell 7/31 · fitting layers 5/12 · about 20 s left"
    assert in_words(suite.Progress("03", 0, 31)) == "cell 1/31"


def test_quiet_shows_nothing_but_what_failed(write, folders):
    write("01_good", "print('one')")
    good = ident("reproduce", "--profile", "smoke", "--quiet", cwd=folders)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    write("02_bad", "1 / 0")
    bad = ident("reproduce", "--profile", "smoke", "-q", cwd=folders)
    assert bad.returncode == 1
    assert "01_good" not in bad.stdout + bad.stderr
    assert "failed 02_bad, cell In [2]: ZeroDivisionError" in bad.stdout
    assert bad.stderr.splitlines()[0].startswith("02_bad: failed")


def test_json_is_an_object_a_line_and_a_summary(write, folders):
    write("01_loop", LOOP)
    write("02_bad", "1 / 0")
    result = ident("reproduce", "--profile", "smoke", "--json", "--jobs", "1", cwd=folders)
    assert result.returncode == 1
    *events, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert last | {"seconds": 0} == {"event": "summary", "ok": 1, "failed": ["02_bad"], "seconds": 0}
    for event in events:
        assert {"notebook", "cell", "cells", "stage", "done", "total", "seconds", "seconds_left"} <= event.keys()
        assert 1 <= event["cell"] <= event["cells"] == 3
    loop = [(event["done"], event["total"]) for event in events if event["stage"] == "steps"]
    assert loop[0] == (0, 4) and loop[-1] == (4, 4)
    ended = {event["notebook"]: event for event in events if event["event"] == "ended"}
    assert ended["01_loop"]["ok"] and ended["01_loop"]["done"] == 3
    assert (ended["02_bad"]["error"], ended["02_bad"]["failed_cell"]) == ("ZeroDivisionError", 2)
    assert ended["02_bad"]["done"] == 2 and not ended["02_bad"]["ok"]


def test_quiet_and_json_together_are_refused(folders):
    result = ident("reproduce", "--quiet", "--json", cwd=folders)
    assert result.returncode == 2 and result.stderr == "ident: give --quiet or --json, not both\n"


def test_without_a_terminal_there_are_plain_lines_only(write, folders):
    write("01_good", "print('one')")
    first, second = (ident("reproduce", "--profile", "smoke", cwd=folders) for _ in range(2))
    assert [line.split(",")[0] for line in first.stderr.splitlines()] == ["01_good: ok"]
    estimate, line = second.stderr.splitlines()
    assert estimate.startswith("about ") and estimate.endswith("for 1 notebook, by earlier runs on this machine")
    assert line.startswith("01_good: ok")
    assert "\x1b" not in first.stdout + first.stderr and "\r" not in first.stderr


def test_on_a_terminal_the_cell_the_loop_and_the_time_left_are_shown(write, folders):
    write("01_loop", LOOP)
    command = [sys.executable, "-m", "ident_utils.cli", "reproduce", "--profile", "smoke"]
    ours, theirs = pty.openpty()
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm-256color"}
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
        assert process.wait(timeout=60) == 0
    os.close(ours)
    text = shown.decode()
    assert "01_loop" in text and "cell 3/3 · steps 2/4 · about" in text and "left" in text
    assert "ok" in text
