"""What a model costs: parameters and multiply-adds (Table 6, D.5), from its config.

Counted are the multiply-adds of matrix products and convolutions, of one image: the
patch embedding, the projections to q, k and v and out of the heads, q k^T and A v,
q r^T of relative positions, the MLPs, MAP's attention, the ResNets' convolutions, the
head and its hidden layer. A tap of a convolution that falls on padding is not counted,
as XLA's cost analysis does not; with them Table 6's ResNets come out 3 to 4 % high.

Not counted are biases, norms, softmax, activations, pooling and residuals, for which
XLA's analysis of one image more is higher, by 0.4 % of ViT-B/16, 0.7 % of R50+ViT-B/16
and 0.9 % of BiT-R50x1; nor the standardising of kernels, once for a whole batch.

Glossary (the paper's letters): D: hidden size.   - T: tokens.   - k: heads.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import keras

from keras_vit.configs import VARIANTS, ResNetConfig, ViTConfig
from keras_vit.layers.embeddings import check_unadapted, patch_grid
from keras_vit.models.description import config_of

Sides: TypeAlias = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What `costs` counts; `print` shows it as a table."""

    parameters: int  # `model.count_params()`.
    by_layer: dict[str, int]  # Multiply-adds of one image, by a layer's name.
    by_operation: dict[str, int]  # The same sum by what is computed.

    @property
    def multiply_adds(self) -> int:
        """Of one image, forward."""
        return sum(self.by_operation.values())

    def exaflops(self, images_seen: float) -> float:
        """10^18 FLOPs of a training, as Table 6 has them.

        A multiply-add is two, and a backward pass costs two forward passes.

        Args:
            images_seen: epochs times images.
        """
        return 3 * 2 * self.multiply_adds * images_seen / 1e18

    def table(self, by_layer: bool = False) -> str:
        """Lines of parameters and multiply-adds, by operation or by layer."""
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


class _Part(NamedTuple):
    """What a layer does of one operation, and the weights it does it with."""

    layer: str
    operation: str
    multiply_adds: int
    parameters: int


def costs(
    model: keras.Model | ViTConfig | ResNetConfig | str,
    image_size: tuple[int, int] | None = None,
    *,
    num_classes: int | None = None,
    num_channels: int | None = None,
) -> Costs:
    """Counts parameters and multiply-adds (Table 6, D.5) without building a model.

    Args:
        model: a config, a name of `VARIANTS` ("ViT-B/16", "ViT_B16"), or a model that
            is built.
        image_size: (H, W) in pixels [default: a built model's own, else (224, 224)].
        num_classes: K; 0 leaves the head out [default: a built model's own, else 1000].
        num_channels: C [default: a built model's own, else 3].

    Returns:
        The counts; those of multiply-adds are of one image.

    Raises:
        ValueError: if the name is unknown, `model` is no ViT, hybrid or ResNet of this
            library, or it cannot be built for images or classes like these.

    Example:
        >>> from keras_vit.inspection import costs
        >>> counted = costs("ViT-B/16")
        >>> counted.parameters, counted.multiply_adds
        (86567656, 17563828224)
        >>> round(counted.exaflops(7 * 303e6))  # Table 6: 224.
        224
    """
    config = _config(model)
    size, classes, channels = (224, 224), 1000, 3
    if isinstance(model, keras.Model):
        size, classes, channels = _built_for(model, config)
    return _counted(
        config,
        size if image_size is None else image_size,
        classes if num_classes is None else num_classes,
        channels if num_channels is None else num_channels,
    )


def _config(model: Any) -> ViTConfig | ResNetConfig:
    config = model
    if isinstance(model, keras.Model):
        config = config_of(model)
    elif isinstance(model, str):
        config = VARIANTS.get(model)
    if isinstance(config, ViTConfig | ResNetConfig):
        return config
    known = (n for n, c in VARIANTS.items() if isinstance(c, ViTConfig | ResNetConfig))
    raise ValueError(
        "Expected a model, a ViTConfig, a ResNetConfig, or one of "
        f"{', '.join(name for name in known if '-' in name)}. Received: model={model!r}"
    )


def _built_for(
    model: keras.Model, config: ViTConfig | ResNetConfig
) -> tuple[Sides, int, int]:
    """(H, W), K (0 without a head) and C of a model that its config is all of."""
    check_unadapted(model, "count it before, or its config")
    heads = [layer.units for layer in model.layers if layer.name == "head"]
    _, height, width, channels = model.input_shape
    own = (height, width), heads[0] if heads else 0, channels
    counted = _counted(config, *own).parameters
    if counted != model.count_params():
        raise ValueError(
            "Expected a model as keras_vit.vit or resnet builds it. Received: "
            f"model={model.name!r} with {model.count_params():,} parameters, of which "
            f"a {type(config).__name__} has {counted:,}"
        )
    return own


def _counted(
    config: ViTConfig | ResNetConfig,
    image_size: Any,
    num_classes: int,
    num_channels: int,
) -> Costs:
    sides = _checked(image_size)
    if num_classes < 0 or num_channels < 1:
        raise ValueError(
            "Expected num_classes of 0 or more and num_channels of 1 or more. "
            f"Received: num_classes={num_classes}, num_channels={num_channels}"
        )
    if isinstance(config, ResNetConfig):
        return _sums(_resnet(config, sides, num_classes, num_channels))
    return _sums(_vit(config, sides, num_classes, num_channels))


def _checked(image_size: Any) -> Sides:
    sides = tuple(image_size) if isinstance(image_size, tuple | list) else ()
    if len(sides) != 2 or any(not isinstance(n, int) or n < 1 for n in sides):
        raise ValueError(
            "Expected image_size (H, W) to be two positive integers. "
            f"Received: image_size={image_size!r}"
        )
    return sides


def _sums(parts: Iterator[_Part]) -> Costs:
    parameters = 0
    by_layer: dict[str, int] = {}
    by_operation: dict[str, int] = {}
    for part in parts:
        parameters += part.parameters
        if part.multiply_adds:
            for sums, key in ((by_layer, part.layer), (by_operation, part.operation)):
                sums[key] = sums.get(key, 0) + part.multiply_adds
    return Costs(parameters=parameters, by_layer=by_layer, by_operation=by_operation)


def _dense(layer: str, operation: str, rows: int, inputs: int, outputs: int) -> _Part:
    """[rows, inputs] -> [rows, outputs], with a bias."""
    products = rows * inputs * outputs
    return _Part(layer, operation, products, (inputs + 1) * outputs)


def _weights(number: int) -> _Part:
    """Weights that are added or that scale."""
    return _Part("", "", 0, number)


def _vit(
    config: ViTConfig, image_size: Sides, num_classes: int, num_channels: int
) -> Iterator[_Part]:
    """Section 3.1, in the order of the layers."""
    places, channels = image_size, num_channels
    if config.resnet is not None:
        yield from _stem(config.resnet, image_size, num_channels)
        places = _strided(image_size, config.resnet.stride)
        channels = _features(config.resnet)
    crop = config.resnet is not None
    rows, columns = grid = patch_grid(places, config.patch_size, crop)
    inputs = config.patch_size**2 * channels
    yield _dense(
        "embedding", "patch embedding", rows * columns, inputs, config.hidden_size
    )
    yield _weights(config.num_prefix_tokens * config.hidden_size)
    yield _weights(_position_weights(config, grid))
    for layer in range(config.num_layers):
        yield from _encoder_layer(config, grid, f"encoderblock_{layer}")
    yield _weights(2 * config.hidden_size)
    yield from _classifier(config, _tokens(config, grid), num_classes)


def _tokens(config: ViTConfig, grid: Sides) -> int:
    return config.num_prefix_tokens + grid[0] * grid[1]


def _position_weights(config: ViTConfig, grid: Sides) -> int:
    """Of Equation 1's E_pos, of every layer that has its own (D.4)."""
    halves = {  # "2d": half of D for a row, half for a column.
        "1d": 2 * _tokens(config, grid),
        "2d": 2 * config.num_prefix_tokens + sum(grid),
    }.get(config.position, 0)
    tables = config.num_layers if config.position_at == "every_layer" else 1
    return tables * halves * config.hidden_size // 2


def _encoder_layer(config: ViTConfig, grid: Sides, layer: str) -> Iterator[_Part]:
    """Equations 2 and 3, or D.6: along rows, then along columns."""
    rows, columns = grid
    if config.attention == "axial":
        yield from _block(config, layer, rows, columns)
        yield from _block(config, layer, columns, rows)
    else:
        yield from _block(config, layer, 1, _tokens(config, grid))


def _block(
    config: ViTConfig, layer: str, sequences: int, tokens: int
) -> Iterator[_Part]:
    """Equations 2 and 3 on so many sequences of T tokens."""
    relative = config.position == "relative"
    yield _weights(4 * config.hidden_size)  # Both norms.
    yield from _attention(layer, sequences, tokens, config.hidden_size, relative)
    yield from _mlp(config, layer, sequences * tokens)


def _mlp(config: ViTConfig, layer: str, tokens: int) -> Iterator[_Part]:
    yield _dense(layer, "MLP", tokens, config.hidden_size, config.mlp_dim)
    yield _dense(layer, "MLP", tokens, config.mlp_dim, config.hidden_size)


def _attention(
    layer: str, sequences: int, tokens: int, depth: int, relative: bool
) -> Iterator[_Part]:
    """Appendix A; k heads of D / k are D together."""
    rows = sequences * tokens
    yield _dense(layer, "query, key, value", rows, depth, 3 * depth)
    yield _Part(layer, "attention", 2 * rows * tokens * depth, 0)  # q k^T and A v.
    if relative:
        offsets = 2 * tokens - 1
        yield _Part(
            layer, "relative positions", rows * offsets * depth, offsets * depth
        )
    yield _dense(layer, "attention output", rows, depth, depth)


def _classifier(config: ViTConfig, tokens: int, num_classes: int) -> Iterator[_Part]:
    """Equation 4, D.3 and the head."""
    width = config.hidden_size * (2 if config.classifier == "distilled" else 1)
    unpooled = config.classifier in ("unpooled", "token_unpooled")
    rows = tokens if unpooled else 1
    if config.classifier == "map":
        yield from _map(config, tokens - config.num_registers)
    if config.representation_size is not None:
        yield _dense(
            "pre_logits", "pre-logits", rows, width, config.representation_size
        )
        width = config.representation_size
    if num_classes:
        yield _dense("head", "head", rows, width, num_classes)


def _map(config: ViTConfig, tokens: int) -> Iterator[_Part]:
    """MAP: a probe asks T tokens, and an MLP follows (big_vision)."""
    layer, depth = "MAPHead_0", config.hidden_size
    yield _weights(depth + 2 * depth)  # The probe, the norm.
    yield _dense(layer, "query, key, value", 1, depth, depth)
    yield _dense(layer, "query, key, value", tokens, depth, 2 * depth)
    yield _Part(layer, "attention", 2 * tokens * depth, 0)
    yield _dense(layer, "attention output", 1, depth, depth)
    yield from _mlp(config, layer, 1)


def _resnet(
    config: ResNetConfig, image_size: Sides, num_classes: int, num_channels: int
) -> Iterator[_Part]:
    """Section 4.1's baselines and Axial-ResNet50."""
    yield from _stem(config, image_size, num_channels)
    if num_classes:
        yield _dense("head", "head", 1, _features(config), num_classes)


def _features(config: ResNetConfig) -> int:
    """Channels of the feature map; those of the root where it is alone."""
    stages = len(config.num_layers)
    return 4 * config.width * 2 ** (stages - 1) if stages else config.width


def _stem(
    config: ResNetConfig, image_size: Sides, num_channels: int
) -> Iterator[_Part]:
    """Root and stages, up to the feature map."""
    root = _Convolution(config, "conv_root", image_size)
    yield root(num_channels, config.width, 7, 2)
    places, channels = _strided(image_size, 4), config.width
    for stage, num_units in enumerate(config.num_layers):
        filters = config.width * 2**stage
        for unit in range(num_units):
            strides = 2 if stage > 0 and unit == 0 else 1
            name = f"block{stage + 1}_unit{unit + 1}"
            yield from _unit(config, name, places, channels, filters, strides)
            places, channels = _strided(places, strides), 4 * filters
    yield _weights(2 * (config.width if config.unit == "v1" else channels))


def _unit(
    config: ResNetConfig,
    layer: str,
    places: Sides,
    channels: int,
    filters: int,
    strides: int,
) -> Iterator[_Part]:
    """A bottleneck: 1x1, 3x3 or axial attention, 1x1, and a projection beside them."""
    outputs = 4 * filters
    projected = strides != 1 or channels != outputs
    before = _Convolution(config, layer, places)
    after = _Convolution(config, layer, _strided(places, strides))
    yield before(channels, filters, 1)
    if config.unit == "axial":
        rows, columns = places
        yield from _attention(layer, rows, columns, filters, True)
        yield from _attention(layer, columns, rows, filters, True)
    else:
        yield before(filters, filters, 3, strides)
    yield after(filters, outputs, 1)
    if projected:
        yield before(channels, outputs, 1, strides)
    yield _weights(2 * _normalised(config, channels, filters, projected))


def _normalised(
    config: ResNetConfig, channels: int, filters: int, projected: bool
) -> int:
    """Channels of a unit's norms: after each convolution ("v1"), before it ("v2")."""
    if config.unit == "v1":
        return 2 * filters + 4 * filters * (2 if projected else 1)
    return channels + 2 * filters


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """Convolutions of a layer that read a feature map of these (H, W)."""

    config: ResNetConfig
    layer: str
    places: Sides

    def __call__(
        self, inputs: int, filters: int, kernel: int, strides: int = 1
    ) -> _Part:
        """One without a bias, as `StdConv2D`."""
        same = self.config.unit == "v1"
        rows, columns = (_taps(side, kernel, strides, same) for side in self.places)
        products = rows * columns * inputs * filters
        weights = kernel**2 * inputs * filters
        return _Part(self.layer, "convolutions", products, weights)


def _strided(places: Sides, strides: int) -> Sides:
    """Sides after strides; any halves in turn round up as the whole does."""
    return -(-places[0] // strides), -(-places[1] // strides)


def _taps(side: int, kernel: int, strides: int, same: bool) -> int:
    """Taps of a kernel on pixels of one side, over all outputs; none on padding.

    Args:
        side: in pixels.
        kernel: in pixels.
        strides: in pixels.
        same: TensorFlow's padding, more at the end; else kernel // 2 at both ends.
    """
    outputs = -(-side // strides)
    padding = max((outputs - 1) * strides + kernel - side, 0)
    before = padding // 2 if same else kernel // 2
    starts = range(-before, outputs * strides - before, strides)
    return sum(min(start + kernel, side) - max(start, 0) for start in starts)
