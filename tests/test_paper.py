"""The paper's numbers as it prints them, and against each other."""

import dataclasses
import itertools
import json
import re

import pytest

from keras_vit import paper
from keras_vit.configs import VARIANTS
from keras_vit.recipes import FINETUNE, IMAGES
from keras_vit.weights import registry

NONE = "\N{EN DASH}"  # An empty cell.
DATASETS = {
    "ImageNet": "imagenet2012",
    "ReaL": "imagenet2012_real",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "Pets": "oxford_iiit_pet",
    "Flowers": "oxford_flowers102",
    "Flowers-102": "oxford_flowers102",
    "VTAB (19)": "vtab",
    "average": "average",
}
DATA = {
    "JFT": "jft300m",
    "JFT-300M": "jft300m",
    "I21k": "imagenet21k",
    "ImageNet-21k": "imagenet21k",
    "ImageNet": "imagenet2012",
}


@pytest.fixture
def text(paper_facts):
    return paper_facts


def rows(text, header):
    """The cells of the Markdown table under `header`, itself first."""
    lines = text[text.index(header) :].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in table]
    return [row for row in cells if not row[0].startswith("---")]


def keyed(table, *fields):
    """Ours of a table, by the fields; each number once."""
    found = {}
    for row in paper.TABLES[table]:
        assert row.table == table
        found.setdefault(tuple(getattr(row, field) for field in fields), []).append(row)
    return found


def column_of_table_2(name):
    model, _, data = name.partition(" ")
    if name == "Noisy Student L2":
        return "EfficientNet-L2", "jft300m"
    if model == "BiT-L":
        return f"BiT-{data}", "jft300m"
    return f"ViT-{model}", DATA[data]


def test_table_2(text):
    header, *lines = rows(text, "| | H/14 JFT | L/16 JFT | L/16 I21k | BiT-L R152x4 |")
    columns = [column_of_table_2(name) for name in header[1:]]
    ours = keyed("Table 2", "model", "pretrained_on", "dataset")
    for name, *cells in lines:
        for column, cell in zip(columns, cells, strict=True):
            if name == "TPUv3-core-days":
                days = 1000 * float(cell.removesuffix("k"))
                assert paper.CORE_DAYS[column] == pytest.approx(days)
            elif cell != NONE:
                found = ours.pop((*column, DATASETS[name]))
                percents, _, std = cell.partition("±")
                expected = [float(part) for part in percents.split("/")]
                assert [row.percent for row in found] == expected
                assert found[0].std == (float(std) if std else None)
    assert not ours


def test_table_5(text):
    header, *lines = rows(text, "| Table 5, pre-trained on | task |")
    models = [f"ViT-{size}" for size in header[2:]]
    ours = keyed("Table 5", "model", "pretrained_on", "dataset")
    data = ""
    for name, tasks, *cells in lines:
        data = DATA[name] if name else data
        for model, cell in zip(models, cells, strict=True):
            if cell == NONE:
                continue
            for task, percent in zip(
                tasks.split(" / "), cell.split(" / "), strict=True
            ):
                (row,) = ours.pop((model, data, DATASETS[task]))
                assert row.percent == float(percent)
    assert not ours


def test_table_6(text):
    names = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")
    assert f"{' / '.join(names)}, exaFLOPs)" in text
    _, *lines = rows(text, "| model | epochs | accuracies | exaFLOPs |")
    ours = keyed("Table 6", "model", "epochs", "dataset")
    flops = dict(paper.EXAFLOPS)
    for name, epochs, accuracies, exa in lines:
        model = name.replace("ResNet", "BiT-R").replace("R50x1+", "R50+")
        for task, percent in zip(names, accuracies.split(), strict=True):
            (row,) = ours.pop((model, int(epochs), DATASETS[task]))
            assert (row.pretrained_on, row.percent) == ("jft300m", float(percent))
        assert flops.pop((model, int(epochs))) == int(exa)
    assert not ours
    assert not flops


def test_table_7(text):
    (sentence,) = re.findall(r"- Table 7, .*?: (R50 .*?)\.\n", text, re.DOTALL)
    small, large = re.sub(r"\s+", " ", sentence).split("; R152x2 ")
    tasks = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "average")
    ours = keyed("Table 7", "model", "dataset", "optimizer")
    for model, told in (("BiT-R50x1", small), ("BiT-R152x2", large)):
        pairs = re.findall(r"(\d\d\.\d\d)/(\d\d\.\d\d)", told)
        for task, pair in zip(tasks, pairs, strict=True):
            for optimizer, percent in zip(("adam", "sgd"), pair, strict=True):
                (row,) = ours.pop((model, DATASETS[task], optimizer))
                assert row.percent == float(percent)
    assert re.findall(r"[A-Z][\w-]+(?= \d\d\.)", small) == ["ImageNet", *tasks[1:5]]
    assert not ours


def test_table_9(text):
    header, *lines = rows(text, "| | Caltech101 | CIFAR-100 | DTD |")
    tasks = [f"vtab/{task}" for group in paper.VTAB.values() for task in group]
    names = [re.sub(r"[^a-z0-9]", "", name.lower())[:5] for name in header[1:6]]
    assert names == ["calte", "cifar", "dtd", "flowe", "pets"]
    ours = keyed("Table 9", "model", "pretrained_on", "dataset")
    for name, *cells in lines:
        column = column_of_table_2(name)
        for task, percent in zip([*tasks, "vtab"], cells, strict=True):
            (row,) = ours.pop((*column, task))
            assert row.percent == float(percent)
    assert not ours


def test_table_8(text):
    """The places are those of the sentence; one number of none and of relative."""
    (sentence,) = re.findall(
        r"- D\.4, Table 8 .*?\): (none .*?)\. 2-D:", text, re.DOTALL
    )
    places = ("stem", "every_layer", "every_layer_shared")
    assert "stem / every layer / every layer, shared" in text
    names = {"none": "none", "1-D": "1d", "2-D": "2d", "relative": "relative"}
    printed = {}
    for kind in re.sub(r"\s+", " ", sentence).split("; "):
        for word, numbers in re.findall(r"([a-z]+|[12]-D) ((?:\.\d+ ?)+)", kind):
            for place, number in zip(places, numbers.split(), strict=False):
                printed[names[word], place] = float(number)
    assert len(printed) == 8
    assert printed == paper.TABLE_8


def test_d_9(text):
    ((five, one),) = re.findall(
        r"- D\.9: .*H/14.*JFT.*top-5 (\d+\.\d), top-1 (\d+\.\d)", text
    )
    ours = keyed("D.9", "model", "pretrained_on", "dataset", "top")
    for top, percent in ((1, one), (5, five)):
        (row,) = ours.pop(("ViT-H/14", "jft300m", "objectnet", top))
        assert row.percent == float(percent)
    assert not ours


def test_positions_of_table_8_are_fields_of_a_config():
    for position, place in paper.TABLE_8:
        config = dataclasses.replace(
            VARIANTS["ViT-B/16"], position=position, position_at=place
        )
        assert (config.position, config.position_at) == (position, place)


def percents(table, *fields, **like):
    return {
        tuple(getattr(row, field) for field in fields): row.percent
        for row in reversed(paper.TABLES[table])  # The first of equals stays.
        if all(getattr(row, name) == value for name, value in like.items())
    }


def test_means_of_table_9_are_its_last_column_and_figure_2s_and_table_2s():
    table_2 = percents("Table 2", "model", "pretrained_on", dataset="vtab")
    table_9 = percents("Table 9", "model", "pretrained_on", "dataset")
    figure = paper.figure_2()
    assert len(figure) == 3
    for column, means in figure.items():
        assert means["vtab"] == pytest.approx(table_9[*column, "vtab"], abs=0.05)
        assert table_9[*column, "vtab"] == round(table_2[column], 1)
        sizes = {group: len(tasks) for group, tasks in paper.VTAB.items()}
        assert sizes == {"natural": 7, "specialized": 4, "structured": 8}
        total = sum(means[group] * size for group, size in sizes.items())
        assert means["vtab"] == pytest.approx(total / 19)


def test_averages_of_table_7_are_right_and_adams_are_table_6s():
    table_7 = percents("Table 7", "model", "optimizer", "dataset")
    table_6 = percents("Table 6", "model", "dataset", epochs=7)
    for model, optimizer in itertools.product(
        ("BiT-R50x1", "BiT-R152x2"), ("adam", "sgd")
    ):
        own = {
            dataset: percent
            for (of, by, dataset), percent in table_7.items()
            if (of, by) == (model, optimizer)
        }
        average = own.pop("average")
        assert sum(own.values()) / 5 == pytest.approx(average, abs=0.005)
        if optimizer == "adam":
            assert own == {name: table_6[model, name] for name in own}


def differing(ours, theirs):
    common = ours.keys() & theirs.keys()
    return {key: (ours[key], theirs[key]) for key in common if ours[key] != theirs[key]}


def test_where_the_paper_disagrees_with_itself():
    """Table 6's longest rows are Table 5's on JFT, but for ViT-H/14."""
    table_5 = percents("Table 5", "model", "dataset", pretrained_on="jft300m")
    longest = {"ViT-L/16": 14, "ViT-H/14": 14}
    table_6 = {
        (model, dataset): percent
        for (model, epochs, dataset), percent in percents(
            "Table 6", "model", "epochs", "dataset"
        ).items()
        if epochs == longest.get(model, 7)
    }
    assert len(table_5.keys() & table_6.keys()) == 30
    assert differing(table_5, table_6) == {
        ("ViT-H/14", "imagenet2012"): (88.04, 88.08),
        ("ViT-H/14", "imagenet2012_real"): (90.33, 90.36),
        ("ViT-H/14", "cifar100"): (94.55, 94.71),
        ("ViT-H/14", "oxford_iiit_pet"): (97.56, 97.11),
        ("ViT-H/14", "oxford_flowers102"): (99.68, 99.71),
    }
    # Table 2's small data sets are Table 5's of ViT-H/14, but others of ViT-L/16.
    fields = ("model", "pretrained_on", "dataset")
    apart = differing(percents("Table 2", *fields), percents("Table 5", *fields))
    h_14 = {key[2] for key in apart if key[:2] == ("ViT-H/14", "jft300m")}
    assert h_14 == {"imagenet2012", "imagenet2012_real"}
    l_16 = {key for key in apart if key[0] == "ViT-L/16"}
    assert len(l_16) == len(apart) - len(h_14) == 11
    same = percents("Table 2", *fields)["ViT-L/16", "imagenet21k", "oxford_flowers102"]
    assert same == 99.61
    # Twice the epochs are twice the FLOPs, but for one hybrid (PAPER.md says so too).
    doubled = {
        model: paper.EXAFLOPS[model, 14] - 2 * paper.EXAFLOPS[model, 7]
        for model, epochs in paper.EXAFLOPS
        if epochs == 14 and (model, 7) in paper.EXAFLOPS
    }
    assert doubled == {"ViT-L/16": 1, "BiT-R152x2": 0, "R50+ViT-L/16": -50}


def test_names_are_the_projects():
    for row in itertools.chain(*paper.TABLES.values()):
        assert row.model in VARIANTS
        assert row.pretrained_on in IMAGES
        assert row.dataset.removesuffix("_real") in FINETUNE or (
            row.dataset in ("average", "objectnet") or row.dataset.startswith("vtab/")
        )
        assert 0 < row.percent < 100


def test_the_registrys_accuracies_are_table_5s():
    found = [row for row in registry.CHECKPOINTS if row.accuracy_source == "Table 5"]
    assert len(found) == 4
    for row in found:
        ours = paper.expected(
            row.variant, "imagenet21k", "imagenet2012", table="Table 5"
        )
        assert ours.percent == row.accuracy


def test_expected():
    found = paper.expected("ViT-L/16", "imagenet21k", "imagenet2012")
    assert (found.table, found.percent, found.std) == ("Table 2", 85.30, 0.02)
    found = paper.expected("ViT-L/16", "imagenet21k", "imagenet2012", table="Table 5")
    assert (found.percent, found.std) == (85.15, None)
    found = paper.expected("EfficientNet-L2", "jft300m", "imagenet2012")
    assert found.percent == 88.4
    found = paper.expected("R50+ViT-L/16", "jft300m", "cifar10")
    assert (found.percent, found.epochs) == (99.31, 14)
    found = paper.expected("BiT-R50x1", "jft300m", "cifar10", table="Table 7")
    assert (found.percent, found.optimizer) == (97.67, "adam")
    assert paper.expected("ViT-H/14", "jft300m", "vtab/dtd").percent == 75.2
    assert paper.expected("ViT-H/14", "jft300m", "objectnet").percent == 61.7
    found = paper.expected("ViT-H/14", "jft300m", "objectnet", top=5)
    assert (found.percent, found.table) == (82.1, "D.9")
    assert paper.expected("ViT-H/14", "jft300m", "cifar10", top=5) is None
    assert paper.expected("ViT-H/14", "imagenet2012", "cifar10") is None
    assert paper.expected("ViT-B/16", "augreg-imagenet21k", "cifar10") is None
    with pytest.raises(ValueError, match=r"one of Table 2, .*table='Table 3'"):
        paper.expected("ViT-H/14", "jft300m", "vtab", table="Table 3")


def test_figure_3():
    assert paper.figure_3()["ViT-L/16"] == {
        "imagenet2012": 76.53,
        "imagenet21k": 85.15,
        "jft300m": 87.12,
    }
    assert "imagenet2012" not in paper.figure_3()["ViT-H/14"]


@pytest.mark.tensorflow_only
def test_the_command_prints_them(shell, monkeypatch):
    code, out, err = shell("paper", "table2")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "ViT-L/16 imagenet21k cifar10 99.15 +- 0.03" in lines
    assert len(lines) == 2 + len(paper.TABLES["Table 2"])
    monkeypatch.setenv("COLUMNS", "80")
    out = shell("paper")[1]
    assert all(f"Table {number}\n" in out for number in (2, 5, 6, 7, 9))
    assert "D.9\n" in out
    assert "Table 8: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    rows = json.loads(shell("paper", "--json")[1])
    assert [paper.Accuracy(**row) for row in rows] == [*sum(paper.TABLES.values(), ())]
    out = shell("paper", "table7")[1]
    assert "jft300m, SGD" in out
    assert shell("paper", "table3")[0] == 2


@pytest.mark.tensorflow_only
def test_the_command_prints_d_9_and_table_8(shell):
    lines = [" ".join(line.split()) for line in shell("paper", "d9")[1].splitlines()]
    assert "ViT-H/14 jft300m objectnet 61.7" in lines
    assert "ViT-H/14 jft300m objectnet 82.1 (top-5)" in lines
    code, out, err = shell("paper", "table8")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1:] == [
        ["position", "stem", "every_layer", "every_layer_shared"],
        ["none", "0.61382"],
        ["1d", "0.64206", "0.63964", "0.64292"],
        ["2d", "0.64001", "0.64046", "0.64022"],
        ["relative", "0.64032"],
    ]
    rows = json.loads(shell("paper", "table8", "--json")[1])
    assert {(r["position"], r["position_at"]): r["accuracy"] for r in rows} == (
        paper.TABLE_8
    )
