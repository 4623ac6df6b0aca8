"""Feature maps from tokens, for detection or segmentation heads (section 3.1)."""

from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_vit.layers.embeddings import Shape, Tensor, register


@register
class FeatureMaps(keras.layers.Layer):
    """Tokens of several layers as maps: n times [B, T, D] -> a dict of [B, R, S, D].

    R and S are the rows and columns of patches. For layer 3 the keys are `block_3`,
    the map; `class_token_3` [B, D]; `distillation_token_3` [B, D]; and `registers_3`
    [B, n, D]. Keys of tokens that the model does not have are absent.

    Args:
        numbers: numbers of the layers, from 1, in the order of the tokens.
        patch_size: P, in pixels of the image or cells of the feature map.
        num_class_tokens: number of class tokens: 1, 2 with a distillation token, or 0.
        num_registers: number of tokens between those and the patches.
        norm: layer to apply to the tokens; shared, not copied. None: no layer.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        patch_size: int,
        num_class_tokens: int,
        num_registers: int,
        norm: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.numbers = tuple(numbers)
        self.patch_size = patch_size
        self.num_class_tokens = num_class_tokens
        self.num_registers = num_registers
        self.norm = norm

    def build(self, tokens_shape: Sequence[Shape], places_shape: Shape) -> None:
        if self.norm is not None and not self.norm.built:
            self.norm.build(tokens_shape[0])

    def call(self, tokens: Sequence[Tensor], places: Tensor) -> dict[str, Tensor]:
        """Returns the maps.

        Args:
            tokens: tokens of each layer, [B, T, D].
            places: the image or feature map that is cut into patches, [B, H, W, C];
                only its size is used.
        """
        _, height, width, _ = ops.shape(places)
        grid = height // self.patch_size, width // self.patch_size
        maps: dict[str, Tensor] = {}
        for number, z in zip(self.numbers, tokens, strict=True):
            z = z if self.norm is None else self.norm(z)
            prefix = self.num_class_tokens + self.num_registers
            patches = (-1, *grid, z.shape[-1])
            maps[f"block_{number}"] = ops.reshape(z[:, prefix:], patches)
            for at, name in enumerate(self._class_tokens()):
                maps[f"{name}_{number}"] = z[:, at]
            if self.num_registers:
                registers = z[:, self.num_class_tokens : prefix]
                maps[f"registers_{number}"] = registers
        return maps

    def _class_tokens(self) -> tuple[str, ...]:
        return ("class_token", "distillation_token")[: self.num_class_tokens]

    def compute_output_shape(
        self, tokens_shape: Sequence[Shape], places_shape: Shape
    ) -> dict[str, Shape]:
        batch, height, width, _ = places_shape
        rows = None if height is None else height // self.patch_size
        columns = None if width is None else width // self.patch_size
        shapes: dict[str, Shape] = {}
        for number, shape in zip(self.numbers, tokens_shape, strict=True):
            shapes[f"block_{number}"] = batch, rows, columns, shape[-1]
            for name in self._class_tokens():
                shapes[f"{name}_{number}"] = batch, shape[-1]
            if self.num_registers:
                registers = batch, self.num_registers, shape[-1]
                shapes[f"registers_{number}"] = registers
        return shapes

    def get_config(self) -> dict[str, Any]:
        norm = None
        if self.norm is not None:
            norm = keras.saving.serialize_keras_object(self.norm)
        return {
            **super().get_config(),
            "numbers": self.numbers,
            "patch_size": self.patch_size,
            "num_class_tokens": self.num_class_tokens,
            "num_registers": self.num_registers,
            "norm": norm,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        norm = config["norm"]
        if isinstance(norm, dict):
            norm = keras.saving.deserialize_keras_object(norm)
        return cls(**{**config, "norm": norm})
