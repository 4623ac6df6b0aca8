"""A client for exported models: returns predictions, features and attention of images.

Glossary of shapes: B images, H, W, C the size of one image, D the width of features.
"""

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from keras_vit.files import read_bytes
from keras_vit.serving.transport import (
    RequestRefused,
    ServerError,
    Target,
    Transport,
    asking,
)

__all__ = ["Client", "Metadata", "Prediction", "ServerError", "Signature"]

Image: TypeAlias = bytes | str | os.PathLike[str] | np.ndarray

OK = "ok"
OUTPUTS = {  # Name: NumPy's dtype kind (O: strings, f: floats) and rank.
    "classes": ("O", 2),
    "scores": ("f", 2),
    "status": ("O", 1),
    "features": ("f", 2),
    "attention": ("f", 3),
}
MOST_RETRIES = 4  # gRPC makes at most five attempts.


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A server's prediction for one image.

    Attributes:
        classes: the most probable classes, in descending order; empty for an
            unreadable image.
        scores: the probabilities of `classes`, in [0, 1].
        status: "ok", or the reason why the image could not be read.
    """

    classes: tuple[str, ...]
    scores: tuple[float, ...]
    status: str = OK

    @property
    def ok(self) -> bool:
        """Whether the image could be read."""
        return self.status == OK


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a signature, from TensorFlow Serving's metadata.

    Attributes:
        inputs: dtype and shape of each input by name, e.g. "float32 [?, 5]".
        outputs: dtype and shape of each output by name.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A served model's name, version and signatures (GetModelMetadata).

    Attributes:
        name: name of the model on the server.
        version: version that is served, 1 or more.
        signatures: signatures of the model by name.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]


class Client:
    """Sends images to a server of a model that `keras_vit.serving.export` wrote.

    Images are bytes of a JPEG, PNG, GIF, BMP or WebP, paths of files, or uint8 arrays
    [H, W, C]. A list must not mix arrays and files. Arrays of the same size share a
    request. REST sends arrays as decimal text, which is several times larger. Use gRPC
    for arrays.

    Connections are kept alive until `close` or the end of a `with` block. A client is
    not thread-safe: create one in each thread.

    Args:
        url: "http://host:8501" or "https://host" of TensorFlow Serving's REST API, or
            "grpc://host:8500" or "grpcs://host:443" of its PredictionService.
        name: name of the model on the server; "model" is the default of TensorFlow
            Serving's container.
        version: a number, a label such as "stable", or None for the server's default,
            the greatest number.
        timeout: seconds for one request, including its retries.
        retries: number of retries, 0 to 4, with random, growing pauses. A request is
            retried if no server responds, if the connection is closed, or if the server
            is busy (503 and 429; UNAVAILABLE). A refused request is not retried.
        batch_size: maximum number of images in a request. More images are sent as
            several requests, one after another.
        headers: headers of every request, such as {"authorization": "Bearer ..."}.

    Raises:
        ValueError: if an argument is out of range or the URL is not supported.
        ImportError: if requests (REST) or grpcio (gRPC) is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "model",
        version: int | str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        batch_size: int = 32,
        headers: Mapping[str, str] | None = None,
    ):
        if batch_size < 1:
            raise ValueError(
                f"Expected batch_size of 1 or more. Received: batch_size={batch_size}"
            )
        self.batch_size = batch_size
        self.target = _target(url, name, version, timeout, retries, headers or {})
        self._transport = _transport(self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, as does the end of a `with` block."""
        self._transport.close()

    def predict(self, images: Iterable[Image]) -> list[Prediction]:
        """Returns the most probable classes of each image.

        An unreadable image does not raise an error: `Prediction.status` contains the
        reason. If the model was exported with `on_bad_image="fail"`, the server refuses
        the whole batch.

        Args:
            images: bytes, paths, or arrays uint8 [H, W, C], as described for the class.

        Returns:
            A `Prediction` for each image, in the same order.

        Raises:
            ValueError: if an item is not an image, or if arrays and files are mixed.
            OSError: if a file cannot be read. A ConnectionError if no server responds,
                a TimeoutError if there is no response in time, a ServerError for any
                other response.
        """
        images = _listed(images)
        predictions: dict[int, Prediction] = {}
        for places in self._batches(images):
            batch = [images[place] for place in places]
            predictions.update(zip(places, self._predict_batch(batch), strict=True))
        return [predictions[place] for place in range(len(images))]

    def features(self, images: Iterable[Image]) -> np.ndarray:
        """Returns the features of images, the input of the model's head (4.1).

        Args:
            images: see `predict`; an array must have 1 or 3 channels and is sent as
                PNG.

        Returns:
            float32 [B, D].

        Raises:
            ValueError: if there are no images, or if the server could not read some of
                them. The error lists all of them, after the last batch. Also see
                `predict`.
            OSError: see `predict`; a ServerError if the export has no "features".
        """
        return self._rows("features", images)

    def attention(self, images: Iterable[Image]) -> np.ndarray:
        """Returns the attention rollout (D.8) of images over the patches.

        Args:
            images: see `features`.

        Returns:
            float32 [B, rows, columns], the share of the attention that is on each
            patch.

        Raises:
            ValueError: see `features`.
            OSError: see `predict`; a ServerError if the export has no "attention".
        """
        return self._rows("attention", images)

    def metadata(self) -> Metadata:
        """Returns the name, version and signatures of the served model.

        Returns:
            A `Metadata`.

        Raises:
            OSError: see `predict`.
        """
        answer = self._transport.metadata()
        try:
            spec = answer["model_spec"]
            signatures = answer["metadata"]["signature_def"]["signature_def"]
            return Metadata(
                spec["name"],
                int(spec["version"]),
                {
                    name: Signature(_tensors(item, "inputs"), _tensors(item, "outputs"))
                    for name, item in sorted(signatures.items())
                    if not name.startswith("__")  # TensorFlow's internal signatures.
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            received = f"unexpected JSON, {str(answer)[:300]!r}"
            raise self.target.garbled("metadata", received) from error

    def _batches(self, images: Sequence[Image]) -> Iterator[list[int]]:
        """Yields the indexes of each batch: files in order, arrays grouped by size."""
        groups: dict[Any, list[int]] = {}
        for place, image in enumerate(images):
            size = image.shape if isinstance(image, np.ndarray) else None
            groups.setdefault(size, []).append(place)
        for group in groups.values():
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def _predict_batch(self, images: Sequence[Image]) -> list[Prediction]:
        if isinstance(images[0], np.ndarray):
            pixels = np.stack(images)  # type: ignore[arg-type]
            answer = self._ask("images", "images", pixels, "classes", "scores")
            status = [OK] * len(images)
        else:
            encoded = [_encoded(image) for image in images]
            outputs = ("classes", "scores", "status")
            answer = self._ask("serving_default", "image_bytes", encoded, *outputs)
            status = answer["status"].tolist()
        if answer["classes"].shape != answer["scores"].shape:
            shapes = f"{answer['classes'].shape} and {answer['scores'].shape}"
            received = f"classes and scores of shapes {shapes}"
            raise self.target.garbled(asking("serving_default", len(images)), received)
        rows = zip(
            answer["classes"].tolist(), answer["scores"].tolist(), status, strict=True
        )
        return [
            Prediction(tuple(classes), tuple(scores))
            if reason == OK
            else Prediction((), (), reason)
            for classes, scores, reason in rows
        ]

    def _rows(self, signature: str, images: Iterable[Image]) -> np.ndarray:
        """Returns the output named like the signature; all images must be readable."""
        images = _listed(images)
        if not images:
            raise ValueError(
                f"Expected one image or more to compute {signature}. Received: none"
            )
        parts, bad = [], []
        for start in range(0, len(images), self.batch_size):
            batch = images[start : start + self.batch_size]
            encoded = [_encoded(image) for image in batch]
            answer = self._ask(signature, "image_bytes", encoded, signature, "status")
            parts.append(answer[signature])
            for place, status in enumerate(answer["status"], start):
                if status != OK:
                    bad.append(f"{_name(images[place], place)}: {status}")
        if bad:
            raise ValueError(
                f"Expected readable images to compute {signature}. Received: "
                f"{len(bad)} of {len(images)} that cannot be read: {'; '.join(bad)}"
            )
        return np.concatenate(parts)

    def _ask(
        self,
        signature: str,
        key: str,
        values: Sequence[bytes] | np.ndarray,
        *outputs: str,
    ) -> dict[str, np.ndarray]:
        """Returns the signature's outputs, each with one row for each image."""
        description = asking(signature, len(values))
        try:
            answer = self._transport.predict(signature, key, values)
        except RequestRefused as error:
            raise self._explained(signature, error) from error
        for name in outputs:
            kind, rank = OUTPUTS[name]
            if name not in answer:
                names = ", ".join(sorted(answer)) or "none"
                received = f"outputs {names}, without {name}"
                raise self.target.garbled(description, received)
            output = answer[name]
            if output.dtype.kind != kind or output.ndim != rank:
                received = f"{name} of {output.dtype} and shape {output.shape}"
                raise self.target.garbled(description, received)
            if len(output) != len(values):
                raise self.target.garbled(description, f"{len(output)} rows of {name}")
        for name in outputs:
            bad = _first_not_finite(answer[name], answer.get("status"))
            if bad is not None:
                received = f"NaN or infinity in {name} of image {bad} of the request"
                raise self.target.garbled(description, received)
        return answer

    def _explained(self, signature: str, error: RequestRefused) -> ServerError:
        """Returns the error, or a clearer one if the signature does not exist."""
        try:
            known = self.metadata().signatures
        except OSError:  # The refusal is the more informative error.
            return error
        if signature in known:
            return error
        return RequestRefused(
            f"Expected signature {signature!r} of {self.target}. Received: a model "
            f"with {', '.join(known) or 'none'}. To add it, export the model again "
            "with signatures=, if the model supports it"
        )


def _first_not_finite(output: np.ndarray, status: np.ndarray | None) -> int | None:
    """Returns the first readable image's row with NaN or infinity, or None."""
    if output.dtype.kind != "f":
        return None
    bad = ~np.isfinite(output).reshape(len(output), -1).all(axis=1)
    if status is not None:
        bad &= status == OK
    return int(bad.argmax()) if bad.any() else None


def _target(
    url: str,
    name: str,
    version: int | str | None,
    timeout: float,
    retries: int,
    headers: Mapping[str, str],
) -> Target:
    """Returns the target, after checking all arguments."""
    if not re.fullmatch(r"[^/:\s]+", name):
        raise ValueError(
            "Expected a model name without '/', ':' and spaces. Received: name="
            f"{name!r}"
        )
    if isinstance(version, str) and not re.fullmatch(r"\w+", version, re.ASCII):
        raise ValueError(
            "Expected a version number, or a label of letters, digits and '_'. "
            f"Received: version={version!r}"
        )
    if isinstance(version, int) and not 0 <= version < 2**63:
        raise ValueError(
            "Expected a version number from 0 to 2**63 - 1. Received: "
            f"version={version}"
        )
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(
            f"Expected a positive number of seconds. Received: timeout={timeout}"
        )
    if not 0 <= retries <= MOST_RETRIES:
        raise ValueError(
            f"Expected 0 to {MOST_RETRIES} retries (gRPC makes at most five attempts). "
            f"Received: retries={retries}"
        )
    return Target(_checked(url), name, version, timeout, retries, headers)


def _checked(url: str) -> str:
    """Returns a valid server URL without a trailing "/"."""
    split = urlsplit(url)
    is_rpc = split.scheme in ("grpc", "grpcs")
    if (
        split.scheme not in ("http", "https", "grpc", "grpcs")
        or not split.hostname
        or "@" in split.netloc
        or split.query
        or split.fragment
        or (is_rpc and (split.port is None or split.path.strip("/")))
    ):
        # The URL may contain a password.
        shown = split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()
        raise ValueError(
            "Expected http://host:8501 or https://host (REST), grpc://host:8500 or "
            "grpcs://host:443, without user and password. Received: "
            f"{shown!r}. Pass credentials in headers="
        )
    return url.rstrip("/")


def _transport(target: Target) -> Transport:
    """Creates the transport; imported here because REST does not require gRPC."""
    if target.url.startswith("grpc"):
        from keras_vit.serving.client_grpc import Grpc

        return Grpc(target)
    from keras_vit.serving.client_rest import Rest

    return Rest(target)


def _listed(images: Iterable[Image]) -> list[Image]:
    """Returns a list of valid images of one kind."""
    single = isinstance(images, (bytes, bytearray, str, os.PathLike))
    if single or (isinstance(images, np.ndarray) and images.ndim == 3):
        raise ValueError(
            f"Expected a list of images. Received: one, {type(images).__name__}"
        )
    listed = list(images)
    arrays = [isinstance(image, np.ndarray) for image in listed]
    for place, image in enumerate(listed):
        if not isinstance(image, (bytes, str, os.PathLike, np.ndarray)):
            raise ValueError(
                "Expected images: file bytes, a path, or a uint8 array [H, W, C]. "
                f"Received: image {place}, {type(image).__name__}"
            )
        if isinstance(image, np.ndarray) and (
            image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape
        ):
            raise ValueError(
                "Expected uint8 arrays [H, W, C]. Received: image "
                f"{place}, {image.dtype} {list(image.shape)}"
            )
    if any(arrays) and not all(arrays):
        raise ValueError(
            "Expected arrays or files, not both in a list, because they use different "
            f"signatures. Received: an array at {arrays.index(True)}, a file at "
            f"{arrays.index(False)}. Send each kind in its own call"
        )
    return listed


def _encoded(image: Image) -> bytes:
    """Returns the bytes of an image file, or of a lossless PNG of an array."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        if image.shape[-1] not in (1, 3):
            raise ValueError(
                "Expected arrays with 1 or 3 channels, which are sent as PNG. "
                f"Received: {list(image.shape)}"
            )
        import tensorflow as tf

        png: bytes = tf.io.encode_png(image).numpy()
        return png
    return read_bytes(image)


def _name(image: Image, place: int) -> str:
    """Returns the image's name for an error: its file, or its index in the list."""
    if isinstance(image, (bytes, np.ndarray)):
        return f"image {place}"
    return str(image)


def _tensors(signature: Mapping[str, Any], side: str) -> dict[str, str]:
    """Returns a signature's inputs or outputs: name -> "float32 [?, 5]"."""
    return {
        name: _tensor(info) for name, info in sorted(signature.get(side, {}).items())
    }


def _tensor(info: Mapping[str, Any]) -> str:
    dtype: str = info["dtype"].removeprefix("DT_").lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    shape = info.get("tensor_shape", {})
    if shape.get("unknown_rank"):
        return dtype
    sizes = [int(side.get("size", 0)) for side in shape.get("dim", [])]
    return f"{dtype} [{', '.join('?' if size < 0 else str(size) for size in sizes)}]"
