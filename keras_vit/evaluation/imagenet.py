"""ImageNet and test sets with its classes (4.1, Table 2; ObjectNet, D.9).

- val: 50,000 images of ILSVRC 2012.
- real: the same images; any of the reassessed labels is correct, images without any are
  left out.
- v2: 10,000 images, "matched-frequency" of the three sets.
- a, r: 7,500 and 30,000 images of 200 classes each; only these classes compete.
- sketch: 50,889 images.
- objectnet: 18,574 images of 113 kinds of objects. All 1,000 classes compete; any of
  the 125 ImageNet classes that an object can belong to is correct.

Images are from TFDS, or from a folder as packed by the set's authors.
"""

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Literal, Unpack

import keras
import numpy as np
import tensorflow as tf

from keras_vit.callers import warn
from keras_vit.data import preprocessing
from keras_vit.data.sources import check_images, image_files, open_source
from keras_vit.data.splits import TFDS, Arrays, Labelling, Split
from keras_vit.data.tfds_builders import prepared
from keras_vit.evaluation import imagenet_classes
from keras_vit.evaluation.classification import (
    ClassifyOptions,
    Evaluation,
    Task,
    classify,
)
from keras_vit.files import IMAGE_SUFFIXES, parse_json, read_bytes

__all__ = ["evaluate_imagenet", "open_task"]

VALIDATION_IMAGES = 50_000
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})\.[A-Za-z]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Set:
    """A test set with ImageNet's classes."""

    name: str  # TFDS's name, if it has the set.
    images: int
    tfds: str | None  # Default of `data`: name and split.
    outputs: tuple[int, ...] | None = None


SETS = {
    "val": _Set(
        name="imagenet2012", images=VALIDATION_IMAGES, tfds="imagenet2012:validation"
    ),
    "real": _Set(
        name="imagenet2012_real",
        images=VALIDATION_IMAGES,
        tfds="imagenet2012_real:validation",
    ),
    "v2": _Set(
        name="imagenet_v2", images=10_000, tfds="imagenet_v2/matched-frequency:test"
    ),
    "a": _Set(
        name="imagenet_a",
        images=7_500,
        tfds="imagenet_a:test",
        outputs=imagenet_classes.IMAGENET_A,
    ),
    "r": _Set(
        name="imagenet_r",
        images=30_000,
        tfds="imagenet_r:test",
        outputs=imagenet_classes.IMAGENET_R,
    ),
    "sketch": _Set(name="imagenet_sketch", images=50_889, tfds="imagenet_sketch:test"),
    "objectnet": _Set(name="objectnet", images=18_574, tfds=None),
}


def evaluate_imagenet(
    model: keras.Model,
    name: str,
    *,
    data: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    on_corrupt: Literal["stop", "skip"] = "stop",
    **options: Unpack[ClassifyOptions],
) -> Evaluation:
    """Evaluates a model of ImageNet's 1,000 classes on one of `SETS` (Table 2, D.9).

    Args:
        model: model from images to 1,000 logits in the published heads' order.
        name: "val", "real", "v2", "a", "r", "sketch" or "objectnet".
        data: see `open_task`.
        labels: see `open_task`.
        on_corrupt: see `open_task`.
        **options: see `classify`: batch_size, preprocessing, keep_logits, verbose.

    Returns:
        An `Evaluation`, with `.images.top(1)`, `.images.top(5)`, ...

    Raises:
        ValueError: see `open_task` and `classify`.
        ImportError: see `open_task`.
    """
    task = open_task(name, data=data, labels=labels, on_corrupt=on_corrupt)
    return classify(model, task, **options)


def open_task(
    name: str,
    *,
    data: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    on_corrupt: Literal["stop", "skip"] = "stop",
) -> Task:
    """Opens one of `SETS` for evaluation (4.1, Table 2, D.9).

    Args:
        name: name of the set.
        data: a TFDS name, with or without a split ("imagenet_v2/topimages"), or a
            folder: class folders named by wnid (n01440764) or number (0 to 999); for
            "real" ILSVRC2012_val_00000001.JPEG and so on, in any subfolders; for
            "objectnet" the unpacked archive, or its `images`. None: TFDS's default.
        labels: file real.json of google-research/reassessed-imagenet, for "real" unless
            TFDS's imagenet2012_real is used, which contains the labels.
        on_corrupt: handling of unreadable images of a folder: "stop" raises, "skip"
            leaves them out. Both list them.

    Returns:
        A `classification.Task`.

    Raises:
        ValueError: if the set, folder or class is unknown, a label is missing, or
            `labels` does not have a list for each validation image.
        ImportError: without tensorflow_datasets, if TFDS is used.
    """
    if name not in SETS:
        raise ValueError(
            f"Expected one of {', '.join(SETS)}. Received: name={name!r}, a set with "
            "unknown classes"
        )
    if labels is not None and name != "real":
        raise ValueError(
            "Expected labels only with 'real', because the other sets have their own. "
            f"Received: labels={str(labels)!r} with {name!r}"
        )
    spec = SETS[name].tfds if data is None else data
    if spec is None:
        raise ValueError(
            f"Expected a folder for {name!r}, which TFDS does not have. Received: no "
            "data. Download it from https://objectnet.dev"
        )
    found = SETS[name]
    task = (_folder if Path(spec).is_dir() else _tfds)(name, spec, labels, on_corrupt)
    if len(task.split) != found.images:
        warn(
            f"{found.name} has {found.images:,} images, {spec} {len(task.split):,}",
        )
    return task


def _task(name: str, split: Split, answers: np.ndarray | None = None) -> Task:
    """Returns a task with 1,000 outputs; labels are ImageNet's, unless `answers` is."""
    outputs, names = SETS[name].outputs, imagenet_classes.names()
    if outputs is not None:
        answers = np.full(len(names), -1)
        answers[list(outputs)] = np.arange(len(outputs))
        names = tuple(names[output] for output in outputs)
    return Task(
        name=SETS[name].name,
        split=split,
        classes=names,
        model_outputs=1000,
        outputs=None if outputs is None else np.array(outputs),
        answers=answers,
        calibrates=name != "real",
    )


# From TFDS.


def _tfds(name: str, spec: Any, labels: Any, on_corrupt: str) -> Task:
    if name == "objectnet":
        raise ValueError(
            "Expected the folder of ObjectNet, which TFDS does not have. Received: "
            f"data={str(spec)!r}, no folder. Download it from https://objectnet.dev"
        )
    dataset, _, split = str(spec).partition(":")
    default = str(SETS[name].tfds).rpartition(":")[2]
    split = split or default
    if name == "real" and dataset.partition("/")[0] == "imagenet2012_real":
        if labels is not None:
            raise ValueError(
                "Expected no labels with imagenet2012_real, which contains them. "
                f"Received: labels={str(labels)!r}"
            )
        return _task(name, _Real(prepared(dataset, dataset), split))
    if name == "real" and labels is None:
        raise _no_labels(spec)
    read_from = f"{dataset}:{split}".partition("[")[0]
    if name == "real" and read_from != "imagenet2012:validation":
        raise ValueError(
            "Expected imagenet2012:validation, which the labels belong to. Received: "
            f"data={str(spec)!r}"
        )
    read = open_source(f"{dataset}:{split}/{split}").test
    if not isinstance(read, TFDS):
        raise ValueError(
            f"Expected a TFDS name or a folder for {name!r}. Received: "
            f"data={str(spec)!r}"
        )
    if name == "real":
        return _task(name, _numbered(read.builder, split), answers=_real(labels))
    found = tuple(read.builder.info.features["label"].names)
    if found != imagenet_classes.wnids():
        raise ValueError(
            f"Expected ImageNet's 1,000 wnids as labels. Received: {spec!r} with "
            f"{len(found)} classes; the first is {found[0]!r}"
        )
    return _task(name, read)


def _numbered(builder: Any, split: str) -> TFDS:
    """Returns ImageNet's validation images with their number, from 0, as label."""
    labelling = Labelling(
        name="number",
        classes=VALIDATION_IMAGES,
        features=("file_name",),
        label=_number,
    )
    return TFDS(builder, split, labelling)


def _number(record: dict[str, Any]) -> Any:
    name = record["file_name"]
    digits = tf.strings.regex_replace(name, r"^.*_(\d{8})\..*$", r"\1")
    return tf.strings.to_number(digits, tf.int64) - 1


class _Real(TFDS):
    """Images of imagenet2012_real with the correct answers, bool [1000]."""

    def __init__(self, builder: Any, spec: str) -> None:
        labelling = Labelling(
            name="real_label", classes=1000, features=("real_label",), label=_any_of
        )
        super().__init__(builder, spec, labelling)

    def item(self, handle: Any) -> dict[str, Any]:
        return {"image": handle["image"], "label": _any_of(handle)}


def _any_of(record: dict[str, Any]) -> Any:
    one_hot = tf.one_hot(record["real_label"], 1000, on_value=True, off_value=False)
    return tf.reduce_any(one_hot, axis=0)


# ReaL's labels.


def _no_labels(data: Any) -> ValueError:
    return ValueError(
        "Expected labels for 'real': the file real.json of github.com/google-research/"
        f"reassessed-imagenet. Received: data={str(data)!r} without labels"
    )


def _real(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads the file real.json as bool [50000, 1000]."""
    law = (
        f"Expected a list of {VALIDATION_IMAGES:,} lists of labels from 0 to 999, for "
        "ILSVRC2012_val_00000001 and so on (real.json of google-research/"
        f"reassessed-imagenet). Received: {str(path)!r}"
    )
    try:
        lists = parse_json(read_bytes(path))
    except OSError as error:
        raise ValueError(f"{law}, {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{law}, which is not JSON ({error})") from error
    if not isinstance(lists, list) or len(lists) != VALIDATION_IMAGES:
        received = (
            f"{len(lists):,}" if isinstance(lists, list) else type(lists).__name__
        )
        raise ValueError(f"{law} with {received}")
    answers = np.zeros((VALIDATION_IMAGES, 1000), bool)
    for place, right in enumerate(lists):
        if not isinstance(right, list) or not all(
            type(label) is int and 0 <= label < 1000 for label in right
        ):
            raise ValueError(f"{law} with {str(right)[:40]} at position {place}")
        answers[place, right] = True
    return answers


# From folders.


def _folder(name: str, spec: Any, labels: Any, on_corrupt: str) -> Task:
    root = Path(spec)
    if name == "objectnet":
        return _objectnet(root, on_corrupt)
    if name == "real":
        if labels is None:
            raise _no_labels(spec)
        return _real_folder(root, _real(labels), on_corrupt)
    folders = {
        folder: number
        for folder in sorted(root.iterdir())
        if (number := _class_number(folder)) is not None
    }
    if not folders:
        raise ValueError(
            "Expected class folders by wnid (n01440764) or number (0 to 999). "
            f"Received: {str(root)!r} without any"
        )
    known = SETS[name].outputs or range(1000)
    strangers = [
        folder.name for folder, number in folders.items() if number not in known
    ]
    if strangers:
        raise ValueError(
            f"Expected folders of the {len(known)} classes of {SETS[name].name}. "
            f"Received: {', '.join(strangers[:5])} in {str(root)!r}"
        )
    split = _arrays(folders, imagenet_classes.names(), on_corrupt)
    return _task(name, split)


def _class_number(folder: Path) -> int | None:
    """Returns the class of a folder by wnid or number; None for any other name."""
    if not folder.is_dir():
        return None
    if folder.name.isdecimal() and int(folder.name) < 1000:
        return int(folder.name)
    wnids = imagenet_classes.wnids()
    return wnids.index(folder.name) if folder.name in wnids else None


def _arrays(
    folders: dict[Path, int],
    classes: tuple[str, ...],
    on_corrupt: str,
    kind: type[Arrays] = Arrays,
) -> Arrays:
    files = [
        (str(file), label)
        for folder, label in folders.items()
        for file in image_files(folder)
    ]
    if not files:
        raise ValueError(
            f"Expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in the class "
            f"folders. Received: {str(next(iter(folders)).parent)!r} without any"
        )
    names, labels = zip(*files, strict=True)
    return kind(*check_images(list(names), np.array(labels), classes, on_corrupt))


def _real_folder(root: Path, answers: np.ndarray, on_corrupt: str) -> Task:
    files = image_files(root)
    numbers = [_NUMBERED.fullmatch(file.name) for file in files]
    strangers = [f.name for f, n in zip(files, numbers, strict=True) if n is None]
    places = [int(number[1]) - 1 for number in numbers if number]
    outside = any(not 0 <= place < VALIDATION_IMAGES for place in places)
    if not files or strangers or outside or len(set(places)) < len(places):
        received = strangers[:1] or ["a duplicate number" if files else "no images"]
        raise ValueError(
            "Expected ImageNet's validation images by their names, "
            "ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG, all unique. "
            f"Received: {str(root)!r} with {received[0]}"
        )
    by_number = sorted(zip(places, map(str, files), strict=True))
    labels, names = zip(*by_number, strict=True)
    checked = check_images(list(names), np.array(labels), (), on_corrupt)
    return _task("real", Arrays(*checked), answers=answers)


class _Bordered(Arrays):
    """ObjectNet's images, with a red border of 2 pixels that is removed."""

    border = 2  # abarbu/objectnet-template-pytorch, objectnet_pytorch_dataloader.py.

    def item(self, handle: Any) -> dict[str, Any]:
        item, b = super().item(handle), self.border
        return item | {"image": preprocessing.decode(item["image"])[b:-b, b:-b]}

    def fingerprint_as_read(self) -> str:
        read = f"{super().fingerprint_as_read()} without a border of {self.border}"
        return hashlib.sha256(read.encode()).hexdigest()


def _objectnet(root: Path, on_corrupt: str) -> Task:
    images = root / "images" if (root / "images").is_dir() else root
    mapping = imagenet_classes.OBJECTNET
    classes = tuple(mapping)
    folders = {
        images / name: number
        for number, name in enumerate(classes)
        if (images / name).is_dir()
    }
    if not folders:
        raise ValueError(
            "Expected folders of ObjectNet that correspond to ImageNet classes: "
            f"{', '.join(classes[:3])}, ... Received: {str(images)!r} without any"
        )
    class_of_output = np.full(1000, -1)
    for number, outputs in enumerate(mapping.values()):
        class_of_output[list(outputs)] = number
    return Task(
        name=SETS["objectnet"].name,
        split=_arrays(folders, classes, on_corrupt, _Bordered),
        classes=classes,
        model_outputs=1000,
        class_of_output=class_of_output,
        border=_Bordered.border,
        calibrates=False,  # Its license forbids "to tune the parameters of any model".
    )
