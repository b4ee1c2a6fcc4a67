"""What comes from outside is pinned, and nothing from outside is run or unpickled."""

import ast
import re
import tomllib

import pytest
import yaml

from ident_utils.paths import ROOT

MODULES = sorted((ROOT / "ident_utils").rglob("*.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "ident_utils")))
def test_nothing_is_evaluated_unpickled_or_given_to_a_shell(path):
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in ("pickle", "cloudpickle", "dill", "marshal")]
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            of_module = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
            whose = node.func.value.id if of_module else ""
            found += [called] if isinstance(node.func, ast.Name) and called in ("eval", "exec", "compile") else []
            found += [f"{whose}.{called}"] if (whose, called) in (("os", "system"), ("os", "popen")) else []
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            found += ["shell"] if "shell" in given else []
            allowed = given.get("allow_pickle")
            found += ["allow_pickle"] if allowed is not None and ast.unparse(allowed) != "False" else []
            found += ["torch.load"] if (whose, called) == ("torch", "load") else []
    assert not found


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "wheels").glob("*.txt")), ids=lambda path: path.stem)
def test_every_wheel_of_a_model_has_its_version_and_hash(path):
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[\w.-]+==\S+\s", line)
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line)


def test_models_of_a_hub_have_a_full_revision_and_the_hash_of_their_weights():
    models = tomllib.loads((ROOT / "data" / "models.toml").read_text(encoding="utf-8"))
    assert models
    for entry in models.values():
        assert re.fullmatch(r"[0-9a-f]{40}", entry["revision"])
        assert re.fullmatch(r"[0-9a-f]{64}", entry["files"]["model.safetensors"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_read_and_nothing_else(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        assert job["timeout-minutes"] <= 60
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
        assert checkouts
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_pinned_packages_are_audited():
    commands = [
        step.get("run", "")
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
    ]
    assert any("pip-audit" in command and "requirements.lock" in command for command in commands)
