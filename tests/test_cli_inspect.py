"""`keras-vit inspect`: a run's folder, a file or a variant in, one page out."""

import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest

import keras_vit

pytest.importorskip("typer")
tf = pytest.importorskip("tensorflow")

from keras_vit.cli.loaders import save_details  # noqa: E402
from keras_vit.self_supervision import MaskedPatchPredictor  # noqa: E402
from tests.inspection.test_page import Reader, maps  # noqa: E402
from tests.runs import save_run, save_run_of_0_1  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SCALE = keras_vit.Preprocessing(mean=MEAN, std=STD)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four photos of each of three kinds."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for kind in ("a", "b", "c"):
        (root / kind).mkdir()
        for i in range(4):
            pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
            png = tf.io.encode_png(pixels).numpy()
            (root / kind / f"{i}.png").write_bytes(png)
    return root


def tiny(classes):
    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=8, num_layers=2, hidden_size=16, mlp_dim=16, num_heads=2
    )
    return keras_vit.vit(config, image_size=(32, 32), num_classes=classes)


@pytest.fixture(scope="module")
def run(tmp_path_factory, photos):
    """As `finetune` leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return save_run(folder, tiny(3), "abc", SCALE, data=str(photos))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    keras_vit.weights.save(tiny(0), path)
    return path


def test_of_a_run(run, photos, shell):
    code, out, err = shell("inspect", run, photos, "--count", 3)
    assert code == 0, err
    page = run / "inspect.html"
    size = f"{page.stat().st_size / 2**20:.2f} MiB"
    assert f"wrote {page}: 3 images, {size}; open it in a browser" in out
    found = Reader(page.read_text(encoding="utf-8"))
    assert found.data["names"] == ["a/0.png", "b/1.png", "c/3.png"]  # All over it.
    assert {"tiny", "a", "b", "c", "0.4, 0.5, 0.6", "0.2, 0.25, 0.3"} <= {*found.text}

    model = keras.models.load_model(run / "model.keras")
    image = tf.image.decode_png((photos / "c" / "3.png").read_bytes())
    image = keras_vit.data.preprocessing.prepare(image, (32, 32), SCALE, 3)
    attention = keras_vit.inspection.output_attention(model, image[None])
    shown, most = maps(found.data["attention"], (3, *attention.shape[1:]))
    assert (np.abs(shown[2] - attention[0]) <= most[2] / 510 + 1e-6).all()


def test_of_a_run_and_its_own_test_images(run, shell, tmp_path):
    output = tmp_path / "pages" / "own.html"
    code, _, err = shell("inspect", run, "--count", 2, "--output", output)
    assert code == 0, err
    names = Reader(output.read_text(encoding="utf-8")).data["names"]
    assert len(names) == 2
    assert all(re.fullmatch("test image of [abc]", name) for name in names)


def test_titles_are_the_classes_of_the_data(run, shell, photos, tmp_path):
    """Images are held out only if they are those that the run held out."""

    def names(folder):
        copy = tmp_path / folder.name
        shutil.copytree(run, copy, dirs_exist_ok=True)
        save_details(copy, {"data": str(folder)})
        begun = {"data": {"name": str(photos), "fingerprint": "0"}, "recipe": {}}
        (copy / "begun.json").write_text(json.dumps(begun))
        code, _, err = shell("inspect", copy, "--count", 3)
        assert code == 0, err
        page = (copy / "inspect.html").read_text(encoding="utf-8")
        return Reader(page).data["names"]

    renamed = tmp_path / "renamed"
    shutil.copytree(photos, renamed)
    (renamed / "a").rename(renamed / "z")
    assert sorted(names(renamed)) == [f"image of {kind}" for kind in "bcz"]
    for kind in "abc":  # Without test images.
        shutil.copytree(photos / kind, tmp_path / "whole" / "train" / kind)
    expected = [f"training image of {kind}" for kind in "abc"]
    assert sorted(names(tmp_path / "whole")) == expected


def test_figures_of_masked_patch_prediction_are_of_its_backbone(
    photos, shell, tmp_path
):
    pytest.importorskip("matplotlib")
    model = MaskedPatchPredictor(tiny(None))
    model.save(tmp_path / "masked.keras")
    pictures = [tmp_path / f"{name}.png" for name in ("reconstructions", "figure_7")]
    for picture, words in zip(pictures, ([], ["--figure", 7]), strict=True):
        code, _, err = shell(
            *("inspect", tmp_path / "masked.keras", photos / "a", *words),
            *("--output", picture),
        )
        assert code == 0, err
    sizes = [tf.image.decode_png(at.read_bytes()).shape for at in pictures]
    assert sizes[0] != sizes[1]


def test_of_a_model_of_any_size(photos, shell, tmp_path):
    keras_vit.at_resolution(tiny(3), (None, None)).save(tmp_path / "any.keras")
    model, output = tmp_path / "any.keras", ("--output", tmp_path / "out.npz")
    for words in (
        ("inspect", model, photos, *output),
        ("embed", photos, "--model", model, *output),
        ("predict", photos, "--model", model),
    ):
        code, _, err = shell(*words)
        assert code == 1
        assert "Expected a model for images of one size" in err


def test_of_a_file_without_a_head(file, photos, shell, tmp_path, monkeypatch):
    """In the working directory, and without matplotlib."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    numbers = ("--mean", *MEAN, "--std", *STD, "--gelu", "erf")
    code, out, err = shell("inspect", file, photos / "a" / "0.png", *numbers)
    assert code == 0, err
    assert "tiny.npz: " in out
    text = " ".join(Reader((tmp_path / "inspect.html").read_text("utf-8")).text)
    for told in ("erf", "0.4, 0.5, 0.6", "has no head", "1 image"):
        assert told in text


def test_of_a_variant(photos, shell, tmp_path):
    output = tmp_path / "page.html"
    code, _, err = shell(
        *("inspect", "ViT-Ti/16", photos / "a" / "0.png", "--weights", "none"),
        *("--output", output),
    )
    assert code == 0, err
    found = Reader(output.read_text(encoding="utf-8"))
    assert found.data["attention"]["shape"] == [1, 12, 3, 14, 14]
    assert "ViT-Ti/16" in found.text
    assert any("tench" in text for text in found.text)  # The first of equal classes.


def test_of_a_file_whose_name_is_not_utf8(file, photos, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo = tmp_path / b"caf\xe9.png".decode("utf-8", "surrogateescape")
    try:
        photo.write_bytes((photos / "a" / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    code, _, err = shell("inspect", file, photo)
    assert code == 0, err
    assert "caf?.png" in (tmp_path / "inspect.html").read_text("utf-8")

    photo.write_bytes(b"no image")
    code, _, err = shell("inspect", file, photo)
    assert code == 1
    assert r"caf\udce9.png: not a readable image (not a whole" in err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_predicting_a_file_whose_name_is_not_utf8(
    options, run, photos, shell, tmp_path
):
    photo = tmp_path / b"caf\xe9.png".decode("utf-8", "surrogateescape")
    try:
        photo.write_bytes((photos / "a" / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    code, out, err = shell("predict", photo, "--model", run, *options)
    assert code == 0, err
    assert r"\udce9.png" in out


def test_of_a_folder_with_a_corrupt_file(file, photos, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.png").write_bytes((photos / "a" / "0.png").read_bytes())
    bad = folder / "b.png"
    bad.write_bytes((photos / "a" / "1.png").read_bytes()[:99])
    code, out, err = shell("inspect", file, folder)
    assert code == 0, err
    assert "1 image," in out
    assert f"left out {bad}: not a readable image (" in err
    names = Reader((tmp_path / "inspect.html").read_text("utf-8")).data["names"]
    assert names == ["mixed/a.png"]

    for words in ([folder / "a.png", bad], [folder, bad]):  # Who names it wants it.
        code, _, err = shell("inspect", file, *words)
        assert code == 1
        assert f"keras-vit: {bad}: not a readable image (" in err
    (folder / "a.png").write_bytes(b"")
    code, _, err = shell("inspect", file, folder)
    assert code == 1
    assert "a.png: not a readable image (" in err


def test_why_a_file_is_not_readable(file, shell, tmp_path):
    """In words, without the names of TensorFlow's operations."""
    bad = tmp_path / "photos" / "a.png"
    bad.parent.mkdir()
    bad.write_bytes(b"no image")
    code, _, err = shell("inspect", file, bad.parent)
    assert code == 1
    reason = "not a whole JPEG, PNG, GIF, BMP or WebP image"
    assert f"{bad}: not a readable image ({reason}). Help: keras-vit inspect" in err


def test_a_folder_with_the_name_of_an_image_is_none(file, shell, tmp_path):
    (tmp_path / "photos" / "a.png").mkdir(parents=True)
    code, _, err = shell("inspect", file, tmp_path / "photos")
    assert code == 1
    assert "Expected images (" in err
    assert f"in the folder. Received: '{tmp_path / 'photos'}'" in err


def test_classes_of_another_head(run, photos, shell, tmp_path):
    model = keras.models.load_model(run / "model.keras")
    for classes in (["a", "b"], ["a", "b", "c", "d"]):
        folder = tmp_path / str(len(classes))
        save_run_of_0_1(folder, model, classes=classes)
        code, _, err = shell("inspect", folder, photos, "--count", 1)
        assert code == 1
        assert "Expected 3 classes in" in err
        assert f"Received: {len(classes)} classes" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{file}"], "Expected image files or folders of images. Received: none"),
        (["{file}", "{tmp}"], "Expected images (.bmp"),
        (["{file}", "{tmp}/no.png"], "Expected an image or a folder. Received:"),
        (["{file}", "{file}"], "tiny.npz: not a readable image"),
        (["{file}", "{photos}", "--weights", "sam"], "which has its own"),
        (["{run}", "{photos}", "--weights", "sam"], "which has its own"),
        (["{run}", "{photos}", "--gelu", "erf"], "which has its own"),
        (["{tmp}", "{photos}"], "without model.keras and run.json"),
        (["ViT-Z/16", "{photos}"], "Received: ViT-Z/16"),
        (["{bit}", "{photos}"], "a ResNet (4.1), which has neither"),
    ],
)
def test_errors(words, told, run, file, photos, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bit = tmp_path / "bit" / "bit.npz"
    if "{bit}" in words:
        bit.parent.mkdir()
        config = keras_vit.configs.ResNetConfig(num_layers=(1,), width=32)
        network = keras_vit.resnet(config, image_size=(32, 32), num_classes=3)
        keras_vit.weights.save(network, bit)
    places = {"run": run, "file": file, "photos": photos, "tmp": tmp_path, "bit": bit}
    code, _, err = shell("inspect", *(word.format(**places) for word in words))
    assert code == 1
    assert told in err
    assert not (tmp_path / "inspect.html").exists()


def test_a_run_whose_data_has_moved(run, tmp_path, shell):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "model.keras").write_bytes((run / "model.keras").read_bytes())
    save_details(moved, {"data": str(tmp_path / "gone")})
    code, _, err = shell("inspect", moved)
    assert code == 1
    assert re.search(
        r"Expected image files, folders of images, or the data .*gone.*cannot be", err
    )
    assert not (moved / "inspect.html").exists()


@pytest.mark.parametrize(("figure", "shape"), [("6", (3,)), ("14", (2,)), ("7", ())])
def test_figures_of_the_paper(shell, run, figure, shape, tmp_path, monkeypatch):
    plots = pytest.importorskip("keras_vit.inspection.plots")
    drawn = []
    name = f"figure_{figure}"
    real = getattr(plots, name)
    monkeypatch.setattr(
        plots, name, lambda *a, **k: (drawn.append((a, k)), real(*a, **k))
    )
    code, out, _ = shell("inspect", run, "--figure", figure, "--count", sum(shape) or 2)
    picture = run / f"{name}.png"
    assert (code, out) == (0, f"wrote {picture}\n")
    assert picture.read_bytes()[1:4] == b"PNG"
    (((images, maps, *_), options),) = drawn
    if figure == "7":
        return
    assert images.shape == (*shape, 32, 32, 3)
    assert images.min() >= 0
    assert images.max() <= 1
    model = keras.models.load_model(run / "model.keras", compile=False)
    batch = (images - np.array(MEAN)) / np.array(STD)
    expected = keras_vit.inspection.attention_rollout(model, batch.astype("float32"))
    np.testing.assert_allclose(maps, expected, rtol=1e-4)
    assert options == ({"quantile": (1.0, 0.97)} if figure == "6" else {})
