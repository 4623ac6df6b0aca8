"""What the tests of pictures share."""

import pytest

from tests.inspection import pictures


@pytest.fixture
def figures():
    """The figures that are made, as they are."""
    with pictures.kept() as figures:
        yield figures
