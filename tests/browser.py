"""A real browser for the tests of pages: the system's Chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Opened:
    """A page in the browser.

    Attributes:
        page: playwright's.
        said: what it said on the console, its errors, and whatever it asked the network for.
    """

    page: Any
    said: list[str] = field(default_factory=list)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; the tests that ask for it are skipped, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")

    with playwright.sync_playwright() as driver:
        # Without a sandbox, since CI runs as root; the pages are our own.
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, place: str = "", *, dark: bool = False) -> Iterator[Opened]:
    """A page that is ready, in a window of its own."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": 1400, "height": 900}
    )
    context.set_default_timeout(120_000)
    shown = Opened(context.new_page())
    shown.page.on("console", lambda message: shown.said.append(message.text))
    shown.page.on("pageerror", lambda error: shown.said.append(str(error)))
    shown.page.on("request", lambda request: note_request(shown, request.url))
    shown.page.goto(f"{path.resolve().as_uri()}#{place}")
    shown.page.wait_for_function("document.documentElement.dataset.ready === 'true'")
    try:
        yield shown
    finally:
        context.close()


def note_request(shown: Opened, url: str) -> None:
    """Keep what is asked of the network; the page itself is a file."""
    if not url.startswith("file:"):
        shown.said.append(f"asked for {url}")
