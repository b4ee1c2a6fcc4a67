"""Runs that are killed at random moments go on where they were, and end with the same numbers.

IDENT_KILLS sets how many moments are tried (2).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from encoders import make_texts, saved_encoder
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ident_utils.cache import HALF_WRITTEN
from ident_utils.paths import ROOT

KILLS = int(os.environ.get("IDENT_KILLS", 2))
PARAMETERS = "profile = None\nmodel = None\ncorpus = None\nseed = 0"
CELLS = (
    """
import json, os
import pandas as pd
from ident_utils.experiments.contribution import attribute_corpus, judge_c6_c7_c8
from ident_utils.models import load_encoder
from ident_utils.plots import plot_nullity
from ident_utils.experiments.rank_bound import measure_nullity, nullity_by_length
from ident_utils.results import save_figure, save_measurements
from ident_utils.settings import load_settings
""",
    """
settings = load_settings(profile)
encoder = load_encoder(os.environ["TINY_MODEL"])
texts = json.loads(os.environ["TINY_TEXTS"])
attributed = attribute_corpus(encoder, texts, settings)
""",
    """
by_length = nullity_by_length(measure_nullity(encoder, texts[:20], [8, 12, 16]))
measurements = judge_c6_c7_c8(attributed, 100)
origin = {"encoder": encoder, "texts": texts, "corpus": "tiny", "precision": "float32"}
save_measurements(settings, "01_tiny", measurements, **origin)
""",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "notebooks").mkdir()
    cells = [new_markdown_cell("# A tiny study", id="title")]
    cells += [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}, id="parameters")]
    cells += [new_code_cell(source.strip(), id=f"code-{i}") for i, source in enumerate(CELLS)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), folder / "notebooks" / "01_tiny.ipynb")
    saved_encoder(folder / "model")
    return folder


def start(home: Path, place: str) -> subprocess.Popen:
    """Start the command on the tiny study, with all that it writes in a place of its own."""
    variables = {f"IDENT_{name.upper()}": str(home / place / name) for name in ("figures", "runs", "cache")}
    variables |= {"IDENT_NOTEBOOKS": str(home / "notebooks"), "TINY_MODEL": str(home / "model")}
    variables |= {"TINY_TEXTS": json.dumps(make_texts(40, 20)), "PYTHONPATH": str(ROOT)}
    (home / place / "tmp").mkdir(parents=True, exist_ok=True)
    variables["TMPDIR"] = str(home / place / "tmp")
    command = [sys.executable, "-m", "ident_utils.cli", "reproduce", "--profile", "smoke"]
    return subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def measurements(home: Path, place: str) -> dict:
    content = json.loads((home / place / "figures" / "smoke" / "01_tiny.json").read_text())
    return content["measurements"]


@pytest.fixture(scope="module")
def undisturbed(home) -> tuple[dict, float]:
    """Return what a run measures that nobody kills, and the seconds it takes."""
    began = time.monotonic()
    process = start(home, "undisturbed")
    assert process.wait(120) == 0, process.stderr.read()
    return measurements(home, "undisturbed"), time.monotonic() - began


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_goes_on_with_the_same_numbers(home, undisturbed, number):
    expected, seconds = undisturbed
    draw, place = random.Random(number), f"killed-{number}"
    process = start(home, place)
    time.sleep(draw.uniform(0, seconds))
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    victim = (process.pid, *(child.pid for child in children))[number % 2 if children else 0]  # command, then kernel
    if process.poll() is None:
        os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=120)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive, "a kernel outlives the command that started it"

    again = start(home, place)
    assert again.wait(120) == 0, again.stderr.read()
    assert measurements(home, place) == expected
    folder = home / place
    assert not [*folder.rglob("*.part"), *folder.rglob(".part-*"), *(folder / "cache").rglob(HALF_WRITTEN)]
    assert not [*(folder / "tmp").rglob("*.json")], "a file with the keys to a kernel is left"
