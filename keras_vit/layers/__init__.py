"""The layers of Equations 1 to 3, Appendix A, sections 3.1, 3.2 and D.3 to D.6."""

from keras_vit.layers.axial import AxialAttention, AxialBlock, AxialUnit
from keras_vit.layers.convolution import PreActivationUnit, ResidualUnit, StdConv2D
from keras_vit.layers.embeddings import ClassToken, PatchEmbedding
from keras_vit.layers.encoder import MlpBlock, SelfAttention, TransformerBlock
from keras_vit.layers.pooling import MAPHead
from keras_vit.layers.positions import AddPositionEmbs, resize_position_embeddings

__all__ = [
    "AddPositionEmbs",
    "AxialAttention",
    "AxialBlock",
    "AxialUnit",
    "ClassToken",
    "MAPHead",
    "MlpBlock",
    "PatchEmbedding",
    "PreActivationUnit",
    "ResidualUnit",
    "SelfAttention",
    "StdConv2D",
    "TransformerBlock",
    "resize_position_embeddings",
]
