"""`VisionModel`: the facts of a model survive whatever is done to it."""

import dataclasses
import io
import json
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.configs import EfficientNetConfig
from keras_vit.facts import OFFICIAL, Facts, Preprocessing, Provenance
from keras_vit.layers.embeddings import projections_of
from keras_vit.models import VisionModel
from tests.layers import by_hand
from tests.models import families

EFFICIENTNET = EfficientNetConfig(
    width_coefficient=0.25, depth_coefficient=0.1, image_size=48, dropout_rate=0.2
)
CHOSEN = ("2d", "map", "distilled", "axial", "hybrid", "bit", "axial resnet")
LABELS = ("oak", "elm", "ash", "bay", "fir")
STATED = Preprocessing(
    mean=(0.48, 0.46, 0.41),
    std=(0.27, 0.26, 0.28),
    interpolation="bicubic",
    antialias=True,
    crop=0.9,
)
SOURCE = Provenance(source="hf://example/tree", license="apache-2.0", loaded=40)


def build(name):
    if name == "efficientnet":
        model = keras_vit.efficientnet(EFFICIENTNET, num_classes=5)
        by_hand.randomize(model, 0.1)
    else:
        model = families.build(name)
    model.facts = Facts(
        config=model.config, preprocessing=STATED, labels=LABELS, provenance=SOURCE
    )
    return model


# Compiled op by op, an EfficientNet costs JAX minutes; test_efficientnet.py is for all.
@pytest.fixture(
    scope="module",
    params=[
        *CHOSEN,
        pytest.param("efficientnet", marks=pytest.mark.tensorflow_only),
    ],
)
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def photos():
    """Two encoded images, one wider and one taller than any model's."""
    image = pytest.importorskip("PIL.Image")
    found = []
    for seed, (height, width) in enumerate([(60, 90), (80, 56)]):
        small = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), np.uint8)
        stream = io.BytesIO()
        image.fromarray(small).resize((width, height), 3).save(stream, "PNG")
        found.append(stream.getvalue())
    return found


def outputs(model, images):
    return keras.ops.convert_to_numpy(model(images, training=False))


def saved(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def cloned(model, folder):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def from_json(model, folder):
    again = keras.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    return again


def pickled(model, folder):
    return pickle.loads(pickle.dumps(model))


def resized(model, folder):
    return keras_vit.at_resolution(model, model.input_shape[1:3])


def frozen(model, folder):
    copy = cloned(model, folder)
    copy.trainable = False
    again = saved(copy, folder)
    assert not again.trainable
    return again


def with_lora(model, folder):
    copy = cloned(model, folder)
    for layer in projections_of(copy):
        layer.enable_lora(2)
    return saved(copy, folder)


OPERATIONS = {
    ".keras": saved,
    "clone_model": cloned,
    "JSON": from_json,
    "pickle": pickled,
    "frozen": frozen,
    "LoRA": with_lora,
    "at_resolution": resized,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_facts_and_logits_survive(model, operation, photos, tmp_path):
    if operation == "at_resolution" and model.name == "efficientnet":
        pytest.skip("EfficientNet has no positions: build it for the size")
    copy = OPERATIONS[operation](model, tmp_path)
    assert type(copy) is VisionModel
    assert copy.facts == model.facts
    assert copy.name == model.name
    images = copy.preprocess(photos)
    np.testing.assert_array_equal(images, model.preprocess(photos))
    np.testing.assert_allclose(outputs(copy, images), outputs(model, images), atol=1e-6)


@pytest.mark.tensorflow_only
@pytest.mark.slow
def test_an_export_keeps_them(model, photos, tmp_path):
    """Probabilities and logits of encoded bytes, in a graph without Keras."""
    import tensorflow as tf

    done = keras_vit.serving.export(model, tmp_path, top_k=len(LABELS), verbose=False)
    assert keras_vit.serving.read_facts(done.path) == model.facts
    served = tf.saved_model.load(str(done.path)).signatures
    expected = outputs(model, model.preprocess(photos))
    images = tf.constant(model.preprocess(photos))
    logits = served["images_float32"](images=images)["logits"].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    found = served["serving_default"](image_bytes=tf.constant(photos))
    scores = tf.nn.softmax(expected).numpy()
    for row, names, told in zip(
        scores, *map(np.asarray, (found["classes"], found["scores"])), strict=True
    ):
        by_name = {
            name.decode(): score for name, score in zip(names, told, strict=True)
        }
        np.testing.assert_allclose([by_name[label] for label in LABELS], row, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["2d", pytest.param("hybrid", marks=pytest.mark.tensorflow_only)]
)
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized(name, mode, photos, tmp_path):
    model = build(name)
    before = outputs(model, model.preprocess(photos))
    facts = model.facts
    result = keras_vit.serving.quantize(model, mode)
    assert str(result).startswith(f"{mode}: {result.parameters:,} of {result.total:,} ")
    copy = saved(model, tmp_path)
    assert copy.facts == model.facts == facts
    after = outputs(copy, copy.preprocess(photos))
    np.testing.assert_array_equal(after, outputs(model, model.preprocess(photos)))
    limit = {"int8": 0.1, "int4": 0.5}[mode]
    difference = np.abs(after - before).max() / np.abs(before).max()
    assert limit / 100 < difference < limit
    with pytest.raises(ValueError, match="without LoRA or quantization"):
        keras_vit.serving.quantize(model, mode)


def test_other_quantizations_are_refused():
    with pytest.raises(ValueError, match="mode to be one of int8, int4"):
        keras_vit.serving.quantize(build("2d"), "gptq")


def test_for_task_replaces_the_labels_only():
    model = build("distilled")
    tuned = keras_vit.for_task(model, ["tulip", "rose"])
    assert tuned.labels == ("tulip", "rose")
    assert tuned.preprocessing == STATED
    assert tuned.config == dataclasses.replace(model.config, representation_size=None)
    assert tuned.provenance.source == SOURCE.source
    assert tuned.provenance.fresh == ("head/kernel", "head/bias")
    assert keras_vit.for_task(model, 7).labels is None
    for wrong in ("tulip", [], ["a", 1], 0):
        with pytest.raises(ValueError, match="Expected classes to be"):
            keras_vit.for_task(model, wrong)


def test_at_another_resolution():
    larger = keras_vit.at_resolution(build("2d"), (64, 48))
    assert larger.facts == build("2d").facts
    assert larger.input_shape == (None, 64, 48, 3)


def test_sizes_that_are_none_are_refused_by_name():
    model = build("2d")
    for wrong in (224, (32.0, 48), (0, 4), (32, 48, 3)):
        with pytest.raises(ValueError, match=r"image_size.*\(H, W\)"):
            model.preprocess(np.zeros((8, 8, 3)), image_size=wrong)
    first, second = (keras.Input((32, 32, 3), name=name) for name in "ab")
    two = keras_vit.ViT_Ti16(weights=None, input_tensor=first + second, classes=3)
    with pytest.raises(ValueError, match=r"one input\. Received: .* with 2"):
        keras_vit.at_resolution(two, (64, 48))


def test_in_a_process_that_only_imports_keras_vit(tmp_path):
    build("2d").save(tmp_path / "model.keras")
    code = (
        "import keras_vit, keras, sys;"
        "model = keras.saving.load_model(sys.argv[1]);"
        "print(model.labels, model.preprocessing.crop, model.config.num_heads)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"{LABELS} 0.9 3"


def test_a_clone_of_a_clone_of_another_size_has_the_facts():
    model = build("bit")
    again = keras.models.clone_model(keras.models.clone_model(model))
    assert again.facts == model.facts


def test_a_clone_on_other_inputs_has_the_facts():
    model = build("2d")
    images = keras.Input(model.input_shape[1:], name="photographs")
    assert keras.models.clone_model(model, images).facts == model.facts


def test_equal_names_do_not_mix_facts():
    """Two models of one name; a third of the name, of other layers, has no facts."""
    one, other = build("2d"), build("map")
    assert one.name == other.name
    other.labels = None
    assert keras.models.clone_model(one).labels == LABELS
    assert keras.models.clone_model(other).labels is None
    images = keras.Input((4, 4, 3))
    flat = keras.layers.Flatten(data_format="channels_last")(images)
    assert VisionModel(images, flat, one.name).facts == Facts()


def test_a_foreign_model_has_the_papers_preprocessing(photos):
    """A user's own functional model of our layers."""
    ours = families.build("2d")
    plain = keras.Model(ours.input, ours.output)
    assert not isinstance(plain, VisionModel)
    assert keras_vit.models.vision.preprocessing_of(plain) == OFFICIAL
    assert keras_vit.models.vision.preprocessing_of(plain, STATED) == STATED
    tuned = keras_vit.for_task(plain, LABELS)
    assert (tuned.labels, tuned.preprocessing, tuned.config) == (LABELS, OFFICIAL, None)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_config_of_a_foreign_model_is_read_off_its_tensors(name):
    """Fields that tensors and layers do not state keep their defaults."""
    from keras_vit.weights.architecture import config_of

    ours = families.build(name)
    plain = keras.Model(ours.input, ours.output)
    found, expected = config_of(plain), ours.config
    if name in families.RESNETS or name in ("hybrid, 2x2",):
        shape = ("num_layers", "width", "unit")
        if name == "hybrid, 2x2":
            found, expected = found.resnet, expected.resnet
        for field in shape:
            assert getattr(found, field) == getattr(expected, field)
        return
    if expected.resnet is not None:
        found, expected = (
            dataclasses.replace(at, resnet=None) for at in (found, expected)
        )
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean": ()}, "Expected mean"),
        ({"std": (0.5, 0.0, 0.5)}, "to be positive"),
        ({"interpolation": "cubic"}, "interpolation to be one of"),
        ({"antialias": 1}, "antialias"),
        ({"crop": 0}, "crop"),
        ({"crop": 1.5}, r"in \(0, 1\]"),
    ],
)
def test_impossible_preprocessing(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**fields)


def test_facts_that_do_not_fit_the_model():
    model = build("2d")
    with pytest.raises(ValueError, match=r"Expected 5 labels.*Received: 2 labels"):
        model.labels = ("a", "b")
    with pytest.raises(ValueError, match="one value for each channel"):
        model.preprocessing = Preprocessing(mean=(0.1, 0.2))
    assert model.labels == LABELS


def test_json_of_facts():
    facts = build("hybrid").facts
    plain = json.loads(json.dumps(facts.to_json()))
    assert Facts.from_json(plain) == facts
    del plain["labels"]
    with pytest.raises(ValueError, match="upgrade keras_vit"):
        Facts.from_json(plain)
    plain["labels"] = None
    plain["config"]["new_field"] = 1
    with pytest.raises(ValueError, match="new_field"):
        Facts.from_json(plain)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
def test_antialiased_preprocessing_is_pillows(interpolation, crop, photos, tmp_path):
    """timm's and transformers' resize, to 2 of 255 steps (Pillow rounds to bytes)."""
    image = pytest.importorskip("PIL.Image")
    stated = Preprocessing(
        mean=(0.0,),
        std=(1 / 255,),
        interpolation=interpolation,
        antialias=True,
        crop=crop,
    )
    model = families.build("2d", image_size=(32, 32))
    model.preprocessing = stated
    (tmp_path / "a.png").write_bytes(photos[0])
    ours = model.preprocess(tmp_path / "a.png")[0]
    with image.open(tmp_path / "a.png") as file:
        by = getattr(image.Resampling, interpolation.upper())
        if crop is None:
            theirs = file.resize((32, 32), by)
        else:
            side = int(32 / crop)
            scale = side / min(file.size)
            larger = [round(at * scale) for at in file.size]
            left, top = ((at - 32) // 2 for at in larger)
            theirs = file.resize(larger, by).crop((left, top, left + 32, top + 32))
    assert np.abs(ours - np.asarray(theirs, np.float32)).max() <= 2


def test_images_that_preprocess_accepts(photos, tmp_path):
    model = families.build("2d")
    (tmp_path / "a.png").write_bytes(photos[0])
    from_file = model.preprocess(tmp_path / "a.png")
    assert from_file.shape == (1, *families.SIZE, 3)
    np.testing.assert_array_equal(from_file, model.preprocess(photos)[:1])
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)
    batch = model.preprocess(pixels)
    np.testing.assert_array_equal(batch, model.preprocess(list(pixels)))
    np.testing.assert_array_equal(batch[:1], model.preprocess(pixels[0]))
    np.testing.assert_allclose(
        batch, model.preprocess(pixels.astype("float64")), atol=1e-5
    )
    tensor = keras.ops.cast(pixels, "bfloat16")  # On torch, with a gradient.
    if keras.backend.backend() == "torch":
        tensor = tensor.requires_grad_()
    np.testing.assert_allclose(batch, model.preprocess(tensor), atol=0.02)
    (tmp_path / "b.png").write_bytes(photos[0][:50])
    for wrong, message in (
        ([], "at least one image"),
        (tmp_path / "b.png", "b.png.*"),
        (b"no image", "Expected an image"),
        (np.zeros((4, 4)), r"\[B, H, W, C\]"),
        (np.zeros((2, 4, 4, 3), bool), "numbers in 0..255"),
    ):
        with pytest.raises(ValueError, match=message):
            model.preprocess(wrong)
    with pytest.raises(OSError, match="missing"):
        model.preprocess(str(tmp_path / "missing.png"))
    sized = keras_vit.resnet(families.V2, image_size=(None, None), num_classes=None)
    with pytest.raises(ValueError, match="image_size=\\(H, W\\)"):
        sized.preprocess(pixels)
    assert sized.preprocess(pixels, (24, 40)).shape == (2, 24, 40, 3)


def test_the_import_leaves_the_dtype_policy_open():
    """Keras fixes it with the first layer, after which `set_floatx` changes nothing."""
    program = (
        "import keras, keras_vit, keras_vit.models.vision\n"
        "keras.config.set_floatx('float64')\n"
        "assert keras.config.dtype_policy().name == 'float64'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
