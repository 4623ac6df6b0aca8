"""Every architecture of timm's ViT and BiT modules, read by us (`architectures`)."""

import pytest

from keras_vit.weights import timm_names
from tests.interop import architectures

ATOL = 1e-5
STEMS = 1e-4  # A hybrid's whole stem, standardised kernels and norms, in float32.
RESULTS = {}


@pytest.mark.parametrize("name", architectures.tags())
def test_outputs_features_and_gradients(name, tmp_path):
    result = RESULTS[name] = architectures.compare(name, tmp_path)
    if result.refused:
        assert timm_names.family_refused(name) or "crop_mode" in result.refused
        return
    stem = "_r26_" in name or "_r50_" in name or "_r_s16" in name
    limit = STEMS if stem else ATOL
    assert result.outputs <= limit
    assert result.features <= limit
    if not stem:  # The stem's norms of few places amplify them.
        assert result.gradients <= limit


def test_most_tags_are_read(capsys):
    """Runs last: prints the table of the others."""
    with capsys.disabled():
        print("\n" + architectures.table(RESULTS.values()))
    if len(RESULTS) == len(architectures.tags()):
        read = sum(at.tags for at in RESULTS.values() if not at.refused)
        assert read >= 420


def test_every_known_architecture_is_timms():
    import timm

    deprecated = timm.models._registry._deprecated_models
    assert timm_names.HEADS.keys() <= {*architectures.tags(), *deprecated}
