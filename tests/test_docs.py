"""What the pages say exists, exists: files, names, commands, pictures, the environment that they open."""

import json
import os
import re
import tomllib
import xml.etree.ElementTree as ET

import pytest
import yaml

from ident_utils.cli import app
from ident_utils.paths import ROOT
from ident_utils.shades import DARK, README_FIGURES, dark_svg

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)")
FILE = re.compile(r"(?:ident_utils|tests|data|docs|notebooks|figures/base)/[\w./-]+")
NAME = re.compile(r"_?[A-Za-z][A-Za-z0-9]*(?:_\w+|\.\w+)+|[A-Z][A-Z_]{3,}")
SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in (*ROOT.glob("*/*.py"), *ROOT.glob("ident_utils/*/*.py"))
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_and_links_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    linked = [target for target in LINK.findall(text) if "://" not in target]
    missing = [target for target in linked if not (page.parent / target).exists()]
    named = [path.rstrip(".") for quoted in QUOTED.findall(text) for path in FILE.findall(quoted)]
    missing += [path for path in named if "NAME" not in path and "cache" not in path and not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_names_of_a_page_are_names_of_the_code(page):
    quoted = [
        text for text in QUOTED.findall(page.read_text(encoding="utf-8")) if "/" not in text and " " not in text
    ]
    names = {text.split("[")[0].split(".")[-1] for text in quoted if NAME.fullmatch(text.split("[")[0])}
    names -= {"py", "json", "csv", "svg", "html", "toml"}
    assert names and not [name for name in names if not re.search(rf"\b{name}\b", SOURCES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_exist(page):
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    text = page.read_text(encoding="utf-8")
    used = re.findall(r"(?:`|^|/)ident ([a-z]+)", text, re.MULTILINE)
    assert set(used) <= known


def test_readme_shows_its_figures_in_both_schemes():
    shown = re.findall(
        r'<source media="\(prefers-color-scheme: dark\)" srcset="figures/base/dark/(\w+)\.svg">\s*'
        r'<img src="figures/base/(\w+)\.svg" alt="([^"]{40,})"',
        README,
    )
    assert tuple(light for _, light, _ in shown) == README_FIGURES
    assert all(dark == light for dark, light, _ in shown)


@pytest.mark.parametrize("name", README_FIGURES)
def test_dark_figures_are_in_step_with_the_light_ones(name):
    folder = ROOT / "figures" / "base"
    assert (folder / DARK / f"{name}.svg").read_bytes() == dark_svg((folder / f"{name}.svg").read_bytes())


def test_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"] and citation["license"] == project["license"]
    [paper] = citation["references"]
    assert paper["title"] == "On Identifiability in Transformers" and len(paper["authors"]) == 6


def test_a_reader_without_a_machine_gets_the_environment_of_the_suite():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert "--file environment.yml" in container["postCreateCommand"]
    assert f"/envs/{environment['name']}/bin" in container["remoteEnv"]["PATH"]
    assert "-e ." in environment["dependencies"][-1]["pip"]
    for name in ("postBuild", "start"):
        assert os.access(ROOT / name, os.X_OK)
        assert (ROOT / name).read_text(encoding="utf-8").startswith("#!/bin/bash\n")
    assert not (ROOT / "binder").exists() and not (ROOT / ".binder").exists(), "they would hide the files at the top"


def test_no_picture_of_the_readme_is_broken():
    for name in README_FIGURES:
        ET.parse(ROOT / "figures" / "base" / DARK / f"{name}.svg")
