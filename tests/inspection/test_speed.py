"""Figure 12 as measured: the search, and real children, of which one dies."""

import json

import pytest

from keras_vit.inspection import plots, speed

pytestmark = pytest.mark.tensorflow_only

MIB = 2**20


def limits(largest=1024):
    return speed.MeasurementLimits(memory=MIB, largest=largest, seconds=0.0)


def machine(monkeypatch, fits):
    """A machine that batches of up to `fits` fit; the children that it ran."""
    children = []

    def child(model, pixels, batches, limits):
        children.append(batches)
        done = {}
        for batch in batches:
            if batch > fits:
                break
            done[batch] = 100.0 + min(batch, 32)
        return done

    monkeypatch.setattr(speed, "_child", child)
    return children


@pytest.mark.parametrize("fits", [1, 2, 3, 19, 100, 150, 767, 1023])
def test_the_largest_batch_is_found(fits, monkeypatch):
    children = machine(monkeypatch, fits)
    found = speed.search("ViT-Ti/16", 32, limits(), lambda line: None)
    assert max(found) <= fits <= max(found) + max(1, max(found) // 10)
    assert len(children) < 10
    assert max(found.values()) == 100 + min(32, max(found))


def test_no_batch_is_larger_than_asked(monkeypatch):
    children = machine(monkeypatch, 10**9)
    assert max(speed.search("ViT-Ti/16", 32, limits(48), lambda line: None)) == 48
    assert children == [[1, 2, 4, 8, 16, 32, 48]]


def test_where_nothing_fits(monkeypatch):
    machine(monkeypatch, 0)
    measured = speed.measure(
        ("ViT-Ti/16",), (32, 40, 64), memory=MIB, report=lambda line: None
    )
    assert measured.largest_batch == {"ViT-Ti/16": {}}


def test_a_batch_that_fails_on_used_memory_is_tried_on_empty(monkeypatch):
    tries = []

    def child(model, pixels, batches, limits):
        tries.append(batches)
        return dict.fromkeys(batches[:3], 1.0)  # Of any three, whichever they are.

    monkeypatch.setattr(speed, "_child", child)
    assert max(speed.search("ViT-Ti/16", 32, limits(64), lambda line: None)) == 64
    assert [first for first, *_ in tries] == [1, 8, 64]


def test_sizes_that_patches_do_not_tile_are_left_out(monkeypatch):
    machine(monkeypatch, 8)
    measured = speed.measure(
        ("ViT-Ti/16", "BiT-R50x1"), (32, 40), memory=MIB, report=lambda line: None
    )
    assert [*measured.largest_batch["ViT-Ti/16"]] == [32]
    assert [*measured.largest_batch["BiT-R50x1"]] == [32, 40]
    with pytest.raises(ValueError, match="multiples of patch_size"):
        speed.measure(("ViT-Ti/16",), (40,), memory=MIB)


@pytest.mark.slow
def test_a_child_that_runs_out_of_memory_dies_alone():
    """500,000 images are 6 GB; the child may have 1.5."""
    limited = speed.MeasurementLimits(memory=1536 * MIB, largest=1, seconds=0.0)
    done = speed._child("ViT-Ti/16", 32, [1, 4, 500_000], limited)
    assert [*done] == [1, 4]
    assert min(done.values()) > 0


@pytest.mark.slow
def test_a_child_without_room_for_one_image():
    assert speed._child("ViT-Ti/16", 32, [1], limits()) == {}


@pytest.mark.slow
def test_a_child_that_dies_of_something_else_is_an_error():
    with pytest.raises(RuntimeError, match=r"(?s)Expected ViT-Ti/17 to run .*KeyError"):
        speed._child("ViT-Ti/17", 32, [1], limits())


def test_available_memory_is_this_machines():
    assert 0 < speed.available_memory() < 2**50


def test_command(shell, monkeypatch, tmp_path):
    machine(monkeypatch, 40)
    draw, drawn = plots.figure_12, []
    monkeypatch.setattr(plots, "figure_12", lambda *a: drawn.append(a) or draw(*a))
    words = ("ViT-Ti/16", "--figure12", "--sizes", "32,64", "--memory", 1)
    code, out, err = shell("costs", *words, "--largest", 64, "--output", tmp_path)
    assert code == 0, err
    assert "ViT-Ti/16 32 px: 32 images fit, 64 do not" in out
    written = json.loads((tmp_path / "figure12.json").read_text())
    assert written["largest_batch"] == {"ViT-Ti/16": {"32": 40, "64": 40}}
    assert written["images_per_second"]["ViT-Ti/16"]["32"] == 132
    ((speeds, batches, picture),) = drawn
    assert speeds == {"ViT-Ti/16": {32: 132.0, 64: 132.0}}
    assert batches == {"ViT-Ti/16": {32: 40, 64: 40}}
    assert picture == tmp_path / "figure12.png"
    assert picture.read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    "words",
    [
        ("--figure12", "--sizes", "big"),
        ("--figure12", "--table6"),
        ("--figure12", "--batch", "3"),
        ("ViT-B/16", "--output", "there"),
        ("ViT-B/16", "ViT-B/32"),
    ],
)
def test_command_refuses(words, shell):
    code, _, err = shell("costs", *words)
    assert code == 1
    assert "keras-vit: Expected" in err
