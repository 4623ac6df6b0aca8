"""Compare a published checkpoint's outputs with published reference outputs."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.configs import numerics_of
from keras_vit.families import family_of
from keras_vit.files import cache_dir
from keras_vit.models.vision import facts_of
from keras_vit.weights import checkpoint, download, variables
from keras_vit.weights.architecture import config_of
from keras_vit.weights.parsed import ParsedCheckpoint
from keras_vit.weights.registry import Reference, references


@dataclasses.dataclass(frozen=True)
class Check:
    """The model's difference from one published output.

    Attributes:
        reference: the registry's row: the input, the values, their source and its
            tolerance.
        difference: the largest difference over the published values.
    """

    reference: Reference
    difference: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the source's tolerance."""
        return self.difference <= self.reference.tolerance

    def __str__(self) -> str:
        told = self.reference
        text = (
            f"{'passed' if self.passed else 'FAILED'}  {told.variant} {told.tag}: "
            f"{len(told.expected)} {told.output} of {told.image}, {told.numerics} "
            f"numerics: {self.difference:.1e} (<= {told.tolerance:g})\n"
            f"        {told.source}"
        )
        return f"{text}\n        believed: {told.believed}" if told.believed else text


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `verify`; prints as a list.

    Attributes:
        variant: name in the paper's spelling, such as "ViT-B/16".
        tag: tag of the training.
        checks: one check per published output: `reference`, `difference` and `passed`.
    """

    variant: str
    tag: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether outputs were published and all of them agree."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def __str__(self) -> str:
        if not self.checks:
            return f"no published outputs of {self.variant} {self.tag} are known"
        return "\n".join(str(check) for check in self.checks)


def verify(model: keras.Model) -> Verification:
    """Runs known inputs through a tagged model and compares with published outputs.

    The published outputs come from vit_jax's notebook and from the tests of
    transformers and bumblebee. The model runs with the GELU, the epsilons and the
    resolution of each source. An image is downloaded once, to the cache.

    Args:
        model: an untrained copy of published weights, built with a tag, such as
            `ViT_B32(weights="imagenet21k+imagenet2012")`.

    Returns:
        A `Verification`; `passed` is False if no outputs were published.

    Raises:
        ValueError: if the model was not built with a tag, or has no head to compare.
        OSError: if an image cannot be downloaded.
        ImportError: if an image must be resized and Pillow is not installed.
    """
    provenance = facts_of(model).provenance
    if provenance.variant is None or provenance.tag is None:
        raise ValueError(
            "Expected a model built with a tag, such as ViT_B16(weights="
            "'imagenet21k+imagenet2012'). Received: "
            f"model={model.name!r} without a tag"
        )
    found = references(provenance.variant, provenance.tag)
    checks = tuple(Check(told, _difference(model, told)) for told in found)
    return Verification(provenance.variant, provenance.tag, checks)


def _difference(model: keras.Model, told: Reference) -> float:
    twin = _twin(model, told)
    if told.output == "class_token":
        twin = keras.Model(twin.input, twin.get_layer("encoder_norm").output[:, 0])
    output = twin(_image(told)[None], training=False)
    if told.output == "probabilities":
        output = keras.ops.softmax(output)
    ours = keras.ops.convert_to_numpy(output)[0]
    places, values = zip(*told.expected, strict=True)
    if max(places) >= len(ours):
        raise ValueError(
            f"Expected a model with the published head. Received: model={model.name!r} "
            f"with {len(ours)} outputs, {told.output} {max(places)} to compare"
        )
    return float(np.abs(ours[list(places)] - np.asarray(values)).max())


def _twin(model: keras.Model, told: Reference) -> keras.Model:
    """The same weights at the reference's resolution, with its numerics."""
    config = config_of(model)
    config = dataclasses.replace(config, **numerics_of(config, told.numerics))
    tensors = {
        name: tensor
        for entry in variables.entries(model)
        for name, tensor in entry.split().items()
    }
    head = tensors.get("head/bias")
    parsed = ParsedCheckpoint(
        where=model.name,
        tensors=tensors,
        config=config,
        num_channels=model.input_shape[-1],
        num_classes=None if head is None else len(head),
        num_positions=None,
    )
    twin: keras.Model = family_of(config).build(
        config, image_size=told.image_size, num_classes=parsed.num_classes
    )
    checkpoint.assign(twin, parsed)
    return twin


def _image(told: Reference) -> np.ndarray:
    """The input of a reference: [H, W, 3], scaled as in its source."""
    if isinstance(told.image, float):
        return np.full((*told.image_size, 3), told.image, np.float32)
    name = told.image.split("://")[1].replace("/", "_")
    path = download.download([told.image], cache_dir() / "verify" / name)
    pixels = np.asarray(_resized(path, told), np.float32)
    return pixels / told.half_range - 1


def _resized(path: Path, told: Reference) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Expected Pillow, which the sources use to resize images. "
            "Received: not installed. Run pip install pillow"
        ) from error
    with Image.open(path) as file:
        image = file.convert("RGB")
    height, width = told.image_size
    if told.resize == "none":
        return image
    filters = {"bicubic": Image.Resampling.BICUBIC}
    by = filters.get(told.interpolation or "", Image.Resampling.BILINEAR)
    if told.resize == "squash":
        return image.resize((width, height), by)
    scale = max(height / image.height, width / image.width)
    larger = (round(image.width * scale), round(image.height * scale))
    left, top = (larger[0] - width) // 2, (larger[1] - height) // 2
    return image.resize(larger, by).crop((left, top, left + width, top + height))
