"""The certificate of a run: a hash chain over its evaluations.

    RUN/certificate.jsonl   a link for the start and for each evaluation

A link contains the hash of the previous link, the step, digests of the weights and of
the optimizer, the metrics, the data and the position in it, the seed and the
environment. `replaying.replay` computes links again.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.files import json_sha256, parse_json

__all__ = ["read"]

FILE = "certificate.jsonl"
START = "0" * 64  # Before the first link.


def digest(variables: Mapping[str, np.ndarray], kind: str) -> str:
    """Returns the SHA-256 of names, shapes and bits of the variables in `kind`/."""
    result = hashlib.sha256()
    for name in sorted(name for name in variables if name.startswith(f"{kind}/")):
        value = variables[name]
        result.update(f"{name} {value.dtype.str} {list(value.shape)}\n".encode())
        result.update(value.tobytes())
    return result.hexdigest()


def link_hash(link: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a link without its hash."""
    return json_sha256({name: at for name, at in link.items() if name != "hash"})


class Certificate:
    """The links of a training run.

    Args:
        facts: facts in every link: the data, the seed, the period and the environment.
        batch_size: number of images in an update.
    """

    def __init__(self, facts: Mapping[str, Any], batch_size: int) -> None:
        self.facts = facts
        self.batch_size = batch_size
        self.links: list[dict[str, Any]] = []

    def add(
        self,
        step: int,
        variables: Mapping[str, np.ndarray],
        metrics: Mapping[str, float],
    ) -> None:
        """Adds a link for variables from `resume.capture`."""
        link = {
            "previous": self.links[-1]["hash"] if self.links else START,
            "step": step,
            "images": step * self.batch_size,
            "weights": digest(variables, "model"),
            "optimizer": digest(variables, "optimizer"),
            "metrics": dict(metrics),
            **self.facts,
        }
        self.links.append({**link, "hash": link_hash(link)})


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the certificate of a run, after checking every hash.

    Args:
        folder: the `output` of `fit`.

    Returns:
        The links, in the order of their steps.

    Raises:
        ValueError: if the run has no certificate, or the hash of a link differs.
    """
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        links = [dict(parse_json(line)) for line in lines]
        before, step = START, -1
        for place, link in enumerate(links):
            whole = link["hash"] == link_hash(link) and link["previous"] == before
            if not whole or link["step"] <= step:
                raise ValueError(f"link {place}, of step {link['step']}")
            before, step = link["hash"], link["step"]
        if not links:
            raise ValueError("no links")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "Expected a run with a valid certificate. Received: "
            f"{str(path)!r} ({error}). Restore the file from a copy"
        ) from error
    return links
