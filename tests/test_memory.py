"""Memory: what there is, what a notebook needs at least, and what is refused before it starts."""

import json
import struct
from pathlib import Path

import psutil
import pytest
from encoders import saved_encoder, tiny_encoder

from ident_utils import memory, needs, suite
from ident_utils.attribution.engine import fitting, span_of
from ident_utils.attribution.estimate import _check_blocks
from ident_utils.errors import IdentError
from ident_utils.settings import load_settings

GB = 10**9


def test_a_containers_limit_counts(tmp_path):
    free = memory.available_memory(tmp_path)
    assert 0 < free <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert memory.available_memory(tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory(tmp_path) > 600_000


def test_weights_are_counted_by_their_shapes(tmp_path):
    encoder = saved_encoder(tmp_path)
    folder = str(next(tmp_path.rglob("config.json")).parent)
    assert needs.count_weights(folder) >= sum(p.numel() for p in encoder.model.parameters())
    assert needs.count_weights(folder) < 2 * sum(p.numel() for p in encoder.model.parameters())
    assert needs.count_weights("minilm-l6") == pytest.approx(22.7e6, rel=0.02)


def test_float64_costs_more_and_a_notebook_without_a_model_nothing(write):
    settings = load_settings("base")
    plain = write("01_plain", "encoder = load_encoder(settings.model)")
    double = write("02_double", "encoder = load_encoder(settings.model, dtype=torch.float64)")
    assert needs.least_memory(plain, settings) == pytest.approx(0.5 * GB + 4 * 109e6, rel=0.02)
    assert needs.least_memory(double, settings) == pytest.approx(0.5 * GB + 12 * 109e6, rel=0.02)
    assert needs.least_memory(write("03_none", "print('one')"), settings) == 0


def test_what_does_not_fit_is_refused_in_one_sentence():
    wanted = {"01_one": 2 * GB, "02_two": 3 * GB, "03_three": 1 * GB}
    needs.check_memory(wanted, 3, 6 * GB)
    with pytest.raises(IdentError, match=r"02_two needs at least 3.0 GB of memory and 2.5 GB are free"):
        needs.check_memory(wanted, 1, int(2.5 * GB))
    with pytest.raises(IdentError, match=r"3 notebooks at a time need at least 6.0 GB .* 5.5 GB .*--jobs 2"):
        needs.check_memory(wanted, 3, int(5.5 * GB))


def test_fewer_tangents_go_at_once_where_memory_is_short():
    assert fitting(100, GB // 100, 2 * GB) == 100
    with pytest.warns(UserWarning, match=r"0.50 GB of memory are free: 50 instead of 100 tangents go at once"):
        assert fitting(100, GB // 100, GB // 2) == 50
    with pytest.raises(
        IdentError, match=r"One tangent of this text needs 3.0 GB of memory and 2.0 GB are free; cut the text"
    ):
        fitting(100, 3 * GB, 2 * GB)


def test_whole_blocks_that_no_machine_can_hold_are_refused():
    encoder = tiny_encoder("bert", layers=1, width=16)
    span = span_of(encoder)
    _check_blocks(encoder, span, 12, 16)
    with pytest.raises(
        IdentError, match=r"whole Jacobian blocks of 10000000000 tokens needs .*; cut the text, or sample"
    ):
        _check_blocks(encoder, span, 10**10, 16)


def huge_model(folder: Path) -> Path:
    """Write a folder whose weights claim to be of a size that no machine has."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}).encode()
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def test_a_model_that_is_too_large_costs_no_run(write, folders, tmp_path):
    write("01_load", "from ident_utils.models import load_encoder\nload_encoder(model)")
    with pytest.raises(IdentError, match=r"01_load needs at least 4000.5 GB of memory and .* GB are free"):
        suite.reproduce(profile="smoke", model=str(huge_model(tmp_path / "huge")))
    assert not list((folders / "runs").rglob("*.ipynb"))
