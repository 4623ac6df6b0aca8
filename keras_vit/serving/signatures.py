"""The signatures of an exported model (what each takes and says is in `export`).

Glossary of shapes: B images of a request, H, W, C what the model takes, K classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.data.preprocessing import Size
from keras_vit.inspection.attention import rollout
from keras_vit.normalization import HALF, Channels, per_channel
from keras_vit.serving import graph

SIGNATURES = ("image_bytes", "images", "features", "attention")


@dataclasses.dataclass(frozen=True)
class Served:
    """A model and what stands around it in a graph: the signatures are methods."""

    model: keras.Model
    labels: tuple[str, ...]
    normalization: tuple[Channels, Channels]
    top_k: int
    on_bad_image: str
    max_pixels: int

    def __post_init__(self) -> None:
        if self.on_bad_image not in ("status", "fail"):
            raise ValueError(
                "Expected on_bad_image 'status' or 'fail'. Received: "
                f"on_bad_image={self.on_bad_image!r}"
            )
        for name in ("top_k", "max_pixels"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"Expected {name} of 1 or more. Received: "
                    f"{name}={getattr(self, name)}"
                )

    @property
    def image_size(self) -> Size:
        """(H, W)."""
        height, width = self.model.input_shape[1:3]
        return height, width

    @property
    def channels(self) -> int:
        """C."""
        return int(self.model.input_shape[-1])

    def inputs(self, chosen: Sequence[str]) -> dict[str, tf.TensorSpec]:
        """What each signature takes; `serving_default` is the first of them."""
        height, width, channels = self.model.input_shape[1:]
        encoded = tf.TensorSpec([None], tf.string, "image_bytes")
        pixels = tf.TensorSpec([None, None, None, channels], tf.uint8, "images")
        floats = tf.TensorSpec([None, height, width, channels], tf.float32, "images")
        specs: dict[str, tf.TensorSpec] = {}
        for name in (at for at in SIGNATURES if at in chosen):
            if name == "images":
                specs |= {"images": pixels, "images_float32": floats}
            else:
                specs[name] = encoded
        return {"serving_default": next(iter(specs.values())), **specs}

    @functools.cached_property
    def logits(self) -> Callable[[Any], Any]:
        """The model, traced once for all signatures: float32 [B, H, W, C] -> [B, K]."""

        def forward(images: Any) -> Any:
            return self.model(images, training=False)

        spec = tf.TensorSpec(self.model.input_shape, tf.float32)
        traced: Callable[[Any], Any] = tf.function(
            forward, input_signature=[spec], autograph=False
        )
        return traced

    def classify(self, images: Any) -> dict[str, Any]:
        """Names and scores of images scaled as for the model."""
        scores = graph.probabilities(self.model, self.logits(images))
        top_k = min(self.top_k, len(self.labels))
        return graph.best(scores, self.labels, top_k)

    def read(self, encoded: Any) -> tuple[Any, Any]:
        """Encoded images as the model takes them, and each one's status."""
        images, status = graph.decode_each(
            encoded,
            self.image_size,
            *self.normalization,
            self.channels,
            self.max_pixels,
        )
        if self.on_bad_image == "fail":
            status = graph.require_all(status)
        return images, status

    def image_bytes(self, image_bytes: Any) -> dict[str, Any]:
        """The signature of this name, and `serving_default`."""
        images, status = self.read(image_bytes)
        return graph.masked(self.classify(images), status)

    def images(self, images: Any) -> dict[str, Any]:
        """The signature of this name."""
        size, channels = self.image_size, self.channels
        return self.classify(
            preprocessing.prepare(images, size, *self.normalization, channels)
        )

    def images_float32(self, images: Any) -> dict[str, Any]:
        """The signature of this name."""
        logits = keras.ops.cast(self.logits(images), "float32")
        return self.classify(images) | {"logits": logits}

    def features(self, image_bytes: Any) -> dict[str, Any]:
        """The signature of this name."""
        images, status = self.read(image_bytes)
        features = features_of(self.model)(images, training=False)
        features = keras.ops.cast(features, "float32")
        return graph.masked({"features": features}, status)

    def attention(self, image_bytes: Any) -> dict[str, Any]:
        """The signature of this name."""
        images, status = self.read(image_bytes)
        attention = keras.ops.cast(rollout(self.model, images), "float32")
        return graph.masked({"attention": attention}, status)


def features_of(model: keras.Model) -> keras.Model:
    """From images to what the head reads (4.1)."""
    return keras.Model(model.input, graph.head_of(model).input)


def normalization_of(
    model: keras.Model, mean: Channels | None, std: Channels | None
) -> tuple[Channels, Channels]:
    """Mean and deviation of each of the model's channels.

    Those given, else those that its checkpoint came with, else the published weights'.
    """
    channels = model.input_shape[-1]
    report = getattr(model, "checkpoint_report", None)
    told = {} if report is None else report.preprocessing
    mean = told.get("mean", HALF) if mean is None else mean
    std = told.get("std", HALF) if std is None else std
    return per_channel(tuple(mean), channels), per_channel(tuple(std), channels)


def chosen_of(model: keras.Model, signatures: Sequence[str] | None) -> tuple[str, ...]:
    """The signatures to write; those that a model cannot have raise if asked for."""
    graph.gives_logits(model)  # Raises where there are no classes.
    if signatures is None:
        return tuple(at for at in SIGNATURES if at != "attention" or _attends(model))
    unknown = [name for name in signatures if name not in SIGNATURES]
    if unknown or not signatures or isinstance(signatures, str):
        raise ValueError(
            f"Expected signatures of {', '.join(SIGNATURES)}. Received: "
            f"signatures={signatures!r}"
        )
    if "attention" in signatures:
        rollout(model, keras.KerasTensor((1, *model.input_shape[1:])))
    return tuple(signatures)


def _attends(model: keras.Model) -> bool:
    try:
        rollout(model, keras.KerasTensor((1, *model.input_shape[1:])))
    except ValueError:  # Axial attention and ResNets: nothing to roll out.
        return False
    return True
