"""Pictures of numbers: what is drawn is what was given."""

import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from keras_vit.inspection import plots

ACCURACY = {"ViT": {1000: 0.5, 10: 0.25}, "ResNet": {10: 0.5, 100: 0.75, 1000: 1.0}}


def test_data_size_draws_a_line_a_model(figures, tmp_path):
    plots.data_size(ACCURACY, tmp_path / "new" / "size.png")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["size.png"]
    (axes,) = figures[0].axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *("10", "100", "1,000")
    ]
    vit, resnet = axes.get_lines()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*ACCURACY]
    np.testing.assert_allclose(vit.get_xydata(), [[10, 25], [1000, 50]])
    np.testing.assert_allclose(resnet.get_ydata(), [50, 75, 100])
    assert vit.get_color() != resnet.get_color()
    assert vit.get_marker() != resnet.get_marker()


@pytest.mark.parametrize("models", [0, 8])
def test_data_size_of_no_or_too_many_models_is_an_error(models, tmp_path):
    accuracy = {str(number): {10: 0.5} for number in range(models)}
    with pytest.raises(ValueError, match=rf"1 to 7 models\. Received: {models}"):
        plots.data_size(accuracy, tmp_path / "size.png")
    assert list(tmp_path.iterdir()) == []


def test_pretraining_draws_each_model_where_it_has_data(figures, tmp_path):
    accuracy = {"a": {"jft300m": 0.9, "imagenet2012": 0.5}, "b": {"imagenet21k": 0.8}}
    plots.pretraining(accuracy, tmp_path / "figure_3.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure_3.png"]
    (axes,) = figures[0].axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["ImageNet", "ImageNet-21k", "JFT-300M"]
    one, other = axes.get_lines()
    np.testing.assert_allclose(one.get_xydata(), [[0, 50], [2, 90]])
    np.testing.assert_allclose(other.get_xydata(), [[1, 80]])
    with pytest.raises(ValueError, match=r"jft300m\. Received: 1 models, 'laion'"):
        plots.pretraining({"a": {"laion": 0.5}}, tmp_path / "figure_3.png")


def test_task_groups_draws_a_bar_a_model(figures, tmp_path):
    ours = {"Natural": (0.5, 0.02)}
    paper = {"All": (0.75, None), "Natural": (0.875, None)}
    plots.task_groups({"ours": ours, "paper": paper}, tmp_path / "groups.png")
    assert [path.name for path in tmp_path.iterdir()] == ["groups.png"]
    drawn = {axes.get_title(): axes for axes in figures[0].axes}
    assert [*drawn] == ["All", "Natural"]
    heights = {
        name: [bar.get_height() for bar in axes.patches] for name, axes in drawn.items()
    }
    assert heights == {"All": [75.0], "Natural": [50.0, 87.5]}
    assert [text.get_text() for text in drawn["Natural"].texts] == ["50.0", "87.5"]
    colors = [bar.get_facecolor() for bar in drawn["Natural"].patches]
    assert colors[0] != colors[1] == drawn["All"].patches[0].get_facecolor()
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "paper"]
    with pytest.raises(ValueError, match=r"Received: 1 models with 0 groups"):
        plots.task_groups({"ours": {}}, tmp_path / "none.png")


def test_shots_draws_a_band_around_each_line(figures, tmp_path):
    accuracy = {"a": {5: (0.5, 0.4, 0.7), 1: (0.25, 0.25, 0.25)}, "b": {1: (1, 1, 1)}}
    plots.shots(accuracy, tmp_path / "shots.png", {"all": 0.75})
    assert [path.name for path in tmp_path.iterdir()] == ["shots.png"]
    (axes,) = figures[0].axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5"]
    one, other, level = axes.get_lines()
    np.testing.assert_allclose(one.get_xydata(), [[1, 25], [5, 50]])
    np.testing.assert_allclose(other.get_xydata(), [[1, 100]])
    np.testing.assert_allclose(level.get_ydata(), [75, 75])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a", "b", "all"]
    corners = axes.collections[0].get_paths()[0].vertices
    assert {(1, 25), (5, 40), (5, 70)} <= {tuple(np.round(xy, 6)) for xy in corners}


def test_shots_of_no_line_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"1 to 7 lines of shots\. Received: 0"):
        plots.shots({}, tmp_path / "shots.png", {"all": 0.5})


def test_reliability_draws_bars_up_to_the_accuracy(figures, tmp_path):
    images = np.array([0, 10, 30, 60])
    confidence = np.array([np.nan, 0.4, 0.6, 0.9])
    accuracy = np.array([np.nan, 0.5, 0.5, 0.8])
    plots.reliability(images, confidence, accuracy, tmp_path / "bins.png")
    assert (tmp_path / "bins.png").read_bytes()[1:4] == b"PNG"
    upper, lower = figures[0].axes
    bars, gaps = upper.containers
    assert [bar.get_height() for bar in bars] == [0.5, 0.5, 0.8]
    assert [bar.get_x() for bar in bars] == [0.25, 0.5, 0.75]
    ends = [gap.get_y() + gap.get_height() for gap in gaps]
    np.testing.assert_allclose(ends, [0.4, 0.6, 0.9])
    assert upper.get_title() == "expected calibration error 0.1000"
    np.testing.assert_allclose(
        [bar.get_height() for bar in lower.containers[0]], [0, 0.1, 0.3, 0.6]
    )


def test_confusion_draws_shares_of_each_class(figures, tmp_path):
    matrix = np.array([[8, 2, 0], [0, 0, 0], [5, 0, 15]])
    names = ("cat", "dog", "a name that is much too long")
    plots.confusion(matrix, names, tmp_path / "confusion.png")
    axes = figures[0].axes[0]
    np.testing.assert_allclose(
        axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 0, 0], [0.25, 0, 0.75]]
    )
    assert [text.get_text() for text in axes.texts] == ["8", "2", "5", "15"]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["cat", "dog", "a name that is much…"]


def test_confusion_of_names_that_are_no_plain_text(figures, tmp_path):
    plots.confusion(np.eye(3), ("$x$", "犬", "ünï"), tmp_path / "confusion.png")
    axes = figures[0].axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["$x$", "1", "ünï"]
        assert not any(label.get_parse_math() for label in labels)


def test_confusion_has_a_column_for_none_and_no_names_of_many(figures, tmp_path):
    plots.confusion(np.eye(3, 4), ("a", "b", "c"), tmp_path / "small.png")
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [*"abc", "none"]
    plots.confusion(np.eye(50), tuple(map(str, range(50))), tmp_path / "large.png")
    assert not figures[1].axes[0].texts


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"\.\[plots\]"):
        plots.check()
