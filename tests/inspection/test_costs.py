"""Costs against built models, published sizes, Table 6 and XLA's cost analysis."""

import dataclasses
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import paper
from keras_vit.families import family_of
from keras_vit.inspection import costs
from keras_vit.inspection.counting import table_6
from keras_vit.recipes import IMAGES
from tests.conftest import skip_without
from tests.models import test_plain as plain
from tests.models.families import FAMILIES, SIZE, VIT, VITS
from tests.models.test_vit import GAP_PARAMETERS, PARAMETERS
from tests.test_docs import MODELS, OTHER_PARAMETERS, ROOT

pytestmark = pytest.mark.tensorflow_only

ODD = (5, 3)  # Less than a kernel, and no side is halved evenly.
KINDS = FAMILIES | {
    "unpooled": dataclasses.replace(VIT, classifier="token_unpooled"),
    "map, every layer": dataclasses.replace(
        VIT, classifier="map", position_at="every_layer", representation_size=12
    ),
    "gap, registers": dataclasses.replace(
        VIT, classifier="gap", num_registers=3, position="relative"
    ),
}
KINDS |= {
    f"plain, {name}": dataclasses.replace(plain.TINY, **changes)
    for name, changes in plain.CONFIGS.items()
}
# The one row that the other of its model contradicts: half of 1668 is 834.
INCONSISTENT = ("R50+ViT-L/16", 7)


def make(config, image_size, num_classes, num_channels=3):
    return family_of(config).build(
        config,
        image_size=image_size,
        num_classes=num_classes,
        num_channels=num_channels,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_a_built_models(kind):
    config = KINDS[kind]
    model = make(config, SIZE, 5)
    assert costs(config, SIZE, num_classes=5).parameters == model.count_params()
    assert costs(model) == costs(config, SIZE, num_classes=5)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_a_built_models(kind):
    counted = costs(KINDS[kind], SIZE, num_classes=5)
    names = {layer.name for layer in make(KINDS[kind], SIZE, 5).layers}
    assert counted.by_layer.keys() <= names
    assert sum(counted.by_layer.values()) == counted.multiply_adds
    assert sum(counted.by_operation.values()) == counted.multiply_adds


@pytest.mark.parametrize("kind", ["bit", "v1", "axial resnet", "map", "distilled"])
def test_without_a_head_and_of_other_channels(kind):
    size = SIZE if kind in VITS else (33, 7)
    model = make(KINDS[kind], size, None, num_channels=4)
    counted = costs(KINDS[kind], size, num_classes=0, num_channels=4)
    assert counted.parameters == model.count_params()
    assert costs(model) == counted
    assert "head" not in counted.by_layer


def test_a_built_model_at_another_size():
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=7)
    larger = costs(model, (64, 48))
    assert larger == costs("ViT-Ti/16", (64, 48), num_classes=7)
    assert larger.multiply_adds > costs(model).multiply_adds


@pytest.mark.parametrize("variant", PARAMETERS | OTHER_PARAMETERS)
def test_parameters_are_the_published(variant):
    published = (PARAMETERS | OTHER_PARAMETERS)[variant]
    assert costs(variant).parameters == published
    assert costs(keras_vit.configs.builder_name(variant)).parameters == published


@pytest.mark.parametrize("variant", GAP_PARAMETERS)
def test_parameters_of_gap_models_are_the_published(variant):
    config = dataclasses.replace(keras_vit.VARIANTS[variant], classifier="gap")
    assert costs(config).parameters == GAP_PARAMETERS[variant]


def test_parameters_are_those_of_the_page_of_models():
    rows = re.findall(r"^\| (\S+) \| `\w+` \| ([\d,]+) \|", MODELS, re.M)
    assert len(rows) == 28
    for variant, parameters in rows:
        assert costs(variant).parameters == int(parameters.replace(",", ""))


def by_hand(height, width, kernel, strides, before):
    """Taps of a convolution that are on pixels, one by one."""
    rows, columns = (
        sum(
            0 <= place * strides - before + tap < side
            for place in range(-(-side // strides))
            for tap in range(kernel)
        )
        for side in (height, width)
    )
    return rows * columns


def test_taps_on_padding_are_not_counted():
    config = keras_vit.ResNetConfig(num_layers=(1,), width=32)
    counted = costs(config, ODD, num_classes=0)
    assert counted.by_layer["conv_root"] == by_hand(*ODD, 7, 2, 3) * 3 * 32
    # After the root 2 x 1 places: 1x1, 3x3, 1x1 and the projection.
    three = by_hand(2, 1, 3, 1, 1) * 32 * 32
    assert counted.by_layer["block1_unit1"] == 2 * 32 * (32 + 2 * 128) + three
    hybrid = dataclasses.replace(config, unit="v1")
    root = costs(hybrid, ODD, num_classes=0).by_layer["conv_root"]
    # SAME pads a side of 5 with 3 + 3 and one of 3 with 3 + 3 pixels; of 4, 2 + 3.
    assert root == by_hand(*ODD, 7, 2, 3) * 3 * 32
    root = costs(hybrid, (4, 4), num_classes=0).by_layer["conv_root"]
    assert root == by_hand(4, 4, 7, 2, 2) * 3 * 32


@pytest.mark.parametrize("row", paper.EXAFLOPS)
def test_exaflops_are_table_6s(row):
    variant, epochs = row
    ours = costs(variant).exaflops(epochs * IMAGES["jft300m"])
    if row == INCONSISTENT:
        assert ours == pytest.approx(paper.EXAFLOPS[variant, 14] / 2, rel=0.03)
        assert ours != pytest.approx(paper.EXAFLOPS[row], rel=0.03)
    else:
        assert ours == pytest.approx(paper.EXAFLOPS[row], rel=0.03)


def test_table_6_is_of_models_with_their_default_head():
    assert table_6() == {
        (variant, epochs): costs(variant).exaflops(epochs * IMAGES["jft300m"])
        for variant, epochs in paper.EXAFLOPS
    }


# Run apart, on JAX. The scope keeps variables from being filled, which they would be at
# its end. `flops` are those of one image more: kernels are standardized once for all.
# They are of compiled code, since only there BiT's pads become a convolution's; level 0
# has the passes for that.
JAX = """
import json, math, os, jax, keras, keras_vit
from tests.inspection.test_costs import KINDS, make
from tests.models.families import SIZE

def lowered(model, batch, size, transform):
    weights = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    images = jax.ShapeDtypeStruct((batch, *size, 3), "float32")
    call = lambda w, fixed, x: model.stateless_call(w, fixed, x, training=False)[0]
    return transform(call, *weights, images)

def flops(model, batch):
    compiled = lowered(
        model, batch, (224, 224), lambda call, *a: jax.jit(call).lower(*a)
    ).compile(compiler_options={"xla_backend_optimization_level": 0})
    return compiled.cost_analysis()["flops"]

def products(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += inner * math.prod(equation.outvars[0].aval.shape)
        for inside in equation.params.values():
            total += products(inside.jaxpr) if hasattr(inside, "jaxpr") else 0
    return total

with keras.StatelessScope():
    large, tiny = {}, {}
    for name in ("ViT-B/16", "R50+ViT-B/16", "BiT-R50x1"):
        model = make(keras_vit.VARIANTS[name], (224, 224), 1000)
        large[name] = flops(model, 2) - flops(model, 1)
    for name, config in KINDS.items():
        traced = lowered(
            make(config, SIZE, 5), 1, SIZE, lambda call, *a: jax.make_jaxpr(call)(*a)
        )
        tiny[name] = products(traced.jaxpr)
    print(json.dumps([large, tiny]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def on_jax():
    """XLA's FLOPs of an image by variant, multiply-adds of dot products by kind."""
    skip_without("jax")
    done = subprocess.run(
        [sys.executable, "-c", JAX],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_multiply_adds_are_xlas(on_jax, agree):
    """XLA's count has norms, GELU and softmax too: the report says how much more."""
    assert len(on_jax[0]) == 3
    for variant, flops in on_jax[0].items():
        ratio = flops / (2 * costs(variant).multiply_adds)
        agree(f"XLA's FLOPs over ours, {variant}", ratio, 1, 0.01)
        assert 1 <= ratio <= 1.01, variant


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_matrix_products_are_the_traced_ones(kind, on_jax):
    """Every kind to the last multiply-add, but for what JAX calls a convolution."""
    counted = costs(KINDS[kind], SIZE, num_classes=5)
    convolved = sum(
        counted.by_operation.get(name, 0)
        for name in ("convolutions", "patch embedding")
    )
    assert counted.multiply_adds - convolved == on_jax[1][kind]


@pytest.mark.parametrize("name", ["ViT-B/17", "EfficientNet-B0", None])
def test_unknown_models_are_refused(name):
    with pytest.raises(ValueError, match=r"Expected .*ViT-B/16.* Received: model="):
        costs(name)


def test_another_librarys_model_is_refused():
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    with pytest.raises(ValueError, match="Expected a model of keras_vit"):
        costs(model)


def test_a_model_with_more_in_it_is_refused():
    """The backbone alone would be counted."""
    predictor = keras_vit.self_supervision.MaskedPatchPredictor(make(VIT, SIZE, None))
    with pytest.raises(
        ValueError, match=r"Expected a model as keras_vit.vit .*instead of"
    ):
        costs(predictor)
    assert costs(predictor.backbone) == costs(VIT, SIZE, num_classes=0)


def test_a_model_with_lora_is_refused():
    model = make(VIT, SIZE, 5)
    model.get_layer("head").enable_lora(2)
    with pytest.raises(ValueError, match="Expected a model without LoRA"):
        costs(model)


IMPOSSIBLE = [(0, 224), (224,), 224, (2.5, 2.5)]


@pytest.mark.parametrize(
    ("variant", "size"),
    [
        *itertools.product(["ViT-B/16", "R50+ViT-B/16", "BiT-R50x1"], IMPOSSIBLE),
        ("ViT-B/16", (224, 225)),
    ],
)
def test_impossible_sizes_are_refused(variant, size):
    with pytest.raises(
        ValueError, match=r"Expected image_size .* Received: image_size="
    ):
        costs(variant, size)


@pytest.mark.parametrize(
    "wrong", [{"num_classes": -1}, {"num_channels": 0}, {"num_classes": 2.5}]
)
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Expected num_classes .* Received: "):
        costs("BiT-R50x1", **wrong)


def test_sizes_of_numpy_are_sizes():
    size = tuple(np.array([224, 224]))
    assert costs("ViT-B/16", size) == costs("ViT-B/16", (224, 224))


@pytest.mark.parametrize("images", [-1, math.nan, math.inf])
def test_impossible_trainings_are_refused(images):
    with pytest.raises(ValueError, match="Expected 0 or more images"):
        costs("ViT-B/16").exaflops(images)


def test_what_is_printed():
    counted = costs("ViT-B/16")
    assert "parameters                      86,567,656" in str(counted)
    assert re.search(r"MLP +11,154,751,488 +63.5%", str(counted))
    assert "encoderblock_11" in counted.table(by_layer=True)


def test_command(shell):
    code, out, _ = shell("costs", "ViT_B16", "--image-size", "32x48", "--classes", 10)
    counted = costs("ViT-B/16", (32, 48), num_classes=10)
    assert (code, out) == (0, f"{counted}\n")
    assert "encoderblock_3 " in shell("costs", "ViT-B/16", "--by-layer")[1]


def test_the_manual_prints_what_the_command_prints(shell):
    page = (ROOT / "docs" / "howto" / "costs.md").read_text()
    blocks = re.findall(r"```text\n\$ keras-vit costs (.*?)```", page, re.DOTALL)
    counted = [block for block in blocks if "--figure12" not in block]
    assert len(counted) == 3  # A model, and two plans.
    for block in counted:
        words, _, printed = block.partition("\n")
        assert shell("costs", *shlex.split(words))[1] == printed


def test_command_of_table_6(shell):
    code, out, _ = shell("costs", "--table6")
    assert code == 0
    assert re.search(r"BiT-R200x3 +14 +3288.6 +3306 +0.995\n", out)
    assert re.search(r"R50\+ViT-L/16 +7 +832.5 +859 +0.969 \*\n", out)
    assert "859 contradicts its own 1668 at 14 epochs, half of which is 834." in out
    assert out.count("*") == 2


@pytest.mark.parametrize(
    "words", [[], ["ViT-B/16", "--table6"], ["--table6", "--by-layer"], ["ViT-B/17"]]
)
def test_command_refuses(words, shell):
    code, _, err = shell("costs", *words)
    assert code == 1
    assert "keras-vit: Expected" in err
