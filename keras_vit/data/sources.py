"""Opens data sources: folders (also packed ones), .npz files, the digits, and TFDS.

A `Source` has class names, a training `Split` and, if there is a test set, a test
`Split`.
"""

import collections
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_vit._version import pip_install
from keras_vit.arguments import counted
from keras_vit.callers import warn
from keras_vit.data import decoding, packed, vtab
from keras_vit.data.progress import in_threads
from keras_vit.data.source import Source
from keras_vit.data.splits import Arrays
from keras_vit.data.tfds_builders import prepared, tfds_source
from keras_vit.files import (
    BROKEN_ZIP,
    IMAGE_SUFFIXES,
    files_below,
    may_wait,
    printable,
)

__all__ = ["Source", "open_source"]

TEST_FOLDERS = ("test", "val", "valid", "validation")
SPLIT_NAMES = {"train", "training", "testing", *TEST_FOLDERS}
TEST_SHARE = 0.2  # For a source without a test set.
MOST_CLASSES = 2**20  # 48 times ImageNet-21k's, so that an array of names stays small.
UNLABELLED = (".",)  # Without labels, the folder itself is the only class.


def open_source(
    spec: str | os.PathLike[str],
    *,
    seed: int = 0,
    on_corrupt: Literal["stop", "skip"] = "stop",
    labels: bool = True,
) -> Source:
    """Opens a data set by name: a folder, a file, or a TFDS data set (4.1).

    Args:
        spec: a folder with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`, or with
            `CLASS/*.jpg` (then a fifth of every class is the test set); a folder
            written by `keras-vit data pack`; an `.npz` with `x_train`, `y_train`,
            `x_test`, `y_test` and optionally `classes`; "digits"; a task of VTAB-1k
            such as "vtab:dtd" (see `data.vtab`); or a TFDS name with or without splits:
            "cifar10", "cifar10:train[:98%]/test".
        seed: seed for drawing the test set, if the source has none.
        on_corrupt: handling of unreadable images of a folder, packed or not: "stop"
            raises, "skip" leaves them out. Both list them.
        labels: False reads every image below a folder, in class folders or not, or an
            npz without labels, for training without labels (4.6).

    Returns:
        A `Source`. Without a test set, an npz is divided like a folder.

    Raises:
        ValueError: if there is no such source, or it cannot be used for training.
        ImportError: without scikit-learn for "digits", tensorflow_datasets for a TFDS
            name, or a package that TFDS requires to prepare it.
    """
    if on_corrupt not in ("stop", "skip"):
        raise ValueError(
            f"Expected on_corrupt 'stop' or 'skip'. Received: on_corrupt={on_corrupt!r}"
        )
    if not isinstance(spec, str | os.PathLike):
        raise ValueError(
            "Expected a folder, an .npz, 'digits' or a TFDS name. Received: "
            f"{type(spec).__name__}. Convert arrays to batches with "
            "tf.data.Dataset.from_tensor_slices((images, labels)).batch(B)"
        )
    path = Path(spec)
    if path.is_dir() and packed.is_packed(path):
        return _packed(path, on_corrupt)
    if path.is_dir():
        return _folder(path, seed, on_corrupt, labels)
    if path.is_file():
        return _npz(path, seed, labels)
    name = str(spec)
    if name == "digits":
        return _digits(seed)
    if name.startswith("vtab:"):
        return vtab.open_task(name.removeprefix("vtab:"))
    is_path = name.startswith((".", "~", os.sep)) or name.endswith(os.sep)
    if is_path or path.suffix in (".npz", ".zip", ".tar", ".gz"):
        raise ValueError(
            f"Expected a folder or an .npz that exists. Received: {name!r}, in "
            f"{str(Path.cwd())!r}. Check the spelling"
        )
    return _tfds(name)


def _folder(path: Path, seed: int, on_corrupt: str, labelled: bool) -> Source:
    train, test = path / "train", _test_folder(path)
    if labelled:
        _check_split_names(path)
    if not train.is_dir():
        classes = _classes(path, labelled)
        files, labels = _files(path, classes)
        whole = Arrays(*check_images(files, labels, classes, on_corrupt))
        return _divided(str(path), classes, whole, seed, len(files) - len(whole))
    classes = _classes(train, labelled)
    files, labels = _files(train, classes)
    trained = _folders_of(files)
    split = Arrays(*check_images(files, labels, classes, on_corrupt))
    left_out = len(files) - len(split)
    if test is None:
        return Source(str(path), classes, split, None, left_out)
    present = _classes(test, labelled, least=1)
    unknown = set(present) - set(classes)
    if unknown:
        raise ValueError(
            "Expected test classes among the training classes. Received: "
            f"{', '.join(sorted(unknown))} only in {str(test)!r}. Add training "
            "images of them, or rename the folders as in train"
        )
    files, places = _files(test, present)
    _check_apart(train, trained, _folders_of(files))
    labels = np.array([classes.index(name) for name in present])[places]
    tested = Arrays(*check_images(files, labels, classes, on_corrupt))
    left_out += len(files) - len(tested)
    return Source(str(path), classes, split, tested, left_out)


def _divided(
    name: str, classes: tuple[str, ...], whole: Arrays, seed: int, left_out: int = 0
) -> Source:
    """Returns a source whose test images are a share of each class."""
    train, test = whole.split(TEST_SHARE, seed)
    return Source(name, classes, train, test, left_out, draws_test=True)


def _check_split_names(path: Path) -> None:
    """Raises for training or test images under other names, which would be classes."""
    splits = [
        at.name
        for at in sorted(path.iterdir())
        if at.name.lower() in SPLIT_NAMES
        and at.is_dir()
        and any(inner.is_dir() for inner in at.iterdir())
    ]
    known = "train" in splits and (len(splits) == 1 or {*splits} & {*TEST_FOLDERS})
    if splits and not known:
        raise ValueError(
            "Expected folders of classes, or train and one of "
            f"{', '.join(TEST_FOLDERS)} with folders of classes. Received: "
            f"{str(path)!r} with {' and '.join(splits)}. Rename them, or put all class "
            "folders directly into the folder"
        )


def _folders_of(files: list[str]) -> dict[str, str]:
    """Returns the folders of files: by the path without links, as they were found."""
    found = dict.fromkeys(map(os.path.dirname, files))
    return {os.path.realpath(folder): folder for folder in found}


def _check_apart(train: Path, trained: dict[str, str], tested: dict[str, str]) -> None:
    """Raises if test images are training images because of a symbolic link."""
    for real, folder in tested.items():
        if real in trained:
            raise ValueError(
                "Expected test images that are not training images. Received: "
                f"{folder!r}, which is {trained[real]!r} because of a symbolic link to "
                f"a folder of {str(train)!r}. Delete the link. Without a test folder "
                "and 'train' a fifth of every class is the test set"
            )


def _test_folder(path: Path) -> Path | None:
    return next((path / n for n in TEST_FOLDERS if (path / n).is_dir()), None)


def _classes(path: Path, labelled: bool, least: int = 2) -> tuple[str, ...]:
    """Returns the names of the class folders of `path`."""
    if not labelled:
        return UNLABELLED
    for link in sorted(path.iterdir()):
        if link.is_symlink() and not link.exists():
            raise ValueError(
                "Expected links to folders that exist. Received: "
                f"{str(link)!r}, a link to {os.readlink(link)!r}. Mount its disk, or "
                "delete the link"
            )
    classes = tuple(
        sorted(p.name for p in path.iterdir() if p.is_dir() and p.name[0] != ".")
    )
    check_names(classes, str(path))
    if len(classes) < least:
        raise ValueError(
            f"Expected at least {least} class folders. Received: "
            f"{str(path)!r} with {', '.join(classes) or 'none'}. Put the images of "
            "each class into a folder with its name"
        )
    return classes


def image_files(folder: Path) -> list[Path]:
    """Returns every image below a folder by its suffix; leaves out hidden files.

    Raises:
        ValueError: for a named pipe, a socket or a device, which may never end.
    """
    return _images_among(files_below(folder))


def _images_among(files: list[Path]) -> list[Path]:
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    for file in images:
        if may_wait(file):
            raise ValueError(
                "Expected regular files. Received: "
                f"{printable(file)}, a named pipe, a socket or a device. Move it away"
            )
    return images


def _is_utf8(name: str) -> bool:
    """Returns whether a name is UTF-8; Python keeps invalid bytes as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_names(classes: Sequence[str], where: str) -> None:
    """Raises if two classes have the same name, or a name cannot be printed."""
    twice = sorted(name for name, n in collections.Counter(classes).items() if n > 1)
    if twice:
        raise ValueError(
            f"Expected distinct class names. Received: {where} with "
            f"{len(classes)} classes, {twice[0]!r} more than once. Rename one of them"
        )
    odd = [name for name in classes if not name.isprintable()]
    if odd:
        raise ValueError(
            "Expected class names in UTF-8, without control characters. Received: "
            f"{where} with {odd[0]!r}. Rename it"
        )


def _files(path: Path, classes: tuple[str, ...]) -> tuple[list[str], np.ndarray]:
    """Returns every image of the class folders, and its label."""
    files: list[str] = []
    labels: list[int] = []
    ignored: list[Path] = []
    loose = classes != UNLABELLED and [
        file
        for file in sorted(path.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES
        and file.name[0] != "."
        and file.is_file()
    ]
    if loose:
        warn(
            f"left out {counted(len(loose), 'image')} of {printable(path)} outside of "
            f"class folders; the first is {printable(loose[0])}",
        )
    owners: dict[str, str] = {}
    for label, name in enumerate(classes):
        folder = path / name
        members = files_below(folder)
        images = _images_among(members)
        ignored += [p for p in members if p.suffix.lower() not in IMAGE_SUFFIXES]
        if not images:
            raise ValueError(
                f"Expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in every class "
                f"folder. Received: {str(folder)!r} without any. Add images or "
                "delete the folder"
            )
        for real, found in _folders_of(list(map(str, images))).items():
            same = owners.setdefault(real, name)
            if same != name:
                raise ValueError(
                    "Expected a separate folder for every class. Received: "
                    f"{name!r} and {same!r} in {str(path)!r}, which share one folder "
                    f"because of a symbolic link: {printable(found)}. Delete one of "
                    "them"
                )
        files += map(str, images)
        labels += [label] * len(images)
    if ignored:
        warn(
            f"left out {counted(len(ignored), 'file')} of {printable(path)} without "
            f"the suffix of an image; the first is {printable(ignored[0])}",
        )
    return files, np.array(labels)


def check_images(
    files: list[str],
    labels: np.ndarray,
    classes: tuple[str, ...],
    on_corrupt: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Decodes every file once, so that training does not fail on a damaged one.

    Returns:
        The readable files and their labels.

    Raises:
        ValueError: if files are unreadable, unless `on_corrupt` is "skip"; if a class
            has no readable file; or if a name is not UTF-8.
    """
    if foreign := [file for file in files if not _is_utf8(file)]:
        raise ValueError(
            "Expected file names in UTF-8, as TensorFlow reads them. Received: "
            f"{printable(foreign[0])}. Rename the file"
        )
    reasons = list(in_threads(_reason, files, "checking images"))
    readable = np.array([found is None for found in reasons])
    bad = [
        f"{printable(file)} ({found})"
        for file, found in zip(files, reasons, strict=True)
        if found is not None
    ]
    if not bad:
        return np.array(files), labels
    listed = ", ".join(bad[:10]) + (", ..." if len(bad) > 10 else "")
    if on_corrupt == "stop":
        raise ValueError(
            f"Expected readable images. Received: {len(bad)} of "
            f"{counted(len(files), 'file')} that cannot be decoded: {listed}. "
            "Repair or delete them, or skip them with --on-corrupt skip "
            "(on_corrupt='skip')"
        )
    warn(f"left out {counted(len(bad), 'unreadable image')}: {listed}")
    left = collections.Counter(labels[readable].tolist())
    for label, name in enumerate(classes):
        count = int((labels == label).sum())
        if count and not left[label]:
            raise ValueError(
                "Expected a readable image in every class. Received: class "
                f"{name!r} with {counted(int(count), 'file')}, none of them "
                "readable. Add readable images or delete the class"
            )
    return np.array(files)[readable], labels[readable]


@tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
def _decoded_size(file: tf.Tensor) -> tf.Tensor:
    with tf.device("CPU"):
        return tf.size(decoding.decode(tf.io.read_file(file)))


def _reason(file: str) -> str | None:
    """Returns the reason why a file cannot be decoded; None if it can."""
    try:
        _decoded_size(tf.constant(file))
        return None
    except tf.errors.OpError:
        pass  # The bytes say why.
    try:
        encoded = Path(file).read_bytes()
    except OSError as error:
        return error.strerror or str(error)
    return decoding.reason(encoded) or "it has changed in the meantime"


def _packed(path: Path, on_corrupt: Literal["stop", "skip"]) -> Source:
    classes, found, left_out = packed.open_packed(path, on_corrupt)
    return Source(str(path), classes, found["train"], found.get("test"), left_out)


def _npz(path: Path, seed: int, labelled: bool) -> Source:
    arrays = _plain_arrays(path)
    if not labelled:
        arrays |= _without_labels(arrays)
    if "images" in arrays and "labels" in arrays:
        arrays["x_train"], arrays["y_train"] = arrays["images"], arrays["labels"]
    missing = {"x_train", "y_train"} - set(arrays)
    if not missing and ("x_test" in arrays) != ("y_test" in arrays):
        missing = {"x_test", "y_test"} - set(arrays)
    if missing:
        raise ValueError(
            "Expected x_train and y_train (or images and labels) and, if there is a "
            f"test set, x_test and y_test. Received: {str(path)!r} with "
            f"{', '.join(sorted(arrays)) or 'nothing'}. Add "
            f"{' and '.join(sorted(missing))}"
        )
    train = _labelled(arrays["x_train"], arrays["y_train"], f"{path}: train")
    test: Arrays | None = None
    if "x_test" in arrays:
        test = _labelled(arrays["x_test"], arrays["y_test"], f"{path}: test")
    classes = _npz_classes(arrays, train, path)
    for split in filter(None, (train, test)):
        low, high = split.labels.min(), split.labels.max()
        if low < 0 or high >= len(classes) or (labelled and len(classes) < 2):
            raise ValueError(
                "Expected at least two classes, and labels from 0 to the number of "
                f"classes - 1. Received: {str(path)!r} with {len(classes)} classes and "
                f"labels from {low} to {high}. Renumber the labels from 0"
            )
    if test is None:
        return _divided(str(path), classes, train, seed)
    return Source(str(path), classes, train, test)


def _npz_classes(
    arrays: dict[str, np.ndarray], train: Arrays, path: Path
) -> tuple[str, ...]:
    """Returns the names in the file, or the labels' numbers."""
    highest = int(train.labels.max())
    if "classes" not in arrays and highest >= MOST_CLASSES:
        raise ValueError(
            f"Expected labels below {MOST_CLASSES}. Received: {str(path)!r} with the "
            f"label {highest}. Renumber the labels from 0"
        )
    names = arrays.get("classes", np.arange(max(highest + 1, 0)))
    classes = tuple(str(name) for name in names.reshape(-1))
    check_names(classes, str(path))
    return classes


def _without_labels(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds labels of a single class for the images."""
    result = {"classes": np.array(UNLABELLED)}
    pairs = (("images", "labels"), ("x_train", "y_train"), ("x_test", "y_test"))
    for images, labels in pairs:
        if images in arrays and arrays[images].ndim:
            result[labels] = np.zeros(len(arrays[images]), np.int64)
    return result


def _plain_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it contains a single array")
            return {key: file[key] for key in file.files}
    except (*BROKEN_ZIP, OSError) as error:
        raise ValueError(
            "Expected an .npz of plain arrays (pickled objects are never loaded). "
            f"Received: {str(path)!r} ({error}). Write it with numpy.savez"
        ) from error


def _labelled(images: np.ndarray, labels: np.ndarray, where: str) -> Arrays:
    labels = labels.reshape(-1) if labels.shape == (len(images), 1) else labels
    images = images[..., None] if images.ndim == 3 else images
    if (
        images.dtype != np.uint8
        or images.ndim != 4
        or labels.shape != (len(images),)
        or not np.issubdtype(labels.dtype, np.integer)
        or not images.size  # No images, or images without pixels.
    ):
        raise ValueError(
            "Expected uint8 images [N, H, W, C] and integer labels [N]. Received: "
            f"{where} with images {images.dtype} {images.shape}, labels "
            f"{labels.dtype} {labels.shape}. Images are stored as 0..255, not scaled"
        )
    if (highest := int(labels.max())) >= 2**63:  # From uint64; Arrays has int64.
        raise ValueError(
            f"Expected labels below {MOST_CLASSES}. Received: {where} with the label "
            f"{highest}. Renumber the labels from 0"
        )
    return Arrays(images, labels)


def _digits(seed: int) -> Source:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"Expected scikit-learn for its digits. Run {pip_install('demo')}"
        ) from error
    digits = load_digits()
    gray = np.round(digits.images * (255 / 16)).astype(np.uint8)  # 0..16 in the file.
    whole = Arrays(gray[..., None], digits.target)
    return _divided("digits", tuple("0123456789"), whole, seed)


def _tfds(name: str) -> Source:
    dataset, _, splits = name.partition(":")
    train, _, test = (splits or "train/test").partition("/")
    builder = prepared(dataset, name)
    return tfds_source(builder, name, train, test, any_test=not splits)
