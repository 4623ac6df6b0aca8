"""Looking inside (section 4.5, D.5, D.8)."""

from keras_vit.inspection.attention import attention_rollout, attention_scores
from keras_vit.inspection.counting import Costs, costs

__all__ = ["Costs", "attention_rollout", "attention_scores", "costs"]
