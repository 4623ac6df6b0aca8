"""Measures of a classifier's logits: accuracy, likelihood, calibration, differences.

Top-1 accuracy is from section 4.1, top-5 from D.9. The other measures state their
sources.

`Counts` takes logits by the batch and keeps five numbers of each image (`PerImage`), of
which everything else is computed, in float64. The N x K logits are kept for
`temperature` alone, and only if asked for.

Glossary: B images of a batch, N of a data set, O outputs of a model, K classes.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy  # Its submodules are imported on first use.

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

LEVEL = 0.95  # Of every interval.
BINS = 15  # Guo et al. (2017), section 4.
_VALUES = 2**22  # That are in float64 at a time.


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
    """Confidence against accuracy, by bins of equal width over (0, 1].

    A bin (a, b] holds its upper edge (Guo et al. 2017, section 2; torchmetrics' holds
    the lower one, which differs for a confidence that is an edge, 1.0 among them).

    Attributes:
        images: float64 [bins], how many are in each.
        confidence: float64 [bins], the mean of each bin's images, in (0, 1]; NaN where
            there are none.
        accuracy: accuracy of the images in the bin, in [0, 1].
    """

    images: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean over images of |accuracy - confidence|.

        Equation 3 of Guo et al. (2017), torchmetrics' l1 norm.
        """
        gap = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float(gap @ self.images / self.images.sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerImage:
    """What was said of every image that has a label (4.1), in the data's order.

    Attributes:
        label: int [N], its class; -1 where the label is a set of outputs.
        prediction: int [N], the class of the greatest logit; -1 for an output that is
            of no class.
        rank: int [N], how many outputs come before the best right one: 0 is right, less
            than 5 is right in top-5. Equal logits come in the outputs' order.
        confidence: float64 [N], the greatest probability.
        nll: float64 [N], -log of the probability that the output is right.
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
        """Whether the greatest logit is right, bool [N]."""
        right: np.ndarray = self.rank == 0
        return right

    def top(self, k: int) -> Estimate:
        """Share of images with a right output among the first k; Wilson's interval.

        Args:
            k: from 1; of k or fewer outputs one is always right.

        Returns:
            An `Estimate` in [0, 1].
        """
        return wilson(int((self.rank < k).sum()), len(self))

    def mean_nll(self, *, replicates: int = 1000, seed: int = 0) -> Estimate:
        """Mean negative log-likelihood, with a bootstrap interval.

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
        """Confidence against accuracy, by bins (Guo et al. 2017, Figure 1).

        Args:
            bins: how many, 1 or more.

        Returns:
            A `Reliability`.

        Raises:
            ValueError: if there is no bin.
        """
        return self._reliability(np.ones(len(self)), self._bins(bins), bins)

    def ece(
        self, bins: int = BINS, *, replicates: int = 1000, seed: int = 0
    ) -> Estimate:
        """Expected calibration error (Guo et al. 2017) with a bootstrap interval.

        Resampled errors lie above the data's own, the more so the better calibrated a
        model is: the interval can lie above the value.

        Args:
            bins: how many, 1 or more.
            replicates: see `bootstrap`.
            seed: see `bootstrap`.

        Returns:
            An `Estimate` in [0, 1].

        Raises:
            ValueError: if there is no bin.
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
            raise ValueError(f"Expected one bin or more. Received: bins={bins}")
        edges = np.linspace(0, 1, bins + 1)
        return np.clip(np.searchsorted(edges, self.confidence) - 1, 0, bins - 1)

    def _reliability(
        self, weight: np.ndarray, places: np.ndarray, bins: int
    ) -> Reliability:
        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(places, weight * values, bins)

        images = np.bincount(places, weight, bins)
        with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin is NaN.
            confidence = total(self.confidence) / images
            accuracy = total(self.right) / images
        return Reliability(images=images, confidence=confidence, accuracy=accuracy)

    def per_class(self, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Images that are right and images, of every class.

        Args:
            classes: K.

        Returns:
            Two int [K].

        Raises:
            ValueError: if labels are sets, or of more classes.
        """
        self._check_classes(classes)
        right = np.bincount(self.label[self.right], minlength=classes)
        return right, np.bincount(self.label, minlength=classes)

    def confusion(self, classes: int) -> np.ndarray:
        """How many images of a class (row) were taken for which (column).

        Args:
            classes: K.

        Returns:
            int [K, K]; [K, K + 1] where some were taken for no class, which the last
            column counts.

        Raises:
            ValueError: if labels are sets, or of more classes.
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
                "Expected images of one class each. Received: labels that are sets of "
                "outputs"
            )
        last = max(self.label.max(initial=0), self.prediction.max(initial=0))
        if last >= classes:
            raise ValueError(
                f"Expected labels of {classes} classes. Received: label {last}"
            )


class Counts:
    """Gathers `PerImage` by batches of logits (4.1), without keeping the logits.

    Args:
        outputs: O, at least 2.
        class_of_output: int [O], where classes are groups of outputs, as ObjectNet's
            are; -1 for an output of no class. None: output o is class o.
        keep_logits: whether to keep them, float32 [N, O], for `temperature`.

    Raises:
        ValueError: if there are fewer than two outputs or classes, or `class_of_output`
            is not one for each.

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
                "Expected two classes or more. Received: "
                f"outputs={outputs}, {self.classes} classes"
            )
        self.seen = 0  # Images, those without labels among them.
        self._parts: list[PerImage] = []
        self._logits: list[np.ndarray] | None = [] if keep_logits else None

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch.

        Args:
            logits: [B, O], finite floats.
            labels: int [B] in [0, K); or bool [B, O], all that is right of each image.
                An image of which nothing is right has no label and is not counted.

        Raises:
            ValueError: if shapes, types or values are none of these.
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
        """Raises what `update` raises.

        Args:
            logits: [B, O], as of `update`.
            labels: int [B] or bool [B, O], likewise.

        Raises:
            ValueError: if shapes, types or values are not as `update` takes them.
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
        """`logits` float64 [B, O], `is_right` bool [B, O] with one in every row."""
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
            nll=np.maximum(np.log(total) - log_right, 0.0),  # Not -1e-17.
        )

    def per_image(self) -> PerImage:
        """What was gathered.

        Returns:
            A `PerImage` of the N images with labels, in the order they came in.

        Raises:
            ValueError: if there was no image with a label.
        """
        if not sum(map(len, self._parts)):
            raise ValueError(
                f"Expected images with labels. Received: {self.seen} images, none of "
                "them with one"
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
        """What `keep_logits` kept of the images with labels.

        Returns:
            float32 [N, O].

        Raises:
            ValueError: without `keep_logits`, or before the first batch.
        """
        if self._logits is None:
            raise ValueError("Expected keep_logits=True. Received: keep_logits=False")
        return np.concatenate(self._logits)


def wilson(right: int, images: int) -> Estimate:
    """A share with Wilson's score interval of 95 % (1927).

    Args:
        right: images that are right.
        images: all of them, 1 or more.

    Returns:
        An `Estimate` in [0, 1].

    Raises:
        ValueError: if not 0 <= right <= images, or there are no images.
    """
    if not 0 <= right <= images or images < 1:
        raise ValueError(
            "Expected 0 <= right <= images, with an image or more. Received: "
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
    """A statistic of images with its percentile bootstrap interval of 95 %.

    Args:
        statistic: function of float64 [N], how often each image is drawn.
        images: N.
        replicates: draws of N images with replacement.
        seed: seed of the draws; the same for two calls pairs them.

    Returns:
        An `Estimate` of the statistic.

    Raises:
        ValueError: if there are no images.
    """
    if images < 1:
        raise ValueError(f"Expected an image or more. Received: images={images}")
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
    """Mean of second - first over the same images, with a paired bootstrap interval.

    Args:
        first: [N], a value of each image: right or not, or its nll.
        second: the same for the second model.
        replicates: see `bootstrap`.
        seed: see `bootstrap`.

    Returns:
        An `Estimate`, in the values' units.

    Raises:
        ValueError: if they are not of the same images.
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
    """How much more the second of two shares is, of other images, by Newcombe.

    Method 10 of Newcombe (1998): from the two Wilson intervals.

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
    """The exact two-sided p-value that two models err equally often (McNemar, 1947).

    Of the n images that one model alone is right about, each is either's by the toss of
    a coin: p = min(1, 2 P(X <= min(b, c))), X ~ Binomial(n, 1/2).

    Args:
        first: bool [N], whether one model is right about each image.
        second: bool [N], likewise for the other.

    Returns:
        p, in [0, 1].

    Raises:
        ValueError: if they are not of the same images.
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
            "Expected a value of each of the same images, [N] twice. Received: "
            f"{first.shape} and {second.shape}"
        )


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The T that minimizes the mean NLL of softmax(logits / T) (Guo et al. 2017, 4.2).

    Find it on other images than those it is used on, as `scaled_by_halves` does. The
    NLL is convex in 1/T. The root of its derivative is found to a relative 1e-7.

    Args:
        logits: [N, K], finite floats.
        labels: int [N] in [0, K).

    Returns:
        T, above 0.

    Raises:
        ValueError: if no T is the best one: where every image is right, ever colder is
            better, and where logits are no better than none, ever warmer; if shapes,
            types or values are others.
    """
    Counts(logits.shape[-1]).check(logits, labels)
    at_rest = _slope(0.0, logits, labels)
    own = logits[np.arange(len(labels)), labels]
    margin = float((logits.max(axis=1).astype(np.float64) - own).max(initial=0))
    if at_rest >= 0 or not margin:
        told = "which tell nothing of the labels" if at_rest >= 0 else "all right"
        raise ValueError(
            "Expected logits that are right more than by chance, and wrong sometimes, "
            "to have a best temperature. Received: those of "
            f"{len(labels)} images, {told}"
        )
    high = 1 / margin
    while high < math.inf and _slope(high, logits, labels) < 0:
        high *= 2
    if high == math.inf:
        raise ValueError(
            "Expected logits with a temperature within float64. Received: "
            f"logits from {logits.min()} to {logits.max()}"
        )
    inverse = scipy.optimize.brentq(
        _slope, 0.0, high, (logits, labels), xtol=1e-12 * high, rtol=1e-7
    )
    return float(1 / inverse)


def _slope(inverse: float, logits: np.ndarray, labels: np.ndarray) -> float:
    """The derivative of the mean NLL by 1/T, at 1/T = `inverse`."""
    slope = 0.0
    for rows in _chunks(logits):
        z, own = logits[rows].astype(np.float64), labels[rows]
        z -= z[np.arange(len(own)), own][:, None]
        slope += float((scipy.special.softmax(inverse * z, axis=1) * z).sum())
    return slope / len(labels)


def _chunks(logits: np.ndarray) -> Iterator[slice]:
    """Rows of which float64 copies fit in memory."""
    step = max(_VALUES // logits.shape[1], 1)
    return (slice(at, at + step) for at in range(0, len(logits), step))


def scaled_by_halves(
    logits: np.ndarray, labels: np.ndarray, *, seed: int = 0
) -> tuple[tuple[float, float], PerImage]:
    """What temperature scaling does, without other images to find it on.

    The images are halved at random; each half's logits are divided by the temperature
    of the other half.

    Args:
        logits: [N, K], finite floats.
        labels: int [N] in [0, K).
        seed: seed of the halves.

    Returns:
        The halves' temperatures, and the scaled predictions in the images' order.

    Raises:
        ValueError: as `temperature`.
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
