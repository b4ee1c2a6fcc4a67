"""Profiles: one name that sets model, texts, sample sizes and seed."""

import hashlib
import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from ident_utils.errors import IdentError
from ident_utils.paths import figures_root

PROFILES_FILE = Path(__file__).with_name("profiles.toml")


@dataclass(frozen=True)
class Settings:
    """Hold everything a notebook needs to know before it measures; made by :func:`load_settings`."""

    profile: str
    model: str
    corpus: str
    long_corpus: str
    seed: int
    length_ratios: tuple[float, ...]
    attention_sequences: int
    identity_sequences: int
    control_sequences: int
    attribution_sequences: int
    probes: int
    attribution_control_sequences: int
    attribution_control_tokens: int
    exact_tokens: int
    resamples: int
    compare_models: tuple[str, ...]
    rank_ratios: tuple[float, ...]
    rank_sequences: int
    interval_ratios: tuple[float, ...]
    interval_sequences: int
    interval_rows: int
    replacement_ratios: tuple[float, ...]
    folder: Path

    @property
    def models(self) -> tuple[str, ...]:
        """Name every model that the notebooks load under these settings."""
        return (self.model, *self.compare_models)


def _profiles() -> dict[str, dict]:
    return tomllib.loads(PROFILES_FILE.read_text(encoding="utf-8"))


def profile_names() -> list[str]:
    """List the profiles, the default first."""
    return list(_profiles())


def load_settings(
    profile: str | None = None,
    *,
    model: str | None = None,
    corpus: str | None = None,
    seed: int = 0,
) -> Settings:
    """Read a profile, with model, corpus and seed replaced where they are given.

    ``profile=None`` means the environment variable ``IDENT_PROFILE``, else ``base``. A corpus that is given
    takes the place of the long texts too. Results of a changed model, corpus or seed go to a folder of their
    own, so that they never overwrite the profile's.

    Raises IdentError for an unknown profile or a seed that is not a non-negative whole number.
    """
    name = profile or os.environ.get("IDENT_PROFILE") or "base"
    profiles = _profiles()
    if name not in profiles:
        raise IdentError(f"There is no profile {name!r}; choose one of {', '.join(profiles)}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise IdentError(f"The seed must be a non-negative whole number, not {seed!r}.")

    values = {key: tuple(value) if isinstance(value, list) else value for key, value in profiles[name].items()}
    changes = []
    for keys, value in ((("model",), model), (("corpus", "long_corpus"), corpus)):
        if value is not None and any(value != values[key] for key in keys):
            values |= dict.fromkeys(keys, value)
            changes.append(_slug(value))
            if "model" in keys:
                values["compare_models"] = ()  # who names a model asks about that one
    if seed:
        changes.append(f"seed{seed}")
    folder = figures_root() / "--".join([name, *changes])
    return Settings(profile=name, seed=seed, folder=folder, **values)


def _slug(text: str) -> str:
    """Turn a model name or a path into something a folder can be called, apart for every path."""
    slug = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(text).name or text).strip("-")
    return slug if slug == text else f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def describe(settings: Settings) -> dict[str, object]:
    """Return the settings as plain values, for provenance; files and folders by their last name."""
    plain = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "folder"}
    plain |= {name: without_folder(plain[name]) for name in ("model", "corpus", "long_corpus")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def without_folder(name: str) -> str:
    """Return a name as it is and a path by its last part: the rest says only whose machine it was.

    >>> without_folder("/home/ada/texts.txt"), without_folder("google/electra-small-discriminator")
    ('texts.txt', 'google/electra-small-discriminator')
    """
    return Path(name).name if Path(name).is_absolute() or name.startswith((".", "~")) else name
