"""A real pretrained ViT-S/14 and real photos: `KERAS_VIT_REAL`, CONTRIBUTING.md."""

import keras
import numpy as np
import pytest

import keras_vit

NAME = "vit_s14/vit_s14_224_google.npz"


@pytest.fixture(scope="module")
def golden(real):
    """What ONNX Runtime computed on the model the weights come from."""
    return np.load(real / "vit_s14" / "golden_224_onnxruntime.npz")


def features(real, golden, gelu):
    model = keras_vit.from_checkpoint(
        real / NAME, classifier="token_unpooled", gelu=gelu
    )
    images = (golden["images_uint8"] / 255.0 - golden["mean"]) / golden["std"]
    return keras.ops.convert_to_numpy(model(images.astype("float32")))


def test_features_are_the_golden_ones(real, golden, agree):
    expected = golden["encoder_norm_output"]
    agree("real ViT-S/14 features", features(real, golden, "erf"), expected, 1e-3)


def test_tanh_gelu_is_another_function(real, golden):
    """README of `real`: off by up to 0.064. The option is needed."""
    off = np.abs(features(real, golden, "tanh") - golden["encoder_norm_output"])
    assert off.max() == pytest.approx(0.064, abs=5e-4)


@pytest.mark.slow
@pytest.mark.tensorflow_only
def test_a_given_head_reaches_its_accuracy(real, golden):
    """`head_flowers12.npz` on those features: 96.25 % of 240 photos."""
    from keras_vit.data import pipelines, sources

    source = sources.open_source(real / "flowers12")
    backbone = keras_vit.from_checkpoint(real / NAME, gelu="erf")
    model = keras_vit.for_task(backbone, len(source.classes))
    head = np.load(real / "vit_s14" / "head_flowers12.npz")
    assert tuple(head["classes"]) == source.classes
    model.get_layer("head").set_weights([head["head/kernel"], head["head/bias"]])
    batches = pipelines.eval_pipeline(
        source.test,
        image_size=(224, 224),
        batch_size=32,
        preprocessing=keras_vit.Preprocessing(
            mean=golden["mean"].tolist(), std=golden["std"].tolist()
        ),
    )
    labels = np.concatenate([label for _, label in batches.as_numpy_iterator()])
    logits = model.predict(batches.map(lambda image, _: image), verbose=0)
    assert (logits.argmax(-1) == labels).sum() == 231
