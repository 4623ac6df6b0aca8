"""The signatures of an exported model (what each takes and says is in `export`).

Glossary of shapes: B images of a request, H, W, C what the model takes, K classes.
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
    """A model and what stands around it in a graph: the signatures are methods."""

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
    """From images to what the head reads (4.1)."""
    return keras.Model(model.input, graph.head_of(model).input)


def chosen_of(
    model: keras.Model, signatures: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The signatures to write, and why those are left out that a model cannot have.

    Signatures that are named have to be possible; by default all possible ones are
    chosen.
    """
    graph.gives_logits(model)  # Raises where there are no classes.
    if signatures is None:
        reason = _why_no_attention(model)
        omitted = {} if reason is None else {"attention": reason}
        return tuple(at for at in SIGNATURES if at not in omitted), omitted
    unknown = [name for name in signatures if name not in SIGNATURES]
    if unknown or not signatures or isinstance(signatures, str):
        raise ValueError(
            f"Expected signatures of {', '.join(SIGNATURES)}. Received: "
            f"signatures={signatures!r}"
        )
    if "attention" in signatures:
        _roll_out(model)
    return tuple(signatures), {}


def _why_no_attention(model: keras.Model) -> str | None:
    """The reason why there is nothing to roll out; None where there is.

    Only axial attention, ResNets and models of other layers have no rollout: any other
    error is a fault and is raised.
    """
    try:
        _roll_out(model)
    except (NoAttentionError, ForeignModelError) as refusal:
        return str(refusal)
    return None


def _roll_out(model: keras.Model) -> None:
    """Attention rollout of symbolic images: raises what a signature of it would."""
    rollout(model, keras.KerasTensor((1, *model.input_shape[1:])))
