"""Classes of transformers, read by us (`classes`)."""

import pytest

from tests.interop import classes

ATOL = 1e-5


@pytest.mark.parametrize("case", classes.CLASSES)
def test_outputs_and_gradients(case, tmp_path):
    result = classes.compare(case, tmp_path)
    assert not result.refused
    assert result.outputs <= ATOL
    assert result.gradients <= ATOL
