r"""Section 4.5, D.4, D.7, D.8: inspection of a trained ViT on your own photos.

Draws Figures 6, 7, 10, 11 and 14 for a weights file (anything that `from_checkpoint`
reads) and a folder of photos. Also draws Figure 5, from the paper's accuracies and the
exaFLOPs counted by `inspection.costs`. The paper uses ViT-L/16, ViT-L/32 in Figure 7,
and also R50+ViT-L/16 in Figure 11. The default is the model of `make demo`:

    keras-vit convert demo/model.keras demo.npz --to npz
    python examples/inside.py

    python examples/inside.py --weights ViT-B_16.npz --name ViT-B/16 --photos photos

As in Figures 11 and 14, distances are averaged over 128 photos, which are all shown.
In DINOv2's models, single uninformative patches get most of the attention
(arXiv:2309.16588). With --quantile 0.97 the top 3 % of a map have the same brightness,
whereas the paper scales by the maximum. Their other options are --gelu erf
--mean 0.485 0.456 0.406 --std 0.229 0.224 0.225.
"""

import argparse
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit import data, inspection, paper
from keras_vit.data import pipelines
from keras_vit.facts import OFFICIAL
from keras_vit.inspection import plots
from keras_vit.inspection.counting import table_6

WEIGHTS, NAME = "demo.npz", "the demo's ViT"
PHOTOS = "digits"


def main(
    weights: str = WEIGHTS,
    photos: str = PHOTOS,
    output: str = "runs/inside",
    *,
    name: str = NAME,
    count: int = 128,
    gelu: str = "tanh",
    layer_norm_epsilon: float = 1e-6,
    mean: tuple[float, ...] = OFFICIAL.mean,
    std: tuple[float, ...] = OFFICIAL.std,
    quantile: float = 1.0,
    components: int = 28,
) -> np.ndarray:
    """Returns the attention distances in pixels, [L, k]."""
    folder = Path(output)
    model = keras_vit.from_checkpoint(
        weights, gelu=gelu, layer_norm_epsilon=layer_norm_epsilon
    )
    model.preprocessing = keras_vit.Preprocessing(mean=mean, std=std)
    images = some_images(photos, count, model)
    shown = np.clip(images * std + mean, 0, 1)
    maps = inspection.attention_rollout(model, images)
    distances = inspection.attention_distance(model, images)
    positions = inspection.position_similarity(model)
    filters = inspection.embedding_filters(model, components)

    plots.figure_5(figure_5(), folder / "figure_5.png")
    plots.figure_6(shown[:3], maps[:3], folder / "figure_6.png", quantile=quantile)
    plots.figure_7(filters, positions, distances, folder / "figure_7.png")
    plots.figure_10({name: positions}, folder / "figure_10.png", most=16)
    plots.figure_11({name: distances}, folder / "figure_11.png")
    plots.figure_14(shown, maps, folder / "figure_14.png", quantile)
    tell(maps, positions, distances)
    print(f"Figures 5, 6, 7, 10, 11 and 14: {folder}")
    return distances


def some_images(
    photos: str, count: int, model: keras_vit.models.VisionModel
) -> np.ndarray:
    """Returns random test photos, or all if there are fewer: [N, H, W, C]."""
    split = data.open_source(photos).test
    drawn = np.random.default_rng(0).permutation(len(split))[:count]
    batches = pipelines.eval_pipeline(
        split.take(drawn),
        image_size=model.input_shape[1:3],
        batch_size=32,
        preprocessing=model.preprocessing,
    )
    return np.concatenate([images for images, _ in batches.as_numpy_iterator()])


def figure_5() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Returns the panels of Table 6's accuracies, with the compute that we count."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    exaflops = table_6()
    for (model, epochs), percents in paper.figure_5().items():
        for title, key in (("Average-5", "average"), ("ImageNet", "imagenet2012")):
            kinds = panels.setdefault(title, {})
            points = kinds.setdefault(paper.kind(model), [])
            points.append((exaflops[model, epochs], percents[key] / 100))
    return panels


def tell(maps: np.ndarray, positions: np.ndarray, distances: np.ndarray) -> None:
    """Prints the numbers behind the pictures."""
    print("layer  attention distance [pixels]: least  mean  greatest of the heads")
    for layer, heads in enumerate(distances, 1):
        print(f"{layer:>5}{heads.min():>35.1f}{heads.mean():>6.1f}{heads.max():>10.1f}")
    falling = -np.sort(-maps.reshape(len(maps), -1), axis=1)
    running = np.cumsum(falling, axis=1) / falling.sum(axis=1, keepdims=True)
    area = (running < 0.5).mean()
    print(f"half of the rollout's attention falls on {area:.0%} of an image")
    down, across = neighbours(positions)
    print(
        f"cosine of positions: {down:.2f} one row apart, {across:.2f} one column, "
        f"{positions.mean():.2f} on average"
    )


def neighbours(positions: np.ndarray) -> tuple[float, float]:
    """Returns the mean similarity to the patch below, and to the patch on the right."""
    rows, columns = positions.shape[:2]
    down = [positions[i, j, i + 1, j] for i, j in np.ndindex(rows - 1, columns)]
    across = [positions[i, j, i, j + 1] for i, j in np.ndindex(rows, columns - 1)]
    return float(np.mean(down)), float(np.mean(across))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--weights", default=WEIGHTS, help="checkpoint in any format: %(default)s"
    )
    parser.add_argument(
        "--photos", default=PHOTOS, help="a folder, an .npz or a name: %(default)s"
    )
    parser.add_argument(
        "--name", default=NAME, help="name of the model in titles: %(default)s"
    )
    parser.add_argument(
        "--count", type=int, default=128, help="maximum number of photos: %(default)s"
    )
    parser.add_argument(
        "--gelu", default="tanh", choices=("tanh", "erf"), help="%(default)s"
    )
    parser.add_argument(
        "--layer-norm-epsilon", type=float, default=1e-6, help="%(default)s"
    )
    for option in ("--mean", "--std"):
        parser.add_argument(
            option,
            type=float,
            nargs=3,
            metavar="X",
            default=OFFICIAL.mean,
            help="statistics of the input by channel, in the 0..1 range: %(default)s",
        )
    parser.add_argument(
        "--quantile",
        type=float,
        default=1.0,
        help="quantile of a rollout that has full brightness: %(default)s",
    )
    parser.add_argument(
        "--output", default="runs/inside", help="folder for the pictures: %(default)s"
    )
    given = vars(parser.parse_args())
    main(**given | {key: tuple(given[key]) for key in ("mean", "std")})
