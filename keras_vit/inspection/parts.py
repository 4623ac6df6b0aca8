"""Operations, weights and activations of each layer, computed from a config.

`counting` sums the multiply-adds and parameters, `memory` the activations. A part is
one operation of a layer. Kept for the backward pass are the values that the gradient's
formula reads: the inputs of a product, a norm and a GELU, and the result of a softmax.

Glossary (the paper's letters): D: hidden size.   - T: tokens.   - k: heads.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from keras_vit.configs import PlainViTConfig, ResNetConfig, ViTConfig, patch_grid

Sides: TypeAlias = tuple[int, int]


class Part(NamedTuple):
    """Costs of one operation of a layer for one image, and its number of weights."""

    layer: str
    operation: str
    multiply_adds: int = 0
    parameters: int = 0
    kept: int = 0  # Numbers that the backward pass reads.
    softmax: int = 0  # The same, but in float32 under any dtype policy.
    recomputed: int = 0  # Part of `kept` that a rematerialized block does not keep.
    held: int = 0  # Numbers in memory at once during the operation.
    stream: int = (
        0  # Numbers that bypass the layer, in addition to the residual branch.
    )
    kernel: int = 0  # Weights with a standardized copy, one for a batch.
    block: str = ""  # The Transformer block it is part of.


def _dense(
    layer: str,
    operation: str,
    rows: int,
    inputs: int,
    outputs: int,
    biases: int | None = None,
) -> Part:
    """A product [rows, inputs] -> [rows, outputs]; by default with `outputs` biases."""
    return Part(
        layer,
        operation,
        multiply_adds=rows * inputs * outputs,
        parameters=inputs * outputs + (outputs if biases is None else biases),
        kept=rows * inputs,
        held=rows * (inputs + outputs),
    )


def _weights(number: int) -> Part:
    """Weights that are added to activations."""
    return Part("", "", parameters=number)


def _norm(places: int, channels: int) -> Part:
    """A norm at `places` positions, with scales and biases."""
    numbers = places * channels
    return Part("", "", parameters=2 * channels, kept=numbers, held=2 * numbers)


def vit(
    config: ViTConfig, image_size: Sides, num_classes: int, num_channels: int
) -> Iterator[Part]:
    """Yields every part of a ViT or a hybrid (3.1), in the order of the layers.

    Raises:
        ValueError: if the patches do not tile the images (section 3.1).
    """
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
    tokens = _tokens(config, grid)
    yield _norm(tokens, config.hidden_size)
    yield from _classifier(config, tokens, num_classes)


def _tokens(config: ViTConfig, grid: Sides) -> int:
    return config.num_prefix_tokens + grid[0] * grid[1]


def _position_weights(config: ViTConfig, grid: Sides) -> int:
    """Counts Equation 1's E_pos, or the positions of all layers that add them (D.4)."""
    halves = {  # "2d": half of D for a row, half for a column.
        "1d": 2 * _tokens(config, grid),
        "2d": 2 * config.num_prefix_tokens + sum(grid),
    }.get(config.position, 0)
    tables = config.num_layers if config.position_at == "every_layer" else 1
    return tables * halves * config.hidden_size // 2


def _encoder_layer(config: ViTConfig, grid: Sides, layer: str) -> Iterator[Part]:
    """Yields Equations 2 and 3, or D.6's: along rows, then along columns."""
    rows, columns = grid
    if config.attention == "axial":
        yield from _block(config, layer, "row", rows, columns)
        yield from _block(config, layer, "column", columns, rows)
    else:
        yield from _block(config, layer, "", 1, _tokens(config, grid))


def _block(
    config: ViTConfig, layer: str, direction: str, sequences: int, tokens: int
) -> Iterator[Part]:
    """Yields Equations 2 and 3 for `sequences` sequences of T tokens."""
    relative = config.position == "relative"
    width, heads = config.hidden_size, config.num_heads
    rows = sequences * tokens
    inside = [
        _norm(rows, width),
        *_attention(layer, sequences, tokens, width, heads, relative),
        _norm(rows, width),
        *_mlp(config, layer, rows),
    ]
    for part in inside:
        yield part._replace(stream=rows * width, block=layer + direction)


def _mlp(config: ViTConfig, layer: str, tokens: int) -> Iterator[Part]:
    hidden = tokens * config.mlp_dim
    yield _dense(layer, "MLP", tokens, config.hidden_size, config.mlp_dim)
    yield Part(layer, "GELU", kept=2 * hidden, recomputed=hidden, held=hidden)
    yield _dense(layer, "MLP", tokens, config.mlp_dim, config.hidden_size)


def _attention(
    layer: str, sequences: int, tokens: int, depth: int, heads: int, relative: bool
) -> Iterator[Part]:
    """Yields the attention of Appendix A; k heads of size D / k have size D in all."""
    rows = sequences * tokens
    logits = heads * rows * tokens
    yield _dense(layer, "query, key, value", rows, depth, 3 * depth)
    yield Part(
        layer,
        "attention",
        multiply_adds=2 * rows * tokens * depth,  # q k^T and A v.
        kept=3 * rows * depth,
        softmax=logits,
        # Cut into heads; the softmax overwrites its logits.
        held=3 * rows * depth + max(3 * rows * depth, logits),
    )
    if relative:
        offsets = 2 * tokens - 1
        yield Part(
            layer,
            "relative positions",
            multiply_adds=rows * offsets * depth,
            parameters=offsets * depth,
            held=3 * rows * depth + heads * rows * (offsets + tokens),
        )
    yield _dense(layer, "attention output", rows, depth, depth)


def _classifier(config: ViTConfig, tokens: int, num_classes: int) -> Iterator[Part]:
    """Yields Equation 4, the classifier of D.3 and the head."""
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


def _map(config: ViTConfig, tokens: int) -> Iterator[Part]:
    """Yields MAP: a probe attends to T tokens, and an MLP follows (big_vision)."""
    layer, depth = "MAPHead_0", config.hidden_size
    yield _weights(depth)  # The probe.
    yield _dense(layer, "query, key, value", 1, depth, depth)
    yield _dense(layer, "query, key, value", tokens, depth, 2 * depth)
    yield Part(
        layer,
        "attention",
        multiply_adds=2 * tokens * depth,
        kept=2 * tokens * depth,
        softmax=config.num_heads * tokens,
        held=2 * tokens * (depth + config.num_heads),
    )
    yield _dense(layer, "attention output", 1, depth, depth)
    yield _norm(1, depth)
    yield from _mlp(config, layer, 1)


def plain_vit(
    config: PlainViTConfig, image_size: Sides, num_classes: int, num_channels: int
) -> Iterator[Part]:
    """Yields every part of a plain ViT of a later paper, in the order of the layers.

    Raises:
        ValueError: if the patches do not tile the images (section 3.1).
    """
    rows, columns = grid = patch_grid(image_size, config.patch_size)
    width, patches = config.hidden_size, rows * columns
    tokens = config.num_prefix_tokens + patches
    inputs = config.patch_size**2 * num_channels
    biases = width * config.patch_bias
    yield _dense("embedding", "patch embedding", patches, inputs, width, biases)
    if config.embedding_norm:
        yield _plain_norm(config, patches, width)
    yield _weights(config.num_prefix_tokens * width)
    if config.position == "1d":
        bare = config.num_prefix_tokens
        placed = bare if config.position_tokens is None else config.position_tokens
        yield _weights((placed + patches) * width)
    if config.pre_norm:
        yield _plain_norm(config, tokens, width)
    for layer in range(config.num_layers):
        name = f"encoderblock_{layer}"
        for part in _plain_block(config, name, tokens, grid):
            yield part._replace(stream=tokens * width, block=name)
    if config.final_norm:
        yield _plain_norm(config, tokens, width)
    yield from _plain_classifier(config, tokens, patches, num_classes)


def _plain_norm(config: PlainViTConfig, places: int, channels: int) -> Part:
    """A norm; an RMSNorm has no bias."""
    weights = channels * (1 if config.norm == "rms_norm" else 2)
    return _norm(places, channels)._replace(parameters=weights)


def _plain_block(
    config: PlainViTConfig, layer: str, tokens: int, grid: Sides
) -> Iterator[Part]:
    width, heads = config.hidden_size, config.num_heads
    yield _plain_norm(config, tokens, width)
    biases = {"full": 3, "qv": 2, "none": 0}[config.qkv_bias] * width
    into, attended, out = _attention(layer, 1, tokens, width, heads, False)
    yield into._replace(parameters=3 * width**2 + biases)
    if config.qk_norm:
        for _ in range(2):
            norm = _plain_norm(config, tokens, width)
            yield norm._replace(parameters=norm.parameters // heads)
    if config.rotary is not None:
        learned = width if config.rotary.kind == "mixed" else 0
        yield Part(layer, "", parameters=learned, held=4 * tokens * width)
    if config.relative_position:
        offsets = math.prod(2 * side - 1 for side in grid) + 3
        table = Part(layer, "", parameters=offsets * heads, held=heads * tokens**2)
        yield table
    yield attended
    if config.attention_norm:
        yield _plain_norm(config, tokens, width)
    yield out._replace(parameters=width * (width + config.out_bias))
    scale = Part("", "", parameters=width, kept=tokens * width, held=2 * tokens * width)
    if config.layer_scale is not None:
        yield scale
    yield _plain_norm(config, tokens, width)
    yield from _plain_mlp(config, layer, tokens)
    if config.layer_scale is not None:
        yield scale


def _plain_mlp(config: PlainViTConfig, layer: str, tokens: int) -> Iterator[Part]:
    width, mlp_dim = config.hidden_size, config.mlp_dim
    hidden = tokens * mlp_dim
    biases = mlp_dim * config.mlp_bias
    for _ in range(1 + config.gated_mlp):
        yield _dense(layer, "MLP", tokens, width, mlp_dim, biases)
    gate = hidden * config.gated_mlp
    kept, held = 2 * hidden + gate, hidden + gate
    yield Part(layer, "GELU", kept=kept, recomputed=hidden, held=held)
    if config.mlp_norm:
        yield _plain_norm(config, tokens, mlp_dim)
    yield _dense(layer, "MLP", tokens, mlp_dim, width, width * config.mlp_bias)


def _plain_classifier(
    config: PlainViTConfig, tokens: int, patches: int, num_classes: int
) -> Iterator[Part]:
    """Yields pooling, its norm and the head."""
    pairs = config.classifier in ("distilled", "token_gap")
    width = config.hidden_size * (2 if pairs else 1)
    unpooled = config.classifier in ("unpooled", "token_unpooled")
    rows = tokens if unpooled else 1
    if config.classifier == "map":
        as_paper = ViTConfig(
            patch_size=config.patch_size,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            mlp_dim=config.map_mlp_dim or config.mlp_dim,
            num_heads=config.heads_of_map,
        )
        yield from _map(as_paper, tokens if config.pool_prefix else patches)
    if config.head_norm:
        yield _plain_norm(config, rows, width)
    if num_classes:
        biases = num_classes * config.head_bias
        yield _dense("head", "head", rows, width, num_classes, biases)


def resnet(
    config: ResNetConfig, image_size: Sides, num_classes: int, num_channels: int
) -> Iterator[Part]:
    """Yields every part of section 4.1's baselines or Axial-ResNet50, by layer."""
    yield from _stem(config, image_size, num_channels)
    if num_classes:
        yield _dense("head", "head", 1, _features(config), num_classes)


def _features(config: ResNetConfig) -> int:
    """Returns the channels of the feature map; without stages, those of the root."""
    stages = len(config.num_layers)
    return 4 * config.width * 2 ** (stages - 1) if stages else config.width


def _stem(config: ResNetConfig, image_size: Sides, num_channels: int) -> Iterator[Part]:
    """Yields the root and the stages, up to the feature map."""
    yield from _root(config, image_size, num_channels)
    places, channels = _strided(image_size, 4), config.width
    for stage, num_units in enumerate(config.num_layers):
        filters = config.width * 2**stage
        for unit in range(num_units):
            strides = 2 if stage > 0 and unit == 0 else 1
            name = f"block{stage + 1}_unit{unit + 1}"
            after = _strided(places, strides)
            stream = math.prod(after) * 4 * filters
            for part in _unit(config, name, places, channels, filters, strides):
                yield part._replace(stream=stream)
            places, channels = after, 4 * filters
    if config.unit != "v1":
        yield _norm(math.prod(places), channels)


def _root(config: ResNetConfig, image_size: Sides, num_channels: int) -> Iterator[Part]:
    """Yields a convolution, in "v1" a norm, and the max-pool, which keeps its input."""
    yield _Convolution(config, "conv_root", image_size)(
        num_channels, config.width, 7, 2
    )
    places = _strided(image_size, 2)
    numbers = math.prod(places) * config.width
    if config.unit == "v1":
        yield _norm(math.prod(places), config.width)
    pooled = math.prod(_strided(places, 2)) * config.width
    yield Part("pool_root", "pooling", kept=numbers, held=numbers + pooled)


def _unit(
    config: ResNetConfig,
    layer: str,
    places: Sides,
    channels: int,
    filters: int,
    strides: int,
) -> Iterator[Part]:
    """Yields a bottleneck: 1x1, 3x3 or axial attention, 1x1, and a projection."""
    outputs = 4 * filters
    projected = strides != 1 or channels != outputs
    before = _Convolution(config, layer, places)
    after = _Convolution(config, layer, _strided(places, strides))
    if config.unit != "v1":
        yield before.norm(channels)
    yield before(channels, filters, 1)
    yield before.norm(filters)
    if config.unit == "axial":
        rows, columns = places
        heads = config.num_heads
        yield from _attention(layer, rows, columns, filters, heads, True)
        yield from _attention(layer, columns, rows, filters, heads, True)
    else:
        yield before(filters, filters, 3, strides)
    yield after.norm(filters)
    yield after(filters, outputs, 1)
    if config.unit == "v1":
        yield after.norm(outputs)
    if projected:
        # It has the same input as the first convolution, which is kept already.
        yield before(channels, outputs, 1, strides)._replace(kept=0)
        if config.unit == "v1":
            yield after.norm(outputs)


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """Convolutions and norms of a layer on a feature map of size (H, W)."""

    config: ResNetConfig
    layer: str
    places: Sides

    def __call__(
        self, inputs: int, filters: int, kernel: int, strides: int = 1
    ) -> Part:
        """A convolution without a bias, like `StdConv2D`."""
        same = self.config.unit == "v1"
        rows, columns = (_taps(side, kernel, strides, same) for side in self.places)
        read = math.prod(self.places) * inputs
        weights = kernel**2 * inputs * filters
        return Part(
            self.layer,
            "convolutions",
            multiply_adds=rows * columns * inputs * filters,
            parameters=weights,
            kept=read,
            held=read + math.prod(_strided(self.places, strides)) * filters,
            kernel=weights,
        )

    def norm(self, channels: int) -> Part:
        return _norm(math.prod(self.places), channels)


def _strided(places: Sides, strides: int) -> Sides:
    """Returns the sides after strides; repeated halving rounds up in the same way."""
    return -(-places[0] // strides), -(-places[1] // strides)


def _taps(side: int, kernel: int, strides: int, same: bool) -> int:
    """Counts the taps of a kernel along one side, over all outputs, without padding.

    Args:
        side: side in pixels.
        kernel: size in pixels.
        strides: stride in pixels.
        same: TensorFlow's padding, more at the end; otherwise kernel // 2 at both ends.
    """
    outputs = -(-side // strides)
    padding = max((outputs - 1) * strides + kernel - side, 0)
    before = padding // 2 if same else kernel // 2
    starts = range(-before, outputs * strides - before, strides)
    return sum(min(start + kernel, side) - max(start, 0) for start in starts)
