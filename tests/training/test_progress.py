"""The progress line: its width, its contents, and where it is printed."""

import dataclasses
import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.training import callbacks, fit, progress
from tests.terminal import screen
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401

SETTINGS = recipe(total_steps=22, warmup_steps=2, ema=0.5, augment="flip")
WORDS = re.compile(
    r"(?:rate \d/\d  )?step \d+/22(?:  [\d,]+ img/s)?(?:  .+ left)?"
    r"(?:  loss \d+\.\d{3}  acc \d+\.\d %)(?:  test loss \d+\.\d{3}  acc \d+\.\d %)?"
)


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def watches(monkeypatch):
    """The watches of all training runs."""
    made = []
    real = callbacks.Watch.__init__

    def recorded(self, *args, **options):
        made.append(self)
        real(self, *args, **options)

    monkeypatch.setattr(callbacks.Watch, "__init__", recorded)
    return made


@pytest.mark.tensorflow_only
def test_a_terminal_shows_one_line_for_each_evaluation(source, monkeypatch, watches):  # noqa: F811
    monkeypatch.setattr(callbacks, "SECONDS", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr("sys.stdout", Terminal())
    result = fit(tiny(), SETTINGS, source)
    text = sys.stdout.getvalue()
    written = [part.rstrip() for part in re.split(r"[\r\n]", text)]
    assert max(map(len, written)) < 80
    assert "step 0/22  compiling the training step" in written
    assert f"step 11/22  evaluating {len(source.test)} test images" in written
    assert sum(line.startswith("step 5/22  ") for line in written) == 1
    shown = screen(text)
    assert [line.split("  ")[0] for line in shown] == ["step 11/22", "step 22/22", ""]
    for line, row in zip(shown, result.history, strict=False):
        assert WORDS.fullmatch(line), line
        assert f"  loss {row['loss']:.3f}  acc {100 * row['accuracy']:.1f} %" in line
        assert line.endswith(
            f"  test loss {row['val_loss']:.3f}  acc {100 * row['val_accuracy']:.1f} %"
        )
    assert " left" in shown[0]
    assert " left" not in shown[1]
    (watch,) = watches
    assert watch.seconds_left == 0
    watch.keeper.step = 11  # One of two periods is left, and its evaluation.
    seconds = 11 * 8 / watch.images_per_second + watch._evaluation_seconds
    assert watch.seconds_left == pytest.approx(seconds)


@pytest.mark.tensorflow_only
def test_a_log_file_has_one_line_for_each_evaluation(source, capsys):  # noqa: F811
    fit(tiny(), SETTINGS, source)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 11/22", "step 22/22"]
    fit(tiny(), SETTINGS, source, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.tensorflow_only
def test_a_sweep_counts_its_rates_and_their_time(source, capsys, watches):  # noqa: F811
    rates = dataclasses.replace(SETTINGS, base_lr=(0.1, 0.01), held_out=0.25)
    result = fit(tiny(), rates, source)
    lines = capsys.readouterr().out.splitlines()
    held_out = len(source.train.split(0.25, 0)[1])
    assert lines[0].startswith(f"trying 2 learning rates on {held_out} held-out images")
    assert lines[1] == "learning rate 1 of 2: 0.1"
    assert lines[2].startswith("rate 1/2  step 11/22  ")
    assert "  held-out loss " in lines[2]
    assert lines[4] == "learning rate 2 of 2: 0.01"
    best = f"best learning rate: {result.learning_rate:g}, with an accuracy of "
    assert lines[7].startswith(best)
    assert [watch.later_steps for watch in watches] == [44, 22, 0]


@pytest.mark.tensorflow_only
def test_an_error_starts_on_a_line_of_its_own(source, monkeypatch):  # noqa: F811
    def stop(*args, **logs):
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr(callbacks.Watch, "on_train_batch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny(), SETTINGS, source)
    assert sys.stdout.getvalue().endswith("compiling the training step\n")


@given(
    step=st.integers(0, 10**7),
    speed=st.none() | st.floats(0.01, 1e6),
    seconds=st.none() | st.floats(0, 1e8),
    logs=st.dictionaries(
        st.sampled_from(["loss", "accuracy", "val_loss", "val_accuracy"]),
        st.floats(0, 1e4),
    ),
    prefix=st.sampled_from(["", "rate 12/12"]),
)
def test_no_line_is_wrapped(step, speed, seconds, logs, prefix):
    watch = type("Watch", (), {})()
    watch.keeper = type("Keeper", (), {"step": step, "total_steps": 10**7})()
    watch.images_per_second, watch.seconds_left = speed, seconds
    logs |= {name: min(logs[name], 1) for name in logs if "accuracy" in name}
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        line = progress.ProgressLine(watch, "9 test images", "held-out", 1, prefix)
        line.on_train_batch_end(0, logs)
        line.on_epoch_end(0, logs)
        text = sys.stdout.getvalue()
    finally:
        sys.stdout = stdout
    for shown in re.split(r"[\r\n]", text):
        assert len(shown.rstrip()) < 80
        assert not shown or f"step {step}/10000000" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3569, "59 min"),
        (3571, "1 h 0 min"),
        (12_000, "3 h 20 min"),
        (86_369, "23 h 59 min"),
        (190_800, "2 d 5 h"),
    ],
)
def test_durations(seconds, words):
    assert progress.duration(seconds) == words
