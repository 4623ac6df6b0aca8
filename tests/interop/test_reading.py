"""What timm and transformers write, read by us."""

import pytest

import keras_vit
from tests.interop import making

ATOL = 1e-4


@pytest.mark.parametrize("family", making.FAMILIES)
def test_outputs_are_the_librarys(family, tmp_path, agree):
    pixels, theirs = making.make(family, tmp_path, seed=100)
    images = keras_vit.preprocess_input(pixels)
    model = keras_vit.from_checkpoint(tmp_path, image_size=images.shape[1:3])
    agree(f"read {family}", model.predict(images, verbose=0), theirs, ATOL)


@pytest.mark.parametrize("family", making.REFUSED)
def test_what_we_do_not_compute_is_refused(family, tmp_path):
    making.make(family, tmp_path)
    with pytest.raises(ValueError, match=making.REFUSED[family]):
        keras_vit.from_checkpoint(tmp_path, image_size=(32, 32))
