"""Results that are kept: what makes them count, and what makes them be measured again."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import ident
from encoders import make_texts, saved_encoder, tiny_encoder
from torch import nn

from ident_utils import cache, fingerprints
from ident_utils.errors import IdentError
from ident_utils.fingerprints import code_version, fingerprint
from ident_utils.models import in_precision, made_again, permuted, untrained
from ident_utils.remembering import remembered
from ident_utils.results import write_atomically

CALLS: list[tuple] = []


@remembered
def doubled(values: torch.Tensor, *, times: int = 2) -> torch.Tensor:
    """Multiply, and tell that it was done."""
    CALLS.append((tuple(values.tolist()), times))
    return values * times


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    CALLS.clear()
    monkeypatch.setattr(cache, "RESULTS", str(tmp_path / "results"))


# Fingerprints.


@dataclass
class Pair:
    one: object
    other: object


DIFFERENT = [
    None, 1, 1.0, True, "1", "one", ("one",), ["one"], {"one": 1}, {"two": 1}, range(1), torch.float32,
    torch.zeros(2), torch.zeros(2, dtype=torch.float64), torch.zeros(1, 2), torch.ones(2), np.zeros(2), np.ones(2),
    Pair(1, 2), Pair(2, 1), [1, 2], [12], [[1], 2], [1, [2]], ("ab", "c"), ("a", "bc"),
]  # fmt: skip


def test_different_values_have_different_fingerprints():
    assert len({fingerprint(value) for value in DIFFERENT}) == len(DIFFERENT)


def test_equal_values_have_the_same_fingerprint():
    tensor = torch.arange(12.0).reshape(3, 4)
    assert fingerprint(tensor.T.contiguous().T) == fingerprint(tensor.clone())
    assert fingerprint(Pair(tensor, "a")) == fingerprint(Pair(tensor.clone(), "a"))


def test_a_change_in_place_is_noticed():
    large, layer = torch.zeros(2**19), nn.Linear(1024, 1024)
    before = fingerprint(large), fingerprint(layer)
    assert (fingerprint(large), fingerprint(layer)) == before
    large[7] = 1
    with torch.no_grad():
        layer.bias[0] += 1
    assert fingerprint(large) != before[0] and fingerprint(layer) != before[1]


def test_an_encoder_is_known_by_its_weights_configuration_tokenizer_and_precision():
    encoder = tiny_encoder("bert")
    same = fingerprint(encoder)
    encoder.encode(make_texts(1, 30)[0], truncate=12)  # leaves a state behind in the tokenizer
    assert fingerprint(encoder) == same == fingerprint(tiny_encoder("bert"))
    assert fingerprint(replace(encoder, provenance={"name": "elsewhere"})) == same
    others = [untrained(encoder), untrained(encoder, 1), permuted(encoder), in_precision(encoder, torch.float32)]
    wider = tiny_encoder("bert")
    wider.model.config.layer_norm_eps = 0.5
    assert len({same, *map(fingerprint, [*others, wider])}) == 6


def test_what_has_no_fingerprint_is_refused():
    with pytest.raises(TypeError, match="a function has no fingerprint"):
        fingerprint(tiny_encoder)


def test_the_code_counts_with_all_it_imports_and_words_about_it_do_not(tmp_path, monkeypatch):
    package = tmp_path / "ident_utils"
    (package / "inner").mkdir(parents=True)
    files = {
        "top": "from ident_utils.inner import deep\n\n\ndef f():\n    return deep.x\n",
        "inner/__init__": "",
        "inner/deep": "x = 1\n",
        "other": "y = 1\n",
    }
    monkeypatch.setattr(fingerprints, "PACKAGE", package)

    def version(**changed: str) -> str:
        for name, text in (files | {name.replace("__", "/"): text for name, text in changed.items()}).items():
            (package / f"{name}.py").write_text(text)
        return code_version.__wrapped__("ident_utils.top")

    plain = version()
    assert version(inner__deep="x = 2\n") != plain
    assert version(top='"""About."""\n' + files["top"].replace("deep.x", "deep.x  # this")) == plain
    assert version(other="y = 2\n") == plain


def test_every_experiment_depends_on_the_models_code():
    for path in sorted((fingerprints.PACKAGE / "experiments").glob("[a-z]*.py")):
        assert len(code_version(f"ident_utils.experiments.{path.stem}")) == 64


# Kept results.


def test_a_result_is_computed_once_however_its_arguments_are_passed():
    first = doubled(torch.ones(2))
    assert torch.equal(doubled(values=torch.ones(2), times=2), first)
    assert CALLS == [((1.0, 1.0), 2)]
    assert doubled.is_kept(torch.ones(2)) and not doubled.is_kept(torch.ones(3))
    assert torch.equal(doubled(torch.ones(2), times=3), torch.full((2,), 3.0))
    assert len(CALLS) == 2


def test_what_was_computed_elsewhere_is_kept():
    doubled.keep(torch.tensor([9.0]), torch.ones(1))
    assert doubled(torch.ones(1)).tolist() == [9.0] and not CALLS


def test_fresh_measures_once_more_and_only_once(monkeypatch):
    doubled(torch.ones(1))
    monkeypatch.setenv(cache.FRESH, str(time.time()))
    assert not doubled.is_kept(torch.ones(1))
    doubled(torch.ones(1)), doubled(torch.ones(1))
    assert len(CALLS) == 2


@pytest.mark.parametrize("jump", [-3e7, 3e7], ids=["a year back", "a year on"])
def test_a_clock_that_jumps_costs_time_but_no_result(monkeypatch, jump):
    doubled(torch.ones(1))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    monkeypatch.setenv(cache.FRESH, str(time.time()))
    assert not doubled.is_kept(torch.ones(1)), "what was kept before counts for nothing, whatever its time says"
    assert doubled(torch.ones(1)).tolist() == [2.0]
    monkeypatch.setattr(time, "time", lambda: real() - jump)
    assert doubled(torch.ones(1)).tolist() == [2.0]
    monkeypatch.delenv(cache.FRESH)
    assert doubled.is_kept(torch.ones(1)), "without the wish for new numbers, times do not matter"


@pytest.mark.filterwarnings("ignore:Unable to cache to disk")
def test_a_full_disk_costs_what_is_kept_but_no_result(monkeypatch):
    """A limit on the size of files stands in for the disk."""
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    large = torch.arange(100_000.0)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        assert torch.equal(doubled(large), large * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not kept_files() and not doubled.is_kept(large)
    assert torch.equal(doubled(large), large * 2) and doubled.is_kept(large)


def kept_files() -> list[Path]:
    return list(Path(cache.RESULTS).rglob("output.pkl"))


@pytest.mark.filterwarnings("ignore:Exception while loading results")
@pytest.mark.parametrize("broken", [b"", b"half of a pick", None], ids=["empty", "truncated", "without numbers"])
def test_a_broken_entry_is_computed_again(broken):
    doubled(torch.ones(1))
    [file] = kept_files()
    file.unlink() if broken is None else file.write_bytes(broken)
    assert doubled(torch.ones(1)).tolist() == [2.0] and len(CALLS) == 2
    assert doubled(torch.ones(1)).tolist() == [2.0] and len(CALLS) == 2


def test_a_folder_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(cache, "RESULTS", str(tmp_path / "file" / "results"))
    with pytest.raises(IdentError, match="set IDENT_CACHE"):
        doubled(torch.ones(1))


def test_leftovers_of_killed_runs_go_and_nothing_else(tmp_path):
    doubled(torch.ones(1))
    [kept] = kept_files()
    dead, alive = (kept.with_name(f"output.pkl.abc-{process}-1") for process in (2**22 + 1, 1))
    part, copy, figure = tmp_path / ".a.svg.x.part", tmp_path / ".part-x", tmp_path / "a.svg"
    copy.mkdir()
    for file in (dead, alive, part, copy / "01.ipynb", figure):
        file.write_text("")
    cache.remove_leftovers(tmp_path)
    assert [p.exists() for p in (dead, part, copy)] == [False] * 3
    assert alive.exists() and figure.exists() and kept.exists()


def test_cache_is_shown_and_its_results_are_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "RESULTS", "results")
    assert cache.cache_sizes() == {} and cache.clear_results() == 0
    write_atomically(tmp_path / "cache" / "models" / "tiny" / "model.safetensors", b"x" * 2_000_000)
    write_atomically(tmp_path / "cache" / "results" / "one", b"y" * 500_000)
    assert cache.cache_sizes() == {"models": (1, 2_000_000), "results": (1, 500_000)}
    shown = ident("cache")
    assert shown.returncode == 0 and all(word in shown.stdout for word in ("models", "2.0", "results", "0.5"))
    assert ident("cache", "--clear").stdout.startswith("0.5 MB of results removed")
    assert cache.cache_sizes() == {"models": (1, 2_000_000)}


# Recipes.


def test_a_recipe_makes_the_same_encoder_again(tmp_path):
    loaded = saved_encoder(tmp_path)
    for encoder in (loaded, untrained(loaded, 3), permuted(in_precision(loaded, torch.float64), 2)):
        assert fingerprint(made_again(encoder.recipe)) == fingerprint(encoder)


def test_what_no_other_process_could_make_has_no_recipe():
    assert tiny_encoder("bert").recipe == untrained(tiny_encoder("bert")).recipe == ()
