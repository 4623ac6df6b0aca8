"""Warm-up requests, which TensorFlow Serving runs before it serves a version."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_vit.serving import schema

FILE = "assets.extra/tf_serving_warmup_requests"


def write(
    saved: Path, name: str, requests: Iterable[tuple[str, dict[str, Any]]]
) -> None:
    """Writes `FILE`, TFRecords of PredictionLog in TensorFlow Serving's format.

    Args:
        saved: folder of the SavedModel.
        name: name of the model in the requests.
        requests: signature and inputs by name of each request.
    """
    (saved / FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(saved / FILE)) as writer:
        for signature, inputs in requests:
            record = schema.message("PredictionLog")()
            request = record.predict_log.request
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            for key, value in inputs.items():
                schema.assign(request.inputs[key], tf.make_tensor_proto(value))
            writer.write(record.SerializeToString())
