"""`keras-vit finetune | pretrain | recipes | launch | runs`."""

import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from keras_vit.arguments import counted, percent
from keras_vit.cli import completion
from keras_vit.cli.fields import given, grouped
from keras_vit.cli.loaders import (
    changed,
    on_devices,
    open_data,
    open_model,
    predicts_patches,
    save_details,
    stored_data,
    table_4,
    warn_of_tested,
)
from keras_vit.cli.options import (
    SEEDS,
    Architecture,
    AsJson,
    Checkpoints,
    Cluster,
    ImageData,
    PretrainedModel,
    PretrainingChanges,
    PretrainingRecipe,
    TuningChanges,
    TuningRecipe,
    Variant,
)
from keras_vit.cli.shell import (
    Commands,
    app,
    console,
    helped_by,
    print_json,
    progress,
)

if TYPE_CHECKING:
    import keras

    from keras_vit.recipes import Recipe


@app.command()
@grouped
def finetune(
    *,
    context: typer.Context,
    images: ImageData,
    model_options: PretrainedModel,
    output: Annotated[
        Path, typer.Option(help="Folder for the model, its history and run.json.")
    ] = Path("runs/finetune"),
    recipe: TuningRecipe = None,
    changes: TuningChanges,
    devices: Cluster,
    seed: Annotated[
        int, typer.Option(**SEEDS, help="Random seed for order, crops and dropout.")
    ] = 0,
    checkpoints: Checkpoints,
) -> None:
    """Fine-tune a pretrained model on your images (Table 4)."""
    import keras_vit

    replicas = on_devices(context, devices)
    source = open_data(images, seed)
    row = table_4(recipe, images.data)
    settings = changed(row, len(source.train), replicas, changes)
    size = settings.image_size if "image_size" in changes else None
    network, before = open_model(
        model_options, purpose="features", file_size=size, size=settings.image_size
    )
    warn_of_tested(source, model_options.model, before)
    network = keras_vit.for_task(network, source.classes)
    details = {
        "data": stored_data(images.data),
        "model": model_options.model,
        "weights": model_options.weights,
    }
    _train(network, settings, source, output, details | {"seed": seed}, checkpoints)


def _train(
    network: Any,
    recipe: "Recipe",
    source: Any,
    output: Path,
    details: dict[str, Any],
    checkpoints: Checkpoints,
) -> None:
    """Trains a model and writes a folder that `predict` and `evaluate` open."""
    import keras_vit
    from keras_vit.training.distribution import Workers
    from keras_vit.training.locking import one_writer

    masked = predicts_patches(network)
    classes = "" if masked else f" of {counted(len(source.classes), 'class', 'es')}"
    console.print(
        f"{counted(len(source.train), 'training image')}{classes}, "
        f"{network.input_shape[1]}x{network.input_shape[2]} px, "
        f"{network.count_params():,} parameters"
    )
    workers = Workers.of(network)
    with one_writer(output, workers, checkpoints.wait):
        result = keras_vit.training.fit(
            network,
            recipe,
            source,
            seed=details["seed"],
            output=output,
            verbose=progress(),
            **vars(checkpoints),
        )
        details = {
            **details,
            "learning_rate": result.learning_rate,
            "test_accuracy": result.test_accuracy,
            "keras_vit": keras_vit.__version__,
        }
        if workers.chief:
            save_details(output, details)
    if masked:
        _print_masked(network, result, output)
        return
    if result.test_accuracy is not None:
        right = round(result.test_accuracy * result.test_images)
        console.print(
            f"test accuracy {percent(result.test_accuracy)} "
            f"({right:,} of {counted(result.test_images, 'image')})"
        )
    console.print(f"wrote {output}; next: keras-vit predict --model {output} IMAGE...")


def _print_masked(network: Any, result: Any, output: Path) -> None:
    """Prints how well masked patches are predicted, and the next commands."""
    last = result.history[-1]
    split, prefix = ("test", "val_") if "val_loss" in last else ("training", "")
    line = f"masked patches of {split} images: loss {last[f'{prefix}loss']:.4f}"
    if network.target != "l2":
        at_random = math.log(network.output["prediction"].shape[-1])
        right = last[f"{prefix}accuracy"]
        line += f" (a guess among all colors: {at_random:.4f}), {percent(right)} right"
    console.print(line)
    console.print(
        f"wrote {output}; next: keras-vit inspect {output}, "
        f"keras-vit finetune --model {output} --data ..."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """Options of the pre-training objective."""

    objective: Annotated[
        Literal["labels", "masked-patches"],
        typer.Option(help="Prediction target: class labels, or masked patches (4.6)."),
    ] = "labels"
    target: Annotated[
        Literal["mean_color", "4x4", "l2"] | None,
        typer.Option(
            help="With masked patches: predict their color, 4x4 colors or pixels "
            "(B.1.2) [default: mean_color]."
        ),
    ] = None
    corrupt: Annotated[
        float | None,
        typer.Option(
            help="With masked patches: share of corrupted patches [default: 0.5]."
        ),
    ] = None


@app.command()
@grouped
def pretrain(
    *,
    context: typer.Context,
    images: ImageData,
    model: Variant = "ViT-B/16",
    objective: Objective,
    recipe: PretrainingRecipe = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the model, its history and checkpoints.")
    ] = Path("runs/pretrain"),
    architecture: Architecture,
    changes: PretrainingChanges,
    devices: Cluster,
    seed: Annotated[
        int,
        typer.Option(
            **SEEDS, help="Random seed for weights, order, crops and dropout."
        ),
    ] = 0,
    checkpoints: Checkpoints,
) -> None:
    """Train a model from random weights (Table 3, B.1.2).

    With --objective masked-patches the model learns to predict masked patches: labels
    are not read, and the images need no class folders. Afterwards `finetune --model
    OUTPUT` adds a head, `fewshot` measures the features, and `inspect` draws the
    predictions.
    """
    replicas = on_devices(context, devices)
    masked = objective.objective == "masked-patches"
    task = given(target=objective.target, corrupt=objective.corrupt)
    if task and not masked:
        received = ", ".join(f"--{name} {value}" for name, value in task.items())
        raise ValueError(
            "Expected --target and --corrupt with --objective masked-patches. "
            f"Received: {received} without it"
        )
    source = open_data(images, seed, labels=not masked)
    row = table_3(model, recipe or ("masked-patches" if masked else "imagenet2012"))
    settings = changed(row, len(source.train), replicas, changes)
    classes = None if masked else len(source.classes)
    network = _from_scratch(model, settings, classes, **architecture)
    details = {
        "data": stored_data(images.data),
        "model": model,
        "recipe": recipe,
        "seed": seed,
    }
    if masked:
        from keras_vit.self_supervision import MaskedPatchPredictor

        network = MaskedPatchPredictor(network, **task)
        details |= {"objective": objective.objective, **task}
    _train(network, settings, source, output, details, checkpoints)


def _from_scratch(
    variant: str, recipe: "Recipe", classes: int | None, **shape: Any
) -> "keras.Model":
    """A variant with random weights and the options of the recipe."""
    from keras_vit.configs import VARIANTS
    from keras_vit.families import family_of, with_options

    config = with_options(VARIANTS[variant], recipe.model_options() | shape)
    model: keras.Model = family_of(config).build(
        config, image_size=recipe.image_size, num_classes=classes
    )
    return model


def table_3(model: str, name: str) -> "Recipe":
    """The recipe of a name, or of a model and a data set."""
    from keras_vit.recipes import PRETRAIN, find

    with helped_by("keras-vit recipes"):
        return PRETRAIN.get(f"{model.removeprefix('BiT-')}-{name}") or find(name)


@app.command(needs_keras=False)
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.recipes,
            help="One recipe, in detail [default: all].",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the training recipes (Tables 3 and 4).

    Includes the recipes of other published checkpoints.
    """
    from keras_vit.recipes import FINETUNE, PRETRAIN, find, source

    with helped_by("keras-vit recipes"):
        rows = {name: find(name)} if name else FINETUNE | PRETRAIN
    if as_json:
        fields = {
            key: dataclasses.asdict(row) | {"source": source(key)}
            for key, row in rows.items()
        }
        print_json(fields[name] if name else fields)
    elif name is None:
        console.print(_recipes_table(rows))
        console.print("keras-vit recipes NAME prints one with its source")
    else:
        table = Table(box=None, pad_edge=False, show_header=False, title=Text(name))
        table.title_justify = "left"
        for key, value in _set_fields(rows[name]).items():
            table.add_row(key, value)
        console.print(table)
        console.print(source(name))


def _set_fields(row: "Recipe") -> dict[str, str]:
    """The fields of a recipe without options that are off."""
    fields = dataclasses.asdict(row)
    if row.optimizer != "adam":
        del fields["beta1"]
    if row.optimizer == "sgd":
        del fields["beta2"]
    if row.optimizer == "adam":
        del fields["momentum"]
    return {key: _in_words(value) for key, value in fields.items() if value}


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(steps: int) -> str:
    """A number of updates; whole millions as "1M"."""
    millions, rest = divmod(steps, 1_000_000)
    return str(steps) if rest else f"{millions}M"


def _recipes_table(rows: dict[str, "Recipe"]) -> Table:
    """One line for each recipe, 80 columns wide at most."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("recipe", "length", "base lr", "decay", "wd", "optim."):
        table.add_column(column, no_wrap=True)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row.epochs:g} epochs" if row.epochs else f"{_count(row.steps)} steps",
            "-".join(f"{lr:g}" for lr in sorted({row.base_lr[0], row.base_lr[-1]})),
            row.decay,
            f"{row.weight_decay:g}",
            row.optimizer + ("+SAM" if row.sam_rho else ""),
        )
    return table


@app.command(
    needs_keras=False,
    context_settings={"allow_interspersed_args": False},
    epilog="Example: keras-vit launch --workers 2 -- finetune --data photos",
)
def launch(
    workers: Annotated[
        int, typer.Option(help="Number of processes; they share cores and GPUs.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="After --: the keras-vit command that each worker runs, with its "
            "options.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train in several processes on this machine.

    Each process runs COMMAND with a TF_CONFIG that lists all of them. finetune,
    transfer and pretrain get --distribute multiworker unless COMMAND has --distribute.
    Each line of output starts with the number of its worker. If a worker fails, the
    others are stopped and its exit code is returned. After SIGTERM or Ctrl-C all
    workers save and exit.
    """
    from keras_vit import launching

    words = command or []
    launching.check(words, workers)
    distributed = any(word.partition("=")[0] == "--distribute" for word in words)
    if words[0] in ("finetune", "transfer", "pretrain") and not distributed:
        words = [*words, "--distribute", "multiworker"]
    # -P: like `keras-vit`, workers import nothing from the folder they are called in.
    python = [sys.executable, "-P"]
    program = [*python, launching.__file__, str(workers)]
    os.execv(sys.executable, [*program, *python, "-m", "keras_vit_command", *words])


runs_app = Commands(
    help="List, show, verify and replay training runs.",
    no_args_is_help=True,
)
app.add_typer(runs_app, name="runs")


@runs_app.command("list", needs_keras=False)
def list_runs(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the runs.", show_default=True)
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List training runs, the newest first."""
    from keras_vit.training.runs import find

    runs = find(folder)
    if not runs:
        raise ValueError(
            "Expected a folder that contains training runs. Received: "
            f"{str(folder)!r}. `keras-vit runs list FOLDER` lists those of a different "
            "folder"
        )
    if as_json:
        print_json([run.as_dict() for run in runs])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "state", "step", "test accuracy", "last written"):
        table.add_column(column, justify="right" if column == "step" else "left")
    for run in runs:
        status = run.status
        step = "" if status is None else f"{status.step}/{status.total_steps}"
        accuracy = "" if run.accuracy is None else percent(run.accuracy)
        table.add_row(Text(str(run.folder)), run.state, step, accuracy, run.written)
    console.print(table)


@runs_app.command("show")
def show_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(
            autocompletion=completion.begun,
            help="Folders of `finetune` or `pretrain`, finished or not.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="Picture file [default: curves.png in the first folder]."),
    ] = None,
) -> None:
    """Print the evaluations of runs and draw their curves.

    Also works while they train.
    """
    from keras_vit.inspection import plots
    from keras_vit.training import callbacks
    from keras_vit.training.runs import read_run

    curves = {}
    for run in runs:
        curves[str(run)] = callbacks.read(run / callbacks.FOLDER)
        console.print(_evaluations(run, read_run(run)))
    picture = output or runs[0] / "curves.png"
    plots.curves(curves, picture)
    console.print(f"wrote {picture}; or run tensorboard --logdir {runs[0]}")


def _evaluations(run: Path, status: Any) -> Table:
    """A line for each evaluation of a run."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = Text(f"{run}: {status.step} of {status.total_steps} updates")
    names = list(dict.fromkeys(name for row in status.history for name in row))
    for name in names:
        table.add_column(name, justify="right")
    for row in status.history:
        table.add_row(*(f"{row[name]:.5g}" if name in row else "" for name in names))
    if not status.history:
        table.add_column("no evaluation yet")
    return table


@runs_app.command("verify", needs_keras=False)
def verify_run(
    run: Annotated[
        Path,
        typer.Argument(
            autocompletion=completion.runs,
            help="Folder of a finished run, of several runs or of an export; or a file "
            "written by export or convert.",
        ),
    ],
) -> None:
    """Compare the files of a run or export with its manifest.

    Lists changed, missing and additional files and exits with 1 if there are any. In a
    folder of several runs or exports each one is compared.
    """
    from keras_vit import manifest

    places, loose = manifest.inside(run)
    whole = [_verified(place) for place in places]
    if loose:
        shown = ", ".join(loose[:5]) + (", ..." if len(loose) > 5 else "")
        console.print(
            f"{run}: {counted(len(loose), 'file')} without a manifest: {shown}"
        )
    if len(places) > 1:
        console.print(f"{sum(whole)} of {len(places)} are unchanged")
    if not all(whole):
        raise typer.Exit(1)


def _verified(place: Path) -> bool:
    """Prints how files differ from their manifest; returns whether none does."""
    from keras_vit import manifest

    result = manifest.verify(place)
    versions = ", ".join(f"{name} {text}" for name, text in result.versions.items())
    files = counted(result.files, "file")
    console.print(f"{place}: {files}, written with {versions}")
    if isinstance(result.data, dict):
        console.print(f"data: {result.data['name']}, {result.data['fingerprint']}")
    for kind in ("changed", "missing", "additional"):
        for name in getattr(result, kind):
            console.print(f"{kind}: {name}")
    if result.whole:
        console.print("all files are unchanged")
    return result.whole


@runs_app.command("replay")
def replay_run(
    run: Annotated[
        Path,
        typer.Argument(
            autocompletion=completion.runs, help="Folder of a finished run."
        ),
    ],
    first: Annotated[
        int,
        typer.Option(
            "--from",
            min=0,
            help="First step; the computation starts from the checkpoint before it.",
        ),
    ] = 0,
    last: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            help="Step of the last evaluation to compare [default: the run's].",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data of the run [default: the data that it was trained on]."
        ),
    ] = None,
) -> None:
    """Recompute a part of a run and compare the results.

    Every evaluation is compared with the certificate of the run, which is only read.
    Exits with 1 if an evaluation differs.
    """
    from keras_vit.training import replaying

    replay = replaying.replay(
        run, first=first, last=last, data=data, verbose=progress()
    )
    kept = ", ".join(map(str, replay.kept))
    console.print(f"computed from step {replay.start}; kept: {kept}")
    for line in replaying.lines(replay):
        console.print(line)
    if not replay.agrees:
        raise typer.Exit(1)
