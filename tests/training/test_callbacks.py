"""Scalars that TensorBoard reads, and `runs show`."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit.training import callbacks, fit, optim, resume, runs
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401
from tests.training.test_resume import Cut, cut

SETTINGS = recipe(total_steps=22, warmup_steps=2, ema=0.5, augment="flip")


def train(folder, source, **options):  # noqa: F811
    options = {"save_steps": 4, "verbose": 0} | options
    return fit(tiny(), SETTINGS, source, output=folder, **options)


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):  # noqa: F811
    """A run of two periods, and what `fit` returned."""
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder, source)


def by_tensorboard(folder):
    """Every tag's (step, value)s, read by TensorBoard itself."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = reading.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_happened(run):
    folder, result = run
    told = by_tensorboard(folder)
    assert told == callbacks.read(folder / "tensorboard")
    steps, losses = zip(*told["train/loss"], strict=True)
    assert steps == tuple(range(1, 23))
    for row, mean in zip(result.history, np.split(np.array(losses), 2), strict=True):
        assert row["loss"] == pytest.approx(mean.mean(), rel=1e-5)
    rates = [float(optim.schedule(SETTINGS, 0.1)(step)) for step in range(22)]
    assert [rate for _, rate in told["train/learning_rate"]] == rates
    assert told["evaluation/accuracy"] == [
        (row["step"], pytest.approx(row["val_accuracy"])) for row in result.history
    ]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("count", [2, 17], ids=["unsaved", "saved at 16"])
def test_a_run_that_was_cut_is_one_curve(source, run, tmp_path, monkeypatch, count):  # noqa: F811
    with monkeypatch.context() as patch:
        cut(patch, "on_train_batch_end", count)
        with pytest.raises(Cut):
            train(tmp_path, source)
    train(tmp_path, source)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    told, whole = by_tensorboard(tmp_path), by_tensorboard(run[0])
    for tag in set(callbacks.TAGS) - {"train/images_per_second"}:
        steps, values = zip(*told[tag], strict=True)
        expected = [value for _, value in whole[tag]]
        assert [*steps] == [step for step, _ in whole[tag]]
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=tag)
    assert callbacks.read(tmp_path / "tensorboard") == told


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("again", [[], [4]], ids=["once", "twice"])
def test_resumed_with_other_evaluations(source, run, tmp_path, monkeypatch, again):  # noqa: F811
    """The means of a period start again at the checkpoint, here of step 16."""
    for count, options in zip([17, *again], [{}, {"evaluations": 1}], strict=False):
        with monkeypatch.context() as patch:
            cut(patch, "on_train_batch_end", count)
            with pytest.raises(Cut):
                train(tmp_path, source, **options)
    result = train(tmp_path, source, evaluations=1)
    whole, told = (callbacks.read(at / "tensorboard") for at in (run[0], tmp_path))
    steps, losses = zip(*told["train/loss"], strict=True)
    assert steps == tuple(range(1, 23))
    expected = [value for _, value in whole["train/loss"]]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert [row["step"] for row in result.history] == [11, 22]
    assert result.history[-1]["loss"] == pytest.approx(np.mean(expected[16:]))


def test_the_gradient_norm_is_that_before_clipping():
    weights = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(1))]
    optimizer = optim.MomentumSGD(1.0, global_clipnorm=1.0, momentum=0.0)
    gradients = [np.array([3.0, 0.0], "float32"), np.array([4.0], "float32")]
    optimizer.apply(list(map(keras.ops.convert_to_tensor, gradients)), weights)
    assert float(optimizer.gradient_norm) == 5.0
    np.testing.assert_allclose(weights[0].numpy(), [-0.6, 0.0])
    scaled = optim.MomentumSGD(1.0, loss_scale_factor=8.0)
    scaled.apply(
        [keras.ops.convert_to_tensor(8 * gradient) for gradient in gradients], weights
    )
    assert float(scaled.gradient_norm) == 5.0


def test_a_file_cut_in_a_record_is_read_up_to_there(run, tmp_path):
    (file,) = (run[0] / "tensorboard").iterdir()
    whole = callbacks.read(file.parent)
    (tmp_path / file.name).write_bytes(file.read_bytes()[:-5])
    told = callbacks.read(tmp_path)
    assert told.pop("evaluation/loss") == whole.pop("evaluation/loss")[:-1]
    del told["evaluation/accuracy"], whole["evaluation/accuracy"]
    assert told == whole


@pytest.mark.tensorflow_only
def test_a_full_disk_ends_the_scalars_alone(source, run, tmp_path, monkeypatch):  # noqa: F811
    real = callbacks.tf.io.TFRecordWriter
    monkeypatch.setattr(callbacks.tf.io, "TFRecordWriter", lambda _: real("/dev/full"))
    with pytest.warns(UserWarning, match="without scalars for TensorBoard"):
        result = train(tmp_path, source)
    assert result == run[1]


@pytest.mark.tensorflow_only
def test_a_full_disk_costs_lines_of_the_history(source, run, tmp_path, monkeypatch):  # noqa: F811
    def full(row):
        if row["step"]:
            raise OSError(28, "No space left on device")
        return json.dumps(row) + "\n"

    with monkeypatch.context() as patch:
        patch.setattr(resume, "_line", full)
        with pytest.warns(UserWarning, match="without a line of its history"):
            result = train(tmp_path, source)
    assert result == run[1]
    train(tmp_path, source)  # Finished: the lines are written from the checkpoint.
    lines = (tmp_path / runs.HISTORY).read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history


def test_runs_show(run, tmp_path, shell):
    plots = pytest.importorskip("matplotlib.image")
    folder, result = run
    picture = tmp_path / "curves.png"
    code, text, _ = shell("runs", "show", folder, folder, "--output", picture)
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == f"{folder}: 22 of 22 updates"
    assert lines[1].split()[0] == "step"
    told = dict(zip(lines[1].split(), lines[3].split(), strict=True))
    assert float(told["val_accuracy"]) == pytest.approx(
        result.history[-1]["val_accuracy"], abs=1e-4
    )
    assert plots.imread(picture).std() > 0.02


def test_runs_show_wants_runs(tmp_path, shell):
    code, _, error = shell("runs", "show", tmp_path)
    assert code == 1
    assert "Expected the folder of a run" in error


@pytest.mark.tensorflow_only
def test_what_was_left_out_is_in_the_history(source, tmp_path):  # noqa: F811
    short = dataclasses.replace(SETTINGS, total_steps=1, warmup_steps=0)
    data = dataclasses.replace(source, left_out=3)
    assert fit(tiny(), short, data, output=tmp_path, verbose=0).left_out == 3
    assert json.loads((tmp_path / "history.json").read_text())["left_out"] == 3


def test_averages_outlive_an_evaluation(source, tmp_path):  # noqa: F811
    """JAX deletes what an evaluation was given; the averages were the same arrays."""
    model = tiny()
    fit(model, SETTINGS, source, verbose=0)
    images = source.test.images.astype("float32")
    model.evaluate(images, source.test.labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
