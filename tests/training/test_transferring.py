"""`transfer`: section 4.1's protocol, resumed to the bit, with the paper's numbers."""

import dataclasses
import gc
import json
import shutil
import weakref

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import manifest
from keras_vit.features import FrozenFeatures
from keras_vit.recipes import FINETUNE
from keras_vit.training import fitting, resume, transfer, transferring
from keras_vit.weights.architecture import config_of

tf = pytest.importorskip("tensorflow")

from keras_vit.data import sources  # noqa: E402
from tests.training.test_fitting import (  # noqa: E402, F401
    noise_of_three_colors,
    recipe,
    source,
    tiny,
)
from tests.training.test_resume import Cut, cut  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

# A frozen model: only its head is traced, which takes most of so short a training.
FROZEN = recipe(
    total_steps=6, base_lr=(0.01, 30.0), warmup_steps=0, freeze=True, augment="none"
)


def measured(source, folder=None, settings=FROZEN, **options):  # noqa: F811
    model = options.pop("model", None) or tiny(classes=None, dropout_rate=0.0)
    options = {"runs": 2, "verbose": 0, "save_steps": 2} | options
    return transfer(model, source, recipe=settings, output=folder, **options)


@pytest.fixture(scope="module")
def uncut(source, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("uncut")
    return measured(source, folder), folder


def final_weights(folder):
    return keras.models.load_model(folder / "model.keras").get_weights()


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_best_held_out_rate_trains_every_run(uncut):
    result, folder = uncut
    assert list(result.sweep) == list(FROZEN.base_lr)
    assert result.learning_rate == 30
    assert result.sweep[30] > result.sweep[0.01]
    for run in range(2):
        told = json.loads((folder / f"run-{run}/history.json").read_text())
        assert told["learning_rate"] == result.learning_rate
        assert bool(told["sweep"]) == (run == 0)
        assert told["test_images"] == result.test_images == 13
        assert told["test_accuracy"] == result.accuracies[run]
        assert told["history"][-1]["val_accuracy"] == result.accuracies[run]


def test_it_is_verified_as_a_whole(uncut):
    _, folder = uncut
    places, loose = manifest.inside(folder)
    assert places == [folder, folder / "run-0", folder / "run-1"]
    assert loose == []
    assert all(manifest.verify(place).whole for place in places)


def test_runs_differ_by_their_seed(uncut):
    """In the order of the images, which is all that a frozen model draws."""
    _, folder = uncut
    one, other = (final_weights(folder / f"run-{run}") for run in range(2))
    assert_same(one[:-2], other[:-2])
    assert not np.array_equal(one[-2], other[-2])


def test_mean_and_sample_deviation(source, monkeypatch):  # noqa: F811
    scores = iter([0.90, 0.94, 0.95])
    monkeypatch.setattr(
        fitting,
        "fit",
        lambda *_, seed, **__: fitting.Result(0.1, {}, [], next(scores), 13),
    )
    result = measured(source, runs=3)
    assert result.mean == pytest.approx(0.93)
    assert result.std == pytest.approx(0.02645751)  # Over n - 1.


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 20], ids=["sweep", "second run"])
def test_cut_anywhere(count, source, uncut, tmp_path, monkeypatch):  # noqa: F811
    with monkeypatch.context() as patch:
        cut(patch, "on_train_batch_end", count)
        with pytest.raises(Cut):
            measured(source, tmp_path)
    assert (tmp_path / "run-1").exists() == (count == 20)
    keras.utils.set_random_seed(99)  # Another process draws from elsewhere.
    result, folder = uncut
    assert measured(source, tmp_path) == result
    for run in ("run-0", "run-1"):
        assert_same(final_weights(tmp_path / run), final_weights(folder / run))


def test_a_run_is_a_fit_with_a_zero_head(source, tmp_path, monkeypatch):  # noqa: F811
    """Of all the model, dropout included, though it is cut."""
    settings = recipe(augment="flip")
    model = tiny(classes=5, dropout_rate=0.3)
    options = {"model": model, "runs": 1, "seed": 1}
    with monkeypatch.context() as patch:
        cut(patch, "on_train_batch_end", 2)
        with pytest.raises(Cut):
            measured(source, tmp_path, settings, **options)
    result = measured(source, tmp_path, settings, **options)
    alone = keras_vit.for_task(model, 3)
    assert not alone.get_layer("head").kernel.numpy().any()
    states = resume.generator_states(alone)
    seeds = np.random.SeedSequence(1).generate_state(len(states))
    for state, own in zip(states, seeds, strict=True):
        state.assign([own, 0])
    fitted = fitting.fit(alone, settings, source, seed=1, verbose=0)
    assert states
    assert fitted.test_accuracy == result.accuracies[0]
    assert_same(alone.get_weights(), final_weights(tmp_path / "run-0"))


def test_the_model_is_left_as_it_is(source):  # noqa: F811
    """At another resolution and with LoRA; one run has no deviation."""
    model = tiny(classes=7)
    before = [weight.copy() for weight in model.get_weights()]
    settings = recipe(image_size=(48, 32), lora_rank=2)
    result = measured(source, settings=settings, model=model, runs=1)
    assert_same(model.get_weights(), before)
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 3), (None, 7))
    assert (result.std, len(result.accuracies), result.sweep) == (None, 1, {})
    assert result.mean == result.accuracies[0]
    assert "+-" not in str(result).split("paper")[0]


def test_a_frozen_model_is_run_once_and_given_back(
    source,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    run, seen = [], []
    read, fit = FrozenFeatures.read, fitting.fit

    def watched(model, *arguments, **options):
        gc.collect()
        assert not [one for one in seen if one() is not None]
        seen.append(weakref.ref(model))
        return fit(model, *arguments, **options)

    def counted(self, *arguments, **options):
        run.append(self)
        return read(self, *arguments, **options)

    monkeypatch.setattr(FrozenFeatures, "read", counted)
    model = tiny(classes=None)
    one = dataclasses.replace(FROZEN, base_lr=(1.0,))
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", watched)
        result = measured(source, tmp_path, one, model=model)
    assert len(seen) == 2
    assert len(run) == 2  # Training and test images, for both runs.
    alone = keras_vit.for_task(model, 3)
    fitted = fitting.fit(alone, one, source, seed=1, verbose=0)
    assert len(run) == 4
    assert fitted.test_accuracy == result.accuracies[1]
    assert_same(alone.get_weights(), final_weights(tmp_path / "run-1"))


def test_finished_runs_are_read_and_more_are_added(
    source,  # noqa: F811
    uncut,
    tmp_path,
    monkeypatch,
):
    result, folder = uncut
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", pytest.fail)
        assert measured(source, tmp_path) == result
    three = measured(source, tmp_path, runs=3)
    assert three.accuracies[:2] == result.accuracies
    assert len(three.accuracies) == 3
    written = json.loads((tmp_path / "transfer.json").read_text())
    assert written["accuracies"] == list(three.accuracies)
    assert written["sweep"] == {str(rate): at for rate, at in three.sweep.items()}
    assert {"setting": "batch_size", "ours": 8, "paper": 512} in written["differences"]
    (tmp_path / "run-1/history.json").write_text("{")
    with pytest.raises(ValueError, match=r"run-1/history\.json.*Delete it"):
        measured(source, tmp_path)
    one = dataclasses.replace(FROZEN, base_lr=(1.0,))
    anew = measured(source, tmp_path, one, resume="never", seed=5, runs=1)
    assert anew.seed == 5
    assert not (tmp_path / "run-1/history.json").exists()


def test_another_transfers_folder_is_refused(
    source,  # noqa: F811
    uncut,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(fitting, "fit", pytest.fail)
    _, folder = uncut
    with pytest.raises(ValueError, match=r"transfer.seed was 0, is 1.*--resume never"):
        measured(source, folder, seed=1)
    other = dataclasses.replace(FROZEN, base_lr=(0.1,))
    with pytest.raises(ValueError, match=r"recipe.base_lr was \[0.01, 30.0\]"):
        measured(source, folder, other)
    model = tiny(classes=None)
    table = model.get_layer("posembed_input").weights[0]
    table.assign(table + 1)
    with pytest.raises(ValueError, match=r"transfer.weights was \"\w{64}\", is"):
        measured(source, folder, model=model)
    fewer = dataclasses.replace(source, train=noise_of_three_colors(27, 0))
    with pytest.raises(ValueError, match=r"data.fingerprint was"):
        measured(fewer, folder)
    (tmp_path / "begun.json").write_text('{"recipe": {}, "seed": 0}')  # Of `fit`.
    with pytest.raises(ValueError, match=r"data was null"):
        measured(source, tmp_path)


def test_what_cannot_be_measured_is_refused(source):  # noqa: F811
    with pytest.raises(ValueError, match=r"1 run or more\. Received: runs=0"):
        measured(source, runs=0)
    with pytest.raises(ValueError, match=r"one of imagenet2012, .*row='mnist'"):
        measured(source, row="mnist")
    with pytest.raises(ValueError, match=r"test images.*'colors', which has none"):
        measured(dataclasses.replace(source, test=None))
    ready = tf.data.Dataset.from_tensors((tf.zeros((8, 32, 32, 3)), tf.zeros(8)))
    with pytest.raises(ValueError, match=r"Received: a tf.data.Dataset"):
        measured(ready)
    with pytest.raises(ValueError, match=r"multiples of patch_size"):
        measured(source, settings=recipe(image_size=(40, 40)))


# The paper's number, and what differs.


def named(name, classes, images=(30, 15)):
    """A stand-in for a data set of the paper."""
    train, test = (noise_of_three_colors(count, 0) for count in images)
    return sources.Source(name, tuple(map(str, range(classes))), train, test)


@pytest.fixture
def as_b_16(monkeypatch):
    """The tiny model has the shape of ViT-B/16."""
    config = dataclasses.replace(config_of(tiny()), dropout_rate=0.1)
    monkeypatch.setitem(keras_vit.VARIANTS, "ViT-B/16", config)


def expected(data, row=None, pretrained_on="imagenet21k"):
    found = transferring._Paper.of(data, row).expected(tiny(), pretrained_on)
    return found and (found.table, found.percent)


def test_the_papers_number_is_of_model_pretraining_and_data(as_b_16):
    assert expected(named("cifar10", 10)) == ("Table 5", 98.95)
    assert expected(named("cifar10:train[:98%]/test", 10)) == ("Table 5", 98.95)
    assert expected(named("cifar10", 10), None, "jft300m") == ("Table 5", 99.00)
    assert expected(named("cifar10", 10), None, None) is None
    assert expected(named("cifar10", 10), None, "augreg-imagenet21k") is None
    assert expected(named("packed", 10), "cifar10") == ("Table 5", 98.95)
    assert expected(named("packed", 11), "cifar10") is None
    assert expected(named("flowers", 102)) is None  # Its row stands in for another.
    assert expected(named("packed", 10), "vtab") is None


def test_imagenets_number_is_of_the_rows_resolution(monkeypatch):
    monkeypatch.setitem(keras_vit.VARIANTS, "ViT-L/16", config_of(tiny()))
    imagenet = named("imagenet2012", 1000)
    assert expected(imagenet) == ("Table 5", 85.15)
    assert expected(imagenet, "imagenet2012-512") == ("Table 2", 85.30)


def test_a_model_of_no_paper_has_no_number():
    assert expected(named("cifar10", 10)) is None


def differences(data, settings, row=None, model=None, **scale):
    compared = transferring._Paper.of(data, row)
    found = (
        *compared.recipe(settings),
        *compared.data(keras_vit.Preprocessing(**scale)),
        *compared.model(model or tiny(dropout_rate=0.1), "imagenet21k"),
    )
    return {one.setting: (one.ours, one.paper) for one in found}


def test_every_setting_that_differs_is_listed(as_b_16):
    cifar = FINETUNE["cifar10"]
    theirs = dataclasses.replace(
        cifar, momentum_dtype="bfloat16", accumulation_steps=16, remat=True
    )
    found = differences(named("cifar10", 10), theirs)
    assert found == {"training images": (30, 50_000), "test images": (15, 10_000)}
    ours = dataclasses.replace(
        cifar,
        total_steps=500,
        image_size=(224, 224),
        batch_size=64,
        augment="flip",
        ema=0.999,
        base_lr=(0.01,),
        held_out=0.1,
    )
    found = differences(named("cifar10", 10), ours, mean=(0.4, 0.5, 0.5))
    assert found == {
        "base_lr": ((0.01,), (0.001, 0.003, 0.01, 0.03)),
        "total_steps": (500, 10_000),
        "held_out": (0.1, 0.02),
        "batch_size": (64, 512),
        "image_size": ((224, 224), (384, 384)),
        "momentum_dtype": ("float32", "bfloat16"),
        "ema": (0.999, None),
        "augment": ("flip", "inception"),
        "training images": (30, 50_000),
        "test images": (15, 10_000),
        "mean": ((0.4, 0.5, 0.5), (0.5, 0.5, 0.5)),
    }


def test_a_model_or_data_that_differs_is_listed(as_b_16):
    flowers = dataclasses.replace(
        FINETUNE["oxford_flowers102"], momentum_dtype="bfloat16"
    )
    model = tiny(gelu="erf", dropout_rate=0.1)
    assert differences(named("photos", 102), flowers, model=model) == {
        "data set": ("photos", "oxford_flowers102"),
        "gelu": ("erf", "tanh"),
    }
    other = keras_vit.vit(
        dataclasses.replace(config_of(model), mlp_dim=8),
        image_size=(32, 32),
        num_classes=3,
    )
    found = differences(named("oxford_flowers102", 12), flowers, model=other)
    assert found == {
        "classes": (12, 102),
        "model": (other.name, "no model of this shape"),
    }


def test_the_whole_of_it_from_an_npz_of_cifar(tmp_path, as_b_16):
    train, test = noise_of_three_colors(30, 0), noise_of_three_colors(13, 1)
    path = tmp_path / "cifar.npz"
    arrays = {"x_test": test.images, "y_test": test.labels}
    classes = [str(number) for number in range(10)]
    np.savez(
        path, x_train=train.images, y_train=train.labels, **arrays, classes=classes
    )
    result = measured(str(path), row="cifar10", pretrained_on="imagenet21k")
    assert (result.expected.table, result.expected.percent) == ("Table 5", 98.95)
    lines = str(result).splitlines()
    rates, runs = lines[1:3], lines[4:6]
    assert [float(line.split()[0]) for line in rates] == list(FROZEN.base_lr)
    (chosen,) = [line for line in rates if line.endswith("chosen")]
    assert float(chosen.split()[0]) == result.learning_rate
    assert [float(line.split()[1]) for line in runs] == [
        round(100 * accuracy, 2) for accuracy in result.accuracies
    ]
    assert lines[6].split() == [
        "mean",
        f"{100 * result.mean:.2f}",
        "+-",
        lines[6].split()[-1],
    ]
    assert float(lines[6].split()[-1]) == round(100 * result.std, 2)
    assert lines[7].split() == [
        "paper",
        "98.95",
        "Table",
        "5:",
        "ViT-B/16,",
        "imagenet21k",
    ]
    assert "  runs: 2, the paper's: 3" in lines
