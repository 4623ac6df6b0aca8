"""Evaluation of models with the paper's measures (section 4, D.9, D.10)."""

from typing import TYPE_CHECKING

from keras_vit._lazy import names_of

if TYPE_CHECKING:
    from keras_vit.evaluation import subsets, vtab
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.classification import Evaluation, Task, classify, task_of
    from keras_vit.evaluation.features import Features, backbone, extract, gather
    from keras_vit.evaluation.few_shot import FewShot, fewshot
    from keras_vit.evaluation.imagenet import evaluate_imagenet
    from keras_vit.evaluation.metrics import Counts, PerImage
    from keras_vit.evaluation.probes import Probe, knn, linear_probe
    from keras_vit.evaluation.subsets import DataSize, SubsetAccuracy, data_size
else:
    __getattr__, __dir__ = names_of(
        __name__,
        cards="Card",
        classification="Evaluation Task classify task_of",
        features="Features backbone extract gather",
        few_shot="FewShot fewshot",
        imagenet="evaluate_imagenet",
        metrics="Counts PerImage",
        probes="Probe knn linear_probe",
        subsets="DataSize SubsetAccuracy data_size",
    )

__all__ = [
    "Card",
    "Counts",
    "DataSize",
    "Evaluation",
    "Features",
    "FewShot",
    "PerImage",
    "Probe",
    "SubsetAccuracy",
    "Task",
    "backbone",
    "classify",
    "data_size",
    "evaluate_imagenet",
    "extract",
    "fewshot",
    "gather",
    "knn",
    "linear_probe",
    "subsets",
    "task_of",
    "vtab",
]
