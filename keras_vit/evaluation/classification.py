"""A classifier on every image of a data set, once (4.1: "fine-tuning accuracy").

The official code leaves out what does not fill its last batch
(vit_jax/input_pipeline.py); here every image counts.
"""

import dataclasses
import hashlib
import json
from typing import TypedDict

import keras
import numpy as np

from keras_vit.data import pipelines
from keras_vit.data.source import Source
from keras_vit.data.splits import Split
from keras_vit.evaluation.metrics import Counts, PerImage
from keras_vit.facts import Preprocessing
from keras_vit.features import progress
from keras_vit.models.vision import preprocessing_of

__all__ = ["Evaluation", "Task", "classify", "task_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Images, and what is right of them.

    Attributes:
        name: as TFDS names the data set, where it has it.
        split: the images; their labels are classes, unless `answers` says otherwise.
        classes: K names.
        model_outputs: how many logits a model must have.
        outputs: int [O], which of them compete; None for all.
        class_of_output: int [O], as `metrics.Counts` takes it.
        answers: what is right, by the split's label: int [L], a class, -1 where the
            task has none; or bool [L, O], outputs. None: the label itself.
        border: pixels that the split cuts off each side of an image.
        calibrates: whether a temperature can and may be found on these images: they
            have one class each, and their license lets parameters be tuned.
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

    def fingerprint(self) -> str:
        """A hash of the images, in their order, and of what is right of them.

        Returns:
            SHA-256, 64 hexadecimal digits; two cards of one are compared image by
            image.
        """
        arrays = (self.outputs, self.class_of_output, self.answers)
        facts = [
            *(self.split.fingerprint(), self.classes, self.border),
            *(None if array is None else _digest(array) for array in arrays),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _digest(array: np.ndarray) -> str:
    told = f"{array.dtype} {array.shape}".encode()
    return hashlib.sha256(told + np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model said of a task's images (4.1).

    Attributes:
        task: the images.
        images: five numbers of each image that has a label.
        without_label: images that have none and are not counted (ReaL).
        logits: float32 [N, O], where they were to be kept.
        preprocessing: how images became input.
    """

    task: Task
    images: PerImage
    without_label: int
    logits: np.ndarray | None
    preprocessing: Preprocessing


def task_of(source: Source) -> Task:
    """The test images of a source (4.1).

    Args:
        source: see `data.open_source`.

    Returns:
        A `Task` of the source's classes, an output each.

    Raises:
        ValueError: if it has none.
    """
    if source.test is None:
        raise ValueError(
            f"Expected a data set with test images. Received: --data {source.name}, "
            "without"
        )
    return Task(
        name=source.name.partition(":")[0],
        split=source.test,
        classes=source.classes,
        model_outputs=len(source.classes),
    )


class ClassifyOptions(TypedDict, total=False):
    """Keyword arguments that `evaluate_imagenet` passes on to `classify` (D.9)."""

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
    """Runs a model on every image of a task once (4.1), on any Keras backend.

    Args:
        model: images to logits [B, `task.model_outputs`]; its own input size is used.
        task: the result of `task_of(data.open_source(...))` or of
            `imagenet.open_task(...)`.
        batch_size: images in the model at a time.
        preprocessing: how images become input; default: the model's own, which a model
            that is not a `VisionModel` does not have (then the paper's).
        keep_logits: keep them, for `metrics.temperature`.
        verbose: whether to show progress on a terminal.

    Returns:
        An `Evaluation`, with `.images.top(1)`, `.images.top(5)`, ...

    Raises:
        ValueError: if the model has other outputs or no fixed input size, gives
            probabilities or NaN; if a label is out of range; if there is no image with
            a label; if logits are to be kept where no temperature may be found.
    """
    _check_model(model, task)
    if keep_logits and not task.calibrates:
        raise ValueError(
            "Expected a data set for a temperature with one class an image, and whose "
            "licence lets parameters be tuned on it, which ObjectNet's does not. "
            f"Received: {task.name}"
        )
    size, channels = model.input_shape[1:3], model.input_shape[-1]
    preprocessing = preprocessing_of(model, preprocessing)
    counts = Counts(
        task.model_outputs if task.outputs is None else len(task.outputs),
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
    for images, labels in progress(batches, "evaluating", steps, verbose):
        count = len(images)
        if count < batch_size:  # One shape for all batches: compiled once.
            images = np.resize(images, (batch_size, *images.shape[1:]))
        logits = np.asarray(model.predict_on_batch(images)[:count], np.float32)
        if task.outputs is not None:
            logits = logits[:, task.outputs]
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
    """What is right of a batch, for `Counts.update`."""
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


def _check_model(model: keras.Model, task: Task) -> None:
    activation = getattr(model.layers[-1], "activation", None)
    name = getattr(activation, "__name__", "")
    if model.output_shape != (None, task.model_outputs):
        received = (
            f"{model.output_shape[-1]} outputs, {task.model_outputs} classes in "
            f"{task.name}"
        )
        if len(model.output_shape) != 2:
            received = f"output {model.output_shape}"
        remedy = f". keras-vit finetune --data {task.name} makes one"
    elif None in model.input_shape[1:]:
        received, remedy = f"input {model.input_shape}, of no fixed size", ""
    elif name in ("softmax", "sigmoid"):
        received = f"a model that ends in {name}"
        remedy = ": classifier_activation=None leaves that out"
    else:
        return
    raise ValueError(
        "Expected a model of the data set's classes, a logit for each. Received: "
        f"{received}{remedy}"
    )
