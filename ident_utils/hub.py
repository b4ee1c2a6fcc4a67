"""Models from a Hugging Face hub, through ``huggingface_hub`` and its ordinary cache; none of their code is fetched.

What is cached is used without asking the network. The weights come last, so that a model whose weights are there is
there whole; a download that broke off goes on where it stopped.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ident_utils.archives import sha256_of
from ident_utils.errors import IdentError

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
BESIDES = ["config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"]
BESIDES += ["*.model"]  # sentencepiece
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spm.model", "spiece.model", "sentencepiece.bpe.model")
SECONDS = 6.0  # for the first answer of a hub, name resolution included
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w./-]+))?")


def parse_hub_name(name: str) -> tuple[str, str | None] | None:
    """Split NAME, OWNER/NAME or either with @REVISION; None for what cannot be a name on a hub.

    >>> parse_hub_name("google-bert/bert-base-uncased@86b5e09")
    ('google-bert/bert-base-uncased', '86b5e09')
    """
    found = _NAME.fullmatch(name)
    return (found["repo"], found["revision"]) if found else None


def cached_model(repo: str, revision: str | None, *, unsafe: bool = False) -> Path | None:
    """Return the folder of a model that is in the cache with weights and vocabulary, or None; nothing is checked.

    Other programs share that cache, and some of them fetch weights alone.
    """
    from huggingface_hub import try_to_load_from_cache

    for weights in (WEIGHTS, PICKLED) if unsafe else (WEIGHTS,):
        path = try_to_load_from_cache(repo, weights, revision=revision)
        if isinstance(path, str):
            folder = Path(path).parent
            if (folder / "config.json").is_file() and any((folder / name).is_file() for name in VOCABULARIES):
                return folder
    return None


def hub_model(repo: str, revision: str | None, *, sha256: str | None = None, unsafe: bool = False) -> Path:
    """Return the folder of a model, fetched where the cache lacks it; its name is the commit.

    The weights are checked by their sha256: the one given, else the one the hub named when they were fetched. Weights
    that fail are removed from the cache. ``unsafe`` takes pickled weights where there are no safetensors. Raises
    IdentError with the cause and the remedy; a hub that does not answer costs less than ten seconds.
    """
    folder = cached_model(repo, revision, unsafe=unsafe)
    if folder is None:
        folder = _download(repo, revision, unsafe)
    weights = weights_in(folder)
    blob = weights.resolve()
    expected = sha256 or (blob.name if re.fullmatch(r"[0-9a-f]{64}", blob.name) else None)
    found = sha256_of(weights) if expected else None
    if found != expected:
        blob.unlink(missing_ok=True)
        weights.unlink(missing_ok=True)
        raise IdentError(
            f"{weights.name} of {repo} is not the file that was pinned (sha256 expected {expected}, found "
            f"{found}); it was removed from the cache, so ask again, or else name another revision."
        )
    return folder


def weights_in(folder: Path) -> Path:
    """Return the path of a folder's weights: safetensors, or pickled ones where only these are there."""
    pickled = folder / PICKLED
    return pickled if pickled.is_file() and not (folder / WEIGHTS).is_file() else folder / WEIGHTS


def _download(repo: str, revision: str | None, unsafe: bool) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    with _explained(repo, revision):
        info = within(SECONDS, lambda: HfApi().model_info(repo, revision=revision, timeout=SECONDS / 2))
    files = {sibling.rfilename for sibling in info.siblings}
    if "config.json" not in files:
        raise IdentError(
            f"{repo} on {constants.ENDPOINT} has no config.json; name a repository of transformers' kind."
        )
    if WEIGHTS not in files and not (unsafe and PICKLED in files):
        raise IdentError(f"{repo} on {constants.ENDPOINT} has no {WEIGHTS}{_instead(files)}.")
    if not sys.stderr.isatty():
        disable_progress_bars()  # notebooks keep what is written there
    for patterns in (BESIDES, [WEIGHTS if WEIGHTS in files else PICKLED]):
        with _explained(repo, revision, answered=True):
            folder = snapshot_download(repo, revision=info.sha, allow_patterns=patterns)
    if revision is None or revision != info.sha:
        _remember(Path(folder), revision or "main", info.sha)
    return Path(folder)


def _instead(files: set[str]) -> str:
    if PICKLED in files:
        return (
            f", only {PICKLED}, a pickle, which can run code while it is read; name a revision with safetensors, or "
            "set IDENT_UNSAFE_WEIGHTS=1 if you trust its author"
        )
    if f"{WEIGHTS}.index.json" in files:
        return ", but weights in several files, which are not supported; name a smaller model"
    return "; name a repository that holds one"


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Note in the cache which commit a branch or short name stands for, as the hub's own client does."""
    from ident_utils.results import write_atomically  # here: it imports numpy

    write_atomically(folder.parent.parent / "refs" / revision, commit)


def within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Return what ``ask`` returns or raise what it raises; TimeoutError when neither happens in time.

    Timeouts of an HTTP client do not cover the resolution of names, nor its retries.
    """
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append((True, ask()))
        except BaseException as error:  # handed to the thread that asked
            answer.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answer:
        raise TimeoutError(f"no answer in {seconds:g} s")
    well, value = answer[0]
    if not well:
        raise value
    return value


@contextmanager
def _explained(repo: str, revision: str | None, *, answered: bool = False) -> Iterator[None]:
    """Turn whatever the client raises into one sentence; ``answered``: the hub did answer before."""
    try:
        yield
    except IdentError:
        raise
    except Exception as error:
        message = explain(error, repo, revision)
        if answered and "cannot be reached" in message:
            reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".:")
            message = f"the download of {repo} broke off ({reason}); ask again, and what has arrived is not lost."
        raise IdentError(message) from error


def explain(error: Exception, repo: str, revision: str | None, *, kind: str = "model") -> str:
    """Return one sentence with cause and remedy for what the hub's client raised about a model or a data set."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".:")
    if isinstance(error, errors.GatedRepoError):
        return f"{repo} on {hub} is given out on request only; ask for it there and log in with `hf auth login`."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo} on {hub} has no revision {revision!r}; name a branch, a tag or a whole commit."
    if isinstance(error, errors.RepositoryNotFoundError):
        remedy = f"; {without_hub()}" if kind == "model" else ""
        return f"There is no {kind} {repo!r} on {hub}, nor a folder of that name{remedy}."
    if isinstance(error, OSError) and getattr(error, "errno", None) in (
        28,
        13,
        30,
    ):  # disk full, not allowed, read-only
        return f"{repo} cannot be stored in {constants.HF_HUB_CACHE} ({error.strerror}); make room or set HF_HOME."
    if isinstance(error, errors.OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set"
    if kind != "model":
        return (
            f"The {kind} {repo!r} is not in the cache, and {hub} cannot be reached ({reason}); connect to a network."
        )
    where = f"no folder of that name is here, it is not in the cache {constants.HF_HUB_CACHE}"
    return f"There is no model {repo!r} to be had: {where}, and {hub} cannot be reached ({reason}); {without_hub()}."


def without_hub() -> str:
    """Name the models that need no hub."""
    from ident_utils.fetch import model_catalogue  # here: that module knows this one

    names = [name for name, entry in model_catalogue().items() if entry.wheels]
    return f"models that need no hub: {', '.join(names)}"
