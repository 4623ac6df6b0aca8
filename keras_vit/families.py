"""The table of model families, with one row for each.

To add a family, add its config (`keras_vit.configs`), its modules and its row. No code
outside this table depends on the class of a config.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.configs import (
    VARIANTS,
    EfficientNetConfig,
    ModelConfig,
    PlainViTConfig,
    ResNetConfig,
    ViTConfig,
)


@dataclasses.dataclass(frozen=True)
class Late:
    """A function that is imported on its first call: the table requires no Keras.

    Attributes:
        module: path of the function's module within `keras_vit`.
        name: name of the function.
    """

    module: str
    name: str

    def __call__(self, *values: Any, **options: Any) -> Any:
        """Calls the function."""
        module = importlib.import_module(f"keras_vit.{self.module}")
        return getattr(module, self.name)(*values, **options)


def _nothing(*_: Any) -> None:
    """The default for functions that a family does not have."""


def _always(*_: Any) -> bool:
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of model: its graph, its checkpoints and its costs.

    Attributes:
        title: name in messages, with an article and the paper's section.
        config: class of its configs.
        model_name: default name of its models.
        sizes: fields of a config that distinguish the variants.
        build: (config, image_size=, num_classes=, name=) -> `VisionModel`; for a family
            of the paper also num_channels=.
        encode: images [B, H, W, C], config -> features, tokens or a feature map.
        classify: features, config, K or None, activation -> logits, or the input of
            the head.
        check_size: the argument's name, (H, W), config; raises for an invalid size.
        any_size: whether H and W may be None.
        has_patches: whether images are cut into patches, with positions and attention.
        resizes: whether its positions can be resized in the graph, for images of any
            size.
        tensor: name of a tensor that all its checkpoints have and no family above it
            has; None if `infer` cannot read it.
        shown: canonical tensors, hints -> whether they belong to this family, if
            another family also has `tensor`.
        infer: canonical tensors, their origin, hints -> `ParsedCheckpoint`.
        sizes_shown: config -> the sizes that tensors show and a config.json may state.
        npz: whether the official code's npz has names for it.
        layouts: (config, tensors, (H, W), K) -> the tensors and the JSON of another
            library's checkpoint, by `format`.
        parts: config, (H, W), K, C -> operations and memory of each layer.
    """

    title: str
    config: type[ModelConfig]
    model_name: str
    sizes: tuple[str, ...]
    build: Late
    encode: Late
    classify: Late
    check_size: Callable[..., Any] = _nothing
    any_size: bool = False
    has_patches: bool = False
    resizes: bool = False
    tensor: str | None = None
    shown: Callable[..., bool] = _always
    infer: Callable[..., Any] = _nothing
    sizes_shown: Callable[..., Any] = _nothing
    npz: bool = True
    layouts: Mapping[str, Late] = dataclasses.field(default_factory=dict)
    parts: Callable[..., Any] = _nothing

    @property
    def of_the_paper(self) -> bool:
        """Whether it has recipes, checkpoints and costs; no for Table 2's baseline."""
        return self.tensor is not None


_VIT = Family(
    title="a ViT (3.1)",
    config=ViTConfig,
    model_name="vit",
    sizes=(
        *("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads"),
        *("resnet", "attention"),
    ),
    build=Late("models.vit", "vit"),
    encode=Late("models.vit", "encode"),
    classify=Late("models.heads", "classify"),
    check_size=Late("models.vit", "check_size"),
    has_patches=True,
    resizes=True,
    tensor="embedding/kernel",
    infer=Late("weights.parsed", "infer_vit"),
    sizes_shown=Late("weights.parsed", "vit_sizes"),
    layouts={
        "timm": Late("weights.torch_layouts", "timm_vit"),
        "hf": Late("weights.torch_layouts", "hf_vit"),
    },
    parts=Late("inspection.parts", "vit"),
)
_RESNET = Family(
    title="a ResNet (4.1)",
    config=ResNetConfig,
    model_name="resnet",
    sizes=("num_layers", "width", "unit"),
    build=Late("models.resnet", "resnet"),
    encode=Late("models.resnet", "encode"),
    classify=Late("models.resnet", "classify"),
    any_size=True,
    tensor="conv_root/kernel",
    infer=Late("weights.parsed", "infer_resnet"),
    sizes_shown=Late("weights.parsed", "resnet_sizes"),
    layouts={
        "timm": Late("weights.torch_layouts", "timm_resnet"),
        "hf": Late("weights.torch_layouts", "hf_resnet"),
    },
    parts=Late("inspection.parts", "resnet"),
)
_PLAIN_VIT = dataclasses.replace(
    _VIT,
    title="a plain ViT of a later paper",
    config=PlainViTConfig,
    model_name="plain_vit",
    sizes=("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads"),
    build=Late("models.plain", "plain_vit"),
    encode=Late("models.plain", "encode"),
    classify=Late("models.plain", "classify"),
    shown=Late("weights.plain", "is_shown"),
    infer=Late("weights.plain", "infer"),
    sizes_shown=Late("weights.plain", "sizes"),
    npz=False,
    layouts={
        "timm": Late("weights.plain_layouts", "timm"),
        "hf": Late("weights.plain_layouts", "hf"),
    },
    parts=Late("inspection.parts", "plain_vit"),
)
FAMILIES: dict[str, Family] = {
    "plain ViT": _PLAIN_VIT,  # First: its checkpoints also have a ViT's tensors.
    "ViT": _VIT,
    "hybrid": dataclasses.replace(_VIT, title="a hybrid (3.1)"),
    "axial ViT": dataclasses.replace(_VIT, title="an axial ViT (D.6)", resizes=False),
    "BiT": _RESNET,
    "axial ResNet": dataclasses.replace(
        _RESNET, title="an axial ResNet (D.6)", any_size=False
    ),
    "EfficientNet": Family(
        title="an EfficientNet (Table 2)",
        config=EfficientNetConfig,
        model_name="efficientnet",
        sizes=("width_coefficient", "depth_coefficient"),
        build=Late("models.efficientnet", "efficientnet"),
        encode=Late("models.efficientnet", "encode"),
        classify=Late("models.efficientnet", "classify"),
        any_size=True,
    ),
}


def family_of(config: ModelConfig) -> Family:
    """Returns the row of a config."""
    return FAMILIES[config.family]


def sizes_of(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields that distinguish the variants of a family, with values."""
    return {field: getattr(config, field) for field in family_of(config).sizes}


def variant_of(config: ModelConfig) -> str | None:
    """Returns the name in `VARIANTS` of the published model with a config's sizes."""
    own = _shape(config)
    return next((name for name, at in VARIANTS.items() if _shape(at) == own), None)


def _shape(config: ModelConfig) -> tuple[str, list[Any]]:
    sizes = sizes_of(config).values()
    return config.family, [
        _shape(size) if isinstance(size, ModelConfig) else size for size in sizes
    ]


def with_options(config: Any, options: Mapping[str, Any]) -> Any:
    """Returns the config with the fields that a recipe or a command sets.

    A field that a family does not have may be zero or None, such as the dropout of a
    ResNet.

    Raises:
        ValueError: if the family has no such field, or is not of the paper.
    """
    family = family_of(config)
    known = {field.name for field in dataclasses.fields(config)}
    unknown = [name for name, value in options.items() if name not in known and value]
    if not family.of_the_paper:
        raise ValueError(
            "Expected a ViT, a hybrid or a ResNet (3.1, 4.1). Received: "
            f"{family.title}, a baseline of other authors"
        )
    if unknown:
        raise ValueError(
            f"Expected options of {family.title}. Received: "
            f"{', '.join(unknown)}. Set them to None"
        )
    changes = {name: options[name] for name in options.keys() & known}
    return dataclasses.replace(config, **changes)
