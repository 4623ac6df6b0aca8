"""`keras-vit convert | data | weights`."""

import dataclasses
import warnings
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from keras_vit.arguments import counted
from keras_vit.cli import completion
from keras_vit.cli.fields import given, grouped, pixels
from keras_vit.cli.loaders import open_model, recipe_of
from keras_vit.cli.options import (
    SEEDS,
    AsJson,
    Corrupt,
    LicenseAllow,
    NamedModel,
    NumHeads,
)
from keras_vit.cli.shell import (
    Commands,
    app,
    console,
    errors,
    helped_by,
    print_json,
)
from keras_vit.files import printable

if TYPE_CHECKING:
    from keras_vit.weights.registry import Checkpoint

data_app = Commands(
    help="Pack images into shards and manage cached features.",
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")


@data_app.command()
def pack(
    source: Annotated[
        str, typer.Argument(help="Folder of images or TFDS name, as in --data.")
    ],
    output: Annotated[
        Path, typer.Argument(help="Folder to write, completely or not at all.")
    ],
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of training shards [default: one for every 10,000 images].",
        ),
    ] = None,
    split: Annotated[
        Literal["all", "train"],
        typer.Option(help="Write all images, or only training images."),
    ] = "all",
    on_corrupt: Corrupt = "stop",
    seed: Annotated[
        int,
        typer.Option(
            **SEEDS, help="Random seed of the test share, if the data has no test set."
        ),
    ] = 0,
) -> None:
    """Write a data set as TFRecord shards with an index.

    To train on it, pass the folder as --data.
    """
    from keras_vit.data import packing, sources

    opened = sources.open_source(source, seed=seed, on_corrupt=on_corrupt)
    packing.pack(opened, output, shards=shards, split=split)
    size = sum(file.stat().st_size for file in output.iterdir()) / 2**20
    count = len(list(output.glob("*.tfrecord")))
    tested = 0 if split == "train" or opened.test is None else len(opened.test)
    console.print(
        f"{output}: {len(opened.train)} training and {tested} test images of "
        f"{counted(len(opened.classes), 'class', 'es')}, {counted(count, 'shard')}, "
        f"{size:.0f} MiB"
    )


cache_app = Commands(
    help="Features of frozen models, kept on disk.", no_args_is_help=True
)
data_app.add_typer(cache_app, name="cache")


@cache_app.command("list", needs_keras=False)
def list_cache() -> None:
    """List the features on disk, the last used first."""
    from keras_vit import feature_cache

    entries = feature_cache.entries()
    table = Table(box=None, pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    for name in ("model", "data", "last use", "facts"):
        table.add_column(name, overflow="fold")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        damaged = entry.rows is None
        table.add_row(
            f"{entry.bytes / 2**20:.1f} MiB",
            "damaged" if damaged else f"{entry.rows:,}",
            Text(entry.model or ""),
            Text(printable(entry.data or "")),
            "" if damaged else used,
            entry.folder.name[:12],
        )
    if entries:
        console.print(table)
    size = sum(entry.bytes for entry in entries) / 2**20
    console.print(
        f"{counted(len(entries), 'entr', 'ies', 'y')}, {size:.1f} MiB of at most "
        f"{feature_cache.max_bytes() / 2**20:.1f} MiB ({feature_cache.VARIABLE}), in "
        f"{printable(feature_cache.root())}"
    )


@cache_app.command("clear", needs_keras=False)
def clear_cache() -> None:
    """Remove all features from the disk.

    They are computed again when they are needed.
    """
    from keras_vit import feature_cache

    count, size = feature_cache.clear()
    console.print(
        f"removed {counted(count, 'entr', 'ies', 'y')}, {size / 2**20:.1f} MiB"
    )


weights_app = Commands(
    help="List, download, verify and publish weights.",
    no_args_is_help=True,
)
app.add_typer(weights_app, name="weights")


@weights_app.command("list", needs_keras=False)
def list_weights(
    variant: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.variants, help="One variant: ViT-B/16 or ViT_B16."
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(autocompletion=completion.tags, help="One tag: imagenet21k."),
    ] = None,
    urls: Annotated[
        bool,
        typer.Option("--urls", help="Print the URL of each source, in order of use."),
    ] = False,
    search: Annotated[
        str | None,
        typer.Option(
            help="Search builders, tags and readable architectures of timm and "
            "transformers by a part of their names or a pattern, and print the call of "
            "each."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the published weights with sources and licenses."""
    from keras_vit.weights.registry import select

    if search is not None:
        if variant or tag or urls:
            raise ValueError(
                "Expected --search without --variant, --tag and --urls, which select "
                f"published weights. Received: --search {search} with one of them"
            )
        _list_names(search, as_json)
        return
    groups: dict[str, list[Checkpoint]] = {}
    with helped_by("keras-vit weights list"):
        selected = select(variant, tag)
    if as_json:
        print_json([dataclasses.asdict(row) for row in selected])
        return
    for row in selected:
        title = f"{row.tag}: {row.origin}, {row.licence}"
        groups.setdefault(title, []).append(row)
    for title, rows in groups.items():
        console.print(_training_table(title, rows))
        for row in rows if urls else ():
            console.print(row.variant)
            for mirror in row.mirrors:
                console.print(f"  {mirror.format:4} {mirror.url}")
        console.print()
    console.print(
        "sources: the official npz, then copies, in order of use"
        + ("" if urls else "; --urls prints them")
    )


def _list_names(search: str, as_json: bool) -> None:
    """Prints the names that match, each with its call."""
    from keras_vit.weights import catalog

    with helped_by("keras-vit weights list"):
        rows = catalog.search(search)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        console.print(f"{row.name:{width}}  {row.call}")


def _training_table(title: str, rows: list["Checkpoint"]) -> Table:
    """The variants of one training run, at most 80 columns wide."""
    table = Table(box=None, pad_edge=False, title=Text(title), title_justify="left")
    for name in ("variant", "pixels", "head", "size", "top-1 %", "sources"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        formats = ", ".join(mirror.format for mirror in row.mirrors)
        top_1 = f"{row.accuracy} ({row.accuracy_source})" if row.accuracy else ""
        table.add_row(
            row.variant,
            str(row.image_size[0]),
            "zeros" if row.zero_head else str(row.num_classes),
            row.size or "",
            top_1,
            f"{formats}: one source" if len(row.mirrors) == 1 else formats,
        )
    return table


@weights_app.command(needs_keras=False)
def fetch(
    tag: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.tags,
            help="A tag listed by `keras-vit weights list`.",
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder for the files; created if absent.")],
    variant: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.variants,
            help="Variant to download [default: all variants of the tag].",
        ),
    ] = None,
) -> None:
    """Download weights to a folder, for offline machines."""
    from keras_vit.weights import download

    with helped_by("keras-vit weights list --urls"):
        paths = download.fetch(tag, to, variant)
    for path in paths:
        console.print(str(path))
    console.print(f"on the offline machine, set KERAS_VIT_WEIGHTS to the copy of {to}")


@weights_app.command(needs_keras=False)
def lock(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The lock file [default: KERAS_VIT_LOCK, else keras-vit.lock].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Record the sha256 of downloaded weights in a file."""
    from keras_vit.weights import download

    path, count, new, unknown = download.lock(file)
    for record in unknown:
        errors.print(
            f"{record} has no URL, because an earlier version wrote it. Delete it and "
            "its file to download it again"
        )
    console.print(f"{path}: {count} entries, {new} of them new")


@weights_app.command()
@grouped
def show(*, model_options: NamedModel) -> None:
    """Print origin, license and preprocessing of a model."""
    from keras_vit.models.vision import facts_of

    network, _ = open_model(model_options, purpose="any")
    facts = facts_of(network)
    values = vars(facts.provenance) | {"preprocessing": facts.preprocessing}
    for name, value in values.items():
        if value is not None:
            shown = "; ".join(value) if isinstance(value, tuple) else str(value)
            console.print(f"{name.replace('_', ' '):14} {shown or 'none'}")


@weights_app.command(
    epilog="Example: keras-vit weights push runs/photos hf://USER/photos"
)
@grouped
def push(
    *,
    model_options: NamedModel,
    repository: Annotated[
        str, typer.Argument(help="hf://USER/NAME; the repository is created if absent.")
    ],
    card: Annotated[
        Path | None,
        typer.Option(
            help="Results card to include: a folder written by `keras-vit evaluate "
            "--output`."
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(
            help="License of the model card, e.g. apache-2.0 [default: that of the "
            "weights from which the model was loaded]."
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository.")
    ] = False,
) -> None:
    """Upload a model with a model card to the Hub."""
    import keras_vit
    from keras_vit.evaluation.card_pages import shown
    from keras_vit.evaluation.cards import Card

    network, details = open_model(model_options, purpose="any")
    sections: dict[str, dict[str, Any]] = {}
    if details:
        sections["Training"] = _public(details, "data")
        sections["Recipe"] = recipe_of(Path(model_options.model))
    if card is not None:
        results = Card.load(card)
        values = {name: shown(name, at) for name, at in results.results.items()}
        sections["Results"] = {
            name: f"{value} (95 %: {interval})"
            for name, (value, interval) in values.items()
        }
        data = {at: to for at, to in results.data.items() if at != "classes"}
        sections["Data of the results"] = _public(data, "name")
    with helped_by("keras-vit weights push --help"):
        url = keras_vit.weights.push(
            network, repository, license=license, private=private, sections=sections
        )
    console.print(url)


def _public(section: dict[str, Any], key: str) -> dict[str, Any]:
    """A section of a public page, without the folders in which the data is."""
    path = Path(str(section.get(key)))
    return section | {key: path.name} if path.is_absolute() else section


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="Checkpoint: npz (official, big_vision, BiT), safetensors (timm, "
            "Hugging Face), h5 (TFViT, keras-hub), a folder of these, a URL, "
            "hf://ORG/NAME[@REVISION], timm:NAME, a .keras file, or a PyTorch pickle "
            "(.bin, .pt, .pth; FILE:KEY selects one of several mappings)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            help="File to write; for timm and hf a folder, or a file with the suffix "
            ".safetensors."
        ),
    ],
    to: Annotated[
        Literal["npz", "timm", "hf", "keras"] | None,
        typer.Option(
            help="Format to write; required except for a pickle, whose tensors keep "
            "their names.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Image size in pixels to resize positions for, 384 or 384x512."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of classes of a new, zero-initialized head."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Rows x columns of the positions, if they are not square."),
    ] = None,
    numerics: Annotated[
        Literal["paper", "timm", "hf"] | None,
        typer.Option(
            help="Library whose GELU and epsilons are used [default: the source's]."
        ),
    ] = None,
    num_heads: NumHeads = None,
    license_allow: LicenseAllow = None,
) -> None:
    """Convert a checkpoint to the format of another library."""
    import keras_vit
    from keras_vit import manifest
    from keras_vit.weights import pickles
    from keras_vit.weights.keras_files import load_model

    size = pixels(image_size)
    if pickles.is_pickle(source):
        if words := [at for at in (to, size, classes, grid, numerics, num_heads) if at]:
            raise ValueError(
                "Expected no options with a pickle, because its tensors keep their "
                f"names. Received: {', '.join(map(str, words))}. Convert the "
                ".safetensors file in a second step"
            )
        key, count = pickles.convert(source, output)
        manifest.write_beside(output)
        console.print(f"{output}: {count} tensors of {key or source}")
        return
    if to is None:
        raise ValueError(
            "Expected --to npz, timm, hf or keras. Received: a checkpoint without --to"
        )
    if to == "keras":
        output = output.with_suffix(".keras")
    if source.endswith(".keras"):
        if num_heads is not None:
            raise ValueError(
                "Expected --num-heads with a checkpoint that does not contain it. "
                f"Received: --num-heads {num_heads} and {source}, which contains it. "
                "Remove --num-heads"
            )
        model = load_model(source, compiled=True)
        if size is not None:
            model = keras_vit.at_resolution(model, size)
        if classes is not None:
            model = keras_vit.for_task(model, classes)
    else:
        model = keras_vit.from_checkpoint(
            source,
            image_size=size,
            classes=classes,
            grid=pixels(grid, "--grid"),
            numerics=numerics,
            **given(num_heads=num_heads, license_allow=license_allow),
        )
        console.print("\n".join(str(model.provenance).splitlines()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if to == "keras":
            from keras_vit.files import replacing

            with replacing(output) as temporary:
                model.save(temporary)
        else:
            keras_vit.weights.save(model, output, format=to)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            errors.print(str(warning.message))
    file = output / "model.safetensors" if output.is_dir() else output
    names = ("config.json", "preprocessor_config.json") if to in ("timm", "hf") else ()
    others = [file.with_name(name) for name in names]
    manifest.write_beside(file, *(other for other in others if other.exists()))
    console.print(f"{output}: {model.count_params():,} parameters, {to}")
