"""Few-shot linear accuracy (4.1, Figure 4): ridge regression on frozen features.

"A regularized least-squares regression problem that maps the (frozen) representation
of a subset of training images to {-1, 1}^K target vectors". It is solved in closed form
in float64, as in big_vision's evaluators/fewshot_lsr.py.

Glossary of shapes: N images, D their features' width, K classes.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import keras
import numpy as np
import scipy  # Submodules are imported on first use.

from keras_vit._lazy import renamed
from keras_vit.data.preprocessing import Size
from keras_vit.data.progress import progress
from keras_vit.data.source import Source
from keras_vit.data.splits import Indexed
from keras_vit.evaluation.features import (
    ExtractOptions,
    Features,
    frozen,
    gather,
    known_labels,
    opened,
)
from keras_vit.facts import Preprocessing

__all__ = ["FewShotAccuracy", "FewShot", "fewshot"]

__getattr__ = renamed(__name__, Accuracy="FewShotAccuracy")

Shots: TypeAlias = int | Literal["all"]
Draws: TypeAlias = dict[tuple[Shots, int], np.ndarray | None]  # By shots and seed.

BIAS = 100.0  # The constant feature; its weights are regularized like all others.
EPSILON = 1e-5  # Added to the features' deviations.
CHUNK_BYTES = 16 * 2**20  # Size of the rows that are whitened at a time.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotAccuracy:
    """Top-1 accuracy for a number of shots and a penalty (4.1).

    Attributes:
        shots: training images per class, or "all".
        l2: weight of the penalty.
        by_seed: accuracies in [0, 1], one per draw; "all" has only one.
    """

    shots: Shots
    l2: float
    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the draws, in [0, 1]."""
        return float(np.mean(self.by_seed))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean over draws; None for a single draw.

        It covers the choice of training images; the test images are always the same.
        """
        count = len(self.by_seed)
        if count < 2:
            return None
        deviation = float(np.std(self.by_seed, ddof=1)) / math.sqrt(count)
        half = float(scipy.special.stdtrit(count - 1, 0.975)) * deviation
        return max(self.mean - half, 0.0), min(self.mean + half, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    """Result of `fewshot` (4.1, Figure 4); `print` shows a table.

    Attributes:
        rows: a `FewShotAccuracy` for each number of shots and each l2.
        seeds: seeds of the draws.
        classes: K.
        width: D.
        train_images: number of training images to draw from.
        test_images: number of test images.
    """

    rows: tuple[FewShotAccuracy, ...]
    seeds: tuple[int, ...]
    classes: int
    width: int
    train_images: int
    test_images: int

    def at(self, shots: Shots, l2: float | None = None) -> FewShotAccuracy:
        """Returns the row for a number of shots.

        Args:
            shots: training images per class, or "all".
            l2: weight of the penalty; may be None if there is only one.

        Returns:
            The `FewShotAccuracy`.

        Raises:
            ValueError: if no row or several rows match.
        """
        found = [
            row for row in self.rows if row.shots == shots and l2 in (None, row.l2)
        ]
        if len(found) != 1:
            known = ", ".join(f"({row.shots}, {row.l2:g})" for row in self.rows)
            raise ValueError(
                f"Expected one of the rows (shots, l2) {known}. Received: "
                f"shots={shots!r}, l2={l2}"
            )
        return found[0]

    def as_dict(self) -> dict[str, Any]:
        """Converts the result to plain values for JSON.

        Returns:
            Every attribute by name, with means and intervals of the rows.
        """
        rows = [
            {**dataclasses.asdict(row), "mean": row.mean, "interval": row.interval}
            for row in self.rows
        ]
        return dataclasses.asdict(self) | {"rows": rows}

    def __str__(self) -> str:
        several = len({row.l2 for row in self.rows}) > 1
        names = ["shots", *(["l2"] if several else []), "mean %", "95 % interval"]
        lines = [[*names, *(f"seed {seed}" for seed in self.seeds)]]
        for row in self.rows:
            low_high = [f"{100 * edge:.2f}" for edge in row.interval or ()]
            lines.append(
                [
                    str(row.shots),
                    *([f"{row.l2:g}"] if several else []),
                    f"{100 * row.mean:.2f}",
                    " to ".join(low_high),
                    *(f"{100 * one:.2f}" for one in row.by_seed),
                ]
            )
        widths = [
            max(len(line[i]) for line in lines if i < len(line))
            for i in range(len(lines[0]))
        ]
        penalty = "" if several else f", l2 {self.rows[0].l2:g}"
        title = (
            f"few-shot linear accuracy: {self.classes} classes, {self.test_images} "
            f"test images, features of width {self.width}{penalty}"
        )
        table = [
            "  ".join(
                cell.rjust(width) for cell, width in zip(line, widths, strict=False)
            )
            for line in lines
        ]
        return "\n".join([title, *table])


def fewshot(
    model: keras.Model | None,
    data: Any,
    *,
    shots: Sequence[Shots] = (1, 5, 10, 25),
    l2: float | Sequence[float] = 2.0**10,
    seeds: Sequence[int] = (0, 1, 2),
    preprocessing: Preprocessing | None = None,
    batch_size: int = 32,
    before_crop: Size | None = None,
    verbose: bool = True,
) -> FewShot:
    """Measures few-shot linear accuracy of a frozen model (4.1, Figure 4).

    For each number of shots and each seed, that many training images of every class are
    drawn. Ridge regression from their features to targets of -1 and 1 is evaluated on
    all test images. Nothing is tuned. Features are computed once. If the split is
    indexable and its features are not on disk yet, only the drawn images are read.
    Features are whitened in parts, so that 10^6 of width 1024 need no second copy.

    Args:
        model: model from images to features, or with a layer `head` that reads them
            (see `features.backbone`); None with ready features.
        data: a folder of images, an .npz, "digits" or a TFDS name (`data.open_source`),
            a `Source`, ready `Features`, or a tuple of their four arrays (train_x
            [N, D], train_y [N], test_x, test_y).
        shots: numbers of images per class; "all" uses every image, once.
        l2: weight of the penalty; several cost no more than one.
        seeds: seeds of the draws.
        preprocessing: scaling of the images [default: the model's; the paper's for a
            model that is not a `VisionModel`].
        batch_size: batch size of feature extraction.
        before_crop: (H, W) that images are resized to before the center crop.
            big_vision uses (256, 256) for 224 pixels; None resizes to the model's size.
        verbose: whether to show progress on a terminal.

    Returns:
        A `FewShot`.

    Raises:
        ValueError: if a class has fewer images than shots, a label is out of range,
            there are fewer than two classes or no test images, or features are not
            finite; if `shots`, `l2` or `seeds` has an invalid value or a duplicate.
        ImportError: see `data.open_source`.
    """
    data = opened(data)
    check(data, shots, l2, seeds)
    penalties = tuple(map(float, np.atleast_1d(l2)))
    labels = known_labels(data)
    draws: Draws = {}
    if labels is not None:
        draws = _draws(labels, shots, seeds)
    options: ExtractOptions = {
        "preprocessing": preprocessing,
        "batch_size": batch_size,
        "before_crop": before_crop,
    }
    if isinstance(data, Source) and draws and not _are_kept(model, data, options):
        data, draws = _of_drawn(data, draws)
    found = gather(model, data, verbose=verbose, **options)
    if labels is None:
        labels = found.train_y
        _check_counts(labels, found.classes, shots)
        draws = _draws(labels, shots, seeds)
    tested = len(found.test_y)
    by_seed: dict[tuple[Shots, float], list[float]] = {}
    bar = progress(draws.items(), "few-shot regressions", len(draws), verbose)
    for (n, _), rows in bar:
        ridge = Ridge(found.train_x, found.train_y, len(found.classes), rows)
        right = ridge.right(found.test_x, found.test_y, penalties)
        for penalty, count in zip(penalties, right, strict=True):
            by_seed.setdefault((n, penalty), []).append(count / tested)
    return FewShot(
        rows=tuple(
            FewShotAccuracy(shots=n, l2=penalty, by_seed=tuple(shares))
            for (n, penalty), shares in by_seed.items()
        ),
        seeds=tuple(map(int, seeds)),
        classes=len(found.classes),
        width=found.train_x.shape[1],
        train_images=len(labels),
        test_images=tested,
    )


def _draws(labels: np.ndarray, shots: Sequence[Shots], seeds: Sequence[int]) -> Draws:
    """Draws the training images of each regression; "all" is the same for each seed."""
    return {
        (n if n == "all" else int(n), int(seed)): None
        if n == "all"
        else draw(labels, n, seed)
        for n in shots
        for seed in (seeds[:1] if n == "all" else seeds)
    }


def _are_kept(
    model: keras.Model | None, source: Source, options: ExtractOptions
) -> bool:
    """Returns whether the features of all training images are on disk."""
    return model is not None and frozen(model, source.train, **options).on_disk()


def _of_drawn(source: Source, draws: Draws) -> tuple[Source, Draws]:
    """Reduces the source to the training images that a regression uses."""
    rows = [one for one in draws.values() if one is not None]
    if len(rows) < len(draws) or not isinstance(source.train, Indexed):
        return source, draws
    kept = np.unique(np.concatenate(rows))
    moved: Draws = {
        key: np.searchsorted(kept, one) for key, one in zip(draws, rows, strict=True)
    }
    return dataclasses.replace(source, train=source.train.take(kept)), moved


def draw(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Draws indices of `shots` images of every class, class by class, as fewshot_lsr.

    With the same seed, fewer shots are a subset of more.
    """
    rng = np.random.default_rng(seed)  # A single one for all classes, in their order.
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    members = np.split(order, starts)
    return np.concatenate([rng.permutation(indices)[:shots] for indices in members])


class Ridge:
    """Ridge regression from whitened features to {-1, 1}^K, solved for every l2.

    Z [N, D + 1] contains the features minus their mean, divided by their deviation, and
    a constant feature of 100. Y [N, K] contains the targets. The solution is
    W = (Z'Z + l2 I)^-1 Z'Y, computed from the eigenvalues of Z'Z or ZZ', whichever is
    smaller. Z is never computed as a whole, unless N <= D.

    Args:
        x: [N', D], float.
        y: int [N'], labels in [0, K).
        num_classes: K.
        rows: int [N], indices of the training rows; None for all.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        num_classes: int,
        rows: np.ndarray | None = None,
    ) -> None:
        self.num_classes = num_classes
        count, width = len(x) if rows is None else len(rows), x.shape[1]
        self.mean, variance = np.zeros(width), np.zeros(width)
        for part in self._parts(x, rows):
            self.mean += x[part].sum(0, np.float64) / count
        for part in self._parts(x, rows):
            variance += (self._centred(x[part]) ** 2).sum(0) / count
        self.std = np.sqrt(variance) + EPSILON
        if count <= width:
            z = self._whitened(x if rows is None else x[rows])
            self.eigenvalues, vectors = np.linalg.eigh(z @ z.T)
            self._basis = z.T @ vectors
            self._targets = vectors.T @ self._signs(y if rows is None else y[rows])
            return
        gram = np.zeros((width + 1, width + 1))
        targets = np.zeros((width + 1, num_classes))
        for part in self._parts(x, rows):
            z = self._whitened(x[part])
            gram += z.T @ z
            targets += z.T @ self._signs(y[part])
        self.eigenvalues, self._basis = np.linalg.eigh(gram)
        self._targets = self._basis.T @ targets

    def weights(self, l2: float) -> np.ndarray:
        """Returns the solution W for a penalty.

        Args:
            l2: weight of the penalty, above 0.

        Returns:
            float64 [D + 1, K]; the last row belongs to the constant feature.
        """
        damped = np.maximum(self.eigenvalues, 0) + l2
        weights: np.ndarray = self._basis @ (self._targets / damped[:, None])
        return weights

    def right(self, x: np.ndarray, y: np.ndarray, l2: Sequence[float]) -> list[int]:
        """Counts the rows of `x` that are predicted correctly.

        Args:
            x: float [M, D].
            y: int [M], labels in [0, K).
            l2: weights of the penalty, each above 0.

        Returns:
            A count, at most M, for each value in `l2`.
            A count for each of `l2`, of M.
        """
        solved = [self.weights(penalty) for penalty in l2]
        counts = [0] * len(solved)
        for part in self._parts(x):
            z = self._whitened(x[part])
            for i, weights in enumerate(solved):
                counts[i] += int(((z @ weights).argmax(1) == y[part]).sum())
        return counts

    def _parts(self, x: np.ndarray, rows: np.ndarray | None = None) -> Iterator[Any]:
        """Yields slices of `x`, or parts of `rows`, of CHUNK_BYTES in float64."""
        size = max(CHUNK_BYTES // (8 * max(x.shape[1] + 1, self.num_classes)), 1)
        for start in range(0, len(x) if rows is None else len(rows), size):
            part = slice(start, start + size)
            yield part if rows is None else rows[part]

    def _centred(self, x: np.ndarray) -> np.ndarray:
        centred: np.ndarray = np.subtract(x, self.mean, dtype=np.float64)
        return centred

    def _whitened(self, x: np.ndarray) -> np.ndarray:
        """Whitens and adds the constant feature: [n, D] -> [n, D + 1]."""
        z = np.full((len(x), x.shape[1] + 1), BIAS)
        np.divide(self._centred(x), self.std, out=z[:, :-1])
        return z

    def _signs(self, y: np.ndarray) -> np.ndarray:
        """Converts labels [n] to targets [n, K]: 1 at the label, -1 elsewhere."""
        signs = np.full((len(y), self.num_classes), -1.0)
        signs[np.arange(len(y)), y] = 1.0
        return signs


def check(
    data: Source | Features,
    shots: Sequence[Shots],
    l2: float | Sequence[float],
    seeds: Sequence[int],
) -> None:
    """Raises the errors of `fewshot` that can be detected before images are read."""
    if not _are_whole([n for n in shots if n != "all"], 1) or not _once(shots):
        raise ValueError(
            "Expected numbers of shots from 1, or 'all', without duplicates. Received: "
            f"shots={shots!r}"
        )
    penalties = np.atleast_1d(l2).tolist()
    if not all(0 < penalty < math.inf for penalty in penalties) or not _once(penalties):
        raise ValueError(f"Expected distinct l2 above 0. Received: l2={l2}")
    if not _are_whole(seeds, 0) or not _once(seeds):
        raise ValueError(f"Expected distinct seeds from 0. Received: seeds={seeds!r}")
    labels = known_labels(data)
    if labels is not None:
        _check_counts(labels, data.classes, shots)


def _are_whole(values: Sequence[Any], least: int) -> bool:
    return all(isinstance(one, int | np.integer) and one >= least for one in values)


def _once(values: Sequence[Any]) -> bool:
    return 0 < len(values) == len({*values})


def _check_counts(
    labels: np.ndarray, classes: Sequence[str], shots: Sequence[Shots]
) -> None:
    """Raises if a class has fewer images than shots."""
    counts = np.bincount(labels, minlength=len(classes))
    least = int(counts.argmin())
    have, need = int(counts[least]), max((n for n in shots if n != "all"), default=1)
    if have >= need:
        return
    remedy = f"Use at most {have} shots" if have else "Remove the class"
    raise ValueError(
        f"Expected {need} training images of every class, as many as shots. Received: "
        f"class {classes[least]!r} with {have}. {remedy}"
    )
