"""docs/serving/*.config, read as TensorFlow Serving reads them: protos as text."""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow_serving")

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

pytestmark = pytest.mark.tensorflow_only

FILES = Path(__file__).parents[2] / "docs" / "serving"
TYPES = descriptor_pb2.FieldDescriptorProto
# Not in tensorflow-serving-api. Fields, numbers and types of tensorflow/serving's
# servables/tensorflow/session_bundle_config.proto at 03f8b6b5fc. A text has the names
# alone.
BATCHING = {
    "max_batch_size": (1, "Int64Value"),
    "batch_timeout_micros": (2, "Int64Value"),
    "max_enqueued_batches": (3, "Int64Value"),
    "num_batch_threads": (4, "Int64Value"),
    "thread_pool_name": (5, "StringValue"),
    "allowed_batch_sizes": (6, TYPES.TYPE_INT64),
    "pad_variable_length_inputs": (7, TYPES.TYPE_BOOL),
}
# config/monitoring_config.proto, as g3doc/serving_config.md at 8e97b59fc3 has it.
PROMETHEUS = {"enable": (1, TYPES.TYPE_BOOL), "path": (2, TYPES.TYPE_STRING)}


def message(name, fields):
    """A message of these fields."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    kind = file.message_type.add(name=name)
    for field, (number, of) in fields.items():
        added = kind.field.add(name=field, number=number, label=TYPES.LABEL_OPTIONAL)
        if isinstance(of, str):
            added.type, added.type_name = TYPES.TYPE_MESSAGE, f".google.protobuf.{of}"
        else:
            added.type = of
        if field == "allowed_batch_sizes":
            added.label = TYPES.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_models():
    text = (FILES / "models.config").read_text()
    read = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (config,) = read.model_config_list.config
    assert (config.name, config.base_path) == ("birds", "/models/birds")
    assert list(config.model_version_policy.specific.versions) == [1]
    assert dict(config.version_labels) == {"stable": 1}


def test_two_versions_of_the_manual():
    manual = (FILES.parent / "serving.md").read_text()
    text = next(
        block
        for block in manual.split("```text\n")[1:]
        if block.startswith("model_version_policy")
    ).split("```")[0]
    read = text_format.Parse(text, model_server_config_pb2.ModelConfig())
    assert list(read.model_version_policy.specific.versions) == [1, 2]
    assert dict(read.version_labels) == {"stable": 1, "canary": 2}


def test_batching():
    text = (FILES / "batching.config").read_text()
    read = text_format.Parse(text, message("BatchingParameters", BATCHING))
    assert read.max_batch_size.value == 32  # The client's batch_size.
    assert read.batch_timeout_micros.value > 0
    assert not read.pad_variable_length_inputs
    assert list(read.allowed_batch_sizes) in ([], sorted(read.allowed_batch_sizes))
    with pytest.raises(text_format.ParseError, match="no field named"):
        text_format.Parse(text.replace("max_batch_size", "max_size"), read)


def test_monitoring():
    text = (FILES / "monitoring.config").read_text()
    name, _, inner = text.partition("{")
    assert name.split()[-1] == "prometheus_config"
    inner = inner.rpartition("}")[0]
    read = text_format.Parse(inner, message("PrometheusConfig", PROMETHEUS))
    assert (read.enable, read.path) == (True, "/monitoring/prometheus/metrics")
