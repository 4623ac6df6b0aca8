"""Packed folders: what comes out is what went in, whatever happens in between."""

import collections
import errno
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import packing, pipelines, sources, splits
from keras_vit.data.sources import open_source
from keras_vit.files import file_sha256

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """train and test of two classes, 17 and 5 PNGs and JPEGs."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part, count in (("train", 17), ("test", 5)):
        for i in range(count):
            file = root / part / ("cat", "dog")[i % 2] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (20 + i, 24, 3), np.uint8)
            encode = tf.io.encode_png if i % 3 else tf.io.encode_jpeg
            file.write_bytes(encode(pixels).numpy())
    return root


@pytest.fixture
def packed(photos, tmp_path):
    return packing.pack(open_source(photos), tmp_path / "packed", shards=3)


@pytest.fixture(params=["kept", "read at every step"])
def storage(request, monkeypatch):
    if request.param != "kept":
        monkeypatch.setattr(splits, "CACHE_BYTES", 0)


def _items(split):
    return [
        (item["image"], int(item["label"]))
        for item in split.dataset().as_numpy_iterator()
    ]


@pytest.mark.usefixtures("storage")
def test_round_trip(photos, packed):
    before, after = open_source(photos), open_source(packed)
    assert after.classes == before.classes
    assert _items(after.train) == _items(before.train)
    assert _items(after.test) == _items(before.test)
    options = {"image_size": (8, 8), "batch_size": 5, "seed": 1}
    for one, other in zip(
        pipelines.train_pipeline(before.train, **options).take(8),
        pipelines.train_pipeline(after.train, **options).take(8),
        strict=True,
    ):
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.usefixtures("storage")
def test_packed_splits_are_divided(packed):
    rest, held_out = open_source(packed).train.split(0.25, seed=0)
    both = _items(rest) + _items(held_out)
    assert sorted(both) == sorted(_items(open_source(packed).train))
    assert len({s.fingerprint() for s in (rest, held_out)}) == 2


@pytest.mark.usefixtures("storage")
def test_subset_of_shards(packed):
    source = open_source(packed)
    smaller, larger = (source.subset(images).train for images in (5, 9))
    assert len(_items(smaller)) == 5
    assert set(_items(smaller)) < set(_items(larger)) < set(_items(source.train))


def test_shards_are_ordinary_tfrecords(packed):
    """TensorFlow's own reader, with its own CRCs, sees the same examples."""
    files = sorted(map(str, packed.glob("train-*.tfrecord")))
    assert [os.path.basename(file) for file in files] == [
        f"train-{i:05}-of-00003.tfrecord" for i in range(3)
    ]
    assert len(list(packed.glob("test-*.tfrecord"))) == 1
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = [
        tf.io.parse_single_example(example, features)
        for example in tf.data.TFRecordDataset(files)
    ]
    assert [(x["image"].numpy(), int(x["label"])) for x in found] == _items(
        open_source(packed).train
    )


def test_index_holds_what_is_there(photos, packed):
    index = json.loads((packed / "index.json").read_text())
    assert index["source"]["fingerprint"] == open_source(photos).fingerprint()
    for facts in index["splits"].values():
        for shard in facts["shards"]:
            content = (packed / shard["file"]).read_bytes()
            assert len(content) == shard["bytes"]
            assert hashlib.sha256(content).hexdigest() == shard["sha256"]


def test_packing_again_gives_the_same_files_and_fingerprint(photos, packed, tmp_path):
    again = packing.pack(open_source(photos), tmp_path / "again", shards=3)
    for file in packed.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()
    assert open_source(again).fingerprint() == open_source(packed).fingerprint()


def test_training_images_alone(photos, tmp_path):
    source = open_source(photos)
    assert open_source(packing.pack(source, tmp_path / "x", split="train")).test is None


# What goes wrong while packing.


def test_a_folder_that_is_there_is_left_alone(photos, packed):
    with pytest.raises(ValueError, match="Expected a folder that does not exist"):
        packing.pack(open_source(photos), packed)


@pytest.mark.parametrize("shards", [0, 18])
def test_number_of_shards_is_checked(photos, tmp_path, shards):
    with pytest.raises(ValueError, match=f"from 1 to 17 .*Received: shards={shards}"):
        packing.pack(open_source(photos), tmp_path / "x", shards=shards)


def test_arrays_are_not_packed(tmp_path):
    arrays = splits.Arrays(np.zeros((4, 8, 8, 3), np.uint8), np.arange(4))
    source = sources.Source("arrays", tuple("abcd"), arrays, None)
    with pytest.raises(ValueError, match="Expected encoded images to pack"):
        packing.pack(source, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_of_something_else_is_not_worked_in(photos, tmp_path):
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="which contains other files"):
        packing.pack(open_source(photos), tmp_path / "x")
    assert (tmp_path / "x.partial" / "thesis.tex").exists()


SLOW = """
import sys, time
from keras_vit.data import packing, sources
example = packing._example
def slow(*args):
    time.sleep(0.05)
    return example(*args)
packing._example = slow
packing.pack(sources.open_source(sys.argv[1]), sys.argv[2], shards=6)
"""


def test_a_killed_pack_leaves_nothing_half_and_goes_on(photos, packed, tmp_path):
    output = tmp_path / "killed"
    partial = tmp_path / "killed.partial"
    process = subprocess.Popen([sys.executable, "-c", SLOW, photos, output])
    deadline = time.monotonic() + 60
    while len(list(partial.glob("train-*"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    whole = {file: file.stat().st_mtime_ns for file in partial.glob("train-*")}
    assert 2 <= len(whole) < 6
    packing.pack(open_source(photos), output, shards=6)
    assert not partial.exists()
    assert not list(output.glob(".*"))
    assert not (output / "plan.json").exists()
    for file, time_of_change in whole.items():  # They were not written again.
        assert (output / file.name).stat().st_mtime_ns == time_of_change
    assert _items(open_source(output).train) == _items(open_source(packed).train)


def test_an_interrupted_pack_of_another_source_begins_anew(photos, tmp_path):
    partial = tmp_path / "x.partial"
    partial.mkdir()
    (partial / "plan.json").write_text("{}")
    (partial / "train-00000-of-00001.tfrecord").write_bytes(b"of something else")
    output = packing.pack(open_source(photos), tmp_path / "x")
    assert len(_items(open_source(output).train)) == 17


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"[" * 10**5])
def test_a_damaged_plan_is_named(photos, tmp_path, damage):
    partial = tmp_path / "packed.partial"
    partial.mkdir()
    (partial / "plan.json").write_bytes(damage)
    with pytest.raises(ValueError, match=r"plan\.json.* is damaged .*Delete .*partial"):
        packing.pack(open_source(photos), tmp_path / "packed")
    assert (partial / "plan.json").read_bytes() == damage


def test_a_full_disk_is_one_error(photos, tmp_path):
    """A limit on files' sizes stands for the full disk."""
    source = open_source(photos)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"Cannot write .*x\.partial.*To resume, run"):
            packing.pack(source, tmp_path / "x", shards=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "x").exists()
    assert len(_items(open_source(packing.pack(source, tmp_path / "x")).train)) == 17


def test_no_space_left_is_told(photos, tmp_path, monkeypatch):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(packing, "_example", full)
    with pytest.raises(OSError, match="Free some space") as error:
        packing.pack(open_source(photos), tmp_path / "x")
    assert error.value.errno == errno.ENOSPC


@pytest.fixture
def copy(photos, tmp_path):
    return shutil.copytree(photos, tmp_path / "copy")


def test_a_source_that_changes_meanwhile_is_refused(copy, tmp_path, monkeypatch):
    source = open_source(copy)
    example = packing._example

    def changing(image, label):
        (copy / "train/cat/0.jpg").write_bytes(b"another")
        return example(image, label)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_example", changing)
        with pytest.raises(ValueError, match=r"copy', which has changed\. Pack it"):
            packing.pack(source, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    (copy / "train/cat/0.jpg").write_bytes((copy / "train/cat/2.jpg").read_bytes())
    again = open_source(packing.pack(open_source(copy), tmp_path / "x"))
    assert _items(again.train) == _items(open_source(copy).train)  # Nothing is old.


def test_a_source_that_cannot_be_read_is_an_error(copy, tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "CACHE_BYTES", 0)
    source = open_source(copy)
    read = tf.io.read_file
    monkeypatch.setattr(tf.io, "read_file", lambda name: read(name + ".gone"))
    with pytest.raises(ValueError, match=r"from beginning to end.*\.jpg\.gone"):
        packing.pack(source, tmp_path / "x")


# What goes wrong with what was packed.


def _damage(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.usefixtures("storage")
def test_a_damaged_image_stops_and_names_its_shard(packed):
    shard = packed / "train-00001-of-00003.tfrecord"
    _damage(shard, 700)
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(
        errors, match=r"00001-of-00003\.tfrecord', missing or damaged at"
    ):
        _items(open_source(packed).train)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damage_is_skipped_named_and_counted(packed, damage):
    before = open_source(packed)
    shard = packed / "train-00001-of-00003.tfrecord"
    if damage == "flip":
        _damage(shard, 700)
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-100])
    else:
        shard.unlink()
    count = len(before.train.records[before.train.records["shard"] == 1])
    left_out = count if damage == "delete" else 1
    if damage != "flip":
        message = r"Received: 1 of 3 missing, truncated or changed: train-00001"
        with pytest.raises(ValueError, match=message):
            open_source(packed)
    message = rf"^left out {left_out} damaged images?: {left_out} of .*train-00001"
    with pytest.warns(UserWarning, match=message):
        source = open_source(packed, on_corrupt="skip")
    assert source.left_out == left_out
    assert len(source.train) == 17 - left_out
    assert len(_items(source.train)) == 17 - left_out
    assert len(source.test) == 5
    assert source.fingerprint() != before.fingerprint()


@pytest.mark.filterwarnings("ignore:left out 17 damaged")
def test_nothing_left_is_an_error(packed):
    for shard in packed.glob("train-*"):
        shard.unlink()
    with pytest.raises(ValueError, match="Received: none in"):
        open_source(packed, on_corrupt="skip")


@pytest.mark.parametrize("content", ["", "[]", '{"format": "of the future"}'])
def test_a_damaged_index_is_an_error(packed, content):
    (packed / "index.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"damaged or of a different version\. Pack it"
    ):
        open_source(packed)


def test_damaged_records_are_an_error(packed):
    _damage(packed / "train.npy", 200)
    with pytest.raises(ValueError, match=r"train\.npy', missing or damaged"):
        open_source(packed)


def _anonymous():
    """Bytes of this process in memory that are of no file."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status).group(1))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_large_index_stays_on_disk(packed):
    """Of 4 million records, 96 MB, as often the same 17 images."""
    once = np.load(packed / "train.npy")
    long = np.lib.format.open_memmap(
        packed / "train.npy", "w+", once.dtype, (4_000_000,)
    )
    long[:] = np.resize(once, len(long))
    long.flush()
    index = json.loads((packed / "index.json").read_text())
    index["splits"]["train"]["sha256"] = file_sha256(packed / "train.npy")
    (packed / "index.json").write_text(json.dumps(index))
    before = _anonymous()
    train = open_source(packed).train
    batches = pipelines.train_pipeline(
        train, image_size=(8, 8), batch_size=16, seed=0, start_step=600_000
    )
    _, labels = next(iter(batches))
    # TensorFlow's pipeline itself takes 18 MB; the labels would be 32, as int64.
    assert _anonymous() - before < 36e6
    assert labels.dtype == tf.int64
    assert train.labels[:34].tolist() == 2 * once["label"].tolist()


def test_a_shard_that_goes_under_the_run_is_named(packed, monkeypatch):
    monkeypatch.setattr(splits, "CACHE_BYTES", 0)
    batches = iter(
        pipelines.train_pipeline(
            open_source(packed).train, image_size=(4, 4), batch_size=17, seed=0
        )
    )
    next(batches)
    (packed / "train-00002-of-00003.tfrecord").unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"00002-of-00003\.tfrec"):
        collections.deque(batches, maxlen=0)


# From a shell.


def test_pack_from_a_shell(shell, photos, tmp_path):
    output = tmp_path / "packed"
    code, out, err = shell("data", "pack", photos, output, "--shards", 2)
    assert (code, err) == (0, "")
    assert "17 training and 5 test images of 2 classes, 3 shards, 0 MiB" in out
    assert len(open_source(output).train) == 17
    code, _, err = shell("data", "pack", photos, output)
    assert code == 1
    assert err.startswith("keras-vit: Expected a folder that does not exist.")


def test_a_pack_that_is_no_source_is_an_error(shell, tmp_path):
    code, _, err = shell("data", "pack", tmp_path / "nosuch.npz", tmp_path / "x")
    assert code == 1
    assert "Check the spelling" in err
