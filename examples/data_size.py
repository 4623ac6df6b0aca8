"""Figures 3 and 4, small: accuracy against the number of training images.

A ViT and a ResNet are trained from random weights on random, nested subsets of
CIFAR-10, each for the same number of steps: every subset costs the same compute. As in
Figure 4, nothing is tuned to a subset (4.3: "the same hyper-parameters for all
settings"), and training is stopped early: the best of ten evaluations counts.

What differs: CIFAR-10 at 32 px, not JFT-300M at 224. Table 3's Adam, linear decay and
weight decay for JFT, but higher rates, as small models want them, for 300 steps of 64
images; the softmax for the sigmoid; flips alone. Figure 4 has 5-shot accuracy on
ImageNet, Figure 3 that of fine-tuning, with regularization tuned to each data set; here
it is that of the test images, by which the best evaluation is chosen as well: look at
the lines, not the digits.

    python examples/data_size.py --data ../shared/real/cifar10_subset_6k.npz

A killed study goes on: the same command finds every training in its folder. A TFDS name
has to be packed first: keras-vit data pack cifar10 cifar10-packed.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import keras

import keras_vit
from keras_vit import ResNetConfig, ViTConfig, data, recipes, training
from keras_vit.inspection import plots

CIFAR10 = "../shared/real/cifar10_subset_6k.npz"
IMAGES = (500, 1000, 2000, 5000)
MODELS = {  # Name: (config, base learning rate, the best of three on 5,000 images).
    "ViT": (
        ViTConfig(patch_size=8, num_layers=4, hidden_size=96, mlp_dim=384, num_heads=3),
        1e-3,
    ),
    "ResNet": (ResNetConfig(num_layers=(1, 1), width=32), 1e-2),
}
RECIPE = dataclasses.replace(
    recipes.PRETRAIN["ViT-B/32-jft300m"],
    epochs=None,
    total_steps=300,
    warmup_steps=30,
    batch_size=64,
    image_size=(32, 32),
    augment="flip",
    loss="softmax",
    head_bias_init=None,
)


def main(
    path: str = CIFAR10,
    images: Sequence[int] = IMAGES,
    output: str = "runs/data_size",
    smoke: bool = False,
) -> dict[str, dict[int, float]]:
    """Returns every model's best accuracy, in [0, 1], by the number of images."""
    source, folder = data.open_source(path), Path(output)
    best: dict[str, dict[int, float]] = {name: {} for name in MODELS}
    last: dict[str, dict[int, float]] = {name: {} for name in MODELS}
    for name, (config, base_lr) in MODELS.items():
        recipe = dataclasses.replace(RECIPE, base_lr=(base_lr,))
        if smoke:
            recipe = dataclasses.replace(
                recipe, total_steps=2, warmup_steps=1, batch_size=8
            )
        build = keras_vit.vit if isinstance(config, ViTConfig) else keras_vit.resnet
        for count in images:
            keras.utils.set_random_seed(0)  # The same start for every subset.
            model = build(
                config, image_size=recipe.image_size, num_classes=len(source.classes)
            )
            result = training.fit(
                model,
                recipe,
                source.subset(count),
                output=folder / f"{name}-{count}",
                verbose=0,
            )
            accuracies = [row["val_accuracy"] for row in result.history]
            best[name][count], last[name][count] = max(accuracies), accuracies[-1]
            print(f"{name} on {count:,} images: {best[name][count]:.1%}", flush=True)
    print(table(best))
    plots.data_size(best, folder / "data_size.png")
    numbers = {"steps": recipe.steps, "best": best, "last": last}
    (folder / "data_size.json").write_text(json.dumps(numbers, indent=2))
    return best


def table(accuracy: dict[str, dict[int, float]]) -> str:
    """A line for each number of images, a column for each model."""
    lines = ["images" + "".join(f"{name:>10}" for name in accuracy)]
    for count in next(iter(accuracy.values())):
        cells = "".join(f"{points[count]:>10.1%}" for points in accuracy.values())
        lines.append(f"{count:>6,}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default=CIFAR10,
        help="an .npz or a folder, packed or not: %(default)s",
    )
    parser.add_argument(
        "--images",
        type=int,
        nargs="+",
        metavar="N",
        default=IMAGES,
        help="training images of each subset: %(default)s",
    )
    parser.add_argument(
        "--output", default="runs/data_size", help="a folder for it all: %(default)s"
    )
    given = parser.parse_args()
    main(given.data, given.images, given.output)
