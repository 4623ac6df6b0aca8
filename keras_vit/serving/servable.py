"""A loaded version of an exported model, TensorFlow Serving's servable.

It is loaded from `PATH/VERSION/` without Keras, as by TensorFlow Serving: signatures
come from the SavedModel's MetaGraphDef, and warm-up requests are played first.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.data import decoding
from keras_vit.serving import protos, schema, warmup
from keras_vit.serving.errors import Refused, invalid

CODES = {  # Codes of tf.errors to gRPC's names.
    getattr(tf.errors, name): name
    for name in (
        *("CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
        *("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
        *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"),
    )
}
DEFAULT = "serving_default"  # The signature of a request that names none.
PART_IMAGES = 32  # Images that run together; the client's default batch_size.
PART_PIXELS = 2**24  # 48 MiB when decoded.
_queues = itertools.count()
Function = Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """Options of batching requests, named as TensorFlow Serving's parameters."""

    max_batch_size: int = 32  # Images that run at once.
    batch_timeout_micros: int = 2000  # Time that the first image waits for others.
    max_enqueued_batches: int = 100  # Further requests are UNAVAILABLE.
    num_batch_threads: int = 1  # Batches that run in parallel.


class Servable:
    """The signatures of a SavedModel.

    Args:
        path: folder with a subfolder for each version, 1, 2, ..., as `export` writes.
        version: version to load; default: the newest.
        batching: options for batching concurrent requests; default: no batching.

    Raises:
        ValueError: if there is no such version, or it does not contain a SavedModel.
    """

    def __init__(
        self,
        path: Path,
        version: int | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.folder = version_folder(path, version)
        self.version = int(self.folder.name)
        self.signatures = _signature_defs(self.folder)
        self._batching = batching
        self._loaded = tf.saved_model.load(str(self.folder))  # Owns the variables.
        self._functions: dict[str, Function] = {
            name: function if batching is None else batched(function, batching, name)
            for name, function in self._loaded.signatures.items()
        }

    def inputs(self, signature: str) -> dict[str, Any]:
        """Returns the names and TensorInfos of a signature's inputs.

        Raises:
            Refused: FAILED_PRECONDITION, if there is no such signature.
        """
        if signature not in self._functions:
            raise Refused(
                "FAILED_PRECONDITION",  # servables/tensorflow/predict_util.cc.
                f"Expected a signature of {sorted(self._functions)}. "
                f"Received: {signature!r}",
            )
        return dict(self.signatures[signature].inputs)

    def dtypes(self, signature: str) -> dict[str, np.dtype]:
        """Returns the NumPy dtypes of a signature's inputs; strings are `object`."""
        return {
            name: np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype)
            for name, info in self.inputs(signature).items()
        }

    def run(
        self,
        signature: str,
        inputs: Mapping[str, np.ndarray],
        outputs: Iterable[str] = (),
    ) -> dict[str, np.ndarray]:
        """Runs a signature; returns the requested `outputs` by name, default: all.

        Raises:
            Refused: with the reason, if the signature does not accept the inputs.
        """
        self._check(signature, inputs)
        known = self.signatures[signature].outputs
        wanted = list(outputs) or sorted(known)
        if not set(wanted) <= set(known):
            raise invalid(
                f"Expected outputs of {sorted(known)}. Received: {sorted(wanted)}"
            )
        try:
            results = self._functions[signature](
                **{name: tf.constant(value) for name, value in inputs.items()}
            )
            return {name: results[name].numpy() for name in wanted}
        except tf.errors.OpError as wrong:
            code = CODES.get(wrong.error_code, "INTERNAL")
            raise Refused(code, _first_sentence(wrong.message)) from wrong

    def _check(self, signature: str, inputs: Mapping[str, np.ndarray]) -> None:
        infos = self.inputs(signature)
        if set(inputs) != set(infos):
            raise invalid(
                f"Expected the inputs {sorted(infos)} of signature {signature!r}. "
                f"Received: {sorted(inputs)}"
            )
        for name, info in infos.items():
            expected, given = tf.as_dtype(info.dtype), inputs[name]
            shape = tf.TensorShape(info.tensor_shape)
            if given.dtype != expected.as_numpy_dtype:
                raise invalid(
                    f"Expected input {name!r} of {expected.name}. "
                    f"Received: {given.dtype}"
                )
            if not shape.is_compatible_with(given.shape) or 0 in given.shape:
                raise invalid(
                    f"Expected input {name!r} of shape {shape}, without a side of 0. "
                    f"Received: {given.shape}"
                )

    def parts(
        self, signature: str, inputs: Mapping[str, np.ndarray]
    ) -> list[dict[str, np.ndarray]]:
        """Divides a request into parts that run one after another.

        A part has at most `PART_IMAGES` images and `PART_PIXELS` encoded pixels, or is
        a single image. A request is not divided if an input or output has a fixed first
        dimension, or if it is larger than a batch: batching refuses it as a whole.

        Raises:
            Refused: if the signature does not accept the inputs.
        """
        self._check(signature, inputs)
        described = self.signatures[signature]
        infos = [*described.inputs.values(), *described.outputs.values()]
        count = len(next(iter(inputs.values()))) if _is_per_row(infos) else 1
        if count < 2 or len({len(value) for value in inputs.values()}) > 1:
            return [dict(inputs)]
        if self._batching and count > self._batching.max_batch_size:
            return [dict(inputs)]
        pixels = sum(_pixels_of(value) for value in inputs.values())
        return [
            {name: value[part] for name, value in inputs.items()}
            for part in _divided(np.broadcast_to(pixels, count).tolist())
        ]

    def _batches(
        self, inputs: Mapping[str, np.ndarray]
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Divides a request into parts of at most max_batch_size, for batching."""
        lengths = {len(value) if value.ndim else 0 for value in inputs.values()}
        count = max(lengths, default=0)
        most = self._batching.max_batch_size if self._batching else count
        if count <= most or len(lengths) > 1:
            yield inputs
            return
        for start in range(0, count, most):
            part = slice(start, start + most)
            yield {name: value[part] for name, value in inputs.items()}

    def warm_up(self) -> int:
        """Runs the warm-up requests and returns their number.

        Raises:
            ValueError: if a record is not a PredictionLog of Predict, or fails.
        """
        from google.protobuf.message import DecodeError

        file, played = self.folder / warmup.FILE, 0
        if not file.is_file():
            return 0
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            try:
                log = schema.message("PredictionLog").FromString(record)
                request = log.predict_log.request
                signature = request.model_spec.signature_name or DEFAULT
                inputs = protos.parse(request, self.dtypes(signature))
                for batch in self._batches(inputs):
                    for part in self.parts(signature, batch):
                        self.run(signature, part)
            except (Refused, DecodeError) as wrong:
                raise ValueError(
                    f"Expected warm-up requests that run (record {played} of {file}). "
                    f"Received: {wrong}"
                ) from wrong
            played += 1
        return played


def version_numbers(path: Path) -> list[int]:
    """Returns the numbers that are names in a folder, in ascending order."""
    entries = path.iterdir() if path.is_dir() else ()
    return sorted(int(at.name) for at in entries if at.name.isdecimal())


def version_folder(path: Path, version: int | None) -> Path:
    """Returns `PATH/VERSION`; default: the newest version."""
    numbers = [
        number
        for number in version_numbers(path)
        if (path / str(number) / "saved_model.pb").is_file()
    ]
    if not numbers or version not in (None, *numbers):
        raise ValueError(
            f"Expected {path}/VERSION/saved_model.pb. Received: "
            + (f"version={version}, of {numbers}" if numbers else "no version there")
            + ". To write one, run `keras-vit export MODEL OUT --format savedmodel`"
        )
    return path / str(numbers[-1] if version is None else version)


def batched(function: Any, batching: Batching, name: str) -> Function:
    """Returns a signature that batches concurrent calls with TensorFlow's scheduler.

    TensorFlow Serving uses the same kernel for batching. A signature is batched only if
    the first dimension of its inputs is free and all others are fixed. As in TensorFlow
    Serving, a request that is larger than a batch is refused.
    """
    names = sorted(function.structured_input_signature[1])
    specs = [function.structured_input_signature[1][name] for name in names]
    if not all(spec.shape.rank and spec.shape[1:].is_fully_defined() for spec in specs):
        return function  # type: ignore[no-any-return]
    outputs = sorted(function.structured_outputs)

    @tf.nondifferentiable_batch_function(
        batching.num_batch_threads,
        batching.max_batch_size,
        batching.batch_timeout_micros,
        max_enqueued_batches=batching.max_enqueued_batches,
        enable_large_batch_splitting=False,
        autograph=False,
    )
    def together(*inputs: Any) -> list[Any]:
        results = function(**dict(zip(names, inputs, strict=True)))
        return [results[name] for name in outputs]

    @tf.function(input_signature=specs, autograph=False)
    def call(*inputs: Any) -> dict[str, Any]:
        # TensorFlow identifies queues by scope name, in the whole process.
        with tf.name_scope(f"{name}_{next(_queues)}"):
            return dict(zip(outputs, together(*inputs), strict=True))

    concrete = call.get_concrete_function()
    return lambda **inputs: concrete(*(inputs[name] for name in names))


def _is_per_row(infos: Iterable[Any]) -> bool:
    """Returns whether tensors have a row for each image of a request."""
    shapes = [tf.TensorShape(info.tensor_shape) for info in infos]
    return bool(shapes) and all(shape.rank and shape[0] is None for shape in shapes)


def _pixels_of(values: np.ndarray) -> np.ndarray | int:
    """Returns the pixels of each encoded image from its header; 0 for other values."""
    if values.dtype.kind != "O" or values.ndim != 1:
        return 0
    return np.array([_pixels(value) for value in values])


def _pixels(value: bytes) -> int:
    try:
        return int(_header_pixels(tf.constant(value)))
    except tf.errors.OpError:  # Not an image: nothing will be decoded.
        return 0


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def _header_pixels(encoded: Any) -> Any:
    return decoding.inspect(encoded).pixels


def _divided(pixels: Sequence[int]) -> Iterator[slice]:
    """Yields the slices of images that run together."""
    start, held = 0, 0
    for place, count in enumerate(pixels):
        held += count
        if place > start and (place - start == PART_IMAGES or held > PART_PIXELS):
            yield slice(start, place)
            start, held = place, count
    yield slice(start, len(pixels))


def _signature_defs(folder: Path) -> dict[str, Any]:
    """Returns the signatures of the graph with the tag "serve"."""
    model = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    for graph in model.meta_graphs:
        if "serve" in graph.meta_info_def.tags:
            return dict(graph.signature_def)
    raise ValueError(f"Expected a SavedModel with the tag 'serve'. Received: {folder}")


def _first_sentence(message: str) -> str:
    """Returns an error message without its stack trace and its graph node."""
    lines = message.split("[[{{node")[0].splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "an error")
