"""Our numbers against those of the official code (fixtures/reference)."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import ResidualUnit, StdConv2D, TransformerBlock, kernels
from keras_vit.layers.convolution import RootPool
from keras_vit.layers.positions import sincos2d
from keras_vit.weights import names, variables
from tests.conftest import REFERENCE, reference

MINIS = {  # name: classifier where tensors cannot tell.
    "testing": {},
    "vit_mini": {},
    "vit_mini_linen_names": {},
    "vit_mini_gap": {},
    "vit_mini_rep": {},
    "vit_mini_unpooled": {"classifier": "unpooled"},
    "vit_mini_token_unpooled": {"classifier": "token_unpooled"},
    "hybrid_mini_stem": {},
    "hybrid_mini": {},
    "hybrid_mini_3stage": {},
    "hybrid_mini_linen_names": {},
}
OTHER_MINIS = {  # name: (overrides, what its logits are called).
    "bit_mini": ({}, "logits"),
    "bit_mini: big_vision's padding": ({"pool_padding": "inf"}, "logits_big_vision"),
    "bv_bit_v1_mini": ({}, "logits"),
    "bv_vit_mini_gap": ({}, "logits"),
    "bv_vit_mini_tok": ({}, "logits"),
    "bv_vit_mini_scan_map": ({}, "logits"),
    "bv_vit_mini_gap_sincos_rep": ({}, "logits"),
    "bv_vit_mini_gap_sincos_rect": ({}, "logits"),
}
ATOL = 1e-5  # reference/README.md: float32, minis.


def fixture(name):
    return np.load(reference(name))


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
    keep("embedding", embedding.projection(tap_input(model, embedding)(images)))
    for layer in model.layers:
        if layer.name in ("conv_root", "gn_root"):
            keep(layer.name, tap(layer.name))
        elif isinstance(layer, ResidualUnit):
            keep(layer.name.replace("_", "/"), tap(layer.name))
    keep("Transformer/posembed_input", tap("posembed_input"))
    keep("Transformer/Dropout_0", tap("posembed_dropout"))
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            z = keras.Model(model.input, layer.input)(images)
            at = f"Transformer/{layer.name}"
            y = keep(f"{at}/LayerNorm_0", layer.layer_norm_0(z))
            attention = f"{at}/MultiHeadDotProductAttention_0"
            q, k, v = kernels.split_heads(layer.attention.qkv(y), layer.num_heads)
            qkv = (q * q.shape[-1] ** 0.5, k, v)
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


def tap_input(model, layer):
    """What a layer reads, as a model from images."""
    return keras.Model(model.input, layer.input)


def compare_inside(agree, name, key, ours, theirs):
    """1e-5; for what standardized convolutions make 5e-5, as for ops.npz.

    Filters as narrow as theirs leave the official values themselves 1.4e-5 from
    float64 at the root (mean 0.09, deviation 1e-5).
    """
    if name.startswith(("hybrid", "bit")):
        scale = max(1, np.abs(theirs).max() / 10)
        agree(f"{name} inside: {key}", ours / scale, theirs / scale, 5e-5)
    else:
        agree(f"{name}: {key}", ours, theirs, ATOL)


@pytest.mark.parametrize("name", MINIS)
def test_logits_and_intermediates(name, agree):
    io = fixture(f"{name.removesuffix('_linen_names')}_io")
    model = keras_vit.from_checkpoint(reference(name), **MINIS[name])
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
        value = ours[key]
        if io[key].ndim == 4 and len(io[key]) == 1:  # A corner of image 0.
            value = value[:1, : io[key].shape[1], : io[key].shape[2]]
        compare_inside(agree, name, key, value, io[key])


@pytest.mark.parametrize("label", OTHER_MINIS)
def test_logits_of_other_families(label, agree):
    overrides, logits = OTHER_MINIS[label]
    name = label.split(":")[0]
    io = fixture(f"{name}_io")
    size = io["images"].shape[1:3]
    model = keras_vit.from_checkpoint(reference(name), image_size=size, **overrides)
    agree(f"{label}: logits", numpy(model(io["images"])), io[logits], ATOL)
    if logits != "logits":
        return
    before_head = keras.Model(model.input, model.get_layer("head").input)
    agree(
        f"{name}: pre_logits", numpy(before_head(io["images"])), io["pre_logits"], ATOL
    )
    layers = {"inter/root_conv": "conv_root", "inter/root_pool": "pool_root"} | {
        f"inter/block{stage}": f"block{stage}_unit{units}"
        for stage, units in enumerate((2, 1), start=1)
    }
    for key in sorted(set(layers) & set(io.files)):
        tap = keras.Model(model.input, model.get_layer(layers[key]).output)
        rows, columns = io[key].shape[1:3]
        ours = numpy(tap(io["images"]))[:1, :rows, :columns]
        compare_inside(agree, name, key, ours, io[key])


def test_sincos2d(agree):
    tables = fixture("bv_posemb_sincos2d")
    assert len(tables.files) == 4
    for name in tables.files:
        height, width, depth = (int(part[1:]) for part in name.split("_"))
        ours = sincos2d((height, width), depth)
        agree(f"bv_posemb_sincos2d: {name}", ours, tables[name], 1e-6)


def close(agree, label, ours, theirs):
    """ops.npz is held to 1e-6 + 1e-6 |y|."""
    scale = 1 + np.abs(theirs)
    agree(label, numpy(ours) / scale, theirs / scale, 1e-6)


def test_norms_and_gelu(agree):
    ops = fixture("ops")
    norm = keras.layers.LayerNormalization(epsilon=1e-6)
    norm.build(ops["ln/x"].shape)
    norm.set_weights([ops["ln/scale"], ops["ln/bias"]])
    close(agree, "ops: ln", norm(ops["ln/x"]), ops["ln/y_eps1e-6"])
    for family, epsilon in (("vit", "1e-6"), ("bit", "1e-5")):
        norm = keras.layers.GroupNormalization(32, epsilon=float(epsilon))
        norm.build(ops["gn/x"].shape)
        norm.set_weights([ops["gn/scale"], ops["gn/bias"]])
        label = f"y_{family}_eps{epsilon}"
        close(agree, f"ops: gn/{label}", norm(ops["gn/x"]), ops[f"gn/{label}"])
    for approximate, label in ((True, "tanh"), (False, "exact")):
        ours = keras.activations.gelu(ops["gelu/x"], approximate=approximate)
        close(agree, f"ops: gelu/{label}", ours, ops[f"gelu/y_{label}"])


STD_CONVS = {  # case: strides
    "7x7s2_same_even": 2,
    "7x7s2_same_odd": 2,
    "3x3s2_same_even": 2,
    "3x3s2_same_odd": 2,
    "1x1s2": 2,
    "3x3s1": 1,
}


@pytest.mark.parametrize("case", STD_CONVS)
def test_standardized_convolutions(case, agree):
    ops = fixture("ops")
    x, kernel = ops[f"stdconv/{case}/x"], ops[f"stdconv/{case}/kernel"]
    size, _, _, filters = kernel.shape
    for family, arguments in (
        ("vit", ("same", 1e-5, True)),
        ("bit", ("same", 1e-10, False)),
    ):
        layer = StdConv2D(filters, size, STD_CONVS[case], *arguments)
        y = layer(x)
        layer.set_weights([kernel])
        theirs = ops[f"stdconv/{case}/std_kernel_{family}"]
        assert tuple(y.shape) == layer.compute_output_shape(x.shape)
        # Their last digits are those of XLA's sum, which TensorFlow's equals.
        if keras.backend.backend() == "torch":
            continue
        close(agree, f"ops: {case} {family}", layer.standardized_kernel(), theirs)
        if family == "vit":
            output = numpy(layer(x))
            agree(f"ops outputs: {case}", output, ops[f"stdconv/{case}/y_vit"], 5e-5)


@pytest.mark.parametrize("size", ["even", "odd"])
def test_root_pools(size, agree):
    ops = fixture("ops")
    x = ops[f"maxpool/{size}/x"]
    cases = {"same": "same", "zero": "bit_zero_pad", "inf": "bv_inf_pad"}
    for padding, label in cases.items():
        ours = numpy(RootPool(padding)(x))
        agree(f"ops pools: {size}", ours, ops[f"maxpool/{size}/y_{label}"], 0)


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
    for entry in variables.entries(model):
        gradient_entry = variables.Entry(
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
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    elif backend == "jax":
        import jax

        def loss_at(trainable):
            logits, _ = model.stateless_call(
                trainable,
                [v.value for v in model.non_trainable_variables],
                images,
                training=True,
            )
            return loss_of(labels, logits)

        loss, gradients = jax.value_and_grad(loss_at)(
            [v.value for v in model.trainable_variables]
        )
    else:
        loss = loss_of(labels, model(images, training=True))
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
    for entry in variables.entries(model):
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
