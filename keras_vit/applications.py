"""The keras.applications face: pretrained models in one line, over models and weights.

Every builder takes keras.applications' arguments, with its meanings; three departures
are stated in `_DOC`. This is the only module that puts models and weights together.
"""

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

from keras_vit.configs import VIT_VARIANTS, Classifier, Gelu, ViTConfig, builder_name
from keras_vit.layers.embeddings import Tensor
from keras_vit.models import heads
from keras_vit.models.vit import encode
from keras_vit.weights import checkpoint, download, registry

POOLINGS = (None, "token", "avg", "max")

_DOC = """Builds {variant} (Table 1, section 3.1), pretrained unless `weights=None`.

Args:
    include_top: whether to put the classifier on top.
    weights: None (random), a tag ({tags}), a file,
        or a directory holding the tag's file or one checkpoint file.
    input_tensor: Keras tensor to use as the images.
    input_shape: (H, W, C). Any multiple of the patch size, {patch_size}, works with
        pretrained weights: positions are resized (3.2), the first kernel is adapted to
        C. Default: the weights' own size, else (224, 224, 3).
    pooling: with `include_top=False`: None returns all tokens [B, T, D], "token" the
        class token's, "avg" and "max" the mean and maximum over the T tokens.
    classes: K. Default: the weights' own classes, else 1000; another number than the
        weights' makes a new, zero-initialised head.
    classifier_activation: of the head; None returns logits.
    name: of the model.
    classifier: "token", "gap", "unpooled" or "token_unpooled" (D.3).
    representation_size: width of the tanh layer `pre_logits` before the head, or None.
    dropout_rate: after every dense layer but query, key and value (B.1); default
        {dropout_rate}.
    attention_dropout_rate: of the attention probabilities.
    gelu: "tanh" (the published weights') or "erf".

Returns:
    A `keras.Model` from images [B, H, W, C] in [-1, 1] to probabilities [B, K].

Raises:
    ValueError: if an argument is impossible or the weights do not fit.
    OSError: if no mirror has the weights.
"""


def _build(
    variant: str,
    config: ViTConfig,
    *,
    include_top: bool,
    weights: str | os.PathLike[str] | None,
    input_tensor: Tensor | None,
    input_shape: tuple[int, int, int] | None,
    pooling: str | None,
    classes: int | None,
    classifier_activation: Any,
    name: str,
) -> keras.Model:
    """What every builder does: resolve, build, load."""
    _check_pooling(config, include_top, pooling)
    source, published = _resolve(variant, weights)
    if input_shape is None:
        size = published.image_size if published else (224, 224)
        input_shape = (*size, 3)
    if len(input_shape) != 3:
        raise ValueError(
            f"Expected input_shape (H, W, C). Received: input_shape={input_shape}"
        )
    images = _images(input_tensor, input_shape)
    classes = None if classes is None else operator.index(classes)
    own_classes = published.num_classes if published else _classes_in(source)
    num_classes = own_classes if classes is None else classes
    tokens = encode(images, config)
    if include_top:
        outputs = heads.classify(tokens, config, num_classes, classifier_activation)
    elif pooling is None:
        outputs = tokens
    else:
        outputs = _pool(tokens, pooling)
    inputs = images
    if input_tensor is not None:
        sources = keras.utils.get_source_inputs(images)
        inputs = sources[0] if len(sources) == 1 else sources
    model = keras.Model(inputs, outputs, name=name)
    if source is None:
        return model
    report = checkpoint.load(model, source)
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


def _check_pooling(config: ViTConfig, include_top: bool, pooling: str | None) -> None:
    if pooling not in POOLINGS:
        raise ValueError(
            "Expected pooling to be None, 'token', 'avg' or 'max'. "
            f"Received: pooling={pooling!r}"
        )
    if pooling == "token" and not include_top and not config.num_prefix_tokens:
        raise ValueError(
            "Expected a class token for pooling='token' (Equation 4). Received: "
            f"classifier={config.classifier!r}, which has none"
        )


def _pool(tokens: Tensor, pooling: str) -> Tensor:
    if pooling == "token":
        return tokens[:, 0]
    if pooling == "avg":
        return keras.layers.GlobalAveragePooling1D(name="avg_pool")(tokens)
    return keras.layers.GlobalMaxPooling1D(name="max_pool")(tokens)


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
    files = sorted(directory.glob("*.npz"))
    named = [file for file in files if file.stem == variant.replace("/", "_")]
    for candidates in (named, files):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(
        f"Expected one checkpoint for {variant} in the directory "
        f"({variant.replace('/', '_')}.npz, or a single .npz). Received: "
        f"{str(directory)!r} with {[file.name for file in files] or 'none'}"
    )


def _classes_in(source: Path | None) -> int:
    if source is None:
        return 1000
    with checkpoint.read(source) as tensors:
        return tensors["head/bias"].shape[0] if "head/bias" in tensors else 1000


def _trained_head(variant: str) -> str:
    return next(
        (
            tag
            for tag in registry.tags(variant)
            if not registry.find(variant, tag).zero_head
        ),
        "",
    )


def _default_weights(variant: str) -> str:
    """The paper's ImageNet-21k weights; AugReg's, where a variant has only those."""
    tags = registry.tags(variant)
    return next(tag for tag in ("imagenet21k", "augreg-imagenet21k") if tag in tags)


def _builder(variant: str, config: ViTConfig) -> Callable[..., keras.Model]:
    """The public function of one variant."""
    function_name = builder_name(variant)
    default_weights = _default_weights(variant)

    def build(
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = default_weights,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: Any = "softmax",
        name: str = function_name.lower(),
        *,
        classifier: Classifier = config.classifier,
        representation_size: int | None = config.representation_size,
        dropout_rate: float = config.dropout_rate,
        attention_dropout_rate: float = config.attention_dropout_rate,
        gelu: Gelu = config.gelu,
    ) -> keras.Model:
        chosen = dataclasses.replace(
            config,
            classifier=classifier,
            representation_size=representation_size,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            gelu=gelu,
        )
        return _build(
            variant,
            chosen,
            include_top=include_top,
            weights=weights,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
        )

    build.__name__ = build.__qualname__ = function_name
    build.__doc__ = _DOC.format(
        variant=variant,
        tags=", ".join(repr(tag) for tag in registry.tags(variant)),
        patch_size=config.patch_size,
        dropout_rate=config.dropout_rate,
    )
    return build


ViT_Ti16 = _builder("ViT-Ti/16", VIT_VARIANTS["ViT-Ti/16"])
ViT_S16 = _builder("ViT-S/16", VIT_VARIANTS["ViT-S/16"])
ViT_S32 = _builder("ViT-S/32", VIT_VARIANTS["ViT-S/32"])
ViT_B8 = _builder("ViT-B/8", VIT_VARIANTS["ViT-B/8"])
ViT_B16 = _builder("ViT-B/16", VIT_VARIANTS["ViT-B/16"])
ViT_B32 = _builder("ViT-B/32", VIT_VARIANTS["ViT-B/32"])
ViT_L16 = _builder("ViT-L/16", VIT_VARIANTS["ViT-L/16"])
ViT_L32 = _builder("ViT-L/32", VIT_VARIANTS["ViT-L/32"])
ViT_H14 = _builder("ViT-H/14", VIT_VARIANTS["ViT-H/14"])


def from_checkpoint(
    source: str | os.PathLike[str],
    *,
    image_size: tuple[int, int] | None = None,
    classes: int | None = None,
    grid: tuple[int, int] | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds the model a checkpoint file needs, and fills it.

    The architecture is read off the tensors: channels from the first kernel, heads
    from the query's, `pre_logits` kept when present, a class token by `cls`. A
    `config.json` beside the file sets what tensors cannot tell (`gelu`,
    `layer_norm_epsilon`, `grid`).

    Args:
        source: an official npz, in either numbering.
        image_size: (H, W) in pixels the model is built for. Default: the size of the
            file's own position grid.
        classes: K; another number than the file's makes a new head, without
            `pre_logits`. Default: the file's; without a head, features.
        grid: (rows, columns) of the file's position table; needed when it is not
            square and not that of `image_size`.
        **overrides: fields of `ViTConfig`, e.g. `classifier="unpooled"`, `gelu="erf"`.

    Returns:
        A `keras.Model` to logits, never softmax; its weights' `Report` is
        `model.checkpoint_report`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged or not a ViT's, or the grid cannot be known.
    """
    fields = {field.name for field in dataclasses.fields(ViTConfig)}
    unknown = overrides.keys() - fields
    if unknown:
        raise ValueError(
            f"Expected overrides among {', '.join(sorted(fields))}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    beside = checkpoint.config_beside(source)
    chosen = {key: beside[key] for key in beside.keys() & fields} | overrides
    grid = grid or beside.get("grid")
    with checkpoint.read(source) as tensors:
        contents = checkpoint.infer(tensors, str(source))
        if classes is not None and classes != contents.num_classes:
            chosen.setdefault("representation_size", None)
        config = dataclasses.replace(contents.config, **chosen)
        if image_size is None:
            own = checkpoint.position_grid(
                contents.num_positions, None, grid, str(source)
            )
            image_size = (own[0] * config.patch_size, own[1] * config.patch_size)
        images = keras.Input((*image_size, contents.num_channels), name="images")
        num_classes = contents.num_classes if classes is None else classes
        outputs = heads.classify(encode(images, config), config, num_classes)
        model = keras.Model(images, outputs, name="vit")
        report = checkpoint.assign(model, tensors, str(source), grid=grid)
    model.checkpoint_report = report
    return model


def preprocess_input(x: Tensor) -> Tensor:
    """Scales images of 0..255 to the [-1, 1] of the published weights.

    Args:
        x: [..., H, W, C], uint8 or floats in 0..255; NumPy array or tensor. It is
            never changed in place.

    Returns:
        float32 of the same shape, (x - 127.5) / 127.5.
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
    """Names the best ImageNet-2012 classes of each row.

    Args:
        predictions: [B, 1000], probabilities or logits.
        top: how many classes to name.

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
