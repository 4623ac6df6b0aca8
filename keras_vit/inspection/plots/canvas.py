"""Canvas and colors of all pictures; the only module that imports matplotlib."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit._version import pip_install
from keras_vit.files import replacing

# Found by a search: contrast of at least 3 on white (WCAG 2.1, 1.4.11), and distinct
# for color-blind readers too. Okabe and Ito's orange and sky blue have only 2.3.
COLORS = ("#1E90FE", "#9C2B00", "#E750AB", "#0E6B4F", "#C18300", "#3A36ED", "#000000")
MARKERS = "os^Dv<>"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def check() -> Any:
    """Raises if pictures cannot be drawn, before hours of work rather than after.

    Returns:
        matplotlib's `Figure`.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"Expected matplotlib for pictures. Run {pip_install('plots')}"
        ) from error
    return Figure


@contextlib.contextmanager
def picture(path: str | os.PathLike[str], width: float, height: float) -> Iterator[Any]:
    """Yields an empty figure, sizes in inches; writes it to `path` on success.

    It has matplotlib's default style, black on opaque white, instead of the user's.
    """
    make = check()
    from matplotlib import style

    with style.context("default"):
        figure = make(figsize=(width, height), layout="constrained")
        yield figure
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=150)


def check_count(names: Collection[Any], what: str, most: int = len(COLORS)) -> None:
    """Raises if there is nothing to draw, or more names than distinct styles."""
    if not 0 < len(names) <= most:
        raise ValueError(f"Expected 1 to {most} {what}. Received: {len(names)}")


def check_values(
    what: str, values: np.ndarray, dimensions: int, least: float = -np.inf
) -> None:
    """Raises if an array is empty, not finite, or has values below `least`."""
    if values.ndim != dimensions or not values.size:
        raise ValueError(
            f"Expected {what} in {dimensions} dimensions, one or more in each. "
            f"Received: shape={values.shape}"
        )
    if not np.isfinite(values).all() or values.min() < least:
        numbers = "numbers" if least == -np.inf else f"numbers, {least:g} or more"
        raise ValueError(
            f"Expected {what} of finite {numbers}. Received: {values.min()} to "
            f"{values.max()}"
        )


def style_of(number: int) -> dict[str, Any]:
    """Returns color, marker and dash of a line, for the first 2 * len(COLORS) lines.

    The second half is dashed, with hollow markers.
    """
    again, place = divmod(number, len(COLORS))
    return {
        "color": COLORS[place],
        "marker": MARKERS[place],
        "linestyle": "--" if again else "-",
        "markerfacecolor": "white" if again else COLORS[place],
        "markersize": 6,
    }


def log_axis(axes: Any, which: str) -> None:
    """Makes the "x" or "y" axis logarithmic, with plain numbers at 1, 2 and 5."""
    from matplotlib import ticker

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())


def whole_numbers(axis: Any) -> None:
    """Restricts the ticks of an x or y axis to integers."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.MaxNLocator(integer=True))


def plain(axes: Any) -> None:
    """Adds a light grid; removes the frame at the top and on the right."""
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def colored(images: np.ndarray) -> np.ndarray:
    """Returns RGB; gray from the first channel if C is not 3: -> [B, H, W, 3]."""
    return images if images.shape[-1] == 3 else np.repeat(images[..., :1], 3, axis=-1)


def mosaic(tiles: np.ndarray, columns: int, gap: int, fill: float) -> np.ndarray:
    """Arranges tiles row by row, `gap` pixels apart: [n, h, w, ...] -> one image."""
    count, height, width, *channels = tiles.shape
    rows = -(-count // columns)
    padding = [(0, rows * columns - count), (0, gap), (0, gap)] + [(0, 0)] * len(
        channels
    )
    padded = np.pad(tiles.astype(float), padding, constant_values=fill)
    grid = padded.reshape(rows, columns, height + gap, width + gap, *channels)
    joined = grid.swapaxes(1, 2).reshape(
        rows * (height + gap), columns * (width + gap), *channels
    )
    return joined[: joined.shape[0] - gap, : joined.shape[1] - gap]


def drawable(names: Sequence[str]) -> list[str]:
    """Cuts names to 20 letters; numbers replace names that the font cannot write."""
    from matplotlib import font_manager

    path = font_manager.findfont(font_manager.FontProperties())
    font = font_manager.get_font(path)
    return [
        (name if len(name) <= 20 else f"{name[:19]}…")
        if all(font.get_char_index(ord(letter)) for letter in name)
        else str(number)
        for number, name in enumerate(names)
    ]
