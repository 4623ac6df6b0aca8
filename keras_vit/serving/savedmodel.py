"""One call from a trained model to a folder that TensorFlow Serving runs.

Glossary of shapes: B images of a request, H, W, C what the model takes, h, w any size,
K classes, k of them told, D the features' width.
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
from keras_vit.serving.signatures import Served, chosen_of

__all__ = ["Exported", "export", "read_facts"]

FACTS = "facts.json"  # An asset of the SavedModel.


@dataclasses.dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    Attributes:
        path: the version's folder.
        differences: the largest difference from Keras of each signature's numbers, in a
            process without Keras.
        preprocessing: how images become input, in the graph.
        omitted: the signatures that the model cannot have, each with the reason.
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
        lines += ["largest difference from Keras, in a process without it:"]
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
    """Writes `path/VERSION/`, a SavedModel with everything inside, and proves it.

    The layout and warm-up are TensorFlow Serving's.

    Preprocessing is evaluation's, labels and the softmax are in the graph, warm-up
    requests are next to it. The signatures, which all take batches of any size:

    - "image_bytes", and `serving_default`: `image_bytes` string [B], each a JPEG, PNG,
      GIF (the first frame), BMP or WebP -> `classes` string [B, k] and `scores` float32
      [B, k], the greatest first, `status` string [B].
    - "images": `images` uint8 [B, h, w, C] -> `classes`, `scores`; and
      `images_float32`: `images` float32 [B, H, W, C], scaled as for the model ->
      `classes`, `scores`, and `logits` [B, K], the model's own output.
    - "features": `image_bytes` -> `features` float32 [B, D], what the head reads (4.1),
      `status`.
    - "attention": `image_bytes` -> `attention` float32 [B, rows, columns], attention
      rollout (D.8) over the patches, `status`.

    It is renamed into place after a process that imports TensorFlow alone has run every
    signature on `samples` and said what Keras says, to 1e-5 (in half precision 5e-3).

    On JAX and torch a process with TensorFlow exports the model from a `.keras` file.

    Args:
        model: a classifier of this library, of logits or probabilities [B, K].
        path: the folder of its versions, `model_base_path` to TensorFlow Serving.
        labels: K names; default: the model's own, else ImageNet's for 1000 classes,
            else "class 0" and on.
        signatures: names of `SIGNATURES` [default: all that the model can have; a
            ResNet and axial attention have no rollout, and `Exported.omitted` has the
            reason].
        preprocessing: how images become input; default: the model's own, else the
            paper's.
        top_k: how many classes are told; at most K are.
        on_bad_image: "status" says what is wrong with an image in its `status`, its
            names and numbers are empty and 0; "fail" fails its batch and names it.
        max_pixels: the largest H * W that is decoded. The drawn samples have up to
            twice the model's.
        samples: encoded images to prove it on and to warm it up with [default: four
            drawn ones].
        version: a positive number [default: the one after the last].
        overwrite: whether to replace a version that is there. A server that has loaded
            it does not look again: a new version is the better way.
        verbose: whether to print what was written.

    Returns:
        An `Exported`, with the folder and the differences.

    Raises:
        ValueError: if the model has no head or is for images of any size, an argument
            is impossible, the version is there, or the exported model says something
            else than Keras.
        OSError: if the folder cannot be written; nothing is left of it then.
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
    inputs = served.inputs(chosen)
    with replacing_folder(folder, overwrite) as temporary:
        with _as_oserror():
            _write(served, inputs, temporary)
            warmup.write(temporary, Path(path).resolve().name, trial.requests(inputs))
        found = run_fresh("savedmodel", temporary, trial.arrays())
        differences = trial.prove(found, inputs)
        manifest.write(temporary)
    exported = Exported(folder, differences, served.preprocessing, omitted)
    if verbose:
        print(exported)
    return exported


def read_facts(path: str | os.PathLike[str]) -> Facts:
    """Reads the facts of a model that was exported for TensorFlow Serving.

    Args:
        path: a version's folder, `Exported.path`.

    Returns:
        The config, the preprocessing, the labels and the provenance of the model that
        was exported.

    Raises:
        ValueError: if there is no such file in the folder, or it is damaged.
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
    """Where a version goes: a new number, or one that may be replaced."""
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"Expected a folder for the versions. Received: {path}, which is a file"
        )
    there = [int(at.name) for at in path.glob("*") if at.name.isdecimal()]
    if version is None:
        return path / str(max(there, default=0) + 1)
    if version < 1:
        raise ValueError(
            f"Expected a version of 1 or more. Received: version={version}"
        )
    if version in there and not overwrite:
        raise ValueError(
            f"Expected a new version in {path}. Received: version={version}, which is "
            "there. Leave version out for the next one, or overwrite=True"
        )
    return path / str(version)


@contextlib.contextmanager
def _as_oserror() -> Iterator[None]:
    """What TensorFlow's file system reports, as Python's own does."""
    try:
        yield
    except tf.errors.OpError as error:
        full = isinstance(error, tf.errors.ResourceExhaustedError)
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, error.message.rpartition("; ")[2]) from error


def _write(served: Served, inputs: Mapping[str, tf.TensorSpec], folder: Path) -> None:
    """The SavedModel of these signatures, with its labels as an asset."""
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
