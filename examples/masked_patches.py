"""Section 4.6, small: the benefit of masked patch prediction if there are few labels.

A ViT learns to predict the mean colors of masked patches, on CIFAR-10's training images
without their labels (B.1.2). Then it is fine-tuned on 500 labels and compared with the
same ViT from random weights, with the same images, order, steps and head. A seed
determines the labeled images, the random weights and the order.

Differences from the paper: 5,000 images of 32 px in patches of 4, instead of JFT-300M's
at 224 in patches of 16; a higher rate, weight decay and clipping for so few updates.
The head reads the mean of the patches, which are the trained outputs, instead of the
class token. Each model is fine-tuned with Adam at the best of five rates, which were
tried once, on the labels of another seed, and evaluated on 2,000 other training images.

    python examples/cifar10.py
    python examples/masked_patches.py

To resume an interrupted study, run the same command again. A TFDS data set for --data
has to be packed first: keras-vit data pack cifar10 cifar10-packed.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import ViTConfig, data, recipes, training
from keras_vit.data import pipelines
from keras_vit.data.sources import Source
from keras_vit.inspection import plots
from keras_vit.self_supervision import MaskedPatchPredictor
from keras_vit.training import callbacks

CIFAR10 = "cifar10-6k.npz"  # Written by examples/cifar10.py.
CONFIG = ViTConfig(
    patch_size=4,
    num_layers=4,
    hidden_size=96,
    mlp_dim=384,
    num_heads=3,
    classifier="gap",
)
PRETRAINING = dataclasses.replace(
    recipes.PRETRAIN["masked-patches"],
    total_steps=3000,
    base_lr=(1e-3,),
    beta2=0.95,
    batch_size=64,
    warmup_steps=300,
    image_size=(32, 32),
    weight_decay=0.1,
    clip_norm=1.0,
    augment="flip",
)
FINETUNING = dataclasses.replace(
    recipes.PRETRAIN["cifar10-scratch"],
    epochs=None,
    total_steps=300,
    warmup_steps=30,
)
RATES = {"from scratch": 2e-3, "pre-trained": 5e-4}  # From 2.5e-4, 5e-4, ..., 4e-3.


def main(
    path: str = CIFAR10,
    labels: int = 500,
    seeds: Sequence[int] = (0, 1, 2),
    output: str = "runs/masked_patches",
    smoke: bool = False,
) -> dict[str, list[float]]:
    """Returns each seed's test accuracy, in [0, 1], from scratch and pre-trained."""
    source, folder = data.open_source(path), Path(output)
    few = {"total_steps": 2, "warmup_steps": 1, "batch_size": 8} if smoke else {}
    predictor = pretrain(source, folder / "pretraining", few)
    accuracy: dict[str, list[float]] = {name: [] for name in RATES}
    for seed in seeds:
        for name, base_lr in RATES.items():
            keras.utils.set_random_seed(seed)
            backbone = build()
            if name == "pre-trained":
                backbone.set_weights(predictor.backbone.get_weights())
            model = keras_vit.for_task(backbone, len(source.classes))
            result = training.fit(
                model,
                dataclasses.replace(FINETUNING, base_lr=(base_lr,), **few),
                source.subset(labels, seed),
                seed=seed,
                output=folder / f"{name.replace(' ', '-')}-{seed}",
                verbose=0,
            )
            accuracy[name].append(result.test_accuracy or 0.0)
            print(f"{name}, seed {seed}: {accuracy[name][-1]:.1%}", flush=True)
    print(table(seeds, accuracy))
    (folder / "accuracy.json").write_text(json.dumps(accuracy, indent=2))
    draw(folder, predictor, source)
    return accuracy


def build() -> keras.Model:
    """Builds the ViT without a head."""
    return keras_vit.vit(CONFIG, image_size=(32, 32), num_classes=None)


def pretrain(source: Source, folder: Path, few: dict[str, int]) -> MaskedPatchPredictor:
    """Trains without labels; prints the loss and the entropy of the frequencies."""
    keras.utils.set_random_seed(0)
    predictor = MaskedPatchPredictor(build())
    recipe = dataclasses.replace(PRETRAINING, **few)
    result = training.fit(predictor, recipe, source, output=folder, verbose=0)
    last = result.history[-1]
    print(
        f"masked patches of test images: loss {last['val_loss']:.2f}, "
        f"{last['val_accuracy']:.1%} right; their colors' entropy "
        f"{entropy(predictor, source):.2f}",
        flush=True,
    )
    return predictor


def entropy(predictor: MaskedPatchPredictor, source: Source) -> float:
    """Returns the entropy of the test images' colors, in nats: the loss of guessing."""
    colors = keras.ops.convert_to_numpy(predictor.targets(test_images(source)))
    counts = np.bincount(colors.ravel())
    shares = counts[counts > 0] / colors.size
    return float(-np.sum(shares * np.log(shares)))


def test_images(source: Source) -> np.ndarray:
    """Returns test images, [N, 32, 32, 3] in [-1, 1]."""
    batches = pipelines.eval_pipeline(source.test, image_size=(32, 32), batch_size=256)
    return np.concatenate([images for images, _ in batches.as_numpy_iterator()])


def table(seeds: Sequence[int], accuracy: dict[str, list[float]]) -> str:
    """Formats a line for each seed and their mean, with a column for each start."""
    rows = {
        str(seed): [a[i] for a in accuracy.values()] for i, seed in enumerate(seeds)
    }
    rows["mean"] = [float(np.mean(values)) for values in accuracy.values()]
    lines = ["seed  " + "".join(f"{name:>14}" for name in accuracy) + "    gain"]
    for name, (scratch, pretrained) in rows.items():
        gain = 100 * (pretrained - scratch)
        lines.append(f"{name:<6}{scratch:>14.1%}{pretrained:>14.1%}{gain:>+8.1f}")
    return "\n".join(lines)


def draw(folder: Path, predictor: MaskedPatchPredictor, source: Source) -> None:
    """Draws reconstructions of eight test images, and the curves of all runs."""
    images = test_images(source)
    chosen = np.linspace(0, len(images) - 1, 8).astype(int)
    pictures = predictor.reconstruct(images[chosen])
    plots.reconstructions(pictures, folder / "reconstructions.png")
    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    curves = {run.name: callbacks.read(run / callbacks.FOLDER) for run in runs}
    plots.curves({"pretraining": curves.pop("pretraining")}, folder / "pretraining.png")
    plots.curves(curves, folder / "finetuning.png")


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
        "--labels", type=int, default=500, help="labels for fine-tuning: %(default)s"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        default=(0, 1, 2),
        help="seeds of the labeled images, weights and order: %(default)s",
    )
    parser.add_argument(
        "--output",
        default="runs/masked_patches",
        help="output folder: %(default)s",
    )
    given = parser.parse_args()
    main(given.data, given.labels, given.seeds, given.output)
