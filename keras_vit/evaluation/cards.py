"""Results card of an evaluation, with its settings and results.

Top-1 is from section 4.1.

A card is a folder with `card.json`, the same as pages (`card.md`, `card.html`), their
pictures, and `images.npz`, the predictions for every image, which are needed to compare
two cards.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from keras_vit._version import __version__
from keras_vit.configs import (
    CheckpointConfig,
)
from keras_vit.evaluation import card_pages, metrics
from keras_vit.evaluation.card_data import CardData
from keras_vit.evaluation.classification import Evaluation
from keras_vit.evaluation.metrics import Estimate, PerImage
from keras_vit.families import sizes_of, variant_of
from keras_vit.files import BROKEN_ZIP, file_sha256, parse_json, replacing_all
from keras_vit.inspection import plots
from keras_vit.models.description import (
    ForeignModelError,
    weights_sha256,
)
from keras_vit.models.vision import facts_of
from keras_vit.weights.architecture import config_of

__all__ = ["Card"]

FORMAT = 1  # Version of card.json.
RESULTS = ("top_1", "top_5", "nll", "ece")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card(CardData):
    """Results card of an evaluation (top-1: 4.1).

    Attributes:
        name: name of the model in tables.
        model: its variant, sizes, the sha256 of its weights and of their file, and
            their source, commit and license if known.
        numerics: numerical settings: GELU, epsilons, dtypes, backend, versions.
        preprocessing: scaling of the images.
        data: the data set's name, fingerprint, numbers of images, and classes.
        results: "top_1", "top_5" and "ece", in [0, 1], and "nll", in nats, with their
            95 % intervals.
        scaled: "nll" and "ece" after temperature scaling, each half of the images by
            the temperature of the other half; empty without temperatures.
        temperatures: temperatures of the two halves; may be empty.
        data_size: accuracies in [0, 1] of any models by the number of training images,
            which the card shows in addition (Figure 4).
        command: command that ran the evaluation.
        images: prediction for each image.
    """

    @classmethod
    def of(
        cls,
        model: keras.Model,
        evaluation: Evaluation,
        *,
        name: str,
        command: str = "",
        weights_file: str | os.PathLike[str] | None = None,
        data_size: Mapping[str, Mapping[int, float]] | None = None,
    ) -> Self:
        """Creates the card of an evaluation.

        Args:
            model: evaluated model.
            evaluation: result of `classify` or `evaluate_imagenet`.
            name: name of the model in tables.
            command: command that ran the evaluation.
            weights_file: file of the weights, if they are from one.
            data_size: see `Card`.

        Returns:
            A `Card`, without temperatures.
        """
        task, images = evaluation.task, evaluation.images
        config, how = _config(model), evaluation.preprocessing
        return cls(
            name=name,
            model={
                "variant": _variant(config),
                "parameters": model.count_params(),
                "weights_sha256": weights_sha256(model),
                **_origin(model),
                **_file(weights_file),
            },
            numerics=_numerics(model, config),
            preprocessing={
                "border": task.border,
                "resize": how.resizing,
                "image_size": list(model.input_shape[1:3]),
                "mean": list(how.mean),
                "std": list(how.std),
            },
            data={
                "name": task.name,
                "fingerprint": task.fingerprint(),
                "images": len(images),
                "without_label": evaluation.without_label,
                "classes": list(task.classes),
            },
            results={
                "top_1": images.top(1),
                "top_5": images.top(5),
                "nll": images.mean_nll(),
                "ece": images.ece(),
            },
            scaled={},
            temperatures=(),
            data_size={
                name: dict(points) for name, points in (data_size or {}).items()
            },
            command=command,
            images=images,
        )

    def with_temperatures(self, logits: np.ndarray) -> Self:
        """Adds the results of temperature scaling (Guo et al. 2017, 4.2).

        Args:
            logits: float32 [N, O], stored with `keep_logits`.

        Returns:
            A copy with `temperatures` and `scaled`.

        Raises:
            ValueError: if no temperature is optimal (`metrics.temperature`).
        """
        found, after = metrics.scaled_by_halves(logits, self.images.label)
        scaled = {"nll": after.mean_nll(), "ece": after.ece()}
        return dataclasses.replace(self, temperatures=found, scaled=scaled)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes all files of the card, or none.

        Args:
            folder: folder of `card.json`, `card.md`, `card.html`, pictures and
                `images.npz`, created if absent.

        Raises:
            ImportError: without matplotlib, the extra `plots`.
            OSError: if the folder cannot be written to.
        """
        root = Path(folder)
        drawn = [root / f"{name}.png" for name in self._pictures()]
        # card.json, which contains the hash of images.npz, is written last.
        paths = [*drawn, *(root / name for name in _FILES)]
        with replacing_all(paths) as temporaries:
            *pictures, images, page, html, facts = temporaries
            for draw, picture in zip(self._pictures().values(), pictures, strict=True):
                draw(picture)
            with images.open("wb") as file:
                np.savez_compressed(file, **vars(self.images))
            values = self.as_dict()
            values["images"] = {"file": _IMAGES, "sha256": file_sha256(images)}
            names = [path.name for path in drawn]
            facts.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            page.write_text(card_pages.markdown(self, names), encoding="utf-8")
            inside = {
                name: picture.read_bytes()
                for name, picture in zip(names, pictures, strict=True)
            }
            html.write_text(card_pages.html(self, inside), encoding="utf-8")

    def _pictures(self) -> dict[str, Any]:
        """Returns for each picture a function that draws it to a path."""
        bins, classes = self.images.reliability(), self.data["classes"]
        drawn: dict[str, Any] = {
            "reliability": lambda path: plots.reliability(
                bins.images, bins.confidence, bins.accuracy, path
            )
        }
        if self.has_classes:
            matrix = self.images.confusion(len(classes))
            drawn["confusion"] = lambda path: plots.confusion(matrix, classes, path)
        if self.data_size:
            drawn["data_size"] = lambda path: plots.data_size(self.data_size, path)
        return drawn

    def as_dict(self) -> dict[str, Any]:
        """Returns the card as values of JSON, without predictions of single images."""
        bins = self.images.reliability()
        facts = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "images"
        }
        for name in ("results", "scaled"):
            facts[name] = {
                key: dataclasses.asdict(value) for key, value in facts[name].items()
            }
        facts["reliability"] = {
            "images": [int(count) for count in bins.images],
            "confidence": _numbers(bins.confidence),
            "accuracy": _numbers(bins.accuracy),
        }
        if self.has_classes:
            right, images = self.images.per_class(len(self.data["classes"]))
            facts["per_class"] = {"right": right.tolist(), "images": images.tolist()}
        return {"keras_vit_card": FORMAT, **facts}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a card from its folder or its `card.json`.

        Args:
            path: path of the folder or the file.

        Returns:
            The `Card`.

        Raises:
            ValueError: if there is none, it is damaged, or it was written by a
                different version of keras_vit.
        """
        file = Path(path) / _FACTS if Path(path).is_dir() else Path(path)
        law = "Expected a folder written by `keras-vit evaluate --output`. Received: "
        if not file.is_file():
            raise ValueError(f"{law}{str(path)!r} without {_FACTS}")
        try:
            facts = parse_json(file.read_text(encoding="utf-8"))
            if facts["keras_vit_card"] != FORMAT:
                raise ValueError(
                    f"{law}{str(file)!r} of format {facts['keras_vit_card']!r}, not "
                    f"{FORMAT}. It was written by a different version of keras_vit"
                )
            arrays = file.parent / facts["images"]["file"]
            if file_sha256(arrays) != facts["images"]["sha256"]:
                raise ValueError(
                    f"{law}{str(arrays)!r}, which does not match {_FACTS}. Evaluate "
                    "again"
                )
            return cls._read(facts, arrays)
        except OSError as error:
            raise ValueError(f"{law}{error.filename!r}, {error.strerror}") from error
        except _DAMAGE as error:
            if isinstance(error, ValueError) and str(error).startswith(law):
                raise
            raise ValueError(
                f"{law}{str(file)!r}, damaged ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _read(cls, facts: dict[str, Any], arrays: Path) -> Self:
        with np.load(arrays, allow_pickle=False) as held:
            images = PerImage(
                **{f.name: held[f.name] for f in dataclasses.fields(PerImage)}
            )
        if len(images) != facts["data"]["images"]:
            raise ValueError(f"{len(images)} images of {facts['data']['images']}")
        read = {
            field.name: facts[field.name]
            for field in dataclasses.fields(cls)
            if field.name != "images"
        }
        for name in ("results", "scaled"):
            read[name] = {key: Estimate(**value) for key, value in read[name].items()}
            numbers = (dataclasses.astuple(one) for one in read[name].values())
            if not np.isfinite(np.array([*numbers], float)).all():
                raise ValueError(f"{name} that are not finite")
        if {*RESULTS} - {*read["results"]}:
            raise ValueError(f"results {[*read['results']]}")
        read["temperatures"] = tuple(read["temperatures"])
        read["data_size"] = {
            name: {int(count): share for count, share in points.items()}
            for name, points in read["data_size"].items()
        }
        return cls(images=images, **read)


_FACTS, _IMAGES = "card.json", "images.npz"
_FILES = (_IMAGES, "card.md", "card.html", _FACTS)
_DAMAGE = (
    *BROKEN_ZIP,
    *(KeyError, TypeError, AttributeError),
)


def _origin(model: keras.Model) -> dict[str, str]:
    """Returns the source, commit and license of the weights, as far as known."""
    provenance = facts_of(model).provenance
    values = {at: getattr(provenance, at) for at in ("source", "revision", "license")}
    return {at: value for at, value in values.items() if value is not None}


def _file(path: str | os.PathLike[str] | None) -> dict[str, str]:
    if path is None or not Path(path).is_file():
        return {}
    return {"file": str(path), "file_sha256": file_sha256(Path(path))}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Replaces NaN by None, because JSON has no NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def _config(model: keras.Model) -> CheckpointConfig | None:
    try:
        return config_of(model)
    except ForeignModelError:
        return None


def _variant(config: CheckpointConfig | None) -> str:
    """Returns the name in `VARIANTS`, or else the sizes."""
    if config is None:
        return "not of keras_vit"
    if (known := variant_of(config)) is not None:
        return known
    fields = {field.replace("_", " "): at for field, at in sizes_of(config).items()}
    usual = (None, "full")
    return ", ".join(f"{k} {v}" for k, v in fields.items() if v not in usual)


def _numerics(model: keras.Model, config: CheckpointConfig | None) -> dict[str, Any]:
    backend = keras.backend.backend()
    packages = dict.fromkeys(("keras", backend, "numpy"))
    facts = {} if config is None else _flat(dataclasses.asdict(config))
    return {
        **{k: v for k, v in facts.items() if k == "gelu" or "epsilon" in k},
        "dtype": ", ".join(sorted({layer.compute_dtype for layer in model.layers})),
        "backend": backend,
        "versions": {
            "keras_vit": __version__,
            **{name: _version(name) for name in packages},
            "python": platform.python_version(),
        },
    }


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config; those of its ResNet get the prefix resnet_."""
    inner = facts.get("resnet") or {}
    return facts | {f"resnet_{key}": value for key, value in inner.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # E.g. installed as tensorflow-cpu.
        return str(getattr(__import__(package), "__version__", "unknown"))
