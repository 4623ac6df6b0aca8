"""Layers of later plain ViTs, by hand."""

import keras
import numpy as np
import pytest

from keras_vit.configs import PlainViTConfig
from keras_vit.layers.plain import PlainAttention, PlainMlp, relative_index
from tests.layers import by_hand


@pytest.mark.parametrize("grid", [(2, 3), (3, 2), (1, 4), (1, 1)])
def test_offsets_of_two_patches_have_rows_of_their_own(grid):
    """BEiT: a row for each offset, then token to patch, patch to token, and itself."""
    index = relative_index(grid)
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    rows = {}
    for query, (y, x) in enumerate(places, start=1):
        for key, (v, u) in enumerate(places, start=1):
            rows.setdefault((y - v, x - u), set()).add(int(index[query, key]))
    ordered = sorted(rows)
    assert [rows[at] for at in ordered] == [{number} for number in range(len(rows))]
    count = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    assert len(rows) == count
    assert set(index[0, 1:]) == {count}
    assert set(index[1:, 0]) == {count + 1}
    assert index[0, 0] == count + 2


@pytest.mark.parametrize("changes", [{}, {"gated_mlp": True}, {"mlp_norm": True}])
def test_the_mlp_is_equation_3(changes):
    config = PlainViTConfig(
        patch_size=4,
        num_layers=1,
        hidden_size=8,
        mlp_dim=12,
        num_heads=2,
        activation="silu",
        **changes,
    )
    z = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    layer = PlainMlp(config)
    layer.build(z.shape)
    by_hand.randomize(layer)
    h = by_hand.dense(z, layer.dense_0)
    gate = by_hand.dense(z, layer.gate) if layer.gate is not None else h
    h = gate / (1 + np.exp(-gate)) * (h if layer.gate is not None else 1)
    if layer.layer_norm is not None:
        h = by_hand.layer_norm(h, layer.layer_norm)
    expected = by_hand.dense(h, layer.dense_1)
    found = keras.ops.convert_to_numpy(layer(z))
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": "full"},
        {"qkv_bias": "none"},
        {"qkv_bias": "qv"},
        {"qk_norm": True},
        {"attention_norm": True},
        {"relative_position": True, "position": "none"},
    ],
)
def test_attention_is_appendix_a(changes):
    grid, tokens, heads, size = (2, 3), 7, 2, 4
    config = PlainViTConfig(
        patch_size=4,
        num_layers=1,
        hidden_size=heads * size,
        mlp_dim=12,
        num_heads=heads,
        **changes,
    )
    z = np.random.default_rng(0).standard_normal((2, tokens, 8)).astype("float32")
    layer = PlainAttention(config, grid)
    layer.build(z.shape)
    by_hand.randomize(layer)
    qkv = z @ by_hand.values(layer.qkv.kernel)
    if config.qkv_bias == "full":
        qkv += by_hand.values(layer.qkv.bias)
    elif config.qkv_bias == "qv":
        qkv[..., :8] += by_hand.values(layer.query_bias)
        qkv[..., 16:] += by_hand.values(layer.value_bias)
    q, k, v = qkv.reshape(2, tokens, 3, heads, size).transpose(2, 0, 3, 1, 4)
    if config.qk_norm:
        q = by_hand.layer_norm(q, layer.query_norm)
        k = by_hand.layer_norm(k, layer.key_norm)
    logits = q @ k.swapaxes(2, 3) / 2  # The square root of 4.
    if config.relative_position:
        table = by_hand.values(layer.relative_position_bias)
        logits += table[relative_index(grid)].transpose(2, 0, 1)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(2, tokens, 8)
    if config.attention_norm:
        mixed = by_hand.layer_norm(mixed, layer.layer_norm)
    found = keras.ops.convert_to_numpy(layer(z))
    np.testing.assert_allclose(found, by_hand.dense(mixed, layer.out), atol=2e-5)
    scores = keras.ops.convert_to_numpy(layer.attention_scores(z))
    np.testing.assert_allclose(scores, weights, atol=2e-6)
