"""Inspection of models: attention, embeddings, costs (section 4.5, D.5, D.7, D.8)."""

from typing import TYPE_CHECKING

from keras_vit._lazy import names_of

if TYPE_CHECKING:
    from keras_vit.inspection.attention import (
        attention_distance,
        attention_rollout,
        attention_scores,
        output_attention,
    )
    from keras_vit.inspection.counting import Costs, costs
    from keras_vit.inspection.embeddings import embedding_filters, position_similarity
    from keras_vit.inspection.page import Page
else:
    __getattr__, __dir__ = names_of(
        __name__,
        attention="attention_distance attention_rollout attention_scores "
        "output_attention",
        counting="Costs costs",
        embeddings="embedding_filters position_similarity",
        page="Page",
    )

__all__ = [
    "Costs",
    "Page",
    "attention_distance",
    "attention_rollout",
    "attention_scores",
    "costs",
    "embedding_filters",
    "output_attention",
    "position_similarity",
]
