"""Export a trained model to a folder that TensorFlow Serving can serve.

Glossary of shapes: B images of a request, H, W, C the model's input, h, w any size,
K classes, k of them returned, D the width of features.
"""

import contextlib
import dataclasses
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from keras_vit import manifest
from keras_vit.callers import warn
from keras_vit.data.decoding import MAX_PIXELS
from keras_vit.facts import Facts, Preprocessing
from keras_vit.files import parse_json, replacing_folder, write_json
from keras_vit.models.description import check_one_size
from keras_vit.models.transfer import merge_lora
from keras_vit.models.vision import facts_of, labels_of, preprocessing_of
from keras_vit.serving import graph, warmup
from keras_vit.serving.export_check import Trial, drawn_samples
from keras_vit.serving.on_tensorflow import exported_on_tensorflow
from keras_vit.serving.parity import run_fresh
from keras_vit.serving.servable import version_numbers
from keras_vit.serving.signatures import Served, chosen_of

__all__ = ["Exported", "export", "read_facts"]

FACTS = "facts.json"  # An asset of the SavedModel.


@dataclasses.dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Attributes:
        path: folder of the version.
        differences: largest difference from Keras for each output of each signature,
            measured in a process without Keras.
        preprocessing: preprocessing of images in the graph.
        omitted: signatures that the model does not support, each with the reason.
    """

    path: Path
    differences: Mapping[str, float]
    preprocessing: Preprocessing
    omitted: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        files = (file for file in self.path.rglob("*") if file.is_file())
        size = sum(file.stat().st_size for file in files) / 2**20
        lines = [f"{self.path}: {size:.1f} MiB, SavedModel"]
        lines += [f"preprocessing: {self.preprocessing}", ""]
        lines += ["largest difference from Keras, in a process without Keras:"]
        lines += [f"  {name:24} {off:.1e}" for name, off in self.differences.items()]
        lines += [
            f"without the signature {name}: {reason}"
            for name, reason in self.omitted.items()
        ]
        return "\n".join(lines)


@exported_on_tensorflow
def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    top_k: int = 5,
    on_bad_image: str = "status",
    max_pixels: int = MAX_PIXELS,
    samples: Sequence[bytes] | None = None,
    version: int | None = None,
    overwrite: bool = False,
    verbose: bool = True,
) -> Exported:
    """Writes a SavedModel for TensorFlow Serving to `path/VERSION/`, and verifies it.

    The layout and the warm-up requests follow TensorFlow Serving. The graph includes
    the preprocessing of evaluation, the labels and the softmax. All signatures accept
    batches of any size:

    - "image_bytes", and `serving_default`: `image_bytes` string [B], each a JPEG, PNG,
      GIF (the first frame), BMP or WebP -> `classes` string [B, k] and `scores` float32
      [B, k], the greatest first, `status` string [B].
    - "images": `images` uint8 [B, h, w, C] -> `classes`, `scores`; and
      `images_float32`: `images` float32 [B, H, W, C], scaled for the model ->
      `classes`, `scores`, and `logits` [B, K], the model's output.
    - "features": `image_bytes` -> `features` float32 [B, D], the head's input (4.1),
      `status`.
    - "attention": `image_bytes` -> `attention` float32 [B, rows, columns], attention
      rollout (D.8) over the patches, `status`.

    The folder gets its name after every signature has been run on `samples`, in a
    process that imports only TensorFlow, with outputs within 1e-5 of Keras's (5e-3 in
    half precision).

    On JAX and torch, a separate TensorFlow process exports the model from a `.keras`
    file.

    Args:
        model: a classifier of this library that returns logits or probabilities
            [B, K].
        path: folder of the versions, TensorFlow Serving's `model_base_path`.
        labels: K names; default: the model's labels, else ImageNet's for 1000 classes,
            else "class 0", "class 1", ...
        signatures: names from `SIGNATURES`; default: all that the model supports. A
            ResNet and axial attention have no rollout; `Exported.omitted` contains the
            reason.
        preprocessing: preprocessing of images; default: the model's, else the paper's.
        top_k: number of returned classes, at most K.
        on_bad_image: handling of an unreadable image. With "status", its `status`
            contains the reason, its names are empty and its numbers 0. With "fail", the
            whole batch fails with an error that names the image.
        max_pixels: largest H * W that is decoded. The synthetic samples have up to
            twice the model's.
        samples: encoded images for the verification and the warm-up; default: four
            synthetic images.
        version: a positive number; default: the number after the last.
        overwrite: whether to replace an existing version. A server that has loaded the
            version does not reload it, so prefer a new version.
        verbose: whether to print a summary of the export.

    Returns:
        An `Exported`, with the folder and the differences.

    Raises:
        ValueError: if the model has no head or accepts images of any size, an argument
            is invalid, the version exists, or the exported model's outputs differ from
            Keras's.
        OSError: if the folder cannot be written. No partial folder is left.
    """
    check_one_size(model)
    model = merge_lora(model)
    served = Served(
        model,
        labels_of(model, labels),
        preprocessing_of(model, preprocessing),
        top_k,
        on_bad_image,
        max_pixels,
    )
    chosen, omitted = chosen_of(model, signatures)
    trial = Trial.of(served, drawn_samples(model) if samples is None else samples)
    folder = _version_folder(Path(path), version, overwrite)
    _warn_of_other_labels(folder, served.labels)
    inputs = served.inputs(chosen)
    with replacing_folder(folder, overwrite) as temporary:
        with _as_oserror():
            _write(served, inputs, temporary)
            warmup.write(temporary, Path(path).resolve().name, trial.requests(inputs))
        outputs = run_fresh("savedmodel", temporary, trial.arrays())
        differences = trial.prove(outputs, inputs)
        manifest.write(temporary)
    exported = Exported(folder, differences, served.preprocessing, omitted)
    if verbose:
        print(exported)
    return exported


def read_facts(path: str | os.PathLike[str]) -> Facts:
    """Reads the facts of a model that was exported for TensorFlow Serving.

    Args:
        path: folder of a version, `Exported.path`.

    Returns:
        The config, preprocessing, labels and provenance of the exported model.

    Raises:
        ValueError: if the folder does not contain the facts, or they are damaged.
    """
    file = Path(path) / "assets" / FACTS
    try:
        return Facts.from_json(parse_json(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(
            "Expected the folder of a version that `export` wrote. "
            f"Received: {str(path)!r} ({error})"
        ) from error


def _version_folder(path: Path, version: int | None, overwrite: bool) -> Path:
    """Returns the folder of the version: a new one, or one that may be replaced."""
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"Expected a folder for the versions. Received: {path}, which is a file"
        )
    there = version_numbers(path)
    if version is None:
        return path / str(max(there, default=0) + 1)
    if version < 1:
        raise ValueError(
            f"Expected a version of 1 or more. Received: version={version}"
        )
    if version in there and not overwrite:
        raise ValueError(
            f"Expected a new version in {path}. Received: version={version}, which "
            "already exists. Omit version to use the next number, or use "
            "overwrite=True (--force)"
        )
    return path / str(version)


def _warn_of_other_labels(folder: Path, labels: Sequence[str]) -> None:
    """Warns if the newest of the other versions has different labels."""
    parent = folder.parent
    others = [at for at in version_numbers(parent) if str(at) != folder.name]
    if not others:
        return
    newest = others[-1]
    try:
        before = read_facts(parent / str(newest)).labels
    except ValueError as error:
        warn(f"The labels of version {newest}: {error}")
        return
    if before != tuple(labels):
        warn(
            f"The labels of version {folder.name} in {str(parent)!r} differ "
            f"from those of version {newest}. A server replaces one version by "
            "the next, so export a different model to a different folder",
        )


@contextlib.contextmanager
def _as_oserror() -> Iterator[None]:
    """Converts errors of TensorFlow's file system to OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        full = isinstance(error, tf.errors.ResourceExhaustedError)
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, error.message.rpartition("; ")[2]) from error


def _write(served: Served, inputs: Mapping[str, tf.TensorSpec], folder: Path) -> None:
    """Writes the SavedModel of these signatures, with its labels as an asset."""
    functions = {
        name: tf.function(
            getattr(served, name), input_signature=[spec], autograph=False
        ).get_concrete_function()
        for name, spec in inputs.items()
        if name != "serving_default"
    }
    functions["serving_default"] = next(iter(functions.values()))
    with tempfile.TemporaryDirectory() as beside:
        labels = Path(beside, "labels.txt")
        text = "".join(f"{label}\n" for label in served.labels)
        labels.write_text(text, encoding="utf-8")
        facts = dataclasses.replace(
            facts_of(served.model),
            labels=served.labels,
            preprocessing=served.preprocessing,
        )
        write_json(Path(beside, FACTS), facts.to_json())
        module = tf.Module()
        module.weights = [variable.value for variable in served.model.variables]
        module.labels = tf.saved_model.Asset(str(labels))
        module.facts = tf.saved_model.Asset(str(Path(beside, FACTS)))
        with graph.without_temporary_names():
            tf.saved_model.save(module, str(folder), signatures=functions)
