"""Frozen features: what a head reads of every image (4.1), streamed into one array.

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
from keras_vit.models.transfer import read_by
from keras_vit.models.vision import preprocessing_of

__all__ = ["Features", "backbone", "extract", "gather"]


class ExtractOptions(TypedDict, total=False):
    """Keyword arguments that `gather` and the probes pass on to `extract` (4.1)."""

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
        classes: names of the K classes; by default the numbers up to the training
            images' last one.

    Raises:
        ValueError: if a shape, a label or a feature is impossible, or there are fewer
            than two classes.
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
                "Expected training and test features of one width. Received: "
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
            "Expected two classes or more. Received: "
            f"{', '.join(classes) or 'none'} alone"
        )


def _check_labels(name: str, labels: np.ndarray, classes: Sequence[str]) -> None:
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"Expected labels from 0 to {len(classes) - 1}, of the training images' "
            f"classes. Received: {name} from {labels.min()} to {labels.max()}"
        )


def _check_arrays(name: str, x: Any, y: Any) -> None:
    """Raises for anything but finite features [N, D] and their labels [N]."""
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
            "Expected float features [N, D] and integer labels [N], NumPy arrays. "
            f"Received: {name}_x {x_told}, {name}_y {y_told}"
        )
    bad = first_not_finite(x)
    if bad is not None:
        raise ValueError(
            f"Expected finite features. Received: NaN or infinity in {name}_x[{bad}]"
        )


def backbone(model: keras.Model) -> keras.Model:
    """From images to what a head reads (Equation 4): [B, H, W, C] -> [B, D].

    That is the input of the layer named `head` (with `pre_logits`, what comes after it,
    as big_vision's few-shot evaluation takes), or the output of a model without one.

    Args:
        model: functional, of one input and one output.

    Raises:
        ValueError: if the model is another, what the head reads is not [B, D], or the
            model gives probabilities.
    """
    if len(getattr(model, "inputs", None) or ()) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "Expected a functional model of one input and one output. Received: "
            f"model={model.name!r}. Wrap it: keras.Model(IMAGES, FEATURES)"
        )
    read = read_by(model, "head")
    features = model.outputs[0] if read is None else read
    last = getattr(model.layers[-1], "activation", None)
    probabilities = (keras.activations.softmax, keras.activations.sigmoid)
    told = f"{features.shape}"
    if read is None and last in probabilities:
        told += f", the {last.__name__} of {model.layers[-1].name!r}"
    elif len(features.shape) == 2 and features.shape[-1] is not None:
        if read is None:
            return model
        return keras.Model(model.inputs[0], read, name=model.name)
    remedies = {
        3: "include_top=False, pooling='token' gives the class token's; so does "
        "keras_vit.from_checkpoint(FILE, classifier='token')",
        4: "include_top=False, pooling='avg' gives their mean",
    }
    remedy = remedies.get(len(features.shape), "keras.Model(IMAGES, FEATURES) does")
    raise ValueError(
        "Expected a model that ends in features [B, D], or in a layer named 'head' "
        f"that reads them. Received: model={model.name!r} with {told}. {remedy}"
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
    """Features of every image of a split (4.1): images [N] -> ([N, D], labels [N]).

    Images are read, resized and forgotten by the batch, on any Keras backend. Features
    are kept on disk: for the same images and the same model no image is read again.
    `KERAS_VIT_CACHE_BYTES` bounds what is kept; 0 keeps none.

    Args:
        model: as `backbone` takes.
        split: a split of a `Source`, e.g. `source.train`.
        preprocessing: how images become input; default: the model's own, which a model
            that is not a `VisionModel` does not have (then the paper's).
        batch_size: images that are in the model at a time.
        before_crop: (H, W) that images are resized to before the middle is cut out, as
            big_vision's few-shot evaluation does with (256, 256) for 224 pixels; None
            resizes to the model's size, as everywhere else here.
        verbose: whether to show progress on a terminal.

    Returns:
        Features, float32 [N, D], and labels, int64 [N], in the split's order.

    Raises:
        ValueError: if a feature is NaN or infinite, naming the image's index; if the
            model does not give features or its image size is not known.
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
    """What `extract` reads, before anything is computed."""
    network = backbone(model)
    size, channels = network.input_shape[1:3], network.input_shape[-1]
    if None in (*size, channels):
        raise ValueError(
            "Expected a model of images of a known size. Received: "
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
    """The images of what `data.open_source` takes, or ready features.

    Raises:
        ValueError: without test images, or with features that cannot be.
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
            f"Expected a data set with test images. Received: {source.name!r}, without"
        )
    _check_classes(source.classes)
    for name, split in (("train", source.train), ("test", source.test)):
        if not len(split):
            raise ValueError(
                f"Expected images to read. Received: {source.name!r}, {name}: none"
            )
        if isinstance(split, Indexed):
            _check_labels(f"{source.name!r}, {name}:", split.labels, source.classes)
    return source


def known_labels(data: sources.Source | Features) -> np.ndarray | None:
    """The training images' labels; None of a stream, which has to be read first."""
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
    """Features of a source's training and test images, or those that are ready (4.1).

    Args:
        model: as `backbone` takes; None with ready features.
        data: what `data.open_source` takes, a `Source`, `Features`, or a tuple of their
            four arrays.
        verbose: whether to show progress on a terminal.
        **options: see `extract`.

    Returns:
        `Features` of N training and M test images.

    Raises:
        ValueError: without test images, with features that cannot be, or with both a
            model and ready features, or neither.
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
