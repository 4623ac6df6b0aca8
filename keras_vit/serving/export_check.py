"""Samples for verifying an exported model against Keras and for warming it up."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import decoding, preprocessing
from keras_vit.inspection.attention import rollout
from keras_vit.layers.embeddings import quantized
from keras_vit.serving import graph
from keras_vit.serving.parity import largest_difference
from keras_vit.serving.signatures import Served, features_of


def drawn_samples(model: keras.Model) -> list[bytes]:
    """Returns four encoded images: in the model's size, wide, tall and small."""
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
    """Returns an image with a few smooth colors: uint8 [*size, 3]."""
    colors = seeded.uniform(0, 255, (4, 4, 3)).astype(np.float32)
    return tf.cast(preprocessing.resize(tf.constant(colors), size), tf.uint8)


@dataclasses.dataclass(frozen=True)
class Trial:
    """Samples in the form of each signature's input, and Keras's outputs for them."""

    served: Served
    encoded: Sequence[bytes]
    pixels: Any  # The first sample: uint8 [1, h, w, C].
    images: Any  # All samples, scaled for the model: float32 [N, H, W, C].

    @classmethod
    def of(cls, served: Served, samples: Sequence[bytes]) -> "Trial":
        """Decodes the samples; raises ValueError if one is not an image."""
        if not samples:
            raise ValueError("Expected samples to verify the export. Received: none")
        decoded = [_decoded(number, sample) for number, sample in enumerate(samples)]
        images = tf.stack([_prepared(served, image) for image in decoded])
        pixels = preprocessing.to_channels(decoded[0], served.channels)
        return cls(served, samples, pixels[None], images)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that `isolated_run.savedmodel` expects."""
        encoded = {
            f"image_bytes/{number}": np.frombuffer(sample, np.uint8)
            for number, sample in enumerate(self.encoded)
        }
        images = {"uint8": self.pixels, "float32": self.images}
        return encoded | {name: np.asarray(value) for name, value in images.items()}

    def requests(
        self, inputs: Mapping[str, tf.TensorSpec]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields each signature's warm-up requests: with one image, and with all."""
        batches = {
            "string": np.array(self.encoded, object),
            "float32": np.asarray(self.images),
            "uint8": np.asarray(self.pixels),
        }
        for name, spec in inputs.items():
            batch = batches[spec.dtype.name]
            for part in {1: batch[:1], len(batch): batch}.values():
                yield name, {spec.name: part}

    def prove(
        self, outputs: Mapping[str, np.ndarray], inputs: Mapping[str, tf.TensorSpec]
    ) -> dict[str, float]:
        """Returns the largest difference from Keras for each output of the file.

        Raises:
            ValueError: if a difference exceeds the tolerance, or a sample was not read.
        """
        reference = self._keras_outputs(inputs)
        differences = {}
        for key, values in outputs.items():
            name, _, output = key.rpartition("/")
            if output == "status" and set(values) != {decoding.OK.encode()}:
                raise ValueError(
                    "Expected samples that the exported model can read. "
                    f"Received: {key}={values.tolist()}; nothing was written"
                )
            if output in reference:
                expected = [reference[output]]
            elif output == "scores":
                probabilities = reference["probabilities"]
                if inputs[name].dtype == tf.uint8:
                    probabilities = reference["probabilities of pixels"]
                expected = self._best(values, outputs[f"{name}/classes"], probabilities)
            else:
                continue
            differences[key] = max(
                largest_difference(key, values, one, self._tolerance(one))
                for one in expected
            )
        return differences

    def _keras_outputs(
        self, inputs: Mapping[str, tf.TensorSpec]
    ) -> dict[str, np.ndarray]:
        """Computes Keras's outputs for the samples, in a graph as `predict` does."""
        model = self.served.model

        def forward(images: Any) -> dict[str, Any]:
            logits = model(images, training=False)
            outputs = {"logits": logits}
            outputs["probabilities"] = graph.probabilities(model, logits)
            if "features" in inputs:
                outputs["features"] = features_of(model)(images, training=False)
            if "attention" in inputs:
                outputs["attention"] = rollout(model, images)
            return {name: keras.ops.cast(at, "float32") for name, at in outputs.items()}

        spec = tf.TensorSpec((None, *self.images.shape[1:]), tf.float32)
        run = tf.function(forward, input_signature=[spec], autograph=False)
        of_pixels = run(_prepared(self.served, self.pixels))
        outputs = run(self.images) | {
            "probabilities of pixels": of_pixels["probabilities"]
        }
        return {name: np.asarray(value) for name, value in outputs.items()}

    def _best(
        self, scores: np.ndarray, classes: np.ndarray, probabilities: np.ndarray
    ) -> list[np.ndarray]:
        """Returns two expected `scores`: the greatest, and those of the named classes.

        If several classes share a name, the nearest score counts; an unknown name is
        NaN.
        """
        names = np.array([label.encode() for label in self.served.labels])
        is_name = names == classes[..., None]  # [N, k, K]
        away = np.abs(probabilities[:, None] - scores[..., None])
        nearest = np.where(is_name, away, np.inf).argmin(axis=-1)
        of_names = np.take_along_axis(probabilities, nearest, axis=1)
        return [
            -np.sort(-probabilities)[:, : scores.shape[1]],
            np.where(is_name.any(axis=-1), of_names, np.nan),
        ]

    def _tolerance(self, value: np.ndarray) -> float:
        """Returns the tolerance: 1e-5 times the largest value, or times 1 if greater.

        The factor is 5e-3 in half precision, about its last digit, and 2e-2 in int8,
        where a value can be rounded to a different one of 255 steps.
        """
        precisions = {layer.compute_dtype for layer in self.served.model.layers}
        share = 1e-5 if precisions <= {"float32"} else 5e-3
        if quantized(self.served.model):
            share = 2e-2
        return share * max(1.0, float(np.abs(value).max()))


def _decoded(number: int, sample: bytes) -> Any:
    try:
        return decoding.decode(sample)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        reason = decoding.reason(sample) if isinstance(sample, bytes) else None
        raise ValueError(
            "Expected encoded images as samples. Received: "
            f"samples[{number}], {reason or decoding.UNREADABLE}"
        ) from error


def _prepared(served: Served, image: Any) -> Any:
    """Resizes and scales an image, or a batch of one size, for the model."""
    size, channels = served.image_size, served.channels
    return preprocessing.prepare(image, size, served.preprocessing, channels)
