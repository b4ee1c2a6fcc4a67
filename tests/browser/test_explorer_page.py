"""The explorer as a visitor meets it: served by Voilà, a kernel for each visitor, asked good and bad things."""

import csv
import io
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from ident_utils.paths import ROOT

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}
OPENS, ANSWERS, FITS = 120_000, 10_000, 180_000  # milliseconds: until a kernel runs, a text is answered, a map fitted
WORDS, WEIGHT, FOUND = ".ident-words", "p:has-text('With the same output it could')", "table.ident-found"
SHARED = "Unsatisfied version", "No satisfying version"  # Voilà's parts of JupyterLab beside newer widgets; harmless
SHORT = "A lighthouse keeper counted the ships that never came back."
FILES = {
    "Attention of this head (CSV)": "attention.csv",
    "The same as a picture (SVG)": "attention.svg",
    "Contributions (CSV)": "contributions.csv",
    "All numbers (npz)": "explored.npz",
}


@pytest.fixture(scope="module")
def server(browser) -> Iterator[psutil.Process]:
    """Serve the explorer as ``make explore`` does, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ident_utils.cli", "explore", "--no-browser", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        running = psutil.Process(process.pid)
        running.address = f"http://127.0.0.1:{port}/"
        _wait_for(f"{running.address}voila/static/voila.js", process)
        yield running
        children = running.children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive, "kernels outlive their server"


def _wait_for(address: str, process: subprocess.Popen) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, "the server ended before it answered"
            time.sleep(0.2)
    pytest.fail("the server does not answer")


def kernels(server: psutil.Process) -> dict[int, psutil.Process]:
    children = server.children(recursive=True)
    return {child.pid: child for child in children if "ipykernel_launcher" in " ".join(child.cmdline())}


def until_answered(watched):
    """Wait for the example that every new page begins with."""
    watched.page.wait_for_selector(WORDS, timeout=OPENS)
    watched.page.wait_for_selector(FOUND, timeout=FITS)
    return watched


@pytest.fixture(scope="module")
def shared(server, open_lasting_page):
    """Open one page for the tests that leave it as good as it was."""
    return until_answered(open_lasting_page(server.address))


def complaints(watched) -> list[str]:
    return [each for each in watched.complaints if not each.startswith(SHARED)]


def look(page, first: str, second: str = "") -> None:
    """Type a text and ask for it."""
    page.get_by_label("Text", exact=True).fill(first)
    page.get_by_label("Second text, if any").fill(second)
    page.get_by_label("Second text, if any").press("Tab")
    page.get_by_role("button", name="Look at it").click()


def shows(page, selector: str, text: str, timeout: float = ANSWERS) -> None:
    playwright.expect(page.locator(selector).first).to_contain_text(text, timeout=timeout)


def test_it_opens_without_a_request_that_leaves_the_machine_a_complaint_or_a_serious_fault(shared):
    assert shared.left_the_machine() == []
    assert complaints(shared) == []
    assert shared.faults() == []


def test_a_sentence_is_answered_within_ten_seconds(shared):
    page = shared.page
    began = time.monotonic()
    look(page, SHORT)
    shows(page, WORDS, "lighthouse")
    page.get_by_label("Hidden state of").select_option(label="3 lighthouse")
    shows(page, "p:has-text('Own contribution')", "lighthouse")
    assert time.monotonic() - began < ANSWERS / 1000
    page.wait_for_selector(f"{FOUND} th:text-is('lighthouse')", timeout=ANSWERS)


@pytest.mark.parametrize(
    ("first", "sentence"),
    [("  ", "none of them blank"), ("harbour " * 600, "takes at most"), ("\u200b", "finds no word")],
    ids=["empty", "600 tokens", "no word"],
)
def test_bad_input_gets_its_sentence_and_the_page_goes_on(shared, first, sentence):
    look(shared.page, first)
    shows(shared.page, ".ident-error", sentence)
    look(shared.page, SHORT)
    playwright.expect(shared.page.locator("p.ident-error")).to_have_count(0, timeout=ANSWERS)
    shows(shared.page, WORDS, "lighthouse")


def test_an_unknown_model_gets_its_sentence(shared):
    model = shared.page.get_by_label("Model")
    model.fill("no-such-model")
    model.press("Tab")
    look(shared.page, SHORT)
    shows(shared.page, ".ident-error", "no-such-model")
    model.fill("minilm-l6")
    model.press("Tab")
    look(shared.page, SHORT)
    playwright.expect(shared.page.locator("p.ident-error")).to_have_count(0, timeout=ANSWERS)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The 🦉 sat on a 👩‍🚀 in the snow ☃️.", "snow"),
        ("<script>window.caught = 1</script><img src=x onerror='window.caught = 1'> lamp", "script"),
        ("$x$ costs $2 and <b>more</b> &amp; less", "costs"),
    ],
    ids=["emoji", "script", "markup"],
)
def test_strange_characters_are_only_text(shared, text, word):
    page = shared.page
    look(page, text)
    shows(page, WORDS, word)
    playwright.expect(page.locator(".ident-words li", has_text=word).first).to_be_visible()
    page.wait_for_selector(f"{FOUND} th:text-is('{word}')", timeout=ANSWERS)
    assert page.evaluate("window.caught") is None
    assert page.locator(".ident-page img, .ident-page b:text-is('more')").count() == 0
    assert page.locator("p.ident-error").count() == 0 and complaints(shared) == []


def test_a_click_on_a_weight_shows_how_free_it_is(shared):
    page = shared.page
    look(page, " ".join([SHORT] * 4))
    playwright.expect(page.locator(WORDS)).to_contain_text("[SEP]46", timeout=ANSWERS)
    page.wait_for_selector(WEIGHT, timeout=ANSWERS)
    before = page.locator(WEIGHT).inner_text()
    plot = page.locator(".plotly .nsewdrag[data-subplot='xy']").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.7)
    page.wait_for_timeout(300)
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.7)
    playwright.expect(page.locator(WEIGHT)).not_to_have_text(before, timeout=ANSWERS)
    row = page.get_by_label("Attending token").locator("option:checked").inner_text()
    assert abs(int(row.split()[0]) - 0.7 * 46) < 2, "the row is not the one that was clicked"


def test_lists_do_by_keyboard_what_a_click_does(shared):
    page = shared.page
    for label in ("Attending token", "Attended token", "Layer", "Head"):
        page.get_by_label(label, exact=True).select_option(index=0)
    shows(page, "p:has-text('Layer 1, head 1')", "Layer 1, head 1")
    before = page.locator("p:has-text('in the row of')").inner_text()
    page.get_by_label("Attended token").focus()
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("p:has-text('in the row of')")).not_to_have_text(before, timeout=ANSWERS)


def test_numbers_and_pictures_can_be_downloaded(shared, tmp_path):
    page = shared.page
    content = {}
    for label, name in FILES.items():
        with page.expect_download(timeout=ANSWERS) as waiting:
            page.get_by_role("button", name=label).click()
        assert waiting.value.suggested_filename == name
        waiting.value.save_as(tmp_path / name)
        content[name] = (tmp_path / name).read_bytes()
    n = page.locator(".ident-words li").count()
    assert len(list(csv.reader(io.StringIO(content["attention.csv"].decode())))) == n**2 + 1
    assert len(list(csv.reader(io.StringIO(content["contributions.csv"].decode())))) == 6 * n**2 + 1
    assert ET.fromstring(content["attention.svg"]).tag.endswith("svg")
    with np.load(io.BytesIO(content["explored.npz"]), allow_pickle=False) as file:
        assert file["raw"].shape == (n, n) and file["contributions"].shape == (6, n, n)


def test_long_work_shows_its_progress_and_can_be_cancelled(shared):
    page = shared.page
    page.get_by_label("Cut a text that is too long").check()
    look(page, "harbour " * 600)
    playwright.expect(page.locator(".ident-words li")).to_have_count(512, timeout=3 * ANSWERS)
    page.wait_for_selector("progress[value]", timeout=3 * ANSWERS)
    page.get_by_role("button", name="Cancel").click()
    shows(page, "p[role=status]", "cancelled", timeout=3 * ANSWERS)
    page.get_by_label("Cut a text that is too long").uncheck()
    look(page, SHORT)
    shows(page, WORDS, "lighthouse")


def test_two_visitors_get_an_answer_each_on_a_phone_and_in_the_dark(server, shared, open_page):
    other = until_answered(open_page(server.address, scheme="dark", **PHONE))
    assert other.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert other.page.locator(".ident-page").evaluate("page => page.scrollWidth - page.clientWidth") == 0, "cut off"
    assert other.faults() == [] and complaints(other) == []
    look(shared.page, SHORT)
    look(other.page, "Nobody mends a clock at night.")
    shows(other.page, WORDS, "clock", timeout=2 * ANSWERS)
    shows(shared.page, WORDS, "lighthouse", timeout=2 * ANSWERS)
    assert "clock" not in shared.page.locator(WORDS).inner_text()


def test_a_kernel_that_dies_is_noticed_and_another_can_be_had(server, open_page):
    before = set(kernels(server))
    page = until_answered(open_page(server.address)).page
    (own,) = set(kernels(server)) - before
    shown = page.locator(WORDS).inner_text()
    os.kill(own, signal.SIGKILL)
    shows(page, "[role=alert].ident-error", "no longer answers", timeout=60_000)
    assert page.locator(WORDS).inner_text() == shown
    page.get_by_role("button", name="Start again").click()
    page.wait_for_selector("[role=alert].ident-error", state="detached", timeout=OPENS)
    page.wait_for_selector(WORDS, timeout=OPENS)
