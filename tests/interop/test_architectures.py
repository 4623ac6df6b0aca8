"""Every architecture of timm's ViT and BiT modules, read by us (`architectures`)."""

import json

import pytest
import timm

from keras_vit import weights
from keras_vit.weights import timm_names
from tests.interop import architectures

ATOL = 1e-5
STEMS = 1e-4  # A hybrid's whole stem, standardized kernels and norms, in float32.
# In float64; outputs of DeiT's two heads, whose biases are added in float32.
EXACT, HEADS = 1e-11, 1e-8
ANGLES = 2e-6  # In float64, of rotary angles that timm computes in float32.
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
    assert result.exact <= (ANGLES if result.rotary else HEADS)
    assert result.gradients <= (ANGLES if result.rotary else EXACT)


def test_configs_of_all_tags(tmp_path):
    """Each published preprocessing, too: a refusal names the family."""
    read = []
    for module in architectures.MODULES:
        for tag in timm.list_models(module=module, pretrained=True):
            architecture = tag.partition(".")[0]
            own = timm.get_pretrained_cfg(tag)
            stated = own.to_dict(remove_source=True, remove_null=True)
            stated.pop("architecture", None)
            content = {"architecture": architecture, "pretrained_cfg": stated}
            (tmp_path / "config.json").write_text(json.dumps(content))
            if timm_names.family_refused(architecture):
                with pytest.raises(ValueError, match="with "):
                    weights.config_beside(tmp_path)
                continue
            weights.config_beside(tmp_path)
            read.append(tag)
    assert len(read) >= 420


def test_most_tags_are_read(capsys):
    """Runs last: prints the table of the others."""
    with capsys.disabled():
        print("\n" + architectures.table(RESULTS.values()))
    if len(RESULTS) == len(architectures.tags()):
        read = sum(at.tags for at in RESULTS.values() if not at.refused)
        assert read >= 420


def test_every_known_architecture_is_timms():
    deprecated = timm.models._registry._deprecated_models
    assert timm_names.HEADS.keys() <= {*architectures.tags(), *deprecated}
