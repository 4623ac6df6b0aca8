"""Completions of option values. Imports no TensorFlow.

Without completions, shells complete files.
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
    """Folders of finished runs below ./runs, and that of the demo."""
    found = [*Path().glob("runs/*/run.json"), *Path().glob("runs/*/run-*/run.json")]
    return [
        str(file.parent) for file in sorted([*found, *Path().glob("demo/run.json")])
    ]


def begun() -> list[str]:
    """Folders of runs below ./runs, finished or not."""
    return [str(file.parent) for file in sorted(Path().glob("runs/*/begun.json"))]


def models() -> list[str]:
    """Folders of finished runs, and variants."""
    return [*runs(), *variants()]


def tags(context: typer.Context) -> list[str]:
    """Tags of the named variant, or of all."""
    from keras_vit.weights import registry

    named = context.params.get("model") or context.params.get("variant")
    found = registry.tags(named) if named else ()
    every = dict.fromkeys(row.tag for row in registry.CHECKPOINTS)
    return list(found or every)


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
