"""The paper's figures: what is drawn is what was given, and can be told apart."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib import image as matplotlib_image
from matplotlib import rc_context, style

from keras_vit import paper
from keras_vit.inspection import plots
from keras_vit.inspection.plots import canvas, results

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(  # Of linear sRGB.
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(color):
    """sRGB "#RRGGBB" -> linear RGB."""
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )


def contrast(color):
    """To white, as WCAG 2.1 defines it."""
    return 1.05 / (linear(color) @ [0.2126, 0.7152, 0.0722] + 0.05)


def lab(rgb):
    """CIE 1976 L*a*b*, D65."""
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0.001, 1) / (XYZ @ np.ones(3)))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colors_stand_out_from_white():
    assert contrast("#000000") == pytest.approx(21)
    assert contrast("#767676") == pytest.approx(4.54, abs=0.005)  # WCAG's own example.
    assert min(map(contrast, canvas.COLORS)) >= 3


@pytest.mark.parametrize("vision", VISION)
def test_colors_are_told_apart(vision):
    seen = [lab(VISION[vision] @ linear(color)) for color in canvas.COLORS]
    pairs = itertools.combinations(seen, 2)
    assert min(np.linalg.norm(one - other) for one, other in pairs) > 25


def test_no_two_lines_differ_by_color_alone():
    styles = [canvas.style_of(number) for number in range(2 * len(canvas.COLORS))]
    shapes = {(s["marker"], s["linestyle"]) for s in styles}
    assert len(shapes) == len(styles)
    for others in (canvas.MARKERS, canvas.DASHES, results._HATCHES):
        assert len({*others}) == len(others) == len(canvas.COLORS)


def test_the_ground_is_white_whatever_the_users_style(tmp_path):
    with style.context("dark_background"), rc_context({"savefig.transparent": True}):
        plots.data_size({"a": {1: 0.5, 10: 0.7}}, tmp_path / "a.png")
        plots.data_size({"a": {1: 0.5, 10: 0.7}}, tmp_path / "b.png")
    plots.data_size({"a": {1: 0.5, 10: 0.7}}, tmp_path / "white.png")
    drawn = matplotlib_image.imread(tmp_path / "a.png")
    assert (drawn[0, 0] == 1).all()
    assert drawn.shape[-1] == 3 or (drawn[..., 3] == 1).all()
    np.testing.assert_array_equal(
        drawn, matplotlib_image.imread(tmp_path / "white.png")
    )


# Figure 5.


def test_average_5_is_table_7s_own():
    averages = {
        row.model: row.percent
        for row in paper.TABLES["Table 7"]
        if row.dataset == "average" and row.optimizer == "adam"
    }
    ours = {
        model: of["average"] for (model, e), of in paper.figure_5().items() if e == 7
    }
    for model, percent in averages.items():
        assert ours[model] == pytest.approx(percent, abs=0.005)
    assert len(averages) == 2


@pytest.mark.tensorflow_only
def test_figure_5_is_table_6(figures, shell, tmp_path):
    picture = tmp_path / "figure_5.png"
    code, out, err = shell("paper", "figure5", "--picture", picture)
    assert (code, err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    average, imagenet = figures[0].axes
    assert (average.get_title(), imagenet.get_title()) == ("Average-5", "ImageNet")
    for axes in figures[0].axes:
        assert axes.get_xscale() == "log"
        assert axes.get_xlabel() == "total pre-training compute [exaFLOPs]"
        assert axes.get_ylabel() == "transfer accuracy [%]"
    drawn = {line.get_label(): line.get_xydata() for line in imagenet.get_lines()}
    assert [*drawn] == ["Transformer (ViT)", "ResNet (BiT)", "Hybrid"]
    assert len({line.get_marker() for line in imagenet.get_lines()}) == 3
    accuracy = {
        (row.model, row.epochs): row.percent
        for row in paper.TABLES["Table 6"]
        if row.dataset == "imagenet2012"
    }
    for label, points in drawn.items():
        of_kind = [run for run in paper.EXAFLOPS if paper.kind(run[0]) == label]
        theirs = sorted((paper.EXAFLOPS[run], accuracy[run]) for run in of_kind)
        np.testing.assert_allclose(points[:, 1], [percent for _, percent in theirs])
        # But for R50+ViT-L/16 (README), counted and printed differ by 2 % at most.
        ratio = points[:, 0] / [exaflops for exaflops, _ in theirs]
        np.testing.assert_allclose(ratio, 1, atol=0.032 if label == "Hybrid" else 0.021)
    assert sum(map(len, drawn.values())) == len(paper.EXAFLOPS)
    words = next(line for line in out.splitlines() if "ViT-H/14" in line).split()
    assert words[1:] == ["14", "4258.0", "95.82", "88.08"]
    code, _, err = shell("paper", "table6", "--picture", picture)
    assert code == 1
    assert "with figure3 or figure5" in err


# Figures 6 and 14.


def test_figure_6_is_the_image_times_the_map_over_its_maximum(figures, tmp_path):
    rng = np.random.default_rng(0)
    images, maps = rng.uniform(0, 1, (3, 28, 56, 3)), rng.uniform(0, 9, (3, 28, 56))
    plots.figure_6(images, maps, tmp_path / "figure_6.png")
    (axes,) = figures[0].axes
    drawn = axes.images[0].get_array()
    assert drawn.shape == (3 * 28 + 2 * 6, 2 * 56 + 2, 3)
    for row, (image, attention) in enumerate(zip(images, maps, strict=True)):
        pair = drawn[34 * row : 34 * row + 28]
        np.testing.assert_allclose(pair[:, :56], image)
        seen = image * attention[..., None] / attention.max()
        np.testing.assert_allclose(pair[:, 58:], seen)
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *("input", "attention")
    ]


def test_figure_6_with_a_quantile_lights_the_rest(figures, tmp_path):
    attention = np.ones((1, 10, 10))
    attention[0, 0, 0] = 100  # Outshines all.
    for quantile in (1.0, 0.9):
        plots.figure_6(
            np.ones((1, 10, 10, 1)), attention, tmp_path / "a.png", quantile=quantile
        )
    dark, light = (figure.axes[0].images[0].get_array() for figure in figures)
    assert dark[5, -5, 0] == pytest.approx(0.01)
    assert light[5, -5, 0] == 1
    assert light.max() == 1


def test_figure_6_with_two_quantiles_has_both_maps(figures, tmp_path):
    rng = np.random.default_rng(0)
    images, maps = rng.uniform(0, 1, (3, 28, 56, 3)), rng.uniform(0, 9, (3, 28, 56))
    plots.figure_6(images, maps, tmp_path / "a.png", columns=2, quantile=(1.0, 0.9))
    (axes,) = figures[0].axes
    drawn = axes.images[0].get_array()
    assert drawn.shape == (2 * 28 + 6, 2 * (3 * 56 + 2 * 2) + 6, 3)
    shown = drawn[:28, 172 + 6 :]  # The second image.
    np.testing.assert_allclose(shown[:, :56], images[1])
    for start, most in ((58, maps[1].max()), (116, np.quantile(maps[1], 0.9))):
        share = np.minimum(maps[1] / most, 1)[..., None]
        np.testing.assert_allclose(shown[:, start : start + 56], images[1] * share)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["input", "attention", "attention (90 %)"] * 2
    assert list(axes.get_xticks()) == [28, 86, 144, 206, 264, 322]


@pytest.mark.parametrize("quantile", [0, 1.1, (), (1.0, 0.0), float("nan")])
def test_figure_6_refuses_quantiles(tmp_path, quantile):
    with pytest.raises(ValueError, match="quantile in"):
        plots.figure_6(
            np.ones((1, 4, 4, 3)), np.ones((1, 4, 4)), tmp_path / "a.png", 1, quantile
        )


def test_figure_14_has_eight_pairs_side_by_side(figures, tmp_path):
    rng = np.random.default_rng(0)
    images, maps = rng.uniform(0, 1, (10, 8, 8, 1)), rng.uniform(0, 1, (10, 8, 8))
    plots.figure_14(images, maps, tmp_path / "figure_14.png")
    drawn = figures[0].axes[0].images[0].get_array()
    assert drawn.shape == (2 * 8 + 3, 8 * 17 + 7 * 3, 3)
    assert (drawn[11:, 2 * 20 :] == 1).all()  # The second row has two pairs.


@pytest.mark.parametrize(
    ("images", "maps", "quantile", "message"),
    [
        ((2, 8, 8, 3), (2, 2, 2), 1, r"maps \(2, 2, 2\)"),
        ((0, 8, 8, 3), (0, 8, 8), 1, r"images \(0, 8, 8, 3\)"),
        ((1, 8, 8, 3), (1, 8, 8), 0, "quantile=0"),
    ],
)
def test_figure_6_refuses(images, maps, quantile, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plots.figure_6(
            np.ones(images), np.ones(maps), tmp_path / "a.png", quantile=quantile
        )
    assert list(tmp_path.iterdir()) == []


# Figures 7, 10 and 11.


def similarity(rows, columns):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (rows, columns, rows, columns))


def test_figure_7_has_three_panels(figures, tmp_path):
    filters = np.random.default_rng(0).normal(size=(28, 14, 14, 3))
    positions, distances = similarity(16, 15), np.arange(12.0).reshape(4, 3)
    plots.figure_7(filters, positions, distances, tmp_path / "figure_7.png")
    left, centre, right, bar = figures[0].axes
    tiles = left.images[0].get_array()
    assert tiles.shape == (4 * 14 + 3, 7 * 14 + 6, 3)
    first = (filters[8] - filters[8].min()) / np.ptp(filters[8])
    np.testing.assert_allclose(tiles[15:29, 15:29], first)
    drawn = centre.images[0]
    assert drawn.get_clim() == (-1, 1)
    np.testing.assert_allclose(drawn.get_array()[:16, 16:31], positions[0, 2])
    np.testing.assert_allclose(drawn.get_array()[-16:, -15:], positions[15, 14])
    assert [label.get_text() for label in centre.get_yticklabels()] == [
        *("1", "3", "6", "9", "11", "13", "16")
    ]
    assert bar.get_ylabel() == "cosine similarity"
    heads = [line.get_xydata() for line in right.get_lines()]
    np.testing.assert_allclose(heads[1], [[1, 1], [2, 4], [3, 7], [4, 10]])
    assert right.get_ylabel() == "mean attention distance [pixels]"


def test_figure_7_of_other_than_three_channels_is_the_first_in_gray(figures, tmp_path):
    filters = np.random.default_rng(0).normal(size=(2, 4, 4, 4))
    filters[..., 1:] *= 100  # Of no effect on how the first is stretched.
    plots.figure_7(filters, similarity(2, 2), np.ones((2, 2)), tmp_path / "a.png")
    tiles = figures[0].axes[0].images[0].get_array()
    first = (filters[0, ..., :1] - filters[0, ..., 0].min()) / np.ptp(
        filters[0, ..., 0]
    )
    np.testing.assert_allclose(tiles[:4, :4], first.repeat(3, axis=-1))


def test_attention_maps_of_one_channel_are_gray(figures, tmp_path):
    images = np.linspace(0, 1, 16).reshape(1, 4, 4, 1)
    plots.attention_maps(images, np.ones((1, 2, 2)), ["a"], tmp_path / "a.png")
    drawn = figures[0].axes[0].images[0].get_array()
    np.testing.assert_allclose(drawn, images[0].repeat(3, axis=-1))


def test_figure_10_has_a_panel_for_each_training(figures, tmp_path):
    given = {"7 epochs": similarity(4, 6), "14 epochs": -similarity(4, 6)}
    plots.figure_10(given, tmp_path / "figure_10.png")
    one, other, bar = figures[0].axes
    assert [one.get_title(), other.get_title()] == [*given]
    assert bar.get_ylabel() == "cosine similarity"
    for axes, array in zip((one, other), given.values(), strict=True):
        drawn = axes.images[0].get_array()
        assert drawn.shape == (4 * 4 + 3, 6 * 6 + 5)
        np.testing.assert_allclose(drawn[5:9, 14:20], array[1, 2])
        assert drawn.mask[4].all()  # White: between tiles.
        assert axes.get_xlabel() == "input patch column"
    for wrong, told in (({}, "none"), ({"a": np.eye(3)}, r"'a' \(3, 3\)")):
        with pytest.raises(ValueError, match=f"Received: {told}"):
            plots.figure_10(wrong, tmp_path / "none.png")


def test_figure_11_has_a_panel_for_each_model(figures, tmp_path):
    given = {"ViT-L/16": np.arange(6.0).reshape(3, 2), "R50": np.ones((2, 4))}
    plots.figure_11(given, tmp_path / "figure_11.png")
    one, other = figures[0].axes
    assert one.get_title() == "ViT-L/16\n(a dot for each of 2 heads)"
    np.testing.assert_allclose(
        one.get_lines()[1].get_xydata(), [[1, 1], [2, 3], [3, 5]]
    )
    assert len(other.get_lines()) == 4
    assert one.get_ylabel() == "mean attention distance [pixels]"
    assert one.get_xlabel() == "network depth [layer]"
    assert one.get_ylim() == other.get_ylim()
    for wrong, told in (({}, "none"), ({"a": np.ones(3)}, r"'a' \(3,\)")):
        with pytest.raises(ValueError, match=f"Received: {told}"):
            plots.figure_11(wrong, tmp_path / "none.png")


# Figures 8, 9, 12 and 13.


def test_figure_8_has_a_line_for_each_way_to_scale(figures, tmp_path):
    given = {
        "ImageNet 5-shot": {"depth": [(2, 0.6), (1, 0.5)], "width": [(1, 0.5)]},
        "Average 5-shot": {"width": [(0.5, 0.25), (1, 0.5)]},
    }
    plots.figure_8(given, tmp_path / "figure_8.png")
    left, right = figures[0].axes
    assert [left.get_title(), right.get_title()] == [*given]
    depth, width = left.get_lines()
    np.testing.assert_allclose(depth.get_xydata(), [[1, 50], [2, 60]])  # In order.
    assert right.get_lines()[0].get_color() == width.get_color() != depth.get_color()
    assert left.get_xlabel() == "relative compute"
    assert left.get_ylabel() == "accuracy [%]"
    assert left.get_xscale() == "log"
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["depth", "width"]


def test_figure_9_has_a_line_for_each_head(figures, tmp_path):
    given = {"CLS-Token, lr=8e-4": {1: 0.3, 2: 0.4}, "GAP, lr=3e-4": {2: 0.5, 1: 0.2}}
    plots.figure_9(given, tmp_path / "figure_9.png")
    (axes,) = figures[0].axes
    token, gap = axes.get_lines()
    np.testing.assert_allclose(token.get_xydata(), [[1, 30], [2, 40]])
    np.testing.assert_allclose(gap.get_xydata(), [[1, 20], [2, 50]])
    assert axes.get_xlabel() == "epochs of training"
    assert axes.get_ylabel() == "ImageNet linear 5-shot accuracy [%]"
    assert axes.get_xscale() == "linear"


def test_figure_12_has_speed_at_the_left_and_batch_at_the_right(figures, tmp_path):
    speed = {"ViT-B/16": {224: 900.5, 64: 8000.0}, "BiT-R50x1": {224: 1000.0}}
    batch = {"ViT-B/16": {224: 512}, "BiT-R50x1": {}}
    plots.figure_12(speed, batch, tmp_path / "figure_12.png")
    left, right = figures[0].axes
    assert left.get_ylabel() == "peak inference speed [images/s per device]"
    assert right.get_ylabel() == "largest batch per device [images]"
    for axes in (left, right):
        assert axes.get_xlabel() == "input size [px]"
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        ticks = [label.get_text() for label in axes.get_xticklabels()]
        assert ticks == ["64", "224"]
    vit, resnet = left.get_lines()
    np.testing.assert_allclose(vit.get_xydata(), [[64, 8000], [224, 900.5]])
    np.testing.assert_allclose(resnet.get_xydata(), [[224, 1000]])
    np.testing.assert_allclose(right.get_lines()[0].get_xydata(), [[224, 512]])
    assert len(right.get_lines()[1].get_xydata()) == 0


def test_figure_13_has_each_model_against_compute_and_speed(figures, tmp_path):
    given = {"Axial-ViT-B/16": (400.0, 100.0, 0.62), "ViT-B/16": (224.0, 300.0, 0.6)}
    plots.figure_13(given, tmp_path / "figure_13.png")
    left, right = figures[0].axes
    for axes, place, label in (
        (left, 0, "total compute [exaFLOPs]"),
        (right, 1, "peak inference speed [images/s per device]"),
    ):
        assert axes.get_xlabel() == label
        assert axes.get_ylabel() == "5-shot linear accuracy [%]"
        for line, of in zip(axes.get_lines(), given.values(), strict=True):
            np.testing.assert_allclose(line.get_xydata(), [[of[place], 100 * of[2]]])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: plots.figure_5({}, path), "1 to 7 lines. Received: 0"),
        (lambda path: plots.figure_12({}, {}, path), "1 to 14 lines. Received: 0"),
        (
            lambda path: plots.figure_13(dict.fromkeys(range(15), (1, 1, 1)), path),
            "1 to 14 lines. Received: 15",
        ),
        (
            lambda path: plots.figure_9({"GAP": {1: 55.0}}, path),
            r"in \[0, 1\]. Received: 55.0 of 'GAP'",
        ),
        (
            lambda path: plots.figure_8({"a": {"depth": [(0, 0.5)]}}, path),
            r"positive numbers .*relative compute.* of 'depth'",
        ),
        (
            lambda path: plots.figure_12({"B": {224: 0.0}}, {"B": {}}, path),
            r"positive numbers .*images/s.* of 'B'",
        ),
        (
            lambda path: plots.figure_12({"B": {224: 1.0}}, {"L": {224: 1}}, path),
            "the same models .*Received: 'B', 'L' in one of them",
        ),
        (
            lambda path: plots.figure_9({"a": {}}, path),
            "points .*Received: none of 'a'",
        ),
        (
            lambda path: plots.figure_10({"a": np.full((2, 2, 2, 2), np.nan)}, path),
            "similarities of 'a' of finite numbers. Received: nan",
        ),
        (
            lambda path: plots.figure_11({"a": np.full((2, 2), np.inf)}, path),
            "distances of 'a' of finite numbers, 0 or more. Received: inf",
        ),
        (
            lambda path: plots.figure_11({"a": -np.ones((2, 2))}, path),
            "0 or more. Received: -1",
        ),
        (
            lambda path: plots.figure_11({"a": np.ones((0, 2))}, path),
            r"one or more in each. Received: shape=\(0, 2\)",
        ),
        (
            lambda path: plots.figure_7(
                np.ones((0, 8, 8, 3)), similarity(2, 2), np.ones((2, 2)), path
            ),
            r"Expected filters .*Received: shape=\(0, 8, 8, 3\)",
        ),
        (
            lambda path: plots.figure_6(
                np.ones((1, 8, 8, 3)), np.ones((1, 8, 8)), path, columns=0
            ),
            "columns=0",
        ),
        (
            lambda path: plots.figure_14(
                np.ones((1, 8, 8, 3)), np.full((1, 8, 8), np.nan), path
            ),
            r"maps \[B, H, W\] of finite numbers, 0 or more. Received: nan",
        ),
        (
            lambda path: plots.figure_6(
                np.ones((1, 8, 8, 3)), -np.ones((1, 8, 8)), path
            ),
            "0 or more. Received: -1",
        ),
        (lambda path: plots.reconstructions({}, path), "Received: none"),
        (
            lambda path: plots.attention_maps(
                np.ones((1, 8, 8, 3)), np.full((1, 2, 2), np.nan), ["a"], path
            ),
            "0 or more. Received: nan",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
