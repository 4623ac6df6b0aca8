"""Exported SavedModels against Keras, `predict`, and what hostile images do to them."""

import dataclasses
import io
import json
import os
import resource
import struct
import subprocess
import sys
import warnings
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.data import decoding, sources
from keras_vit.models.transfer import merge_lora
from keras_vit.serving import (
    export,
    export_check,
    graph,
    isolated_run,
    quantize,
    savedmodel,
    signatures,
)
from keras_vit.training import fit
from tests.conftest import REFERENCE, reference
from tests.models.test_vit import TINY, perturbed, tiny
from tests.runs import save_run

pytestmark = pytest.mark.tensorflow_only
LABELS = ["daisy", "iris", "été", "lily", "tulip"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = keras_vit.Preprocessing(mean=MEAN, std=STD)


def encoded(kind, size=(20, 30), seed=0, mode="RGB", **options):
    """A drawn image's bytes (Pillow's, not TensorFlow's own encoders)."""
    seeded = np.random.default_rng(seed)
    small = Image.fromarray(seeded.integers(0, 256, (4, 4, 3), np.uint8))
    image = small.resize(size[::-1], Image.Resampling.BICUBIC).convert(mode)
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def animated(frames=3):
    """A GIF whose first frame is `encoded("GIF")`'s, and others after it."""
    images = [Image.open(io.BytesIO(encoded("GIF", seed=s))) for s in range(frames)]
    written = io.BytesIO()
    images[0].save(written, "GIF", save_all=True, append_images=images[1:])
    return written.getvalue()


def header_only(kind, height, width):
    """An image that says it is so large, and has nothing more to say."""
    if kind == "PNG":
        body = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, 2, 0, 0, 0)
        checked = body + struct.pack(">I", zlib.crc32(body))
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + checked
    if kind == "GIF":
        return b"GIF89a" + struct.pack("<HH", width, height) + bytes(30)
    if kind == "BMP":
        sides = struct.pack("<iiHH", width, -height, 1, 24)
        return b"BM" + bytes(16) + sides + bytes(30)
    whole = encoded("JPEG")
    start = whole.index(b"\xff\xc0") + 5
    return whole[:start] + struct.pack(">HH", height, width) + whole[start + 4 :]


@pytest.fixture(scope="module")
def model():
    return perturbed(tiny())


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    """(folder, signatures) of one export that was proved in a fresh process."""
    path = tmp_path_factory.mktemp("served") / "flowers"
    done = export(model, path, LABELS, preprocessing=SCALE, top_k=3, verbose=False)
    return done, tf.saved_model.load(str(done.path)).signatures


@pytest.fixture
def in_process(monkeypatch):
    """The proof without a process of its own: seconds less a model."""

    def run(kind, path, given):
        found = isolated_run.KINDS[kind](str(path), given)
        return {
            key: np.array(list(out.ravel()), "S").reshape(out.shape)
            if out.dtype == object
            else out
            for key, out in found.items()
        }

    monkeypatch.setattr(savedmodel, "run_fresh", run)


def test_signatures_are_the_ones_it_says(served):
    done, signatures = served
    assert done.path.name == "1"
    batch = tf.TensorShape([None])
    said = {
        name: (
            signature.structured_input_signature[1],
            {key: out.shape for key, out in signature.structured_outputs.items()},
        )
        for name, signature in signatures.items()
    }
    assert {name: list(given) for name, (given, _) in said.items()} == {
        "serving_default": ["image_bytes"],
        "image_bytes": ["image_bytes"],
        "images": ["images"],
        "images_float32": ["images"],
        "features": ["image_bytes"],
        "attention": ["image_bytes"],
    }
    given = said["images"][0]["images"]
    assert (given.dtype, given.shape[1:]) == (tf.uint8, [None, None, 3])
    assert said["images_float32"][0]["images"].shape == [None, 16, 24, 3]
    for _, outputs in said.values():
        for key, shape in outputs.items():
            assert shape[:1].as_list() == [None], key  # What a server batches over.
    assert said["serving_default"][1]["status"].as_list() == batch.as_list()
    assert said["features"][1]["features"] == [None, 24]
    assert said["attention"][1]["attention"] == [None, 2, 3]


def test_a_checkpoints_own_scaling_is_the_default(tmp_path, in_process, capsys):
    """timm's config.json of DeiT says ImageNet's mean and deviation."""
    folder = REFERENCE.parent / "dialects" / "timm_deit_distilled"
    told = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    model = keras_vit.from_checkpoint(folder)
    done = export(model, tmp_path / "m", signatures=["images"])
    scale = done.preprocessing
    assert (scale.mean, scale.std) == (tuple(told["mean"]), tuple(told["std"]))
    assert (scale.interpolation, scale.crop) == ("bicubic", told["crop_pct"])
    assert "preprocessing: mean 0.485 0.456 0.406, std" in capsys.readouterr().out
    other = keras_vit.Preprocessing(mean=(0.5,))
    done = export(model, tmp_path / "m", preprocessing=other, signatures=["images"])
    assert done.preprocessing == other


def test_labels_are_an_asset(served):
    done, _ = served
    from tensorflow.core.protobuf import saved_model_pb2

    told = saved_model_pb2.SavedModel()
    told.ParseFromString((done.path / "saved_model.pb").read_bytes())
    assets = {asset.filename for asset in told.meta_graphs[0].asset_file_def}
    assert assets == {"labels.txt", "facts.json"}
    text = (done.path / "assets" / "labels.txt").read_text(encoding="utf-8")
    assert text.splitlines() == LABELS


def test_facts_are_an_asset_and_come_back(served, model, tmp_path):
    done, _ = served
    found = keras_vit.serving.read_facts(done.path)
    expected = dataclasses.replace(
        model.facts, labels=tuple(LABELS), preprocessing=SCALE
    )
    assert found == expected
    with pytest.raises(ValueError, match="Expected the folder of a version"):
        keras_vit.serving.read_facts(tmp_path)


def test_floats_are_within_1e_5_of_keras(served, model, agree):
    _, signatures = served
    images = np.random.default_rng(0).uniform(-2, 2, (5, 16, 24, 3)).astype("float32")
    said = signatures["images_float32"](images=images)
    agree("SavedModel: logits", said["logits"], model(images), 1e-5)
    scores = np.asarray(keras.ops.softmax(model(images)))
    agree("SavedModel: scores", said["scores"], -np.sort(-scores)[:, :3], 1e-5)
    names = [[LABELS[i].encode() for i in row[:3]] for row in np.argsort(-scores)]
    assert said["classes"].numpy().tolist() == names


IMAGES = {
    "a.jpg": encoded("JPEG"),
    "progressive.jpg": encoded("JPEG", seed=1, progressive=True),
    "gray.jpg": encoded("JPEG", seed=2, mode="L"),
    "cmyk.jpg": encoded("JPEG", seed=3, mode="CMYK"),
    "b.png": encoded("PNG", (16, 24), 4),
    "palette.png": encoded("PNG", seed=5, mode="P"),
    "transparent.png": encoded("PNG", seed=6, mode="RGBA"),
    "sixteen.png": encoded("PNG", seed=7, mode="I;16"),
    "c.bmp": encoded("BMP", (40, 9), 8),
    "d.gif": animated(),
    "one.png": encoded("PNG", (1, 1), 9),
    "wide.jpg": encoded("JPEG", (30, 2000), 10),
}


def test_bytes_say_what_predict_says(served, model, shell, tmp_path, agree):
    """The same files through the command and through the graph."""
    _, signatures = served
    run = save_run(tmp_path / "run", model, LABELS, SCALE)
    for name, image in IMAGES.items():
        (tmp_path / name).write_bytes(image)
    code, out, _ = shell(
        "predict", *(tmp_path / name for name in IMAGES), "--model", run, "--json"
    )
    assert code == 0
    told = [json.loads(line)["top"][:3] for line in out.splitlines()]
    said = signatures["serving_default"](image_bytes=list(IMAGES.values()))
    assert set(said["status"].numpy()) == {b"ok"}
    names = [[one["class"].encode() for one in row] for row in told]
    assert said["classes"].numpy().tolist() == names
    scores = np.array([[one["probability"] for one in row] for row in told])
    agree("SavedModel: bytes against predict", said["scores"], scores, 1e-6)


def test_the_first_frame_of_an_animation_is_the_image(served):
    _, signatures = served
    said = signatures["serving_default"](image_bytes=[animated(), encoded("GIF")])
    first, alone = said["scores"].numpy()
    np.testing.assert_allclose(first, alone, atol=1e-6)
    assert np.abs(first - said["scores"][:, ::-1]).max() > 0.01


def test_pixels_of_any_size_are_resized_as_in_training(served):
    _, signatures = served
    png = encoded("PNG", (33, 47))
    pixels = np.asarray(Image.open(io.BytesIO(png)))[None]
    from_pixels = signatures["images"](images=pixels)
    from_bytes = signatures["image_bytes"](image_bytes=[png])
    np.testing.assert_array_equal(from_pixels["classes"], from_bytes["classes"])
    np.testing.assert_allclose(from_pixels["scores"], from_bytes["scores"], atol=1e-6)


def test_a_gif_of_many_large_frames_costs_one(served):
    """A bomb of 1.5 MB, whose 400 frames of 2,000 x 2,000 are 1.6 GB as bytes."""
    _, signatures = served
    one = io.BytesIO()
    Image.new("P", (2000, 2000), 1).save(one, "GIF")
    start = one.getvalue().index(b"\x2c")
    head, frame = one.getvalue()[:start], one.getvalue()[start:-1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = signatures["serving_default"](image_bytes=[head + 400 * frame + b";"])
    assert said["status"].numpy() == [b"ok"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024  # KiB.
    large = frame[:5] + struct.pack("<HH", 30000, 30000) + frame[9:]
    said = signatures["serving_default"](image_bytes=[head + large + b";"])
    assert said["status"].numpy() == [b"more than 67108864 pixels"]


def png_with_a_first_chunk():
    """A chunk before the one that has the size, where that would be."""
    png, body = encoded("PNG"), b"aaAa" + struct.pack(">II", 1, 1)
    chunk = struct.pack(">I", 8) + body + struct.pack(">I", zlib.crc32(body))
    return png[:8] + chunk + png[8:]


HOSTILE = {
    "a PNG of another first chunk": png_with_a_first_chunk(),
    "a GIF of a million extensions": b"GIF89a" + bytes(7) + b"!\xfe\0" * 10**6,
    "nothing": b"",
    "text": b"<html>404 not found</html>",
    "half a JPEG": encoded("JPEG", (200, 200))[:900],
    "half a PNG": encoded("PNG", (200, 200))[:900],
    "the first bytes of a PNG": b"\x89PNG",
    "the first bytes of a GIF": b"GIF8",
    "the first bytes of a BMP": b"BM",
    "a PNG with a wrong byte": encoded("PNG")[:60] + b"\0" + encoded("PNG")[61:],
    "a text of a million bytes": b"a" * 10**6,
}
LARGE = {
    kind: header_only(kind, 20000, 20000) for kind in ("PNG", "JPEG", "GIF", "BMP")
}


def test_bad_images_say_why_and_leave_the_others_alone(served):
    _, signatures = served
    good = list(IMAGES.values())
    alone = signatures["serving_default"](image_bytes=good)
    bad = [*HOSTILE.values(), *LARGE.values()]
    mixed = [image for pair in zip(bad, good, strict=False) for image in pair]
    said = signatures["serving_default"](image_bytes=[*mixed, *bad[len(good) :]])
    status = [text.decode() for text in said["status"].numpy()]
    pairs = 2 * min(len(bad), len(good))
    assert status[1:pairs:2] == ["ok"] * (pairs // 2)
    refused = status[:pairs:2] + status[pairs:]
    assert refused[: len(HOSTILE)] == [decoding.UNREADABLE] * len(HOSTILE)
    assert refused[len(HOSTILE) :] == ["more than 67108864 pixels"] * len(LARGE)
    names, scores = said["classes"].numpy(), said["scores"].numpy()
    np.testing.assert_array_equal(names[1:pairs:2], alone["classes"][: pairs // 2])
    np.testing.assert_allclose(
        scores[1:pairs:2], alone["scores"][: pairs // 2], atol=1e-6
    )
    assert not scores[:pairs:2].any()
    assert set(names[:pairs:2].ravel()) == {b""}


def test_a_batch_of_bad_images_and_one_of_none(served):
    _, signatures = served
    for name in ("serving_default", "features", "attention"):
        said = signatures[name](image_bytes=[b"", b"no"])
        assert said.pop("status").numpy().tolist() == [decoding.UNREADABLE.encode()] * 2
        assert not any(np.any(out.numpy().astype(bool)) for out in said.values())
        said = signatures[name](image_bytes=tf.constant([], tf.string))
        assert {out.shape[0] for out in said.values()} == {0}


def test_bad_images_fail_their_batch_on_demand(model, tmp_path, in_process):
    done = export(model, tmp_path / "m", LABELS, on_bad_image="fail", verbose=False)
    default = tf.saved_model.load(str(done.path)).signatures["serving_default"]
    good = encoded("PNG")
    assert default(image_bytes=[good])["status"].numpy() == [b"ok"]
    with pytest.raises(tf.errors.InvalidArgumentError) as told:
        default(image_bytes=[good, b"", good, LARGE["JPEG"]])
    assert f"1: {decoding.UNREADABLE}; 3: more than 67108864 pixels" in str(told.value)


def published(name):
    """A small model of the official code, for a task of five classes."""
    model = keras_vit.from_checkpoint(reference(name))
    return keras_vit.for_task(model, 5)


def softmaxed(model):
    model.get_layer("head").activation = keras.activations.softmax
    return model


FAMILIES = {
    "token": lambda: tiny(),
    "gap": lambda: tiny(classifier="gap"),
    "map": lambda: tiny(classifier="map"),
    "distilled": lambda: tiny(classifier="distilled"),
    "pre_logits": lambda: tiny(representation_size=12),
    "registers": lambda: tiny(num_registers=2),
    "shared": lambda: tiny(num_layers=3, position_at="every_layer_shared"),
    "axial": lambda: tiny(classifier="gap", attention="axial"),
    "square": lambda: tiny(image_size=(24, 24)),
    "hybrid": lambda: published("hybrid_mini_stem"),
    "BiT": lambda: published("bit_mini"),
    "probabilities": lambda: softmaxed(tiny()),
    "gray": lambda: keras_vit.vit(
        TINY, image_size=(16, 24), num_channels=1, num_classes=5
    ),
    "for_task": lambda: keras_vit.for_task(tiny(num_classes=9), 5),
    "at_resolution": lambda: keras_vit.at_resolution(tiny(), (32, 16)),
}


QUICK = ("token", "gray", "hybrid", "BiT", "shared")  # `make slow` has the others.


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(at, marks=() if at in QUICK else pytest.mark.slow)
        for at in FAMILIES
    ],
)
def test_every_kind_of_model_exports(family, tmp_path, in_process):
    model = perturbed(FAMILIES[family]())
    done = export(model, tmp_path / "m", LABELS, verbose=False)
    there = {name.split("/")[0] for name in done.differences}
    assert ("attention" in there) == (family not in ("BiT", "axial"))
    assert set(done.omitted) == {"attention"} - there
    assert {"serving_default", "images", "images_float32", "features"} <= there


def test_fewer_bits_are_smaller_files(tmp_path, in_process):
    """A SavedModel keeps the packed weights; its scores are those of Keras."""
    sizes = {}
    for mode in ("int8", "int4"):
        keras.utils.set_random_seed(0)
        model = perturbed(tiny(hidden_size=64, mlp_dim=256, num_heads=4))
        quantize(model, mode)
        done = export(
            model, tmp_path / mode, LABELS, signatures=["images"], verbose=False
        )
        assert max(done.differences.values()) < 1e-3
        (variables,) = done.path.glob("variables/variables.data*")
        sizes[mode] = variables.stat().st_size
        parameters = model.count_params()
    saved = 4 * parameters - sizes["int8"], 4 * parameters - sizes["int4"]
    assert 4 * parameters > sizes["int8"] > sizes["int4"]
    assert saved[1] > 1.1 * saved[0]  # 3.5 bytes of a kernel's 4 instead of 3.


@pytest.mark.slow
def test_half_precision_exports(tmp_path, in_process):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = perturbed(tiny())
    finally:
        keras.config.set_dtype_policy("float32")
    done = export(model, tmp_path / "m", LABELS, verbose=False)
    assert done.differences["images_float32/scores"] <= 5e-3


def test_lora_is_merged_once_and_for_all(tmp_path, in_process):
    """The graph holds the kernels alone; the model keeps its LoRA."""
    model = tiny()
    for block in (model.get_layer("encoderblock_0"), model.get_layer("encoderblock_1")):
        for projection in block.projections():
            projection.enable_lora(2)
    model = perturbed(model)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 24, 3)).astype("float32")
    merged = merge_lora(model)
    assert not any("lora" in weight.path for weight in merged.weights)
    assert any("lora" in weight.path for weight in model.weights)
    np.testing.assert_allclose(merged(images), model(images), atol=1e-5)
    done = export(model, tmp_path / "m", LABELS, verbose=False)
    loaded = tf.saved_model.load(str(done.path))
    said = loaded.signatures["images_float32"](images=images)
    np.testing.assert_allclose(said["logits"], model(images), atol=1e-5)
    assert len(loaded.weights) == len(merged.variables)


def test_what_keras_did_not_say_is_not_written(model, tmp_path, monkeypatch):
    """A fault of the exported file is found, told, and leaves nothing."""
    whole = isolated_run.savedmodel

    def run(kind, path, given):
        found = whole(str(path), given)
        found["features/features"] = found["features/features"] + 1e-3
        return found

    monkeypatch.setattr(savedmodel, "run_fresh", run)
    with pytest.raises(ValueError, match=r"features within \de-05 .* 1\.00e-03 from"):
        export(model, tmp_path / "m", LABELS, verbose=False)
    assert list((tmp_path / "m").iterdir()) == []


def test_swapped_labels_are_found(model, tmp_path, monkeypatch):
    right = export_check.graph.best

    def swapped(scores, labels, top_k):
        return right(scores, [*labels[1:], labels[0]], top_k)

    monkeypatch.setattr(graph, "best", swapped)
    with pytest.raises(ValueError, match="scores within"):
        export(model, tmp_path / "m", LABELS, verbose=False)


def test_versions_go_up_and_are_not_overwritten_unasked(model, tmp_path, in_process):
    path = tmp_path / "m"
    first = export(model, path, LABELS, signatures=["images"], verbose=False)
    second = export(model, path, LABELS, signatures=["images"], verbose=False)
    assert (first.path.name, second.path.name) == ("1", "2")
    with pytest.raises(ValueError, match=r"version=2, which already exists\. Omit"):
        export(model, path, LABELS, version=2, verbose=False)
    before = (path / "2" / "saved_model.pb").stat().st_ino
    export(model, path, LABELS, version=2, overwrite=True, verbose=False)
    assert (path / "2" / "saved_model.pb").stat().st_ino != before
    assert sorted(at.name for at in path.iterdir()) == ["1", "2"]


def test_other_labels_than_the_version_before_are_a_warning(
    model, tmp_path, in_process
):
    options = {"signatures": ["images"], "verbose": False}
    export(model, tmp_path, LABELS, **options)
    match = "version 2 .* differ from those of version 1"
    with pytest.warns(UserWarning, match=match) as seen:
        export(model, tmp_path, LABELS[::-1], **options)
    assert [at.filename for at in seen] == [__file__]  # The line that called it.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(model, tmp_path, LABELS[::-1], **options)
    (tmp_path / "3" / "assets" / "facts.json").unlink()
    match = "labels of version 3: Expected the folder"
    with pytest.warns(UserWarning, match=match) as seen:
        export(model, tmp_path, LABELS, **options)
    assert [at.filename for at in seen] == [__file__]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS[:4]}, "labels for the model's 5 outputs. Received: 4"),
        ({"labels": "abcde"}, "Received: 5"),
        ({"labels": [*LABELS[:4], "two\nlines"]}, "one line each"),
        ({"labels": [*LABELS[:4], "carriage\r"]}, "one line each"),
        ({"labels": [*LABELS[:4], "\ud800"]}, "one line each"),
        ({"signatures": "images"}, "signatures='images'"),
        ({"signatures": ["bytes"]}, "signatures of image_bytes, images, features"),
        ({"signatures": []}, "signatures of image_bytes"),
        ({"top_k": 0}, "top_k of 1 or more"),
        ({"on_bad_image": "skip"}, "'status' or 'fail'"),
        ({"max_pixels": 0}, "max_pixels of 1 or more"),
        ({"version": 0}, "version of 1 or more"),
        ({"samples": []}, "samples to verify the export. Received: none"),
        ({"samples": [b"no image"]}, r"samples\[0\], not a whole JPEG"),
        (
            {"preprocessing": keras_vit.Preprocessing(mean=(0.1, 0.2))},
            "one value for each channel",
        ),
        ({"preprocessing": {"mean": 0.5}}, "to be a keras_vit.Preprocessing"),
    ],
)
def test_arguments_that_cannot_be(change, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "m", **({"labels": LABELS} | change))
    assert not (tmp_path / "m").exists()


def test_a_single_logit_has_no_softmax(tmp_path):
    with pytest.raises(ValueError, match="softmax of one is always 1"):
        export(tiny(num_classes=1), tmp_path / "m", verbose=False)


def test_an_augmenting_layer_rests(tmp_path, in_process):
    """Keras's random layers are at work unless they are told not to."""
    network = perturbed(tiny())
    images = keras.Input((16, 24, 3))
    flipped = keras.layers.RandomFlip(seed=1)(images)
    features = keras.Model(network.input, network.layers[-1].input)(flipped)
    model = keras.Model(images, keras.layers.Dense(5, name="head")(features))
    kinds = ("image_bytes", "images", "features")
    done = export(model, tmp_path / "m", LABELS, kinds, verbose=False)
    signature = tf.saved_model.load(str(done.path)).signatures["features"]
    png = encoded("PNG", (16, 24))
    first, *others = (signature(image_bytes=[png])["features"] for _ in range(6))
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_two_exports_at_once_lose_nothing(model, tmp_path, monkeypatch):
    """Another's version came while ours was written: an error, and theirs is left."""
    theirs = tmp_path / "m" / "1"

    def run(*given):
        theirs.mkdir()
        (theirs / "theirs").write_text("theirs")
        return {}

    monkeypatch.setattr(savedmodel, "run_fresh", run)
    with pytest.raises(OSError, match="not empty"):
        export(model, tmp_path / "m", LABELS, verbose=False)
    assert [at.name for at in (tmp_path / "m").iterdir()] == ["1"]
    assert (theirs / "theirs").read_text() == "theirs"


def test_a_model_without_a_head_or_a_rollout_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"Add a head with keras_vit\.for_task"):
        export(tiny(num_classes=None), tmp_path / "m")
    axial = tiny(classifier="gap", attention="axial")
    with pytest.raises(ValueError, match="attends along rows"):
        export(axial, tmp_path / "m", signatures=["attention"])


@pytest.mark.parametrize(
    ("family", "reason"), [("BiT", "a ResNet"), ("axial", "along rows and columns")]
)
def test_an_omitted_signature_is_printed_with_its_reason(
    family, reason, tmp_path, in_process, capsys
):
    done = export(perturbed(FAMILIES[family]()), tmp_path / "m", LABELS)
    assert reason in done.omitted["attention"]
    assert f"without the signature attention: {done.omitted['attention']}" in (
        capsys.readouterr().out
    )
    chosen = export(
        FAMILIES[family](), tmp_path / "m", LABELS, ["image_bytes"], verbose=False
    )
    assert not chosen.omitted  # Left out by the caller.
    assert "without the signature" not in str(chosen)


def test_a_fault_of_attention_is_not_taken_for_a_model_without_it(
    model, tmp_path, monkeypatch
):
    def broken(*args):
        raise ValueError("broken rollout")

    monkeypatch.setattr(signatures, "rollout", broken)
    with pytest.raises(ValueError, match="broken rollout"):
        export(model, tmp_path / "m", LABELS, verbose=False)
    assert not (tmp_path / "m").exists()


def test_a_file_in_the_way_and_a_folder_that_is_not_writable(model, tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(ValueError, match="which is a file"):
        export(model, tmp_path / "file", LABELS)
    with pytest.raises(OSError, match=r"Cannot write .*nothing was written"):
        export(model, "/proc/nowhere", LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3_000, 200_000])
def test_a_full_disk_is_told_and_leaves_nothing(limit, tmp_path):
    """At the weights, and at the graph: a child whose files may be no larger."""
    script = """
import resource, signal, sys
from keras_vit.serving import export
from tests.models.test_vit import tiny
model = tiny()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    export(model, sys.argv[1])
except OSError as error:
    sys.exit(error.strerror)
"""
    path = tmp_path / "m"
    done = subprocess.run(
        [sys.executable, "-c", script, path, str(limit)],
        env=os.environ,
        capture_output=True,
        text=True,
    )
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"Cannot write {path}/1: ")
    assert "File too large" in told
    assert list(path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_export_leaves_no_version(tmp_path):
    """SIGKILL while it is proved: a server that looks sees no number."""
    script = """
import os, signal, sys
from keras_vit.serving import export, savedmodel
from tests.models.test_vit import tiny
savedmodel.run_fresh = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
export(tiny(), sys.argv[1])
"""
    path = tmp_path / "m"
    done = subprocess.run([sys.executable, "-c", script, path], env=os.environ)
    assert done.returncode == -9
    assert [at.name for at in path.iterdir() if at.name.isdigit()] == []
    assert export(tiny(), path, signatures=["images"], verbose=False).path.name == "1"


def test_warm_up_records_are_requests_of_the_signatures(served):
    """Read by the published protos, every one of them runs."""
    done, signatures = served
    from tensorflow_serving.apis import prediction_log_pb2

    file = done.path / "assets.extra" / "tf_serving_warmup_requests"
    seen = {}
    for record in tf.data.TFRecordDataset(str(file)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        assert request.model_spec.name == "flowers"
        inputs = {key: tf.make_ndarray(at) for key, at in request.inputs.items()}
        said = signatures[request.model_spec.signature_name](
            **{key: tf.constant(value) for key, value in inputs.items()}
        )
        if "status" in said:
            assert set(said["status"].numpy()) == {b"ok"}
        (given,) = inputs.values()
        seen.setdefault(request.model_spec.signature_name, []).append(len(given))
    assert seen.pop("images") == [1]
    assert seen == {key: [1, 4] for key in signatures.keys() - {"images"}}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"ema": 0.5}, {"lora_rank": 2}])
def test_a_trained_run_exports_what_was_evaluated(changes, tmp_path, in_process):
    """Averaged weights, and LoRA from a file: the test accuracy is the graph's."""
    from tests.training import test_fitting as small

    colors = small.noise_of_three_colors
    source = sources.Source(
        "colors", ("red", "green", "blue"), colors(30, 0), colors(13, 1)
    )
    result = fit(
        small.tiny(), small.recipe(**changes), source, output=tmp_path, verbose=0
    )
    model = keras.models.load_model(tmp_path / "model.keras", compile=False)
    done = export(model, tmp_path / "m", source.classes, top_k=1, verbose=False)
    pixels = tf.saved_model.load(str(done.path)).signatures["images"]
    images, labels = source.test.images, source.test.labels
    said = pixels(images=images)["classes"].numpy()[:, 0]
    right = [
        source.classes[at].encode() == name
        for at, name in zip(labels, said, strict=True)
    ]
    assert np.mean(right) == pytest.approx(result.test_accuracy)
