"""The report as a reader meets it: opened from disk, in light and dark, on a phone, by keyboard, on paper."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ident_utils.claims import CLAIMS
from ident_utils.paths import ROOT
from ident_utils.report import write_report
from ident_utils.settings import load_settings

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Write the report on the committed results into a folder of its own."""
    folder = tmp_path_factory.mktemp("figures") / "base"
    shutil.copytree(ROOT / "figures" / "base", folder, ignore=shutil.ignore_patterns("*.png", "*.csv", "*.html"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IDENT_RUNS", str(folder.parent / "runs"))
        return write_report(replace(load_settings("base"), folder=folder))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{}, PHONE], ids=["desk", "phone"])
def test_it_opens_from_disk_without_a_request_a_complaint_or_a_serious_fault(report, open_page, scheme, size):
    watched = open_page(report.as_uri(), scheme=scheme, **size)
    assert watched.requests == [report.as_uri()]
    assert watched.complaints == []
    assert watched.faults() == []
    width = watched.page.evaluate("document.documentElement.scrollWidth")
    assert width <= watched.page.viewport_size["width"], "the page is wider than the window"


def test_every_figure_is_drawn_and_has_words(report, open_page):
    page = open_page(report.as_uri()).page
    figures = page.locator("svg.figure")
    assert figures.count() >= len(CLAIMS)
    for figure in figures.all():
        box = figure.bounding_box()
        assert box["width"] > 300 and box["height"] > 100
        words = page.locator(f"id={figure.get_attribute('aria-labelledby')}")
        assert len(words.inner_text()) > 10


@pytest.mark.parametrize(("scheme", "darkest"), [("light", "ink"), ("dark", "paper")])
def test_ink_and_paper_of_figures_change_places_in_the_dark(report, open_page, scheme, darkest):
    page = open_page(report.as_uri(), scheme=scheme).page
    brightness = "e => getComputedStyle(e).fill.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    paper = page.locator("svg.figure path").first.evaluate(brightness)
    ink = page.locator("svg.figure text").first.evaluate(brightness)
    assert abs(paper - ink) > 400
    assert (ink < paper) == (darkest == "ink")


def test_the_table_sorts_by_keyboard_and_says_so(report, open_page):
    page = open_page(report.as_uri()).page
    first = page.locator(".verdicts tbody tr").first
    assert first.locator("th a").inner_text() == "C1"
    button = page.get_by_role("button", name="Here")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator(".verdicts thead th[aria-sort]").get_attribute("aria-sort") == "ascending"
    values = page.locator(".verdicts tbody td.number").evaluate_all("cells => cells.map(c => Number(c.dataset.sort))")
    assert values == sorted(values) and len(values) == len(CLAIMS)
    assert page.get_by_role("status").inner_text() == "Sorted by here, ascending"
    page.keyboard.press("Enter")
    values = page.locator(".verdicts tbody td.number").evaluate_all("cells => cells.map(c => Number(c.dataset.sort))")
    assert values == sorted(values, reverse=True)
    page.get_by_role("button", name="Claim").click()
    assert [a.inner_text() for a in page.locator(".verdicts tbody th a").all()] == list(CLAIMS)


def test_links_lead_to_figures_and_notebooks_and_back(report, open_page):
    watched = open_page(report.as_uri())
    page = watched.page
    page.get_by_role("link", name="Figure of C8").click()
    playwright.expect(page.locator("#figure-C8")).to_be_in_viewport()
    page.get_by_role("link", name="Notebook of C8").click()
    assert page.url.endswith("notebooks/05_contribution_decay.html")
    page.wait_for_load_state()
    assert page.locator("math").count() > 3 and page.locator("img").count() >= 3
    assert page.locator("h1").inner_text().startswith("05")
    page.get_by_role("link", name="Report").click()
    assert page.url.endswith("report.html")
    assert watched.complaints == [] and all(url.startswith(("file:", "data:")) for url in watched.requests)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_notebook_page_has_no_serious_fault(report, open_page, scheme):
    page = report.parent / "notebooks" / "03_identity_retention.html"
    watched = open_page(page.as_uri(), scheme=scheme)
    assert watched.faults() == []
    assert watched.complaints == []


def test_paper_is_white_whatever_the_screen_is(report, open_page):
    page = open_page(report.as_uri(), scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    assert page.pdf()[:4] == b"%PDF"
