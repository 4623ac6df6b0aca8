"""Embeddings of photographs in a file, and nearest neighbors of a query (cosine).

Glossary of shapes: N photographs, D the embedding's width.
"""

import dataclasses
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import keras
import numpy as np

from keras_vit.data import decoding
from keras_vit.files import BROKEN_ZIP, parse_json, read_bytes, replacing
from keras_vit.models.backbone import feature_maps
from keras_vit.models.description import weights_sha256
from keras_vit.models.vision import facts_of, preprocessing_of
from keras_vit.web_page import picture, render

Token = Literal["cls", "mean", "cls+mean"]
_THUMBNAIL = 192  # Length of the longer side in pixels.


def embedder(
    model: keras.Model, token: Token | None = None
) -> tuple[keras.Model, Token]:
    """Returns a model of embeddings: [B, H, W, C] -> [B, D], or [B, 2 D] ("cls+mean").

    Args:
        model: a ViT, a hybrid or a ResNet of this library.
        token: "cls", the class token after the last LayerNorm; "mean", the mean of the
            last map; "cls+mean", both concatenated [default: "cls" if there is a class
            token, else "mean"].

    Returns:
        The model and the token.

    Raises:
        ValueError: if the model has no class token and `token` requires one.
    """
    maps = feature_maps(model).output
    *_, last = (key for key in maps if key.startswith(("block_", "stage_")))
    cls = maps.get(f"class_token_{last.rpartition('_')[2]}")
    if token is None:
        token = "mean" if cls is None else "cls"
    if cls is None and token != "mean":
        raise ValueError(
            "Expected --token mean for a model without a class token. Received: "
            f"--token {token}, model={model.name!r}"
        )
    mean = keras.layers.GlobalAveragePooling2D(
        data_format="channels_last", dtype="float32"
    )(maps[last])
    cast = keras.layers.Activation("linear", dtype="float32")
    outputs = {
        "cls": lambda: cast(cls),
        "mean": lambda: mean,
        "cls+mean": lambda: keras.layers.Concatenate(dtype="float32")([cls, mean]),
    }[token]()
    return keras.Model(model.input, outputs), token


def identity(model: keras.Model, network: keras.Model, token: Token) -> dict[str, Any]:
    """Returns the facts that must agree for embeddings to be comparable.

    These are weights, config, preprocessing, size and token.

    Args:
        model: opened model.
        network: its `embedder`.
        token: token of the embedder.
    """
    facts = {
        "weights": weights_sha256(network),
        "config": str(facts_of(model).config),
        "preprocessing": preprocessing_of(model).identity(),
        "input": model.input_shape[1:],
        "token": token,
    }
    return dict(parse_json(json.dumps(facts)))  # As read from a file: lists, no tuples.


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Embeddings of a folder's photographs, and the model that computed them.

    Attributes:
        vectors: float32 [N, D].
        paths: paths of the photographs, relative to `folder`.
        folder: absolute path.
        model: `identity` of the model.
        opened: command-line options that opened the model.
    """

    vectors: np.ndarray
    paths: tuple[str, ...]
    folder: str
    model: dict[str, Any]
    opened: dict[str, Any]

    def save(self, path: Path) -> None:
        """Writes an .npz atomically."""
        about = {"folder": self.folder, "model": self.model, "opened": self.opened}
        names = [os.fsencode(name) for name in self.paths]
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(
                stream,
                embeddings=self.vectors,
                paths=np.array(names),
                about=np.array(json.dumps(about)),
            )

    @classmethod
    def load(cls, path: Path) -> "Embeddings":
        """Reads a file written by `save`.

        Raises:
            ValueError: if it is a different file, or damaged.
        """
        try:
            with path.open("rb") as stream:
                if not zipfile.is_zipfile(stream):
                    raise ValueError("not an .npz")
                file = np.load(stream, allow_pickle=False)
                vectors, names = file["embeddings"], file["paths"]
                about = parse_json(str(file["about"]))
            paths = tuple(os.fsdecode(name) for name in names.tolist())
            if vectors.ndim != 2 or len(vectors) != len(paths) or not len(paths):
                raise ValueError(f"{vectors.shape} for {len(paths)} photographs")
            if not np.isfinite(vectors).all():
                raise ValueError("NaN or infinity among the embeddings")
            if about["model"]["token"] not in get_args(Token):
                raise ValueError(f"token {about['model']['token']!r}")
            return cls(
                np.asarray(vectors, np.float32),
                paths,
                str(about["folder"]),
                dict(about["model"]),
                dict(about["opened"]),
            )
        except (*BROKEN_ZIP, OSError, KeyError, TypeError, IndexError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                "Expected embeddings written by `keras-vit embed`. Received: "
                f"{str(path)!r} ({reason or error})"
            ) from error

    @property
    def token(self) -> Token:
        """The token of the vectors."""
        return self.model["token"]  # type: ignore[no-any-return]

    def check(self, model: dict[str, Any]) -> None:
        """Raises unless these embeddings are from a model with this `identity`."""
        differ = [key for key in model if model[key] != self.model.get(key)]
        if differ:
            raise ValueError(
                "Expected the model that computed the embeddings. Received: a model "
                f"with different {', '.join(differ)}. Embed the folder again with "
                "`keras-vit embed`, or use the same --model and --weights"
            )

    def nearest(self, query: np.ndarray, top: int) -> list[tuple[str, float]]:
        """Finds the photographs with the highest cosines: [D] -> `top`, best first."""
        lengths = np.linalg.norm(self.vectors, axis=1) * np.linalg.norm(query)
        cosines = self.vectors @ query / np.where(lengths == 0, 1, lengths)
        order = np.argsort(-cosines, kind="stable")[:top]
        return [(self.paths[at], float(cosines[at])) for at in order]

    def file(self, path: str) -> Path:
        """Returns the path at which a photograph was embedded."""
        return Path(self.folder, path)


def page(
    query: Path, found: Sequence[tuple[str, float]], embeddings: Embeddings
) -> str:
    """Renders the nearest photographs as one HTML file that contains thumbnails."""
    results = [
        (f"{cosine:.4f}", _shown(path), _thumbnail(embeddings.file(path)))
        for path, cosine in found
    ]
    count = f"{len(embeddings.paths):,} photographs"
    return render(
        "search.html",
        title=_shown(query.name),
        query=_thumbnail(query),
        line=f"The {len(found)} nearest of {count} in {_shown(embeddings.folder)}",
        results=results,
    )


def _shown(name: str) -> str:
    """Returns a file's name as text; replaces bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _thumbnail(file: Path) -> str | None:
    """Returns a small JPEG as a data URL; None if the file is missing or unreadable."""
    import tensorflow as tf

    try:
        pixels = decoding.decode(tf.constant(read_bytes(file)))
    except (OSError, tf.errors.OpError):
        return None
    shape = pixels.shape
    scale = min(1, _THUMBNAIL / max(shape[:2]))
    size = [max(1, round(scale * side)) for side in shape[:2]]
    small = tf.image.resize(pixels, size, method="area")
    small = tf.cast(tf.round(small), tf.uint8)[..., : 3 if shape[-1] >= 3 else 1]
    return picture(bytes(tf.io.encode_jpeg(small, quality=85).numpy()))
