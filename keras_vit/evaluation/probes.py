"""Further measures of frozen features: nearest neighbors and a linear classifier.

Unlike section 4.1's, they are from DINO (neighbors) and scikit-learn (classifier).

Glossary of shapes: N training and M test images, D the features' width, K classes.
"""

import dataclasses
import math
import numbers
from typing import Any, Unpack

import keras
import numpy as np

from keras_vit._version import pip_install
from keras_vit.data.progress import progress
from keras_vit.evaluation.features import ExtractOptions, Features, gather

__all__ = ["Probe", "knn", "linear_probe"]

# Limits the similarities that a step of `knn` has in memory.
TEST_CHUNK, TRAIN_CHUNK = 256, 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of `knn` or `linear_probe`.

    Attributes:
        name: name of the method.
        settings: settings of the method, by name.
        accuracy: top-1, in [0, 1].
        classes: K.
        test_images: M.
    """

    name: str
    settings: dict[str, float]
    accuracy: float
    classes: int
    test_images: int

    def __str__(self) -> str:
        settings = ", ".join(f"{key} {value:g}" for key, value in self.settings.items())
        return (
            f"{self.name} ({settings}): {100 * self.accuracy:.2f} % of "
            f"{self.test_images} test images"
        )


def knn(
    model: keras.Model | None,
    data: Any,
    *,
    k: int = 20,
    temperature: float = 0.07,
    verbose: bool = True,
    **options: Unpack[ExtractOptions],
) -> Probe:
    """Measures the accuracy of a vote of the nearest training images, as in DINO.

    Each of the k training images with the highest cosine similarity s votes for its
    class with weight exp(s / temperature) (Caron et al., arXiv:2104.14294, F).

    Args:
        model: see `fewshot`.
        data: see `fewshot`.
        k: number of neighbors, 1 or more.
        temperature: positive number; a lower one gives the nearest images more weight.
        verbose: whether to show progress on a terminal.
        **options: preprocessing, batch_size and before_crop of `fewshot`.

    Returns:
        A `Probe` over the M test images.

    Raises:
        ValueError: if `k` or `temperature` is out of range, there are fewer training
            images than k, or the features are invalid.
    """
    if not isinstance(k, numbers.Integral) or k < 1 or not 0 < temperature < math.inf:
        raise ValueError(
            "Expected k from 1, and a temperature above 0. Received: "
            f"k={k!r}, temperature={temperature}"
        )
    found = gather(model, data, verbose=verbose, **options)
    if k > len(found.train_y):
        raise ValueError(
            f"Expected at least k training images. Received: k={k}, "
            f"{len(found.train_y)} of them"
        )
    starts = range(0, len(found.test_y), TEST_CHUNK)
    right = 0
    for start in progress(starts, "nearest neighbors", len(starts), verbose):
        part = slice(start, start + TEST_CHUNK)
        near, places = _nearest(found.test_x[part], found.train_x, int(k))
        # Subtracting the maximum of a row keeps the proportions and avoids overflow.
        weights = np.exp((near - near.max(1, keepdims=True)) / temperature)
        votes = np.zeros((len(near), len(found.classes)))
        rows = np.arange(len(near))[:, None]
        np.add.at(votes, (rows, found.train_y[places]), weights)
        right += int((votes.argmax(1) == found.test_y[part]).sum())
    settings = {"k": int(k), "temperature": float(temperature)}
    return _probe("kNN", settings, right, found)


def _nearest(x: np.ndarray, train: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the k highest cosine similarities and their rows: [m, k] each."""
    x = _directions(x)
    near = np.full((len(x), k), -np.inf, x.dtype)
    places = np.zeros((len(x), k), np.int64)
    for start in range(0, len(train), TRAIN_CHUNK):
        here = x @ _directions(train[start : start + TRAIN_CHUNK]).T
        best = _greatest(here, min(k, here.shape[1]))
        near = np.hstack([near, np.take_along_axis(here, best, axis=1)])
        places = np.hstack([places, start + best])
        best = _greatest(near, k)
        near = np.take_along_axis(near, best, axis=1)
        places = np.take_along_axis(places, best, axis=1)
    return near, places


def _greatest(values: np.ndarray, k: int) -> np.ndarray:
    """Returns the columns of the k greatest values per row, unordered: [n, k]."""
    count = values.shape[1]
    return np.argpartition(values, count - k, axis=1)[:, count - k :]


def _directions(x: np.ndarray) -> np.ndarray:
    """Scales rows to length 1, [n, D]; rows of zeros stay, with similarity 0.

    The result is float32 or wider: in float16, squares overflow at lengths above 256.
    """
    x = np.asarray(x, np.promote_types(x.dtype, np.float32))
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(lengths == 0, 1, lengths)


def linear_probe(
    model: keras.Model | None,
    data: Any,
    *,
    l2: float = 1.0,
    max_iterations: int = 1000,
    verbose: bool = True,
    **options: Unpack[ExtractOptions],
) -> Probe:
    """Measures the accuracy of multinomial logistic regression on whitened features.

    It minimizes the sum of the training images' cross-entropies + l2 / 2 * |W|^2,
    without the bias, with scikit-learn's L-BFGS. It needs one whitened copy of the
    training features in memory.

    Args:
        model: see `fewshot`.
        data: see `fewshot`.
        l2: weight of the penalty, above 0, for features of mean 0 and deviation 1.
        max_iterations: limit of L-BFGS, 1 or more; a warning reports if it is reached.
        verbose: whether to show progress on a terminal.
        **options: preprocessing, batch_size and before_crop of `fewshot`.

    Returns:
        A `Probe` over the M test images.

    Raises:
        ImportError: without scikit-learn, in the extra `demo`.
        ValueError: if `l2` or `max_iterations` is out of range, the training images
            have only one class, or the features are invalid.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise ImportError(
            f"Expected scikit-learn for the linear probe. Run {pip_install('demo')}"
        ) from error
    if not 0 < l2 < math.inf or max_iterations < 1:
        raise ValueError(
            "Expected l2 above 0 and max_iterations from 1. Received: "
            f"l2={l2}, max_iterations={max_iterations}"
        )
    found = gather(model, data, verbose=verbose, **options)
    present = np.unique(found.train_y)
    if len(present) < 2:
        raise ValueError(
            "Expected training images of at least two classes. Received: only those of "
            f"{found.classes[present[0]]!r}"
        )
    scaler = StandardScaler()
    # Of two classes scikit-learn fits one vector w, the difference of W's, and |w|^2 is
    # 2 |W|^2.
    scale = 2 if len(present) == 2 else 1
    classifier = LogisticRegression(C=scale / l2, max_iter=max_iterations)
    classifier.fit(scaler.fit_transform(found.train_x), found.train_y)
    right = 0
    for start in range(0, len(found.test_y), TRAIN_CHUNK):
        part = slice(start, start + TRAIN_CHUNK)
        predicted = classifier.predict(scaler.transform(found.test_x[part]))
        right += int((predicted == found.test_y[part]).sum())
    return _probe("linear probe", {"l2": float(l2)}, right, found)


def _probe(name: str, settings: dict[str, float], right: int, found: Features) -> Probe:
    return Probe(
        name=name,
        settings=settings,
        accuracy=right / len(found.test_y),
        classes=len(found.classes),
        test_images=len(found.test_y),
    )
