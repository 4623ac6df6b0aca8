"""A web page of a model's attention and predictions for images (4.5, D.7, D.8)."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

import keras
import numpy as np
from keras import ops

from keras_vit.configs import ViTConfig
from keras_vit.facts import Preprocessing
from keras_vit.families import family_of, variant_of
from keras_vit.files import replacing
from keras_vit.inspection import page_render
from keras_vit.inspection.attention import all_of_attention, own_tokens, reads_both
from keras_vit.inspection.embeddings import first_filters, position_similarity
from keras_vit.inspection.page_data import PageData
from keras_vit.models.description import (
    describe,
    weights_sha256,
)
from keras_vit.models.outputs import probabilities
from keras_vit.models.vision import facts_of, preprocessing_of
from keras_vit.weights.architecture import config_of

__all__ = ["Page"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page(PageData):
    """Contents of the page for one model and B images (4.5, D.7, D.8).

    Attributes:
        title: the model's name.
        facts: (name, value), in the order of the page.
        photos: uint8 [B, H, W, 3], the images before normalization.
        names: names of the photos.
        predictions: for each photo (class, probability in 0..1), the best first.
        attention: [B, L, k, rows, cols], shares of 1.
        rollout: [B, rows, cols], shares of 1.
        query: the attending token: "the class token", "the mean of the patches".
        covered: (rows, cols), the extent of all patches divided by that of the photo:
            less than 1 if E crops, more if a hybrid's patches exceed the photo.
        distance: [L, k], pixels.
        filters: [n, P, P, C].
        positions: [rows, cols, rows, cols], cosines.
        position_at: where positions are added, as in `ViTConfig`.
        absent: for each field that the model does not have, the reason.
    """

    @classmethod
    def of(
        cls,
        model: keras.Model,
        images: np.ndarray,
        *,
        preprocessing: Preprocessing | None = None,
        title: str | None = None,
        names: Sequence[str] | None = None,
        classes: Sequence[str] = (),
        top: int = 5,
        progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    ) -> Self:
        """Computes the page, image by image, from the model and its weights.

        Args:
            model: a ViT or a hybrid, with or without a head.
            images: [B, H, W, C], preprocessed.
            preprocessing: their scaling [default: the model's].
            title: the model's name [default: its variant's].
            names: names of the images [default: image 1, image 2, ...].
            classes: names of the head's outputs [default: the model's labels, else
                class 0, class 1, ...].
            top: number of predictions for each image.
            progress: wraps the iteration over images, e.g. in a progress bar.

        Returns:
            A `Page`, to be written.

        Raises:
            ValueError: without images; if the model has no patches (a BiT ResNet) or
                layers of other libraries; if the number of `names` is not that of the
                images, or the number of `classes` not that of the head's outputs; if
                the model's outputs are not finite.
        """
        if not len(images):
            raise ValueError("Expected at least one image. Received: none")
        preprocessing = preprocessing_of(model, preprocessing)
        config = _config(model)
        classes = classes or facts_of(model).labels or ()
        _check_names(model, len(images), names, classes)
        seen = [_look(model, config, image[None]) for image in progress(images)]
        attention = [one.attention for one in seen if one.attention is not None]
        rollout = [one.rollout for one in seen if one.rollout is not None]
        distance = [one.distance for one in seen if one.distance is not None]
        scores = [one.scores for one in seen if one.scores is not None]
        return cls(
            title=title or variant_of(config) or model.name,
            facts=_facts(model, config, preprocessing),
            photos=_photos(images, preprocessing),
            names=[
                *(names or (f"image {i}" for i in range(1, len(images) + 1))),
            ],
            predictions=[_best(row, classes, top) for row in scores] or None,
            attention=np.stack(attention) if attention else None,
            rollout=np.stack(rollout) if rollout else None,
            query=_query(model),
            covered=_covered(model),
            distance=np.mean(distance, axis=0) if distance else None,
            filters=_filters(model, config),
            positions=_positions(model, config),
            position_at=config.position_at,
            absent=_absent(model, config),
        )

    def write(self, path: str | os.PathLike[str]) -> int:
        """Writes the page atomically as one HTML file that contains its pictures.

        Args:
            path: path of the file.

        Returns:
            Its size in bytes.

        Raises:
            ValueError: if a field is not finite.
            OSError: if the file cannot be written.
        """
        # File names need not be valid text; invalid characters become question marks.
        encoded = page_render.html(self).encode("utf-8", "replace")
        with replacing(path) as temporary:
            temporary.write_bytes(encoded)
        return len(encoded)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """Results of a model for one image."""

    scores: np.ndarray | None  # [K]
    attention: np.ndarray | None  # [L, k, rows, cols]
    rollout: np.ndarray | None  # [rows, cols]
    distance: np.ndarray | None  # [L, k]


def _look(model: keras.Model, config: ViTConfig, image: np.ndarray) -> _Seen:
    scores = _probabilities(model, image)[0] if _classifies(model) else None
    if config.attention != "full":
        return _Seen(scores, None, None, None)
    attention, rollout, distance = all_of_attention(model, image)
    return _Seen(
        scores,
        _finite(model, "attention", attention[0]),
        _finite(model, "rollout", rollout[0]),
        _finite(model, "distance", distance),
    )


def _finite(model: keras.Model, field: str, values: np.ndarray) -> np.ndarray:
    """Checks that values are finite; returns them in float32 or wider."""
    finite = np.asarray(values, np.promote_types(values.dtype, np.float32))
    if not np.isfinite(finite).all():
        raise ValueError(
            f"Expected finite {field}. Received: model={model.name!r} with NaN or "
            "infinity; its training may have diverged, or an image contains one"
        )
    return finite


def _check_names(
    model: keras.Model,
    count: int,
    names: Sequence[str] | None,
    classes: Sequence[str],
) -> None:
    if names is not None and len(names) != count:
        raise ValueError(
            f"Expected a name for each of {count} images. Received: {len(names)} names"
        )
    if classes and _classifies(model) and len(classes) != model.output_shape[-1]:
        raise ValueError(
            f"Expected a class for each of the head's {model.output_shape[-1]} outputs."
            f" Received: {len(classes)} classes"
        )


def _config(model: keras.Model) -> ViTConfig:
    config = config_of(model)
    if not family_of(config).has_patches:
        raise ValueError(
            "Expected a Vision Transformer or a hybrid, because the page shows patches "
            f"and attention (3.1). Received: model={model.name!r}, "
            f"{family_of(config).title}, which has neither"
        )
    return cast(ViTConfig, config)


def _head(model: keras.Model) -> Any:
    return next((layer for layer in model.layers if layer.name == "head"), None)


def _classifies(model: keras.Model) -> bool:
    """Returns whether there is a head with one output vector for an image."""
    return _head(model) is not None and len(model.output_shape) == 2


def _probabilities(model: keras.Model, image: np.ndarray) -> np.ndarray:
    scores = probabilities(model, model(image, training=False))
    return _finite(model, "predictions", ops.convert_to_numpy(scores))


def _best(
    scores: np.ndarray, classes: Sequence[str], top: int
) -> list[tuple[str, float]]:
    order = np.argsort(-scores, kind="stable")[:top]
    return [(classes[i] if classes else f"class {i}", float(scores[i])) for i in order]


def unnormalized(images: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Undoes the normalization: [B, H, W, C] -> the same in [0, 1]."""
    mean, std = np.asarray(preprocessing.mean), np.asarray(preprocessing.std)
    shares: np.ndarray = np.clip(images * std + mean, 0, 1)
    return shares


def _photos(images: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Converts model input to pixels: [B, H, W, C] -> uint8 [B, H, W, 3]."""
    shares = unnormalized(images, preprocessing)
    pixels: np.ndarray = np.rint(255 * shares).astype(np.uint8)
    # With other than three channels, the first one is shown in gray.
    return pixels if pixels.shape[-1] == 3 else np.repeat(pixels[..., :1], 3, axis=-1)


def _query(model: keras.Model) -> str:
    if reads_both(model):
        return "the class token and the mean of the patches, in the mean,"
    return {
        1: "the class token",
        2: "the class and distillation tokens, in the mean,",
        None: "the mean of all tokens",
    }.get(own_tokens(model), "the mean of the patches")


def _covered(model: keras.Model) -> tuple[float, float]:
    """Returns the patches' extent divided by the image's; see `attention_rollout`."""
    facts = describe(model)
    patch = facts["stride"] * facts["patch_size"]
    (height, width), (rows, cols) = model.input_shape[1:3], facts["grid"]
    return rows * patch / height, cols * patch / width


def _filters(model: keras.Model, config: ViTConfig) -> np.ndarray | None:
    if config.resnet is not None:
        return None
    return _finite(model, "filters", first_filters(model))


def _positions(model: keras.Model, config: ViTConfig) -> np.ndarray | None:
    if _lacks_positions(config):
        return None
    return _finite(model, "positions", position_similarity(model))


def _lacks_positions(config: ViTConfig) -> bool:
    return config.position in ("none", "relative")


def _absent(model: keras.Model, config: ViTConfig) -> dict[str, str]:
    """Returns, for each field that the model does not have, the reason."""
    absent = {}
    if not _classifies(model):
        headless = _head(model) is None
        absent["predictions"] = (
            "The model has no head for classes; its outputs are features."
            if headless
            else "The model's head has outputs for every token, not the image (D.3)."
        )
    if config.attention != "full":
        absent["attention"] = (
            "The model attends along rows and columns (D.6); no token attends to all "
            "patches at once."
        )
        absent["distance"] = absent["attention"]
    if config.resnet is not None:
        absent["filters"] = (
            "The model is a hybrid (3.1): its patches come from a feature map, so its "
            "filters are not pictures."
        )
    if _lacks_positions(config):
        absent["positions"] = (
            "The model adds no positions to its tokens (D.4)."
            if config.position == "none"
            else "The model's positions are relative (D.4): none belongs to a patch."
        )
    return absent


def _facts(
    model: keras.Model, config: ViTConfig, preprocessing: Preprocessing
) -> list[tuple[str, str]]:
    facts = describe(model)
    height, width, channels = model.input_shape[1:]
    rows, cols = facts["grid"]
    patch = facts["stride"] * facts["patch_size"]
    stem = "" if config.resnet is None else ", of a ResNet's feature map"
    variant = variant_of(config)
    activation = "GELU", str(getattr(config, "gelu", None))
    if hasattr(config, "activation"):  # A plain ViT of a later paper.
        activation = "activation", str(config.activation)
    return [
        *([] if variant is None else [("variant", variant)]),
        ("parameters", f"{model.count_params():,}"),
        ("image", f"{height} x {width} pixels, {channels} channels"),
        ("patches", f"{rows} x {cols} of {patch} x {patch} pixels{stem}"),
        ("layers", str(config.num_layers)),
        ("heads", str(config.num_heads)),
        ("hidden size", str(config.hidden_size)),
        ("MLP size", str(config.mlp_dim)),
        ("classifier", config.classifier.replace("_", " ")),
        ("positions", config.position),
        activation,
        ("resize", preprocessing.resizing),
        ("mean", _numbers(preprocessing.mean)),
        ("standard deviation", _numbers(preprocessing.std)),
        ("sha256 of the weights", weights_sha256(model)),
    ]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
