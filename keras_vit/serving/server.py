"""An exported model behind TensorFlow Serving's two protocols, to try it out.

REST is TensorFlow Serving's documented API (`POST /v1/models/NAME:predict`) on uvicorn
and Starlette; gRPC its PredictionService and ModelService. The
rules are those of tensorflow/serving's model_servers/ and servables/tensorflow/;
docs/serving.md says how to run the real server, and what differs.
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
        f"Received: {missing}. pip install 'keras-vit-paper[server]'"
    ) from missing


T = TypeVar("T")
Left: TypeAlias = Callable[[], Awaitable[bool]]  # Whether the client is gone.

HEADER_SECONDS = 10  # Also of a connection without a request.
ANSWER_SECONDS = 30  # Until a client has read an answer.
LONGEST_STOP = 30  # Seconds that running requests have after SIGTERM.
POLL_SECONDS = 1  # TensorFlow Serving's --file_system_poll_wait_seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for; docs/serving.md lists what clients can occupy."""

    max_request_bytes: int = 2**25  # Of a body; base64 makes a file a third longer.
    max_total_bytes: int = 2**29  # Of all bodies; more are RESOURCE_EXHAUSTED.
    max_body_seconds: float = 30  # A REST body that takes longer is a 408.
    max_request_seconds: float = 30  # From a whole body to its answer.
    max_concurrent_requests: int = 256  # Of each protocol; more are RESOURCE_EXHAUSTED.
    max_connections: int = 1024  # Of each protocol, or what descriptors allow.
    max_images: int = 1024  # Of a request: an empty string takes an image's memory.


class Models:
    """One model by its name, for both protocols.

    What takes long runs on a pool of threads, a request's images in parts: requests
    take turns, and one whose time is over or whose client is gone stops between parts.

    Args:
        name: in the address and in requests.
        servable: the version that is served.
        limits: limits of a request.
        threads: number of threads in the pool.
    """

    def __init__(
        self, name: str, servable: Servable, limits: Limits, threads: int = 1
    ) -> None:
        self.name, self.servable, self.limits = name, servable, limits
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._held = 0  # Bytes of bodies.

    def find(self, name: str, version: int | None) -> Servable:
        """The version asked for.

        Raises:
            Refused: NOT_FOUND, for another name or version.
        """
        if name != self.name or version not in (None, self.servable.version):
            served = f"{self.name!r}, version {self.servable.version}"
            asked = f"{name!r}" + ("" if version is None else f", version {version}")
            raise Refused("NOT_FOUND", f"Expected model {served}. Received: {asked}")
        return self.servable

    def specified(self, spec: Any) -> Servable:
        """Likewise, by a ModelSpec."""
        if spec.version_label:
            raise invalid(
                "Expected a version by its number. "
                f"Received: version_label={spec.version_label!r}"
            )
        version = spec.version.value if spec.HasField("version") else None
        return self.find(spec.name, version)

    async def predict_json(
        self, name: str, version: int | None, body: bytes | bytearray, left: Left
    ) -> bytes:
        """The body that answers a `:predict`."""
        servable = self.find(name, version)
        async with self._deadline():
            asked = await self._on_thread(rest.parse, body, servable.dtypes)
            outputs = await self._run(servable, asked.signature, asked.inputs, (), left)
            return await self._on_thread(rest.answer, outputs, asked.by_row)

    async def predict(self, body: bytes) -> bytes:
        """A PredictRequest's PredictResponse, both serialized."""
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
            found = await self._run(servable, signature, inputs, wanted, _stays)
            response = schema.message("PredictResponse")()
            self._specify(response.model_spec, servable)
            response.model_spec.signature_name = signature

            def serialized() -> bytes:
                protos.fill(response.outputs, found)
                return bytes(response.SerializeToString())

            return await self._on_thread(serialized)

    def hold(self, count: int) -> None:
        """Counts bytes of a body; `release` has to be called for them.

        Raises:
            Refused: RESOURCE_EXHAUSTED, if all bodies together have too many.
        """
        if self._held + count > self.limits.max_total_bytes:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"Expected {self.limits.max_total_bytes} bytes of requests at once, at "
                "most. Received: more. Try again later",
            )
        self._held += count

    def release(self, count: int) -> None:
        """Bytes that `hold` counted are no longer in memory."""
        self._held -= count

    async def follow(self, refresh: Callable[[], Servable]) -> None:
        """Serves what `refresh` returns, every `POLL_SECONDS`, until it is cancelled.

        Requests that run keep the version they began with.
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
                f"Expected an answer within {seconds:g} s (--max-request-seconds). "
                "Received: a request that takes longer. Ask for fewer images at once",
            ) from late

    async def _run(
        self,
        servable: Servable,
        signature: str,
        inputs: Arrays,
        wanted: Iterable[str],
        left: Left,
    ) -> Arrays:
        """A signature's outputs, part by part."""
        self._check(inputs)
        parts = await self._on_thread(servable.parts, signature, inputs)
        found = []
        for number, part in enumerate(parts):
            if number and await left():
                raise Refused("CANCELLED", "Expected a client. Received: it is gone")
            found.append(await self._on_thread(servable.run, signature, part, wanted))
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}

    async def _on_thread(self, function: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *args)

    def status(self, servable: Servable) -> Any:
        """A GetModelStatusResponse: a server that answers has its version loaded."""
        response = schema.message("GetModelStatusResponse")()
        response.model_version_status.add(
            version=servable.version, state=schema.AVAILABLE
        ).status.SetInParent()
        return response

    def metadata(self, servable: Servable) -> Any:
        """A GetModelMetadataResponse: the MetaGraphDef's signatures."""
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
                f"Expected {most} images in a request at most (max_images). "
                f"Received: {count}, which is larger than maximum. Send several"
            )

    def _specify(self, spec: Any, servable: Servable) -> None:
        spec.name = self.name
        spec.version.value = servable.version


class Room:
    """Reads the messages of calls, a number at a time.

    A message's length is not known before it is there, so a number of messages bounds
    their bytes. The more calls wait for room, the less time a message has to come:
    calls that never send theirs do not keep others waiting.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = max(limits.max_total_bytes // limits.max_request_bytes, 1)
        self._seconds = limits.max_body_seconds
        self._reading: dict[asyncio.Future[Any], float] = {}  # Since when.
        self._waiting = 0

    async def message(self, context: Any) -> bytes:
        """The one message of a call; ends the call if it does not come in time."""
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
            reading.cancel()  # Nothing, where the message is there.
        if (
            not reading.done()
            or reading.cancelled()
            or reading.result() is grpc.aio.EOF
        ):
            await context.abort(
                grpc.StatusCode.CANCELLED, "Expected a whole message. Received: a part"
            )
        return bytes(reading.result())

    async def _make_room(self) -> None:
        """Waits for the call that has been read longest, or ends it."""
        longest, since = next(iter(self._reading.items()))
        until = since + self._seconds / (1 + self._waiting)
        await asyncio.wait({longest}, timeout=max(until - time.monotonic(), 0))
        self._reading.pop(longest, None)
        longest.cancel()


class PredictionService:
    """Predict and GetModelMetadata; Classify and Regress take tf.Example only."""

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
    """GetModelStatus, of the version that is served."""

    def __init__(self, models: Models, room: Room) -> None:
        self.models, self.room = models, room

    async def GetModelStatus(self, _: Any, context: Any) -> bytes:
        body = await self.room.message(context)
        async with _answering(context):
            request = _parsed("GetModelStatusRequest", body)
            servable = self.models.specified(request.model_spec)
            return bytes(self.models.status(servable).SerializeToString())


async def grpc_server(models: Models, address: str, connections: int) -> Any:
    """A started gRPC server.

    Raises:
        OSError: if the port is taken.
    """
    limits = models.limits
    server = grpc.aio.server(
        maximum_concurrent_rpcs=limits.max_connections,  # Those that wait for room too.
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
    """TensorFlow Serving's REST API."""
    running = asyncio.Semaphore(models.limits.max_concurrent_requests)

    async def predict(request: HttpRequest) -> Response:
        async with _body(request, models) as body, _one_of(running, models.limits):
            left = request.is_disconnected
            return _json(await models.predict_json(*_asked(request), body, left))

    async def status(request: HttpRequest) -> Response:
        return _json(_as_json(models.status(models.find(*_asked(request)))))

    async def metadata(request: HttpRequest) -> Response:
        told = models.metadata(models.find(*_asked(request)))
        signatures = schema.message("SignatureDefMap")()
        told.metadata["signature_def"].Unpack(signatures)
        fields = {"signature_def": json.loads(_as_json(signatures))}
        spec = json.loads(_as_json(told.model_spec))
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
    """Answers until SIGTERM or Ctrl-C, then lets running requests end.

    Args:
        servable: what to serve, warmed up.
        name: name of the model, in the address.
        host: whose connections are taken; "0.0.0.0" is everyone.
        port: port of REST.
        grpc_port: port of gRPC.
        threads: that run requests; 4 a core by default, as the real server's, which
            with batching has to be twice max_batch_size.
        limits: limits of a request.
        refresh: called every `POLL_SECONDS`; returns the version to serve from then on.
        ready: called once both ports answer.

    Raises:
        ValueError: if the host is no address of this machine, or the name cannot be
            part of a URL's path.
        OSError: if a port is taken, or there are too few file descriptors.
    """
    if re.search("[/:]", name) or not name.isprintable():
        raise ValueError(
            "Expected a model's name without '/', ':' and control characters, which "
            f"its address cannot contain. Received: name={name!r}"
        )
    models = Models(name, servable, limits, threads or 4 * (os.cpu_count() or 1))
    connections = most_connections(limits.max_connections)
    seconds = limits.max_body_seconds + limits.max_request_seconds + ANSWER_SECONDS
    config = uvicorn.Config(
        http_application(models),
        http=bounded(connections, HEADER_SECONDS, seconds),
        backlog=BACKLOG,
        log_config=None,  # Warnings and errors go to stderr all the same.
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
    """`host:port`; an IPv6 host has brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(host: str, port: int) -> socket.socket:
    """A socket whose connections wait from now on, if they have to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # `create_server` hides its error.
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (socket.gaierror, UnicodeError, TypeError) as unknown:
        raise ValueError(
            "Expected a name or an address of this machine to serve at, such as "
            f"localhost or 0.0.0.0. Received: host={host!r}"
        ) from unknown
    except OSError as taken:
        raise OSError(
            "Expected a free port for REST. "
            f"Received: {address(host, port)} ({taken.strerror})"
        ) from taken


@contextlib.contextmanager
def _until_signalled(server: uvicorn.Server) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the server, before it runs too; not the process."""

    def end(*_: Any) -> None:
        server.should_exit = True  # uvicorn raises again what it ended by.

    signals = (signal.SIGTERM, signal.SIGINT)
    before = [(one, signal.signal(one, end)) for one in signals]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


@contextlib.asynccontextmanager
async def _body(request: HttpRequest, models: Models) -> AsyncIterator[bytearray]:
    """A body, held until its answer is there; of a bounded length and time."""
    seconds, held = models.limits.max_body_seconds, bytearray()
    try:
        try:
            async with asyncio.timeout(seconds):
                await _read(request, models, held)
        except TimeoutError as late:
            raise HTTPException(
                408, f"Expected a whole body within {seconds:g} s. Received: a part"
            ) from late
        yield held
    finally:
        models.release(len(held))


async def _read(request: HttpRequest, models: Models, held: bytearray) -> None:
    """Appends a body to bytes that the models hold."""
    limit = models.limits.max_request_bytes
    try:
        async for chunk in request.stream():
            if len(held) + len(chunk) > limit:
                raise HTTPException(
                    413, f"Expected a body of {limit} bytes at most. Received: more"
                )
            models.hold(len(chunk))
            held += chunk
    except ClientDisconnect as gone:
        raise Refused("CANCELLED", "Expected a whole body. Received: a part") from gone


def _asked(request: HttpRequest) -> tuple[str, int | None]:
    """Name and version of an address."""
    name, version = request.path_params["name"], request.path_params.get("version")
    if ":" in name:
        raise HTTPException(405)  # A verb that there is not, or not for this method.
    if version is None:
        return name, None
    if not (version.isdecimal() and len(version) < 20):  # An int64's digits.
        raise invalid(f"Expected a version's number. Received: {version!r}")
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
    """What no route takes; the real server says 400 of it below /v1/, 404 elsewhere."""
    if wrong.status_code not in (404, 405):
        return _json(rest.error(wrong.detail), wrong.status_code)
    told = f"Malformed request: {request.method} {request.url.path}"
    return _json(rest.error(told), 400 if request.url.path.startswith("/v1/") else 404)


def _fail(_: HttpRequest, wrong: Exception) -> Response:
    return _json(rest.error(f"{type(wrong).__name__}: {wrong}"), 500)


@contextlib.asynccontextmanager
async def _one_of(running: asyncio.Semaphore, limits: Limits) -> AsyncIterator[None]:
    """Inside, a request counts among those that run; one too many is refused."""
    if running.locked():
        raise Refused(
            "RESOURCE_EXHAUSTED",
            f"Expected {limits.max_concurrent_requests} requests at once, at most. "
            "Received: more. Try again later",
        )
    async with running:
        yield


@contextlib.asynccontextmanager
async def _answering(context: Any) -> AsyncIterator[None]:
    """Ends the call with a refusal's status."""
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
    """Of a call: gRPC cancels what runs for a client that leaves."""
    return False
