"""VTAB-1k end to end: all 19 tasks in small, resuming, and Table 9's means."""

import dataclasses
import json
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import manifest
from keras_vit.recipes import FINETUNE, Recipe

tf = pytest.importorskip("tensorflow")

from keras_vit.data import vtab as data  # noqa: E402
from keras_vit.evaluation import vtab  # noqa: E402
from keras_vit.training import resume  # noqa: E402
from keras_vit.training.fitting import Result  # noqa: E402

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run"),
]

FEW = Recipe(total_steps=2, base_lr=(0.05,), batch_size=4, image_size=(16, 16))
PRINTED = {"ViT-H/14 (JFT)": 77.6, "ViT-L/16 (JFT)": 76.3, "ViT-L/16 (I21k)": 72.7}
TABLE_2 = {"ViT-H/14 (JFT)": 77.63, "ViT-L/16 (JFT)": 76.28, "ViT-L/16 (I21k)": 72.72}


@pytest.fixture(autouse=True)
def eagerly(monkeypatch):
    """A compiled function costs more here than the updates it would make."""
    monkeypatch.setattr(vtab, "gc", types.SimpleNamespace(collect=lambda: None))
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def tiny(seed=0):
    keras.utils.set_random_seed(seed)
    config = keras_vit.ViTConfig(
        patch_size=8,
        num_layers=1,
        hidden_size=8,
        mlp_dim=8,
        num_heads=1,
        dropout_rate=0.1,
    )
    return keras_vit.vit(config, image_size=(16, 16), num_classes=3)


@pytest.fixture
def quick(tmp_path):
    """A command's options for a tiny model, one update and 16 px."""
    keras_vit.weights.save(tiny(), tmp_path / "tiny.npz", format="npz")
    size = ("--weights", tmp_path / "tiny.npz", "--image-size", 16)
    return (*size, "--steps", 1, "--batch-size", 2, "--augment", "none")


def run(output, tasks, model=None, **options):
    options = {"recipe": FEW, "verbose": 0, "output": output} | options
    return vtab.run(model or tiny(), tasks, **options)


def results(output):
    """Every result file's bytes, by name."""
    files = sorted(output.glob("*/run-*.json"))
    return {str(file.relative_to(output)): file.read_bytes() for file in files}


def _cells(text):
    """Of a printed table what every line says, by its name."""
    rows = text.partition("ViT-L/16 (I21k)")[2].splitlines()[1:24]
    return {row[:22].strip(): row[22:].split() for row in rows}


@pytest.mark.slow
def test_all_tasks_by_the_shell(small_vtab, shell, quick, tmp_path):
    """All 19 are trained and tested on all their test images, then printed."""
    output, picture = tmp_path / "vtab", tmp_path / "groups.png"
    code, text, errors = shell("vtab", *quick, "--output", output)
    assert (code, errors) == (0, "")
    scores = vtab.read(output)
    assert (scores.missing, scores.failures) == ((), {})
    for word, task in small_vtab.items():
        result = json.loads((output / word / "run-0.json").read_text())
        assert result["images"] == task.test_images
        assert result["right"] == round(result["accuracy"] * task.test_images)
        assert scores.accuracies[task.name] == {0: result["accuracy"]}
        kept = {path.name for path in (output / word / "run-0").iterdir()}
        records = {"certificate.jsonl", "history.json", "history.jsonl"}
        assert kept == {"begun.json", "manifest.json", "tensorboard", *records}
    places, _ = manifest.inside(output)
    assert len(places) == 20
    assert all(manifest.verify(place).whole for place in places)
    code, shown, _ = shell("vtab", "--show", "--output", output, "--picture", picture)
    assert code == 0
    assert picture.stat().st_size > 10_000
    assert shown.splitlines()[:24] == text.splitlines()[-24:]
    printed = _cells(shown)
    mean = np.mean([runs[0] for runs in scores.accuracies.values()])
    assert printed["VTAB (19 tasks)"] == [
        f"{100 * mean:.1f}",
        *map(str, PRINTED.values()),
    ]
    table = [row.split(" | ") for row in (output / "table.md").read_text().splitlines()]
    assert table[0][1:] == [*(task.name for task in data.TASKS), "mean |"]
    assert [row[0] for row in table[2:]] == [
        *("| this model", *(f"| {row}" for row in PRINTED))
    ]
    assert {len(row) for row in (table[0], *table[2:])} == {21}


class Cut(Exception):
    """The process is gone."""


def cut(patch, event, at):
    """The `at`-th call of a training's event, counted from 0, ends it."""
    real, calls = getattr(resume.CheckpointCallback, event), iter(range(1000))

    def asked(self, *arguments, **keywords):
        real(self, *arguments, **keywords)
        if next(calls) == at:
            raise Cut

    patch.setattr(resume.CheckpointCallback, event, asked)


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_results(small_vtab, tmp_path, monkeypatch):
    """Cut in the first task's middle, and after the second's last update."""
    tasks, kept = ["SVHN", small_vtab["dspr-ori"]], {"save_minutes": 0}
    model = tiny()
    before = [value.copy() for value in model.get_weights()]
    scores = run(tmp_path / "whole", tasks, model, **kept)
    assert [*scores.accuracies] == ["SVHN", "dSpr-Ori"]
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    for at, begun, done in ((0, "svhn", []), (3, "dspr-ori", ["svhn/run-0.json"])):
        output = tmp_path / f"cut-{at}"
        with monkeypatch.context() as patch:
            cut(patch, "on_train_batch_end", at)
            with pytest.raises(Cut):
                run(output, tasks, **kept)
        assert [*results(output)] == done
        assert list((output / begun / "run-0" / "checkpoints").iterdir())
        run(output, tasks, **kept)
        assert results(output) == results(tmp_path / "whole")


@pytest.fixture
def untrained(monkeypatch):
    """The seeds of trainings that are none; seed / 10 is the accuracy."""
    seeds = []

    def fit(model, recipe, source, *, seed, **options):
        seeds.append(seed)
        assert model.output_shape[-1] == len(source.classes)
        return Result(recipe.base_lr[0], {}, [], seed / 10, len(source.test))

    monkeypatch.setattr(vtab, "fit", fit)
    return seeds


def test_runs_can_be_added(small_vtab, tmp_path, untrained):
    one = run(tmp_path, ["SVHN"], seed=5).accuracies["SVHN"]
    first = results(tmp_path)
    scores = run(tmp_path, ["SVHN"], seed=5, runs=3)
    assert untrained == [5, 6, 7]  # The first is not trained again.
    assert results(tmp_path).items() >= first.items()
    runs = scores.accuracies["SVHN"]
    assert runs[0] == one[0]
    assert [*runs] == [0, 1, 2]
    assert scores.task("SVHN") == (
        pytest.approx(0.6),
        pytest.approx(np.std([0.5, 0.6, 0.7], ddof=1)),
    )


def test_absent_data_is_named_and_stops_nothing(
    small_vtab, shell, quick, tmp_path, untrained
):
    """Those that TFDS cannot download say what to put where; a table is half full."""
    from tensorflow_datasets.core import constants

    output, nowhere = tmp_path / "vtab", tmp_path / "nowhere"
    constants.DATA_DIR, prepared = str(nowhere), constants.DATA_DIR
    options = ("--output", output, *quick)
    code, text, _ = shell("vtab", "resisc45", "retinopathy", *options)
    assert code == 0
    assert (
        "Resisc45: Expected Resisc45's data, TFDS's resisc45:3.*.*. Received: Manual "
        f"directory {nowhere}/downloads/manual does not exist or is empty. TFDS cannot "
        "download it. Put these files there: NWPU-RESISC45.rar"
    ) in text
    assert "trainLabels.csv" in text
    constants.DATA_DIR = prepared
    assert not any(results(output))
    code, text, _ = shell("vtab", "camelyon", "eurosat", "resisc45", "dtd", *options)
    assert code == 0
    lines = _cells(text)
    assert lines["Resisc45"][0] != "-"
    for missing in (
        "Retinopathy",
        "Specialized (4 tasks)",
        "VTAB (19 tasks)",
        "Natural (7 tasks)",
    ):
        assert lines[missing][0] == "-"
    assert "4 of 19 tasks" in text
    assert [*vtab.read(output).failures] == ["Retinopathy"]
    remarks = (output / "table.md").read_text().partition("\n\n")[2]
    assert remarks.startswith("- 4 of 19 tasks. ")
    assert "- Retinopathy: Expected" in remarks
    code, _, _ = shell("vtab", "retinopathy", *options)
    assert code == 0
    scores = vtab.read(output)
    assert scores.failures == {}
    assert set(vtab.groups(scores)) == {"Specialized (4 tasks)"}


def test_another_model_recipe_or_seed_is_an_error(small_vtab, tmp_path, untrained):
    run(tmp_path, ["SVHN"])
    other = dataclasses.replace(FEW, total_steps=4)
    for changes, named in (
        ({"model": tiny(1)}, "weights was"),
        ({"recipe": other}, r"recipe\.total_steps was 2, is 4"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"augment": "recipe"}, "augment was"),
    ):
        with pytest.raises(ValueError, match=named):
            run(tmp_path, ["SVHN"], **changes)


def test_bad_input_is_an_error(small_vtab, shell, tmp_path, untrained):
    with pytest.raises(ValueError, match=r"clevr-count.* Received: 'imagenet'"):
        run(tmp_path, ["imagenet"])
    for options in ({"runs": 0}, {"augment": "flip"}):
        with pytest.raises(ValueError, match=r"Received: tasks=\['DTD'\], runs="):
            run(tmp_path, ["DTD"], **options)
    assert list(tmp_path.iterdir()) == []
    code, _, errors = shell("vtab", "--show", "--output", tmp_path)
    assert code == 1
    assert f"with vtab.json. Received: '{tmp_path}'" in errors
    run(tmp_path, ["DTD"])
    (tmp_path / "dtd" / "run-0.json").write_text("{")
    with pytest.raises(ValueError, match=r"run-0\.json', damaged .* Delete it"):
        vtab.read(tmp_path)
    (tmp_path / "dtd" / "run-0.json").write_text('{"run": 0, "accuracy": NaN}')
    with pytest.raises(ValueError, match=r"run-0\.json', damaged .accuracy=nan"):
        vtab.read(tmp_path)


def test_rates_are_chosen_on_the_200(small_vtab, tmp_path, monkeypatch):
    """Of the few records of these data sets the last fifth: 2 of 10."""
    held_out, split = [], data.Thousand.split
    monkeypatch.setattr(
        data.Thousand,
        "split",
        lambda self, *a: (
            held_out.append([len(x) for x in split(self, *a)]) or split(self, *a)
        ),
    )
    recipe = dataclasses.replace(FEW, total_steps=1, base_lr=(0.01, 0.05), held_out=0.2)
    run(tmp_path, ["EuroSAT"], recipe=recipe)
    assert held_out == [[8, 2]]
    result = json.loads((tmp_path / "eurosat" / "run-0.json").read_text())
    assert result["learning_rate"] in (0.01, 0.05)
    assert FINETUNE["vtab"].held_out == 0.2


def test_the_recipe_is_table_4s_with_the_tasks_crops():
    row = FINETUNE["vtab"]
    assert (row.total_steps, row.base_lr, row.batch_size) == (2500, (0.01,), 512)
    recipes = {task.name: vtab.recipe_for(task, row) for task in data.TASKS}
    augments = {name: recipe.augment for name, recipe in recipes.items()}
    assert recipes["SVHN"].resize == (448, 448)  # The config's h_res for 384.
    assert recipes["DMLab"].resize is None
    assert {name: a for name, a in augments.items() if a != "crop"} == {
        "Clevr-Count": "flip",
        "Clevr-Dist": "flip",
        "DMLab": "flip",
        "dSpr-Loc": "none",
        "dSpr-Ori": "crop_only",
        "KITTI-Dist": "flip",
        "sNORB-Azim": "crop_only",
    }


def test_means_of_the_papers_rows_are_the_papers():
    for row, scores in vtab.paper_rows().items():
        mean = scores.mean()
        assert round(100 * mean.mean, 1) == PRINTED[row]
        assert 100 * mean.mean == pytest.approx(TABLE_2[row], abs=0.02)
        assert mean.std is None
    groups = vtab.groups(vtab.paper_rows()["ViT-H/14 (JFT)"])
    assert {name: round(100 * score.mean, 3) for name, score in groups.items()} == {
        "VTAB (19 tasks)": 77.632,  # 1475.0 / 19
        "Natural (7 tasks)": 86.686,  # 606.8 / 7
        "Specialized (4 tasks)": 87.0,  # 348.0 / 4
        "Structured (8 tasks)": 65.025,  # 520.2 / 8
    }


def test_mean_of_runs_and_of_unfinished_ones():
    names = [task.name for task in data.TASKS if task.group == "Specialized"]
    rows = ({0: 0.5, 1: 0.7}, {0: 0.3, 1: 0.3}, {0: 0.8, 1: 0.6}, {0: 0.2, 1: 0.4})
    scores = vtab.Scores(dict(zip(names, rows, strict=True)))
    mean, std = scores.mean(names)  # Runs: 0.45 and 0.5.
    assert mean == pytest.approx(0.475)
    assert std == pytest.approx(np.std([0.45, 0.5], ddof=1))
    assert vtab.cells(scores)["Specialized (4 tasks)"] == "47.5 ± 3.5"
    assert vtab.cells(scores)["Camelyon"] == "60.0 ± 14.1"
    less = vtab.Scores(scores.accuracies | {names[0]: {1: 0.9}})
    assert less.mean(names) == (pytest.approx(2.2 / 4), None)
    assert scores.mean() is None
    assert set(vtab.groups(scores)) == {"Specialized (4 tasks)"}
    (remark,) = vtab.remarks(scores)
    assert remark.startswith("4 of 19 tasks. ")
    assert "Caltech101, CIFAR-100" in remark


def test_list_is_80_columns_wide(shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, text, _ = shell("vtab", "--list")
    assert code == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for task in data.TASKS:
        (number,) = [
            i for i, line in enumerate(lines) if line.startswith(task.word + " ")
        ]
        assert lines[number].split() == [
            *(task.word, str(task.classes), task.tfds, f"{task.test_images:,}")
        ]
        assert lines[number + 1].strip() == f"train[:800]+{task.val200}/{task.test}"
