"""A data set for training, evaluation and packing: classes and two splits."""

import dataclasses
import hashlib
import json

import numpy as np

from keras_vit.data.splits import Indexed, Split

__all__ = ["Source"]


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set: class names, training images and test images (4.1).

    Attributes:
        name: name that it was opened with.
        classes: K names, in the order of the labels.
        train: training images.
        test: test images, or None.
        left_out: number of unreadable images that on_corrupt="skip" left out.
        draws_test: whether the test images were drawn from those of a source without a
            test set. They are different ones if an image is added or removed.

    Examples:
        >>> from keras_vit.data import Arrays, Source
        >>> images, labels = np.zeros([4, 8, 8, 3], np.uint8), np.array([0, 0, 1, 1])
        >>> mine = Source("mine", ("cat", "dog"), Arrays(images, labels), test=None)
        >>> len(mine.subset(2).train)
        2
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split | None
    left_out: int = 0
    draws_test: bool = False

    def fingerprint(self) -> str:
        """Returns a hash of the data, to check that a run resumes on the same data.

        Returns:
            SHA-256, 64 hexadecimal digits, of the classes and of both splits' images.
        """
        splits = [self.train.fingerprint(), self.test and self.test.fingerprint()]
        facts = json.dumps([self.classes, splits])
        return hashlib.sha256(facts.encode()).hexdigest()

    def subset(self, images: int, seed: int = 0) -> "Source":
        """Selects a random subset of the training images (4.3, Figure 4).

        It is drawn over all images, not class by class. With the same seed, a smaller
        subset is part of every larger one.

        Args:
            images: number of images, from 1 to all.
            seed: seed of the draw.

        Returns:
            A `Source` with the same classes and test images; the drawn images keep
            their order.

        Raises:
            ValueError: if there are fewer images, or the source is a stream.
        """
        if not isinstance(self.train, Indexed):
            raise ValueError(
                "Expected images that can be read by index, for a subset. Received: "
                f"{self.name!r}, a stream. Convert it with keras-vit data pack"
            )
        count = len(self.train)
        if not 0 < images <= count:
            raise ValueError(
                f"Expected a subset of 1 to {count} images of {self.name!r}. "
                f"Received: images={images}"
            )
        drawn = np.random.default_rng(seed).permutation(count)[:images]
        return dataclasses.replace(self, train=self.train.take(np.sort(drawn)))
