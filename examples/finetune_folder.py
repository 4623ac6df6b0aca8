"""Table 4's protocol on a folder of images, from Python.

The folder has `train/CLASS/*.jpg` and `test/CLASS/*.jpg` (or only `CLASS/*.jpg`). The
learning rate is swept on a tenth of the training images, as for Flowers and Pets.

    python examples/finetune_folder.py FOLDER WEIGHTS.npz
"""

import dataclasses
import sys

import keras_vit
from keras_vit import data, recipes, training


def main(folder: str, weights: str, smoke: bool = False) -> float:
    """Fine-tunes the model in a weights file; returns the test accuracy."""
    source = data.open_source(folder)
    model = keras_vit.from_checkpoint(weights)
    model = keras_vit.for_task(model, len(source.classes))
    recipe = recipes.FINETUNE["oxford_flowers102"]
    recipe = dataclasses.replace(recipe, batch_size=32, freeze=True, augment="none")
    if smoke:
        recipe = dataclasses.replace(
            recipe, batch_size=4, total_steps=4, warmup_steps=1, base_lr=(0.01,)
        )
    result = training.fit(model, recipe, source, output="runs/folder")
    print(f"test accuracy {result.test_accuracy:.2%} at base_lr={result.learning_rate}")
    return result.test_accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
