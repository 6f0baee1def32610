"""A Chromium or Chrome that tests look at pages with; tests that use it are skipped and named where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser. Mark what uses it `browser`."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser to look at pages with: none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a URL in a tab, and wait until it is drawn. At its end a test fails on what the browser complained of.

    That is every line of the console, every error, and every request but for pages of this machine.
    """
    complaints: list[str] = []
    contexts = []

    def opened(url: str, width: int = 1440, height: int = 900, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: _is_ours(request.url) or complaints.append(request.url))
        tab.goto(url)
        tab.wait_for_selector("html[data-drawn]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def _is_ours(url: str) -> bool:
    return url.startswith(("file:", "data:", "http://127.0.0.1:"))
