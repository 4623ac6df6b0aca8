"""The page at the server's root, in Chromium."""

import asyncio
import base64
import io
import re
import socket
import threading

import numpy as np
import pytest
from PIL import Image

from tests.serving import hostile

pytestmark = pytest.mark.tensorflow_only

uvicorn = pytest.importorskip("uvicorn", reason="LOUD: no uvicorn, so no server ran")
pytest.importorskip("starlette", reason="LOUD: no starlette, so no server ran")
pytest.importorskip("grpc", reason="LOUD: no grpcio, so no server ran")

from keras_vit.serving import page, server  # noqa: E402
from keras_vit.serving.servable import Servable  # noqa: E402


@pytest.fixture(scope="module")
def models(exported):
    return server.Models("flowers", Servable(exported), server.Limits(), threads=2)


@pytest.fixture(scope="module")
def url(models):
    options = {"lifespan": "off", "ws": "none", "log_config": None}
    one = uvicorn.Server(uvicorn.Config(server.http_application(models), **options))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(
        target=lambda: asyncio.run(one.serve([listening])), daemon=True
    )
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    one.should_exit = True
    thread.join(10)


def test_the_page_has_status_and_signatures(models):
    told = page.html("a <b>", models.servable)
    assert "a &lt;b&gt;" in told
    assert "<b>" not in told.split("<body>")[1].split("<script")[0]
    assert "Version 1, AVAILABLE" in told
    for signature in models.servable.signatures:
        assert (f"<td>{signature}</td>" in told) == (not signature.startswith("__"))
    assert "<td>images float32 [?, 32, 24, 3]</td>" in told
    assert 'id="file"' in told


def test_an_export_without_encoded_images_has_no_form(models, monkeypatch):
    kept = {"images": models.servable.signatures["images"]}
    monkeypatch.setattr(models.servable, "signatures", kept)
    assert 'id="file"' not in page.html("flowers", models.servable)


@pytest.fixture
def tab(chromium, url):
    """The page, of which nothing went to other servers and nothing was complained."""
    said, asked = [], []
    with chromium.new_page() as tab:
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(url)
        yield tab
    assert said == []
    assert not [at for at in asked if not at.startswith((url, "data:", "blob:"))]


def chosen(tab, data, name="photo.jpg"):
    file = {"name": name, "mimeType": "image/jpeg", "buffer": data}
    tab.locator("#file").set_input_files(file)


def shown(tab):
    """Classes and scores, once the page has them."""
    tab.locator("#classes td").first.wait_for()
    cells = tab.locator("#classes td").all_inner_texts()
    return cells[::2], [float(cell.removesuffix("%")) for cell in cells[1::2]]


def expected_of(models, data, signature="image_bytes"):
    inputs = {"image_bytes": np.array([data], dtype=object)}
    return models.servable.run(signature, inputs)


def canvas_of(tab):
    """The pixels of the drawn image: [H, W, 3]."""
    tab.locator("#looked canvas").wait_for()
    url = tab.evaluate("document.querySelector('#looked canvas').toDataURL()")
    png = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return np.asarray(png.convert("RGB"), np.float32)


def test_an_image_is_classified_and_shown(tab, models):
    data = hostile.encoded(Image.new("RGB", (48, 64), (255, 255, 255)), "PNG")
    chosen(tab, data)
    classes, scores = shown(tab)
    expected = expected_of(models, data)
    assert classes == [name.decode() for name in expected["classes"][0]]
    np.testing.assert_allclose(scores, 100 * expected["scores"][0], atol=0.006)
    # A white image, so that brightness is the map alone.
    map = expected_of(models, data, "attention")["attention"][0]
    picture = canvas_of(tab)
    high, wide = (
        side / count for side, count in zip(picture.shape[:2], map.shape, strict=True)
    )
    centers = [
        [
            picture[int((row + 0.5) * high), int((column + 0.5) * wide), 0]
            for column in range(map.shape[1])
        ]
        for row in range(map.shape[0])
    ]
    np.testing.assert_allclose(
        centers, 255 * (1 - 0.8 * (1 - map / map.max())), atol=2.5
    )


def test_a_dropped_image_is_classified(tab, models):
    data = hostile.photo(3)
    dropped = """async ([text]) => {
      const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], "<i>dropped.jpg", { type: "image/jpeg" }));
      const event = new DragEvent("drop", { dataTransfer: transfer, cancelable: true });
      document.getElementById("drop").dispatchEvent(event);
    }"""
    tab.evaluate(dropped, [base64.b64encode(data).decode()])
    classes, _ = shown(tab)
    assert classes[0] == expected_of(models, data)["classes"][0][0].decode()
    tab.get_by_text("<i>dropped.jpg", exact=True).wait_for()


def test_what_is_no_image_is_a_sentence(tab):
    chosen(tab, b"text", "a.txt")
    tab.get_by_text(re.compile("^a.txt: not a whole JPEG, PNG")).wait_for()
    assert tab.locator("#classes td").count() == 0
    assert tab.locator("#looked").is_hidden()


def test_a_refusal_is_shown(tab, models, monkeypatch):
    monkeypatch.setattr(models, "name", "other")
    # The browser itself logs the 404.
    tab.evaluate(
        "window.fetch = () => Promise.resolve(Response.json("
        "{ error: 'Expected model' }, { status: 404 }))"
    )
    chosen(tab, hostile.photo(0))
    tab.get_by_text("photo.jpg: Expected model").wait_for()


@pytest.mark.parametrize(
    ("squash", "size", "shares"),  # Of height and width; a model for 3:4.
    [
        (False, (48, 64), (0.5, 0.5)),
        (False, (64, 64), (0.5, 0.375)),
        (True, (64, 64), (0.5, 0.5)),
    ],
)
def test_a_crop_is_where_the_model_looked(tab, models, squash, size, shares):
    """Outside the middle, all that a model with a crop is given, it is dark."""
    html = page.html("flowers", models.servable)
    assert '"crop":null' in html
    html = html.replace('"crop":null', '"crop":0.5')
    html = html.replace('"squash":false', f'"squash":{str(squash).lower()}')
    tab.route("**/", lambda route: route.fulfill(body=html, content_type="text/html"))
    tab.reload()
    chosen(tab, hostile.encoded(Image.new("RGB", size, (255, 255, 255)), "PNG"))
    picture = canvas_of(tab)
    height, width, _ = picture.shape
    assert (picture[: height // 4 - 2] < 60).all()
    assert (picture[:, : width // 4 - 2] < 60).all()
    assert picture[height // 4 + 2 : -height // 4 - 2].max() > 240
    bright = picture.max(axis=-1) > 60
    seen = bright.any(axis=1).mean(), bright.any(axis=0).mean()
    assert seen == pytest.approx(shares, abs=0.03)
