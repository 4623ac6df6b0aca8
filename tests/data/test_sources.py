"""Sources: every kind opens, and every bad one is one clear error."""

import functools
import http.server
import os
import shutil
import struct
import threading
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.cli import loaders
from keras_vit.data import pipelines, progress, sources, splits
from keras_vit.data.sources import open_source
from keras_vit.data.splits import Arrays

pytestmark = pytest.mark.tensorflow_only


def _jpeg(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(value).integers(0, 256, (20, 24, 3), np.uint8)
    path.write_bytes(tf.io.encode_jpeg(image).numpy())
    return path


@pytest.fixture
def flat(tmp_path):
    """CLASS/*.jpg: ten cats and five dogs."""
    for name, count in (("cat", 10), ("dog", 5)):
        for i in range(count):
            _jpeg(tmp_path / "pets" / name / f"{i}.jpg", i)
    return tmp_path / "pets"


@pytest.fixture
def parted(tmp_path):
    """train/CLASS/*.jpg and test/CLASS/*.jpg; there is no test image of a cat."""
    for name in ("cat", "dog", "eel"):
        _jpeg(tmp_path / "pets" / "train" / name / "0.jpg")
        if name != "cat":
            _jpeg(tmp_path / "pets" / "test" / name / "0.PNG")
    return tmp_path / "pets"


def _labels(split, **kwargs):
    return [int(item["label"]) for item in split.dataset(**kwargs)]


# Folders.


def test_without_labels_a_folder_needs_no_classes(flat, tmp_path):
    """Every image below it: beside class folders too."""
    for i in range(5):
        _jpeg(flat / f"{i}.jpg", i)
    source = open_source(flat, labels=False)
    assert source.classes == (".",)
    assert (len(source.train), len(source.test)) == (16, 4)
    assert set(_labels(source.train)) == {0}
    alone = _jpeg(tmp_path / "alone" / "0.jpg").parent
    with pytest.raises(ValueError, match="at least 2 class folders"):
        open_source(alone)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="Expected images"):
        open_source(tmp_path / "empty", labels=False)


def test_without_labels_train_and_test_stay_apart(parted):
    _jpeg(parted / "train" / "deep" / "er" / "0.jpg")
    source = open_source(parted, labels=False)
    assert (len(source.train), len(source.test)) == (4, 2)


def test_without_labels_a_folder_test_is_one_of_the_others(tmp_path):
    for name in ("a", "test"):
        for i in range(5):
            _jpeg(tmp_path / "pets" / name / "deeper" / f"{i}.jpg", i)
    source = open_source(tmp_path / "pets", labels=False)
    assert (len(source.train), len(source.test)) == (8, 2)


@pytest.mark.parametrize("name", ["images", "x_train"])
def test_without_labels_an_npz_needs_none(name, tmp_path):
    images = np.zeros((10, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "set.npz", **{name: images})
    source = open_source(tmp_path / "set.npz", labels=False)
    assert (len(source.train), len(source.test)) == (8, 2)
    with pytest.raises(ValueError, match="Expected x_train and y_train"):
        open_source(tmp_path / "set.npz")


def test_folder_of_classes_is_divided_by_class(flat):
    source = open_source(flat)
    assert source.classes == ("cat", "dog")
    assert _labels(source.train) == [0] * 8 + [1] * 4
    assert _labels(source.test) == [0] * 2 + [1]
    both = {*source.train.images, *source.test.images}
    assert len(both) == 15
    assert list(open_source(flat).test.images) == list(source.test.images)
    others = [open_source(flat, seed=seed).test.images for seed in range(1, 5)]
    assert any(list(other) != list(source.test.images) for other in others)


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_folder_of_train_and_test(parted, name):
    (parted / "test").rename(parted / name)
    source = open_source(str(parted))
    assert source.classes == ("cat", "dog", "eel")
    assert _labels(source.train) == [0, 1, 2]
    assert _labels(source.test) == [1, 2]


def test_folder_without_test_images(parted):
    (parted / "test").rename(parted.parent / "elsewhere")
    assert open_source(parted).test is None


def test_examples_are_the_files_bytes(flat):
    split = open_source(flat).test
    for item, file in zip(split.dataset(), split.images, strict=True):
        assert item["image"].numpy() == tf.io.read_file(file).numpy()
        assert item["label"].dtype == tf.int64


def test_hidden_files_are_ignored_and_others_counted(flat):
    (flat / "cat" / ".DS_Store").write_bytes(b"x")
    _jpeg(flat / "cat" / ".ipynb_checkpoints" / "0.jpg")
    _jpeg(flat / ".git" / "0.jpg")
    assert len(open_source(flat).train) == 12
    (flat / "cat" / "notes.txt").write_text("x")
    with pytest.warns(UserWarning, match=r"^left out 1 file of .*; .*notes\.txt"):
        assert len(open_source(flat).train) == 12


def test_images_outside_of_class_folders_are_counted(flat, tmp_path):
    for name in ("0.jpg", "1.JPG", "._0.jpg"):
        shutil.copy(flat / "cat" / "0.jpg", flat / name)
    with pytest.warns(UserWarning, match=r"^left out 2 images of .*; .*0\.jpg"):
        assert len(open_source(flat).train) == 12
    assert len(open_source(flat, labels=False).train) > 12


@pytest.fixture
def spoilt(flat):
    """A truncated JPEG, an empty file and a web page among the images."""
    whole = _jpeg(flat / "cat" / "cut.jpg").read_bytes()
    (flat / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (flat / "cat" / "empty.jpg").write_bytes(b"")
    (flat / "dog" / "page.jpg").write_text("<!DOCTYPE html><html>404</html>")
    (flat / "dog" / "gone.jpg").symlink_to(flat / "nowhere.jpg")
    return flat


def test_unreadable_images_stop(spoilt):
    message = r"(?s)Expected readable images\. Received: 4 of 19 files .*cut\.jpg"
    with pytest.raises(ValueError, match=message) as error:
        open_source(spoilt)
    for word in ("empty.jpg", "page.jpg", "gone.jpg", "--on-corrupt skip"):
        assert word in str(error.value)


def test_unreadable_images_are_skipped_by_name(spoilt):
    with pytest.warns(UserWarning, match=r"^left out 4 unreadable images") as caught:
        source = open_source(spoilt, on_corrupt="skip")
    assert len(caught) == 1
    for word in ("cut.jpg", "empty.jpg", "page.jpg", "gone.jpg"):
        assert word in str(caught[0].message)
    assert len(source.train) + len(source.test) == 15
    assert source.left_out == 4
    batches = pipelines.train_pipeline(
        source.train, image_size=(4, 4), batch_size=len(source.train), seed=0
    )
    for _, labels in batches.take(2):  # Training never meets the others.
        np.testing.assert_array_equal(np.sort(labels), np.sort(source.train.labels))


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("checked", range(1, 6))
def test_images_are_checked_in_parts(flat, monkeypatch, checked):
    monkeypatch.setattr(progress, "AT_ONCE", checked)
    files = sorted(str(file) for file in (flat / "dog").iterdir())
    for bad in (files[0], files[3]):
        Path(bad).write_bytes(b"")
    for end in range(1, len(files) + 1):
        given, labels = files[:end] + files[1:2], np.arange(end + 1)
        kept = sources.check_images(given, labels, (), "skip")
        expected = [at for at, file in enumerate(given) if Path(file).stat().st_size]
        assert kept[0].tolist() == [given[at] for at in expected]
        assert kept[1].tolist() == expected


def test_ten_unreadable_images_are_named(flat):
    for i in range(12):
        (flat / "dog" / f"bad{i:02}.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="12 of 27 files") as error:
        open_source(flat)
    assert str(error.value).count("bad") == 10


@pytest.mark.filterwarnings("ignore:left out 5 unreadable")
def test_a_class_of_unreadable_images_is_an_error(flat):
    for file in (flat / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"class 'dog' with 5 files, none"):
        open_source(flat, on_corrupt="skip")


@pytest.fixture
def linked(flat, tmp_path):
    """Links to three and two more images, to a folder twice, and in circles."""
    for name, count in (("store", 3), ("store/deep", 2)):
        for i in range(count):
            _jpeg(tmp_path / name / f"{i}.jpg", 100 + i)
    for link, target in {
        flat / "dog" / "again": tmp_path / "store" / "deep",
        flat / "dog" / "a": tmp_path / "store",
        flat / "dog" / "up": flat,
        flat / "dog" / ".hidden": flat / "cat",
        tmp_path / "store" / "deep" / "round": tmp_path / "store",
        flat / "dog" / "gone": tmp_path / "nowhere",
    }.items():
        link.symlink_to(target, target_is_directory=True)
    return flat


@pytest.mark.filterwarnings("ignore:left out 1 file of")  # dog/gone
def test_images_in_linked_folders_are_read_once(linked):
    dogs = [*range(5), *(f"a/{i}" for i in range(3)), *(f"a/deep/{i}" for i in (0, 1))]
    expected = sorted(linked / "dog" / f"{name}.jpg" for name in dogs)
    assert sources.image_files(linked / "dog") == expected
    assert loaders.image_files(linked / "dog") != expected  # Hidden ones, too.
    (linked / "dog" / ".hidden").unlink()
    assert loaders.image_files(linked / "dog") == expected
    assert sources.image_files(linked)[10:] == expected
    source = open_source(linked)
    assert np.bincount(source.train.labels).tolist() == [8, 8]
    assert np.bincount(source.test.labels).tolist() == [2, 2]
    everything = open_source(linked, labels=False)
    assert len(everything.train) + len(everything.test) == 20


def test_a_folder_has_its_own_path_rather_than_that_of_a_link(flat):
    """Fingerprints contain the paths."""
    before = sources.image_files(flat)
    (flat / "a").symlink_to(flat / "dog", target_is_directory=True)
    (flat / "cat" / "a").symlink_to(flat / "dog", target_is_directory=True)
    assert sources.image_files(flat) == before


def test_a_linked_class_is_a_class_without_labels_too(flat, tmp_path):
    (flat / "cat").rename(tmp_path / "cats")
    (flat / "cat").symlink_to(tmp_path / "cats", target_is_directory=True)
    assert len(sources.image_files(flat)) == 15
    source = open_source(flat, labels=False)
    assert len(source.train) + len(source.test) == 15


def test_a_folder_that_is_linked_into_two_classes_is_an_error(flat):
    (flat / "cat" / "more").symlink_to(flat / "dog", target_is_directory=True)
    with pytest.raises(ValueError, match=r"'dog' and 'cat' in .* share one folder"):
        open_source(flat)


@pytest.mark.parametrize("labels", [True, False])
def test_training_images_that_are_linked_below_a_test_class_are_an_error(
    parted, labels
):
    link = parted / "test" / "dog" / "more"
    link.symlink_to(parted / "train" / "dog", target_is_directory=True)
    with pytest.raises(ValueError, match=r"test/dog/more', which is '.*train/dog'"):
        open_source(parted, labels=labels)


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_named_and_not_waited_for(linked, flat, tmp_path):
    pipe = tmp_path / "pipe" if linked else flat / "cat" / "pipe.jpg"
    os.mkfifo(pipe)
    if linked:
        (flat / "cat" / "pipe.jpg").symlink_to(pipe)
    with pytest.raises(ValueError, match=r"regular files.*pipe\.jpg, a named pipe"):
        open_source(flat)


def test_two_classes_of_one_folder_are_an_error(flat):
    (flat / "kitten").symlink_to(flat / "cat", target_is_directory=True)
    with pytest.raises(ValueError, match=r"'kitten' and 'cat' in .* one folder"):
        open_source(flat)


@pytest.mark.parametrize(
    ("link", "target"),
    [("test", "train"), ("test/dog", "../train/dog"), ("test/eel", "../train/dog")],
)
def test_test_images_that_are_training_images_are_an_error(parted, link, target):
    """The accuracy would be that on training images."""
    shutil.rmtree(parted / link)
    (parted / link).symlink_to(target, target_is_directory=True)
    with pytest.raises(ValueError, match=r"a symbolic link to a folder of '.*train'"):
        open_source(parted)


def test_a_class_name_that_is_not_utf8_is_named(flat):
    os.rename(os.fsencode(flat / "cat"), os.fsencode(flat) + b"/\xff")
    with pytest.raises(ValueError, match=r"in UTF-8, without.*'\\udcff'\. Rename"):
        open_source(flat)


@pytest.mark.parametrize("labels", [[0, 1, 1], [[0], [1]], 0])
def test_arrays_need_a_label_for_each_image(labels):
    with pytest.raises(ValueError, match="one label for each image"):
        Arrays(np.zeros((2, 4, 4, 3), np.uint8), labels)


@pytest.mark.parametrize("shape", [(2, 0, 4, 3), (2, 4, 0, 3), (2, 4, 4, 0)])
def test_arrays_need_pixels(shape):
    with pytest.raises(ValueError, match=r"with pixels.*Received: images \[2, "):
        Arrays(np.zeros(shape, np.uint8), [0, 1])


def test_a_file_name_that_is_not_utf8_is_named(flat):
    os.rename(
        os.fsencode(flat / "cat" / "0.jpg"),
        os.fsencode(flat / "cat") + b"/\xff\x1b.jpg",
    )
    with pytest.raises(ValueError, match=r"in UTF-8.*\\udcff\\u001b\.jpg\. Rename"):
        open_source(flat)


def test_control_characters_never_reach_the_terminal(flat):
    (flat / "cat" / "\x1b[2J.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"\\u001b\[2J\.jpg \(not a whole") as error:
        open_source(flat)
    assert "\x1b" not in str(error.value)
    (flat / "cat" / "\x1b[2J.jpg").rename(flat / "cat" / "\x1b[2J.txt")
    with pytest.warns(UserWarning, match=r"first is .*\\u001b\[2J\.txt") as caught:
        open_source(flat)
    assert "\x1b" not in str(caught[0].message)
    (flat / "cat").rename(flat / "c\nat")
    with pytest.raises(ValueError, match=r"without control characters.*'c\\nat'"):
        open_source(flat)


def test_an_image_of_height_0_is_refused(flat):
    sides = struct.pack("<IiiHHIIiiII", 40, 5, 0, 1, 24, 0, 0, 0, 0, 0, 0)
    header = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + sides
    (flat / "cat" / "flat.bmp").write_bytes(header)
    with pytest.raises(ValueError, match=r"flat\.bmp \(an image without pixels"):
        open_source(flat)


def test_empty_class_is_named(flat):
    (flat / "eel").mkdir()
    with pytest.raises(ValueError, match=r"in every class folder\. Received: '.*eel'"):
        open_source(flat)


def test_one_class_is_an_error(flat):
    (flat / "dog").rename(flat.parent / "elsewhere")
    with pytest.raises(
        ValueError, match=r"at least 2 class folders\. Received: .* with cat"
    ):
        open_source(flat)


def test_folder_of_images_alone_is_an_error(flat):
    with pytest.raises(ValueError, match=r"cat' with none\. Put the images"):
        open_source(flat / "cat")


def test_test_class_not_trained_is_named(parted):
    _jpeg(parted / "test" / "fox" / "0.jpg")
    with pytest.raises(ValueError, match=r"training classes\. Received: fox only in"):
        open_source(parted)


def test_test_without_train_is_an_error(parted):
    (parted / "train").rename(parted.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"or train and one of test, val.*with test"):
        open_source(parted)


@pytest.mark.parametrize("spec", ["./nosuch", "/no/such", "photos/", "nosuch.npz"])
def test_missing_path_is_an_error(spec):
    with pytest.raises(ValueError, match=r"Expected a folder or an \.npz that exists"):
        open_source(spec)


@pytest.mark.skipif(os.name == "nt", reason="names with quotes are not made there")
def test_folder_names_are_taken_as_they_are(tmp_path):
    for name in ("Löwenzahn", "it's 100% [x]*"):
        for i in range(2):
            _jpeg(tmp_path / name / f"{i} ?.jpg")
    source = open_source(tmp_path)
    assert source.classes == ("Löwenzahn", "it's 100% [x]*") or source.classes == (
        "it's 100% [x]*",
        "Löwenzahn",
    )
    batch, _ = next(
        iter(pipelines.eval_pipeline(source.train, image_size=(4, 4), batch_size=9))
    )
    assert len(batch) == 2


def test_on_corrupt_is_checked(flat):
    with pytest.raises(ValueError, match=r"Received: on_corrupt='ignore'"):
        open_source(flat, on_corrupt="ignore")


def test_flower_photos(real):
    source = open_source(real / "flowers12")
    assert (len(source.train), len(source.test), len(source.classes)) == (720, 240, 12)
    np.testing.assert_array_equal(np.bincount(source.train.labels), 60)
    np.testing.assert_array_equal(np.bincount(source.test.labels), 20)


# Arrays.


def _images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 6, 7, 3), np.uint8)


def _npz(path, **arrays):
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def test_npz(tmp_path):
    path = _npz(
        tmp_path,
        x_train=_images(4),
        y_train=np.array([[0], [1], [2], [1]], np.uint8),  # As Keras's CIFAR.
        x_test=_images(2, 1),
        y_test=np.array([2, 0]),
        classes=np.array(["a", "b", "c"]),
    )
    source = open_source(path)
    assert source.classes == ("a", "b", "c")
    assert _labels(source.train) == [0, 1, 2, 1]
    assert _labels(source.test) == [2, 0]
    images = np.stack([item["image"] for item in source.train.dataset()])
    np.testing.assert_array_equal(images, _images(4))


@pytest.mark.parametrize("keys", [("x_train", "y_train"), ("images", "labels")])
def test_npz_without_test_images_is_divided(tmp_path, keys):
    labels = np.arange(20) % 2
    path = _npz(tmp_path, **dict(zip(keys, (_images(20), labels), strict=True)))
    source = open_source(path)
    assert source.classes == ("0", "1")
    assert sorted(_labels(source.test)) == [0, 0, 1, 1]
    assert len(source.train) == 16


def test_gray_images_keep_one_channel(tmp_path):
    gray = _images(4)[..., 0]
    source = open_source(_npz(tmp_path, x_train=gray, y_train=np.array([0, 1, 0, 1])))
    assert source.train.images.shape[1:] == (6, 7, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 1, 2], object)}, "pickled objects are never loaded"),
        ({"y_train": np.array([0, 1])}, r"labels int64 \(2,\)"),
        ({"y_train": np.array([0.0, 1, 1])}, r"labels float64 \(3,\)"),
        ({"y_train": np.array([0, 1, -1])}, r"labels from -1 to 1\. Renumber"),
        ({"y_train": np.array([0, 1, 2]), "classes": ["a", "b"]}, "2 classes and .* 2"),
        ({"y_train": np.zeros(3, int)}, r"Expected at least two classes.*1 classes"),
        ({"y_test": np.array([5])}, "labels from 5 to 5"),
        ({"x_train": _images(3) / 255}, r"images float64 .*0\.\.255, not scaled"),
        ({"x_train": _images(0), "y_train": np.zeros(0, int)}, r"\(0, 6, 7, 3\)"),
        ({"x_train": _images(3)[:, :0]}, r"\(3, 0, 7, 3\)"),
        ({"x_test": _images(1)[..., :0]}, r"\(1, 6, 7, 0\)"),
        ({"y_train": np.array([0, 1, 2**63], np.uint64)}, f"the label {2**63}"),
        ({"x_train": None}, "Add x_train"),
        ({"y_test": None}, "Add y_test"),
    ],
)
def test_bad_npz(tmp_path, changes, message):
    arrays = {
        "x_train": _images(3),
        "y_train": np.array([0, 1, 0]),
        "x_test": _images(1),
        "y_test": np.array([1]),
    }
    given = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    path = _npz(tmp_path, **given)
    with pytest.raises(ValueError, match=message) as error:
        open_source(path)
    assert "Received: " in str(error.value)
    assert str(path) in str(error.value)


def test_npz_with_a_huge_label_is_no_lack_of_memory(tmp_path):
    file = tmp_path / "d.npz"
    images = np.zeros([4, 2, 2, 3], np.uint8)
    np.savez(file, x_train=images, y_train=np.array([0, 1, 1, 10**12]))
    with pytest.raises(ValueError, match=r"below 1048576.*the label 1000000000000"):
        open_source(file)


def test_npz_with_two_classes_of_one_name_is_an_error(tmp_path):
    file = tmp_path / "d.npz"
    images, labels = np.zeros([4, 2, 2, 3], np.uint8), np.array([0, 1, 1, 0])
    np.savez(file, x_train=images, y_train=labels, classes=np.array(["cat", "cat"]))
    with pytest.raises(ValueError, match=r"distinct class names.*'cat' more than once"):
        open_source(file)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 cut", b"<!DOCTYPE html><html>404</html>", b"\x80\x04K\x01."],
)
def test_file_that_is_not_an_npz(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"Expected an \.npz of plain arrays"):
        open_source(tmp_path / "data.npz")


def test_truncated_and_damaged_npz(tmp_path):
    labels = np.arange(40) % 2
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x_train=_images(40), y_train=labels)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + b"\0" * 64 + whole[middle + 64 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"Expected an \.npz of plain arrays"):
            open_source(path)


def test_objects_in_an_npz_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    labels = np.array([Trap(), 1, 0], object)
    path = _npz(tmp_path, x_train=_images(3), y_train=labels)
    with pytest.raises(ValueError, match="pickled objects are never loaded"):
        open_source(path)
    assert not (tmp_path / "sprung").exists()
    with np.load(path, allow_pickle=True) as file:
        file["y_train"]
    assert (tmp_path / "sprung").exists()  # The trap does work.


def test_single_array_is_not_an_npz(tmp_path):
    np.save(tmp_path / "data.npy", _images(2))
    with pytest.raises(ValueError, match="it contains a single array"):
        open_source(tmp_path / "data.npy")


def test_digits():
    pytest.importorskip("sklearn")
    source = open_source("digits")
    assert len(source.train) + len(source.test) == 1797
    assert len(source.test) == pytest.approx(0.2 * 1797, abs=5)
    assert source.classes == tuple("0123456789")
    images = source.train.images
    assert (images.shape[1:], images.dtype) == ((8, 8, 1), np.uint8)
    assert (images.min(), images.max()) == (0, 255)
    again, other = (open_source("digits", seed=seed).train.images for seed in (0, 1))
    np.testing.assert_array_equal(again, images)
    assert not np.array_equal(other, images)


def test_share_is_of_every_class_and_by_seed():
    labels = np.repeat([0, 1, 2], [100, 10, 1])
    split = splits.Arrays(_images(111), labels)
    rest, held = split.split(0.2, seed=0)
    np.testing.assert_array_equal(np.bincount(held.labels, minlength=3), [20, 2, 0])
    assert len(rest) == 89
    again, other = split.split(0.2, seed=0)[1], split.split(0.2, seed=1)[1]
    np.testing.assert_array_equal(again.images, held.images)
    assert not np.array_equal(other.images, held.images)


def test_share_of_lone_images_is_an_error():
    with pytest.raises(ValueError, match="class of at least two images"):
        splits.Arrays(_images(2), np.array([0, 1])).split(0.2, seed=0)


def test_subsets_are_random_nested_and_of_the_training_images():
    """Figure 4's "random subsets": a class has what falls to it."""
    labels = np.repeat([0, 1], [300, 100])
    test = splits.Arrays(_images(5), np.arange(5) % 2)
    source = sources.Source(
        "s", ("a", "b"), splits.Arrays(np.arange(400), labels), test
    )
    subsets = [source.subset(images, seed=3) for images in (40, 80, 400)]
    drawn = [subset.train.images.tolist() for subset in subsets]
    assert [len(images) for images in drawn] == [40, 80, 400]
    assert set(drawn[0]) < set(drawn[1])
    assert drawn == [sorted(images) for images in drawn]
    for subset in subsets:
        np.testing.assert_array_equal(labels[subset.train.images], subset.train.labels)
        assert (subset.classes, subset.test) == (source.classes, test)
    prints = [subset.fingerprint() for subset in (source, *subsets)]
    assert len(set(prints)) == 3  # All of the images are the source.
    assert prints[0] == prints[-1]
    other = source.subset(40, seed=4)
    assert other.train.images.tolist() != drawn[0]
    by_class = [source.subset(40, seed=s).train.labels.sum() for s in range(400)]
    mean, variance = 40 / 4, 40 * 3 / 16 * 360 / 399  # Hypergeometric.
    assert abs(np.mean(by_class) - mean) < 4 * np.sqrt(variance / 400)
    assert 0.7 * variance < np.var(by_class) < 1.3 * variance


def test_subset_of_a_folder(flat):
    source = open_source(flat)
    subset = source.subset(7)
    assert set(subset.train.images) < set(source.train.images)
    assert list(subset.test.images) == list(source.test.images)
    assert len(_labels(subset.train)) == 7
    assert subset.fingerprint() != source.fingerprint()


@pytest.mark.parametrize("images", [-1, 0, 13])
def test_subset_of_an_impossible_size_is_an_error(flat, images):
    with pytest.raises(ValueError, match=rf"1 to 12 .*Received: images={images}"):
        open_source(flat).subset(images)


def test_order_is_a_function_of_seed_and_epoch():
    split = splits.Arrays(_images(20), np.arange(20))

    def orders(seed, start=0):
        passes = split.endless(seed, 20, start, (0, 20)).batch(20)
        return [order.tolist() for _, _, order in passes.take(2).as_numpy_iterator()]

    first = orders(0)
    assert all(sorted(order) == list(range(20)) for order in [*first, *orders(1)])
    assert len({tuple(order) for order in [*first, *orders(1)]}) == 4
    assert orders(0, start=1)[0] == first[1]


# TensorFlow Datasets.


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """A data set of 20 and 7 images on disk; image i is of the gray level 10 i."""
    tfds = pytest.importorskip("tensorflow_datasets")

    def examples(count):
        for i in range(count):
            image = np.full((9, 10, 3), 10 * i, np.uint8)
            yield i, {"image": image, "label": i % 2}

    class TinyPets(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        url_infos: ClassVar = {}  # Nothing is downloaded.

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {"train": examples(20), "test": examples(7)}

        def _generate_examples(self):
            raise NotImplementedError

    made = TinyPets(data_dir=str(tmp_path_factory.mktemp("tfds")))
    made.download_and_prepare()
    return made


def _grays(dataset, number):
    """The images' indices, in the order of `number` examples."""
    x = np.concatenate([x[:, 0, 0, 0] for x, _ in dataset.take(number)])
    return np.round((x + 1) * 12.75).astype(int).tolist()


def test_tfds_by_name(builder, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds, "builder", lambda name: builder)
    source = open_source("tiny_pets")
    assert (source.classes, len(source.train), len(source.test)) == (
        ("cat", "dog"),
        20,
        7,
    )
    source = open_source("tiny_pets:train[:75%]/train[75%:]")
    assert (len(source.train), len(source.test)) == (15, 5)
    assert open_source("tiny_pets:train").test is None
    with pytest.raises(ValueError, match=r"Received: 'nosuch'; .* has train, test\. "):
        open_source("tiny_pets:nosuch/test")


def test_tfds_reads_what_is_on_disk(builder):
    import tensorflow_datasets as tfds

    found = tfds.builder("tiny_pets", data_dir=builder._data_dir_root)
    assert len(sources.tfds_source(found, "tiny_pets", "train", "test").train) == 20


def test_tfds_finds_names_in_its_data_folder(builder, monkeypatch):
    from tensorflow_datasets.core import constants

    monkeypatch.setattr(constants, "DATA_DIR", str(builder._data_dir_root))
    source = open_source("tiny_pets:train[:50%]/test")
    assert (len(source.train), len(source.test)) == (10, 7)
    assert sorted(_labels(source.train)) == sorted(
        _labels(splits.TFDS(builder, "train[:10]"))
    )


def test_tfds_images_stay_encoded(builder):
    split = splits.TFDS(builder, "test")
    items = list(split.dataset())
    assert [item["image"].dtype for item in items] == [tf.string] * 7
    assert [item["label"].dtype for item in items] == [tf.int64] * 7
    evaluated = pipelines.eval_pipeline(split, image_size=(4, 4), batch_size=3)
    assert sorted(_grays(evaluated, 3)) == list(range(7))


@pytest.mark.parametrize("augment", ["flip", "inception"])
def test_tfds_training_repeats_whatever_the_global_seed(builder, augment, caplog):
    def run(seed, global_seed):
        tf.random.set_seed(global_seed)
        split = splits.TFDS(builder, "train")
        return _grays(
            pipelines.train_pipeline(
                split, image_size=(4, 4), batch_size=5, seed=seed, augment=augment
            ),
            12,
        )

    order = run(0, 1)
    epochs = np.reshape(order, (3, 20))
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(20), (3, 1)))
    assert len(np.unique(epochs, axis=0)) == 3
    assert run(0, 2) == run(0, 0) == order
    assert run(1, 1) != order
    assert not caplog.records  # Nor does AutoGraph complain of TFDS's decorators.


def test_tfds_share_is_the_last(builder):
    rest, held = splits.TFDS(builder, "train").split(0.1, seed=0)
    assert (rest.spec, held.spec) == ("train[:18]", "train[18:]")
    assert (len(rest), len(held)) == (18, 2)
    with pytest.raises(ValueError, match=r"Received: split='train\[:18\]'"):
        rest.split(0.1, seed=0)


def test_subset_of_a_stream_is_an_error(builder):
    source = sources.tfds_source(builder, "tiny_pets", "train", "test")
    with pytest.raises(
        ValueError, match=r"'tiny_pets', a stream\. Convert it with keras-vit data pack"
    ):
        source.subset(10)


def test_package_that_tfds_lacks_is_named(builder, monkeypatch):
    import tensorflow_datasets as tfds

    class Lacking:
        def download_and_prepare(self):
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(tfds, "builder", lambda name: Lacking())
    with pytest.raises(ImportError, match=r"for 'svhn'\. .*: pip install scipy"):
        open_source("svhn")


def test_files_that_must_be_downloaded_by_hand_are_named(monkeypatch, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    empty = functools.partial(tfds.builder, data_dir=tmp_path)
    monkeypatch.setattr(tfds, "builder", empty)
    with pytest.raises(OSError, match=r"Expected TFDS.*'imagenet2012'") as caught:
        open_source("imagenet2012")
    assert str(tmp_path) in str(caught.value)
    assert "ILSVRC2012_img_train.tar" in str(caught.value)


def test_a_failed_download_of_tfds_is_one_error(builder, monkeypatch, tmp_path):
    import tensorflow_datasets as tfds

    with http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/pets.zip"

        class Absent(type(builder)):
            name = "absent_pets"

            def _split_generators(self, dl_manager):
                dl_manager.download(url)

        absent = Absent(data_dir=tmp_path)
        monkeypatch.setattr(tfds, "builder", lambda name: absent)
        with pytest.raises(
            OSError, match=r"'absent_pets' in .*DownloadError"
        ) as caught:
            open_source("absent_pets")
        server.shutdown()
    assert url in str(caught.value)


@pytest.mark.parametrize("features", [{"image": 0, "label": 0}, {"image": 0}])
def test_tfds_without_classes_is_an_error(features):
    info = types.SimpleNamespace(features=features)
    builder = types.SimpleNamespace(name="regression", info=info)
    with pytest.raises(
        ValueError, match=r"Received: 'regression' with image.* Convert"
    ):
        sources.tfds_source(builder, "regression", "train", "test")


@pytest.mark.parametrize("name", ["nosuch_data_set", "my photos"])
def test_unknown_name_is_an_error(name):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(ValueError, match=r"or a TFDS name\. Received: "):
        open_source(name)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("digits", "sklearn.datasets", "demo"),
        ("cifar10", "tensorflow_datasets", "tfds"),
    ],
)
def test_missing_package_names_its_extra(monkeypatch, name, module, extra):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match=rf"\.\[{extra}\]"):
        open_source(name)


@pytest.mark.parametrize(
    "names", [("Train", "Test"), ("training", "validation"), ("train", "testing")]
)
def test_splits_by_other_names_are_not_classes(flat, tmp_path, names):
    divided = tmp_path / "divided"
    for name in names:
        shutil.copytree(flat, divided / name)
    message = rf"or train and one of test, val.*with {' and '.join(sorted(names))}"
    with pytest.raises(ValueError, match=message):
        open_source(divided)


def test_a_class_may_be_called_training(flat):
    (flat / "dog").rename(flat / "training")
    assert open_source(flat).classes == ("cat", "training")


def test_a_link_to_a_missing_class_is_an_error(flat):
    (flat / "horse").symlink_to(flat / "unmounted")
    with pytest.raises(ValueError, match=r"horse', a link to .*unmounted'\. Mount"):
        open_source(flat)
