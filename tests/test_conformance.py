"""What every public layer and every model must survive, on any backend."""

import inspect
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from tests.models.test_vit import perturbed, tiny
from tests.precision import float64_is_allowed

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"

UNIT = {
    "filters": 32,
    "strides": 2,
    "kernel_epsilon": 1e-8,
    "epsilon_outside": True,
    "group_norm_epsilon": 1e-6,
}
LAYERS = {  # class: arguments, none of them a default; shape of the input.
    "PatchEmbedding": (
        {"hidden_size": 6, "patch_size": 4, "crop": True, "use_bias": False},
        (9, 14, 3),
    ),
    "ClassToken": ({"num_tokens": 3}, (5, 6)),
    "AddPositionEmbs": (
        {"grid": (2, 3), "num_prefix_tokens": 1, "kind": "2d"},
        (7, 6),
    ),
    "SelfAttention": (
        {"num_heads": 3, "dropout_rate": 0.1, "relative": True},
        (7, 6),
    ),
    "MlpBlock": ({"mlp_dim": 10, "dropout_rate": 0.1, "gelu": "erf"}, (7, 6)),
    "TransformerBlock": (
        {
            "num_heads": 2,
            "mlp_dim": 10,
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.2,
            "gelu": "erf",
            "layer_norm_epsilon": 1e-5,
            "relative": True,
            "stochastic_depth_rate": 0.1,
        },
        (7, 6),
    ),
    "AxialBlock": (
        {
            "grid": (2, 3),
            "num_heads": 2,
            "mlp_dim": 10,
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.2,
            "gelu": "erf",
            "layer_norm_epsilon": 1e-5,
            "relative": True,
        },
        (6, 6),
    ),
    "AxialAttention": ({"num_heads": 2, "strides": 2}, (5, 4, 6)),
    "MAPHead": (
        {"num_heads": 2, "mlp_dim": 10, "gelu": "erf", "layer_norm_epsilon": 1e-5},
        (7, 6),
    ),
    "StdConv2D": (
        {
            "filters": 5,
            "kernel_size": 3,
            "strides": 2,
            "padding": "symmetric",
            "epsilon": 1e-8,
            "epsilon_outside": False,
        },
        (7, 6, 3),
    ),
    "ResidualUnit": (UNIT, (5, 4, 32)),
    "PreActivationUnit": (UNIT, (5, 4, 32)),
    "AxialUnit": (UNIT | {"num_heads": 4}, (5, 4, 32)),
}
CLASSES = {name for name in layers.__all__ if name[0].isupper()}


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def test_every_layer_is_here():
    assert LAYERS.keys() == CLASSES


@pytest.fixture(params=sorted(LAYERS))
def case(request):
    """A built layer with no weight at its initial value, its arguments and an input."""
    arguments, shape = LAYERS[request.param]
    layer = getattr(layers, request.param)(**arguments, name="it")
    x = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    layer(x)
    return perturbed(layer), arguments, x


def test_config_is_the_constructors_arguments(case):
    layer, arguments, x = case
    config = layer.get_config()
    base = keras.layers.Layer(name="it").get_config()
    assert config.keys() - base.keys() == arguments.keys()
    for key, value in arguments.items():
        assert config[key] == value
    if "__init__" in vars(type(layer)):
        signature = inspect.signature(type(layer).__init__).parameters
        assert arguments.keys() == signature.keys() - {"self", "kwargs"}
    again = type(layer).from_config(config)
    again(x)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(again(x)), numpy(layer(x)))


def test_docstring_names_every_argument(case):
    layer, arguments, _ = case
    doc = inspect.getdoc(type(layer))
    assert "->" in doc.splitlines()[0]
    for argument in arguments:
        assert f"    {argument}: " in doc


def test_inferred_shape_is_the_real_one(case):
    layer, _, x = case
    assert layer.compute_output_shape((None, *x.shape[1:])) == (
        None,
        *layer(x).shape[1:],
    )
    symbolic = layer(keras.Input(x.shape[1:]))
    assert symbolic.shape == (None, *layer(x).shape[1:])


def test_a_batch_of_one_is_the_first_of_two(case):
    """In float64: float32 moves AxialUnit by 1e-6, with the order of summation."""
    layer, arguments, x = case
    x = x.astype("float64")
    with float64_is_allowed():
        double = type(layer)(**arguments, dtype="float64")
        double(x)
        double.set_weights(layer.get_weights())
        y, first = numpy(double(x)), numpy(double(x[:1]))
    assert y.dtype == first.dtype == "float64"
    np.testing.assert_allclose(first, y[:1], atol=1e-6 * np.abs(y).max())


def test_keras_file_round_trip(case, tmp_path):
    layer, _, x = case
    images = keras.Input(x.shape[1:])
    model = keras.Model(images, layer(images))
    model.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


def test_mixed_precision_policy_reaches_sub_layers(case):
    layer, arguments, x = case
    half = type(layer)(**arguments, dtype="mixed_bfloat16")
    y = half(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    half.set_weights(layer.get_weights())
    y, full = numpy(keras.ops.cast(half(x), "float32")), numpy(layer(x))
    np.testing.assert_allclose(
        y, full, atol=0.07 * max(3, np.abs(full).max()), rtol=0.1
    )
    assert {v.dtype for v in half.trainable_variables} == {"float32"}


@pytest.mark.parametrize("how", ["graph", "xla"])
def test_compiled_equals_eager(case, how):
    layer, _, x = case
    images = keras.Input(x.shape[1:])
    model = keras.Model(images, layer(images))
    if how == "xla" and keras.backend.backend() == "torch":
        pytest.skip("torch compiles through torch.compile, which needs a C++ toolchain")
    model.compile(jit_compile=how == "xla")
    np.testing.assert_allclose(
        model.predict(x, verbose=0),
        numpy(layer(x)),
        atol=2e-6 * max(1, np.abs(numpy(layer(x))).max()),
        rtol=1e-5,
    )


FRESH = """
import sys
import numpy as np
images = np.load(sys.argv[2])
{load}
np.save(sys.argv[3], y)
"""
RELOADS = {
    "model.keras": """
import keras_vit, keras
y = keras.ops.convert_to_numpy(keras.models.load_model(sys.argv[1])(images))
""",
    "model.weights.h5": """
import keras
from tests.models.test_vit import tiny
model = tiny()
model.load_weights(sys.argv[1])
y = keras.ops.convert_to_numpy(model(images))
""",
    "saved_model": """
sys.modules["keras_vit"] = None  # Importing it raises.
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
y = loaded.serve(images).numpy()
""",
}


@pytest.mark.parametrize("file", RELOADS)
def test_reload_in_a_fresh_process(file, tmp_path):
    """Zero difference; a SavedModel does without keras_vit."""
    if file == "saved_model" and not ON_TENSORFLOW:
        pytest.skip("SavedModels are exported from TensorFlow here")
    model = perturbed(tiny())
    images = np.random.default_rng(0).uniform(-1, 1, (3, 16, 24, 3)).astype("float32")
    path = tmp_path / file
    if file.endswith(".h5"):
        model.save_weights(path)
    elif file.endswith(".keras"):
        model.save(path)
    else:
        model.export(path, verbose=False)
    np.save(tmp_path / "images.npy", images)
    subprocess.run(
        [
            sys.executable,
            "-c",
            FRESH.format(load=RELOADS[file]),
            path,
            tmp_path / "images.npy",
            tmp_path / "y.npy",
        ],
        check=True,
        env=os.environ,
    )
    ours = model(images)
    if file == "saved_model":  # The graph's own arithmetic, not the eager one's.
        import tensorflow as tf

        ours = tf.function(model)(images)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), numpy(ours))


def test_full_size_agrees_with_reference_equations(agree):
    """Twelve layers of B/16's width within 5e-5 of the equations in float64."""
    config = keras_vit.VARIANTS["ViT-B/16"]
    model = perturbed_like_trained(
        keras_vit.vit(config, image_size=(48, 32), num_classes=10)
    )
    images = np.random.default_rng(1).uniform(-1, 1, (1, 48, 32, 3)).astype("float32")
    logits = numpy(model(images))
    reference = equations_1_to_4(model, images, config)
    assert np.abs(reference).max() > 0.5
    agree("ViT-B/16 against float64", logits, reference, 5e-5)


def perturbed_like_trained(model):
    rng = np.random.default_rng(0)
    model.set_weights(
        [
            w + 0.02 * rng.standard_normal(w.shape).astype("float32")
            for w in model.get_weights()
        ]
    )
    return model


def equations_1_to_4(model, images, config):
    """The paper's equations in float64 NumPy, from the checkpoint's tensors."""
    from keras_vit.weights import variables

    w = {
        name: value.astype(np.float64)
        for entry in variables.entries(model)
        for name, value in entry.split().items()
    }

    def norm(z, name):
        mean = z.mean(-1, keepdims=True)
        z = (z - mean) / np.sqrt(z.var(-1, keepdims=True) + 1e-6)
        return z * w[f"{name}/scale"] + w[f"{name}/bias"]

    p, d = config.patch_size, config.hidden_size
    batch, height, width, channels = images.shape
    patches = images.astype(np.float64).reshape(
        batch, height // p, p, width // p, p, channels
    )
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, p * p * channels)
    z = patches @ w["embedding/kernel"].reshape(-1, d) + w["embedding/bias"]
    z = np.concatenate([np.broadcast_to(w["cls"], (batch, 1, d)), z], axis=1)
    z = z + w[variables.POSITIONS]
    for i in range(config.num_layers):
        at = f"Transformer/encoderblock_{i}"
        y = norm(z, f"{at}/LayerNorm_0")
        a = f"{at}/MultiHeadDotProductAttention_0"
        q, k, v = (
            np.einsum("btd,dhe->bhte", y, w[f"{a}/{m}/kernel"])
            + w[f"{a}/{m}/bias"][:, None]
            for m in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // config.num_heads)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        msa = np.einsum("bhte,hed->btd", scores @ v, w[f"{a}/out/kernel"])
        z = z + msa + w[f"{a}/out/bias"]
        y = norm(z, f"{at}/LayerNorm_1")
        m = f"{at}/MlpBlock_0"
        y = y @ w[f"{m}/Dense_0/kernel"] + w[f"{m}/Dense_0/bias"]
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        z = z + y @ w[f"{m}/Dense_1/kernel"] + w[f"{m}/Dense_1/bias"]
    y = norm(z, "Transformer/encoder_norm")[:, 0]
    return y @ w["head/kernel"] + w["head/bias"]
