"""Hybrids' stems, BiT and Axial-ResNet50, against loops and public sizes."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.configs import (
    AXIAL_RESNETS,
    BIT_VARIANTS,
    HYBRID_VARIANTS,
    ResNetConfig,
    ViTConfig,
)
from keras_vit.layers import (
    AxialUnit,
    PreActivationUnit,
    ResidualUnit,
    StdConv2D,
    kernels,
)
from keras_vit.layers.convolution import RootPool
from tests.layers import by_hand
from tests.models.families import FAMILIES, RESNETS, V1, V2, build, names


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def images(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def near(ours, by_loops, tolerance=2e-5):
    by_loops = np.asarray(by_loops)
    assert ours.shape == by_loops.shape
    error = np.abs(numpy(ours) - by_loops).max() / np.abs(by_loops).max()
    assert error <= tolerance


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
@pytest.mark.parametrize(("size", "strides"), [(7, 2), (3, 1), (3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("shape", names([(6, 9), (1, 2)], {(6, 9)}))
def test_convolution(shape, size, strides, padding, outside):
    layer = StdConv2D(4, size, strides, padding, 0.1, outside)
    layer(keras.Input((*shape, 3)))
    by_hand.randomize(layer)
    x = images(2, *shape, 3)
    assert layer.compute_output_shape(x.shape) == tuple(layer(x).shape)
    near(layer(x), [by_hand.convolve(image, layer) for image in x])


@pytest.mark.parametrize("padding", ["same", "zero", "inf"])
@pytest.mark.parametrize("shape", [(6, 9), (5, 4), (1, 1)])
def test_pool_of_the_root(shape, padding):
    layer = RootPool(padding)
    x = images(2, *shape, 3) - 0.8  # Mostly negative: zeros outside show.
    expected = [
        by_hand.slide(
            image,
            3,
            2,
            "same" if padding == "same" else "symmetric",
            0 if padding == "zero" else -np.inf,
            lambda window: window.max((0, 1)),
        )
        for image in x
    ]
    assert layer.compute_output_shape(x.shape) == tuple(layer(x).shape)
    np.testing.assert_array_equal(numpy(layer(x)), expected)


@pytest.mark.parametrize(
    "contrast", names([1, 1e-3], {1})
)  # The small one shows epsilon.
@pytest.mark.parametrize("kind", [ResidualUnit, PreActivationUnit])
@pytest.mark.parametrize(("strides", "channels"), [(1, 128), (1, 32), (2, 128)])
def test_unit(kind, strides, channels, contrast):
    layer = kind(32, strides, kernel_epsilon=1e-2, group_norm_epsilon=1e-6)
    layer(keras.Input((5, 4, channels)))
    by_hand.randomize(layer, 0.2)
    assert (layer.conv_proj is None) == ((strides, channels) == (1, 128))
    x = contrast * images(2, 5, 4, channels)
    assert layer.compute_output_shape(x.shape) == tuple(layer(x).shape)
    near(layer(x), [by_hand.unit(image, layer) for image in x])


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("kind", "outside"),
    [(ResidualUnit, True), (PreActivationUnit, False), (AxialUnit, False)],
)
@pytest.mark.parametrize(("strides", "channels"), [(1, 128), (1, 32), (2, 128)])
def test_gradients_of_units(kind, outside, strides, channels, monkeypatch, agree):
    """Those that are written out, in float64: only a wrong formula differs."""
    import tensorflow as tf

    layer = kind(32, strides, 1e-2, outside, dtype="float64")
    layer(keras.Input((5, 4, channels)))
    by_hand.randomize(layer, 0.2)
    x = tf.constant(images(2, 5, 4, channels), tf.float64)
    upstream = tf.constant(images(*layer(x).shape, seed=2), tf.float64)
    weights = [weight.value for weight in layer.trainable_weights]

    def gradients():
        @tf.function
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            return y, *tape.gradient(y, [x, *weights], upstream)

        return compute.get_concrete_function(x), compute(x)

    graph, ours = gradients()
    monkeypatch.setattr(kernels, "on_cpu", lambda *backends: False)
    plain_graph, derived = gradients()
    assert "CustomGradient" in str(graph.graph.as_graph_def())
    assert "CustomGradient" not in str(plain_graph.graph.as_graph_def())
    for own, other in zip(ours, derived, strict=True):
        agree("gradients of units", own, other, 1e-10)


def test_last_norm_of_a_v1_unit_starts_at_zero():
    layer = ResidualUnit(32)
    layer.build((None, 4, 4, 128))
    assert not numpy(layer.gn3.gamma).any()
    x = images(1, 4, 4, 128)
    np.testing.assert_array_equal(numpy(layer(x)), np.maximum(x, 0))


@pytest.mark.parametrize("name", names(RESNETS, {"axial resnet"}))
def test_the_whole_resnet(name):
    model = build(name, (33, 46))
    x = images(1, 33, 46, 3)
    features = by_hand.resnet_map(model, x[0])
    assert features.shape == (5, 6, 256)
    expected = by_hand.dense(features.mean((0, 1)), model.get_layer("head"))
    near(model(x), expected[None])


@pytest.mark.parametrize(
    "name", names(["hybrid", "hybrid, 2x2", "root alone"], {"hybrid"})
)
def test_the_whole_hybrid(name):
    model = build(name, (33, 46), num_classes=None)
    x = images(1, 33, 46, 3)
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    features = by_hand.resnet_map(model, x[0])
    z = by_hand.patches(features, model.get_layer("embedding"))
    near(tokens(x), by_hand.encoder(model, z, FAMILIES[name])[None])


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("size", "grid"), [((65, 97), (9, 13)), ((225, 224), (29, 28)), ((8, 8), (1, 1))]
)
def test_any_size_is_rounded_up(size, grid):
    for config in (V1, V2):
        model = keras_vit.resnet(config, image_size=size, num_classes=2)
        assert model.get_layer("gap").input.shape[1:3] == grid
    config = keras_vit.ViTConfig(
        patch_size=1, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1, resnet=V1
    )
    model = keras_vit.vit(config, image_size=size, num_classes=2)
    assert model.get_layer("posembed_input").grid == grid
    assert model(images(1, *size, 3)).shape == (1, 2)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(("patch_size", "least"), [(2, 9), (3, 17)])
def test_a_hybrids_smallest_image_is_one_patch(patch_size, least):
    """V1 has a stride of 8: 9 px are 2 places of its map, and 17 are 3."""
    config = keras_vit.ViTConfig(
        patch_size=patch_size,
        num_layers=1,
        hidden_size=8,
        mlp_dim=8,
        num_heads=1,
        resnet=V1,
    )
    model = keras_vit.vit(config, image_size=(least, least), num_classes=2)
    assert model.get_layer("posembed_input").grid == (1, 1)
    with pytest.raises(ValueError, match=f"at least {least} pixels per side"):
        keras_vit.vit(config, image_size=(64, least - 1), num_classes=2)


@pytest.mark.tensorflow_only
def test_a_resnet_of_no_fixed_size():
    model = keras_vit.resnet(V2, image_size=(None, None), num_classes=None)
    fixed = keras_vit.resnet(V2, image_size=(33, 40), num_classes=None)
    fixed.set_weights(by_hand.randomize(model, 0.1).get_weights())
    x = images(1, 33, 40, 3)
    np.testing.assert_allclose(numpy(model(x)), numpy(fixed(x)), atol=1e-5)


@pytest.mark.parametrize("size", [(0, 32), (32, 0)])
def test_images_have_pixels(size):
    with pytest.raises(ValueError, match=r"image_size \(H, W\) to be positive"):
        keras_vit.resnet(V2, image_size=size, num_classes=2)


@pytest.mark.parametrize(
    ("fields", "law"),
    [
        (
            {"num_layers": (1, 0)},
            "num_layers, the units of each stage, to be positive integers",
        ),
        (
            {"num_layers": 4},
            "num_layers, the units of each stage, to be positive integers",
        ),
        (
            {"num_layers": (1.0,)},
            "num_layers, the units of each stage, to be positive integers",
        ),
        ({"width": 48}, "width to be a multiple of 32"),
        ({"width": 0}, "width to be a positive integer"),
        ({"unit": "v3"}, "unit to be one of v1, v2, axial"),
        ({"unit": "axial", "num_heads": 5}, "an axial unit's heads"),
        ({"num_heads": 0}, "num_heads to be a positive integer"),
        ({"pool_padding": "same"}, "pool_padding to be one of zero, inf"),
        ({"kernel_epsilon": -1e-5}, "kernel_epsilon to be positive"),
        ({"group_norm_epsilon": 0.0}, "group_norm_epsilon to be positive"),
    ],
)
def test_impossible_configs(fields, law):
    with pytest.raises(ValueError, match=rf"Expected .*{law}.* Received: "):
        ResNetConfig(**{"num_layers": (1, 1), **fields})


def test_heads_need_not_divide_the_width_where_there_are_none():
    assert ResNetConfig(num_layers=(1,), width=32, num_heads=5).num_heads == 5


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (
            lambda: StdConv2D(4, 3, padding="valid"),
            "padding to be one of same, symmetric",
        ),
        (lambda: StdConv2D(4, 2, padding="symmetric"), "odd kernel_size"),
        (lambda: RootPool("valid"), "padding to be one of same, zero, inf"),
    ],
)
def test_impossible_layers(make, law):
    with pytest.raises(ValueError, match=rf"Expected .*{law}.* Received: "):
        make()


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["bit", "v1", "hybrid"])
def test_half_precision_keeps_statistics_in_float32(name):
    model = build(name)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = build(name)
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    root = half.get_layer("conv_root")
    assert root.compute_dtype == "bfloat16"
    # Filters far narrower than their mean: in bfloat16 nothing would be left of them.
    kernel = 3 + 1e-2 * np.random.default_rng(0).standard_normal(root.kernel.shape)
    root.kernel.assign(kernel)
    model.get_layer("conv_root").kernel.assign(kernel)
    ours = root.standardized_kernel()
    assert keras.backend.standardize_dtype(ours.dtype) == "float32"
    near(ours, by_hand.standardized(root), 2e-3)
    assert all(v.dtype == "float32" for v in half.weights)
    x = images(2, 32, 48, 3)
    assert keras.backend.standardize_dtype(half(x).dtype) == "float32"
    full = numpy(model(x))
    off = np.abs(numpy(half(x)) - full).max() / np.abs(full).max()
    assert 0 < off < 0.1


def test_group_norm_of_half_precision_has_float32_statistics():
    layer = PreActivationUnit(32, dtype="mixed_bfloat16")
    layer.build((None, 16, 16, 128))
    x = keras.ops.cast(20 + images(1, 16, 16, 128), "bfloat16")
    exact = by_hand.group_norm(
        by_hand.values(keras.ops.cast(x, "float32"))[0], layer.gn1
    )
    y = numpy(keras.ops.cast(layer.gn1(x), "float32"))[0]
    assert np.abs(y - exact).max() < 0.02  # bfloat16's own last digit, at 2.


def units_of(units, width, projection_norms):
    """Parameters of the stages: 1x1, 3x3 and 1x1 kernels, norms, projections."""
    total, channels = 0, width
    for stage, count in enumerate(units):
        inner = width * 2**stage
        for unit in range(count):
            total += channels * inner + 9 * inner**2 + 4 * inner**2
            total += 2 * ((2 * inner + 4 * inner) if projection_norms else 0)
            total += 2 * (0 if projection_norms else channels + 2 * inner)
            if unit == 0:
                total += channels * 4 * inner
                total += 2 * 4 * inner if projection_norms else 0
            channels = 4 * inner
    return total, channels


def bit_size(config, classes):
    units, channels = units_of(config.num_layers, config.width, False)
    root = 7 * 7 * 3 * config.width
    return root + units + 2 * channels + classes * (channels + 1)


def hybrid_size(config, side, classes=1000):
    """Closed formula of a hybrid with a class token, `side` x `side` patches."""
    units, channels = units_of(config.resnet.num_layers, 64, True)
    stem = 7 * 7 * 3 * 64 + 2 * 64 + units
    d, m = config.hidden_size, config.mlp_dim
    embedding = config.patch_size**2 * channels * d + d + d + (side**2 + 1) * d
    block = 4 * (d * d + d) + 2 * d * m + m + d + 4 * d
    return stem + embedding + config.num_layers * block + 2 * d + classes * (d + 1)


# timm's results/model_benchmark_amp_nchw_rtx3090.csv, in millions, 1000 classes; the
# counts to the last digit are printed in public Keras ports.
BIT_SIZES = {
    "BiT-R50x1": (25.55, 25_549_352),
    "BiT-R50x2": None,
    "BiT-R50x3": (217.32, 217_319_080),
    "BiT-R101x1": (44.54, 44_541_480),
    "BiT-R101x3": (387.93, 387_934_888),
    "BiT-R152x1": None,
    "BiT-R152x2": (236.34, None),
    "BiT-R152x4": (936.53, 936_533_224),
    "BiT-R200x3": None,
}


@pytest.mark.parametrize("variant", BIT_SIZES)
def test_bit_sizes(variant):
    size = bit_size(BIT_VARIANTS[variant], 1000)
    if BIT_SIZES[variant]:
        rounded, exact = BIT_SIZES[variant]
        assert round(size / 1e6, 2) == rounded
        assert exact in (None, size)


def test_every_bit_is_counted():
    assert BIT_SIZES.keys() == BIT_VARIANTS.keys()


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "config",
    [
        BIT_VARIANTS["BiT-R50x1"],
        ResNetConfig(num_layers=(2, 1, 3), width=32),
        ResNetConfig(num_layers=(1, 2), width=96),
    ],
)
def test_models_are_of_that_size(config):
    model = keras_vit.resnet(config, image_size=(32, 32), num_classes=1000)
    assert model.count_params() == bit_size(config, 1000)


@pytest.mark.tensorflow_only
def test_axial_resnet_has_attention_in_the_place_of_3x3_convolutions():
    config = ResNetConfig(num_layers=(1, 2), width=32, unit="axial")
    model = keras_vit.resnet(config, image_size=(32, 48), num_classes=7)
    expected = bit_size(config, 7)
    for width, count, (rows, columns) in ((32, 1, (8, 12)), (64, 1, (8, 12))):
        offsets = (2 * rows - 1 + 2 * columns - 1) * width
        expected += count * (2 * 4 * (width**2 + width) + offsets - 9 * width**2)
    offsets = (2 * 4 - 1 + 2 * 6 - 1) * 64  # Behind the stride of stage 2.
    expected += 2 * 4 * (64**2 + 64) + offsets - 9 * 64**2
    assert model.count_params() == expected
    assert AXIAL_RESNETS["Axial-ResNet50"].num_layers == (3, 4, 6, 3)


# vit_jax/models_test.py; None: the official code has no such config.
HYBRID_SIZES = {
    "R+ViT-Ti/16": (7, 6_337_704),
    "R26+ViT-S/32": (7, 36_431_912),
    "R26+ViT-B/32": (7, 101_383_976),
    "R50+ViT-B/16": (14, 98_659_112),
    "R50+ViT-B/32": (7, None),
    "R50+ViT-L/16": (14, None),
    "R50+ViT-L/32": (7, 328_994_856),
}


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("variant", HYBRID_SIZES)
def test_hybrid_sizes(variant):
    side, official = HYBRID_SIZES[variant]
    config = HYBRID_VARIANTS[variant]
    expected = hybrid_size(config, side)
    assert official in (None, expected)
    shallow = dataclasses.replace(config, num_layers=1)
    model = keras_vit.vit(shallow, image_size=(224, 224), num_classes=1000)
    assert model.get_layer("posembed_input").grid == (side, side)
    assert model.count_params() == hybrid_size(shallow, side)


def test_every_hybrid_is_counted():
    assert HYBRID_SIZES.keys() == HYBRID_VARIANTS.keys()


@pytest.mark.parametrize(
    ("variant", "side", "millions"),
    [  # At 384 px, of the same table of timm's.
        ("R+ViT-Ti/16", 12, 6.36),
        ("R26+ViT-S/32", 12, 36.47),
        ("R50+ViT-B/16", 24, 98.95),
        ("R50+ViT-L/32", 12, 329.09),
    ],
)
def test_hybrid_sizes_at_384(variant, side, millions):
    size = hybrid_size(HYBRID_VARIANTS[variant], side)
    assert round(size / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("variant", "exaflops"),
    [
        ("R50+ViT-B/32", 106),
        ("R50+ViT-B/16", 274),
        ("R50+ViT-L/32", 246),
        ("R50+ViT-L/16", 1668 / 2),  # 14 epochs; 859 at 7 does not agree with it.
    ],
)
def test_hybrids_cost_what_table_6_says(variant, exaflops):
    """6 FLOPs a multiply-add, 7 epochs of 303 million images (section 4.4)."""
    config = HYBRID_VARIANTS[variant]

    def convolution(length, size, stride, inputs, outputs):
        taps = sum(
            0 <= start + i < length
            for start in by_hand.windows(length, size, stride, "same")
            for i in range(size)
        )
        return taps**2 * inputs * outputs

    total, side, channels = convolution(224, 7, 2, 3, 64), 56, 64
    for stage, units in enumerate(config.resnet.num_layers):
        inner = 64 * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            total += convolution(side, 1, 1, channels, inner)
            total += convolution(side, 3, stride, inner, inner)
            if not unit:
                total += convolution(side, 1, stride, channels, 4 * inner)
            side, channels = side // stride, 4 * inner
            total += convolution(side, 1, 1, inner, channels)
    d, tokens = config.hidden_size, side**2 + 1
    block = tokens * (4 * d * d + 2 * d * config.mlp_dim) + 2 * tokens**2 * d
    total += side**2 * channels * d + config.num_layers * block
    assert 6 * total * 7 * 303e6 / 1e18 == pytest.approx(exaflops, rel=0.006)


def test_hybrids_and_bit_are_the_official_ones():
    for variant, config in HYBRID_VARIANTS.items():
        resnet = config.resnet
        assert resnet == ResNetConfig(
            num_layers=resnet.num_layers,
            unit="v1",
            kernel_epsilon=1e-5,
            epsilon_outside=True,
            group_norm_epsilon=1e-6,
        )
        assert config.dropout_rate == (0.1 if variant.startswith("R50") else 0.0)
        stride = resnet.stride * config.patch_size
        assert stride == (16 if variant.startswith("R50") and "/16" in variant else 32)
    for variant, config in BIT_VARIANTS.items():
        depth, factor = variant.removeprefix("BiT-R").split("x")
        assert 3 * sum(config.num_layers) + 2 == int(depth)
        assert config == ResNetConfig(
            num_layers=config.num_layers, width=64 * int(factor)
        )


def test_hybrids_are_of_v1():
    with pytest.raises(ValueError, match=r"Expected .*unit='v1'.*Received: unit='v2'"):
        ViTConfig(
            patch_size=1, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1, resnet=V2
        )
    with pytest.raises(ValueError, match=r"Expected resnet to be a ResNetConfig"):
        ViTConfig(
            patch_size=1,
            num_layers=1,
            hidden_size=8,
            mlp_dim=8,
            num_heads=1,
            resnet={"num_layers": (1,)},
        )
