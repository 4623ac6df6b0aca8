"""`keras-vit doctor | demo`."""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from keras_vit.cli.loaders import save_details
from keras_vit.cli.options import SEEDS
from keras_vit.cli.shell import app, console, progress


@app.command()
def doctor() -> None:
    """Prints what is installed, what is missing, and how to get it."""
    import keras

    from keras_vit.files import cache_dir

    table = Table(title="keras-vit doctor", title_justify="left", box=None)
    table.add_column("what")
    table.add_column("found")
    table.add_column("what to do")
    table.add_row("Python", sys.version.split()[0])
    table.add_row(
        "backend", keras.backend.backend(), "KERAS_BACKEND=jax|torch changes it"
    )
    packages = {
        "keras-vit-paper": "",
        "keras": "",
        "tensorflow": "data, training, serving: pip install tensorflow",
        "jax": "optional: pip install 'keras-vit-paper[backends]'",
        "torch": "optional: pip install 'keras-vit-paper[backends]'",
        "matplotlib": "pictures: pip install 'keras-vit-paper[plots]'",
        "tensorflow-datasets": "TFDS names: pip install 'keras-vit-paper[tfds]'",
        "ai-edge-litert": "LiteRT files: pip install 'keras-vit-paper[litert]'",
        "onnxruntime": "ONNX files: pip install 'keras-vit-paper[onnx]'",
        "tf2onnx": "ONNX files: pip install 'keras-vit-paper[onnx]'",
        "openvino": "OpenVINO files: pip install 'keras-vit-paper[openvino]'",
        "grpcio": "grpc:// servers: pip install 'keras-vit-paper[serving]'",
        "uvicorn": "keras-vit serve: pip install 'keras-vit-paper[server]'",
        "scikit-learn": "the demo: pip install 'keras-vit-paper[demo]'",
    }
    for package, remedy in packages.items():
        found = _version(package)
        if found is None:
            table.add_row(package, Text("missing", "yellow"), remedy)
        else:
            table.add_row(package, found)
    table.add_row("devices", ", ".join(_devices()), _advice_on_devices())
    cache = cache_dir()
    files = list(cache.rglob("*.npz")) if cache.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 2**20
    writable = os.access(
        next(p for p in (cache, *cache.parents) if p.exists()), os.W_OK
    )
    table.add_row(
        "weights cache",
        f"{cache}: {len(files)} files, {size:.0f} MiB"
        + ("" if writable else ", not writable"),
        "KERAS_HOME moves it",
    )
    table.add_row(
        "KERAS_VIT_WEIGHTS",
        _own_mirror(),
        "a directory or base URL that comes before any mirror",
    )
    console.print(table)


def _version(package: str) -> str | None:
    """The installed version; of TensorFlow also that of its other distributions."""
    from importlib import metadata

    others = ("tensorflow-cpu", "tensorflow-tpu") if package == "tensorflow" else ()
    for name in (package, *others):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.version(name)
            return found if name == package else f"{found} ({name})"
    return None


def _advice_on_devices() -> str:
    """What --distribute auto takes here, and what is put right for it."""
    import keras

    try:
        from keras_vit.training import distribution
    except ImportError:
        return "without TensorFlow no command trains"
    backend = keras.backend.backend()
    if backend == "torch":
        return "one device: KERAS_BACKEND=tensorflow or jax distributes"
    taken = distribution.found()
    mended = {
        "mirrored": "keras#20582, clipping, float16",
        "multiworker": "keras#20582, keras#20585, clipping, float16",
        "tpu": "clipping; not run by us on a TPU, whose maintained way is JAX",
    }
    advice = f"--distribute auto: {taken}"
    if backend == "tensorflow" and taken in mended:
        advice += f" (ours differ from Keras in: {mended[taken]})"
    if taken == "tpu":
        return advice
    advice += f"; {_advice_on_tpus(backend)}"
    if backend == "tensorflow" and taken == "none":
        advice += (
            "; if a GPU is not seen, TF_CPP_MIN_LOG_LEVEL=0 keras-vit doctor says why"
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
    """The accelerators the backend sees, else the CPU."""
    import keras

    if keras.backend.backend() == "torch":
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count()
        return [torch.cuda.get_device_name(i) for i in range(count)] or ["cpu"]
    return [str(device) for device in keras.distribution.list_devices()] or ["cpu"]


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for what it makes.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 500,
    seed: Annotated[int, typer.Option(**SEEDS, help="Random seed.")] = 0,
) -> None:
    """Trains, explains, exports and serves a small ViT on real digits; no download."""
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
        f"a ViT of {network.count_params():,} parameters on {len(source.train)} "
        "handwritten digits (scikit-learn), 8x8 px resized to 32x32"
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
    console.print(
        f"test accuracy {result.test_accuracy:.2%} on {result.test_images} digits"
    )
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
    exported = export(network, output / "served", source.classes, verbose=False)
    console.print(f"attention picture: {picture}")
    console.print(
        f"SavedModel: {exported.path}; "
        + _first_correct(exported.path, source.classes, batches)
    )


def _first_correct(path: Path, classes: tuple[str, ...], batches: Any) -> str:
    """States the first test digit that the SavedModel classifies correctly.

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
                    f"the first test digit that it classifies correctly is number "
                    f"{position}: label {classes[label]!r}, prediction {prediction!r} "
                    f"({float(score):.1%})"
                )
    return f"it classifies none of the {position} test digits correctly"
