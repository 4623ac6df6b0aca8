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
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

from keras_vit.serving import protos, rest, schema
from keras_vit.serving.errors import Refused, invalid
from keras_vit.serving.servable import DEFAULT, Servable

try:
    import grpc
    import uvicorn
    from google.protobuf import json_format
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise ImportError(
        "Expected uvicorn, Starlette and grpcio, which `keras-vit serve` requires. "
        f"Received: {missing}. pip install 'keras-vit-paper[server]'"
    ) from missing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for; docs/serving.md says what a client can take."""

    max_request_bytes: int = 2**25  # Of a body; base64 makes a file a third longer.
    max_body_seconds: float = 30  # REST's: a body that takes longer is a 408.
    max_concurrent_requests: int = 256  # Of each protocol; more are RESOURCE_EXHAUSTED.
    max_images: int = 1024  # Of a request: an empty string takes an image's memory.


class Models:
    """What both protocols ask: one model, of one version, by its name.

    Args:
        name: in the address and in requests.
        servable: the version that is served.
        limits: of a request.
    """

    def __init__(self, name: str, servable: Servable, limits: Limits) -> None:
        self.name, self.servable, self.limits = name, servable, limits

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

    def predict_json(self, name: str, version: int | None, body: bytes) -> bytes:
        """The body that answers a `:predict`."""
        servable = self.find(name, version)
        asked = rest.parse(body, servable.dtypes)
        self._check(asked.inputs)
        outputs = servable.run(asked.signature, asked.inputs)
        return rest.answer(outputs, asked.by_row)

    def predict(self, request: Any) -> Any:
        """A PredictRequest's PredictResponse."""
        servable = self.specified(request.model_spec)
        signature = request.model_spec.signature_name or DEFAULT
        inputs = protos.parse(
            request, servable.dtypes(signature), self.limits.max_request_bytes
        )
        self._check(inputs)
        found = servable.run(signature, inputs, request.output_filter)
        response = schema.message("PredictResponse")()
        self._specify(response.model_spec, servable)
        response.model_spec.signature_name = signature
        protos.fill(response.outputs, found)
        return response

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


class PredictionService:
    """Predict and GetModelMetadata; Classify and Regress take tf.Example only."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def Predict(self, request: Any, context: Any) -> Any:
        return _answered(lambda: self.models.predict(request), context)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        def told() -> Any:
            if list(request.metadata_field) != ["signature_def"]:
                raise invalid(
                    "Expected metadata_field=['signature_def']. "
                    f"Received: {list(request.metadata_field)}"
                )
            return self.models.metadata(self.models.specified(request.model_spec))

        return _answered(told, context)


class ModelService:
    """GetModelStatus; what is served does not change while the server runs."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def GetModelStatus(self, request: Any, context: Any) -> Any:
        def told() -> Any:
            return self.models.status(self.models.specified(request.model_spec))

        return _answered(told, context)


def grpc_server(models: Models, address: str, threads: int) -> Any:
    """A started gRPC server.

    Raises:
        OSError: if the port is taken.
    """
    length = models.limits.max_request_bytes
    server = grpc.server(
        futures.ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
        maximum_concurrent_rpcs=models.limits.max_concurrent_requests,
        options=[
            ("grpc.max_receive_message_length", length),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    prediction, status = PredictionService(models), ModelService(models)
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
    server.start()
    return server


def http_application(models: Models, threads: int) -> Starlette:
    """TensorFlow Serving's REST API."""
    pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="rest")
    waiting = asyncio.Semaphore(models.limits.max_concurrent_requests)

    async def predict(request: HttpRequest) -> Response:
        body = await _read(request, models.limits)
        if waiting.locked():
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"Expected {models.limits.max_concurrent_requests} requests at once, "
                "at most. Received: more. Try again later",
            )
        async with waiting:
            running = asyncio.get_running_loop().run_in_executor(
                pool, models.predict_json, *_asked(request), body
            )
            return _json(await running)

    async def status(request: HttpRequest) -> Response:
        return _json(_as_json(models.status(models.find(*_asked(request)))))

    async def metadata(request: HttpRequest) -> Response:
        told = models.metadata(models.find(*_asked(request)))
        signatures = schema.message("SignatureDefMap")()
        told.metadata["signature_def"].Unpack(signatures)
        fields = {"signature_def": json.loads(_as_json(signatures))}
        spec = json.loads(_as_json(told.model_spec))
        return _json(json.dumps({"model_spec": spec, "metadata": fields}).encode())

    routes = []
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
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answers until SIGTERM or Ctrl-C, then lets running requests end.

    Args:
        servable: what to serve, warmed up.
        name: of the model, in the address.
        host: whose connections are taken; "0.0.0.0" is everyone.
        port: of REST.
        grpc_port: of gRPC.
        threads: that run requests, of each protocol; 4 a core by default, as the
            real server's, which with batching has to be twice max_batch_size.
        limits: of a request.
        ready: called once both ports answer.

    Raises:
        ValueError: if the host is no address of this machine, or the name cannot be
            part of a URL's path.
        OSError: if a port is taken.
    """
    if re.search("[/:]", name) or not name.isprintable():
        raise ValueError(
            "Expected a model's name without '/', ':' and control characters, which "
            f"its address cannot contain. Received: name={name!r}"
        )
    models = Models(name, servable, limits)
    threads = threads or 4 * (os.cpu_count() or 1)
    config = uvicorn.Config(
        http_application(models, threads),
        log_config=None,  # Warnings and errors go to stderr all the same.
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=30,
    )
    server = uvicorn.Server(config)
    with _listening(host, port) as listening, _until_signalled(server):
        calls = grpc_server(models, address(host, grpc_port), threads)
        try:
            ready()
            server.run([listening])
        finally:
            calls.stop(grace=30).wait()


def address(host: str, port: int) -> str:
    """`host:port`; an IPv6 host has brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(host: str, port: int) -> socket.socket:
    """A socket whose connections wait from now on, if they have to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # `create_server` hides its error.
        return socket.create_server((host, port), family=family, backlog=2048)
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


async def _read(request: HttpRequest, limits: Limits) -> bytes:
    """A body that is whole in time and not too long, whatever its header says."""
    seconds = limits.max_body_seconds
    try:
        body = _read_all(request, limits.max_request_bytes)
        return await asyncio.wait_for(body, seconds)
    except TimeoutError as late:
        raise HTTPException(
            408, f"Expected a whole body within {seconds:g} s. Received: a part"
        ) from late


async def _read_all(request: HttpRequest, limit: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(
                    413, f"Expected a body of {limit} bytes at most. Received: more"
                )
    except ClientDisconnect as gone:
        raise Refused("CANCELLED", "Expected a whole body. Received: a part") from gone
    return bytes(body)


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


def _answered(answer: Callable[[], Any], context: Any) -> Any:
    """What `answer` returns, or the call ended with the refusal's status."""
    try:
        return answer()
    except Refused as refused:
        context.abort(grpc.StatusCode[refused.code], str(refused))
