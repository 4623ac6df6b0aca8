"""VTAB-1k, the 19 tasks of D.10 and Table 9, with a thousand training images each.

Splits, labels and numbers of images are those of google-research/task_adaptation at
ed9b417, `task_adaptation/data/*.py` and `*_test.py` (arXiv:1910.04867). Its 800
training images are the first ones of its training split, its 200 validation images the
first ones of its validation split. Slices of a TFDS split are written out here as
computed by that code. For example, after 90 % of Caltech101's 3060 images comes
"train[2754:2954]".

The list of tasks is from `scripts/run_all_tasks.sh`. Which tasks' images may be cropped
or flipped is from google-research/scenic at a6c4438, which also has the slices:
`scenic/projects/baselines/plainvit/configs/vtab_plainvit_config.py`.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_vit._lazy import renamed
from keras_vit.callers import warn
from keras_vit.data.source import Source
from keras_vit.data.splits import TFDS, Arrays, Labelling
from keras_vit.data.tfds_builders import prepared

__all__ = ["TASKS", "VTABTask", "find", "open_task"]

__getattr__ = renamed(__name__, Task="VTABTask")

Record = dict[str, Any]
Group = Literal["Natural", "Specialized", "Structured"]
GROUPS: tuple[Group, ...] = ("Natural", "Specialized", "Structured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTABTask:
    """A column of Table 9: a task's images, splits and labels.

    Splits are in TFDS's syntax.

    Attributes:
        name: name in Table 9, such as "Clevr-Count".
        group: "Natural", "Specialized" or "Structured" (Figure 2).
        classes: K.
        tfds: name, config and version for `tfds.builder`.
        val200: the 200 of the 1000 training images that choose hyperparameters.
        test: the test split.
        test_images: number of test images.
        train800: the other 800 training images.
        augment: crops and flips that keep labels valid, as in `Recipe.augment`; from
            scenic.
        features: features that `label` reads.
        label: function from a decoded record to its label, from 0 to K - 1.
        class_names: K names, if the label is not a feature of TFDS; otherwise empty.
        scale: factor from stored pixels to 0..255.
        by_hand: files that TFDS cannot download, with their places; otherwise empty.
    """

    name: str
    group: Group
    classes: int
    tfds: str
    val200: str
    test: str
    test_images: int
    train800: str = "train[:800]"
    augment: Literal["crop", "crop_only", "flip", "none"] = "crop"
    features: tuple[str, ...] = ("label",)
    label: Callable[[Record], Any] = operator.itemgetter("label")
    class_names: tuple[str, ...] = ()
    scale: int = 1
    by_hand: str = ""

    @property
    def word(self) -> str:
        """The name as typed, such as "clevr-count"."""
        return self.name.lower()


def clevr_count(record: Record) -> Any:
    """Returns the number of objects, 3 to 10, as 0 to 7 (clevr.py)."""
    return tf.size(record["objects"]["size"], tf.int64) - 3


def clevr_distance(record: Record) -> Any:
    """Returns the bin of the closest object's distance (clevr.py)."""
    distance = tf.reduce_min(record["objects"]["pixel_coords"][:, 2])
    return _bin(distance, (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def kitti_distance(record: Record) -> Any:
    """Returns the bin of the closest vehicle's distance; 3 for none (kitti.py).

    Vehicles are the first three types: Car, Van and Truck.
    """
    depths = record["objects"]["location"][:, 2]  # Meters in front of the camera.
    depths = tf.boolean_mask(depths, record["objects"]["type"] < 3)
    distance = tf.reduce_min(tf.concat([depths, [1000.0]], axis=0))
    return _bin(distance, (-100.0, 8.0, 20.0, 999.0))


def _bin(distance: Any, thresholds: tuple[float, ...]) -> Any:
    """Returns the index of the last threshold below `distance`; -1 if there is none."""
    below = tf.constant(thresholds) < distance
    return tf.reduce_sum(tf.cast(below, tf.int64)) - 1


def sixteenths(feature: str, values: int) -> Callable[[Record], Any]:
    """Groups a label of 0..values - 1 into 16 classes of neighbors (dsprites.py)."""

    def label(record: Record) -> Any:
        return record[feature] * 16 // values

    return label


_CLEVR: dict[str, Any] = {
    "group": "Structured",
    "tfds": "clevr:3.*.*",
    "val200": "train[63000:63200]",
    "test": "validation",  # CLEVR's test images have no annotations.
    "test_images": 15_000,
    "augment": "flip",
    "features": ("objects",),
}
_DSPRITES: dict[str, Any] = {
    "group": "Structured",
    "tfds": "dsprites:2.*.*",
    "val200": "train[589824:590024]",
    "test": "train[663552:]",
    "test_images": 73_728,
    "classes": 16,
    "scale": 255,  # The file has zeros and ones.
}
_SMALLNORB: dict[str, Any] = {
    "group": "Structured",
    "tfds": "smallnorb:2.*.*",
    "val200": "test[:200]",
    "test": "test[12150:]",
    "test_images": 12_150,
}

TASKS = (
    VTABTask(
        name="Caltech101",
        group="Natural",
        classes=102,  # One of them is the background.
        tfds="caltech101:3.*.*",
        val200="train[2754:2954]",
        test="test",
        test_images=6_084,
    ),
    VTABTask(
        name="CIFAR-100",
        group="Natural",
        classes=100,
        tfds="cifar100:3.*.*",
        val200="train[45000:45200]",
        test="test",
        test_images=10_000,
    ),
    VTABTask(
        name="DTD",
        group="Natural",
        classes=47,
        tfds="dtd:3.*.*",
        val200="validation[:200]",
        test="test",
        test_images=1_880,
    ),
    VTABTask(
        name="Flowers102",
        group="Natural",
        classes=102,
        tfds="oxford_flowers102:2.*.*",
        val200="validation[:200]",
        test="test",
        test_images=6_149,
    ),
    VTABTask(
        name="Pets",
        group="Natural",
        classes=37,
        # TFDS no longer has the original's 3.*.*. 4.0.0 has the same images, with the
        # damaged ones repaired.
        tfds="oxford_iiit_pet:4.*.*",
        val200="train[2944:3144]",
        test="test",
        test_images=3_669,
    ),
    VTABTask(
        name="Sun397",
        group="Natural",
        classes=397,
        tfds="sun397/tfds:4.*.*",
        val200="validation[:200]",
        test="test",
        test_images=21_750,
    ),
    VTABTask(
        name="SVHN",
        group="Natural",
        classes=10,
        tfds="svhn_cropped:3.*.*",
        val200="train[65931:66131]",
        test="test",
        test_images=26_032,
    ),
    VTABTask(
        name="Camelyon",
        group="Specialized",
        classes=2,
        tfds="patch_camelyon:2.*.*",
        val200="validation[:200]",
        test="test",
        test_images=32_768,
    ),
    VTABTask(
        name="EuroSAT",
        group="Specialized",
        classes=10,
        tfds="eurosat/rgb:2.*.*",
        val200="train[16200:16400]",
        test="train[21600:]",
        test_images=5_400,
    ),
    VTABTask(
        name="Resisc45",
        group="Specialized",
        classes=45,
        tfds="resisc45:3.*.*",
        val200="train[18900:19100]",
        test="train[25200:]",
        test_images=6_300,
        by_hand="NWPU-RESISC45.rar (https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs), "
        "unpacked: NWPU-RESISC45/CLASS/*.jpg",
    ),
    VTABTask(
        name="Retinopathy",
        group="Specialized",
        classes=5,
        tfds="diabetic_retinopathy_detection/btgraham-300:3.*.*",
        val200="validation[:200]",
        test="test",
        test_images=42_670,
        by_hand="Kaggle's diabetic-retinopathy-detection, unpacked: sample/*.jpeg, "
        "train/*.jpeg, test/*.jpeg and trainLabels.csv",
    ),
    VTABTask(
        name="Clevr-Count",
        classes=8,
        label=clevr_count,
        class_names=tuple(f"{count} objects" for count in range(3, 11)),
        **_CLEVR,
    ),
    VTABTask(
        name="Clevr-Dist",
        classes=6,
        label=clevr_distance,
        class_names=("to 8", "to 8.5", "to 9", "to 9.5", "to 10", "over 10"),
        **_CLEVR,
    ),
    VTABTask(
        name="DMLab",
        group="Structured",
        classes=6,
        tfds="dmlab:2.*.*",
        val200="validation[:200]",
        test="test",
        test_images=22_735,
        augment="flip",
    ),
    VTABTask(
        name="dSpr-Loc",
        augment="none",
        features=("label_x_position",),
        label=sixteenths("label_x_position", 32),
        class_names=tuple(f"x {place}/16" for place in range(16)),
        **_DSPRITES,
    ),
    VTABTask(
        name="dSpr-Ori",
        augment="crop_only",
        features=("label_orientation",),
        label=sixteenths("label_orientation", 40),
        class_names=tuple(f"turned {turn}/16" for turn in range(16)),
        **_DSPRITES,
    ),
    VTABTask(
        name="KITTI-Dist",
        group="Structured",
        classes=4,
        tfds="kitti:3.*.*",
        val200="validation[:200]",
        test="test",
        test_images=711,
        augment="flip",
        features=("objects",),
        label=kitti_distance,
        class_names=("to 8 m", "to 20 m", "farther", "no vehicle"),
    ),
    VTABTask(
        name="sNORB-Azim",
        classes=18,
        augment="crop_only",
        features=("label_azimuth",),
        label=operator.itemgetter("label_azimuth"),
        **_SMALLNORB,
    ),
    VTABTask(
        name="sNORB-Elev",
        classes=9,
        features=("label_elevation",),
        label=operator.itemgetter("label_elevation"),
        **_SMALLNORB,
    ),
)
"""The 19 tasks in Table 9's order, each a `VTABTask`."""


def find(name: str) -> VTABTask:
    """Returns the task with a name, in any case (Table 9).

    Args:
        name: name of one of `TASKS`: "Clevr-Count", "clevr-count".

    Returns:
        The `VTABTask`.

    Raises:
        ValueError: if the name is unknown, with all names.

    Examples:
        >>> find("clevr-count").group
        'Structured'
    """
    for task in TASKS:
        if task.word == name.lower():
            return task
    known = ", ".join(task.word for task in TASKS)
    raise ValueError(f"Expected a task of VTAB-1k: {known}. Received: {name!r}")


class Thousand(Arrays):
    """A task's encoded training images in memory, the 800 before the 200."""

    def split(self, share: float, seed: int) -> tuple["Thousand", "Thousand"]:
        """Splits into first and last images; 0.2 is the benchmark's share.

        Args:
            share: share of the images that is held out, in (0, 1).
            seed: unused, because nothing is drawn.

        Returns:
            The rest, and the held-out share.
        """
        kept = len(self) - max(1, round(share * len(self)))
        indices = np.arange(len(self))
        return self.take(indices[:kept]), self.take(indices[kept:])


def open_task(name: str | VTABTask, *, choosing: bool = False) -> Source:
    """Opens a task's images; TFDS downloads and prepares them if necessary.

    The training images are read at once and kept in memory as encoded: 1 to 100 MB, and
    0.9 GB for KITTI's large PNGs. All test images are used; they are streamed.

    Args:
        name: name in Table 9, in any case, or a `VTABTask`.
        choosing: whether to choose settings: train on 800 images and test on the other
            200. False: train on all 1000 and test on the test images.

    Returns:
        A `Source`. Holding out a share of 0.2 of its training images, as Table 4's VTAB
        row does, gives the 200.

    Raises:
        ValueError: if there is no such task, or TFDS could not prepare its data; the
            message names files that you have to download yourself.
        ImportError: if TFDS requires a missing package, with its name.
    """
    task = name if isinstance(name, VTABTask) else find(name)
    builder = _prepared(task)
    labelling = Labelling(
        name=task.name,
        classes=task.classes,
        features=task.features,
        label=task.label,
        scale=task.scale,
    )
    specs = (task.train800, task.val200, task.test)
    train, val, test = (TFDS(builder, spec, labelling) for spec in specs)
    if len(test) != task.test_images:
        warn(
            f"{task.name} has {task.test_images} test images, {builder.info.full_name} "
            f"{len(test)} in {task.test!r}: results do not compare with Table 9's",
        )
    classes, word = _class_names(task, builder), f"vtab:{task.word}"
    if choosing:
        return Source(word, classes, _read(train), _read(val))
    return Source(word, classes, _read(train, val), test)


def _prepared(task: VTABTask) -> Any:
    try:
        return prepared(task.tfds, f"vtab:{task.word}")
    except ImportError:
        raise
    except Exception as error:  # TFDS and its downloads raise any kind.
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        reason = reason.partition(" Create it and ")[0][:400].rstrip(".")
        remedy = (
            f"TFDS cannot download it. Put these files there: {task.by_hand}"
            if task.by_hand
            else "TFDS downloads it on first use; set TFDS_DATA_DIR to a folder that "
            "already contains it"
        )
        raise ValueError(
            f"Expected {task.name}'s data, TFDS's {task.tfds}. Received: {reason}. "
            f"{remedy}"
        ) from error


def _class_names(task: VTABTask, builder: Any) -> tuple[str, ...]:
    names = task.class_names or tuple(builder.info.features[task.features[0]].names)
    if len(names) != task.classes:
        raise ValueError(
            f"Expected {task.classes} classes in {task.name}. Received: "
            f"{builder.info.full_name} with {len(names)}"
        )
    return names


def _read(*splits: TFDS) -> Thousand:
    """Reads splits into memory, one after the other."""
    items = [item for split in splits for item in split.dataset().as_numpy_iterator()]
    images = [item["image"] for item in items]
    encoded = isinstance(images[0], bytes)
    return Thousand(
        np.array(images, object) if encoded else np.stack(images),
        np.array([item["label"] for item in items]),
    )
