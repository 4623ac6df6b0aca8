"""The keras.applications face: pretrained models in one line, over models and weights.

Every builder takes keras.applications' arguments, with its meanings; three departures
are stated in `_DOC`. This is the only module that puts models and weights together.
"""

import contextlib
import dataclasses
import functools
import operator
import os
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.configs import (
    AXIAL_RESNETS,
    AXIAL_VARIANTS,
    BIT_VARIANTS,
    CLASS_TOKENS,
    HYBRID_VARIANTS,
    NUMERICS,
    VIT_VARIANTS,
    Classifier,
    Gelu,
    PoolPadding,
    ResNetConfig,
    ViTConfig,
    builder_name,
    numerics_of,
)
from keras_vit.layers.embeddings import Tensor
from keras_vit.layers.encoder import undrawn
from keras_vit.models import heads
from keras_vit.models.resnet import classify as classify_map
from keras_vit.models.resnet import encode as feature_map
from keras_vit.models.vit import encode
from keras_vit.weights import checkpoint, contents, download, registry
from keras_vit.weights.config_json import RESNET_FIELDS, VIT_FIELDS
from keras_vit.weights.contents import Contents

POOLINGS = (None, "token", "avg", "max")

_DOC = """Builds {variant} ({source}), pretrained unless `weights=None`.

The arguments are keras.applications', those after `name` this library's.

Args:
    include_top: whether to put the classifier on top.
    weights: None (random), a tag ({tags}), a file,
        or a directory holding the tag's file or one checkpoint file.
    input_tensor: Keras tensor [B, H, W, C] to use as the images.
    input_shape: (H, W, C). {size} with
        pretrained weights: positions are resized (3.2), the first kernel is adapted to
        C. Default: the weights' own size, else (224, 224, 3).
    pooling: with `include_top=False`: None returns all tokens [B, T, D], "token" the
        class token's, "avg" and "max" the mean and maximum over the T tokens.
    classes: K. Default: the weights' own classes, else 1000; another number than the
        weights' makes a new, zero-initialised head.
    classifier_activation: of the head; None returns logits.
    name: of the model.
    classifier: "token", "gap", "map", "unpooled", "token_unpooled" (D.3) or "distilled"
        (DeiT); an axial model has no class token, so only "gap", "map", "unpooled".
    representation_size: width of the tanh layer `pre_logits` before the head, or None.
    dropout_rate: after every dense layer but query, key and value (B.1); default
        {dropout_rate}.
    attention_dropout_rate: of the attention probabilities, in [0, 1).
    stochastic_depth_rate: of the last block's branches, in training; see `ViTConfig`.
    gelu: "tanh" (the published weights') or "erf"; default: the weights' own.
    numerics: "paper", "timm" or "hf": whose GELU and epsilons to compute with in the
        place of the weights' own. A tag's are the paper's, whatever copy is loaded.

Returns:
    A `keras.Model` from images [B, H, W, C] in [-1, 1] to probabilities [B, K], or to
    what `pooling` says; what was loaded is `model.checkpoint_report`.

Raises:
    ValueError: if an argument is impossible, the tag is unknown or the weights do not
        fit.
    OSError: if there is no such file, or no mirror has the weights.
"""

_RESNET_DOC = """Builds {variant} ({source}), pretrained unless `weights=None`.

The arguments are keras.applications', those after `name` this library's.

Args:
    include_top: whether to put the classifier on top.
    weights: None (random), a tag ({tags}), a file,
        or a directory holding the tag's file or one checkpoint file.
    input_tensor: Keras tensor [B, H, W, C] to use as the images.
    input_shape: (H, W, C), any. Default: the weights' own size, else (224, 224, 3).
    pooling: with `include_top=False`: None returns the feature map [B, H/32, W/32, C'],
        "avg" and "max" its mean and maximum.
    classes: K. Default: the weights' own classes, else 1000; another number than the
        weights' makes a new, zero-initialised head.
    classifier_activation: of the head; None returns logits.
    name: of the model.
    pool_padding: of the root's pool: "zero", as big_transfer, or "inf", as big_vision.
    numerics: "paper", "timm" or "hf": whose epsilons to compute with in the place of
        the weights' own.

Returns:
    A `keras.Model` from images [B, H, W, C] in [-1, 1] to probabilities [B, K], or to
    what `pooling` says; what was loaded is `model.checkpoint_report`.

Raises:
    ValueError: if an argument is impossible, the tag is unknown or the weights do not
        fit.
    OSError: if there is no such file, or no mirror has the weights.
"""


def _build(
    variant: str,
    config: ViTConfig | ResNetConfig,
    *,
    include_top: bool,
    weights: str | os.PathLike[str] | None,
    input_tensor: Tensor | None,
    input_shape: tuple[int, int, int] | None,
    pooling: str | None,
    classes: int | None,
    classifier_activation: Any,
    name: str,
    numerics: str | None,
    **chosen: Any,
) -> keras.Model:
    """What every builder does: resolve, read, build, load."""
    source, published = _resolve(variant, weights)
    found = None
    if source is not None:
        # A tag's training computes as the paper's code does, whoever keeps the copy.
        own = numerics or ("paper" if published else None)
        found = contents.read(source, numerics=own)
        chosen = _numerics_in(found, config) | chosen
    elif numerics is not None:
        chosen = numerics_of(config, numerics) | chosen
    config = dataclasses.replace(config, **chosen)
    _check_pooling(config, include_top, pooling)
    if input_shape is None:
        size = published.image_size if published else (224, 224)
        input_shape = (*size, 3)
    if len(input_shape) != 3:
        raise ValueError(
            f"Expected input_shape (H, W, C). Received: input_shape={input_shape}"
        )
    images = _images(input_tensor, input_shape)
    classes = None if classes is None else operator.index(classes)
    own_classes = published.num_classes if published else None
    if own_classes is None:
        own_classes = (found.num_classes if found else None) or 1000
    num_classes = own_classes if classes is None else classes
    with contextlib.nullcontext() if found is None else undrawn():
        if include_top:
            outputs = _classify(images, config, num_classes, classifier_activation)
        else:
            outputs = _pool(_features(images, config), pooling)
    inputs = images
    if input_tensor is not None:
        sources = keras.utils.get_source_inputs(images)
        inputs = sources[0] if len(sources) == 1 else sources
    model = keras.Model(inputs, outputs, name=name)
    if found is None:
        return model
    report = checkpoint.assign(model, found)
    model.checkpoint_report = dataclasses.replace(report, published=published)
    headless = "head/kernel" in report.names("fresh")
    if include_top and classes is None and (report.zero_head or headless):
        what = "has no head" if headless else "has a head of zeros, as published"
        warnings.warn(
            f"{source} {what}: predictions are uniform until fine-tuned. Give classes= "
            "for a new head, or a tag with a trained one, e.g. "
            f"{_trained_head(variant)!r}",
            stacklevel=3,
        )
    return model


def _numerics_in(found: Contents, config: ViTConfig | ResNetConfig) -> dict[str, Any]:
    """The fields of `config` that a file's dialect or `config.json` sets."""
    told, kernels = found.config, NUMERICS["paper"]["v2"].keys()
    if isinstance(config, ResNetConfig) and isinstance(told, ResNetConfig):
        return {name: getattr(told, name) for name in kernels}
    if isinstance(config, ResNetConfig) or isinstance(told, ResNetConfig):
        return {}  # Of another family: loading says so.
    fields = {name: getattr(told, name) for name in NUMERICS["paper"]["vit"]}
    if config.resnet is not None and told.resnet is not None:
        epsilons = {name: getattr(told.resnet, name) for name in kernels}
        fields["resnet"] = dataclasses.replace(config.resnet, **epsilons)
    return fields


def _features(images: Tensor, config: ViTConfig | ResNetConfig) -> Tensor:
    if isinstance(config, ResNetConfig):
        return feature_map(images, config)
    return encode(images, config)


def _classify(
    images: Tensor,
    config: ViTConfig | ResNetConfig,
    num_classes: int | None,
    activation: Any = None,
) -> Tensor:
    features = _features(images, config)
    if isinstance(config, ResNetConfig):
        return classify_map(features, config, num_classes, activation)
    return heads.classify(features, config, num_classes, activation)


def _check_pooling(
    config: ViTConfig | ResNetConfig, include_top: bool, pooling: str | None
) -> None:
    if pooling not in POOLINGS:
        raise ValueError(
            "Expected pooling to be None, 'token', 'avg' or 'max'. "
            f"Received: pooling={pooling!r}"
        )
    token = isinstance(config, ViTConfig) and CLASS_TOKENS[config.classifier]
    if pooling == "token" and not include_top and not token:
        what = (
            f"classifier={config.classifier!r}, which has none"
            if isinstance(config, ViTConfig)
            else "a ResNet"
        )
        raise ValueError(
            f"Expected a class token for pooling='token' (Equation 4). Received: {what}"
        )


def _pool(features: Tensor, pooling: str | None) -> Tensor:
    """Tokens [B, T, D] or a feature map [B, H, W, C] as one vector, if asked for."""
    if pooling is None:
        return features
    if pooling == "token":
        return features[:, 0]
    layers = keras.layers
    kinds = {
        ("avg", 3): layers.GlobalAveragePooling1D,
        ("max", 3): layers.GlobalMaxPooling1D,
        ("avg", 4): layers.GlobalAveragePooling2D,
        ("max", 4): layers.GlobalMaxPooling2D,
    }
    return kinds[pooling, len(features.shape)](name=f"{pooling}_pool")(features)


def _images(tensor: Tensor | None, shape: tuple[int, int, int]) -> Tensor:
    if tensor is None:
        return keras.Input(shape, name="images")
    if keras.utils.is_keras_tensor(tensor):
        return tensor
    return keras.Input(tensor=tensor, name="images")


def _resolve(
    variant: str, weights: str | os.PathLike[str] | None
) -> tuple[Path | None, registry.Checkpoint | None]:
    """The file to load and, where `weights` is a tag, its row of the registry."""
    if weights is None:
        return None, None
    path = Path(weights)
    if path.is_dir():
        return _in_directory(variant, path), None
    if path.is_file() or path.suffix:
        if not path.is_file() and str(weights) in registry.tags(variant):
            published = registry.find(variant, str(weights))
            return download.locate(published), published
        return path, None
    published = registry.find(variant, str(weights))
    return download.locate(published), published


def _in_directory(variant: str, directory: Path) -> Path:
    """The one checkpoint of `variant` in a directory: by its name, else the only."""
    if contents.is_folder(directory):
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


def _default_weights(variant: str) -> str | None:
    """The paper's ImageNet-21k weights, else AugReg's, else none were published."""
    tags = registry.tags(variant)
    wanted = ("imagenet21k", "augreg-imagenet21k")
    return next((tag for tag in wanted if tag in tags), None)


def _named(
    build: Callable[..., keras.Model], variant: str, config: ViTConfig | ResNetConfig
) -> Callable[..., keras.Model]:
    """`build` under the variant's public name, with its documentation."""
    tags = ", ".join(repr(tag) for tag in registry.tags(variant))
    build.__name__ = build.__qualname__ = builder_name(variant)
    if isinstance(config, ResNetConfig):
        source = "D.6" if config.unit == "axial" else "section 4.1's BiT"
        build.__doc__ = _RESNET_DOC.format(
            variant=variant, source=source, tags=tags or "none is known"
        )
        return build
    source = "Table 1, section 3.1"
    size = f"Any multiple of the patch size, {config.patch_size}, works"
    if config.resnet is not None:
        size, source = "Any size works", "hybrid, sections 3.1 and 4.1"
    elif config.attention == "axial":
        source = "D.6"
    elif variant.startswith(("ViT-Ti", "ViT-S")):
        source = "section 3.1; the size is DeiT's and AugReg's"
    build.__doc__ = _DOC.format(
        variant=variant,
        source=source,
        tags=tags or "none is known",
        size=size,
        dropout_rate=config.dropout_rate,
    )
    return build


def _vit_builder(variant: str, config: ViTConfig) -> Callable[..., keras.Model]:
    """The public function of a ViT, a hybrid or an axial ViT."""
    default_weights = _default_weights(variant)

    def build(
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = default_weights,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: Any = "softmax",
        name: str = builder_name(variant).lower(),
        *,
        classifier: Classifier = config.classifier,
        representation_size: int | None = config.representation_size,
        dropout_rate: float = config.dropout_rate,
        attention_dropout_rate: float = config.attention_dropout_rate,
        stochastic_depth_rate: float = config.stochastic_depth_rate,
        gelu: Gelu | None = None,
        numerics: str | None = None,
    ) -> keras.Model:
        return _build(
            variant,
            config,
            include_top=include_top,
            weights=weights,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
            numerics=numerics,
            classifier=classifier,
            representation_size=representation_size,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            stochastic_depth_rate=stochastic_depth_rate,
            **({} if gelu is None else {"gelu": gelu}),
        )

    return _named(build, variant, config)


def _resnet_builder(variant: str, config: ResNetConfig) -> Callable[..., keras.Model]:
    """The public function of a BiT ResNet or an axial one."""
    default_weights = _default_weights(variant)

    def build(
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = default_weights,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: Any = "softmax",
        name: str = builder_name(variant).lower(),
        *,
        pool_padding: PoolPadding = config.pool_padding,
        numerics: str | None = None,
    ) -> keras.Model:
        return _build(
            variant,
            config,
            include_top=include_top,
            weights=weights,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
            numerics=numerics,
            pool_padding=pool_padding,
        )

    return _named(build, variant, config)


ViT_Ti16 = _vit_builder("ViT-Ti/16", VIT_VARIANTS["ViT-Ti/16"])
ViT_S16 = _vit_builder("ViT-S/16", VIT_VARIANTS["ViT-S/16"])
ViT_S32 = _vit_builder("ViT-S/32", VIT_VARIANTS["ViT-S/32"])
ViT_B8 = _vit_builder("ViT-B/8", VIT_VARIANTS["ViT-B/8"])
ViT_B16 = _vit_builder("ViT-B/16", VIT_VARIANTS["ViT-B/16"])
ViT_B32 = _vit_builder("ViT-B/32", VIT_VARIANTS["ViT-B/32"])
ViT_L16 = _vit_builder("ViT-L/16", VIT_VARIANTS["ViT-L/16"])
ViT_L32 = _vit_builder("ViT-L/32", VIT_VARIANTS["ViT-L/32"])
ViT_H14 = _vit_builder("ViT-H/14", VIT_VARIANTS["ViT-H/14"])
R_ViT_Ti16 = _vit_builder("R+ViT-Ti/16", HYBRID_VARIANTS["R+ViT-Ti/16"])
R26_ViT_S32 = _vit_builder("R26+ViT-S/32", HYBRID_VARIANTS["R26+ViT-S/32"])
R26_ViT_B32 = _vit_builder("R26+ViT-B/32", HYBRID_VARIANTS["R26+ViT-B/32"])
R50_ViT_B16 = _vit_builder("R50+ViT-B/16", HYBRID_VARIANTS["R50+ViT-B/16"])
R50_ViT_B32 = _vit_builder("R50+ViT-B/32", HYBRID_VARIANTS["R50+ViT-B/32"])
R50_ViT_L16 = _vit_builder("R50+ViT-L/16", HYBRID_VARIANTS["R50+ViT-L/16"])
R50_ViT_L32 = _vit_builder("R50+ViT-L/32", HYBRID_VARIANTS["R50+ViT-L/32"])
Axial_ViT_B16 = _vit_builder("Axial-ViT-B/16", AXIAL_VARIANTS["Axial-ViT-B/16"])
Axial_ViT_B32 = _vit_builder("Axial-ViT-B/32", AXIAL_VARIANTS["Axial-ViT-B/32"])
BiT_R50x1 = _resnet_builder("BiT-R50x1", BIT_VARIANTS["BiT-R50x1"])
BiT_R50x2 = _resnet_builder("BiT-R50x2", BIT_VARIANTS["BiT-R50x2"])
BiT_R50x3 = _resnet_builder("BiT-R50x3", BIT_VARIANTS["BiT-R50x3"])
BiT_R101x1 = _resnet_builder("BiT-R101x1", BIT_VARIANTS["BiT-R101x1"])
BiT_R101x3 = _resnet_builder("BiT-R101x3", BIT_VARIANTS["BiT-R101x3"])
BiT_R152x1 = _resnet_builder("BiT-R152x1", BIT_VARIANTS["BiT-R152x1"])
BiT_R152x2 = _resnet_builder("BiT-R152x2", BIT_VARIANTS["BiT-R152x2"])
BiT_R152x4 = _resnet_builder("BiT-R152x4", BIT_VARIANTS["BiT-R152x4"])
BiT_R200x3 = _resnet_builder("BiT-R200x3", BIT_VARIANTS["BiT-R200x3"])
Axial_ResNet50 = _resnet_builder("Axial-ResNet50", AXIAL_RESNETS["Axial-ResNet50"])


def from_checkpoint(
    source: str | os.PathLike[str],
    *,
    image_size: tuple[int, int] | None = None,
    classes: int | None = None,
    grid: tuple[int, int] | None = None,
    numerics: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds the model a checkpoint needs, and fills it; not in the paper.

    The architecture is read off the tensors: channels from the first kernel, heads
    from the query's where its axes show them, `pre_logits` kept when present, a class
    token by `cls`, MAP by `MAPHead_0`, BiT by its names. Numerics (GELU, epsilons)
    are those of the library that wrote the file; a `config.json` beside it, ours,
    timm's or transformers', is stronger. The report says what was chosen.

    Args:
        source: an npz (official in either numbering, big_vision, BiT), safetensors
            (timm, Hugging Face; an index of shards or a folder, too), or h5 (TFViT,
            keras-hub); "file.npz:img" is one tower of a big_vision file.
        image_size: (H, W) in pixels the model is built for. Default: the size of the
            file's own position grid, else (224, 224).
        classes: K; another number than the file's makes a new head, without
            `pre_logits`. Default: the file's; without a head, features.
        grid: (rows, columns) of the file's position table; needed when it is not
            square and not that of `image_size`.
        numerics: "paper", "timm" or "hf" in the place of the file's own.
        **overrides: fields of `ViTConfig` or `ResNetConfig`, stronger than all, e.g.
            `classifier="unpooled"`, `gelu="erf"`, `pool_padding="inf"`.

    Returns:
        A `keras.Model` to logits, never softmax; its weights' `Report` is
        `model.checkpoint_report`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged or not a ViT's, an override is unknown or does not
            fit it, or the grid cannot be known.
    """
    fields = VIT_FIELDS | RESNET_FIELDS
    unknown = overrides.keys() - fields
    if unknown:
        raise ValueError(
            f"Expected overrides among {', '.join(sorted(fields))}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    found = contents.read(source, grid=grid, numerics=numerics, overrides=overrides)
    config = found.config
    new_head = classes is not None and classes != found.num_classes
    if isinstance(config, ViTConfig) and new_head:
        fresh = {"representation_size": None} | overrides
        config = dataclasses.replace(
            config, representation_size=fresh["representation_size"]
        )
    size = image_size or _own_size(found)
    images = keras.Input((*size, found.num_channels), name="images")
    num_classes = found.num_classes if classes is None else classes
    with undrawn():
        outputs = _classify(images, config, num_classes)
    name = "resnet" if isinstance(config, ResNetConfig) else "vit"
    model = keras.Model(images, outputs, name=name)
    model.checkpoint_report = checkpoint.assign(model, found)
    return model


def _own_size(found: Contents) -> tuple[int, int]:
    """The pixels that a checkpoint's positions are for."""
    config = found.config
    if found.num_positions is None or isinstance(config, ResNetConfig):
        return 224, 224
    rows, columns = checkpoint.position_grid(
        found.num_positions, None, found.grid, found.where
    )
    pixels = config.patch_size * (config.resnet.stride if config.resnet else 1)
    return rows * pixels, columns * pixels


def preprocess_input(x: Tensor) -> Tensor:
    """Scales images of 0..255 to the [-1, 1] of the published weights (vit_jax).

    Args:
        x: [..., H, W, C], uint8 or floats in 0..255; NumPy array or tensor. It is
            never changed in place.

    Returns:
        float32 of the same shape, (x - 127.5) / 127.5.

    Example:
        >>> preprocess_input(np.array([[[0, 51, 255]]], np.uint8)).tolist()
        [[[-1.0, -0.6000000238418579, 1.0]]]
    """
    if isinstance(x, np.ndarray):
        return (x.astype(np.float32) - 127.5) / np.float32(127.5)
    return (keras.ops.cast(x, "float32") - 127.5) / 127.5


@functools.cache
def imagenet2012_labels() -> tuple[str, ...]:
    """The 1000 class names of ImageNet 2012, in the published heads' order."""
    text = resources.files("keras_vit").joinpath("labels/imagenet2012.txt").read_text()
    return tuple(text.split("\n"))


def decode_predictions(
    predictions: Tensor, top: int = 5
) -> list[list[tuple[int, str, float]]]:
    """Names the best ImageNet-2012 classes of each row; keras.applications' signature.

    Args:
        predictions: [B, 1000], probabilities or logits.
        top: how many classes to name, 1 to 1000.

    Returns:
        For each row, `top` tuples (class index, name, score), best first.

    Raises:
        ValueError: if `predictions` is not [B, 1000].
    """
    scores = np.asarray(keras.ops.convert_to_numpy(predictions))
    labels = imagenet2012_labels()
    if scores.ndim != 2 or scores.shape[1] != len(labels):
        raise ValueError(
            "Expected predictions [B, 1000] over the classes of ImageNet 2012. "
            f"Received: predictions.shape={scores.shape}"
        )
    return [
        [(int(i), labels[i], float(row[i])) for i in np.argsort(-row)[:top]]
        for row in scores
    ]
