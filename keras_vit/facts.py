"""Facts about a model that are stored with its graph. Standard library only.

Facts are plain values, so that `.keras` files, JSON and an exported model's assets can
contain them.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Literal, TypeAlias, get_args

from keras_vit import arguments, configs, normalization

Config: TypeAlias = (
    configs.ViTConfig
    | configs.ResNetConfig
    | configs.EfficientNetConfig
    | configs.PlainViTConfig
)
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = get_args(Interpolation)
CONFIGS: dict[str, Any] = {at.__name__: at for at in get_args(Config)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Turns an image into a model's input: resize, then (x / 255 - mean) / std.

    The defaults are the official code's evaluation (vit_jax): both sides are resized,
    bilinearly and without antialiasing, and pixels are scaled to [-1, 1].

    Attributes:
        mean: mean of each channel, in units of the 0..1 range; one value applies to all
            channels.
        std: standard deviation of each channel, in the same units; above 0.
        interpolation: "nearest", "bilinear", "bicubic" or "lanczos".
        antialias: whether the filter grows with the reduction, as in Pillow, timm and
            transformers.
        crop: None: both sides are resized to the model's (H, W). A share in (0, 1]: the
            image is resized to (H, W) / `crop` with its aspect ratio, and the center of
            (H, W) is cropped (timm's `crop_pct`).
        squash: with a `crop`: whether both sides are resized to (H, W) / `crop` without
            the aspect ratio, as in timm's `crop_mode="squash"` and transformers' DeiT.

    Raises:
        ValueError: if `mean` or `std` is not finite, a `std` is not positive, the
            interpolation is unknown, `crop` is out of its range, or there is `squash`
            without `crop`.
    """

    mean: normalization.Channels = normalization.HALF
    std: normalization.Channels = normalization.HALF
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    crop: float | None = None
    squash: bool = False

    def __post_init__(self) -> None:
        mean, std = normalization.checked(self.mean, self.std)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)
        arguments.choice("interpolation", self.interpolation, INTERPOLATIONS)
        arguments.flag("antialias", self.antialias)
        if self.crop is not None:
            crop = arguments.positive("crop", self.crop)
            if crop > 1:
                raise ValueError(
                    "Expected crop, the share of each side to keep, in (0, 1]. "
                    f"Received: crop={self.crop}"
                )
            object.__setattr__(self, "crop", crop)
        if arguments.flag("squash", self.squash) and self.crop is None:
            raise ValueError(
                "Expected squash=True with a crop: without a crop both sides are "
                "resized separately. Received: crop=None"
            )

    def for_channels(self, channels: int) -> "Preprocessing":
        """The same preprocessing with a mean and a deviation for each channel.

        Args:
            channels: number of channels of the images.

        Returns:
            A `Preprocessing` with the same resizing (timm's `crop_pct` is its `crop`).

        Raises:
            ValueError: if the number of values is neither `channels` nor one.
        """
        mean, std = (
            normalization.per_channel(getattr(self, name), channels, name)
            for name in ("mean", "std")
        )
        return dataclasses.replace(self, mean=mean, std=std)

    def size_before_crop(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns (H, W) / `crop`, rounded down as in timm; without a crop, (H, W).

        Args:
            image_size: (H, W) of the model's input, in pixels.
        """
        share = self.crop or 1.0
        # The share may be a rounded quotient, such as 224 / 232.
        height, width = (math.floor(round(side / share, 6)) for side in image_size)
        return height, width

    def as_pixels(self) -> "Preprocessing":
        """Returns the same resizing (vit_jax's by default); values stay in 0..255."""
        return dataclasses.replace(self, mean=(0.0,), std=(1 / 255,))

    def identity(self) -> dict[str, Any]:
        """Plain values that identify the preprocessing.

        Returns:
            Mean and std (the only fields in keras_vit 0.1), and the fields that differ
            from those of the official code (vit_jax).
        """
        values = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name in ("mean", "std") or value != defaults[name]
        }

    def __str__(self) -> str:
        mean, std = (" ".join(f"{at:g}" for at in by) for by in (self.mean, self.std))
        return f"mean {mean}, std {std}; {self.resizing}"

    @property
    def resizing(self) -> str:
        """The filter and the crop in words."""
        smooth = "with" if self.antialias else "without"
        shape = "both sides"
        if self.crop is not None:
            squashed = "both sides, then " if self.squash else ""
            shape = f"{squashed}the center {self.crop:.3g} of each side"
        return f"{self.interpolation} {smooth} antialiasing, {shape}"


OFFICIAL = Preprocessing()
"""The official code's evaluation (vit_jax)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a model's weights, and how they were loaded.

    Attributes:
        variant: architecture of a published tag in the paper's spelling, such as
            "ViT-B/16".
        tag: tag of a published checkpoint, such as "imagenet21k"; None for other files.
        source: path of the file or folder, its URL, or its repository,
            "hf://ORG/NAME".
        revision: commit of the repository.
        file: name of the weights file, or of the index of its shards, in a repository
            or at a URL.
        sha256: hash of the weights file, in hexadecimal; None for shards.
        license: license of the weights that their repository states.
        dialect: naming of the file's tensors: "official", "timm", "hf", ...
        numerics: the GELU and the epsilons that the weights require, and assumptions
            that were made.
        loaded: number of tensors that were loaded unchanged.
        resized: names of tensors that were resized.
        fresh: names of tensors in a new head, which were not loaded.
        left_out: names of tensors in the file that the model does not have.
    """

    variant: str | None = None
    tag: str | None = None
    source: str | None = None
    revision: str | None = None
    file: str | None = None
    sha256: str | None = None
    license: str | None = None
    dialect: str | None = None
    numerics: tuple[str, ...] = ()
    loaded: int = 0
    resized: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.source is None:
            return "no checkpoint: random weights"
        name = f"{self.variant} {self.tag}, " if self.tag else ""
        commit = f" at commit {self.revision}" if self.revision else ""
        numerics = "; ".join((f"{self.dialect} dialect", *self.numerics))
        counts = (
            f"{self.loaded} loaded, {len(self.resized)} resized, "
            f"{len(self.fresh)} fresh, {len(self.left_out)} left out"
        )
        return f"{name}{self.source}{commit}: {counts}\n  {numerics}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a `VisionModel` that are stored with its graph.

    Attributes:
        config: config of the model (3.1, 4.1); None for a model that was assembled from
            layers.
        preprocessing: the preprocessing of its images.
        labels: name of each class, in the head's order; None if unknown.
        provenance: the origin of its weights.
    """

    config: Config | None = None
    preprocessing: Preprocessing = OFFICIAL
    labels: tuple[str, ...] | None = None
    provenance: Provenance = Provenance()

    def __post_init__(self) -> None:
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        plain = dataclasses.asdict(self)
        if self.config is not None:
            plain["config"] = {"kind": type(self.config).__name__, **plain["config"]}
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Facts":
        """Returns the facts from values of `to_json`.

        Args:
            values: values that `to_json` returned, directly or through JSON.

        Raises:
            ValueError: if a value is missing, unknown or invalid.
        """
        try:
            plain = _tuples(values)
            return cls(
                config=_config(plain["config"]),
                preprocessing=Preprocessing(**plain["preprocessing"]),
                labels=plain["labels"],
                provenance=Provenance(**plain["provenance"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                "Expected a model's facts, as written by this version of keras_vit. "
                f"Received: {type(error).__name__}: {error}. If a newer version wrote "
                "them, upgrade keras_vit"
            ) from error


@functools.cache
def imagenet2012_labels() -> tuple[str, ...]:
    """The 1000 class names of ImageNet 2012, in the published heads' order."""
    text = resources.files("keras_vit").joinpath("labels/imagenet2012.txt").read_text()
    return tuple(text.split("\n"))


def check_labels(labels: Iterable[str], name: str = "labels") -> tuple[str, ...]:
    """The names of classes as a tuple.

    Raises:
        ValueError: if one is not a string.
    """
    names = () if isinstance(labels, str) else tuple(labels)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"Expected {name} to be strings, one for each class. "
            f"Received: {name}={arguments.shown(labels)}"
        )
    return names


def _config(fields: Mapping[str, Any] | None) -> Config | None:
    """The config from its plain fields; a hybrid's stem becomes a config again."""
    if fields is None:
        return None
    kind, fields = fields["kind"], {k: v for k, v in fields.items() if k != "kind"}
    if fields.get("resnet") is not None:
        fields["resnet"] = configs.ResNetConfig(**fields["resnet"])
    if kind == configs.PlainViTConfig.__name__:
        return configs.PlainViTConfig.from_plain(fields)
    config: Config = CONFIGS[kind](**fields)
    return config


def _tuples(value: Any) -> Any:
    """Converts JSON's lists to tuples, also inside dictionaries."""
    if isinstance(value, Mapping):
        return {key: _tuples(at) for key, at in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
