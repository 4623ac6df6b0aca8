"""A functional model that carries its facts.

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
"""Each model by the identity of its name, a string that no other model has.

`keras.models.clone_model` calls a model's class with inputs, outputs and the original's
name and nothing else: the name is how a clone finds the facts of its original.
"""


def _as_keras_declares(init: Callable[..., None]) -> Callable[..., None]:
    """Declares `__init__` as Keras's functional models do, else no layers are saved.

    Keras compares the declared arguments of the two. Before 3.15 (Colab has 3.13)
    Keras's own are behind a decorator, as *args and **kwargs.
    """
    subclasses = {at.__name__: at for at in keras.Model.__subclasses__()}
    functional = subclasses["Functional"]  # To build one would fix the dtype policy.
    if inspect.getfullargspec(functional.__init__).args:
        return init

    @functools.wraps(init)
    def declared(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)

    return declared


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionModel(keras.Model):
    """A functional `keras.Model` (3.1, 4.1) from images [B, H, W, C], with its facts.

    Every builder returns one. Its facts are saved with it: in a `.keras` file, in JSON,
    in a pickle, in a clone and in an exported model.

    Args:
        inputs: images, a `keras.Input`.
        outputs: outputs of the graph: logits [B, K], tokens or features.
        name: name of the model.
        facts: its `Facts`, or what `Facts.to_json` returned; default: the paper's
            preprocessing, and nothing else known.
        **kwargs: see `keras.Model`.

    Raises:
        ValueError: if there is not one label for each of the K outputs, or not one
            value of the normalization for each channel.

    Examples:
        >>> import keras_vit
        >>> model = keras_vit.ViT_Ti16(weights=None, classes=2)
        >>> model.labels = ("cat", "dog")
        >>> model.config.num_heads, model.preprocessing.mean
        (3, (0.5, 0.5, 0.5))
    """

    # Keras saves a subclass without its layers unless these are its arguments.
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
        """The dataclass that the model was built from."""
        return self.facts.config

    @property
    def preprocessing(self) -> Preprocessing:
        """How images become the model's input."""
        return self.facts.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing) -> None:
        self.facts = dataclasses.replace(self.facts, preprocessing=preprocessing)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The name of each class, or None if unknown."""
        return self.facts.labels

    @labels.setter
    def labels(self, labels: Iterable[str] | None) -> None:
        names = None if labels is None else check_labels(labels)
        self.facts = dataclasses.replace(self.facts, labels=names)

    @property
    def provenance(self) -> Provenance:
        """Where the weights came from."""
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
        """Keras's, with the facts as plain values."""
        return {**super().get_config(), "facts": self.facts.to_json()}

    def preprocess(
        self, images: Any, image_size: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Makes model input of images or files, as evaluation and serving do.

        Args:
            images: [B, H', W', C'] or one [H', W', C'], uint8 or floats in 0..255; or a
                path or encoded bytes (JPEG, PNG, GIF, BMP, WebP), or a list of them.
            image_size: (H, W) in pixels; default: the model's.

        Returns:
            float32 NumPy array [B, H, W, C], scaled by `preprocessing`.

        Raises:
            ValueError: if a file is no image, images have a wrong rank, or the model
                has no size of its own and `image_size` is not given.
            OSError: if a file cannot be read.
        """
        from keras_vit.data.preprocessing import prepare_all

        _, height, width, channels = self.inputs[0].shape
        size = (height, width) if image_size is None else image_size
        if None in size:
            raise ValueError(
                "Expected image_size=(H, W) for a model of any size. Received: "
                f"image_size={image_size}, model={self.name!r} for {size}"
            )
        return prepare_all(images, size, self.preprocessing, channels)


# Files in the legacy .h5 format name a model's class without its package.
keras.saving.get_custom_objects()["VisionModel"] = VisionModel


def _is_clone(model: VisionModel, original: VisionModel, name: str | None) -> bool:
    """Whether a model was made with the original's own name and has its layers.

    An original that was renamed no longer has the string that it was found by. Inputs
    do not count: `clone_model(model, input_tensors=...)` replaces them.
    """
    return original.name is name and _layer_names(model) == _layer_names(original)


def _layer_names(model: keras.Model) -> list[str]:
    """The names of all layers but the inputs."""
    kind = keras.layers.InputLayer
    return [at.name for at in model.layers if not isinstance(at, kind)]


def facts_of(model: keras.Model) -> Facts:
    """The facts of any Keras model; those of a foreign one are unknown."""
    return model.facts if isinstance(model, VisionModel) else Facts()


def labels_of(
    model: keras.Model, given: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The names of a model's outputs, each on one line.

    Those that were given, else the model's own, else ImageNet's for 1000 outputs, else
    "class 0" and on.

    Raises:
        ValueError: if they are not one text of one line for each output.
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
            f"Expected labels of the model's {outputs} outputs. Received: "
            f"{len(names)} ({', '.join(map(repr, names[:3]))}, ...)"
        )
    odd = [name for name in names if not isinstance(name, str) or _is_broken(name)]
    if odd:
        raise ValueError(
            f"Expected labels that are text of one line each. Received: {odd[0]!r}"
        )
    return names


def _is_broken(name: str) -> bool:
    """Whether a text has line ends in it, or no bytes in UTF-8."""
    lone = any("\ud800" <= character <= "\udfff" for character in name)
    return lone or name.splitlines() not in ([], [name])


def preprocessing_of(
    model: keras.Model, given: Preprocessing | None = None
) -> Preprocessing:
    """The preprocessing that was given, else the model's, else the paper's.

    Raises:
        ValueError: if it does not fit the model's channels.
    """
    preprocessing = (
        getattr(model, "preprocessing", OFFICIAL) if given is None else given
    )
    if not isinstance(preprocessing, Preprocessing):
        raise ValueError(
            "Expected preprocessing to be a keras_vit.Preprocessing. "
            f"Received: preprocessing={arguments.shown(preprocessing)}"
        )
    preprocessing.for_channels(model.inputs[0].shape[-1])  # Raises unless it fits.
    return preprocessing
