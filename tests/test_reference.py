"""Our numbers against those of the official code (fixtures/reference)."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock
from keras_vit.weights import names
from tests.conftest import REFERENCE

MINIS = {  # name: classifier where tensors cannot tell.
    "testing": {},
    "vit_mini": {},
    "vit_mini_linen_names": {},
    "vit_mini_gap": {},
    "vit_mini_rep": {},
    "vit_mini_unpooled": {"classifier": "unpooled"},
    "vit_mini_token_unpooled": {"classifier": "token_unpooled"},
}
ATOL = 1e-5  # reference/README.md: float32, minis.


def fixture(name):
    return np.load(REFERENCE / f"{name}.npz")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def intermediates(model, images):
    """Every module's output under the official module paths."""
    found = {}

    def keep(path, value):
        found[f"inter/{path}"] = numpy(value)
        return value

    tap = lambda name: keras.Model(model.input, model.get_layer(name).output)(images)  # noqa: E731
    embedding = model.get_layer("embedding")
    keep("embedding", embedding.projection(images))
    keep("Transformer/posembed_input", tap("posembed_input"))
    keep("Transformer/Dropout_0", tap("posembed_dropout"))
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            z = keras.Model(model.input, layer.input)(images)
            at = f"Transformer/{layer.name}"
            y = keep(f"{at}/LayerNorm_0", layer.layer_norm_0(z))
            attention = f"{at}/MultiHeadDotProductAttention_0"
            qkv = layer.attention._project(y)
            for matrix, value in zip(("query", "key", "value"), qkv, strict=True):
                keep(f"{attention}/{matrix}", keras.ops.swapaxes(value, 1, 2))
            keep(f"{attention}/attention_weights", layer.attention_scores(z))
            msa = keep(attention, layer.attention(y))
            keep(f"{attention}/out", msa)
            keep(f"{at}/Dropout_0", msa)
            y = keep(f"{at}/LayerNorm_1", layer.layer_norm_1(msa + z))
            keep(f"{at}/MlpBlock_0/Dense_0", layer.mlp.dense_0(y))
            y = keep(f"{at}/MlpBlock_0", layer.mlp(y))
            keep(f"{at}/MlpBlock_0/Dense_1", y)
            keep(f"{at}/MlpBlock_0/Dropout_1", y)
            keep(at, tap(layer.name))
    keep("Transformer/encoder_norm", tap("encoder_norm"))
    keep("Transformer", tap("encoder_norm"))
    return found


@pytest.mark.parametrize("name", MINIS)
def test_logits_and_intermediates(name, agree):
    io = fixture(f"{name.removesuffix('_linen_names')}_io")
    model = keras_vit.from_checkpoint(REFERENCE / f"{name}.npz", **MINIS[name])
    images = io["images"]
    agree(f"{name}: logits", numpy(model(images)), io["logits"], ATOL)
    before_head = keras.Model(model.input, model.get_layer("head").input)
    agree(f"{name}: pre_logits", numpy(before_head(images)), io["pre_logits"], ATOL)
    ours = intermediates(model, images)
    theirs = {key for key in io.files if key.startswith("inter/")}
    skipped = theirs - ours.keys()
    # Dropout after GELU is the identity here; the heads are compared above.
    assert skipped <= {"inter/head", "inter/pre_logits"} | {
        key for key in theirs if key.endswith("MlpBlock_0/Dropout_0")
    }
    for key in sorted(theirs - skipped):
        agree(f"{name}: {key}", ours[key], io[key], ATOL)


def test_gradients(agree):
    reference = fixture("grads_vit_mini")
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    images = fixture("train_cosine_bf16")["images"][0]
    gradients, loss = gradient(model, images, reference["labels"])
    agree("grads_vit_mini: loss", loss, reference["loss"], ATOL)
    by_variable = {
        v.path: g for v, g in zip(model.trainable_variables, gradients, strict=True)
    }
    compared = 0
    for entry in names.entries(model):
        gradient_entry = names.Entry(
            keras.ops.convert_to_tensor(by_variable[entry.variable.path]),
            entry.names,
            entry.shape,
        )
        for key, value in gradient_entry.split().items():
            theirs = reference[names.renumber(key, names.PRE_LINEN)]
            agree(f"grads_vit_mini: {key}", value, theirs, ATOL)
            compared += 1
    assert compared == len(reference.files) - 2  # All but loss and labels.


def gradient(model, images, labels):
    """The gradient of the mean cross-entropy on any backend, as NumPy arrays."""
    loss_of = keras.losses.CategoricalCrossentropy(from_logits=True)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    elif backend == "jax":
        import jax

        def loss_at(trainable):
            logits, _ = model.stateless_call(
                trainable, [v.value for v in model.non_trainable_variables], images
            )
            return loss_of(labels, logits)

        loss, gradients = jax.value_and_grad(loss_at)(
            [v.value for v in model.trainable_variables]
        )
    else:
        loss = loss_of(labels, model(images))
        loss.backward()
        gradients = [v.value.grad for v in model.trainable_variables]
    return [numpy(g) for g in gradients], numpy(loss)


RESIZES = [
    "7_12",
    "14_24",
    "24_14",
    "14_7",
    "4_6",
    "16_37",
    "12_7",
    "7_7",
    "1_4",
    "4_1",
]


@pytest.mark.parametrize("sizes", RESIZES)
def test_resize_position_embeddings(sizes, agree):
    reference = fixture("posemb_resize")
    old, new = map(int, sizes.split("_"))
    kinds = [kind for kind in ("tok", "gap") if f"{sizes}_{kind}/in" in reference.files]
    assert kinds
    for kind in kinds:
        ours = keras_vit.layers.resize_position_embeddings(
            reference[f"{sizes}_{kind}/in"], (old, old), (new, new), int(kind == "tok")
        )
        agree(
            f"posemb_resize: {sizes} {kind}",
            ours,
            reference[f"{sizes}_{kind}/out"],
            1e-6,
        )


@pytest.mark.parametrize("source", ["vit_mini", "vit_mini_rep"])
def test_load_pretrained_at_a_higher_resolution(source, agree):
    reference = fixture("load_pretrained_64_to_96")
    model = keras_vit.from_checkpoint(
        REFERENCE / f"{source}.npz", image_size=(96, 96), classes=7
    )
    assert "pre_logits" not in [layer.name for layer in model.layers]
    model.get_layer("head").set_weights(
        [reference["head_kernel"], reference["head_bias"]]
    )
    label = "load_pretrained_64_to_96"
    table = numpy(model.get_layer("posembed_input").pos_embedding)
    agree(f"{label}: positions", table, reference[f"pos_embedding_{source}"], 1e-6)
    logits = numpy(model(reference["images"]))
    agree(f"{label}: {source}", logits, reference[f"logits_from_{source}"], ATOL)


def test_at_resolution_equals_load_pretrained(agree):
    reference = fixture("load_pretrained_64_to_96")
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    model = keras_vit.at_resolution(keras_vit.for_task(model, 7), (96, 96))
    model.get_layer("head").set_weights(
        [reference["head_kernel"], reference["head_bias"]]
    )
    logits = numpy(model(reference["images"]))
    agree("at_resolution: 64 to 96", logits, reference["logits_from_vit_mini"], ATOL)


@pytest.mark.parametrize(
    ("row", "overrides"),
    [
        ("ViT-Ti_16", {}),
        (
            "ViT-Ti_16+rep192,head_bias_init=-10",
            {"representation_size": 192, "head_bias_init": -10.0},
        ),
    ],
)
def test_initial_values(row, overrides):
    """Zeros exactly; mean, standard deviation and bounds within sampling error."""
    statistics = json.loads((REFERENCE / "init_stats.json").read_text())[row]
    config = dataclasses.replace(keras_vit.VARIANTS["ViT-Ti/16"], **overrides)
    keras.utils.set_random_seed(0)
    model = keras_vit.vit(config, image_size=(224, 224), num_classes=10)
    # Keras's truncated normal on torch lets one value in 250,000 through its bounds.
    slack = 0.3 if keras.backend.backend() == "torch" else 0.03
    compared = 0
    for entry in names.entries(model):
        for name, value in entry.split().items():
            compared += 1
            theirs = statistics[re.sub(r"encoderblock_\d+", "encoderblock_0", name)]
            assert list(value.shape) == theirs["shape"], name
            if theirs["std"] == 0:
                assert (value == theirs["mean"]).all(), name
                continue
            error = theirs["std"] / np.sqrt(value.size)  # Of a mean.
            assert abs(value.mean() - theirs["mean"]) < 6 * error, name
            assert abs(value.std() / theirs["std"] - 1) < 6 / np.sqrt(value.size), name
            bounded = name.endswith("kernel")  # Uniform or truncated; the rest normal.
            for ours, extreme in ((value.min(), "min"), (value.max(), "max")):
                if bounded:
                    assert ours / theirs[extreme] == pytest.approx(1, abs=slack), name
                else:
                    assert abs(ours) < 6 * theirs["std"], name
    assert compared == len(statistics) + 11 * sum(
        "encoderblock" in k for k in statistics
    )
