"""`keras-vit costs`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit._version import pip_install
from keras_vit.cli import completion
from keras_vit.cli.fields import grouped, pixels
from keras_vit.cli.options import AsJson
from keras_vit.cli.shell import app, console, import_keras, print_json

# Options of each kind of question.
_OPTIONS = {
    "a variant": ("image_size", "batch", "dtype", "by_layer", "classes", "as_json"),
    "--table6": ("classes", "as_json"),
    "--plan": ("image_size", "batch", "price", "utilisation", "classes", "as_json"),
    "--figure12": ("models", "sizes", "memory", "largest", "output"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Options of a question about costs."""

    image_size: Annotated[
        str | None,
        typer.Option(
            help="Image size in pixels, 384 or 384x512 (height x width) [default: 224, "
            "or the recipe's with --plan]."
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images in a batch; also prints memory. With --plan: images in an "
            "update [default: the recipe's].",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Dtype of activations, float32 or bfloat16; also prints memory "
            "[default: float32]."
        ),
    ] = None
    classes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Classes of the head, or 0 for no head [default: 1000, or 10 with a "
            "finetune --plan]. A pre-training --plan uses the classes of its data.",
        ),
    ] = None
    by_layer: Annotated[
        bool,
        typer.Option(
            "--by-layer", help="Print costs by layer instead of by operation."
        ),
    ] = False
    table6: Annotated[
        bool,
        typer.Option("--table6", help="ExaFLOPs of every model of Table 6, at 224 px."),
    ] = False
    plan: Annotated[
        str | None,
        typer.Option(
            help="Hours and memory of a training run, e.g. 'ViT-L/16 imagenet21k 30 "
            "epochs on 8xH100' or 'finetune ViT-B/16 on 720 photos on 1xT4'."
        ),
    ] = None
    price: Annotated[
        float | None,
        typer.Option(min=0, help="With --plan: euros per hour of one device."),
    ] = None
    utilisation: Annotated[
        float | None,
        typer.Option(
            help="With --plan: share of the devices' peak, 0 to 1 [default: the "
            "paper's 0.345]."
        ),
    ] = None
    figure12: Annotated[
        bool,
        typer.Option(
            "--figure12",
            help="Measure images/s and the largest batch on this machine (D.5); takes "
            "minutes to hours.",
        ),
    ] = False
    sizes: Annotated[
        str | None,
        typer.Option(
            help="With --figure12: image sizes in pixels [default: 64,128,224,384,512]."
        ),
    ] = None
    memory: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=1e6,
            help="With --figure12 on a CPU: GiB to use [default: 0.8 of the free "
            "memory].",
        ),
    ] = None
    largest: Annotated[
        int | None,
        typer.Option(min=1, help="With --figure12: largest batch [default: 1024]."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(help="With --figure12: folder for figure12.json and .png."),
    ] = None
    as_json: AsJson = False


@app.command(
    needs_keras=False,
    epilog="Example: keras-vit costs R50+ViT-B/16 --image-size 384",
)
@grouped
def costs(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.variants,
            metavar="[MODEL]...",
            help="Variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1; several with "
            "--figure12.",
            show_default=False,
        ),
    ] = None,
    question: Question,
) -> None:
    """Count parameters, operations, memory and hours.

    Operations are the multiply-adds of matrix products and convolutions for one image,
    without those on padding. No model is built.
    """
    words = {"models": models, **vars(question)}.items()
    given = {name: at for name, at in words if at is not None and at is not False}
    way = _way(given)
    if way == "--figure12":
        _figure_12(given)
        return
    answer = {"--table6": _table_6, "--plan": _plan, "a variant": _counted}[way]
    text, values = answer(given)
    if question.as_json:
        print_json(values)
    else:
        console.print(text)


def _way(given: dict[str, Any]) -> str:
    """The kind of question, a key of `_OPTIONS`; raises for options of other kinds."""
    kinds = [f"--{name}" for name in ("table6", "plan", "figure12") if name in given]
    if "models" in given and kinds != ["--figure12"]:
        kinds.append("a variant")
    accepted = _OPTIONS[kinds[0]] if len(kinds) == 1 else ()
    selecting = {
        "table6",
        "plan",
        "figure12",
        *(("models",) if "a variant" in kinds else ()),
    }
    others = [name for name in given if name not in selecting and name not in accepted]
    several = "a variant" in kinds and len(given["models"]) > 1
    if len(kinds) != 1 or others or several:
        received = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(
            "Expected one variant, or --table6, --plan or --figure12, with its own "
            f"options. Received: {received or 'nothing'}"
        )
    return kinds[0]


def _counted(given: dict[str, Any]) -> tuple[str, Any]:
    """The costs of a variant as text and as values."""
    from keras_vit.inspection import costs as count

    counted = count(
        given["models"][0],
        pixels(given.get("image_size")),
        given.get("batch", 1),
        num_classes=given.get("classes", 1000),
        dtype=given.get("dtype", "float32"),
    )
    text = counted.table(given.get("by_layer", False))
    if "batch" in given or "dtype" in given:
        text += f"\n\n{counted.memory.table()}"
    values = dataclasses.asdict(counted)
    return text, {"multiply_adds": counted.multiply_adds, **values}


def _table_6(given: dict[str, Any]) -> tuple[str, Any]:
    """Our exaFLOPs next to the paper's as text and as values."""
    from keras_vit import paper
    from keras_vit.inspection.counting import table_6

    lines = [f"{'exaFLOPs':14}{'epochs':>8}{'counted':>10}{'Table 6':>10}{'ratio':>8}"]
    values = []
    for (variant, epochs), ours in table_6(given.get("classes", 1000)).items():
        exa = paper.EXAFLOPS[variant, epochs]
        mark = " *" if (variant, epochs) == ("R50+ViT-L/16", 7) else ""
        row = f"{variant:14}{epochs:>8}{ours:>10.1f}{exa:>10}{ours / exa:>8.3f}"
        lines.append(row + mark)
        keys = ("model", "epochs", "exaflops", "exaflops_of_the_paper")
        values.append(dict(zip(keys, (variant, epochs, ours, exa), strict=True)))
    seven, twice = (paper.EXAFLOPS["R50+ViT-L/16", epochs] for epochs in (7, 14))
    lines.append(
        f"* The paper's {seven} contradicts its own {twice} at 14 epochs, half of "
        f"which is {twice // 2}."
    )
    return "\n".join(lines), values


def _plan(given: dict[str, Any]) -> tuple[str, Any]:
    """A plan as text and as values."""
    from keras_vit.inspection import planning

    changes = {
        name: given[name]
        for name in ("batch", "price", "utilisation", "classes")
        if name in given
    }
    if "classes" in changes and not given["plan"].lstrip().startswith("finetune "):
        raise ValueError(
            "Expected --classes with a plan to fine-tune; a pre-training run has the "
            f"classes of its data. Received: --classes {changes['classes']}, --plan "
            f"{given['plan']!r}"
        )
    size = pixels(given.get("image_size"))
    plan = planning.plan(given["plan"], image_size=size, **changes)
    computed = ("updates", "images_seen", "exaflops", "hours", "device_hours", "euros")
    values = {name: getattr(plan, name) for name in computed}
    return str(plan), dataclasses.asdict(plan) | values


def _figure_12(given: dict[str, Any]) -> None:
    """Measures and prints Figure 12; writes numbers and picture to --output."""
    import importlib.util

    from keras_vit.inspection import plots, speed

    import_keras()
    output = given.get("output")
    memory = int(given["memory"] * 2**30) if "memory" in given else None
    draws = importlib.util.find_spec("matplotlib") is not None
    if output is not None:  # Before hours of measurements.
        output.mkdir(parents=True, exist_ok=True)
        if not draws:
            console.print(f"no picture: run {pip_install('plots')} to draw it")
    measured = speed.measure(
        tuple(given.get("models", speed.MODELS)),
        _sides(given["sizes"]) if "sizes" in given else speed.SIZES,
        memory=memory,
        largest=given.get("largest", 1024),
        report=console.print,
    )
    console.print(measured.table())
    if output is None:
        return
    measured.save(output / "figure12.json")
    console.print(f"wrote {output / 'figure12.json'}")
    if draws:
        picture = output / "figure12.png"
        plots.figure_12(measured.images_per_second, measured.largest_batch, picture)
        console.print(f"wrote {picture}")


def _sides(text: str) -> tuple[int, ...]:
    """'64,128' as numbers."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(f"Expected pixels as 64,128,224. Received: --sizes {text}")
    return tuple(int(word) for word in words)
