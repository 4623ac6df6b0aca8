"""Data sets of tensorflow_datasets: downloaded, prepared and opened by name."""

from typing import Any

from keras_vit.data.source import Source
from keras_vit.data.splits import TFDS


def prepared(dataset: str, name: str) -> Any:
    """The TFDS builder of a data set, downloaded and prepared where it was not.

    Args:
        dataset: as `tfds.builder` takes it: with config and version, if any.
        name: what the user asked for.

    Raises:
        ImportError: naming the package that is missing.
        ValueError: if TFDS has no such data set.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"Expected a folder, an .npz, 'digits' or a TFDS name. Received: {name!r}, "
            "neither file nor folder; TFDS names need pip install "
            "'keras-vit-paper[tfds]'"
        ) from error
    try:
        builder = tfds.builder(dataset)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(
            "Expected a folder or .npz that exists, 'digits', or a TFDS name. "
            f"Received: {name!r}. Check the spelling"
        ) from error
    try:
        builder.download_and_prepare()
    except ImportError as error:  # Of what TFDS does not bring along itself.
        package = {"cv2": "opencv-python-headless"}.get(error.name or "", error.name)
        raise ImportError(
            f"Expected the packages that TFDS prepares {dataset!r} with. Received: "
            f"{error}. Install it: pip install {package}"
        ) from error
    return builder


def tfds_source(
    builder: Any, name: str, train: str, test: str, any_test: bool = False
) -> Source:
    """A prepared TFDS builder as a source.

    Args:
        builder: the result of `tfds.builder`, with its files in place.
        name: the source's.
        train: TFDS's name or arithmetic of the training split.
        test: name of the test split; "" for none.
        any_test: where there is no split `test`, take a validation split, or none.
    """
    features = builder.info.features
    names = getattr(features["label"], "names", ()) if "label" in features else ()
    if "image" not in features or not names:
        raise ValueError(
            "Expected a TFDS data set with features image and label, a ClassLabel. "
            f"Received: {builder.name!r} with {', '.join(features)}. Write an .npz of "
            "it, or a folder"
        )
    splits = builder.info.splits
    if any_test and test not in splits:
        test = next((n for n in ("validation", "val") if n in splits), "")
    for split in filter(None, (train, test)):
        try:
            splits[split]
        except (KeyError, ValueError) as error:
            raise ValueError(
                "Expected a split of the data set. Received: "
                f"{split!r}, {builder.name!r} has {', '.join(splits)}. Name two, as in "
                f"{builder.name}:{'/'.join(list(splits)[:2])}"
            ) from error
    return Source(
        name,
        tuple(names),
        TFDS(builder, train),
        TFDS(builder, test) if test else None,
    )
