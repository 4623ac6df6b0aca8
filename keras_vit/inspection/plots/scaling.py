"""Pictures of accuracy by data, compute, shape and speed (4.3, 4.4, D.2 to D.6)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras_vit.inspection.plots import canvas

Points: TypeAlias = Sequence[tuple[float, float]]  # Pairs (x, y).


def data_size(
    accuracy: Mapping[str, Mapping[int, float]], path: str | os.PathLike[str]
) -> None:
    """Draws accuracy against training images, a line per model (Figure 4), to a file.

    Args:
        accuracy: accuracy of every model in [0, 1], by the number of images that it was
            trained on.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no models, or more than there are colors.
        ImportError: without matplotlib, the extra `plots`.
    """
    canvas.check_count(accuracy, "models")
    with canvas.picture(path, 5.5, 4) as figure:
        axes = figure.subplots()
        for number, (model, points) in enumerate(accuracy.items()):
            images = sorted(points)
            percent = [100 * points[count] for count in images]
            axes.plot(images, percent, label=model, **canvas.style_of(number))
        sizes = sorted({count for points in accuracy.values() for count in points})
        percents_over_log(axes, sizes, "training images (log scale)")


PRETRAINING = {
    "imagenet2012": "ImageNet",
    "imagenet21k": "ImageNet-21k",
    "jft300m": "JFT-300M",
}
"""Figure 3's labels by data set name, similar to TFDS's."""


def pretraining(
    accuracy: Mapping[str, Mapping[str, float]], path: str | os.PathLike[str]
) -> None:
    """Draws accuracy against the pre-training data (Figure 3), to a file.

    Args:
        accuracy: accuracy of every model in [0, 1], by the names in `PRETRAINING`.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no models, more than there are colors, or unknown
            pre-training data.
        ImportError: without matplotlib, the extra `plots`.
    """
    strangers = {data for points in accuracy.values() for data in points} - {
        *PRETRAINING
    }
    if strangers or not 0 < len(accuracy) <= len(canvas.COLORS):
        raise ValueError(
            f"Expected 1 to {len(canvas.COLORS)} models, pre-trained on "
            f"{', '.join(PRETRAINING)}. Received: {len(accuracy)} models"
            + "".join(f", {data!r}" for data in sorted(strangers))
        )
    places = [*PRETRAINING]
    with canvas.picture(path, 5.5, 4) as figure:
        axes = figure.subplots()
        for number, (model, points) in enumerate(accuracy.items()):
            known = [data for data in places if data in points]
            percent = [100 * points[data] for data in known]
            where = [places.index(data) for data in known]
            axes.plot(where, percent, label=model, **canvas.style_of(number))
        axes.set_xticks(range(len(places)), [*PRETRAINING.values()])
        percents_over(axes, "pre-training data")


def percents_over_log(axes: Any, sizes: Sequence[int], label: str) -> None:
    """Formats axes and legend for percentages over a logarithmic count."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{count:,}" for count in sizes])
    axes.set_xticks([], minor=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    percents_over(axes, label)


def percents_over(axes: Any, label: str) -> None:
    """Formats axes and legend for percentages."""
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy [%]")
    canvas.plain(axes)
    axes.legend(frameon=False)


def figure_5(
    accuracy: Mapping[str, Mapping[str, Points]], path: str | os.PathLike[str]
) -> None:
    """Draws transfer accuracy against pre-training compute, as in Figure 5, to a file.

    Args:
        accuracy: by the panel's title ("Average-5", "ImageNet"; see
            `paper.figure_5`), then by the kind of model ("Transformer (ViT)",
            "ResNet (BiT)", "Hybrid", or your own): (exaFLOPs, accuracy in [0, 1]) for
            each model.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there is nothing to draw, there are more kinds than colors,
            exaFLOPs are not positive or an accuracy is not in [0, 1].
        ImportError: without matplotlib, the extra `plots`.
    """
    panels = [
        _Panel(
            title,
            "total pre-training compute [exaFLOPs]",
            "transfer accuracy [%]",
            _percents(kinds),
        )
        for title, kinds in accuracy.items()
    ]
    _draw(panels, path, len(canvas.COLORS), linestyle="none")


def figure_8(
    accuracy: Mapping[str, Mapping[str, Points]], path: str | os.PathLike[str]
) -> None:
    """Draws accuracy against the relative compute of scaled shapes (D.2), to a file.

    As in Figure 8, there is a line for each way to scale; all meet at the base, 1.

    Args:
        accuracy: by the panel's title ("ImageNet 5-shot", "Average 5-shot"), then by
            the scaled dimension ("all", "depth", "patch size", "width MLP", "width"):
            (multiply-adds over the base's, accuracy in [0, 1]) for each model.
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if there is nothing to draw, there are more lines than colors,
            compute is not positive or an accuracy is not in [0, 1].
        ImportError: without matplotlib, the extra `plots`.
    """
    panels = [
        _Panel(title, "relative compute", "accuracy [%]", _percents(lines))
        for title, lines in accuracy.items()
    ]
    _draw(panels, path, len(canvas.COLORS))


def figure_9(
    accuracy: Mapping[str, Mapping[float, float]],
    path: str | os.PathLike[str],
    data: str = "ImageNet",
) -> None:
    """Draws the class token against global average pooling (D.3), to a file.

    Args:
        accuracy: by the head and learning rate ("CLS-Token, lr=8e-4", "GAP, lr=8e-4",
            "GAP, lr=3e-4"): 5-shot linear accuracy in [0, 1] by epochs of training.
        path: path of the picture; its suffix is the format.
        data: name of the data set.

    Raises:
        ValueError: if there is nothing to draw, there are more lines than colors, or an
            accuracy is not in [0, 1].
        ImportError: without matplotlib, the extra `plots`.
    """
    lines = {name: [*points.items()] for name, points in accuracy.items()}
    label = f"{data} linear 5-shot accuracy [%]"
    panel = _Panel("", "epochs of training", label, _percents(lines))
    _draw([panel], path, len(canvas.COLORS), logarithmic="")


def figure_12(
    images_per_second: Mapping[str, Mapping[int, float]],
    largest_batch: Mapping[str, Mapping[int, int]],
    path: str | os.PathLike[str],
) -> None:
    """Draws speed and largest batch against the input size (D.5), to a file.

    As in Figure 12, speed is on the left and the batch on the right, with a line for
    each model.

    Args:
        images_per_second: speed of inference on one device, by the model's name and
            the pixels per side. A size that a model lacks has no point.
        largest_batch: number of images that fit on one device, in the same form.
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if there is nothing to draw, there are more than 14 models, a number
            is not positive, or the two arguments have different models.
        ImportError: without matplotlib, the extra `plots`.
    """
    strangers = images_per_second.keys() ^ largest_batch.keys()
    if strangers:
        raise ValueError(
            "Expected speed and largest batch of the same models (D.5). Received: "
            f"{', '.join(map(repr, sorted(strangers)))} in one of them"
        )
    panels = [
        _Panel("", "input size [px]", label, {n: [*of.items()] for n, of in by.items()})
        for by, label in (
            (images_per_second, "peak inference speed [images/s per device]"),
            (largest_batch, "largest batch per device [images]"),
        )
    ]
    sizes = sorted(
        {x for p in panels for points in p.lines.values() for x, _ in points}
    )
    _draw(panels, path, 2 * len(canvas.COLORS), logarithmic="xy", x_ticks=sizes)


def figure_13(
    models: Mapping[str, tuple[float, float, float]], path: str | os.PathLike[str]
) -> None:
    """Draws axial and other models against compute and speed (D.6), to a file.

    As in Figure 13, compute is on the left and speed on the right.

    Args:
        models: by name, (exaFLOPs of the training run, images per second of inference
            on one device, 5-shot linear accuracy in [0, 1]).
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if there are no models, more than 14, compute or speed is not
            positive, or an accuracy is not in [0, 1].
    """
    panels = [
        _Panel(
            "",
            label,
            "5-shot linear accuracy [%]",
            _percents({name: [(of[place], of[2])] for name, of in models.items()}),
        )
        for place, label in enumerate(
            ("total compute [exaFLOPs]", "peak inference speed [images/s per device]")
        )
    ]
    _draw(panels, path, 2 * len(canvas.COLORS), linestyle="none")


class _Panel(NamedTuple):
    """A panel of a picture."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]


def _percents(lines: Mapping[str, Points]) -> dict[str, Points]:
    """Converts the accuracies of lines to percent.

    Raises:
        ValueError: if one is not in [0, 1].
    """
    for name, points in lines.items():
        for _, accuracy in points:
            if not 0 <= accuracy <= 1:
                raise ValueError(
                    f"Expected accuracies in [0, 1]. Received: {accuracy} of {name!r}"
                )
    return {name: [(x, 100 * y) for x, y in points] for name, points in lines.items()}


def _draw(
    panels: Sequence[_Panel],
    path: str | os.PathLike[str],
    most: int,
    *,
    logarithmic: str = "x",
    x_ticks: Sequence[float] = (),
    **changes: Any,
) -> None:
    """Draws panels in a row, with one legend below them."""
    names = [*dict.fromkeys(name for panel in panels for name in panel.lines)]
    canvas.check_count(names, "lines", most)
    for panel in panels:
        _check_positive(panel, logarithmic)
        if not any(panel.lines.values()):
            raise ValueError(
                f"Expected points to draw ({panel.x_label}; {panel.y_label}). "
                f"Received: none of {', '.join(map(repr, panel.lines)) or 'any line'}"
            )
    width = 4.4 * len(panels)
    entry = 0.6 + 0.075 * max(map(len, names))  # Inches of the legend.
    rows = -(-len(names) // max(1, int(width / entry)))
    height = 3.6 + 0.25 * rows
    with canvas.picture(path, width, height) as figure:
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        handles = {}
        for axes, panel in zip(row, panels, strict=True):
            for name, points in panel.lines.items():
                style = canvas.style_of(names.index(name)) | changes
                x, y = zip(*sorted(points), strict=True) if points else ((), ())
                (handles[name],) = axes.plot(x, y, label=name, **style)
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            canvas.plain(axes)
            if "x" in logarithmic:
                canvas.log_axis(axes, "x")
            if "y" in logarithmic:
                canvas.log_axis(axes, "y")
            if x_ticks:
                axes.set_xticks(x_ticks, [f"{tick:g}" for tick in x_ticks])
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside lower center",
            ncols=-(-len(names) // rows),
            frameon=False,
            fontsize=9,
        )


def _check_positive(panel: _Panel, logarithmic: str) -> None:
    for name, points in panel.lines.items():
        for point in points:
            bad = [point["xy".index(axis)] for axis in logarithmic]
            if not all(value > 0 for value in bad):
                raise ValueError(
                    "Expected positive numbers on a logarithmic axis "
                    f"({panel.x_label}; {panel.y_label}). Received: {point} of {name!r}"
                )
