"""Appendix D, small: Figures 8, 9, 10 and 13 and Table 8 on CIFAR-10.

- D.2, Figure 8: the shape. A base is scaled in depth, width, MLP width, patch size, and
  in all of them; 5-shot accuracy against multiply-adds.
- D.3, Figure 9: the class token against global average pooling, at two rates.
- D.4, Figure 10: similarity of learned positions, of several kinds and training runs.
- D.6, Figure 13: axial attention; 5-shot accuracy against compute and speed.
- D.4, Table 8: kinds of positions and where they are added; 5-shot accuracy, next to
  the paper's.

Differences from the paper: 5,000 images of 32 px for a few epochs instead of JFT-300M
at 224 px for 7, so the base has 4 layers of D = 48 with patches of 8, instead of 8 of
1024 with 32. 5-shot accuracy is for frozen features on the classes of the training,
instead of on ImageNet. Nothing is tuned to a shape. Compare the order of the results,
not their values.

    python examples/cifar10.py
    python examples/appendix_d.py --figure 8
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from inside import neighbours  # From the example inside.py.

from keras_vit import (
    ResNetConfig,
    ViTConfig,
    data,
    evaluation,
    inspection,
    paper,
    recipes,
)
from keras_vit.data import pipelines
from keras_vit.data.sources import Source
from keras_vit.families import family_of
from keras_vit.inspection import plots
from keras_vit.training import optim

CIFAR10 = "cifar10-6k.npz"  # Written by examples/cifar10.py.
FIGURES = ("8", "9", "10", "13", "table8")
SIZE = (32, 32)
BASE = ViTConfig(
    patch_size=8, num_layers=4, hidden_size=48, mlp_dim=96, num_heads=2
)  # As in the paper: an MLP of 2 D.
RECIPE = recipes.PRETRAIN["cifar10-scratch"]


def scaled(
    layers: float = 1, width: float = 1, mlp: float = 1, patch: float = 1
) -> ViTConfig:
    """Returns the base with each dimension multiplied; the width of a head is fixed."""
    return dataclasses.replace(
        BASE,
        num_layers=int(BASE.num_layers * layers),
        hidden_size=int(BASE.hidden_size * width),
        num_heads=int(BASE.num_heads * width),
        mlp_dim=int(BASE.mlp_dim * mlp),
        patch_size=int(BASE.patch_size * patch),
    )


SHAPES = {  # Figure 8: the scaled configs, in addition to the base.
    "all": (scaled(0.5, 0.5, 0.5, 2), scaled(1.5, 1.5, 1.5, 0.5)),
    "depth": (scaled(layers=0.5), scaled(layers=2)),
    "patch size": (scaled(patch=2), scaled(patch=0.5)),
    "width MLP": (scaled(mlp=0.5), scaled(mlp=4)),
    "width": (scaled(width=0.5), scaled(width=2)),
}
HEADS = {  # Figure 9: (classifier, base learning rate; the paper's are 8e-4, 3e-4).
    "CLS-Token, lr=2e-3": ("token", 2e-3),
    "GAP, lr=2e-3": ("gap", 2e-3),
    "GAP, lr=7.5e-4": ("gap", 7.5e-4),
}
GRID = dataclasses.replace(BASE, num_layers=2, patch_size=4)  # 8 x 8 patches.
POSITIONS = {  # Figure 10: (config, base learning rate, times the epochs).
    "1-D": (GRID, 2e-3, 1),
    "1-D, lr/4": (GRID, 5e-4, 1),
    "1-D, twice the epochs": (GRID, 2e-3, 2),
    "2-D": (dataclasses.replace(GRID, position="2d"), 2e-3, 1),
    "1-D, every layer": (
        dataclasses.replace(GRID, position_at="every_layer"),
        2e-3,
        1,
    ),
    "1-D, every layer, shared": (
        dataclasses.replace(GRID, position_at="every_layer_shared"),
        2e-3,
        1,
    ),
}
_AXIAL = {"classifier": "gap", "attention": "axial"}
MODELS: dict[str, ViTConfig | ResNetConfig] = {  # Figure 13.
    "Axial-ViT/8": dataclasses.replace(GRID, patch_size=8, **_AXIAL),
    "Axial-ViT/4": dataclasses.replace(GRID, **_AXIAL),
    "ViT/8": dataclasses.replace(GRID, patch_size=8),
    "ViT/4": GRID,
    "Axial-ResNet": ResNetConfig(num_layers=(1, 1), width=32, unit="axial"),
    "ResNet": ResNetConfig(num_layers=(1, 1), width=32),
}


@dataclasses.dataclass(frozen=True)
class Study:
    """The settings that all training runs share."""

    source: Source
    epochs: int
    folder: Path
    smoke: bool = False

    def few(self, given: dict[Any, Any]) -> dict[Any, Any]:
        """Returns all items; in a smoke test, the first one."""
        return dict([*given.items()][: 1 if self.smoke else None])

    def length(self, times: int = 1) -> tuple[int, int]:
        """Returns the epochs of a training run and the steps per epoch."""
        if self.smoke:
            return 1, 2
        return self.epochs * times, len(self.source.train) // RECIPE.batch_size

    def train(
        self,
        config: ViTConfig | ResNetConfig,
        base_lr: float = 2e-3,
        times: int = 1,
        after_epoch: Callable[[keras.Model], None] | None = None,
    ) -> keras.Model:
        """Trains a model from random weights with `model.fit`."""
        keras.utils.set_random_seed(0)
        if self.smoke and family_of(config).has_patches:
            config = dataclasses.replace(config, num_layers=1)
        build = family_of(config).build
        model = build(config, image_size=SIZE, num_classes=len(self.source.classes))
        epochs, steps = self.length(times)
        recipe = dataclasses.replace(
            RECIPE,
            epochs=None,
            total_steps=steps * epochs,
            warmup_steps=min(RECIPE.warmup_steps, steps * epochs // 2),
        )
        batches = pipelines.train_pipeline(
            self.source.train,
            image_size=SIZE,
            batch_size=recipe.batch_size,
            seed=0,
            augment="flip",
        )
        model.compile(
            optim.optimizer(recipe, base_lr, model),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,  # For a small model, it takes longer than training.
            run_eagerly=self.smoke,
        )
        told = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: after_epoch and after_epoch(model)
        )
        model.fit(
            batches,
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=[told],
            shuffle=False,
            verbose=0,
        )
        return model

    def five_shot(self, model: keras.Model) -> float:
        """Returns the accuracy in [0, 1], averaged over ten draws of 5 per class."""
        found = evaluation.fewshot(
            model, self.source, shots=(5,), seeds=range(10), verbose=False
        )
        return found.at(5).mean


def main(
    path: str = CIFAR10,
    figures: Sequence[str] = FIGURES,
    epochs: int = 4,
    output: str = "runs/appendix_d",
    smoke: bool = False,
) -> dict[str, Any]:
    """Returns the numbers of each requested figure; accuracies are in [0, 1]."""
    study = Study(data.open_source(path), epochs, Path(output), smoke)
    draw = {
        "8": figure_8,
        "9": figure_9,
        "10": figure_10,
        "13": figure_13,
        "table8": table_8,
    }
    numbers = {}
    for figure in figures:
        start = time.perf_counter(), time.process_time()
        numbers[figure] = draw[figure](study)
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        made = study.folder / f"figure_{figure}.png"
        told = "Table 8" if figure == "table8" else made
        print(f"{told}: {wall:.0f} s, {cpu:.0f} s of CPU time", flush=True)
    return numbers


def figure_8(study: Study) -> dict[str, list[tuple[float, float]]]:
    """Measures shapes: (compute over the base's, accuracy) by scaled dimension."""
    counted = inspection.costs(BASE, SIZE, num_classes=10).multiply_adds
    base = (1.0, study.five_shot(study.train(BASE)))
    print(
        f"{'scaled':<12}{'compute':>8}{'5-shot':>8}\n{'base':<12}{1:>8.2f}{base[1]:>8.1%}"
    )
    lines = {}
    for name, configs in study.few(SHAPES).items():
        lines[name] = [base]
        for config in configs[: 1 if study.smoke else None]:
            costs = inspection.costs(config, SIZE, num_classes=10)
            relative = costs.multiply_adds / counted
            accuracy = study.five_shot(study.train(config))
            lines[name].append((relative, accuracy))
            print(f"{name:<12}{relative:>8.2f}{accuracy:>8.1%}", flush=True)
    plots.figure_8({"CIFAR-10 5-shot": lines}, study.folder / "figure_8.png")
    return lines


def figure_9(study: Study) -> dict[str, dict[float, float]]:
    """Measures heads: accuracy by epochs."""
    lines: dict[str, dict[float, float]] = {}
    for name, (classifier, base_lr) in study.few(HEADS).items():
        config = dataclasses.replace(BASE, classifier=classifier)
        points: dict[float, float] = {}

        def note(model: keras.Model, points: dict[float, float] = points) -> None:
            points[len(points) + 1] = study.five_shot(model)

        study.train(config, base_lr, times=2, after_epoch=note)
        lines[name] = points
        cells = "".join(f"{accuracy:>7.1%}" for accuracy in points.values())
        print(f"{name:<20}{cells}", flush=True)
    plots.figure_9(lines, study.folder / "figure_9.png", data="CIFAR-10")
    return lines


def figure_10(study: Study) -> dict[str, np.ndarray]:
    """Computes positions: [8, 8, 8, 8] by title."""
    found = {}
    print(f"{'cosine to the patch':<28}{'below':>7}{'right':>7}{'any':>7}")
    for title, (config, base_lr, times) in study.few(POSITIONS).items():
        found[title] = inspection.position_similarity(
            study.train(config, base_lr, times)
        )
        cells = (*neighbours(found[title]), found[title].mean())
        print(f"{title:<28}" + "".join(f"{c:>7.2f}" for c in cells), flush=True)
    plots.figure_10(found, study.folder / "figure_10.png")
    return found


def figure_13(study: Study) -> dict[str, tuple[float, float, float]]:
    """Measures axial models: (exaFLOPs, images per second, accuracy) by name."""
    found = {}
    print(f"{'':<14}{'teraFLOPs':>10}{'images/s':>10}{'5-shot':>8}")
    for name, config in study.few(MODELS).items():
        model = study.train(config)
        epochs, steps = study.length()
        seen = epochs * steps * RECIPE.batch_size
        exaflops = inspection.costs(model).exaflops(seen)
        found[name] = exaflops, speed(model), study.five_shot(model)
        tera, images, accuracy = 1e6 * exaflops, *found[name][1:]
        print(f"{name:<14}{tera:>10.2f}{images:>10.0f}{accuracy:>8.1%}", flush=True)
    plots.figure_13(found, study.folder / "figure_13.png")
    return found


def table_8(study: Study) -> dict[tuple[str, str], float]:
    """Measures positions: accuracy by kind and place, with ViT-B/16's on ImageNet."""
    found = {}
    print(f"{'position':<10}{'added at':<20}{'5-shot':>8}{'Table 8':>9}")
    for (kind, place), printed in study.few(paper.TABLE_8).items():
        config = dataclasses.replace(GRID, position=kind, position_at=place)
        found[kind, place] = study.five_shot(study.train(config))
        row = f"{kind:<10}{place:<20}{found[kind, place]:>8.1%}{printed:>9.1%}"
        print(row, flush=True)
    return found


def speed(model: keras.Model, batch: int = 256) -> float:
    """Returns images per second of inference on this machine, the best of five."""
    images = np.zeros((batch, *SIZE, 3), np.float32)
    model.predict_on_batch(images)  # Traces the model.
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        model.predict_on_batch(images)
        seconds.append(time.perf_counter() - start)
    return batch / min(seconds)


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
        "--figure",
        nargs="+",
        choices=FIGURES,
        default=FIGURES,
        help="figures to draw [default: all]",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=4,
        help="epochs of a training run; Figure 9 has twice as many: %(default)s",
    )
    parser.add_argument(
        "--output",
        default="runs/appendix_d",
        help="folder for the pictures: %(default)s",
    )
    given = parser.parse_args()
    main(given.data, given.figure, given.epochs, given.output)
