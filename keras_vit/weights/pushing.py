"""Upload a model to the Hugging Face Hub in the layout of transformers or timm."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from keras_vit.families import family_of, variant_of
from keras_vit.models.vision import facts_of
from keras_vit.weights import sources
from keras_vit.weights.architecture import config_of
from keras_vit.weights.torch_layouts import LayoutError
from keras_vit.weights.writing import save

_PYTHON = """\
```python
import keras_vit

model = keras_vit.from_checkpoint("hf://{repository}")
```
"""
_THEIRS = {
    "transformers": """\
```python
from transformers import {kind}

model = {kind}.from_pretrained("{repository}")
```
""",
    "timm": """\
```python
import timm

model = timm.create_model("hf-hub:{repository}", pretrained=True)
```
""",
}


def push(
    model: keras.Model,
    repository: str,
    *,
    license: str | None = None,
    private: bool = False,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Uploads a model to a repository of the Hugging Face Hub, in one commit.

    The repository is created if absent. It receives the `model.safetensors`,
    `config.json` and `preprocessor_config.json` of `save(model, path, "hf")`, and a
    model card with preprocessing, provenance and `sections`. If transformers has no
    class for the model (EVA, ROPE-ViT), the files are those of `save(model, path,
    "timm")`. Existing files with these names are replaced. A token with write access
    is read from HF_TOKEN or from `hf auth login`.

    Args:
        model: a model of this library for which transformers or timm has a layout.
        repository: "hf://USER/NAME".
        license: license in the model card; default: the license of the weights that
            the model was loaded from, if they state one.
        private: whether a newly created repository is visible to you only.
        sections: additional tables in the model card, such as the training and its
            results: a dict of values by name for each title.

    Returns:
        The URL of the commit.

    Raises:
        ValueError: if `repository` has a different form, or neither transformers nor
            timm has a layout for the model.
        DownloadError: if the Hub cannot be reached or rejects the upload.
    """
    name, revision = sources.repository_of(repository)
    if revision is not None or not repository.startswith("hf:"):
        raise ValueError(
            "Expected the name of a repository, hf://USER/NAME (its main branch is "
            f"written). Received: {repository!r}"
        )
    with tempfile.TemporaryDirectory() as folder:
        _save(model, folder)
        written = json.loads(Path(folder, "config.json").read_text("utf-8"))
        card = model_card(model, name, written, license=license, sections=sections)
        Path(folder, sources.MODEL_CARD).write_text(card, encoding="utf-8")
        with sources.explain_hub_error(name, None, writing=True):
            from huggingface_hub import HfApi

            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message="Upload a model with keras-vit",
            )
    return str(commit.commit_url)


def _save(model: keras.Model, folder: str) -> None:
    """Writes transformers' layout, or timm's if transformers has no class for it."""
    try:
        save(model, folder, "hf")
    except LayoutError as error:
        try:
            save(model, folder, "timm")
        except LayoutError as other:
            raise ValueError(f"{error}\n{other}") from other


def model_card(
    model: keras.Model,
    repository: str,
    written: Mapping[str, Any],
    *,
    license: str | None = None,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Returns the text of README.md: metadata, use, and tables.

    Args:
        model: a model of this library.
        repository: USER/NAME.
        written: contents of the config.json, transformers' or timm's.
        license: see `push`.
        sections: see `push`.
    """
    facts, config = facts_of(model), config_of(model)
    provenance = facts.provenance
    base = sources.hub_name(provenance.source or "")
    has_head = any(layer.name == "head" for layer in model.layers)
    kind = "classification" if has_head else "feature-extraction"
    library = "timm" if "architecture" in written else "transformers"
    classes = written.get("architectures", [""])
    _, height, width, _ = model.input_shape
    metadata = {
        "library_name": library,
        "pipeline_tag": f"image-{kind}",
        "license": license or provenance.license,
        "base_model": base,
        "tags": ["vision", "vit", "keras-vit", "arxiv:2010.11929"],
    }
    lines = ["---"]
    lines += [f"{at}: {json.dumps(to)}" for at, to in metadata.items() if to]
    title = variant_of(config) or family_of(config).title
    outputs = f"{model.output_shape[-1]} {'classes' if has_head else 'features'}"
    lines += ["---", "", f"# {repository.partition('/')[2]}", ""]
    lines += [
        f"{title}, {height} x {width} px, {outputs}, {model.count_params():,} "
        "parameters.",
        "",
        _PYTHON.format(repository=repository),
        _THEIRS[library].format(repository=repository, kind=classes[0]),
    ]
    tables: dict[str, Mapping[str, Any]] = {
        **(sections or {}),
        "Preprocessing": vars(facts.preprocessing),
        "Provenance": vars(provenance),
    }
    for name, values in tables.items():
        lines += _table(name, values)
    return "\n".join(lines)


def _table(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    """A section of a model card; unknown values are omitted."""
    rows = {name: at for name, at in values.items() if at not in (None, (), [])}
    if not rows:
        return
    yield from (f"## {title}", "", "| | |", "|---|---|")
    for name, value in rows.items():
        shown = value
        if isinstance(value, tuple | list):
            shown = ", ".join(map(str, value))
        text = str(shown).replace("|", r"\|").replace("\n", " ")
        yield f"| {name.replace('_', ' ')} | {text} |"
    yield ""
