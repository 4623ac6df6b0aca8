"""Examples of all pictures, and what is in a picture, as text: a line for each thing.

    python -m tests.inspection.pictures   # Draws all to build/pictures.

This writes tests/fixtures/pictures again, too.

Numbers are rounded, and what matplotlib chooses by itself (the layout, most ticks) is
left out, so the text does not depend on its version.
"""

import contextlib
from pathlib import Path
from unittest import mock

import numpy as np

from keras_vit.inspection import plots
from keras_vit.inspection.plots import canvas

FOLDER = Path(__file__).parents[1] / "fixtures" / "pictures"
FIELDS = {
    "Axes": "title xlabel ylabel xscale yscale xlim ylim axisbelow aspect axison",
    "Text": "text fontsize color ha va rotation position",
    "Annotation": "text fontsize color ha va rotation anncoords xy xyann",
    "Line2D": "linestyle linewidth marker markersize",
    "Rectangle": "bbox facecolor edgecolor hatch",
    "AxesImage": "extent clim size",
    "Collection": "facecolor edgecolor linewidth",
    "Legend": "frame_on handlelength",
}


def rounded(value):
    """A value of a property as text that does not depend on the last digits."""
    if isinstance(value, str | bool | type(None)):
        return str(value)
    value = getattr(value, "bounds", value)
    if isinstance(value, np.ndarray | list | tuple):
        return f"({', '.join(map(rounded, value))})"
    return f"{value:.4g}"


def points(values):
    """The number of points and up to 8 of them; of more, the first, mean and last."""
    some = values if len(values) <= 8 else [values[0], values.mean(axis=0), values[-1]]
    return f"{len(values)} points {rounded(some)}"


def line(artist):
    """The class of an artist and its properties."""
    kinds = [kind.__name__ for kind in type(artist).__mro__]
    kind = next(name for name in kinds if name in FIELDS)
    words = [kind]
    for name in FIELDS[kind].split():
        field = getattr(artist, f"get_{name}", None) or getattr(artist, name)
        words.append(f"{name}={rounded(field() if callable(field) else field)}")
    if kind == "AxesImage":
        pixels = np.ma.filled(np.ma.asarray(artist.get_array(), float), -9.0)
        nearest = artist.get_interpolation() == "nearest"
        words.append(f"cmap={artist.get_cmap().name} nearest={nearest}")
        words.append(f"mean={rounded(pixels.mean())} std={rounded(pixels.std())}")
    if kind == "Line2D":
        drawn = "marker" if artist.get_linestyle() == "None" else "line"
        colors = {"line": artist.get_color(), "marker": artist.get_markeredgecolor()}
        words.append(f"color={rounded(colors[drawn])}")
        if artist.get_marker() not in ("None", "_"):
            words.append(f"inside={rounded(artist.get_markerfacecolor())}")
        words.append(points(artist.get_xydata()))
    if kind == "Collection":
        for path in artist.get_paths():
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            words.append(f"{rounded(low)} to {rounded(high)}")
    if kind == "Legend":
        words += [rounded([text.get_text(), text.get_size()]) for text in artist.texts]
    return " ".join(words)


def axis_line(name, axis):
    """An axis: its ticks if they are set, otherwise the class that chooses them."""
    from matplotlib import ticker

    locator, written = axis.get_major_locator(), axis.get_major_formatter()
    words = [name, f"labelsize={axis.label.get_fontsize():g}", type(locator).__name__]
    ticks = np.array([0.01, 0.25, 2, 50])
    if type(locator) in (ticker.LogLocator, ticker.MaxNLocator):
        chosen = locator.tick_values(0.5, 5)
        words.append(rounded([tick for tick in chosen if 0.5 <= tick <= 5]))
    if isinstance(locator, ticker.FixedLocator):
        ticks = locator()
        labels = axis.get_ticklabels()
        turns = {rounded([text.get_rotation(), text.get_ha()]) for text in labels}
        words += sorted(turns)
    if not isinstance(written, ticker.ScalarFormatter):
        words.append(rounded([*zip(ticks, written.format_ticks(ticks), strict=True)]))
    for tick in axis.get_major_ticks()[:1]:
        parts = ("tick1line", "label1", "tick2line", "label2", "gridline")
        words.append(rounded([getattr(tick, part).get_visible() for part in parts]))
        words.append(f"size={tick.label1.get_size():g}")
        words.append(f"length={tick.tick1line.get_markersize():g}")
        words.append(f"grid={rounded(tick.gridline.get_alpha())}")
    return " ".join(words)


def description(figure, path):
    """All that is drawn in a figure, and the size of its file."""
    from matplotlib import image

    width, height = figure.get_size_inches()
    pixels = image.imread(path).shape[1]
    size = f"{width:g} x {height:g} inches, {round(pixels / width)} pixels each"
    lines = [size, *map(line, figure.legends)]
    for axes in figure.axes:
        frame = [name for name, spine in axes.spines.items() if spine.get_visible()]
        title = f"title size={axes.title.get_size():g} frame={rounded(frame)}"
        if place := axes.get_subplotspec():
            grid = place.get_gridspec()
            ratios = rounded([grid.get_width_ratios(), grid.get_height_ratios()])
            title += f" ratios={ratios}"
        lines += ["", line(axes), title]
        lines += [axis_line("x", axes.xaxis), axis_line("y", axes.yaxis)]
        if axes.get_label() != "<colorbar>":
            drawn = [*axes.lines, *axes.patches, *axes.images, *axes.collections]
            legends = [axes.get_legend()] if axes.get_legend() else []
            lines += map(line, [*drawn, *axes.texts, *legends])
    return "\n".join(lines) + "\n"


def _values(*shape, low=0.0, high=1.0):
    return np.random.default_rng(0).uniform(low, high, shape)


def _similarity(rows, columns):
    return _values(rows, columns, rows, columns, low=-1)


def _distances(layers, heads):
    return _values(layers, heads, high=200)


def _runs():
    steps = range(1, 151)
    for number in range(8):
        yield (
            f"run {number}",
            {
                "train/loss": [(step, number + 1 / step) for step in steps],
                "evaluation/loss": [(50, 0.5 + number), (150, 0.25 + number)],
                "train/accuracy": [(step, 1 - 1 / step) for step in steps],
                "evaluation/accuracy": [(150, 0.5)],
                "train/learning_rate": [(1, 0.001), (150, 0.0)],
            },
        )


_CONFUSION = np.array([[8, 2, 0, 1], [0, 0, 0, 0], [5, 0, 15, 0]])
_TWO = {"a": [(1, 0.5), (100, 0.75)], "b": [(10, 0.875)]}
_MANY = {f"model {number}": (number + 1.0, 2.0, 0.5) for number in range(9)}
EXAMPLES = {
    "attention_maps": lambda path: plots.attention_maps(
        _values(2, 8, 12, 3), _values(2, 2, 3), ["cat", "dog"], path
    ),
    "confusion": lambda path: plots.confusion(_CONFUSION, ("cat", "dog", "$x$"), path),
    "confusion_of_many": lambda path: plots.confusion(
        np.eye(21), [f"class {number}" for number in range(21)], path
    ),
    "curves": lambda path: plots.curves(dict(_runs()), path),
    "data_size": lambda path: plots.data_size(
        {"ViT": {1000: 0.5, 10: 0.25}, "ResNet": {100: 0.75}}, path
    ),
    "figure_5": lambda path: plots.figure_5({"left": _TWO, "right": _TWO}, path),
    "figure_6": lambda path: plots.figure_6(
        _values(3, 28, 56, 3), _values(3, 28, 56), path, columns=2, quantile=(1.0, 0.9)
    ),
    "figure_7": lambda path: plots.figure_7(
        _values(9, 20, 20, 3), _similarity(9, 16), _distances(3, 2), path
    ),
    "figure_8": lambda path: plots.figure_8({"ImageNet 5-shot": _TWO}, path),
    "figure_9": lambda path: plots.figure_9({"GAP": {1: 0.5, 2: 0.75}}, path),
    "figure_10": lambda path: plots.figure_10(
        {f"{number} epochs": _similarity(10, 16) for number in range(4)}, path
    ),
    "figure_11": lambda path: plots.figure_11(
        {"ViT-L/16": _distances(3, 2), "R50": _distances(2, 4)}, path
    ),
    "figure_12": lambda path: plots.figure_12(
        {"ViT-B/16": {224: 900.5, 64: 8000.0}}, {"ViT-B/16": {224: 512}}, path
    ),
    "figure_13": lambda path: plots.figure_13(_MANY, path),
    "figure_14": lambda path: plots.figure_14(
        _values(10, 8, 8, 1), _values(10, 8, 8), path
    ),
    "pretraining": lambda path: plots.pretraining(
        {"a": {"jft300m": 0.9, "imagenet2012": 0.5}, "b": {"imagenet21k": 0.8}}, path
    ),
    "reconstructions": lambda path: plots.reconstructions(
        {"original": _values(2, 8, 12, 3), "predicted": _values(2, 8, 12, 1)}, path
    ),
    "reliability": lambda path: plots.reliability(
        np.array([0, 10, 30, 60]),
        np.array([np.nan, 0.4, 0.6, 0.9]),
        np.array([np.nan, 0.5, 0.5, 0.8]),
        path,
    ),
    "shots": lambda path: plots.shots(
        {"a": {5: (0.5, 0.4, 0.7), 1: (0.25, 0.2, 0.3)}, "b": {1: (1, 1, 1)}},
        path,
        {f"level {number}": number / 8 for number in range(8)},
    ),
    "task_groups": lambda path: plots.task_groups(
        {
            "ours": {"Natural": (0.5, 0.02)},
            "paper": {"All": (0.97, None), "Natural": (0.875, None)},
        },
        path,
    ),
}


@contextlib.contextmanager
def kept():
    """A list of the figures that are made inside, as they are."""
    made, picture = [], canvas.picture

    @contextlib.contextmanager
    def keeping(*where):
        with picture(*where) as figure:
            made.append(figure)
            yield figure

    with mock.patch.object(canvas, "picture", keeping):
        yield made


def drawn(name, folder):
    """Draws an example; returns its description."""
    path = Path(folder) / f"{name}.png"
    with kept() as figures:
        EXAMPLES[name](path)
    (figure,) = figures
    return description(figure, path)


def main():
    """Draws all examples and writes their descriptions."""
    folder = FOLDER.parents[2] / "build" / "pictures"
    for place in (FOLDER, folder):
        place.mkdir(parents=True, exist_ok=True)
    for name in EXAMPLES:
        (FOLDER / f"{name}.txt").write_text(drawn(name, folder))


if __name__ == "__main__":
    main()
