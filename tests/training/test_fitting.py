"""`fit`: the sweep, what it writes, freezing, averaging, accumulation, errors."""

import dataclasses
import gc
import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.recipes import Recipe
from keras_vit.training import fit
from keras_vit.training.optim import MomentumSGD, WarmupDecay

tf = pytest.importorskip("tensorflow")

from keras_vit.data import sources, splits  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

CLASSES = 3


def tiny(classes=CLASSES, **changes):
    """A ViT of one layer for 32 px, the same at every call."""
    keras.utils.set_random_seed(7)
    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2, **changes
    )
    return keras_vit.vit(config, image_size=(32, 32), num_classes=classes)


def noise_of_three_colors(count, seed):
    """Images whose class is the channel that is brighter than the others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = rng.integers(0, 200, (count, 32, 32, 3))
    images[np.arange(count), :, :, labels] += 55
    return splits.Arrays(images.astype(np.uint8), labels)


@pytest.fixture(scope="module")
def source():
    return sources.Source(
        "colors",
        ("red", "green", "blue"),
        noise_of_three_colors(30, 0),
        noise_of_three_colors(13, 1),
    )


def recipe(**changes):
    settings = {
        "total_steps": 4,
        "base_lr": (0.1,),
        "held_out": 0.2,
        "warmup_steps": 1,
        "batch_size": 8,
        "image_size": (32, 32),
    }
    return Recipe(**(settings | changes))


def ready(count=4, size=8, one_hot=False, **changes):
    """Ready batches of images in [-1, 1]."""
    rng = np.random.default_rng(3)
    images = rng.uniform(-1, 1, (count * size, 32, 32, 3)).astype(np.float32)
    labels = rng.integers(0, CLASSES, count * size)
    if one_hot:
        labels = np.eye(CLASSES, dtype=np.float32)[labels]
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(ours, theirs, atol):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.fixture
def trajectory(monkeypatch):
    """The weights after every update of whatever trains."""
    seen = []

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([np.array(w) for w in self.model.get_weights()])

    real = keras.Model.fit

    def fit_and_record(self, *args, callbacks=(), **kwargs):
        return real(self, *args, callbacks=[*callbacks, Recorder()], **kwargs)

    monkeypatch.setattr(keras.Model, "fit", fit_and_record)
    return seen


@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 2}, {"ema": 0.5}])
def test_the_update_is_traced_once(source, monkeypatch, options):
    traces = []
    real = MomentumSGD.apply

    def apply(self, *args, **kwargs):
        traces.append(tf.inside_function())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MomentumSGD, "apply", apply)
    fit(tiny(), recipe(**options), source, verbose=0)
    assert traces == [True]


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "adam", "accumulation_steps": 2, "remat": True}]
)
def test_graphs_are_freed_with_their_training(source, changes):
    """`tf.custom_gradient` would keep them until the process ends."""

    def operations():
        fit(tiny(), recipe(**changes), source, verbose=0)
        gc.collect()
        return sum(isinstance(alive, tf.Operation) for alive in gc.get_objects())

    operations()  # With functions that are compiled once for all models.
    before = operations()
    assert operations() - before < 20  # tf.data keeps 6; the update has hundreds.


@pytest.mark.parametrize(("given", "others"), [("source", 1), ("ready batches", 2)])
def test_an_evaluation_has_one_iterator(source, monkeypatch, given, others):
    """Creating an iterator takes as long as an evaluation of a few images."""
    created, iterate = [], tf.data.Dataset.__iter__
    batches, judge = (source, None) if given == "source" else (ready(), ready().take(3))

    def counted(dataset):
        created.append(dataset)
        return iterate(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", counted)
    options = {"evaluations": 2, "verbose": 0}
    result = fit(tiny(), recipe(), batches, validation_data=judge, **options)
    assert sum("val_accuracy" in row for row in result.history) == 2
    # Others are the training's, and the check of the first ready batch.
    assert len(created) == others + 2


# The sweep.


@pytest.mark.slow
def test_sweep_is_judged_on_the_held_out_share_alone(source, monkeypatch):
    seen = []
    real = keras.Model.fit

    def watched(model, *args, validation_data, **options):
        seen.append(sum(len(labels) for _, labels in validation_data))
        return real(model, *args, validation_data=validation_data, **options)

    monkeypatch.setattr(keras.Model, "fit", watched)
    fit(tiny(), recipe(base_lr=(0.01, 0.02)), source, verbose=0)
    assert seen == [6, 6, 13]  # A fifth of 30, twice; then the test set.


# What is written.


def accuracy_by_hand(model, split):
    images = keras_vit.preprocess_input(split.images)
    right = np.argmax(model.predict(images, verbose=0), -1) == split.labels
    return np.mean(right)


def test_a_broken_save_leaves_the_old_file(source, tmp_path, monkeypatch):
    (tmp_path / "best.keras").write_bytes(b"old")

    def half(self, path, *args, **kwargs):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "save", half)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny(), recipe(), source, output=tmp_path, verbose=0)
    assert (tmp_path / "best.keras").read_bytes() == b"old"
    names = sorted(path.name for path in tmp_path.iterdir())
    lines = ["certificate.jsonl", "history.jsonl", "start", "tensorboard"]
    assert names == ["begun.json", "best.keras", *lines]


def test_a_full_disk_costs_the_best_model_and_the_last_is_an_error(
    source, tmp_path, monkeypatch
):
    for name in ("best.keras", "model.keras"):
        (tmp_path / name).write_bytes(b"old")

    def full(self, path, *args, **kwargs):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    goes_on = r"without the best evaluation's model\..*best\.keras.*Free some space"
    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "save", full)
        with (
            pytest.raises(OSError, match=r"Cannot write .*model\.keras.*Free"),
            pytest.warns(UserWarning, match=goes_on),
        ):
            fit(tiny(), recipe(), source, output=tmp_path, verbose=0)
    for name in ("best.keras", "model.keras"):
        assert (tmp_path / name).read_bytes() == b"old"
    result = fit(tiny(), recipe(), source, output=tmp_path, verbose=0)  # Is finished.
    last = keras.models.load_model(tmp_path / "model.keras")
    assert accuracy_by_hand(last, source.test) == pytest.approx(result.test_accuracy)


def test_an_unwritable_output_stops_before_the_training(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write .*file.*Choose another folder"):
        fit(tiny(), recipe(), source, output=tmp_path / "file", verbose=0)


# Freezing.


def test_gray_models_and_gray_images(source):
    gray = keras_vit.vit(
        keras_vit.ViTConfig(
            patch_size=16, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2
        ),
        image_size=(32, 32),
        num_classes=CLASSES,
        num_channels=1,
    )
    images = source.train.images[..., :1]
    data = dataclasses.replace(
        source, train=splits.Arrays(images, source.train.labels), test=None
    )
    fit(gray, recipe(), data, verbose=0)  # One channel as it is.
    fit(gray, recipe(), source, verbose=0)  # RGB as its luma.
    fit(tiny(), recipe(), data, verbose=0)  # Gray repeated.
    four = np.repeat(images, 4, axis=-1)
    data = dataclasses.replace(
        source, train=splits.Arrays(four, source.train.labels), test=None
    )
    with pytest.raises(ValueError, match=r"of 3 channels, .*Received: .*of 4 channels"):
        fit(tiny(), recipe(), data, verbose=0)


# What recipes other than Table 4's ask for.


def one_step(**changes):
    """A model after one update on one ready batch, and the loss before it."""
    settings = recipe(**({"total_steps": 1, "warmup_steps": 0} | changes))
    model = with_a_head()
    history = fit(model, settings, ready(count=1), verbose=0).history
    return model, history[0]["loss"]


def with_a_head(**changes):
    """`tiny` with a head that is not zero, so that gradients reach below it."""
    model = tiny(**changes)
    kernel, bias = model.get_layer("head").get_weights()
    rng = np.random.default_rng(1)
    model.get_layer("head").set_weights([rng.normal(size=kernel.shape), bias])
    return model


# Counting.


def test_every_test_image_counts_once(source):
    """In the accuracy and in the loss, the mean cross-entropy of the softmax."""
    model = tiny()
    result = fit(model, recipe(), source, verbose=0)
    assert result.test_images == 13  # Batches of 8 and 5.
    assert result.test_accuracy == pytest.approx(accuracy_by_hand(model, source.test))
    images = keras_vit.preprocess_input(source.test.images)
    logits = model.predict(images, verbose=0).astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(13), source.test.labels]
    assert result.history[-1]["val_loss"] == pytest.approx(losses.mean(), rel=1e-6)


def test_a_prime_number_of_steps_is_trained_to_its_end(source, trajectory):
    result = fit(tiny(), recipe(total_steps=11), source, verbose=0)
    assert len(trajectory) == 11
    assert len(result.history) == 1


# Ready batches.


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            lambda: (np.zeros((4, 32, 32, 3)), np.zeros(4)),
            r"Received: tuple\. Convert arrays to batches",
        ),
        (lambda: ready().unbatch(), r"Batch it with Dataset\.batch"),
        (lambda: ready().map(lambda image, label: image), r"Received: a tf\.data"),
        (lambda: ready().take(0), "an empty tf"),
        (lambda: ready().map(lambda image, label: (image, label - 1)), "Received: -1"),
    ],
)
def test_what_is_no_ready_batches_is_one_error(data, message):
    with pytest.raises(ValueError, match=message):
        fit(tiny(), recipe(), data(), verbose=0)


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1])
def test_a_sweep_wants_a_share(held_out):
    with pytest.raises(ValueError, match="held_out"):
        recipe(base_lr=(0.1, 0.2), held_out=held_out)


def test_ready_batches_repeat_until_the_steps_are_done(trajectory):
    fit(tiny(), recipe(total_steps=6), ready(count=2), verbose=0)
    assert len(trajectory) == 6


def test_ready_batches_are_judged_by_the_validation_data():
    model = tiny()
    result = fit(
        model, recipe(), ready(), validation_data=ready(one_hot=False), verbose=0
    )
    assert result.test_accuracy == result.history[-1]["val_accuracy"]
    assert result.test_images == 0


def scaled(factor, offset=0.0):
    return ready().map(lambda image, label: (image * factor + offset, label))


def warned(batches, **options):
    """What `fit` warns of, and that it says so at its caller."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        fit(tiny(), recipe(), batches, verbose=0, **options)
    seen = [warning for warning in seen if warning.category is UserWarning]
    assert all(warning.filename == __file__ for warning in seen)
    return [str(warning.message) for warning in seen]


def test_images_out_of_range_warn_once():
    (message,) = warned(scaled(127.5, 127.5))
    assert message.startswith("Expected images in [-1, 1] (mean=(0.5, 0.5, 0.5)")
    assert "preprocess_input" in message


def test_range_is_that_of_mean_and_std():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    imagenet = {"preprocessing": keras_vit.Preprocessing(mean=mean, std=std)}
    (message,) = warned(scaled(3.0), **imagenet)
    assert "Expected images in [-2.1179, 2.64]" in message
    assert warned(scaled(2.0), **imagenet) == []


def test_fewer_images_than_a_batch_warn(source):
    with pytest.warns(
        UserWarning, match="30 training images are fewer than batch_size"
    ):
        fit(
            tiny(),
            recipe(total_steps=1, warmup_steps=0, batch_size=32),
            source,
            verbose=0,
        )


@pytest.mark.parametrize("data", ["source", "one_hot", "integer"])
def test_wrong_class_count_names_for_task(source, data):
    data = {"source": source, "one_hot": ready(one_hot=True), "integer": ready()}[data]
    with pytest.raises(ValueError, match=r"one logit for each class.*for_task"):
        fit(tiny(2), recipe(), data, verbose=0)


@pytest.mark.parametrize("softmax", [keras.layers.Softmax(), keras.ops.softmax])
def test_probabilities_are_no_logits(source, softmax):
    model = tiny()
    shares = keras.Model(model.input, softmax(model.output))
    with pytest.raises(ValueError, match=r"applies softmax.*for_task"):
        fit(shares, recipe(), source, verbose=0)


def test_features_without_a_head_name_for_task(source):
    with pytest.raises(ValueError, match=r"\(None, 16\).*for_task\(model, 3\)"):
        fit(tiny(None), recipe(), source, verbose=0)


def test_probabilities_are_not_logits(source):
    model = keras_vit.ViT_Ti16(weights=None, classes=3, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match=r"logit.*softmax.*classifier_activation=None"):
        fit(model, recipe(), source, verbose=0)


def test_ready_batches_need_one_rate():
    with pytest.raises(ValueError, match=r"one learning rate.*base_lr=\(0.1, 0.2\)"):
        fit(tiny(), recipe(base_lr=(0.1, 0.2)), ready(), verbose=0)


# The optimizer.


def test_momentum_sgd_round_trips_its_config():
    optimizer = MomentumSGD(
        WarmupDecay(0.1, 10, 2), 0.8, global_clipnorm=1.0, use_ema=True
    )
    config = json.dumps(keras.saving.serialize_keras_object(optimizer))
    copy = keras.saving.deserialize_keras_object(json.loads(config))
    assert json.dumps(keras.saving.serialize_keras_object(copy)) == config
    assert copy.momentum == 0.8
    assert copy.global_clipnorm == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 10, 2, "step"), r"'cosine' or 'linear'. Received: decay='step'"),
        ((0.1, 10, 10), r"warmup_steps=10, total_steps=10"),
        ((0.1, 10, -1), r"warmup_steps=-1"),
    ],
)
def test_warmup_decay_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupDecay(*arguments)
