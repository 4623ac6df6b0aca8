"""Positions and padding for images of any size (3.2)."""

from typing import Any

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.embeddings import Shape, Tensor, register
from keras_vit.layers.plain import PlacedPositionEmbs
from keras_vit.layers.positions import AddPositionEmbs


@register
class ResizedPositionEmbs(AddPositionEmbs):
    """Adds E_pos, resized to the images: [B, T, D], [B, H, W, C] -> [B, T, D].

    Equals `resize_position_embeddings` (3.2), in float32; "sincos2d" has a formula for
    every grid. One table is used and trained for all image sizes.

    Args:
        patch_size: P, in pixels of the image or cells of the feature map.
        grid: (rows, columns) of the table.
        num_prefix_tokens: see `AddPositionEmbs`.
        kind: see `AddPositionEmbs`.
        num_bare_tokens: see `PlacedPositionEmbs`.
    """

    def __init__(
        self,
        patch_size: int,
        grid: tuple[int, int],
        num_prefix_tokens: int = 0,
        kind: str = "1d",
        num_bare_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(grid, num_prefix_tokens, kind, **kwargs)
        self.patch_size = arguments.integer("patch_size", patch_size)
        self.num_bare_tokens = arguments.integer(
            "num_bare_tokens", num_bare_tokens, least=0
        )

    def build(self, tokens_shape: Shape, places_shape: Shape) -> None:  # type: ignore[override]
        rows, columns = self.grid or (0, 0)  # Never None here.
        tokens = self.num_prefix_tokens + rows * columns
        super().build((None, tokens, tokens_shape[-1]))

    def _table(self, name: str, places: int, depth: int) -> keras.Variable:
        return self.add_weight(
            name=name,
            shape=(1, places, depth),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,  # Resized in float32 under any policy, then cast.
        )

    def call(self, tokens: Tensor, places: Tensor) -> Tensor:  # type: ignore[override]
        """Returns the tokens with their positions.

        Args:
            tokens: tokens [B, T, D].
            places: the image or feature map that is cut into patches, [B, H, W, C];
                only its size is used.
        """
        _, height, width, _ = ops.shape(places)
        grid = height // self.patch_size, width // self.patch_size
        depth = tokens.shape[-1]
        if self.kind == "sincos2d":
            patches = _sincos2d(grid, depth)
            prefix = ops.zeros((self.num_prefix_tokens, depth))
        elif self.kind == "2d":
            x, y = (
                ops.matmul(_linear(old.shape[1], new), old[0])
                for old, new in zip(
                    (self.x_embedding, self.y_embedding), grid[::-1], strict=True
                )
            )
            patches = _outer(x, y)
            prefix = self.prefix_embedding[0] if self.num_prefix_tokens else None
        else:
            rows, columns = self.grid or (0, 0)
            prefix = self.pos_embedding[0, : self.num_prefix_tokens]
            table = self.pos_embedding[0, self.num_prefix_tokens :]
            table = ops.reshape(table, (rows, columns * depth))
            table = ops.matmul(_linear(rows, grid[0]), table)
            table = ops.reshape(table, (-1, columns, depth))
            patches = ops.matmul(_linear(columns, grid[1]), table)
        parts = [] if prefix is None else [prefix]
        if self.num_bare_tokens:
            parts.append(ops.zeros((self.num_bare_tokens, depth)))
        table = ops.concatenate([*parts, ops.reshape(patches, (-1, depth))], axis=0)
        return tokens + ops.cast(table, tokens.dtype)

    def compute_output_shape(  # type: ignore[override]
        self, tokens_shape: Shape, places_shape: Shape
    ) -> Shape:
        return tokens_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "num_bare_tokens": self.num_bare_tokens,
        }

    @staticmethod
    def fixed(
        config: dict[str, Any],
    ) -> tuple[type[AddPositionEmbs], dict[str, Any]]:
        """The layer for images of one size, and its config, from this one's config."""
        own = {"patch_size", "num_bare_tokens"}
        fixed = {key: value for key, value in config.items() if key not in own}
        if bare := config["num_bare_tokens"]:
            return PlacedPositionEmbs, fixed | {"num_bare_tokens": bare}
        return AddPositionEmbs, fixed


def _linear(old: int, new: Any) -> Tensor:
    """Weights for resizing `old` to `new`, corners aligned: [new, old], float32.

    New index i is at i * (old - 1) / (new - 1); distances are computed in integers.
    """
    step = ops.maximum(new - 1, 1)
    away = ops.arange(new)[:, None] * (old - 1) - ops.arange(old)[None] * step
    away = ops.cast(ops.abs(away), "float32") / ops.cast(step, "float32")
    return ops.maximum(1 - away, 0)


def _sincos2d(grid: tuple[Any, Any], depth: int) -> Tensor:
    """`positions.sincos2d` for a grid from images of any size: [R, S, D]."""
    quarter = ops.cast(ops.arange(depth // 4), "float32") / (depth // 4 - 1)
    omega = ops.power(10_000.0, -quarter)
    y, x = (ops.cast(ops.arange(at), "float32")[:, None] * omega for at in grid)
    return _outer(
        ops.concatenate([ops.sin(x), ops.cos(x)], axis=-1),
        ops.concatenate([ops.sin(y), ops.cos(y)], axis=-1),
    )


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Concatenates each column's and each row's half: [S, d], [R, d] -> [R, S, 2 d]."""
    shape = (ops.shape(y)[0], ops.shape(x)[0], x.shape[-1])
    columns = ops.broadcast_to(x[None], shape)
    return ops.concatenate([columns, ops.broadcast_to(y[:, None], shape)], axis=-1)


@register
class PadToPatches(keras.layers.Layer):
    """Pads the bottom and the right with zeros to multiples of P: -> [B, H', W', C].

    As in timm's `dynamic_img_pad`, padding follows normalization: zero is the mean.

    Args:
        patch_size: P, in pixels.
    """

    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = arguments.integer("patch_size", patch_size)

    def call(self, images: Tensor) -> Tensor:
        _, height, width, _ = ops.shape(images)
        below, right = -height % self.patch_size, -width % self.patch_size
        return ops.pad(images, ((0, 0), (0, below), (0, right), (0, 0)))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *sides, channels = input_shape
        height, width = (
            None if side is None else side + -side % self.patch_size for side in sides
        )
        return batch, height, width, channels

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "patch_size": self.patch_size}
