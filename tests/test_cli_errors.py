"""Bad values for every option of every command: one message that names a command."""

import re
import shlex

import pytest
import typer.main

from keras_vit.cli import app
from tests.conftest import REFERENCE

pytestmark = pytest.mark.tensorflow_only

MINI = str(REFERENCE / "vit_mini.npz")
TRAINING = f"--data digits --weights {MINI} --steps 1 --batch-size 8 --lr 0.01"
VALID = {  # What each command gets beside the bad value, quick if that is taken.
    "compare": "nothing nothing",
    "convert": f"{MINI} OUT --to npz",
    "costs": "ViT-Ti/16",
    "data cache clear": "",
    "data cache list": "",
    "data pack": "digits OUT",
    "data-size": "--data digits --layers 1 --hidden-size 8 --mlp-dim 8 --heads 1 "
    "--patch-size 16 --image-size 32 --steps 1 --batch-size 8 --subset 0.1 "
    "--output OUT",
    "demo": "--steps 1 --output OUT",
    "embed": f"FOLDER --weights {MINI} --output OUT/embeddings.npz",
    "evaluate": f"--weights {MINI} --data digits",
    "export": f"{MINI} OUT",
    "fewshot": f"--weights {MINI} --data digits --shots 1 --seeds 1",
    "finetune": f"{TRAINING} --output OUT",
    "inspect": f"{MINI} PHOTO --output OUT",
    "launch": "",
    "paper": "figure3",
    "predict": f"--weights {MINI} PHOTO",
    "pretrain": "--data digits --layers 1 --hidden-size 8 --mlp-dim 8 --heads 1 "
    "--patch-size 16 --image-size 32 --steps 1 --batch-size 8 --output OUT",
    "recipes": "cifar10",
    "runs list": "",
    "runs replay": "nothing",
    "runs show": "nothing",
    "runs verify": "nothing",
    "search": f"EMBEDDINGS PHOTO --weights {MINI} --output OUT/search.html",
    "serve": "OUT",
    "transfer": f"{TRAINING} --runs 1 --output OUT",
    "vtab": f"--show --weights {MINI} --output OUT",
    "weights fetch": "sam --to OUT",
    "weights list": "",
    "weights lock": "OUT",
    "weights push": f"{MINI} nowhere",
    "weights show": MINI,
}
ODD = "file/missing\x1b[2J\x07\x9b"  # Below a file, with control characters.
ANY = {"evaluate --name"}  # Takes what it is given.


def tree(command=None, words=()):
    """Every command that does something, by its words."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        return {" ".join(words): command}
    return {
        name: leaf
        for word, child in command.commands.items()
        for name, leaf in tree(child, (*words, word)).items()
    }


TREE = tree()


def commands_in(text):
    """The commands that a text names; a group is named by what it has."""
    named = re.findall(r"keras-vit ((?:[a-z]+ )?[a-z]+)", text.replace("\n", " "))
    return {word for words in named for word in (words, words.split()[0])}


def bad_values():
    for name, command in TREE.items():
        for parameter in command.params:
            if getattr(parameter, "is_flag", False) or parameter.name == "command":
                continue
            if f"{name} {parameter.opts[-1]}" not in ANY:
                yield pytest.param(name, parameter, id=f"{name}-{parameter.name}")


def test_every_command_is_asked():
    assert TREE.keys() - {"doctor"} == VALID.keys()


@pytest.mark.parametrize(("name", "parameter"), bad_values())
def test_a_bad_value_is_one_message(name, parameter, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "PHOTO").write_text("no photo")
    words = shlex.split(VALID[name])
    if parameter.param_type_name == "argument":
        words = [ODD] * max(2, parameter.nargs)
    else:
        option = max(parameter.opts, key=len)
        words += [option, *[ODD] * parameter.nargs]
    code, out, err = shell(*name.split(), *words)
    assert code, f"{words} was taken"
    assert "Traceback" not in err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err)
    known = {*TREE, *(words.split()[0] for words in TREE)}
    assert commands_in(err) & known or "pip install" in err, err


HOSTILE = {
    "empty": "",
    "blank": " ",
    "overlong": "x" * 5000,
    "not a number": "nan",
    "infinite": "inf",
    "negative": "-1",
    "huge": "99999999999999999999",
}
# Kinds that no option or argument of a type may accept.
REFUSED = {
    "int": HOSTILE.keys(),
    "float": HOSTILE.keys() - {"negative", "huge"},
    "text": {"empty", "blank", "overlong"},
}


def type_of(parameter):
    """The type of a parameter's values: "int", "float" or "text"."""
    described = str(getattr(parameter, "type_descriptor", None) or parameter.type)
    words = set(re.findall(r"[a-z]+", described.lower()))
    for name, spelled in (("int", {"int", "integer"}), ("float", {"float"})):
        if words & spelled:
            return name
    return "text"


@pytest.mark.parametrize(("name", "parameter"), bad_values())
def test_hostile_values_are_usage_errors(name, parameter, shell, tmp_path, monkeypatch):
    """They are refused before a command runs, so that none can mean something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("keras_vit.cli.shell.import_keras", lambda: pytest.fail("ran"))
    for kind in REFUSED[type_of(parameter)]:
        words = shlex.split(VALID[name])
        if parameter.param_type_name == "argument":
            if HOSTILE[kind].startswith("-"):
                continue
            words = [HOSTILE[kind]] * max(2, parameter.nargs)
        elif parameter.nargs > 1:
            words += [parameter.opts[-1], *[HOSTILE[kind]] * parameter.nargs]
        else:
            words += [f"{max(parameter.opts, key=len)}={HOSTILE[kind]}"]
        code, out, err = shell(*name.split(), *words)
        assert (code in (1, 2), out) == (True, ""), (kind, err)
        assert len(re.findall("Error: |keras-vit: ", err)) == 1
        assert "Received: " in err or "Invalid value" in err
        assert len(err) < 1000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("recipes ''", "Received: ''"),
        ("finetune --data digits --output ''", "Received: '' after --output"),
        ("finetune --data digits --output=", "Received: '' after --output"),
        ("finetune --data digits --lr -1", r"base_lr=\(-1.0,\)"),
        ("finetune --data digits --ema -1", "Polyak averaging.*ema=-1.0"),
        ("finetune --data digits --ema 0", "ema=0.0"),
        ("pretrain --data digits --epochs 0", "passes over the.*epochs=0.0"),
        ("pretrain --data digits --lr 0", r"base_lr=\(0.0,\)"),
        ("pretrain --data digits --epochs 1 --steps 1", "either total_steps or epochs"),
        ("pretrain --data digits --layers 4294967296", "--layers"),
        ("pretrain --data digits --image-size 99999999999", "from 1 to 65535"),
        ("pretrain --data digits --image-size ²", "--image-size ²"),
        ("demo --seed -1", "--seed"),
        ("demo --seed 4294967296", "--seed"),
        ("launch --workers 1000000 -- finetune", "at most 256 workers"),
        (f"predict --model OWN --weights {MINI} PHOTO", "--weights with a variant"),
        (
            f"predict PHOTO --server http://localhost:1 --model-version {2**63}",
            r"2\*\*63 - 1",
        ),
    ],
)
def test_values_that_were_accepted_or_crashed(
    line, message, shell, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "OWN").mkdir()
    (tmp_path / "PHOTO").write_text("no photo")
    code, _, err = shell(*shlex.split(line))
    assert code
    assert re.search(message, err.replace("\n", " ")), err


@pytest.mark.parametrize(
    ("line", "help_"),
    [
        (
            "finetune --data digits --model runs/nowhere",
            "Finished runs below the current folder: runs/mine",
        ),
        ("finetune --data digits --model vit-b61", "Did you mean ViT-B/16"),
        ("pretrain --data digits --model runs/mine", "`keras-vit weights list`"),
        ("predict --weights sam2 photo", "Help: keras-vit weights list"),
        ("predict --weights sam photo", "Help: keras-vit weights fetch --help"),
        ("predict --model runs/mine photo", "keras-vit runs show runs/mine"),
        ("predict nothing.jpg", "Help: keras-vit predict --help"),
        ("finetune --data digits --recipe x", "`keras-vit recipes`"),
        ("recipes x", "Help: keras-vit recipes"),
        ("vtab dtdd", "Help: keras-vit vtab --list"),
        ("weights list --tag x", "Help: keras-vit weights list"),
        ("finetune --data digits --tpu x", "Help: keras-vit finetune --help"),
        ("finetun", "Did you mean 'finetune'?"),
        ("finetune --dta digits", "possible options: --data"),
    ],
)
def test_the_command_that_helps(line, help_, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "own"))
    monkeypatch.setattr("urllib.request.OpenerDirector.open", refuse)
    (tmp_path / "photo").write_text("no photo")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "begun.json").write_text("{}")
    if "nowhere" in line:
        (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    code, _, err = shell(*line.split())
    assert code
    assert help_.lower() in err.lower()


def refuse(*_, **__):
    raise OSError("no network in tests")


@pytest.fixture
def raising(shell, monkeypatch):
    """Runs a command that ends with an error."""

    def run(error, words=("recipes", "cifar10")):
        def find(_):
            raise error

        monkeypatch.setattr("keras_vit.recipes.find", find)
        return shell(*words)

    return run


def test_memory_that_is_short_is_one_message(raising):
    tf = pytest.importorskip("tensorflow")
    oom = tf.errors.ResourceExhaustedError(None, None, "OOM of [8,3]\nand much more")
    code, _, err = raising(oom)
    assert code == 1
    assert err.startswith("keras-vit: The images of a step do not fit into memory")
    assert "OOM of [8,3]" in err
    assert "keras-vit costs MODEL --batch" in err
    assert len(err.splitlines()) == 1


def test_torchs_memory_too(raising):
    code, _, err = raising(
        RuntimeError("[enforce fail] can't allocate memory: 9 bytes")
    )
    assert code == 1
    assert err.startswith("keras-vit: The images of a step do not fit into memory")


def test_a_missing_package_is_the_doctors(raising):
    code, _, err = raising(ImportError("Expected onnx: pip install onnx"))
    assert (code, err) == (
        1,
        "keras-vit: Expected onnx: pip install onnx. Help: keras-vit doctor\n",
    )


def test_an_unexpected_error_is_one_message(raising):
    code, _, err = raising(KeyError("ours"))
    assert code == 70
    assert re.fullmatch(
        r"keras-vit: unexpected KeyError in test_cli_errors\.py, line \d+: 'ours'\. "
        r"Please report it at https://\S+ with the output of: keras-vit --debug "
        r"recipes \.\.\.\n",
        err,
    )


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", [KeyError, ValueError])
def test_debug_raises(raising, place, kind):
    words = ["recipes", "cifar10"]
    words.insert(place, "--debug")
    with pytest.raises(kind, match="ours"):
        raising(kind("ours"), words)


def test_debug_after_a_separator_belongs_to_the_worker(shell):
    code, _, err = shell("launch", "--workers", 0, "--", "recipes", "--debug")
    assert code == 1
    assert err.startswith("keras-vit: Expected ")
