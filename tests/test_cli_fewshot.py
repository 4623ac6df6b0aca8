"""`keras-vit fewshot`, called as a shell calls it."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from tests.conftest import REFERENCE
from tests.runs import save_run

pytestmark = pytest.mark.tensorflow_only

MINI = REFERENCE / "vit_mini.npz"


@pytest.fixture(scope="module")
def shades(tmp_path_factory):
    """An npz of three kinds of images, told apart by their brightness."""
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 3
    noise = rng.integers(0, 120, (48, 20, 20, 3))
    images = (noise + 60 * labels[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "shades.npz"
    np.savez(
        path,
        x_train=images[:30],
        y_train=labels[:30],
        x_test=images[30:],
        y_test=labels[30:],
        classes=["dark", "middle", "light"],
    )
    return path


def test_fewshot_prints_and_writes_what_the_library_returns(shell, shades, tmp_path):
    numbers, picture = tmp_path / "new" / "shades.json", tmp_path / "shades.png"
    given = ["--weights", MINI, "--data", shades, "--gelu", "erf", "--seeds", 2]
    given += ["--mean", 0.4, 0.5, 0.6, "--l2", 1, "--before-crop", 72]
    asked = ["--shots", 2, "--shots", "all", "--output", numbers, "--plot", picture]
    code, out, err = shell("fewshot", *given, *asked)
    assert (code, err) == (0, "")
    expected = evaluation.fewshot(
        keras_vit.from_checkpoint(MINI, gelu="erf"),
        shades,
        shots=(2, "all"),
        l2=1,
        seeds=(0, 1),
        preprocessing=keras_vit.Preprocessing(mean=(0.4, 0.5, 0.6)),
        before_crop=(72, 72),
    )
    assert str(expected) in out
    told = json.loads(numbers.read_text())
    code, out, _ = shell("fewshot", *given, *asked[:4], "--json")
    assert json.loads(out) == told
    assert told["fewshot"] == json.loads(json.dumps(expected.as_dict()))
    assert told["weights"] == str(MINI)
    assert told["mean"] == [0.4, 0.5, 0.6]
    assert told["probes"] == []
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_results_that_cannot_be_written_are_refused_first(
    option, shell, shades, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluation, "fewshot", None)
    code, _, err = shell(
        *("fewshot", "--weights", MINI, "--data", shades, option, tmp_path)
    )
    assert code == 1
    assert f"Cannot write {tmp_path}: Is a directory" in err


def test_fewshot_with_neighbours_and_probe(shell, shades, tmp_path):
    numbers = tmp_path / "all.json"
    given = ["--weights", MINI, "--data", shades, "--shots", "1", "--output", numbers]
    code, out, err = shell("fewshot", *given, "--knn", "--probe")
    assert (code, err) == (0, "")
    model = keras_vit.from_checkpoint(MINI)
    found = evaluation.gather(model, shades)
    assert str(evaluation.fewshot(None, found, shots=(1,))) in out
    for result in (evaluation.knn(None, found), evaluation.linear_probe(None, found)):
        assert str(result) in out
    names = [one["name"] for one in json.loads(numbers.read_text())["probes"]]
    assert names == ["kNN", "linear probe"]


def test_fewshot_of_a_run_takes_its_normalization(shell, shades, tmp_path):
    model = keras_vit.from_checkpoint(MINI)
    scale = keras_vit.Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    labels = map(str, range(model.output_shape[-1]))
    save_run(tmp_path, model, labels, scale, seed=3)
    given = ["fewshot", "--model", tmp_path, "--data", shades, "--shots", "5"]
    code, out, _ = shell(*given)
    assert code == 0
    expected = evaluation.fewshot(model, shades, shots=(5,), preprocessing=scale)
    assert str(expected) in out
    code, _, err = shell(*given, "--gelu", "erf")
    assert code == 1
    assert "which has its own" in err


def test_fewshot_of_a_variant_without_weights(shell, shades):
    keras.utils.set_random_seed(0)
    given = ["--model", "ViT-Ti/16", "--weights", "none", "--image-size", 32]
    code, out, err = shell("fewshot", *given, "--data", shades, "--shots", 1)
    assert (code, err) == (0, "")
    assert "features of width 192" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shots", "11"], "class 'dark' with 10. Use at most 10 shots"),
        (["--shots", "11", "--knn"], "class 'dark' with 10. Use at most 10 shots"),
        (["--shots", "many"], "shots from 1, or 'all'"),
        (
            ["--shots", "1", "--before-crop", "32"],
            "Expected before_crop of at least image_size",
        ),
        (["--before-crop", "wide"], "Received: --before-crop wide"),
    ],
)
def test_bad_words_are_one_message(shell, shades, words, message):
    code, _, err = shell("fewshot", "--weights", MINI, "--data", shades, *words)
    assert code == 1
    assert err.startswith("keras-vit: Expected")
    assert message in err


def test_help_reads(shell):
    code, text, _ = shell("fewshot", "--help")
    assert code == 0
    assert "few-shot accuracy of frozen features" in text
