"""Two servers on the loopback that speak as TensorFlow Serving does, faults on demand.

They answer the published protos: gRPC's is grpcio with the published servicer; REST's
turns JSON into a PredictRequest by the rules of api_rest.md and json_tensor.cc, and the
gRPC code into the HTTP status of http_server.cc.
"""

import base64
import collections
import contextlib
import gzip
import http.server
import json
import re
import socket
import struct
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

CODES = {  # tensorflow_serving/model_servers/http_server.cc
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# tensorflow_serving/model_servers/http_rest_api_util.cc
PATH = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict|/metadata|)"
)


class Fault(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Served:
    """A SavedModel, `name` version 1, label "stable", and what it was asked.

    `faults` are taken one a request: a gRPC code to fail with, seconds to sleep before
    it fails, or a word that the server knows, as "hang up".
    """

    def __init__(self, folder):
        self.loaded = tf.saved_model.load(str(folder))
        described = saved_model_pb2.SavedModel()
        described.ParseFromString((folder / "saved_model.pb").read_bytes())
        self.name = "model"
        self.described = described.meta_graphs[0].signature_def
        self.asked = []
        self.headers = []
        self.attempts = 0
        self.faults = collections.deque()
        self.change = lambda outputs: outputs

    def reset(self):
        self.asked.clear()
        self.headers.clear()
        self.faults.clear()
        self.attempts = 0
        self.change = lambda outputs: outputs

    def fault(self):
        """The next fault that is a word; raises or sleeps for the others."""
        self.attempts += 1
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, grpc.StatusCode):
            raise Fault(fault, "as the test wants it")
        if isinstance(fault, float):
            time.sleep(fault)
            raise Fault(grpc.StatusCode.INTERNAL, "whoever asked should be gone")
        return fault

    def check(self, spec):
        name, version = spec.name, spec.version.value or spec.version_label
        if name != self.name:
            told = f"Servable not found for request: Latest({name})"
            raise Fault(grpc.StatusCode.NOT_FOUND, told)
        if version not in ("", 1, "stable"):
            told = f"Servable not found for request: Specific({name}, {version})"
            raise Fault(grpc.StatusCode.NOT_FOUND, told)

    def tensors(self, signature):
        """The inputs' TensorInfos of a signature."""
        if signature not in self.described:
            told = f'Serving signature name: "{signature}" not found in signature def'
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, told)
        return self.described[signature].inputs

    def predict(self, request):
        """PredictRequest -> PredictResponse."""
        self.check(request.model_spec)
        signature = request.model_spec.signature_name or "serving_default"
        known = self.tensors(signature)
        if request.inputs.keys() != known.keys():
            told = f"input keys {sorted(request.inputs)}, expected {sorted(known)}"
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, told)
        self.asked.append(request)
        inputs = {
            key: tf.constant(tf.make_ndarray(tensor), tf.as_dtype(tensor.dtype))
            for key, tensor in request.inputs.items()
        }
        try:
            outputs = self.loaded.signatures[signature](**inputs)
        except tf.errors.InvalidArgumentError as error:
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, error.message) from error
        outputs = self.change({key: value.numpy() for key, value in outputs.items()})
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(request.model_spec)
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def metadata(self, request):
        """GetModelMetadataRequest -> GetModelMetadataResponse."""
        self.check(request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = 1
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, described in self.described.items():
            signatures.signature_def[name].CopyFrom(described)
        response.metadata["signature_def"].Pack(signatures)
        return response


class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, served):
        self.served = served

    def answer(self, method, request, context):
        self.served.headers.append(dict(context.invocation_metadata()))
        try:
            word = self.served.fault()
            if word == "garbage":
                return b"\xff not a proto"
            if word == "hang up":
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return method(request).SerializeToString()
        except Fault as fault:
            context.abort(fault.code, str(fault))

    def handler(self):
        """The published service, its answers serialized here."""
        methods = {
            "Predict": (self.served.predict, predict_pb2.PredictRequest),
            "GetModelMetadata": (
                self.served.metadata,
                get_model_metadata_pb2.GetModelMetadataRequest,
            ),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda request, context, method=method: self.answer(
                    method, request, context
                ),
                request_deserializer=proto.FromString,
            )
            for name, (method, proto) in methods.items()
        }
        service = "tensorflow.serving.PredictionService"
        return grpc.method_handlers_generic_handler(service, handlers)


@contextlib.contextmanager
def grpc_server(served):
    """Yields the URL."""
    # TensorFlow Serving's limit: server.cc, SetMaxMessageSize(kint32max).
    options = [("grpc.max_receive_message_length", 2**31 - 1), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
    server.add_generic_rpc_handlers((Servicer(served).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.respond(b"")

    def do_POST(self):
        self.respond(self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body):
        served = self.server.served
        served.headers.append({key.lower(): text for key, text in self.headers.items()})
        try:
            word = served.fault()
            if word == "hang up":
                self.hang_up()
                return
            if word == "drip":
                self.drip()
                return
            code, answer = 200, self.answer(body)
            if word == "garbage":
                answer = "<html>It works!</html>"
            if word == "in chunks":
                self.send_chunks(answer.encode())
                return
        except Fault as fault:
            code, answer = CODES[fault.code], json.dumps({"error": str(fault)})
        self.send(code, answer.encode())

    def send(self, code, answer):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        with contextlib.suppress(OSError):  # Whoever asked may have given up.
            self.wfile.write(answer)

    def send_chunks(self, answer):
        """Compressed and of no told length, as a proxy may send it."""
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        packed = gzip.compress(answer)
        for part in (packed[:40], packed[40:], b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def hang_up(self):
        """A reset, not a polite end."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True

    def drip(self):
        """A byte each 50 ms, for 5 s: never so slow that a read would time out."""
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(100):
                self.wfile.write(b" ")
                time.sleep(0.05)
        self.close_connection = True

    def answer(self, body):
        found = PATH.fullmatch(self.path)
        if found is None:
            told = f"Malformed request: {self.command} {self.path}"
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, told)
        name, version, label, method = found.groups()
        spec = predict_pb2.PredictRequest().model_spec
        spec.name = name
        if version:
            spec.version.value = int(version)
        if label:
            spec.version_label = label
        served = self.server.served
        if method == "/metadata":
            request = get_model_metadata_pb2.GetModelMetadataRequest()
            request.model_spec.CopyFrom(spec)
            return metadata_json(served.metadata(request))
        served.check(spec)
        if not method:
            return status_json()
        request, by_row = predict_request(json.loads(body), spec, served.tensors)
        return predict_json(served.predict(request), by_row)

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def rest_server(served):
    """Yields the URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.served = served
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def predict_request(body, spec, tensors):
    """JSON -> PredictRequest, and whether it is by rows; a fault if it is no such."""
    request = predict_pb2.PredictRequest(model_spec=spec)
    request.model_spec.signature_name = body.pop("signature_name", "")
    known = tensors(request.model_spec.signature_name or "serving_default")
    by_row = body.keys() == {"instances"}
    if not by_row and body.keys() != {"inputs"}:
        told = f"JSON Value: {sorted(body)} not formatted correctly"
        raise Fault(grpc.StatusCode.INVALID_ARGUMENT, told)
    columns = of_rows(body["instances"], known) if by_row else body["inputs"]
    for key, info in known.items():
        values = columns[key]
        if info.dtype == tf.string.as_datatype_enum:
            values = [base64.b64decode(value["b64"], validate=True) for value in values]
        tensor = tf.make_tensor_proto(values, dtype=tf.as_dtype(info.dtype))
        request.inputs[key].CopyFrom(tensor)
    return request, by_row


def of_rows(rows, known):
    """Rows as columns; one input alone may go without its name."""
    if len(known) == 1 and (not isinstance(rows[0], dict) or rows[0].keys() == {"b64"}):
        return {next(iter(known)): rows}
    for row in rows:
        if row.keys() != known.keys():
            told = f"keys must be equal to: {','.join(known)}"
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, told)
    return {key: [row[key] for row in rows] for key in known}


def predict_json(response, by_row):
    """PredictResponse -> JSON, its numbers as TensorFlow Serving writes them."""
    outputs = {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}
    if not by_row:
        return json.dumps({"outputs": {key: plain(v) for key, v in outputs.items()}})
    rows = [
        {key: plain(value[place]) for key, value in outputs.items()}
        for place in range(max(map(len, outputs.values())))
    ]
    return json.dumps({"predictions": rows})


def status_json():
    """A GetModelStatusResponse as JSON."""
    response = get_model_status_pb2.GetModelStatusResponse()
    version = response.model_version_status.add(version=1, state="AVAILABLE")
    version.status.SetInParent()
    return json_format.MessageToJson(response, preserving_proto_field_name=True)


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        return [plain(part) for part in value]
    return float(f"{value:.9g}")  # json_tensor.cc: max_digits10.


def metadata_json(response):
    """GetModelMetadataResponse -> JSON, as http_rest_api_util.cc puts it together."""

    def text(message):
        return json_format.MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )

    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    spec, told = text(response.model_spec), text(signatures)
    return f'{{"model_spec": {spec}, "metadata": {{"signature_def": {told}}}}}'
