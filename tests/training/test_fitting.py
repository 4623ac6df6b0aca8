"""`fit`: the sweep, what it writes, freezing, averaging, accumulation, errors."""

import dataclasses
import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.recipes import Recipe
from keras_vit.training import fit, preparing
from keras_vit.training.optim import MomentumSGD, WarmupDecay

tf = pytest.importorskip("tensorflow")

from keras_vit.data import pipelines, sources, splits  # noqa: E402
from keras_vit.training.distribution import Workers  # noqa: E402
from keras_vit.training.inputs import Batches  # noqa: E402

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


# The sweep.


@pytest.mark.slow
@pytest.mark.parametrize("dropout_rate", [0.0, 0.1])
def test_sweep_takes_the_better_rate_from_the_same_start(source, dropout_rate):
    swept, single = (tiny(dropout_rate=dropout_rate) for _ in range(2))
    settings = recipe(total_steps=12, base_lr=(1e-6, 0.3))
    result = fit(swept, settings, source, verbose=0)
    assert result.learning_rate == 0.3
    assert result.sweep[0.3] > result.sweep[1e-6]
    one = dataclasses.replace(settings, base_lr=(0.3,))
    assert fit(single, one, source, verbose=0).sweep == {}
    assert_equal(swept.get_weights(), single.get_weights())


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


def test_output_is_whole_and_reloads(source, tmp_path):
    model = tiny()
    result = fit(model, recipe(), source, output=tmp_path / "run", verbose=0)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    kept = ["begun.json", "best.keras", "checkpoints"]
    told = ["history.json", "history.jsonl", "model.keras", "tensorboard"]
    assert names == [*kept, *told]
    written = json.loads((tmp_path / "run/history.json").read_text())
    assert written["history"] == result.history
    assert written["recipe"]["base_lr"] == [0.1]
    lines = (tmp_path / "run/history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history
    assert [row["step"] for row in result.history] == [1, 2, 3, 4]
    reloaded = keras.models.load_model(tmp_path / "run/model.keras")
    assert_equal(reloaded.get_weights(), model.get_weights())
    assert_equal(
        [variable.numpy() for variable in reloaded.optimizer.variables],
        [variable.numpy() for variable in model.optimizer.variables],
    )


@pytest.mark.parametrize("ema", [None, 0.5])
def test_best_is_the_best_evaluation(source, tmp_path, ema):
    # So high a rate that the evaluations go up and down.
    settings = recipe(total_steps=10, base_lr=(1.0,), ema=ema)
    result = fit(tiny(), settings, source, output=tmp_path, verbose=0)
    accuracies = [row["val_accuracy"] for row in result.history]
    best = keras.models.load_model(tmp_path / "best.keras")
    assert accuracy_by_hand(best, source.test) == pytest.approx(max(accuracies))
    assert min(accuracies) < max(accuracies)


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
    assert names == ["begun.json", "best.keras", "history.jsonl", "tensorboard"]


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
            pytest.raises(OSError, match=r"right to write .*model\.keras.*Free"),
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
    with pytest.raises(OSError, match=r"right to write .*file.*Choose another folder"):
        fit(tiny(), recipe(), source, output=tmp_path / "file", verbose=0)


# Freezing.


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_freeze_trains_the_head_alone(source, augment):
    model, start = tiny(), tiny()
    fit(model, recipe(freeze=True, augment=augment), source, verbose=0)
    for layer, before in zip(model.layers, start.layers, strict=True):
        if layer.name == "head":
            assert np.abs(layer.get_weights()[0]).max() > 0
        else:
            assert_equal(layer.get_weights(), before.get_weights())


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulation_steps": 4}, {"ema": 0.5}, {"base_lr": (0.1, 0.2)}],
    ids=str,
)
def test_features_computed_once_change_nothing(source, monkeypatch, changes):
    settings = recipe(freeze=True, augment="none", **changes)
    short, long = tiny(), tiny()
    quick = fit(short, settings, source, verbose=0)
    monkeypatch.setattr(Batches, "on_features", lambda self: False)
    slow = fit(long, settings, source, verbose=0)
    assert_close(short.get_weights(), long.get_weights(), 1e-5)
    for a, b in zip(quick.history, slow.history, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_a_second_stage_trains_every_layer(source, tmp_path, augment):
    """Frozen while the recipe says so, in no file and not afterwards."""
    model = tiny()
    model.get_layer("encoderblock_0").mlp.trainable = False  # The user's own wish.
    trainable = [v.path for v in model.trainable_variables]
    stage = recipe(freeze=True, augment=augment)
    fit(model, stage, source, output=tmp_path, verbose=0)
    assert [v.path for v in model.trainable_variables] == trainable
    before = model.get_layer("embedding").get_weights()
    for name in ("model.keras", "best.keras"):
        saved = keras.models.load_model(tmp_path / name)
        assert len(saved.trainable_variables) == len(trainable)
    fit(model, recipe(), source, verbose=0)
    assert np.abs(model.get_layer("embedding").get_weights()[0] - before[0]).max() > 0


def test_freezing_wants_a_head(source):
    features = tiny(classes=None)
    mine = keras.layers.Dense(CLASSES, name="mine")(features.output)
    model = keras.Model(features.input, mine)
    with pytest.raises(ValueError, match=r"layer named 'head'.*for_task"):
        fit(model, recipe(freeze=True), source, verbose=0)


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


def test_features_that_dropout_changes_are_not_computed_once(source, monkeypatch):
    model = tiny(dropout_rate=0.5)
    monkeypatch.setattr(Batches, "read_features", None)
    fit(model, recipe(freeze=True, augment="none"), source, verbose=0)


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}], ids=str)
def test_rematerialisation_changes_nothing_but_memory(source, changes):
    model, plain = tiny(dropout_rate=0.3), tiny(dropout_rate=0.3)
    result = fit(model, recipe(remat=True, **changes), source, verbose=0)
    assert result.history[-1] == pytest.approx(
        fit(plain, recipe(**changes), source, verbose=0).history[-1], rel=1e-4
    )
    assert_close(model.get_weights(), plain.get_weights(), 1e-5)
    assert not model.get_layer("encoderblock_0").remat
    dense = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten()])
    dense.add(keras.layers.Dense(CLASSES, name="head"))
    with pytest.raises(ValueError, match="Transformer blocks for remat=True"):
        fit(dense, recipe(remat=True), source, verbose=0)


# Averaging.


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}], ids=str)
def test_ema_is_the_polyak_average_of_the_trajectory(source, trajectory, changes):
    model = tiny()
    settings = recipe(total_steps=6, ema=0.8, **changes)
    result = fit(model, settings, source, verbose=0)
    assert len(trajectory) == 6
    average = trajectory[0]
    for weights in trajectory[1:]:
        average = [0.8 * a + 0.2 * w for a, w in zip(average, weights, strict=True)]
    assert_close(model.get_weights(), average, 1e-6)
    assert np.abs(average[-2] - trajectory[-1][-2]).max() > 1e-4  # Not the last.
    batches = pipelines.eval_pipeline(source.test, image_size=(32, 32), batch_size=8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    loss, accuracy = model.evaluate(batches, verbose=0)
    assert result.history[-1]["val_loss"] == pytest.approx(loss, abs=1e-6)
    assert result.test_accuracy == pytest.approx(accuracy)


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_ema_starts_from_the_weights_after_the_first_update(
    source, trajectory, warmup_steps
):
    """Keras's rule. From the initial weights it is ema^T (w_1 - w_0) less, by hand.

    A warm-up's first rate is 0, so w_1 is w_0 and both rules are one.
    """
    model = tiny()
    initial = model.get_weights()
    settings = recipe(total_steps=6, ema=0.8, warmup_steps=warmup_steps)
    fit(model, settings, source, verbose=0)
    first = trajectory[0]
    official = initial
    for weights in trajectory:
        official = [0.8 * a + 0.2 * w for a, w in zip(official, weights, strict=True)]
    moved = [w - i for w, i in zip(first, initial, strict=True)]
    ours = [a + 0.8**6 * m for a, m in zip(official, moved, strict=True)]
    assert_close(model.get_weights(), ours, 1e-6)
    farthest = max(np.abs(m).max() for m in moved)
    assert (farthest == 0) if warmup_steps else (farthest > 1e-4)


# Accumulation.


def test_accumulation_needs_batches_it_can_cut():
    with pytest.raises(ValueError, match=r"batches of a multiple of .*=4.*of 6"):
        fit(tiny(), recipe(accumulation_steps=4), ready(size=6), verbose=0)


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


def batch():
    images, labels = next(iter(ready(count=1)))
    return images, np.eye(CLASSES)[labels.numpy()]


def test_losses_are_the_recipes():
    images, labels = batch()
    logits = with_a_head()(images).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    smooth = 0.9 * labels + 0.1 / CLASSES
    expected = {
        (): -(labels * log_p).sum(-1).mean(),
        (("label_smoothing", 0.1),): -(smooth * log_p).sum(-1).mean(),
        (("loss", "sigmoid"),): (np.log1p(np.exp(logits)) - labels * logits)
        .sum(-1)
        .mean(),
    }
    for changes, loss in expected.items():
        assert one_step(**dict(changes))[1] == pytest.approx(loss, abs=1e-5)


def test_layer_decay_slows_the_layers_below():
    start = with_a_head()
    whole, _ = one_step()
    decayed, _ = one_step(layer_decay=0.5)
    depths = {"embedding": 0.25, "encoderblock_0": 0.5, "encoder_norm": 1.0, "head": 1}
    for name, rate in depths.items():
        a, b, c = (
            np.concatenate([w.ravel() for w in model.get_layer(name).get_weights()])
            for model in (start, whole, decayed)
        )
        assert np.abs(b - a).max() > 1e-4
        np.testing.assert_allclose(c - a, rate * (b - a), rtol=0, atol=1e-6)


def test_lora_and_the_head_alone_train(source, tmp_path):
    model, start = tiny(), tiny()
    settings = recipe(lora_rank=2)
    fit(model, settings, source, output=tmp_path, verbose=0)
    block = model.get_layer("encoderblock_0")
    dense = [block.attention.qkv, block.attention.out]
    dense += [block.mlp.dense_0, block.mlp.dense_1]
    assert all(layer.lora_rank == 2 for layer in dense)
    assert all(layer.lora_kernel_b.numpy().any() for layer in dense)
    theirs = {variable.path: variable.numpy() for variable in start.weights}
    for variable in model.weights:
        if "lora" not in variable.path and not variable.path.startswith("head"):
            np.testing.assert_array_equal(variable.numpy(), theirs[variable.path])
    images = source.test.images.astype(np.float32)
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again.predict(images), model.predict(images), 1e-5)
    with pytest.raises(ValueError, match=r"lora_rank=3, model='vit' with 2"):
        fit(model, recipe(lora_rank=3), source, verbose=0)


def test_models_are_built_with_the_recipes_options(source):
    settings = recipe(stochastic_depth=0.1, dropout_rate=0.1, head_bias_init=-6.9)
    wrong = [
        (tiny(), "dropout_rate=0.1.*with 0.0"),
        (tiny(dropout_rate=0.1), "stochastic_depth_rate=0.1.*with 0.0"),
    ]
    for model, message in wrong:
        with pytest.raises(ValueError, match=message):
            fit(model, settings, source, verbose=0)
    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=2, hidden_size=16, mlp_dim=32, num_heads=2
    )
    config = dataclasses.replace(config, **settings.model_options())
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=CLASSES)
    other = dataclasses.replace(settings, head_bias_init=-10.0)
    with pytest.raises(ValueError, match=r"head_bias_init=-10.0.*with -6.9"):
        fit(model, other, source, verbose=0)
    fit(model, settings, source, verbose=0)
    preparing.check_options(model, other)  # The head has learnt: its bias is its own.


def test_epochs_are_counted_in_images(source, trajectory):
    settings = recipe(total_steps=None, epochs=2)
    fit(tiny(), settings, source, verbose=0)
    assert len(trajectory) == 8  # 2 * 30 / 8, rounded.
    with pytest.raises(ValueError, match=r"recipe of steps.*epochs=2.*for_images"):
        fit(tiny(), settings, ready(), verbose=0)


def test_augmented_batches(source):
    """Each by its own function, from keys of (seed, epoch, place) and (seed, step)."""
    settings = recipe(
        randaugment=(2, 9), random_erasing=1.0, mixup=0.2, cutmix=1.0, augment="flip"
    )
    model = tiny()
    workers = Workers.of(model)
    made = Batches(model, settings, source, None, OFFICIAL, 0, 0, workers)
    train, test = made.all()
    images, labels = next(iter(train(start_step=3)))
    again, _ = next(iter(train(start_step=0).skip(3)))
    assert (images.numpy() == again.numpy()).all()
    assert labels.shape == (8, CLASSES)
    np.testing.assert_allclose(labels.numpy().sum(-1), 1, atol=1e-6)
    flips = recipe(augment="flip")
    plain = Batches(model, flips, source, None, OFFICIAL, 0, 0, workers)
    other, _ = next(iter(plain.all()[0](start_step=3)))
    assert (images.numpy() != other.numpy()).mean() > 0.1
    assert next(iter(test.batches))[1].shape[-1] == CLASSES
    result = fit(tiny(), settings, source, verbose=0)
    assert result.test_accuracy is not None


@pytest.mark.parametrize("sides", [(160, 128), (512, 480)])
@pytest.mark.parametrize("image_size", [(32, 32), (64, 96), (224, 224)])
def test_a_crop_shows_the_recipes_share_at_every_size(sides, image_size):
    """BiT's rule is for 128 or 480 px; models of other sizes see the same share."""
    resize, crop = sides
    down, across = np.mgrid[0:256, 0:256].astype(np.uint8)
    ramps = np.stack([down, across, across], -1)
    ramp = sources.Source(
        "ramp", ("one",), splits.Arrays(np.stack([ramps] * 8), np.zeros(8, int)), None
    )
    model = keras.Sequential(
        [keras.Input((*image_size, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    settings = recipe(
        augment="crop_only", resize=(resize, resize), image_size=(crop, crop)
    )
    unscaled = Preprocessing(mean=(0.0,), std=(1 / 255,))
    workers = Workers.of(model)
    made = Batches(model, settings, ramp, None, unscaled, 0, 0, workers)
    images = next(iter(made.all()[0](start_step=0)))[0].numpy()
    for axis, channel in enumerate((0, 1)):
        lines = np.take(images[..., channel], 0, axis=2 - axis)  # [B, side]
        pixels = image_size[axis]
        shares = (lines[:, -1] - lines[:, 0]) * pixels / (pixels - 1) / 256
        np.testing.assert_allclose(shares, crop / resize, rtol=0, atol=0.02)


# Repeating.


def test_seed_repeats_to_the_bit(source):
    runs = []
    for seed in (0, 0, 1):
        model = tiny(dropout_rate=0.1)
        fit(model, recipe(), source, seed=seed, verbose=0)
        runs.append(model.get_weights())
    assert_equal(runs[0], runs[1])
    assert any((a != b).any() for a, b in zip(runs[0], runs[2], strict=True))


# Counting.


def test_accuracy_counts_every_test_image(source):
    model = tiny()
    result = fit(model, recipe(), source, verbose=0)
    assert result.test_images == 13  # Batches of 8 and 5.
    assert result.test_accuracy == pytest.approx(accuracy_by_hand(model, source.test))


def test_a_prime_number_of_steps_is_trained_to_its_end(source, trajectory):
    result = fit(tiny(), recipe(total_steps=11), source, verbose=0)
    assert len(trajectory) == 11
    assert len(result.history) == 1


# Ready batches.


def test_one_hot_and_integer_labels_train_alike():
    models = [tiny(), tiny(), tiny()]
    column = ready().map(lambda image, label: (image, label[:, None]))
    histories = [
        fit(model, recipe(), batches, verbose=0).history
        for model, batches in zip(
            models, (ready(), ready(one_hot=True), column), strict=True
        )
    ]
    for model, history in zip(models[1:], histories[1:], strict=True):
        assert_close(models[0].get_weights(), model.get_weights(), 1e-6)
        for a, b in zip(histories[0], history, strict=True):
            assert a == pytest.approx(b, abs=1e-6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: (np.zeros((4, 32, 32, 3)), np.zeros(4)), r"Received: tuple\. Arrays"),
        (lambda: ready().unbatch(), r"Dataset\.batch makes batches"),
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


def test_momentum_sgd_is_optaxs_under_a_changing_rate():
    rates = [0.0, 0.1, 0.3, 0.05, 0.2]
    gradients = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    w = u = np.zeros(4)
    for rate, g in zip(rates, gradients, strict=True):
        u = g + 0.9 * u
        w = w - rate * u

    def train(optimizer):
        variable = keras.Variable(np.zeros(4, np.float32))
        optimizer.build([variable])
        for rate, g in zip(rates, gradients, strict=True):
            optimizer.learning_rate = rate
            optimizer.apply([keras.ops.convert_to_tensor(g)])
        return variable.numpy()

    np.testing.assert_allclose(train(MomentumSGD(0.1, 0.9)), w, atol=1e-6)
    kerass = train(keras.optimizers.SGD(0.1, momentum=0.9))
    assert np.abs(kerass - w).max() > 0.01


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
