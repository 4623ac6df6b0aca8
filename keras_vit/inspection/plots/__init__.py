"""Pictures of what is measured; Figures 2 to 14 in the paper's arrangement.

Every picture has a white ground of its own, whatever style the user has set, so that it
reads on dark pages too. Lines differ in color, marker and dash; the colors are told
apart by color-blind readers (`canvas.COLORS`). Inputs are plain numbers: nothing here
measures. Every function also raises a ValueError for a suffix that matplotlib does not
know, and an OSError where it may not write.
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
