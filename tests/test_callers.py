"""Warnings point at the user's line, from wherever in the library they come."""

import ast
import concurrent.futures
import contextlib
import importlib
import linecache
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.callers import warn, warn_once
from keras_vit.data.sources import open_source

PACKAGE = Path(keras_vit.__file__).parent


@contextlib.contextmanager
def one_warning(message, at):
    """Asserts that the body has one such warning, at a line of this file."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    (one,) = [warning for warning in seen if message in str(warning.message)]
    assert one.filename == __file__
    assert at in linecache.getline(__file__, one.lineno)


def as_in(module, source, **names):
    """Defines functions as a module of that name would."""
    space = {"__name__": module, "warn": warn} | names
    exec(source, space)
    return space


def test_nothing_else_warns():
    """No module has a second way, or counts frames."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "warnings.warn", path
            assert getattr(node, "arg", None) != "stacklevel", path


def test_files_of_a_folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(5):
            image = Image.fromarray(np.full((8, 8, 3), i, "uint8"))
            image.save(tmp_path / name / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("mine")
    with one_warning("left out 1 file", at="open_source("):
        open_source(tmp_path)


def test_a_deprecated_module():
    sys.modules.pop("keras_vit.training.watching", None)
    with one_warning("is now called", at="import_module("):
        importlib.import_module("keras_vit.training.watching")


def test_in_a_callback_of_keras():
    class Mine(keras.callbacks.Callback):
        on_train_begin = as_in(
            "keras_vit.training.callbacks",
            "def on_train_begin(self, logs=None):\n    warn('in a callback')",
        )["on_train_begin"]

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with one_warning("in a callback", at="model.fit("):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[Mine()])


def test_in_a_context_of_the_library():
    going_on = as_in(
        "keras_vit.training.resume",
        "@contextmanager\n"
        "def going_on():\n"
        "    try:\n"
        "        yield\n"
        "    except OSError as error:\n"
        "        warn(str(error))",
        contextmanager=contextlib.contextmanager,
    )["going_on"]
    with one_warning("disk is full", at="going_on()"), going_on():
        raise OSError("the disk is full")


def test_in_a_thread_of_the_library():
    work = as_in("keras_vit.data.work", "def work():\n    warn('in a thread')")["work"]
    pool = concurrent.futures.ThreadPoolExecutor(1)
    with pool, pytest.warns(UserWarning, match="in a thread") as seen:
        pool.submit(work).result()
    assert seen[0].filename == "<string>"  # The library's own line.


def test_once_for_each_message():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for message in ("first of two", "second of two", "first of two"):
            warn_once(message)
    assert [str(one.message) for one in seen] == ["first of two", "second of two"]


def test_filters_see_the_users_module():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module=__name__)
        with pytest.raises(FutureWarning, match="of my module"):
            warn("of my module", FutureWarning)
