"""Counts parameters and multiply-adds (Table 6, D.5) from a config.

The count includes the multiply-adds of matrix products and convolutions for one image:
the patch embedding, the projections to q, k and v and out of the heads, q k^T and A v,
q r^T of relative positions, the MLPs, MAP's attention, the ResNets' convolutions, the
head and its hidden layer. Taps of a convolution on padding are not counted, as in XLA's
cost analysis. With them, Table 6's ResNets would be 3 to 4 % higher.

The count excludes biases, norms, softmax, activations, pooling and residuals. XLA's
analysis includes them and is higher by 0.4 % for ViT-B/16, 0.7 % for R50+ViT-B/16 and
0.9 % for BiT-R50x1. It also excludes the standardization of kernels, which is done once
for a batch.

`memory` counts the bytes of a batch, `devices` converts FLOPs to time and money.
"""

import dataclasses
import math
import sys
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

from keras_vit import arguments
from keras_vit.configs import (
    VARIANTS,
    CheckpointConfig,
    ModelConfig,
    find_variant,
)
from keras_vit.families import family_of
from keras_vit.inspection.devices import DAY, PAPERS_UTILISATION, device_of
from keras_vit.inspection.memory import Memory, memory
from keras_vit.inspection.parts import Part, Sides
from keras_vit.paper import EXAFLOPS
from keras_vit.recipes import IMAGES

if TYPE_CHECKING:
    import keras

__all__ = ["Costs", "costs", "table_6"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a model, as counted by `costs` (Table 6, D.5); `print` shows a table.

    Attributes:
        parameters: `model.count_params()`.
        by_layer: multiply-adds of one image's forward pass, by layer name.
        by_operation: the same sum by operation.
        memory: memory of the batch, in bytes.
    """

    parameters: int
    by_layer: dict[str, int]
    by_operation: dict[str, int]
    memory: Memory

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one image's forward pass; a multiply-add is two FLOPs."""
        return sum(self.by_operation.values())

    def exaflops(self, images_seen: float) -> float:
        """Returns the 10^18 FLOPs of a training run, as in Table 6.

        A multiply-add is two FLOPs. A backward pass costs two forward passes.

        Args:
            images_seen: epochs times images.

        Returns:
            exaFLOPs.

        Raises:
            ValueError: if `images_seen` is negative or not finite.
        """
        if not 0 <= images_seen < math.inf:
            raise ValueError(
                f"Expected 0 or more images. Received: images_seen={images_seen}"
            )
        return 3 * 2 * self.multiply_adds * images_seen / 1e18

    def hours(
        self,
        images_seen: float,
        device: str = "TPUv3-core",
        utilisation: float = PAPERS_UTILISATION,
    ) -> float:
        """Returns the hours of a training run on one device; N devices divide by N.

        Args:
            images_seen: epochs times images.
            device: a name in `devices.DEVICES`: "TPUv3-core", "A100-80GB", "H100", ...
            utilisation: FLOPs of `exaflops` as a share of the device's peak, in (0, 1]
                [default: Table 2's ViTs on TPUv3, 0.345].

        Returns:
            Hours.

        Raises:
            ValueError: if the device is unknown, or the utilization or `images_seen`
                is out of range.
        """
        if not 0 < utilisation <= 1:
            raise ValueError(
                "Expected a utilisation in (0, 1], a share of the device's peak. "
                f"Received: utilisation={utilisation}"
            )
        speed = device_of(device).teraflops * 1e12 * utilisation  # FLOP/s.
        return self.exaflops(images_seen) * 1e18 / speed / 3600

    def core_days(
        self, images_seen: float, utilisation: float = PAPERS_UTILISATION
    ) -> float:
        """Returns the TPUv3-core-days of a training run, as in Table 2.

        Args:
            images_seen: epochs times images.
            utilisation: see `hours`.

        Returns:
            Days of one TPUv3 core; a chip has two cores.

        Raises:
            ValueError: see `hours`.
        """
        return self.hours(images_seen, "TPUv3-core", utilisation) * 3600 / DAY

    def gpu_hours(
        self,
        images_seen: float,
        device: str = "H100",
        utilisation: float = PAPERS_UTILISATION,
    ) -> float:
        """Returns the GPU-hours of a training run; see `hours`.

        Args:
            images_seen: epochs times images.
            device: see `hours`.
            utilisation: see `hours`.

        Returns:
            Hours of one device.

        Raises:
            ValueError: see `hours`.
        """
        return self.hours(images_seen, device, utilisation)

    def euros(
        self,
        images_seen: float,
        *,
        price: float,
        device: str = "H100",
        utilisation: float = PAPERS_UTILISATION,
    ) -> float:
        """Returns the price of a training run; see `hours`.

        Args:
            images_seen: epochs times images.
            price: euros per hour of one device, 0 or more.
            device: see `hours`.
            utilisation: see `hours`.

        Returns:
            Euros.

        Raises:
            ValueError: see `hours`; also if the price is negative or not finite.
        """
        if not 0 <= price < math.inf:
            raise ValueError(
                f"Expected a price of 0 or more euros per hour. Received: price={price}"
            )
        return price * self.hours(images_seen, device, utilisation)

    def table(self, by_layer: bool = False) -> str:
        """Formats parameters and multiply-adds as lines of text.

        Args:
            by_layer: whether each line is a layer; otherwise an operation.

        Returns:
            Text with a number and its share on each line.
        """
        counted = self.by_layer if by_layer else self.by_operation
        shares = [
            f"  {name:22}{number:>18,}{number / self.multiply_adds:>8.1%}"
            for name, number in counted.items()
        ]
        totals = {"parameters": self.parameters, "multiply-adds": self.multiply_adds}
        return "\n".join(
            [f"{n:24}{count:>18,}" for n, count in totals.items()] + shares
        )

    def __str__(self) -> str:
        return self.table()


def costs(
    model: "keras.Model | CheckpointConfig | str",
    image_size: tuple[int, int] | None = None,
    batch: int = 1,
    *,
    num_classes: int | None = None,
    num_channels: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Costs:
    """Counts parameters, multiply-adds and memory (Table 6, D.5) without building.

    Args:
        model: a config, a name in `VARIANTS` ("ViT-B/16", "ViT_B16"), or a built model.
        image_size: (H, W) in pixels [default: a built model's size, else (224, 224)].
        batch: images at once; only memory depends on it.
        num_classes: K; 0 excludes the head [default: a built model's K, else 1000].
        num_channels: C [default: a built model's C, else 3].
        dtype: dtype of activations: "float32", or "bfloat16" for "mixed_bfloat16".
        optimizer: optimizer with its state: "adam", "sgd" or "adafactor".

    Returns:
        The counts: multiply-adds for one image, memory for the batch.

    Raises:
        ValueError: if the name is unknown, `model` is not a ViT, hybrid or ResNet of
            this library, or it cannot be built for this image size or these classes; if
            the batch is not positive; if the dtype or the optimizer is unknown.

    Examples:
        >>> from keras_vit.inspection import costs
        >>> counted = costs("ViT-B/16")
        >>> counted.parameters, counted.multiply_adds
        (86567656, 17563828224)
        >>> round(counted.exaflops(7 * 303e6))  # Table 6: 224.
        224
        >>> used = costs("ViT-B/16", (384, 384), batch=512).memory  # Table 4.
        >>> round(used.training_total / 2**30), round(used.rematerialized_total / 2**30)
        (298, 34)
    """
    config = _config(model)
    size, classes, channels = (224, 224), 1000, 3
    if _is_built(model):
        size, classes, channels = _built_for(model, config)
    walked = _checked(
        config,
        size if image_size is None else image_size,
        classes if num_classes is None else num_classes,
        channels if num_channels is None else num_channels,
    )
    return _sums(walked, batch, dtype, optimizer)


def table_6(num_classes: int = 1000) -> dict[tuple[str, int], float]:
    """Computes the exaFLOPs of Table 6's pre-trainings on JFT-300M by our count.

    Args:
        num_classes: K of the counted head.

    Returns:
        10^18 FLOPs by model and epochs, as ("ViT-B/16", 7).

    Raises:
        ValueError: if `num_classes` is negative.
    """
    return {
        (model, epochs): costs(model, num_classes=num_classes).exaflops(
            epochs * IMAGES["jft300m"]
        )
        for model, epochs in EXAFLOPS
    }


def _is_built(model: Any) -> bool:
    """Returns whether `model` is a `keras.Model`, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def _config(model: Any) -> CheckpointConfig:
    config = model
    if _is_built(model):
        from keras_vit.weights.architecture import config_of

        config = config_of(model)
    elif isinstance(model, str):
        config = VARIANTS.get(find_variant(model) or model)
    if isinstance(config, ModelConfig) and family_of(config).of_the_paper:
        return cast(CheckpointConfig, config)
    known = [
        name
        for name, at in VARIANTS.items()
        if "-" in name and family_of(at).of_the_paper
    ]
    hint = arguments.did_you_mean(arguments.similar(str(model), known))
    raise ValueError(
        "Expected a model, a ViTConfig, a ResNetConfig, or one of "
        f"{', '.join(known)}. Received: model={model!r}{'.' * bool(hint)}{hint}"
    )


def _built_for(
    model: "keras.Model", config: CheckpointConfig
) -> tuple[Sides, int, int]:
    """Returns (H, W), K (0 without a head) and C; raises for an extended model."""
    from keras_vit.layers.embeddings import check_unadapted

    check_unadapted(model, "count it before, or its config")
    heads = [layer.units for layer in model.layers if layer.name == "head"]
    _, height, width, channels = model.input_shape
    own = (height, width), heads[0] if heads else 0, channels
    counted = sum(part.parameters for part in _parts(config, *own))
    if counted != model.count_params():
        raise ValueError(
            "Expected a model as keras_vit.vit or resnet builds it. Received: "
            f"model={model.name!r} with {model.count_params():,} parameters instead of "
            f"the {counted:,} of its {type(config).__name__}"
        )
    return own


def _parts(
    config: CheckpointConfig, size: Sides, num_classes: int, num_channels: int
) -> list[Part]:
    return list(family_of(config).parts(config, size, num_classes, num_channels))


def _checked(
    config: CheckpointConfig,
    image_size: Any,
    num_classes: int,
    num_channels: int,
) -> list[Part]:
    """Returns the parts of a model, after checking that it could be built."""
    sides = tuple(image_size) if isinstance(image_size, tuple | list) else ()
    if len(sides) != 2 or any(not isinstance(n, Integral) or n < 1 for n in sides):
        raise ValueError(
            "Expected image_size (H, W) to be two positive integers. "
            f"Received: image_size={image_size!r}"
        )
    whole = all(isinstance(n, Integral) for n in (num_classes, num_channels))
    if not whole or num_classes < 0 or num_channels < 1:
        raise ValueError(
            "Expected num_classes >= 0 and num_channels >= 1, both integers. "
            f"Received: num_classes={num_classes}, num_channels={num_channels}"
        )
    height, width = map(int, sides)
    return _parts(config, (height, width), num_classes, num_channels)


def _sums(walked: list[Part], batch: int, dtype: str, optimizer: str) -> Costs:
    parameters = 0
    by_layer: dict[str, int] = {}
    by_operation: dict[str, int] = {}
    for part in walked:
        parameters += part.parameters
        if part.multiply_adds:
            for sums, key in ((by_layer, part.layer), (by_operation, part.operation)):
                sums[key] = sums.get(key, 0) + part.multiply_adds
    return Costs(
        parameters=parameters,
        by_layer=by_layer,
        by_operation=by_operation,
        memory=memory(walked, batch, dtype, optimizer),
    )
