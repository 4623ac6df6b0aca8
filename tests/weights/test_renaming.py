"""Names of wrapped checkpoints, and by the rules of a user."""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from tests.conftest import FIXTURES

TIMM = FIXTURES / "dialects" / "timm_vit"
HF = FIXTURES / "dialects" / "hf_vit_new_names"


def outputs(model):
    images = np.linspace(-1, 1, int(np.prod(model.input_shape[1:])), dtype=np.float32)
    return np.asarray(model.predict_on_batch(images.reshape(1, *model.input_shape[1:])))


@pytest.fixture
def written(tmp_path):
    """Writes a fixture's tensors by other names, next to its config.json."""

    def write(source, rename, **more):
        tensors = load_file(source / "model.safetensors")
        shutil.copy(source / "config.json", tmp_path)
        renamed = {rename(name): at for name, at in tensors.items()}
        save_file(renamed | more, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"

    return write


@pytest.mark.parametrize("source", [TIMM, HF], ids=["timm", "hf"])
@pytest.mark.parametrize(
    "prefix", ["module.", "timm_model.", "_orig_mod.", "module.timm_model."]
)
def test_prefixes_of_wrappers(written, source, prefix):
    file = written(source, lambda name: prefix + name)
    model = keras_vit.from_checkpoint(file)
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(source))
    )
    count = len(load_file(file))
    assert f"prefix {prefix!r} removed from {count} names" in model.provenance.numerics


@pytest.mark.parametrize(
    "prefix", ["model.", "vision_model.", "encoder.", "module.model.encoder."]
)
def test_attributes_that_hold_the_model(written, prefix):
    file = written(
        TIMM,
        lambda name: prefix + name,
        **{"decoder.weight": np.ones(3, np.float32)},
    )
    with pytest.warns(UserWarning, match=r"Ignored tensors: decoder\.weight") as warned:
        model = keras_vit.from_checkpoint(file)
    assert repr(prefix) in str(warned[0].message)
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(TIMM))
    )


def test_a_name_of_many_prefixes_is_refused(tmp_path):
    save_file(
        {"model." * 5000 + "x": np.ones(3, np.float32)}, tmp_path / "x.safetensors"
    )
    with pytest.raises(ValueError, match="no known dialect"):
        keras_vit.from_checkpoint(tmp_path / "x.safetensors")


def mine(name):
    """A user's own names, next to timm's."""
    return name.replace("blocks.", "layers.").replace("patch_embed.proj", "to_patch")


RULES = [(r"^layers\.", "blocks."), ("to_patch", "patch_embed.proj")]


def test_rules_of_regular_expressions(written):
    file = written(TIMM, mine, extra=np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"Use from_checkpoint\(names=\)"):
        keras_vit.from_checkpoint(file)
    model = keras_vit.from_checkpoint(file, names=[*RULES, ("^extra$", None)])
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(TIMM))
    )
    (note,) = [at for at in model.provenance.numerics if at.startswith("names= ")]
    tensors = load_file(file)
    kept = sorted(at for at in tensors if not at.startswith(("layers", "to_", "extra")))
    matched = len(tensors) - len(kept)
    assert note == (
        f"names= matched {matched} of {len(tensors)} tensors; without a rule: "
        f"{', '.join(kept)}"
    )


def test_a_mapping_of_names(written):
    file = written(TIMM, mine)
    names = {mine(name): name for name in load_file(TIMM / "model.safetensors")}
    model = keras_vit.from_checkpoint(file, names=names)
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(TIMM))
    )
    assert f"names= matched {len(names)} of {len(names)} tensors" in (
        model.provenance.numerics
    )


def test_a_mapping_may_exchange_two_names(written):
    swap = {"norm.weight": "norm.bias", "norm.bias": "norm.weight"}
    file = written(TIMM, lambda name: swap.get(name, name))
    model = keras_vit.from_checkpoint(file, names=swap)
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(TIMM))
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([("nothing", "x")], "Expected each rule of names= to match a tensor"),
        ({"nothing": "x"}, "Received: nothing, which matches none of"),
        ([(r"\.weight$", ".bias")], "to give each tensor a unique name"),
        ([("(", "x")], "regular expression, replacement"),
        ([1], "regular expression, replacement"),
        ("weights", "regular expression, replacement"),
        ([("head", r"\2")], "regular expression, replacement"),
    ],
)
def test_rules_that_are_wrong(names, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        keras_vit.from_checkpoint(TIMM, names=names)


def test_names_that_no_rule_matched_are_in_the_error(written):
    file = written(TIMM, mine)
    with pytest.raises(ValueError, match=r"layers\.0"):
        keras_vit.from_checkpoint(file, names=RULES[1:])
