"""Every picture is as it was when somebody last looked at it.

After an intended change: `python -m tests.inspection.pictures`, look at the pictures in
build/pictures, and read what Git shows of tests/fixtures/pictures.
"""

import pytest

pytest.importorskip("matplotlib")
from keras_vit.inspection import plots
from tests.inspection import pictures

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize("name", pictures.EXAMPLES)
def test_picture_is_unchanged(name, tmp_path):
    expected = (pictures.FOLDER / f"{name}.txt").read_text()
    assert pictures.drawn(name, tmp_path) == expected


def test_every_public_picture_has_an_example():
    drawing = {*plots.__all__} - {"PRETRAINING", "check"}
    assert drawing <= {*pictures.EXAMPLES}
    files = {path.stem for path in pictures.FOLDER.iterdir()}
    assert files == {*pictures.EXAMPLES}
