"""`keras-vit inspect | costs`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_vit.cli.opening import (
    Run,
    image_files,
    open_run,
    predicts_patches,
    read_image,
)
from keras_vit.cli.options import pixels
from keras_vit.cli.shell import app, console

if TYPE_CHECKING:
    import numpy as np


@app.command(epilog="Example: keras-vit inspect runs/pretrain photos --count 6")
def inspect(
    model: Annotated[
        Path, typer.Argument(help="A folder that `pretrain` or `finetune` wrote.")
    ],
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Image files, or folders of them [default: test images of the run's "
            "data].",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The picture [default: reconstructions.png or attention.png in the "
            "folder]."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Images at most.")] = 8,
) -> None:
    """Draws what a trained model does with images.

    Of masked patch prediction (4.6): the image, what the model saw, what it predicted.
    Of a classifier: what its answer looked at (attention rollout, D.8).
    """
    import numpy as np

    from keras_vit.inspection import attention_rollout, plots

    plots.check()
    network, run = open_run(model, None, None)
    if images:
        files = [file for path in images for file in image_files(path)][:count]
        batch = np.stack([read_image(file, network, run) for file in files])
    else:
        batch = _test_images(network, run, count)
    if predicts_patches(network):
        picture = output or model / "reconstructions.png"
        plots.reconstructions(network.reconstruct(batch), picture)
    else:
        picture = output or model / "attention.png"
        shown = (batch * run.std + run.mean).clip(0, 1)
        maps = attention_rollout(network, batch)
        plots.attention_maps(shown, maps, _answers(network, batch, run), picture)
    console.print(f"wrote {picture}")


def _test_images(network: Any, run: Run, count: int) -> "np.ndarray":
    """Test images of what a run was trained on, from all over the set."""
    import numpy as np

    from keras_vit.data import pipelines, sources
    from keras_vit.data.splits import Indexed

    data = run.details.get("data")
    if data is None:
        raise ValueError("Expected images to look at. Received: none")
    source = sources.open_source(
        data,
        seed=run.details.get("seed", 0),
        on_corrupt="skip",  # It names them; the run may have done without them too.
        labels=not predicts_patches(network),
    )
    split = source.test or source.train
    if isinstance(split, Indexed):  # They may lie class by class.
        count = min(count, len(split))
        split = split.take(np.linspace(0, len(split) - 1, count).astype(int))
    batches = pipelines.eval_pipeline(
        split,
        image_size=network.input_shape[1:3],
        batch_size=count,
        mean=run.mean,
        std=run.std,
        channels=network.input_shape[-1],
    )
    images: np.ndarray = next(iter(batches.as_numpy_iterator()))[0]
    return images


def _answers(network: Any, batch: "np.ndarray", run: Run) -> list[str]:
    logits = network.predict(batch, verbose=0)
    return [run.classes[best] for best in logits.argmax(-1)]


@app.command(epilog="Example: keras-vit costs R50+ViT-B/16 --image-size 384")
def costs(
    model: Annotated[
        str | None,
        typer.Argument(
            help="The variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option(help="Pixels, 384 or 384x512 (height x width) [default: 224]."),
    ] = None,
    classes: Annotated[
        int, typer.Option(min=0, help="Of the head; 0 leaves it out.")
    ] = 1000,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="By layer instead of by operation.")
    ] = False,
    table6: Annotated[
        bool,
        typer.Option("--table6", help="ExaFLOPs of every model of Table 6, at 224 px."),
    ] = False,
) -> None:
    """Counts parameters and the multiply-adds of one image, without building a model.

    Of matrix products and convolutions; taps on padding are left out.
    """
    from keras_vit.inspection import costs as count

    if table6 == (model is not None) or (table6 and (image_size or by_layer)):
        raise ValueError(
            "Expected a variant, or --table6 with --classes alone. Received: "
            f"model={model}, table6={table6}, image_size={image_size}, "
            f"by_layer={by_layer}"
        )
    if model is None:
        for line in _table_6(classes):
            console.print(line)
        return
    size = pixels(image_size)
    console.print(count(model, size, num_classes=classes).table(by_layer))


def _table_6(classes: int) -> Iterator[str]:
    """Our exaFLOPs beside the paper's."""
    from keras_vit import paper
    from keras_vit.inspection import costs as count
    from keras_vit.recipes import IMAGES

    yield f"{'exaFLOPs':14}{'epochs':>8}{'counted':>10}{'Table 6':>10}{'ratio':>8}"
    for (variant, epochs), exa in paper.EXAFLOPS.items():
        counted = count(variant, num_classes=classes)
        ours = counted.exaflops(epochs * IMAGES["jft300m"])
        mark = " *" if (variant, epochs) == ("R50+ViT-L/16", 7) else ""
        row = f"{variant:14}{epochs:>8}{ours:>10.1f}{exa:>10}{ours / exa:>8.3f}"
        yield row + mark
    seven, twice = (paper.EXAFLOPS["R50+ViT-L/16", epochs] for epochs in (7, 14))
    yield (
        f"* The paper's {seven} contradicts its own {twice} at 14 epochs, of which "
        f"half is {twice // 2}."
    )
