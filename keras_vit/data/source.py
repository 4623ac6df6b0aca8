"""A data set as training, evaluation and packing read it: classes and two splits."""

import dataclasses
import hashlib
import json

import numpy as np

from keras_vit.data.splits import Indexed, Split

__all__ = ["Source"]


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set: its classes' names, its training images and its test images (4.1).

    Attributes:
        name: what it was opened by.
        classes: K names, in the order of the labels.
        train: the training images.
        test: the test images; None where there are none.
        left_out: how many unreadable images on_corrupt="skip" has left out.

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

    def fingerprint(self) -> str:
        """A hash of what the data is, for a run to be continued on the same.

        Returns:
            SHA-256, 64 hexadecimal digits, of the classes and of both splits' images.
        """
        splits = [self.train.fingerprint(), self.test and self.test.fingerprint()]
        facts = json.dumps([self.classes, splits])
        return hashlib.sha256(facts.encode()).hexdigest()

    def subset(self, images: int, seed: int = 0) -> "Source":
        """The source with a random part of its training images (4.3, Figure 4).

        Drawn over all images, not class by class. Of one seed a smaller subset is part
        of every larger one.

        Args:
            images: how many, from 1 to all.
            seed: seed of the draw.

        Returns:
            A `Source` of the same classes and test images, the drawn ones in their
            order.

        Raises:
            ValueError: if there are not so many, or they are a stream's.
        """
        if not isinstance(self.train, Indexed):
            raise ValueError(
                "Expected images that any index reads, to draw a subset of. Received: "
                f"{self.name!r}, a stream. keras-vit data pack makes shards of it"
            )
        count = len(self.train)
        if not 0 < images <= count:
            raise ValueError(
                f"Expected a subset of 1 to {count} images, all of {self.name!r}. "
                f"Received: images={images}"
            )
        drawn = np.random.default_rng(seed).permutation(count)[:images]
        return dataclasses.replace(self, train=self.train.take(np.sort(drawn)))
