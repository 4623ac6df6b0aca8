"""`keras-vit doctor | demo`."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from keras_vit._version import pip_install
from keras_vit.arguments import counted, percent
from keras_vit.cli.loaders import save_details
from keras_vit.cli.options import SEEDS, AsJson
from keras_vit.cli.shell import app, console, print_json, progress

_PACKAGES = {  # The use of each package and how to install it.
    "keras-vit-paper": "",
    "keras": "",
    "tensorflow": "data, training, serving: pip install tensorflow",
    "jax": f"optional: {pip_install('backends')}",
    "torch": f"optional: {pip_install('backends')}",
    "matplotlib": f"pictures: {pip_install('plots')}",
    "tensorflow-datasets": f"TFDS names: {pip_install('tfds')}",
    "ai-edge-litert": f"LiteRT files: {pip_install('litert')}",
    "onnxruntime": f"ONNX files: {pip_install('onnx')}",
    "tf2onnx": f"ONNX files: {pip_install('onnx')}",
    "openvino": f"OpenVINO files: {pip_install('openvino')}",
    "grpcio": f"grpc:// servers: {pip_install('serving')}",
    "uvicorn": f"keras-vit serve: {pip_install('server')}",
    "scikit-learn": f"the demo: {pip_install('demo')}",
}


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check the installation and list what is missing."""
    rows = list(_findings())
    if as_json:
        keys = ("name", "found", "advice")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    table = Table(title="keras-vit doctor", title_justify="left", box=None)
    for column in ("name", "found", "advice"):
        table.add_column(column)
    for name, found, advice in rows:
        shown = Text("missing", "yellow") if found is None else Text(found)
        table.add_row(name, shown, advice)
    console.print(table)


def _findings() -> Iterator[tuple[str, str | None, str]]:
    """Name, version or value, and advice; None for a missing package."""
    import keras

    from keras_vit.files import cache_dir

    yield "Python", sys.version.split()[0], ""
    yield "backend", keras.backend.backend(), "KERAS_BACKEND=jax|torch changes it"
    for package, reason in _PACKAGES.items():
        version = _version(package)
        yield package, version, reason if version is None else ""
    yield "devices", ", ".join(_devices()), _advice_on_devices()
    cache = cache_dir()
    files = list(cache.rglob("*.npz")) if cache.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 2**20
    parent = next(path for path in (cache, *cache.parents) if path.exists())
    state = "" if os.access(parent, os.W_OK) else ", not writable"
    stored = f"{cache}: {counted(len(files), 'file')}, {size:.0f} MiB{state}"
    yield "weights cache", stored, "KERAS_HOME moves it"
    mirror = "a directory or base URL to try before any mirror"
    yield "KERAS_VIT_WEIGHTS", _own_mirror(), mirror


def _version(package: str) -> str | None:
    """The installed version, also of TensorFlow's other distributions."""
    from importlib import metadata

    others = ("tensorflow-cpu", "tensorflow-tpu") if package == "tensorflow" else ()
    for name in (package, *others):
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
            return version if name == package else f"{version} ({name})"
    return None


def _advice_on_devices() -> str:
    """The devices that --distribute auto uses, and differences from Keras."""
    import keras

    try:
        from keras_vit.training import distribution
    except ImportError:
        return "training requires TensorFlow"
    backend = keras.backend.backend()
    if backend == "torch":
        return "one device: KERAS_BACKEND=tensorflow or jax distributes"
    word = distribution.found()
    fixes = {
        "mirrored": "keras#20582, clipping, float16",
        "multiworker": "keras#20582, keras#20585, clipping, float16",
        "tpu": "clipping; not tested on a TPU: use JAX",
    }
    advice = f"--distribute auto: {word}"
    if backend == "tensorflow" and word in fixes:
        advice += f" (with fixes for Keras: {fixes[word]})"
    if word == "tpu":
        return advice
    advice += f"; {_advice_on_tpus(backend)}"
    if backend == "tensorflow" and word == "none":
        advice += (
            "; if a GPU is missing, TF_CPP_MIN_LOG_LEVEL=0 keras-vit doctor prints why"
        )
    return advice


def _advice_on_tpus(backend: str) -> str:
    package = "'jax[tpu]'" if backend == "jax" else "--no-deps tensorflow-tpu"
    return f"on a TPU VM: pip install {package}"


def _own_mirror() -> str:
    value = os.environ.get("KERAS_VIT_WEIGHTS")
    if not value:
        return "not set"
    is_url = value.startswith(("http://", "https://"))
    is_there = is_url or Path(value).expanduser().is_dir()
    return value if is_there else f"{value}: no such directory"


def _devices() -> list[str]:
    """The accelerators of the backend, or else the CPU."""
    import keras

    if keras.backend.backend() == "torch":
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count()
        return [torch.cuda.get_device_name(i) for i in range(count)] or ["cpu"]
    return [str(device) for device in keras.distribution.list_devices()] or ["cpu"]


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the model, the export and pictures.")
    ] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Number of updates.")] = 500,
    seed: Annotated[int, typer.Option(**SEEDS, help="Random seed.")] = 0,
) -> None:
    """Train, inspect and export a small ViT on digits.

    The handwritten digits are part of scikit-learn; nothing is downloaded.
    """
    import keras

    import keras_vit
    from keras_vit.data import pipelines, sources
    from keras_vit.inspection import attention_rollout, plots
    from keras_vit.serving import export

    keras.utils.set_random_seed(seed)
    source = sources.open_source("digits", seed=seed)
    config = keras_vit.ViTConfig(
        patch_size=4, num_layers=4, hidden_size=64, mlp_dim=128, num_heads=4
    )
    network = keras_vit.vit(config, image_size=(32, 32), num_classes=10)
    recipe = keras_vit.recipes.Recipe(
        total_steps=steps,
        base_lr=(0.03,),
        held_out=0.1,
        warmup_steps=steps // 10,
        batch_size=64,
        image_size=(32, 32),
        augment="none",
    )
    console.print(
        f"ViT with {network.count_params():,} parameters; {len(source.train):,} "
        "handwritten digits (scikit-learn), resized from 8x8 to 32x32 px"
    )
    result = keras_vit.training.fit(
        network,
        recipe,
        source,
        seed=seed,
        output=output,
        resume="never",
        verbose=progress(),
    )
    save_details(output, {"data": "digits", "seed": seed})
    accuracy = percent(result.test_accuracy or 0)  # The digits have a test set.
    console.print(f"test accuracy {accuracy} on {result.test_images} digits")
    batches = pipelines.eval_pipeline(
        source.test or source.train,
        image_size=(32, 32),
        batch_size=8,
    )
    images, labels = next(iter(batches.as_numpy_iterator()))
    picture = output / "attention.png"
    plots.attention_maps(
        images / 2 + 0.5,
        attention_rollout(network, images),
        [f"a {source.classes[label]}" for label in labels],
        picture,
    )
    _write_digits(images, labels, output / "digits")
    exported = export(network, output / "served", source.classes, verbose=False)
    console.print(f"attention: {picture}")
    console.print(f"some test images: {output / 'digits'}")
    console.print(f"SavedModel: {exported.path}")
    console.print(_first_correct(exported.path, source.classes, batches))
    console.print(f"next: keras-vit predict --model {output} {output / 'digits'}")


def _write_digits(images: Any, labels: Any, folder: Path) -> None:
    """Writes images [B, H, W, C] in [-1, 1] as PNG files, to try other commands on."""
    import keras

    from keras_vit.files import replacing

    folder.mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True), 1):
        with replacing(folder / f"{number}-label-{label}.png") as temporary:
            keras.utils.save_img(
                temporary,
                127.5 * image + 127.5,
                data_format="channels_last",
                file_format="png",
                scale=False,
            )


def _first_correct(path: Path, classes: tuple[str, ...], batches: Any) -> str:
    """Describes the first test digit that the SavedModel classifies correctly.

    Args:
        path: the SavedModel's folder.
        classes: names of the K classes.
        batches: test images [B, H, W, C] in [-1, 1] and their labels [B].
    """
    import numpy as np
    import tensorflow as tf

    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    position = 0
    for images, labels in batches.as_numpy_iterator():
        pixels = np.round(127.5 * images + 127.5).astype(np.uint8)
        files = tf.stack([tf.io.encode_png(image) for image in pixels])
        answers = served(image_bytes=files)
        for label, name, score in zip(
            labels, answers["classes"][:, 0], answers["scores"][:, 0], strict=True
        ):
            position += 1
            prediction = name.numpy().decode()
            if prediction == classes[label]:
                return (
                    f"its first correct prediction: test digit {position}, label "
                    f"{classes[label]!r}, prediction {prediction!r} "
                    f"({percent(float(score), 1)})"
                )
    return f"none of its {position} predictions is correct"
