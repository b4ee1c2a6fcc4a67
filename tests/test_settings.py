"""Profiles and what replaces their values."""

import re
from dataclasses import fields, replace

import pytest

from ident_utils.corpora import corpus_catalogue
from ident_utils.errors import IdentError
from ident_utils.fetch import model_catalogue
from ident_utils.settings import Settings, describe, load_settings, profile_names


@pytest.fixture(autouse=True)
def figures(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENT_FIGURES", str(tmp_path))
    monkeypatch.delenv("IDENT_PROFILE", raising=False)
    return tmp_path


def test_every_profile_is_complete_and_names_what_exists(figures):
    assert profile_names()[0] == "base" and set(profile_names()) == {"base", "smoke", "full", "paper"}
    for name in profile_names():
        settings = load_settings(name)
        assert settings.folder == figures / name
        assert settings.model in model_catalogue() and set(settings.models) <= set(model_catalogue())
        assert {settings.corpus, settings.long_corpus} <= set(corpus_catalogue())
        assert settings.identity_sequences >= 7 and settings.probes >= 1 and settings.seed == 0
        assert list(settings.length_ratios) == sorted(settings.length_ratios)
        assert min(settings.length_ratios) <= 1 and max(settings.length_ratios) >= 1.5  # both sides of the bound


def test_profile_comes_from_the_argument_then_the_environment_then_base(monkeypatch):
    assert load_settings().profile == "base"
    monkeypatch.setenv("IDENT_PROFILE", "smoke")
    assert load_settings().profile == "smoke"
    assert load_settings("full").profile == "full"
    monkeypatch.setenv("IDENT_PROFILE", "")
    assert load_settings().profile == "base"


def test_changed_settings_never_write_into_the_profiles_folder(figures):
    base = load_settings("base")
    changed = [
        load_settings("base", model="minilm-l6"),
        load_settings("base", corpus="mrpc"),
        load_settings("base", seed=1),
        load_settings("base", seed=2),
        load_settings("base", model="minilm-l6", corpus="mrpc", seed=1),
        load_settings("base", model="/models/my model"),
        load_settings("base", model="team/bert"),
    ]
    folders = [s.folder for s in changed]
    assert len({base.folder, *folders}) == len(changed) + 1
    assert all(f.parent == figures for f in folders)
    assert changed[4].folder.name == "base--minilm-l6--mrpc--seed1"
    assert re.fullmatch(r"base--my-model-[0-9a-f]{6}", changed[5].folder.name)
    assert re.fullmatch(r"base--bert-[0-9a-f]{6}", changed[6].folder.name)
    assert (changed[4].model, changed[4].corpus, changed[4].seed) == ("minilm-l6", "mrpc", 1)
    assert changed[4].probes == base.probes


def test_models_in_two_folders_of_one_name_do_not_share_their_results():
    first, second = (load_settings("base", model=f"/{where}/checkpoint") for where in ("monday", "tuesday"))
    assert first.folder != second.folder


def test_given_model_is_looked_at_alone():
    assert load_settings("base").models == ("mpnet-base", "minilm-l6")
    assert load_settings("base", model="minilm-l6").models == ("minilm-l6",)
    assert load_settings("base", corpus="mrpc").models == ("mpnet-base", "minilm-l6")


def test_value_that_the_profile_has_anyway_is_no_change():
    base = load_settings("base")
    assert load_settings("base", model=base.model, seed=0) == base


def test_given_corpus_takes_the_place_of_the_long_texts_too():
    base, given = load_settings("base"), load_settings("base", corpus="sotu-pairs")
    assert (given.corpus, given.long_corpus) == ("sotu-pairs", "sotu-pairs")
    assert base.long_corpus == "sotu-passages" and given.folder != base.folder


def test_unknown_profile_and_bad_seeds_are_refused(monkeypatch):
    with pytest.raises(IdentError, match="no profile 'basic'; choose one of base, smoke, full"):
        load_settings("basic")
    monkeypatch.setenv("IDENT_PROFILE", "tiny")
    with pytest.raises(IdentError, match="no profile 'tiny'"):
        load_settings()
    for seed in (-1, 1.5, "3", True, None):
        with pytest.raises(IdentError, match="seed must be a non-negative whole number, not"):
            load_settings("base", seed=seed)


def test_description_holds_every_setting_but_the_folder():
    settings = load_settings("smoke", seed=4)
    plain = describe(settings)
    assert set(plain) == {f.name for f in fields(Settings)} - {"folder"}
    assert plain["seed"] == 4 and isinstance(plain["length_ratios"], list)
    assert describe(replace(settings, probes=9))["probes"] == 9
