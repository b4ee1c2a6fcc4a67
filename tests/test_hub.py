"""Models and texts from a hub: the real client talks to a server on loopback that serves what is made here."""

import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from command import ident
from encoders import tiny_encoder
from hub import Hub
from safetensors.torch import load_file

from ident_utils.errors import IdentError
from ident_utils.fetch import model_catalogue
from ident_utils.hub import parse_hub_name, within
from ident_utils.mrpc import REVISION
from ident_utils.paths import ROOT

PINNED = model_catalogue()["bert-base-uncased"]
LOCATE = (
    "import sys; from ident_utils.errors import IdentError; from ident_utils.locate import locate_model\n"
    "try: print(locate_model(sys.argv[1]).folder)\n"
    "except IdentError as error: sys.exit(f'ident: {error}')"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> dict[str, bytes]:
    """Make the files of a tiny checkpoint, and one that must never be fetched."""
    folder = tmp_path_factory.mktemp("checkpoint")
    encoder = tiny_encoder("bert", dtype=torch.float32)
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"modeling_tiny.py": b"raise SystemExit"}


@pytest.fixture
def hub():
    served = Hub()
    yield served
    served.close()


class Client:
    """Ask a hub in processes of their own, with a cache of their own."""

    def __init__(self, hub_url: str, home: Path) -> None:
        self.variables = {"HF_ENDPOINT": hub_url, "HF_HOME": str(home / "hf"), "IDENT_CACHE": str(home / "cache")}

    def start(self, name: str, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", LOCATE, name],
            env=os.environ | {"PYTHONPATH": path_of_the_package()} | self.variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def locate(self, name: str, **variables: str) -> Path:
        out, err = (process := self.start(name, **variables)).communicate(timeout=60)
        assert process.returncode == 0, err
        return Path(out.strip())

    def refusal(self, name: str, **variables: str) -> str:
        out, err = (process := self.start(name, **variables)).communicate(timeout=60)
        assert process.returncode == 1 and not out and "Traceback" not in err, out + err
        line = err.splitlines()[-1]
        assert line.startswith("ident: ") and line.endswith(".")
        return line

    def ident(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return ident(*arguments, timeout=120, **self.variables | {"PYTHONPATH": path_of_the_package()} | variables)


def path_of_the_package() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def client(hub, tmp_path) -> Client:
    return Client(hub.url, tmp_path)


def with_noise(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return a checkpoint of the same size whose last number is another."""
    weights = files["model.safetensors"]
    return files | {"model.safetensors": weights[:-1] + bytes([weights[-1] ^ 1])}


def test_names_on_a_hub_are_told_from_paths():
    assert parse_hub_name("gpt2") == ("gpt2", None)
    assert parse_hub_name("a/b-c.d@refs/pr/1") == ("a/b-c.d", "refs/pr/1")
    for path in ("a/b/c", "/a", "./a", "a//b", "a/", "", "a b", "a@", "../a", "a\\b"):
        assert parse_hub_name(path) is None


def test_first_load_then_loads_from_the_cache_without_the_hub(hub, client, checkpoint):
    commit = hub.put("models/tiny/bert", checkpoint).branches["main"]
    folder = client.locate("tiny/bert")
    assert hub.downloads("model.safetensors") == 1 and hub.downloads("modeling_tiny.py") == 0
    asked = len(hub.requests)
    assert client.locate("tiny/bert") == folder
    assert len(hub.requests) == asked  # what is cached is not asked for again
    hub.close()
    assert client.locate("tiny/bert") == client.locate(f"tiny/bert@{commit}") == folder
    assert folder.name == commit
    original = tiny_encoder("bert", dtype=torch.float32).model.state_dict()
    loaded = load_file(folder / "model.safetensors")
    assert all(torch.equal(loaded[name], weight) for name, weight in original.items() if name in loaded)


def test_revision_is_what_was_asked_for(hub, client, checkpoint):
    old = hub.put("models/tiny/bert", checkpoint, branch="old").branches["old"]
    hub.put("models/tiny/bert", with_noise(checkpoint))
    contents = {
        name: (client.locate(name) / "model.safetensors").read_bytes() for name in ("tiny/bert", f"tiny/bert@{old}")
    }
    assert contents["tiny/bert"] == with_noise(checkpoint)["model.safetensors"]
    assert contents[f"tiny/bert@{old}"] == checkpoint["model.safetensors"]
    hub.close()
    assert client.locate(f"tiny/bert@{old}").name == old
    # A branch is not the commit that it points to: this one was never asked for.
    assert "cannot be reached" in client.refusal("tiny/bert@old")


def test_download_that_breaks_off_goes_on(hub, client, checkpoint):
    repository = hub.put("models/tiny/bert", checkpoint)
    repository.cut["model.safetensors"] = 5000
    assert "the download of tiny/bert broke off" in client.refusal("tiny/bert")
    assert hub.downloads("model.safetensors") > 1 and hub.downloads("config.json") == 1  # the client did try again
    repository.cut.clear()
    folder = client.locate("tiny/bert")
    assert (folder / "model.safetensors").read_bytes() == checkpoint["model.safetensors"]
    assert hub.downloads("config.json") == 1


def test_weights_that_another_program_cached_alone_are_completed(hub, client, checkpoint):
    hub.put("models/tiny/bert", checkpoint)
    folder = client.locate("tiny/bert")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert client.locate("tiny/bert") == folder and (folder / "tokenizer.json").is_file()
    assert hub.downloads("model.safetensors") == 1


def test_killed_download_leaves_nothing_that_is_taken_for_a_model(hub, client, checkpoint):
    repository = hub.put("models/tiny/bert", checkpoint)
    repository.stalled["model.safetensors"] = 5000
    process = client.start("tiny/bert")
    deadline = time.monotonic() + 30
    while not hub.downloads("model.safetensors") and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    repository.stalled.clear()
    folder = client.locate("tiny/bert")
    assert (folder / "model.safetensors").read_bytes() == checkpoint["model.safetensors"]


def test_wrong_content_is_refused_removed_and_mended(hub, client, checkpoint):
    repository = hub.put("models/tiny/bert", checkpoint)
    repository.tampered["model.safetensors"] = with_noise(checkpoint)["model.safetensors"]
    message = client.refusal("tiny/bert")
    expected = hashlib.sha256(checkpoint["model.safetensors"]).hexdigest()
    assert f"model.safetensors of tiny/bert is not the file that was pinned (sha256 expected {expected}" in message
    repository.tampered.clear()
    folder = client.locate("tiny/bert")
    assert (folder / "model.safetensors").read_bytes() == checkpoint["model.safetensors"]
    # Damage in the cache is noticed as well.
    blob = (folder / "model.safetensors").resolve()
    blob.write_bytes(with_noise(checkpoint)["model.safetensors"])
    assert "is not the file that was pinned" in client.refusal("tiny/bert")
    assert client.locate("tiny/bert") == folder


def test_papers_model_is_held_to_its_pinned_hash(hub, client, checkpoint):
    hub.put(f"models/{PINNED.hub}", checkpoint, commit=PINNED.revision)
    message = client.refusal("bert-base-uncased")
    assert f"of {PINNED.hub} is not the file that was pinned (sha256 expected {PINNED.sha256}" in message


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (("model.safetensors",), "has no config.json"),
        (("config.json",), "has no model.safetensors; name a repository that holds one"),
        (("config.json", "pytorch_model.bin"), "only pytorch_model.bin, a pickle, which can run code"),
        (("config.json", "model.safetensors.index.json"), "weights in several files, which are not supported"),
    ],
)
def test_missing_file_is_named(hub, client, kept, words):
    hub.put("models/tiny/bert", dict.fromkeys(kept, b"{}"))
    assert words in client.refusal("tiny/bert")


def test_missing_repository_and_revision_are_named(hub, client, checkpoint):
    hub.put("models/tiny/bert", checkpoint)
    assert f"There is no model 'tiny/bort' on {hub.url}" in client.refusal("tiny/bort")
    assert "has no revision 'next'" in client.refusal("tiny/bert@next")


@pytest.mark.parametrize("network", ["refuses", "never answers", "is switched off"])
def test_no_network_says_so_within_ten_seconds(tmp_path, network):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = 9 if network == "refuses" else silent.getsockname()[1]
        client, start = Client(f"http://127.0.0.1:{port}", tmp_path), time.monotonic()
        offline = {"HF_HUB_OFFLINE": "1"} if network == "is switched off" else {}
        message = client.refusal("tiny/bert", **offline)
        assert time.monotonic() - start < 10
    assert "no folder of that name is here" in message and "cannot be reached" in message
    assert message.endswith("models that need no hub: mpnet-base, minilm-l6.")
    assert ("HF_HUB_OFFLINE is set" in message) == bool(offline)


def test_answer_that_never_comes_is_not_waited_for():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        within(0.1, lambda: time.sleep(5))
    assert time.monotonic() - start < 2
    with pytest.raises(IdentError, match="mine"):
        within(1, lambda: (_ for _ in ()).throw(IdentError("mine")))


# The paper's text and setting.

CARD = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train-*
  - split: validation
    path: mrpc/validation-*
---
"""


def glue(n: int) -> dict[str, bytes]:
    """Make a data set in the shape of GLUE's MRPC; only the validation split holds ``n`` pairs."""
    files = {"README.md": CARD.encode()}
    for split, count in (("train", 2), ("validation", n)):
        sentences = {f"sentence{k}": [f"{split} river {k} {i} sings." for i in range(count)] for k in (1, 2)}
        buffer = io.BytesIO()
        pd.DataFrame(sentences | {"label": [0] * count, "idx": range(count)}).to_parquet(buffer)
        files[f"mrpc/{split}-00000-of-00001.parquet"] = buffer.getvalue()
    return files


def test_papers_setting_runs_from_the_hub_and_again_without_it(hub, client, checkpoint, tmp_path):
    hub.put("models/tiny/bert", checkpoint)
    hub.put("datasets/nyu-mll/glue", glue(9), commit=REVISION)
    results = {"IDENT_FIGURES": str(tmp_path / "figures"), "IDENT_RUNS": str(tmp_path / "runs")}
    arguments = ("reproduce", "00", "--profile", "paper", "--model", "tiny/bert")
    run = client.ident(*arguments, **results)
    assert run.returncode == 0, run.stdout + run.stderr
    (written,) = (tmp_path / "figures").glob("paper--*/00_start_here.json")
    origin = json.loads(written.read_text())["provenance"]["model"]
    assert origin["source"] == "tiny/bert" and re.fullmatch("[0-9a-f]{40}", origin["revision"])
    hub.close()
    code = "from ident_utils.corpora import load_corpus; print(*load_corpus('mrpc', 9), sep='\\n')"
    variables = os.environ | {"PYTHONPATH": path_of_the_package()} | client.variables
    again = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert "('validation river 1 0 sings.', 'validation river 2 0 sings.')" in again.stdout.splitlines()
    assert len(again.stdout.splitlines()) == 9


def test_missing_text_of_the_paper_says_what_to_do(tmp_path):
    start = time.monotonic()
    run = Client("http://127.0.0.1:9", tmp_path).ident(
        "reproduce", "00", "--profile", "paper", "--model", "tiny/bert"
    )
    assert run.returncode == 2 and "There is no model 'tiny/bert' to be had" in run.stderr
    assert time.monotonic() - start < 12
    code = "from ident_utils.corpora import load_corpus; load_corpus('mrpc', 1)"
    variables = os.environ | {"PYTHONPATH": path_of_the_package()} | Client("http://127.0.0.1:9", tmp_path).variables
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert "'nyu-mll/glue' is not in the cache" in run.stderr and "set IDENT_MRPC to a folder" in run.stderr
