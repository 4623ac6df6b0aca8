"""Downloads, prepares and opens data sets of tensorflow_datasets by name."""

from typing import Any

from keras_vit._version import pip_install
from keras_vit.data.source import Source
from keras_vit.data.splits import TFDS


def prepared(dataset: str, name: str) -> Any:
    """Returns the TFDS builder of a data set; downloads and prepares it if necessary.

    Args:
        dataset: argument of `tfds.builder`: a name, optionally with config and version.
        name: name given by the user.

    Raises:
        ImportError: if a package is missing, with its name.
        ValueError: if TFDS has no such data set.
        OSError: if TFDS cannot download or prepare it.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"Expected a folder, an .npz, 'digits' or a TFDS name. Received: {name!r}, "
            f"neither a file nor a folder. For TFDS names, run {pip_install('tfds')}"
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
    except ImportError as error:  # Of a package that TFDS does not install itself.
        package = {"cv2": "opencv-python-headless"}.get(error.name or "", error.name)
        raise ImportError(
            f"Expected the packages that TFDS requires for {dataset!r}. Received: "
            f"{error}. Install it: pip install {package}"
        ) from error
    except Exception as error:  # TFDS and requests have no common class of errors.
        folder = builder.data_dir
        raise OSError(
            f"Expected TFDS to download and prepare {dataset!r} in {folder}. Received: "
            f"{type(error).__name__}: {error}. Some data sets must be downloaded by "
            "hand. On a machine without a network, copy a prepared folder there"
        ) from error
    return builder


def tfds_source(
    builder: Any, name: str, train: str, test: str, any_test: bool = False
) -> Source:
    """Returns a prepared TFDS builder as a source.

    Args:
        builder: result of `tfds.builder`, with its files prepared.
        name: name of the source.
        train: TFDS's name of the training split, or a split expression.
        test: name of the test split; "" for none.
        any_test: whether to use a validation split, or none, if `test` is missing.
    """
    features = builder.info.features
    names = getattr(features["label"], "names", ()) if "label" in features else ()
    if "image" not in features or not names:
        raise ValueError(
            "Expected a TFDS data set with features image and label, a ClassLabel. "
            f"Received: {builder.name!r} with {', '.join(features)}. Convert it to an "
            ".npz or a folder"
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
                f"{split!r}; {builder.name!r} has {', '.join(splits)}. Name two, as in "
                f"{builder.name}:{'/'.join(list(splits)[:2])}"
            ) from error
    return Source(
        name,
        tuple(names),
        TFDS(builder, train),
        TFDS(builder, test) if test else None,
    )
