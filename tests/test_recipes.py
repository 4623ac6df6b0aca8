"""Recipes: Tables 3 and 4 read out of the paper's facts, and the rules around them."""

import dataclasses
import decimal
import json
import math
import re

import numpy as np
import pytest

import keras_vit
from keras_vit import recipe_fields, recipes
from keras_vit.recipes import FINETUNE, PRETRAIN, Recipe
from tests.conftest import REFERENCE

pytestmark = pytest.mark.tensorflow_only

EVERY = {**FINETUNE, **PRETRAIN}


def table_3():
    """Rows of Table 3 (arXiv:2010.11929v2, B.1), one string a row."""
    return """\
ViT-B/{16,32} JFT-300M 7 8e-4 linear 0.1 0.0
ViT-L/32 JFT-300M 7 6e-4 linear 0.1 0.0
ViT-L/16 JFT-300M 7/14 4e-4 linear 0.1 0.0
ViT-H/14 JFT-300M 14 3e-4 linear 0.1 0.0
R50x{1,2} JFT-300M 7 1e-3 linear 0.1 0.0
R101x1 JFT-300M 7 8e-4 linear 0.1 0.0
R152x{1,2} JFT-300M 7 6e-4 linear 0.1 0.0
R50+ViT-B/{16,32} JFT-300M 7 8e-4 linear 0.1 0.0
R50+ViT-L/32 JFT-300M 7 2e-4 linear 0.1 0.0
R50+ViT-L/16 JFT-300M 7/14 4e-4 linear 0.1 0.0
ViT-B/{16,32} ImageNet-21k 90 1e-3 linear 0.03 0.1
ViT-L/{16,32} ImageNet-21k 30/90 1e-3 linear 0.03 0.1""".splitlines()


def spelled_out(row):
    """A row as (name, epochs, rate, decay, weight decay, dropout) of each recipe."""
    models, data, lengths, rate, decay, weight_decay, dropout = row.split()
    stem, braces, sides = models.partition("{")
    data = data.lower().replace("-", "")
    for side in sides.rstrip("}").split(",") if braces else [""]:
        for epochs in lengths.split("/"):
            suffix = f"-{epochs}ep" if "/" in lengths else ""
            name = f"{stem}{side}-{data}{suffix}"
            yield (name, *map(float, (epochs, rate, weight_decay, dropout)), decay)


@pytest.mark.parametrize("row", table_3())
def test_table_3(row):
    for name, epochs, rate, weight_decay, dropout, decay in spelled_out(row):
        recipe = PRETRAIN[name]
        assert (recipe.epochs, recipe.base_lr) == (epochs, (rate,))
        assert (recipe.decay, recipe.weight_decay) == (decay, weight_decay)
        assert recipe.dropout_rate == dropout
        assert recipe.clip_norm is None


def test_table_3_is_the_papers(paper_facts):
    """The rows above are those of the facts taken from the paper."""
    row = re.compile(r"^\| (\S+ \| (?:JFT|ImageNet-21k).*) \|$", re.MULTILINE)
    rows = row.findall(paper_facts)
    theirs = [row.replace(" | ", " ") for row in rows]
    assert [row for row in theirs if row.count(" ") == 6][: len(table_3())] == table_3()


def test_table_3_on_imagenet_and_its_caption():
    for side in (16, 32):
        recipe = PRETRAIN[f"ViT-L/{side}-imagenet2012"]
        assert (recipe.epochs, recipe.base_lr, recipe.decay) == (300, (3e-3,), "cosine")
        assert (recipe.weight_decay, recipe.dropout_rate) == (0.3, 0.1)
        assert recipe.clip_norm == 1.0
    table = [
        recipe
        for name, recipe in PRETRAIN.items()
        if re.search("jft300m|-imagenet21k|-imagenet2012$", name)
        and "augreg" not in name
        and not name.endswith("-sgd")
    ]
    assert len(table) == 16 + 6 + 4
    for recipe in table:
        assert (recipe.optimizer, recipe.batch_size) == ("adam", 4096)
        assert (recipe.beta1, recipe.beta2, recipe.warmup_steps) == (0.9, 0.999, 10_000)
        assert recipe.image_size == (224, 224)


@pytest.mark.parametrize("model", ["R50x1", "R152x2"])
def test_table_7s_sgd_is_bits(model):
    """D.1: BiT's hyperparameters (arXiv:1912.11370, section 3.3) for 7 epochs."""
    recipe = PRETRAIN[f"{model}-jft300m-sgd"]
    adam = PRETRAIN[f"{model}-jft300m"]
    assert (adam.optimizer, adam.epochs) == ("adam", 7)
    assert (recipe.optimizer, recipe.momentum, recipe.epochs) == ("sgd", 0.9, 7)
    assert recipe.base_lr == (0.48,)  # "0.03", times the batch size over 256.
    assert (recipe.batch_size, recipe.image_size) == (4096, (224, 224))
    assert (recipe.warmup_steps, recipe.decay) == (5_000, "staircase")
    assert recipe.boundaries == (10 / 40, 23 / 40, 30 / 40, 37 / 40)
    # "1e-4" in the loss; the sum 1 + 0.9 + 0.81 + ... of momentum is 10 of it.
    assert recipe.weight_decay == pytest.approx(1e-4 / (1 - recipe.momentum))
    assert (recipe.clip_norm, recipe.dropout_rate, recipe.ema) == (None, None, None)
    assert (recipe.augment, recipe.mixup) == ("inception", 0)
    assert (recipe.loss, recipe.head_bias_init) == (adam.loss, adam.head_bias_init)
    steps = recipe.for_images(recipes.IMAGES["jft300m"])
    assert steps.steps == adam.for_images(recipes.IMAGES["jft300m"]).steps == 517_822
    assert steps.staircase == (5_000, 129_456, 297_748, 388_366, 478_985)
    assert "Table 7" in recipes.source(f"{model}-jft300m-sgd")


def test_shares_of_a_staircase_follow_its_length():
    recipe = Recipe(
        epochs=10,
        base_lr=(1.0,),
        batch_size=10,
        decay="staircase",
        boundaries=(0.25, 0.5),
        warmup_steps=3,
    )
    assert recipe.for_images(40).staircase == (3, 10, 20)
    assert recipe.for_images(400).staircase == (3, 100, 200)
    unwarmed = dataclasses.replace(recipe, warmup_steps=0)
    assert unwarmed.for_images(40).staircase == (1, 10, 20)
    with pytest.raises(ValueError, match="epochs=10"):
        _ = recipe.staircase
    with pytest.raises(
        ValueError, match=r"ends before .*total_steps=4, warmup_steps=3"
    ):
        _ = recipe.for_images(4).staircase
    rule = recipes.bit_hyperrule(1000, 32 * 32)
    assert rule.staircase == rule.boundaries


def test_table_4_is_as_it_was():
    sweep = (0.001, 0.003, 0.01, 0.03)
    rows = {
        "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01, 500),
        "cifar100": (10_000, sweep, 0.02, 500),
        "cifar10": (10_000, sweep, 0.02, 500),
        "oxford_iiit_pet": (500, sweep, 0.1, 100),
        "oxford_flowers102": (500, sweep, 0.1, 100),
        "vtab": (2_500, (0.01,), 0.2, 500),
    }
    for name, (steps, rates, held_out, warmup) in rows.items():
        recipe = FINETUNE[name]
        assert (recipe.total_steps, recipe.base_lr) == (steps, rates)
        assert (recipe.held_out, recipe.warmup_steps) == (held_out, warmup)
        assert (recipe.optimizer, recipe.momentum, recipe.clip_norm) == ("sgd", 0.9, 1)
        assert (recipe.batch_size, recipe.image_size) == (512, (384, 384))
        assert (recipe.decay, recipe.loss, recipe.ema) == ("cosine", "softmax", None)
        assert (recipe.weight_decay, recipe.momentum_dtype) == (0.0, "float32")
    assert FINETUNE["imagenet2012-518"] == dataclasses.replace(
        FINETUNE["imagenet2012"], image_size=(518, 518), ema=0.9999
    )


@pytest.mark.parametrize("images", [1000, 50_000, 1_281_167])
def test_bit_hyperrule(images):
    schedule = np.load(REFERENCE / "lr_schedules.npz")[f"bit_{images}/schedule"]
    recipe = recipes.bit_hyperrule(images, 32 * 32)
    assert (*recipe.boundaries, recipe.total_steps) == tuple(schedule)
    assert recipe.mixup == (0.1 if images > 1000 else 0.0)  # extra/meta.json.
    assert (recipe.resize, recipe.image_size) == ((160, 160), (128, 128))
    large = recipes.bit_hyperrule(images, 96 * 96)
    assert (large.resize, large.image_size) == ((512, 512), (480, 480))
    assert (recipe.batch_size, recipe.base_lr, recipe.clip_norm) == (
        512,
        (0.003,),
        None,
    )
    with pytest.raises(ValueError, match="num_images=0"):
        recipes.bit_hyperrule(0, 1)


def test_augreg_is_big_visions_grid():
    plain = recipes.augreg("medium2", data="imagenet2012")
    assert (plain.randaugment, plain.mixup) == ((2, 15), 0.5)
    assert (plain.loss, plain.head_bias_init, plain.epochs) == ("sigmoid", -6.9, 300)
    assert plain.base_lr[0] * plain.weight_decay == pytest.approx(1e-4)  # `wd`.
    strong = PRETRAIN["augreg-imagenet21k-strong2-reg"]
    assert (strong.randaugment, strong.mixup) == ((2, 20), 0.8)
    assert (strong.dropout_rate, strong.stochastic_depth) == (0.1, 0.1)
    assert strong.head_bias_init == -10
    assert len(recipes.AUGREG) == 2 * 7 * 2
    with pytest.raises(ValueError, match=r"light1.*Received: augmentation='dark'"):
        recipes.augreg("dark")


def test_vit_s16_i1k():
    recipe = PRETRAIN["vit_s16_i1k"].for_images(round(0.99 * 1_281_167))
    assert recipe.total_steps == 111_477  # 90 epochs of train[:99%] in 1024s.
    assert (recipe.randaugment, recipe.mixup, recipe.loss) == ((2, 10), 0.2, "softmax")


def test_epochs_become_steps():
    recipe = PRETRAIN["ViT-L/16-jft300m-14ep"].for_images(recipes.IMAGES["jft300m"])
    assert (recipe.total_steps, recipe.epochs) == (1_035_645, None)
    assert recipe.for_images(5) is recipe
    assert Recipe(epochs=0.1, base_lr=(1.0,)).for_images(1).total_steps == 1
    with pytest.raises(ValueError, match="count=0"):
        recipe.for_images(0)


@pytest.mark.parametrize("name", EVERY)
def test_a_recipe_is_plain_data(name):
    text = json.dumps(dataclasses.asdict(EVERY[name]))
    assert Recipe(**json.loads(text)) == EVERY[name]
    assert recipes.find(name) is EVERY[name]


def test_unknown_names():
    with pytest.raises(ValueError, match=r"Received: 'xyz'\.$"):
        recipes.find("xyz")
    with pytest.raises(ValueError, match=r"'cifar11'\. Did you mean cifar10"):
        recipes.find("cifar11")
    rows = [name for name in recipes.PRETRAIN if name.endswith("-imagenet21k")]
    with pytest.raises(ValueError, match=r"Names that contain it") as error:
        recipes.find("imagenet21k")
    assert set(rows) == {"ViT-B/16-imagenet21k", "ViT-B/32-imagenet21k"}
    assert all(row in str(error.value) for row in rows)
    assert str(error.value).endswith("and 14 more")


def test_model_options_are_fields_of_a_config():
    names = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    for recipe in EVERY.values():
        assert set(recipe.model_options()) <= names
    assert FINETUNE["cifar10"].model_options() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "sgd, adam, adafactor.*optimizer='lion'"),
        ({"momentum_dtype": "int8"}, "momentum_dtype='int8'"),
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"decay": "staircase"}, r"boundaries=\(\)"),
        ({"boundaries": (1, 2)}, r"decay='cosine', boundaries=\(1, 2\)"),
        ({"decay": "staircase", "boundaries": (1,), "warmup_steps": 1}, "warmup"),
        ({"augment": "crop"}, "augment='crop', resize=None"),
        ({"augment": "crop_only"}, "augment='crop_only', resize=None"),
        ({"resize": (9, 9)}, r"resize=\(9, 9\)"),
        ({"loss": "sigmoid", "label_smoothing": 0.1}, "label_smoothing=0.1"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"stochastic_depth": -0.1}, "stochastic_depth=-0.1"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"random_erasing": 2.0}, "random_erasing=2.0"),
        ({"sam_rho": 0.0}, "sam_rho=0.0"),
        ({"lora_rank": 0}, "lora_rank=0"),
        ({"layer_decay": 0.0}, "layer_decay=0.0"),
        ({"randaugment": (2,)}, r"randaugment=\(2,\)"),
        ({"freeze": True, "lora_rank": 4}, "freeze=True, lora_rank=4"),
        ({"freeze": True, "layer_decay": 0.5}, "layer_decay=0.5"),
        ({"epochs": 3}, "either total_steps or epochs.*total_steps=9, epochs=3"),
        ({"total_steps": None}, "total_steps=None, epochs=None"),
        ({"total_steps": None, "epochs": 0}, "epochs=0"),
        ({"total_steps": 0}, "number of updates.*total_steps=0"),
        ({"base_lr": ()}, "one learning rate"),
        ({"batch_size": 5, "accumulation_steps": 2}, "accumulation_steps=2"),
        ({"optimizer": "adam", "momentum": 0.5}, "'sgd'.*'adam', momentum=0.5"),
        ({"beta1": 0.5}, "'adam'.*default, 0.9.*optimizer='sgd', beta1=0.5"),
        ({"beta2": 0.95}, "'adam' or 'adafactor'.*optimizer='sgd', beta2=0.95"),
        ({"optimizer": "adafactor", "beta1": 0.5}, "'adafactor', beta1=0.5"),
        (
            {"augment": "crop", "resize": (400, 300)},
            r"at_size.*resize=\(400, 300\), image_size=\(384, 384\)",
        ),
        ({"base_lr": (0.1, 0.1), "held_out": 0.1}, r"different.*base_lr=\(0.1, 0.1\)"),
        ({"base_lr": (0.1, 0.2), "held_out": 0}, "several learning rates.*held_out=0"),
    ],
    ids=str,
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=f"Expected .*{message}"):
        Recipe(**({"total_steps": 9, "base_lr": (0.1,)} | changes))


# Of every kind that a configuration file, a command line or a slip can contain.
ODD = [
    *(math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.5, 1, 1.5, 2, 7, 10**30, -(10**30)),
    *(2.0, 1e39, 1e308, 10**400, 10**5000, True, False, None, "", "x", "0.1", "none"),
    *("sgd", "\x1b[31m", b"sgd", (), [], {}, {1}, object(), 1j, range(3), 3 * "9"),
    *((1,), (1, 2), (2, 1), (1, 2, 3), (0, 0), (-1, 2), (1.5, 2), (True, True)),
    *((math.nan,), (math.inf,), ("x",), (None,), ((1,),), [1, 2], [0.1, 0.2]),
    *(np.float32(math.nan), np.float64(-1), np.int64(-1), np.array([1, 2]), np.True_),
    *(np.float32(0.5), np.int32(3), decimal.Decimal(1), lambda: 1, Recipe, (1, 10**30)),
]
NAMES = [field.name for field in dataclasses.fields(Recipe)]
BASES = ["cifar10", "vtab", "ViT-B/16-jft300m", "augreg-imagenet21k-light2", "bit"]


def base(name):
    return recipes.bit_hyperrule(9, 9) if name == "bit" else recipes.find(name)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("field", NAMES)
def test_every_value_of_every_field_is_valid_or_a_clear_error(field, name):
    """476 random values once gave 129 raw errors, and negative rates were accepted."""
    law = recipe_fields.FIELDS[field]
    accepted = 0
    for value in ODD:
        try:
            made = dataclasses.replace(base(name), **{field: value})
        except ValueError as error:
            message = str(error)
            assert message.startswith("Expected ")
            assert f"{field}=" in message.split("Received: ")[1], message
            if not law.holds(recipe_fields.plain(value)):
                assert law.meaning in message
                assert law.valid in message
        else:
            accepted += 1
            assert law.holds(getattr(made, field))
            text = json.dumps(dataclasses.asdict(made), allow_nan=False)
            assert Recipe(**json.loads(text)) == made
    assert accepted < len(ODD) / 2


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("base_lr", [(-1.0,), (0,), (math.nan,), (math.inf,), 0.1, ()]),
        ("total_steps", [0, -1, math.nan, math.inf, 2.0, True, 10**30]),
        ("epochs", [0, -1, math.nan, math.inf]),
        ("held_out", [-0.1, 1, math.nan, None]),
        ("warmup_steps", [-1, math.nan, 0.5, None]),
        ("batch_size", [0, -1, math.nan, 1.5, None]),
        ("image_size", [224, (224,), (0, 224), (224, -1), (224.0, 224), None]),
        ("boundaries", [(2, 1), (0,), (1.5,), None]),
        ("momentum", [-0.1, 1, math.nan, None]),
        ("weight_decay", [-1, math.nan, math.inf, None]),
        ("layer_decay", [0, -1, 1.1, math.nan]),
        ("clip_norm", [0, -1, math.nan, math.inf]),
        ("ema", [-1, 0, 1, math.nan]),
        ("sam_rho", [0, -1, math.nan]),
        ("accumulation_steps", [0, -1, 1.5, None]),
        ("remat", [1, "no", None]),
        ("freeze", [1, "no", None]),
        ("lora_rank", [0, -1, 1.5]),
        ("head_bias_init", [math.nan, math.inf, "0"]),
        ("randaugment", [(2,), (-1, 2), (1.5, 2), (2, math.nan), 2]),
        ("mixup", [-1, math.nan, None]),
        ("cutmix", [-1, math.nan, None]),
        ("random_erasing", [-0.1, 1.1, math.nan, None]),
    ],
)
def test_bad_values_are_refused(field, bad):
    for value in bad:
        with pytest.raises(ValueError, match=f"Received:.* {field}="):
            Recipe(**({"total_steps": 9, "base_lr": (0.1,)} | {field: value}))


@pytest.mark.parametrize(
    ("field", "good"),
    [
        ("base_lr", [(1e-9,), (10.0,)]),
        ("total_steps", [1]),
        ("held_out", [0, 0.999]),
        ("warmup_steps", [0]),
        ("batch_size", [1]),
        ("image_size", [(1, 1)]),
        ("momentum", [0, 0.999]),
        ("weight_decay", [0]),
        ("layer_decay", [1e-9, 1, None]),
        ("clip_norm", [1e-9, None]),
        ("ema", [1e-9, 0.9999, None]),
        ("sam_rho", [1e-9, None]),
        ("lora_rank", [1, None]),
        ("randaugment", [(0, 0), (2, 15.5), None]),
        ("mixup", [0, 0.2]),
        ("cutmix", [0, 1.0]),
        ("random_erasing", [0, 1]),
    ],
)
def test_edges_of_ranges_are_accepted(field, good):
    given = {"total_steps": 9, "base_lr": (0.1,), "optimizer": "sgd"}
    for value in good:
        assert getattr(Recipe(**(given | {field: value})), field) == value


def test_every_field_has_a_meaning():
    assert list(recipe_fields.FIELDS) == NAMES


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_of_the_tables_is_valid(name):
    recipe_fields.check(vars(EVERY[name]))
    assert dataclasses.replace(EVERY[name]) == EVERY[name]


@pytest.mark.parametrize("image_size", [(1, 1), (32, 32), (96, 224), (128, 128)])
def test_at_size_scales_both_sides_of_resize(image_size):
    rule = dataclasses.replace(recipes.bit_hyperrule(9, 9), resize=(160, 256))
    scaled = rule.at_size(image_size)
    assert scaled.image_size == image_size
    expected = (image_size[0] * 160 / 128, image_size[1] * 256 / 128)
    assert np.abs(np.subtract(scaled.resize, expected)).max() <= 0.5
    assert dataclasses.replace(scaled, resize=rule.resize, image_size=(128, 128)) == (
        rule
    )
    assert FINETUNE["cifar10"].at_size(image_size).resize is None
    with pytest.raises(ValueError, match=r"image_size=\(0, 3\)"):
        rule.at_size((0, 3))
