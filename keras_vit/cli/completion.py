"""What TAB offers for options whose values are known. Imports no TensorFlow.

Where nothing is offered, shells complete files.
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
    """Folders that trainings wrote below ./runs, and the demo's."""
    found = [*Path().glob("runs/*/run.json"), *Path().glob("runs/*/run-*/run.json")]
    return [
        str(file.parent) for file in sorted([*found, *Path().glob("demo/run.json")])
    ]


def begun() -> list[str]:
    """Likewise, those that have not ended too."""
    return [str(file.parent) for file in sorted(Path().glob("runs/*/begun.json"))]


def models() -> list[str]:
    """Folders of trainings, and variants."""
    return [*runs(), *variants()]


def tags(context: typer.Context) -> list[str]:
    """Of the variant that was named, or of any."""
    from keras_vit.weights import registry

    named = context.params.get("model") or context.params.get("variant")
    found = registry.tags(named) if named else ()
    every = dict.fromkeys(row.tag for row in registry.CHECKPOINTS)
    return list(found or every)


def recipes() -> list[str]:
    """All of them."""
    from keras_vit.recipes import FINETUNE, PRETRAIN

    return [*FINETUNE, *PRETRAIN]


def rows() -> list[str]:
    """Table 4's."""
    from keras_vit.recipes import FINETUNE

    return list(FINETUNE)


def tasks() -> list[str]:
    """The tasks of VTAB-1k, as they are typed."""
    from keras_vit.paper import TABLE_9_COLUMNS

    return [name.lower() for name in TABLE_9_COLUMNS]
