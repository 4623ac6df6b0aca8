"""`keras-vit recipes`, called as a shell calls it."""

import dataclasses
import functools
import json

import pytest

from keras_vit.recipes import FINETUNE, PRETRAIN, Recipe, finetune_row

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def shell(shell, monkeypatch):
    """Runs `keras-vit recipes` at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return functools.partial(shell, "recipes")


def test_all_of_them_a_line_each(shell):
    code, text, errors = shell()
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [*FINETUNE, *PRETRAIN]
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if line.startswith("ViT-L/16-imagenet21k-30ep ")]
    assert row.split()[1:] == ["30", "epochs", "0.001", "linear", "0.03", "adam"]


def test_one_in_detail_with_its_source(shell):
    code, text, errors = shell("ViT-B/16-imagenet2012-sam")
    assert (code, errors) == (0, "")
    lines = [line.split(maxsplit=1) for line in text.splitlines()[1:-1]]
    said = {key: value.strip() for key, value in lines}
    assert said["weight_decay"] == "0.3"
    assert said["image_size"] == "224, 224"
    assert said["sam_rho"] == "0.05"
    assert not {"momentum", "freeze", "lora_rank", "boundaries"} & set(said)
    assert "arXiv:2106.01548" in text.splitlines()[-1]


@pytest.mark.parametrize("name", [*FINETUNE, *PRETRAIN])
def test_json_is_the_recipe(shell, name):
    code, text, errors = shell(name, "--json")
    assert (code, errors) == (0, "")
    fields = json.loads(text)
    assert "arXiv" in fields.pop("source")
    assert Recipe(**fields) == (FINETUNE | PRETRAIN)[name]


def test_json_of_all(shell):
    everything = json.loads(shell("--json")[1])
    assert list(everything) == [*FINETUNE, *PRETRAIN]
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert all(set(row) == fields | {"source"} for row in everything.values())


def test_unknown_names_are_one_line(shell):
    code, text, errors = shell("cifar11")
    assert (code, text) == (1, "")
    assert errors.startswith("keras-vit: Expected the name of a recipe")
    assert "Received: 'cifar11'. Did you mean cifar10 or cifar100? Help:" in errors


@pytest.mark.parametrize("name", ["cifar10", "cifar10:train[:98%]/test"])
def test_the_row_of_a_data_set_is_its_own(name):
    assert finetune_row(name) == "cifar10"
    assert finetune_row("photos/cifar10") == "oxford_flowers102"
