"""Models for images of any size: the same numbers as a model of each size (3.2)."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.layers import embeddings, encoder, kernels
from keras_vit.layers.any_size import PadToPatches
from tests.layers import by_hand
from tests.models.families import VITS, build, names
from tests.models.test_vit import tiny

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
FIXED = {"relative", "axial", "axial, relative"}
OPEN = [name for name in VITS if name not in FIXED]
SIZES = [(32, 48), (16, 8), (40, 72), (24, 24)]  # SIZE, a grid of one column, and more.
ANY = (None, None)


def images(size, batch=2):
    pixels = np.random.default_rng(sum(size)).uniform(-1, 1, (batch, *size, 3))
    return pixels.astype("float32")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def close(found, expected, atol=3e-6):
    """Measured: at most 1.02e-6, of sums in another order."""
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(numpy(found), expected, atol=atol * scale, rtol=0)


@pytest.fixture(scope="module")
def opened():
    model = build("every layer")
    return model, keras_vit.at_resolution(model, ANY)


@pytest.mark.parametrize("name", names(OPEN, {"every layer", "2d", "sincos2d"}))
def test_equal_to_at_resolution_at_each_size(name):
    model = build(name)
    opened = keras_vit.at_resolution(model, ANY)
    assert opened.input_shape == (None, None, None, 3)
    assert opened.count_params() == model.count_params()
    assert opened.config == model.config
    for size in SIZES:
        if name == "hybrid, 2x2" and min(size) < 9:
            with pytest.raises(ValueError, match="positive multiples of patch_size"):
                opened(images(size))
            continue
        expected = numpy(keras_vit.at_resolution(model, size)(images(size)))
        close(opened(images(size)), expected)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", FIXED)
def test_refused_by_name(name):
    law = r"attention along rows and columns \(D.6\)" if "axial" in name else "relative"
    with pytest.raises(ValueError, match=law):
        keras_vit.at_resolution(build(name), ANY)


def test_an_axial_resnet_is_refused():
    with pytest.raises(ValueError, match=r"rows and columns \(D.6\)"):
        keras_vit.at_resolution(build("axial resnet"), ANY)


def test_one_side_may_be_fixed(opened):
    model, _ = opened
    wide = keras_vit.at_resolution(model, (None, 48))
    close(wide(images((16, 48))), numpy(opened[1](images((16, 48)))))
    with pytest.raises(ValueError, match="positive multiples of patch_size"):
        keras_vit.at_resolution(model, (None, 20))


def test_there_and_back(opened):
    model, any_size = opened
    back = keras_vit.at_resolution(any_size, (32, 48))
    assert [at.name for at in back.layers] == [at.name for at in model.layers]
    assert [type(at) for at in back.layers] == [type(at) for at in model.layers]
    for old, new in zip(model.weights, back.weights, strict=True):
        np.testing.assert_array_equal(numpy(old), numpy(new))


def test_saved_and_reloaded(opened, tmp_path):
    _, any_size = opened
    any_size.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    close(again(images((16, 24))), numpy(any_size(images((16, 24)))))


def test_positions_are_resized_in_float32_under_any_policy():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = by_hand.randomize(tiny())
        any_size = keras_vit.at_resolution(model, ANY)
        expected = numpy(keras_vit.at_resolution(model, (40, 16))(images((40, 16))))
        close(any_size(images((40, 16))), expected, 1e-6)
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_table_learns_from_every_size(opened):
    # Weights off their start: an equal gradient of all units is nothing to a LayerNorm.
    model = keras_vit.at_resolution(by_hand.randomize(tiny()), ANY)
    before = numpy(model.get_layer("posembed_input").pos_embedding)
    model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    for size in ((16, 24), (32, 16)):
        model.train_on_batch(images(size), np.ones((2, 5), "float32"))
    after = numpy(model.get_layer("posembed_input").pos_embedding)
    assert (after != before).any(-1).all()


BAD = [(30, 48), (32, 47), (4, 48), (7, 7)]


@pytest.mark.parametrize("size", BAD)
def test_other_sizes_are_errors(opened, size):
    with pytest.raises(ValueError, match=r"positive multiples .*Received: image_size="):
        opened[1](images(size))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("compiled", [False, True])
def test_sizes_that_tensorflow_does_not_know(opened, compiled):
    """One trace for all sizes; XLA, which has no assertions, has an error too."""
    import tensorflow as tf

    _, any_size = opened
    unknown = tf.TensorSpec((None, None, None, 3))
    traced = tf.function(any_size, input_signature=[unknown], jit_compile=compiled)
    for size in SIZES:
        close(traced(images(size)), numpy(any_size(images(size))), 1e-5)
    assert traced.experimental_get_tracing_count() == 1
    law = "Input to reshape" if compiled else "positive multiples of patch_size"
    for size in BAD[:2] if compiled else BAD:
        with pytest.raises(tf.errors.InvalidArgumentError, match=law):
            traced(images(size))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["every layer", "map", "2d", "sincos2d", "hybrid"])
def test_training_on_sizes_that_tensorflow_does_not_know(name):
    """The gradient that is written out, and the one that is derived."""
    import tensorflow as tf

    model = build(name)
    any_size = keras_vit.at_resolution(model, ANY)

    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 3))])
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(any_size(x, training=True) ** 2)
        return tape.gradient(loss, any_size.trainable_weights)

    static = keras_vit.at_resolution(any_size, (32, 48))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(static(images((32, 48)), training=True) ** 2)
    expected = tape.gradient(loss, static.trainable_weights)
    for found, value in zip(gradients(images((32, 48))), expected, strict=True):
        close(found, numpy(value), 1e-4)


@pytest.mark.tensorflow_only
def test_an_export_has_any_size(opened, tmp_path):
    import tensorflow as tf

    maps = keras_vit.feature_maps(opened[1], layers=(2,))
    for folder, model in (("model", opened[1]), ("maps", maps)):
        model.export(tmp_path / folder, verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    served_maps = tf.saved_model.load(tmp_path / "maps")
    for size in SIZES:
        close(served.serve(images(size)), numpy(opened[1](images(size))), 1e-5)
        found = served_maps.serve(images(size))["block_2"]
        close(found, numpy(maps(images(size))["block_2"]), 1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiples of patch_size"):
        served.serve(images((30, 48)))


@pytest.mark.parametrize("name", names(["every layer", "hybrid"], {"every layer"}))
def test_feature_maps_of_any_size(name):
    model = build(name)
    maps = keras_vit.feature_maps(keras_vit.at_resolution(model, ANY))
    for size in SIZES[::2]:
        fixed = keras_vit.feature_maps(keras_vit.at_resolution(model, size))
        found, expected = maps(images(size)), fixed(images(size))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            close(found[key], numpy(value))


@pytest.mark.parametrize("size", [(32, 48), (30, 41), (3, 50), (33, 8)])
def test_padding_is_zeros_below_and_to_the_right(opened, size):
    model, any_size = opened
    padded = keras_vit.at_resolution(model, ANY, pad=True)
    below, right = -size[0] % 8, -size[1] % 8
    larger = np.pad(images(size), ((0, 0), (0, below), (0, right), (0, 0)))
    close(padded(images(size)), numpy(any_size(larger)))
    maps = keras_vit.feature_maps(padded, layers=(2,))(images(size))["block_2"]
    assert maps.shape[1:3] == (larger.shape[1] // 8, larger.shape[2] // 8)


def test_padding_is_saved_kept_and_left_out(opened, tmp_path):
    padded = keras_vit.at_resolution(opened[0], ANY, pad=True)
    padded.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    close(again(images((30, 41))), numpy(padded(images((30, 41)))))
    close(
        keras_vit.at_resolution(padded, ANY)(images((30, 41))),
        numpy(padded(images((30, 41)))),
    )
    fixed = keras_vit.at_resolution(padded, (32, 48))
    assert not any(isinstance(layer, PadToPatches) for layer in fixed.layers)
    close(fixed(images((32, 48))), numpy(opened[0](images((32, 48)))))
    with pytest.raises(ValueError, match="pad=True with sides that are None"):
        keras_vit.at_resolution(opened[0], (32, 48), pad=True)


@pytest.mark.tensorflow_only
def test_padding_of_sizes_that_tensorflow_does_not_know(opened, tmp_path):
    import tensorflow as tf

    padded = keras_vit.at_resolution(opened[0], ANY, pad=True)
    padded.export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    for size in [(30, 41), (3, 50), (32, 48)]:
        close(served.serve(images(size)), numpy(padded(images(size))), 1e-5)


def test_builders_and_files(tmp_path):
    # Twelve layers of random weights: rounding grows to 3e-6.
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=5)
    by_hand.randomize(model, 0.1)
    keras_vit.weights.save(model, tmp_path / "wide.npz", format="npz")
    any_size = keras_vit.from_checkpoint(
        tmp_path / "wide.npz", image_size=ANY, grid=(2, 3)
    )
    assert any_size.get_layer("posembed_input").grid == (2, 3)  # The file's own.
    assert not any_size.provenance.resized
    fixed = keras_vit.from_checkpoint(
        tmp_path / "wide.npz", image_size=(64, 32), grid=(2, 3)
    )
    close(any_size(images((64, 32))), numpy(fixed(images((64, 32)))), 1e-5)

    square = keras_vit.at_resolution(model, (48, 48))
    keras_vit.weights.save(square, tmp_path / "square.npz")
    built = keras_vit.ViT_Ti16(
        weights=tmp_path / "square.npz", input_shape=(None, None, 3)
    )
    assert built.input_shape == (None, None, None, 3)
    assert built.get_layer("posembed_input").grid == (3, 3)
    close(
        keras_vit.at_resolution(built, (32, 16))(images((32, 16))),
        numpy(built(images((32, 16)))),
        1e-5,
    )
    keras_vit.weights.save(built, tmp_path / "again.npz")
    again = keras_vit.ViT_Ti16(
        weights=tmp_path / "again.npz", input_shape=(48, 48, 3), classes=5
    )
    close(again(images((48, 48))), numpy(built(images((48, 48)))), 1e-5)


def test_without_weights_positions_are_those_of_224_pixels():
    model = keras_vit.ViT_Ti16(
        weights=None, input_shape=(None, None, 1), include_top=False
    )
    assert model.get_layer("posembed_input").grid == (14, 14)
    assert model.output_shape == (None, None, 192)
    assert model.input_shape == (None, None, None, 1)


@pytest.mark.tensorflow_only
def test_what_needs_one_size_says_so(opened, tmp_path):
    _, any_size = opened
    remedy = r"Use keras_vit\.at_resolution\(model, \(H, W\)\)"
    with pytest.raises(ValueError, match=remedy):
        inspection.attention_rollout(any_size, images((32, 48)))
    resnet = keras_vit.resnet(
        build("bit").config, image_size=(None, None), num_classes=5
    )
    for model in (any_size, resnet):
        for name in ("export", "model.tflite"):
            kind = "export_file" if "." in name else "export"
            with pytest.raises(ValueError, match=remedy):
                getattr(keras_vit.serving, kind)(model, tmp_path / name)
    for format in ("timm", "hf"):
        with pytest.raises(ValueError, match=remedy):
            keras_vit.weights.save(any_size, tmp_path / format, format=format)
    with pytest.raises(ValueError, match=remedy):
        keras_vit.self_supervision.MaskedPatchPredictor(any_size)
    axial = "to be positive integers"
    with pytest.raises(ValueError, match=axial):
        keras_vit.Axial_ViT_B16(weights=None, input_shape=(None, None, 3))


@pytest.mark.tensorflow_only
def test_the_graph_of_a_fixed_size_is_that_of_before(monkeypatch):
    """Lengths that are known are integers: not one operation more, in training too."""
    import tensorflow as tf

    def operations():
        model = tiny()

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True))
            return loss, tape.gradient(loss, model.trainable_weights)

        graph = step.get_concrete_function(tf.TensorSpec((None, 16, 24, 3))).graph
        return [operation.type for operation in graph.get_operations()]

    found = operations()
    assert "Assert" not in found
    for module in (embeddings, encoder, kernels):
        monkeypatch.setattr(module, "known_length", lambda x, axis: x.shape[axis])
    assert found == operations()
