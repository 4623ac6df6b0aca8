"""`keras-vit data-size`: Figure 4's protocol."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_vit.cli import completing
from keras_vit.cli.opening import changed, given, on_devices, open_data
from keras_vit.cli.options import (
    Augment,
    BatchSize,
    Corrupt,
    Data,
    Heads,
    HiddenSize,
    Layers,
    MixedPrecision,
    MlpDim,
    Parts,
    PatchSize,
    Remat,
    SaveMinutes,
    Steps,
    Tpu,
    Warmup,
    variant_of_option,
)
from keras_vit.cli.shell import app, console, progress
from keras_vit.cli.training import config_from_scratch, table_3


@app.command(
    "data-size",
    epilog="Example: keras-vit data-size --data photos --model ViT-S/16 --subset 0.1 "
    "--subset 0.3 --subset 1 --steps 1000",
)
def data_size(
    context: typer.Context,
    data: Data,
    model: Annotated[
        str,
        typer.Option(
            autocompletion=completing.variants,
            callback=variant_of_option,
            help="The variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.",
        ),
    ] = "ViT-B/16",
    subsets: Annotated[
        list[float] | None,
        typer.Option(
            "--subset",
            help="Share of the training images, 1 or less, or a number of images; "
            "repeat for several [default: 0.03, 0.1, 0.3 and 1].",
        ),
    ] = None,
    few_shot_data: Annotated[
        str | None,
        typer.Option(
            help="Data with the shots and the test images, as --data [default: --data "
            "itself]."
        ),
    ] = None,
    shots: Annotated[
        int, typer.Option(min=1, help="Labeled images of each class.")
    ] = 5,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of the shots; accuracies are averaged.")
    ] = 3,
    l2: Annotated[
        float, typer.Option(help="Weight of the regression's penalty.")
    ] = 1024.0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Pre-trainings of each subset, from seed 0 on.")
    ] = 1,
    validation: Annotated[
        float,
        typer.Option(
            help="Share of the training images that the best evaluation is chosen on."
        ),
    ] = 0.1,
    recipe: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing.recipes,
            help="As `keras-vit recipes` lists it; for MODEL-imagenet21k the name of "
            "the data is enough [default: imagenet2012].",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for the pre-trainings, data_size.json and data_size.png."
        ),
    ] = Path("runs/data_size"),
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of an earlier data-size to draw in the same picture; repeat "
            "for several."
        ),
    ] = None,
    patch_size: PatchSize = None,
    layers: Layers = None,
    hidden_size: HiddenSize = None,
    mlp_dim: MlpDim = None,
    heads: Heads = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Passes over all training images; smaller subsets train for as many "
            "updates."
        ),
    ] = None,
    steps: Steps = None,
    warmup: Warmup = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch_size: BatchSize = None,
    parts: Parts = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Pixels, 224 or 224x320 (height x width) [default: the recipe's]."
        ),
    ] = None,
    augment: Augment = None,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Evaluations of a pre-training, at most.")
    ] = 10,
    mixed_precision: MixedPrecision = None,
    remat: Remat = False,
    distribute: Annotated[
        Literal["auto", "none", "mirrored", "tpu"],
        typer.Option(help="As in `pretrain`; one process."),
    ] = "auto",
    tpu: Tpu = None,
    on_corrupt: Corrupt = "stop",
    save_minutes: SaveMinutes = 10,
) -> None:
    """Measures few-shot accuracy by the amount of pre-training data (4.3, Figure 4).

    Pre-trains the model from random weights on nested subsets of the training images,
    each for the same number of updates, and keeps the evaluation that is best on a
    held-out share of them. Prints the few-shot accuracy of its features on the test
    images. To resume, or to add subsets and seeds, run the command again.
    """
    from keras_vit.evaluation import subsets as evaluation

    earlier = {str(folder): evaluation.read(folder) for folder in also or ()}
    replicas = on_devices(context, distribute, tpu, 1, mixed_precision)
    source = open_data(data, 0, on_corrupt)
    settings = changed(
        table_3(model, recipe or "imagenet2012"),
        len(source.train),
        replicas,
        epochs=epochs,
        steps=steps,
        warmup=warmup,
        lr=None if lr is None else (lr,),
        batch_size=batch_size,
        parts=parts,
        image_size=image_size,
        augment=augment,
        remat=remat,
    )
    shape = given(
        patch_size=patch_size,
        num_layers=layers,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=heads,
    )
    measured: Any = None
    if few_shot_data is not None:
        measured = open_data(few_shot_data, 0, on_corrupt)
    result = evaluation.data_size(
        config_from_scratch(model, shape),
        source,
        recipe=settings,
        output=output,
        subsets=subsets or evaluation.FIGURE_4,
        few_shot_data=measured,
        shots=shots,
        draws=range(draws),
        l2=l2,
        seeds=range(seeds),
        validation_share=validation,
        evaluations=evaluations,
        save_minutes=save_minutes,
        verbose=progress(),
    )
    console.print(str(result))
    console.print(f"wrote {output / evaluation.RESULT}")
    lines = {model: result.points}
    lines |= {name: found.points for name, found in earlier.items()}
    _draw(lines, output / "data_size.png")


def _draw(lines: dict[str, dict[int, float]], picture: Path) -> None:
    """Draws Figure 4, where matplotlib is installed."""
    from keras_vit.inspection import plots

    if importlib.util.find_spec("matplotlib") is None:
        console.print("no picture: it needs pip install 'keras-vit-paper[plots]'")
        return
    plots.data_size(lines, picture)
    console.print(f"Figure 4: {picture}")
