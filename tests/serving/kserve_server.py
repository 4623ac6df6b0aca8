"""A SavedModel behind KServe's ModelServer: `python kserve_server.py PATH NAME PORT`.

Nothing here is of keras_vit: KServe's HTTP server, JSON and routes (its V1 protocol is
TensorFlow Serving's `:predict` by row), TensorFlow's loader, and NumPy.
"""

import base64
import sys

import kserve
import numpy as np
import tensorflow as tf


class SavedModel(kserve.Model):
    """Signatures whose only input is encoded images, by its name or without."""

    def __init__(self, name, path):
        super().__init__(name)
        self.loaded = tf.saved_model.load(path)
        self.load()

    def predict(self, payload, headers=None, response_headers=None):
        rows = [row.get("image_bytes", row) for row in payload["instances"]]
        files = [base64.b64decode(row["b64"]) for row in rows]
        name = payload.get("signature_name", "serving_default")
        run = self.loaded.signatures[name]
        found = {
            name: value.numpy()
            for name, value in run(image_bytes=tf.constant(files)).items()
        }
        columns = {name: texts(value).tolist() for name, value in found.items()}
        rows = zip(*columns.values(), strict=True)
        return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def texts(value):
    decode = np.vectorize(bytes.decode, otypes=[object])
    return decode(value) if value.dtype == object else value


if __name__ == "__main__":
    path, name, port = sys.argv[1:]
    sys.argv = sys.argv[:1]  # KServe parses it where the server is made.
    model = SavedModel(name, path)
    kserve.ModelServer(http_port=int(port), enable_grpc=False).start([model])
