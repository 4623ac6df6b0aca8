"""Frozen features: the input of the head for every image (4.1), computed once.

They are stored on disk (`feature_cache`), keyed by everything that they depend on, and
reused by training runs, few-shot regressions and probes of the same model and images.

Glossary of shapes: N images, D the features' width.
"""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np

from keras_vit import feature_cache
from keras_vit.data import pipelines
from keras_vit.data.preprocessing import Size
from keras_vit.data.progress import progress
from keras_vit.data.splits import Split
from keras_vit.environment import environment
from keras_vit.facts import Preprocessing
from keras_vit.files import json_sha256
from keras_vit.models.description import weights_sha256


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenFeatures:
    """Computes features of a split's images, without augmentation.

    Attributes:
        network: functional, from images [B, H, W, C] to features [B, ...].
        split: N images.
        preprocessing: scaling of the images.
        batch_size: maximum number of images in the network at a time.
        before_crop: (H, W) that images are resized to before the center crop; None:
            images are resized to the network's size.
    """

    network: keras.Model
    split: Split
    preprocessing: Preprocessing
    batch_size: int = 32
    before_crop: Size | None = None

    def read(self, verbose: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Returns features, float32 [N, ...], and labels, int64 [N], in split order.

        Features of a float64 network are float64.

        Raises:
            ValueError: if a feature is NaN or infinite, with the image's index.
        """
        if self.facts is None:
            return self._compute(verbose)

        def compute() -> dict[str, np.ndarray]:
            features, labels = self._compute(verbose)
            return {"features": features, "labels": labels}

        found = feature_cache.cached(
            self.facts,
            {"model": self.network.name, "data": str(self.split)},
            compute,
            # Files may change while they are read.
            lambda: self.facts is not None and self.facts["data"] == self._data(),
        )
        return found["features"], found["labels"]

    def on_disk(self) -> bool:
        """Whether an earlier call has stored them."""
        return self.facts is not None and feature_cache.path_of(self.facts).is_dir()

    @functools.cached_property
    def facts(self) -> dict[str, Any] | None:
        """Plain values that determine every bit of the features.

        None if nothing is stored: with the cache disabled, for no images, for images
        without a fingerprint, and for splits and layers of other libraries, because
        their code may change.
        """
        if not feature_cache.max_bytes() or not len(self.split):
            return None
        graph, data = _graph_sha256(self.network), self._data()
        if graph is None or data is None:
            return None
        shape = self.network.input_shape[1:]
        scaled = self.preprocessing.for_channels(shape[-1])
        return {
            "format": 1,
            "graph": graph,
            "weights": weights_sha256(self.network),
            "input": list(shape),
            "preprocessing": dataclasses.asdict(scaled),
            "before_crop": self.before_crop and list(self.before_crop),
            "batch_size": self._batch,
            "data": data,
            "environment": environment(),
        }

    @property
    def _batch(self) -> int:
        return min(self.batch_size, max(len(self.split), 1))

    def _data(self) -> str | None:
        """Returns the images' fingerprint; None if foreign code reads them."""
        if not _is_ours(type(self.split).__module__):
            return None
        try:
            return self.split.fingerprint_as_read()
        except (OSError, NotImplementedError):
            return None

    def _compute(self, verbose: bool) -> tuple[np.ndarray, np.ndarray]:
        network, count = self.network, len(self.split)
        batches = pipelines.eval_pipeline(
            self.split,
            image_size=network.input_shape[1:3],
            batch_size=self._batch,
            preprocessing=self.preprocessing,
            channels=network.input_shape[-1],
            before_crop=self.before_crop,
            pad=True,  # All batches have one shape, so that one graph is compiled.
        ).as_numpy_iterator()
        double = network.outputs[0].dtype == "float64"
        dtype = np.float64 if double else np.float32
        features = np.empty((count, *network.output_shape[1:]), dtype)
        labels = np.empty(count, np.int64)
        start = 0
        for images, own, mask in progress(
            batches, "features", -(-count // self._batch), verbose
        ):
            stop = start + int(mask.sum())
            features[start:stop] = network.predict_on_batch(images)[: stop - start]
            labels[start:stop] = own[: stop - start]
            bad = first_not_finite(features[start:stop])
            if bad is not None:
                raise ValueError(
                    "Expected finite features. Received: NaN or infinity for image "
                    f"{start + bad} of {count}. Check the weights and the preprocessing"
                )
            start = stop
        return features, labels


def first_not_finite(x: np.ndarray) -> int | None:
    """Returns the first row with a NaN or an infinity; does not copy `x`."""
    axes = tuple(range(1, x.ndim))
    finite = np.isfinite(x.min(axis=axes)) & np.isfinite(x.max(axis=axes))
    return None if finite.all() else int(finite.argmin())


def _graph_sha256(network: keras.Model) -> str | None:
    """Returns a hash of the layers' configurations and connections.

    Names are left out, because Keras numbers them, and so is `trainable`. Returns None
    for layers of other libraries, because a class name does not describe their code.
    """
    try:
        config = network.get_config()
    except NotImplementedError:  # A layer without a config.
        return None
    layers = config["layers"]
    if _is_foreign(layers):
        return None
    places = {
        layer.get("name", layer["config"].get("name")): place
        for place, layer in enumerate(layers)
    }
    descriptions = [
        {
            "class": layer["registered_name"] or layer["class_name"],
            "config": {
                name: value
                for name, value in layer["config"].items()
                if name not in ("name", "trainable")
            },
            "inputs": _placed(layer.get("inbound_nodes"), places),
        }
        for layer in layers
    ]
    outputs = _placed_history(config.get("output_layers"), places)
    return json_sha256([descriptions, outputs])


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "keras_vit"


def _is_foreign(value: Any) -> bool:
    """Returns whether a serialized value has code of neither Keras nor this library."""
    if isinstance(value, list | tuple):
        return any(map(_is_foreign, value))
    if not isinstance(value, dict):
        return False
    if value.get("class_name") in ("Lambda", "__lambda__", "function"):
        return True
    home = value.get("module") or ""
    own = home.partition(".")[0] == "keras" or _is_ours(home)
    return ("module" in value and not own) or any(map(_is_foreign, value.values()))


def _placed(value: Any, places: dict[str, int]) -> Any:
    """Replaces layer names by positions in the serialized calls of a layer."""
    if isinstance(value, dict):
        return {
            name: _placed_history(at, places)
            if name == "keras_history"
            else _placed(at, places)
            for name, at in value.items()
        }
    return (
        [_placed(at, places) for at in value]
        if isinstance(value, list | tuple)
        else value
    )


def _placed_history(value: Any, places: dict[str, int]) -> Any:
    """Replaces the layer name by its position in [name, node, tensor], or several."""
    if isinstance(value, list | tuple):
        return [_placed_history(at, places) for at in value]
    return places.get(value, value) if isinstance(value, str) else value
