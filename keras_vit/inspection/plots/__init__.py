"""Pictures of measurements, arranged as the paper's Figures 2 to 14.

Every picture has matplotlib's default style on a white background, whatever style you
have set, so that it is legible on dark pages too. Lines differ in color, marker and
dash; color-blind readers can distinguish the colors (`canvas.COLORS`). Inputs are plain
numbers; nothing here measures. Every function raises a ValueError for a suffix that
matplotlib does not know, and an OSError if the file cannot be written.
"""

from keras_vit.inspection.plots.canvas import check
from keras_vit.inspection.plots.inside import (
    attention_maps,
    figure_6,
    figure_7,
    figure_10,
    figure_11,
    figure_14,
    reconstructions,
)
from keras_vit.inspection.plots.results import (
    confusion,
    curves,
    reliability,
    shots,
    task_groups,
)
from keras_vit.inspection.plots.scaling import (
    PRETRAINING,
    data_size,
    figure_5,
    figure_8,
    figure_9,
    figure_12,
    figure_13,
    pretraining,
)

__all__ = [
    "PRETRAINING",
    "attention_maps",
    "check",
    "confusion",
    "curves",
    "data_size",
    "figure_5",
    "figure_6",
    "figure_7",
    "figure_8",
    "figure_9",
    "figure_10",
    "figure_11",
    "figure_12",
    "figure_13",
    "figure_14",
    "pretraining",
    "reconstructions",
    "reliability",
    "shots",
    "task_groups",
]
