"""Section 4's protocols: `keras-vit transfer | fewshot | vtab | paper`."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from keras_vit.cli import completion
from keras_vit.cli.fields import grouped, pixels
from keras_vit.cli.loaders import (
    changed,
    on_devices,
    open_data,
    open_model,
    open_test,
    save_details,
    stored_data,
    table_4,
    warn_of_tested,
)
from keras_vit.cli.options import (
    SEEDS,
    AsJson,
    Checkpoints,
    Cluster,
    Devices,
    ImageData,
    Images,
    PretrainedModel,
    Saving,
    TestSeed,
    TuningChanges,
    TuningRecipe,
)
from keras_vit.cli.shell import (
    app,
    console,
    helped_by,
    import_keras,
    print_json,
    progress,
)

if TYPE_CHECKING:
    from keras_vit.paper import Accuracy


@app.command()
@grouped
def transfer(
    *,
    context: typer.Context,
    images: ImageData,
    model_options: PretrainedModel,
    runs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of final training runs, one for each seed; the paper uses 3.",
        ),
    ] = 3,
    output: Annotated[
        Path, typer.Option(help="Folder for run-0, run-1, ... and transfer.json.")
    ] = Path("runs/transfer"),
    recipe: TuningRecipe = None,
    pretrained_on: Annotated[
        Literal["imagenet21k", "imagenet2012", "jft300m"] | None,
        typer.Option(
            help="Pre-training data, to compare with the paper's result [default: from "
            "--weights]."
        ),
    ] = None,
    changes: TuningChanges,
    devices: Cluster,
    seed: Annotated[
        int,
        typer.Option(
            **SEEDS,
            help="Random seed of the first run; the next runs use the next seeds.",
        ),
    ] = 0,
    checkpoints: Checkpoints,
) -> None:
    """Fine-tune several times and report the mean (4.1).

    The learning rates are tried once. The best one is used to train RUNS models on all
    training images. Prints the sweep, each run, the mean and standard deviation, and
    the differences from the paper. To resume, or to add runs, run the command again.
    """
    import keras_vit
    from keras_vit.training.distribution import Workers
    from keras_vit.training.locking import one_writer

    replicas = on_devices(context, devices)
    source = open_data(images, seed)
    row = table_4(recipe, images.data)
    settings = changed(row, len(source.train), replicas, changes)
    size = settings.image_size if "image_size" in changes else None
    network, run_details = open_model(
        model_options, purpose="features", file_size=size, size=settings.image_size
    )
    warn_of_tested(source, model_options.model, run_details)
    settings = settings.at_size(network.input_shape[1:3])
    tag = model_options.weights or "imagenet21k"  # The builders' default.
    tagged = not run_details and tag in keras_vit.recipes.IMAGES
    workers = Workers.of(network)
    with one_writer(output, workers, checkpoints.wait):
        result = keras_vit.training.transfer(
            network,
            source,
            recipe=settings,
            row=recipe,
            pretrained_on=pretrained_on or (tag if tagged else None),
            runs=runs,
            seed=seed,
            output=output,
            verbose=progress(),
            **vars(checkpoints),
        )
        if workers.chief:
            details = {
                "data": stored_data(images.data),
                "model": model_options.model,
                "weights": model_options.weights,
            }
            for run in range(runs):
                # The seed selects the test share.
                save_details(
                    output / f"run-{run}", details | {"run": run, "seed": seed}
                )
    console.print(str(result))
    next_command = f"keras-vit predict --model {output / 'run-0'} IMAGE..."
    console.print(f"wrote {output}; next: {next_command}")


@app.command(epilog="Example: keras-vit vtab --model ViT-L/16 --runs 3")
@grouped
def vtab(
    *,
    context: typer.Context,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.tasks,
            help="Names of tasks in Table 9, e.g. dtd clevr-count [default: all 19].",
            show_default=False,
        ),
    ] = None,
    model_options: PretrainedModel,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for the results; run the same command again to resume."
        ),
    ] = Path("runs/vtab"),
    listed: Annotated[
        bool, typer.Option("--list", help="Print the tasks and their data and exit.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the results in --output and exit.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", "--plot", help="Picture file for Figure 2, also with --show."
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Training runs of each task; Table 2 uses three.")
    ] = 1,
    changes: TuningChanges,
    devices: Devices,
    seed: Annotated[
        int,
        typer.Option(
            **SEEDS,
            help="Random seed of the first run; the next runs use the next seeds.",
        ),
    ] = 0,
    saving: Saving,
) -> None:
    """Fine-tune on the 19 tasks of VTAB-1k (Table 9).

    Tasks without data on this machine are skipped and listed.
    """
    if listed:
        console.print(_vtab_tasks())
        return
    from keras_vit.evaluation import vtab as evaluation
    from keras_vit.inspection import plots

    if show:
        scores = evaluation.read(output)
    else:
        from keras_vit.data import vtab as data
        from keras_vit.recipes import FINETUNE

        with helped_by("keras-vit vtab --list"):
            chosen = [data.find(name) for name in tasks] if tasks else data.TASKS
        replicas = on_devices(context, devices)
        settings = changed(FINETUNE["vtab"], 1000, replicas, changes)
        size = settings.image_size
        network, _ = open_model(
            model_options, purpose="features", file_size=size, size=size
        )
        scores = evaluation.run(
            network,
            chosen,
            output=output,
            recipe=settings,
            runs=runs,
            seed=seed,
            augment="recipe" if "augment" in changes else "task",
            verbose=progress(),
            **vars(saving),
        )
    rows = {str(output): scores, **evaluation.paper_rows()}
    console.print(_vtab_table({n: evaluation.cells(row) for n, row in rows.items()}))
    for remark in evaluation.remarks(scores):
        console.print(remark)
    if picture is not None:
        bars = {name: evaluation.groups(row) for name, row in rows.items()}
        plots.task_groups(bars, picture)
        console.print(f"Figure 2: {picture}")


def _vtab_tasks() -> Table:
    """Two lines for each task, at most 80 columns wide."""
    from keras_vit.data import vtab as data

    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("classes", justify="right")
    table.add_column("TFDS name; training/test split", no_wrap=True)
    table.add_column("tested", justify="right")
    for group in data.GROUPS:
        table.add_row(Text(group, "bold"))
        for task in data.TASKS:
            if task.group == group:
                splits = f"{task.train800}+{task.val200}/{task.test}"
                data_set = Text(f"{task.tfds}\n{splits}")
                images = f"{task.test_images:,}"
                table.add_row(task.word, str(task.classes), data_set, images)
    return table


def _vtab_table(rows: dict[str, dict[str, str]]) -> Table:
    """Table 9 transposed: a line for each task, then Figure 2's groups."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in rows:
        table.add_column(name, justify="right")
    for task in next(iter(rows.values())):
        table.add_row(task, *(cells[task] for cells in rows.values()))
    return table


@app.command(needs_keras=False)
def paper(
    table: Annotated[
        Literal[
            "table2",
            "table5",
            "table6",
            "table7",
            "table8",
            "table9",
            "d9",
            "figure2",
            "figure3",
            "figure5",
        ]
        | None,
        typer.Argument(
            help="One table or figure; d9 is section D.9, ObjectNet [default: all "
            "tables]. For Tables 3 and 4 see `keras-vit recipes`."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON with every field; Table 8, which has other fields, only "
            "if it is named.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            "--plot",
            help="Picture file for figure3 or figure5; `keras-vit vtab` draws figure2.",
        ),
    ] = None,
    cards: Annotated[
        list[str] | None,
        typer.Option(
            "--card",
            help="With figure3: DATA=FOLDER, the pre-training data of a model and its "
            "results card on ImageNet, e.g. imagenet21k=cards/mine.",
        ),
    ] = None,
) -> None:
    """Print the results of the paper's tables and figures.

    figure5 also lists the exaFLOPs that `keras-vit costs` counts.
    """
    from keras_vit.paper import TABLES, figure_2, figure_3

    drawn = ("figure3", "figure5")
    if (picture is not None and table not in drawn) or (cards and table != "figure3"):
        raise ValueError(
            "Expected --picture with figure3 or figure5, and --card with figure3. "
            f"Received: {table or 'all tables'}"
        )
    if table == "figure5":
        _figure_5(as_json, picture)
        return
    if table in ("figure2", "figure3"):
        if table == "figure3":
            points = figure_3() | _points(cards or [])
        else:
            points = {
                f"{model}, {data}": of for (model, data), of in figure_2().items()
            }
        if as_json:
            print_json(points)
        else:
            console.print(_points_table(points))
        if picture is not None:
            _draw_figure_3(points, picture)
        return
    if table == "table8":
        _table_8(as_json)
        return
    wanted = {
        name: rows
        for name, rows in TABLES.items()
        if table in (None, re.sub(r"[ .]", "", name.lower()))
    }
    if as_json:
        every = [dataclasses.asdict(row) for rows in wanted.values() for row in rows]
        print_json(every)
        return
    for name, rows in wanted.items():
        console.print(_papers_table(name, rows))
    if table is None:
        _table_8(as_json)


def _points(cards: list[str]) -> dict[str, dict[str, float]]:
    """ImageNet accuracy of cards in percent, by model and data of the pre-training."""
    from keras_vit.evaluation.cards import Card
    from keras_vit.recipes import IMAGES

    if cards:
        import_keras()
    points: dict[str, dict[str, float]] = {}
    for text in cards:
        data, _, folder = text.partition("=")
        if data not in IMAGES or not folder:
            raise ValueError(
                f"Expected --card DATA=FOLDER, DATA one of {', '.join(IMAGES)}. "
                f"Received: --card {text}"
            )
        card = Card.load(folder)
        if card.data["name"] != "imagenet2012":
            raise ValueError(
                "Expected a card of imagenet2012, the data set of Figure 3. Received: "
                f"{folder}, a card of {card.data['name']}"
            )
        points.setdefault(card.name, {})[data] = 100 * card.results["top_1"].value
    return points


def _points_table(points: dict[str, dict[str, float]]) -> Table:
    """A line for each model with its percentages."""
    columns = dict.fromkeys(name for of in points.values() for name in of)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    for model, of in points.items():
        cells = (f"{of[name]:.2f}" if name in of else "" for name in columns)
        table.add_row(Text(model), *cells)
    return table


def _draw_figure_3(points: dict[str, dict[str, float]], picture: Path) -> None:
    from keras_vit.inspection import plots

    shares = {
        model: {data: percent / 100 for data, percent in of.items()}
        for model, of in points.items()
    }
    plots.pretraining(shares, picture)
    console.print(f"Figure 3: {picture}")


def _figure_5(as_json: bool, picture: Path | None) -> None:
    """Prints and draws Table 6's accuracy by the exaFLOPs that we count."""
    from keras_vit.inspection.counting import table_6
    from keras_vit.paper import figure_5, kind

    exaflops = table_6()
    points = [
        {
            "model": model,
            "kind": kind(model),
            "epochs": epochs,
            "exaflops": exaflops[model, epochs],
            **percents,
        }
        for (model, epochs), percents in figure_5().items()
    ]
    if as_json:
        print_json(points)
    else:
        console.print(_figure_5_table(points))
    if picture is not None:
        _draw_figure_5(points, picture)


def _figure_5_table(points: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("epochs", "exaFLOPs", "Average-5", "ImageNet"):
        table.add_column(column, justify="right")
    for point in points:
        table.add_row(
            Text(point["model"]),
            str(point["epochs"]),
            f"{point['exaflops']:.1f}",
            f"{point['average']:.2f}",
            f"{point['imagenet2012']:.2f}",
        )
    return table


def _draw_figure_5(points: list[dict[str, Any]], picture: Path) -> None:
    from keras_vit.inspection import plots

    panels = {"Average-5": "average", "ImageNet": "imagenet2012"}
    accuracy: dict[str, dict[str, list[tuple[float, float]]]] = {
        title: {} for title in panels
    }
    for title, column in panels.items():
        for point in points:
            of_kind = accuracy[title].setdefault(point["kind"], [])
            of_kind.append((point["exaflops"], point[column] / 100))
    plots.figure_5(accuracy, picture)
    console.print(f"Figure 5: {picture}")


def _table_8(as_json: bool) -> None:
    """Prints 5-shot accuracy of ViT-B/16 by position embedding and its place."""
    from keras_vit.paper import TABLE_8

    if as_json:
        rows = [
            {"position": position, "position_at": place, "accuracy": accuracy}
            for (position, place), accuracy in TABLE_8.items()
        ]
        print_json(rows)
        return
    title = "Table 8: ViT-B/16, ImageNet 5-shot linear accuracy"
    table = Table(box=None, pad_edge=False, title=Text(title), title_justify="left")
    places = list(dict.fromkeys(place for _, place in TABLE_8))
    for column in ("position", *places):
        table.add_column(column, justify="left" if column == "position" else "right")
    for kind in dict.fromkeys(position for position, _ in TABLE_8):
        cells = (TABLE_8.get((kind, place)) for place in places)
        table.add_row(kind, *("" if cell is None else f"{cell:.5f}" for cell in cells))
    console.print(table)


def _papers_table(name: str, rows: Iterable["Accuracy"]) -> Table:
    """A line for each result, at most 80 columns wide."""
    table = Table(box=None, pad_edge=False, title=Text(name), title_justify="left")
    for column in ("model", "pre-training", "data", "top-1 %"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        how = f", {row.epochs} epochs" if row.epochs else ""
        how += ", SGD" if row.optimizer == "sgd" else ""
        coarse = name in ("Table 9", "D.9")
        percent = f"{row.percent:.1f}" if coarse else f"{row.percent:.2f}"
        spread = "" if row.std is None else f" +- {row.std:.2f}"
        spread += "" if row.top == 1 else f" (top-{row.top})"
        table.add_row(row.model, row.pretrained_on + how, row.dataset, percent + spread)
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regressions:
    """Options of the few-shot regressions."""

    shots: Annotated[
        list[str] | None,
        typer.Option(
            help="Training images of each class, or all; repeat for several [default: "
            "1, 5, 10, 25]."
        ),
    ] = None
    l2: Annotated[
        list[float] | None,
        typer.Option(help="Weight of the penalty; repeat for several [default: 1024]."),
    ] = None
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Number of draws of the shots, with the seeds 0, 1, ...",
        ),
    ] = 3

    def arguments(self) -> dict[str, Any]:
        """Arguments of `evaluation.fewshot`."""
        shots = self.shots or ("1", "5", "10", "25")
        return {
            "shots": [int(text) if text.isdecimal() else text for text in shots],
            "l2": self.l2 or 2.0**10,
            "seeds": range(self.seeds),
        }


@app.command(
    epilog="Example: keras-vit fewshot --data photos --shots 5 --shots all --knn"
)
@grouped
def fewshot(
    *,
    images: ImageData,
    model_options: PretrainedModel,
    regressions: Regressions,
    knn: Annotated[
        bool,
        typer.Option("--knn", help="Also print the accuracy of 20 nearest neighbors."),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also print the accuracy of a logistic regression."
        ),
    ] = False,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Image size in pixels, 384 or 384x512 (height x width) [default: that "
            "of the weights]."
        ),
    ] = None,
    before_crop: Annotated[
        str | None,
        typer.Option(
            help="Size in pixels to resize to before a center crop; big_vision uses "
            "256 for 224 [default: resize to the model's size]."
        ),
    ] = None,
    batch_size: Images = 32,
    seed: TestSeed = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON file for the results.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", "--picture", help="Picture file for accuracy by number of shots."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the few-shot accuracy of frozen features (4.1)."""
    from keras_vit import evaluation
    from keras_vit.evaluation import features, few_shot
    from keras_vit.files import check_writable, write_json
    from keras_vit.inspection import plots

    for path in filter(None, (output, plot)):
        check_writable(path)
    if plot is not None:
        plots.check()
    size = pixels(image_size)
    network, details = open_model(
        model_options, purpose="features", file_size=size, size=size
    )
    if seed is None:
        seed = details.get("seed", 0)
    preprocessing = network.preprocessing
    source: Any = open_test(
        images.data, seed, images.on_corrupt, model_options.model, details
    )
    options: dict[str, Any] = {
        "preprocessing": preprocessing,
        "batch_size": batch_size,
        "before_crop": pixels(before_crop, "--before-crop"),
    }
    if knn or probe:  # Both read every image; the regressions reuse the features.
        few_shot.check(features.opened(source), **regressions.arguments())
        source = evaluation.gather(network, source, **options)
        network, options = None, {}
    result = evaluation.fewshot(network, source, **regressions.arguments(), **options)
    console.print(str(result))
    judges = ([evaluation.knn] if knn else []) + (
        [evaluation.linear_probe] if probe else []
    )
    probes = [judge(None, source) for judge in judges]
    for probe_result in probes:
        console.print(str(probe_result))
    numbers = {
        "data": images.data,
        "seed": seed,
        **vars(model_options),
        **dataclasses.asdict(preprocessing),  # The values in use, not the options.
        "image_size": image_size,
        "before_crop": before_crop,
        "fewshot": result.as_dict(),
        "probes": list(map(vars, probes)),
    }
    if output is not None:
        write_json(output, numbers)
        console.print(f"wrote {output}")
    if as_json:
        print_json(numbers)
    if plot is not None:
        _plot_shots(result, plot)
        console.print(f"wrote {plot}")


def _plot_shots(result: Any, path: Path) -> None:
    """Draws a line for each l2, and a level for each regression on all images."""
    from keras_vit.inspection import plots

    several = len({row.l2 for row in result.rows}) > 1
    lines: dict[str, dict[int, tuple[float, float, float]]] = {}
    levels: dict[str, float] = {}
    for row in result.rows:
        name = f"l2 {row.l2:g}" if several else "mean, 95 % interval"
        if row.shots == "all":
            levels[f"all images, {name}" if several else "all images"] = row.mean
        else:
            low_high = row.interval or (row.mean, row.mean)
            lines.setdefault(name, {})[row.shots] = (row.mean, *low_high)
    plots.shots(lines, path, levels)
