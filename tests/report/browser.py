"""A real Chromium without a screen, where one is installed: by Playwright's driver, over the page's file."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import Any, Iterator

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str:
    """Path of an installed Chromium, or ""."""
    return next((found for name in NAMES if (found := shutil.which(name))), "")


@contextmanager
def chromium() -> Iterator[Any]:
    """A Playwright browser. Its sandbox is off: containers that tests run in cannot give it one, and the page is our own."""
    from playwright.sync_api import sync_playwright
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
