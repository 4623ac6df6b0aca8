"""VTAB-1k, the 19 tasks of D.10 and Table 9: a thousand training images each.

Splits, labels and numbers of images are those of google-research/task_adaptation at
ed9b417, `task_adaptation/data/*.py` and `*_test.py` (arXiv:1910.04867). Its 800
training images are the first of its own training split, its 200 validation images the
first of its own validation split; slices of one TFDS split are written out here as that
code computes them, e.g. after Caltech101's 90 % of 3060 images "train[2754:2954]".

The list of tasks is that of `scripts/run_all_tasks.sh`. What of a task's images may be
cropped or flipped, and the slices once more, is in google-research/scenic at a6c4438,
`scenic/projects/baselines/plainvit/configs/vtab_plainvit_config.py`.
"""

import dataclasses
import operator
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_vit._lazy import renamed
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
    """One column of Table 9: a task's images, its splits and its labels.

    Splits are written in TFDS's arithmetic.

    Attributes:
        name: as Table 9 prints it: "Clevr-Count".
        group: "Natural", "Specialized" or "Structured" (Figure 2).
        classes: K.
        tfds: name, config and version, as `tfds.builder` takes them.
        val200: the 200 of the 1000 training images that choose hyperparameters.
        test: the test split.
        test_images: how many images it has.
        train800: the other 800 training images.
        augment: the crops and flips that leave labels true, as of `Recipe.augment`;
            scenic's.
        features: what `label` reads of a record.
        label: a function from a decoded record to its label, from 0 to K - 1.
        class_names: K names, of a label that is no feature of TFDS's; else empty.
        scale: what stored pixels are multiplied by to be 0..255.
        by_hand: what TFDS cannot download, and what of it goes where; else empty.
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
        """The name as it is typed: "clevr-count"."""
        return self.name.lower()


def clevr_count(record: Record) -> Any:
    """How many objects there are, 3 to 10, as 0 to 7 (clevr.py)."""
    return tf.size(record["objects"]["size"], tf.int64) - 3


def clevr_distance(record: Record) -> Any:
    """The bin of the closest object's distance (clevr.py)."""
    distance = tf.reduce_min(record["objects"]["pixel_coords"][:, 2])
    return _bin(distance, (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def kitti_distance(record: Record) -> Any:
    """The bin of the closest vehicle's distance; 3 where there is none (kitti.py).

    Vehicles are the first three types: Car, Van and Truck.
    """
    depths = record["objects"]["location"][:, 2]  # Meters before the camera.
    depths = tf.boolean_mask(depths, record["objects"]["type"] < 3)
    distance = tf.reduce_min(tf.concat([depths, [1000.0]], axis=0))
    return _bin(distance, (-100.0, 8.0, 20.0, 999.0))


def _bin(distance: Any, thresholds: tuple[float, ...]) -> Any:
    """The last threshold below `distance`, by number; -1 if there is none."""
    below = tf.constant(thresholds) < distance
    return tf.reduce_sum(tf.cast(below, tf.int64)) - 1


def sixteenths(feature: str, values: int) -> Callable[[Record], Any]:
    """A label of 0..values - 1, neighbors joined to 16 classes (dsprites.py)."""

    def label(record: Record) -> Any:
        return record[feature] * 16 // values

    return label


_CLEVR: dict[str, Any] = {
    "group": "Structured",
    "tfds": "clevr:3.*.*",
    "val200": "train[63000:63200]",
    "test": "validation",  # CLEVR's own test images have no annotations.
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
        classes=102,  # With one for the background.
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
        # The original's 3.*.* is in no TFDS of today; 4.0.0 has the same images, those
        # mended that were damaged.
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
    """The task of a name, in capitals or not (Table 9).

    Args:
        name: name of one of `TASKS`: "Clevr-Count", "clevr-count".

    Returns:
        The `VTABTask`.

    Raises:
        ValueError: if there is none, naming all.

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
    """The training images of a task in memory, encoded: first the 800, then the 200."""

    def split(self, share: float, seed: int) -> tuple["Thousand", "Thousand"]:
        """The first images and the last; a share of 0.2 is the benchmark's own.

        Args:
            share: share of the images that is held out, in (0, 1).
            seed: not used: nothing is drawn.

        Returns:
            The rest, and the held-out share.
        """
        kept = len(self) - max(1, round(share * len(self)))
        indices = np.arange(len(self))
        return self.take(indices[:kept]), self.take(indices[kept:])


def open_task(name: str | VTABTask, *, choosing: bool = False) -> Source:
    """A task's images; TFDS downloads and prepares them where it has not.

    The training images are read at once and kept as they are encoded: 1 to 100 MB, of
    KITTI's large PNGs 0.9 GB. Test images are streamed, all of them.

    Args:
        name: as Table 9 has it, in capitals or not, or a `VTABTask`.
        choosing: what settings are chosen on: 800 images to train on, and to test on
            the 200 others. False: all 1000, and the test images.

    Returns:
        A `Source`. A share of 0.2 that is held out of its training images, as Table 4's
        VTAB row has it, is the 200.

    Raises:
        ValueError: if there is no such task, or TFDS could not prepare its data; what
            has to be put somewhere by hand is named.
        ImportError: naming a package that TFDS prepares it with.
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
        warnings.warn(
            f"{task.name} has {task.test_images} test images, {builder.info.full_name} "
            f"{len(test)} in {task.test!r}: results do not compare with Table 9's",
            stacklevel=2,
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
    except Exception as error:  # TFDS and what it downloads with raise any.
        said = " ".join(str(error).split()) or type(error).__name__
        said = said.partition(" Create it and ")[0][:400].rstrip(".")
        remedy = (
            f"TFDS cannot download it. Put there {task.by_hand}"
            if task.by_hand
            else "TFDS downloads it on first use; TFDS_DATA_DIR names the folder where "
            "it is looked for before"
        )
        raise ValueError(
            f"Expected {task.name}'s data, TFDS's {task.tfds}. Received: {said}. "
            f"{remedy}"
        ) from error


def _class_names(task: VTABTask, builder: Any) -> tuple[str, ...]:
    names = task.class_names or tuple(builder.info.features[task.features[0]].names)
    if len(names) != task.classes:
        raise ValueError(
            f"Expected {task.classes} classes of {task.name}. Received: "
            f"{builder.info.full_name} with {len(names)}"
        )
    return names


def _read(*splits: TFDS) -> Thousand:
    """Splits in memory, one after the other."""
    items = [item for split in splits for item in split.dataset().as_numpy_iterator()]
    images = [item["image"] for item in items]
    encoded = isinstance(images[0], bytes)
    return Thousand(
        np.array(images, object) if encoded else np.stack(images),
        np.array([item["label"] for item in items]),
    )
