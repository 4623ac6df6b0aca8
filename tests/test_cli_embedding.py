"""`keras-vit embed` and `search`: a folder in, its nearest photographs out."""

import json
import re

import keras
import numpy as np
import pytest

import keras_vit

pytest.importorskip("typer")
tf = pytest.importorskip("tensorflow")

from keras_vit.cli import embedding  # noqa: E402
from keras_vit.evaluation import retrieval  # noqa: E402
from tests.layers import by_hand  # noqa: E402

pytestmark = pytest.mark.tensorflow_only
CONFIG = {
    "patch_size": 8,
    "num_layers": 2,
    "hidden_size": 16,
    "mlp_dim": 16,
    "num_heads": 2,
}


def save(path, seed=0, **changes):
    keras.utils.set_random_seed(seed)
    config = keras_vit.ViTConfig(**CONFIG | changes)
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=3)
    model = by_hand.randomize(model, 0.2)
    model.set_weights([weight + seed for weight in model.get_weights()])
    model.save(path)
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.keras"
    save(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six photos in two folders, and two files that are none."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for kind, low in (("dark", 0), ("light", 150)):
        (root / kind).mkdir()
        for i in range(3):
            pixels = rng.integers(low, low + 100, (40, 30, 3), dtype=np.uint8)
            (root / kind / f"{i}.png").write_bytes(tf.io.encode_png(pixels).numpy())
    (root / "dark" / "broken.jpg").write_bytes(b"no photo")
    (root / "dark" / "notes.txt").write_text("no photo either")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory, file, photos):
    """What `embed` wrote, without a shell."""
    return tmp_path_factory.mktemp("made") / "embeddings.npz"


@pytest.fixture
def embedded(made, file, photos, shell):
    if not made.exists():
        code, _, err = shell(
            *("embed", photos, "--model", file, "--output", made, "--batch-size", 4)
        )
        assert code == 0, err
    return made


def tokens(file, photo):
    model = keras.models.load_model(file)
    return model, model.preprocess(photo)


@pytest.mark.parametrize("token", [None, "cls", "mean", "cls+mean"])
def test_embeddings_are_the_tokens_of_the_equations(
    token, file, photos, tmp_path, shell
):
    output = tmp_path / "some.npz"
    words = [] if token is None else ["--token", token]
    code, out, err = shell("embed", photos, "--model", file, "--output", output, *words)
    assert code == 0, err
    width = 32 if token == "cls+mean" else 16
    assert f"6 embeddings of width {width}; left out: 1" in out
    assert len(re.findall("left out .*broken.jpg: not a readable image", err)) == 1
    found = retrieval.Embeddings.load(output)
    assert found.paths == tuple(
        f"{k}/{i}.png" for k in ("dark", "light") for i in "012"
    )
    model, images = tokens(file, [str(photos / path) for path in found.paths])
    z = by_hand.vit(model, images, model.config)
    parts = {"cls": z[:, 0], "mean": z[:, 1:].mean(1)}
    expected = np.concatenate(
        [parts[part] for part in (token or "cls").split("+")], axis=1
    )
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)


def test_search_prints_cosines_and_writes_thumbnails(
    embedded, photos, tmp_path, shell, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    query = photos / "light" / "1.png"
    code, out, err = shell("search", embedded, query, "--top", 3)
    assert code == 0, err
    lines = re.findall(r"^(-?\d\.\d{4})  (.*)$", out, re.M)
    assert lines[0] == ("1.0000", str(query))
    known = retrieval.Embeddings.load(embedded)
    unit = known.vectors / np.linalg.norm(known.vectors, axis=1, keepdims=True)
    cosines = unit @ unit[known.paths.index("light/1.png")]
    order = np.argsort(-cosines)[:3]
    assert [path for _, path in lines] == [str(photos / known.paths[i]) for i in order]
    np.testing.assert_allclose(
        [float(at) for at, _ in lines], cosines[order], atol=1e-4
    )
    page = (tmp_path / "search.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 4
    assert page.count("default-src") == 1


def test_a_photo_that_is_gone_and_a_name_with_markup(file, tmp_path, shell):
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.full((8, 8, 3), 90, np.uint8)
    for name in ("<script>alert(1)<.png", "caf\udce9.png"):
        (folder / name).write_bytes(tf.io.encode_png(pixels).numpy())
    query = tmp_path / "query.png"
    query.write_bytes(tf.io.encode_png(pixels).numpy())
    index, page = tmp_path / "some.npz", tmp_path / "page.html"
    code, _, err = shell("embed", folder, "--model", file, "--output", index)
    assert code == 0, err
    (folder / "caf\udce9.png").unlink()
    code, _, err = shell("search", index, query, "--output", page)
    assert code == 0, err
    text = page.read_text("utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;.png" in text
    assert text.count("The file no longer exists.") == 1


@pytest.mark.parametrize(
    ("change", "differs"), [({"seed": 1}, "weights"), ({"num_heads": 4}, "config")]
)
def test_a_different_model_is_refused(
    change, differs, embedded, photos, tmp_path, shell
):
    save(tmp_path / "other.keras", **change)
    code, out, err = shell(
        *("search", embedded, photos / "dark" / "0.png", "--output", tmp_path / "page"),
        *("--model", tmp_path / "other.keras"),
    )
    assert code == 1
    assert f"a model with different {differs}" in err
    assert not (tmp_path / "page").exists()
    assert out == ""


def test_options_that_choose_no_model_keep_the_embeddings_model(
    embedded, photos, tmp_path, shell
):
    code, _, err = shell(
        *("search", embedded, photos / "dark" / "0.png", "--license-allow", "mit"),
        *("--output", tmp_path / "page.html"),
    )
    assert code == 1
    assert "tiny.keras" in err  # Its license is not known.


def test_an_output_that_cannot_be_written_is_refused_first(
    file, photos, tmp_path, shell, monkeypatch
):
    monkeypatch.setattr(embedding, "read_image", None)
    for output in (tmp_path / "folder.npz", tmp_path / "file" / "e.npz"):
        if output.parent == tmp_path:
            output.mkdir()
        else:
            output.parent.write_text("")
        code, _, err = shell("embed", photos, "--model", file, "--output", output)
        assert code == 1
        assert f"Cannot write {output}: " in err


def test_interrupted_or_without_images_it_writes_nothing(
    file, photos, tmp_path, shell, monkeypatch
):
    output = tmp_path / "some.npz"
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.jpg").write_bytes(b"no photo")
    for folder, law in (
        (tmp_path / "none", "1 file in .*, none of them readable"),
        (tmp_path / "missing", "Expected a folder of images"),
        (photos / "dark" / "0.png", "Expected a folder of images"),
    ):
        code, _, err = shell("embed", folder, "--model", file, "--output", output)
        assert code == 1
        assert re.search(law, err)
    code, _, err = shell("embed", photos, "--model", file, "--output", "some.npy")
    assert "suffix .npz" in err
    monkeypatch.setattr(
        np, "savez", lambda stream, **_: stream.write(b"a part") and 1 / 0
    )
    code, _, err = shell("embed", photos, "--model", file, "--output", output)
    assert code == 70
    assert "unexpected ZeroDivisionError" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["none"]


def test_a_model_without_a_class_token(photos, tmp_path, shell):
    save(tmp_path / "gap.keras", classifier="gap")
    words = ("embed", photos, "--model", tmp_path / "gap.keras")
    code, _, err = shell(*words, "--token", "cls", "--output", tmp_path / "some.npz")
    assert code == 1
    assert "--token mean for a model without a class token" in err
    code, _, err = shell(*words, "--output", tmp_path / "some.npz")
    assert code == 0, err
    about = json.loads(str(np.load(tmp_path / "some.npz")["about"]))
    assert about["model"]["token"] == "mean"


def test_files_that_are_no_embeddings(embedded, photos, tmp_path, shell):
    query = photos / "dark" / "0.png"
    arrays = dict(np.load(embedded))
    bad = {
        "text.npz": b"no zip",
        "cut.npz": embedded.read_bytes()[:-200],
        "empty.npz": b"",
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    nan = arrays["embeddings"] * np.nan
    for name, changes in (
        ("short.npz", {"embeddings": arrays["embeddings"][1:]}),
        ("nan.npz", {"embeddings": nan}),
        ("words.npz", {"about": np.array("[]")}),
        ("pickled.npz", {"paths": np.array([{}] * 6)}),
    ):
        np.savez(tmp_path / name, **arrays | changes)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for path in [*sorted(tmp_path.glob("*.npz")), tmp_path, tmp_path / "missing"]:
        code, out, err = shell("search", path, query, "--output", tmp_path / "page")
        assert (code, out) == (1, ""), path
        assert "Expected embeddings written by `keras-vit embed`" in err, path
        assert "Traceback" not in err
    code, _, err = shell("search", embedded, tmp_path / "none.jpg")
    assert "Expected an image" in err


def test_a_bit_and_a_hybrid_have_means():
    from tests.models.families import build

    images = np.zeros((1, 32, 48, 3), "float32")
    for name, width in (("bit", 256), ("hybrid", 24)):
        model = build(name)
        embedder, _ = retrieval.embedder(model, "mean")
        maps = keras_vit.feature_maps(model)(images)
        last = maps["stage_2" if name == "bit" else "block_2"].numpy()
        found = embedder(images).numpy()
        assert found.shape == (1, width)
        np.testing.assert_allclose(found, last.mean((1, 2)), atol=1e-4)
