"""The position embeddings of Equation 1, the kinds of D.4, and resizing (3.2)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers.embeddings import Shape, Tensor, register

KINDS = ("1d", "2d", "sincos2d")


def _grid(name: str, value: Any) -> tuple[int, int]:
    rows, columns = arguments.sides(name, value, letters="(rows, columns)")
    return rows, columns


@register
class AddPositionEmbs(keras.layers.Layer):
    """Adds the E_pos of Equation 1: [B, T, D] -> [B, T, D].

    Initialized with N(0, 0.02), "from BERT" (vit_jax/models_vit.py). Keras's
    "random_normal" would have 0.05.

    Args:
        grid: (rows, columns) of the patches; None: the tokens have no grid, and the
            table cannot be resized.
        num_prefix_tokens: number of tokens before the patches (1 with a class token).
        kind: "1d", a learned row for every token in raster order; "2d", half of D
            learned for the column (X) and half for the row (Y) of a patch (D.4), and a
            row for each prefix token; "sincos2d", big_vision's sines and cosines, which
            are not learned and zero for prefix tokens.

    Raises:
        ValueError: if an argument is invalid, or `kind` requires a grid; when built, if
            T is not `num_prefix_tokens` + rows * columns.
    """

    def __init__(
        self,
        grid: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        kind: str = "1d",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = arguments.choice("kind", kind, KINDS)
        if grid is None and kind != "1d":
            raise ValueError(
                "Expected AddPositionEmbs with a grid (rows, columns) for kind="
                f"{kind!r}. Received: grid=None"
            )
        self.grid = None if grid is None else _grid("grid", grid)
        self.num_prefix_tokens = arguments.integer(
            "num_prefix_tokens", num_prefix_tokens, least=0
        )

    def build(self, input_shape: Any) -> None:
        _, tokens, depth = input_shape
        if self.grid is not None:
            rows, columns = self.grid
            if tokens != self.num_prefix_tokens + rows * columns:
                raise ValueError(
                    "Expected T = num_prefix_tokens + rows * columns tokens "
                    f"(Equation 1). Received: T={tokens}, grid={self.grid}, "
                    f"num_prefix_tokens={self.num_prefix_tokens}"
                )
        if self.kind == "1d":
            self.pos_embedding = self._table("pos_embedding", tokens, depth)
        elif self.kind == "2d":
            self.x_embedding = self._table("x_embedding", columns, depth // 2)
            self.y_embedding = self._table("y_embedding", rows, depth // 2)
            if self.num_prefix_tokens:
                self.prefix_embedding = self._table(
                    "prefix_embedding", self.num_prefix_tokens, depth
                )
        else:
            table = sincos2d(self.grid, depth)
            prefix = ((0, 0), (self.num_prefix_tokens, 0), (0, 0))
            self.constant = np.pad(table, prefix)

    def _table(self, name: str, places: int, depth: int) -> keras.Variable:
        return self.add_weight(
            name=name,
            shape=(1, places, depth),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, tokens: Tensor) -> Tensor:
        if self.kind == "sincos2d":
            return tokens + ops.cast(self.constant, tokens.dtype)
        return tokens + self.table()

    def table(self) -> Tensor:
        """Returns E_pos of Equation 1: [1, T, D]."""
        if self.kind == "1d":
            return self.pos_embedding
        return self.constant if self.kind == "sincos2d" else self._joined()

    def _joined(self) -> Tensor:
        """The learned halves of every patch, concatenated, X first: [1, T, D]."""
        rows, columns = self.grid or (0, 0)  # Never None for "2d".
        half = self.x_embedding.shape[-1]
        x = ops.broadcast_to(
            ops.reshape(self.x_embedding, (1, columns, half)), (rows, columns, half)
        )
        y = ops.broadcast_to(
            ops.reshape(self.y_embedding, (rows, 1, half)), (rows, columns, half)
        )
        table = ops.reshape(ops.concatenate([x, y], -1), (1, rows * columns, 2 * half))
        if not self.num_prefix_tokens:
            return table
        return ops.concatenate([self.prefix_embedding, table], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid": self.grid,
            "num_prefix_tokens": self.num_prefix_tokens,
            "kind": self.kind,
        }


def sincos2d(grid: tuple[int, int] | None, depth: int) -> np.ndarray:
    """big_vision's fixed positions: (rows, columns), D -> [1, rows * columns, D].

    sin and cos of x * w, then of y * w, w = 10000^(-i / (D/4 - 1)) for D/4 values of i.

    Raises:
        ValueError: if D is not a multiple of 4 and at least 8.
    """
    if grid is None or depth % 4 or depth < 8:
        raise ValueError(
            "Expected a grid, and a depth that is a multiple of 4 and at least 8. "
            f"Received: grid={grid}, depth={depth}"
        )
    y, x = np.mgrid[: grid[0], : grid[1]].reshape(2, -1, 1)
    quarter = np.arange(depth // 4) / (depth // 4 - 1)
    omega = 1 / 10_000**quarter
    parts = (np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega))
    return np.concatenate(parts, axis=1)[None].astype(np.float32)


def resize_position_embeddings(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int,
) -> np.ndarray:
    """Interpolates E_pos by location in the image (3.2): [..., T, D] -> [..., T', D].

    Interpolation is linear with aligned corners, as in the official code's
    `checkpoint.interpolate_posembed`: new row i is computed from the old rows around
    i * (old - 1) / (new - 1). Coordinates are clamped to the table. In the official
    code's scipy.ndimage.zoom, rounding moves the last one over the edge for some sizes
    (such as 28 -> 14), and that row and column become zeros.

    Args:
        table: NumPy array [..., num_prefix_tokens + rows * columns, D].
        old_grid: (rows, columns) of `table`.
        new_grid: (rows, columns) of the result.
        num_prefix_tokens: number of leading tokens without a location, which are
            copied.

    Returns:
        NumPy array [..., num_prefix_tokens + new rows * new columns, D], with the
        dtype of `table`.

    Raises:
        ValueError: if `table` does not match `old_grid`, or a grid is empty.
    """
    rows, columns = old_grid = _grid("old_grid", old_grid)
    new_grid = _grid("new_grid", new_grid)
    num_prefix_tokens = arguments.integer(
        "num_prefix_tokens", num_prefix_tokens, least=0
    )
    tokens, hidden_size = table.shape[-2:]
    if tokens != num_prefix_tokens + rows * columns:
        raise ValueError(
            "Expected a table of num_prefix_tokens + rows * columns tokens "
            f"(Equation 1). Received: table.shape={table.shape}, "
            f"old_grid={old_grid}, num_prefix_tokens={num_prefix_tokens}"
        )
    if old_grid == new_grid:
        return table.copy()
    prefix, grid = np.split(table, [num_prefix_tokens], axis=-2)
    grid = grid.reshape(*table.shape[:-2], rows, columns, hidden_size)
    grid = _interpolate(grid, new_grid[0], axis=-3)
    grid = _interpolate(grid, new_grid[1], axis=-2)
    grid = grid.reshape(*table.shape[:-2], -1, hidden_size).astype(table.dtype)
    return np.concatenate([prefix, grid], axis=-2)


def _interpolate(grid: np.ndarray, new: int, axis: int) -> np.ndarray:
    """Linear interpolation of `axis` to length `new`, with aligned corners."""
    old = grid.shape[axis]
    places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    low = np.minimum(places.astype(int), old - 1)
    high = np.minimum(low + 1, old - 1)
    weight = (places - low).reshape(-1, *[1] * (-axis - 1))
    low_part, high_part = grid.take(low, axis), grid.take(high, axis)
    return np.asarray(low_part * (1 - weight) + high_part * weight)
