"""Figure 4's protocol on digits: what trains, chooses and is measured; resuming."""

import dataclasses
import json
import shutil
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import Arrays, Source
from keras_vit.recipes import Recipe

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

from keras_vit.evaluation import few_shot, subsets  # noqa: E402
from keras_vit.training import resume  # noqa: E402

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run"),
]

CONFIG = keras_vit.ViTConfig(
    patch_size=4, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1
)
RECIPE = Recipe(
    total_steps=4, base_lr=(0.05,), batch_size=8, image_size=(8, 8), augment="none"
)


@pytest.fixture(autouse=True)
def eagerly(monkeypatch):
    """A compiled function costs more here than the updates it would make."""
    monkeypatch.setattr(subsets, "gc", types.SimpleNamespace(collect=lambda: None))
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def digits():
    source = keras_vit.data.open_source("digits")
    return dataclasses.replace(source, train=source.train.take(np.arange(200)))


def measure(source, folder, **options):
    options = {"recipe": RECIPE, "subsets": (0.2, 1.0), "draws": (0, 1)} | options
    return subsets.data_size(CONFIG, source, output=folder, verbose=0, **options)


@pytest.fixture
def trainings(monkeypatch):
    """The sources and recipes that `fit` is called with."""
    called = []

    def spy(model, recipe, source, **options):
        called.append((source, recipe, options))
        return fit(model, recipe, source, **options)

    fit = subsets.fit
    monkeypatch.setattr(subsets, "fit", spy)
    return called


def rows(split):
    return {image.tobytes() for image in split.images}


def test_subsets_are_nested_and_the_test_images_choose_nothing(
    digits, tmp_path, trainings
):
    result = measure(digits, tmp_path, subsets=(0.5, 20, 1.0))
    held_out = round(0.1 * 200)
    assert [row.images for row in result.rows] == [20, 90, 180]
    sources = [source for source, _, _ in trainings]
    assert [len(source.train) for source in sources] == [20, 90, 180]
    small, middle, whole = (rows(source.train) for source in sources)
    assert small < middle < whole <= rows(digits.train)
    for source, recipe, _ in trainings:
        assert recipe.steps == RECIPE.steps
        assert len(source.test) == held_out == result.validation_images
        assert rows(source.test) == rows(digits.train) - whole
        assert not rows(source.test) & rows(digits.test)
    assert result.test_images == len(digits.test)
    assert result.steps == 4


def test_the_best_evaluation_is_measured_once(digits, tmp_path, monkeypatch):
    """Not the last one; and by `fewshot`, of the folder's own best model."""
    judged = []

    def spy(model, *args, **options):
        judged.append(model)
        return fewshot(model, *args, **options)

    fewshot = few_shot.fewshot
    monkeypatch.setattr(subsets.few_shot, "fewshot", spy)
    result = measure(digits, tmp_path, subsets=(1.0,), shots=3, l2=7.0)
    (row,) = result.rows
    folder = tmp_path / "180-images-seed-0"
    best = keras.models.load_model(folder / "best.keras")
    for one, other in zip(judged[0].weights, best.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(judged) == 1
    found = fewshot(best, digits, shots=(3,), seeds=(0, 1), l2=7.0, verbose=False)
    assert row.mean == found.at(3).mean
    history = json.loads((folder / "history.json").read_text())["history"]
    accuracies = [line["val_accuracy"] for line in history]
    assert len(accuracies) == 4
    assert row.validation == (max(accuracies),)


def test_shots_of_other_data(digits, tmp_path):
    """The downstream data has its own classes."""
    images, labels = digits.train.images, digits.train.labels
    odd = Source(
        "odd",
        ("even", "odd"),
        Arrays(images[:60], labels[:60] % 2),
        Arrays(images[60:90], labels[60:90] % 2),
    )
    result = measure(digits, tmp_path, subsets=(0.5,), few_shot_data=odd)
    assert (result.data, result.few_shot_data) == ("digits", "odd")
    assert result.test_images == 30


def test_the_same_call_trains_nothing_and_more_subsets_add(digits, tmp_path, trainings):
    first = measure(digits, tmp_path)
    assert len(trainings) == 2
    assert measure(digits, tmp_path) == first == subsets.read(tmp_path)
    assert len(trainings) == 2
    more = measure(digits, tmp_path, subsets=(0.2, 0.4, 1.0), seeds=(0, 3))
    assert len(trainings) == 6
    assert [row.images for row in more.rows] == [36, 72, 180]
    assert more.rows[0].few_shot[:1] == first.rows[0].few_shot
    assert more.rows[0].std == np.std(more.rows[0].few_shot, ddof=1)
    assert more.points == {row.images: np.mean(row.few_shot) for row in more.rows}
    assert not list(tmp_path.glob("*/checkpoints"))
    other = {row[2]["seed"]: rows(row[0].train) for row in trainings[2:]}
    assert other[0] != other[3]  # A seed draws its own subsets.


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_numbers(digits, tmp_path, monkeypatch):
    """Cut in the middle of a training, and then before the few-shot accuracy."""
    whole = measure(digits, tmp_path / "whole")
    saved = resume.CheckpointCallback.on_train_batch_end
    updates = []

    def killing(self, batch, logs=None):
        saved(self, batch, logs)
        updates.append(self.step)
        if len(updates) == 6:  # The second update of the second training.
            raise Killed

    monkeypatch.setattr(resume.CheckpointCallback, "on_train_batch_end", killing)
    options = {"save_minutes": 0}
    with pytest.raises(Killed):
        measure(digits, tmp_path / "cut", **options)
    begun = (tmp_path / "cut" / "36-images-seed-0.json").stat().st_mtime_ns

    def dying(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(subsets.few_shot, "fewshot", dying)
        with pytest.raises(Killed):
            measure(digits, tmp_path / "cut", **options)
    trained = len(updates)
    assert 6 < trained <= 9  # It did not begin anew: 4 + 4 and what was not saved.
    assert measure(digits, tmp_path / "cut", **options) == whole
    assert len(updates) == trained
    first = tmp_path / "cut" / "36-images-seed-0.json"
    assert first.stat().st_mtime_ns == begun


def test_a_resnet_without_the_recipes_dropout(digits, tmp_path):
    config = keras_vit.ResNetConfig(num_layers=(1,), width=32)
    recipe = dataclasses.replace(RECIPE, total_steps=1, dropout_rate=0.0)
    options = {"recipe": recipe, "subsets": (0.2,), "draws": (0,), "verbose": 0}
    result = subsets.data_size(config, digits, output=tmp_path, **options)
    assert [row.images for row in result.rows] == [36]


def test_it_prints_a_table():
    rows = tuple(
        subsets.SubsetAccuracy(images=n, few_shot=(a, a + 0.02), validation=(a, a))
        for n, a in ((1000, 0.25), (20_000, 0.5))
    )
    result = subsets.DataSize(
        rows=rows,
        seeds=(0, 4),
        shots=5,
        steps=3000,
        parameters=10,
        validation_images=7,
        test_images=1234,
        data="cifar10",
        few_shot_data="digits",
    )
    lines = [line.split() for line in str(result).splitlines()]
    assert lines[0][:4] == ["5-shot", "linear", "accuracy", "on"]
    assert lines[1:] == [
        ["images", "mean", "%", "std", "seed", "0", "seed", "4"],
        ["1,000", "26.00", "1.41", "25.00", "27.00"],
        ["20,000", "51.00", "1.41", "50.00", "52.00"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsets": ()}, r"shares in \(0, 1\].*subsets=\(\)"),
        ({"subsets": (0.0, 1.0)}, r"subsets=\(0.0, 1.0\)"),
        ({"subsets": (181,)}, r"numbers up to 180 .*subsets=\(181,\)"),
        ({"subsets": (20.5,)}, r"subsets=\(20.5,\)"),
        ({"subsets": (0.5, 90)}, r"distinct and not empty.*subsets=\(0.5, 90\)"),
        ({"subsets": (0.001,)}, "not empty"),
        ({"seeds": ()}, r"distinct seeds from 0.*seeds=\(\)"),
        ({"seeds": (0, 0)}, r"seeds=\(0, 0\)"),
        ({"seeds": (-1,)}, r"seeds=\(-1,\)"),
        ({"shots": 1000}, "1000 training images of every class"),
        ({"draws": ()}, r"seeds=\(\)"),
        ({"validation_share": 0.0}, "validation_share=0.0"),
        ({"validation_share": 1.0}, "validation_share=1.0"),
    ],
    ids=str,
)
def test_errors_before_anything_is_trained(digits, tmp_path, options, message):
    with pytest.raises(ValueError, match=f"(?s)Expected .*{message}"):
        measure(digits, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_recipes_that_cannot_be_followed(digits, tmp_path):
    several = dataclasses.replace(RECIPE, base_lr=(0.1, 0.2), held_out=0.1)
    with pytest.raises(ValueError, match=r"one learning rate .*base_lr=\(0.1, 0.2\)"):
        measure(digits, tmp_path, recipe=several)
    dropping = dataclasses.replace(RECIPE, dropout_rate=0.1)
    resnet = keras_vit.ResNetConfig(num_layers=(1,), width=32)
    with pytest.raises(ValueError, match=r"options of a ResNet.*dropout_rate"):
        subsets.data_size(resnet, digits, output=tmp_path, recipe=dropping)


def test_data_that_cannot_be_measured(digits, tmp_path):
    untested = dataclasses.replace(digits, test=None)
    with pytest.raises(ValueError, match="test images"):
        measure(untested, tmp_path)
    ready = tuple(
        np.zeros((4, 3)) if n % 2 == 0 else np.arange(4) % 2 for n in range(4)
    )
    with pytest.raises(ValueError, match="few_shot_data of type Features"):
        measure(digits, tmp_path, few_shot_data=ready)


def test_a_folder_of_other_settings_or_damaged(digits, tmp_path):
    measure(digits, tmp_path, subsets=(0.2,))
    with pytest.raises(ValueError, match=r"different settings.*shots"):
        measure(digits, tmp_path, subsets=(0.2,), shots=3)
    (tmp_path / "36-images-seed-0.json").write_text("{}")
    with (
        pytest.warns(UserWarning, match=r"Damaged since.*36-images-seed-0\.json"),
        pytest.raises(ValueError, match=r"36-images-seed-0\.json', damaged.*Delete it"),
    ):
        measure(digits, tmp_path, subsets=(0.2,))
    (tmp_path / "data_size.json").write_text("[")
    with pytest.raises(ValueError, match="Expected a result of `keras-vit data-size`"):
        subsets.read(tmp_path)
    with pytest.raises(ValueError, match=r"data_size\.json"):
        subsets.read(tmp_path / "none")


def test_the_command(shell, tmp_path):
    """Prints, writes JSON and the picture; the same command trains nothing more."""
    pytest.importorskip("matplotlib")
    small = ("--patch-size", 4, "--layers", 1, "--hidden-size", 8, "--mlp-dim", 8)
    command = (
        *("data-size", "--data", "digits", "--model", "ViT-Ti/16", *small),
        *("--heads", 1, "--recipe", "cifar10-scratch", "--image-size", 8),
        *("--steps", 2, "--batch-size", 8, "--subset", 0.1, "--subset", 1),
        *("--draws", 1, "--evaluations", 1),
    )
    code, out, err = shell(*command, "--output", tmp_path / "a")
    assert (code, err) == (0, "")
    result = subsets.read(tmp_path / "a")
    assert str(result) in out
    assert [row.images for row in result.rows] == [130, 1295]
    assert result.steps == 2
    assert (tmp_path / "a" / "data_size.png").read_bytes().startswith(b"\x89PNG")
    again = (*command, "--output", tmp_path / "a", "--also", tmp_path / "a")
    code, out, _ = shell(*again)
    assert (code, "Epoch" in out, str(result) in out) == (0, False, True)
    code, _, err = shell(*command, "--output", tmp_path / "b", "--subset", 5000)
    assert (code, "numbers up to 1,295" in err) == (1, True)
    code, _, err = shell(*command, "--also", tmp_path / "b")
    assert (code, "Expected a result of `keras-vit data-size`" in err) == (1, True)
    code, _, err = shell(*command, "--also", tmp_path / "a", "--shots", 2)
    assert (code, "with 5 shots. Use --shots 5" in err) == (1, True)
    several = ["--also", tmp_path / "a"] * 2
    for number in range(8):
        shutil.copytree(tmp_path / "a", tmp_path / f"also-{number}")
        several += ["--also", tmp_path / f"also-{number}"]
    code, _, err = shell(*command, *several)
    told = "Expected 1 to 7 models (--model and each --also). Received: 10"
    assert (code, told in err) == (1, True)
    file = tmp_path / "also-0" / subsets.RESULT
    file.write_text(
        file.read_text().replace('"few_shot_data": "digits"', '"few_shot_data": "cats"')
    )
    code, _, err = shell(*again[:-1], tmp_path / "also-0")
    assert (code, "was measured on cats, this run on digits" in err) == (0, True)
