"""Evaluates a classifier once on every image of a data set (4.1).

The paper calls this "fine-tuning accuracy". The official code leaves out images that do
not fill its last batch (vit_jax/input_pipeline.py); here every image counts.
"""

import dataclasses
import hashlib
import json
from typing import TypedDict

import keras
import numpy as np

from keras_vit.data import pipelines
from keras_vit.data.progress import progress
from keras_vit.data.source import Source
from keras_vit.data.splits import Split
from keras_vit.evaluation.metrics import Counts, PerImage
from keras_vit.facts import Preprocessing
from keras_vit.models.outputs import (
    gives_probabilities,
    last_activation,
    outputs_by_name,
)
from keras_vit.models.vision import preprocessing_of

__all__ = ["Evaluation", "Task", "classify", "task_of"]

# Outputs of as many images decide whether they are probabilities: logits of a few can
# be in [0, 1] and sum to 1 by chance.
_ENOUGH = 32
_NO_SOFTMAX = (
    ". Remove the activation: build the model with classifier_activation=None, or use "
    "keras.Model(IMAGES, LOGITS)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Images with their correct answers.

    Attributes:
        name: name of the data set, TFDS's if it has one.
        split: images; their labels are classes, unless `answers` is set.
        classes: K names.
        model_outputs: number of logits that a model must have.
        outputs: int [O], indices of the outputs that compete; None for all.
        class_of_output: int [O], as in `metrics.Counts`.
        answers: correct answers by the split's label: int [L], a class, or -1 if the
            task does not have it; or bool [L, O], outputs. None: the label itself.
        border: number of pixels that the split removes on each side of an image.
        calibrates: whether temperature scaling is possible and permitted: the images
            have one class each, and their license allows tuning parameters.
        by_name: whether a model's labels are compared with `classes`; otherwise the
            model has ImageNet's 1,000 outputs in their usual order.
    """

    name: str
    split: Split
    classes: tuple[str, ...]
    model_outputs: int
    outputs: np.ndarray | None = None
    class_of_output: np.ndarray | None = None
    answers: np.ndarray | None = None
    border: int = 0
    calibrates: bool = True
    by_name: bool = False

    def fingerprint(self) -> str:
        """Returns a hash of the images, their order and the correct answers.

        Returns:
            SHA-256, 64 hexadecimal digits. Cards with the same one can be compared
            image by image.
        """
        arrays = (self.outputs, self.class_of_output, self.answers)
        facts = [
            *(self.split.fingerprint(), self.classes, self.border),
            *(None if array is None else _digest(array) for array in arrays),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _digest(array: np.ndarray) -> str:
    header = f"{array.dtype} {array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions of a model for a task's images (4.1).

    Attributes:
        task: task with the images.
        images: five numbers for each image that has a label.
        without_label: number of images without a label, which are not counted (ReaL).
        logits: float32 [N, O], if they were kept.
        preprocessing: scaling of the images.
    """

    task: Task
    images: PerImage
    without_label: int
    logits: np.ndarray | None
    preprocessing: Preprocessing


def task_of(source: Source) -> Task:
    """Returns the test images of a source as a task (4.1).

    Args:
        source: see `data.open_source`.

    Returns:
        A `Task` with the source's classes and an output for each.

    Raises:
        ValueError: if the source has no test images.
    """
    if source.test is None:
        raise ValueError(
            f"Expected a data set with test images. Received: --data {source.name}, "
            "without any"
        )
    return Task(
        name=source.name.partition(":")[0],
        split=source.test,
        classes=source.classes,
        model_outputs=len(source.classes),
        by_name=True,
    )


def outputs_of(model: keras.Model, task: Task) -> np.ndarray | None:
    """Returns the outputs of a model that compete in a task, in the task's order.

    Args:
        model: model from images to K outputs.
        task: see `classify`.

    Returns:
        int [O], or None for all outputs in their own order.

    Raises:
        ValueError: if K is not `task.model_outputs`; if some of the model's labels are
            classes of the task at different indices, and others are not its classes.
    """
    _check_outputs(model, task)
    if not task.by_name:
        return task.outputs
    found = outputs_by_name(model, task.classes, task.name)
    return None if found is None else np.array(found)


class ClassifyOptions(TypedDict, total=False):
    """Keyword arguments that `evaluate_imagenet` passes to `classify` (D.9)."""

    batch_size: int
    preprocessing: Preprocessing | None
    keep_logits: bool
    verbose: bool


def classify(
    model: keras.Model,
    task: Task,
    *,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    keep_logits: bool = False,
    verbose: bool = True,
) -> Evaluation:
    """Evaluates a model once on every image of a task (4.1), on any Keras backend.

    If the model has labels and the task is of a source, an output is the class that has
    its label as name, in any order. If the names differ, they are compared by index,
    with a warning.

    Args:
        model: model from images to logits [B, `task.model_outputs`]; images are resized
            to its input.
        task: result of `task_of(data.open_source(...))` or of
            `imagenet.open_task(...)`.
        batch_size: images in the model at a time.
        preprocessing: scaling of the images [default: the model's; the paper's for a
            model that is not a `VisionModel`].
        keep_logits: whether to keep logits, for `metrics.temperature`.
        verbose: whether to show progress on a terminal.

    Returns:
        An `Evaluation`, with `.images.top(1)`, `.images.top(5)`, ...

    Raises:
        ValueError: if the model has different outputs or no fixed input size, or
            returns probabilities or NaN; if its labels contradict the order of the
            task's classes; if a label is out of range; if no image has a label; if
            `keep_logits` is set but the task does not allow temperatures.
    """
    outputs = outputs_of(model, task)
    _check_model(model)
    if keep_logits and not task.calibrates:
        raise ValueError(
            "Expected a data set with one class per image and a license that allows "
            "tuning a temperature on it, which ObjectNet's does not. "
            f"Received: {task.name}"
        )
    size, channels = model.input_shape[1:3], model.input_shape[-1]
    preprocessing = preprocessing_of(model, preprocessing)
    counts = Counts(
        task.model_outputs if outputs is None else len(outputs),
        class_of_output=task.class_of_output,
        keep_logits=keep_logits,
    )
    total = len(task.split)
    batch_size = min(batch_size, max(total, 1))
    batches = pipelines.eval_pipeline(
        task.split,
        image_size=size,
        batch_size=batch_size,
        preprocessing=preprocessing,
        channels=channels,
    ).as_numpy_iterator()
    steps = -(-total // batch_size)
    only_probabilities = True
    for images, labels in progress(batches, "evaluating", steps, verbose):
        count = len(images)
        if count < batch_size:  # All batches have one shape, so it is compiled once.
            images = np.resize(images, (batch_size, *images.shape[1:]))
        logits = np.asarray(model.predict_on_batch(images)[:count], np.float32)
        only_probabilities = only_probabilities and _are_probabilities(logits)
        if only_probabilities and counts.seen + count >= min(total, _ENOUGH):
            raise _unfit(
                "outputs in [0, 1] with a sum of 1 for each image", _NO_SOFTMAX
            )
        if outputs is not None:
            logits = logits[:, outputs]
        counts.update(logits, _answers(task, labels))
    per_image = counts.per_image()
    return Evaluation(
        task=task,
        images=per_image,
        without_label=counts.seen - len(per_image),
        logits=counts.logits() if keep_logits else None,
        preprocessing=preprocessing,
    )


def _answers(task: Task, labels: np.ndarray) -> np.ndarray:
    """Returns the correct answers of a batch, for `Counts.update`."""
    if task.answers is None:
        return labels
    known = (labels >= 0) & (labels < len(task.answers))
    answers: np.ndarray = task.answers[np.where(known, labels, 0)]
    if answers.ndim == 1:
        known &= answers >= 0
    if known.all():
        return answers
    raise ValueError(
        f"Expected labels of the {len(task.classes)} classes of {task.name}. Received: "
        f"label {labels[~known][0]}"
    )


def _check_outputs(model: keras.Model, task: Task) -> None:
    if model.output_shape == (None, task.model_outputs):
        return
    received = f"output {model.output_shape}"
    if len(model.output_shape) == 2:
        received = (
            f"{model.output_shape[-1]} outputs for the {task.model_outputs} classes of "
            f"{task.name}"
        )
    raise _unfit(received, f". Train one with keras-vit finetune --data {task.name}")


def _check_model(model: keras.Model) -> None:
    if None in model.input_shape[1:]:
        raise _unfit(f"input {model.input_shape}, without a fixed size", "")
    if gives_probabilities(model):
        raise _unfit(f"a model that ends in {last_activation(model)}", _NO_SOFTMAX)


def _unfit(received: str, remedy: str) -> ValueError:
    return ValueError(
        "Expected a model with a logit for each class of the data set. Received: "
        f"{received}{remedy}"
    )


def _are_probabilities(outputs: np.ndarray) -> bool:
    """Returns whether all are in [0, 1] and rows sum to 1: [n, K]."""
    inside = (outputs >= 0) & (outputs <= 1)
    shares = inside.all() and (outputs != np.rint(outputs)).any()  # Not only 0 and 1.
    return bool(shares and (np.abs(outputs.sum(axis=1) - 1) <= 1e-3).all())
