"""`keras-vit embed | search`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keras_vit.arguments import counted
from keras_vit.cli.fields import given, grouped
from keras_vit.cli.loaders import image_files, open_model, predicts_patches, read_image
from keras_vit.cli.options import Images, OpenedModel
from keras_vit.cli.shell import app, console, errors
from keras_vit.files import check_writable, printable

if TYPE_CHECKING:
    import numpy as np


@app.command(epilog="Example: keras-vit embed photos --output embeddings.npz")
@grouped
def embed(
    *,
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of images; its subfolders are read too."),
    ],
    model_options: OpenedModel,
    output: Annotated[
        Path, typer.Option(help="The .npz file to write: paths, embeddings, model.")
    ] = Path("embeddings.npz"),
    token: Annotated[
        Literal["cls", "mean", "cls+mean"] | None,
        typer.Option(
            help="The class token, the mean of the patches, or both concatenated "
            "[default: cls; mean for a model without a class token].",
            show_default=False,
        ),
    ] = None,
    batch_size: Images = 32,
) -> None:
    """Compute an embedding of every image of a folder.

    The file is written after the last image, completely or not at all. Unreadable
    images are left out and listed.
    """
    import numpy as np

    from keras_vit.data.progress import progress
    from keras_vit.evaluation import retrieval

    if output.suffix != ".npz":
        raise ValueError(
            f"Expected --output with the suffix .npz. Received: --output {output}"
        )
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of images. Received: {str(folder)!r}")
    files = image_files(folder)
    check_writable(output)
    network, _ = _open(model_options)
    embedder, kind = retrieval.embedder(network, token)
    paths: list[str] = []
    vectors: list[np.ndarray] = []
    batches = list(range(0, len(files), batch_size))
    for start in progress(batches, "embedding", len(batches), True):
        some = list(_readable(files[start : start + batch_size], network))
        if not some:
            continue
        images = np.stack([image for _, image in some])
        filled = np.resize(images, (batch_size, *images.shape[1:]))  # One compilation.
        rows = np.asarray(embedder.predict_on_batch(filled))[: len(some)]
        for (file, _), vector in zip(some, rows, strict=True):
            if not np.isfinite(vector).all():
                raise ValueError(
                    f"Expected finite embeddings. Received: NaN or infinity for "
                    f"{printable(file)}. Check the weights and the preprocessing"
                )
            paths.append(str(file.relative_to(folder)))
            vectors.append(vector)
    if not paths:
        raise ValueError(
            "Expected JPEG, PNG, GIF, BMP or WebP images. Received: "
            f"{counted(len(files), 'file')} in {str(folder)!r}, none of them readable"
        )
    words = {
        name: str(Path(value).absolute())
        if name in ("model", "weights") and Path(str(value)).exists()
        else value
        for name, value in given(model_options).items()
    }
    retrieval.Embeddings(
        np.stack(vectors).astype(np.float32),
        tuple(paths),
        str(folder.absolute()),
        retrieval.identity(network, embedder, kind),
        words,
    ).save(output)
    left_out = len(files) - len(paths)
    console.print(
        f"wrote {printable(output)}: {counted(len(paths), 'embedding')} of width "
        f"{vectors[0].size}" + (f"; left out: {left_out}" if left_out else "")
    )


@app.command(epilog="Example: keras-vit search embeddings.npz some.jpg --top 20")
@grouped
def search(
    *,
    embeddings: Annotated[
        Path, typer.Argument(help="File that `keras-vit embed` wrote.")
    ],
    photo: Annotated[Path, typer.Argument(help="The image to compare with.")],
    model_options: OpenedModel,
    top: Annotated[int, typer.Option(min=1, help="Number of images to find.")] = 10,
    output: Annotated[Path, typer.Option(help="The page of thumbnails.")] = Path(
        "search.html"
    ),
) -> None:
    """Find the images that are most similar to a photo.

    Prints cosine similarities and paths, and writes a page of thumbnails. By default
    the model of the embeddings is opened; a different model is refused.
    """
    import dataclasses

    import numpy as np

    from keras_vit.evaluation import retrieval
    from keras_vit.files import replacing

    known = retrieval.Embeddings.load(embeddings)
    if photo.is_dir() or not photo.exists():
        raise ValueError(f"Expected an image. Received: {str(photo)!r}")
    if model_options.model is None and model_options.weights is None:
        names = {field.name for field in dataclasses.fields(OpenedModel)}
        words = {key: at for key, at in known.opened.items() if key in names}
        model_options = OpenedModel(**(words | given(model_options)))
    network, _ = _open(model_options)
    embedder, token = retrieval.embedder(network, known.token)
    known.check(retrieval.identity(network, embedder, token))
    query = np.asarray(embedder.predict_on_batch(read_image(photo, network)[None]))[0]
    neighbors = known.nearest(query, top)
    for path, cosine in neighbors:
        console.print(f"{cosine:.4f}  {printable(str(known.file(path)))}")
    text = retrieval.page(photo, neighbors, known)
    with replacing(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    console.print(f"wrote {printable(output)}")


def _open(model_options: OpenedModel) -> tuple[Any, dict[str, Any]]:
    """The model, or the backbone of masked patch prediction."""
    from keras_vit.models.description import check_one_size

    network, details = open_model(model_options, purpose="any")
    check_one_size(network)
    return (network.backbone if predicts_patches(network) else network), details


def _readable(files: list[Path], network: Any) -> "Iterator[tuple[Path, np.ndarray]]":
    """Yields files and their images; prints the unreadable ones."""
    for file in files:
        try:
            yield file, read_image(file, network)
        except ValueError as error:
            errors.print(f"left out {error}")
