"""`fit` with masked patch prediction (4.6, B.1.2): recipes, resume, bad input."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.recipes import PRETRAIN, Recipe
from keras_vit.self_supervision import MaskedPatchPredictor
from keras_vit.training import fit, resume
from tests import photos
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401
from tests.training.test_resume import Cut, assert_same_run, cut

tf = pytest.importorskip("tensorflow")

from keras_vit.data import sources, splits  # noqa: E402
from keras_vit.training import distribution  # noqa: E402

EVERYTHING = {"corrupt": 1.0, "mask": 1.0, "replace": 0.0, "keep": 0.0}
ADAM = {"optimizer": "adam", "base_lr": (1e-2,), "weight_decay": 0.1}


def predictor(target="mean_color", patch_size=8, **options):
    """The same at every call."""
    keras.utils.set_random_seed(7)
    config = keras_vit.ViTConfig(
        patch_size=patch_size, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2
    )
    backbone = keras_vit.vit(config, image_size=(32, 32), num_classes=None)
    return MaskedPatchPredictor(backbone, target, **options)


@pytest.mark.tensorflow_only
def test_labels_are_not_read(source):  # noqa: F811
    """Nor are there classes: those of the source are no outputs of the model."""
    nameless = dataclasses.replace(
        source,
        classes=("?",),
        train=splits.Arrays(source.train.images, 0 * source.train.labels),
    )
    one, other = (
        fit(predictor(), recipe(), data, verbose=0) for data in (source, nameless)
    )
    assert one == other


@pytest.mark.parametrize("target", ["mean_color", "4x4", "l2"])
def test_a_run(target, source, tmp_path):  # noqa: F811
    settings = recipe(total_steps=20, batch_size=16, **ADAM)
    result = fit(predictor(target), settings, source, output=tmp_path, verbose=0)
    first, *_, last = result.history
    assert last["val_loss"] < first["val_loss"]
    assert ("val_accuracy" in last) == (target != "l2")
    assert result.test_accuracy == last.get("val_accuracy")
    tags = keras_vit.training.callbacks.read(tmp_path / "tensorboard")
    assert ("train/accuracy" in tags) == (target != "l2")
    assert len(tags["evaluation/loss"]) == len(result.history)
    best = keras.models.load_model(tmp_path / "best.keras")
    assert isinstance(best, MaskedPatchPredictor)


@pytest.mark.parametrize("options", [{"remat": True}, {"accumulation_steps": 4}])
def test_in_parts_or_twice_is_the_same_training(options, source):  # noqa: F811
    """Where every patch is hidden: other batches draw otherwise."""
    settings = recipe(total_steps=4, batch_size=8, clip_norm=1.0)
    whole, other = predictor(**EVERYTHING), predictor(**EVERYTHING)
    expected = fit(whole, settings, source, verbose=0).history
    changed = dataclasses.replace(settings, **options)
    found = fit(other, changed, source, verbose=0).history
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    for a, b in zip(whole.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert "train_step" not in vars(other)


RUN = recipe(
    total_steps=12, warmup_steps=2, ema=0.5, batch_size=8, accumulation_steps=2, **ADAM
)


def train(folder, source):  # noqa: F811
    model = predictor()
    return model, fit(model, RUN, source, output=folder, save_steps=4, verbose=0)


@pytest.fixture(scope="module")
def uncut(source, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("uncut")
    return folder, *train(folder, source)


@pytest.mark.tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count"),
    [("on_train_batch_end", 6), ("on_test_batch_end", 3)],
)
def test_cut_anywhere(event, count, source, uncut, tmp_path, monkeypatch):  # noqa: F811
    """Weights, moments and the draws of the corruption come back to the bit."""
    with monkeypatch.context() as patch:
        cut(patch, event, count)
        with pytest.raises(Cut):
            train(tmp_path, source)
    model, result = train(tmp_path, source)
    folder, whole, expected = uncut
    assert result == expected
    for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same_run(tmp_path, folder, RUN.total_steps)


def of_some_opinion():
    """A predictor whose head is no longer zeros."""
    model = predictor()
    kernel = model.get_layer("prediction").kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape, scale=0.5))
    return model


GENTLY = recipe(base_lr=(0.003,), total_steps=10)


@pytest.fixture(scope="module")
def in_float32(source):  # noqa: F811
    history = fit(of_some_opinion(), GENTLY, source, verbose=0).history
    assert abs(history[0]["val_loss"] - np.log(512)) > 0.5
    return history


@pytest.mark.parametrize(
    ("policy", "evaluations"),
    [("mixed_bfloat16", 10), ("mixed_float16", 1)],  # Then it looks for its scale.
)
def test_mixed_precision(policy, evaluations, source, in_float32):  # noqa: F811
    keras.config.set_dtype_policy(policy)
    try:
        model = of_some_opinion()
    finally:
        keras.config.set_dtype_policy("float32")
    history = fit(model, GENTLY, source, verbose=0).history
    for ours, theirs in zip(history[:evaluations], in_float32, strict=False):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], abs=2e-2)
    assert history[-1]["val_loss"] < history[0]["val_loss"] - 0.3


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "change",
    [
        {"corrupt": 0.25},
        {"mask": 1.0, "replace": 0.0, "keep": 0.0},
        {"target": "4x4"},
        {"seed": 3},
    ],
)
def test_a_run_goes_on_with_the_same_task_alone(change, source, uncut):  # noqa: F811
    folder, _, _ = uncut
    field = next(iter(change))
    was = predictor().get_config()[field]
    message = rf"objective.{field} was {json.dumps(was)}, is"
    with pytest.raises(ValueError, match=message):
        fit(predictor(**change), RUN, source, output=folder, verbose=0)


@pytest.mark.tensorflow_only
def test_images_are_normalized_as_the_model_expects(source):  # noqa: F811
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    other = {"preprocessing": keras_vit.Preprocessing(mean=mean, std=std)}
    with pytest.raises(ValueError, match=r"Received: .*mean 0.485.* mean 0.5"):
        fit(predictor(), recipe(), source, verbose=0, **other)
    result = fit(predictor(**other), recipe(), source, verbose=0, **other)
    assert np.isfinite(result.history[-1]["val_loss"])


def test_the_best_evaluation_is_of_the_least_loss(tmp_path):
    keeper = resume.CheckpointCallback(
        30,
        10,
        [],
        distribution.Workers.under(tf.distribute.get_strategy()),
        by_loss=True,
    )
    saved = []
    keeper.save_best = lambda: saved.append(keeper.rows[-1]["val_loss"])
    for loss, accuracy in ((3.0, 0.3), (2.0, 0.2), (2.5, 0.5)):
        keeper.on_epoch_end(
            0, {"loss": 0.0, "val_loss": loss, "val_accuracy": accuracy}
        )
    assert saved == [3.0, 2.0]


@pytest.mark.tensorflow_only
def test_weights_of_images_count_in_parts_too():
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (16, 32, 32, 3)).astype("float32")
    weights = rng.uniform(0, 2, 16).astype("float32")
    ready = tf.data.Dataset.from_tensor_slices((images, np.zeros(16), weights)).batch(8)
    histories = []
    for parts in (1, 4):
        settings = recipe(accumulation_steps=parts, total_steps=2)
        result = fit(predictor(**EVERYTHING), settings, ready, verbose=0)
        histories.append(result.history)
    for ours, theirs in zip(*histories, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.tensorflow_only
def test_ready_batches_need_no_labels():
    images = np.random.default_rng(0).uniform(-1, 1, (16, 32, 32, 3)).astype("float32")
    alone = tf.data.Dataset.from_tensor_slices(images).batch(8)
    labelled = tf.data.Dataset.from_tensor_slices((images, np.zeros(16))).batch(8)
    histories = [
        fit(predictor(), recipe(), batches, validation_data=batches, verbose=0).history
        for batches in (alone, labelled)
    ]
    assert histories[0] == histories[1]
    assert "val_loss" in histories[0][0]
    with pytest.raises(ValueError, match=r"images \[B, H, W, C\]"):
        fit(predictor(), recipe(), alone.unbatch(), verbose=0)


@pytest.mark.tensorflow_only
def test_images_that_are_not_scaled_are_told():
    """Every color would be the brightest: the known bug of another port."""
    images = np.full((8, 32, 32, 3), 200, "float32")
    batches = tf.data.Dataset.from_tensor_slices(images).batch(8)
    with pytest.warns(UserWarning, match=r"Expected images in \[-1, 1\]"):
        fit(predictor(), recipe(), batches, verbose=0)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "change",
    [
        {"base_lr": (0.1, 0.01), "held_out": 0.1},
        {"loss": "sigmoid"},
        {"label_smoothing": 0.1},
        {"freeze": True},
        {"lora_rank": 2},
    ],
)
def test_recipes_that_cannot_be_followed(change, source):  # noqa: F811
    field = next(iter(change))
    with pytest.raises(
        ValueError, match=rf"a model with its own loss. Received: .*{field}="
    ):
        fit(predictor(), recipe(**change), source, verbose=0)


@pytest.mark.tensorflow_only
def test_the_recipe_of_the_paper():
    """B.1.2, as PAPER.md has it."""
    row = PRETRAIN["masked-patches"]
    expected = {
        "optimizer": "adam",
        "base_lr": (2e-4,),
        "warmup_steps": 10_000,
        "decay": "cosine",
        "batch_size": 4096,
        "total_steps": 1_000_000,
    }
    assert {name: getattr(row, name) for name in expected} == expected
    assert keras_vit.recipes.source("masked-patches").endswith("B.1.2 (4.6)")


@pytest.mark.tensorflow_only
@pytest.mark.slow
def test_more_is_learnt_than_how_common_colors_are():
    """Below the entropy of the test colors, what a guess by frequency costs at least.

    300 updates; `examples/masked_patches.py` makes thousands.
    """
    train, test = np.split(photos.tiles(32), [900])
    train, test = (splits.Arrays(x, np.zeros(len(x), int)) for x in (train, test))
    data = sources.Source("photos", ("any",), train, test)
    model = predictor(patch_size=4)
    settings = Recipe(
        total_steps=300,
        base_lr=(3e-3,),
        optimizer="adam",
        beta2=0.95,
        batch_size=64,
        warmup_steps=30,
        image_size=(32, 32),
        augment="flip",
    )
    result = fit(model, settings, data, verbose=0)
    labels = keras.ops.convert_to_numpy(
        model.targets(data.test.images / np.float32(127.5) - 1)
    )
    shares = np.bincount(labels.ravel(), minlength=512) / labels.size
    entropy = -np.sum(shares * np.log(shares, where=shares > 0, out=0 * shares))
    assert result.history[-1]["val_loss"] < entropy - 0.5


@pytest.mark.tensorflow_only
def test_the_commands(source, tmp_path, shell):  # noqa: F811
    """pretrain, inspect, finetune, fewshot; predict says what is missing."""
    data = tmp_path / "data.npz"
    np.savez(
        data,
        x_train=source.train.images,
        y_train=source.train.labels,
        x_test=source.test.images,
        y_test=source.test.labels,
    )
    run, tuned = tmp_path / "masked", tmp_path / "tuned"
    code, out, err = shell(
        *("pretrain", "--objective", "masked-patches", "--data", data),
        *("--patch-size", 8, "--layers", 1, "--hidden-size", 16, "--mlp-dim", 32),
        *("--heads", 2, "--image-size", 32, "--batch-size", 8, "--steps", 4),
        *("--lr", 1e-3, "--target", "4x4", "--corrupt", 0.25, "--output", run),
    )
    assert code == 0, err
    assert "masked patches of test images: loss" in out
    told = json.loads((run / "run.json").read_text())["details"]
    assert told["objective"] == "masked-patches"
    model = keras.models.load_model(run / "model.keras")
    assert (model.target, model.corrupt) == ("4x4", 0.25)

    code, out, err = shell("inspect", run, "--count", 3)
    assert code == 0, err
    assert (run / "reconstructions.png").read_bytes()[:4] == b"\x89PNG"

    code, out, err = shell(
        *("finetune", "--model", run, "--data", data, "--steps", 2, "--lr", 0.1),
        *("--batch-size", 8, "--augment", "none", "--output", tuned),
    )
    assert code == 0, err
    assert "test accuracy" in out
    code, out, err = shell("inspect", tuned)
    assert code == 0, err
    assert "Predictions" in (tuned / "inspect.html").read_text()

    code, out, err = shell(
        *("fewshot", "--model", run, "--data", data, "--shots", 2, "--seeds", 1)
    )
    assert code == 0, err
    assert "features of width 16" in out

    code, out, err = shell("predict", "--model", run, tmp_path / "data.npz")
    assert code == 1
    assert "masked patch prediction. keras-vit finetune --model" in err
    code, out, err = shell(
        *("finetune", "--model", run, "--data", data, "--weights", "imagenet21k")
    )
    assert code == 1
    assert "which has its own" in err
