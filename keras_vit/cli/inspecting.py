"""`keras-vit inspect`."""

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
