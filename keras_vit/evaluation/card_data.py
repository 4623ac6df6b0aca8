"""Values of a results card (top-1: 4.1), for its pages."""

import dataclasses
from typing import Any

from keras_vit.evaluation.metrics import Estimate, PerImage


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardData:
    """Values of a results card; `cards.Card` describes each."""

    name: str
    model: dict[str, Any]
    numerics: dict[str, Any]
    preprocessing: dict[str, Any]
    data: dict[str, Any]
    results: dict[str, Estimate]
    scaled: dict[str, Estimate]
    temperatures: tuple[float, ...]
    data_size: dict[str, dict[int, float]]
    command: str
    images: PerImage

    @property
    def has_classes(self) -> bool:
        """Whether every image has one class, instead of a set of outputs (ReaL)."""
        return bool((self.images.label >= 0).all())
