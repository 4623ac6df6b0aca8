"""Export a trained model to a LiteRT, ONNX or OpenVINO file, and verify the file.

The exporters are those of Keras and TensorFlow. The input of a file is `images`, uint8
[B, H, W, C] in the model's size, which it scales. The output is `scores`, float32
[B, K]. Decoding and resizing are not in the file.

Glossary of shapes: B images (any number), H, W, C the model's input, K classes.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit import export_formats, manifest
from keras_vit._version import pip_install
from keras_vit.arguments import percent
from keras_vit.data.preprocessing import decode, normalize, resize_uint8, to_channels
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.files import replacing_all, write_json
from keras_vit.layers.embeddings import quantized
from keras_vit.models.description import check_one_size
from keras_vit.models.vision import facts_of, labels_of, preprocessing_of
from keras_vit.serving import graph, onnx_graph
from keras_vit.serving.export_check import drawn_samples
from keras_vit.serving.isolated_run import openvino_core
from keras_vit.serving.on_tensorflow import exported_on_tensorflow
from keras_vit.serving.parity import largest_difference, run_fresh
from keras_vit.serving.precision import INT8, in_float32

__all__ = ["ExportedFile", "export_file", "file_scores"]

BATCH = 32  # Images that Keras computes at a time.
_TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "int8": INT8}


@dataclasses.dataclass(frozen=True)
class ExportedFile:
    """The result of `export_file`.

    Attributes:
        path: path of the file.
        difference: largest difference from Keras's scores, in [0, 1], measured in a
            process without Keras.
        agreement: share of images with the same best class as in Keras, in [0, 1].
        images: number of images in the comparison.
    """

    path: Path
    difference: float
    agreement: float
    images: int

    def __str__(self) -> str:
        size = sum(at.stat().st_size for at in _files(self.path)[:-3]) / 2**20
        return (
            f"{self.path}: {size:.1f} MiB; scores differ from Keras's by at most "
            f"{self.difference:.1e}; the same best class for "
            f"{percent(self.agreement, 1)} of {self.images} images"
        )


@exported_on_tensorflow
def export_file(
    model: keras.Model,
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    *,
    precision: str = "float32",
    preprocessing: Preprocessing | None = None,
    images: np.ndarray | None = None,
    overwrite: bool = False,
    verbose: bool = True,
) -> ExportedFile:
    """Writes a model for LiteRT, ONNX Runtime or OpenVINO, and verifies the file.

    The exporters are those of Keras and TensorFlow.

    The suffix selects the format: `.tflite`, `.onnx` or `.xml` (OpenVINO, with a
    `.bin`). The file has one input `images`, uint8 [B, H, W, C], and one output
    `scores`, float32 [B, K], probabilities. B is any number (in LiteRT after
    `resize_tensor_input`). Three files are written next to it: `FILE.labels.txt` has
    one class per line, `FILE.facts.json` the config, the preprocessing and the
    provenance of the model, and `FILE.manifest.json` the sizes and hashes that
    `manifest.verify` compares.

    Models in mixed precision are computed in float32, and LoRA is merged. The file is
    run in a process without Keras before it gets its name. The scores must be within
    1e-4 of Keras's in float32, within 5e-3 in float16 and within 0.2 in int8. To
    measure the accuracy of int8, use labeled images (`keras-vit export --data`).

    Args:
        model: a classifier of this library that returns logits or probabilities
            [B, K].
        path: path of the file to write.
        labels: K names; default: the model's labels, else ImageNet's for 1000 classes,
            else "class 0", "class 1", ...
        precision: "float32"; for LiteRT also "float16", which halves the size of the
            weights, or "int8", which stores large weights in 8 bits and multiplies in
            8 bits (dynamic range quantization).
        preprocessing: mean and std for the weights; default: the model's, else the
            paper's. The images must already have the model's size.
        images: images for the verification, uint8 [N, H, W, C]; default: four
            synthetic images.
        overwrite: whether to replace existing files.
        verbose: whether to print a summary of the file.

    Returns:
        An `ExportedFile`, with the path and the difference.

    Raises:
        ValueError: if the suffix or the precision is not supported, the model has no
            head, `labels`, `preprocessing` or `images` do not match it, a file exists,
            or the file's scores differ from Keras's. Nothing is written in that case.
        ImportError: if the format's extra is not installed.
        OSError: if the folder cannot be written. No partial file is left.
    """
    path = Path(path)
    file_format = format_of(path)
    check_one_size(model)
    file_format.check(model, precision)
    names = labels_of(model, labels)
    scaling = preprocessing_of(model, preprocessing)
    paths = _files(path)
    there = [str(file) for file in paths if file.exists()]
    if there and not overwrite:
        raise ValueError(
            f"Expected new files. Received: {', '.join(there)}, which already "
            f"{'exists' if len(there) == 1 else 'exist'}. To replace them, use "
            "overwrite=True (--force)"
        )
    plain = in_float32(model)
    trial = _trial(plain, images)
    expected = keras_scores(plain, trial, scaling)
    with replacing_all(paths) as temporaries:
        for temporary in temporaries:
            temporary.touch()  # Fails before the export if the folder is not writable.
        *_, labels_file, facts_file, manifest_file = temporaries
        text = "".join(f"{name}\n" for name in names)
        labels_file.write_text(text, encoding="utf-8")
        facts = dataclasses.replace(
            facts_of(model), labels=names, preprocessing=scaling
        )
        write_json(facts_file, facts.to_json())
        file_format.write(_from_pixels(plain, scaling), temporaries[0], precision)
        outputs = run_fresh(file_format.kind, temporaries[0], {"images": trial})
        difference = largest_difference(
            f"scores of {path.name}",
            outputs["scores"],
            expected,
            INT8 if quantized(plain) else file_format.tolerances[precision],
        )
        written = zip(paths[:-1], temporaries[:-1], strict=True)
        manifest.write_files(manifest_file, {at.name: now for at, now in written})
    same = outputs["scores"].argmax(-1) == expected.argmax(-1)
    exported = ExportedFile(path, difference, float(same.mean()), len(trial))
    if verbose:
        print(exported)
    return exported


def keras_scores(
    model: keras.Model,
    images: np.ndarray,
    preprocessing: Preprocessing = OFFICIAL,
) -> np.ndarray:
    """Computes Keras's probabilities: uint8 [N, H, W, C] -> float32 [N, K]."""

    # A concrete function: TensorFlow warns about retracing after a few models.
    @functools.partial(
        tf.function,
        input_signature=[tf.TensorSpec([None, *images.shape[1:]], tf.uint8)],
        autograph=False,
    )
    def traced(batch: Any) -> Any:
        scaled = normalize(batch, preprocessing.mean, preprocessing.std)
        return graph.probabilities(model, model(scaled, training=False))

    scores = traced.get_concrete_function()
    starts = range(0, len(images), BATCH)
    parts = [scores(tf.constant(images[at : at + BATCH])) for at in starts]
    return np.concatenate([np.asarray(part) for part in parts])


def file_scores(path: str | os.PathLike[str], images: np.ndarray) -> np.ndarray:
    """Computes an exported file's scores with its runtime, in a process without Keras.

    Args:
        path: path of a file that `export_file` wrote.
        images: uint8 [N, H, W, C].

    Returns:
        float32 [N, K], probabilities.

    Raises:
        ValueError: if the suffix is not supported, or the runtime cannot run the file.
    """
    path = Path(path)
    return run_fresh(format_of(path).kind, path, {"images": images})["scores"]


def _files(path: Path) -> list[Path]:
    """Returns all files of an export; labels, facts and manifest are the last."""
    weights = [path.with_suffix(".bin")] if path.suffix == ".xml" else []
    beside = (
        path.with_name(f"{path.name}.{at}") for at in ("labels.txt", "facts.json")
    )
    return [path, *weights, *beside, manifest.beside(path)]


def _trial(model: keras.Model, images: np.ndarray | None) -> np.ndarray:
    """Returns the images for the verification: uint8 [N, H, W, C]."""
    *size, channels = model.input_shape[1:]
    if images is None:
        decoded = [decode(sample) for sample in drawn_samples(model)]
        resized = [resize_uint8(image, size) for image in decoded]
        return np.stack([to_channels(at, channels) for at in resized])
    if images.dtype != np.uint8 or images.shape[1:] != (*size, channels):
        raise ValueError(
            f"Expected images uint8 [N, {size[0]}, {size[1]}, {channels}], the model's "
            f"input shape. Received: {images.dtype} {list(images.shape)}"
        )
    if not len(images):
        raise ValueError("Expected images to verify the export. Received: none")
    return images


def _from_pixels(model: keras.Model, preprocessing: Preprocessing) -> keras.Model:
    """Adds the scaling: `images` uint8 [B, H, W, C] -> `scores` [B, K]."""
    images = keras.Input(model.input_shape[1:], dtype="uint8", name="images")
    scale = preprocessing.for_channels(model.input_shape[-1])
    scaled = keras.layers.Rescaling(
        [1 / (255 * s) for s in scale.std],
        [-m / s for m, s in zip(scale.mean, scale.std, strict=True)],
        dtype="float32",
        name="scaling",
    )(images)
    return keras.Model(images, {"scores": graph.probabilities(model, model(scaled))})


def _write_litert(model: keras.Model, path: Path, precision: str) -> None:
    """Exports with TensorFlow's converter, using only LiteRT's built-in operators.

    Keras 3.15 exports in the same way. Keras 3.12 has no LiteRT exporter; those of 3.13
    and 3.14 work differently and do not accept a `Path`.
    """
    signature = [tf.TensorSpec(model.input_shape, tf.uint8, name="images")]
    endpoint = functools.partial(model.__call__, training=False)
    with tempfile.TemporaryDirectory() as folder, graph.without_temporary_names():
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", endpoint, input_signature=signature)
        archive.write_out(folder, verbose=False)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())


def _write_onnx(model: keras.Model, path: Path, precision: str) -> None:
    """Exports with tf2onnx; Keras cannot infer the signature of an uncalled model."""
    signature = [tf.TensorSpec(model.input_shape, tf.uint8, name="images")]
    onnx_graph.know_erfc()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Keras's patch of tf2onnx.
        model.export(str(path), format="onnx", verbose=False, input_signature=signature)
    onnx_graph.mend(path)


def _write_openvino(model: keras.Model, path: Path, precision: str) -> None:
    """Exports with OpenVINO; removes the unused tensors that it makes outputs."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "model.xml")
        with _openvino_deletes_no_name(), _openvino_sends_nothing():
            model.export(str(whole), format="openvino", verbose=False)
        network = openvino_core().read_model(whole)
        for output in network.outputs:
            if "scores" not in output.names:
                network.remove_result(output.node)
        openvino.serialize(network, path)


@contextlib.contextmanager
def _openvino_sends_nothing() -> Iterator[None]:
    """Disables OpenVINO's usage statistics, which it does not send in CI.

    It starts a process for each message, which makes JAX print a warning.
    """
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


@contextlib.contextmanager
def _openvino_deletes_no_name() -> Iterator[None]:
    """Lets the converter of OpenVINO 2026.4 run on Python 3.13.

    It runs exec("import tensorflow") and then exec("del tensorflow"), which raises a
    NameError since PEP 667: each call has its own names (openvino#32482).
    """
    if sys.version_info < (3, 13):
        yield
        return
    frontend = importlib.import_module("openvino.frontend.tensorflow.utils")
    frontend.exec = lambda code: None  # Shadows the builtin.
    try:
        yield
    finally:
        del frontend.exec


@dataclasses.dataclass(frozen=True)
class _Format:
    """An export format.

    Attributes:
        name: name of the runtime.
        kind: key of `isolated_run.KINDS`, and name of the extra.
        packages: packages that the export and the verification import.
        below_2_gib: whether files of the format must be smaller than 2 GiB.
        write: the exporter.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    below_2_gib: bool
    write: Callable[[keras.Model, Path, str], None]

    @property
    def tolerances(self) -> dict[str, float]:
        """Largest permitted difference of the scores for each precision."""
        return {one: _TOLERANCES[one] for one in export_formats.WRITTEN[self.kind]}

    def check(self, model: keras.Model, precision: str) -> None:
        """Raises an error if the model cannot be written in this format."""
        if precision not in self.tolerances:
            raise ValueError(
                f"Expected precision {' or '.join(self.tolerances)} for {self.name}. "
                f"Received: precision={precision!r}"
            )
        graph.gives_logits(model)  # Raises if the model has no classes.
        if quantized(model) and self.kind not in export_formats.QUANTIZED:
            raise ValueError(
                f"Expected a model in floating point for {self.name}, which does not "
                f"compute Keras's int8 products. Received: model={model.name!r}, "
                'quantized. Use precision="int8" with LiteRT, or export the quantized '
                "model to ONNX or as a SavedModel"
            )
        size = 4 * model.count_params()
        if self.below_2_gib and size >= 2**31:
            raise ValueError(
                f"Expected weights below 2 GiB, the limit of the {self.name} format. "
                f"Received: {size / 2**30:.1f} GiB. Export for OpenVINO or as a "
                "SavedModel"
            )
        missing = [at for at in self.packages if importlib.util.find_spec(at) is None]
        if missing:
            raise ImportError(
                f"Expected {', '.join(missing)} for {self.name}. Received: none. "
                f"Run {pip_install(self.kind)}"
            )


_FORMATS = (
    _Format(
        name="LiteRT",
        kind="litert",
        packages=("ai_edge_litert",),
        below_2_gib=True,
        write=_write_litert,
    ),
    _Format(
        name="ONNX",
        kind="onnx",
        packages=("onnx", "onnxruntime", "tf2onnx"),
        below_2_gib=True,
        write=_write_onnx,
    ),
    _Format(
        name="OpenVINO",
        kind="openvino",
        packages=("openvino",),
        below_2_gib=False,
        write=_write_openvino,
    ),
)
SUFFIXES: Mapping[str, _Format] = {
    export_formats.SUFFIXES[one.kind]: one for one in _FORMATS
}


def format_of(path: Path) -> _Format:
    """Returns the format of a file, by its suffix."""
    if path.suffix not in SUFFIXES:
        known = ", ".join(f"{key} ({of.name})" for key, of in SUFFIXES.items())
        raise ValueError(f"Expected a file of {known}. Received: path={str(path)!r}")
    return SUFFIXES[path.suffix]
