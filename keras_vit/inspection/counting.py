"""What a model costs: parameters and multiply-adds (Table 6, D.5), from its config.

Counted are the multiply-adds of matrix products and convolutions, of one image: the
patch embedding, the projections to q, k and v and out of the heads, q k^T and A v,
q r^T of relative positions, the MLPs, MAP's attention, the ResNets' convolutions, the
head and its hidden layer. A tap of a convolution that falls on padding is not counted,
as XLA's cost analysis does not; with them Table 6's ResNets come out 3 to 4 % high.

Not counted are biases, norms, softmax, activations, pooling and residuals, for which
XLA's analysis of one image more is higher, by 0.4 % of ViT-B/16, 0.7 % of R50+ViT-B/16
and 0.9 % of BiT-R50x1; nor the standardizing of kernels, once for a whole batch.

`memory` says what the bytes of a batch are, `devices` what time and money are.
"""

import dataclasses
import math
import sys
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

from keras_vit.configs import (
    VARIANTS,
    CheckpointConfig,
    ModelConfig,
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
    """What `costs` counts (Table 6, D.5); `print` shows it as a table.

    Attributes:
        parameters: `model.count_params()`.
        by_layer: multiply-adds of one image, forward, by a layer's name.
        by_operation: the same sum by what is computed.
        memory: memory of the batch, in bytes.
    """

    parameters: int
    by_layer: dict[str, int]
    by_operation: dict[str, int]
    memory: Memory

    @property
    def multiply_adds(self) -> int:
        """Of one image, forward; a multiply-add is two FLOPs."""
        return sum(self.by_operation.values())

    def exaflops(self, images_seen: float) -> float:
        """10^18 FLOPs of a training, as Table 6 has them.

        A multiply-add is two, and a backward pass costs two forward passes.

        Args:
            images_seen: epochs times images.

        Returns:
            exaFLOPs.

        Raises:
            ValueError: if `images_seen` is negative or not finite.
        """
        if not 0 <= images_seen < math.inf:
            raise ValueError(
                f"Expected images, 0 or more. Received: images_seen={images_seen}"
            )
        return 3 * 2 * self.multiply_adds * images_seen / 1e18

    def hours(
        self,
        images_seen: float,
        device: str = "TPUv3-core",
        utilisation: float = PAPERS_UTILISATION,
    ) -> float:
        """Hours of a training on one device; on N of them each has an N-th.

        Args:
            images_seen: epochs times images.
            device: see `devices.DEVICES`: "TPUv3-core", "A100-80GB", "H100", ...
            utilisation: share of the device's peak that is FLOPs of `exaflops`, in
                (0, 1] [default: Table 2's ViTs on TPUv3, 0.345].

        Returns:
            Hours.

        Raises:
            ValueError: if the device is unknown, or the utilisation or `images_seen`
                out of range.
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
        """TPUv3-core-days of a training, as Table 2 has them.

        Args:
            images_seen: epochs times images.
            utilisation: see `hours`.

        Returns:
            Days of one TPUv3 core, of which a chip has two.

        Raises:
            ValueError: as `hours`.
        """
        return self.hours(images_seen, "TPUv3-core", utilisation) * 3600 / DAY

    def gpu_hours(
        self,
        images_seen: float,
        device: str = "H100",
        utilisation: float = PAPERS_UTILISATION,
    ) -> float:
        """GPU-hours of a training; see `hours`.

        Args:
            images_seen: epochs times images.
            device: see `hours`.
            utilisation: see `hours`.

        Returns:
            Hours of one device.

        Raises:
            ValueError: as `hours`.
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
        """What a training costs; see `hours`.

        Args:
            images_seen: epochs times images.
            price: euros an hour of one device, 0 or more.
            device: see `hours`.
            utilisation: see `hours`.

        Returns:
            Euros.

        Raises:
            ValueError: as `hours`, and if the price is negative or not finite.
        """
        if not 0 <= price < math.inf:
            raise ValueError(
                f"Expected a price of 0 or more euros an hour. Received: price={price}"
            )
        return price * self.hours(images_seen, device, utilisation)

    def table(self, by_layer: bool = False) -> str:
        """Lines of parameters and multiply-adds.

        Args:
            by_layer: whether a line is of a layer, or of an operation.

        Returns:
            Text, a number and its share a line.
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
    """Counts parameters, multiply-adds and memory (Table 6, D.5), building no model.

    Args:
        model: a config, a name of `VARIANTS` ("ViT-B/16", "ViT_B16"), or a model that
            is built.
        image_size: (H, W) in pixels [default: a built model's own, else (224, 224)].
        batch: images at once, of the memory alone.
        num_classes: K; 0 leaves the head out [default: a built model's own, else 1000].
        num_channels: C [default: a built model's own, else 3].
        dtype: dtype of activations: "float32", or "bfloat16" as of "mixed_bfloat16".
        optimizer: whose numbers are counted: "adam", "sgd" or "adafactor".

    Returns:
        The counts; those of multiply-adds are of one image, the memory of the batch.

    Raises:
        ValueError: if the name is unknown, `model` is no ViT, hybrid or ResNet of this
            library, or it cannot be built for images or classes like these; if the
            batch is not positive, the dtype or the optimizer unknown.

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
    """Our exaFLOPs of Table 6's pre-trainings on JFT-300M, by (model, epochs).

    Args:
        num_classes: K of the head that is counted.

    Returns:
        10^18 FLOPs of each row, by its model and epochs, as ("ViT-B/16", 7).

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
    """Returns whether this is a `keras.Model`; none exists before Keras is imported."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def _config(model: Any) -> CheckpointConfig:
    config = model
    if _is_built(model):
        from keras_vit.weights.architecture import config_of

        config = config_of(model)
    elif isinstance(model, str):
        config = VARIANTS.get(model)
    if isinstance(config, ModelConfig) and family_of(config).of_the_paper:
        return cast(CheckpointConfig, config)
    known = (name for name, at in VARIANTS.items() if family_of(at).of_the_paper)
    raise ValueError(
        "Expected a model, a ViTConfig, a ResNetConfig, or one of "
        f"{', '.join(name for name in known if '-' in name)}. Received: model={model!r}"
    )


def _built_for(
    model: "keras.Model", config: CheckpointConfig
) -> tuple[Sides, int, int]:
    """(H, W), K (0 without a head) and C of a model that its config is all of."""
    from keras_vit.layers.embeddings import check_unadapted

    check_unadapted(model, "count it before, or its config")
    heads = [layer.units for layer in model.layers if layer.name == "head"]
    _, height, width, channels = model.input_shape
    own = (height, width), heads[0] if heads else 0, channels
    counted = sum(part.parameters for part in _parts(config, *own))
    if counted != model.count_params():
        raise ValueError(
            "Expected a model as keras_vit.vit or resnet builds it. Received: "
            f"model={model.name!r} with {model.count_params():,} parameters, of which "
            f"a {type(config).__name__} has {counted:,}"
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
    """The parts of a model that could be built so."""
    sides = tuple(image_size) if isinstance(image_size, tuple | list) else ()
    if len(sides) != 2 or any(not isinstance(n, Integral) or n < 1 for n in sides):
        raise ValueError(
            "Expected image_size (H, W) to be two positive integers. "
            f"Received: image_size={image_size!r}"
        )
    whole = all(isinstance(n, Integral) for n in (num_classes, num_channels))
    if not whole or num_classes < 0 or num_channels < 1:
        raise ValueError(
            "Expected num_classes of 0 or more and num_channels of 1 or more, whole. "
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
