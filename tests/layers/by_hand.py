"""Equations 1 to 3, Appendix A, D.3, D.4 and D.6 in float64 NumPy, in loops.

Written from the paper; what is read of the library is where a layer keeps its weights.
"""

import math

import keras
import numpy as np


def randomize(layer, scale=0.5):
    """Gives weights that let no mistake hide: none zero, none one, none alike."""
    rng = np.random.default_rng(0)
    layer.set_weights(
        [w + scale * rng.standard_normal(w.shape) for w in layer.get_weights()]
    )
    return layer


def values(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable), np.float64)


def layer_norm(x, layer):
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + layer.epsilon)
    return centred / deviation * values(layer.gamma) + values(layer.beta)


def dense(x, layer):
    return x @ values(layer.kernel) + values(layer.bias)


def gelu(x, kind):
    if kind == "erf":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mlp(x, layer):
    return dense(gelu(dense(x, layer.dense_0), layer.gelu), layer.dense_1)


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def attention(z, layer):
    """MSA of one sequence [T, D], and A [k, T, T]: Appendix A, and D.4 if relative.

    "Relative" adds the product of a query's content with the embedding of the offset
    between the two positions; row `key - query + T - 1` of the table holds it.
    """
    tokens, depth = z.shape
    heads = layer.num_heads
    size = depth // heads
    qkv = dense(z, layer.qkv).reshape(tokens, 3, heads, size)
    scores = np.zeros((heads, tokens, tokens))
    mixed = np.zeros((tokens, heads, size))
    for head in range(heads):
        for query in range(tokens):
            content = qkv[query, 0, head]
            logits = np.zeros(tokens)
            for key in range(tokens):
                logits[key] = content @ qkv[key, 1, head]
                if layer.relative:
                    offset = values(layer.relative_embedding)[key - query + tokens - 1]
                    logits[key] += content @ offset[head]
            scores[head, query] = softmax(logits / math.sqrt(size))
            mixed[query, head] = scores[head, query] @ qkv[:, 2, head]
    return dense(mixed.reshape(tokens, depth), layer.out), scores


def block(z, layer):
    """Equations 2 and 3 on one sequence [T, D]."""
    z = attention(layer_norm(z, layer.layer_norm_0), layer.attention)[0] + z
    return mlp(layer_norm(z, layer.layer_norm_1), layer.mlp) + z


def along_rows(step, x):
    """`step` on each row of [rows, columns, D], one after the other."""
    return np.stack([step(row) for row in x])


def along_columns(step, x):
    return np.stack([step(x[:, column]) for column in range(x.shape[1])], axis=1)


def axial_block(z, layer):
    """D.6 on one image's tokens [T, D]: row attention + MLP, then columns' + MLP."""
    x = z.reshape(*layer.grid, -1)
    x = along_rows(lambda row: block(row, layer.row), x)
    x = along_columns(lambda column: block(column, layer.column), x)
    return x.reshape(z.shape)


def positions_2d(layer):
    """D.4: the learned halves of each place side by side, X first."""
    rows, columns = layer.grid
    x, y = values(layer.x_embedding)[0], values(layer.y_embedding)[0]
    table = [[*x[column], *y[row]] for row in range(rows) for column in range(columns)]
    if layer.num_prefix_tokens:
        table = [*values(layer.prefix_embedding)[0], *table]
    return np.array(table)


def positions_sincos2d(grid, depth, prefix=0):
    """big_vision: sin x, cos x, sin y, cos y at D/4 frequencies from 1 to 1/10000."""
    table = [np.zeros(depth)] * prefix
    quarter = depth // 4
    for row in range(grid[0]):
        for column in range(grid[1]):
            parts = []
            for place in (column, row):
                angles = [place / 10_000 ** (i / (quarter - 1)) for i in range(quarter)]
                parts += [math.sin(angle) for angle in angles]
                parts += [math.cos(angle) for angle in angles]
            table.append(np.array(parts))
    return np.stack(table)


def positions(layer):
    """E_pos [T, D] of an AddPositionEmbs of any kind."""
    if layer.kind == "1d":
        return values(layer.pos_embedding)[0]
    if layer.kind == "2d":
        return positions_2d(layer)
    depth = layer.input.shape[-1]
    return positions_sincos2d(layer.grid, depth, layer.num_prefix_tokens)


def patches(image, layer):
    """x_p E, row by row: [H, W, C] -> [N, D]; what fills no patch is left out."""
    side = layer.patch_size
    kernel = values(layer.projection.kernel).reshape(-1, layer.hidden_size)
    rows, columns = image.shape[0] // side, image.shape[1] // side
    cut = [
        image[r * side : (r + 1) * side, c * side : (c + 1) * side].reshape(-1)
        for r in range(rows)
        for c in range(columns)
    ]
    return np.stack(cut) @ kernel + values(layer.projection.bias)


def encoder(model, z, config):
    """Equations 1 to 3 from the patches [N, D] of one image, and the last norm."""
    named = {layer.name: layer for layer in model.layers}
    if "cls" in named:
        z = np.concatenate([values(named["cls"].cls)[0], z])
    for i in range(config.num_layers):
        places = {
            "stem": ["posembed_input"] if i == 0 else [],
            "every_layer": [f"posembed_{i}" if i else "posembed_input"],
            "every_layer_shared": ["posembed_shared"],
        }[config.position_at]
        if config.position not in ("none", "relative"):
            for place in places:
                z = z + positions(named[place])
        step = axial_block if config.attention == "axial" else block
        z = step(z, named[f"encoderblock_{i}"])
    return layer_norm(z, named["encoder_norm"])


def vit(model, images, config):
    """The whole model without a resnet, before pooling: [B, H, W, C] -> [B, T, D]."""
    embedding = model.get_layer("embedding")
    return np.stack(
        [
            encoder(model, patches(image.astype(np.float64), embedding), config)
            for image in images
        ]
    )


def probe_attention(z, layer):
    """What MAP's probe looks at in one image's tokens: [T, D] -> [k, T]."""
    tokens, depth = z.shape
    heads = layer.num_heads
    size = depth // heads
    query = dense(values(layer.probe)[0], layer.query).reshape(heads, size)
    keys = dense(z, layer.key_value).reshape(tokens, 2, heads, size)[:, 0]
    return np.stack(
        [
            softmax(keys[:, head] @ query[head] / math.sqrt(size))
            for head in range(heads)
        ]
    )


def map_head(z, layer):
    """big_vision's MAP of one image: x = MHA(probe, z);  x + MLP(LN(x))."""
    tokens, depth = z.shape
    heads = layer.num_heads
    answers = dense(z, layer.key_value).reshape(tokens, 2, heads, depth // heads)[:, 1]
    asked = probe_attention(z, layer)
    mixed = [asked[head] @ answers[:, head] for head in range(heads)]
    x = dense(np.concatenate(mixed), layer.out)
    return x + mlp(layer_norm(x, layer.layer_norm), layer.mlp)


def standardized(layer):
    """A StdConv2D's kernel, filter by filter."""
    kernel = values(layer.kernel).copy()
    for i in range(kernel.shape[-1]):
        one = kernel[..., i]
        if layer.epsilon_outside:
            kernel[..., i] = (one - one.mean()) / (one.std() + layer.epsilon)
        else:
            kernel[..., i] = (one - one.mean()) / math.sqrt(one.var() + layer.epsilon)
    return kernel


def windows(length, size, stride, padding):
    """First index of every window over one axis; negative or too far is padding."""
    if padding == "symmetric":
        before, count = size // 2, (length + 2 * (size // 2) - size) // stride + 1
    else:  # TensorFlow's SAME: rounded up, the odd pixel at the end.
        count = -(-length // stride)
        before = max((count - 1) * stride + size - length, 0) // 2
    return [i * stride - before for i in range(count)]


def slide(x, size, stride, padding, outside, reduce):
    """`reduce` of every size x size window of [H, W, C], `outside` on the padding."""
    height, width, channels = x.shape
    output = []
    for top in windows(height, size, stride, padding):
        for left in windows(width, size, stride, padding):
            window = np.full((size, size, channels), float(outside))
            for i in range(size):
                for j in range(size):
                    if 0 <= top + i < height and 0 <= left + j < width:
                        window[i, j] = x[top + i, left + j]
            output.append(reduce(window))
    rows = len(windows(height, size, stride, padding))
    return np.array(output).reshape(rows, -1, len(output[0]))


def convolve(x, layer):
    kernel = standardized(layer)
    return slide(
        x,
        layer.kernel_size,
        layer.strides,
        layer.padding,
        0,
        lambda window: np.tensordot(window, kernel, 3),
    )


def group_norm(x, layer):
    size = x.shape[-1] // 32
    y = np.empty_like(x)
    for group in range(32):
        own = slice(group * size, (group + 1) * size)
        part = x[..., own]
        y[..., own] = (part - part.mean()) / math.sqrt(part.var() + layer.epsilon)
    return y * values(layer.gamma) + values(layer.beta)


def relu(x):
    return np.maximum(x, 0)


def axial_attention(x, layer):
    """Row, then column attention on [H, W, C], and the mean of what strides join."""
    x = along_rows(lambda row: attention(row, layer.row)[0], x)
    x = along_columns(lambda column: attention(column, layer.column)[0], x)
    if layer.strides == 1:
        return x
    return slide(
        x,
        layer.strides,
        layer.strides,
        "same",
        np.nan,  # Padding takes no part in the mean.
        lambda window: np.nanmean(window, axis=(0, 1)),
    )


def unit(x, layer):
    """A bottleneck unit of any of the three kinds on [H, W, C]."""
    if type(layer).__name__ == "ResidualUnit":
        y = relu(group_norm(convolve(x, layer.conv1), layer.gn1))
        y = relu(group_norm(convolve(y, layer.conv2), layer.gn2))
        y = group_norm(convolve(y, layer.conv3), layer.gn3)
        if layer.conv_proj is not None:
            x = group_norm(convolve(x, layer.conv_proj), layer.gn_proj)
        return relu(x + y)
    mix = axial_attention if type(layer).__name__ == "AxialUnit" else convolve
    y = relu(group_norm(x, layer.gn1))
    if layer.conv_proj is not None:
        x = convolve(y, layer.conv_proj)
    y = relu(group_norm(convolve(y, layer.conv1), layer.gn2))
    y = relu(group_norm(mix(y, layer.conv2), layer.gn3))
    return x + convolve(y, layer.conv3)


def resnet_map(model, image):
    """Root, units and last norm of one image [H, W, C], for "v1" and the others."""
    named = {layer.name: layer for layer in model.layers}
    x = convolve(image.astype(np.float64), named["conv_root"])
    if "gn_root" in named:
        x = relu(group_norm(x, named["gn_root"]))
    kind = named["pool_root"].padding
    x = slide(
        x,
        3,
        2,
        "same" if kind == "same" else "symmetric",
        0 if kind == "zero" else -np.inf,
        lambda window: window.max((0, 1)),
    )
    for layer in model.layers:
        if layer.name.startswith("block"):
            x = unit(x, layer)
    if "gn_final" in named:
        x = relu(group_norm(x, named["gn_final"]))
    return x
