"""pyproject.toml, requirements.lock and environment.yml say the same."""

import re
import tomllib
from importlib.metadata import requires

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ident_utils.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]
# The lock was made here; other platforms and versions of Python need a few packages more or less.
LOCKED_ON = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux"}
LOCKED_ON |= {"platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
DIRECT = [Requirement(line) for line in PROJECT["dependencies"]] + EXTRAS


def pins(lines: list[str]) -> dict[str, str]:
    """Return the version of each package, from lines that must all read ``name==version``."""
    found = {}
    for line in lines:
        pinned = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
        assert pinned, f"{line!r} is not an exact pin (no local version, address or path)"
        name = canonicalize_name(pinned[1])
        assert name not in found, f"{name} is pinned twice"
        found[name] = pinned[2]
    return found


def extras_of(requirement: Requirement) -> list[str]:
    return ["", *requirement.extras]


@pytest.fixture(scope="module")
def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return pins([line for line in lines if line and not line.startswith("#")])


@pytest.fixture(scope="module")
def environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_lock_satisfies_the_range(lock, requirement):
    assert Version(lock[canonicalize_name(requirement.name)]) in requirement.specifier


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_range_is_bounded_on_both_sides(requirement):
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators == {">=", "<"} or operators == {"=="}


def test_lock_is_what_the_build_needs_too(lock):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in map(Requirement, build):
        assert Version(lock[canonicalize_name(requirement.name)]) in requirement.specifier


def test_lock_holds_all_that_is_needed_and_no_more(lock):
    """Follow what each installed package requires, beginning with the direct dependencies."""
    reached, todo = (
        set(),
        [(requirement.name, extra) for requirement in DIRECT for extra in extras_of(requirement)],
    )
    while todo:
        package = (canonicalize_name(todo[-1][0]), todo.pop()[1])
        if package in reached:
            continue
        reached.add(package)
        name, extra = package
        for needed in map(Requirement, requires(name) or [] if name in lock else []):
            if needed.marker is None or needed.marker.evaluate(LOCKED_ON | {"extra": extra}):
                todo += [(needed.name, extra) for extra in extras_of(needed)]
    names = {name for name, _ in reached if not name.startswith(("nvidia", "cuda", "triton"))} | {"setuptools"}
    assert set(lock) == names


def test_environment_pins_the_direct_dependencies_as_the_lock_does(lock, environment):
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip[-1] == "-e ."
    direct = {canonicalize_name(requirement.name) for requirement in DIRECT}
    assert pins(pip[:-1]) == {name: lock[name] for name in direct}


def test_environment_has_a_supported_python(environment):
    (python,) = [line for line in environment["dependencies"] if str(line).startswith("python=")]
    assert Version(python.removeprefix("python=")) >= Version("3.11")
    assert PROJECT["requires-python"] == ">=3.11"
