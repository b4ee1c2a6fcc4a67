"""The words of the report: the paper in short, the finding as a sentence with numbers, controls and caveats."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WORDS_FILE = Path(__file__).with_name("content.toml")


@dataclass(frozen=True)
class Words:
    """Hold what the report says about one claim; empty where nothing was written about it."""

    paper: str = "–"  # the paper's statement in a few words, its number where it is certain
    finding: str = ""  # a sentence with places for measured numbers; says what was measured, never the verdict
    figures: tuple[str, ...] = ()  # the key figure first
    controls: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    def state(self, measurement: dict | None) -> str:
        """Return the finding with the measured numbers, or nothing where a number is missing."""
        if not measurement:
            return ""
        layers = measurement.get("by_layer") or [{}]
        numbers = measurement | {"first": layers[0], "last": layers[-1], "layers": len(layers)}
        numbers["off"] = measurement.get("heads_below_bound", 0) + measurement.get("heads_above_bound", 0)
        try:
            return self.finding.format_map(numbers)
        except (KeyError, IndexError, ValueError, TypeError):
            return ""


@cache
def _all_words() -> dict[str, dict]:
    return tomllib.loads(WORDS_FILE.read_text(encoding="utf-8"))


def read_words(claim: str) -> Words:
    """Return the words about a claim."""
    entry = _all_words().get(claim, {})
    return Words(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
