"""A user's whole path, word for word, with a full-size file from a loopback mirror."""

import http.server
import threading
import warnings

import keras
import numpy as np
import pytest

import keras_vit

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# ViT-L/16's names in the official checkpoints, written out: not from our own code.
D, M, H, LAYERS, TOKENS, CLASSES = 1024, 4096, 16, 24, 197, 21843


def official_shapes():
    """Names (pre-linen) and shapes of imagenet21k/ViT-L_16.npz, 1.22 GiB."""
    yield "embedding/kernel", (16, 16, 3, D)
    yield "embedding/bias", (D,)
    yield "cls", (1, 1, D)
    yield "Transformer/posembed_input/pos_embedding", (1, TOKENS, D)
    for i in range(LAYERS):
        at = f"Transformer/encoderblock_{i}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            yield f"{at}/{norm}/scale", (D,)
            yield f"{at}/{norm}/bias", (D,)
        attention = f"{at}/MultiHeadDotProductAttention_1"
        for matrix in ("query", "key", "value"):
            yield f"{attention}/{matrix}/kernel", (D, H, D // H)
            yield f"{attention}/{matrix}/bias", (H, D // H)
        yield f"{attention}/out/kernel", (H, D // H, D)
        yield f"{attention}/out/bias", (D,)
        yield f"{at}/MlpBlock_3/Dense_0/kernel", (D, M)
        yield f"{at}/MlpBlock_3/Dense_0/bias", (M,)
        yield f"{at}/MlpBlock_3/Dense_1/kernel", (M, D)
        yield f"{at}/MlpBlock_3/Dense_1/bias", (D,)
    yield "Transformer/encoder_norm/scale", (D,)
    yield "Transformer/encoder_norm/bias", (D,)
    yield "pre_logits/kernel", (D, D)
    yield "pre_logits/bias", (D,)
    yield "head/kernel", (D, CLASSES)
    yield "head/bias", (CLASSES,)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Serves the file under the bucket's own path; yields the requests it got."""
    rng = np.random.default_rng(0)
    tensors = {
        name: np.zeros(shape, np.float32)
        if name.startswith("head")
        else 0.02 * rng.standard_normal(shape, np.float32)
        for name, shape in official_shapes()
    }
    (tmp_path / "served/imagenet21k").mkdir(parents=True)
    np.savez(tmp_path / "served/imagenet21k/ViT-L_16.npz", **tensors)
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path / "served")

        def log_message(self, *args):
            requests.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    server.server_close()


def test_the_users_whole_path(mirror, tmp_path):
    import tensorflow as tf

    with pytest.warns(UserWarning, match="uniform until fine-tuned.*imagenet2012"):
        model = keras_vit.ViT_L16(weights="imagenet21k")
    assert model.output_shape == (None, CLASSES)
    images = keras_vit.preprocess_input(
        np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3), np.uint8)
    )
    np.testing.assert_allclose(model(images[:1]), 1 / CLASSES, rtol=1e-6)
    del model

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = keras_vit.ViT_L16(weights="imagenet21k", classes=10)
    assert len(mirror) == 1  # The second model came from the cache.
    before = model.get_layer("encoderblock_23").mlp.dense_1.kernel.numpy()
    model.compile(
        keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", run_eagerly=False
    )
    history = model.fit(images, np.array([3, 7]), batch_size=2, epochs=2, verbose=0)
    first, second = history.history["loss"]
    assert first == pytest.approx(np.log(10), rel=1e-4)  # A zero head is uniform.
    assert second < first
    # The zero head passes no gradient down at first: the body moves at the second step.
    after = model.get_layer("encoderblock_23").mlp.dense_1.kernel.numpy()
    assert np.abs(after - before).max() > 0

    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    served = exported.serve(images)
    np.testing.assert_allclose(served, model.predict(images, verbose=0), atol=1e-6)
