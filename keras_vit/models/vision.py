"""A functional model that stores its facts.

Glossary of shapes: B: batch. H, W: height and width in pixels. C: channels.
K: classes.
"""

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.facts import (
    OFFICIAL,
    Config,
    Facts,
    Preprocessing,
    Provenance,
    check_labels,
    imagenet2012_labels,
)

_BY_NAME: weakref.WeakValueDictionary[int, "VisionModel"] = (
    weakref.WeakValueDictionary()
)
"""Models by the identity of their name string, which is unique for each model.

`keras.models.clone_model` calls a model's class with only inputs, outputs and the
original's name. A clone finds the facts of the original through that string.
"""


def _as_keras_declares(init: Callable[..., None]) -> Callable[..., None]:
    """Declares `__init__` like Keras's functional models, so that layers are saved.

    Keras compares the declared arguments of both. Before 3.15 (Colab has 3.13) Keras's
    `__init__` is decorated and has *args and **kwargs.
    """
    subclasses = {at.__name__: at for at in keras.Model.__subclasses__()}
    functional = subclasses["Functional"]  # Building one would fix the dtype policy.
    if inspect.getfullargspec(functional.__init__).args:
        return init

    @functools.wraps(init)
    def declared(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)

    return declared


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionModel(keras.Model):
    """A functional `keras.Model` (3.1, 4.1) from images [B, H, W, C], with its facts.

    Every builder returns one. Its facts are saved with it in `.keras` files, JSON,
    pickles, clones and exported models.

    Args:
        inputs: images, a `keras.Input`.
        outputs: outputs of the graph: logits [B, K], tokens or features.
        name: name of the model.
        facts: its `Facts`, or the result of `Facts.to_json`; default: only the paper's
            preprocessing.
        **kwargs: see `keras.Model`.

    Raises:
        ValueError: if the number of labels is not K, or the number of normalization
            values is not the number of channels.

    Examples:
        >>> import keras_vit
        >>> model = keras_vit.ViT_Ti16(weights=None, classes=2)
        >>> model.labels = ("cat", "dog")
        >>> model.config.num_heads, model.preprocessing.mean
        (3, (0.5, 0.5, 0.5))
    """

    # Keras saves the layers of a subclass only if it has these arguments.
    @_as_keras_declares
    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        name: str | None = None,
        *,
        facts: Facts | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        original = _BY_NAME.get(id(name))
        if isinstance(facts, Mapping):
            facts = Facts.from_json(facts)
        super().__init__(inputs, outputs, name=name, **kwargs)
        if facts is None and original is not None and _is_clone(self, original, name):
            facts = original.facts
        self.facts = Facts() if facts is None else facts

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name_of_its_own

    @name.setter
    def name(self, name: str) -> None:
        self._name_of_its_own = name.encode().decode()  # A new string, equal to `name`.
        _BY_NAME[id(self._name_of_its_own)] = self

    @property
    def facts(self) -> Facts:
        """All facts in one value."""
        facts: Facts = self._facts
        return facts

    @facts.setter
    def facts(self, facts: Facts) -> None:
        self._check(facts)
        self._facts = facts

    @property
    def config(self) -> Config | None:
        """The config that the model was built from."""
        return self.facts.config

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the model's images."""
        return self.facts.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing) -> None:
        self.facts = dataclasses.replace(self.facts, preprocessing=preprocessing)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The name of each class; None if unknown."""
        return self.facts.labels

    @labels.setter
    def labels(self, labels: Iterable[str] | None) -> None:
        names = None if labels is None else check_labels(labels)
        self.facts = dataclasses.replace(self.facts, labels=names)

    @property
    def provenance(self) -> Provenance:
        """The origin of the weights."""
        return self.facts.provenance

    def _check(self, facts: Facts) -> None:
        labels = facts.labels
        if (channels := self.inputs[0].shape[-1]) is not None:
            facts.preprocessing.for_channels(channels)
        if labels is not None and len(labels) != self.outputs[0].shape[-1]:
            raise ValueError(
                f"Expected {self.outputs[0].shape[-1]} labels, one for each output. "
                f"Received: {len(labels)} labels, model={self.name!r}"
            )

    def get_config(self) -> dict[str, Any]:
        """Keras's config, with the facts as plain values."""
        return {**super().get_config(), "facts": self.facts.to_json()}

    def preprocess(
        self, images: Any, image_size: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Converts images or files to model input, as in evaluation and serving.

        Args:
            images: images [B, H', W', C'] or one [H', W', C'], uint8 or floats in
                0..255; or a path or encoded bytes (JPEG, PNG, GIF, BMP, WebP), or a
                list of them.
            image_size: (H, W) in pixels; default: the model's.

        Returns:
            A float32 NumPy array [B, H, W, C], scaled by `preprocessing`.

        Raises:
            ValueError: if a file is not an image, images have a wrong rank, or
                `image_size` is missing for a model of any size.
            OSError: if a file cannot be read.
        """
        from keras_vit.data.preprocessing import prepare_all

        _, height, width, channels = self.inputs[0].shape
        size = (height, width)
        if image_size is not None:
            size = arguments.sides("image_size", image_size)
        if None in size:
            raise ValueError(
                "Expected image_size=(H, W) for a model of any size. Received: "
                f"image_size={image_size}, model={self.name!r} for {size}"
            )
        return prepare_all(images, size, self.preprocessing, channels)


# The legacy .h5 format stores a model's class without its package.
keras.saving.get_custom_objects()["VisionModel"] = VisionModel


def _is_clone(model: VisionModel, original: VisionModel, name: str | None) -> bool:
    """Whether a model was created with the original's name string and has its layers.

    A renamed original has a different string. Inputs are not compared, because
    `clone_model(model, input_tensors=...)` replaces them.
    """
    return original.name is name and _layer_names(model) == _layer_names(original)


def _layer_names(model: keras.Model) -> list[str]:
    """The names of all layers except the inputs."""
    kind = keras.layers.InputLayer
    return [at.name for at in model.layers if not isinstance(at, kind)]


def facts_of(model: keras.Model) -> Facts:
    """The facts of any Keras model; the defaults for a foreign one."""
    return model.facts if isinstance(model, VisionModel) else Facts()


def architecture_of(model: keras.Model) -> dict[str, Any]:
    """The fields of a model's config that differ from their defaults, as plain values.

    Models with the same variables can differ in heads, GELU and epsilons. The result is
    empty for a model without a config.
    """
    config = facts_of(model).config
    if config is None:
        return {}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if getattr(config, name) != defaults[name]
    }


def labels_of(
    model: keras.Model, given: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The names of a model's outputs, each a single line.

    These are the given names, else the model's, else ImageNet's for 1000 outputs, else
    "class 0", "class 1", ...

    Raises:
        ValueError: if they are not one string of one line for each output.
    """
    outputs = model.output_shape[-1]
    labels = facts_of(model).labels if given is None else given
    if labels is None:
        if outputs == len(imagenet2012_labels()):
            return imagenet2012_labels()
        return tuple(f"class {number}" for number in range(outputs))
    names = tuple(labels)
    if isinstance(labels, str) or len(names) != outputs:
        raise ValueError(
            f"Expected labels for the model's {outputs} outputs. Received: "
            f"{len(names)} ({', '.join(map(repr, names[:3]))}, ...)"
        )
    odd = [name for name in names if not isinstance(name, str) or _is_broken(name)]
    if odd:
        raise ValueError(
            f"Expected labels to be strings of one line each. Received: {odd[0]!r}"
        )
    return names


def _is_broken(name: str) -> bool:
    """Whether a string has line breaks or cannot be encoded in UTF-8."""
    lone = any("\ud800" <= character <= "\udfff" for character in name)
    return lone or name.splitlines() not in ([], [name])


def preprocessing_of(
    model: keras.Model, given: Preprocessing | None = None
) -> Preprocessing:
    """The given preprocessing, else the model's, else the paper's.

    Raises:
        ValueError: if it does not match the model's channels.
    """
    preprocessing = (
        getattr(model, "preprocessing", OFFICIAL) if given is None else given
    )
    if not isinstance(preprocessing, Preprocessing):
        raise ValueError(
            "Expected preprocessing to be a keras_vit.Preprocessing. "
            f"Received: preprocessing={arguments.shown(preprocessing)}"
        )
    preprocessing.for_channels(model.inputs[0].shape[-1])  # Raises on a mismatch.
    return preprocessing
