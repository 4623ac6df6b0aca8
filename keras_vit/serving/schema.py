"""TensorFlow Serving's messages and methods, without its package of stubs.

tensorflow-serving-api requires a specific TensorFlow version, so pip would replace the
installed TensorFlow. The few messages that are needed are built here on first use, with
the installed protobuf. They are in a separate pool, so tensorflow-serving-api can also
be imported. Names and field numbers are those of tensorflow/serving's `apis/*.proto`.
Other fields are kept as unknown fields.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    wrappers_pb2,
)
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import error_codes_pb2, meta_graph_pb2

PACKAGE = "tensorflow.serving"
_FILE = "keras_vit/serving/schema.proto"
_IMPORTED = (any_pb2, wrappers_pb2, tensor_pb2, error_codes_pb2, meta_graph_pb2)
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "int64": _Field.TYPE_INT64}
_STATES = {  # apis/get_model_status.proto
    "UNKNOWN": 0,
    "START": 10,
    "LOADING": 20,
    "AVAILABLE": 30,
    "UNLOADING": 40,
    "END": 50,
}
# Fields by number: name and type. `repeated T`, `map T` (with string keys), and
# `oneof T` for the fields of a message that exclude each other.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "ModelSpec": {  # apis/model.proto
        1: ("name", "string"),
        2: ("version", "oneof google.protobuf.Int64Value"),
        3: ("signature_name", "string"),
        4: ("version_label", "oneof string"),
    },
    "PredictRequest": {  # apis/predict.proto
        1: ("model_spec", "ModelSpec"),
        2: ("inputs", "map tensorflow.TensorProto"),
        3: ("output_filter", "repeated string"),
    },
    "PredictResponse": {
        1: ("outputs", "map tensorflow.TensorProto"),
        2: ("model_spec", "ModelSpec"),
    },
    "PredictLog": {  # apis/prediction_log.proto
        1: ("request", "PredictRequest"),
        2: ("response", "PredictResponse"),
    },
    "PredictionLog": {6: ("predict_log", "PredictLog")},
    "SignatureDefMap": {  # apis/get_model_metadata.proto
        1: ("signature_def", "map tensorflow.SignatureDef")
    },
    "GetModelMetadataRequest": {
        1: ("model_spec", "ModelSpec"),
        2: ("metadata_field", "repeated string"),
    },
    "GetModelMetadataResponse": {
        1: ("model_spec", "ModelSpec"),
        2: ("metadata", "map google.protobuf.Any"),
    },
    "GetModelStatusRequest": {1: ("model_spec", "ModelSpec")},
    "StatusProto": {  # apis/status.proto
        1: ("error_code", "enum tensorflow.error.Code"),
        2: ("error_message", "string"),
    },
    "ModelVersionStatus": {
        1: ("version", "int64"),
        2: ("state", "enum ModelVersionStatus.State"),
        3: ("status", "StatusProto"),
    },
    "GetModelStatusResponse": {
        1: ("model_version_status", "repeated ModelVersionStatus")
    },
}
_METHODS = {  # apis/prediction_service.proto and model_service.proto
    "PredictionService": ("Predict", "GetModelMetadata"),
    "ModelService": ("GetModelStatus",),
}
AVAILABLE = _STATES["AVAILABLE"]


@functools.cache
def message(name: str) -> Any:
    """Returns the class of a message, e.g. "PredictRequest"."""
    descriptor = _pool().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


def call(channel: Any, service: str, method: str) -> Any:
    """Returns a callable for a method of the server at a gRPC channel."""
    return channel.unary_unary(
        f"/{PACKAGE}.{service}/{method}",
        request_serializer=message(f"{method}Request").SerializeToString,
        response_deserializer=message(f"{method}Response").FromString,
    )


def handler(service: str, answers: Mapping[str, Callable[[Any, Any], Any]]) -> Any:
    """Returns a gRPC handler of a service, with its methods by name.

    A method is registered with a stream of requests. On the wire, a stream of one
    message equals a single message, but the method decides when it is read.
    """
    import grpc

    if set(answers) != set(_METHODS[service]):
        raise ValueError(f"Expected {_METHODS[service]}. Received: {sorted(answers)}")
    methods = {
        method: grpc.stream_unary_rpc_method_handler(answer)
        for method, answer in answers.items()
    }
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", methods)


def assign(proto: Any, other: Any) -> None:
    """Sets a message to one of the same type from TensorFlow's pool."""
    proto.ParseFromString(other.SerializeToString())


@functools.cache
def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.name not in added:
            added.add(file.name)
            for dependency in file.dependencies:
                add(dependency)
            pool.AddSerializedFile(file.serialized_pb)

    for module in _IMPORTED:
        add(module.DESCRIPTOR)
    pool.AddSerializedFile(_file().SerializeToString())
    return pool


def _file() -> Any:
    """The descriptor of `_MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(
        name=_FILE,
        package=PACKAGE,
        syntax="proto3",
        dependency=[module.DESCRIPTOR.name for module in _IMPORTED],
    )
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for number, (key, kind) in fields.items():
            *labels, of = kind.split()
            _add_field(described, key, number, of, labels[0] if labels else "")
    (status,) = (at for at in file.message_type if at.name == "ModelVersionStatus")
    states = status.enum_type.add(name="State")
    for state, number in _STATES.items():
        states.value.add(name=state, number=number)
    return file


def _add_field(described: Any, key: str, number: int, of: str, label: str) -> None:
    field = described.field.add(name=key, number=number, label=_Field.LABEL_OPTIONAL)
    if label in ("repeated", "map"):
        field.label = _Field.LABEL_REPEATED
    if label == "oneof":
        if not described.oneof_decl:
            described.oneof_decl.add(name="choice")
        field.oneof_index = 0
    if label == "map":
        entry = described.nested_type.add(name=f"{key.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string", "")
        _add_field(entry, "value", 2, of, "")
        of = f"{described.name}.{entry.name}"
    if of in _SCALARS:
        field.type = _SCALARS[of]
        return
    field.type = _Field.TYPE_ENUM if label == "enum" else _Field.TYPE_MESSAGE
    field.type_name = (
        f".{of}" if of.startswith(("google", "tensorflow")) else (f".{PACKAGE}.{of}")
    )
