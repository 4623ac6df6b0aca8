"""Layers of later plain ViTs, by hand."""

import keras
import numpy as np
import pytest

from keras_vit.configs import PlainViTConfig
from keras_vit.layers.plain import PlainMlp, relative_index
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
