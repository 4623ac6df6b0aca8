"""A run that is cut, anywhere and anyhow, ends with the bits it would have had."""

import dataclasses
import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest

from keras_vit.facts import OFFICIAL
from keras_vit.training import fit, resume
from keras_vit.training.distribution import Workers
from keras_vit.training.inputs import Batches
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401

pytest.importorskip("tensorflow")

# Two periods of 11 updates; whatever a run may hold is in it.
SETTINGS = recipe(
    total_steps=22,
    warmup_steps=2,
    ema=0.5,
    batch_size=8,
    accumulation_steps=2,
    randaugment=(1, 9),
    mixup=0.2,
    momentum_dtype="bfloat16",
)


def train(folder, source, settings=SETTINGS, **options):  # noqa: F811
    model = tiny(dropout_rate=0.3)
    options = {"save_steps": 4, "verbose": 0} | options
    result = fit(model, settings, source, output=folder, **options)
    return model, result


def everything(folder, steps):
    """The final weights, optimizer state and history, as the run's files have them."""
    saved = resume.Checkpoints(folder / "checkpoints").newest()
    assert saved.step == steps
    return saved.variables, (folder / "history.jsonl").read_text()


def assert_same_run(folder, other, steps=SETTINGS.total_steps):
    ours, lines = everything(folder, steps)
    theirs, other_lines = everything(other, steps)
    assert lines == other_lines
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def uncut(source, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("uncut")
    model, result = train(folder, source)
    assert [row["step"] for row in result.history] == [11, 22]
    return folder, model, result


class Cut(BaseException):
    """As a kill: nothing that the library would catch."""


def cut(monkeypatch, event, count):
    """The next fit ends when `event` of its callback comes after `count` others."""
    real, left = getattr(resume.CheckpointCallback, event), [count]

    def instead(self, *arguments, **keywords):
        left[0] -= 1
        if left[0] < 0:
            raise Cut
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(resume.CheckpointCallback, event, instead)


@pytest.mark.parametrize(
    ("event", "count"),
    [
        # Before the first checkpoint.
        pytest.param("on_train_batch_end", 2, marks=pytest.mark.slow),
        ("on_train_batch_end", 17),
        pytest.param("on_test_batch_end", 0, marks=pytest.mark.slow),
        ("on_epoch_end", 1),
        # The last one, of the finished run.
        pytest.param("save", 5, marks=pytest.mark.slow),
    ],
)
def test_cut_anywhere(event, count, source, uncut, tmp_path, monkeypatch):  # noqa: F811
    with monkeypatch.context() as patch:
        cut(patch, event, count)
        with pytest.raises(Cut):
            train(tmp_path, source)
    model, result = train(tmp_path, source)
    folder, whole, expected = uncut
    assert_same_run(tmp_path, folder)
    assert result == expected
    for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (tmp_path / "best.keras").exists()


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ("on_train_batch_end", 4),
        ("on_train_batch_end", 21),  # The last one: its evaluation waits.
        ("on_test_batch_end", 0),
    ],
)
def test_asked_to_end(event, count, source, uncut, tmp_path, monkeypatch):  # noqa: F811
    real, left = getattr(resume.CheckpointCallback, event), [count]

    def asked(self, *arguments, **keywords):
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, *arguments, **keywords)

    monkeypatch.setattr(resume.CheckpointCallback, event, asked)
    with pytest.raises(resume.Preempted) as ended:
        train(tmp_path, source, save_steps=None)
    assert ended.value.code == 128 + signal.SIGTERM
    assert ended.value.step == (count + 1 if "train" in event else 11)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(tmp_path, source)
    assert_same_run(tmp_path, uncut[0])


@pytest.fixture(scope="module")
def killed(source, tmp_path_factory):  # noqa: F811
    """A run that was killed with two checkpoints, after steps 4 and 8."""
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, "on_train_batch_end", 9)
        with pytest.raises(Cut):
            train(folder, source)
    names = [path.name for path in sorted((folder / "checkpoints").iterdir())]
    assert names == [
        f"step-000000000{step}.{suffix}"
        for step in (4, 8)
        for suffix in ("json", "npz")
    ]
    return folder


@pytest.fixture
def begun(killed, tmp_path):
    """A copy of `killed` to go on with."""
    return shutil.copytree(killed, tmp_path, dirs_exist_ok=True)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "npz truncated": ("npz", shorten, r"bytes"),
    "npz flipped": ("npz", flip, "sha256"),
    "npz gone": ("npz", os.unlink, "No such file"),
    "json truncated": ("json", shorten, "char 33"),
}


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage, begun):
    suffix, spoil, why = DAMAGE[damage]
    spoil(begun / f"checkpoints/step-0000000008.{suffix}")
    checkpoints = resume.Checkpoints(begun / "checkpoints")
    with pytest.warns(UserWarning, match=rf"step-0000000008\.npz \(.*{why}.*step 4"):
        assert checkpoints.newest().step == 4
    spoil(begun / f"checkpoints/step-0000000004.{suffix}")
    with pytest.raises(ValueError, match=rf"0008\.npz .*0004\.npz .*{why}"):
        checkpoints.newest()


@pytest.mark.tensorflow_only
def test_damage_to_every_newest_in_turn_leaves_a_whole_one(tmp_path):
    def save(step):
        checkpoints.save(step, {"model/00000": np.full(3, float(step))}, {"rows": []})

    checkpoints = resume.Checkpoints(tmp_path)
    save(1)
    for step in range(2, 6):  # A process each: goes on from 1, saves, dies; damage.
        checkpoints = resume.Checkpoints(tmp_path)
        if step > 2:
            with pytest.warns(UserWarning, match=rf"000{step - 1}\.npz \(.*step 1"):
                assert checkpoints.newest().step == 1
        save(step)
        assert {path.stem[-1] for path in tmp_path.iterdir()} == {"1", f"{step}"}
        shorten(tmp_path / f"step-{step:010}.npz")
    checkpoints = resume.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="Damaged"):
        checkpoints.newest()
    save(5)  # What was damaged comes again: whole, it counts.
    save(6)
    assert {path.stem[-1] for path in tmp_path.iterdir()} == {"5", "6"}


@pytest.mark.tensorflow_only
def test_goes_on_from_the_one_before(begun, source, uncut):  # noqa: F811
    shorten(begun / "checkpoints/step-0000000008.npz")
    with pytest.warns(UserWarning, match="resumes from step 4"):
        train(begun, source)
    assert_same_run(begun, uncut[0])


@pytest.mark.tensorflow_only
def test_another_recipe_or_seed_is_refused(begun, source):  # noqa: F811
    other = dataclasses.replace(SETTINGS, base_lr=(0.2,), ema=None)
    with pytest.raises(
        ValueError, match=r"recipe.base_lr was \[0.1\], is \[0.2\]; recipe.ema was 0.5"
    ):
        train(begun, source, other)
    with pytest.raises(ValueError, match="seed was 0, is 1"):
        train(begun, source, seed=1)
    assert len(list((begun / "checkpoints").iterdir())) == 4
    _, result = train(begun, source, other, resume="never", save_steps=None)
    assert result.history[-1]["step"] == 22


@pytest.mark.tensorflow_only
def test_another_function_of_the_same_variables_is_refused(begun, source):  # noqa: F811
    with pytest.raises(ValueError, match=r'config\.gelu was null, is "erf"'):
        fit(tiny(dropout_rate=0.3, gelu="erf"), SETTINGS, source, output=begun)


@pytest.mark.tensorflow_only
def test_a_run_of_0_1_did_not_store_its_config(begun, source):  # noqa: F811
    facts = json.loads((begun / "begun.json").read_text())
    assert facts.pop("config")["dropout_rate"] == 0.3
    (begun / "begun.json").write_text(json.dumps(facts))
    _, result = train(begun, source)
    assert result.history[-1]["step"] == 22


@pytest.mark.tensorflow_only
def test_a_run_with_the_order_of_0_1_is_refused(begun, source):  # noqa: F811
    """0.1 shuffled otherwise, and did not write which order it had."""
    from keras_vit.data import permutation

    facts = json.loads((begun / "begun.json").read_text())
    assert facts.pop("order") == permutation.VERSION
    (begun / "begun.json").write_text(json.dumps(facts))
    message = (
        r"begun\.json' of a run with the shuffle of keras_vit 0\.1.*--resume never"
    )
    with pytest.raises(ValueError, match=message):
        train(begun, source)
    assert len(list((begun / "checkpoints").iterdir())) == 4


@pytest.mark.tensorflow_only
def test_streams_and_ready_batches_keep_the_order_of_0_1(source):  # noqa: F811
    """So their runs of 0.1 can be resumed: the identity is as it was."""
    from keras_vit.data import permutation, pipelines, splits

    assert splits.TFDS.order is None
    ready = pipelines.train_pipeline(
        source.train, image_size=(32, 32), batch_size=8, seed=0
    )
    options = (None, OFFICIAL, 0, 0, Workers.of(tiny()))
    for data, order in ((source, permutation.VERSION), (ready, None)):
        batches = Batches(tiny(), SETTINGS, data, *options)
        assert batches.identity().get("order") == order


@pytest.mark.tensorflow_only
def test_goes_on_in_other_parts(begun, source, capsys):  # noqa: F811
    """Another number of devices has others by itself."""
    train(begun, source, dataclasses.replace(SETTINGS, accumulation_steps=1), verbose=2)
    assert f"Resuming '{begun}' from step 8 of 22" in capsys.readouterr().out
    everything(begun, SETTINGS.total_steps)


@pytest.mark.tensorflow_only
def test_a_finished_run_is_left_as_it_is(uncut, source, tmp_path):  # noqa: F811
    folder, _, expected = uncut
    shutil.copytree(folder, tmp_path / "again")
    written = [p.stat().st_mtime_ns for p in sorted(folder.glob("checkpoints/*"))]
    _, result = train(tmp_path / "again", source)
    again = tmp_path / "again/checkpoints"
    assert [p.stat().st_mtime_ns for p in sorted(again.iterdir())] == written
    assert result == expected


@pytest.mark.tensorflow_only
def test_refused_before_the_features_are_read(source, tmp_path, monkeypatch):  # noqa: F811
    from keras_vit.data import permutation

    monkeypatch.setattr(Batches, "read_features", pytest.fail)
    settings = recipe(freeze=True, augment="none")
    begun = {"seed": 1, "order": permutation.VERSION}
    (tmp_path / "begun.json").write_text(json.dumps(begun))
    with pytest.raises(ValueError, match="resumed with different settings"):
        fit(tiny(), settings, source, output=tmp_path, verbose=0)


@pytest.mark.tensorflow_only
def test_a_full_disk_costs_a_warning(source, uncut, tmp_path, monkeypatch):  # noqa: F811
    real, left = np.savez, [2]  # The start, then step 4.

    def full(file, **arrays):
        left[0] -= 1
        if left[0] == -1:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        real(file, **arrays)

    monkeypatch.setattr(resume.np, "savez", full)
    with pytest.warns(UserWarning, match=r"step 8 without a new checkpoint.*Free"):
        train(tmp_path, source)
    assert_same_run(tmp_path, uncut[0])


@pytest.mark.tensorflow_only
@pytest.mark.slow
def test_a_sweep_goes_on(source, tmp_path, monkeypatch):  # noqa: F811
    settings = recipe(total_steps=4, base_lr=(0.1, 0.2), ema=None)
    _, expected = train(tmp_path / "uncut", source, settings)
    for count in (2, 6):  # In the first rate, then in the second.
        with monkeypatch.context() as patch:
            cut(patch, "on_train_batch_end", count)
            with pytest.raises(Cut):
                train(tmp_path / "cut", source, settings, save_steps=1)
    _, result = train(tmp_path / "cut", source, settings)
    assert result == expected
    left = [path.name for path in (tmp_path / "cut/sweep/0.1").iterdir()]
    assert sorted(left) == ["history.jsonl", "tensorboard"]


@pytest.mark.tensorflow_only
def test_bfloat16_comes_back():
    values = keras.ops.cast(keras.ops.linspace(-3, 3, 7), "bfloat16")
    variable = keras.Variable(values)
    kept = resume.plain(keras.ops.convert_to_numpy(variable))
    assert kept.dtype == np.uint16
    variable.assign(keras.ops.zeros_like(values))
    resume.assign(variable, kept)
    assert (keras.ops.convert_to_numpy(variable == values)).all()


@pytest.mark.tensorflow_only
def test_what_a_killed_process_was_writing_goes(tmp_path):
    checkpoints = resume.Checkpoints(tmp_path, keep=1)
    (tmp_path / ".writing-1-step-0000000001.npz").write_bytes(b"half")
    for step in (2, 3):
        checkpoints.save(step, {"model/00000": np.arange(3.0)}, {"rows": []})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-0000000003.json", "step-0000000003.npz"]
    assert checkpoints.newest().step == 3


@pytest.mark.tensorflow_only
def test_history_is_json_lines(uncut):
    lines = (uncut[0] / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == uncut[2].history


@pytest.mark.tensorflow_only
def test_a_loss_that_is_no_number_ends_the_training(source, tmp_path):  # noqa: F811
    wild = dataclasses.replace(SETTINGS, base_lr=(1e20,), clip_norm=None)
    with pytest.raises(ValueError, match=r"nan at step \d+; .* is of step 2, kept in"):
        train(tmp_path, source, wild, save_steps=2)
    assert (tmp_path / "checkpoints/step-0000000002.npz").exists()


@pytest.mark.tensorflow_only
def test_an_evaluation_that_is_no_number_ends_the_training(source, tmp_path):  # noqa: F811
    """The loss of a step is computed before its update: the last one can diverge."""
    wild = dataclasses.replace(
        SETTINGS,
        total_steps=1,
        warmup_steps=0,
        base_lr=(3e38,),
        ema=None,
        clip_norm=None,
    )
    with pytest.raises(ValueError, match=r"Expected a finite loss.* at step 1"):
        train(tmp_path, source, wild)
    assert not (tmp_path / "history.json").exists()
