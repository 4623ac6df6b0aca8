"""Masked patch prediction (4.6, B.1.2): BERT's pre-training task, for patches.

"We corrupt 50 % of patch embeddings by either replacing their embeddings with a
learnable [mask] embedding (80 %), a random other patch embedding (10 %) or just keeping
them as is (10 %)." The model then predicts the mean color, a small version or the
pixels of each corrupted patch from its representation.

    backbone = keras_vit.ViT_B16(weights=None, include_top=False, pooling="token")
    predictor = keras_vit.self_supervision.MaskedPatchPredictor(backbone)
    predictor.compile("adam")
    predictor.fit(images)  # [B, 224, 224, 3] in [-1, 1]; no labels
    model = keras_vit.for_task(predictor.backbone, 10)

Glossary of shapes:
- B: batch.   - H, W, C: image height, width, channels.   - P: patch side, in pixels.
- N: patches, HW / P^2.   - M: corrupted patches of an image.   - D: hidden size.
- Q: numbers predicted for a patch: 1 color, 16 colors, or its P^2 C pixel values.
"""

import dataclasses
import math
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.facts import Preprocessing
from keras_vit.layers import PatchEmbedding
from keras_vit.layers.embeddings import Shape, Tensor, register
from keras_vit.layers.kernels import wide
from keras_vit.layers.plain import PlainBlock
from keras_vit.models.description import describe
from keras_vit.models.vision import preprocessing_of
from keras_vit.models.vit import after_embedding
from keras_vit.normalization import per_channel
from keras_vit.weights.architecture import config_of

__all__ = [
    "MASKED",
    "CorruptPatches",
    "MaskedPatchPredictor",
    "class_colors",
    "color_classes",
]

Target = Literal["mean_color", "4x4", "l2"]
SIDE = {"mean_color": 1, "4x4": 4}  # Side of a patch's small version.
LEVELS = 8  # "3-bit" of a channel.
MASKED = -1
"""Stands for a patch's index where its embedding is replaced by B.1.2's [mask]."""


@register
class CorruptPatches(keras.layers.Layer):
    """Corrupts patch embeddings as in B.1.2: [B, N, D] -> [B, N, D], and indices.

    Exactly round(corrupt * N) patches of each image are corrupted, as in BERT. How each
    of them is corrupted is drawn independently. During training, every call draws
    again. Otherwise the draws are the same for every batch, so that an evaluation
    depends only on the model and the batches.

    Args:
        corrupt: share of the patches to predict, above 0 and at most 1.
        mask: share of those that become the learned [mask] embedding.
        replace: share that become the embedding of a different patch of the batch; the
            rest stay as they are.
        seed: integer seed of the draws; None: Keras chooses one.

    A call returns three tensors. The embeddings; `sources` [B, N], the index in
    0..BN - 1 of the patch of the batch whose embedding is used at each position, or
    MASKED; `places` [B, M], the indices of each image's corrupted patches in 0..N - 1,
    in any order.

    Raises:
        ValueError: if an argument is invalid, or `corrupt` selects no patch of the
            input the layer is built for.
    """

    def __init__(
        self,
        corrupt: float = 0.5,
        mask: float = 0.8,
        replace: float = 0.1,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.corrupt = arguments.share("corrupt", corrupt)
        self.mask = arguments.share("mask", mask)
        self.replace = arguments.share("replace", replace)
        self.seed = _check_seed(seed)
        self.generator = keras.random.SeedGenerator(self.seed)

    def build(self, input_shape: Shape) -> None:
        if input_shape[1] is not None:
            _check_count(self.corrupt, input_shape[1])
        self.mask_embedding = self.add_weight(
            name="mask_embedding",
            shape=(input_shape[-1],),
            initializer=keras.initializers.RandomNormal(stddev=0.02),  # As in BERT.
        )

    def call(
        self, patches: Tensor, training: bool | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_patches, hidden_size = ops.shape(patches)
        seeds = [self.generator] * 3 if training else [0, 1, 2]
        sources, places = self.draw(batch, num_patches, seeds)
        rows = ops.reshape(patches, (-1, hidden_size))
        read = ops.take(rows, ops.maximum(sources, 0), axis=0)
        masked = ops.expand_dims(sources == MASKED, -1)
        mask_embedding = ops.cast(self.mask_embedding, read.dtype)
        return ops.where(masked, mask_embedding, read), sources, places

    def draw(
        self, batch: Any, num_patches: int, seeds: list[Any]
    ) -> tuple[Tensor, Tensor]:
        """Draws which patches are corrupted, and how (B.1.2).

        Args:
            batch: B.
            num_patches: N.
            seeds: three seeds or Keras seed generators: for the choice of patches, the
                kind of corruption, and the patch that replaces another.

        Returns:
            Integers `sources` [B, N] and `places` [B, M]; see the class.
        """
        noise = keras.random.uniform((batch, num_patches), seed=seeds[0])
        order = ops.argsort(noise, axis=-1)
        count = corrupted_patches(self.corrupt, num_patches)
        corrupted = ops.argsort(order, axis=-1) < count
        fate = keras.random.uniform((batch, num_patches), seed=seeds[1])
        total = batch * num_patches
        own = ops.reshape(ops.arange(total, dtype="int32"), (-1, num_patches))
        away = keras.random.randint((batch, num_patches), 1, total, seed=seeds[2])
        other = (own + away) % total
        sources = ops.where(fate < self.mask + self.replace, other, own)
        sources = ops.where(fate < self.mask, MASKED, sources)
        return ops.where(corrupted, sources, own), order[:, :count]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "corrupt": self.corrupt,
            "mask": self.mask,
            "replace": self.replace,
            "seed": self.seed,
        }


def _check_seed(seed: Any) -> int | None:
    """Returns None, or an integer that JAX's generators also accept."""
    checked: int | None = arguments.optional(
        arguments.integer, "seed", seed, least=0, most=arguments.LARGEST_SEED
    )
    return checked


def corrupted_patches(corrupt: float, num_patches: int) -> int:
    """Returns M, the number of corrupted patches among N."""
    return round(corrupt * num_patches)


def patches_of(images: Tensor, patch_size: int) -> Tensor:
    """Cuts images into patches, row by row (3.1): [B, H, W, C] -> [B, N, P, P, C]."""
    _, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    cut = ops.reshape(images, (-1, rows, patch_size, columns, patch_size, channels))
    cut = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
    return ops.reshape(cut, (-1, rows * columns, patch_size, patch_size, channels))


def images_of(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """Inverts `patches_of`: [B, N, P, P, C] -> [B, H, W, C]."""
    rows, columns = grid
    _, _, side, _, channels = patches.shape
    laid = ops.reshape(patches, (-1, rows, columns, side, side, channels))
    laid = ops.transpose(laid, (0, 1, 3, 2, 4, 5))
    return ops.reshape(laid, (-1, rows * side, columns * side, channels))


def down_sized(patches: Tensor, side: int) -> Tensor:
    """Averages over areas: [B, ..., P, P, C] -> [B, ..., side, side, C].

    If `side` does not divide P, the areas contain fractions of pixels.
    """
    *_, patch_size, _, channels = patches.shape
    times = side // math.gcd(side, patch_size)
    if times > 1:
        patches = ops.repeat(ops.repeat(patches, times, axis=-3), times, axis=-2)
    area = patch_size * times // side
    cut = ops.reshape(
        patches, (-1, *patches.shape[1:-3], side, area, side, area, channels)
    )
    return ops.mean(cut, axis=(-4, -2))


def color_classes(colors: Tensor) -> Tensor:
    """Returns the 3-bit colors of B.1.2: [..., C] in [0, 1] -> classes in 0..8^C - 1.

    Each channel is divided into 8 equal intervals; the first channel is the most
    significant. A mean of uint8 pixels exactly on a boundary belongs to the upper
    interval. A small constant keeps float32 rounding from moving it below: less than
    one level of one pixel in a patch of 56x56.

    Args:
        colors: [..., C]; values outside 0..1 are clipped.

    Returns:
        int32 [...].
    """
    levels = ops.floor(colors * LEVELS + 1e-5)
    levels = ops.cast(ops.clip(levels, 0, LEVELS - 1), "int32")
    channels = colors.shape[-1]
    weights = LEVELS ** np.arange(channels, dtype=np.int32)[::-1]
    return ops.sum(levels * weights, axis=-1)


def class_colors(classes: np.ndarray, channels: int = 3) -> np.ndarray:
    """Returns the center of each color class (B.1.2): [...] -> [..., C] in [0, 1].

    Args:
        classes: integers [...] in 0..8^C - 1, as returned by `color_classes`.
        channels: C.

    Returns:
        float64 [..., C]: (level + 0.5) / 8 for each channel.

    Examples:
        >>> class_colors(np.array(511))
        array([0.9375, 0.9375, 0.9375])
    """
    weights = LEVELS ** np.arange(channels)[::-1]
    levels = classes[..., None] // weights % LEVELS
    colors: np.ndarray = (levels + 0.5) / LEVELS
    return colors


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPredictor(keras.Model):
    """A `keras.Model` that trains a model's encoder by masked patch prediction (B.1.2).

    Its input is images [B, H, W, C], without labels. `compile` requires only an
    optimizer. The loss is computed on the corrupted patches only: cross-entropy for
    colors, the mean squared error for "l2". `training.fit` accepts it with
    `recipes.PRETRAIN["masked-patches"]`.

    Args:
        backbone: a ViT or hybrid of this library; a head, if present, is not trained.
            The encoder is shared, and the attribute `backbone` is this same object.
        target: prediction for a corrupted patch: "mean_color", its mean color in 3 bits
            per channel (512 classes; the paper reports this one); "4x4", a 4x4
            down-sized version in such colors (16 x 512); "l2", its pixels.
        corrupt: share of the patches, above 0 and at most 1; the paper found 0.15
            slightly worse.
        mask: share of those that become the [mask] embedding.
        replace: share that become the embedding of another patch of the batch.
        keep: share that stay as they are. `mask`, `replace` and `keep` add up to 1.
        preprocessing: scaling of the images, needed to compute the targets [default:
            the backbone's].
        seed: integer seed of the corruption; None: Keras chooses one.
        name: name of the model.

    A call returns a dict for the loss: "prediction" [B, M, Q, 8^C], or [B, M, P^2 C]
    for "l2"; "target" [B, M, Q], or [B, M, P^2 C]; "places" [B, M] and "sources" [B, N]
    as described in `CorruptPatches`.

    Raises:
        ValueError: if the backbone has no patches, its patches do not tile its images,
            or they are smaller than 4 px per side for "4x4"; if `target` is unknown; if
            a share is not between 0 and 1 or selects no patch; if the preprocessing
            does not fit the backbone's channels.
    """

    backbone: keras.Model

    def __init__(
        self,
        backbone: keras.Model,
        target: Target = "mean_color",
        corrupt: float = 0.5,
        mask: float = 0.8,
        replace: float = 0.1,
        keep: float = 0.1,
        *,
        preprocessing: Preprocessing | None = None,
        seed: int | None = None,
        name: str = "masked_patch_predictor",
        **kwargs: Any,
    ) -> None:
        patch_size, grid = _pixel_patches(backbone)
        _check(target, corrupt, mask, replace, keep, math.prod(grid), patch_size)
        images = backbone.input
        preprocessing = preprocessing_of(backbone, preprocessing)
        mean = per_channel(preprocessing.mean, images.shape[-1])
        std = per_channel(preprocessing.std, images.shape[-1])
        embedding = backbone.get_layer("embedding")
        corruption = CorruptPatches(
            *(corrupt, mask, replace, _check_seed(seed)),
            dtype=embedding.dtype_policy,
            name="corruption",
        )
        tokens, sources, places = corruption(embedding.output)
        config: Any = config_of(backbone)
        for layer in after_embedding(config, grid):
            tokens = backbone.get_layer(layer.name)(tokens)
        chosen = ops.expand_dims(places, -1)
        tokens = tokens[:, config.num_prefix_tokens :]
        tokens = ops.take_along_axis(tokens, chosen, axis=1)
        wanted = _targets(images, target, patch_size, mean, std)
        units = wanted.shape[-1]
        outputs = units if target == "l2" else units * LEVELS ** images.shape[-1]
        # Zeros and float32, as the head of 3.1 and D.3. The first loss is log 512.
        prediction = keras.layers.Dense(
            outputs, kernel_initializer="zeros", dtype=wide(), name="prediction"
        )(tokens)
        if target != "l2":
            prediction = keras.layers.Reshape(
                (places.shape[1], units, outputs // units), dtype=wide()
            )(prediction)
        super().__init__(
            inputs=images,
            outputs={
                "prediction": prediction,
                "target": ops.take_along_axis(wanted, chosen, axis=1),
                "places": places,
                "sources": sources,
            },
            name=arguments.model_name(name),
            **kwargs,
        )
        self.output_names = ["prediction"]  # `compile` compares this (Keras 3.12).
        # Not tracked by Keras: a head of the backbone is saved, but not trained.
        self.__dict__["backbone"] = backbone
        self.target, self.corrupt, self.mask = target, corrupt, mask
        self.replace, self.keep, self.seed = replace, keep, seed
        self.mean, self.std, self.preprocessing = mean, std, preprocessing
        self.patch_size, self.grid = patch_size, grid

    def objective(self) -> tuple[keras.losses.Loss, list[keras.metrics.Metric]]:
        """Returns the loss of B.1.2's target and the metrics.

        `training.fit` uses them, on images scaled as in `preprocessing`.

        Returns:
            Cross-entropy and the accuracy of the colors. For "l2": the mean squared
            error in units of the normalized pixels, and no metric.
        """
        if self.target == "l2":
            return keras.losses.MeanSquaredError(dtype=wide()), []
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, dtype=wide()
        )
        return loss, [keras.metrics.SparseCategoricalAccuracy("accuracy")]

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        *,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Compiles like `keras.Model`; `loss` and metrics default to `objective`'s."""
        own_loss, own_metrics = self.objective()
        super().compile(
            optimizer,
            loss or own_loss,
            weighted_metrics=weighted_metrics or own_metrics,
            **kwargs,
        )

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Replaces Keras's method, which skips classes that define `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Returns the loss on the corrupted patches; `y` is ignored."""
        if sample_weight is not None:
            rank = len(y_pred["target"].shape) - (self.target == "l2")
            sample_weight = ops.reshape(sample_weight, (-1, *[1] * (rank - 1)))
        return super().compute_loss(
            x, y_pred["target"], y_pred["prediction"], sample_weight, training
        )

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Updates the metrics on the corrupted patches; ignores `y`."""
        results: dict[str, Any] = super().compute_metrics(
            x, y_pred["target"], y_pred["prediction"], sample_weight
        )
        return results

    def targets(self, images: Tensor) -> Tensor:
        """Returns the target of every patch (B.1.2): [B, H, W, C] -> [B, N, Q].

        Args:
            images: scaled as in `preprocessing`.

        Returns:
            int32 classes in 0..8^C - 1. For "l2": unchanged pixels, [B, N, P^2 C].
        """
        return _targets(images, self.target, self.patch_size, self.mean, self.std)

    def reconstruct(self, images: Tensor) -> dict[str, np.ndarray]:
        """Draws the model's input and its prediction (B.1.2): [B, H, W, C] -> pictures.

        Args:
            images: scaled as in `preprocessing`.

        Returns:
            Three pictures [B, H, W, C] in [0, 1]: "original"; "corrupted", with masked
            patches in gray and replaced ones showing the patch whose embedding is used;
            "predicted", with the corrupted patches in their most probable colors and
            the others unchanged.
        """
        outputs = {name: _numpy(value) for name, value in self(images).items()}
        original = _numpy(images) * self.std + self.mean
        cut = _numpy(patches_of(original, self.patch_size))
        rows = cut.reshape(-1, *cut.shape[2:])
        sources = outputs["sources"]
        corrupted = rows[np.maximum(sources, 0)]
        corrupted[sources == MASKED] = 0.5
        predicted = cut.copy()
        in_order = np.arange(len(cut))[:, None]
        predicted[in_order, outputs["places"]] = self._painted(outputs["prediction"])
        return {
            name: np.clip(_numpy(images_of(patches, self.grid)), 0, 1)
            for name, patches in (
                ("original", cut),
                ("corrupted", corrupted),
                ("predicted", predicted),
            )
        }

    def _painted(self, prediction: np.ndarray) -> np.ndarray:
        """Returns patches [B, M, P, P, C] in [0, 1], or the colors that fill them."""
        side, channels = self.patch_size, self.input_shape[-1]
        if self.target == "l2":
            pixels = prediction.reshape(*prediction.shape[:2], side, side, channels)
            return np.asarray(pixels * self.std + self.mean)
        small = SIDE[self.target]
        colors = class_colors(prediction.argmax(-1), channels)
        colors = colors.reshape(*colors.shape[:2], small, small, channels)
        nearest = np.arange(side) * small // side
        return colors[:, :, nearest][:, :, :, nearest]

    def get_config(self) -> dict[str, Any]:
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "target": self.target,
            "corrupt": self.corrupt,
            "mask": self.mask,
            "replace": self.replace,
            "keep": self.keep,
            "preprocessing": dataclasses.asdict(self.preprocessing),
            "seed": self.seed,
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "MaskedPatchPredictor":
        backbone = keras.saving.deserialize_keras_object(
            config["backbone"], custom_objects
        )
        config = {**config, "backbone": backbone}
        stated = config.pop("preprocessing", None)
        if stated is None:  # keras_vit 0.1 wrote the normalization only.
            stated = {"mean": config.pop("mean"), "std": config.pop("std")}
        return cls(**config, preprocessing=Preprocessing(**stated))


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = ops.convert_to_numpy(tensor)
    return array


def _pixel_patches(backbone: keras.Model) -> tuple[int, tuple[int, int]]:
    """Returns P in pixels, also for a hybrid, and the grid.

    Raises:
        ValueError: if there are no patches, or they do not tile the images.
    """
    named = {layer.name: layer for layer in getattr(backbone, "layers", ())}
    if (
        not isinstance(named.get("embedding"), PatchEmbedding)
        or "encoder_norm" not in named
        or isinstance(backbone, MaskedPatchPredictor)
    ):
        raise ValueError(
            "Expected a whole ViT or hybrid of this library (3.1), with patches to "
            f"corrupt. Received: backbone={arguments.shown(backbone)}"
        )
    if any(isinstance(layer, PlainBlock) for layer in named.values()):
        raise ValueError(
            "Expected a ViT or hybrid of the paper (3.1), not of later work. Received: "
            f"backbone={backbone.name!r}, a plain ViT of a later paper"
        )
    facts = describe(backbone)
    side, grid = facts["stride"] * facts["patch_size"], facts["grid"]
    size = tuple(backbone.input_shape[1:3])
    if size != (grid[0] * side, grid[1] * side):
        raise ValueError(
            "Expected images that patches tile, because each patch is compared with "
            f"its pixels (B.1.2). Received: backbone={backbone.name!r} for "
            f"images of {size[0]}x{size[1]} px, {grid[0]}x{grid[1]} patches of {side} "
            "px. Change the size to a multiple with keras_vit.at_resolution"
        )
    return side, grid


def _check(
    target: Any,
    corrupt: float,
    mask: float,
    replace: float,
    keep: float,
    num_patches: int,
    patch_size: int,
) -> None:
    arguments.choice("target", target, get_args(Target))
    shares = (mask, replace, keep)
    for name, share in zip(("mask", "replace", "keep"), shares, strict=True):
        arguments.share(name, share)
    if abs(sum(shares) - 1) >= 1e-6:
        raise ValueError(
            "Expected mask, replace and keep to be shares that add up to 1 (B.1.2). "
            f"Received: mask={mask}, replace={replace}, keep={keep}"
        )
    arguments.share("corrupt", corrupt)
    _check_count(corrupt, num_patches)
    if patch_size < SIDE.get(target, 1):
        raise ValueError(
            "Expected patches of 4 or more pixels per side for target='4x4'. Received: "
            f"{patch_size}"
        )


def _check_count(corrupt: float, num_patches: int) -> None:
    """Raises if no patch is corrupted, or if there is no other one to replace it."""
    if num_patches < 2 or not corrupted_patches(corrupt, num_patches):
        raise ValueError(
            "Expected at least two patches per image, at least one of them corrupted. "
            f"Received: corrupt={corrupt} of {num_patches} patches. Use a larger "
            "share or smaller patches"
        )


def _targets(
    images: Tensor,
    target: Target,
    patch_size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """Returns the target of every patch: [B, H, W, C] -> [B, N, Q]."""
    cut = patches_of(images, patch_size)
    num_patches, channels = cut.shape[1], cut.shape[-1]
    if target == "l2":
        return ops.reshape(cut, (-1, num_patches, patch_size**2 * channels))
    small = down_sized(cut, SIDE[target])
    shift, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    classes = color_classes(small * scale + shift)
    return ops.reshape(classes, (-1, num_patches, SIDE[target] ** 2))
