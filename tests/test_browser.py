"""Which browser pages are opened in, and when their tests skip."""

import pytest

from tests import browser


class Absent(Exception):
    """Playwright's error of a browser that is not there."""

    message = "BrowserType.launch: Executable doesn't exist at /nowhere"


class Broken(Exception):
    message = "BrowserType.launch: libnss3.so: cannot open shared object file"


class Chromium:
    """Playwright's browser type, of which only some ways to launch work."""

    def __init__(self, failure, *works):
        self.failure, self.works, self.tried = failure, works, []

    def launch(self, args, **way):
        self.tried.append(way)
        if way not in self.works:
            raise self.failure
        return way


@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty PATH, and nothing among macOS's applications."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "MAC", ())
    return tmp_path


@pytest.mark.parametrize("command", browser.COMMANDS)
def test_browsers_on_the_path_are_found(command, path):
    assert browser.installed() is None
    (path / command).touch(mode=0o755)
    assert browser.installed() == str(path / command)


def test_an_application_of_macos_is_found(path, monkeypatch):
    (path / "Google Chrome").touch()
    monkeypatch.setattr(browser, "MAC", ("/nowhere", str(path / "Google Chrome")))
    assert browser.installed() == str(path / "Google Chrome")


@pytest.mark.parametrize("way", [{}, {"channel": "chrome"}, {"channel": "msedge"}])
def test_playwrights_own_browser_and_channels_are_tried(way, path):
    assert browser.launched(Chromium(Absent, way), Absent) == way


def test_the_installed_browser_is_first(path):
    (path / "microsoft-edge").touch(mode=0o755)
    first = {"executable_path": str(path / "microsoft-edge")}
    assert browser.launched(Chromium(Absent, first, {}), Absent) == first


def test_without_any_the_reason_names_the_command(path):
    chromium = Chromium(Absent)
    with pytest.raises(pytest.skip.Exception, match="playwright install chromium"):
        browser.launched(chromium, Absent)
    assert chromium.tried == [{}, {"channel": "chrome"}, {"channel": "msedge"}]


def test_a_browser_that_is_there_and_fails_is_no_skip(path):
    with pytest.raises(Broken):
        browser.launched(Chromium(Broken), Broken)
