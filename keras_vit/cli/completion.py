"""Completions of option values, without importing TensorFlow.

Shells complete file names if there are no other completions.
"""

from pathlib import Path

import typer


def variants() -> list[str]:
    """Every variant that has a builder, in the paper's spelling."""
    from keras_vit.configs import EFFICIENTNET_VARIANTS, VARIANTS, builder_name

    return [
        name
        for name in VARIANTS
        if name not in EFFICIENTNET_VARIANTS and name != builder_name(name)
    ]


def runs() -> list[str]:
    """Folders of finished runs below ./runs, and of the demo."""
    patterns = ("runs/*/run.json", "runs/*/run-*/run.json", "demo/run.json")
    files = [file for pattern in patterns for file in Path().glob(pattern)]
    return [str(file.parent) for file in sorted(files)]


def begun() -> list[str]:
    """Folders of runs below ./runs, finished or not."""
    return [str(file.parent) for file in sorted(Path().glob("runs/*/begun.json"))]


def models() -> list[str]:
    """Folders of finished runs, and variants."""
    return [*runs(), *variants()]


def tags(context: typer.Context) -> list[str]:
    """Tags of the given variant, or of all variants."""
    from keras_vit.weights import registry

    named = context.params.get("model") or context.params.get("variant")
    tags_of_variant = registry.tags(named) if named else ()
    every = dict.fromkeys(row.tag for row in registry.CHECKPOINTS)
    return list(tags_of_variant or every)


def recipes() -> list[str]:
    """All recipes."""
    from keras_vit.recipes import FINETUNE, PRETRAIN

    return [*FINETUNE, *PRETRAIN]


def rows() -> list[str]:
    """Rows of Table 4."""
    from keras_vit.recipes import FINETUNE

    return list(FINETUNE)


def tasks() -> list[str]:
    """The tasks of VTAB-1k in lower case."""
    from keras_vit.paper import TABLE_9_COLUMNS

    return [name.lower() for name in TABLE_9_COLUMNS]
