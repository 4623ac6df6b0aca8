"""Preprocessing in the files next to transformers' and timm's checkpoints."""

import dataclasses
import json

import numpy as np
import pytest

import keras_vit
from keras_vit import Preprocessing, weights
from keras_vit.data.preprocessing import prepare_all
from tests.conftest import FIXTURES

CONFIGS = json.loads((FIXTURES / "processors" / "configs.json").read_text())
FIELDS = [field.name for field in dataclasses.fields(Preprocessing)]


@pytest.fixture(scope="module")
def computed():
    with np.load(FIXTURES / "processors" / "io.npz") as arrays:
        return dict(arrays)


def stated(folder, files):
    """The preprocessing that the files state."""
    for name in ("config.json", "preprocessor_config.json"):
        if name in files:
            (folder / name).write_text(json.dumps(files[name]))
    fields = weights.config_beside(folder)
    return Preprocessing(**{key: fields[key] for key in FIELDS if key in fields})


@pytest.mark.parametrize("which", ["wide", "tall", "square"])
@pytest.mark.parametrize("name", CONFIGS)
def test_images_are_the_librarys(name, which, computed, tmp_path):
    """To 2 of 255 steps, because Pillow rounds to bytes."""
    found = stated(tmp_path, CONFIGS[name])
    ours = prepare_all(computed[which], (32, 32), found, 3)[0]
    difference = np.abs(ours - computed[f"{name}/{which}"]) * found.std * 255
    assert difference.max() <= 2


@pytest.mark.parametrize("format", ["timm", "hf"])
@pytest.mark.parametrize("name", ["deit", "dinov2", "timm_squash"])
def test_written_files_state_the_same(name, format, tmp_path):
    config = keras_vit.ViTConfig(
        patch_size=8, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=4, gelu="erf"
    )
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=3)
    model.preprocessing = stated(tmp_path, CONFIGS[name])
    weights.save(model, tmp_path / "out", format=format)
    file = tmp_path / "out" / "config.json"
    assert keras_vit.from_checkpoint(file.parent).preprocessing == model.preprocessing
    content = json.loads(file.read_text())
    assert content.pop("keras_vit")["squash"] == model.preprocessing.squash
    file.write_text(json.dumps(content))  # As another library reads it.
    assert keras_vit.from_checkpoint(file.parent).preprocessing == model.preprocessing


def test_without_a_resize_images_are_resized_as_officially(tmp_path):
    files = {"config.json": {"model_type": "clip_vision_model"}}
    assert stated(tmp_path, files) == Preprocessing()
    files["preprocessor_config.json"] = {"resample": 3}  # No size, so no crop.
    expected = Preprocessing(interpolation="bicubic", antialias=True)
    assert stated(tmp_path, files) == expected


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"resample": 5}, "resample in 0, 1, 2, 3.*resample=5"),
        ({"size": "large"}, "size .* to be a positive integer"),
        ({"size": {"shortest_edge": 0}}, "shortest_edge .* to be a positive integer"),
        ({"crop_size": [32, 32]}, "crop_size .* to be a positive integer"),
        ({"image_processor_type": 3}, "image_processor_type .* to be a string"),
        ({"do_center_crop": "no"}, "do_center_crop .* to be true or false"),
    ],
)
def test_values_of_another_kind_are_refused(changes, match, tmp_path):
    files = {name: dict(held) for name, held in CONFIGS["clip"].items()}
    files["preprocessor_config.json"] |= changes
    with pytest.raises(ValueError, match=match):
        stated(tmp_path, files)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"crop_mode": "border"}, "crop_mode 'center' or 'squash'.*'border'"),
        ({"crop_pct": 0}, r"crop_pct .* a share in \(0, 1\]"),
        ({"crop_pct": 1.1}, r"crop_pct .* a share in \(0, 1\]"),
        (
            {"interpolation": "cubic"},
            "interpolation .* one of nearest, bilinear, bicub",
        ),
        ({"mean": 0.5}, "mean .* a list of numbers"),
        ({"std": [0.5, 0, 0.5]}, "std .* a list of positive numbers"),
    ],
)
def test_timms_values_of_another_kind_are_refused(changes, match, tmp_path):
    config = json.loads(json.dumps(CONFIGS["timm"]["config.json"]))
    config["pretrained_cfg"] |= changes
    with pytest.raises(ValueError, match=match):
        stated(tmp_path, {"config.json": config})


def test_a_squash_without_a_crop_is_refused():
    with pytest.raises(ValueError, match="squash=True with a crop"):
        Preprocessing(squash=True)
    with pytest.raises(ValueError, match="squash"):
        Preprocessing(crop=0.9, squash=1)
    words = str(Preprocessing(crop=0.9, squash=True))
    assert words.endswith("both sides, then the center 0.9 of each side")
