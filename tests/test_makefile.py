"""The set-up that `make` does, as far as it can be tried without installing anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ident_utils.paths import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


@pytest.fixture
def project(tmp_path) -> Path:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=project, env=inherited | environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("target", ["test", "reproduce"])
def test_old_python_is_refused_before_anything_is_made(project, target):
    old = project / "bin" / "python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.18" || exit 1\n')
    old.chmod(0o755)
    done = make(project, target, PATH=f"{old.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 2
    assert "Python 3.9.18" in done.stderr and "3.11 or newer" in done.stderr and "PYTHON=" in done.stderr
    assert not (project / ".venv").exists()


def test_missing_python_is_named(project):
    done = make(project, "setup", "PYTHON=no-such-python")
    assert done.returncode == 2
    assert "no-such-python" in done.stderr and "3.11 or newer" in done.stderr


def test_finished_set_up_is_done_again_only_when_the_pins_change(project):
    stamp = project / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    assert make(project, "setup", "PYTHON=no-such-python").returncode == 0
    newer = stamp.stat().st_mtime + 10
    os.utime(project / "requirements.lock", (newer, newer))
    assert make(project, "setup", "PYTHON=no-such-python").returncode == 2


def test_unfinished_set_up_begins_with_a_new_environment(project):
    """Stand in for Python and pip with scripts: pip leaves a half package, and fails while FAIL is set."""
    pip = project / "pip"
    pip.write_text('#!/bin/sh\ntouch .venv/half$FAIL\necho "$*" >>pip.calls\nexit ${FAIL:-0}\n')
    python = project / "python"
    python.write_text('#!/bin/sh\n[ "$2" != venv ] || { mkdir -p "$3/bin" && cp pip "$3/bin/python"; }\n')
    for script in (pip, python):
        script.chmod(0o755)
    venv = project / ".venv"

    failed = make(project, "setup", "PYTHON=./python", FAIL="1")
    assert failed.returncode == 2 and "run make again" in failed.stderr
    assert (venv / "half1").exists() and not (venv / ".installed").exists()

    assert make(project, "setup", "PYTHON=./python", FAIL="").returncode == 0
    assert not (venv / "half1").exists() and (venv / ".installed").exists()

    calls = (project / "pip.calls").read_text()
    assert make(project, "setup", "PYTHON=./python", FAIL="1").returncode == 0
    assert (project / "pip.calls").read_text() == calls and "--editable ." in calls


@pytest.mark.parametrize("failing", ["tests", "notebooks/01_one.ipynb", "notebooks/09_last.ipynb", ""])
def test_all_parts_of_test_run_and_each_can_fail_it(project, failing):
    (project / "notebooks").mkdir()
    for name in ("01_one", "09_last"):
        (project / "notebooks" / f"{name}.ipynb").touch()
    binaries = project / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (project / ".venv" / ".installed").touch()
    for name in ("python", "ident"):
        script = binaries / name
        script.write_text(
            f'#!/bin/sh\necho "ran {name} profile=$IDENT_PROFILE $*"\n'
            f'case " $* " in *" {failing or "nothing"} "*) exit 1 ;; esac\n'
        )
        script.chmod(0o755)
    done = make(project, "test", IDENT_PROFILE="")
    assert "ran ident profile= fetch minilm-l6" in done.stdout
    assert "ran python profile= -m pytest tests" in done.stdout
    assert "ran python profile=smoke -m pytest notebooks/01_one.ipynb --" in done.stdout
    assert "ran python profile=smoke -m pytest notebooks/09_last.ipynb" in done.stdout
    assert (done.returncode != 0) == bool(failing)
