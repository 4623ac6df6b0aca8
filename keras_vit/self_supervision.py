"""Section 4.6 and B.1.2: masked patch prediction, BERT's task for patches.

"We corrupt 50 % of patch embeddings by either replacing their embeddings with a
learnable [mask] embedding (80 %), a random other patch embedding (10 %) or just keeping
them as is (10 %)." From the representations of the corrupted patches the model predicts
their mean color, a small picture of each, or its pixels.

    backbone = keras_vit.ViT_B16(weights=None, include_top=False, pooling="token")
    predictor = keras_vit.self_supervision.MaskedPatchPredictor(backbone)
    predictor.compile("adam")
    predictor.fit(images)  # [B, 224, 224, 3] in [-1, 1]; no labels
    model = keras_vit.for_task(predictor.backbone, 10)

Glossary of shapes:
- B: batch.   - H, W, C: image height, width, channels.   - P: patch side, in pixels.
- N: patches, HW / P^2.   - M: corrupted patches of an image.   - D: hidden size.
- Q: what is predicted of a patch: 1 color, 16, or its P^2 C numbers.
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
SIDE = {"mean_color": 1, "4x4": 4}  # Of the small picture of a patch.
LEVELS = 8  # "3-bit" of a channel.
MASKED = -1
"""In the place of a patch's number: its embedding is B.1.2's [mask]."""


@register
class CorruptPatches(keras.layers.Layer):
    """The corruption of B.1.2: [B, N, D] -> [B, N, D], and what was done.

    Exactly round(corrupt * N) patches of each image are corrupted, as BERT chooses its
    tokens; of each of them a draw of its own says how. While training the draws are
    new at every call; else they are the same for every batch, so that an evaluation is
    a function of the model and the batches.

    Args:
        corrupt: share of the patches to predict, above 0 and at most 1.
        mask: share of those that become the learned [mask] embedding.
        replace: share that become the embedding of another patch of the batch, any
            but itself; the rest stay as they are.
        seed: seed of the draws, an integer; None takes one of Keras's.

    A call returns the embeddings; `sources` [B, N], the patch of the batch, in
    0..BN - 1, whose embedding stands at each place, or MASKED; `places` [B, M], the
    corrupted patches of each image, in 0..N - 1, in any order.

    Raises:
        ValueError: if an argument is impossible; when built on patches of which
            `corrupt` is less than one.
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
            initializer=keras.initializers.RandomNormal(stddev=0.02),  # BERT's.
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
        """Draws what becomes of each patch (B.1.2).

        Args:
            batch: B.
            num_patches: N.
            seeds: three, or three of Keras's generators: which patches, what becomes
                of each, and the patch that replaces it.

        Returns:
            Integers `sources` [B, N] and `places` [B, M], see the class.
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
    """None, or an integer that JAX's generators take too."""
    checked: int | None = arguments.optional(
        arguments.integer, "seed", seed, least=0, most=arguments.LARGEST_SEED
    )
    return checked


def corrupted_patches(corrupt: float, num_patches: int) -> int:
    """M, of N patches."""
    return round(corrupt * num_patches)


def patches_of(images: Tensor, patch_size: int) -> Tensor:
    """Cuts images, row by row (3.1): [B, H, W, C] -> [B, N, P, P, C]."""
    _, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    cut = ops.reshape(images, (-1, rows, patch_size, columns, patch_size, channels))
    cut = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
    return ops.reshape(cut, (-1, rows * columns, patch_size, patch_size, channels))


def images_of(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse of `patches_of`: [B, N, P, P, C] -> [B, H, W, C]."""
    rows, columns = grid
    _, _, side, _, channels = patches.shape
    laid = ops.reshape(patches, (-1, rows, columns, side, side, channels))
    laid = ops.transpose(laid, (0, 1, 3, 2, 4, 5))
    return ops.reshape(laid, (-1, rows * side, columns * side, channels))


def down_sized(patches: Tensor, side: int) -> Tensor:
    """The mean over areas: [B, ..., P, P, C] -> [B, ..., side, side, C].

    Where `side` does not divide P, an area has parts of pixels.
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
    """The 3-bit colors of B.1.2: [..., C] in [0, 1] -> classes in 0..8^C - 1.

    Each channel is cut in 8 equal parts; the first channel counts most. A mean of
    uint8 pixels that lies on a cut belongs above it. So that float32 cannot put it
    below, something is added: less than one level of one pixel in a patch of 56x56.

    Args:
        colors: [..., C]; what is outside 0..1 takes the nearest class.

    Returns:
        int32 [...].
    """
    levels = ops.floor(colors * LEVELS + 1e-5)
    levels = ops.cast(ops.clip(levels, 0, LEVELS - 1), "int32")
    channels = colors.shape[-1]
    weights = LEVELS ** np.arange(channels, dtype=np.int32)[::-1]
    return ops.sum(levels * weights, axis=-1)


def class_colors(classes: np.ndarray, channels: int = 3) -> np.ndarray:
    """The middle of each 3-bit color class (B.1.2): [...] -> [..., C] in [0, 1].

    Args:
        classes: integers [...] in 0..8^C - 1, as `color_classes` gives them.
        channels: C.

    Returns:
        float64 [..., C]: (level + 0.5) / 8 of each channel.

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
    """Masked patch prediction with a model's encoder (B.1.2): a `keras.Model` to `fit`.

    It takes images [B, H, W, C] and no labels. `compile` needs an optimizer alone; the
    loss is over the corrupted patches alone: cross-entropy for colors, the mean squared
    error for "l2". `training.fit` follows `recipes.PRETRAIN["masked-patches"]` with it.

    Args:
        backbone: a ViT or a hybrid of this library, with a head or without, which is
            not trained. `backbone` stays this very model; it shares the encoder.
        target: what is predicted of a corrupted patch: "mean_color", its mean color in
            3 bits a channel (512 classes; the one the paper reports); "4x4", a 4x4
            down-sized version in such colors (16 x 512); "l2", its pixels.
        corrupt: share of the patches, above 0 and at most 1; the paper found 0.15
            slightly worse.
        mask: share of those that become the [mask] embedding.
        replace: share that become another patch's embedding, of the same batch.
        keep: share that stay as they are. The three add up to 1.
        preprocessing: how images become input, from which the targets are computed;
            default: the backbone's.
        seed: seed of the corruption, an integer; None takes one of Keras's.
        name: name of the model.

    A call returns a dict of what the loss needs: "prediction" [B, M, Q, 8^C], or
    [B, M, P^2 C] for "l2"; "target" [B, M, Q], or [B, M, P^2 C]; "places" [B, M] and
    "sources" [B, N], see `CorruptPatches`.

    Raises:
        ValueError: if the backbone has no patches, or they do not tile its images, or
            are smaller than 4 px a side for "4x4"; if `target` is unknown; if a share
            is none, or too small for one patch; if the preprocessing does not fit its
            channels.
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
        # As the head of 3.1 and D.3: zeros, in float32. The first loss is log 512.
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
            name=name,
            **kwargs,
        )
        self.output_names = ["prediction"]  # What `compile` is to compare (Keras 3.12).
        # Not an attribute that Keras tracks: a head of it is saved, but not trained.
        self.__dict__["backbone"] = backbone
        self.target, self.corrupt, self.mask = target, corrupt, mask
        self.replace, self.keep, self.seed = replace, keep, seed
        self.mean, self.std, self.preprocessing = mean, std, preprocessing
        self.patch_size, self.grid = patch_size, grid

    def objective(self) -> tuple[keras.losses.Loss, list[keras.metrics.Metric]]:
        """The loss of B.1.2's target, and the metrics.

        `training.fit` trains by it, on images as `preprocessing` states.

        Returns:
            Cross-entropy and the share of colors that are right; of "l2" the mean
            squared error, in units of the normalized pixels, and no metric.
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
        """As `keras.Model.compile`; loss and metrics default to `objective`'s."""
        own_loss, own_metrics = self.objective()
        super().compile(
            optimizer,
            loss or own_loss,
            weighted_metrics=weighted_metrics or own_metrics,
            **kwargs,
        )

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras's, which leaves it to a class with a `compile` of its own."""
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
        """Of the corrupted patches; `y` is not read. Weights are the images'."""
        if sample_weight is not None:
            rank = len(y_pred["target"].shape) - (self.target == "l2")
            sample_weight = ops.reshape(sample_weight, (-1, *[1] * (rank - 1)))
        return super().compute_loss(
            x, y_pred["target"], y_pred["prediction"], sample_weight, training
        )

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Likewise."""
        results: dict[str, Any] = super().compute_metrics(
            x, y_pred["target"], y_pred["prediction"], sample_weight
        )
        return results

    def targets(self, images: Tensor) -> Tensor:
        """What is to be said of every patch (B.1.2): [B, H, W, C] -> [B, N, Q].

        Args:
            images: normalized as `preprocessing` states.

        Returns:
            int32 classes in 0..8^C - 1; of "l2" the pixels as they come, [B, N, P^2 C].
        """
        return _targets(images, self.target, self.patch_size, self.mean, self.std)

    def reconstruct(self, images: Tensor) -> dict[str, np.ndarray]:
        """What the model sees and what it predicts: [B, H, W, C] -> pictures.

        Args:
            images: normalized as `preprocessing` states.

        Returns:
            "original", "corrupted" (masked patches are gray, a replaced one shows the
            patch whose embedding it has) and "predicted" (the corrupted patches by
            their most probable colors, the others as they are): [B, H, W, C] in [0, 1].
        """
        said = {name: _numpy(value) for name, value in self(images).items()}
        original = _numpy(images) * self.std + self.mean
        cut = _numpy(patches_of(original, self.patch_size))
        rows = cut.reshape(-1, *cut.shape[2:])
        sources = said["sources"]
        corrupted = rows[np.maximum(sources, 0)]
        corrupted[sources == MASKED] = 0.5
        predicted = cut.copy()
        in_order = np.arange(len(cut))[:, None]
        predicted[in_order, said["places"]] = self._painted(said["prediction"])
        return {
            name: np.clip(_numpy(images_of(patches, self.grid)), 0, 1)
            for name, patches in (
                ("original", cut),
                ("corrupted", corrupted),
                ("predicted", predicted),
            )
        }

    def _painted(self, prediction: np.ndarray) -> np.ndarray:
        """Patches [B, M, P, P, C] in [0, 1], or colors that fill them."""
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
    """P in pixels, of a hybrid too, and the grid.

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
            "Expected a whole ViT or hybrid of this library (3.1), whose patches can "
            f"be corrupted. Received: backbone={arguments.shown(backbone)}"
        )
    facts = describe(backbone)
    side, grid = facts["stride"] * facts["patch_size"], facts["grid"]
    size = tuple(backbone.input_shape[1:3])
    if size != (grid[0] * side, grid[1] * side):
        raise ValueError(
            "Expected images that patches tile: masked patch prediction compares each "
            f"with its own pixels (B.1.2). Received: backbone={backbone.name!r} for "
            f"images of {size[0]}x{size[1]} px, {grid[0]}x{grid[1]} patches of {side} "
            "px. keras_vit.at_resolution makes it one of a multiple"
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
            "Expected patches of 4 pixels or more a side for target='4x4'. Received: "
            f"{patch_size}"
        )


def _check_count(corrupt: float, num_patches: int) -> None:
    """Raises where there is no corrupted patch, or no other one to replace it."""
    if num_patches < 2 or not corrupted_patches(corrupt, num_patches):
        raise ValueError(
            "Expected two patches or more in an image, one of them corrupted. "
            f"Received: corrupt={corrupt} of {num_patches} patches. Take a larger "
            "share, or smaller patches"
        )


def _targets(
    images: Tensor,
    target: Target,
    patch_size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """What is to be predicted of every patch: [B, H, W, C] -> [B, N, Q]."""
    cut = patches_of(images, patch_size)
    num_patches, channels = cut.shape[1], cut.shape[-1]
    if target == "l2":
        return ops.reshape(cut, (-1, num_patches, patch_size**2 * channels))
    small = down_sized(cut, SIDE[target])
    shift, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    classes = color_classes(small * scale + shift)
    return ops.reshape(classes, (-1, num_patches, SIDE[target] ** 2))
