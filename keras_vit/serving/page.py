"""The page at the root of a server: status, signatures, and a form for one image."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import tensorflow as tf

from keras_vit.facts import OFFICIAL
from keras_vit.serving.savedmodel import read_facts
from keras_vit.serving.servable import Servable
from keras_vit.web_page import render

CLASSIFIES = "image_bytes"


def html(name: str, servable: Servable) -> str:
    """Renders the page of the version that is served.

    The page has the form if the export has the signature "image_bytes". With
    "attention", it also shows the attention rollout (D.8).

    Args:
        name: name of the model in URLs.
        servable: version that is served.
    """
    signatures = servable.signatures
    return render(
        "serve.html",
        title=name,
        style=_asset("page.css"),
        script=_asset("page.js"),
        connects=True,
        version=servable.version,
        state="AVAILABLE",
        classifies=CLASSIFIES in signatures,
        signatures=[
            (key, _listed(signature.inputs), _listed(signature.outputs))
            for key, signature in sorted(signatures.items())
            if not key.startswith("__")  # TensorFlow's internal signatures.
        ],
        data={
            "name": name,
            "classifies": CLASSIFIES,
            "attention": "attention" in signatures,
            **_resized(servable),
        },
    )


def _resized(servable: Servable) -> dict[str, Any]:
    """Returns the crop of the model's preprocessing: the page darkens the rest."""
    try:
        stated = read_facts(servable.folder).preprocessing
    except ValueError:  # A different library exported it.
        stated = OFFICIAL
    return {"crop": stated.crop, "squash": stated.squash}


def _listed(infos: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {tf.as_dtype(info.dtype).name} {_sides(info.tensor_shape)}"
        for name, info in sorted(infos.items())
    )


def _sides(shape: Any) -> str:
    if shape.unknown_rank:
        return "of any shape"
    sides = ["?" if side.size < 0 else str(side.size) for side in shape.dim]
    return f"[{', '.join(sides)}]"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
