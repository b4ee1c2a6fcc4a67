"""A figure drawn again from its saved numbers is the same to the byte."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from command import ident
from hypothesis import given
from hypothesis import strategies as st

from ident_utils import plots
from ident_utils.errors import IdentError
from ident_utils.paths import ROOT
from ident_utils.redraw import draw_again, redraw
from ident_utils.replay import freeze, read_replay, thaw
from ident_utils.results import REPLAY, render, save_figure
from ident_utils.settings import load_settings

TABLE = pd.DataFrame(
    {"layer": [1, 2, 3], "value": [0.9, 1 / 3, 0.5], "low": [0.8, 0.3, 0.4], "high": [1.0, 0.4, 0.6]}
)
TABLE = TABLE.assign(mapping="ridge", lookup="own", n_sequences=9)


@pytest.fixture
def settings(tmp_path):
    return replace(load_settings("smoke"), folder=tmp_path / "figures" / "smoke")


def through_a_file(value: object) -> object:
    return thaw(json.loads(json.dumps(freeze(value))))


def test_tables_keep_their_types_names_and_order():
    table = TABLE.assign(seen=[0, "position only", 2], nothing=[None, "a", None], yes=[True, False, True])[::-1]
    table = table.rename_axis("token")
    back = through_a_file(table)
    pd.testing.assert_frame_equal(back, table, rtol=1e-5, check_dtype=False)
    assert [kind.kind for kind in back.dtypes[["layer", "value", "yes"]]] == ["i", "f", "b"]
    pivoted = TABLE.pivot(index="layer", columns="mapping", values="value")
    assert list(through_a_file(pivoted)["ridge"]) == [0.9, 0.333333, 0.5]
    assert through_a_file(TABLE["value"])[1] == 0.333333


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6))
def test_numbers_keep_six_digits_and_freezing_twice_changes_nothing(numbers):
    array = np.array(numbers, dtype=np.float64)
    once = through_a_file(array)
    np.testing.assert_allclose(once, array, rtol=1e-5)
    np.testing.assert_array_equal(through_a_file(once), once)


def test_containers_arrays_and_tensors_come_back_as_what_they_were():
    given_ = {"raw": torch.eye(2), "map": np.float32([[1.5, 2.0]]), 3: ("a", None, [np.int64(4), True]), "none": {}}
    back = through_a_file(given_)
    assert torch.equal(back["raw"], torch.eye(2))
    assert back["map"].dtype == np.float32 and back["map"].tolist() == [[1.5, 2.0]]
    assert back[3] == ("a", None, [4, True]) and back["none"] == {}
    with pytest.raises(TypeError, match="cannot be drawn again from a object"):
        freeze(object())


def test_saved_figure_is_drawn_again_to_the_byte(settings):
    save_figure(settings, "03_mappings", plots.plot_mappings(TABLE, 0.1 + 0.2), TABLE, alt="Rates by layer.")
    before = {path.name: path.read_bytes() for path in settings.folder.glob("03_*")}
    assert list(redraw(settings.folder)) == [("03_mappings", False)]
    (settings.folder / "03_mappings.svg").write_text("spoilt")
    (settings.folder / "03_mappings.png").unlink()
    assert list(redraw(settings.folder)) == [("03_mappings", True)]
    assert {path.name: path.read_bytes() for path in settings.folder.glob("03_*")} == before
    _, alt = read_replay((settings.folder / REPLAY / "03_mappings.json.gz").read_bytes())
    assert alt == "Rates by layer."


SPOILT = bytearray(gzip.compress(b'{"function": "plot_mappings"}' * 50, mtime=0))
SPOILT[12:24] = b"\xff" * 12


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read"),
        (gzip.compress(b'{"function": "plot_ma', mtime=0), "run the notebook again"),
        (SPOILT, "run the notebook again"),
        (
            gzip.compress(b'{"function": "system", "alt": "", "inputs": []}', mtime=0),
            "'system', which the suite no longer",
        ),
    ],
    ids=["empty", "half of one", "other bits in it", "another function"],
)
def test_other_files_are_refused_with_a_sentence(tmp_path, content, sentence):
    (file := tmp_path / "01_x.json.gz").write_bytes(content)
    with pytest.raises(IdentError, match=sentence):
        draw_again(file)


COMMITTED = ROOT / "figures" / "base"


def test_every_committed_figure_has_its_numbers():
    pictures = {path.stem for path in COMMITTED.glob("*.svg")}
    assert pictures and pictures == {path.name.split(".")[0] for path in (COMMITTED / REPLAY).glob("*.json.gz")}


@pytest.mark.parametrize("name", sorted(path.stem for path in COMMITTED.glob("*.svg")))
def test_committed_figure_is_drawn_again_to_the_byte(name):
    figure = draw_again(COMMITTED / REPLAY / f"{name}.json.gz")
    same = render(figure, name)[".svg"] == (COMMITTED / f"{name}.svg").read_bytes()
    assert same, f"{name}.svg is not what its saved numbers draw: run `ident figures --profile base`."


def test_command_says_what_it_did(settings, monkeypatch):
    monkeypatch.setenv("IDENT_FIGURES", str(settings.folder.parent))
    empty = ident("figures", "--profile", "smoke")
    assert empty.returncode == 2 and "holds no saved numbers" in empty.stderr
    save_figure(settings, "03_mappings", plots.plot_mappings(TABLE, 0.3), TABLE, alt="Rates.")
    (settings.folder / "03_mappings.svg").unlink()
    done = ident("figures", "--profile", "smoke")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 figures drawn again, 1 changed"
