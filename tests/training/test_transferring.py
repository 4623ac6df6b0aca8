"""`transfer`: section 4.1's protocol, resumed to the bit, beside the paper's numbers."""

import dataclasses
import gc
import json
import statistics
import weakref

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.recipes import FINETUNE, Recipe
from keras_vit.training import fitting, transfer, transferring
from tests.training.test_fitting import noise_of_three_colors, recipe, source, tiny
from tests.training.test_resume import Cut, cut

tf = pytest.importorskip("tensorflow")

__all__ = ["source"]  # A fixture.
pytestmark = pytest.mark.tensorflow_only

SWEPT = recipe(total_steps=6, base_lr=(1e-6, 0.2, 0.1), augment="flip")


def measured(source, folder=None, settings=SWEPT, model=None, **options):  # noqa: F811
    model = model or tiny(classes=None, dropout_rate=0.3)
    options = {"verbose": 0, "save_steps": 2} | options
    return transfer(model, source, recipe=settings, output=folder, **options)


@pytest.fixture(scope="module")
def uncut(source, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("uncut")
    return measured(source, folder), folder


def final_weights(folder):
    models = sorted(folder.glob("run-*/model.keras"))
    return [keras.models.load_model(path).get_weights() for path in models]


def assert_same_weights(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_best_held_out_rate_trains_every_run(uncut):
    result, folder = uncut
    assert set(result.sweep) == set(SWEPT.base_lr)
    assert result.sweep[result.learning_rate] == max(result.sweep.values())
    assert len({*result.sweep.values()}) > 1
    for run in range(3):
        told = json.loads((folder / f"run-{run}/history.json").read_text())
        assert told["learning_rate"] == result.learning_rate
        assert bool(told["sweep"]) == (run == 0)
        assert told["test_images"] == 13
        assert told["test_accuracy"] == result.accuracies[run]


def test_mean_and_sample_deviation(uncut):
    result, _ = uncut
    assert len(result.accuracies) == 3
    assert result.mean == statistics.mean(result.accuracies)
    assert result.std == np.std(result.accuracies, ddof=1)


def test_a_run_is_a_fit_from_the_pretrained_weights(uncut, source):  # noqa: F811
    """Of the chosen rate and its own seed, with a zero head, and nothing else."""
    result, folder = uncut
    settings = dataclasses.replace(SWEPT, base_lr=(result.learning_rate,))
    model = keras_vit.for_task(tiny(classes=None, dropout_rate=0.3), 3)
    (state,) = {v for v in model.variables if "seed_generator" in v.path} or {None}
    drawn = np.random.SeedSequence(1).generate_state(1)
    state.assign([drawn[0], 0])
    alone = fitting.fit(model, settings, source, seed=1, verbose=0)
    assert alone.test_accuracy == result.accuracies[1]
    assert_same_weights([model.get_weights()], [final_weights(folder)[1]])


def test_runs_differ_and_repeat(uncut, source, tmp_path):  # noqa: F811
    _, folder = uncut
    again = measured(source, tmp_path)
    assert again == uncut[0]
    weights = final_weights(folder)
    assert_same_weights(final_weights(tmp_path), weights)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert not np.array_equal(weights[one][-2], weights[other][-2])


def test_the_model_is_left_as_it_is(source):  # noqa: F811
    model = tiny(classes=7)
    before = [weight.copy() for weight in model.get_weights()]
    larger = dataclasses.replace(SWEPT, image_size=(48, 32), base_lr=(0.1,))
    result = measured(source, settings=larger, model=model, runs=1)
    assert_same_weights([model.get_weights()], [before])
    assert model.output_shape == (None, 7)
    assert (result.std, len(result.accuracies), result.sweep) == (None, 1, {})
    assert result.mean == result.accuracies[0]


def test_a_finished_runs_model_is_given_back(source, monkeypatch):  # noqa: F811
    seen = []
    real = fitting.fit

    def watched(model, *arguments, **options):
        gc.collect()
        assert not [one for one in seen if one() is not None]
        seen.append(weakref.ref(model))
        return real(model, *arguments, **options)

    monkeypatch.setattr(fitting, "fit", watched)
    measured(source, settings=recipe())
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ("on_train_batch_end", 8),  # In the sweep's second rate.
        ("on_train_batch_end", 22),  # In the first final run.
        ("on_train_batch_end", 33),  # In the last one.
        ("on_test_batch_end", 3),
        ("save", 13),
    ],
)
def test_cut_anywhere(event, count, source, uncut, tmp_path, monkeypatch):  # noqa: F811
    with monkeypatch.context() as patch:
        cut(patch, event, count)
        with pytest.raises(Cut):
            measured(source, tmp_path)
    keras.utils.set_random_seed(99)  # Another process draws from elsewhere.
    assert measured(source, tmp_path) == uncut[0]
    assert_same_weights(final_weights(tmp_path), final_weights(uncut[1]))


def test_finished_runs_are_read_and_more_are_added(
    source,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    two = measured(source, tmp_path, runs=2)
    three = measured(source, tmp_path, runs=3)
    assert three.accuracies[:2] == two.accuracies
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", pytest.fail)
        assert measured(source, tmp_path, runs=3) == three
    written = json.loads((tmp_path / "transfer.json").read_text())
    assert written["accuracies"] == list(three.accuracies)
    assert written["sweep"] == {str(rate): at for rate, at in three.sweep.items()}
    assert {"setting": "batch_size", "ours": 8, "paper": 512} in written["differences"]
    (tmp_path / "run-1/history.json").write_text("{")
    with pytest.raises(ValueError, match=r"run-1/history.json.*Delete it"):
        measured(source, tmp_path)
    anew = measured(source, tmp_path, resume="never", seed=5, runs=1)
    assert anew.seed == 5
    assert not (tmp_path / "run-1/history.json").exists()


def test_another_transfers_folder_is_refused(uncut, source, tmp_path):  # noqa: F811
    _, folder = uncut
    with pytest.raises(ValueError, match=r"transfer.seed was 0, is 1.*--resume never"):
        measured(source, folder, seed=1)
    other = dataclasses.replace(SWEPT, base_lr=(0.1,))
    with pytest.raises(ValueError, match=r"recipe.base_lr was \[1e-06, 0.2, 0.1\]"):
        measured(source, folder, other)
    model = tiny(classes=None, dropout_rate=0.3)
    model.layers[1].set_weights([1 + w for w in model.layers[1].get_weights()])
    with pytest.raises(ValueError, match="transfer.weights was"):
        measured(source, folder, model=model)
    fewer = dataclasses.replace(source, train=noise_of_three_colors(27, 0))
    with pytest.raises(ValueError, match="data.fingerprint was"):
        measured(fewer, folder)
    fitting.fit(tiny(), recipe(), source, output=tmp_path, verbose=0)
    with pytest.raises(ValueError, match="transfer.seed|transfer was null"):
        measured(source, tmp_path)


def test_a_frozen_model_reads_the_images_once(source, monkeypatch):  # noqa: F811
    predicted = []
    real = keras.Model.predict
    monkeypatch.setattr(
        keras.Model,
        "predict",
        lambda self, *a, **k: predicted.append(1) or real(self, *a, **k),
    )
    settings = recipe(freeze=True, augment="none", base_lr=(0.1, 0.2))
    result = measured(source, settings=settings, model=tiny(classes=None))
    assert len(predicted) == 2  # Training and test images.
    alone = keras_vit.for_task(tiny(classes=None), 3)
    one = dataclasses.replace(settings, base_lr=(result.learning_rate,))
    fitted = fitting.fit(alone, one, source, seed=2, verbose=0)
    assert fitted.test_accuracy == result.accuracies[2]


def test_lora_begins_anew_in_every_run(source, tmp_path):  # noqa: F811
    settings = recipe(lora_rank=2)
    model = tiny(classes=None)
    measured(source, tmp_path, settings, model)
    assert not any("lora" in weight.path for weight in model.weights)
    (tmp_path / "x").mkdir()
    other = keras_vit.for_task(tiny(classes=None), 3)
    fitting.fit(other, settings, source, seed=1, verbose=0)


# The paper's number, and what differs.


def named(name, classes, images=(30, 15)):
    """A stand-in for a data set of the paper."""
    splits = [noise_of_three_colors(count, 0) for count in images]
    names = tuple(map(str, range(classes)))
    return keras_vit.data.sources.Source(name, names, *splits)


def differences(data, settings, model=None, row=None, **options):
    compared = transferring._Paper.of(data, row)
    model = model or tiny()
    found = (
        *compared.recipe(settings),
        *compared.data((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        *compared.model(model, **{"pretrained_on": "imagenet21k"} | options),
    )
    return {one.setting: (one.ours, one.paper) for one in found}


def b_16(**changes):
    config = dataclasses.replace(keras_vit.VARIANTS["ViT-B/16"], **changes)
    with keras.device("meta") if keras.backend.backend() == "torch" else _nothing():
        return keras_vit.vit(config, image_size=(32, 32), num_classes=None)
