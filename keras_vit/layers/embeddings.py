"""Equation 1 up to the position embeddings: patches and the class token.

z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos

Glossary of shapes (the paper's letters):
- B: batch.             - H, W, C: image height, width, channels.
- P: patch side.        - N: patches, N = HW / P^2.     - T: tokens.
- D: hidden size.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.configs import patch_grid as patch_grid

AT_START = 1_000  # Python 3.12 starts with 375 frozen objects.

Tensor: TypeAlias = Any  # keras.KerasTensor in construction, else a backend's tensor.
Shape: TypeAlias = tuple[int | None, ...]

register = keras.saving.register_keras_serializable(package="keras_vit")


def known_length(x: Tensor, axis: int) -> Any:
    """The length of an axis: an integer, or a TensorFlow tensor if it is unknown."""
    length = x.shape[axis]
    return ops.shape(x)[axis] if length is None else length


class Composite(keras.layers.Layer):
    """A layer of sublayers that saves their frozen, LoRA and quantization state.

    The sublayers are created when it is built. Without this class a reloaded `.keras`
    file loses that state, which is not in the outer configuration.
    """

    def build(self, input_shape: Shape) -> None:
        """Must be called last in a subclass's `build`."""
        super().build(input_shape)
        for layer in self.sublayers():
            layer.trainable = self.trainable

    def sublayers(self) -> list[keras.layers.Layer]:
        """Returns the layers that this layer has created, in order."""
        raise NotImplementedError

    def projections(self) -> list[keras.layers.Layer]:
        """Returns the inner layers that LoRA and quantization apply to, in order."""
        return _projections(self.sublayers())

    def _inside(self) -> Iterator[keras.layers.Layer]:
        """Every inner layer, each before its own inner layers."""
        for layer in self.sublayers():
            yield layer
            if isinstance(layer, Composite):
                yield from layer._inside()

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        if config is None:
            return None
        return {
            **config,
            "trainable": [layer.trainable for layer in self._inside()],
            "projections": [_adapted(layer) for layer in self.projections()],
        }

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        if "trainable" in config:
            for layer, trainable in zip(
                self._inside(), config["trainable"], strict=True
            ):
                layer.trainable = trainable
        kept = config.get("projections") or [(None, None)] * len(self.projections())
        with quick_collections():
            for layer, state in zip(self.projections(), kept, strict=True):
                _adapt(layer, *state)


def _adapted(layer: keras.layers.Layer) -> tuple[Any, ...]:
    """The state of a projection, for `_adapt`."""
    quantization = getattr(layer, "quantization_config", None)
    return (
        layer.quantization_mode,
        layer.lora_rank,
        layer.lora_alpha if layer.lora_enabled else None,
        keras.saving.serialize_keras_object(quantization),
    )


def _adapt(
    layer: keras.layers.Layer,
    mode: str | None,
    rank: int | None,
    alpha: float | None = None,
    quantization: dict[str, Any] | None = None,
) -> None:
    """Quantizes a projection and enables LoRA; keras_vit 0.1 stored the first two."""
    if mode:
        config = quantization and keras.saving.deserialize_keras_object(quantization)
        layer.quantize(mode, **({"config": config} if config else {}))
    if not rank:
        return
    layer.enable_lora(rank, lora_alpha=alpha)
    load = layer.load_own_variables

    def load_and_draw(store: Any) -> None:
        """Keras merges A and B when it saves; loaded as zeros, they never change."""
        load(store)
        a = layer.lora_kernel_a
        a.assign(keras.initializers.HeUniform()(a.shape, a.dtype))

    layer.load_own_variables = load_and_draw


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Garbage collections inside look only at new objects.

    Keras collects garbage for every kernel that it quantizes. Going through the objects
    of TensorFlow and Keras each time was most of the time (docs/performance.md, 15).
    """
    if gc.get_freeze_count() > AT_START:  # The caller's own; `unfreeze` would end it.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _projections(layers: list[keras.layers.Layer]) -> list[keras.layers.Layer]:
    inner = [
        projection
        for layer in layers
        for projection in (
            layer.projections() if isinstance(layer, Composite) else [layer]
        )
    ]
    return [layer for layer in inner if hasattr(layer, "enable_lora")]


def projections_of(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers of a model that LoRA and quantization apply to, in order."""
    return _projections(model.layers)


def everything_in(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """A model's layers with all layers inside them, also of nested models."""
    yield from model._flatten_layers(include_self=False)


def quantized(model: keras.Model) -> list[str]:
    """The paths of a model's quantized layers."""
    return [at.path for at in projections_of(model) if at.quantization_mode]


def check_unadapted(model: keras.Model, instead: str) -> None:
    """Raises for a model with LoRA or quantization; the error contains `instead`."""
    lora = [at.path for at in projections_of(model) if at.lora_enabled]
    changed = lora + quantized(model)
    if changed:
        raise ValueError(
            f"Expected a model without LoRA or quantization: {instead}. "
            f"Received: model={model.name!r}, {', '.join(changed[:3])}"
        )


@register
class PatchEmbedding(Composite):
    """The projection E of Equation 1: [B, H, W, C] -> [B, N, D], row by row.

    One convolution with stride P cuts the patches and projects them.

    Args:
        hidden_size: D.
        patch_size: P, in pixels; must divide H and W unless `crop`. H and W may be
            unknown until the call.
        crop: whether to drop the last rows and columns that do not fill a patch: for a
            hybrid's feature map, whose sides are rounded already.
        use_bias: whether the projection has a bias; CLIP's has none.

    Raises:
        ValueError: if an argument is invalid; when built or called, if P does not
            divide the sides of the images.
    """

    def __init__(
        self,
        hidden_size: int,
        patch_size: int,
        crop: bool = False,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = arguments.integer("hidden_size", hidden_size)
        self.patch_size = arguments.integer("patch_size", patch_size)
        self.crop = arguments.flag("crop", crop)
        self.use_bias = arguments.flag("use_bias", use_bias)

    def build(self, input_shape: Shape) -> None:
        known = [self.patch_size if at is None else at for at in input_shape[1:3]]
        patch_grid((known[0], known[1]), self.patch_size, self.crop)
        self.projection = keras.layers.Conv2D(
            self.hidden_size,
            self.patch_size,
            strides=self.patch_size,
            padding="valid",
            data_format="channels_last",
            use_bias=self.use_bias,
            kernel_initializer="lecun_normal",  # Flax's default, unlike Keras's.
            bias_initializer="zeros",
            dtype=self.dtype_policy,
            name="projection",
        )
        self.projection.build(input_shape)
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.projection]

    def call(self, images: Tensor) -> Tensor:
        if None in images.shape[1:3]:
            images = self._checked(images)
        else:
            patch_grid(images.shape[1:3], self.patch_size, self.crop)
        patches = self.projection(images)  # [B, H/P, W/P, D]
        num_patches = known_length(patches, 1) * known_length(patches, 2)
        return ops.reshape(patches, (-1, num_patches, self.hidden_size))

    def _checked(self, images: Tensor) -> Tensor:
        """The images; raises if P does not divide sides known only at run time.

        A convolution would crop the images. XLA ignores assertions, but does not
        compile the reshape to a different number of elements.
        """
        import tensorflow as tf

        batch, height, width, channels = ops.shape(images)
        side = self.patch_size
        rows, columns = height // side, width // side
        whole = (rows * side, columns * side)
        fits = tf.minimum(rows, columns) > 0
        if not self.crop:
            fits &= tf.equal(whole[0], height) & tf.equal(whole[1], width)
        law = (
            "Expected image_size (H, W) to be positive multiples of patch_size "
            f"(section 3.1: N = HW / P^2). Received: patch_size={side}, image_size="
        )
        with tf.control_dependencies([tf.Assert(fits, [law, height, width])]):
            images = tf.identity(images)
        if self.crop:
            return images
        return ops.reshape(images, (batch, *whole, channels))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        if height is None or width is None:
            return batch, None, self.hidden_size
        rows, columns = patch_grid((height, width), self.patch_size, self.crop)
        return batch, rows * columns, self.hidden_size

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "patch_size": self.patch_size,
            "crop": self.crop,
            "use_bias": self.use_bias,
        }


@register
class ClassToken(keras.layers.Layer):
    """Prepends the learned x_class of Equation 1: [B, N, D] -> [B, n + N, D].

    The token starts at zero, as in vit_jax/models_vit.py (`cls`).

    Args:
        num_tokens: n; more than 1 if a distillation token (DeiT) or registers (DINOv2)
            follow the class token.

    Raises:
        ValueError: if `num_tokens` is not a positive integer.
    """

    def __init__(self, num_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_tokens = arguments.integer("num_tokens", num_tokens)

    def build(self, input_shape: Shape) -> None:
        self.cls = self.add_weight(
            name="cls",
            shape=(1, self.num_tokens, input_shape[-1]),
            initializer="zeros",
        )

    def call(self, patches: Tensor) -> Tensor:
        batch, _, hidden_size = ops.shape(patches)
        cls = ops.broadcast_to(self.cls, (batch, self.num_tokens, hidden_size))
        return ops.concatenate([cls, patches], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, patches, hidden_size = input_shape
        return batch, patches and patches + self.num_tokens, hidden_size

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_tokens": self.num_tokens}
