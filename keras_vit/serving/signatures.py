"""The signatures of an exported model; `export` documents their inputs and outputs.

Glossary of shapes: B images of a request, H, W, C the model's input, K classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_vit.data.preprocessing import Size, prepare
from keras_vit.facts import Preprocessing
from keras_vit.inspection.attention import NoAttentionError, rollout
from keras_vit.models.description import ForeignModelError
from keras_vit.serving import graph

SIGNATURES = ("image_bytes", "images", "features", "attention")


@dataclasses.dataclass(frozen=True)
class Served:
    """A model with its preprocessing and labels in a graph; signatures are methods."""

    model: keras.Model
    labels: tuple[str, ...]
    preprocessing: Preprocessing
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
        """Returns each signature's input; `serving_default` equals the first one."""
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
        """Returns class names and scores of images that are scaled for the model."""
        scores = graph.probabilities(self.model, self.logits(images))
        top_k = min(self.top_k, len(self.labels))
        return graph.best(scores, self.labels, top_k)

    def read(self, encoded: Any) -> tuple[Any, Any]:
        """Decodes and prepares encoded images; returns them and their statuses."""
        images, status = graph.decode_each(
            encoded,
            self.image_size,
            self.preprocessing,
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
        return self.classify(prepare(images, size, self.preprocessing, channels))

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
    """Returns the model from images to the input of the head (4.1)."""
    return keras.Model(model.input, graph.head_of(model).input)


def chosen_of(
    model: keras.Model, signatures: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the signatures to write, and the omitted ones with the reason.

    Requested signatures must be supported by the model. The default is all supported
    ones.
    """
    graph.gives_logits(model)  # Raises if the model has no classes.
    if signatures is None:
        reason = _why_no_attention(model)
        omitted = {} if reason is None else {"attention": reason}
        return tuple(at for at in SIGNATURES if at not in omitted), omitted
    unknown = [name for name in signatures if name not in SIGNATURES]
    if unknown or not signatures or isinstance(signatures, str):
        raise ValueError(
            f"Expected a list of signatures of {', '.join(SIGNATURES)}. Received: "
            f"signatures={signatures!r}"
        )
    if "attention" in signatures:
        _roll_out(model)
    return tuple(signatures), {}


def _why_no_attention(model: keras.Model) -> str | None:
    """Returns the reason why a model has no attention rollout, or None if it has one.

    Only axial attention, ResNets and models with foreign layers have no rollout. Any
    other error is raised.
    """
    try:
        _roll_out(model)
    except (NoAttentionError, ForeignModelError) as refusal:
        return str(refusal)
    return None


def _roll_out(model: keras.Model) -> None:
    """Computes the attention rollout of symbolic images, to raise its errors early."""
    rollout(model, keras.KerasTensor((1, *model.input_shape[1:])))
