"""The paper's configs build the paper's graph, whatever later families need."""

import keras
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock

pytestmark = pytest.mark.tensorflow_only

VIT = [  # As version 0.1 built it: names and classes, in the order of the calls.
    ("images", "InputLayer"),
    ("embedding", "PatchEmbedding"),
    ("cls", "ClassToken"),
    ("posembed_input", "AddPositionEmbs"),
    ("posembed_dropout", "Dropout"),
    ("encoderblock_0", "TransformerBlock"),
    ("encoderblock_1", "TransformerBlock"),
    ("encoder_norm", "LayerNormalization"),
    ("take_tokens", "TakeTokens"),
    ("head", "Dense"),
]
BLOCK = [
    ("LayerNorm_0", "LayerNormalization"),
    ("MultiHeadDotProductAttention_0", "SelfAttention"),
    ("qkv", "Dense"),
    ("dropout", "Dropout"),
    ("out", "Dense"),
    ("dropout", "Dropout"),
    ("LayerNorm_1", "LayerNormalization"),
    ("MlpBlock_0", "MlpBlock"),
    ("Dense_0", "Dense"),
    ("Dense_1", "Dense"),
    ("dropout", "Dropout"),
]


def told(layers):
    return [(at.name.rstrip("_0123456789"), type(at).__name__) for at in layers]


def test_layers_of_a_vit():
    config = keras_vit.ViTConfig(
        patch_size=8, num_layers=2, hidden_size=16, mlp_dim=32, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(16, 16), num_classes=3)
    expected = [(name.rstrip("_0123456789"), kind) for name, kind in VIT]
    assert told(model.layers) == expected
    block = model.get_layer("encoderblock_1")
    assert type(block) is TransformerBlock
    inside = [(at.name, type(at).__name__) for at in block._inside()]
    assert inside == BLOCK
    assert isinstance(model, keras.Model)
    assert model.config == config
