"""A server for trying out an exported model with TensorFlow Serving's two protocols.

REST is TensorFlow Serving's documented API (`POST /v1/models/NAME:predict`) on uvicorn
and Starlette. gRPC provides its PredictionService and ModelService. The rules follow
tensorflow/serving's model_servers/ and servables/tensorflow/. docs/serving.md explains
how to run TensorFlow Serving itself, and the differences.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent import futures
from typing import Any, TypeAlias, TypeVar

import numpy as np

from keras_vit._version import pip_install
from keras_vit.serving import page, protos, rest, schema
from keras_vit.serving.errors import Refused, invalid
from keras_vit.serving.rest import Arrays
from keras_vit.serving.servable import DEFAULT, Servable

try:
    import grpc
    import uvicorn
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.requests import Request as HttpRequest
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    from keras_vit.serving.connections import (
        BACKLOG,
        bounded,
        bounded_log,
        most_connections,
    )
except ImportError as missing:
    raise ImportError(
        "Expected uvicorn, Starlette and grpcio, which `keras-vit serve` requires. "
        f"Received: {missing}. Run {pip_install('server')}"
    ) from missing


T = TypeVar("T")
Left: TypeAlias = Callable[[], Awaitable[bool]]  # Whether the client has disconnected.

HEADER_SECONDS = 10  # Also the limit of a connection without a request.
ANSWER_SECONDS = 30  # Time for a client to read a response.
LONGEST_STOP = 30  # Seconds for running requests to finish after SIGTERM.
POLL_SECONDS = 1  # TensorFlow Serving's --file_system_poll_wait_seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests; docs/serving.md lists the resources that clients can use."""

    max_request_bytes: int = 2**25  # In a body; base64 makes a file a third longer.
    max_total_bytes: int = 2**29  # In all bodies; more are RESOURCE_EXHAUSTED.
    max_body_seconds: float = 30  # A REST body that takes longer is a 408.
    max_request_seconds: float = 30  # From the complete body to the response.
    max_concurrent_requests: int = 256  # Per protocol; more are RESOURCE_EXHAUSTED.
    max_connections: int = 1024  # Per protocol; fewer if descriptors are limited.
    max_images: int = 1024  # In a request: an empty string needs an image's memory.


class Models:
    """A named model, shared by both protocols.

    Long operations run on a pool of threads, with the images of a request in parts.
    Between parts, other requests get their turn, and a request stops if its time is
    over or its client has disconnected.

    Args:
        name: name of the model in URLs and requests.
        servable: version that is served.
        limits: limits of a request.
        threads: number of threads in the pool.
    """

    def __init__(
        self, name: str, servable: Servable, limits: Limits, threads: int = 1
    ) -> None:
        self.name, self.servable, self.limits = name, servable, limits
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._held = 0  # Bytes of bodies in memory.

    def find(self, name: str, version: int | None) -> Servable:
        """Returns the servable with this name and version.

        Raises:
            Refused: NOT_FOUND, if the name or version differs.
        """
        if name != self.name or version not in (None, self.servable.version):
            served = f"{self.name!r}, version {self.servable.version}"
            received = f"{name!r}" + ("" if version is None else f", version {version}")
            raise Refused("NOT_FOUND", f"Expected model {served}. Received: {received}")
        return self.servable

    def specified(self, spec: Any) -> Servable:
        """Returns the servable that a ModelSpec names."""
        if spec.version_label:
            raise invalid(
                "Expected a version number. "
                f"Received: version_label={spec.version_label!r}"
            )
        version = spec.version.value if spec.HasField("version") else None
        return self.find(spec.name, version)

    async def predict_json(
        self, name: str, version: int | None, body: bytes | bytearray, left: Left
    ) -> bytes:
        """Returns the response body of a `:predict` request."""
        servable = self.find(name, version)
        async with self._deadline():
            parsed = await self._on_thread(rest.parse, body, servable.dtypes)
            outputs = await self._run(
                servable, parsed.signature, parsed.inputs, (), left
            )
            return await self._on_thread(rest.answer, outputs, parsed.by_row)

    async def predict(self, body: bytes) -> bytes:
        """Returns the PredictResponse to a PredictRequest, both serialized."""
        async with self._deadline():
            request = await self._on_thread(_parsed, "PredictRequest", body)
            servable = self.specified(request.model_spec)
            signature = request.model_spec.signature_name or DEFAULT
            inputs = await self._on_thread(
                protos.parse,
                request,
                servable.dtypes(signature),
                self.limits.max_request_bytes,
            )
            wanted = request.output_filter
            outputs = await self._run(servable, signature, inputs, wanted, _stays)
            response = schema.message("PredictResponse")()
            self._specify(response.model_spec, servable)
            response.model_spec.signature_name = signature

            def serialized() -> bytes:
                protos.fill(response.outputs, outputs)
                return bytes(response.SerializeToString())

            return await self._on_thread(serialized)

    def hold(self, count: int) -> None:
        """Counts bytes of a body; the caller must `release` them.

        Raises:
            Refused: RESOURCE_EXHAUSTED, if all bodies together are too large.
        """
        if self._held + count > self.limits.max_total_bytes:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"Expected at most {self.limits.max_total_bytes} bytes in all current "
                "requests. Received: more. Try again later",
            )
        self._held += count

    def release(self, count: int) -> None:
        """Removes bytes from the count of `hold`, when they are no longer in memory."""
        self._held -= count

    async def follow(self, refresh: Callable[[], Servable]) -> None:
        """Serves what `refresh` returns, every `POLL_SECONDS`, until it is cancelled.

        A running request keeps the version that it started with.
        """
        with futures.ThreadPoolExecutor(1, thread_name_prefix="versions") as loader:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                loop = asyncio.get_running_loop()
                self.servable = await loop.run_in_executor(loader, refresh)

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        seconds = self.limits.max_request_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as late:
            raise Refused(
                "DEADLINE_EXCEEDED",
                f"Expected a response within {seconds:g} s (--max-request-seconds). "
                "Received: a request that takes longer. Send fewer images at once",
            ) from late

    async def _run(
        self,
        servable: Servable,
        signature: str,
        inputs: Arrays,
        wanted: Iterable[str],
        left: Left,
    ) -> Arrays:
        """Computes a signature's outputs part by part, and joins them."""
        self._check(inputs)
        parts = await self._on_thread(servable.parts, signature, inputs)
        results = []
        for number, part in enumerate(parts):
            if number and await left():
                raise Refused("CANCELLED", "The client has disconnected")
            results.append(await self._on_thread(servable.run, signature, part, wanted))
        if len(results) == 1:
            return results[0]
        return {
            name: np.concatenate([one[name] for one in results]) for name in results[0]
        }

    async def _on_thread(self, function: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *args)

    def status(self, servable: Servable) -> Any:
        """Returns a GetModelStatusResponse; the version is always loaded."""
        response = schema.message("GetModelStatusResponse")()
        response.model_version_status.add(
            version=servable.version, state=schema.AVAILABLE
        ).status.SetInParent()
        return response

    def metadata(self, servable: Servable) -> Any:
        """Returns a GetModelMetadataResponse with the MetaGraphDef's signatures."""
        signatures = schema.message("SignatureDefMap")()
        for name, signature in servable.signatures.items():
            schema.assign(signatures.signature_def[name], signature)
        response = schema.message("GetModelMetadataResponse")()
        self._specify(response.model_spec, servable)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _check(self, inputs: Mapping[str, Any]) -> None:
        most = self.limits.max_images
        count = max((len(value) for value in inputs.values() if value.ndim), default=0)
        if count > most:
            raise invalid(
                f"Expected at most {most} images in a request (max_images). "
                f"Received: {count}, which is larger than maximum. Send several "
                "requests"
            )

    def _specify(self, spec: Any, servable: Servable) -> None:
        spec.name = self.name
        spec.version.value = servable.version


class Room:
    """Reads a limited number of messages of calls at a time.

    The length of a message is not known before it has arrived, so the number of
    messages limits their bytes. The more calls are waiting, the less time a message has
    to arrive: a call that never sends its message does not block others.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = max(limits.max_total_bytes // limits.max_request_bytes, 1)
        self._seconds = limits.max_body_seconds
        self._reading: dict[asyncio.Future[Any], float] = {}  # Start time of each.
        self._waiting = 0

    async def message(self, context: Any) -> bytes:
        """Returns the only message of a call; aborts the call if it is late."""
        self._waiting += 1
        try:
            while len(self._reading) >= self._most:
                await self._make_room()
        finally:
            self._waiting -= 1
        reading = asyncio.ensure_future(context.read())
        self._reading[reading] = time.monotonic()
        try:
            await asyncio.wait({reading}, timeout=self._seconds)
        finally:
            self._reading.pop(reading, None)
            reading.cancel()  # No effect if the message has arrived.
        if (
            not reading.done()
            or reading.cancelled()
            or reading.result() is grpc.aio.EOF
        ):
            await context.abort(
                grpc.StatusCode.CANCELLED,
                "Expected a complete message. Received: a part",
            )
        return bytes(reading.result())

    async def _make_room(self) -> None:
        """Waits for the oldest call that is being read, or cancels it."""
        longest, since = next(iter(self._reading.items()))
        until = since + self._seconds / (1 + self._waiting)
        await asyncio.wait({longest}, timeout=max(until - time.monotonic(), 0))
        self._reading.pop(longest, None)
        longest.cancel()


class PredictionService:
    """Predict and GetModelMetadata; Classify and Regress only accept tf.Example."""

    def __init__(self, models: Models, room: Room) -> None:
        self.models, self.room = models, room
        self._running = asyncio.Semaphore(models.limits.max_concurrent_requests)

    async def Predict(self, _: Any, context: Any) -> bytes:
        body = await self.room.message(context)
        async with _answering(context), _one_of(self._running, self.models.limits):
            self.models.hold(len(body))
            try:
                return await self.models.predict(body)
            finally:
                self.models.release(len(body))

    async def GetModelMetadata(self, _: Any, context: Any) -> bytes:
        body = await self.room.message(context)
        async with _answering(context):
            request = _parsed("GetModelMetadataRequest", body)
            if list(request.metadata_field) != ["signature_def"]:
                raise invalid(
                    "Expected metadata_field=['signature_def']. "
                    f"Received: {list(request.metadata_field)}"
                )
            servable = self.models.specified(request.model_spec)
            return bytes(self.models.metadata(servable).SerializeToString())


class ModelService:
    """GetModelStatus of the version that is served."""

    def __init__(self, models: Models, room: Room) -> None:
        self.models, self.room = models, room

    async def GetModelStatus(self, _: Any, context: Any) -> bytes:
        body = await self.room.message(context)
        async with _answering(context):
            request = _parsed("GetModelStatusRequest", body)
            servable = self.models.specified(request.model_spec)
            return bytes(self.models.status(servable).SerializeToString())


async def grpc_server(models: Models, address: str, connections: int) -> Any:
    """Starts a gRPC server.

    Raises:
        OSError: if the port is in use.
    """
    limits = models.limits
    server = grpc.aio.server(
        maximum_concurrent_rpcs=limits.max_connections,  # Including waiting calls.
        options=[
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server_handshake_timeout_ms", 1000 * HEADER_SECONDS),
            ("grpc.max_connection_idle_ms", 60_000),
        ],
    )
    room = Room(limits)
    prediction, status = PredictionService(models, room), ModelService(models, room)
    server.add_generic_rpc_handlers(
        (
            schema.handler(
                "PredictionService",
                {
                    "Predict": prediction.Predict,
                    "GetModelMetadata": prediction.GetModelMetadata,
                },
            ),
            schema.handler("ModelService", {"GetModelStatus": status.GetModelStatus}),
        )
    )
    try:
        server.add_insecure_port(address)
    except RuntimeError as taken:
        raise OSError(
            f"Expected a free port for gRPC. Received: {address} ({taken})"
        ) from taken
    await server.start()
    return server


def http_application(models: Models) -> Starlette:
    """Creates the application of TensorFlow Serving's REST API."""
    running = asyncio.Semaphore(models.limits.max_concurrent_requests)

    async def predict(request: HttpRequest) -> Response:
        async with _body(request, models) as body, _one_of(running, models.limits):
            left = request.is_disconnected
            return _json(await models.predict_json(*_asked(request), body, left))

    async def status(request: HttpRequest) -> Response:
        return _json(_as_json(models.status(models.find(*_asked(request)))))

    async def metadata(request: HttpRequest) -> Response:
        described = models.metadata(models.find(*_asked(request)))
        signatures = schema.message("SignatureDefMap")()
        described.metadata["signature_def"].Unpack(signatures)
        fields = {"signature_def": json.loads(_as_json(signatures))}
        spec = json.loads(_as_json(described.model_spec))
        return _json(json.dumps({"model_spec": spec, "metadata": fields}).encode())

    async def root(_: HttpRequest) -> Response:
        return HTMLResponse(page.html(models.name, models.servable))

    routes = [Route("/", root)]
    for model in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        routes += [
            Route(f"{model}:predict", predict, methods=["POST"]),
            Route(f"{model}/metadata", metadata),
            Route(model, status),
        ]
    handlers: dict[Any, Any] = {
        Refused: _refuse,
        HTTPException: _malformed,
        Exception: _fail,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def serve(
    servable: Servable,
    *,
    name: str = "model",
    host: str = "localhost",
    port: int = 8501,
    grpc_port: int = 8500,
    threads: int | None = None,
    limits: Limits = Limits(),
    refresh: Callable[[], Servable] | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGTERM or Ctrl-C, then lets running requests finish.

    Args:
        servable: version to serve, warmed up.
        name: name of the model in URLs and requests.
        host: address to listen on; "0.0.0.0" accepts connections from any machine.
        port: port of REST.
        grpc_port: port of gRPC.
        threads: number of threads that run requests; default: 4 per core, as in
            TensorFlow Serving. With batching, use twice max_batch_size.
        limits: limits of a request.
        refresh: function that returns the version to serve from then on; called every
            `POLL_SECONDS`.
        ready: function that is called once both ports accept requests.

    Raises:
        ValueError: if the host is not an address of this machine, or the name cannot be
            part of a URL path.
        OSError: if a port is in use, or there are too few file descriptors.
    """
    if re.search("[/:]", name) or not name.isprintable():
        raise ValueError(
            "Expected a model name without '/', ':' and control characters, which a "
            f"URL path cannot contain. Received: name={name!r}"
        )
    models = Models(name, servable, limits, threads or 4 * (os.cpu_count() or 1))
    connections = most_connections(limits.max_connections)
    seconds = limits.max_body_seconds + limits.max_request_seconds + ANSWER_SECONDS
    config = uvicorn.Config(
        http_application(models),
        http=bounded(connections, HEADER_SECONDS, seconds),
        backlog=BACKLOG,
        log_config=None,  # Warnings and errors still go to stderr.
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=LONGEST_STOP,
    )
    server = uvicorn.Server(config)

    async def answer(listening: socket.socket) -> None:
        calls = await grpc_server(models, address(host, grpc_port), connections)
        following = asyncio.create_task(models.follow(refresh)) if refresh else None
        try:
            ready()
            await server.serve([listening])
        finally:
            if following is not None:
                following.cancel()
            await calls.stop(LONGEST_STOP)

    with _listening(host, port) as listening, _until_signalled(server), bounded_log():
        asyncio.run(answer(listening))


def address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 host (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(host: str, port: int) -> socket.socket:
    """Returns a listening socket, on which connections can wait for the server."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # `create_server` hides its error.
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (socket.gaierror, UnicodeError, TypeError) as unknown:
        raise ValueError(
            "Expected a name or an address of this machine, such as localhost or "
            f"0.0.0.0. Received: host={host!r}"
        ) from unknown
    except OSError as taken:
        raise OSError(
            "Expected a free port for REST. "
            f"Received: {address(host, port)} ({taken.strerror})"
        ) from taken


@contextlib.contextmanager
def _until_signalled(server: uvicorn.Server) -> Iterator[None]:
    """Makes SIGTERM and Ctrl-C stop the server, even before it runs."""

    def end(*_: Any) -> None:
        server.should_exit = True  # uvicorn raises the signal again after it stops.

    signals = (signal.SIGTERM, signal.SIGINT)
    before = [(one, signal.signal(one, end)) for one in signals]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


@contextlib.asynccontextmanager
async def _body(request: HttpRequest, models: Models) -> AsyncIterator[bytearray]:
    """Yields a body of limited length and time, and releases its bytes at the end."""
    seconds, held = models.limits.max_body_seconds, bytearray()
    try:
        try:
            async with asyncio.timeout(seconds):
                await _read(request, models, held)
        except TimeoutError as late:
            raise HTTPException(
                408, f"Expected a complete body within {seconds:g} s. Received: a part"
            ) from late
        yield held
    finally:
        models.release(len(held))


async def _read(request: HttpRequest, models: Models, held: bytearray) -> None:
    """Appends a body to `held`, and counts its bytes in the models."""
    limit = models.limits.max_request_bytes
    try:
        async for chunk in request.stream():
            if len(held) + len(chunk) > limit:
                raise HTTPException(
                    413, f"Expected a body of at most {limit} bytes. Received: more"
                )
            models.hold(len(chunk))
            held += chunk
    except ClientDisconnect as gone:
        raise Refused(
            "CANCELLED", "Expected a complete body. Received: a part"
        ) from gone


def _asked(request: HttpRequest) -> tuple[str, int | None]:
    """Returns the model name and version in a URL."""
    name, version = request.path_params["name"], request.path_params.get("version")
    if ":" in name:
        raise HTTPException(405)  # An unknown verb, or the wrong HTTP method.
    if version is None:
        return name, None
    if not (version.isdecimal() and len(version) < 20):  # An int64's digits.
        raise invalid(f"Expected a version number. Received: {version!r}")
    return name, int(version)


def _as_json(message: Any) -> bytes:
    text: str = json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return text.encode("utf-8")


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _refuse(_: HttpRequest, refused: Refused) -> Response:
    return _json(rest.error(str(refused)), refused.http_status)


def _malformed(request: HttpRequest, wrong: HTTPException) -> Response:
    """Answers requests without a route as TensorFlow Serving: 400 in /v1/, else 404."""
    if wrong.status_code not in (404, 405):
        return _json(rest.error(wrong.detail), wrong.status_code)
    text = f"Malformed request: {request.method} {request.url.path}"
    return _json(rest.error(text), 400 if request.url.path.startswith("/v1/") else 404)


def _fail(_: HttpRequest, wrong: Exception) -> Response:
    return _json(rest.error(f"{type(wrong).__name__}: {wrong}"), 500)


@contextlib.asynccontextmanager
async def _one_of(running: asyncio.Semaphore, limits: Limits) -> AsyncIterator[None]:
    """Counts a running request; refuses it if there are too many."""
    if running.locked():
        raise Refused(
            "RESOURCE_EXHAUSTED",
            f"Expected at most {limits.max_concurrent_requests} requests at once. "
            "Received: more. Try again later",
        )
    async with running:
        yield


@contextlib.asynccontextmanager
async def _answering(context: Any) -> AsyncIterator[None]:
    """Aborts the call with the status of a refusal."""
    try:
        yield
    except Refused as refused:
        await context.abort(grpc.StatusCode[refused.code], str(refused))


def _parsed(name: str, body: bytes) -> Any:
    try:
        return schema.message(name).FromString(body)
    except DecodeError as wrong:
        raise invalid(f"Expected a {name}. Received: {wrong}") from wrong


async def _stays() -> bool:
    """Returns False: gRPC itself cancels the call of a client that disconnects."""
    return False
