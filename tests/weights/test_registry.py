"""The registry against arithmetic, and the laws its rows obey."""

import collections

import pytest

from keras_vit import configs
from keras_vit.weights import registry
from keras_vit.weights.registry import CHECKPOINTS, find, tags

AUGREG = "augreg/{}-300ep-lr_0.001-aug_{}.npz"
TUNED = "--imagenet2012-steps_20k-lr_{}-res_{}"


def test_every_published_file_is_there_once():
    counts = collections.Counter(row.tag for row in CHECKPOINTS)
    assert counts == {
        "imagenet21k": 9,
        "imagenet21k+imagenet2012": 6,
        "imagenet21k+imagenet2012-224": 2,
        "sam": 5,
        "gsam": 4,
        "augreg-imagenet21k": 10,
        "augreg-imagenet21k+imagenet2012": 9,
        "augreg-imagenet21k+imagenet2012-224": 10,
        "augreg-imagenet2012": 3,
        "augreg-imagenet2012-224": 3,
    }
    assert len({row.path for row in CHECKPOINTS}) == len(CHECKPOINTS)
    assert len({(row.variant, row.tag) for row in CHECKPOINTS}) == len(CHECKPOINTS)


@pytest.mark.parametrize(
    ("variant", "tag", "path", "pixels"),
    [
        ("ViT-B/16", "imagenet21k", "imagenet21k/ViT-B_16.npz", 224),
        (
            "R50+ViT-B/16",
            "imagenet21k+imagenet2012",
            "imagenet21k+imagenet2012/R50+ViT-B_16.npz",
            384,
        ),
        (
            "ViT-L/16",
            "imagenet21k+imagenet2012-224",
            "imagenet21k+imagenet2012/ViT-L_16-224.npz",
            224,
        ),
        ("ViT-S/16", "sam", "sam/ViT-S_16.npz", 224),
        (
            "ViT-B/16",
            "augreg-imagenet21k",
            AUGREG.format("B_16-i21k", "medium1-wd_0.1-do_0.0-sd_0.0"),
            224,
        ),
        (
            "R+ViT-Ti/16",
            "augreg-imagenet21k+imagenet2012",
            AUGREG.format(
                "R_Ti_16-i21k",
                "none-wd_0.03-do_0.0-sd_0.0" + TUNED.format(0.03, 384),
            ),
            384,
        ),
        (
            "R26+ViT-S/32",
            "augreg-imagenet21k+imagenet2012-224",
            AUGREG.format(
                "R26_S_32-i21k",
                "light0-wd_0.03-do_0.1-sd_0.1" + TUNED.format(0.03, 224),
            ),
            224,
        ),
        (
            "ViT-B/32",
            "augreg-imagenet21k+imagenet2012",
            AUGREG.format(
                "B_32-i21k", "light1-wd_0.1-do_0.0-sd_0.0" + TUNED.format(0.03, 384)
            ),
            384,
        ),
        (
            "ViT-B/16",
            "augreg-imagenet2012-224",
            AUGREG.format(
                "B_16-i1k", "strong2-wd_0.1-do_0.1-sd_0.1" + TUNED.format(0.01, 224)
            ),
            224,
        ),
    ],
)
def test_paths(variant, tag, path, pixels):
    row = find(variant, tag)
    assert row.path == path
    assert row.image_size == (pixels, pixels)
    assert row.mirrors[0].format == "npz"
    assert row.mirrors[0].url == registry.BUCKET + path.replace("+", "%2B")


def _parameters(row):
    """Eq. 1 to 4 counted by hand, with pre_logits in the imagenet21k originals."""
    config = configs.VARIANTS[row.variant]
    d, mlp, patch = config.hidden_size, config.mlp_dim, config.patch_size
    tokens = (row.image_size[0] // patch) * (row.image_size[1] // patch) + 1
    layer = 4 * d * (d + 1) + mlp * (d + 1) + d * (mlp + 1) + 4 * d
    embedding = d * (3 * patch**2 + 1) + d + tokens * d
    pre_logits = d * (d + 1) if row.tag == "imagenet21k" else 0
    head = row.num_classes * (d + 1)
    return embedding + config.num_layers * layer + 2 * d + pre_logits + head


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in CHECKPOINTS
        if row.size
        and row.variant.startswith("ViT")
        and (row.variant, row.tag) != ("ViT-S/16", "sam")  # Holds more than weights.
    ],
    ids=lambda row: f"{row.variant}-{row.tag}",
)
def test_published_size_is_four_bytes_a_parameter_and_a_zip(row):
    """Each of 16 tensors a layer has some 350 bytes of zip and npy headers."""
    layers = configs.VARIANTS[row.variant].num_layers
    tensors = 16 * layers + 10
    least = 4 * _parameters(row) + 250 * tensors
    lower, upper = row.size_bounds()
    assert lower <= least + 200 * tensors
    assert least <= upper


def test_size_bounds_are_half_a_unit_of_the_last_place():
    row = find("ViT-B/16", "imagenet21k+imagenet2012")
    assert row.size == "331.40 MiB"
    lower, upper = row.size_bounds()
    assert round(lower / 2**20, 2) == round(upper / 2**20, 2) == 331.40
    assert round((lower - 1) / 2**20, 2) == 331.39
    assert round((upper + 1) / 2**20, 2) == 331.41
    assert find("ViT-B/16", "gsam").size_bounds() is None


def test_labels_heads_and_table_5():
    original = find("ViT-L/16", "imagenet21k")
    assert (original.num_classes, original.labels) == (21_843, "imagenet21k")
    assert original.zero_head
    assert original.accuracy is None
    assert not find("ViT-L/16", "augreg-imagenet21k").zero_head
    tuned = find("ViT-L/16", "imagenet21k+imagenet2012")
    assert (tuned.num_classes, tuned.labels) == (1_000, "imagenet2012")
    known = {(row.variant, row.accuracy) for row in CHECKPOINTS if row.accuracy}
    assert known == {
        ("ViT-B/16", 83.97),
        ("ViT-B/32", 81.28),
        ("ViT-L/16", 85.15),
        ("ViT-L/32", 80.99),
    }
    assert {row.value_range for row in CHECKPOINTS} == {(-1.0, 1.0)}


def test_mirrors():
    urls = {mirror.url: mirror.format for row in CHECKPOINTS for mirror in row.mirrors}
    assert len(urls) == sum(len(row.mirrors) for row in CHECKPOINTS)  # No repeats.
    assert sum("vit-keras" in url for url in urls) == 8
    assert not any("+" in url for url in urls)
    hub = "https://huggingface.co/{}/resolve/main/model.safetensors"
    for name, dialect in {
        "timm/vit_base_r50_s16_384.orig_in21k_ft_in1k": "timm",
        "timm/vit_base_patch16_224.orig_in21k_ft_in1k": "timm",
        "timm/vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k": "timm",
        "timm/vit_small_patch16_224.augreg_in1k": "timm",
        "timm/vit_base_patch32_224.sam_in1k": "timm",
        "google/vit-huge-patch14-224-in21k": "hf",
    }.items():
        assert urls[hub.format(name)] == dialect
    assert {m.format for m in find("ViT-B/16", "gsam").mirrors} == {"npz"}


def test_find_takes_builder_names():
    assert find("ViT_B16", "sam") is find("ViT-B/16", "sam")
    assert find("R50_ViT_B16", "imagenet21k").variant == "R50+ViT-B/16"
    assert tags("R_ViT_Ti16") == tags("R+ViT-Ti/16")
    assert tags("ViT-H/14") == ("imagenet21k",)


def test_unknown_tag_names_those_that_exist():
    with pytest.raises(ValueError, match="Did you mean 'imagenet21k'") as error:
        find("ViT-H/14", "imagenet-21k")
    assert "published for ViT-H/14: imagenet21k. Received" in str(error.value)


def test_variant_without_weights():
    assert tags("R50+ViT-L/16") == ()
    with pytest.raises(ValueError, match=r"Received: variant='R50\+ViT-L/16'"):
        find("R50+ViT-L/16", "imagenet21k")
