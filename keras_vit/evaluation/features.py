"""Computes frozen features: the input of a model's head for every image (4.1).

Glossary of shapes: N images, D the features' width.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import keras
import numpy as np

from keras_vit.data import sources
from keras_vit.data.preprocessing import Size
from keras_vit.data.splits import Indexed, Split
from keras_vit.facts import Preprocessing
from keras_vit.features import FrozenFeatures, first_not_finite
from keras_vit.models.outputs import gives_probabilities, last_activation
from keras_vit.models.transfer import read_by
from keras_vit.models.vision import preprocessing_of

__all__ = ["Features", "backbone", "extract", "gather"]


class ExtractOptions(TypedDict, total=False):
    """Keyword arguments that `gather` and the probes pass to `extract` (4.1)."""

    preprocessing: Preprocessing | None
    batch_size: int
    before_crop: Size | None


@dataclasses.dataclass(frozen=True)
class Features:
    """Features and labels of training and test images (4.1).

    Attributes:
        train_x: [N, D], float.
        train_y: int [N], labels in [0, K).
        test_x: [M, D], float.
        test_y: int [M], labels in [0, K).
        classes: names of the K classes [default: the numbers up to the highest training
            label].

    Raises:
        ValueError: if a shape, a label or a feature is invalid, or there are fewer than
            two classes.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            _check_arrays(name, getattr(self, f"{name}_x"), getattr(self, f"{name}_y"))
        if self.train_x.shape[1] != self.test_x.shape[1]:
            raise ValueError(
                "Expected training and test features of the same width. Received: "
                f"train_x {self.train_x.shape}, test_x {self.test_x.shape}"
            )
        if not self.classes:
            names = tuple(map(str, range(int(self.train_y.max()) + 1)))
            object.__setattr__(self, "classes", names)
        _check_classes(self.classes)
        for name in ("train", "test"):
            _check_labels(f"{name}_y", getattr(self, f"{name}_y"), self.classes)


def _check_classes(classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise ValueError(
            f"Expected at least two classes. Received: {', '.join(classes) or 'none'}"
        )


def _check_labels(name: str, labels: np.ndarray, classes: Sequence[str]) -> None:
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"Expected labels from 0 to {len(classes) - 1}, the training images' "
            f"classes. Received: {name} from {labels.min()} to {labels.max()}"
        )


def _check_arrays(name: str, x: Any, y: Any) -> None:
    """Raises unless these are finite features [N, D] and their labels [N]."""
    x_told, y_told = (
        f"{array.dtype} {array.shape}"
        if isinstance(array, np.ndarray)
        else type(array).__name__
        for array in (x, y)
    )
    fits = (
        isinstance(x, np.ndarray)
        and isinstance(y, np.ndarray)
        and np.issubdtype(x.dtype, np.floating)
        and np.issubdtype(y.dtype, np.integer)
        and x.ndim == 2
        and y.shape == x.shape[:1]
        and x.size > 0
    )
    if not fits:
        raise ValueError(
            "Expected NumPy arrays, float features [N, D] and integer labels [N]. "
            f"Received: {name}_x {x_told}, {name}_y {y_told}"
        )
    bad = first_not_finite(x)
    if bad is not None:
        raise ValueError(
            f"Expected finite features. Received: NaN or infinity in {name}_x[{bad}]"
        )


def backbone(model: keras.Model) -> keras.Model:
    """Returns the model up to its head's input (Equation 4): [B, H, W, C] -> [B, D].

    The head's input is the input of the layer named `head` (with `pre_logits`, the
    output of that, as in big_vision's few-shot evaluation). Without a head it is the
    model's output.

    Args:
        model: functional, with one input and one output.

    Raises:
        ValueError: if the model is of a different kind, the head's input is not [B, D],
            or the model returns probabilities.
    """
    if len(getattr(model, "inputs", None) or ()) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "Expected a functional model with one input and one output. Received: "
            f"model={model.name!r}. Wrap it: keras.Model(IMAGES, FEATURES)"
        )
    read = read_by(model, "head")
    features = model.outputs[0] if read is None else read
    description = f"{features.shape}"
    if read is None and gives_probabilities(model):
        description += f", the output of a {last_activation(model)}"
    elif len(features.shape) == 2 and features.shape[-1] is not None:
        if read is None:
            return model
        return keras.Model(model.inputs[0], read, name=model.name)
    remedies = {
        3: "For the class token, use include_top=False, pooling='token', or "
        "keras_vit.from_checkpoint(FILE, classifier='token')",
        4: "For their mean, use include_top=False, pooling='avg'",
    }
    remedy = remedies.get(len(features.shape), "Use keras.Model(IMAGES, FEATURES)")
    raise ValueError(
        "Expected a model that ends in features [B, D], or in a layer named 'head' "
        f"that reads them. Received: model={model.name!r} with {description}. {remedy}"
    )


def extract(
    model: keras.Model,
    split: Split,
    *,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 32,
    before_crop: Size | None = None,
    verbose: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes features of every image of a split (4.1): -> ([N, D], labels [N]).

    Images are read and resized batch by batch, on any Keras backend. Features are
    stored on disk; for the same images and the same model no image is read again.
    `KERAS_VIT_CACHE_BYTES` limits the disk space; 0 disables the cache.

    Args:
        model: see `backbone`.
        split: split of a `Source`, e.g. `source.train`.
        preprocessing: scaling of the images [default: the model's; the paper's for a
            model that is not a `VisionModel`].
        batch_size: images in the model at a time.
        before_crop: (H, W) that images are resized to before the center crop, as
            big_vision's few-shot evaluation does with (256, 256) for 224 pixels; None
            resizes to the model's size, the default of this library.
        verbose: whether to show progress on a terminal.

    Returns:
        Features, float32 [N, D], and labels, int64 [N], in the split's order.

    Raises:
        ValueError: if a feature is NaN or infinite, with the image's index; if the
            model does not return features or its image size is unknown.
    """
    return frozen(
        model,
        split,
        preprocessing=preprocessing,
        batch_size=batch_size,
        before_crop=before_crop,
    ).read(verbose)


def frozen(
    model: keras.Model,
    split: Split,
    *,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 32,
    before_crop: Size | None = None,
) -> FrozenFeatures:
    """Returns the features of `extract` before they are computed."""
    network = backbone(model)
    size, channels = network.input_shape[1:3], network.input_shape[-1]
    if None in (*size, channels):
        raise ValueError(
            "Expected a model with a fixed image size. Received: "
            f"model={model.name!r} with input {network.input_shape}"
        )
    preprocessing = preprocessing_of(model, preprocessing)
    return FrozenFeatures(
        network=network,
        split=split,
        preprocessing=preprocessing,
        batch_size=batch_size,
        before_crop=before_crop,
    )


def opened(data: Any) -> sources.Source | Features:
    """Opens images, as `data.open_source`, or checks ready features.

    Raises:
        ValueError: without test images, or with invalid features.
    """
    if isinstance(data, Features):
        return data
    if isinstance(data, tuple | list):
        if len(data) != 4:
            raise ValueError(
                "Expected the four arrays train_x, train_y, test_x, test_y. Received: "
                f"{len(data)} of them"
            )
        return Features(*data)
    source = data if isinstance(data, sources.Source) else sources.open_source(data)
    if source.test is None:
        raise ValueError(
            f"Expected a data set with test images. Received: {source.name!r} without"
        )
    _check_classes(source.classes)
    for name, split in (("train", source.train), ("test", source.test)):
        if not len(split):
            raise ValueError(
                f"Expected images to read. Received: {source.name!r}, {name} is empty"
            )
        if isinstance(split, Indexed):
            _check_labels(f"{source.name!r}, {name}:", split.labels, source.classes)
    return source


def known_labels(data: sources.Source | Features) -> np.ndarray | None:
    """Returns the training images' labels; None for a stream, which must be read."""
    if isinstance(data, Features):
        return data.train_y
    return data.train.labels if isinstance(data.train, Indexed) else None


def gather(
    model: keras.Model | None,
    data: Any,
    *,
    verbose: bool = True,
    **options: Unpack[ExtractOptions],
) -> Features:
    """Returns features of a source's training and test images, or ready ones (4.1).

    Args:
        model: see `backbone`; None with ready features.
        data: argument of `data.open_source`, a `Source`, `Features`, or a tuple of
            their four arrays.
        verbose: whether to show progress on a terminal.
        **options: see `extract`.

    Returns:
        `Features` of N training and M test images.

    Raises:
        ValueError: without test images, with invalid features, or with both a model
            and ready features, or neither.
        ImportError: see `data.open_source`.
    """
    data = opened(data)
    if isinstance(data, Features) and model is None:
        return data
    if isinstance(data, Features) or model is None:
        raise ValueError(
            "Expected a model and images, or None and ready features. Received: "
            f"model={model if model is None else model.name!r}, data of type "
            f"{type(data).__name__}"
        )
    network = backbone(model)
    train = extract(network, data.train, verbose=verbose, **options)
    test = extract(network, data.test, verbose=verbose, **options)
    return Features(*train, *test, classes=tuple(data.classes))
