"""`keras-vit costs`."""

from collections.abc import Iterator
from typing import Annotated

import typer

from keras_vit.cli.options import pixels
from keras_vit.cli.shell import app, console


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
