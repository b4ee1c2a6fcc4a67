"""The report: whole without a network, the same bytes twice, honest about what is missing, safe against any text."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest
from command import ident
from markupsafe import escape
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, writes

from ident_utils.claims import CLAIMS, judge
from ident_utils.errors import IdentError
from ident_utils.notebooks import notebook_paths
from ident_utils.paths import ROOT
from ident_utils.plots import plot_across_layers, plot_parts
from ident_utils.report.build import render_report, write_report
from ident_utils.report.content import _all_words, read_words
from ident_utils.report.pictures import colour_rules, read_picture
from ident_utils.results import save_figure
from ident_utils.settings import load_settings

HOSTILE = "<script>alert('x')</script>\"&"


class Elements(HTMLParser):
    """Collect the elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return settings whose folder holds the committed results and no figures."""
    monkeypatch.setenv("IDENT_RUNS", str(tmp_path / "runs"))
    folder = tmp_path / "figures" / "base"
    folder.mkdir(parents=True)
    for file in (ROOT / "figures" / "base").glob("*.json"):
        shutil.copy(file, folder)
    return replace(load_settings("base"), folder=folder)


def rates() -> pd.DataFrame:
    rows = [(1, 0.9), (2, 0.8)]
    return pd.DataFrame(
        [
            {"layer": layer, "seen": seen, "value": value, "low": value - 0.1, "high": value, "n_sequences": 3}
            for layer, value in rows
            for seen in ("full", "direction", "norm", "one coordinate")
        ]
    )


def draw(settings, name: str, alt: str = "Four curves.") -> None:
    save_figure(settings, name, plot_parts(rates(), 0.02), rates(), alt=alt)


def run_copy(settings, tmp_path, name: str, **parts) -> None:
    cells = [
        new_markdown_cell(parts.get("text", "# A title\n\nSee [03](03_identity_retention.ipynb) and $n > d_v$."))
    ]
    cells += [new_code_cell("1", outputs=parts.get("outputs", []), execution_count=1)]
    folder = tmp_path / "runs" / settings.folder.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ipynb").write_text(writes(new_notebook(cells=cells)))


# The page.


def test_every_claim_is_shown_with_its_verdict_and_its_number(settings):
    page = render_report(settings)
    elements = Elements(page)
    ids = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    assert set(CLAIMS) <= ids
    for row in judge(settings).itertuples():
        assert escape(row.criterion) in page and escape(row.measured) in page and row.verdict in page
    assert page.count('<tr role="row">') == len(CLAIMS) + 1


def test_same_results_give_the_same_bytes(settings, tmp_path):
    draw(settings, "04_parts")
    run_copy(settings, tmp_path, "04_angle_vs_norm")
    first = write_report(settings).read_bytes()
    pages = {p.name: p.read_bytes() for p in (settings.folder / "notebooks").iterdir()}
    assert write_report(settings).read_bytes() == first
    assert {p.name: p.read_bytes() for p in (settings.folder / "notebooks").iterdir()} == pages


def test_nothing_is_loaded_from_anywhere(settings, tmp_path):
    draw(settings, "04_parts")
    run_copy(settings, tmp_path, "04_angle_vs_norm")
    report = write_report(settings)
    for file in (report, *(settings.folder / "notebooks").iterdir()):
        text = file.read_text()
        for tag, attributes in Elements(text).found:
            assert tag not in ("link", "iframe", "object", "embed")
            assert "src" not in attributes or attributes["src"].startswith("data:")
            link = attributes.get("href", "#")
            assert link.startswith(("#", "notebooks/", "../report.html", "data:")) or link.endswith(".html"), link
        assert "@import" not in text and "url(http" not in text
        assert "default-src 'none'" in text


def test_ids_are_unique_and_links_inside_the_page_lead_somewhere(settings):
    for name in ("04_parts", "04_before_norm"):
        draw(settings, name)
    elements = Elements(render_report(settings)).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for _, attributes in elements if attributes.get("href", "").startswith("#")}
    targets |= {attributes[key] for _, attributes in elements for key in ("aria-labelledby",) if key in attributes}
    assert targets <= set(ids)


def test_text_of_a_user_is_escaped_everywhere(settings, tmp_path):
    file = settings.folder / "04_angle_vs_norm.json"
    content = json.loads(file.read_text())
    content["measurements"]["C5"]["worst_layer"] = HOSTILE
    content["measurements"]["C5"]["unit"] = HOSTILE
    content["provenance"]["model"]["source"] = content["provenance"]["text"]["corpus"] = HOSTILE
    content["run"] = {"commit": HOSTILE}
    file.write_text(json.dumps(content))
    draw(settings, "04_parts", alt=HOSTILE)
    page = render_report(replace(settings, model=HOSTILE, corpus=HOSTILE))
    assert "<script>alert" not in page and page.count("&lt;script&gt;alert") >= 7
    assert len(Elements(page).named("script")) == 1


def test_claims_without_results_are_not_tested_and_named(settings):
    (settings.folder / "06_context_mixing.json").unlink()
    page = render_report(settings)
    assert "not tested" in page and "run 06_context_mixing first" in page


def test_folder_without_results_is_refused_in_a_sentence(tmp_path):
    done = ident("report", "--profile", "smoke", IDENT_FIGURES=str(tmp_path))
    assert done.returncode == 2
    assert "there is nothing to report in" in done.stderr and "ident reproduce --profile smoke" in done.stderr


def test_broken_results_file_is_named(settings):
    (settings.folder / "04_angle_vs_norm.json").write_text("{")
    with pytest.raises(IdentError, match="04_angle_vs_norm"):
        write_report(settings)


# The words.


def test_every_claim_has_words_and_every_sentence_its_numbers(settings):
    assert set(_all_words()) == set(CLAIMS)
    from ident_utils.results import load_measurements

    for name, measured in load_measurements(settings.folder).items():
        if name in CLAIMS:
            words = read_words(name)
            assert words.figures and words.controls and words.caveats
            assert words.state(measured).endswith(".") and "{" not in words.state(measured)


def test_a_missing_number_gives_no_sentence_instead_of_an_error():
    assert read_words("C8").state({"value": 0.1}) == ""
    assert read_words("C99").figures == ()


# The figures.


def test_a_figure_keeps_its_text_and_its_alternative(settings):
    draw(settings, "04_parts", alt="Four curves <3")
    picture = read_picture(settings.folder, "04_parts")
    assert picture.alt == "Four curves <3"
    assert "one coordinate</text>" in picture.svg and "<style" not in picture.svg and "metadata" not in picture.svg
    page = render_report(settings)
    [svg] = [
        attributes for attributes in Elements(page).named("svg") if attributes["aria-labelledby"] == "alt-04_parts"
    ]
    assert svg["role"] == "img" and "Four curves &lt;3</figcaption>" in page


def test_greys_turn_with_the_scheme_and_text_on_colour_does_not(settings):
    table = pd.DataFrame([(1, 1, 0.9), (1, 2, 0.2), (2, 1, 0.3), (2, 2, 0.8)], columns=["trained", "tested", "value"])
    save_figure(settings, "m", plot_across_layers(table), table, alt="A map.")
    picture = read_picture(settings.folder, "m")
    light, dark = colour_rules([picture]).splitlines()
    assert "--grey-ff:#ffffff" in light and "--grey-ff:#171717" in dark and "prefers-color-scheme: dark" in dark
    assert "#ffffff" in picture.svg, "white on a dark cell must stay white"
    for digits in ("0.90", "0.80"):  # dark text on a bright cell has a colour of its own
        before = picture.svg[: picture.svg.index(f">{digits}</text>")].rpartition("<text")[2]
        assert "fill:" in before


def test_scripts_in_a_drawing_are_dropped(settings):
    (settings.folder / "x.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" onload="a()"><script>a()</script><image href="http://x.org/y.png"/>'
        '<g onclick="a()"><foreignObject/><path d="M 0 0" style="fill: #ffffff"/></g></svg>'
    )
    svg = read_picture(settings.folder, "x").svg
    assert "script" not in svg and "onload" not in svg and "onclick" not in svg and "x.org" not in svg
    assert "foreignObject" not in svg and "var(--grey-ff)" in svg


def test_missing_and_broken_drawings(settings):
    assert read_picture(settings.folder, "none") is None
    (settings.folder / "x.svg").write_text("<svg")
    with pytest.raises(IdentError, match="no readable SVG"):
        read_picture(settings.folder, "x")


# The notebooks.


def test_executed_notebooks_become_pages_with_formulas_and_links(settings, tmp_path):
    outputs = [new_output("stream", name="stdout", text="C5 <b>\nreproduced\n")]
    outputs += [new_output("display_data", {"image/png": "Zm9v"}, metadata={"image/png": {"alt": "A curve."}})]
    run_copy(settings, tmp_path, "04_angle_vs_norm", outputs=outputs)
    page = write_report(settings).parent.joinpath("notebooks", "04_angle_vs_norm.html").read_text()
    assert "<math" in page and "$" not in page.partition("<main")[2]
    assert 'href="03_identity_retention.html"' in page
    assert "C5 &lt;b&gt;\nreproduced" in page
    [image] = Elements(page).named("img")
    assert image["alt"] == "A curve." and image["src"].startswith("data:image/png")


def test_an_operator_with_a_limit_under_it_is_shown(settings, tmp_path):
    run_copy(settings, tmp_path, "04_angle_vs_norm", text="# T\n\n$$ \\operatorname*{arg\\,min}_j f(x_j) = i $$")
    page = write_report(settings).parent.joinpath("notebooks", "04_angle_vs_norm.html").read_text()
    assert (
        "<munder>" in page
        and "arg\N{NO-BREAK SPACE}min</mtext>" in page
        and "*" not in page.partition("<math")[2].partition("</math")[0]
    )


def test_committed_notebooks_stand_in_for_copies_of_base_only(settings):
    write_report(settings)
    assert {p.stem for p in (settings.folder / "notebooks").iterdir()} == {p.stem for p in notebook_paths()}
    other = replace(settings, folder=settings.folder.with_name("base--seed1"))
    shutil.copytree(settings.folder, other.folder, ignore=shutil.ignore_patterns("notebooks", "*.html"))
    assert 'href="notebooks/' not in write_report(other).read_text()
