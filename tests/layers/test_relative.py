"""D.4's relative positions, against the definition in loops."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import SelfAttention
from tests.layers import by_hand
from tests.models.families import names


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("tokens", names([1, 2, 5, 7], {5}))
def test_an_embedding_for_each_offset_joins_the_logits(tokens):
    z = np.random.default_rng(1).standard_normal((2, tokens, 12)).astype("float32")
    layer = SelfAttention(3, relative=True)
    layer.build(z.shape)
    by_hand.randomize(layer)
    assert layer.relative_embedding.shape == (2 * tokens - 1, 3, 4)
    expected = [by_hand.attention(image, layer) for image in z]
    np.testing.assert_allclose(
        numpy(layer.attention_scores(z)), [scores for _, scores in expected], atol=2e-6
    )
    np.testing.assert_allclose(numpy(layer(z)), [y for y, _ in expected], atol=2e-5)


def test_only_the_offset_counts():
    """Content made the same for all tokens, the logits depend on key - query alone."""
    layer = SelfAttention(2, relative=True)
    layer.build((1, 6, 8))
    by_hand.randomize(layer)
    same = np.tile(np.random.default_rng(0).standard_normal(8), (1, 6, 1))
    logits = np.log(numpy(layer.attention_scores(same.astype("float32"))))[0]
    steps = logits[:, :, 1:] - logits[:, :, :-1]  # The softmax's constant drops out.
    np.testing.assert_allclose(steps[:, 1:, 1:], steps[:, :-1, :-1], atol=1e-4)
    assert np.abs(np.diff(steps, axis=-1)).min() > 1e-3


def test_each_offset_is_read_where_it_belongs():
    """One embedding that is not zero moves exactly one diagonal of the scores."""
    tokens = 4
    layer = SelfAttention(1, relative=True)
    layer.build((1, tokens, 4))
    by_hand.randomize(layer)
    z = np.random.default_rng(0).standard_normal((1, tokens, 4)).astype("float32")
    layer.relative_embedding.assign(np.zeros((7, 1, 4)))
    plain = numpy(layer.attention_scores(z))[0, 0]
    for offset in range(-tokens + 1, tokens):
        table = np.zeros((7, 1, 4))
        table[offset + tokens - 1] = 1
        layer.relative_embedding.assign(table)
        scores = numpy(layer.attention_scores(z))[0, 0]
        ratio = scores / plain
        moved = np.abs(ratio / np.median(ratio, axis=1, keepdims=True) - 1) > 1e-4
        rows = [query for query in range(tokens) if 0 <= query + offset < tokens]
        for query in rows:
            others = [key for key in range(tokens) if key != query + offset]
            np.testing.assert_allclose(
                ratio[query, others], ratio[query, others[0]], rtol=1e-4
            )
        assert moved.sum(1).max() <= tokens
        assert not moved[[q for q in range(tokens) if q not in rows]].any()


@pytest.mark.parametrize(
    ("attention", "classifier"), [("full", "token"), ("full", "gap"), ("axial", "gap")]
)
def test_the_whole_model(attention, classifier):
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=2,
        hidden_size=16,
        mlp_dim=24,
        num_heads=2,
        classifier=classifier,
        position="relative",
        attention=attention,
    )
    model = keras_vit.vit(config, image_size=(12, 8), num_classes=None)
    by_hand.randomize(model)
    images = np.random.default_rng(3).uniform(-1, 1, (2, 12, 8, 3)).astype("float32")
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    assert not any("posembed_i" in layer.name for layer in model.layers)
    np.testing.assert_allclose(
        numpy(tokens(images)), by_hand.vit(model, images, config), atol=3e-5
    )


def test_each_layer_has_embeddings_of_its_own_and_they_are_trained():
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=2,
        hidden_size=16,
        mlp_dim=24,
        num_heads=2,
        position="relative",
    )
    model = keras_vit.vit(config, image_size=(12, 8), num_classes=3)
    tables = [v for v in model.trainable_variables if "relative" in v.path]
    assert len(tables) == 2
    assert tables[0].shape == (2 * 7 - 1, 2, 8)  # Six patches and the class token.
    spread = np.std(numpy(tables[0]))
    assert 0.01 < spread < 0.03


def test_sequences_of_unknown_length_have_no_offsets():
    with pytest.raises(ValueError, match=r"known length.*\(None, None, 8\)"):
        SelfAttention(2, relative=True)(keras.Input((None, 8)))


def test_half_precision_is_near():
    z = np.random.default_rng(1).standard_normal((2, 5, 12)).astype("float32")
    layer = SelfAttention(3, relative=True, dtype="mixed_bfloat16")
    layer.build(z.shape)
    by_hand.randomize(layer)
    scores = layer.attention_scores(z)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    expected = np.stack([by_hand.attention(image, layer)[1] for image in z])
    np.testing.assert_allclose(numpy(scores), expected, atol=0.1)
