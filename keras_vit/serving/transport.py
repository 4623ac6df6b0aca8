"""The target of requests to a model server, its errors, and the transport protocol."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

SIGNATURES = "image_bytes (also serving_default), images, features, attention"
TOO_MANY = "larger than maximum"  # In errors of TensorFlow's batching and our server.


class ServerError(OSError):
    """A server responded, but not with a prediction.

    It was too busy, refused the request, failed, or is not a model server.
    """


class RequestRefused(ServerError):
    """The server refused the request, so a retry cannot help."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A model on a server, with the timeout and the retries of requests.

    Attributes:
        url: URL of the server, without a trailing "/".
        name: name of the model.
        version: a number, a label, or None for the server's default.
        timeout: seconds for one request, including its retries.
        retries: number of attempts after the first.
        headers: headers of every request.
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
        """Returns the error if no compatible server responded."""
        return ConnectionError(
            f"Expected a server of {self}. Received: {reason} (retries={self.retries}"
            "). Start a server (docs/serving.md), or check host, port and protocol. "
            "TensorFlow Serving uses port 8501 for REST (http://) and 8500 for gRPC "
            "(grpc://)"
        )

    def unavailable(self, reason: str) -> ConnectionError:
        """Returns the error for UNAVAILABLE: no server, or its queue is full."""
        return ConnectionError(
            f"{self.unreachable(reason)}. If the server is running, its queue may be "
            "full. Send fewer images at once (batch_size=), or try again later"
        )

    def late(self, description: str) -> TimeoutError:
        """Returns the error for a missed deadline."""
        return TimeoutError(
            f"Expected a response from {self} to {description} within "
            f"{self.timeout:g} s. Received: none. Use a longer timeout=, or send fewer "
            "images at once (batch_size=)"
        )

    def refused(self, description: str, received: str) -> RequestRefused:
        """Returns the error for a wrong request."""
        remedy = (
            "Send fewer images at once (batch_size=)"
            if TOO_MANY in received
            else f"keras_vit.serving.export writes the signatures {SIGNATURES}. "
            "client.metadata() returns the signatures of this model"
        )
        return RequestRefused(
            f"Expected {self} to accept {description}. Received: {received}. {remedy}"
        )

    def unknown(self, description: str, received: str) -> RequestRefused:
        """Returns the error if the server does not have the model, or not yet."""
        return RequestRefused(
            f"Expected {self} to be available for {description}. Received: "
            f"{received}. Check name and version, and check the server's log to see "
            "whether the model was loaded"
        )

    def busy(self, description: str, received: str) -> ServerError:
        """Returns the error for a busy server or a request that is too large."""
        return ServerError(
            f"Expected {self} to accept {description}. Received: {received} (retries="
            f"{self.retries}). Send fewer images at once (batch_size=), or try again "
            "later"
        )

    def forbidden(self, description: str, received: str) -> ServerError:
        """Returns the error for missing or wrong credentials."""
        return ServerError(
            f"Expected {self} to accept {description}. Received: {received}. "
            "Pass credentials in headers={'authorization': ...}"
        )

    def failed(self, description: str, received: str) -> ServerError:
        """Returns the error for an internal error of the server."""
        return ServerError(
            f"Expected a response from {self} to {description}. Received: "
            f"{received}. The server's log, or that of a proxy, contains the reason"
        )

    def garbled(self, description: str, received: str) -> ServerError:
        """Returns the error for a response in an unexpected format."""
        return ServerError(
            f"Expected a TensorFlow Serving response from {self} to {description}. "
            f"Received: {received}. Check that the URL is a model server's, and that "
            "keras_vit.serving.export wrote the model"
        )


class Transport(Protocol):
    """A protocol for sending requests to a server."""

    def predict(
        self, signature: str, key: str, values: Sequence[bytes] | np.ndarray
    ) -> dict[str, np.ndarray]:
        """Runs a signature on its only input; returns str objects or float32.

        Raises:
            ConnectionError: if no server responds.
            TimeoutError: if there is no response in time.
            ServerError: if the server returns an error or an invalid response.
        """

    def metadata(self) -> Mapping[str, Any]:
        """Returns the model's metadata, in the form of TensorFlow Serving's JSON.

        Raises:
            ConnectionError: see `predict`.
            TimeoutError: see `predict`.
            ServerError: see `predict`.
        """

    def close(self) -> None:
        """Closes the connections."""


def asking(signature: str, count: int) -> str:
    """Describes a request in an error message."""
    return f"signature {signature!r} with {count} image{'s' if count != 1 else ''}"
