"""`keras-vit predict | evaluate | compare`."""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from keras_vit import export_formats
from keras_vit.arguments import counted, percent
from keras_vit.cli.fields import given, grouped
from keras_vit.cli.loaders import (
    class_names,
    image_files,
    open_model,
    open_test,
    read_image,
    unreadable,
)
from keras_vit.cli.options import AsJson, Corrupt, Images, OpenedModel, TestSeed
from keras_vit.cli.shell import (
    app,
    console,
    errors,
    import_keras,
    import_tensorflow,
    print_json,
    readable,
    visible,
)
from keras_vit.files import check_writable, printable, read_bytes

if TYPE_CHECKING:
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.classification import Task
    from keras_vit.serving.client import Prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Options for predictions by a server instead of a model."""

    server: Annotated[
        str | None,
        typer.Option(
            help="URL of a server that predicts, e.g. http://localhost:8501 (REST) or "
            "grpc://localhost:8500."
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="With --server: name of the model [default: model]."),
    ] = None
    model_version: Annotated[
        str | None,
        typer.Option(
            help="With --server: number or label [default: the server's choice]."
        ),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="With --server: seconds for one request [default: 60].",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="With --server: images in a request [default: 32]."),
    ] = None

    def options(self) -> dict[str, Any]:
        """Arguments of `serving.Client` that were given."""
        options = given(self)
        options.pop("server", None)
        if (version := options.pop("model_version", None)) is not None:
            options["version"] = int(version) if version.isdecimal() else version
        return options


@app.command(needs_keras=False)  # A server and an exported file do not need Keras.
@grouped
def predict(
    *,
    images: Annotated[
        list[Path], typer.Argument(help="Image files, or folders of them.")
    ],
    model_options: OpenedModel,
    top: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of classes to print; a server returns at most the exported "
            "number (by default 5).",
        ),
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object on a line.")
    ] = False,
    server: Server,
) -> None:
    """Print the most probable classes of images."""
    files = [file for path in images for file in image_files(path)]
    if server.server is None:
        _refuse(server, "with --server", "without --server")
        exported = export_formats.of_file(Path(model_options.model or "")) is not None
        predicted = (_by_file if exported else _by_model)(files, model_options, top)
    else:
        _refuse(
            model_options, "without --server, which has its own model", "with --server"
        )
        predicted = _by_server(files, top, server.server, server.options())
    failed = 0
    for file, best in predicted:
        if isinstance(best, str):
            failed += 1
            errors.print(best)
        else:
            _print_prediction(file, best, as_json)
    if failed:
        raise ValueError(
            "Expected JPEG, PNG, GIF, BMP or WebP images. Received: "
            f"{counted(len(files), 'file')}; {failed} cannot be read"
        )


def _refuse(group: OpenedModel | Server, rule: str, received: str) -> None:
    """Raises if one of these options was given."""
    every = [f"--{name.replace('_', '-')}" for name in vars(group) if name != "server"]
    if names := [f"--{name.replace('_', '-')}" for name in given(group)]:
        raise ValueError(
            f"Expected {', '.join(every)} {rule}. Received: {', '.join(names)} "
            f"{received}"
        )


def _by_model(
    files: list[Path], model_options: OpenedModel, top: int
) -> Iterator[tuple[Path, Any]]:
    """Yields each file with classes and probabilities, or with an error message."""
    import_keras()
    import keras
    import numpy as np

    from keras_vit.models.description import check_one_size
    from keras_vit.models.outputs import probabilities

    network, _ = open_model(model_options, purpose="classify")
    check_one_size(network)
    classes = class_names(network)
    for file in files:
        try:
            image = read_image(file, network)
        except ValueError as error:
            yield file, str(error)
            continue
        outputs = network(image[None], training=False)
        scores = keras.ops.convert_to_numpy(probabilities(network, outputs))[0]
        if not np.isfinite(scores).all():
            raise ValueError(
                f"Expected finite scores. Received: NaN or infinity for "
                f"{printable(file)}. The weights are damaged or their training run "
                "diverged: train again or use different weights"
            )
        best = np.argsort(-scores)[:top]
        yield file, [(classes[i], float(scores[i])) for i in best]


def _by_server(
    files: list[Path],
    top: int,
    url: str,
    options: dict[str, Any],
) -> Iterator[tuple[Path, Any]]:
    """Yields the same from a server, in batches."""
    from keras_vit.serving import Client

    with Client(url, **options) as client:
        yield from _by_bytes(files, client.predict, client.batch_size, top)


def _by_file(
    files: list[Path], model_options: OpenedModel, top: int
) -> Iterator[tuple[Path, Any]]:
    """Yields the same from an exported file."""
    options = given(model_options)
    path = options.pop("model")
    if options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ValueError(
            f"Expected --model {path} without {names}: the exported file has its own"
        )
    import_tensorflow()
    from keras_vit.serving.exported_file import ExportedModel

    yield from _by_bytes(files, ExportedModel(path).predict, 1, top)


def _by_bytes(
    files: list[Path],
    predict: Callable[[list[bytes]], "list[Prediction]"],
    batch_size: int,
    top: int,
) -> Iterator[tuple[Path, Any]]:
    """Yields the same from a function of encoded images."""
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        read = [_read_bytes(file) for file in batch]
        encoded = [content for content in read if isinstance(content, bytes)]
        predictions = iter(predict(encoded))
        for file, content in zip(batch, read, strict=True):
            if isinstance(content, str):
                yield file, unreadable(file, content)
                continue
            answer = next(predictions)
            best = list(zip(answer.classes, answer.scores, strict=True))[:top]
            yield file, best if answer.ok else unreadable(file, answer.status)


def _read_bytes(file: Path) -> bytes | str:
    """The bytes of a file, or the reason why it cannot be read."""
    try:
        return read_bytes(file)
    except OSError as error:
        return error.strerror or str(error)


def _print_prediction(file: Path, best: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        classes = [{"class": name, "probability": score} for name, score in best]
        print_json({"image": readable(file), "top": classes}, indent=None)
        return
    console.print(printable(file))
    for name, score in best:
        console.print(f"  {percent(score):>8}  {visible(name)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestData:
    """The images that a model is evaluated on."""

    data: Annotated[
        str | None,
        typer.Option(
            help="Images, as in `finetune` [default: the run's data]. With --imagenet: "
            "a TFDS name or the folder of the set [default: TFDS's]."
        ),
    ] = None
    imagenet: Annotated[
        Literal["val", "real", "v2", "a", "r", "sketch", "objectnet"] | None,
        typer.Option(
            help="Test set with ImageNet's classes, evaluated by its own rules."
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(help="With --imagenet real: real.json [default: TFDS's labels]."),
    ] = None
    on_corrupt: Corrupt = "stop"
    seed: TestSeed = None


@app.command()
@grouped
def evaluate(
    *,
    images: TestData,
    model_options: OpenedModel,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results card (card.json, .md and .html), pictures and "
            "the prediction of every image; `compare` reads it."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model in the card [default: --model and --weights]. "
            "`compare` shows the mean of cards with the same name and data."
        ),
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Print each class's accuracy.")
    ] = False,
    temperature: Annotated[
        bool,
        typer.Option(
            "--temperature",
            help="Print the effect of temperature scaling; keeps all logits in memory.",
        ),
    ] = False,
    batch_size: Images = 32,
    as_json: AsJson = False,
) -> None:
    """Print accuracy and calibration on test images.

    Intervals are 95 %. The loss is the mean negative log-likelihood; ece is the
    expected calibration error.
    """
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.classification import classify
    from keras_vit.inspection import plots

    if output is not None:
        plots.check()
        check_writable(output / "card.json")
    network, details = open_model(model_options, purpose="classify")
    task = _task(images, model_options.model, details)
    classified = classify(
        network,
        task,
        batch_size=batch_size,
        keep_logits=temperature,
    )
    card = Card.of(
        network,
        classified,
        name=name or _name(model_options),
        command=shlex.join(["keras-vit", *sys.argv[1:]]),
        weights_file=_weights_file(model_options.model, model_options.weights),
    )
    _print_results(card)
    _print_papers(card)
    try:
        if classified.logits is not None:
            card = card.with_temperatures(classified.logits)
            _print_scaled(card)
    finally:  # Also runs if no temperature is optimal.
        if output is not None:
            card.write(output)
            console.print(
                f"wrote {output / 'card.html'}; next: keras-vit compare {output} ..."
            )
    if per_class:
        console.print(_per_class_table(card))
    if as_json:
        print_json(card.as_dict())


def _task(images: TestData, model: str | None, details: dict[str, Any]) -> "Task":
    """The test images: a set with ImageNet's classes, or those of a source."""
    from keras_vit.evaluation.classification import task_of
    from keras_vit.evaluation.imagenet import open_task

    labels, corrupt = images.labels, images.on_corrupt
    if images.imagenet is not None:
        return open_task(
            images.imagenet, data=images.data, labels=labels, on_corrupt=corrupt
        )
    if labels is not None:
        raise ValueError(
            "Expected --labels with --imagenet real. Received: --labels "
            f"{labels} without --imagenet"
        )
    data = images.data or details.get("data")
    if data is None:
        raise ValueError(
            "Expected --data, or a model written by `keras-vit finetune`. Received: "
            "no --data"
        )
    return task_of(open_test(data, images.seed, corrupt, model, details))


def _name(model_options: OpenedModel) -> str:
    """The model in a card: different weights are different models."""
    words = filter(None, (model_options.model, model_options.weights))
    return " ".join(words) or "ViT-B/16"


def _weights_file(model: str | None, weights: str | None) -> Path | None:
    """The file of the weights, if they are from a file."""
    if model is not None and Path(model).is_dir():
        return Path(model) / "model.keras"
    return Path(weights) if weights is not None and Path(weights).is_file() else None


def _print_results(card: "Card") -> None:
    names = {"loss": "nll", "top_1": "top_1", "top_5": "top_5", "ece": "ece"}
    for name, key in names.items():
        estimate = card.results[key]
        interval = f"(95 %: {estimate.low:.4f} to {estimate.high:.4f})"
        console.print(f"{name:6} {estimate.value:.4f}  {interval}")
    images, right = len(card.images), int(card.images.right.sum())
    console.print(f"{right:,} of {counted(images, 'image')} right")
    if card.data["without_label"]:
        console.print(f"without label: {card.data['without_label']:,}")


def _print_papers(card: "Card") -> None:
    """Prints the paper's results on ObjectNet (D.9)."""
    from keras_vit.paper import TABLES

    rows = [row for row in TABLES["D.9"] if row.dataset == card.data["name"]]
    for row in rows:
        model = f"{row.model} pre-trained on {row.pretrained_on}"
        console.print(f"paper  {row.percent / 100:.3f}  top-{row.top} of {model} (D.9)")


def _print_scaled(card: "Card") -> None:
    temperatures = " and ".join(f"{t:.4f}" for t in card.temperatures)
    nll, ece = (card.scaled[key].value for key in ("nll", "ece"))
    console.print(
        f"scaled by temperatures {temperatures}, each fitted on the other half: loss "
        f"{nll:.4f}, ece {ece:.4f}"
    )


def _per_class_table(card: "Card") -> Table:
    if not card.has_classes:
        raise ValueError(
            "Expected images of one class each for --per-class. Received: "
            f"{card.data['name']}, whose labels are sets"
        )
    table = Table(box=None, pad_edge=False)
    for title, justify in (
        ("class", "left"),
        ("accuracy", "right"),
        ("right", "right"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    classes = card.data["classes"]
    for name, right, images in zip(
        classes, *card.images.per_class(len(classes)), strict=True
    ):
        share = f"{right / images:.4f}" if images else ""
        table.add_row(Text(name), share, f"{right} of {images}")
    return table


@app.command()
def compare(
    cards: Annotated[
        list[Path],
        typer.Argument(help="Two or more folders of `evaluate --output`."),
    ],
) -> None:
    """Compare the results of several evaluations.

    Prints each result and its difference from the first one. Cards of the same images
    are compared by paired bootstrap and McNemar's exact test. Cards of Table 2's data
    sets are also printed as Table 2.
    """
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.comparison import table_2

    if len(cards) < 2:
        raise ValueError("Expected two cards or more. Received: one")
    loaded = [Card.load(path) for path in cards]
    for letter, path, card in zip(_letters(loaded), cards, loaded, strict=True):
        images = f"{card.data['images']:,} images"
        console.print(f"{letter}: {path}, {card.name} on {card.data['name']}, {images}")
    for table in (_cards_table(loaded), _differences_table(loaded)):
        console.print()
        console.print(table)
    columns, rows = table_2(loaded)
    if rows:
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.title = "Table 2, the paper's columns first"
        for column in columns:
            table.add_column(Text(column))
        for row in rows:
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)


def _cards_table(cards: "list[Card]") -> Table:
    """A column for each card with its results."""
    from keras_vit.evaluation.card_pages import shown
    from keras_vit.evaluation.cards import RESULTS

    table = Table(box=None, pad_edge=False)
    for letter in ("", *_letters(cards)):
        table.add_column(letter)
    for key in RESULTS:
        results = [shown(key, card.results[key]) for card in cards]
        cells = [
            f"{value} ({interval})".replace(" %", "") for value, interval in results
        ]
        table.add_row(f"{key} %" if key.startswith("top") else key, *cells)
    return table


def _differences_table(cards: "list[Card]") -> Table:
    """A column for each card after the first with its differences from the first."""
    from keras_vit.evaluation.comparison import difference

    table = Table(box=None, pad_edge=False)
    rows: dict[str, list[str]] = {
        name: [] for name in ("top_1", "only one right", "McNemar p", "nll")
    }
    table.add_column("")
    for letter, card in zip(_letters(cards)[1:], cards[1:], strict=True):
        table.add_column(f"{letter} less A")
        gap = difference(cards[0], card)
        points = (100 * n for n in dataclasses.astuple(gap.top_1))
        column = ["{:+.2f} ({:+.2f} to {:+.2f}) points".format(*points)]
        if gap.nll is None:
            column += ["unpaired: different images or labels", "", ""]
        else:
            nll = "{:+.4f} ({:+.4f} to {:+.4f})".format(*dataclasses.astuple(gap.nll))
            only = f"{letter} {gap.only_second}, A {gap.only_first}"
            column += [only, f"{gap.p:.3g}", nll]
        for cells, text in zip(rows.values(), column, strict=True):
            cells.append(text)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _letters(cards: "list[Card]") -> list[str]:
    """Names of the cards in tables: A to Z, then numbers."""
    return [chr(65 + n) if n < 26 else str(n + 1) for n in range(len(cards))]
