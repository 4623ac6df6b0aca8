"""The page of `keras-vit inspect`: what is in it is what the model does."""

import base64
import html.parser
import io
import json
import re
from importlib import resources

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import web_page
from keras_vit.inspection import (
    Page,
    attention_distance,
    attention_rollout,
    embedding_filters,
    output_attention,
    page_data,
    page_render,
    position_similarity,
)
from keras_vit.inspection.attention import all_of_attention
from keras_vit.layers import TransformerBlock
from tests.conftest import REFERENCE
from tests.inspection import pages


class Reader(html.parser.HTMLParser):
    """Tags and their nesting, texts, pictures, and the data of the sliders."""

    EMPTY = frozenset({"img", "input", "meta"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text, self.scripts = [], [], [], []
        self.feed(text)
        assert self.open == []
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside == "script" else self.text).append(data)

    def all(self, wanted):
        return [attributes for tag, attributes in self.seen if tag == wanted]


def read(page):
    return Reader(page_render.html(page))


def maps(data, shape):
    """The sliders' bytes as shares again."""
    found = np.frombuffer(base64.b64decode(data["bytes"]), np.uint8).reshape(shape)
    most = np.reshape(data["most"], shape[:-2])[..., None, None]
    return found / 255 * most, most


@pytest.fixture(scope="module")
def mini():
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    images = np.load(REFERENCE / "vit_mini_io.npz")["images"]
    return model, images


def test_the_page_holds_what_the_model_does(mini, tmp_path):
    model, images = mini
    page = Page.of(model, images, names=["one", "two"], classes=(), top=3)
    np.testing.assert_array_equal(page.filters, embedding_filters(model))
    np.testing.assert_array_equal(page.positions, position_similarity(model))
    np.testing.assert_allclose(page.distance, attention_distance(model, images))
    size = page.write(tmp_path / "page.html")
    assert size == (tmp_path / "page.html").stat().st_size
    found = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert any(text.endswith(", 2 images") for text in found.text)

    attention = output_attention(model, images)
    assert found.data["attention"]["shape"] == list(attention.shape)
    shown, most = maps(found.data["attention"], attention.shape)
    assert (np.abs(shown - attention) <= most / 510 + 1e-6).all()
    total = np.reshape(found.data["attention"]["total"], attention.shape[:3])
    np.testing.assert_allclose(total, attention.sum((-2, -1)), atol=1e-5)

    rollout = attention_rollout(model, images, resized=False)
    shown, most = maps(found.data["rollout"], rollout.shape)
    assert (np.abs(shown - rollout) <= most / 510 + 1e-6).all()

    positions, data = position_similarity(model), found.data["positions"]
    assert data["step"] == 1
    cosines = np.frombuffer(base64.b64decode(data["bytes"]), np.uint8) / 255
    cosines = data["low"] + cosines.reshape(positions.shape) * (1 - data["low"])
    assert np.abs(cosines - positions).max() <= (1 - data["low"]) / 510 + 1e-6

    scores = keras.ops.convert_to_numpy(keras.ops.softmax(model(images)))
    for row, best in zip(scores, page.predictions, strict=True):
        assert [name for name, _ in best] == [
            f"class {i}" for i in np.argsort(-row)[:3]
        ]
        np.testing.assert_allclose([p for _, p in best], np.sort(row)[::-1][:3], 1e-5)
    for name, probability in page.predictions[1]:
        assert name in found.text
        assert f"{100 * probability:.2f}" in found.text


@pytest.mark.parametrize(
    "softmax", [keras.layers.Softmax(), keras.layers.Activation("softmax")]
)
def test_probabilities_are_not_normalized_again(mini, softmax):
    model, images = mini
    shares = keras.Model(model.input, softmax(model.output))
    expected, found = (
        Page.of(one, images[:1], classes=(), top=3).predictions[0]
        for one in (model, shares)
    )
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose(
        [p for _, p in found], [p for _, p in expected], atol=1e-6
    )


def test_each_layer_is_computed_once_for_an_image(mini, monkeypatch):
    model, images = mini
    asked = []
    scores = TransformerBlock.attention_scores

    def counted(block, z):
        asked.append(block.name)
        return scores(block, z)

    monkeypatch.setattr(TransformerBlock, "attention_scores", counted)
    Page.of(model, images, classes=())
    blocks = [at.name for at in model.layers if isinstance(at, TransformerBlock)]
    assert asked == blocks * len(images)


@pytest.mark.tensorflow_only
def test_photos_are_what_the_model_was_given():
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (1, 32, 48, 3), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(32, 48), num_classes=0)
    images = ((photo / 255 - mean) / std).astype(np.float32)
    page = Page.of(
        model, images, preprocessing=keras_vit.Preprocessing(mean=mean, std=std)
    )
    np.testing.assert_array_equal(page.photos, photo)
    assert page.predictions is None
    assert "has no head" in " ".join(read(page).text)
    assert any(text.endswith(", 1 image") for text in read(page).text)
    (source,) = [
        img["src"] for img in read(page).all("img") if img.get("alt") == "image 1"
    ]
    image = pytest.importorskip("PIL.Image")
    png = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(png))), photo[0])


def tiny(**fields):
    sizes = {"patch_size": 8, "num_layers": 2, "hidden_size": 16, "mlp_dim": 16}
    config = keras_vit.ViTConfig(**{**sizes, "num_heads": 2, **fields})
    return keras_vit.vit(config, image_size=(16, 24), num_classes=3)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("fields", "absent"),
    [
        ({}, {}),
        ({"classifier": "gap"}, {}),
        ({"classifier": "map", "num_registers": 2}, {}),
        ({"classifier": "distilled"}, {}),
        ({"position": "none"}, {"positions": "adds no positions"}),
        ({"position": "relative"}, {"positions": "are relative"}),
        ({"position": "2d", "position_at": "every_layer"}, {}),
        ({"classifier": "unpooled"}, {"predictions": "for every token"}),
        (
            {"classifier": "gap", "attention": "axial"},
            {"attention": "rows and columns", "distance": "rows and columns"},
        ),
    ],
)
def test_a_page_says_what_a_model_lacks(fields, absent):
    page = Page.of(tiny(**fields), np.zeros((1, 16, 24, 3), np.float32))
    assert page.absent.keys() == absent.keys()
    text = " ".join(read(page).text)
    for field, words in absent.items():
        assert getattr(page, field) is None
        assert words in text
    given = {"predictions", "attention", "distance", "filters", "positions"} - {*absent}
    assert all(getattr(page, field) is not None for field in given)


@pytest.mark.tensorflow_only
def test_hybrids_have_no_filters():
    resnet = keras_vit.configs.ResNetConfig(num_layers=(1,), width=32, unit="v1")
    page = Page.of(
        tiny(patch_size=2, resnet=resnet), np.zeros((1, 16, 24, 3), np.float32)
    )
    assert page.filters is None
    assert "The model is a hybrid (3.1)" in " ".join(read(page).text)


@pytest.mark.tensorflow_only
def test_gray_images_and_few_filters():
    config = keras_vit.ViTConfig(
        patch_size=4, num_layers=1, hidden_size=16, mlp_dim=16, num_heads=1
    )
    model = keras_vit.vit(config, image_size=(8, 8), num_channels=1, num_classes=3)
    page = Page.of(model, np.zeros((1, 8, 8, 1), np.float32))
    assert page.photos.shape == (1, 8, 8, 3)
    assert page.filters.shape == (16, 4, 4, 1)
    assert len(read(page).all("rect")) >= 3


@pytest.mark.tensorflow_only
def test_what_has_no_page():
    config = keras_vit.configs.ResNetConfig(num_layers=(1,), width=32)
    bit = keras_vit.resnet(config, image_size=(32, 32), num_classes=3)
    with pytest.raises(ValueError, match=r"a ResNet \(4.1\), which has neither"):
        Page.of(bit, np.zeros((1, 32, 32, 3), np.float32))
    with pytest.raises(
        ValueError, match=r"Expected at least one image. Received: none"
    ):
        Page.of(tiny(), np.zeros((0, 16, 24, 3), np.float32))


@pytest.mark.tensorflow_only
def test_a_model_that_diverged_is_an_error():
    model = tiny()
    block = model.get_layer("encoderblock_1")
    block.set_weights([np.full(weight.shape, np.nan) for weight in block.weights])
    with pytest.raises(ValueError, match="its training may have diverged"):
        Page.of(model, np.zeros((1, 16, 24, 3), np.float32))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("field", ["attention", "rollout", "distance", "positions"])
def test_what_is_not_finite_is_named(field, monkeypatch):
    def broken(*_):
        return np.full((1, 1, 1, 1), np.nan)

    def looked(model, images):
        found = all_of_attention(model, images)
        names = ("attention", "rollout", "distance")
        return [
            broken() if name == field else value
            for name, value in zip(names, found, strict=True)
        ]

    monkeypatch.setattr("keras_vit.inspection.page.all_of_attention", looked)
    if field == "positions":
        monkeypatch.setattr("keras_vit.inspection.page.position_similarity", broken)
    with pytest.raises(ValueError, match=f"Expected finite {field}. Received: model="):
        Page.of(tiny(), np.zeros((1, 16, 24, 3), np.float32))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "field", ["attention", "rollout", "distance", "filters", "positions"]
)
def test_no_page_is_written_that_a_browser_cannot_read(field, tmp_path):
    page = pages.page()
    getattr(page, field).flat[0] = np.inf
    with pytest.raises(ValueError, match=f"Expected finite {field} in the page"):
        page.write(tmp_path / "page.html")
    page = pages.page(covered=(np.nan, 1.0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.write(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"names": ["a", "b"]}, "each of 1 images. Received: 2 names"),
        ({"names": []}, "each of 1 images. Received: 0 names"),
        ({"classes": ["a", "b"]}, "3 outputs. Received: 2 classes"),
        ({"classes": ["a", "b", "c", "d"]}, "3 outputs. Received: 4 classes"),
    ],
)
def test_names_are_one_each(given, told):
    with pytest.raises(ValueError, match=told):
        Page.of(tiny(), np.zeros((1, 16, 24, 3), np.float32), **given)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("position_at", ["stem", "every_layer", "every_layer_shared"])
def test_whose_positions_are_shown_is_said(position_at):
    page = Page.of(tiny(position_at=position_at), np.zeros((1, 16, 24, 3), np.float32))
    told = "of layer 1; each layer adds its own" in " ".join(read(page).text)
    assert told == (position_at == "every_layer")


@pytest.mark.tensorflow_only
def test_the_rollouts_total_is_before_rounding():
    rollout = np.full((2, 4, 5), 0.0015)  # 0.6375 bytes each, which are 1.
    rollout[:, 0, 0] = 0.6
    total = read(pages.page(rollout=rollout)).data["rollout"]["total"]
    np.testing.assert_allclose(total, 0.6 + 19 * 0.0015, rtol=1e-5)


@pytest.mark.tensorflow_only
def test_patches_may_stick_out_over_the_image():
    """4 x 4 pixels a patch, and SAME rounds up: 5 rows of them on 18 pixels."""
    resnet = keras_vit.configs.ResNetConfig(num_layers=(1,), width=32, unit="v1")
    config = keras_vit.ViTConfig(
        patch_size=1, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=2, resnet=resnet
    )
    model = keras_vit.vit(config, image_size=(18, 24), num_classes=3)
    page = Page.of(model, np.zeros((1, 18, 24, 3), np.float32))
    assert page.attention.shape[-2:] == (5, 6)
    assert page.covered == (20 / 18, 1.0)


@pytest.mark.tensorflow_only
def test_half_precision_and_a_single_patch():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        config = keras_vit.ViTConfig(
            patch_size=8, num_layers=1, hidden_size=16, mlp_dim=16, num_heads=1
        )
        model = keras_vit.vit(config, image_size=(8, 8), num_classes=3)
    finally:
        keras.config.set_dtype_policy("float32")
    page = Page.of(model, np.zeros((1, 8, 8, 3), np.float32))
    assert page.attention.shape == (1, 1, 1, 1, 1)
    assert page.attention.dtype == np.float32
    np.testing.assert_array_equal(page.distance, 0)
    assert read(page).data["attention"]["most"] == [
        float(f"{page.attention.max():.6g}")
    ]


@pytest.mark.tensorflow_only
def test_file_names_that_are_no_text(tmp_path):
    name = b"\xff.jpg".decode("utf-8", "surrogateescape")
    pages.page(names=[name, "b"]).write(tmp_path / "page.html")
    assert 'alt="?.jpg"' in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("make", [pages.page, pages.bare])
def test_names_are_text(make):
    page = make(title=pages.HOSTILE, names=[pages.HOSTILE, "b"])
    if page.predictions is not None:
        page.predictions[0][0] = (pages.HOSTILE, 0.75)
    found = read(page)
    assert [attributes.get("type") for attributes in found.all("script")] == [
        "application/json",
        None,
    ]
    assert not any("onerror" in attributes for _, attributes in found.seen)
    assert found.data["names"][0] == pages.HOSTILE
    assert found.text.count(pages.HOSTILE) >= 2  # The title, twice.
    assert next(img["alt"] for img in found.all("img")) == pages.HOSTILE


def test_texts_are_escaped_in_every_template():
    templates = resources.files("keras_vit").joinpath("templates")
    trusting = {
        path.name
        for path in templates.iterdir()
        if re.search(r"\bsafe\b|autoescape", path.read_text(encoding="utf-8"))
    }
    assert trusting == {"document.html"}  # Its style, script and policy are ours.
    text = web_page.render("document.html", title="<script>alert(1)</script>")
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt;</title>" in text


@pytest.mark.tensorflow_only
def test_nothing_is_asked_of_a_network():
    text = page_render.html(pages.page())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    found = read(pages.page())
    sources = [a[key] for _, a in found.seen for key in ("src", "href") if key in a]
    assert sources
    assert all(source.startswith("data:image/") for source in sources)
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.tensorflow_only
def test_all_that_is_asked_has_a_label():
    found = read(pages.page())
    labelled = {label["for"] for label in found.all("label") if "for" in label}
    for control in found.all("input") + found.all("select"):
        inside = control.get("type") in ("radio", "checkbox")  # A label around it.
        assert inside or control["id"] in labelled
    assert all("alt" in img for img in found.all("img"))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("pixels", "patch", "layers", "heads", "step"),
    [
        (224, 14, 12, 6, 1),
        (384, 16, 12, 12, 1),
        (384, 16, 24, 16, 1),
        (384, 8, 12, 12, 4),
    ],
    ids=["S/14", "B/16 at 384", "L/16 at 384", "B/8 at 384"],
)
def test_eight_images_take_less_than_5_mb(pixels, patch, layers, heads, step, tmp_path):
    """Of noise, which no JPEG makes small; maps take the same whatever they show."""
    rng, grid = np.random.default_rng(0), (pixels // patch, pixels // patch)
    coarse = rng.integers(0, 256, (8, pixels // 4, pixels // 4, 3), dtype=np.uint8)
    page = pages.page(
        photos=coarse.repeat(4, axis=1).repeat(4, axis=2),
        names=[f"{i}.jpg" for i in range(8)],
        predictions=[[("a", 1.0)]] * 8,
        attention=rng.uniform(size=(8, layers, heads, *grid)).astype(np.float32),
        rollout=np.ones((8, *grid), np.float32),
        distance=np.ones((layers, heads)),
        filters=rng.normal(size=(28, patch, patch, 3)),
        positions=np.ones((*grid, *grid), np.float32),
    )
    assert page.write(tmp_path / "page.html") < 5e6
    found = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert found.data["positions"]["step"] == step
    kept = (grid[0] // step) ** 2 * grid[0] ** 2
    assert len(base64.b64decode(found.data["positions"]["bytes"])) == kept


@pytest.mark.tensorflow_only
def test_equal_maps_are_no_division_by_zero():
    zero, ones = np.zeros((1, 2, 3)), np.ones((1, 2, 3))
    for values, byte in ((zero, 0), (ones, 255)):
        found, most = page_data.quantized(values)
        assert (found == byte).all()
        assert most == values.max()


def test_whose_attention_it_is():
    for pooling, query in {
        "token": "the class token",
        "avg": "the mean of all tokens",
    }.items():
        model = keras_vit.ViT_Ti16(
            weights=None, include_top=False, pooling=pooling, input_shape=(32, 32, 3)
        )
        page = Page.of(model, np.zeros((1, 32, 32, 3), np.float32))
        assert page.query == query


@pytest.mark.parametrize(
    ("size", "kind"),
    [((127, 300), "PNG"), ((300, 127), "PNG"), ((128, 128), "JPEG")],
)
def test_photos_below_128_pixels_are_stored_without_loss(size, kind):
    image = pytest.importorskip("PIL.Image")
    photo = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    with image.open(io.BytesIO(page_render._photo_file(photo))) as stored:
        assert stored.format == kind
        if kind == "PNG":
            np.testing.assert_array_equal(np.asarray(stored), photo)
