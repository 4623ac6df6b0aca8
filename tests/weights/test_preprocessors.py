"""Preprocessing in the files next to transformers' and timm's checkpoints."""

import dataclasses
import json
import warnings

import numpy as np
import pytest

from keras_vit import Preprocessing
from keras_vit.data.preprocessing import prepare_all
from keras_vit.weights import config_beside
from tests.conftest import FIXTURES

CONFIGS = json.loads((FIXTURES / "processors" / "configs.json").read_text())
FIELDS = [field.name for field in dataclasses.fields(Preprocessing)]
SQUASHED = {"deit", "deit_today"}  # Resized to a square, then cropped.


@pytest.fixture(scope="module")
def computed():
    with np.load(FIXTURES / "processors" / "io.npz") as arrays:
        return dict(arrays)


def stated(folder, files):
    """The preprocessing that the files state."""
    for name in ("config.json", "preprocessor_config.json"):
        if name in files:
            (folder / name).write_text(json.dumps(files[name]))
    fields = config_beside(folder)
    return Preprocessing(**{key: fields[key] for key in FIELDS if key in fields})


@pytest.mark.parametrize("which", ["wide", "tall", "square"])
@pytest.mark.parametrize("name", CONFIGS)
def test_images_are_the_librarys(name, which, computed, tmp_path):
    """To 2 of 255 steps, because Pillow rounds to bytes."""
    with warnings.catch_warnings():
        if name in SQUASHED:
            warnings.simplefilter("ignore")
        found = stated(tmp_path, CONFIGS[name])
    ours = prepare_all(computed[which], (32, 32), found, 3)[0]
    difference = np.abs(ours - computed[f"{name}/{which}"]) * found.std * 255
    if name in SQUASHED and which != "square":
        assert difference.max() > 20
    else:
        assert difference.max() <= 2


@pytest.mark.parametrize("name", sorted(SQUASHED))
def test_a_crop_of_a_squashed_image_is_a_warning(name, tmp_path):
    with pytest.warns(UserWarning, match="40x40 pixels and a center crop of 32x32"):
        assert stated(tmp_path, CONFIGS[name]).crop == 0.8


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
