"""`keras-vit data-size`: Figure 4's protocol."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit._version import pip_install
from keras_vit.cli.fields import grouped
from keras_vit.cli.loaders import changed, on_devices, open_data
from keras_vit.cli.options import (
    Devices,
    ImageData,
    PretrainingChanges,
    PretrainingRecipe,
    Saving,
    Sizes,
    Variant,
)
from keras_vit.cli.shell import app, console, errors, progress
from keras_vit.cli.training import table_3
from keras_vit.files import printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    """Options of the few-shot evaluation."""

    few_shot_data: Annotated[
        str | None,
        typer.Option(
            help="Data for the shots and the test images, as in --data [default: the "
            "same data]."
        ),
    ] = None
    shots: Annotated[int, typer.Option(min=1, help="Labeled images of each class.")] = 5
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of the shots, whose accuracy is averaged.")
    ] = 3
    l2: Annotated[float, typer.Option(help="Weight of the regression's penalty.")] = (
        1024.0
    )
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Pre-training runs of each subset, with the seeds 0, 1, ..."
        ),
    ] = 1
    validation: Annotated[
        float,
        typer.Option(
            help="Share of the training images held out to choose the best evaluation."
        ),
    ] = 0.1
    evaluations: Annotated[
        int, typer.Option(min=1, help="Largest number of evaluations of a run.")
    ] = 10


@app.command(
    "data-size",
    epilog="Example: keras-vit data-size --data photos --model ViT-S/16 --subset 0.1 "
    "--subset 0.3 --subset 1 --steps 1000",
)
@grouped
def data_size(
    *,
    context: typer.Context,
    images: ImageData,
    model: Variant = "ViT-B/16",
    subsets: Annotated[
        list[float] | None,
        typer.Option(
            "--subset",
            help="Share of the training images, 1 or less, or a number of images; "
            "repeat for several [default: 0.03, 0.1, 0.3 and 1].",
        ),
    ] = None,
    measured: FewShot,
    recipe: PretrainingRecipe = None,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for the pre-training runs, data_size.json and data_size.png."
        ),
    ] = Path("runs/data_size"),
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Output folder of an earlier `data-size` to draw in the same picture; "
            "repeat for several."
        ),
    ] = None,
    sizes: Sizes,
    changes: PretrainingChanges,
    devices: Devices,
    saving: Saving,
) -> None:
    """Pre-train on subsets of a data set (4.3, Figure 4).

    Pre-trains the model from random weights on nested subsets of the training images,
    each for the same number of updates, and keeps the evaluation that is best on a
    held-out share of them. Prints the few-shot accuracy of its features on the test
    images. To resume, or to add subsets and seeds, run the command again.
    """
    from keras_vit.configs import VARIANTS
    from keras_vit.evaluation import subsets as evaluation
    from keras_vit.families import with_options

    earlier = {str(folder): evaluation.read(folder) for folder in also or ()}
    _check_comparable(model, earlier, measured.shots)
    replicas = on_devices(context, devices)
    source = open_data(images, 0)
    row = table_3(model, recipe or "imagenet2012")
    settings = changed(row, len(source.train), replicas, changes)
    judged: Any = None
    if measured.few_shot_data is not None:
        judged = open_data(dataclasses.replace(images, data=measured.few_shot_data), 0)
    result = evaluation.data_size(
        with_options(VARIANTS[model], sizes),
        source,
        recipe=settings,
        output=output,
        subsets=subsets or evaluation.FIGURE_4,
        few_shot_data=judged,
        shots=measured.shots,
        draws=range(measured.draws),
        l2=measured.l2,
        seeds=range(measured.seeds),
        validation_share=measured.validation,
        evaluations=measured.evaluations,
        verbose=progress(),
        **vars(saving),
    )
    console.print(str(result))
    console.print(f"wrote {output / evaluation.RESULT}")
    for name, other in earlier.items():
        if other.few_shot_data != result.few_shot_data:
            errors.print(
                f"{printable(name)} was measured on {printable(other.few_shot_data)}, "
                f"this run on {printable(result.few_shot_data)}: the lines cannot be "
                "compared",
                style="yellow",
            )
    lines = {model: result.points}
    lines |= {name: results.points for name, results in earlier.items()}
    _draw(lines, output / "data_size.png")


def _check_comparable(model: str, earlier: dict[str, Any], shots: int) -> None:
    """Raises before the training if the picture cannot have these lines."""
    from keras_vit.inspection.plots import canvas

    canvas.check_count([model, *earlier], "models (--model and each --also)")
    for name, other in earlier.items():
        if other.shots != shots:
            raise ValueError(
                f"Expected --also with --shots {shots}. Received: {printable(name)} "
                f"with {other.shots} shots. Use --shots {other.shots}"
            )


def _draw(lines: dict[str, dict[int, float]], picture: Path) -> None:
    """Draws Figure 4 if matplotlib is installed."""
    from keras_vit.inspection import plots

    if importlib.util.find_spec("matplotlib") is None:
        console.print(f"no picture: run {pip_install('plots')} to draw it")
        return
    plots.data_size(lines, picture)
    console.print(f"Figure 4: {picture}")
