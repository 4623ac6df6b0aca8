"""One writer for a run's folder: the second process does not train, or waits."""

import errno
import fcntl
import json
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit import manifest, weights
from keras_vit.training import fit, locking
from keras_vit.training.distribution import Workers
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401

pytestmark = pytest.mark.tensorflow_only

ALONE = Workers(None)
HOLDER = """
import json, sys
from filelock import FileLock
folder = sys.argv[1]
lock = FileLock(folder + "/.lock")
lock.acquire()
told = {"host": "elsewhere", "pid": 4321, "started": "2026-11-25T06:00:00+00:00"}
open(folder + "/.writer.json", "w").write(json.dumps(told))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process trains."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield tmp_path, process
        process.kill()


def test_a_second_process_does_not_train(held, source):  # noqa: F811
    folder, _ = held
    expected = r"process 4321 on elsewhere, since 2026.*--wait, wait=True"
    with pytest.raises(locking.RunInUse, match=expected):
        fit(tiny(), recipe(), source, output=folder, verbose=0)
    assert {path.name for path in folder.iterdir()} == {".lock", ".writer.json"}


def test_the_lock_of_a_killed_process_is_taken_over(held):
    folder, process = held
    process.kill()
    process.wait()
    assert (folder / ".writer.json").exists()
    with locking.one_writer(folder, ALONE):
        owner = json.loads((folder / ".writer.json").read_text())
        assert owner["pid"] != 4321
    assert not list(folder.iterdir())


def test_waiting(held, capsys, monkeypatch):
    folder, process = held
    monkeypatch.setattr(locking, "SECONDS", 0.05)
    threading.Timer(0.3, process.kill).start()
    with locking.one_writer(folder, ALONE, wait=True):
        assert process.wait() < 0
    said = capsys.readouterr().out
    assert said.count("Waiting for") == 1
    assert "process 4321 on elsewhere" in said


def test_a_command_exits_with_75(held, shell, source, tmp_path):  # noqa: F811
    from keras_vit.cli.shell import app

    folder, _ = held

    @app.command("train-for-a-test", needs_keras=False)
    def train() -> None:
        with locking.one_writer(folder, ALONE):
            pytest.fail("It has the lock")

    try:
        code, _, err = shell("train-for-a-test")
    finally:
        app.registered_commands.pop()
    assert code == 75
    assert err.startswith("keras-vit: A different process trains in")
    assert "process 4321 on elsewhere" in err


def test_inside_itself_it_does_nothing_and_another_thread_is_refused(tmp_path):
    found = []

    def other():
        try:
            with locking.one_writer(tmp_path / "run", ALONE):
                found.append("it has the lock")
        except locking.RunInUse as error:
            found.append(str(error))

    with locking.one_writer(tmp_path / "run", ALONE):
        with locking.one_writer(tmp_path / "run", ALONE):
            pass
        assert (tmp_path / "run/.lock").exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "A different process trains in" in found[0]
    assert not list(tmp_path.iterdir())  # An empty folder of ours goes too.


class Second(Workers):
    """The second of two processes of one training, whose chief is told `busy`."""

    index, count = 1, 2

    def __init__(self, busy):
        super().__init__(None)
        self.busy = busy

    def any(self, *asked):
        assert asked == (False,)
        return [self.busy]


def test_workers_are_one_writer(held):
    folder, _ = held
    with locking.one_writer(folder, Second(busy=False)):  # The chief has the lock.
        pass
    with (
        pytest.raises(locking.RunInUse, match="process 4321"),
        locking.one_writer(folder, Second(busy=True)),
    ):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.warns(UserWarning, match="This file system has no locks.*one run at"),
        locking.one_writer(tmp_path, ALONE),
    ):
        pass


def test_a_file_system_whose_locks_are_files(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        with locking.one_writer(tmp_path, ALONE):
            token = locking._entered.set(frozenset())
            with (
                pytest.raises(locking.RunInUse),
                locking.one_writer(tmp_path, ALONE),
            ):
                pass
            locking._entered.reset(token)
            manifest.write(tmp_path)  # Without the lock, which is a file now.
    assert manifest.verify(tmp_path).whole
    (tmp_path / manifest.FILE).unlink()
    said = [str(warning.message) for warning in noted]
    assert any("has ended, delete" in text for text in said)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_option_leaves_the_old_run(source, tmp_path):  # noqa: F811
    (tmp_path / "history.json").write_text("{}")
    with pytest.raises(ValueError, match="model with one logit for each class"):
        fit(tiny(classes=5), recipe(), source, output=tmp_path, resume="never")
    assert (tmp_path / "history.json").exists()


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("command", ["vtab", "data-size"])
def test_commands_of_several_trainings_wait(
    command,
    wait,
    shell,
    source,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    def acquire(folder, workers, wait, held):
        raise locking.RunInUse(f"{folder.name}, wait={wait}")

    monkeypatch.setattr(locking, "_acquire", acquire)
    words = ["--output", tmp_path / "study", *["--wait"] * wait]
    if command == "vtab":
        weights.save(tiny(), tmp_path / "tiny.npz")
        words += ["--weights", tmp_path / "tiny.npz", "--image-size", 32, "dtd"]
    else:
        np.savez(
            tmp_path / "colors.npz",
            x_train=source.train.images,
            y_train=source.train.labels,
            x_test=source.test.images,
            y_test=source.test.labels,
        )
        words += ["--data", tmp_path / "colors.npz", "--model", "ViT-Ti/16"]
        words += ["--lr", 0.01]
        words += ["--image-size", 32, "--steps", 2, "--batch-size", 8, "--shots", 1]
    code, _, err = shell(command, *words)
    assert code == 75, err
    assert err.startswith(f"keras-vit: study, wait={wait}.")
