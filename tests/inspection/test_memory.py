"""The memory model against XLA's own buffers, and what it is made of."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_vit
from keras_vit.inspection import costs
from keras_vit.inspection.memory import memory
from keras_vit.inspection.parts import Part

pytestmark = pytest.mark.tensorflow_only

VIT = dataclasses.replace(keras_vit.VARIANTS["ViT-S/16"], num_layers=3)
HYBRID = dataclasses.replace(
    keras_vit.VARIANTS["R26+ViT-S/32"],
    num_layers=2,
    resnet=dataclasses.replace(
        keras_vit.VARIANTS["R26+ViT-S/32"].resnet, num_layers=(1, 1)
    ),
)
BIT = keras_vit.ResNetConfig(num_layers=(2, 3, 2))
BATCH, SIZE = 64, (128, 128)  # Of 16 images XLA computes a tanh once more: 16 D.
CASES = {  # config, rematerialized.
    "ViT": (VIT, False),
    "ViT, remat": (VIT, True),
    "ViT, erf": (dataclasses.replace(VIT, gelu="erf"), False),
    "hybrid": (HYBRID, False),
    "BiT": (BIT, False),
}

# Run apart, on TensorFlow. XLA writes what it allocates for each program: the
# temporary buffer of the model's is by far the largest.
XLA = """
import json, keras, numpy as np, re, sys
from pathlib import Path
import keras_vit
from keras_vit.layers import TransformerBlock, kernels
from tests.inspection.test_memory import BATCH, CASES, SIZE
from tests.inspection.test_costs import make

def temporary():
    return [
        int(size)
        for file in Path(sys.argv[1]).glob("*buffer-assignment.txt")
        for size in re.findall(r"size (\\d+), preallocated-temp", file.read_text())
    ]

kernels.on_cpu = lambda *backends: False  # The gradient is derived, as on a GPU.
sizes = {}
for name, (config, remat) in CASES.items():
    model = make(config, SIZE, 10)
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.remat = remat
    model.compile("sgd", "mse", jit_compile=True)
    images = np.zeros((BATCH, *SIZE, 3), "float32")
    for what, run in {
        "an update": lambda: model.train_on_batch(images, np.zeros((BATCH, 10))),
        "forward": lambda: model.predict_on_batch(images),
    }.items():
        for file in Path(sys.argv[1]).glob("*"):
            file.unlink()
        run()
        sizes[f"{name}, {what}"] = max(temporary())
print(json.dumps(sizes))
"""


@pytest.fixture(scope="module")
def buffers(tmp_path_factory):
    """Bytes of XLA's temporary buffer of an update and of a forward pass, by case."""
    folder = tmp_path_factory.mktemp("xla")
    done = subprocess.run(
        [sys.executable, "-c", XLA, str(folder)],
        cwd=Path(__file__).parents[2],
        env=os.environ
        | {"KERAS_BACKEND": "tensorflow", "XLA_FLAGS": f"--xla_dump_to={folder}"},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_updates_activations_are_xlas(case, buffers, agree):
    """The buffer has a copy of the weights or their gradients as well."""
    config, remat = CASES[case]
    counted = costs(config, SIZE, BATCH, num_classes=10).memory
    ours = counted.rematerialized if remat else counted.training
    ratio = (ours + counted.gradients) / buffers[f"{case}, an update"]
    agree(f"memory over XLA's, {case}", ratio, 1, 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_forward_passs_activations_are_xlas(case, buffers, agree):
    config, _ = CASES[case]
    counted = costs(config, SIZE, BATCH, num_classes=10).memory
    ratio = counted.forward / buffers[f"{case}, forward"]
    agree(f"memory over XLA's, {case}, forward", ratio, 1, 0.15)


def test_a_block_keeps_what_its_gradient_reads():
    """By hand: 20 D + k T numbers a token, of which remat keeps D for all but one."""
    tokens, width, heads = 1 + 14 * 14, 384, 6
    one, two = (
        costs(dataclasses.replace(VIT, num_layers=n), (224, 224)).memory for n in (1, 2)
    )
    block = tokens * (20 * width + heads * tokens)
    assert two.training - one.training == 4 * block
    assert two.rematerialized - one.rematerialized == 4 * tokens * width
    saved = one.training - one.rematerialized  # The tanh inside the one block's GELU.
    assert saved == 4 * tokens * 4 * width


def test_a_unit_keeps_inputs_of_its_convolutions_and_norms():
    one, two = (
        costs(keras_vit.ResNetConfig(num_layers=(n,)), (32, 32), num_classes=0).memory
        for n in (1, 2)
    )
    kernels = 256 * 64 + 9 * 64 * 64 + 64 * 256  # Standardized once.
    read = 2 * 8 * 8 * (256 + 64 + 64)
    assert two.training - one.training == 4 * (kernels + read)
    assert two.rematerialized == two.training


def test_bfloat16_halves_all_but_the_softmax():
    full, half = (
        costs(VIT, (224, 224), 8, dtype=dtype).memory
        for dtype in ("float32", "bfloat16")
    )
    softmax = 8 * 3 * 6 * 197**2
    copies = 2 * costs(VIT).parameters  # Weights, cast.
    assert half.training - copies == (full.training - 4 * softmax) / 2 + 6 * softmax
    assert half.weights == full.weights


def test_a_forward_pass_holds_its_largest_part():
    """By hand: a softmax is float32, and its product with v reads a cast copy."""
    small, large = Part("a", "", held=9, stream=2), Part("b", "", held=8, softmax=5)
    full, half = (
        memory([small, large], 3, dtype, "sgd").forward
        for dtype in ("float32", "bfloat16")
    )
    assert full == 3 * 4 * max(9 + 2, 8)
    assert half == 3 * max(2 * (9 + 2), 2 * 8 + 2 * 5)


def test_weights_gradients_and_the_optimizer():
    parameters = costs(VIT).parameters
    for optimizer, slots in (("adam", 2), ("sgd", 1), ("adafactor", 1)):
        counted = costs(VIT, batch=2, optimizer=optimizer).memory
        assert counted.weights == counted.gradients == 4 * parameters
        assert counted.optimizer == slots * 4 * parameters
        beside = (2 + slots) * 4 * parameters
        assert counted.training_total == beside + counted.training
        assert counted.rematerialized_total == beside + counted.rematerialized
        assert counted.inference_total == 4 * parameters + counted.forward


def test_activations_grow_with_the_batch():
    one, eight = (costs(VIT, batch=batch).memory for batch in (1, 8))
    for what in ("forward", "training", "rematerialized"):
        assert getattr(eight, what) == 8 * getattr(one, what)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"batch": 2.5}, {"dtype": "float16"}, {"optimizer": "lion"}]
)
def test_other_numbers_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"Expected .*Received: .*{name}="):
        costs(VIT, **wrong)


def test_command_prints_memory(shell):
    code, out, _ = shell("costs", "ViT-B/16", "--batch", 64, "--dtype", "bfloat16")
    counted = costs("ViT-B/16", batch=64, dtype="bfloat16")
    assert (code, out) == (0, f"{counted}\n\n{counted.memory.table()}\n")
    assert re.search(r"MiB, 64 images +bfloat16\n", out)
