"""The site of docs/, as `make docs` builds it: whole, linked, legible on a phone."""

import dataclasses
import functools
import html
import http.server
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import keras_vit
from keras_vit.builder import Builder
from keras_vit.weights import registry
from tests.test_docstrings import PUBLIC_MODULES

pytestmark = pytest.mark.tensorflow_only
ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/keras-vit/keras-vit/"
SIZES = (1280, 900), (390, 844)  # A desktop and a phone.
# The menu slides for a quarter of a second after a resize.
FITS = "width => document.documentElement.scrollWidth <= width"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr  # A warning, too, ends it.
    return folder


class Links(HTMLParser):
    """What a page points to, what it loads by itself, and its anchors."""

    def __init__(self, page):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if attrs.get("src"):
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(attrs["href"])


@pytest.fixture(scope="module")
def pages(site):
    found = {page: Links(page) for page in site.rglob("*.html")}
    del found[site / "404.html"]  # Its links are those of the published address.
    assert len(found) > 40
    return found


def test_no_link_is_dead(site, pages):
    for page, held in pages.items():
        for link in [*held.links, *held.loads]:
            parts = urlsplit(link)
            if link.startswith(REPOSITORY):
                kind, _, path = link.removeprefix(REPOSITORY).partition("/main/")
                assert (ROOT / unquote(path)).exists(), f"{page}: {link}"
                assert kind in ("blob", "tree")
            if parts.scheme:
                continue
            target = page if not parts.path else page.parent / unquote(parts.path)
            target = target.resolve()
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page}: {link}"
            if parts.fragment and target.suffix == ".html":
                anchor = unquote(parts.fragment)
                assert anchor in pages[target].anchors, f"{page}: {link}"


def test_nothing_is_fetched(pages):
    for page, held in pages.items():
        assert not [load for load in held.loads if urlsplit(load).netloc], page


def test_every_public_name_is_in_the_reference(pages):
    """Those of every `__all__` of the modules that users import."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    anchors = set().union(*(held.anchors for held in pages.values()))
    assert {f"keras_vit{name}" for name in hooks.MODULES} == set(PUBLIC_MODULES)
    assert sorted(hooks.public() - anchors) == []


def test_the_table_of_builders_states_how_they_differ(site):
    """One signature is documented for each kind; a row states what is a variant's."""
    page = (site / "reference" / "models.html").read_text()
    rows = [
        html.unescape(re.sub("<.*?>", "", row.replace("</td>", "|")))
        for row in re.findall("<tr>(.*?)</tr>", page, re.S)
    ]
    cells = {row.split("|")[0].strip(): row for row in rows}
    found = {name: getattr(keras_vit, name) for name in keras_vit.__all__}
    found = {name: at for name, at in found.items() if isinstance(at, Builder)}
    assert len(found) == 28
    for name, builder in found.items():
        told = [cell.strip() for cell in cells[name].split("|")]
        parameters = inspect.signature(builder).parameters
        weights = parameters["weights"].default
        assert told[1] == builder.variant
        assert told[3] == (weights or "none")
        tags = {tag for tag in told[4].split(", ") if tag}
        assert tags == set(registry.tags(builder.variant)) - {weights}
        for field in dataclasses.fields(builder.config):
            if field.name in parameters and field.name != "gelu":
                default = parameters[field.name].default
                changed = f"{field.name}={default!r}" in told[5]
                assert changed == (default != field.default), name
    assert page.count("whether to put the classifier on top") == 2


# Two clicks answer a question: a page of the menu, and a heading of its contents.
QUESTIONS = {
    "How do I install it?": ("start/install", "install", "pip install ."),
    "What is on my photo?": (
        "start/predict",
        "a-first-prediction",
        "keras-vit predict",
    ),
    "How long does fine-tuning on my photos take?": (
        *("start/finetune", "times", "on a T4"),
    ),
    "My images are not 224 px. Does it work?": (
        *("howto/image-sizes", None, "positions"),
    ),
    "How do I get a feature of each patch?": ("howto/backbone", None, "feature_maps"),
    "Can I load a model of the Hugging Face Hub?": (
        *("checkpoints", "by-name", "hf://"),
    ),
    "I have a model of timm. What do I write?": (
        "migration",
        "timm",
        "from_checkpoint",
    ),
    "Does it fit my GPU, and what does it cost?": ("howto/costs", None, "--plan"),
    "My run was killed. Is it lost?": ("howto/resume", None, "same command"),
    "How do I serve it?": ("start/serve", None, "keras-vit serve"),
    "Where in the code is Table 4?": ("paper", None, "recipes.FINETUNE"),
    "It is out of memory. What can I do?": ("troubleshooting", None, "--remat"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_two_clicks_answer(site, pages, question):
    name, heading, answer = QUESTIONS[question]
    page = site / f"{name}.html"
    assert f"{name}.html" in pages[site / "index.html"].links
    assert heading is None or heading in pages[page].anchors
    text = page.read_text()
    start = 0 if heading is None else text.index(f'id="{heading}"')
    assert answer in html.unescape(re.sub("<.*?>", "", text[start:]))


def test_every_page_is_in_the_menu(site, pages):
    home = {link for link in pages[site / "index.html"].links if "#" not in link}
    for page in pages:
        assert str(page.relative_to(site)) in home | {"index.html"}


def test_every_page_is_its_own(site, pages):
    """No two pages have one title: a search engine shows nothing else."""
    titles = [
        re.search("<title>(.*?)</title>", page.read_text(), re.S)[1] for page in pages
    ]
    assert len(set(titles)) == len(titles)


@pytest.fixture(scope="module")
def address(site):
    """The site, served: from disk a browser lets no page search."""
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Says nothing."""


def test_pages_open_in_a_browser(site, pages, address, chromium):
    """No error in the console, nothing asked of a network, nothing off the edge."""
    said, asked = [], []
    with chromium.new_page() as tab:
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        for page in pages:
            tab.goto(f"{address}/{page.relative_to(site)}")
            # Resized instead of loaded again, which takes half a second.
            for x, y in SIZES:
                tab.set_viewport_size({"width": x, "height": y})
                tab.wait_for_function(FITS, arg=x, timeout=5000)
                heading = tab.locator("article h1").first
                assert heading.is_visible(), page
        for x, y in SIZES:
            tab.set_viewport_size({"width": x, "height": y})
            tab.goto(f"{address}/index.html?q=rollout")
            first = tab.locator(".md-search-result__item").first
            first.wait_for(state="attached")
            assert "rollout" in first.inner_text()
    assert said == []
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]
