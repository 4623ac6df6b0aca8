"""What a request to a model server needs, and what can become of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

SIGNATURES = "image_bytes (also serving_default), images, features, attention"
TOO_MANY = "larger than maximum"  # Of TensorFlow's batching, and of our server's.


class ServerError(OSError):
    """A server answered, but not what was asked for.

    It was too busy, refused the request, broke as it worked, or is no model server.
    """


class RequestRefused(ServerError):
    """The request itself was refused: the same one will be refused again."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A model of a server, and how long and how often to ask for it.

    Attributes:
        url: URL of the server, without a "/" at its end.
        name: the model's.
        version: a number, a label, or None for what the server takes.
        timeout: in seconds, for one request with its retries.
        retries: after the first attempt.
        headers: sent with every request.
    """

    url: str
    name: str
    version: int | str | None
    timeout: float
    retries: int
    headers: Mapping[str, str]

    def __str__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        return f"model {self.name!r}{version} at {self.url}"

    def unreachable(self, reason: str) -> ConnectionError:
        """Nobody who speaks the protocol answered."""
        return ConnectionError(
            f"Expected a server of {self}. Received: {reason} (retries={self.retries}"
            "). Start one (docs/serving.md), or check host, port and protocol: "
            "TensorFlow Serving speaks REST (http://) at 8501, gRPC (grpc://) at 8500"
        )

    def unavailable(self, reason: str) -> ConnectionError:
        """UNAVAILABLE, which is nobody there, or a server whose queue is full."""
        return ConnectionError(
            f"{self.unreachable(reason)}. One that runs may be full: ask less at once "
            "(batch_size=), or later"
        )

    def late(self, asked: str) -> TimeoutError:
        """The deadline has passed."""
        return TimeoutError(
            f"Expected an answer of {self} to {asked} within {self.timeout:g} s. "
            "Received: none. Give it more (timeout=), or less work at once "
            "(batch_size=)"
        )

    def refused(self, asked: str, told: str) -> RequestRefused:
        """The server says that the request is wrong."""
        remedy = (
            "Ask for fewer images at once (batch_size=)"
            if TOO_MANY in told
            else f"keras_vit.serving.export writes {SIGNATURES}; client.metadata() "
            "tells what this one has"
        )
        return RequestRefused(
            f"Expected {self} to take {asked}. Received: {told}. {remedy}"
        )

    def unknown(self, asked: str, told: str) -> RequestRefused:
        """The server has no such model, or not yet."""
        return RequestRefused(
            f"Expected {self}, for {asked}. Received: {told}. Check name and version, "
            "and the server's log whether it was loaded"
        )

    def busy(self, asked: str, told: str) -> ServerError:
        """The server says that it has too much to do, or is given too much."""
        return ServerError(
            f"Expected {self} to take {asked}. Received: {told} (retries="
            f"{self.retries}). Ask less at once (batch_size=), or later"
        )

    def forbidden(self, asked: str, told: str) -> ServerError:
        """Whoever stands before the server wants to know who asks."""
        return ServerError(
            f"Expected {self} to take {asked}. Received: {told}. "
            "headers={'authorization': ...} says who asks"
        )

    def failed(self, asked: str, told: str) -> ServerError:
        """The server says that something broke as it worked."""
        return ServerError(
            f"Expected an answer of {self} to {asked}. Received: {told}. The server's "
            "log, or that of a proxy before it, tells why"
        )

    def garbled(self, asked: str, told: str) -> ServerError:
        """The answer is none."""
        return ServerError(
            f"Expected TensorFlow Serving's answer of {self} to {asked}. Received: "
            f"{told}. Check that the URL is a model server's, and that "
            "keras_vit.serving.export wrote the model"
        )


class Transport(Protocol):
    """How a request gets to a server."""

    def predict(
        self, signature: str, key: str, values: Sequence[bytes] | np.ndarray
    ) -> dict[str, np.ndarray]:
        """Runs a signature on its one input: strings are str objects, numbers float32.

        Raises:
            ConnectionError: if no server answers.
            TimeoutError: if none does in time.
            ServerError: if it says that it cannot, or what is no answer.
        """

    def metadata(self) -> Mapping[str, Any]:
        """What the server says of the model, in the form of TensorFlow Serving's JSON.

        Raises:
            ConnectionError: see `predict`.
            TimeoutError: see `predict`.
            ServerError: see `predict`.
        """

    def close(self) -> None:
        """Closes the connections."""


def asking(signature: str, count: int) -> str:
    """A request, for errors."""
    return f"signature {signature!r} with {count} image{'s' if count != 1 else ''}"
