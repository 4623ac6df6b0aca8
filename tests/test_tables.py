"""Plain data tables, whole: no single entry of them can change without a failing test.

Where a table is short, it is repeated here from its source. Where it is long, its
digest is here: whoever changes the table compares it with the source again.
"""

import dataclasses
import hashlib
import json

import pytest

from keras_vit import configs, paper
from keras_vit.configs import NUMERICS
from keras_vit.data import vtab
from keras_vit.evaluation import comparison
from keras_vit.inspection.devices import DEVICES
from keras_vit.recipes import AUGREG, IMAGES, PRETRAIN, bit_hyperrule
from keras_vit.weights import registry

pytestmark = pytest.mark.tensorflow_only


def digest(values):
    """SHA-256 of plain values as compact JSON."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def fields(row, *names):
    return {name: getattr(row, name) for name in names}


def test_every_published_checkpoint():
    """Sizes: vit_jax's notebook and README. Paths: timm's list of the same files.

    Accuracies: Table 5, vit_jax's README and timm's docs/models/big-transfer.md.
    """
    rows = [
        {
            **fields(row, "variant", "tag", "path", "size", "image_size"),
            **fields(row, "num_classes", "labels", "origin", "licence", "sha256"),
            **fields(row, "value_range", "accuracy", "accuracy_source", "zero_head"),
            "mirrors": [[mirror.url, mirror.format] for mirror in row.mirrors],
        }
        for row in registry.CHECKPOINTS
    ]
    assert len(rows) == 79
    assert digest(rows) == (
        "58fdc77641b7d65a2672136d2c1b950c854be79974ca2569b985abbaa0780009"
    )


def test_accuracies_that_others_published():
    found = {
        (row.variant, row.tag.removeprefix("imagenet21k+imagenet2012")): row.accuracy
        for row in registry.CHECKPOINTS
        if row.accuracy_source in ("vit_jax", "timm")
    }
    assert found == {
        ("ViT-B/16", "-224"): 81.2,
        ("ViT-L/16", "-224"): 82.7,
        ("BiT-R50x1", ""): 80.19,
        ("BiT-R50x3", ""): 83.75,
        ("BiT-R101x1", ""): 82.21,
        ("BiT-R101x3", ""): 84.38,
        ("BiT-R152x2", ""): 84.4,
        ("BiT-R152x4", ""): 84.95,
    }


def test_outputs_that_others_published():
    """The sources are named in each row."""
    rows = [
        {
            **fields(row, "variant", "tag", "image", "image_size", "resize"),
            **fields(row, "interpolation", "half_range", "output", "expected"),
            **fields(row, "tolerance", "numerics"),
        }
        for row in registry.REFERENCES
    ]
    assert len(rows) == 6
    assert digest(rows) == (
        "65609e9d608becade1b27580041bfffdc592530aec8c9ec7173e431557068569"
    )


def test_devices():
    """Dense TFLOP/s of 16 bits, and memory as the driver states it (TPUs: GiB)."""
    found = {
        name: (device.teraflops, device.memory / 2**20)
        for name, device in DEVICES.items()
    }
    assert found == {
        "TPUv3-core": (61.5, 16 * 1024),
        "TPUv4": (275, 32 * 1024),
        "TPUv5e": (197, 16 * 1024),
        "TPUv5p": (459, 95 * 1024),
        "TPUv6e": (918, 32 * 1024),
        "A100-40GB": (312, 40_960),
        "A100-80GB": (312, 81_920),
        "H100": (989, 81_559),
        "H200": (989, 143_771),
        "B200": (2250, 183_359),
        "L4": (121, 23_034),
        "RTX4090": (165.2, 24_564),
        "T4": (65, 15_360),
    }


def test_numerics():
    """vit_jax, big_transfer; timm's and transformers' defaults."""
    torch = {
        "kernel_epsilon": 1e-8,
        "epsilon_outside": False,
        "group_norm_epsilon": 1e-5,
    }
    expected = {
        "paper": {
            "vit": {"gelu": "tanh", "layer_norm_epsilon": 1e-6},
            "v1": {
                "kernel_epsilon": 1e-5,
                "epsilon_outside": True,
                "group_norm_epsilon": 1e-6,
            },
            "v2": {
                "kernel_epsilon": 1e-10,
                "epsilon_outside": False,
                "group_norm_epsilon": 1e-5,
            },
        },
        "timm": {
            "vit": {"gelu": "erf", "layer_norm_epsilon": 1e-6},
            "v1": torch,
            "v2": torch,
        },
        "hf": {
            "vit": {"gelu": "erf", "layer_norm_epsilon": 1e-12},
            "v1": torch,
            "v2": torch,
        },
    }
    assert expected == NUMERICS


def test_every_variant_of_a_vit():
    """Table 1 (B, L, H), DeiT's and AugReg's (Ti, S); vit_jax/configs/models.py."""
    sizes = {
        "Ti": (12, 192, 768, 3),
        "S": (12, 384, 1536, 6),
        "B": (12, 768, 3072, 12),
        "L": (24, 1024, 4096, 16),
        "H": (32, 1280, 5120, 16),
    }
    names = ("num_layers", "hidden_size", "mlp_dim", "num_heads")
    found = {
        size: tuple(fields(row, *names).values())
        for size, row in configs.TABLE_1.items()
    }
    assert found == sizes
    patches = {
        "Ti/16": (16, 0.0),
        "S/16": (16, 0.0),
        "S/32": (32, 0.0),
        "B/8": (8, 0.0),
        "B/16": (16, 0.0),
        "B/32": (32, 0.0),
        "L/16": (16, 0.1),
        "L/32": (32, 0.0),
        "H/14": (14, 0.1),
    }
    expected = {
        f"ViT-{name}": configs.ViTConfig(
            **dict(zip(names, sizes[name.partition("/")[0]], strict=True)),
            patch_size=patch_size,
            dropout_rate=dropout,
        )
        for name, (patch_size, dropout) in patches.items()
    }
    assert expected == configs.VIT_VARIANTS


def test_table_1_is_the_papers(paper_facts):
    """The numbers of B, L and H are in the facts taken from the paper."""
    for size, name in {"B": "Base", "L": "Large", "H": "Huge"}.items():
        row = configs.TABLE_1[size]
        numbers = (row.num_layers, row.hidden_size, row.mlp_dim, row.num_heads)
        line = " | ".join(map(str, (f"ViT-{name}", *numbers)))
        assert f"| {line} | " in paper_facts


def test_every_variant_with_a_resnet():
    """big_transfer and vit_jax/configs/models.py; R50 is (3, 4, 6, 3)."""
    hybrids = {
        "R+ViT-Ti/16": ("Ti", (), 8, 0.0),
        "R26+ViT-S/32": ("S", (2, 2, 2, 2), 1, 0.0),
        "R26+ViT-B/32": ("B", (2, 2, 2, 2), 1, 0.0),
        "R50+ViT-B/16": ("B", (3, 4, 9), 1, 0.1),
        "R50+ViT-B/32": ("B", (3, 4, 6, 3), 1, 0.1),
        "R50+ViT-L/16": ("L", (3, 4, 9), 1, 0.1),
        "R50+ViT-L/32": ("L", (3, 4, 6, 3), 1, 0.1),
    }
    expected = {
        name: dataclasses.replace(
            configs.TABLE_1[size],
            patch_size=patch_size,
            dropout_rate=dropout,
            resnet=configs.ResNetConfig(
                num_layers=units,
                width=64,
                unit="v1",
                kernel_epsilon=1e-5,
                epsilon_outside=True,
                group_norm_epsilon=1e-6,
            ),
        )
        for name, (size, units, patch_size, dropout) in hybrids.items()
    }
    assert expected == configs.HYBRID_VARIANTS
    resnets = {
        "BiT-R50x1": ((3, 4, 6, 3), 64),
        "BiT-R50x2": ((3, 4, 6, 3), 128),
        "BiT-R50x3": ((3, 4, 6, 3), 192),
        "BiT-R101x1": ((3, 4, 23, 3), 64),
        "BiT-R101x3": ((3, 4, 23, 3), 192),
        "BiT-R152x1": ((3, 8, 36, 3), 64),
        "BiT-R152x2": ((3, 8, 36, 3), 128),
        "BiT-R152x4": ((3, 8, 36, 3), 256),
        "BiT-R200x3": ((3, 24, 36, 3), 192),
    }
    found = {
        name: (row.num_layers, row.width) for name, row in configs.BIT_VARIANTS.items()
    }
    assert found == resnets
    bit = {
        "unit": "v2",
        "kernel_epsilon": 1e-10,
        "epsilon_outside": False,
        "group_norm_epsilon": 1e-5,
    }
    for row in configs.BIT_VARIANTS.values():
        assert fields(row, *bit) == bit
    (axial,) = configs.AXIAL_RESNETS.values()
    assert (axial.num_layers, axial.width, axial.unit) == ((3, 4, 6, 3), 64, "axial")
    assert {
        f"Axial-ViT-B/{patch_size}": dataclasses.replace(
            configs.TABLE_1["B"],
            patch_size=patch_size,
            classifier="gap",
            attention="axial",
        )
        for patch_size in (16, 32)
    } == configs.AXIAL_VARIANTS


def test_data_sets_of_figure_5s_average():
    """The five of which Table 7 prints the average."""
    assert paper.AVERAGE_5 == (
        "imagenet2012",
        "cifar10",
        "cifar100",
        "oxford_iiit_pet",
        "oxford_flowers102",
    )


def test_names_of_the_layout_of_table_2():
    assert list(comparison.COLUMNS.items()) == [
        (("ViT-H/14", "jft300m"), "H/14 JFT"),
        (("ViT-L/16", "jft300m"), "L/16 JFT"),
        (("ViT-L/16", "imagenet21k"), "L/16 I21k"),
        (("BiT-R152x4", "jft300m"), "BiT-L JFT"),
        (("EfficientNet-L2", "jft300m"), "Noisy Student"),
    ]
    assert list(comparison.TABLE_2.items()) == [
        ("imagenet2012", "ImageNet"),
        ("imagenet2012_real", "ImageNet ReaL"),
        ("cifar10", "CIFAR-10"),
        ("cifar100", "CIFAR-100"),
        ("oxford_iiit_pet", "Oxford-IIIT Pets"),
        ("oxford_flowers102", "Oxford Flowers-102"),
        ("vtab", "VTAB (19 tasks)"),
    ]


def test_tasks_of_vtab():
    """task_adaptation's data sets, splits and crops; scenic's flips; our names."""
    rows = [
        {
            **fields(task, "name", "group", "classes", "tfds", "train800", "val200"),
            **fields(task, "test", "test_images", "augment", "features", "scale"),
            **fields(task, "class_names", "by_hand"),
        }
        for task in vtab.TASKS
    ]
    assert digest(rows) == (
        "f39a365a63e464bb94f9715af108e4fb013bcc43a1384ac4319cc173cdc0a922"
    )


def test_images_of_the_pre_training_data():
    """Table 6's caption (303 M); image-net.org, 2011; ILSVRC-2012."""
    assert IMAGES == {
        "jft300m": 303_000_000,
        "imagenet21k": 14_197_122,
        "imagenet2012": 1_281_167,
    }


def test_augregs_grid():
    """AugReg's section 3.2 as big_vision's RANDAUG_DEF and MIXUP_DEF."""
    grid = {
        "none": (None, 0.0),
        "light1": ((2, 0), 0.0),
        "light2": ((2, 10), 0.2),
        "medium1": ((2, 15), 0.2),
        "medium2": ((2, 15), 0.5),
        "strong1": ((2, 20), 0.5),
        "strong2": ((2, 20), 0.8),
    }
    for name, recipe in AUGREG.items():
        _, data, augmentation, *regularized = name.split("-")
        assert (recipe.randaugment, recipe.mixup) == grid[augmentation]
        rate = 0.1 if regularized else 0.0
        assert (recipe.dropout_rate, recipe.stochastic_depth) == (rate, rate)
        bias = {"imagenet21k": -10.0, "imagenet2012": -6.9}[data]
        assert (recipe.loss, recipe.head_bias_init) == ("sigmoid", bias)
        assert (recipe.optimizer, recipe.momentum_dtype) == ("adam", "bfloat16")
        assert (recipe.base_lr, recipe.epochs) == ((1e-3,), 300)
        assert (recipe.batch_size, recipe.image_size) == (4096, (224, 224))
        assert (recipe.warmup_steps, recipe.decay) == (10_000, "cosine")
        assert (recipe.weight_decay, recipe.clip_norm) == (0.1, 1.0)


def test_recipes_of_other_papers_and_ours():
    sam = {"ViT-B/16-imagenet2012-sam", "ViT-B/32-imagenet2012-sam"}
    assert {name for name, row in PRETRAIN.items() if row.sam_rho} == sam
    for name in sam:
        plain = PRETRAIN[name.removesuffix("-sam")]
        assert PRETRAIN[name] == dataclasses.replace(plain, sam_rho=0.05)
    small = PRETRAIN["vit_s16_i1k"]  # big_vision, configs/vit_s16_i1k.py.
    assert (small.epochs, small.base_lr, small.batch_size) == (90, (1e-3,), 1024)
    assert (small.warmup_steps, small.decay, small.weight_decay) == (
        10_000,
        "cosine",
        0.1,
    )
    assert (small.image_size, small.clip_norm) == ((224, 224), 1.0)
    assert (small.optimizer, small.momentum_dtype) == ("adam", "bfloat16")
    masked = PRETRAIN["masked-patches"]  # B.1.2.
    assert (masked.optimizer, masked.base_lr, masked.decay) == (
        "adam",
        (2e-4,),
        "cosine",
    )
    assert (masked.warmup_steps, masked.batch_size) == (10_000, 4096)
    assert (masked.total_steps, masked.image_size) == (1_000_000, (224, 224))
    assert (masked.weight_decay, masked.clip_norm) == (0.0, None)
    ours = PRETRAIN["cifar10-scratch"]  # What docs/howto/pretrain.md was run with.
    assert (ours.epochs, ours.base_lr, ours.optimizer) == (8, (2e-3,), "adam")
    assert (ours.beta1, ours.beta2, ours.weight_decay) == (0.9, 0.95, 0.1)
    assert (ours.batch_size, ours.warmup_steps) == (64, 60)
    assert (ours.image_size, ours.augment) == ((32, 32), "flip")
    assert (ours.decay, ours.clip_norm, ours.dropout_rate) == ("cosine", 1.0, 0.0)


@pytest.mark.parametrize(
    ("images", "boundaries", "mixup"),
    [  # big_transfer, bit_hyperrule.py: small, medium and large from these sizes on.
        (19_999, (100, 200, 300, 400, 500), 0.0),
        (20_000, (500, 3_000, 6_000, 9_000, 10_000), 0.1),
        (499_999, (500, 3_000, 6_000, 9_000, 10_000), 0.1),
        (500_000, (500, 6_000, 12_000, 18_000, 20_000), 0.1),
    ],
)
def test_where_bits_rule_changes(images, boundaries, mixup):
    recipe = bit_hyperrule(images, 95 * 96)
    assert (*recipe.boundaries, recipe.total_steps) == boundaries
    assert recipe.mixup == mixup
    assert recipe.image_size == (128, 128)
    assert bit_hyperrule(images, 96 * 96).image_size == (480, 480)
