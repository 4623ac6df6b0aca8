"""Table 7 (D.1), small: a ResNet pre-trained with Adam or with SGD, then fine-tuned.

The paper pre-trains ResNets on JFT-300M with Table 3's Adam and with the SGD that BiT
recommends (arXiv:1912.11370), and fine-tunes both as in Table 4. Adam's are better on
average, which is why section 4.1 trains ResNets with Adam.

Here a ResNet with 120,000 parameters is pre-trained on CIFAR-10's airplanes, birds,
deer, frogs and ships for 400 steps of 64 images, by Adam with Table 3's linear decay,
and by SGD with momentum 0.9 and BiT's staircase for ImageNet (a tenth of the rate after
epochs 30, 60 and 80 of 90). Each is fine-tuned on other classes for 100 steps of SGD
with cosine decay, clipping at 1, and a rate chosen on a held-out tenth. A small model
needs higher rates than the paper's: those here are the best of 3e-3, 1e-2, 3e-2 (Adam)
and 0.03, 0.1, 0.3 (SGD) in pre-training. Weight decay is decoupled from the gradient;
in BiT it is a part of the loss.

    python examples/cifar10.py
    python examples/adam_vs_sgd.py

To resume an interrupted run, run the same command again.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import ResNetConfig, data, recipes, training

CIFAR10 = "cifar10-6k.npz"  # Written by examples/cifar10.py.
UPSTREAM = ("airplane", "bird", "deer", "frog", "ship")
TASKS = (
    ("automobile", "truck"),
    ("cat", "dog", "horse"),
    ("automobile", "cat", "dog", "horse", "truck"),
)
RESNET = ResNetConfig(num_layers=(1, 1), width=32)
ADAM = dataclasses.replace(
    recipes.PRETRAIN["R50x1-jft300m"],
    epochs=None,
    total_steps=400,
    warmup_steps=40,
    base_lr=(1e-2,),
    batch_size=64,
    image_size=(32, 32),
    augment="flip",
    loss="softmax",
    head_bias_init=None,
)
SGD = dataclasses.replace(
    ADAM,
    optimizer="sgd",
    base_lr=(0.1,),
    decay="staircase",
    warmup_steps=0,
    boundaries=(40, 133, 267, 356),  # The warm-up, then epochs 30, 60, 80 of 90.
    weight_decay=1e-4,
)
FINETUNE = dataclasses.replace(
    recipes.FINETUNE["cifar10"],
    total_steps=100,
    warmup_steps=10,
    base_lr=(0.03, 0.1),
    held_out=0.1,
    batch_size=64,
    image_size=(32, 32),
    augment="flip",
)


def main(
    path: str = CIFAR10, output: str = "runs/adam_vs_sgd", smoke: bool = False
) -> dict[str, dict[str, float]]:
    """Returns the test accuracy, in [0, 1], by optimizer and task."""
    source, folder = data.open_source(path), Path(output)
    accuracy: dict[str, dict[str, float]] = {}
    for optimizer, recipe in (("Adam", ADAM), ("SGD", SGD)):
        kept = folder / optimizer
        keras.utils.set_random_seed(0)
        model = keras_vit.resnet(
            RESNET, image_size=recipe.image_size, num_classes=len(UPSTREAM)
        )
        upstream = of_classes(source, UPSTREAM)
        pretrained = fit(model, recipe, upstream, kept / "pretrained", smoke)
        print(
            f"{optimizer}: {pretrained:.1%} of the classes pre-trained on", flush=True
        )
        accuracy[optimizer] = {}
        for number, names in enumerate(TASKS[:1] if smoke else TASKS):
            model = keras.models.load_model(kept / "pretrained" / "model.keras")
            model = keras_vit.for_task(model, len(names))
            accuracy[optimizer][", ".join(names)] = fit(
                model, FINETUNE, of_classes(source, names), kept / str(number), smoke
            )
    print(table(accuracy))
    (folder / "adam_vs_sgd.json").write_text(json.dumps(accuracy, indent=2))
    return accuracy


def of_classes(source: data.Source, names: Sequence[str]) -> data.Source:
    """Returns the images of some classes, renumbered from 0."""
    numbers = [source.classes.index(name) for name in names]

    def only(split):
        part = split.take(np.flatnonzero(np.isin(split.labels, numbers)))
        part.labels = np.array([numbers.index(label) for label in part.labels])
        return part

    return dataclasses.replace(
        source, classes=tuple(names), train=only(source.train), test=only(source.test)
    )


def fit(
    model: keras.Model,
    recipe: recipes.Recipe,
    source: data.Source,
    output: Path,
    smoke: bool,
) -> float:
    """Trains; returns the test accuracy."""
    if smoke:
        recipe = dataclasses.replace(
            recipe,
            total_steps=2,
            warmup_steps=0,
            boundaries=(1,) if recipe.boundaries else (),
            base_lr=recipe.base_lr[:1],
            batch_size=4,
        )
    result = training.fit(model, recipe, source, output=output, verbose=0)
    return result.test_accuracy


def table(accuracy: dict[str, dict[str, float]]) -> str:
    """Formats Table 7: a line per task and for the average, a column per optimizer."""
    lines = [f"{'ResNet':<36}" + "".join(f"{name:>8}" for name in accuracy)]
    rows = [
        (task, [of_tasks[task] for of_tasks in accuracy.values()])
        for task in next(iter(accuracy.values()))
    ]
    rows.append(("average", np.mean([row for _, row in rows], axis=0)))
    for task, row in rows:
        lines.append(f"{task:<36}" + "".join(f"{value:>8.1%}" for value in row))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=CIFAR10, help="CIFAR-10's .npz: %(default)s")
    parser.add_argument(
        "--output", default="runs/adam_vs_sgd", help="output folder: %(default)s"
    )
    given = parser.parse_args()
    main(given.data, given.output)
