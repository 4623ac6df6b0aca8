"""The command line, called as a shell calls it."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from tests.conftest import REFERENCE

pytest.importorskip("typer")
tf = pytest.importorskip("tensorflow")

from keras_vit import cli  # noqa: E402
from keras_vit.cli import evaluating  # noqa: E402
from keras_vit.cli.options import OpenedModel  # noqa: E402
from keras_vit.evaluation import classification  # noqa: E402
from keras_vit.facts import OFFICIAL  # noqa: E402
from keras_vit.files import read_bytes  # noqa: E402
from keras_vit.weights.architecture import config_of  # noqa: E402
from tests.runs import save_run, save_run_of_0_1  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

MINI = str(REFERENCE / "vit_mini.npz")
CLASSES = ("dark", "light", "middle")
QUICK = ("--steps", "2", "--batch-size", "8", "--lr", "0.05", "--augment", "none")


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
    command += [*QUICK, "--steps", 30]  # Of an option given twice, the last counts.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["keras-vit", *map(str, command)])
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
        *("data-size", "vtab", "paper", "costs", "export", "doctor"),
    ):
        assert command in text
        code, own, _ = shell(command, "--help")
        assert code == 0
        assert f"keras-vit {command}" in own
    assert shell("finetun")[0] == 2
    _, text, _ = shell("finetune", "--help")
    assert "[default: the recipe's]" in " ".join(text.split())


def test_finetune_writes_the_run(photos, trained):
    run = json.loads((trained / "run.json").read_text())
    assert run.keys() == {"details"}
    model = keras.models.load_model(trained / "model.keras", compile=False)
    assert model.labels == CLASSES
    assert model.preprocessing == OFFICIAL
    assert run["details"]["data"] == str(photos)
    assert run["details"]["test_accuracy"] == 1.0
    assert {path.name for path in trained.iterdir()} == {
        "begun.json",
        "best.keras",
        "certificate.jsonl",
        "checkpoints",
        "history.json",
        "history.jsonl",
        "manifest.json",
        "model.keras",
        "run.json",
        "start",
        "tensorboard",
    }


def test_a_run_is_verified_and_computed_again(shell, trained, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    code, out, err = shell("runs", "verify", copy)
    assert (code, err) == (0, "")
    assert out.endswith("all files are unchanged\n")
    code, out, err = shell("runs", "replay", copy, "--to", 6)
    assert code == 0, err
    last = out.splitlines()[-3:]
    assert last == [f"step {step}: bit-equal" for step in (0, 3, 6)]
    content = bytearray((copy / "model.keras").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "model.keras").write_bytes(content)
    code, out, _ = shell("runs", "verify", copy)
    assert code == 1
    assert out.splitlines()[-1] == "changed: model.keras"
    code, _, err = shell("evaluate", "--model", copy)
    assert code == 1
    assert "model.keras" in err
    assert "Restore the file from a copy" in err


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
    assert len({line.index("%") for line in out.splitlines() if "%" in line}) == 1
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


def test_control_characters_of_names_are_escaped(shell, photos, trained, tmp_path):
    """Of files and of classes; JSON still holds the names as they are."""
    name, label = "a\x1b[2J\x07\x9b.jpg", "da\x1b[31mrk"
    model = keras.models.load_model(trained / "model.keras", compile=False)
    save_run(tmp_path, model, (label, *CLASSES[1:]))
    image = shutil.copy(photos / "test" / "dark" / "0.jpg", tmp_path / name)
    bad = tmp_path / "bad\x1b[2J.jpg"
    bad.write_text("no image")
    for option in ([], ["--json"]):
        code, out, err = shell("predict", "--model", tmp_path, *option, image, bad)
        assert code == 1
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err)
        assert "bad\\u001b[2J.jpg" in err
    assert json.loads(out)["image"] == str(image)
    assert label in {row["class"] for row in json.loads(out)["top"]}


def test_control_characters_of_warnings_are_escaped(monkeypatch, shell):
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)
    shell("recipes", "cifar10")
    shown = warnings.formatwarning("left out a\x1b[2J", UserWarning, "file", 1)
    assert shown == "keras-vit: warning: left out a\\u001b[2J\n"  # No source line.


def test_named_pipes_of_a_folder_are_no_images(shell, trained, photos, tmp_path):
    """Reading one would wait for ever."""
    shutil.copy(photos / "test" / "dark" / "0.jpg", tmp_path)
    os.mkfifo(tmp_path / "pipe.jpg")
    code, out, _ = shell("predict", "--model", trained, tmp_path)
    assert code == 0
    assert out.count(".jpg") == 1


def test_a_named_pipe_is_refused_where_a_file_is_expected(
    shell, trained, photos, tmp_path
):
    """Reading one would wait for ever; a device may never end."""
    image = photos / "test" / "dark" / "0.jpg"
    pipe, model = tmp_path / "pipe.jpg", tmp_path / "pipe.keras"
    os.mkfifo(pipe)
    os.mkfifo(model)
    real = ("--imagenet", "real", "--data", photos)
    for words in (
        ["predict", "--model", trained, pipe],
        ["predict", "--model", trained, "/dev/zero"],
        ["predict", "--model", model, image],
        ["predict", "--server", "http://localhost:1", pipe],
        ["inspect", trained, pipe, "--output", tmp_path / "page.html"],
        ["evaluate", "--model", trained, *real, "--labels", pipe],
    ):
        code, out, err = shell(*words)
        assert (code, out) == (1, "")
        assert "a named pipe, a socket or a device" in err
    with pytest.raises(OSError, match="a named pipe"):
        keras_vit.from_checkpoint(MINI).preprocess(pipe)


def test_a_pipe_of_the_shell_is_read():
    """`command | keras-vit predict /dev/stdin` and `keras-vit predict <(command)`."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        end.write(b"an image")
    with os.fdopen(reading, "rb"):
        assert read_bytes(f"/dev/fd/{reading}") == b"an image"


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
    code, out, err = shell("evaluate", "--model", trained, "--data", photos, "--json")
    assert "top_1  1.0000" in err
    found = json.loads(out)
    assert found["results"]["top_1"]["value"] == 1
    assert found["data"]["images"] == 15
    assert found["per_class"] == {"right": [5, 5, 5], "images": [5, 5, 5]}


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


def test_drawn_test_images_are_those_of_the_run(shell, photos, tmp_path, monkeypatch):
    """With another image or seed, training images would be drawn."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos / "train", "photos")
    run, quick = tmp_path / "run", ("--data", "photos", "--weights", MINI, *QUICK)
    assert shell("finetune", *quick, "--output", run)[0] == 0
    stored = json.loads((run / "run.json").read_text())["details"]["data"]
    assert stored == str(tmp_path / "photos")
    monkeypatch.chdir(run)  # The data is found from any folder.
    code, out, err = shell("evaluate", "--model", run)
    assert code == 0, err
    images = re.search(r"of (\d+) images right", out)[1]
    fewshot = ("fewshot", "--data", stored, "--model", run, "--shots", "1")
    cases = [
        ("evaluate", "--model", run),
        ("evaluate", "--model", run, "--data", tmp_path / "run" / ".." / "photos"),
        ("export", run, tmp_path / "out.tflite", "--data", stored),
        fewshot,
    ]
    for command in cases:
        code, _, err = shell(*command, "--seed", 1)
        assert code == 1
        assert re.search(r"Expected the images and the seed of .* seed 1, .*train", err)
    shutil.copy(tmp_path / "photos" / "dark" / "0.jpg", tmp_path / "photos/dark/b.jpg")
    for command in cases:
        code, _, err = shell(*command)
        assert code == 1
        assert "tested on images that it was trained on" in err
    code, _, err = shell(
        *("finetune", "--data", stored, "--model", run, *QUICK),
        *("--output", tmp_path / "more"),
    )
    assert code == 0
    assert "the test accuracy is too high" in " ".join(err.split())
    (tmp_path / "photos" / "dark" / "b.jpg").unlink()
    code, out, err = shell(*fewshot)
    assert code == 0, err
    code, out, _ = shell("evaluate", "--model", run)
    assert f"of {images} images right" in out


def test_a_card_that_cannot_be_written_is_refused_first(
    shell, trained, tmp_path, monkeypatch
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(classification, "classify", None)
    (tmp_path / "card").write_text("")
    code, _, err = shell("evaluate", "--model", trained, "--output", tmp_path / "card")
    assert code == 1
    assert f"Cannot write {tmp_path / 'card' / 'card.json'}: " in err


def test_the_name_in_a_card_has_the_weights():
    """`compare` averages cards of one name: they have to be of one model."""
    names = {
        evaluating._name(OpenedModel(model=model, weights=weights))
        for model in (None, "ViT-Ti/16")
        for weights in (None, "a.npz", "b.npz")
    }
    assert names == {
        *("ViT-B/16", "a.npz", "b.npz"),
        *("ViT-Ti/16", "ViT-Ti/16 a.npz", "ViT-Ti/16 b.npz"),
    }


def test_classes_are_compared_by_name(shell, photos, trained, tmp_path):
    """A renamed class is elsewhere in the alphabet."""
    shutil.copytree(photos, tmp_path / "photos")
    for split in ("train", "test"):
        folder = tmp_path / "photos" / split
        (folder / CLASSES[0]).rename(folder / "zzz")
    code, _, err = shell("evaluate", "--model", trained, "--data", tmp_path / "photos")
    assert code == 1
    assert f"class 0, '{CLASSES[1]}', is output 1 of the model" in err
    assert "'zzz'" not in err.partition("not in")[2]
    for split in ("train", "test"):
        folder = tmp_path / "photos" / split
        (folder / "zzz").rename(folder / f"{CLASSES[0]}a")
    names = f"'{CLASSES[0]}', with '{CLASSES[0]}a'"
    with pytest.warns(UserWarning, match=f"by index: output 0, {names}"):
        code, out, _ = shell(
            "evaluate", "--model", trained, "--data", tmp_path / "photos"
        )
    assert (code, "15 of 15 images right" in out) == (0, True)


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
    model = keras.models.load_model(trained / "model.keras", compile=False)
    shifted = dataclasses.replace(OFFICIAL, mean=(0.9,) * 3)
    run = save_run(tmp_path / "run", model, CLASSES, shifted, data=str(photos), seed=0)
    command = ("evaluate", "--model", run, "--batch-size", 4, "--per-class")
    assert shell(*command, "--output", other)[0] == 0
    code, out, err = shell("compare", one, other / "card.json")
    assert (code, err) == (0, "")
    right = json.loads((other / "card.json").read_text())["results"]["top_1"]["value"]
    assert f"A: {one}, mine on {photos}, 15 images" in out
    assert re.search(
        rf"top_1 +{re.escape(f'{100 * (right - 1):+.2f}')} \(.*points", out
    )
    assert f"B 0, A {round(15 * (1 - right))}" in out
    assert "Table 2" not in out


@pytest.mark.filterwarnings("ignore:objectnet has:UserWarning")
@pytest.mark.filterwarnings("ignore:imagenet2012 has:UserWarning")
def test_evaluate_prints_the_papers_numbers_of_objectnet(shell, photos, tmp_path):
    """D.9's two numbers stand below ours; other sets have none."""
    from keras_vit.evaluation import imagenet_classes

    config = config_of(keras_vit.from_checkpoint(MINI))
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=1000)
    save_run(tmp_path / "run", model, imagenet_classes.names())
    command = ("evaluate", "--model", tmp_path / "run", "--imagenet")
    shutil.copytree(photos / "test" / "dark", tmp_path / "objects" / "banana")
    code, out, err = shell(*command, "objectnet", "--data", tmp_path / "objects")
    assert (code, err) == (0, "")
    model_of_the_paper = "ViT-H/14 pre-trained on jft300m (D.9)"
    assert f"paper  0.617  top-1 of {model_of_the_paper}\n" in out
    assert f"paper  0.821  top-5 of {model_of_the_paper}\n" in out
    wnid = imagenet_classes.wnids()[0]
    shutil.copytree(photos / "test" / "dark", tmp_path / "val" / wnid)
    code, out, _ = shell(*command, "val", "--data", tmp_path / "val")
    assert (code, "paper" in out) == (0, False)


def test_evaluate_knows_imagenets_family(shell, photos, tmp_path):
    """Up to the model, which is not of 1,000 classes."""
    from keras_vit.evaluation.imagenet_classes import wnids

    data = tmp_path / "data"
    shutil.copytree(photos / "test" / "dark", data / wnids()[0])
    command = ("evaluate", "--weights", MINI, "--imagenet", "val", "--data", data)
    with pytest.warns(UserWarning, match="imagenet2012 has 50,000 images"):
        code, _, err = shell(*command)
    assert code == 1
    assert "10 outputs for the 1000 classes of imagenet2012" in err
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
    assert "all correct" in err


@pytest.mark.slow
def test_options_reach_the_recipe_and_the_model(shell, photos, tmp_path):
    code, out, _ = shell(
        *("finetune", "--data", photos, "--weights", MINI, "--output", tmp_path),
        *("--steps", 4, "--warmup", 1, "--batch-size", 6, "--parts", 3),
        *("--lr", 0.01, "--lr", 0.02, "--image-size", "48x80", "--augment", "flip"),
        *("--ema", 0.9, "--precision", "mixed_bfloat16", "--gelu", "erf", "--seed", 3),
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
    model = keras.models.load_model(tmp_path / "model.keras")
    assert model.preprocessing.mean == (0.4, 0.5, 0.6)
    block = model.get_layer("encoderblock_0")
    assert block.compute_dtype == "bfloat16"
    assert block.get_config()["gelu"] == "erf"


@pytest.mark.parametrize(
    ("options", "on_tpu", "dtype"),
    [
        ((), True, "bfloat16"),
        ((), False, "float32"),
        (("--precision", "float32"), True, "float32"),
        (("--precision", "mixed_bfloat16"), False, "bfloat16"),
        (("--precision", "mixed_float16"), False, "float16"),
        (("--mixed-precision",), False, "bfloat16"),
        (("--no-mixed-precision",), True, "float32"),
        (("--mixed-precision", "--precision", "mixed_bfloat16"), False, "bfloat16"),
    ],
    ids=lambda at: " ".join(at) or "default" if isinstance(at, tuple) else str(at),
)
def test_precision(options, on_tpu, dtype, shell, photos, tmp_path, monkeypatch):
    from keras_vit import training
    from keras_vit.training import distribution

    seen = []

    def fit(model, *_, **__):
        seen.append(model.get_layer("encoderblock_0").compute_dtype)
        raise ValueError("enough")

    monkeypatch.setattr(distribution, "on_tpu", lambda strategy: on_tpu)
    monkeypatch.setattr(training, "fit", fit)
    command = ("finetune", "--data", photos, "--weights", MINI, *QUICK, *options)
    code, _, err = shell(*command, "--output", tmp_path)
    assert code == 1
    assert seen == [dtype]
    old = [option for option in options if option.endswith("mixed-precision")]
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    told = f"{old[0]} is deprecated. Use --precision {policy}" if old else "deprecated"
    assert (told in err) == bool(old)


def test_two_precisions_are_refused(shell, photos, tmp_path):
    code, _, err = shell(
        *("finetune", "--data", photos, "--weights", MINI, *QUICK, "--mixed-precision"),
        *("--precision", "mixed_float16", "--output", tmp_path),
    )
    assert code == 1
    assert "Expected one precision. Received: --precision mixed_float16" in err


@pytest.mark.parametrize("command", ["finetune", "pretrain", "transfer", "vtab"])
def test_commands_that_train_have_a_precision(command, shell):
    code, out, _ = shell(command, "--help")
    assert code == 0
    assert "--precision" in out
    assert "--mixed-precision" not in out


@pytest.mark.slow
def test_float16_trains_from_the_shell(shell, photos, tmp_path):
    """With the loss scaled; what is saved computes in float16, its weights float32."""
    code, out, _ = shell(
        *("finetune", "--data", photos, "--weights", MINI, *QUICK),
        *("--steps", 30, "--precision", "mixed_float16", "--output", tmp_path),
    )
    assert code == 0
    assert "test accuracy" in out
    block = keras.models.load_model(tmp_path / "model.keras").get_layer(
        "encoderblock_0"
    )
    assert (block.compute_dtype, block.variable_dtype) == ("float16", "float32")


@pytest.mark.parametrize(
    ("devices", "parts"), [(1, 4), (2, 2), (3, 1)], ids=["1", "2", "3 do not divide"]
)
def test_parts_are_of_32_images_on_each_device(devices, parts):
    row = cli.loaders.table_4("cifar10", "digits")
    asked = cli.fields.Changes(batch_size=128)
    changed = cli.loaders.changed(row, 1000, devices, asked)
    assert changed.accumulation_steps == parts


def test_config_beside_the_weights_sets_the_numerics(shell, photos, tmp_path):
    shutil.copy(MINI, tmp_path / "mine.npz")
    beside = {"gelu": "erf", "mean": [0.4] * 3, "std": [0.25] * 3}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    output = tmp_path / "run"
    command = ("finetune", "--data", photos, "--weights", tmp_path / "mine.npz")
    assert shell(*command, *QUICK, "--output", output)[0] == 0
    model = keras.models.load_model(output / "model.keras")
    assert model.preprocessing.std == (0.25,) * 3
    assert model.get_layer("encoderblock_0").get_config()["gelu"] == "erf"


def test_lora_trains_little_and_is_kept(shell, photos, tmp_path):
    command = ("finetune", "--data", photos, "--weights", MINI, "--lora", 2, *QUICK)
    command += ("--steps", 30)
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
    (tmp_path / "run.json").write_text("[" * 100_000)
    code, _, err = shell("predict", "--model", tmp_path, image)
    assert code == 1
    assert "nested too deeply" in err
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    (tmp_path / "model.keras").write_bytes(b"PK\x03\x04 cut short")
    code, _, err = shell("predict", "--model", tmp_path, image)
    assert code == 1
    assert "model.keras" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"std": [0, 0, 0]}, "Expected std, which divides each channel"),
        ({"std": [0.5, -1, 0.5]}, "to be positive"),
        ({"mean": [math.nan] * 3}, "Expected mean, .*finite"),
        ({"mean": [0.5, 0.5]}, "2.*for 3 channels|0.5, 0.5.*for 3 channels"),
        ({"mean": 0.5}, "mean=0.5"),
        ({"classes": list("ab")}, "Expected 3 classes .*Received: 2 classes"),
        ({"classes": list("abcd")}, "Expected 3 classes .*Received: 4 classes"),
        ({"classes": []}, "Expected 3 classes .*Received: 0 classes"),
        ({"classes": "abc"}, "run.json is damaged"),
        ({"classes": [1, 2, 3]}, "a name that is not text"),
        ({"details": None}, "run.json is damaged"),
    ],
    ids=str,
)
def test_a_changed_run_json_of_0_1_gives_no_answer(
    shell, photos, trained, tmp_path, changes, message
):
    """A zero std printed nan % and other values wrong probabilities, with status 0."""
    model = keras.models.load_model(trained / "model.keras", compile=False)
    save_run_of_0_1(tmp_path, model, **changes)
    image = photos / "test" / "dark" / "0.jpg"
    code, out, err = shell("predict", "--model", tmp_path, image)
    assert (code, out) == (1, "")
    assert re.search(message, err.replace("\n", " "))
    assert "run.json" in err


@pytest.mark.parametrize("command", ["predict", "evaluate", "fewshot", "inspect"])
def test_a_zero_std_is_refused(shell, photos, trained, command, tmp_path):
    image = photos / "test" / "dark" / "0.jpg"
    words = {
        "predict": ["--weights", MINI, image],
        "evaluate": ["--weights", MINI, "--data", photos],
        "fewshot": ["--weights", MINI, "--data", photos, "--shots", 1],
        "inspect": [MINI, image, "--output", tmp_path / "page.html"],
    }[command]
    code, out, err = shell(command, *words, "--std", 0, 0, 0)
    assert code == 1
    assert "nan" not in out
    assert "Expected std" in err


def test_a_trained_model_keeps_its_normalization(shell, photos, trained):
    image = photos / "test" / "dark" / "0.jpg"
    code, _, err = shell("predict", "--model", trained, image, "--mean", 0, 0, 0)
    assert code == 1
    assert "Expected --mean with a weights file" in err


def test_a_run_of_0_1_and_a_file_of_keras_predict(shell, photos, trained, tmp_path):
    """The same model from three places: the run, one of 0.1, its `.keras` file."""
    image = photos / "test" / "dark" / "0.jpg"
    model = keras.models.load_model(trained / "model.keras", compile=False)
    old = save_run_of_0_1(tmp_path / "old", model, classes=list(CLASSES))
    rows = []
    for place in (trained, old, trained / "model.keras"):
        code, out, err = shell("predict", "--model", place, image, "--json")
        assert (code, err) == (0, "")
        rows.append(json.loads(out)["top"])
    assert rows[0] == rows[1] == rows[2]
    plain = old / "model.keras"  # What a user's own `model.save` may write.
    code, out, err = shell("predict", "--model", plain, image, "--json")
    assert code == 0
    assert "does not state its preprocessing" in err
    first = json.loads(out)["top"][0]
    assert first["probability"] == rows[0][0]["probability"]
    assert first["class"] == f"class {CLASSES.index(rows[0][0]['class'])}"
    shares = keras.Model(model.input, keras.layers.Softmax()(model.output))
    shares.save(tmp_path / "shares.keras")
    _, out, _ = shell("predict", "--model", tmp_path / "shares.keras", image, "--json")
    again = json.loads(out)["top"][0]
    assert again["probability"] == pytest.approx(first["probability"], abs=1e-5)


def test_scores_that_are_not_finite_are_no_prediction(shell, photos, trained, tmp_path):
    model = keras.models.load_model(trained / "model.keras", compile=False)
    head = model.get_layer("head")
    head.bias.assign([np.nan] * len(CLASSES))
    model.save(tmp_path / "model.keras")
    shutil.copy(trained / "run.json", tmp_path)
    image = photos / "test" / "dark" / "0.jpg"
    for words in (["predict", "--model", tmp_path, image],):
        code, out, err = shell(*words)
        assert (code, out) == (1, "")
        assert "Expected finite scores. Received: NaN or infinity" in err
        assert "0.jpg" in err
    for words in (
        ["evaluate", "--model", tmp_path],
        ["inspect", tmp_path, image, "--output", tmp_path / "page.html"],
        ["export", tmp_path, tmp_path / "served"],
        ["export", tmp_path, tmp_path / "model.tflite"],
    ):
        code, out, err = shell(*words)
        assert code == 1, words
        assert "nan" not in out.lower(), words
        assert re.search("finite|NaN|nan", err), (words, err)


def test_what_cannot_be_predicted_or_evaluated(shell, photos, trained, tmp_path):
    code, _, err = shell("predict", "--model", trained, tmp_path / "none.jpg")
    assert code == 1
    assert "Expected an image or a folder" in err
    code, _, err = shell("predict", "--model", trained, tmp_path)
    assert code == 1
    assert "Expected images" in err
    code, _, err = shell("evaluate", "--model", trained, "--data", "digits")
    assert code == 1
    assert "3 outputs for the 10 classes of digits" in err
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
    rows = {row["name"]: row for row in json.loads(shell("doctor", "--json")[1])}
    assert rows["keras"]["found"] == keras.__version__
    assert rows["weights cache"]["found"].startswith(f"{tmp_path}/")


def test_doctor_says_what_auto_takes(shell, monkeypatch):
    from keras_vit.training import distribution

    out = shell("doctor")[1]
    assert "--distribute auto: none; on a TPU VM: pip install --no-deps" in out
    monkeypatch.setattr(distribution, "found", lambda: "multiworker")
    out = " ".join(shell("doctor")[1].split())
    assert "auto: multiworker (with fixes for Keras: keras#20582, keras#20585" in out


def test_doctor_says_how_to_get_what_is_missing(shell, monkeypatch):
    installed = cli.doctor.importlib.metadata.version

    def version(package):
        if package == "matplotlib":
            raise cli.doctor.importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(cli.doctor.importlib.metadata, "version", version)
    _, out, _ = shell("doctor")
    assert "missing" in out
    assert "pip install '.[plots]'" in out


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
    assert run == {"details": run["details"]}
    assert run["details"]["run"] == 1
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
    assert "To resume, run the same command or" in err
    assert len(list((output / "checkpoints").glob("step-*.json"))) == 1


def first_correct(run):
    """(Number from 1, label) of the first test digit that a run's model gets right."""
    source = keras_vit.data.open_source("digits")
    model = keras.models.load_model(run / "model.keras")
    images = tf.image.resize(np.repeat(source.test.images, 3, axis=-1), (32, 32))
    guesses = model.predict(np.round(images) / 127.5 - 1, verbose=0).argmax(-1)
    place = int(np.flatnonzero(guesses == source.test.labels)[0])
    return str(place + 1), str(source.test.labels[place])


@pytest.mark.slow
def test_demo(shell, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    code, out, _ = shell("demo", "--output", tmp_path / "demo", "--steps", 20)
    assert code == 0
    assert "test accuracy" in out
    assert "handwritten digits" in out
    assert (tmp_path / "demo" / "attention.png").read_bytes()[1:4] == b"PNG"
    (last,) = re.findall(
        r"its first correct prediction: test digit (\d+), label '(\d)', "
        r"prediction '(\d)' \(\d+\.\d %\)",
        out,
    )
    assert last[1] == last[2]
    assert last[:2] == first_correct(tmp_path / "demo")
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
    hidden = str(REFERENCE / "vit_mini_rep.npz")
    code, _, err = shell("convert", hidden, tmp_path / "x", "--to", "hf")
    assert code == 1
    assert "a head after pre_logits" in err
    assert not (tmp_path / "x").exists()
    code, _, err = shell(
        *("convert", MINI, tmp_path / "x", "--to", "npz", "--numerics", "timm")
    )
    assert code == 0
    assert "back with gelu='erf'" in err
    code, _, err = shell("convert", tmp_path / "none.npz", tmp_path / "x", "--to", "hf")
    assert code == 1
    assert "does not exist" in err


def test_num_heads_of_a_file_that_does_not_show_them(shell, tmp_path):
    """timm's tensors of width 16, without the config.json that states 4 heads."""
    file = tmp_path / "model.safetensors"
    dialects = REFERENCE.parent / "dialects"
    shutil.copy(dialects / "timm_vit" / "model.safetensors", file)
    image = tmp_path / "image.png"
    keras.utils.save_img(image, np.full((32, 32, 3), 90, np.uint8), scale=False)
    for command in (
        ("convert", file, tmp_path / "out.npz", "--to", "npz"),
        ("predict", image, "--weights", file),
        ("inspect", file, image, "--output", tmp_path / "page.html"),
    ):
        code, _, err = shell(*command)
        assert code == 1
        assert "--num-heads" in err
        code, _, err = shell(*command, "--num-heads", 4)
        assert code == 0, err
    with np.load(tmp_path / "out.npz") as converted:
        shapes = {value.shape for name, value in converted.items() if "query" in name}
    assert (16, 4, 4) in shapes
    code, _, err = shell("predict", image, "--model", "ViT-Ti/16", "--num-heads", 3)
    assert code == 1
    assert "Expected --num-heads with a weights file" in err
