"""The layers of Equations 1 to 3, Appendix A and section 3.2."""

from keras_vit.layers.embeddings import ClassToken, PatchEmbedding
from keras_vit.layers.encoder import MlpBlock, SelfAttention, TransformerBlock
from keras_vit.layers.positions import AddPositionEmbs, resize_position_embeddings

__all__ = [
    "AddPositionEmbs",
    "ClassToken",
    "MlpBlock",
    "PatchEmbedding",
    "SelfAttention",
    "TransformerBlock",
    "resize_position_embeddings",
]
