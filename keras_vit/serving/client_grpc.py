"""Client of TensorFlow Serving's PredictionService over gRPC."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from keras_vit._version import pip_install
from keras_vit.serving import schema
from keras_vit.serving.transport import Target, Transport, asking

try:
    import grpc
except ImportError as error:
    raise ImportError(
        "Expected grpcio for grpc:// and grpcs:// URLs. Received: none. "
        f"Run {pip_install('serving')}"
    ) from error

UNLIMITED = -1
UNREADABLE = "deserializing"  # In grpcio's INTERNAL error if a response is not a proto.
# gRPC cannot retry larger requests; its default of 256 KiB is less than one photo.
RETRIED_BYTES = 2**30


class Grpc(Transport):
    """A channel to a gRPC server."""

    def __init__(self, target: Target):
        self.target = target
        address = urlsplit(target.url)
        options = [
            ("grpc.max_send_message_length", UNLIMITED),
            ("grpc.max_receive_message_length", UNLIMITED),
            ("grpc.initial_reconnect_backoff_ms", 100),
            *_retries(target.retries),
        ]
        self._channel = (
            grpc.secure_channel(address.netloc, grpc.ssl_channel_credentials(), options)
            if address.scheme == "grpcs"
            else grpc.insecure_channel(address.netloc, options)
        )
        self._headers = [(key.lower(), text) for key, text in target.headers.items()]

    def predict(
        self, signature: str, key: str, values: Sequence[bytes] | np.ndarray
    ) -> dict[str, np.ndarray]:
        request = schema.message("PredictRequest")()
        self._name(request.model_spec)
        request.model_spec.signature_name = signature
        is_array = isinstance(values, np.ndarray)
        kept = values if is_array else np.array(values, dtype=object)
        schema.assign(request.inputs[key], tf.make_tensor_proto(kept))
        description = asking(signature, len(values))
        answer = self._ask("Predict", request, description)
        try:
            return {key: _array(tensor) for key, tensor in answer.outputs.items()}
        except (TypeError, ValueError) as error:
            raise self.target.garbled(description, str(error)) from error

    def metadata(self) -> dict[str, Any]:
        request = schema.message("GetModelMetadataRequest")()
        self._name(request.model_spec)
        request.metadata_field.append("signature_def")
        answer = self._ask("GetModelMetadata", request, "metadata")
        signatures = schema.message("SignatureDefMap")()
        answer.metadata["signature_def"].Unpack(signatures)
        return {
            "model_spec": _json(answer.model_spec),
            "metadata": {"signature_def": _json(signatures)},
        }

    def close(self) -> None:
        self._channel.close()

    def _name(self, spec: Any) -> None:
        spec.name = self.target.name
        if isinstance(self.target.version, str):
            spec.version_label = self.target.version
        elif self.target.version is not None:
            spec.version.value = self.target.version

    def _ask(self, method: str, request: Any, description: str) -> Any:
        call = schema.call(self._channel, "PredictionService", method)
        try:
            return call(request, timeout=self.target.timeout, metadata=self._headers)
        except grpc.RpcError as error:
            raise self._meaning(error, description) from error

    def _meaning(self, error: Any, description: str) -> OSError:
        """Returns the exception for a status other than OK."""
        code, status = error.code(), grpc.StatusCode
        received = f"{code.name}: {error.details()!r}"
        if code == status.UNAVAILABLE:
            return self.target.unavailable(received)
        if code == status.DEADLINE_EXCEEDED:
            return self.target.late(description)
        if code == status.NOT_FOUND:
            return self.target.unknown(description, received)
        if code == status.RESOURCE_EXHAUSTED:
            return self.target.busy(description, received)
        if code in (status.UNAUTHENTICATED, status.PERMISSION_DENIED):
            return self.target.forbidden(description, received)
        if code in (status.INVALID_ARGUMENT, status.FAILED_PRECONDITION):
            return self.target.refused(description, received)
        broken = code in (status.INTERNAL, status.UNKNOWN, status.DATA_LOSS)
        if broken and UNREADABLE not in received:
            return self.target.failed(description, received)
        return self.target.garbled(description, received)


def _retries(retries: int) -> list[tuple[str, Any]]:
    """Returns channel options: only UNAVAILABLE is retried, with backoff and jitter."""
    if not retries:
        return [("grpc.enable_retries", 0)]
    policy = {
        "maxAttempts": 1 + retries,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    service = [{"service": "tensorflow.serving.PredictionService"}]
    methods = {"methodConfig": [{"name": service, "retryPolicy": policy}]}
    return [
        ("grpc.service_config", json.dumps(methods)),
        ("grpc.per_rpc_retry_buffer_size", RETRIED_BYTES),
    ]


def _array(tensor: Any) -> np.ndarray:
    """Converts a tensor to an array: strings to str objects, numbers to float32."""
    array = tf.make_ndarray(tensor)
    if array.dtype != object:
        return np.asarray(array, np.float32)
    texts = [text.decode("utf-8", "replace") for text in array.ravel()]
    return np.array(texts, dtype=object).reshape(array.shape)


def _json(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True
    )
    return fields
