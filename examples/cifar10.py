"""Writes a small CIFAR-10 for the other studies, as one .npz.

It has the first 500 training and the first 100 test images of each class, 6,000 in
total. Keras downloads the data set (170 MB) on first use:

    python examples/cifar10.py
"""

import argparse
from pathlib import Path

import keras
import numpy as np

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
OUTPUT = "cifar10-6k.npz"


def main(output: str = OUTPUT, train: int = 500, test: int = 100) -> None:
    """Writes `x_train`, `y_train`, `x_test`, `y_test` and `classes`."""
    arrays = {"classes": np.array(CLASSES)}
    loaded = keras.datasets.cifar10.load_data()
    for split, count, (images, labels) in zip(
        ("train", "test"), (train, test), loaded, strict=True
    ):
        labels = labels.ravel()
        of_class = [np.flatnonzero(labels == k)[:count] for k in range(len(CLASSES))]
        kept = np.sort(np.concatenate(of_class))
        arrays |= {f"x_{split}": images[kept], f"y_{split}": labels[kept]}
    np.savez_compressed(Path(output), **arrays)
    print(f"{output}: {len(arrays['x_train'])} and {len(arrays['x_test'])} images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default=OUTPUT, help="output file: %(default)s")
    main(parser.parse_args().output)
