"""Folders of trained models, as `keras-vit finetune` leaves them."""

import dataclasses
import json

import keras

from keras_vit.cli.loaders import save_details
from keras_vit.facts import OFFICIAL
from keras_vit.models import VisionModel
from keras_vit.models.vision import facts_of


def save_run(folder, model, labels, preprocessing=OFFICIAL, **details):
    """A run of a model with these facts."""
    facts = dataclasses.replace(
        facts_of(model), labels=tuple(labels), preprocessing=preprocessing
    )
    folder.mkdir(parents=True, exist_ok=True)
    known = VisionModel(model.input, model.output, model.name, facts=facts)
    known.save(folder / "model.keras")
    save_details(folder, details)
    return folder


def save_run_of_0_1(folder, model, **changes):
    """A run of keras_vit 0.1: its model knew nothing, run.json had the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = keras.Model(model.input, model.output, name=model.name)
    plain.save(folder / "model.keras")
    half = [0.5, 0.5, 0.5]
    run = {"classes": ["a", "b", "c"], "mean": half, "std": half, "details": {}}
    (folder / "run.json").write_text(json.dumps(run | changes))
    return folder
