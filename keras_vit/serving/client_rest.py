"""Client of TensorFlow Serving's REST API, with requests and without the protos.

Source: tensorflow_serving/g3doc/api_rest.md. Batches are sent in its row format, which
KServe's V1 protocol also uses.
"""

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

import numpy as np

from keras_vit._version import pip_install
from keras_vit.files import parse_json
from keras_vit.serving.transport import Target, Transport, asking

try:
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise ImportError(
        "Expected requests for http:// and https:// URLs. Received: none. "
        f"Run {pip_install('serving')}"
    ) from error

BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Rest(Transport):
    """A kept-alive connection to a REST server."""

    def __init__(self, target: Target):
        self.target = target
        self._session = requests.Session()
        self._session.headers["content-type"] = "application/json"
        self._session.headers.update(target.headers)
        self._session.auth = self._authorized
        self._retries = _Retry(
            total=target.retries,
            status_forcelist=BUSY,
            allowed_methods=("GET", "POST"),  # A prediction has no side effects.
            backoff_factor=0.1,
            backoff_jitter=0.1,
            raise_on_status=False,
            respect_retry_after_header=False,  # It would ignore the deadline.
        )
        self._adapter = _Adapter()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._adapter)
        self._model = f"{target.url}/v1/models/{target.name}"
        if target.version is not None:
            kind = "labels" if isinstance(target.version, str) else "versions"
            self._model += f"/{kind}/{target.version}"

    def predict(
        self, signature: str, key: str, values: Sequence[bytes] | np.ndarray
    ) -> dict[str, np.ndarray]:
        rows = values.tolist() if isinstance(values, np.ndarray) else map(_b64, values)
        body = {"signature_name": signature, "instances": [{key: row} for row in rows]}
        description = asking(signature, len(values))
        answer = self._ask("POST", f"{self._model}:predict", description, body)
        try:
            return _columns(answer["predictions"])
        except (KeyError, TypeError, ValueError) as error:
            received = f"JSON without rows of outputs, {_short(json.dumps(answer))}"
            raise self.target.garbled(description, received) from error

    def metadata(self) -> dict[str, Any]:
        answer = self._ask("GET", f"{self._model}/metadata", "metadata")
        if not isinstance(answer, dict):
            raise self.target.garbled("metadata", _short(json.dumps(answer)))
        return answer

    def close(self) -> None:
        self._session.close()

    def _authorized(
        self, request: requests.PreparedRequest
    ) -> requests.PreparedRequest:
        """Sets the target's headers: without an `auth`, ~/.netrc would replace them."""
        request.headers.update(self.target.headers)
        return request

    def _ask(self, method: str, url: str, description: str, body: Any = None) -> Any:
        """Returns the parsed JSON of the response."""
        deadline = _Deadline(time.monotonic() + self.target.timeout)
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        self._adapter.max_retries = self._retries.until(deadline)
        try:
            while True:
                with self._session.request(
                    method,
                    url,
                    data=data,
                    timeout=deadline,  # type: ignore[arg-type]  # An urllib3.Timeout.
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    try:
                        text = _read(response, deadline)
                        break
                    except urllib3.exceptions.ProtocolError as cut:
                        if deadline.passed():
                            raise
                        # urllib3 does not retry after it has read the headers.
                        left = response.raw.retries.increment(method, url, error=cut)
                self._adapter.max_retries = left
                left.sleep()
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if deadline.passed():
                raise self.target.late(description) from error
            raise self.target.unreachable(_reason(error)) from error
        if text is None:
            raise self.target.late(description)
        self._check(response, text, description)
        try:
            return parse_json(text)
        except ValueError as error:
            received = f"invalid JSON, {_short(text.decode(errors='replace'))}"
            raise self.target.garbled(description, received) from error

    def _check(
        self, response: requests.Response, text: bytes, description: str
    ) -> None:
        """Raises the exception for a status other than 200."""
        status = response.status_code
        received = f"{status} {response.reason}: {_error_of(text)}"
        if status == HTTPStatus.OK:
            return
        if status == HTTPStatus.NOT_FOUND:
            raise self.target.unknown(description, received)
        if status in (*BUSY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            raise self.target.busy(description, received)
        if status == HTTPStatus.GATEWAY_TIMEOUT:
            raise TimeoutError(
                f"Expected {self.target} to answer {description}. Received: "
                f"{received}. This is a limit of the server "
                "(--rest_api_timeout_in_ms) or of a proxy. Raise it, or send fewer "
                "images in a request (batch_size=)"
            )
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self.target.forbidden(description, received)
        if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self.target.refused(description, received)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self.target.failed(description, received)
        raise self.target.garbled(description, received)


class _Cut:
    """A connection that is closed at its deadline, even during a slow response."""

    def getresponse(self) -> Any:
        """Overrides urllib3's: a socket's timeout restarts with every byte."""
        sock, seconds = self.sock, self.timeout  # type: ignore[attr-defined]
        moment = time.monotonic() + seconds
        try:
            with _shut_down_after(seconds, sock):
                response = super().getresponse()  # type: ignore[misc]
        except (OSError, HTTPException) as cut:
            if time.monotonic() >= moment:
                raise TimeoutError("the deadline has passed") from cut
            raise
        response.sock = sock  # The connection may not keep it for the body.
        return response


class _Connection(_Cut, urllib3.connection.HTTPConnection):
    pass


class _SecureConnection(_Cut, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Adapter(HTTPAdapter):
    """An adapter that uses connections with a deadline."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        pools = {"http": _Pool, "https": _SecurePool}
        self.poolmanager.pool_classes_by_scheme = pools


@contextlib.contextmanager
def _shut_down_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Ends a connection if the code inside takes longer."""
    watch = threading.Timer(seconds, _shut_down, (connection,))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It is already closed.
        connection.shutdown(socket.SHUT_RDWR)


class _Retry(urllib3.Retry):
    """Retries except after a timeout, when no time is left for another attempt.

    Pauses between attempts end at the deadline at the latest.
    """

    deadline: "_Deadline | None" = None

    def until(self, deadline: "_Deadline") -> "_Retry":
        """Returns a copy with a deadline, which copies of the copy keep."""
        copy = self.new()
        copy.deadline = deadline
        return copy

    def new(self, **changes: Any) -> "_Retry":
        copy: _Retry = super().new(**changes)
        copy.deadline = self.deadline
        return copy

    def get_backoff_time(self) -> float:
        pause = super().get_backoff_time()
        return pause if self.deadline is None else min(pause, self.deadline.left())

    def increment(self, *args: Any, **kwargs: Any) -> Any:
        error = kwargs.get("error")
        refused = isinstance(error, urllib3.exceptions.NewConnectionError)
        if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
            raise urllib3.exceptions.MaxRetryError(kwargs["_pool"], args[1], error)
        return super().increment(*args, **kwargs)


class _Deadline(urllib3.Timeout):
    """The time left until a moment; every attempt uses a `clone`."""

    def __init__(self, moment: float):
        super().__init__(total=max(moment - time.monotonic(), 0.001))
        self._moment = moment

    def clone(self) -> "_Deadline":
        return _Deadline(self._moment)

    def left(self) -> float:
        """Returns the seconds until the moment, 0 after it."""
        return max(self._moment - time.monotonic(), 0.0)

    def passed(self) -> bool:
        """Returns whether the moment has passed."""
        return not self.left()


def _read(response: requests.Response, deadline: _Deadline) -> bytes | None:
    """Returns the response body, or None if the deadline passes before its end."""
    parts = []
    with _shut_down_after(deadline.left(), response.raw.sock):
        while part := response.raw.read1(decode_content=True):
            parts.append(part)
    if deadline.passed():
        return None
    # urllib3 accepts truncated headers and bodies as complete ones.
    lengths = ("content-length", "transfer-encoding")
    stated = any(name in response.headers for name in lengths)
    if response.raw.length_remaining or not (parts or stated):
        raise urllib3.exceptions.ProtocolError("incomplete response")
    return b"".join(parts)


def _b64(value: bytes) -> dict[str, str]:
    """Returns bytes in the form that TensorFlow Serving's JSON uses."""
    return {"b64": base64.b64encode(value).decode("ascii")}


def _columns(rows: Any) -> dict[str, np.ndarray]:
    """Converts rows of outputs to arrays: strings to objects, numbers to float32."""
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    if any(row.keys() != columns.keys() for row in rows):
        raise ValueError("rows with different outputs")
    return {
        key: column.astype(object if column.dtype.kind == "U" else np.float32)
        for key, column in columns.items()
    }


def _error_of(text: bytes) -> str:
    """Returns the message in an error's JSON, or its text."""
    try:
        return _short(str(parse_json(text)["error"]))
    except (ValueError, KeyError, TypeError):
        return _short(text.decode(errors="replace"))


def _short(text: str) -> str:
    """Returns the first 300 characters of a text, on one line."""
    text = " ".join(text.split())
    return repr(text if len(text) <= 300 else f"{text[:300]}...")


def _reason(error: Exception) -> str:
    """Returns the innermost error message, without urllib3's object addresses."""
    while (inner := getattr(error, "reason", None)) is not None or (
        error.args and isinstance(inner := error.args[-1], Exception)
    ):
        if not isinstance(inner, Exception):
            break
        error = inner
    cause = error.__cause__ or error.__context__
    if isinstance(error, urllib3.exceptions.NewConnectionError) and cause:
        error = cause  # type: ignore[assignment]
    return _short(str(error)) if str(error) else type(error).__name__
