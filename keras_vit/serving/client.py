"""A client of an exported model: images in, predictions, features, attention out.

Glossary of shapes: B images, H, W, C one image's size, D the features' width.
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
OUTPUTS = {  # Name: kind (of strings, of numbers) and rank.
    "classes": ("O", 2),
    "scores": ("f", 2),
    "status": ("O", 1),
    "features": ("f", 2),
    "attention": ("f", 3),
}
MOST_RETRIES = 4  # gRPC's own limit is five attempts.


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a server says of one image.

    Attributes:
        classes: the most probable ones, the first one first; none of a bad image.
        scores: their probabilities, in [0, 1].
        status: "ok", or what is wrong with the image.
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
    """A signature's inputs and outputs, as TensorFlow Serving tells them.

    Attributes:
        inputs: by name, dtype and shape: "float32 [?, 5]".
        outputs: by name, dtype and shape.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a server says of a model: which one answers, and to what.

    TensorFlow Serving's GetModelMetadata.

    Attributes:
        name: the model's at the server.
        version: the one that answers, 1 or more.
        signatures: by name.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]


class Client:
    """Asks a server of a model that `keras_vit.serving.export` wrote.

    Images are bytes of a JPEG, PNG, GIF, BMP or WebP, paths of files, or uint8 arrays
    [H, W, C]. A list has only arrays, or none. Arrays of one size share a request.
    REST writes them as decimals, several times their size: gRPC is better for those.

    Its connections are kept alive until `close`, or the end of a `with`. It is not for
    several threads at once: each makes its own.

    Args:
        url: "http://host:8501" or "https://host" of TensorFlow Serving's REST API,
            "grpc://host:8500" or "grpcs://host:443" of its PredictionService.
        name: the model's at the server; "model" is that of TensorFlow Serving's
            container by itself.
        version: a number, a label as "stable", or None for the server's choice, which
            is the greatest number.
        timeout: in seconds, for one request with its retries.
        retries: 0 to 4, after a first attempt that found no server, one that hung up,
            or one that is busy (503 and 429; UNAVAILABLE), with growing pauses drawn
            at random. Nothing that a server refuses is tried again.
        batch_size: images of one request; more are several requests, one after another.
        headers: sent with every request, as {"authorization": "Bearer ..."}.

    Raises:
        ValueError: if an argument is out of range or a URL of no known kind.
        ImportError: without requests (REST), or grpcio (gRPC).
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
                f"Expected images in a batch. Received: batch_size={batch_size}"
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
        """Closes the connections; the end of a `with` does it too."""
        self._transport.close()

    def predict(self, images: Iterable[Image]) -> list[Prediction]:
        """The most probable classes of images, in their order.

        A bad image does not end it: its `Prediction.status` says what is wrong. (With
        an export of `on_bad_image="fail"` the server refuses the whole batch.)

        Args:
            images: files, or arrays uint8 [H, W, C], as the class takes them.

        Returns:
            A `Prediction` of each image.

        Raises:
            ValueError: if an image is none, or arrays and files are mixed.
            OSError: if a file cannot be read; a ConnectionError if no server answers,
                a TimeoutError if it does not in time, a ServerError if it answers
                something else.
        """
        images = _listed(images)
        predictions: dict[int, Prediction] = {}
        for places in self._batches(images):
            batch = [images[place] for place in places]
            predictions.update(zip(places, self._predict_batch(batch), strict=True))
        return [predictions[place] for place in range(len(images))]

    def features(self, images: Iterable[Image]) -> np.ndarray:
        """What the model's head reads of images (4.1).

        Args:
            images: see `predict`; an array, of 1 or 3 channels, goes as a PNG.

        Returns:
            float32 [B, D].

        Raises:
            ValueError: if there is no image, or if the server could not read some, all
                of which it names once every batch has been asked for: a row of zeros
                would be taken for features; else as `predict`.
            OSError: as `predict`; a ServerError if the export has no "features".
        """
        return self._rows("features", images)

    def attention(self, images: Iterable[Image]) -> np.ndarray:
        """Attention rollout (D.8) of images, over the patches.

        Args:
            images: see `features`.

        Returns:
            float32 [B, rows, columns], shares of 1.

        Raises:
            ValueError: as `features`.
            OSError: as `predict`; a ServerError if the export has no "attention".
        """
        return self._rows("attention", images)

    def metadata(self) -> Metadata:
        """Which model and version answers, and its signatures.

        Returns:
            A `Metadata`.

        Raises:
            OSError: as `predict`.
        """
        told = self._transport.metadata()
        try:
            spec = told["model_spec"]
            signatures = told["metadata"]["signature_def"]["signature_def"]
            return Metadata(
                spec["name"],
                int(spec["version"]),
                {
                    name: Signature(_tensors(said, "inputs"), _tensors(said, "outputs"))
                    for name, said in sorted(signatures.items())
                    if not name.startswith("__")  # TensorFlow's own.
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = f"other JSON, {str(told)[:300]!r}"
            raise self.target.garbled("metadata", said) from error

    def _batches(self, images: Sequence[Image]) -> Iterator[list[int]]:
        """Places of images that go together: files in order, arrays by their size."""
        groups: dict[Any, list[int]] = {}
        for place, image in enumerate(images):
            size = image.shape if isinstance(image, np.ndarray) else None
            groups.setdefault(size, []).append(place)
        for group in groups.values():
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def _predict_batch(self, images: Sequence[Image]) -> list[Prediction]:
        if isinstance(images[0], np.ndarray):
            told = self._ask("images", "images", np.stack(images), "classes", "scores")  # type: ignore[arg-type]
            status = [OK] * len(images)
        else:
            encoded = [_encoded(image) for image in images]
            outputs = ("classes", "scores", "status")
            told = self._ask("serving_default", "image_bytes", encoded, *outputs)
            status = told["status"].tolist()
        if told["classes"].shape != told["scores"].shape:
            shapes = f"{told['classes'].shape} and {told['scores'].shape}"
            said = f"classes and scores of shapes {shapes}"
            raise self.target.garbled(asking("serving_default", len(images)), said)
        rows = zip(
            told["classes"].tolist(), told["scores"].tolist(), status, strict=True
        )
        return [
            Prediction(tuple(classes), tuple(scores))
            if said == OK
            else Prediction((), (), said)
            for classes, scores, said in rows
        ]

    def _rows(self, signature: str, images: Iterable[Image]) -> np.ndarray:
        """A signature's output of the same name; all its images must be good."""
        images = _listed(images)
        if not images:
            raise ValueError(f"Expected images to have {signature} of. Received: none")
        parts, bad = [], []
        for start in range(0, len(images), self.batch_size):
            batch = images[start : start + self.batch_size]
            encoded = [_encoded(image) for image in batch]
            told = self._ask(signature, "image_bytes", encoded, signature, "status")
            parts.append(told[signature])
            for place, status in enumerate(told["status"], start):
                if status != OK:
                    bad.append(f"{_name(images[place], place)}: {status}")
        if bad:
            raise ValueError(
                f"Expected images that can be read, to have {signature} of. Received: "
                f"{len(bad)} of {len(images)} that cannot: {'; '.join(bad)}"
            )
        return np.concatenate(parts)

    def _ask(
        self,
        signature: str,
        key: str,
        values: Sequence[bytes] | np.ndarray,
        *outputs: str,
    ) -> dict[str, np.ndarray]:
        """A signature's outputs, of which each has a row for each image."""
        asked = asking(signature, len(values))
        try:
            told = self._transport.predict(signature, key, values)
        except RequestRefused as error:
            raise self._explained(signature, error) from error
        for name in outputs:
            kind, rank = OUTPUTS[name]
            if name not in told:
                said = f"outputs {', '.join(sorted(told)) or 'none'}, not {name}"
                raise self.target.garbled(asked, said)
            output = told[name]
            if output.dtype.kind != kind or output.ndim != rank:
                said = f"{name} of {output.dtype} and shape {output.shape}"
                raise self.target.garbled(asked, said)
            if len(output) != len(values):
                raise self.target.garbled(asked, f"{len(output)} rows of {name}")
        for name in outputs:
            bad = _first_not_finite(told[name], told.get("status"))
            if bad is not None:
                said = f"NaN or infinity in {name} of image {bad} of the request"
                raise self.target.garbled(asked, said)
        return told

    def _explained(self, signature: str, error: RequestRefused) -> ServerError:
        """A refusal as it is, unless it was for a signature that is not there."""
        try:
            known = self.metadata().signatures
        except OSError:  # The refusal says more than that the metadata are missing.
            return error
        if signature in known:
            return error
        return RequestRefused(
            f"Expected signature {signature!r} of {self.target}. Received: a model "
            f"with {', '.join(known) or 'none'}. keras_vit.serving.export writes it, "
            "if asked for and if the model has it"
        )


def _first_not_finite(output: np.ndarray, status: np.ndarray | None) -> int | None:
    """The first row that holds NaN or infinity; rows of unreadable images may."""
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
    """A checked target."""
    if not re.fullmatch(r"[^/:\s]+", name):
        raise ValueError(
            "Expected a model's name, without '/', ':' and spaces. Received: name="
            f"{name!r}"
        )
    if isinstance(version, str) and not re.fullmatch(r"\w+", version, re.ASCII):
        raise ValueError(
            "Expected a version's number, or a label of letters, digits and '_'. "
            f"Received: version={version!r}"
        )
    if isinstance(version, int) and not 0 <= version < 2**63:
        raise ValueError(
            "Expected a version's number from 0 to 2**63 - 1. Received: "
            f"version={version}"
        )
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"Expected seconds. Received: timeout={timeout}")
    if not 0 <= retries <= MOST_RETRIES:
        raise ValueError(
            f"Expected 0 to {MOST_RETRIES} retries (gRPC makes five attempts at most). "
            f"Received: retries={retries}"
        )
    return Target(_checked(url), name, version, timeout, retries, headers)


def _checked(url: str) -> str:
    """A server's URL without "/" at its end."""
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
        # Not the URL itself: a password may be in it.
        shown = split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()
        raise ValueError(
            "Expected http://host:8501 or https://host (REST), grpc://host:8500 or "
            "grpcs://host:443, without user and password (headers= has room for who "
            f"asks). Received: {shown!r}"
        )
    return url.rstrip("/")


def _transport(target: Target) -> Transport:
    """Imported on use: REST does not require gRPC."""
    if target.url.startswith("grpc"):
        from keras_vit.serving.client_grpc import Grpc

        return Grpc(target)
    from keras_vit.serving.client_rest import Rest

    return Rest(target)


def _listed(images: Iterable[Image]) -> list[Image]:
    """Images of one kind, each checked, in a list."""
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
                "Expected images: bytes of a file, a path, or a uint8 array [H, W, C]. "
                f"Received: image {place}, {type(image).__name__}"
            )
        if isinstance(image, np.ndarray) and (
            image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape
        ):
            raise ValueError(
                "Expected arrays of uint8 [H, W, C]. Received: image "
                f"{place}, {image.dtype} {list(image.shape)}"
            )
    if any(arrays) and not all(arrays):
        raise ValueError(
            "Expected arrays or files, not both in a list (they go to signatures of "
            f"their own). Received: an array at {arrays.index(True)}, a file at "
            f"{arrays.index(False)}. Ask for each kind"
        )
    return listed


def _encoded(image: Image) -> bytes:
    """The bytes of an image file; of an array, a PNG's, which lose nothing."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        if image.shape[-1] not in (1, 3):
            raise ValueError(
                "Expected arrays of 1 or 3 channels, to be sent as PNG. Received: "
                f"{list(image.shape)}"
            )
        import tensorflow as tf

        png: bytes = tf.io.encode_png(image).numpy()
        return png
    return read_bytes(image)


def _name(image: Image, place: int) -> str:
    """An image in an error: its file, or its place in the list."""
    if isinstance(image, (bytes, np.ndarray)):
        return f"image {place}"
    return str(image)


def _tensors(signature: Mapping[str, Any], side: str) -> dict[str, str]:
    """A signature's inputs or outputs: name -> "float32 [?, 5]"."""
    return {
        name: _tensor(told) for name, told in sorted(signature.get(side, {}).items())
    }


def _tensor(told: Mapping[str, Any]) -> str:
    dtype: str = told["dtype"].removeprefix("DT_").lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    shape = told.get("tensor_shape", {})
    if shape.get("unknown_rank"):
        return dtype
    sizes = [int(side.get("size", 0)) for side in shape.get("dim", [])]
    return f"{dtype} [{', '.join('?' if size < 0 else str(size) for size in sizes)}]"
