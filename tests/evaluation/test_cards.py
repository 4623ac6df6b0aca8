"""Results cards: written whole, read back equal, compared, and shown safely."""

import dataclasses
import html.parser
import json
import math
import re

import keras
import numpy as np
import pytest

pytest.importorskip("matplotlib")
import keras_vit
from keras_vit.data import Arrays, Source
from keras_vit.evaluation import card_pages, cards, comparison, metrics
from keras_vit.evaluation.cards import Card
from keras_vit.evaluation.classification import classify, task_of
from keras_vit.facts import Provenance
from keras_vit.models.description import weights_sha256

pytestmark = pytest.mark.tensorflow_only

NASTY = ('<b>x</b> & "y"', "a|b `c` ```", "snake_case*", "ünïcode 犬")
FILES = {
    *("card.html", "card.json", "card.md", "images.npz"),
    *("confusion.png", "reliability.png"),
}


def vit(seed=0):
    keras.utils.set_random_seed(seed)
    config = keras_vit.ViTConfig(
        patch_size=4, num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2, gelu="erf"
    )
    model = keras_vit.vit(config, image_size=(8, 8), num_classes=4)
    head = model.get_layer("head")  # Zeros, as new heads are.
    rng = np.random.default_rng(seed)
    head.set_weights([rng.normal(size=w.shape) * 2 for w in head.get_weights()])
    return model


@pytest.fixture(scope="module")
def task():
    """Images of noise, two in three of what the model of seed 0 takes them for."""
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    taken_for = predicted(vit(), images).argmax(1)
    split = Arrays(images, np.where(np.arange(60) % 3, taken_for, np.arange(60) % 4))
    return task_of(Source("photos <1>", NASTY, split, split))


def predicted(model, images):
    return model.predict(images / np.float32(127.5) - 1, verbose=0)


def made(task, seed=0, keep_logits=False, **options):
    model = vit(seed)
    found = classify(model, task, batch_size=16, keep_logits=keep_logits)
    card = Card.of(model, found, **{"name": "ViT <script>", **options})
    return card.with_temperatures(found.logits) if keep_logits else card


@pytest.fixture(scope="module")
def card(task):
    return made(
        task,
        keep_logits=True,
        command="keras-vit evaluate --data 'x y' <&|`",
        data_size={"ViT": {10: 0.25, 100: 0.5}, "ResNet": {10: 0.3, 100: 0.4}},
    )


def same(one, other):
    for field in dataclasses.fields(Card):
        if field.name != "images":
            assert getattr(one, field.name) == getattr(other, field.name)
    for name, values in vars(one.images).items():
        theirs = getattr(other.images, name)
        np.testing.assert_array_equal(theirs, values, strict=True)


def test_a_card_is_read_back_as_it_was(card, tmp_path):
    card.write(tmp_path / "card")
    written = {path.name for path in (tmp_path / "card").iterdir()}
    assert written == FILES | {"data_size.png"}
    same(card, Card.load(tmp_path / "card"))
    same(card, Card.load(tmp_path / "card" / "card.json"))
    card.write(tmp_path / "card")  # Over itself.
    same(card, Card.load(tmp_path / "card"))


def test_what_a_card_says(card, task):
    model = vit()
    right = predicted(model, task.split.images).argmax(1) == task.split.labels
    assert card.results["top_1"].value == right.mean() > 0.6
    assert card.model["weights_sha256"] == weights_sha256(model)
    assert card.model["weights_sha256"] != weights_sha256(vit(1))
    assert card.model["parameters"] == model.count_params()
    assert card.numerics["gelu"] == "erf"
    assert card.numerics["layer_norm_epsilon"] == 1e-6
    assert card.numerics["dtype"] == "float32"
    assert card.numerics["versions"]["keras"] == keras.__version__
    assert card.preprocessing["image_size"] == [8, 8]
    assert card.data["fingerprint"] == task.fingerprint()
    assert card.data["images"] == 60
    scaled = card.scaled["nll"].value
    assert scaled < card.results["nll"].value
    facts = card.as_dict()
    assert sum(facts["per_class"]["right"]) == card.images.right.sum()
    assert sum(facts["reliability"]["images"]) == 60
    assert None in facts["reliability"]["accuracy"]
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (keras_vit.VARIANTS["ViT-B/16"], "ViT-B/16"),
        (keras_vit.VARIANTS["R50+ViT-B/16"], "R50+ViT-B/16"),
        (keras_vit.VARIANTS["BiT-R50x1"], "BiT-R50x1"),
        (None, "not of keras_vit"),
    ],
)
def test_variants_go_by_their_sizes(config, name):
    if isinstance(config, keras_vit.ViTConfig):
        config = dataclasses.replace(config, dropout_rate=0.3, gelu="erf")
    assert cards._variant(config) == name


def test_models_of_others_have_cards(task):
    images = keras.Input((8, 8, 3))
    logits = keras.layers.Dense(4)(keras.layers.Flatten()(images))
    model = keras.Model(images, logits)
    card = Card.of(model, classify(model, task), name="mine")
    assert card.model["variant"] == "not of keras_vit"
    assert "gelu" not in card.numerics


def test_the_weights_file_is_told(task, tmp_path):
    (tmp_path / "w.npz").write_bytes(b"abc")
    card = made(task, weights_file=tmp_path / "w.npz")
    assert card.model["file_sha256"] == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert "file" not in made(task, weights_file=tmp_path).model


def test_the_origin_of_the_weights_is_told(task):
    model = vit(0)
    found = classify(model, task)
    assert "source" not in Card.of(model, found, name="mine").model
    model.facts = dataclasses.replace(
        model.facts,
        provenance=Provenance(source="hf://a/b", revision="c" * 40, license="mit"),
    )
    card = Card.of(model, found, name="mine")
    told = {at: card.model[at] for at in ("source", "revision", "license")}
    assert told == {"source": "hf://a/b", "revision": "c" * 40, "license": "mit"}


# Pages.


class Reader(html.parser.HTMLParser):
    """Tags, their nesting, and the text between."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text, self.sources = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag == "img":
            self.sources.append(dict(attributes)["src"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_whole_and_escaped(card, tmp_path):
    card.write(tmp_path)
    page = (tmp_path / "card.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert not {"script", "link"} & {*reader.seen}
    assert reader.seen.count("b") == 4  # The tiles', none of a class's name.
    assert "http" not in page.replace("http-equiv", "")
    assert len(reader.sources) == 3
    assert all(src.startswith("data:image/png;base64,iVBOR") for src in reader.sources)
    text = " ".join(reader.text)
    for told in (*NASTY, "ViT <script>", "photos <1>", card.command):
        assert told in text
    assert f"{100 * card.results['top_1'].value:.2f} %" in text


def test_markdown_shows_its_pictures_and_is_escaped(card, tmp_path):
    card.write(tmp_path)
    page = (tmp_path / "card.md").read_text(encoding="utf-8")
    names = re.findall(r"!\[.*\]\((.*)\)", page)
    assert sorted(names) == ["confusion.png", "data_size.png", "reliability.png"]
    assert all((tmp_path / name).is_file() for name in names)
    assert "<b>" not in page
    assert r"a\|b \`c\`" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    before_command = page.split("## Command")[0]
    widths = {
        len(re.findall(r"(?<!\\)\|", line))
        for line in before_command.splitlines()
        if line.startswith("|")
    }
    assert widths <= {3, 4}  # Two and three columns, whatever the names are.


def test_a_fence_is_longer_than_any_in_the_command():
    assert card_pages._md_code("a ```` b").splitlines() == [
        *("`````bash", "a ```` b", "`````")
    ]


def test_sets_of_labels_have_no_confusion(task, tmp_path):
    answers = np.eye(4, dtype=bool)
    answers[0, 1] = True
    sets = dataclasses.replace(task, name="sets", answers=answers, calibrates=False)
    card = made(sets)
    card.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"confusion.png"}
    assert "per_class" not in json.loads((tmp_path / "card.json").read_text())
    assert not Card.load(tmp_path).has_classes
    with pytest.raises(ValueError, match=r"one class per image.* Received: sets"):
        made(sets, keep_logits=True)


# Damage.

SIDES = ("value", "low", "high")


def test_nothing_is_written_if_anything_fails(card, tmp_path, monkeypatch):
    card.write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(card_pages, "html", fail)
    changed = dataclasses.replace(card, name="other")
    with pytest.raises(OSError, match="Free some space; nothing was written"):
        changed.write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "card.json").unlink(), "without card.json"),
        (lambda p: (p / "card.json").write_text("{"), "damaged .JSONDecodeError"),
        (lambda p: (p / "card.json").write_text("[]"), "damaged .TypeError"),
        (lambda p: (p / "card.json").write_bytes(b"\xff\xfe"), "damaged .Unicode"),
        (lambda p: edit(p, keras_vit_card=2), "of format 2, not 1"),
        (lambda p: edit(p, results={}), r"damaged .ValueError: results \[\]"),
        (lambda p: edit(p, results=3), "damaged .AttributeError"),
        (
            lambda p: edit(p, scaled={"nll": dict.fromkeys(SIDES, math.nan)}),
            "scaled that are not finite",
        ),
        (lambda p: edit(p, data={}), "damaged .KeyError: 'images'"),
        (lambda p: edit(p, data={"images": 9}), "60 images of 9"),
        (lambda p: edit(p, name=None), "damaged .KeyError: 'name'"),
        (lambda p: (p / "images.npz").unlink(), "images.npz', No such file"),
        (
            lambda p: (p / "images.npz").write_bytes(b"PK\x03\x04"),
            "does not match card.json",
        ),
    ],
)
def test_damaged_cards(damage, message, card, tmp_path):
    card.write(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        Card.load(tmp_path)
    assert str(error.value).startswith("Expected a folder written by `keras-vit")


def edit(folder, **changes):
    facts = json.loads((folder / "card.json").read_text()) | changes
    facts = {key: value for key, value in facts.items() if value is not None}
    (folder / "card.json").write_text(json.dumps(facts))


# Comparison.


def test_cards_of_the_same_images_are_paired(task, card):
    other = made(task, seed=1)
    found = comparison.difference(card, other)
    one, two = card.images.right, other.images.right
    assert found.is_paired
    assert found.top_1 == metrics.paired_difference(one, two)
    assert found.p == metrics.mcnemar(one, two)
    assert (found.only_first, found.only_second) == (
        *((one & ~two).sum(), (two & ~one).sum()),
    )
    assert found.nll.value == pytest.approx(
        other.results["nll"].value - card.results["nll"].value
    )


def test_cards_of_other_images_are_not(task, card):
    less = Arrays(task.split.images[:50], task.split.labels[:50])
    other = made(dataclasses.replace(task, split=less), seed=1)
    found = comparison.difference(card, other)
    assert not found.is_paired
    assert found.p is found.nll is found.only_first is None
    assert found.top_1 == metrics.unpaired_difference(
        card.results["top_1"], other.results["top_1"]
    )


def test_table_2_has_the_papers_columns_before_ours(task, card):
    runs = [
        dataclasses.replace(
            made(dataclasses.replace(task, name="cifar10"), seed=seed), name="mine"
        )
        for seed in (0, 1)
    ]
    real = dataclasses.replace(task, name="imagenet2012_real")
    alone = dataclasses.replace(made(real), name="mine")
    columns, table = comparison.table_2([card, *runs, alone])
    assert columns[:2] == ["", "H/14 JFT"]
    assert columns[-3:] == ["Noisy Student", "ViT <script>", "mine"]
    percents = [100 * run.results["top_1"].value for run in runs]
    spread = f"{np.mean(percents):.2f}±{np.std(percents, ddof=1):.2f}"
    real, cifar = table
    assert cifar[:3] == ["CIFAR-10", "99.50±0.06", "99.42±0.03"]
    assert cifar[-3:] == ["", "", spread]
    assert real[0] == "ImageNet ReaL"
    assert real[4:7] == ["90.54", "90.55", ""]
    assert re.fullmatch(r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)", real[-1])
    assert comparison.table_2([card])[1] == []


@pytest.mark.tensorflow_only
def test_a_card_of_imagenet_stands_beside_figure_3(task, shell, tmp_path):
    card = made(dataclasses.replace(task, name="imagenet2012"))
    dataclasses.replace(card, name="mine").write(tmp_path / "card")
    beside = f"imagenet21k={tmp_path / 'card'}"
    picture = tmp_path / "figure_3.png"
    code, out, err = shell("paper", "figure3", "--card", beside, "--picture", picture)
    assert (code, err) == (0, "")
    top_1 = f"{100 * card.results['top_1'].value:.2f}"
    assert ["mine", top_1] in [line.split() for line in out.splitlines()]
    assert picture.read_bytes().startswith(b"\x89PNG")
    for words, message in (
        (("figure3", "--card", "laion=x"), "Received: --card laion=x"),
        (("figure2", "--card", beside), "with figure3. Received: figure2"),
    ):
        code, _, err = shell("paper", *words)
        assert code == 1
        assert message in err
    made(task).write(tmp_path / "other")
    other = f"jft300m={tmp_path / 'other'}"
    assert "of imagenet2012" in shell("paper", "figure3", "--card", other)[2]
