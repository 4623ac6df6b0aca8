"""Samples that an exported model is proved on and warmed up with."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.inspection.attention import rollout
from keras_vit.serving import graph
from keras_vit.serving.parity import largest_difference
from keras_vit.serving.signatures import Served, features_of


def drawn_samples(model: keras.Model) -> list[bytes]:
    """Four images, one of each kind: of the model's size, wide, tall and small."""
    height, width = model.input_shape[1:3]
    sizes = ((height, width), (height, 2 * width), (2 * height, width), (7, 5))
    encoders = (
        tf.io.encode_jpeg,
        tf.io.encode_png,
        functools.partial(tf.io.encode_jpeg, quality=50),
        tf.io.encode_png,
    )
    seeded = np.random.default_rng(0)
    return [
        encode(_blotches(seeded, size)).numpy()
        for size, encode in zip(sizes, encoders, strict=True)
    ]


def _blotches(seeded: np.random.Generator, size: tuple[int, int]) -> Any:
    """An image of a few smooth colors: uint8 [*size, 3]."""
    colors = seeded.uniform(0, 255, (4, 4, 3)).astype(np.float32)
    return tf.cast(preprocessing.resize(tf.constant(colors), size), tf.uint8)


@dataclasses.dataclass(frozen=True)
class Trial:
    """Samples as each signature takes them, and what Keras says of them."""

    served: Served
    encoded: Sequence[bytes]
    decoded: Any  # Of the first sample: uint8 [1, h, w, C].
    images: Any  # float32 [N, H, W, C].

    @classmethod
    def of(cls, served: Served, samples: Sequence[bytes]) -> "Trial":
        if not samples:
            raise ValueError("Expected samples to prove it on. Received: none")
        channels = served.channels
        decoded = []
        for number, sample in enumerate(samples):
            try:
                image = preprocessing.decode(sample)
            except (tf.errors.OpError, ValueError, TypeError) as error:
                raise ValueError(
                    "Expected samples that are bytes of images. Received: "
                    f"samples[{number}], {graph.UNREADABLE}"
                ) from error
            decoded.append(preprocessing.to_channels(image, channels))
        prepare = functools.partial(
            preprocessing.prepare, image_size=served.image_size, channels=channels
        )
        mean, std = served.normalization
        images = tf.stack([prepare(image, mean=mean, std=std) for image in decoded])
        return cls(served, samples, decoded[0][None], images)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `fresh.savedmodel` takes."""
        encoded = {
            f"image_bytes/{i}": np.frombuffer(sample, np.uint8)
            for i, sample in enumerate(self.encoded)
        }
        pixels = {"images": self.decoded, "images_float32": self.images}
        return encoded | {name: np.asarray(value) for name, value in pixels.items()}

    def requests(self, chosen: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each signature's warm-up: one image alone, and all of them at once."""
        encoded = np.array(self.encoded, object)
        for name in ("serving_default", *chosen):
            if name == "images":
                yield name, {"images": np.asarray(self.decoded)}
                for images in (self.images[:1], self.images):
                    yield "images_float32", {"images": np.asarray(images)}
            else:
                for part in (encoded[:1], encoded):
                    yield name, {"image_bytes": part}

    def prove(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The largest difference of each signature's numbers; raises beyond 1e-5."""
        model = self.served.model
        logits = keras.ops.cast(model(self.images, training=False), "float32")
        told = {"images_float32/logits": logits}
        if "features/features" in found:
            told["features/features"] = features_of(model)(self.images, training=False)
        if "attention/attention" in found:
            told["attention/attention"] = rollout(model, self.images)
        expected = {
            name: np.asarray(keras.ops.cast(value, "float32"))
            for name, value in told.items()
        }
        differences = {
            name: largest_difference(name, found[name], value, self.tolerance(value))
            for name, value in expected.items()
            if name in found
        }
        probabilities = np.asarray(graph.probabilities(model, logits))
        for key in [key for key in found if key.endswith("/classes")]:
            name = key.removesuffix("/classes")
            scores = found[f"{name}/scores"]
            these = probabilities[: len(scores)]
            of_names = self._scores_of(found[key], scores, these)
            best = -np.sort(-these)[:, : scores.shape[1]]
            differences[f"{name}/scores"] = max(
                largest_difference(f"{name}/scores", scores, value, self.tolerance())
                for value in (of_names, best)
            )
        bad = {
            f"{name}: {status.decode()}"
            for name in found
            if name.endswith("/status")
            for status in found[name]
            if status != graph.OK.encode()
        }
        if bad:
            raise ValueError(
                "Expected samples that the exported model reads as Keras does. "
                f"Received: {', '.join(sorted(bad))}; nothing was written"
            )
        return differences

    def tolerance(self, value: np.ndarray | None = None) -> float:
        """How far from Keras: 1e-5 of the largest number, or of 1 where that is more.

        In half precision 2e-2: a graph's compiler and eager Keras round elsewhere.
        """
        precisions = {layer.compute_dtype for layer in self.served.model.layers}
        share = 1e-5 if precisions <= {"float32"} else 2e-2
        return share * max(1.0, 0.0 if value is None else float(np.abs(value).max()))

    def _scores_of(
        self, classes: np.ndarray, scores: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        """Keras's score of each named class; of several of one name, the nearest."""
        names = np.array([label.encode() for label in self.served.labels])
        is_name = names == classes[..., None]  # [N, k, K]
        away = np.abs(probabilities[:, None] - scores[..., None])
        nearest = np.where(is_name, away, np.inf).argmin(axis=-1)
        found = np.take_along_axis(probabilities, nearest, axis=1)
        return np.where(is_name.any(axis=-1), found, np.nan)
