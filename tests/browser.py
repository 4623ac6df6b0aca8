"""The browser that pages are opened in: Chromium or one made of it."""

import contextlib
import shutil
from pathlib import Path

import pytest

COMMANDS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("chrome", "microsoft-edge", "microsoft-edge-stable", "msedge"),
)
MAC = tuple(
    f"/Applications/{name}.app/Contents/MacOS/{name}"
    for name in ("Chromium", "Google Chrome", "Microsoft Edge")
)
CHANNELS = ("chrome", "msedge")  # Where Windows and macOS have them, by Playwright.
MISSING = (
    "LOUD: no Chromium, Chrome or Edge, so no page was opened: "
    "pip install playwright && playwright install chromium"
)


def installed():
    """The path of a browser on the PATH, or where macOS has applications; else None."""
    found = (shutil.which(command) for command in COMMANDS)
    return next(filter(None, found), None) or next(
        (path for path in MAC if Path(path).is_file()), None
    )


def attempts():
    """Ways to launch one: the system's, Playwright's own, then its channels."""
    path = installed()
    yield from [{"executable_path": path}] if path else []
    yield {}
    yield from ({"channel": channel} for channel in CHANNELS)


@contextlib.contextmanager
def opened():
    """A browser; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason=MISSING)
    with playwright.sync_playwright() as driver:
        browser = launched(driver.chromium, playwright.Error)
        yield browser
        browser.close()


def launched(chromium, error):
    """A browser by the first way that is there; another failure than that raises.

    Args:
        chromium: Playwright's type of browser.
        error: what it raises.
    """
    for way in attempts():
        try:
            # Root, in a container, has no sandbox.
            return chromium.launch(args=["--no-sandbox"], **way)
        except error as failure:
            if not any(words in failure.message for words in ABSENT):
                raise
    pytest.skip(MISSING)


ABSENT = ("Executable doesn't exist", "is not found at", "is not supported on")
