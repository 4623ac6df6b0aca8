"""Every file operation of every writer fails once, in turn: the old state or the new.

`pytest -s tests/test_faults.py` prints the table: writer, operation, faults, outcomes.
Operations of Python are made to fail. Writes inside libraries of C (TFRecords,
safetensors) are not: there the files' names, folders and flushes are.
"""

import builtins
import collections
import errno
import io
import json
import os
import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import files, manifest
from keras_vit.data import sources
from keras_vit.data.packing import pack
from keras_vit.evaluation import cards
from keras_vit.inspection import page
from keras_vit.training import certificate, fitting, resume, runs
from keras_vit.training.distribution import Workers
from keras_vit.weights import download, hashes, mirrors
from keras_vit.weights.keras_files import load_model

pytestmark = [
    pytest.mark.tensorflow_only,
    # Of an archive that could not be closed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ERRORS = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.EACCES)
OPERATIONS = ("open", "write", "short write", "fsync", "rename", "mkdir")
IN_TURN = ("checkpoint", "history, certificate", "download", "pack")
MOST = 4  # Calls of one operation that fail, spread from the first to the last.


class Raw(io.FileIO):
    """A file whose writes the injector sees."""

    injector = None
    is_full = False

    def write(self, data):
        if self.is_full:
            self.is_full = self.injector.number != errno.EINTR  # Which is tried again.
            raise OSError(self.injector.number, os.strerror(self.injector.number))
        self.injector.call("write")
        if self.injector.hits("short write"):
            self.is_full = True
            return super().write(memoryview(data).cast("B")[: len(data) // 2])
        return super().write(data)


class Injector:
    """Counts file operations below a folder, or lets the `place`th of a kind fail."""

    def __init__(self, folder, operation=None, place=0, number=0):
        self.folder = str(folder)
        self.operation, self.place, self.number = operation, place, number
        self.counts = collections.Counter()

    def hits(self, operation):
        self.counts[operation] += 1
        return (operation, self.counts[operation] - 1) == (self.operation, self.place)

    def call(self, operation):
        if self.hits(operation):
            raise OSError(self.number, os.strerror(self.number))

    def is_below(self, path):
        return isinstance(path, str | os.PathLike) and str(path).startswith(self.folder)

    def seen(self, operation, original):
        def instead(path, *arguments, **options):
            if isinstance(path, int) or self.is_below(path):
                self.call(operation)
            return original(path, *arguments, **options)

        return instead

    def opened(self, original):
        def instead(path, mode="r", buffering=-1, encoding=None, *rest, **options):
            if not self.is_below(path) or not set(mode) & set("wax+"):
                return original(path, mode, buffering, encoding, *rest, **options)
            self.call("open")
            raw = Raw(path, mode.replace("b", "").replace("t", ""))
            raw.injector = self
            kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
            buffered = kind(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding)

        return instead

    def installed(self, patch):
        opened = self.opened(builtins.open)
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        for name, operation in {
            "open": "open",
            "fsync": "fsync",
            "rename": "rename",
            "replace": "rename",
            "mkdir": "mkdir",
        }.items():
            patch.setattr(os, name, self.seen(operation, getattr(os, name)))


# Writers: `write(folder, version)`, and `read(folder)`, which returns the version or
# raises if it finds a part of one.


def write_json(folder, version):
    files.write_json(folder / "new" / "x.json", {"version": version})


def read_json(folder):
    return json.loads((folder / "new/x.json").read_text())["version"]


def write_checkpoint(folder, version):
    values = {"model/00000": np.full(3, float(version))}
    resume.Checkpoints(folder / "checkpoints").save(version, values, {"rows": []})


def read_checkpoint(folder):
    saved = resume.Checkpoints(folder / "checkpoints").newest()
    assert (saved.variables["model/00000"] == saved.step).all()
    return saved.step


def write_history(folder, version):
    keeper = resume.CheckpointCallback(2, 1, [], Workers(None), folder=folder)
    keeper.certificate = certificate.Certificate({}, 8)
    for step in range(version + 1):
        keeper.rows.append({"step": step, "loss": 1.5})
        keeper.certificate.add(step, {}, {"loss": 1.5})
    keeper._write_lines()


def read_history(folder):
    lines = (folder / runs.HISTORY).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    links = certificate.read(folder)
    assert len(links) <= len(rows)  # The next evaluation writes both again.
    return len(links) - 1


def write_model(folder, version):
    numbers = keras.Input((2,))
    model = keras.Model(numbers, keras.layers.Dense(2)(numbers))
    model.set_weights([np.full((2, 2), version), np.full(2, version)])
    fitting.save_model(model, folder / "model.keras")


def read_model(folder):
    kernel, bias = load_model(folder / "model.keras").get_weights()
    assert len({*kernel.ravel(), *bias}) == 1
    return int(bias[0])


def write_export(folder, version):
    with files.replacing_folder(folder / "model/1", overwrite=True) as temporary:
        (temporary / "variables").mkdir()
        (temporary / "variables/data").write_text(str(version))
        (temporary / "saved_model.pb").write_text(str(version))
        manifest.write(temporary)


def read_export(folder):
    assert manifest.verify(folder / "model/1").whole
    return int((folder / "model/1/saved_model.pb").read_text())


def write_files(folder, version):
    paths = [folder / name for name in ("m.onnx", "m.labels.txt", "m.facts.json")]
    with files.replacing_all(paths) as temporaries:
        for temporary in temporaries:
            temporary.write_text(str(version))


def read_files(folder):
    (version,) = {path.read_text() for path in folder.iterdir()}
    return int(version)


def write_download(folder, version):
    if version:  # A file that is there is kept: before, there is none.
        part = folder / "x.npz.part"
        part.write_bytes(b"downloaded")
        entry = hashes.Entry(sha256=files.file_sha256(part), size=part.stat().st_size)
        url = "http://localhost/x.npz"
        download._publish(mirrors.Part(part), folder / "x.npz", url, entry)


def read_download(folder):
    path = folder / "x.npz"
    if path.exists():
        assert hashes.recorded(path) == files.file_sha256(path)
    return int(path.exists())


def write_pack(folder, version):
    photos = folder.with_name("photos")
    if not photos.exists():
        for place in range(4):
            image = tf.io.encode_png(tf.fill((4, 4, 3), tf.cast(place, tf.uint8)))
            path = photos / f"train/{place % 2}/{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image.numpy())
    if version:
        pack(sources.open_source(str(photos)), folder / "packed", shards=1)


def read_pack(folder):
    if not (folder / "packed").exists():
        return 0
    return int(len(sources.open_source(str(folder / "packed")).train) > 0)


def write_card(folder, version):
    def draw(path):
        path.write_text(str(version))

    made = object.__new__(cards.Card)
    made.__dict__["images"] = type("Images", (), {})()
    made.images.version = np.array(version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards.Card, "_pictures", lambda self: {"confusion": draw})
        facts = {"version": version}
        patch.setattr(cards.Card, "as_dict", lambda self: dict(facts))
        patch.setattr(cards.card_pages, "markdown", lambda *_: str(version))
        patch.setattr(cards.card_pages, "html", lambda *_: str(version))
        made.write(folder / "card")


def read_card(folder):
    folder = folder / "card"
    facts = json.loads((folder / "card.json").read_text())
    assert files.file_sha256(folder / "images.npz") == facts["images"]["sha256"]
    for name in ("card.md", "card.html", "confusion.png"):
        assert (folder / name).read_text() == str(facts["version"])
    return facts["version"]


def write_page(folder, version):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.page_render, "html", lambda _: f"<p>{version}</p>")
        page.Page.write(None, folder / "page.html")


def read_page(folder):
    return int((folder / "page.html").read_text()[3:-4])


CONFIG = keras_vit.ViTConfig(
    patch_size=4, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1
)
_models = {}


def write_weights(folder, version):
    if version not in _models:
        model = keras_vit.vit(CONFIG, image_size=(8, 8), num_classes=2 + version)
        _models[version] = model
    keras_vit.weights.save(_models[version], folder / "hf", format="hf")


def read_weights(folder):
    from safetensors.numpy import load_file

    classes = len(json.loads((folder / "hf/config.json").read_text())["id2label"])
    tensors = load_file(folder / "hf/model.safetensors")
    assert len(tensors["classifier.bias"]) == classes
    return classes - 2


WRITERS = {
    "JSON": (write_json, read_json),
    "checkpoint": (write_checkpoint, read_checkpoint),
    "history, certificate": (write_history, read_history),
    "model.keras": (write_model, read_model),
    "export, a folder": (write_export, read_export),
    "export, files": (write_files, read_files),
    "download": (write_download, read_download),
    "pack": (write_pack, read_pack),
    "card": (write_card, read_card),
    "page": (write_page, read_page),
    "convert": (write_weights, read_weights),
}


def attempt(write, folder, injector):
    """Writes version 1 with a fault; returns the error or None, and the warnings."""
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        injector.installed(patch)
        try:
            write(folder, 1)
        except OSError as error:
            return error, ours(said)
    return None, ours(said)


def ours(said):
    """The warnings without those of dependencies' deprecations."""
    return [at for at in said if at.category is UserWarning]


def check(name, folder, read, error, said, number):
    """The property; returns the version that is there."""
    left = [path.name for path in folder.rglob(".*") if path.name != ".lock"]
    assert all(any(one in str(at.message) for at in said) for one in left)
    version = read(folder)
    assert version in (0, 1)
    if error is None:
        assert version == 1, "no error, and not written"
        return version
    text = str(error)
    if name != "download":
        assert os.strerror(number) in text
    if files.NOTHING in text and "To resume" not in text:
        assert version == 0
    # A writer of several files in turn may have written the first ones.
    if files.WRITTEN in text and name not in IN_TURN:
        assert version == 1
    return version


def places(count):
    """At most `MOST` of so many calls, the first and the last among them."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MOST))})


@pytest.mark.parametrize("name", WRITERS)
def test_every_operation_fails_in_turn(name, tmp_path):
    write, read = WRITERS[name]
    old = tmp_path / "old"
    old.mkdir()
    write(old, 0)
    counting = tmp_path / "counting"
    shutil.copytree(old, counting)
    counter = Injector(counting)
    assert attempt(write, counting, counter) == (None, [])
    assert read(counting) == 1
    print()
    slow = name in ("model.keras", "pack")
    for operation in OPERATIONS:
        outcomes = collections.Counter()
        for place in places(counter.counts[operation]):
            for number in ERRORS[place % 4 :][:1] if slow else ERRORS:
                folder = tmp_path / "there"
                shutil.copytree(old, folder)
                injector = Injector(folder, operation, place, number)
                error, said = attempt(write, folder, injector)
                version = check(name, folder, read, error, said, number)
                if error is not None:  # Without the fault, the same call is enough.
                    write(folder, 1)
                    assert read(folder) == 1
                outcomes["error" if error else "no error", version] += 1
                shutil.rmtree(folder)
        told = ", ".join(
            f"{count} {said}: {('old', 'new')[version]}"
            for (said, version), count in sorted(outcomes.items())
        )
        calls = counter.counts[operation]
        print(f"{name:22} {operation:12} {calls:3} calls  {told}")
