"""The registry against arithmetic, and the laws its rows obey."""

import collections
import itertools
import re
from urllib.parse import unquote, urlsplit

import pytest

from keras_vit import applications, configs
from keras_vit.weights import registry
from keras_vit.weights.registry import CHECKPOINTS, find, references, select, tags

pytestmark = pytest.mark.tensorflow_only

AUGREG = "augreg/{}-300ep-lr_0.001-aug_{}.npz"
TUNED = "--imagenet2012-steps_20k-lr_{}-res_{}"


def test_every_published_file_is_there_once():
    counts = collections.Counter(row.tag for row in CHECKPOINTS)
    assert counts == {
        "imagenet21k": 9 + 6,  # And BiT's.
        "imagenet21k+imagenet2012": 6 + 6,
        "imagenet2012": 6,
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


def of_table_5(row):
    return row.accuracy_source == "Table 5"


def test_labels_heads_and_table_5():
    original = find("ViT-L/16", "imagenet21k")
    assert (original.num_classes, original.labels) == (21_843, "imagenet21k")
    assert original.zero_head
    assert original.accuracy is None
    assert not find("ViT-L/16", "augreg-imagenet21k").zero_head
    tuned = find("ViT-L/16", "imagenet21k+imagenet2012")
    assert (tuned.num_classes, tuned.labels) == (1_000, "imagenet2012")
    known = {row.variant: row.accuracy for row in CHECKPOINTS if of_table_5(row)}
    assert known == {
        "ViT-B/16": 83.97,
        "ViT-B/32": 81.28,
        "ViT-L/16": 85.15,
        "ViT-L/32": 80.99,
    }
    for row in CHECKPOINTS:
        assert bool(row.accuracy) == bool(row.accuracy_source)
    assert {row.value_range for row in CHECKPOINTS} == {(-1.0, 1.0)}


def repositories(owner):
    """Every Hugging Face repository of `owner` that is a mirror, with its dialect."""
    urls = {m.url: m.format for row in CHECKPOINTS for m in row.mirrors}
    found = ((urlsplit(url).path.split("/"), urls[url]) for url in urls)
    return {parts[2]: dialect for (parts, dialect) in found if parts[1] == owner}


def braces(text):
    """'a_{b,c}' as the shell expands it."""
    parts = [part.split(",") for part in re.split("[{}]", text)]
    return {"".join(choice) for choice in itertools.product(*parts)}


def test_urls():
    urls = [mirror.url for row in CHECKPOINTS for mirror in row.mirrors]
    assert len(set(urls)) == len(urls)  # No copy stands under two tags or variants.
    assert sum("vit-keras" in url for url in urls) == 8
    for row in CHECKPOINTS:
        first, *copies = row.mirrors
        bucket = "bit_models" if row.variant.startswith("BiT") else "vit_models"
        assert unquote(urlsplit(first.url).path) == f"/{bucket}/{row.path}"
        for mirror in row.mirrors:
            parts = urlsplit(mirror.url)
            assert parts.scheme == "https"
            assert re.fullmatch(r"(/[\w.%-]+)+", parts.path)  # "+" is escaped.
            assert not parts.query + parts.fragment
            ending = ".npz" if mirror.format == "npz" else "/model.safetensors"
            assert parts.path.endswith(ending)
        for mirror in copies:
            assert urlsplit(mirror.url).netloc in ("huggingface.co", "github.com")


def test_timms_names_are_those_it_publishes():
    """Its list of the trainings, written here as timm writes it."""
    augreg = (
        "vit_{tiny,small,base,large}_patch16",
        "vit_{small,base}_patch32",
        "vit_tiny_r_s16_p8",
        "vit_small_r26_s32",
        "vit_large_r50_s32",
    )
    published = (
        "vit_{base,large}_patch{16,32}_224.orig_in21k",
        "vit_huge_patch14_224.orig_in21k",
        "vit_base_r50_s16_224.orig_in21k",
        "vit_base_patch16_{224,384}.orig_in21k_ft_in1k",
        "vit_large_patch32_384.orig_in21k_ft_in1k",
        "vit_base_r50_s16_384.orig_in21k_ft_in1k",
        *(name + "_224.augreg_in21k" for name in augreg),
        *(name + "_{224,384}.augreg_in21k_ft_in1k" for name in augreg),
        "vit_base_patch8_224.augreg_in21k{,_ft_in1k}",
        "vit_{small,base}_patch16_{224,384}.augreg_in1k",
        "vit_base_patch32_{224,384}.augreg_in1k",
        "vit_base_patch{16,32}_224.sam_in1k",
        "resnetv2_{50,101}x{1,3}_bit.goog_in21k{,_ft_in1k}",
        "resnetv2_152x{2,4}_bit.goog_in21k{,_ft_in1k}",
    )
    names = repositories("timm")
    assert set(names) == set().union(*map(braces, published))
    assert set(names.values()) == {"timm"}


def test_googles_names_are_those_it_publishes():
    published = (
        "vit-{base,large}-patch{16,32}-224-in21k",
        "vit-huge-patch14-224-in21k",
        "vit-{base,large}-patch{16,32}-384",
        "vit-{base,large}-patch16-224",
        "vit-hybrid-base-bit-384",
    )
    names = repositories("google")
    assert set(names) == set().union(*map(braces, published))
    assert set(names.values()) == {"hf"}


@pytest.mark.parametrize("row", CHECKPOINTS, ids=lambda row: f"{row.variant}-{row.tag}")
def test_copies_are_of_the_rows_training(row):
    """Each repository's name says variant, training and pixels, as its row does."""
    words = {  # Of timm's names; Google's say "in21k" or nothing.
        "imagenet21k": ("orig_in21k", "goog_in21k"),
        "imagenet21k+imagenet2012": ("orig_in21k_ft_in1k", "goog_in21k_ft_in1k"),
        "sam": ("sam_in1k",),
        "augreg-imagenet21k": ("augreg_in21k",),
        "augreg-imagenet21k+imagenet2012": ("augreg_in21k_ft_in1k",),
        "augreg-imagenet2012": ("augreg_in1k",),
    }
    pixels = str(row.image_size[0])
    for mirror in row.mirrors[1:]:
        if mirror.format == "npz":
            name = unquote(mirror.url.rpartition("/")[2])
            assert name == f"{row.variant.replace('/', '_')}_{row.tag}.npz"
            continue
        name = urlsplit(mirror.url).path.split("/")[2]
        architecture, _, training = name.partition(".")
        if mirror.format == "timm":
            assert training in words[row.tag.removesuffix("-224")]
        else:
            assert name.endswith("-in21k") == (row.tag == "imagenet21k")
        if row.variant.startswith("BiT"):
            width = row.variant.removeprefix("BiT-R")
            assert architecture == f"resnetv2_{width}_bit"
            continue
        assert re.search(rf"[_-]{pixels}(-in21k)?$", architecture)
        patch = row.variant.rpartition("/")[2]
        if row.variant.startswith("ViT"):
            assert re.search(rf"patch{patch}[_-]", architecture)


def test_rows_with_one_source():
    alone = collections.defaultdict(set)
    for row in CHECKPOINTS:
        if len(row.mirrors) == 1:
            alone[row.tag].add(row.variant)
    bit = {row.variant for row in CHECKPOINTS if row.variant.startswith("BiT")}
    assert alone == {
        "imagenet21k": {"ViT-B/8", "R26+ViT-B/32", "R50+ViT-L/32"},
        "imagenet21k+imagenet2012": {"ViT-B/8"},
        "imagenet2012": bit,
        "sam": {"ViT-S/16", "ViT-L/16", "ViT-L/32"},
        "gsam": {"ViT-S/16", "ViT-S/32", "ViT-B/16", "ViT-B/32"},
    }


def test_origins():
    papers = {(row.tag.partition("-")[0], row.origin) for row in CHECKPOINTS}
    assert papers == {
        ("imagenet21k", "ViT (arXiv:2010.11929)"),
        ("imagenet21k", "vit_jax, not in the paper"),
        ("imagenet21k", "BiT (arXiv:1912.11370)"),
        ("imagenet21k+imagenet2012", "ViT (arXiv:2010.11929)"),
        ("imagenet21k+imagenet2012", "vit_jax, not in the paper"),
        ("imagenet21k+imagenet2012", "BiT (arXiv:1912.11370)"),
        ("imagenet2012", "BiT (arXiv:1912.11370)"),
        *((tag, "big_transfer, not in the paper") for tag in tags("BiT-R152x2")),
        ("sam", "SAM (arXiv:2106.01548)"),
        ("gsam", "GSAM (arXiv:2203.08065)"),
        ("augreg", "AugReg (arXiv:2106.10270)"),
    }
    assert {row.licence for row in CHECKPOINTS} == {"Apache-2.0"}
    assert {row.variant for row in CHECKPOINTS if "not in" in row.origin} == {
        "ViT-B/8",
        "R26+ViT-B/32",
        "BiT-R152x2",
    }


def test_bit():
    assert tags("BiT_R50x1") == tags("BiT-R50x1")
    assert tags("BiT_R50x1") == (
        "imagenet2012",
        "imagenet21k",
        "imagenet21k+imagenet2012",
    )
    assert tags("BiT_R200x3") == ()
    row = find("BiT_R152x4", "imagenet21k+imagenet2012")
    assert row.path == "BiT-M-R152x4-ILSVRC2012.npz"
    assert (row.num_classes, row.image_size, row.size) == (1000, (480, 480), None)
    row = find("BiT-R101x3", "imagenet21k")
    assert (row.num_classes, row.image_size) == (21_843, (224, 224))
    assert not row.zero_head
    assert find("BiT-R50x3", "imagenet2012").path == "BiT-S-R50x3.npz"


@pytest.mark.parametrize("reference", registry.REFERENCES, ids=lambda r: r.output)
def test_references_are_of_rows(reference):
    row = find(reference.variant, reference.tag)
    assert reference in references(row.variant, row.tag)
    assert reference.image_size == row.image_size
    assert 0 < reference.tolerance < 0.01
    assert len(dict(reference.expected)) == len(reference.expected)
    if reference.output != "class_token":
        assert all(index < row.num_classes for index, _ in reference.expected)
    if isinstance(reference.image, str):
        assert urlsplit(reference.image).scheme == "https"
    assert (reference.resize == "none") == (reference.interpolation is None)
    assert reference.source
    assert reference.believed  # All of them rest on something.


def test_expected_values_are_those_of_the_sources():
    """Copied from the sources a second time: each is in the file named by `source`."""
    published = {
        ("bumblebee", "logits"): "0.0112, -0.5065, -0.7792",
        ("bumblebee", "class_token"): "0.4435, 0.4302, -0.1585",
        ("test_modeling_vit.py", "logits"): "-0.2744, 0.8215, -0.0836",
        ("test_modeling_vit_hybrid.py", "logits"): "-1.9090, -0.4993, -0.2389",
        ("test_modeling_bit.py", "logits"): "-0.6526, -0.5263, -1.4398",
        ("vit_jax.ipynb", "probabilities"): "0.52548, 0.16299, 0.12497, 0.04307, "
        "0.02912, 0.02730, 0.01116, 0.00892, 0.00597, 0.00570",
    }
    assert len(published) == len(registry.REFERENCES)
    for (source, output), values in published.items():
        [reference] = [
            one
            for one in registry.REFERENCES
            if source in one.source and one.output == output
        ]
        expected = [float(value) for value in values.split(", ")]
        assert [value for _, value in reference.expected] == expected
        if output != "probabilities":
            assert [index for index, _ in reference.expected] == [0, 1, 2]


def test_references_by_name():
    [lake] = references("ViT_B32", "imagenet21k+imagenet2012")
    labels = applications.imagenet2012_labels()
    assert [labels[index].split(",")[0] for index, _ in lake.expected] == [
        "lakeside",
        "promontory",
        "volcano",
        "valley",
        "cliff",
        "seashore",
        "dam",
        "geyser",
        "sandbar",
        "alp",
    ]
    assert [value for _, value in lake.expected] == sorted(
        (value for _, value in lake.expected), reverse=True
    )
    assert sum(value for _, value in lake.expected) < 1
    assert len(references("ViT-B/16", "imagenet21k+imagenet2012-224")) == 3
    assert references("ViT-B/16", "imagenet21k") == ()


def test_select():
    assert select() == list(CHECKPOINTS)
    assert [row.tag for row in select("ViT_H14")] == ["imagenet21k"]
    assert {row.tag for row in select(tag="gsam")} == {"gsam"}
    assert select("ViT-B/16", "sam") == [find("ViT-B/16", "sam")]
    with pytest.raises(ValueError, match="Expected tag to be one of imagenet21k, "):
        select(tag="gsan")
    with pytest.raises(ValueError, match="Expected a variant with published weights"):
        select("BiT_R200x3")


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
