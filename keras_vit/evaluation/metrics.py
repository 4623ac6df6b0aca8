"""Accuracy, likelihood, calibration and differences of classifiers, from logits.

Top-1 accuracy is from section 4.1, top-5 from D.9. The other measures state their
sources.

`Counts` receives logits in batches and keeps five numbers for each image (`PerImage`),
from which everything else is computed in float64. The N x K logits are kept only on
request, for `temperature`.

Glossary: B images of a batch, N of a data set, O outputs of a model, K classes.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy  # Submodules are imported on first use.

__all__ = [
    "Counts",
    "Estimate",
    "PerImage",
    "Reliability",
    "bootstrap",
    "mcnemar",
    "paired_difference",
    "scaled_by_halves",
    "temperature",
    "unpaired_difference",
    "wilson",
]

LEVEL = 0.95  # Of all intervals.
BINS = 15  # Guo et al. (2017), section 4.
_VALUES = 2**22  # Number of values converted to float64 at a time.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval.

    Attributes:
        value: the estimate from the data.
        low: the interval's lower end.
        high: its upper end.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence and accuracy, by bins of equal width over (0, 1].

    A bin (a, b] includes its upper edge (Guo et al. 2017, section 2). torchmetrics'
    bins include the lower one, which differs for a confidence on an edge, such as 1.0.

    Attributes:
        images: float64 [bins], number of images in each bin.
        confidence: float64 [bins], mean confidence in each bin, in (0, 1]; NaN for an
            empty bin.
        accuracy: float64 [bins], accuracy in each bin, in [0, 1]; NaN for an empty bin.
    """

    images: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error, the mean over images of |accuracy - confidence|.

        It is Equation 3 of Guo et al. (2017), torchmetrics' l1 norm.
        """
        gap = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float(gap @ self.images / self.images.sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerImage:
    """Predictions for every image that has a label (4.1), in the data's order.

    Attributes:
        label: int [N], class; -1 if the label is a set of outputs.
        prediction: int [N], class of the greatest logit; -1 for an output that belongs
            to no class.
        rank: int [N], number of outputs before the best correct one: 0 is correct, less
            than 5 is correct in top-5. Equal logits are in the order of the outputs.
        confidence: float64 [N], the greatest probability.
        nll: float64 [N], -log of the probability of a correct output.
    """

    label: np.ndarray
    prediction: np.ndarray
    rank: np.ndarray
    confidence: np.ndarray
    nll: np.ndarray

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def right(self) -> np.ndarray:
        """Whether the greatest logit is correct, bool [N]."""
        right: np.ndarray = self.rank == 0
        return right

    def top(self, k: int) -> Estimate:
        """Computes the share of images with a correct output in the first k.

        The interval is Wilson's.

        Args:
            k: number of outputs, from 1; with k or fewer outputs the share is 1.

        Returns:
            An `Estimate` in [0, 1].
        """
        return wilson(int((self.rank < k).sum()), len(self))

    def mean_nll(self, *, replicates: int = 1000, seed: int = 0) -> Estimate:
        """Computes the mean negative log-likelihood, with a bootstrap interval.

        Args:
            replicates: see `bootstrap`.
            seed: see `bootstrap`.

        Returns:
            An `Estimate` in nats, 0 or more.
        """
        return bootstrap(
            lambda weight: float(weight @ self.nll / weight.sum()),
            len(self),
            replicates=replicates,
            seed=seed,
        )

    def reliability(self, bins: int = BINS) -> Reliability:
        """Compares confidence and accuracy, by bins (Guo et al. 2017, Figure 1).

        Args:
            bins: number of bins, 1 or more.

        Returns:
            A `Reliability`.

        Raises:
            ValueError: if `bins` is less than 1.
        """
        return self._reliability(np.ones(len(self)), self._bins(bins), bins)

    def ece(
        self, bins: int = BINS, *, replicates: int = 1000, seed: int = 0
    ) -> Estimate:
        """Computes the expected calibration error (Guo et al. 2017) and an interval.

        The interval is a bootstrap. Errors of resampled images are higher than those of
        the data, especially for a well calibrated model. The interval can therefore lie
        above the value.

        Args:
            bins: number of bins, 1 or more.
            replicates: see `bootstrap`.
            seed: see `bootstrap`.

        Returns:
            An `Estimate` in [0, 1].

        Raises:
            ValueError: if `bins` is less than 1.
        """
        places = self._bins(bins)
        return bootstrap(
            lambda weight: self._reliability(weight, places, bins).ece,
            len(self),
            replicates=replicates,
            seed=seed,
        )

    def _bins(self, bins: int) -> np.ndarray:
        if bins < 1:
            raise ValueError(f"Expected at least one bin. Received: bins={bins}")
        edges = np.linspace(0, 1, bins + 1)
        return np.searchsorted(edges, self.confidence) - 1  # Confidence is in (0, 1].

    def _reliability(
        self, weight: np.ndarray, places: np.ndarray, bins: int
    ) -> Reliability:
        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(places, weight * values, bins)

        images = np.bincount(places, weight, bins)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN for an empty bin.
            confidence = total(self.confidence) / images
            accuracy = total(self.right) / images
        return Reliability(images=images, confidence=confidence, accuracy=accuracy)

    def per_class(self, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Counts the correct images and all images of every class.

        Args:
            classes: K.

        Returns:
            Two arrays, int [K].

        Raises:
            ValueError: if labels are sets, or exceed the number of classes.
        """
        self._check_classes(classes)
        right = np.bincount(self.label[self.right], minlength=classes)
        return right, np.bincount(self.label, minlength=classes)

    def confusion(self, classes: int) -> np.ndarray:
        """Counts the images of each class (row) by predicted class (column).

        Args:
            classes: K.

        Returns:
            int [K, K]; [K, K + 1] if some predictions belong to no class, with their
            number in the last column.

        Raises:
            ValueError: if labels are sets, or exceed the number of classes.
        """
        self._check_classes(classes)
        columns = classes + bool((self.prediction < 0).any())
        predicted = np.where(self.prediction < 0, classes, self.prediction)
        places = self.label.astype(np.int64) * columns + predicted
        counted = np.bincount(places, minlength=classes * columns)
        return counted.reshape(classes, columns)

    def _check_classes(self, classes: int) -> None:
        if self.label.min(initial=0) < 0:
            raise ValueError(
                "Expected images with one class each. Received: labels that are sets "
                "of outputs"
            )
        last = max(self.label.max(initial=0), self.prediction.max(initial=0))
        if last >= classes:
            raise ValueError(
                f"Expected labels of {classes} classes. Received: label {last}"
            )


class Counts:
    """Collects `PerImage` from batches of logits (4.1), without keeping the logits.

    Args:
        outputs: O, at least 2.
        class_of_output: int [O], if classes are groups of outputs, as in ObjectNet; -1
            for an output without a class. None: output o is class o.
        keep_logits: whether to keep the logits, float32 [N, O], for `temperature`.

    Raises:
        ValueError: if there are fewer than two outputs or classes, or `class_of_output`
            does not have one value per output.

    Examples:
        >>> counts = Counts(2)
        >>> counts.update(np.array([[2.0, 1.0], [2.0, 0.0]]), np.array([0, 1]))
        >>> counts.per_image().top(1).value
        0.5
    """

    def __init__(
        self,
        outputs: int,
        *,
        class_of_output: Sequence[int] | np.ndarray | None = None,
        keep_logits: bool = False,
    ) -> None:
        groups = None if class_of_output is None else np.asarray(class_of_output)
        if groups is not None and groups.shape != (outputs,):
            raise ValueError(
                f"Expected a class for each of {outputs} outputs. Received: "
                f"class_of_output {groups.shape}"
            )
        self.outputs = outputs
        self.class_of_output = groups
        self.classes = outputs if groups is None else int(groups.max()) + 1
        if min(self.outputs, self.classes) < 2:
            raise ValueError(
                "Expected at least two classes. Received: "
                f"outputs={outputs}, {self.classes} classes"
            )
        self.seen = 0  # Number of images, including those without labels.
        self._parts: list[PerImage] = []
        self._logits: list[np.ndarray] | None = [] if keep_logits else None

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch.

        Args:
            logits: [B, O], finite floats.
            labels: int [B] in [0, K); or bool [B, O], the correct outputs of each
                image. An image without any has no label and is not counted.

        Raises:
            ValueError: if a shape, type or value is different.
        """
        logits, labels = np.asarray(logits), np.asarray(labels)
        self.check(logits, labels)
        self.seen += len(logits)
        if labels.ndim == 2:
            label = np.full(len(logits), -1)
            is_right = labels
        else:
            label = labels
            groups = np.arange(self.outputs)
            if self.class_of_output is not None:
                groups = self.class_of_output
            is_right = groups == labels[:, None]
        has_label = is_right.any(axis=1)
        if not has_label.all():
            logits, label, is_right = (
                part[has_label] for part in (logits, label, is_right)
            )
        self._parts.append(self._judged(logits.astype(np.float64), label, is_right))
        if self._logits is not None:
            self._logits.append(logits.astype(np.float32))

    def check(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Raises the errors of `update`.

        Args:
            logits: [B, O]; see `update`.
            labels: int [B] or bool [B, O]; see `update`.

        Raises:
            ValueError: if a shape, type or value is not accepted by `update`.
        """
        fits = (
            logits.ndim == 2
            and logits.shape[1] == self.outputs
            and np.issubdtype(logits.dtype, np.floating)
        )
        if labels.ndim == 2:
            fits &= labels.shape == logits.shape and labels.dtype == bool
        else:
            fits &= labels.shape == logits.shape[:1]
            fits &= np.issubdtype(labels.dtype, np.integer)
        if not fits:
            raise ValueError(
                f"Expected float logits [B, {self.outputs}] and labels, int [B] or "
                f"bool [B, {self.outputs}]. Received: logits {logits.dtype} "
                f"{logits.shape}, labels {labels.dtype} {labels.shape}"
            )
        if labels.ndim == 1 and len(labels):
            low, high = labels.min(), labels.max()
            if low < 0 or high >= self.classes:
                raise ValueError(
                    f"Expected labels from 0 to {self.classes - 1}. Received: labels "
                    f"from {low} to {high}"
                )
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            bad = self.seen + int(finite.argmin())
            raise ValueError(
                f"Expected finite logits. Received: NaN or infinity for image {bad}. "
                "Check the weights and the preprocessing of the images"
            )

    def _judged(
        self, logits: np.ndarray, label: np.ndarray, is_right: np.ndarray
    ) -> PerImage:
        """Evaluates `logits` float64 [B, O]; each row of `is_right` has a True."""
        rows = np.arange(len(logits))
        greatest = logits.max(axis=1, keepdims=True)
        exponential = np.exp(logits - greatest)
        total = exponential.sum(axis=1)
        of_right = np.where(is_right, logits, -np.inf)
        best = of_right.argmax(axis=1)
        best_logit = logits[rows, best][:, None]
        before = logits > best_logit
        before |= (logits == best_logit) & (np.arange(self.outputs) < best[:, None])
        rest = np.exp(of_right - best_logit).sum(axis=1)
        log_right = best_logit[:, 0] - greatest[:, 0] + np.log(rest)
        prediction = logits.argmax(axis=1)
        if self.class_of_output is not None:
            prediction = self.class_of_output[prediction]
        return PerImage(
            label=label.astype(np.int32),
            prediction=prediction.astype(np.int32),
            rank=before.sum(axis=1).astype(np.int32),
            confidence=1 / total,
            nll=np.maximum(np.log(total) - log_right, 0.0),  # Avoids -1e-17.
        )

    def per_image(self) -> PerImage:
        """Returns the collected values.

        Returns:
            A `PerImage` for the N images with labels, in the order of the updates.

        Raises:
            ValueError: if no image had a label.
        """
        if not sum(map(len, self._parts)):
            raise ValueError(
                f"Expected images with labels. Received: {self.seen} images without "
                "labels"
            )
        return PerImage(
            **{
                field.name: np.concatenate(
                    [getattr(part, field.name) for part in self._parts]
                )
                for field in dataclasses.fields(PerImage)
            }
        )

    def logits(self) -> np.ndarray:
        """Returns the logits of the images with labels, kept by `keep_logits`.

        Returns:
            float32 [N, O].

        Raises:
            ValueError: without `keep_logits`, or before the first batch.
        """
        if self._logits is None:
            raise ValueError("Expected keep_logits=True. Received: keep_logits=False")
        return np.concatenate(self._logits)


def wilson(right: int, images: int) -> Estimate:
    """Returns a share with Wilson's score interval of 95 % (1927).

    Args:
        right: number of correct images.
        images: number of images, 1 or more.

    Returns:
        An `Estimate` in [0, 1].

    Raises:
        ValueError: if not 0 <= right <= images, or there are no images.
    """
    if not 0 <= right <= images or images < 1:
        raise ValueError(
            "Expected 0 <= right <= images, with at least one image. Received: "
            f"right={right}, images={images}"
        )
    interval = scipy.stats.binomtest(right, images).proportion_ci(LEVEL, "wilson")
    return Estimate(
        value=right / images, low=float(interval.low), high=float(interval.high)
    )


def bootstrap(
    statistic: Callable[[np.ndarray], float],
    images: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Returns a statistic of images with its percentile bootstrap interval of 95 %.

    Args:
        statistic: function of float64 [N], the number of times each image is drawn.
        images: N.
        replicates: number of draws of N images with replacement.
        seed: seed of the draws; two calls with the same seed are paired.

    Returns:
        An `Estimate` of the statistic.

    Raises:
        ValueError: if there are no images.
    """
    if images < 1:
        raise ValueError(f"Expected at least one image. Received: images={images}")
    value = statistic(np.ones(images))
    if images == 1:  # Every draw is this image; SciPy requires two.
        return Estimate(value=value, low=value, high=value)
    with warnings.catch_warnings():  # SciPy's standard error of one replicate is NaN.
        warnings.filterwarnings("ignore", "Degrees of freedom|invalid value")
        interval = scipy.stats.bootstrap(
            (np.arange(images),),
            lambda drawn: statistic(np.bincount(drawn, minlength=images) * 1.0),
            n_resamples=replicates,
            batch=1,  # One draw of N indices in memory at a time.
            vectorized=False,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return Estimate(value=value, low=float(interval.low), high=float(interval.high))


def paired_difference(
    first: np.ndarray,
    second: np.ndarray,
    *,
    replicates: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Returns the mean of second - first for the same images, with an interval.

    The interval is a paired bootstrap.

    Args:
        first: [N], a value for each image: its correctness or its NLL.
        second: the same for the second model.
        replicates: see `bootstrap`.
        seed: see `bootstrap`.

    Returns:
        An `Estimate`, in the values' units.

    Raises:
        ValueError: if the two have different lengths.
    """
    _check_pair(first, second)
    difference = second.astype(np.float64) - first.astype(np.float64)
    return bootstrap(
        lambda weight: float(weight @ difference / weight.sum()),
        len(difference),
        replicates=replicates,
        seed=seed,
    )


def unpaired_difference(first: Estimate, second: Estimate) -> Estimate:
    """Returns the difference second - first of two shares on different images.

    It uses method 10 of Newcombe (1998), from the two Wilson intervals.

    Args:
        first: see `wilson`.
        second: see `wilson`.

    Returns:
        An `Estimate` in [-1, 1].
    """
    value = second.value - first.value
    down = math.hypot(second.value - second.low, first.high - first.value)
    up = math.hypot(second.high - second.value, first.value - first.low)
    return Estimate(value=value, low=value - down, high=value + up)


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the exact two-sided p-value of McNemar's test (1947).

    Hypothesis: two models err equally often. Of the n images that only one model
    predicts correctly, each belongs to either model with probability 1/2:
    p = min(1, 2 P(X <= min(b, c))), X ~ Binomial(n, 1/2).

    Args:
        first: bool [N], whether the first model is correct for each image.
        second: bool [N], the same for the second model.

    Returns:
        p, in [0, 1].

    Raises:
        ValueError: if the two have different lengths.
    """
    _check_pair(first, second)
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    test = scipy.stats.binomtest(only_first, only_first + only_second)
    return float(test.pvalue)


def _check_pair(first: np.ndarray, second: np.ndarray) -> None:
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(
            "Expected one value per image, [N], for the same images. Received: "
            f"{first.shape} and {second.shape}"
        )


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Minimizes the mean NLL of softmax(logits / T) over T (Guo et al. 2017, 4.2).

    Use different images to find T and to apply it, as `scaled_by_halves` does. The NLL
    is convex in 1/T. The root of its derivative is found to a relative 1e-7.

    Args:
        logits: [N, K], finite floats.
        labels: int [N] in [0, K).

    Returns:
        T, above 0.

    Raises:
        ValueError: if there is no optimal T: if every image is correct, T would go to
            0; if logits contain no information on the labels, to infinity. Also if a
            shape, type or value is different.
    """
    Counts(logits.shape[-1]).check(logits, labels)
    at_rest = _slope(0.0, logits, labels)
    own = logits[np.arange(len(labels)), labels]
    margin = float((logits.max(axis=1).astype(np.float64) - own).max(initial=0))
    if at_rest >= 0 or not margin:
        reason = "without information on the labels" if at_rest >= 0 else "all correct"
        raise ValueError(
            "Expected logits that are better than chance and sometimes wrong, which an "
            "optimal temperature requires. Received: logits of "
            f"{len(labels)} images, {reason}"
        )
    high = 1 / margin
    while high < math.inf and _slope(high, logits, labels) < 0:
        high *= 2
    if high == math.inf:
        raise ValueError(
            "Expected logits with a temperature in the range of float64. Received: "
            f"logits from {logits.min()} to {logits.max()}"
        )
    inverse = scipy.optimize.brentq(
        _slope, 0.0, high, (logits, labels), xtol=1e-12 * high, rtol=1e-7
    )
    return float(1 / inverse)


def _slope(inverse: float, logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the derivative of the mean NLL by 1/T, at 1/T = `inverse`."""
    slope = 0.0
    for rows in _chunks(logits):
        z, own = logits[rows].astype(np.float64), labels[rows]
        z -= z[np.arange(len(own)), own][:, None]
        slope += float((scipy.special.softmax(inverse * z, axis=1) * z).sum())
    return slope / len(labels)


def _chunks(logits: np.ndarray) -> Iterator[slice]:
    """Yields slices of rows with float64 copies that fit in memory."""
    step = max(_VALUES // logits.shape[1], 1)
    return (slice(at, at + step) for at in range(0, len(logits), step))


def scaled_by_halves(
    logits: np.ndarray, labels: np.ndarray, *, seed: int = 0
) -> tuple[tuple[float, float], PerImage]:
    """Evaluates temperature scaling without separate images to find T.

    The images are divided at random into halves. Each half's logits are divided by the
    temperature of the other half.

    Args:
        logits: [N, K], finite floats.
        labels: int [N] in [0, K).
        seed: seed of the halves.

    Returns:
        The halves' temperatures, and the scaled predictions in the images' order.

    Raises:
        ValueError: see `temperature`.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    found = [temperature(logits[half], labels[half]) for half in halves]
    divisors = np.empty(len(labels))
    divisors[halves[0]], divisors[halves[1]] = found[1], found[0]
    counts = Counts(logits.shape[1])
    for rows in _chunks(logits):
        counts.update(logits[rows] / divisors[rows, None], labels[rows])
    return (found[0], found[1]), counts.per_image()
