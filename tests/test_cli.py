"""The command line, called as a shell calls it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_vit
from tests.conftest import REFERENCE

pytest.importorskip("typer")
tf = pytest.importorskip("tensorflow")

from keras_vit import cli  # noqa: E402
from keras_vit.models.description import config_of  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

MINI = str(REFERENCE / "vit_mini.npz")
CLASSES = ("dark", "light", "middle")
QUICK = ("--steps", "30", "--batch-size", "8", "--lr", "0.05", "--augment", "none")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three kinds of photos, told apart by their brightness."""
    root = tmp_path_factory.mktemp("data") / "photos"
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        for name, brightness in zip(CLASSES, (20, 210, 110), strict=True):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 40, (50, 60, 3)) + brightness
                image = tf.io.encode_jpeg(pixels.astype(np.uint8))
                (folder / f"{i}.jpg").write_bytes(image.numpy())
    return root


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """A run's folder, as `finetune` writes it."""
    output = tmp_path_factory.mktemp("runs") / "photos"
    command = ["finetune", "--data", photos, "--weights", MINI, "--output", output]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["keras-vit", *map(str, command), *QUICK])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    return output


def test_version_and_help(shell):
    assert shell("--version") == (0, keras_vit.__version__ + "\n", "")
    code, text, _ = shell("--help")
    assert code == 0
    for command in (
        *("demo", "finetune", "transfer", "predict", "evaluate", "compare", "fewshot"),
        *("vtab", "paper", "costs", "export", "doctor"),
    ):
        assert command in text
        code, own, _ = shell(command, "--help")
        assert code == 0
        assert f"keras-vit {command}" in own
    assert shell("finetun")[0] == 2
    _, text, _ = shell("finetune", "--help")
    assert "[default: the recipe's sweep]" in " ".join(text.split())


def test_finetune_writes_the_run(photos, trained):
    run = json.loads((trained / "run.json").read_text())
    assert run["classes"] == list(CLASSES)
    assert run["mean"] == [0.5, 0.5, 0.5]
    assert run["details"]["data"] == str(photos)
    assert run["details"]["test_accuracy"] == 1.0
    assert {path.name for path in trained.iterdir()} == {
        "begun.json",
        "best.keras",
        "checkpoints",
        "history.json",
        "history.jsonl",
        "model.keras",
        "run.json",
        "tensorboard",
    }


def test_trained_model_reloads_in_a_fresh_process(trained):
    """With its optimizer, after only `import keras_vit`."""
    code = (
        "import sys, keras, keras_vit; model = keras.models.load_model(sys.argv[1]); "
        "print(type(model.optimizer).__name__, int(model.optimizer.iterations))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, trained / "model.keras"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["MomentumSGD", "30"]


def test_predict_prints_a_table(shell, photos, trained):
    code, out, err = shell("predict", "--model", trained, photos / "test")
    assert (code, err) == (0, "")
    tables = out.split(".jpg")[1:]
    assert len(tables) == 15
    for name, group in zip(CLASSES, np.split(np.array(tables), 3), strict=True):
        for table in group:
            shown = table.splitlines()[1:4]
            shares = [float(line.split("%")[0]) for line in shown]
            assert shown[0].split()[-1] == name
            assert sum(shares) == pytest.approx(100, abs=0.02)
            assert shares == sorted(shares, reverse=True)


def test_predict_prints_json(shell, photos, trained):
    files = [photos / "test" / "light" / f"{i}.jpg" for i in (1, 0)]
    code, out, _ = shell("predict", "--model", trained, "--json", "--top", 2, *files)
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["image"] for row in rows] == [str(file) for file in files]
    assert [len(row["top"]) for row in rows] == [2, 2]
    assert {row["top"][0]["class"] for row in rows} == {"light"}


def test_predict_is_the_model_on_the_image(shell, photos, trained):
    file = photos / "test" / "dark" / "0.jpg"
    _, out, _ = shell("predict", "--model", trained, "--json", file)
    model = keras.models.load_model(trained / "model.keras")
    image = tf.image.resize(tf.io.decode_jpeg(file.read_bytes()), (64, 64))
    logits = model.predict(keras_vit.preprocess_input(image)[None], verbose=0)
    shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
    expected = dict(zip(CLASSES, shares, strict=True))
    for row in json.loads(out)["top"]:
        assert row["probability"] == pytest.approx(expected[row["class"]], abs=1e-5)


def test_predict_names_corrupt_images_and_goes_on(shell, photos, trained, tmp_path):
    shutil.copy(photos / "test" / "dark" / "0.jpg", tmp_path / "b.jpg")
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "c.jpg").write_bytes(b"<html>not found</html>")
    code, out, err = shell("predict", "--model", trained, "--json", tmp_path)
    assert code == 1
    assert [json.loads(line)["top"][0]["class"] for line in out.splitlines()] == [
        "dark"
    ]
    assert f"{tmp_path / 'a.jpg'}: not a readable image" in err
    assert f"{tmp_path / 'c.jpg'}: not a readable image" in err


def test_predict_with_a_weights_file_alone(shell, photos):
    file = photos / "test" / "dark" / "0.jpg"
    code, out, _ = shell("predict", "--weights", MINI, "--json", file)
    assert code == 0
    names = {row["class"] for row in json.loads(out)["top"]}
    assert names <= {f"class {i}" for i in range(10)}


def test_evaluate_counts_every_image(shell, photos, trained):
    code, out, _ = shell("evaluate", "--model", trained, "--batch-size", 4)
    assert code == 0
    assert "15 of 15 images right" in out
    code, out, _ = shell("evaluate", "--model", trained, "--data", photos)
    assert "top_1  1.0000" in out


def test_evaluate_draws_the_test_share_training_did_not_see(
    shell, photos, tmp_path, monkeypatch
):
    from keras_vit.data import sources

    command = ("finetune", "--data", photos / "train", "--weights", MINI, *QUICK)
    assert shell(*command, "--seed", 5, "--output", tmp_path)[0] == 0
    seeds = []
    opened = sources.open_source

    def spy(spec, *, seed, on_corrupt):
        seeds.append(seed)
        return opened(spec, seed=seed, on_corrupt=on_corrupt)

    monkeypatch.setattr(sources, "open_source", spy)
    assert shell("evaluate", "--model", tmp_path)[0] == 0
    assert seeds == [5]


def test_evaluate_writes_a_card_and_compare_reads_two(shell, photos, trained, tmp_path):
    pytest.importorskip("matplotlib")
    command = ("evaluate", "--model", trained, "--batch-size", 4, "--per-class")
    one, other = tmp_path / "one", tmp_path / "other"
    code, out, _ = shell(*command, "--output", one, "--name", "mine")
    assert code == 0
    assert "loss" in out
    assert "top_1  1.0000  (95 %: 0.7961 to 1.0000)" in out  # Wilson's for 15 of 15.
    assert "ece" in out
    for name in CLASSES:
        assert re.search(rf"{name} +1\.0000 +5 of 5", out)
    assert f"wrote {one / 'card.html'}" in out
    facts = json.loads((one / "card.json").read_text())
    assert facts["name"] == "mine"
    assert facts["command"].startswith(f"keras-vit evaluate --model {trained}")
    assert facts["model"]["file"] == str(trained / "model.keras")
    assert facts["data"]["name"] == str(photos)
    assert facts["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    shifted = ("--mean", 0.9, 0.9, 0.9, "--output", other)
    assert shell(*command, *shifted)[0] == 0
    code, out, err = shell("compare", one, other / "card.json")
    assert (code, err) == (0, "")
    right = json.loads((other / "card.json").read_text())["results"]["top_1"]["value"]
    assert f"A: {one}, mine on {photos}, 15 images" in out
    assert re.search(
        rf"top_1 +{re.escape(f'{100 * (right - 1):+.2f}')} \(.*points", out
    )
    assert f"B 0, A {round(15 * (1 - right))}" in out
    assert "Table 2" not in out


def test_evaluate_knows_imagenets_family(shell, photos, tmp_path):
    """Up to the model, which is not of 1,000 classes."""
    from keras_vit.evaluation.imagenet_classes import wnids

    data = tmp_path / "data"
    shutil.copytree(photos / "test" / "dark", data / wnids()[0])
    command = ("evaluate", "--weights", MINI, "--imagenet", "val", "--data", data)
    with pytest.warns(UserWarning, match="imagenet2012 has 50,000 images"):
        code, _, err = shell(*command)
    assert code == 1
    assert "10 outputs, 1000 classes in imagenet2012" in err
    code, _, err = shell(*command[:-1], photos)
    assert (code, "class folders by wnid" in err) == (1, True)
    code, _, err = shell(
        *("evaluate", "--weights", MINI, "--imagenet", "real", "--data", data),
        *("--labels", tmp_path / "none.json"),
    )
    assert (code, "none.json', No such file" in err) == (1, True)
    code, _, err = shell("evaluate", "--weights", MINI, "--labels", "real.json")
    assert (code, "--labels with --imagenet real" in err) == (1, True)


def test_what_cannot_be_compared(shell, tmp_path):
    code, _, err = shell("compare", tmp_path)
    assert (code, "two cards or more" in err) == (1, True)
    code, _, err = shell("compare", tmp_path, tmp_path)
    assert (code, "without card.json" in err) == (1, True)


def test_temperature_of_a_model_that_is_always_right(shell, trained, tmp_path):
    """There is none; the card is written without."""
    pytest.importorskip("matplotlib")
    command = ("evaluate", "--model", trained, "--temperature", "--output", tmp_path)
    code, out, err = shell(*command)
    assert code == 1
    assert json.loads((tmp_path / "card.json").read_text())["temperatures"] == []
    assert "15 of 15 images right" in out
    assert "all right" in err


@pytest.mark.slow
def test_options_reach_the_recipe_and_the_model(shell, photos, tmp_path):
    code, out, _ = shell(
        *("finetune", "--data", photos, "--weights", MINI, "--output", tmp_path),
        *("--steps", 4, "--warmup", 1, "--batch-size", 6, "--parts", 3),
        *("--lr", 0.01, "--lr", 0.02, "--image-size", "48x80", "--augment", "flip"),
        *("--ema", 0.9, "--mixed-precision", "--gelu", "erf", "--seed", 3),
        *("--mean", 0.4, 0.5, 0.6, "--std", 0.2, 0.2, 0.2),
    )
    assert code == 0
    assert "48x80 px" in out
    history = json.loads((tmp_path / "history.json").read_text())
    recipe = history["recipe"]
    assert recipe["total_steps"] == 4
    assert recipe["warmup_steps"] == 1
    assert recipe["batch_size"] == 6
    assert recipe["accumulation_steps"] == 3
    assert recipe["base_lr"] == [0.01, 0.02]
    assert recipe["augment"] == "flip"
    assert recipe["ema"] == 0.9
    assert history["sweep"].keys() == {"0.01", "0.02"}
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["mean"] == [0.4, 0.5, 0.6]
    model = keras.models.load_model(tmp_path / "model.keras")
    block = model.get_layer("encoderblock_0")
    assert block.compute_dtype == "bfloat16"
    assert block.get_config()["gelu"] == "erf"


@pytest.mark.parametrize(
    ("options", "dtype"),
    [((), "bfloat16"), (("--no-mixed-precision",), "float32")],
)
def test_tpus_compute_in_bfloat16(options, dtype, shell, photos, tmp_path, monkeypatch):
    from keras_vit import training
    from keras_vit.training import distribution

    seen = []

    def fit(model, *_, **__):
        seen.append(model.get_layer("encoderblock_0").compute_dtype)
        raise ValueError("enough")

    monkeypatch.setattr(distribution, "on_tpu", lambda strategy: True)
    monkeypatch.setattr(training, "fit", fit)
    command = ("finetune", "--data", photos, "--weights", MINI, *QUICK, *options)
    assert shell(*command, "--output", tmp_path)[0] == 1
    assert seen == [dtype]


@pytest.mark.parametrize(
    ("devices", "parts"), [(1, 4), (2, 2), (3, 1)], ids=["1", "2", "3 do not divide"]
)
def test_parts_are_of_32_images_on_each_device(devices, parts):
    row = cli.opening.table_4("cifar10", "digits")
    changed = cli.opening.changed(row, 1000, devices, batch_size=128)
    assert changed.accumulation_steps == parts


def test_config_beside_the_weights_sets_the_numerics(shell, photos, tmp_path):
    shutil.copy(MINI, tmp_path / "mine.npz")
    beside = {"gelu": "erf", "mean": [0.4] * 3, "std": [0.25] * 3}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    output = tmp_path / "run"
    command = ("finetune", "--data", photos, "--weights", tmp_path / "mine.npz")
    assert shell(*command, *QUICK, "--output", output)[0] == 0
    assert json.loads((output / "run.json").read_text())["std"] == [0.25] * 3
    model = keras.models.load_model(output / "model.keras")
    assert model.get_layer("encoderblock_0").get_config()["gelu"] == "erf"


def test_lora_trains_little_and_is_kept(shell, photos, tmp_path):
    command = ("finetune", "--data", photos, "--weights", MINI, "--lora", 2, *QUICK)
    code, _, err = shell(*command, "--output", tmp_path / "run")
    assert code == 0, err
    told = json.loads((tmp_path / "run/history.json").read_text())
    assert told["recipe"]["lora_rank"] == 2
    model = keras.models.load_model(tmp_path / "run/model.keras")
    projections = model.get_layer("encoderblock_0").projections()
    assert {layer.lora_rank for layer in projections} == {2}
    fresh = keras_vit.from_checkpoint(MINI).get_layer("encoderblock_0").projections()
    for trained, given in zip(projections, fresh, strict=True):
        change = np.subtract(trained.kernel, given.kernel)  # A file has both in one.
        values = np.linalg.svd(change, compute_uv=False)
        assert values[1] > 1e3 * values[2]
        np.testing.assert_array_equal(trained.bias, given.bias)
    code, out, _ = shell("evaluate", "--model", tmp_path / "run")
    assert (code, "of 15 images right" in out) == (0, True)
    code, _, err = shell(*command, "--freeze", "--output", tmp_path / "other")
    assert (code, "at most one of freeze, lora_rank" in err) == (1, True)


def test_variant_without_weights(shell, photos, tmp_path):
    code, out, _ = shell(
        *("finetune", "--data", photos, "--model", "ViT_Ti16", "--weights", "none"),
        *("--image-size", 32, "--output", tmp_path, "--freeze", *QUICK),
    )
    assert code == 0
    assert "36 training images of 3 classes, 32x32 px" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "no-such-set"], "no-such-set"),
        (["--data", "./nowhere"], "Expected a folder or an .npz that exists"),
        (["--model", "ViT-G/14"], "Expected one of ViT-Ti/16, ViT-S/16"),
        (["--recipe", "imagenet"], "Expected one of imagenet2012, cifar100"),
        (["--image-size", "17"], "multiples of patch_size"),
        (["--image-size", "big"], "Expected pixels as 384 or 384x512"),
        (["--batch-size", "6", "--parts", "4"], "multiple of accumulation_steps"),
        (["--weights", "missing.npz"], "missing.npz"),
        (["--weights", "no-such-tag"], "no-such-tag"),
        (
            ["--weights", MINI, "--model", "ViT-B/16"],
            "a checkpoint of the model's architecture",
        ),
    ],
)
def test_bad_options_are_one_message(
    shell, photos, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    given = [*QUICK, *words]
    if "--data" not in words:
        given += ["--data", photos]
    if not {"--weights", "--model"} & set(words):
        given += ["--weights", MINI]
    code, _, err = shell("finetune", *given, "--output", "out")
    assert code == 1, err
    assert err.startswith("keras-vit: Expected")
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out" / "model.keras").exists()


@pytest.mark.parametrize("words", [["--steps", "0"], ["--lr", "fast"], ["--augment"]])
def test_malformed_options_are_usage_errors(shell, photos, words):
    code, _, err = shell("finetune", "--data", photos, "--weights", MINI, *words)
    assert code == 2
    assert words[0] in err


@pytest.mark.parametrize("damage", ["truncated", "html", "empty"])
def test_damaged_weights_are_one_message(shell, photos, tmp_path, damage):
    file = tmp_path / "weights.npz"
    whole = (REFERENCE / "vit_mini.npz").read_bytes()
    file.write_bytes(
        {"truncated": whole[:-400], "html": b"<!DOCTYPE html>", "empty": b""}[damage]
    )
    code, _, err = shell("finetune", "--data", photos, "--weights", file, *QUICK)
    assert code == 1
    assert err.startswith("keras-vit: Expected")
    assert str(file) in err.replace("\n", "")


def test_corrupt_photos_stop_or_are_skipped(shell, photos, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    (data / "train" / "dark" / "0.jpg").write_bytes(b"\xff\xd8\xff")
    command = ("finetune", "--data", data, "--weights", MINI, *QUICK)
    code, _, err = shell(*command, "--output", tmp_path / "out")
    assert code == 1
    assert str(data / "train" / "dark" / "0.jpg") in err.replace("\n", "")
    assert not (tmp_path / "out").exists()
    with pytest.warns(UserWarning, match=r"dark/0\.jpg"):
        code, out, _ = shell(
            *command, "--output", tmp_path / "out", "--on-corrupt", "skip"
        )
    assert code == 0
    assert "35 training images" in out


def test_unwritable_output_fails_before_training(shell, photos, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, out, err = shell(
        *("finetune", "--data", photos, "--weights", MINI, *QUICK),
        *("--output", tmp_path / "file" / "run"),
    )
    assert code == 1
    assert str(tmp_path / "file") in err
    assert "Epoch" not in out


def test_folders_that_are_no_runs(shell, photos, trained, tmp_path):
    image = photos / "test" / "dark" / "0.jpg"
    code, _, err = shell("predict", "--model", tmp_path, image)
    assert code == 1
    assert "without model.keras and run.json" in err.replace("\n", "")
    shutil.copy(trained / "model.keras", tmp_path)
    (tmp_path / "run.json").write_text('{"classes": [')
    code, _, err = shell("predict", "--model", tmp_path, image)
    assert code == 1
    assert "run.json is damaged" in err
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    (tmp_path / "model.keras").write_bytes(b"PK\x03\x04 cut short")
    code, _, err = shell("predict", "--model", tmp_path, image)
    assert code == 1
    assert "model.keras" in err


def test_what_cannot_be_predicted_or_evaluated(shell, photos, trained, tmp_path):
    code, _, err = shell("predict", "--model", trained, tmp_path / "none.jpg")
    assert code == 1
    assert "Expected an image or a folder" in err
    code, _, err = shell("predict", "--model", trained, tmp_path)
    assert code == 1
    assert "Expected images" in err
    code, _, err = shell("evaluate", "--model", trained, "--data", "digits")
    assert code == 1
    assert "3 outputs, 10 classes in digits" in err
    code, _, err = shell("evaluate", "--weights", MINI)
    assert code == 1
    assert "no --data" in err
    headless = keras_vit.from_checkpoint(MINI)
    features = keras.Model(headless.input, headless.get_layer("head").input)
    keras_vit.weights.save(features, tmp_path / "features.npz")
    image = photos / "test" / "dark" / "0.jpg"
    code, _, err = shell("predict", "--weights", tmp_path / "features.npz", image)
    assert code == 1
    assert "Expected weights with a head" in err


def test_doctor(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "nowhere"))
    assert "nowhere: no such directory" in shell("doctor")[1]
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", "http://127.0.0.1:1/weights")
    code, out, _ = shell("doctor")
    assert code == 0
    assert keras.__version__ in out
    assert keras.backend.backend() in out
    assert str(tmp_path) in out
    assert "http://127.0.0.1:1/weights" in out


def test_doctor_says_what_auto_takes(shell, monkeypatch):
    from keras_vit.training import distribution

    out = shell("doctor")[1]
    assert "--distribute auto: none; on a TPU VM: pip install --no-deps" in out
    monkeypatch.setattr(distribution, "found", lambda: "multiworker")
    out = " ".join(shell("doctor")[1].split())
    assert (
        "auto: multiworker (ours differ from Keras in: keras#20582, keras#20585" in out
    )


def test_doctor_says_how_to_get_what_is_missing(shell, monkeypatch):
    installed = cli.machine.importlib.metadata.version

    def version(package):
        if package == "matplotlib":
            raise cli.machine.importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(cli.machine.importlib.metadata, "version", version)
    _, out, _ = shell("doctor")
    assert "missing" in out
    assert "pip install 'keras-vit-paper[plots]'" in out


def test_pretrain_from_scratch_goes_on(shell, photos, tmp_path):
    """Table 3 by name, D.2's sizes by options; the same command again is done."""
    command = (
        *("pretrain", "--data", photos, "--recipe", "imagenet21k", "--epochs", 2),
        *("--patch-size", 16, "--layers", 1, "--hidden-size", 24, "--mlp-dim", 48),
        *("--heads", 3, "--batch-size", 8, "--image-size", 32, "--seed", 5),
        *("--classifier", "gap", "--position", "sincos2d", "--augment", "flip"),
        "--remat",
        *("--output", tmp_path / "run"),
    )
    code, _, err = shell(*command)
    assert code == 0, err
    history = json.loads((tmp_path / "run/history.json").read_text())
    recipe = history["recipe"]
    assert (recipe["optimizer"], recipe["loss"]) == ("adam", "sigmoid")
    assert (recipe["weight_decay"], recipe["augment"]) == (0.03, "flip")
    assert recipe["remat"]
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert model.get_layer("encoderblock_0").dropout_rate == 0.1
    assert model.get_layer("posembed_input").kind == "sincos2d"
    assert config_of(model).classifier == "gap"
    assert shell(*command)[0] == 0
    again = json.loads((tmp_path / "run/history.json").read_text())
    assert again == history
    code, _, err = shell(*command, "--lr", 0.5)
    assert code == 1
    assert "recipe.base_lr was [0.001], is [0.5]" in err
    assert "--resume never" in err


def test_transfer_prints_sweep_runs_and_differences(shell, photos, tmp_path):
    """The same command adds runs; a run's folder is one of `finetune`."""
    command = (
        *("transfer", "--data", photos, "--weights", MINI, "--freeze"),
        *("--augment", "none", "--steps", 4, "--batch-size", 8, "--lr", 0.05),
        *("--lr", 0.5, "--output", tmp_path / "out"),
    )
    code, out, err = shell(*command, "--runs", 1)
    assert code == 0, err
    assert "  freeze: True, the paper's: False" in out
    assert "  image_size: (64, 64), the paper's: (384, 384)" in out
    assert "chosen" in out
    code, out, err = shell(*command, "--runs", 2)
    assert code == 0, err
    assert "run 2 of 2, seed 1" in out
    assert "run 1 of 2" not in out
    told = json.loads((tmp_path / "out/transfer.json").read_text())
    assert len(told["accuracies"]) == 2
    assert set(told["sweep"]) == {"0.05", "0.5"}
    run = json.loads((tmp_path / "out/run-1/run.json").read_text())
    assert (run["classes"], run["details"]["run"]) == (list(CLASSES), 1)
    code, out, _ = shell("evaluate", "--model", tmp_path / "out/run-1")
    assert code == 0
    assert f"top_1  {told['accuracies'][1]:.4f}" in out
    code, _, err = shell(*command, "--lr", 0.1)
    assert code == 1
    assert "recipe.base_lr was [0.05, 0.5], is [0.05, 0.5, 0.1]" in err


@pytest.mark.slow
def test_interrupted_run_is_saved(photos, tmp_path):
    """Ctrl-C in the middle of training: no traceback, the run can go on."""
    output = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "keras_vit.cli", "finetune", "--data", photos),
        *("--weights", MINI, "--output", output, "--steps", "100000"),
        *("--batch-size", "8", "--lr", "0.01"),
    ]
    with subprocess.Popen(
        command,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs deaf to Ctrl-C; this one listens.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and not (output / "history.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "The same call goes on from there" in err
    assert len(list((output / "checkpoints").glob("step-*.json"))) == 1


@pytest.mark.slow
def test_demo(shell, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    code, out, _ = shell("demo", "--output", tmp_path / "demo", "--steps", 20)
    assert code == 0
    assert "test accuracy" in out
    assert "handwritten digits" in out
    assert (tmp_path / "demo" / "attention.png").read_bytes()[1:4] == b"PNG"
    code, out, _ = shell("evaluate", "--model", tmp_path / "demo")
    assert code == 0
    assert "of 359 images right" in out


@pytest.mark.parametrize("to", ["timm", "hf", "npz"])
def test_convert_there_and_back_is_bit_equal(to, shell, tmp_path):
    code, out, err = shell("convert", MINI, tmp_path / "there", "--to", to)
    assert (code, err) == (0, "")
    assert "40 loaded" in out
    assert f"there: 42,666 parameters, {to}" in out
    code, out, _ = shell(
        "convert", tmp_path / "there", tmp_path / "back.npz", "--to", "npz"
    )
    assert code == 0
    assert f"{'official' if to == 'npz' else to} dialect" in out
    with np.load(MINI) as old, np.load(tmp_path / "back.npz") as new:
        assert old.files == new.files or set(old.files) == set(new.files)
        for name in old.files:
            np.testing.assert_array_equal(old[name], new[name])


def test_convert_to_keras_resizes_and_takes_a_new_head(shell, tmp_path):
    code, out, err = shell(
        *("convert", MINI, tmp_path / "it", "--to", "keras"),
        *("--image-size", "96x64", "--classes", "7"),
    )
    assert (code, err) == (0, "")
    assert "1 resized, 2 fresh" in out
    model = keras.models.load_model(tmp_path / "it.keras")
    assert model.input_shape == (None, 96, 64, 3)
    assert model.output_shape == (None, 7)
    code, out, _ = shell(
        "convert", tmp_path / "it.keras", tmp_path / "it.npz", "--to", "npz"
    )
    assert code == 0


def test_convert_says_what_a_dialect_cannot_hold(shell, tmp_path):
    gap = str(REFERENCE / "vit_mini_gap.npz")
    code, _, err = shell("convert", gap, tmp_path / "x", "--to", "hf")
    assert code == 1
    assert "classifier='gap'" in err
    assert not (tmp_path / "x").exists()
    code, _, err = shell(
        *("convert", MINI, tmp_path / "x", "--to", "npz", "--numerics", "timm")
    )
    assert code == 0
    assert "back with gelu='erf'" in err
    code, _, err = shell("convert", tmp_path / "none.npz", tmp_path / "x", "--to", "hf")
    assert code == 1
    assert "does not exist" in err
