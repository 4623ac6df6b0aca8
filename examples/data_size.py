"""Figure 4, small: few-shot accuracy against the number of pre-training images.

A ViT and a ResNet are pre-trained from random weights on random, nested subsets of
CIFAR-10's training images. Each uses the same number of updates, so every subset costs
the same compute. As in Figure 4, nothing is tuned to a subset (4.3: "the same
hyper-parameters for all settings"), and training is stopped early: of ten evaluations
the best one on a held-out tenth of the training images is kept. Its frozen features
are measured once, by 5-shot linear accuracy on the test images.

Differences from the paper: CIFAR-10 at 32 px, for the pre-training and for the shots,
instead of JFT-300M at 224 px and ImageNet. Table 3's Adam, linear decay and weight
decay for JFT are used, but with higher rates, which small models need, for 300 updates
of 64 images; softmax instead of sigmoid; flips only. Compare the lines, not the values.

    python examples/cifar10.py
    python examples/data_size.py

To resume an interrupted run, run the same command again. A TFDS data set has to be
packed first: keras-vit data pack cifar10 cifar10-packed.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from keras_vit import ResNetConfig, ViTConfig, data, evaluation, recipes
from keras_vit.inspection import plots

CIFAR10 = "cifar10-6k.npz"  # Written by examples/cifar10.py.
IMAGES = (500, 1000, 2000, 4500)
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
    """Returns every model's 5-shot accuracy, in [0, 1], by the number of images."""
    source, folder = data.open_source(path), Path(output)
    recipe, draws = RECIPE, range(10)
    if smoke:
        recipe = dataclasses.replace(
            recipe, total_steps=2, warmup_steps=1, batch_size=8
        )
        draws = range(1)
    accuracy: dict[str, dict[int, float]] = {}
    for name, (config, base_lr) in MODELS.items():
        result = evaluation.data_size(
            config,
            source,
            recipe=dataclasses.replace(recipe, base_lr=(base_lr,)),
            output=folder / name,
            subsets=images,
            draws=draws,
            verbose=0,
        )
        accuracy[name] = result.points
        print(f"{name}: {result}", flush=True)
    print(table(accuracy))
    plots.data_size(accuracy, folder / "data_size.png")
    (folder / "data_size.json").write_text(json.dumps(accuracy, indent=2))
    return accuracy


def table(accuracy: dict[str, dict[int, float]]) -> str:
    """Formats a line for each number of images, with a column for each model."""
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
        "--output", default="runs/data_size", help="output folder: %(default)s"
    )
    given = parser.parse_args()
    main(given.data, given.images, given.output)
