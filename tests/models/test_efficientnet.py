"""EfficientNet against keras.applications, the public counts, the official layout."""

import dataclasses
import math
import re

import keras
import numpy as np
import pytest
from keras.layers import BatchNormalization

from keras_vit.configs import EFFICIENTNET_VARIANTS, EfficientNetConfig
from keras_vit.models.efficientnet import STAGES, efficientnet, round_filters
from keras_vit.weights.efficientnet import load_efficientnet

# keras.applications says the first two; L2's is in the README of
# FrancescoSaverioZuppichini/glasses, and timm's tables round it to 480.31 M.
TRAINABLE = {
    "EfficientNet-B0": 5_288_548,
    "EfficientNet-B7": 66_347_960,
    "EfficientNet-L2": 480_309_308,
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AVERAGE = "/ExponentialMovingAverage"
# One block or two a stage, 8 to 80 filters.
TINY = EfficientNetConfig(
    width_coefficient=0.25, depth_coefficient=0.4, image_size=32, dropout_rate=0.2
)


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def size(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def perturbed(model, seed=0):
    """Weights and statistics that let no mistake hide: none zero, none one.

    The statistics are those of a batch, moved: with statistics of no network 55
    random blocks would turn float32's rounding into differences of order one.
    """
    rng = np.random.default_rng(seed)
    for variable in model.trainable_weights:
        variable.assign(numpy(variable) + 0.1 * rng.standard_normal(variable.shape))
    norms = [at for at in model.layers if isinstance(at, BatchNormalization)]
    for norm in norms:
        norm.momentum = 0.0
    shape = [at or 64 for at in model.input_shape[1:]]
    model(rng.standard_normal((4, *shape)).astype("float32"), training=True)
    for norm in norms:
        norm.momentum = 0.99
        mean, variance = norm.moving_mean, norm.moving_variance
        mean.assign(numpy(mean) + 0.1 * rng.standard_normal(mean.shape))
        variance.assign(numpy(variance) * rng.uniform(0.8, 1.2, mean.shape) + 0.1)
    return model


def application(variant, image_size):
    """keras.applications' model, which normalizes, and its weights after that."""
    build = getattr(keras.applications, variant.replace("-", ""))
    model = build(
        weights=None, input_shape=(*image_size, 3), classifier_activation=None
    )
    (normalization,) = (
        at for at in model.layers if isinstance(at, keras.layers.Normalization)
    )
    normalization.set_weights([np.array(MEAN), np.square(STD), np.array(1)])
    normalization.finalize_state()
    ours = {id(variable) for variable in normalization.weights}
    return model, [v for v in model.weights if id(v) not in ours]


# JAX compiles every shape of every layer: minutes, for what TensorFlow shows in one.
on_tensorflow = pytest.mark.tensorflow_only


@on_tensorflow
@pytest.mark.parametrize(
    ("variant", "image_size"),
    [
        ("EfficientNet-B0", (64, 96)),
        ("EfficientNet-B0", (65, 75)),  # Every stage has odd inputs: 33, 17, 9, 5.
        pytest.param("EfficientNet-B7", (64, 64), marks=pytest.mark.slow),
        pytest.param("EfficientNet-B7", (75, 65), marks=pytest.mark.slow),
    ],
)
def test_equals_keras_applications(variant, image_size, agree):
    """Values copied in order, every shape equal; theirs normalizes the images."""
    theirs, variables = application(variant, image_size)
    ours = perturbed(
        efficientnet(EFFICIENTNET_VARIANTS[variant], image_size=image_size)
    )
    assert [v.shape for v in ours.weights] == [v.shape for v in variables]
    assert size(ours.trainable_weights) == size(theirs.trainable_weights)
    assert size(ours.weights) == theirs.count_params() - 7  # Mean, variance, count.
    assert size(ours.trainable_weights) == TRAINABLE[variant]
    for variable, value in zip(variables, ours.get_weights(), strict=True):
        variable.assign(value)
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (4, *image_size, 3)).astype("float32")
    expected = numpy(theirs(images))
    logits = numpy(ours((images / 255 - MEAN) / np.array(STD)))
    scale = np.abs(expected).max()
    assert (
        np.ptp(expected, axis=0).max() > 1e-3 * scale
    )  # The images make a difference.
    label = f"keras.applications {variant}: {image_size}"
    agree(label, logits / scale, expected / scale, atol=1e-5)


@on_tensorflow
def test_of_any_size_pads_as_same():
    """Built for (None, None), an odd image is padded as when its size was known."""
    fixed = perturbed(efficientnet(TINY, image_size=(45, 51), num_classes=5))
    free = efficientnet(TINY, image_size=(None, None), num_classes=5)
    free.set_weights(fixed.get_weights())
    images = np.random.default_rng(0).normal(size=(4, 45, 51, 3))
    np.testing.assert_allclose(numpy(free(images)), numpy(fixed(images)), atol=1e-5)


@on_tensorflow
def test_layers_train_as_keras_applications_do():
    """Drop connect, dropout, the norms: rates and constants in the same places."""
    theirs, _ = application("EfficientNet-B1", (32, 32))
    ours = efficientnet(EFFICIENTNET_VARIANTS["EfficientNet-B1"], image_size=(32, 32))

    def constants(model):
        for at in model.layers:
            if isinstance(at, keras.layers.Dropout):
                yield at.rate, at.noise_shape
            elif isinstance(at, BatchNormalization):
                yield at.momentum, at.epsilon, at.gamma.shape

    assert [*constants(ours)] == [*constants(theirs)]


@on_tensorflow
def test_drop_connect_drops_whole_images():
    config = dataclasses.replace(TINY, drop_connect_rate=0.9, dropout_rate=0.0)
    model = efficientnet(config, num_classes=None)
    layers = [at for at in model.layers if at.name.endswith("drop_connect")]
    total = len([at for at in model.layers if at.name.endswith("depthwise_conv2d")])
    for layer in layers:
        block = int(re.fullmatch(r"blocks_(\d+)_drop_connect", layer.name)[1])
        assert layer.rate == pytest.approx(0.9 * block / total)
    x = np.ones((64, 3, 3, 8), "float32")
    kept = numpy(layers[-1](x, training=True)) * (1 - layers[-1].rate)
    assert {round(float(v), 5) for v in np.unique(kept)} == {0, 1}
    assert (kept == kept[:, :1, :1, :1]).all()


@on_tensorflow
def test_repeated_blocks_give_l2s_parameters():
    """The second block of each stage is the others: no need to hold 480 million."""
    l2 = EFFICIENTNET_VARIANTS["EfficientNet-L2"]
    depth = 1.01  # Every stage twice at least.
    model = efficientnet(
        dataclasses.replace(l2, depth_coefficient=depth), image_size=(32, 32)
    )
    total, block = size(model.trainable_weights), 0
    for stage in STAGES:
        second = f"blocks_{block + 1}_"
        weights = [
            variable
            for layer in model.layers
            if layer.name.startswith(second)
            for variable in layer.trainable_weights
        ]
        built = math.ceil(depth * stage.num_repeat)
        wanted = math.ceil(l2.depth_coefficient * stage.num_repeat)
        total += (wanted - built) * size(weights)
        block += built
    assert total == TRAINABLE["EfficientNet-L2"]


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("width", [0.05, 0.1, 0.45, 1.0, 1.1, 1.8, 4.3])
def test_filters_are_the_nearest_multiple_of_8_of_at_least_90_percent(width):
    config = dataclasses.replace(TINY, width_coefficient=width)
    for filters in range(1, 400):
        wanted = filters * width
        enough = [n for n in range(8, 1800, 8) if n >= 0.9 * wanted]
        nearest = min(enough, key=lambda n: (abs(n - wanted), -n))
        assert round_filters(filters, config) == nearest, filters


def test_the_whole_of_l2_is_counted():
    model = efficientnet(EFFICIENTNET_VARIANTS["EfficientNet-L2"])
    assert size(model.trainable_weights) == TRAINABLE["EfficientNet-L2"]
    assert model.input_shape == (None, 800, 800, 3)


def test_variants_are_the_official_ones():
    rows = {
        name.removeprefix("EfficientNet-"): (
            row.width_coefficient,
            row.depth_coefficient,
            row.image_size,
            row.dropout_rate,
        )
        for name, row in EFFICIENTNET_VARIANTS.items()
    }
    assert rows == {  # noisystudent and timm, which agree.
        "B0": (1.0, 1.0, 224, 0.2),
        "B1": (1.0, 1.1, 240, 0.2),
        "B2": (1.1, 1.2, 260, 0.3),
        "B3": (1.2, 1.4, 300, 0.3),
        "B4": (1.4, 1.8, 380, 0.4),
        "B5": (1.6, 2.2, 456, 0.4),
        "B6": (1.8, 2.6, 528, 0.5),
        "B7": (2.0, 3.1, 600, 0.5),
        "L2": (4.3, 5.3, 800, 0.5),
    }
    assert {row.drop_connect_rate for row in EFFICIENTNET_VARIANTS.values()} == {0.2}


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"width_coefficient": 0}, "width_coefficient to be positive"),
        ({"image_size": -1}, "image_size to be a positive integer"),
        ({"drop_connect_rate": 1.0}, r"\[0, 1\)"),
    ],
)
def test_impossible_configs(changes, law):
    with pytest.raises(ValueError, match=law):
        dataclasses.replace(TINY, **changes)


@pytest.mark.tensorflow_only
def test_initial_weights_are_the_official_initializers():
    model = efficientnet(EFFICIENTNET_VARIANTS["EfficientNet-B0"], image_size=(32, 32))
    kernel = numpy(model.get_layer("head_conv2d").kernel)  # Fan out 1280.
    assert kernel.std() == pytest.approx(np.sqrt(2 / 1280), rel=0.02)
    assert np.abs(kernel).max() > 3 * np.sqrt(2 / 1280)  # Not truncated at 2.
    depthwise = numpy(model.get_layer("blocks_15_depthwise_conv2d").kernel)
    assert depthwise.std() == pytest.approx(np.sqrt(2 / 9), rel=0.05)  # Fan out 3 x 3.
    head = numpy(model.get_layer("head_dense").kernel)
    assert np.abs(head).max() == pytest.approx(1 / np.sqrt(1000), rel=0.01)


@on_tensorflow
def test_bfloat16_policy_keeps_the_head_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = efficientnet(TINY, num_classes=5)
    finally:
        keras.config.set_dtype_policy("float32")
    logits = model(np.ones((1, 32, 32, 3), "float32"))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert model.get_layer("head_conv2d").compute_dtype == "bfloat16"


def norm(scope, n=""):
    parts = ("beta", "gamma", "moving_mean", "moving_variance")
    return [f"{scope}/tpu_batch_normalization{n}/{part}" for part in parts]


def block(i, expanded):
    """A block's tensors as lukemelas' load_tf_weights.py lists them."""
    scope = f"blocks_{i}"
    names = [
        f"{scope}/conv2d/kernel",
        f"{scope}/depthwise_conv2d/depthwise_kernel",
        f"{scope}/se/conv2d/kernel",
        f"{scope}/se/conv2d/bias",
        f"{scope}/se/conv2d_1/kernel",
        f"{scope}/se/conv2d_1/bias",
        *norm(scope),
        *norm(scope, "_1"),
    ]
    if expanded:
        names += [f"{scope}/conv2d_1/kernel", *norm(scope, "_2")]
    return names


@pytest.fixture
def official(tmp_path):
    """A model, its values by official name, and a writer of checkpoints: the prefix."""
    tf = pytest.importorskip("tensorflow")
    model = perturbed(efficientnet(TINY, num_classes=7))
    names = ["stem/conv2d/kernel", *norm("stem")]
    for i in range(10):  # 1, 1, 1, 2, 2, 2 and 1 blocks at a depth of 0.4.
        names += block(i, expanded=i > 0)
    names += ["head/conv2d/kernel", *norm("head")]
    names += ["head/dense/kernel", "head/dense/bias"]
    values = {}
    for name in names:
        *layer, part = name.split("/")
        weights = {v.name: v for v in model.get_layer("_".join(layer)).weights}
        values[name] = numpy(weights[part.removeprefix("depthwise_")]).copy()

    def write(tensors, scope="efficientnet-b0/", folder="official"):
        prefix = tmp_path / folder / "model.ckpt"
        prefix.parent.mkdir(exist_ok=True)
        names = [f"{scope}{name}" for name in tensors]
        tensors = [*tensors.values(), np.int64(218_949)]
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=[*names, "global_step"],
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.constant(tensor) for tensor in tensors],
        )
        return prefix

    return model, values, write


def averaged(values):
    return {name + AVERAGE: value for name, value in values.items()}


def blank(num_classes=7, **changes):
    return efficientnet(
        dataclasses.replace(TINY, **changes), num_classes=num_classes, name="blank"
    )


@pytest.mark.tensorflow_only
def test_loads_the_averages_of_a_noisy_student(official):
    """B0 to B7: averages beside the last values and RMSProp's slots."""
    model, values, write = official
    assert len(values) == len(model.weights)  # The names are all there are.
    last = {name: value + 1 for name, value in values.items()}
    slots = {name + "/RMSProp": value for name, value in values.items()}
    loaded = blank()
    report = load_efficientnet(loaded, write(last | slots | averaged(values)).parent)
    assert {row.status for row in report.rows} == {"loaded"}
    assert sorted(report.names("loaded")) == sorted(values)
    for ours, theirs in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs), err_msg=ours.path)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3))
    np.testing.assert_array_equal(numpy(loaded(images)), numpy(model(images)))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("scope", ["efficientnet-l2/", ""])
@pytest.mark.parametrize("spelling", ["model.ckpt", "model.ckpt.index", ""])
def test_loads_averages_or_last_values_alone(official, scope, spelling):
    """L2 has the averages alone; without any, the last values are meant."""
    model, values, write = official
    for tensors in (averaged(values), values):
        prefix = write(tensors, scope)
        loaded = blank()
        load_efficientnet(loaded, prefix.parent / spelling)
        for ours, theirs in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(numpy(ours), numpy(theirs))


@pytest.mark.tensorflow_only
def test_a_new_head_and_none(official):
    model, values, write = official
    prefix = write(averaged(values))
    fresh = blank(num_classes=3)
    before = numpy(fresh.get_layer("head_dense").kernel).copy()
    report = load_efficientnet(fresh, prefix)
    assert report.names("fresh") == ["head/dense/kernel", "head/dense/bias"]
    np.testing.assert_array_equal(numpy(fresh.get_layer("head_dense").kernel), before)
    features = blank(num_classes=None)
    report = load_efficientnet(features, prefix)
    assert report.names("unused") == ["head/dense/bias", "head/dense/kernel"]
    images = np.ones((1, 32, 32, 3), "float32")
    expected = keras.Model(model.input, model.get_layer("head_pool").output)(images)
    np.testing.assert_array_equal(numpy(features(images)), numpy(expected))
    assert str(report).count("loaded") == len(values) - 2 + 1


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda v: without(v, "blocks_3/se/conv2d/bias"),
            "blocks_3/se/conv2d/bias is missing.*Received: model='blank'",
        ),
        (
            lambda v: v | {"head/conv2d/kernel": np.ones((1, 1, 9, 320), "float32")},
            r"head/conv2d/kernel is \(1, 1, 9, 320\), not \(1, 1, 80, 320\)",
        ),
        (
            lambda v: v | {"blocks_10/conv2d/kernel": np.ones(1, "float32")},
            "the model has no blocks_10/conv2d/kernel",
        ),
        (
            lambda v: v | {"head/dense/bias": np.full(7, np.nan, "float32")},
            "finite weights.*head/dense/bias",
        ),
        (lambda v: without(v, "stem/conv2d/kernel"), "stem/conv2d/kernel.*with 0 such"),
    ],
)
def test_what_does_not_fit_changes_nothing(official, spoil, message):
    _, values, write = official
    prefix = write(averaged(spoil(values)))
    model = blank()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        load_efficientnet(model, prefix)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.tensorflow_only
def test_missing_and_damaged_files(official, tmp_path):
    _, values, write = official
    model = blank()
    for absent in (tmp_path / "absent", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"model\.ckpt'\. Received: "):
            load_efficientnet(model, absent)
    prefix = write(averaged(values))
    data = prefix.with_name("model.ckpt.data-00000-of-00001")
    whole = data.read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    for damaged in (whole[: len(whole) // 2], flipped, None):
        data.unlink()
        if damaged is not None:
            data.write_bytes(damaged)
        with pytest.raises(ValueError, match="Expected a whole TensorFlow checkpoint"):
            load_efficientnet(model, prefix)
        data.write_bytes(whole)
    index = prefix.with_name("model.ckpt.index")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(ValueError, match="Expected a whole TensorFlow checkpoint"):
        load_efficientnet(model, prefix)


@pytest.mark.tensorflow_only
def test_of_several_checkpoints_the_latest(official):
    _, values, write = official
    prefix = write(averaged(values))
    for part in [*prefix.parent.iterdir()]:
        older = part.name.replace("model.ckpt", "model.ckpt-1")
        part.with_name(older).write_bytes(b"not read")
    with pytest.raises(FileNotFoundError):
        load_efficientnet(blank(), prefix.parent)
    (prefix.parent / "checkpoint").write_text('model_checkpoint_path: "model.ckpt"\n')
    report = load_efficientnet(blank(), prefix.parent)
    assert report.source == str(prefix)


@pytest.mark.tensorflow_only
def test_other_models_are_refused(official):
    _, values, write = official
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="mine")])
    with pytest.raises(ValueError, match="with a layer 'mine'"):
        load_efficientnet(other, write(averaged(values)))
