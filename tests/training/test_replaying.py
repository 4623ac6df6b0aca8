"""The certificate of a run, and segments of it that are computed again."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.training import certificate, replaying, resume
from keras_vit.training.fitting import fit
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401
from tests.training.test_resume import SETTINGS, Cut, cut, train


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):  # noqa: F811
    """A finished run with every checkpoint; whatever a run may hold is in it."""
    folder = tmp_path_factory.mktemp("run")
    train(folder, source, keep=9)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_a_link_for_the_start_and_each_evaluation(run):
    links = certificate.read(run)
    assert [link["step"] for link in links] == [0, 11, 22]
    assert [link["images"] for link in links] == [0, 88, 176]
    lines = (run / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    assert [{"step": at["step"], **at["metrics"]} for at in links[1:]] == history
    environment = links[0]["environment"]
    assert environment["backend"] == keras.backend.backend()
    assert environment["threads"] >= 1
    assert len({link["weights"] for link in links}) == 3


def test_a_digest_is_of_every_bit_and_shape():
    values = {"model/00000": np.arange(4.0), "optimizer/00000": np.zeros(2)}
    before = certificate.digest(values, "model")
    assert certificate.digest(values | {"optimizer/00000": 1}, "model") == before
    values["model/00000"] = np.nextafter(values["model/00000"], [0, 2, 2, 3])
    assert certificate.digest(values, "model") != before
    values["model/00000"] = np.arange(4.0).reshape(2, 2)
    assert certificate.digest(values, "model") != before


@pytest.mark.parametrize(
    ("first", "last", "start", "steps"),
    [(0, None, 0, [0, 11, 22]), (13, 22, 12, [22])],
)
def test_a_segment_is_bit_equal(run, source, first, last, start, steps):  # noqa: F811
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    found = replaying.replay(run, first=first, last=last, data=source, verbose=0)
    assert found.start == start
    assert found.kept == (0, 4, 8, 12, 16, 20, 22)
    assert [link.step for link in found.links] == steps
    assert [link.verdict for link in found.links] == ["bit-equal"] * len(steps)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def forge(folder, change, chained=True):
    """Changes the last link; `chained` computes its hash again."""
    links = certificate.read(folder)
    change(links[-1])
    if chained:
        links[-1]["hash"] = certificate.link_hash(links[-1])
    text = "".join(json.dumps(link) + "\n" for link in links)
    (folder / certificate.FILE).write_text(text)


@pytest.mark.tensorflow_only
def test_a_changed_link_is_found_by_its_hash(copy):
    forge(copy, lambda link: link["metrics"].update(val_accuracy=1.5), chained=False)
    with pytest.raises(ValueError, match="link 2, of step 22"):
        certificate.read(copy)


@pytest.mark.tensorflow_only
def test_a_forged_link_is_found_by_computing_it(copy, source):  # noqa: F811
    forge(copy, lambda link: link["metrics"].update(val_accuracy=1.5))
    found = replaying.replay(copy, first=20, data=source, verbose=0)
    (link,) = found.links
    assert not found.agrees
    assert (link.verdict, link.weights, link.elsewhere) == ("different", True, ())
    (line,) = replaying.lines(found)
    assert line.startswith("step 22: different; weights equal; optimizer equal")


@pytest.mark.tensorflow_only
def test_elsewhere_metrics_are_compared_to_a_tolerance(copy, source):  # noqa: F811
    def change(link):
        link["environment"]["threads"] = 999
        link["weights"] = "0" * 64
        link["metrics"]["val_loss"] += 1e-4

    forge(copy, change)
    found = replaying.replay(copy, first=20, data=source, verbose=0)
    assert found.agrees
    (line,) = replaying.lines(found)
    assert line.startswith("step 22: within tolerance; weights different; optimizer eq")
    assert line.endswith("(limit 0.001); different environment: threads")


@pytest.mark.tensorflow_only
def test_the_checkpoint_that_it_starts_from_is_compared(copy, source):  # noqa: F811
    checkpoints = resume.Checkpoints(copy / "checkpoints", keep=9)
    saved = checkpoints.newest(12)
    other = {name: value * 0 for name, value in saved.variables.items()}
    checkpoints.save(11, other, saved.info)
    with pytest.raises(
        ValueError, match="checkpoint of step 11 does not match the cert"
    ):
        replaying.replay(copy, first=11, data=source, verbose=0)


@pytest.mark.tensorflow_only
def test_other_data_and_steps_are_refused(copy, source):  # noqa: F811
    other = dataclasses.replace(source, train=source.train.take(np.arange(29)))
    with pytest.raises(ValueError, match=r"data.fingerprint was .*--data"):
        replaying.replay(copy, data=other, verbose=0)
    for first, last in ((0, 5), (22, 22), (11, 11)):
        with pytest.raises(ValueError, match="evaluations: 11, 22"):
            replaying.replay(copy, first=first, last=last, data=source)
    shutil.rmtree(copy / "start")
    with pytest.raises(ValueError, match=r"Received: 3; kept: 4, 8, 12, 16, 20, 22"):
        replaying.replay(copy, first=3, data=source)
    (copy / "history.json").unlink()
    for first in (4, 22):
        with pytest.raises(ValueError, match="Expected a finished run"):
            replaying.replay(copy, first=first, data=source)


@pytest.mark.tensorflow_only
def test_a_run_that_was_cut_has_the_same_certificate(run, copy, source):  # noqa: F811
    """It resumes from step 12, after which one evaluation comes again."""
    for name in ("history.json", "manifest.json", "model.keras"):
        (copy / name).unlink()
    for step in (16, 20, 22):
        for path in copy.glob(f"checkpoints/step-{step:010}.*"):
            path.unlink()
    train(copy, source, dataclasses.replace(SETTINGS))
    ours, theirs = ((at / certificate.FILE).read_text() for at in (copy, run))
    assert ours == theirs


PARTS = {
    "lora": {"lora_rank": 2},
    "head": {"freeze": True, "augment": "flip"},
    "head on features": {"freeze": True, "augment": "none"},
}


def part(name, seed=7):
    """A model and a recipe that trains a part of it, of two periods of 4 updates."""
    settings = recipe(total_steps=8, accumulation_steps=2, **PARTS[name])
    model = tiny(dropout_rate=0.0 if "features" in name else 0.3)
    if seed != 7:
        keras.utils.set_random_seed(seed)
        for weight in model.get_layer("encoderblock_0").trainable_variables:
            weight.assign(keras.random.normal(weight.shape, stddev=0.1))
    return model, settings


def train_part(folder, name, source, seed=7):  # noqa: F811
    model, settings = part(name, seed)
    options = {"evaluations": 2, "save_steps": 2, "keep": 9, "verbose": 0}
    fit(model, settings, source, output=folder, **options)


@pytest.fixture(scope="module", params=PARTS)
def partial(request, source, tmp_path_factory):  # noqa: F811
    """A finished run of a recipe that trains a part of the model."""
    folder = tmp_path_factory.mktemp("partial")
    train_part(folder, request.param, source)
    return folder


def forge_value(checkpoints, step, place):
    """Changes the last bit of a value in a checkpoint, which is as whole as before."""
    saved = resume.Checkpoints(checkpoints).newest(step)
    assert saved.step == step
    name = sorted(name for name in saved.variables if name.startswith("model/"))[place]
    value = saved.variables[name]
    value.view(np.uint32).flat[0] ^= 1
    resume.Checkpoints(checkpoints, keep=9).save(step, saved.variables, saved.info)


@pytest.mark.parametrize(("first", "steps"), [(0, [0, 4, 8]), (4, [8]), (6, [8])])
def test_a_training_of_a_part_is_bit_equal(partial, source, first, steps):  # noqa: F811
    found = replaying.replay(partial, first=first, data=source, verbose=0)
    assert found.start == first
    assert [link.step for link in found.links] == steps
    assert [link.verdict for link in found.links] == ["bit-equal"] * len(steps)


def test_one_value_of_a_frozen_weight_is_found(partial, source, tmp_path):  # noqa: F811
    folder = shutil.copytree(partial, tmp_path / "copy")
    forge_value(folder / "start", 0, 0)
    found = replaying.replay(folder, last=4, data=source, verbose=0)
    assert [link.weights for link in found.links] == [False, False]
    assert found.links[0].verdict == "different"


def test_one_value_of_the_head_is_found(partial, source, tmp_path):  # noqa: F811
    folder = shutil.copytree(partial, tmp_path / "copy")
    forge_value(folder / "checkpoints", 4, -1)
    with pytest.raises(
        ValueError, match="checkpoint of step 4 does not match the certi"
    ):
        replaying.replay(folder, first=4, data=source, verbose=0)


def test_features_are_of_the_first_weights(source, tmp_path, monkeypatch):  # noqa: F811
    """A call that resumes may give a model of other weights, as full training may."""
    name = "head on features"
    train_part(tmp_path / "uncut", name, source)
    with monkeypatch.context() as patch:
        cut(patch, "on_train_batch_end", 5)
        with pytest.raises(Cut):
            train_part(tmp_path / "cut", name, source)
    train_part(tmp_path / "cut", name, source, seed=8)
    ours, theirs = (
        (tmp_path / at / certificate.FILE).read_text() for at in ("cut", "uncut")
    )
    assert ours == theirs
