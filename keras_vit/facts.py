"""What a model knows about itself besides its graph. Standard library only.

Facts are plain values, so that `.keras` files, JSON and an exported model's assets can
hold them.
"""

import dataclasses
import functools
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
    """How an image becomes a model's input: resize, then (x / 255 - mean) / std.

    The defaults are the official code's evaluation (vit_jax): both sides are resized,
    bilinearly and without antialiasing, and pixels are scaled to [-1, 1].

    Attributes:
        mean: mean of each channel, in units of the 0..1 range; one value serves all.
        std: standard deviation of each channel, in the same units; above 0.
        interpolation: "nearest", "bilinear", "bicubic" or "lanczos".
        antialias: whether the filter grows with the reduction, as in Pillow, timm and
            transformers.
        crop: None to resize both sides to the model's (H, W). A share in (0, 1] to
            resize at the image's own aspect ratio to (H, W) / `crop`, and to cut (H, W)
            out of the middle (timm's `crop_pct`).

    Raises:
        ValueError: if `mean` or `std` is not finite, a `std` is not positive, the
            interpolation is unknown or `crop` is out of its range.
    """

    mean: normalization.Channels = normalization.HALF
    std: normalization.Channels = normalization.HALF
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    crop: float | None = None

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
                    "Expected crop, the share of each side that is kept, in (0, 1]. "
                    f"Received: crop={self.crop}"
                )
            object.__setattr__(self, "crop", crop)

    def for_channels(self, channels: int) -> "Preprocessing":
        """The same with a mean and a deviation for each channel.

        Args:
            channels: number of channels of the images.

        Returns:
            A `Preprocessing` of the same resizing (timm's `crop_pct` is its `crop`).

        Raises:
            ValueError: if there are neither `channels` values nor one.
        """
        mean, std = (
            normalization.per_channel(getattr(self, name), channels, name)
            for name in ("mean", "std")
        )
        return dataclasses.replace(self, mean=mean, std=std)

    def as_pixels(self) -> "Preprocessing":
        """Returns the same resizing (vit_jax's by default); values stay in 0..255."""
        return dataclasses.replace(self, mean=(0.0,), std=(1 / 255,))

    def identity(self) -> dict[str, Any]:
        """Plain values that tell two preprocessings apart.

        Returns:
            Mean and std, and the fields that differ from the official code's (vit_jax):
            keras_vit 0.1 had only these two.
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
        shape = (
            "both sides"
            if self.crop is None
            else f"the middle {self.crop:.3g} of each side"
        )
        return f"{self.interpolation} {smooth} antialiasing, {shape}"


OFFICIAL = Preprocessing()
"""The official code's evaluation (vit_jax)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model's weights came from, and what was done to load them.

    Attributes:
        variant: architecture in the paper's spelling, "ViT-B/16", of a published tag.
        tag: training of a published checkpoint, "imagenet21k"; None for other files.
        source: path of the file or folder that was read, its URL, or its repository,
            "hf://ORG/NAME".
        revision: commit of the repository.
        file: name of the weights file, or of the index of its shards, in a repository
            or behind a URL.
        sha256: hash of the weights file, in hexadecimal; None for shards.
        license: license of the weights, as their repository states it.
        dialect: naming of the file's tensors: "official", "timm", "hf", ...
        numerics: what the weights are computed with, and what was assumed.
        loaded: number of tensors that were taken over as they are.
        resized: names of tensors that were adapted to another size.
        fresh: names of tensors of a new head, which the file did not fill.
        left_out: names of tensors of the file that the model has no place for.
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
    """Everything that a `VisionModel` knows about itself besides its graph.

    Attributes:
        config: what the model was built from (3.1, 4.1); None for a model that was put
            together from layers.
        preprocessing: how images become its input.
        labels: name of each class, in the head's order; None if unknown.
        provenance: where its weights came from.
    """

    config: Config | None = None
    preprocessing: Preprocessing = OFFICIAL
    labels: tuple[str, ...] | None = None
    provenance: Provenance = Provenance()

    def __post_init__(self) -> None:
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values that JSON can hold."""
        plain = dataclasses.asdict(self)
        if self.config is not None:
            plain["config"] = {"kind": type(self.config).__name__, **plain["config"]}
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Facts":
        """Returns the facts that `to_json` wrote.

        Args:
            values: as `to_json` returned them, or as JSON returned them.

        Raises:
            ValueError: if a value is missing, unknown or impossible.
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
                "Expected a model's facts, as this version of keras_vit writes them. "
                f"Received: {type(error).__name__}: {error}. A newer version may have "
                "written them: upgrade keras_vit"
            ) from error


@functools.cache
def imagenet2012_labels() -> tuple[str, ...]:
    """The 1000 class names of ImageNet 2012, in the published heads' order."""
    text = resources.files("keras_vit").joinpath("labels/imagenet2012.txt").read_text()
    return tuple(text.split("\n"))


def check_labels(labels: Iterable[str], name: str = "labels") -> tuple[str, ...]:
    """The names of classes as a tuple.

    Raises:
        ValueError: if one is not text.
    """
    names = () if isinstance(labels, str) else tuple(labels)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"Expected {name} to be names, one for each class. "
            f"Received: {name}={arguments.shown(labels)}"
        )
    return names


def _config(fields: Mapping[str, Any] | None) -> Config | None:
    """A config out of its plain fields, with a hybrid's stem as a config again."""
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
    """JSON's lists as tuples, inside dictionaries too."""
    if isinstance(value, Mapping):
        return {key: _tuples(at) for key, at in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
