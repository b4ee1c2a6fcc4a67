"""Gather what the notebooks of a profile wrote and put it on one page; nothing is measured or drawn here."""

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import jinja2
from markupsafe import Markup

from ident_utils.claims import CLAIMS, judgement
from ident_utils.errors import IdentError
from ident_utils.notebooks import notebook_paths, title
from ident_utils.report.content import Words, read_words
from ident_utils.report.pictures import Picture, colour_rules, read_picture
from ident_utils.results import load_measurements, write_atomically
from ident_utils.settings import Settings, load_settings

TEMPLATES = Path(__file__).parent / "templates"
PAGES = "notebooks"  # folder of the rendered notebooks, beside the report


def write_report(settings: Settings | None = None) -> Path:
    """Write ``report.html`` and the notebook pages into the folder of a profile's results; return the report's path.

    The same results give the same bytes. Claims that were not measured are shown as not tested. Raises IdentError
    when the folder holds no results at all.
    """
    from ident_utils.report.notebook_pages import write_pages  # here: nbconvert takes a second to import

    settings = settings or load_settings()
    if not any(settings.folder.glob("*.json")):
        raise IdentError(
            f"there is nothing to report in {settings.folder}; "
            f"run `ident reproduce --profile {settings.profile}` first"
        )
    pages = write_pages(settings, settings.folder / PAGES)
    path = settings.folder / "report.html"
    write_atomically(path, render_report(settings, pages))
    return path


def render_report(settings: Settings, pages: Iterable[str] = ()) -> str:
    """Return the page; ``pages`` are the names of the notebooks that have a page beside it."""
    pages = set(pages)
    claims = [_claim(row, settings.folder, pages) for row in _judged(settings)]
    shown = [picture for claim in claims for picture in claim["pictures"]]
    notebooks = [
        {"name": path.stem, "title": title(path), "page": _page(path.stem, pages)} for path in notebook_paths()
    ]
    return render(
        "report.html.j2",
        settings=settings,
        claims=claims,
        counts=_counts(claims),
        notebooks=[each for each in notebooks if each["page"]],
        origins=_origins(settings.folder),
        colours=Markup(colour_rules(shown)),
    )


def render(template: str, **values: object) -> str:
    """Fill a template; every value is escaped unless it is marked as safe."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "report.js"))
    return environment.get_template(template).render(
        style=Markup(style), script=Markup(script), script_hash=_csp_hash(script), **values
    )


def _csp_hash(script: str) -> str:
    """Return what the page's policy allows to run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _judged(settings: Settings) -> list[dict]:
    measured = load_measurements(settings.folder)
    rows = judgement(measured).to_dict("records")
    return [row | {"measurement": measured.get(row["claim"])} for row in rows]


def _claim(row: dict, folder: Path, pages: set[str]) -> dict:
    words: Words = read_words(row["claim"])
    pictures: list[Picture] = [p for p in (read_picture(folder, name) for name in words.figures) if p is not None]
    return row | {
        "number": int("".join(c for c in row["claim"] if c.isdigit()) or 0),
        "words": words,
        "finding": words.state(row["measurement"]) or row["measured"],
        "pictures": pictures,
        "page": _page(row["notebook"], pages),
        **_numbers(row["measurement"]),
    }


def _numbers(measurement: dict | None) -> dict[str, object]:
    """Return the value and its interval as they are printed, with a dash where there is none."""
    if not measurement or not all(isinstance(measurement.get(key), int | float) for key in ("value", "low", "high")):
        return {"here": "–", "interval": "–", "unit": "", "sort": "", "low": ""}
    value, low, high = (measurement[key] for key in ("value", "low", "high"))
    return {
        "here": _minus(f"{value:.3f}"),
        "interval": _minus(f"{low:.3f} to {high:.3f}"),
        "unit": measurement.get("unit", ""),
        "sort": f"{value:.6f}",
        "low": f"{low:.6f}",
    }


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _page(notebook: str, pages: set[str]) -> str | None:
    return f"{PAGES}/{notebook}.html" if notebook in pages else None


def _counts(claims: list[dict]) -> list[tuple[str, int]]:
    """Count the verdicts, in the order in which they first appear."""
    verdicts = [claim["verdict"] for claim in claims]
    return [(verdict, verdicts.count(verdict)) for verdict in dict.fromkeys(verdicts)]


def _origins(folder: Path) -> list[dict]:
    """Return the provenance of every results file, settings as text."""
    origins = []
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            origin = content["provenance"]
            settings = {name: json.dumps(value) for name, value in origin["settings"].items()}
            claims = [name for name in content["measurements"] if name in CLAIMS]
            origins.append(
                origin | {"file": file.name, "settings": settings, "run": content.get("run") or {}, "claims": claims}
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IdentError(f"{file} is not a results file ({error}); rerun notebook {file.stem}.") from error
    return origins
