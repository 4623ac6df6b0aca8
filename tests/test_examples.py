"""Every example that is a script, in smoke size."""

import dataclasses
import importlib.util
import json
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from tests.conftest import REFERENCE

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # As Python has it for a script there.


def test_every_example_is_tested_and_listed():
    tested = {
        *("quickstart", "finetune_folder", "finetune_cifar10"),
        *("cifar10", "data_size", "adam_vs_sgd", "masked_patches"),
        *("inside", "appendix_d"),
    }
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"`{path.name}`" in listed


def test_quickstart():
    pytest.importorskip("sklearn")
    assert 0 <= example("quickstart").main(smoke=True) <= 1


def test_finetune_folder(tmp_path):
    import tensorflow as tf

    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, brightness in (("dark", 40), ("light", 210)):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 40, (70, 80, 3)) + brightness
                image = tf.io.encode_jpeg(pixels.astype(np.uint8))
                (folder / f"{i}.jpg").write_bytes(image.numpy())
    accuracy = example("finetune_folder").main(
        tmp_path / "photos", REFERENCE / "vit_mini.npz", smoke=True
    )
    assert accuracy == 1


@pytest.fixture
def cifar10(tmp_path):
    """Noise of CIFAR-10's shape and classes: 60 and 20 images."""
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(example("cifar10").CLASSES)}
    for split, count in (("train", 60), ("test", 20)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar.npz", **arrays)
    return tmp_path / "cifar.npz"


def test_cifar10(tmp_path, monkeypatch, capsys):
    """The first images of each class, in the data set's order."""
    labels = np.array([3, 0, 3, 0, 3, 0, *range(10)], np.uint8)[:, None]
    images = np.arange(16, dtype=np.uint8).reshape(16, 1, 1, 1) + np.zeros(
        (16, 32, 32, 3), np.uint8
    )
    data = ((images, labels), (images[6:], labels[6:]))
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: data)
    example("cifar10").main(train=2, test=1)
    assert capsys.readouterr().out == "cifar10-6k.npz: 12 and 10 images\n"
    source = keras_vit.data.open_source(tmp_path / "cifar10-6k.npz")
    assert source.classes[3] == "cat"
    kept = source.train.images[:, 0, 0, 0]
    assert kept.tolist() == [0, 1, 2, 3, *range(7, 9), *range(10, 16)]
    np.testing.assert_array_equal(source.train.labels, labels[kept, 0])
    assert source.test.images[:, 0, 0, 0].tolist() == [*range(6, 16)]


@pytest.mark.parametrize(
    "name", ["adam_vs_sgd", "appendix_d", "data_size", "masked_patches"]
)
def test_studies_read_what_cifar10_writes(name):
    assert example(name).CIFAR10 == example("cifar10").OUTPUT


def test_finetune_cifar10(cifar10):
    accuracy = example("finetune_cifar10").main(cifar10, smoke=True)
    assert 0 <= accuracy <= 1


def test_data_size(cifar10, tmp_path, capsys):
    """The test images judge what other images have chosen: they are not trained on."""
    pytest.importorskip("matplotlib")
    module = example("data_size")
    accuracy = module.main(cifar10, images=(20,), smoke=True)
    assert {name: [*of] for name, of in accuracy.items()} == {
        "ViT": [20],
        "ResNet": [20],
    }
    folder = tmp_path / "runs" / "data_size"
    assert (folder / "data_size.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "data_size.json").read_text())
    assert kept["ViT"]["20"] == accuracy["ViT"][20]
    for name in accuracy:
        result = keras_vit.evaluation.subsets.read(folder / name)
        assert (result.validation_images, result.test_images) == (10, 20)
    begun = {file: file.stat().st_mtime_ns for file in folder.glob("*/*/best.keras")}
    assert len(begun) == 2
    printed = capsys.readouterr().out
    assert module.main(cifar10, images=(20,), smoke=True) == accuracy
    assert capsys.readouterr().out == printed
    assert {file: file.stat().st_mtime_ns for file in begun} == begun  # Not trained.


def test_adam_vs_sgd(cifar10, capsys):
    accuracy = example("adam_vs_sgd").main(cifar10, smoke=True)
    assert list(accuracy) == ["Adam", "SGD"]
    task = "automobile, truck"
    assert all(list(rows) == [task] for rows in accuracy.values())
    printed = [f"{accuracy[name][task]:.1%}" for name in accuracy]
    head, row, average = capsys.readouterr().out.splitlines()[-3:]
    assert head.split() == ["ResNet", "Adam", "SGD"]
    assert row.split() == [*task.split(), *printed]
    assert average.split() == ["average", *printed]  # Of one task, in smoke size.


def test_masked_patches(cifar10, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    accuracy = example("masked_patches").main(cifar10, 20, (3,), smoke=True)
    lines = capsys.readouterr().out.splitlines()
    assert "their colors' entropy" in lines[0]
    (scratch,), (pretrained,) = accuracy.values()
    assert lines[-1].split()[1:3] == [f"{scratch:.1%}", f"{pretrained:.1%}"]
    for name in ("reconstructions", "pretraining", "finetuning"):
        picture = tmp_path / "runs" / "masked_patches" / f"{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_inside(cifar10, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    distances = example("inside").main(
        REFERENCE / "vit_mini.npz", cifar10, "pictures", count=9, gelu="tanh"
    )
    assert distances.shape == (2, 4)
    written = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert written == {f"figure_{number}.png" for number in (5, 6, 7, 10, 11, 14)}
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = (distances[1].min(), distances[1].mean(), distances[1].max())
    assert ["2", *(f"{pixels:.1f}" for pixels in row)] in printed


def test_appendix_d(cifar10, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    numbers = example("appendix_d").main(cifar10, smoke=True)
    printed = capsys.readouterr().out
    for figure in ("8", "9", "10", "13"):
        picture = tmp_path / "runs" / "appendix_d" / f"figure_{figure}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"figure_{figure}.png: " in printed
    ((base, (relative, accuracy)),) = numbers["8"].values()
    assert base[0] == 1
    assert f"{relative:.2f}{accuracy:>8.1%}" in printed
    ((name, points),) = numbers["9"].items()
    assert f"{name:<20}{points[1]:>7.1%}" in printed
    assert numbers["10"]["1-D"].shape == (8, 8, 8, 8)
    ((positions, accuracy),) = numbers["table8"].items()
    assert positions == ("none", "stem")
    row = f"{'none':<10}{'stem':<20}{accuracy:>8.1%}{0.61382:>9.1%}"
    assert row in printed
    (model,) = numbers["13"]
    exaflops, speed, accuracy = numbers["13"][model]
    module = example("appendix_d")
    config = dataclasses.replace(module.MODELS[model], num_layers=1)
    counted = keras_vit.inspection.costs(config, module.SIZE, num_classes=10)
    seen = 2 * module.RECIPE.batch_size  # Two steps of a smoke test.
    assert exaflops == pytest.approx(counted.exaflops(seen))
    assert f"{speed:.0f}{accuracy:>8.1%}" in printed


def test_likeness_of_neighbours_is_written_once():
    assert example("appendix_d").neighbours.__module__ == "inside"
    positions = np.zeros((2, 3, 2, 3))
    positions[0, :, 1, :] = np.eye(3) * 0.5  # Below; one row has one.
    positions[0, 1, 0, 2] = 1  # At the right: 1 of 4.
    assert example("inside").neighbours(positions) == (0.5, 0.25)


def test_figure_13_counts_the_images_that_are_seen():
    module = example("appendix_d")
    batch = module.RECIPE.batch_size
    source = types.SimpleNamespace(train=range(3 * batch + 1))
    study = module.Study(source, 4, Path())
    assert study.length() == (4, 3)
    assert study.length(2) == (8, 3)


def test_shapes_of_figure_8_differ_from_the_base_in_what_they_say():
    module = example("appendix_d")
    base = dataclasses.asdict(module.BASE)
    fields = {"depth": "num_layers", "patch size": "patch_size", "width MLP": "mlp_dim"}
    for name, field in fields.items():
        for config in module.SHAPES[name]:
            changed = dataclasses.asdict(config).items() - base.items()
            assert [key for key, _ in changed] == [field]
    for config in module.SHAPES["width"]:
        head = config.hidden_size / config.num_heads
        assert head == base["hidden_size"] / base["num_heads"]
        assert config.mlp_dim == base["mlp_dim"]


def test_classes_are_chosen_and_numbered_from_0(cifar10):
    source = keras_vit.data.open_source(cifar10)
    part = example("adam_vs_sgd").of_classes(source, ("truck", "cat"))
    assert part.classes == ("truck", "cat")
    assert part.train.labels.tolist() == [1, 0] * 6  # A cat is 3, a truck 9.
    np.testing.assert_array_equal(part.train.images[1], source.train.images[9])
