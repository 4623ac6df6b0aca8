"""What the tests of pictures share."""

import contextlib

import pytest

from keras_vit.inspection.plots import canvas


@pytest.fixture
def figures(monkeypatch):
    """The figures that are made, as they are."""
    made, picture = [], canvas.picture

    @contextlib.contextmanager
    def kept(*where):
        with picture(*where) as figure:
            made.append(figure)
            yield figure

    monkeypatch.setattr(canvas, "picture", kept)
    return made
