"""Looking inside (section 4.5, D.8)."""

from keras_vit.inspection.attention import attention_rollout, attention_scores

__all__ = ["attention_rollout", "attention_scores"]
