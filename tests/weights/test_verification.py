"""`verify`: a tagged model against outputs that others published."""

import dataclasses

import keras
import numpy as np
import pytest
from PIL import Image, ImageOps

import keras_vit
from keras_vit.weights import download, registry, verification
from tests import photos
from tests.conftest import REFERENCE

TAG, VARIANT = "imagenet21k+imagenet2012-224", "ViT-B/16"


def tagged(source, **overrides):
    """A mini model that passes for the tag's."""
    model = keras_vit.from_checkpoint(REFERENCE / f"{source}.npz", **overrides)
    provenance = dataclasses.replace(model.provenance, variant=VARIANT, tag=TAG)
    model.facts = dataclasses.replace(model.facts, provenance=provenance)
    return model


def reference(output, expected, numerics="paper", **changes):
    fields = {
        "variant": VARIANT,
        "tag": TAG,
        "image": 0.5,
        "image_size": (64, 64),
        "output": output,
        "expected": expected,
        "tolerance": 1e-5,
        "numerics": numerics,
        "source": "this test",
    }
    return registry.Reference(**fields | changes)


@pytest.fixture
def published(monkeypatch):
    def publish(*found):
        monkeypatch.setattr(verification, "references", lambda *_: found)

    return publish


def constant(model, value=0.5):
    images = np.full((1, 64, 64, 3), value, "float32")
    return keras.ops.convert_to_numpy(model(images))[0]


def test_every_output_is_compared_with_its_own_numerics(published):
    """The model was built with erf; each source is computed as it did."""
    paper = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    hf = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz", numerics="hf")
    assert np.abs(constant(paper) - constant(hf)).max() > 1e-4
    token = keras.Model(paper.input, paper.get_layer("encoder_norm").output[:, 0])
    odds = np.exp(constant(paper) - constant(paper).max())
    values = {
        "logits": constant(hf),
        "class_token": constant(token),
        "probabilities": odds / odds.sum(),
    }
    published(
        *(
            reference(
                output,
                tuple((i, float(value[i])) for i in (0, 3, 7)),
                "hf" if output == "logits" else "paper",
            )
            for output, value in values.items()
        )
    )
    found = keras_vit.verify(tagged("vit_mini", gelu="erf"))
    assert found.passed
    assert [check.reference.output for check in found.checks] == list(values)
    assert str(found).count("passed") == 3


def test_another_training_fails(published):
    model = tagged("vit_mini")
    expected = tuple(enumerate(map(float, constant(model)[:3])))
    published(reference("logits", expected))
    head = model.get_layer("head")
    kernel, bias = head.get_weights()
    head.set_weights([kernel, bias + np.float32(1e-3)])
    found = keras_vit.verify(model)
    assert not found.passed
    assert found.checks[0].difference == pytest.approx(1e-3, rel=0.02)
    assert "FAILED" in str(found)


def test_an_image_is_downloaded_and_scaled_as_its_source_did(
    published, monkeypatch, tmp_path
):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image.fromarray(pixels).save(tmp_path / "it.png")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    model = tagged("vit_mini")
    for half_range in (127.5, 128.0):
        x = pixels[None].astype("float32") / half_range - 1
        logits = keras.ops.convert_to_numpy(model(x))[0]
        published(
            reference(
                "logits",
                tuple(enumerate(map(float, logits[:3]))),
                image=(tmp_path / "it.png").as_uri(),
                half_range=half_range,
            )
        )
        assert keras_vit.verify(model).passed
    assert list((download.cache_dir() / "verify").glob("*it.png"))


def test_what_cannot_be_verified(published):
    with pytest.raises(ValueError, match="built with a tag"):
        keras_vit.verify(keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz"))
    published()
    found = keras_vit.verify(tagged("vit_mini"))
    assert not found.passed
    assert "no published outputs" in str(found)
    published(reference("logits", ((999, 0.0),)))
    with pytest.raises(ValueError, match="the published head"):
        keras_vit.verify(tagged("vit_mini"))


def test_the_published_outputs_are_of_tags_that_exist():
    for row in registry.REFERENCES:
        assert row in registry.references(row.variant, row.tag)
        found = registry.find(row.variant, row.tag)
        assert max(place for place, _ in row.expected) < found.num_classes


@pytest.mark.parametrize("size", [(600, 400), (320, 400), (400, 400), (200, 100)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_images_are_resized_as_the_sources_do(size, interpolation, tmp_path):
    """Whole, or the center that has the model's aspect ratio; against Pillow's."""
    photo = photos.pixels("flower")[: size[1], : size[0]]
    image = Image.fromarray(photo).convert("L")  # Read as RGB.
    image.save(tmp_path / "photo.png")
    height, width = 96, 128
    method = getattr(Image.Resampling, interpolation.upper())
    expected = {
        "squash": image.resize((width, height), method),
        "crop": ImageOps.fit(image, (width, height), method),
        "none": image,
    }
    for resize, theirs in expected.items():
        told = reference(
            "logits",
            (),
            image_size=(height, width),
            resize=resize,
            interpolation=None if resize == "none" else interpolation,
        )
        ours = np.asarray(verification._resized(tmp_path / "photo.png", told))
        theirs = np.repeat(np.asarray(theirs)[..., None], 3, axis=-1)
        assert ours.shape == theirs.shape
        # `fit` resizes the center alone: it rounds elsewhere, and has other edges.
        allowed = 3 if resize == "crop" else 0
        inside = np.s_[4:-4, 4:-4] if resize == "crop" else np.s_[:]
        difference = np.abs(ours[inside].astype(int) - theirs[inside])
        assert np.quantile(difference, 0.99) <= allowed, resize
        assert difference.max() <= 8 * allowed, resize
