"""One version of an exported model, ready to run: TensorFlow Serving's servable.

It is read as the server reads it, from `PATH/VERSION/`, without Keras: signatures by
their names from the SavedModel's own MetaGraphDef, and warm-up requests played first.
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

CODES = {  # Of tf.errors, to gRPC's names.
    getattr(tf.errors, name): name
    for name in (
        *("CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
        *("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
        *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"),
    )
}
DEFAULT = "serving_default"  # The signature where none is named.
PART_IMAGES = 32  # Of a request, run together: the client's batch_size.
PART_PIXELS = 2**24  # 48 MiB decoded.
_queues = itertools.count()
Function = Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests are gathered, in the words of TensorFlow Serving's parameters."""

    max_batch_size: int = 32  # Images that run at once.
    batch_timeout_micros: int = 2000  # How long the first of them waits for others.
    max_enqueued_batches: int = 100  # Beyond these a request is UNAVAILABLE.
    num_batch_threads: int = 1  # Batches that run side by side.


class Servable:
    """A SavedModel's signatures.

    Args:
        path: a folder with a folder for each version, 1, 2, ..., as `export` writes.
        version: the one to load; the newest by default.
        batching: gathers the requests of concurrent callers; none by default.

    Raises:
        ValueError: if there is no such version, or it holds no SavedModel.
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
        """Names and TensorInfos of what a signature takes.

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
        """`inputs` as NumPy has it: strings are `object`."""
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
        """Outputs by name; `outputs` are those wanted, all by default.

        Raises:
            Refused: with the reason, for whatever the signature does not take.
        """
        self._check(signature, inputs)
        told = self.signatures[signature].outputs
        wanted = list(outputs) or sorted(told)
        if not set(wanted) <= set(told):
            raise invalid(
                f"Expected outputs of {sorted(told)}. Received: {sorted(wanted)}"
            )
        try:
            found = self._functions[signature](
                **{name: tf.constant(value) for name, value in inputs.items()}
            )
            return {name: found[name].numpy() for name in wanted}
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
                    f"Expected input {name!r} of shape {shape}, none of them 0. "
                    f"Received: {given.shape}"
                )

    def parts(
        self, signature: str, inputs: Mapping[str, np.ndarray]
    ) -> list[dict[str, np.ndarray]]:
        """A request as several that run one after the other, in order.

        Each has `PART_IMAGES` images and `PART_PIXELS` of encoded ones at most, or is
        one image. Only signatures whose inputs and outputs have a free first dimension
        are divided, and no request of more than a batch, which is refused whole.

        Raises:
            Refused: if the signature does not take the inputs.
        """
        self._check(signature, inputs)
        told = self.signatures[signature]
        infos = [*told.inputs.values(), *told.outputs.values()]
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
        """A request as those that batching takes: of max_batch_size at most."""
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
        """Plays the warm-up requests; returns how many there are.

        Raises:
            ValueError: if one is no PredictionLog of a predict, or fails.
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


def version_folder(path: Path, version: int | None) -> Path:
    """`PATH/VERSION`, the newest by default."""
    found = sorted(
        int(folder.name)
        for folder in (path.iterdir() if path.is_dir() else ())
        if folder.name.isdecimal() and (folder / "saved_model.pb").is_file()
    )
    if not found or version not in (None, *found):
        raise ValueError(
            f"Expected {path}/VERSION/saved_model.pb. Received: "
            + (f"version={version}, of {found}" if found else "no version there")
            + ". keras-vit export MODEL OUT --format savedmodel writes one"
        )
    return path / str(found[-1] if version is None else version)


def batched(function: Any, batching: Batching, name: str) -> Function:
    """A signature whose concurrent calls run together: TensorFlow's batch scheduler.

    It is the kernel of TensorFlow Serving's batching. Only what can be put together is:
    a signature whose inputs have a free first dimension alone. A request of more than
    a batch is refused, as there.
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
        found = function(**dict(zip(names, inputs, strict=True)))
        return [found[name] for name in outputs]

    @tf.function(input_signature=specs, autograph=False)
    def call(*inputs: Any) -> dict[str, Any]:
        # Queues are told apart by their scope's name, in all of the process.
        with tf.name_scope(f"{name}_{next(_queues)}"):
            return dict(zip(outputs, together(*inputs), strict=True))

    concrete = call.get_concrete_function()
    return lambda **inputs: concrete(*(inputs[name] for name in names))


def _is_per_row(infos: Iterable[Any]) -> bool:
    """Whether tensors have a row for each image of a request."""
    shapes = [tf.TensorShape(info.tensor_shape) for info in infos]
    return bool(shapes) and all(shape.rank and shape[0] is None for shape in shapes)


def _pixels_of(values: np.ndarray) -> np.ndarray | int:
    """Pixels of each encoded image by its header; 0 of other values."""
    if values.dtype.kind != "O" or values.ndim != 1:
        return 0
    return np.array([_pixels(value) for value in values])


def _pixels(value: bytes) -> int:
    try:
        return int(_header_pixels(tf.constant(value)))
    except tf.errors.OpError:  # No image: nothing will be decoded.
        return 0


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def _header_pixels(encoded: Any) -> Any:
    return decoding.inspect(encoded).pixels


def _divided(pixels: Sequence[int]) -> Iterator[slice]:
    """Places of images that run together."""
    start, held = 0, 0
    for place, count in enumerate(pixels):
        held += count
        if place > start and (place - start == PART_IMAGES or held > PART_PIXELS):
            yield slice(start, place)
            start, held = place, count
    yield slice(start, len(pixels))


def _signature_defs(folder: Path) -> dict[str, Any]:
    """The signatures of the graph that TensorFlow Serving loads, of the tag "serve"."""
    model = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    for graph in model.meta_graphs:
        if "serve" in graph.meta_info_def.tags:
            return dict(graph.signature_def)
    raise ValueError(f"Expected a SavedModel with the tag 'serve'. Received: {folder}")


def _first_sentence(message: str) -> str:
    """An error without the trace before it and the place in the graph after it."""
    lines = message.split("[[{{node")[0].splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "an error")
