"""What a recipe can say, by the same tests on TensorFlow, JAX and torch.

Updates in parts, SAM and clipping: `test_train_step`; masked patches:
`test_masked_patches`; a run that is cut: `test_resume`.
"""

import dataclasses
import json

import keras
import numpy as np
import pytest

import keras_vit

pytest.importorskip("tensorflow")

from keras_vit.data import pipelines, sources, splits
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.training import fit, preparing, resume
from keras_vit.training.distribution import Workers
from keras_vit.training.inputs import Batches
from keras_vit.training.optim import MomentumSGD
from tests.training.test_fitting import (  # noqa: F401
    CLASSES,
    accuracy_by_hand,
    assert_close,
    assert_equal,
    one_step,
    ready,
    recipe,
    source,
    tiny,
    trajectory,
    with_a_head,
)


def test_output_is_whole_and_reloads(source, tmp_path):  # noqa: F811
    model = tiny()
    result = fit(model, recipe(), source, output=tmp_path / "run", verbose=0)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    kept = ["begun.json", "best.keras", "certificate.jsonl", "checkpoints"]
    told = ["history.json", "history.jsonl", "manifest.json", "model.keras"]
    told += ["start", "tensorboard"]
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
def test_best_is_the_best_evaluation(source, tmp_path, ema):  # noqa: F811
    # So high a rate that the evaluations go up and down.
    settings = recipe(total_steps=10, base_lr=(1.0,), ema=ema)
    result = fit(tiny(), settings, source, output=tmp_path, verbose=0)
    accuracies = [row["val_accuracy"] for row in result.history]
    best = keras.models.load_model(tmp_path / "best.keras")
    assert accuracy_by_hand(best, source.test) == pytest.approx(max(accuracies))
    assert min(accuracies) < max(accuracies)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_freeze_trains_the_head_alone(source, augment):  # noqa: F811
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
def test_features_computed_once_change_nothing(source, monkeypatch, changes):  # noqa: F811
    settings = recipe(freeze=True, augment="none", **changes)
    short, long = tiny(), tiny()
    quick = fit(short, settings, source, verbose=0)
    monkeypatch.setattr(Batches, "on_features", lambda self: False)
    slow = fit(long, settings, source, verbose=0)
    assert_close(short.get_weights(), long.get_weights(), 1e-5)
    for a, b in zip(quick.history, slow.history, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_a_second_stage_trains_every_layer(source, tmp_path, augment):  # noqa: F811
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


def test_freezing_wants_a_head(source):  # noqa: F811
    features = tiny(classes=None)
    mine = keras.layers.Dense(CLASSES, name="mine")(features.output)
    model = keras.Model(features.input, mine)
    with pytest.raises(ValueError, match=r"layer named 'head'.*for_task"):
        fit(model, recipe(freeze=True), source, verbose=0)


def test_features_that_dropout_changes_are_not_computed_once(source, monkeypatch):  # noqa: F811
    model = tiny(dropout_rate=0.5)
    monkeypatch.setattr(Batches, "read_features", None)
    fit(model, recipe(freeze=True, augment="none"), source, verbose=0)


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}], ids=str)
def test_rematerialization_changes_nothing_but_memory(source, changes):  # noqa: F811
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


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}], ids=str)
def test_ema_is_the_polyak_average_of_the_trajectory(source, trajectory, changes):  # noqa: F811
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
    source,  # noqa: F811
    trajectory,  # noqa: F811
    warmup_steps,
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


def test_accumulation_needs_batches_it_can_cut():
    with pytest.raises(ValueError, match=r"batch size to be a multiple of .*=4.*of 6"):
        fit(tiny(), recipe(accumulation_steps=4), ready(size=6), verbose=0)


def test_a_smaller_last_batch_is_not_cut_into_unequal_parts():
    import tensorflow as tf

    images, labels = next(iter(ready(count=1, size=9)))
    uneven = tf.data.Dataset.from_tensor_slices((images, labels)).batch(6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a multiple of 2 images"):
        fit(tiny(), recipe(accumulation_steps=2), uneven, verbose=0)


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


def test_lora_and_the_head_alone_train(source, tmp_path):  # noqa: F811
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


def test_models_are_built_with_the_recipes_options(source):  # noqa: F811
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


def test_seed_repeats_to_the_bit(source):  # noqa: F811
    runs = []
    for seed in (0, 0, 1):
        model = tiny(dropout_rate=0.1)
        fit(model, recipe(), source, seed=seed, verbose=0)
        runs.append(model.get_weights())
    assert_equal(runs[0], runs[1])
    assert any((a != b).any() for a, b in zip(runs[0], runs[2], strict=True))


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


def with_a_scaled_head(scale, policy="float32"):
    """`with_a_head` in a precision; what the head is times, its gradients below are."""
    keras.config.set_dtype_policy(policy)
    try:
        model = with_a_head()
    finally:
        keras.config.set_dtype_policy("float32")
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([scale * kernel, bias])
    return model


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_float32_but_for_its_rounding(policy, parts):
    settings = recipe(accumulation_steps=parts, clip_norm=1.0)
    exact, rounded = with_a_scaled_head(0.01), with_a_scaled_head(0.01, policy)
    start = exact.get_weights()
    expected = fit(exact, settings, ready(), verbose=0).history[-1]["loss"]
    found = fit(rounded, settings, ready(), verbose=0).history[-1]["loss"]
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)
    ours, theirs, before = (
        np.concatenate([w.ravel() for w in weights])
        for weights in (rounded.get_weights(), exact.get_weights(), start)
    )
    assert ours.dtype == np.float32
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(theirs - before)


@pytest.mark.parametrize("parts", [1, 2])
def test_float16_leaves_an_update_out_that_overflows(parts):
    """The loss is scaled by 2^15 at first: these gradients are beyond float16."""
    settings = recipe(total_steps=1, warmup_steps=0, accumulation_steps=parts)
    for policy, moves in (("float32", True), ("mixed_float16", False)):
        model = with_a_scaled_head(30.0, policy)
        start = model.get_weights()
        fit(model, settings, ready(count=1), verbose=0)
        moved = [
            (a != b).any() for a, b in zip(model.get_weights(), start, strict=True)
        ]
        assert any(moved) == moves


@pytest.mark.parametrize(
    ("scale", "steps", "some"), [(0.6, 24, True), (30.0, 4, False)]
)
def test_the_average_of_the_updates_that_did_not_overflow(scale, steps, some):
    """It is evaluated, and is the model in the end; without any, the start is."""
    model = with_a_scaled_head(scale, "mixed_float16")
    start = model.get_weights()
    settings = recipe(total_steps=steps, warmup_steps=0, base_lr=(0.01,), ema=0.9)
    judged = ready(count=2)
    result = fit(model, settings, ready(), validation_data=judged, verbose=0)
    applied = int(resume.own_optimizer(model).iterations.numpy())
    assert 0 < applied < steps if some else applied == 0
    images, labels = (
        np.concatenate(parts) for parts in zip(*judged.as_numpy_iterator(), strict=True)
    )
    shares = keras.ops.log_softmax(model.predict(images, verbose=0).astype("float64"))
    shares = keras.ops.convert_to_numpy(shares)
    loss = -shares[np.arange(len(labels)), labels].mean()
    assert result.history[-1]["val_loss"] == pytest.approx(loss, rel=1e-3)
    if not some:
        assert_equal(model.get_weights(), start)


@pytest.mark.parametrize("rates", [(1e-6, 3e-6), (3e-6, 1e-6)])
def test_the_held_out_loss_decides_between_equal_accuracies(
    source,  # noqa: F811
    tmp_path,
    rates,
):
    settings = recipe(total_steps=12, base_lr=rates)
    result = fit(with_a_head(), settings, source, output=tmp_path, verbose=0)
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert kept["1e-06"]["accuracy"] == kept["3e-06"]["accuracy"]
    assert kept["1e-06"]["loss"] > kept["3e-06"]["loss"]
    assert result.learning_rate == 3e-6


def test_sweep_takes_the_better_rate_from_the_same_start(source):  # noqa: F811
    """Of a head that is not zero: the least update of one shows the right classes."""
    swept, single = (with_a_head(dropout_rate=0.1) for _ in range(2))
    settings = recipe(total_steps=12, base_lr=(1e-6, 0.3))
    result = fit(swept, settings, source, verbose=0)
    assert result.learning_rate == 0.3
    assert result.sweep[0.3] > result.sweep[1e-6]
    one = dataclasses.replace(settings, base_lr=(0.3,))
    assert fit(single, one, source, verbose=0).sweep == {}
    assert_equal(swept.get_weights(), single.get_weights())


def batch():
    images, labels = next(iter(ready(count=1)))
    return images, np.eye(CLASSES)[labels.numpy()]


def test_losses_are_the_recipes():
    images, labels = batch()
    logits = keras.ops.convert_to_numpy(with_a_head()(images.numpy())).astype(
        np.float64
    )
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


def test_epochs_are_counted_in_images(source, trajectory):  # noqa: F811
    settings = recipe(total_steps=None, epochs=2)
    fit(tiny(), settings, source, verbose=0)
    assert len(trajectory) == 8  # 2 * 30 / 8, rounded.
    with pytest.raises(ValueError, match=r"total_steps.*epochs=2.*for_images"):
        fit(tiny(), settings, ready(), verbose=0)


def test_augmented_batches(source):  # noqa: F811
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
