"""Pretrained models in one line, with the interface of keras.applications.

Every builder accepts the arguments of keras.applications, followed by additional ones.
This is the only module that combines models and weights.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.builder import OF_THE_WEIGHTS, PER_VARIANT, Builder
from keras_vit.callers import warn
from keras_vit.configs import (
    NUMERICS,
    CheckpointConfig,
    Classifier,
    Gelu,
    Numerics,
    Overrides,
    PoolPadding,
    ResNetConfig,
    ViTConfig,
    numerics_from,
    numerics_of,
)
from keras_vit.facts import Facts, imagenet2012_labels
from keras_vit.families import family_of
from keras_vit.layers.embeddings import Tensor
from keras_vit.layers.encoder import uninitialized
from keras_vit.models import heads
from keras_vit.models.transfer import at_resolution
from keras_vit.models.vision import VisionModel
from keras_vit.weights import (
    checkpoint,
    download,
    keras_files,
    reading,
    registry,
    sources,
)
from keras_vit.weights.config_json import RESNET_FIELDS
from keras_vit.weights.parsed import VIT_FIELDS, ParsedCheckpoint
from keras_vit.weights.plain import FIELDS as PLAIN_FIELDS
from keras_vit.weights.renaming import Renaming

POOLINGS = (None, "token", "avg", "max")


def _build(
    self: Builder[Any],
    *,
    include_top: bool,
    weights: str | os.PathLike[str] | None,
    input_tensor: Tensor | None,
    input_shape: tuple[Any, ...] | None,
    pooling: str | None,
    classes: int | None,
    classifier_activation: Any,
    name: str,
    options: dict[str, Any],
) -> VisionModel:
    """Resolves and reads the weights, builds the model and loads them into it."""
    arguments.only(self.__name__, options, self.options)
    variant, config = self.variant, self.config
    weights = self.value_of("weights", weights)
    name = arguments.model_name(self.value_of("name", name))
    unset = {key for key in OF_THE_WEIGHTS if options.get(key) is None}
    chosen = {key: value for key, value in options.items() if key not in unset}
    numerics = chosen.pop("numerics", None)
    license_allow = chosen.pop("license_allow", None)
    sources.accepted_licenses(license_allow)
    include_top = arguments.flag("include_top", include_top)
    classes = arguments.optional(arguments.integer, "classes", classes)
    arguments.optional(arguments.choice, "numerics", numerics, choices=NUMERICS)
    sides = _open_sides(config, input_tensor, input_shape)
    _check_weights(weights)
    _check_activation(classifier_activation)
    source, published = _resolve(variant, weights, license_allow)
    found = None
    if source is not None:
        # A tag has the numerics of the paper's code, also in copies by other libraries.
        own = numerics or ("paper" if published else None)
        size = None if input_shape is None or sides else input_shape[:2]
        saved = config if numerics is None else _with(config, numerics)
        saved = dataclasses.replace(saved, **chosen)
        found = keras_files.read(source.path, saved, size) or reading.read(
            source,
            numerics=own,
            num_heads=getattr(config, "num_heads", None),
            fold=True,
        )
        found = dataclasses.replace(found, source=source)
        chosen = numerics_from(found.config, config) | chosen
    elif numerics is not None:
        chosen = numerics_of(config, numerics) | chosen
    config = dataclasses.replace(config, **chosen)
    _check_pooling(config, include_top, pooling)
    size = published.image_size if published else (224, 224)
    if sides and input_shape is not None:  # First built at the size of its positions.
        base = _own_size(found) if found and not published else size
        input_shape = (*base, *input_shape[2:])
    images = _images(config, input_tensor, input_shape, (*size, 3))
    own_classes = published.num_classes if published else None
    if own_classes is None:
        own_classes = (found.num_classes if found else None) or 1000
    num_classes = own_classes if classes is None else classes
    with contextlib.nullcontext() if found is None else uninitialized():
        if include_top:
            outputs = _classify(images, config, num_classes, classifier_activation)
        else:
            features = family_of(config).encode(images, config)
            outputs = _pool(features, pooling)
    inputs = images
    if input_tensor is not None:
        origins = keras.utils.get_source_inputs(images)
        inputs = origins[0] if len(origins) == 1 else origins
    model = VisionModel(inputs, outputs, name, facts=Facts(config=config))
    if found is None:
        return _opened(model, sides)
    report = checkpoint.assign(model, found, **_published(published))
    if include_top and published and "head/bias" in report.names("loaded"):
        model.labels = _labels(published)
    headless = "head/kernel" in report.names("fresh")
    if include_top and classes is None and (report.zero_head or headless):
        what = "has no head" if headless else "has a head of zeros, as published"
        warn(
            f"{found.where} {what}: predictions are uniform until fine-tuned. Set "
            "classes= for a new head, or use a tag with a trained head, e.g. "
            f"{_trained_head(variant)!r}",
        )
    return _opened(model, sides)


def _open_sides(config: Any, tensor: Tensor | None, shape: Any) -> tuple[Any, ...]:
    """(H, W) of a ViT's `input_shape`, if one is None; else ()."""
    resizes = family_of(config).resizes
    if tensor is not None or not resizes or not isinstance(shape, tuple | list):
        return ()
    if not any(side is None for side in shape[:2]):
        return ()
    height, width, _ = arguments.sides(
        "input_shape", shape, letters="(H, W, C)", opened=True
    )
    for side in (height, width):
        if side is not None:
            family_of(config).check_size("input_shape", (side, side), config)
    return height, width


def _opened(model: VisionModel, sides: tuple[Any, ...]) -> VisionModel:
    """The model for images of any size, if a side is None."""
    if not sides:
        return model
    with uninitialized():
        return at_resolution(model, (sides[0], sides[1]))


def _published(row: registry.Checkpoint | None) -> dict[str, str]:
    """The fields of `Provenance` that a tag determines."""
    if row is None:
        return {}
    return {"variant": row.variant, "tag": row.tag, "license": row.licence}


def _labels(row: registry.Checkpoint) -> tuple[str, ...] | None:
    """The class names of a published head; None for ImageNet-21k, which has no list."""
    return imagenet2012_labels() if row.labels == "imagenet2012" else None


def _with(config: Any, numerics: str) -> Any:
    return dataclasses.replace(config, **numerics_of(config, numerics))


def _classify(
    images: Tensor,
    config: CheckpointConfig,
    num_classes: int | None,
    activation: Any = None,
) -> Tensor:
    family = family_of(config)
    features = family.encode(images, config)
    return family.classify(features, config, num_classes, activation)


def _check_pooling(
    config: CheckpointConfig, include_top: bool, pooling: str | None
) -> None:
    arguments.choice("pooling", pooling, POOLINGS)
    if pooling == "token" and not include_top and not config.num_class_tokens:
        classifier = getattr(config, "classifier", None)
        raise ValueError(
            "Expected a class token for pooling='token' (Equation 4). Received: "
            f"{family_of(config).title} without one"
            + (f", classifier={classifier!r}" if classifier else "")
        )


def _pool(features: Tensor, pooling: str | None) -> Tensor:
    """Tokens [B, T, D] or a feature map [B, H, W, C], pooled to a vector if set."""
    if pooling is None:
        return features
    if pooling == "token":
        return heads.class_token(features)
    name, tokens = f"{pooling}_pool", len(features.shape) == 3
    layer: keras.layers.Layer
    if pooling == "avg" and tokens:
        layer = keras.layers.GlobalAveragePooling1D(
            data_format="channels_last", name=name
        )
    elif pooling == "avg":
        layer = keras.layers.GlobalAveragePooling2D(
            data_format="channels_last", name=name
        )
    elif tokens:
        layer = keras.layers.GlobalMaxPooling1D(data_format="channels_last", name=name)
    else:
        layer = keras.layers.GlobalMaxPooling2D(data_format="channels_last", name=name)
    return layer(features)


def _images(
    config: CheckpointConfig,
    tensor: Tensor | None,
    shape: tuple[Any, ...] | None,
    default: tuple[int, int, int],
) -> Tensor:
    """The images: the given tensor, or an input with a valid shape."""
    if tensor is None:
        shape = _check_shape("input_shape", default if shape is None else shape, config)
        return keras.Input(shape, name="images")
    if not keras.utils.is_keras_tensor(tensor) or len(tensor.shape) != 4:
        raise ValueError(
            "Expected input_tensor to be a Keras tensor [B, H, W, C]. "
            f"Received: input_tensor={arguments.shown(tensor)}"
        )
    own = _check_shape("input_tensor", tuple(tensor.shape[1:]), config)
    if shape is not None and _check_shape("input_shape", shape, config) != own:
        raise ValueError(
            f"Expected input_shape to be the input_tensor's, {own}. "
            f"Received: input_shape={tuple(shape)}. Remove input_shape"
        )
    return tensor


def _check_shape(name: str, shape: Any, config: CheckpointConfig) -> Any:
    """(H, W, C) if the model can be built for it; H and W of a BiT may be None."""
    family = family_of(config)
    shape = arguments.sides(name, shape, letters="(H, W, C)", opened=family.any_size)
    family.check_size(name, shape[:2], config)
    return shape


def _check_weights(weights: Any) -> None:
    if weights is None or (isinstance(weights, str | os.PathLike) and str(weights)):
        return
    raise ValueError(
        "Expected weights to be None, a tag, a file or a folder. "
        f"Received: weights={arguments.shown(weights)}"
    )


def _check_activation(activation: Any) -> None:
    try:
        keras.activations.get(activation)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "Expected classifier_activation to be None, the name of a Keras activation "
            "or a function. Received: classifier_activation="
            f"{arguments.shown(activation)}"
        ) from error


def _resolve(
    variant: str,
    weights: str | os.PathLike[str] | None,
    license_allow: sources.LicenseAllow,
) -> tuple[sources.Source | None, registry.Checkpoint | None]:
    """The file to load and, if `weights` is a tag, its row in the registry."""
    if weights is None:
        return None, None
    path, tag = Path(weights), str(weights)
    if path.is_dir():
        return sources.resolve(_in_directory(variant, path), license_allow), None
    if path.is_file() or sources.is_remote(weights):
        return sources.resolve(weights, license_allow), None
    if path.suffix and tag not in registry.tags(variant):
        return sources.resolve(weights, license_allow), None
    try:
        published = registry.find(variant, tag)
    except ValueError as error:
        raise ValueError(
            f"{error} weights={tag!r} is not a file or a folder, either"
            f"{sources.spelling(tag)}"
        ) from error
    sources.check_license(published.licence, license_allow, f"{variant} {tag}")
    file = download.locate(published)
    return sources.Source(path=file, name=str(file)), published


def _in_directory(variant: str, directory: Path) -> Path:
    """The checkpoint of `variant` in a directory: by name, or the only one."""
    if reading.is_folder(directory):
        return directory
    files = sorted(
        file
        for file in directory.iterdir()
        if file.suffix in (".npz", ".safetensors", ".h5")
    )
    named = [file for file in files if file.stem == variant.replace("/", "_")]
    for candidates in (named, files):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(
        f"Expected one checkpoint for {variant} in the directory "
        f"({variant.replace('/', '_')}.npz, model.safetensors, or a single file). "
        f"Received: {str(directory)!r} with {[file.name for file in files] or 'none'}"
    )


def _trained_head(variant: str) -> str:
    return next(
        (
            tag
            for tag in registry.tags(variant)
            if not registry.find(variant, tag).zero_head
        ),
        "",
    )


class ViTOptions(TypedDict, total=False):
    """Arguments of a `ViTBuilder` in addition to those of keras.applications."""

    classifier: Classifier
    representation_size: int | None
    dropout_rate: float
    attention_dropout_rate: float
    stochastic_depth_rate: float
    gelu: Gelu | None
    numerics: Numerics | None
    license_allow: Sequence[str] | None


class ResNetOptions(TypedDict, total=False):
    """Arguments of a `ResNetBuilder` in addition to those of keras.applications."""

    pool_padding: PoolPadding
    numerics: Numerics | None
    license_allow: Sequence[str] | None


class ViTBuilder(Builder[ViTConfig]):
    """A builder of ViTs, hybrids and axial ViTs (sections 3.1, 4.1, D.6)."""

    options = ViTOptions

    def __call__(
        self,
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = PER_VARIANT,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int | None, int | None, int] | None = None,
        pooling: Literal["token", "avg", "max"] | None = None,
        classes: int | None = None,
        classifier_activation: str | Callable[..., Tensor] | None = "softmax",
        name: str = PER_VARIANT,
        **options: Unpack[ViTOptions],
    ) -> VisionModel:
        """Builds the variant, pretrained unless `weights=None`.

        The arguments up to `name` are those of keras.applications.

        Args:
            include_top: whether to put the classifier on top.
            weights: None (random), a tag, a file, a directory with the tag's file or
                one checkpoint file, a repository of the Hugging Face Hub
                ("hf://ORG/NAME[@REVISION]", "timm:NAME"), or the URL of a file.
            input_tensor: Keras tensor [B, H, W, C] to use as the images.
            input_shape: (H, W, C). H and W must be multiples of the patch size, except
                for a hybrid. With pretrained weights, positions are resized
                (section 3.2) and the first kernel is adapted to C. A side of None
                accepts images of any size, as in `keras_vit.at_resolution`; axial
                attention needs a fixed size. Default: the size of the weights, else
                (224, 224, 3).
            pooling: with `include_top=False`: None returns all tokens [B, T, D],
                "token" the class token, "avg" and "max" the mean and maximum over the T
                tokens.
            classes: K. Default: that of the weights, else 1000. A different number
                replaces the head by a zero-initialized one.
            classifier_activation: activation of the head; None returns logits.
            name: name of the model.
            classifier: "token", "gap", "map", "unpooled", "token_unpooled" (D.3) or
                "distilled" (DeiT). Axial models have no class token: "gap", "map" or
                "unpooled".
            representation_size: width of the tanh layer `pre_logits` before the head,
                or None.
            dropout_rate: dropout rate after every dense layer except query, key and
                value (B.1).
            attention_dropout_rate: dropout rate of the attention probabilities, in [0,
                1).
            stochastic_depth_rate: drop rate of the last block's branches in training;
                see `ViTConfig`.
            gelu: "tanh" (as in the published weights) or "erf". Default: that of the
                weights.
            numerics: "paper", "timm" or "hf": GELU and epsilons to use instead of those
                of the weights. A tag always has the paper's, also if a copy in a
                different format is loaded.
            license_allow: accepted licenses of the weights, such as ["apache-2.0"].

        Returns:
            A `VisionModel` from images [B, H, W, C] in [-1, 1] to probabilities [B, K],
            or to features, by `pooling`. `model.provenance` reports the loaded weights.

        Raises:
            ValueError: if an argument is invalid, the tag is unknown or the weights
                do not fit.
            OSError: if the file does not exist, or no mirror has the weights.
        """
        return _build(**locals())  # `self` and the arguments.


class ResNetBuilder(Builder[ResNetConfig]):
    """A builder of BiT ResNets and axial ResNets (sections 4.1, D.6)."""

    options = ResNetOptions

    def __call__(
        self,
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = PER_VARIANT,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int | None, int | None, int] | None = None,
        pooling: Literal["avg", "max"] | None = None,
        classes: int | None = None,
        classifier_activation: str | Callable[..., Tensor] | None = "softmax",
        name: str = PER_VARIANT,
        **options: Unpack[ResNetOptions],
    ) -> VisionModel:
        """Builds the variant, pretrained unless `weights=None`.

        The arguments up to `name` are those of keras.applications.

        Args:
            include_top: whether to put the classifier on top.
            weights: None (random), a tag, a file, a directory with the tag's file or
                one checkpoint file, a repository of the Hugging Face Hub
                ("hf://ORG/NAME[@REVISION]", "timm:NAME"), or the URL of a file.
            input_tensor: Keras tensor [B, H, W, C] to use as the images.
            input_shape: (H, W, C), any; H and W of a BiT may be None. Default: the size
                of the weights, else (224, 224, 3).
            pooling: with `include_top=False`: None returns the feature map
                [B, H/32, W/32, C'], "avg" and "max" its mean and maximum.
            classes: K. Default: that of the weights, else 1000. A different number
                replaces the head by a zero-initialized one.
            classifier_activation: activation of the head; None returns logits.
            name: name of the model.
            pool_padding: padding of the root's pool: "zero", as in big_transfer, or
                "inf", as in big_vision.
            numerics: "paper", "timm" or "hf": epsilons to use instead of those of the
                weights.
            license_allow: accepted licenses of the weights, such as ["apache-2.0"].

        Returns:
            A `VisionModel` from images [B, H, W, C] in [-1, 1] to probabilities [B, K],
            or to features, by `pooling`. `model.provenance` reports the loaded weights.

        Raises:
            ValueError: if an argument is invalid, the tag is unknown or the weights
                do not fit.
            OSError: if the file does not exist, or no mirror has the weights.
        """
        return _build(**locals())  # `self` and the arguments.


ViT_Ti16 = ViTBuilder("ViT-Ti/16")
ViT_S16 = ViTBuilder("ViT-S/16")
ViT_S32 = ViTBuilder("ViT-S/32")
ViT_B8 = ViTBuilder("ViT-B/8")
ViT_B16 = ViTBuilder("ViT-B/16")
ViT_B32 = ViTBuilder("ViT-B/32")
ViT_L16 = ViTBuilder("ViT-L/16")
ViT_L32 = ViTBuilder("ViT-L/32")
ViT_H14 = ViTBuilder("ViT-H/14")
R_ViT_Ti16 = ViTBuilder("R+ViT-Ti/16")
R26_ViT_S32 = ViTBuilder("R26+ViT-S/32")
R26_ViT_B32 = ViTBuilder("R26+ViT-B/32")
R50_ViT_B16 = ViTBuilder("R50+ViT-B/16")
R50_ViT_B32 = ViTBuilder("R50+ViT-B/32")
R50_ViT_L16 = ViTBuilder("R50+ViT-L/16")
R50_ViT_L32 = ViTBuilder("R50+ViT-L/32")
Axial_ViT_B16 = ViTBuilder("Axial-ViT-B/16")
Axial_ViT_B32 = ViTBuilder("Axial-ViT-B/32")
BiT_R50x1 = ResNetBuilder("BiT-R50x1")
BiT_R50x2 = ResNetBuilder("BiT-R50x2")
BiT_R50x3 = ResNetBuilder("BiT-R50x3")
BiT_R101x1 = ResNetBuilder("BiT-R101x1")
BiT_R101x3 = ResNetBuilder("BiT-R101x3")
BiT_R152x1 = ResNetBuilder("BiT-R152x1")
BiT_R152x2 = ResNetBuilder("BiT-R152x2")
BiT_R152x4 = ResNetBuilder("BiT-R152x4")
BiT_R200x3 = ResNetBuilder("BiT-R200x3")
Axial_ResNet50 = ResNetBuilder("Axial-ResNet50")


def from_checkpoint(
    source: str | os.PathLike[str],
    *,
    image_size: tuple[int | None, int | None] | None = None,
    classes: int | None = None,
    num_channels: int | None = None,
    grid: tuple[int, int] | None = None,
    numerics: Numerics | None = None,
    license_allow: Sequence[str] | None = None,
    names: Renaming | None = None,
    fold: bool = False,
    **overrides: Unpack[Overrides],
) -> VisionModel:
    """Builds the model for a checkpoint and loads the weights.

    The architecture is inferred from the tensors: channels from the first kernel, heads
    from the query's axes if they show them, a class token from `cls`, MAP from
    `MAPHead_0`, and BiT from its names. `pre_logits` is kept if present. Numerics
    (GELU, epsilons) are those of the library that wrote the file, unless a
    `config.json` next to it (ours, timm's or transformers') states others.
    `model.provenance` reports the result.

    Args:
        source: an npz (official in either numbering, big_vision, BiT), safetensors
            (timm, Hugging Face; also an index of shards or a folder), or h5 (TFViT,
            keras-hub); "file.npz:img" is one tower of a big_vision file. Also a
            repository of the Hugging Face Hub, "hf://ORG/NAME[@REVISION]" or
            "timm:NAME", or the URL of a weights file.
        image_size: (H, W) of the model's images in pixels. A side of None accepts
            images of any size, as in `keras_vit.at_resolution`. Default: the size of
            the file's position grid, else (224, 224).
        classes: K; a number different from the file's creates a new head, without
            `pre_logits`; 0 for features. Default: the file's; without a head, features.
        num_channels: C of the images; the first kernel is adapted so that gray images
            have the same embedding as before. Default: the file's.
        grid: (rows, columns) of the file's position table; required if it is neither a
            square nor the grid of `image_size`.
        numerics: "paper", "timm" or "hf" instead of the file's numerics.
        license_allow: accepted licenses, such as ["apache-2.0", "mit"]; a checkpoint
            with a different license or without one is rejected before the download.
            Default: any.
        names: new names for a file without a known dialect: a dialect's name for each
            name in the file, or a list of (regular expression, replacement), applied in
            turn with `re.sub`. None instead of a name drops the tensor.
            `model.provenance.numerics` lists the names that did not match.
        fold: whether to multiply LayerScale into the layers before it: the same outputs
            with fewer operations, for inference. Training requires separate LayerScale.
        **overrides: fields of the config that take precedence over all else, such as
            `classifier="unpooled"`, `gelu="erf"` or `pool_padding="inf"`.

    Returns:
        A `VisionModel` with logits (never softmax), and with the preprocessing that the
        file states. `model.provenance` reports the loaded weights.

    Raises:
        FileNotFoundError: if the file does not exist.
        keras_vit.weights.DownloadError: if it cannot be downloaded.
        ValueError: if the file is damaged or not a ViT or a ResNet, an override is
            unknown or invalid for it, the grid is not known, or the license is not
            allowed.
    """
    fields = VIT_FIELDS | RESNET_FIELDS | PLAIN_FIELDS
    unknown = overrides.keys() - fields
    if unknown:
        raise ValueError(
            f"Expected overrides among {', '.join(sorted(fields))}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    if num_channels is not None and (type(num_channels) is not int or num_channels < 1):
        raise ValueError(
            "Expected num_channels to be a positive integer or None. "
            f"Received: num_channels={num_channels!r}"
        )
    fold = arguments.flag("fold", fold)
    image_size = arguments.optional(
        arguments.sides, "image_size", image_size, opened=True
    )
    grid = arguments.optional(arguments.sides, "grid", grid, letters="(rows, columns)")
    classes = arguments.optional(arguments.integer, "classes", classes, least=0)
    resolved = sources.resolve(source, license_allow)
    found = reading.read(
        resolved,
        grid=grid,
        numerics=numerics,
        overrides=overrides,
        renamed=names,
        fold=fold,
    )
    config = found.config
    new_head = classes is not None and classes != found.num_classes
    if new_head and "representation_size" not in overrides:
        config = config.with_linear_head()
    channels = num_channels or found.num_channels
    sides = _open_sides(config, None, image_size and (*image_size, channels))
    size = _own_size(found) if sides or not image_size else image_size
    images = keras.Input((*size, channels), name="images")
    num_classes = found.num_classes if classes is None else classes
    with uninitialized():
        outputs = _classify(images, config, num_classes)
    name = family_of(config).model_name
    model = VisionModel(images, outputs, name, facts=Facts(config=config))
    checkpoint.assign(model, found)
    return _opened(model, sides)


def _own_size(found: ParsedCheckpoint) -> tuple[int, int]:
    """The image size of a checkpoint's positions, in pixels."""
    grid, stride = found.grid, found.config.stride
    if found.num_positions is not None:
        grid = checkpoint.position_grid(found.num_positions, None, grid, found.where)
    if grid is None or not family_of(found.config).has_patches:
        return 224, 224
    return grid[0] * stride, grid[1] * stride


def preprocess_input(x: Tensor) -> Tensor:
    """Scales images from 0..255 to the [-1, 1] of the published weights (vit_jax).

    Args:
        x: images [..., H, W, C], uint8 or floats in 0..255, as a NumPy array or a
            tensor. They are never changed in place.

    Returns:
        (x - 127.5) / 127.5 in float32, with the same shape.

    Examples:
        >>> preprocess_input(np.array([[[0, 51, 255]]], np.uint8)).tolist()
        [[[-1.0, -0.6000000238418579, 1.0]]]
    """
    if isinstance(x, np.ndarray):
        return (x.astype(np.float32) - 127.5) / np.float32(127.5)
    return (keras.ops.cast(x, "float32") - 127.5) / 127.5


def decode_predictions(
    predictions: Tensor, top: int = 5
) -> list[list[tuple[int, str, float]]]:
    """Returns the best ImageNet-2012 classes of each row, as in keras.applications.

    Args:
        predictions: probabilities or logits, [B, 1000].
        top: number of classes to return, 1 to 1000.

    Returns:
        For each row, `top` tuples (class index, name, score), best first.

    Raises:
        ValueError: if `predictions` is not [B, 1000], or `top` is not in 1..1000.
    """
    labels = imagenet2012_labels()
    top = arguments.integer("top", top, most=len(labels))
    # Unsigned integers have no negatives to sort by.
    scores = np.asarray(keras.ops.convert_to_numpy(predictions), np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(labels):
        raise ValueError(
            "Expected predictions [B, 1000] over the classes of ImageNet 2012. "
            f"Received: predictions.shape={scores.shape}"
        )
    return [
        [(int(i), labels[i], float(row[i])) for i in np.argsort(-row)[:top]]
        for row in scores
    ]
