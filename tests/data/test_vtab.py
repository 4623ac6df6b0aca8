"""The 19 tasks of VTAB-1k: labels by hand, slices, and sources by TFDS's builders."""

import dataclasses
import functools
import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

from keras_vit.data import open_source, pipelines, vtab  # noqa: E402
from keras_vit.data.splits import TFDS  # noqa: E402
from tests.data import vtab_sets  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

NAMES = [task.word for task in vtab.TASKS]
TABLE_9 = (  # As the paper prints its columns.
    "Caltech101 CIFAR-100 DTD Flowers102 Pets Sun397 SVHN Camelyon EuroSAT Resisc45 "
    "Retinopathy Clevr-Count Clevr-Dist DMLab dSpr-Loc dSpr-Ori KITTI-Dist sNORB-Azim "
    "sNORB-Elev"
)
# Of task_adaptation's tests: training, validation and test images, and classes.
ORIGINAL = {
    "caltech101": (2754, 306, 6084, 102),
    "cifar-100": (45000, 5000, 10000, 100),
    "dtd": (1880, 1880, 1880, 47),
    "flowers102": (1020, 1020, 6149, 102),
    "pets": (2944, 736, 3669, 37),
    "sun397": (76128, 10875, 21750, 397),
    "svhn": (65931, 7326, 26032, 10),
    "camelyon": (262144, 32768, 32768, 2),
    "eurosat": (16200, 5400, 5400, 10),
    "resisc45": (18900, 6300, 6300, 45),
    "retinopathy": (35126, 10906, 42670, 5),
    "clevr-count": (63000, 7000, 15000, 8),
    "clevr-dist": (63000, 7000, 15000, 6),
    "dmlab": (65550, 22628, 22735, 6),
    "dspr-loc": (589824, 73728, 73728, 16),
    "dspr-ori": (589824, 73728, 73728, 16),
    "kitti-dist": (6347, 423, 711, 4),
    "snorb-azim": (24300, 12150, 12150, 18),
    "snorb-elev": (24300, 12150, 12150, 9),
}


def test_tasks_are_table_9s():
    assert [task.name for task in vtab.TASKS] == TABLE_9.split()
    groups = [task.group for task in vtab.TASKS]
    assert groups == ["Natural"] * 7 + ["Specialized"] * 4 + ["Structured"] * 8
    assert vtab.find("KITTI-dist") is vtab.TASKS[16]
    with pytest.raises(
        ValueError, match=r"caltech101, .*snorb-elev\. Received: 'mnist'"
    ):
        vtab.find("mnist")


@pytest.mark.parametrize("word", NAMES)
def test_slices_are_the_originals(word):
    """Where one TFDS split is divided, validation begins where training ends."""
    task = vtab.find(word)
    train, val, tested, classes = ORIGINAL[word]
    assert (task.test_images, task.classes) == (tested, classes)
    assert task.train800 == "train[:800]"
    assert train >= 800
    assert val >= 200
    base, begin, end = re.match(r"(\w+)\[(\d*):(\d+)\]", task.val200).groups()
    assert int(end) - int(begin or 0) == 200
    assert int(begin or 0) == (train if base == "train" else 0)
    base, begin = re.match(r"(\w+)(?:\[(\d+):\])?$", task.test).groups()
    if base == "train":
        assert int(begin) == train + val
    elif base in task.val200:  # Small NORB's test images are halved.
        assert int(begin) == val
    else:
        assert begin is None


@pytest.mark.parametrize("word", NAMES)
def test_tfds_has_the_data_set_and_what_its_label_needs(word, tmp_path):
    """By the installed package: name, configuration, version, features, classes."""
    task = vtab.find(word)
    builder = tfds.builder(task.tfds, data_dir=str(tmp_path))
    features = builder.info.features
    assert isinstance(features["image"], tfds.features.Image)
    assert set(task.features) <= set(features)
    if not task.class_names:
        assert features[task.features[0]].num_classes == task.classes
    assert len(task.class_names) in (0, task.classes)
    assert bool(task.by_hand) == bool(
        getattr(type(builder), "MANUAL_DOWNLOAD_INSTRUCTIONS", None)
    )


@functools.cache
def features_of(name):
    return tfds.builder(name).info.features


def labels(word, key, *values):
    """A task's labels of records with a feature's values, as TFDS writes and reads."""
    task = vtab.find(word)
    features = tfds.features.FeaturesDict({key: features_of(task.tfds)[key]})
    written = [
        features.serialize_example(features.encode_example({key: value}))
        for value in values
    ]
    read = tf.data.Dataset.from_tensor_slices(written).map(
        lambda example: task.label(features.deserialize_example(example))
    )
    return [int(label) for label in read]


def scene(*depths):
    return [vtab_sets.scene_object(depth) for depth in depths]


@pytest.mark.parametrize("count", range(3, 11))
def test_clevr_count(count):
    assert labels("clevr-count", "objects", scene(*[9.0] * count)) == [count - 3]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        *((0.5, 0), (7.99, 0), (8.0, 0), (8.01, 1), (8.5, 1), (8.51, 2), (9.0, 2)),
        *((9.01, 3), (9.5, 3), (9.51, 4), (10.0, 4), (10.01, 5), (99.0, 5), (100.0, 5)),
    ],
)
def test_clevr_distance(depth, expected):
    """A threshold belongs to the nearer class: the original asks thr < distance."""
    assert labels("clevr-dist", "objects", scene(150.0, depth, 101.0)) == [expected]
    thresholds = np.array([0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])
    assert np.where(thresholds - np.float32(depth) < 0)[0].max() == expected


CAR, VAN, TRUCK, PEDESTRIAN, TRAM = 0, 1, 2, 3, 6


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([(CAR, 1.0)], 0),  # Those five are task_adaptation's own (kitti_test.py).
        ([(CAR, 10.0)], 1),
        ([(CAR, 30.0)], 2),
        ([(4, 30.0)], 3),
        ([(CAR, 30.0), (VAN, 1.0)], 0),
        ([(CAR, 8.0)], 0),
        ([(CAR, 8.01)], 1),
        ([(VAN, 20.0)], 1),
        ([(TRUCK, 20.01)], 2),
        ([(CAR, -2.0)], 0),
        ([(PEDESTRIAN, 2.0), (TRUCK, 25.0), (TRAM, 3.0)], 2),
        ([], 3),
    ],
)
def test_kitti_distance(objects, expected):
    road = [vtab_sets.road_object(kind, depth) for kind, depth in objects]
    assert labels("kitti-dist", "objects", road) == [expected]


def test_kitti_vehicles_are_the_first_types():
    names = tfds.builder("kitti").info.features["objects"]["type"].names
    assert names[:4] == ["Car", "Van", "Truck", "Pedestrian"]


@pytest.mark.parametrize(
    ("word", "feature", "values"),
    [("dspr-loc", "label_x_position", 32), ("dspr-ori", "label_orientation", 40)],
)
def test_dsprites_bins(word, feature, values):
    """The original divides in float32 and rounds down."""
    ours = labels(word, feature, *range(values))
    original = np.floor_divide(np.arange(values, dtype=np.float32), values / 16)
    np.testing.assert_array_equal(ours, original)
    assert sorted(set(ours)) == list(range(16))


@pytest.mark.parametrize(
    ("word", "feature"),
    [
        ("snorb-azim", "label_azimuth"),
        ("snorb-elev", "label_elevation"),
        ("svhn", "label"),
    ],
)
def test_labels_that_are_features(word, feature):
    classes = vtab.find(word).classes
    assert labels(word, feature, 0, classes - 1) == [0, classes - 1]


# Sources.


@pytest.mark.parametrize("word", NAMES)
def test_every_task_is_read(word, small_vtab):
    task = small_vtab[word]
    source = vtab.open_task(word)
    assert source.name == f"vtab:{word}"
    assert len(source.classes) == task.classes
    assert (len(source.train), len(source.test)) == (10, task.test_images)
    batches = pipelines.eval_pipeline(source.test, image_size=(8, 8), batch_size=3)
    images, labels = map(np.concatenate, zip(*batches.as_numpy_iterator(), strict=True))
    assert images.shape == (task.test_images, 8, 8, 3)
    assert -1 <= images.min() < 0 < images.max() <= 1
    seen = [*source.train.labels, *labels]
    assert len(seen) == 10 + task.test_images
    assert 0 <= min(seen) <= max(seen) < task.classes


def test_images_are_the_slices(small_vtab):
    """In TFDS's order: the 800, then the 200, and the test images apart."""
    builder = tfds.builder("dsprites:2.*.*")
    items = list(builder.as_dataset(split="train").as_numpy_iterator())
    source = vtab.open_task("dspr-ori")
    labels = [item["label_orientation"] * 16 // 40 for item in items]
    np.testing.assert_array_equal(source.train.labels, labels[:8] + labels[10:12])
    tested = list(source.test.dataset().as_numpy_iterator())
    assert [item["label"] for item in tested] == labels[12:]
    for item, image in zip(items[12:], (item["image"] for item in tested), strict=True):
        assert set(np.unique(item["image"])) == {0, 1}
        np.testing.assert_array_equal(image, np.repeat(item["image"] * 255, 3, axis=-1))
    choosing = vtab.open_task("dspr-ori", choosing=True)
    np.testing.assert_array_equal(choosing.train.labels, labels[:8])
    np.testing.assert_array_equal(choosing.test.labels, labels[10:12])
    rest, held_out = source.train.split(0.2, seed=0)
    for half, same in ((rest, choosing.train), (held_out, choosing.test)):
        np.testing.assert_array_equal(half.images, same.images)
        assert half.fingerprint() == same.fingerprint()


def test_encoded_images_are_those_of_the_stream(small_vtab):
    source = vtab.open_task("clevr-count")
    builder = tfds.builder("clevr:3.*.*")
    whole = TFDS(builder, "train[:8]+train[10:12]", source.test.labelling)
    for kept, read in zip(source.train.dataset(), whole.dataset(), strict=True):
        assert kept["image"].dtype == tf.string
        assert kept["image"] == read["image"]
        assert kept["label"] == read["label"]


def test_fingerprints_tell_tasks_of_one_data_set_apart(small_vtab):
    tasks = [vtab.open_task(word) for word in ("snorb-azim", "snorb-elev")]
    assert len({task.test.fingerprint() for task in tasks}) == 2
    assert len({task.train.fingerprint() for task in tasks}) == 2
    assert tasks[0].fingerprint() == vtab.open_task("snorb-azim").fingerprint()


def test_open_source_by_word(small_vtab):
    source = open_source("vtab:Clevr-Dist")
    assert source.fingerprint() == vtab.open_task("clevr-dist").fingerprint()
    assert source.classes[0] == "to 8"
    with pytest.raises(ValueError, match="Received: 'clevr'"):
        open_source("vtab:clevr")


def test_label_out_of_range_is_an_error(small_vtab):
    """CLEVR's test images have no objects: the original takes its validation images."""
    task = dataclasses.replace(
        small_vtab["clevr-count"], classes=3, class_names=("a",) * 3
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels from 0 to 2"):
        vtab.open_task(task)


def test_other_numbers_are_told(small_vtab):
    task = dataclasses.replace(small_vtab["svhn"], test_images=26_032)
    with pytest.warns(UserWarning, match=r"26032 test images, svhn_cropped/3.1.0 8 in"):
        vtab.open_task(task)
    task = dataclasses.replace(small_vtab["svhn"], classes=9)
    with pytest.raises(ValueError, match=r"9 classes in SVHN\. Received: .* with 10"):
        vtab.open_task(task)


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        (
            "dtd",
            OSError("no route to host"),
            r"no route to host\. TFDS downloads .*DATA_DIR",
        ),
        ("dtd", AssertionError(), r"Received: AssertionError\. "),
        (
            "retinopathy",
            AssertionError("Manual directory /m is empty. Create it and do"),
            r"Manual directory /m is empty\. TFDS cannot .*Kaggle's.*sample/\*\.jpeg",
        ),
    ],
)
def test_what_tfds_raises_becomes_one_error(word, error, message, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(vtab, "prepared", fails)
    with pytest.raises(ValueError, match=message):
        vtab.open_task(word)


def test_package_that_is_called_otherwise(monkeypatch):
    class Lacking:
        def download_and_prepare(self):
            raise ModuleNotFoundError("No module named 'cv2'", name="cv2")

    monkeypatch.setattr(tfds, "builder", lambda name: Lacking())
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        vtab.open_task("kitti-dist")
