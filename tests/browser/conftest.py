"""A headless Chromium with nothing of its user, and what every page is asked."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHROMIUM = os.environ.get("IDENT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
LOCAL = {"", "localhost", "127.0.0.1"}


class Watched:
    """Hold a page with what it asked for and what it complained about."""

    def __init__(self, page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)

    def left_the_machine(self) -> list[str]:
        return [url for url in self.requests if (urlsplit(url).hostname or "") not in LOCAL]

    def faults(self) -> list[str]:
        """Return what axe-core finds serious or critical; the parts of a figure are left out: they are one image."""
        import axe_playwright_python

        script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(script)
        found = self.page.evaluate("axe.run({exclude: [['svg.figure > *']]})")["violations"]
        return [
            f"{each['id']}: {node['target']} {node.get('failureSummary', '')}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator:
    if not CHROMIUM:
        pytest.skip("no Chromium here: install it (Debian: apt-get install chromium) or name one in IDENT_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:  # without a folder of its own it begins with a new, empty profile
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens an address in a window of its own."""
    yield from _opener(browser)


@pytest.fixture(scope="module")
def open_lasting_page(browser) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens an address in a window that several tests share."""
    yield from _opener(browser)


def _opener(browser) -> Iterator[Callable[..., Watched]]:
    contexts = []

    def opened(address: str, width: int = 1280, height: int = 900, scheme: str = "light") -> Watched:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme))
        watched = Watched(contexts[-1].new_page())
        watched.page.goto(address, timeout=120_000)  # Voilà hands out a page when its kernel has run it
        return watched

    yield opened
    for context in contexts:
        context.close()
