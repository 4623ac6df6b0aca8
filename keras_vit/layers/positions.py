"""The position embeddings of Equation 1, and their resizing (section 3.2)."""

from typing import Any

import keras
import numpy as np

from keras_vit.layers.embeddings import Shape, Tensor, register


@register
class AddPositionEmbs(keras.layers.Layer):
    """Adds the learned E_pos of Equation 1: [B, T, D] -> [B, T, D].

    Initialised N(0, 0.02), "from BERT" (vit_jax/models_vit.py); Keras's
    "random_normal" string would give 0.05.

    Args:
        grid: (rows, columns) of the patches; None where tokens have no grid, and
            then the table cannot be resized.
        num_prefix_tokens: tokens before the patches (1 with a class token).

    Raises:
        ValueError: when built on T other than `num_prefix_tokens` + rows * columns.
    """

    def __init__(
        self,
        grid: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grid = None if grid is None else (grid[0], grid[1])
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, input_shape: Shape) -> None:
        _, tokens, hidden_size = input_shape
        if self.grid is not None:
            rows, columns = self.grid
            if tokens != self.num_prefix_tokens + rows * columns:
                raise ValueError(
                    "Expected T = num_prefix_tokens + rows * columns tokens "
                    f"(Equation 1). Received: T={tokens}, grid={self.grid}, "
                    f"num_prefix_tokens={self.num_prefix_tokens}"
                )
        self.pos_embedding = self.add_weight(
            name="pos_embedding",
            shape=(1, tokens, hidden_size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, tokens: Tensor) -> Tensor:
        return tokens + self.pos_embedding

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid": self.grid,
            "num_prefix_tokens": self.num_prefix_tokens,
        }


def resize_position_embeddings(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int,
) -> np.ndarray:
    """Interpolates E_pos by place in the image (3.2): [..., T, D] -> [..., T', D].

    Linear with aligned corners, as `checkpoint.interpolate_posembed` of the official
    code: new row i reads the old rows around i * (old - 1) / (new - 1). Coordinates
    are clamped to the table; the official code's scipy.ndimage.zoom lets rounding
    carry the last one over the edge for some sizes (28 -> 14 among them) and fills
    that row and column with zeros.

    Args:
        table: NumPy array [..., num_prefix_tokens + rows * columns, D].
        old_grid: (rows, columns) of `table`.
        new_grid: (rows, columns) wanted.
        num_prefix_tokens: leading tokens without a place, copied as they are.

    Returns:
        NumPy array [..., num_prefix_tokens + new rows * new columns, D], of
        `table`'s dtype.

    Raises:
        ValueError: if `table` does not hold `old_grid`, or a grid is empty.
    """
    rows, columns = old_grid
    if min(*old_grid, *new_grid) < 1:
        raise ValueError(
            "Expected grids of at least one row and one column. "
            f"Received: old_grid={tuple(old_grid)}, new_grid={tuple(new_grid)}"
        )
    tokens, hidden_size = table.shape[-2:]
    if tokens != num_prefix_tokens + rows * columns:
        raise ValueError(
            "Expected a table of num_prefix_tokens + rows * columns tokens "
            f"(Equation 1). Received: table.shape={table.shape}, "
            f"old_grid={tuple(old_grid)}, num_prefix_tokens={num_prefix_tokens}"
        )
    if tuple(old_grid) == tuple(new_grid):
        return table.copy()
    prefix, grid = np.split(table, [num_prefix_tokens], axis=-2)
    grid = grid.reshape(*table.shape[:-2], rows, columns, hidden_size)
    grid = _interpolate(grid, new_grid[0], axis=-3)
    grid = _interpolate(grid, new_grid[1], axis=-2)
    grid = grid.reshape(*table.shape[:-2], -1, hidden_size).astype(table.dtype)
    return np.concatenate([prefix, grid], axis=-2)


def _interpolate(grid: np.ndarray, new: int, axis: int) -> np.ndarray:
    """Linear interpolation with aligned corners of `axis` to `new` places."""
    old = grid.shape[axis]
    places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    low = np.minimum(places.astype(int), old - 1)
    high = np.minimum(low + 1, old - 1)
    weight = (places - low).reshape(-1, *[1] * (-axis - 1))
    low_part, high_part = grid.take(low, axis), grid.take(high, axis)
    return np.asarray(low_part * (1 - weight) + high_part * weight)
