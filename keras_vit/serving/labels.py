"""What a model's outputs are called."""

from collections.abc import Sequence

import keras

from keras_vit.applications import imagenet2012_labels


def names_of(
    model: keras.Model, labels: Sequence[str] | None = None
) -> tuple[str, ...]:
    """`labels`, else ImageNet's for 1000 classes, else "class 0" and on.

    Raises:
        ValueError: if they are not one text of one line for each output.
    """
    classes = model.output_shape[-1]
    if labels is None:
        if classes == 1000:
            return imagenet2012_labels()
        return tuple(f"class {number}" for number in range(classes))
    names = tuple(labels)
    if isinstance(labels, str) or len(names) != classes:
        raise ValueError(
            f"Expected labels of the model's {classes} outputs. Received: "
            f"{len(names)} ({', '.join(map(repr, names[:3]))}, ...)"
        )
    odd = [name for name in names if not isinstance(name, str) or _is_broken(name)]
    if odd:
        raise ValueError(
            f"Expected labels that are text of one line each. Received: {odd[0]!r}"
        )
    return names


def _is_broken(name: str) -> bool:
    """Whether a text has line ends in it, or no bytes in UTF-8."""
    lone = any("\ud800" <= character <= "\udfff" for character in name)
    return lone or name.splitlines() not in ([], [name])
