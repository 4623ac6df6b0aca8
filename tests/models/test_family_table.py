"""The table of families: complete, consistent, and the only place that asks for one."""

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

import keras_vit
from keras_vit import configs
from keras_vit.families import (
    FAMILIES,
    Late,
    family_of,
    sizes_of,
    variant_of,
    with_options,
)

pytestmark = pytest.mark.tensorflow_only

PACKAGE = Path(keras_vit.__file__).parent
VARIANTS = {name: config for name, config in keras_vit.VARIANTS.items() if "-" in name}
LATE = {
    f"{family} {field} {at.name}": at
    for family, row in FAMILIES.items()
    for field, value in vars(row).items()
    for at in (value.values() if field == "layouts" else [value])
    if isinstance(at, Late)
}


@pytest.mark.parametrize("at", LATE.values(), ids=LATE)
def test_functions_of_a_row_exist(at):
    module = importlib.import_module(f"keras_vit.{at.module}")
    assert callable(getattr(module, at.name))


def test_functions_of_a_row_do_not_need_the_table(script):
    """Else the imports would go round in a circle that `house.py` cannot see."""
    house = script("house")
    found = house.arrows(house.modules(PACKAGE))
    modules = {f"keras_vit.{at.module}" for at in LATE.values()}
    for module in modules:
        assert "keras_vit.families" not in house._reached(module, found), module


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_a_row_of_its_class(variant):
    config = VARIANTS[variant]
    assert type(config) is family_of(config).config
    assert sizes_of(config).keys() <= {at.name for at in dataclasses.fields(config)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_known_by_its_sizes(variant):
    config = VARIANTS[variant]
    others = {"dropout_rate": 0.3, "head_bias_init": -6.9, "gelu": "erf"}
    own = {at.name for at in dataclasses.fields(config)}
    changed = dataclasses.replace(config, **{k: others[k] for k in others.keys() & own})
    assert variant_of(changed) == variant
    (size, value), *_ = sizes_of(config).items()
    other = (*value, 2) if isinstance(value, tuple) else value + 3
    assert variant_of(dataclasses.replace(config, **{size: other})) is None


def test_no_other_module_asks_for_the_class_of_a_config():
    classes = {row.config.__name__ for row in FAMILIES.values()}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                words = ast.unparse(node).replace("(", " ").replace(")", " ")
                if classes & {word.rpartition(".")[2] for word in words.split()}:
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []


def test_options_of_a_recipe():
    bit, vit = VARIANTS["BiT-R50x1"], VARIANTS["ViT-B/16"]
    assert with_options(vit, {"dropout_rate": 0.2}).dropout_rate == 0.2
    assert with_options(vit, {"dropout_rate": 0.0}).dropout_rate == 0
    assert with_options(bit, {"dropout_rate": 0.0}) == bit
    assert with_options(bit, {"representation_size": None}) == bit
    with pytest.raises(
        ValueError, match=r"options of a ResNet \(4\.1\).*: dropout_rate"
    ):
        with_options(bit, {"dropout_rate": 0.1})
    with pytest.raises(ValueError, match=r"an EfficientNet.*of other authors"):
        with_options(VARIANTS["EfficientNet-B0"], {})


def test_numerics_of_one_config_in_another():
    torch = {
        "kernel_epsilon": 1e-8,
        "epsilon_outside": False,
        "group_norm_epsilon": 1e-5,
    }
    hybrid, vit = VARIANTS["R50+ViT-B/16"], VARIANTS["ViT-B/16"]
    told = dataclasses.replace(hybrid, **configs.numerics_of(hybrid, "timm"))
    assert configs.numerics_from(told, vit) == {
        "gelu": "erf",
        "layer_norm_epsilon": 1e-6,
    }
    found = configs.numerics_from(told, hybrid)
    assert found["resnet"] == dataclasses.replace(hybrid.resnet, **torch)
    assert configs.numerics_from(vit, hybrid) == {
        "gelu": "tanh",
        "layer_norm_epsilon": 1e-6,
    }
    assert configs.numerics_from(VARIANTS["BiT-R50x1"], vit) == {}
