"""A real browser for the tests of pages: the system's Chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


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
def opened(browser: Any, path: Path, place: str = "", *, dark: bool = False) -> Iterator[Any]:
    """A page that is ready, in a window of its own; in the end it must have met no error."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": 1400, "height": 900}
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    said: list[str] = []  # on its console, and what it asked the network for: the page is a file
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda r: said.extend([] if r.url.startswith("file:") else [r.url]))
    page.goto(f"{path.resolve().as_uri()}#{place}")
    page.wait_for_function("document.documentElement.dataset.ready === 'true'")
    try:
        yield page
        assert not said
    finally:
        context.close()
