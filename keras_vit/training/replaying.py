"""Compute a segment of a finished run again and compare it with its certificate."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from keras_vit.data.sources import Source, open_source
from keras_vit.files import parse_json
from keras_vit.models.vision import preprocessing_of
from keras_vit.recipes import Recipe
from keras_vit.training import certificate, fitting, results, runs
from keras_vit.training import resume as resuming
from keras_vit.training.distribution import Workers
from keras_vit.training.inputs import Batches, objective
from keras_vit.training.resume import Checkpoints, Saved
from keras_vit.weights.keras_files import load_model

__all__ = ["Compared", "Replay", "replay"]

TOLERANCE = 1e-3  # For a metric in a different environment.
# The bits may differ where one of these does.
_ENVIRONMENT = (
    *("backend", "keras", "tensorflow", "jax", "torch", "keras_vit"),
    *("processor", "device", "threads", "replicas"),
)
Verdict = Literal["bit-equal", "within tolerance", "different"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A link of a certificate and the one computed again.

    Attributes:
        step: step of the evaluation.
        weights: whether the digests of the weights are equal.
        optimizer: whether the digests of the optimizer's variables are equal.
        metrics: largest difference of a metric, relative to its value or to 1.
        elsewhere: names of the environment's facts that differ.
    """

    step: int
    weights: bool
    optimizer: bool
    metrics: float
    elsewhere: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Compares bits; in a different environment, metrics to 1e-3."""
        if self.weights and self.optimizer and self.metrics == 0:
            return "bit-equal"
        if self.elsewhere and self.metrics <= TOLERANCE:
            return "within tolerance"
        return "different"


@dataclasses.dataclass(frozen=True)
class Replay:
    """The result of `replay`.

    Attributes:
        start: step at which the computation started.
        kept: steps at which it can start; 0 if the initial weights are stored.
        links: a comparison for each evaluation of the segment.
    """

    start: int
    kept: tuple[int, ...]
    links: tuple[Compared, ...]

    @property
    def agrees(self) -> bool:
        """Whether none of the links is different."""
        return all(link.verdict != "different" for link in self.links)


class _Reached(Exception):
    """Raised after the evaluation of the segment's last step."""


class _Comparison(certificate.Certificate):
    """A certificate that is compared link by link with an expected one."""

    def __init__(
        self, expected: Mapping[int, Mapping[str, Any]], last: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.expected, self.last = expected, last
        self.found: list[Compared] = []

    def add(
        self,
        step: int,
        variables: Mapping[str, np.ndarray],
        metrics: Mapping[str, float],
    ) -> None:
        super().add(step, variables, metrics)
        if step in self.expected:
            self.found.append(_compared(self.expected[step], self.links[-1]))
        if step >= self.last:
            raise _Reached


def _compared(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Compared:
    names = theirs["metrics"].keys() | ours["metrics"].keys()
    return Compared(
        step=ours["step"],
        weights=ours["weights"] == theirs["weights"],
        optimizer=ours["optimizer"] == theirs["optimizer"],
        metrics=max((_off(theirs, ours, name) for name in names), default=0.0),
        elsewhere=tuple(
            name
            for name in _ENVIRONMENT
            if theirs["environment"].get(name) != ours["environment"].get(name)
        ),
    )


def _off(theirs: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> float:
    """Returns the difference of a metric, infinite if a link does not have it."""
    a, b = theirs["metrics"].get(name, np.inf), ours["metrics"].get(name, -np.inf)
    return float(abs(a - b) / max(1.0, abs(a)))


def replay(
    folder: str | os.PathLike[str],
    *,
    first: int = 0,
    last: int | None = None,
    data: str | Source | None = None,
    verbose: int | str = "auto",
) -> Replay:
    """Computes a segment of a finished run again.

    It starts from the newest undamaged checkpoint at or before `first`, else from the
    initial weights. It compares all later evaluations up to `last` with the run's
    certificate. The run's folder is not changed. Digests are equal with the same
    backend, versions, processor type and number of threads. In a different environment,
    metrics are compared, with a tolerance of 1e-3 relative to their value or to 1.

    Args:
        folder: the `output` of `fit`, finished and trained on a source of images.
        first: step from which to compute.
        last: step of the last evaluation to compare; None: the last of the run.
        data: the run's data; None: the data that `run.json` names.
        verbose: as in `model.fit`.

    Returns:
        A `Replay`.

    Raises:
        ValueError: if the run has not finished, its certificate or a file is damaged,
            the data differs, or `first` or `last` is not a step of the run.
    """
    folder = Path(folder)
    recipe, learning_rate, begun = _begun(folder)
    links = certificate.read(folder)
    steps = [link["step"] for link in links if link["metrics"]]
    end: int = steps[-1] if last is None and steps else last or 0
    if end not in steps or not 0 <= first < end:
        raise ValueError(
            "Expected a segment from a step to a later evaluation. Received: from "
            f"{first} to {end}; evaluations: {', '.join(map(str, steps))}"
        )
    saved, kept = _start(folder, first)
    start = 0 if saved is None else saved.step
    expected = {link["step"]: link for link in links if start <= link["step"] <= end}
    model = load_model(folder / "model.keras")
    batches = Batches(
        model,
        recipe,
        _source(model, begun, folder, data),
        None,
        preprocessing_of(model, None),
        begun["seed"],
        verbose,
        Workers.of(model),
    )
    _check_data(folder, begun, batches)
    comparison = _Comparison(
        expected,
        end,
        facts=fitting.facts(batches, links[-1]["period"]),
        batch_size=batches.batch_size,
    )
    evaluations = recipe.steps // links[-1]["period"]

    def first_weights() -> None:
        # A checkpoint has all weights, or those of a head that trains on features.
        if saved is None or batches.on_features():
            _restore_start(folder, model)

    with fitting.trainings(
        model, batches, evaluations, verbose, first_weights
    ) as training:
        if saved is not None:
            link = expected.get(start, links[0])
            _check_weights(saved, link, training)
            comparison.links = [link]
        with contextlib.suppress(_Reached):
            training.final(learning_rate, fitting.Saving(None), comparison, saved)
    return Replay(start, kept, tuple(comparison.found))


def _start(folder: Path, first: int) -> tuple[Saved | None, tuple[int, ...]]:
    """Returns the checkpoint to start from (None: step 0), and all stored steps."""
    checkpoints = Checkpoints(folder / runs.CHECKPOINTS)
    has_start = bool(list((folder / "start").glob("step-*.json")))
    kept = tuple([0] * has_start + checkpoints.steps())
    saved = checkpoints.newest(first) if first else None
    if saved is None and not has_start:
        raise ValueError(
            "Expected a step at or after a stored one. "
            f"Received: {first}; kept: {', '.join(map(str, kept)) or 'none'}"
        )
    return saved, kept


def _begun(folder: Path) -> tuple[Recipe, float, dict[str, Any]]:
    """Returns the recipe of a finished run, its learning rate, and `begun.json`."""
    result = results.finished(folder)
    if result is None:
        raise ValueError(
            f"Expected a finished run. Received: {str(folder)!r} without "
            f"{runs.FINISHED}. keras-vit runs show {folder} prints how far it is"
        )
    values = parse_json((folder / runs.FINISHED).read_text())["recipe"]
    begun = parse_json((folder / runs.BEGUN).read_text())
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    return Recipe(**fields), result.learning_rate, begun


def _source(
    model: keras.Model,
    begun: dict[str, Any],
    folder: Path,
    data: str | Source | None,
) -> Source:
    """Returns the run's data, with the name from the run."""
    if not isinstance(begun["data"], dict):
        raise ValueError(
            "Expected a run on a source of images. Received: a run on ready batches "
            f"({begun['data']}), which a certificate cannot identify"
        )
    if not isinstance(data, Source):
        path = folder / "run.json"
        details = parse_json(path.read_text())["details"] if path.exists() else {}
        data = data or details.get("data")
        # Images that were skipped in the run are skipped; the fingerprint checks this.
        data = open_source(
            data or begun["data"]["name"],
            seed=details.get("seed", begun["seed"]),  # In a transfer: the first run's.
            on_corrupt="skip",
            labels=objective(model) is None,
        )
    return dataclasses.replace(data, name=begun["data"]["name"])


def _check_data(folder: Path, begun: dict[str, Any], batches: Batches) -> None:
    """Raises ValueError unless data and recipe are the run's."""
    values = {"recipe": batches.recipe.identity(), **batches.identity()}
    where = str(folder / runs.BEGUN)
    resuming.check_order(begun, values, where, "or replay a run of this version")
    resuming.check_equal(
        {k: v for k, v in begun.items() if k not in ("model", "config")},
        values,
        "Expected the data and the recipe of the run",
        "Pass the run's data with --data (data=)",
    )


def _restore_start(folder: Path, model: keras.Model) -> None:
    """Restores the run's initial weights, if they are stored."""
    saved = Checkpoints(folder / "start").newest()
    if saved is not None:
        resuming.restore(resuming.model_variables(model), saved.variables)


def _check_weights(
    saved: Saved, link: dict[str, Any], training: fitting.Trainings
) -> None:
    """Raises ValueError unless a checkpoint's weights match the link of its step."""
    if link["step"] != saved.step:
        return
    values = {
        name: value
        for name, value in saved.variables.items()
        if name.startswith("model/")
    }
    resuming.restore(resuming.model_variables(training.trained), values)
    whole = resuming.capture(resuming.model_variables(training.model))
    if certificate.digest(whole, "model") != link["weights"]:
        raise ValueError(
            f"The checkpoint of step {saved.step} does not match the certificate: its "
            "weights have a different digest. Replay from a different step"
        )


def lines(replayed: Replay) -> Iterator[str]:
    """Yields a line of text for each evaluation of a replay."""
    for link in replayed.links:
        words = [f"step {link.step}: {link.verdict}"]
        if link.verdict != "bit-equal":
            equal = {True: "equal", False: "different"}
            words.append(f"weights {equal[link.weights]}")
            words.append(f"optimizer {equal[link.optimizer]}")
            words.append(f"metrics differ by {link.metrics:.1e} (limit {TOLERANCE:g})")
        if link.elsewhere:
            words.append(f"different environment: {', '.join(link.elsewhere)}")
        yield "; ".join(words)
