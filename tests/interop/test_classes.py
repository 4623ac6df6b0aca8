"""Classes of transformers, read by us (`classes`)."""

import pytest

from tests.interop import classes

ATOL = 1e-5
# In float64; outputs of DeiT's two heads, whose biases are added in float32.
EXACT, HEADS = 1e-11, 1e-8
# In float64: transformers computes angles and SigLIP 2's resizing in float32.
ROUNDED = 1e-5


@pytest.mark.parametrize("case", classes.CLASSES)
def test_outputs_and_gradients(case, tmp_path):
    result = classes.compare(case, tmp_path)
    assert not result.refused
    assert result.outputs <= ATOL
    rounded = result.rotary or case == "Siglip2VisionModel"
    assert result.exact <= (ROUNDED if rounded else HEADS)
    assert result.gradients <= (ROUNDED if rounded else EXACT)
