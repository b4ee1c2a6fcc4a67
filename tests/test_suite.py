"""The runner on real kernels, with notebooks of a few lines that the tests write themselves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from books import PARAMETERS, printed
from command import ident

from ident_utils import scheduling, suite
from ident_utils.errors import IdentError
from ident_utils.locking import only_run
from ident_utils.notebooks import declared_parameters, select_notebooks
from ident_utils.paths import ROOT


def test_the_kernel_is_this_interpreter_and_knows_profile_and_folders(write, folders, monkeypatch):
    # A kernel spec `python3` of the user's that leads elsewhere must not be followed.
    spec = folders / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [str(folders / "no-python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "other", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(folders / "jupyter"))
    monkeypatch.chdir(folders)
    monkeypatch.setenv("IDENT_FIGURES", "figures")
    source = write(
        "01_where",
        "import os, sys\nfrom ident_utils import paths\nfrom ident_utils.paths import figures_root",
        "print(sys.executable)\nprint(os.environ['IDENT_PROFILE'])\nprint(os.getcwd())\nprint(figures_root())",
        "print(paths.__file__)\nprint(profile, seed)\nimport time\n"
        "ballast = b'x' * 300_000_000\ntime.sleep(0.5)  # several samples of the memory",
    )

    events = []
    [run] = suite.reproduce(["1"], profile="smoke", on_event=events.append)

    assert (run.name, run.ok, run.cell, run.error) == ("01_where", True, None, None)
    assert run.path == folders / "runs" / "smoke" / "01_where.ipynb"
    lines = printed(run.path)
    assert lines[:4] == [sys.executable, "smoke", str(source.parent), str(folders / "figures")]
    assert Path(lines[4]).parent == ROOT / "ident_utils"
    assert lines[5] == "None 0"
    assert "injected-parameters" not in run.path.read_text()
    assert 300 < run.peak_memory_mb < 3000
    assert run.seconds > 0
    assert [event.done for event in events] == [0, 0, 1, 2, 3, 4, 5]
    assert {event.total for event in events} == {5}
    assert [event.run for event in events if event.run] == [run]
    assert "IDENT_PROFILE" not in os.environ
    assert os.listdir(run.path.parent) == ["01_where.ipynb"], "scratch files are left over"


def test_parameters_are_injected_where_given(write, folders):
    write("01_given", "print(model, corpus, seed, profile)")
    [run] = suite.reproduce(profile="smoke", parameters={"seed": 3}, corpus="sotu-passages")
    assert run.ok
    assert printed(run.path) == ["None sotu-passages 3 None"]
    assert run.path.parent.name == "smoke--sotu-passages--seed3", "the profile's own copies were overwritten"


def test_a_failure_is_reported_and_the_others_still_run(write, folders):
    write("01_good", "print('one')")
    write("02_bad", "before = 1", "before / 0", "print('never')")
    write("03_leaves", "import sys\nsys.exit(0)", "print('never')")
    write("04_dies", "import os\nos.write(2, b'the disk is on fire\\n')\nos._exit(7)", "print('never')")
    write("05_hangs", "import time", "time.sleep(60)")
    write("06_good", "print('six')")

    result = ident("reproduce", "--profile", "smoke", "--timeout", "3", "--jobs", "1", cwd=folders)

    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    for line in (
        "02_bad, cell In [3]: ZeroDivisionError: division by zero",
        "03_leaves, cell In [2]: SystemExit: 0",
        "04_dies, cell In [2]: DeadKernelError: the kernel died: exit code 7; its last words: the disk is on fire",
        "05_hangs, cell In [3]: CellTimeoutError: the cell took longer than the limit of 3 s",
    ):
        assert f"failed {line}" in result.stdout
    progress = [line.split(",")[0] for line in result.stderr.splitlines()[:6]]
    assert progress == [
        *("01_good: ok", "02_bad: failed", "03_leaves: failed"),
        *("04_dies: failed", "05_hangs: failed", "06_good: ok"),
    ]
    assert "02_bad 03_leaves 04_dies 05_hangs" in result.stderr.splitlines()[-1]
    runs = folders / "runs" / "smoke"
    assert printed(runs / "01_good.ipynb") == ["one"]
    assert printed(runs / "06_good.ipynb") == ["six"]
    for name in ("02_bad", "03_leaves", "04_dies", "05_hangs"):
        text = (runs / f"{name}.ipynb").read_text()
        assert '"output_type": "error"' in text, f"the copy of {name} does not show its error"
        assert "never" not in printed(runs / f"{name}.ipynb")


def test_a_killed_kernel_is_said_to_be_out_of_memory(write):
    write("01_killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    [run] = suite.reproduce(profile="smoke")
    assert (run.ok, run.cell, run.error) == (False, 2, "DeadKernelError")
    assert "memory ran out" in run.message


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_keeps_what_has_finished(write, folders, jobs):
    write("01_good", "print('one')")
    reached = [folders / f"reached{i}" for i in range(jobs)]
    long = [f"0{i + 2}_long" for i in range(jobs)]
    for name, mark in zip(long, reached, strict=True):
        write(name, f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))", "time.sleep(60)")
    write("08_never", "print('eight')")
    command = [sys.executable, "-m", "ident_utils.cli", "reproduce", "--profile", "smoke", "--jobs", str(jobs)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=variables, stdout=-1, stderr=-1, text=True) as process:
        waited = time.monotonic()
        while not all(map(Path.exists, reached)) and time.monotonic() - waited < 40:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "01_good" in stdout
    assert " ".join([*long, "08_never"]) in stderr
    assert os.listdir(folders / "runs" / "smoke") == ["01_good.ipynb"]
    for mark in reached:
        assert not psutil.pid_exists(int(mark.read_text())), "a kernel outlives the run"


def test_notebooks_run_side_by_side_and_share_the_processors(write, folders, monkeypatch):
    """Each waits for a file that the other writes: one after the other they would never end."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    meet = "import os, pathlib, time\nprint(os.environ['OMP_NUM_THREADS'])\npathlib.Path({!r}).touch()\n"
    meet += "while not pathlib.Path({!r}).exists(): time.sleep(0.1)"
    here, there = str(folders / "here"), str(folders / "there")
    write("01_one", meet.format(here, there))
    write("02_two", meet.format(there, here))
    events = []
    runs = suite.reproduce(profile="smoke", timeout=30, jobs=2, on_event=events.append)
    assert [(run.name, run.ok) for run in runs] == [("01_one", True), ("02_two", True)]
    share = str(scheduling.threads_each(2))
    assert printed(runs[0].path) == printed(runs[1].path) == [share]
    assert {event.name for event in events[:2]} == {"01_one", "02_two"}


def test_results_do_not_depend_on_how_many_notebooks_run_at_a_time(write, folders, monkeypatch):
    """Measurements of a tiny model, kept nowhere, with the threads that each number of jobs leaves a notebook."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    measure = """
import pandas as pd
from matplotlib.figure import Figure
from ident_utils.attribution import attribute
from ident_utils.results import save_figure
from ident_utils.settings import load_settings
from ident_utils.tiny import WORDS, tiny_encoder
settings = load_settings(profile, seed=seed)
encoder = tiny_encoder("bert", {0})
text = " ".join(word for word in WORDS if word.isalpha())
found = attribute(encoder, text, probes=4, seed={0}, truncate=20)
drawn = pd.DataFrame({{"x": found.contributions.flatten().numpy()}})
save_figure(settings, "0{0}_table", Figure(), drawn, alt="a")
"""
    for number in (1, 2):
        write(f"0{number}_table", measure.format(number))
    written = []
    for jobs in (1, 2):
        runs = suite.reproduce(profile="smoke", jobs=jobs)
        assert [(run.name, run.ok) for run in runs] == [("01_table", True), ("02_table", True)], runs
        written.append({path.name: path.read_bytes() for path in (folders / "figures" / "smoke").glob("*.csv")})
    assert written[0] == written[1] and len(set(written[0].values())) == 2
    assert all(len(table) > 1000 for table in written[0].values())


def test_who_uses_results_of_others_waits_for_them(write, folders):
    slow, mark = "import pathlib, time\ntime.sleep(2)\npathlib.Path({!r}).touch()", str(folders / "mark")
    look = f"import pathlib\nprint(pathlib.Path({mark!r}).exists())"
    write("05_made", slow.format(mark))
    write("06_used", look)
    write("09_last", look)
    runs = suite.reproduce(profile="smoke", jobs=3)
    assert printed(runs[1].path) == printed(runs[2].path) == ["True"]
    assert scheduling.waits_for(["01_a", "06_b", "09_c"]) == {"01_a": set(), "06_b": set(), "09_c": {"01_a", "06_b"}}


def test_a_second_run_into_the_same_results_is_refused_and_told_who_runs(write, folders):
    write("01_good", "print('one')")
    busy = folders / "figures" / "smoke"
    with only_run(busy):
        with pytest.raises(
            IdentError, match=rf"Another run \(process {os.getpid()} on .* the results of smoke; wait"
        ):
            suite.reproduce(profile="smoke")
        assert suite.reproduce(profile="smoke", seed=1)[0].ok, "other results are in nobody's way"
    assert suite.reproduce(profile="smoke")[0].ok
    assert [path.name for path in (folders / "figures").glob(".*.holder")] == []


def test_fresh_reaches_the_kernels(write, folders):
    write("01_look", "import os\nprint(os.environ.get('IDENT_FRESH'))")
    assert printed(suite.reproduce(profile="smoke")[0].path) == ["None"]
    before = time.time()
    assert before < float(printed(suite.reproduce(profile="smoke", fresh=True)[0].path)[0]) < time.time()


def test_jobs_are_bounded_by_notebooks_memory_and_sense(monkeypatch):
    assert scheduling.choose_jobs(8, 3) == 3
    monkeypatch.setattr(scheduling, "processors", lambda: 64)
    assert scheduling.choose_jobs(None, 10) <= scheduling.MOST_JOBS
    assert scheduling.threads_each(4) == 16
    monkeypatch.setattr(scheduling, "MEMORY_EACH", 1e18)
    assert scheduling.choose_jobs(None, 10) == 1
    with pytest.raises(IdentError, match="at least 1, not 0"):
        scheduling.choose_jobs(0, 10)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"parameters": {"sede": 1}}, "01_good.ipynb has no parameter 'sede'; it declares corpus, model"),
        ({"notebooks": ["7"]}, "there is no notebook '7'; those that exist are 01_good, 02_none"),
        ({"profile": "smok"}, "no profile 'smok'"),
        ({"model": "nonsense"}, "There is no model 'nonsense'"),
        ({"corpus": "nonsense"}, "There is no corpus 'nonsense'; choose one of sotu-pairs"),
        ({"timeout": 0}, "positive number of seconds, not 0"),
        ({"seed": -1}, "non-negative"),
        ({"seed": 1, "parameters": {"seed": 2}}, "'seed' is given twice, as 1 and as 2"),
        ({"notebooks": ["1", "2"]}, "02_none.ipynb has no cell tagged 'parameters'"),
        ({"notebooks": ["1", "3"]}, "03_two.ipynb has 2 cells tagged 'parameters'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(write, folders, request_, sentence):
    write("01_good", "print('one')")
    write("02_none", "print('two')", parameters=())
    write("03_two", "print('three')", parameters=(PARAMETERS, PARAMETERS))
    with pytest.raises(IdentError) as caught:
        suite.reproduce(**({"notebooks": ["1"], "profile": "smoke"} | request_))
    assert sentence in str(caught.value)
    assert not list((folders / "runs").rglob("*.ipynb"))


def test_a_folder_that_cannot_be_written_is_refused(write, folders, monkeypatch):
    write("01_good", "print('one')")
    (folders / "file").write_text("")
    monkeypatch.setenv("IDENT_RUNS", str(folders / "file"))
    with pytest.raises(IdentError, match=r"cannot be written .* IDENT_RUNS"):
        suite.reproduce(profile="smoke")


def test_notebooks_are_found_by_number_and_name_in_order(write):
    for name in ("10_ten", "01_one", "02_two"):
        write(name)

    def names(*wanted):
        return [path.stem for path in select_notebooks(wanted)]

    assert names() == ["01_one", "02_two", "10_ten"]
    assert names("10", "1") == ["01_one", "10_ten"]
    assert names("notebooks/02_two.ipynb", "02_two", "02") == ["02_two"]


def test_declared_parameters_survive_comments_with_equals_signs(write):
    path = write("01_one", parameters=("seed = 0  # seed=0 is the paper's\nmodel: str = 'a=b'\n",))
    assert declared_parameters(path) == {"seed", "model"}
    path = write("01_one", parameters=("%load_ext x",))
    with pytest.raises(IdentError, match="no plain Python"):
        declared_parameters(path)


class TestPublish:
    def run(self, write, *sources: str) -> tuple[Path, Path]:
        """Write a notebook with marks of an earlier run, execute it at base, return source and copy."""
        source = write("01_one", *sources)
        notebook = nbformat.read(source, as_version=4)
        notebook.metadata.papermill = {"duration": 1.0}
        notebook.cells[1].metadata.execution = {"iopub.execute_input": "now"}
        nbformat.write(notebook, source)
        [run] = suite.reproduce(profile="base")
        return source, run.path

    def test_outputs_come_in_and_marks_of_the_run_stay_out(self, write):
        pauses = "print('one', flush=True)\nimport time\ntime.sleep(0.5)\nprint('two')\n6 * 7"
        source, copy = self.run(write, pauses)
        assert "papermill" in copy.read_text()
        assert suite.publish() == [source]
        first = source.read_bytes()
        notebook = json.loads(first)
        kinds = [output["output_type"] for output in notebook["cells"][2]["outputs"]]
        assert kinds == ["stream", "execute_result"], "the stream lies in pieces, as time cut it"
        assert printed(source) == ["one", "two"]
        assert [cell["execution_count"] for cell in notebook["cells"][1:]] == [1, 2]
        assert [cell["metadata"] for cell in notebook["cells"]] == [{}, {"tags": ["parameters"]}, {}]
        assert notebook["metadata"]["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
        assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
        assert "version" not in notebook["metadata"]["language_info"]
        assert [cell["id"] for cell in notebook["cells"]] == ["title", "parameters-0", "code-0"]
        assert first.endswith(b"}\n")
        suite.publish()
        assert source.read_bytes() == first
        [again] = suite.reproduce(profile="base")
        assert again.ok
        suite.publish()
        assert source.read_bytes() == first, "a second run of the same notebook changes its bytes"

    def test_prose_may_change_after_the_run_but_code_may_not(self, write):
        source, _ = self.run(write, "print('one')")
        source.write_text(source.read_text().replace("The title of", "A better title of"))
        suite.publish()
        assert "A better title of" in source.read_text()
        source.write_text(source.read_text().replace("print('one')", "print('two')"))
        with pytest.raises(IdentError, match="other code"):
            suite.publish()

    @pytest.mark.parametrize(
        ("spoil", "sentence"),
        [
            (lambda copy: copy.cells[2].update(execution_count=5), "did not run from top to bottom"),
            (lambda copy: copy.cells[1].metadata.tags.append("injected-parameters"), "injected parameters"),
            (lambda copy: copy.cells[2].outputs[0].update(name="stderr"), "output on stderr"),
            (lambda copy: copy.cells[2].outputs.append(_an_error()), "holds an error"),
        ],
    )
    def test_one_bad_copy_keeps_all_from_being_published(self, write, spoil, sentence):
        source, path = self.run(write, "print('one')")
        untouched = source.read_bytes()
        good = json.loads(path.read_text())
        copy = nbformat.read(path, as_version=4)
        spoil(copy)
        write("02_two", "print('one')")
        nbformat.write(copy, path.with_name("02_two.ipynb"))
        with pytest.raises(IdentError, match=f"nothing was published: 02_two.ipynb .*{sentence}"):
            suite.publish()
        assert source.read_bytes() == untouched
        assert good == json.loads(path.read_text())

    def test_nothing_to_publish_is_said(self, folders):
        with pytest.raises(IdentError, match="nothing to publish"):
            suite.publish()


def _an_error() -> nbformat.NotebookNode:
    return nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
