"""Masked patch prediction (4.6, B.1.2), on every backend."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.configs import HYBRID_VARIANTS
from keras_vit.facts import OFFICIAL
from keras_vit.self_supervision import (
    MASKED,
    SIDE,
    CorruptPatches,
    MaskedPatchPredictor,
    class_colors,
)
from keras_vit.weights.architecture import config_of
from tests.photos import tiles

TARGETS = ("mean_color", "4x4", "l2")
IMAGENET = keras_vit.Preprocessing(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


def tiny(image_size=(32, 48), classes=None, **changes):
    """A ViT of one layer, the same at every call."""
    keras.utils.set_random_seed(3)
    settings = {"patch_size": 8, "num_layers": 1, "hidden_size": 16, "mlp_dim": 32}
    config = keras_vit.ViTConfig(**settings | {"num_heads": 2} | changes)
    return keras_vit.vit(config, image_size=image_size, num_classes=classes)


def photos(count, image_size=(32, 48), seed=0):
    """Smooth noise of every color, uint8."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, image_size[0] // 4, image_size[1] // 4, 3))
    large = small.repeat(4, axis=1).repeat(4, axis=2)
    return (large + rng.integers(-3, 4, large.shape)).clip(0, 255).astype(np.uint8)


def scaled(images, by=OFFICIAL):
    shares = images / np.float32(255)
    return ((shares - np.float32(by.mean)) / np.float32(by.std)).astype(np.float32)


def said(predictor, images):
    return {k: ops.convert_to_numpy(v) for k, v in predictor(images).items()}


# How patches are corrupted.


@pytest.fixture(scope="module", params=[True, False], ids=["training", "evaluation"])
def drawn(request):
    """What becomes of 10^6 patches."""
    images, patches = 5103, 196
    layer = CorruptPatches(seed=0)
    zeros = np.zeros((images, patches, 1), "float32")
    _, sources, places = map(ops.convert_to_numpy, layer(zeros, training=request.param))
    assert sources.size > 10**6
    return sources, places


def within_binomial_bounds(count, trials, chance, sigmas=5):
    deviation = math.sqrt(trials * chance * (1 - chance))
    return np.all(np.abs(np.asarray(count) - trials * chance) < sigmas * deviation)


def corrupted(sources, places):
    flags = np.zeros(sources.shape, bool)
    flags[np.arange(len(sources))[:, None], places] = True
    return flags


def test_half_of_every_image(drawn):
    flags = corrupted(*drawn)
    assert set(flags.sum(1)) == {98}
    images = len(flags)
    assert within_binomial_bounds(flags.sum(0), images, 0.5)
    together = 0.5 * 97 / 195  # Of any two places of an image.
    assert within_binomial_bounds((flags[:, 0] & flags[:, 1]).sum(), images, together)
    assert len(np.unique(flags, axis=0)) == images


def test_80_10_10(drawn):
    sources, places = drawn
    flags = corrupted(sources, places)
    own = np.arange(sources.size).reshape(sources.shape)
    assert (sources[~flags] == own[~flags]).all()
    count = flags.sum()
    masked = (sources == MASKED)[flags].sum()
    kept = (sources == own)[flags].sum()
    assert within_binomial_bounds(masked, count, 0.8)
    assert within_binomial_bounds(kept, count, 0.1)
    assert within_binomial_bounds(count - masked - kept, count, 0.1)
    each = (sources == MASKED).sum(0)  # At every place alike.
    assert within_binomial_bounds(each, len(sources), 0.4)


def test_another_patch_of_the_batch(drawn):
    """Each as likely as the next: 20 equal parts of the distances."""
    sources, _ = drawn
    own = np.arange(sources.size).reshape(sources.shape)
    replaced = (sources != own) & (sources != MASKED)
    away = (sources - own)[replaced] % sources.size
    parts, _ = np.histogram(away, bins=20, range=(1, sources.size))
    assert within_binomial_bounds(parts, len(away), 1 / 20)


def test_never_by_itself():
    layer = CorruptPatches(1.0, 0.0, 1.0, seed=0)
    for _ in range(20):
        _, sources, _ = layer(np.zeros((1, 2, 1), "float32"), training=True)
        assert ops.convert_to_numpy(sources).tolist() == [[1, 0]]


def test_new_draws_in_training_alone():
    layer = CorruptPatches(seed=0)
    zeros = np.zeros((4, 16, 1), "float32")
    draws = [ops.convert_to_numpy(layer(zeros, training=t)[1]) for t in (1, 1, 0, 0)]
    assert (draws[0] != draws[1]).any()
    np.testing.assert_array_equal(draws[2], draws[3])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_what_stands_in_each_place(policy):
    layer = CorruptPatches(0.5, 0.4, 0.4, dtype=policy)
    patches = np.random.default_rng(0).normal(size=(3, 10, 4)).astype("float32")
    out, sources, places = map(ops.convert_to_numpy, layer(patches))
    rows = ops.convert_to_numpy(ops.cast(patches, layer.compute_dtype)).reshape(30, 4)
    mask = ops.convert_to_numpy(ops.cast(layer.mask_embedding, layer.compute_dtype))
    assert places.shape == (3, 5)
    assert (sources == MASKED).any()
    assert (sources != np.arange(30).reshape(3, 10)).any()
    for place in np.ndindex(3, 10):
        source = sources[place]
        expected = mask if source == MASKED else rows[source]
        np.testing.assert_array_equal(out[place], expected)


# What is predicted.


def quantized(images, patch_size, side):
    """B.1.2 in whole numbers: "mean, 3-bit color", [B, N, side^2] of uint8 images."""
    batch, height, width, _ = images.shape
    found = []
    for image in images.astype(np.int64):
        for top in range(0, height, patch_size):
            for left in range(0, width, patch_size):
                patch = image[top : top + patch_size, left : left + patch_size]
                patch = patch.repeat(side, axis=0).repeat(side, axis=1)
                for y in range(side):
                    for x in range(side):
                        rows = slice(y * patch_size, (y + 1) * patch_size)
                        columns = slice(x * patch_size, (x + 1) * patch_size)
                        total = patch[rows, columns].sum((0, 1))
                        levels = np.minimum(8 * total // (255 * patch_size**2), 7)
                        red, green, blue = levels
                        found.append(64 * red + 8 * green + blue)
    return np.reshape(found, (batch, -1, side**2))


def on_the_cuts(patch_size, side):
    """Patches whose areas' means lie on a cut between two colors, or a step below."""
    rng = np.random.default_rng(5)
    area = patch_size * patch_size
    images = np.zeros((16, patch_size, 2 * patch_size, 3), np.int64)
    for image in images:
        for left in (0, patch_size):
            for channel in range(3):
                total = 255 * area * rng.integers(1, 8) // 8 - rng.integers(0, 2)
                pixels = np.full(area, total // area)
                pixels[: total - pixels.sum()] += 1
                patch = rng.permutation(pixels).reshape(patch_size, patch_size)
                image[:, left : left + patch_size, channel] = patch
    return images.astype(np.uint8)


@pytest.mark.parametrize(
    ("target", "patch_size", "preprocessing"),
    [
        ("mean_color", 4, OFFICIAL),
        ("mean_color", 14, IMAGENET),
        ("mean_color", 16, OFFICIAL),
        ("4x4", 4, IMAGENET),
        ("4x4", 14, OFFICIAL),  # Areas of 3.5 pixels.
        ("4x4", 16, IMAGENET),
    ],
)
def test_colors_equal_a_quantizer_in_whole_numbers(target, patch_size, preprocessing):
    size = (patch_size, 2 * patch_size)
    noise = np.random.default_rng(1).integers(0, 256, (20, *size, 3), np.uint8)
    flat = np.random.default_rng(2).integers(0, 256, (20, 1, 1, 3), np.uint8)
    flat = np.broadcast_to(flat, noise.shape)
    ends = np.stack([np.zeros((*size, 3), np.uint8), np.full((*size, 3), 255, "u1")])
    images = np.concatenate([noise, flat, on_the_cuts(patch_size, 1), ends])
    backbone = tiny(size, patch_size=patch_size)
    predictor = MaskedPatchPredictor(
        backbone, target, corrupt=1.0, preprocessing=preprocessing
    )
    out = said(predictor, scaled(images, preprocessing))
    expected = quantized(images, patch_size, SIDE[target])
    order = out["places"][..., None]
    np.testing.assert_array_equal(
        out["target"], np.take_along_axis(expected, order, axis=1)
    )
    assert (out["target"].min(), out["target"].max()) == (0, 511)


def test_l2_is_of_the_pixels():
    images = scaled(photos(3))
    out = said(MaskedPatchPredictor(tiny(), "l2"), images)
    cut = images.reshape(3, 4, 8, 6, 8, 3).transpose(0, 1, 3, 2, 4, 5)
    cut = cut.reshape(3, 24, 192)
    for image, place in np.ndindex(3, 12):
        expected = cut[image, out["places"][image, place]]
        np.testing.assert_array_equal(out["target"][image, place], expected)


def test_a_color_and_back():
    colors = class_colors(np.arange(512))
    assert len(np.unique(colors, axis=0)) == 512
    levels = np.floor(colors * 8) @ [64, 8, 1]
    np.testing.assert_array_equal(levels, np.arange(512))


@pytest.mark.parametrize("target", ["mean_color", "4x4"])
def test_no_label_is_constant(target):
    """Of real photos: the first port of this gave every patch one and the same."""
    images = scaled(tiles(32, reduce=2))
    backbone = tiny((32, 32), patch_size=4)
    labels = said(MaskedPatchPredictor(backbone, target, 1.0), images)["target"]
    for shown in range(labels.shape[-1]):
        counts = np.bincount(labels[..., shown].ravel(), minlength=512)
        assert (counts > 0).sum() > 150
        assert counts.max() < 0.1 * counts.sum()


# The loss.


def by_hand(out, target):
    """The mean over corrupted patches, of each image [B]."""
    truth, guess = out["target"], out["prediction"].astype(np.float64)
    if target == "l2":
        return ((guess - truth) ** 2).mean((1, 2))
    top = guess.max(-1, keepdims=True)
    logs = guess - top - np.log(np.exp(guess - top).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, truth[..., None], -1).mean((1, 2, 3))


@pytest.fixture(params=TARGETS)
def predictor(request):
    """One whose head is no longer zeros."""
    model = MaskedPatchPredictor(tiny(), request.param)
    head = model.get_layer("prediction")
    rng = np.random.default_rng(1)
    head.set_weights([rng.normal(size=w.shape, scale=0.3) for w in head.get_weights()])
    model.compile("sgd")
    return model


def test_the_loss_is_the_mean_over_corrupted_patches(predictor):
    images = scaled(photos(5))
    each = by_hand(said(predictor, images), predictor.target)
    evaluated = predictor.evaluate(images, batch_size=5, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(each.mean(), rel=1e-5)
    weights = np.array([1.0, 0, 2, 0, 0.5], "float32")
    labels = np.zeros(5)  # Without any, Keras drops the weights.
    evaluated = predictor.evaluate(
        images, labels, 5, sample_weight=weights, verbose=0, return_dict=True
    )
    assert evaluated["loss"] == pytest.approx((each * weights).mean(), rel=1e-5)


def test_accuracy_is_the_share_of_right_colors():
    model = MaskedPatchPredictor(tiny())
    images = scaled(photos(6))
    labels = said(model, images)["target"]
    common = np.bincount(labels.ravel()).argmax()
    bias = np.eye(512)[common]
    kernel, _ = model.get_layer("prediction").get_weights()
    model.get_layer("prediction").set_weights([kernel, bias])
    model.compile("sgd")
    evaluated = model.evaluate(images, batch_size=6, verbose=0, return_dict=True)
    assert evaluated["accuracy"] == pytest.approx((labels == common).mean())
    weights = np.array([1, 0, 0, 1, 0, 0], "float32")
    evaluated = model.evaluate(
        images, np.zeros(6), 6, sample_weight=weights, verbose=0, return_dict=True
    )
    assert evaluated["accuracy"] == pytest.approx((labels == common)[[0, 3]].mean())


def test_exactly_the_corrupted_patches_carry_gradient(predictor):
    """By perturbation, with attention off: a token then depends on its patch alone.

    What the model says of a patch changes the loss where it is corrupted, what is to be
    said of it likewise, and an embedding where it stands in a corrupted place.
    """
    block = predictor.get_layer("encoderblock_0")
    block.attention.out.set_weights([0 * w for w in block.attention.out.get_weights()])
    images = scaled(photos(2, seed=4))
    out = said(predictor, images)

    def loss(prediction, target):
        parts = {"prediction": prediction["prediction"], "target": target["target"]}
        return float(ops.convert_to_numpy(predictor.compute_loss(y_pred=parts)))

    base = loss(out, out)
    flags = corrupted(out["sources"], out["places"])
    seen = np.zeros(flags.size, bool)
    sources = out["sources"][flags]
    seen[sources[sources != MASKED]] = True
    assert 0 < seen.sum() < flags.sum()
    said_changed, asked_changed = np.zeros((2, *flags.shape), bool)
    for image, patch in np.ndindex(flags.shape):
        row, column = 8 * (patch // 6), 8 * (patch % 6)
        other = images.copy()
        other[image, row : row + 8, column : column + 8] *= -1
        changed = said(predictor, other)
        said_changed[image, patch] = loss(changed, out) != base
        asked_changed[image, patch] = loss(out, changed) != base
    np.testing.assert_array_equal(said_changed, seen.reshape(flags.shape))
    np.testing.assert_array_equal(asked_changed, flags)


def test_the_first_loss_is_that_of_a_guess():
    model = MaskedPatchPredictor(tiny())
    model.compile("sgd")
    loss, _ = model.evaluate(scaled(photos(4)), verbose=0)
    assert loss == pytest.approx(math.log(512), rel=1e-6)


# The backbone.


def test_the_backbone_is_the_plain_model_bit_for_bit():
    plain, images = tiny(classes=7), scaled(photos(3))
    head = plain.get_layer("head")
    head.set_weights([np.ones(w.shape) for w in head.get_weights()])
    before = ops.convert_to_numpy(plain(images))
    predictor = MaskedPatchPredictor(plain)
    predictor(images)
    assert predictor.backbone is plain
    np.testing.assert_array_equal(ops.convert_to_numpy(plain(images)), before)
    twin = tiny(classes=7)
    twin.set_weights(plain.get_weights())
    np.testing.assert_array_equal(
        ops.convert_to_numpy(predictor.backbone(images)),
        ops.convert_to_numpy(twin(images)),
    )


def test_training_moves_the_encoder_and_leaves_the_head():
    plain, images = tiny(classes=7, representation_size=5), scaled(photos(8))
    predictor = MaskedPatchPredictor(plain, seed=0)
    before = {layer.name: layer.get_weights() for layer in plain.layers}
    (mask_embedding,) = predictor.get_layer("corruption").get_weights()
    predictor.compile(keras.optimizers.AdamW(1e-3, weight_decay=0.1))
    predictor.fit(images, batch_size=4, epochs=2, verbose=0)
    for layer in plain.layers:
        same = [
            (a == b).all()
            for a, b in zip(before[layer.name], layer.get_weights(), strict=True)
        ]
        assert all(same) == (layer.name in ("pre_logits", "head") or not same)
    (moved,) = predictor.get_layer("corruption").get_weights()
    assert (moved != mask_embedding).all()
    tuned = keras_vit.for_task(predictor.backbone, 3)
    assert tuned(images).shape == (8, 3)


@pytest.mark.parametrize("target", TARGETS)
def test_saved_and_reloaded(target, tmp_path):
    images = scaled(photos(8))
    one = MaskedPatchPredictor(tiny(classes=7), target, 0.4, 0.7, 0.2, 0.1, seed=2)
    one.backbone.get_layer("head").bias.assign(np.arange(7))
    one.compile(keras.optimizers.Adam(1e-2))
    one.fit(images, batch_size=4, verbose=0)
    one.save(tmp_path / "predictor.keras")
    two = keras.models.load_model(tmp_path / "predictor.keras")
    assert two.get_config()["mask"] == 0.7
    ours, theirs = said(one, images), said(two, images)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    np.testing.assert_array_equal(
        ops.convert_to_numpy(one.backbone(images)),
        ops.convert_to_numpy(two.backbone(images)),
    )
    draws = [model.get_layer("corruption").generator.state for model in (one, two)]
    draws[1].assign(
        ops.convert_to_numpy(draws[0])
    )  # Which .keras files do not hold, for dropout neither.
    for model in (one, two):  # The optimizer goes on as well.
        model.fit(images, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_precision_is_the_backbones(policy, tmp_path):
    """Whatever the policy is when the predictor is made, or loaded."""
    images = scaled(photos(2))
    keras.config.set_dtype_policy(policy)
    try:
        backbone = tiny()
    finally:
        keras.config.set_dtype_policy("float32")
    one = MaskedPatchPredictor(backbone)
    head = one.get_layer("prediction")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    one.save(tmp_path / "predictor.keras")
    two = keras.models.load_model(tmp_path / "predictor.keras")
    for model in (one, two):
        assert model.get_layer("corruption").compute_dtype == policy.removeprefix(
            "mixed_"
        )
        assert said(model, images)["prediction"].dtype == np.float32
    np.testing.assert_array_equal(
        said(one, images)["prediction"], said(two, images)["prediction"]
    )


ARCHITECTURES = {
    "gap": {"classifier": "gap"},
    "map": {"classifier": "map"},
    "registers": {"num_registers": 3},
    "2d": {"position": "2d"},
    "no positions": {"position": "none"},
    "relative": {"position": "relative"},
    "every layer": {"position_at": "every_layer", "num_layers": 2},
    "shared": {"position_at": "every_layer_shared", "num_layers": 2},
    "axial": {"attention": "axial", "classifier": "gap"},
    "one channel": {},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name):
    """The tokens that predict are those of the plain model, where nothing is hidden."""
    config = config_of(tiny())
    config = dataclasses.replace(config, **ARCHITECTURES[name])
    channels = 1 if name == "one channel" else 3
    keras.utils.set_random_seed(1)
    plain = keras_vit.vit(
        config, image_size=(32, 48), num_classes=None, num_channels=channels
    )
    predictor = MaskedPatchPredictor(plain, "mean_color", 1.0, 0.0, 0.0, 1.0)
    images = scaled(photos(2))[..., :channels]
    tokens = keras.Model(plain.input, plain.get_layer("encoder_norm").output)(images)
    tokens = ops.convert_to_numpy(tokens)[:, config.num_prefix_tokens :]
    head = predictor.get_layer("prediction")
    kernel = np.random.default_rng(0).normal(size=head.kernel.shape)
    head.kernel.assign(kernel)
    out = said(predictor, images)
    assert out["prediction"].shape == (2, 24, 1, 8**channels)
    assert out["target"].max() < 8**channels
    expected = np.take_along_axis(tokens @ kernel, out["places"][..., None], axis=1)
    np.testing.assert_allclose(out["prediction"][:, :, 0], expected, atol=2e-4)


HYBRIDS = {  # Units and patch size, pixels of a patch.
    "R+": ((), 2, 8),
    "R50+/16": ((1, 1, 1), 1, 16),
}


@pytest.mark.parametrize(
    "name", ["R+", pytest.param("R50+/16", marks=pytest.mark.tensorflow_only)]
)
def test_hybrids(name):
    units, patch_size, pixels = HYBRIDS[name]
    known = HYBRID_VARIANTS["R50+ViT-B/16"].resnet
    resnet = dataclasses.replace(known, num_layers=units, width=32)
    backbone = tiny((32, 48), patch_size=patch_size, resnet=resnet)
    predictor = MaskedPatchPredictor(backbone, corrupt=1.0)
    images = photos(2)
    out = said(predictor, scaled(images))
    expected = quantized(images, pixels, 1)
    order = out["places"][..., None]
    np.testing.assert_array_equal(
        out["target"], np.take_along_axis(expected, order, axis=1)
    )
    with pytest.raises(ValueError, match=r"patches tile.*36x48 px"):
        MaskedPatchPredictor(keras_vit.at_resolution(backbone, (36, 48)))


# Pictures.


def test_reconstructions(predictor):
    images = photos(3)
    pictures = predictor.reconstruct(scaled(images))
    out = said(predictor, scaled(images))
    flags = corrupted(out["sources"], out["places"])
    assert list(pictures) == ["original", "corrupted", "predicted"]

    def cut(pictures):
        laid = pictures.reshape(3, 4, 8, 6, 8, 3).transpose(0, 1, 3, 2, 4, 5)
        return laid.reshape(3, 24, 8, 8, 3)

    original = images / 255
    np.testing.assert_allclose(pictures["original"], original, atol=1e-6)
    seen, guess = cut(pictures["corrupted"]), cut(pictures["predicted"])
    rows = cut(original).reshape(72, 8, 8, 3)
    for place in np.ndindex(3, 24):
        source = out["sources"][place]
        expected = 0.5 if source == MASKED else rows[source]
        np.testing.assert_allclose(seen[place], expected + 0 * rows[0], atol=1e-6)
    np.testing.assert_allclose(guess[~flags], cut(original)[~flags], atol=1e-6)
    for image, nth in np.ndindex(out["places"].shape):
        patch = guess[image, out["places"][image, nth]]
        said_of_it = out["prediction"][image, nth]
        if predictor.target == "l2":
            expected = (said_of_it.reshape(8, 8, 3) / 2 + 0.5).clip(0, 1)
        else:
            side = SIDE[predictor.target]
            colors = class_colors(said_of_it.argmax(-1)).reshape(side, side, 3)
            expected = colors.repeat(8 // side, axis=0).repeat(8 // side, axis=1)
        np.testing.assert_allclose(patch, expected, atol=1e-6)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "mean"}, "mean_color, 4x4, l2.*target='mean'"),
        ({"mask": 0.9}, r"add up to 1 .*mask=0.9, replace=0.1, keep=0.1"),
        ({"mask": 1.2, "replace": -0.3}, r"mask to be a share in \[0, 1\].*mask=1.2"),
        ({"mask": math.nan}, "mask to be a share"),
        ({"corrupt": 0.0}, r"one of them corrupted.*corrupt=0.0 of 24"),
        ({"corrupt": 1.5}, "corrupt=1.5"),
        (
            {"preprocessing": keras_vit.Preprocessing(mean=(0.5, 0.4))},
            r"one value for each channel.* for 3 channels",
        ),
        ({"corrupt": 0.01}, "corrupt=0.01 of 24 patches. Use a larger share"),
    ],
)
def test_shares(arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedPatchPredictor(tiny(), **arguments)


def test_patches_smaller_than_the_picture_of_them():
    with pytest.raises(ValueError, match=r"4 or more pixels per side.*Received: 2"):
        MaskedPatchPredictor(tiny((8, 8), patch_size=2), "4x4")


def resnet():
    config = dataclasses.replace(
        keras_vit.VARIANTS["BiT-R50x1"], num_layers=(1,), width=32
    )
    return keras_vit.resnet(config, image_size=(32, 32), num_classes=None)


def half_a_vit():
    whole = tiny()
    return keras.Model(whole.input, whole.get_layer("encoderblock_0").output)


def test_a_later_vit_is_refused():
    config = keras_vit.PlainViTConfig(
        patch_size=8, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2
    )
    later = keras_vit.plain_vit(config, image_size=(16, 16), num_classes=None)
    with pytest.raises(ValueError, match=r"of the paper.*later.*, a plain ViT"):
        MaskedPatchPredictor(later)


@pytest.mark.parametrize(
    "made", [resnet, half_a_vit, lambda: MaskedPatchPredictor(tiny()), lambda: "ViT"]
)
def test_what_is_no_whole_vit(made):
    with pytest.raises(ValueError, match="Expected a whole ViT or hybrid"):
        MaskedPatchPredictor(made())


@pytest.mark.parametrize(
    "use",
    [
        lambda model: keras_vit.for_task(model, 3),
        lambda model: keras_vit.at_resolution(model, (64, 64)),
    ],
)
def test_the_predictor_in_its_backbones_place(use):
    with pytest.raises(ValueError, match=r"pass predictor\.backbone"):
        use(MaskedPatchPredictor(tiny()))
