"""Every block of every page, run in order, in one folder; or the page says why not.

There, `photos/` holds two classes, `some.jpg` is a photo, tags are random weights of a
mirror, and ViT-B/16 is a very small one, trained for one step.
"""

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import typer.main

import keras_vit
from keras_vit import applications, configs
from keras_vit.cli import app, options
from keras_vit.cli.options import variant_named as _variant_named
from keras_vit.weights import registry
from tests.test_docs import run_python

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs").glob("start/*.md"))
PAGES += sorted((ROOT / "docs").glob("howto/*.md"))
REASON = re.compile(r"<!-- not run: .+ -->\n$")
VARIANT = "ViT-B/16"
SMALL = {"num_layers": 2, "hidden_size": 48, "mlp_dim": 96, "num_heads": 3}
TRAINING = {"--batch-size": 2, "--parts": 1, "--image-size": 32, "--steps": 1}
SMOKE = {  # Added to a command, in the place of what it says.
    "finetune": {**TRAINING, "--warmup": 0, "--lr": 0.01},
    "transfer": {**TRAINING, "--warmup": 0, "--lr": 0.01, "--runs": 1},
    "pretrain": {**TRAINING, "--warmup": 0},
    "fewshot": {"--image-size": 32, "--seeds": 1, "--shots": 1},
    "data pack": {"--shards": 2},
}
# Not run: named things exist.
CHECKED = ("make", "pip", "python", "python3", "git", "cd", ".", "tensorboard")
CHECKED += (".venv/bin/pre-commit",)


def blocks(page):
    """(language, code, whether a comment says why it is not run) of a page."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        before = text[: found.start()].splitlines(keepends=True)[-1:]
        yield found[1], found[2], not REASON.match("".join(before))


def commands(code):
    """The command lines of a shell block, as words; without variables before them."""
    command = ""
    code = code.replace("\\\n", " ").replace(" && ", "\n")
    for line in code.splitlines(keepends=True):
        command += line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            continue  # Its quotation ends on a later line.
        command = ""
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        if words:
            yield words
    assert not command, f"a quotation without an end: {command}"


COMMANDS = typer.main.get_command(app)


def leaf(words):
    """A command line's own command: (its words, the click command, its arguments)."""
    command, taken = COMMANDS, 1
    while taken < len(words) and words[taken] in getattr(command, "commands", ()):
        command = command.commands[words[taken]]
        taken += 1
    return words[1:taken], command, words[taken:]


def shortened(words):
    if "--" in words:  # keras-vit launch --workers 2 -- finetune ...
        at = words.index("--") + 1
        return [*words[1:at], *shortened(["keras-vit", *words[at:]])]
    names, _, arguments = leaf(words)
    wanted = SMOKE.get(" ".join(names), {})
    kept = list(arguments)
    for option in wanted:
        while option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    added = [str(part) for pair in wanted.items() for part in pair]
    return [*names, *kept, *added]


@pytest.fixture(scope="session")
def miniature(tmp_path_factory):
    """The small config, and a mirror with weights of every tag that it has."""
    config = dataclasses.replace(configs.VIT_VARIANTS[VARIANT], **SMALL)
    mirror = tmp_path_factory.mktemp("mirror")
    for tag in registry.tags(VARIANT):
        published = registry.find(VARIANT, tag)
        head = {"representation_size": 48} if published.zero_head else {}
        model = keras_vit.vit(
            dataclasses.replace(config, **head),
            image_size=published.image_size,
            num_classes=published.num_classes,
        )
        (mirror / published.path).parent.mkdir(parents=True, exist_ok=True)
        keras_vit.weights.save(model, mirror / published.path)
    return config, mirror


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    import tensorflow as tf

    root, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 4)):
        for label, brightness in (("cat", 40), ("dog", 200)):
            folder = root / "photos" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 40, (48, 64, 3)) + brightness
                image = tf.io.encode_jpeg(pixels.astype(np.uint8))
                (folder / f"{i}.jpg").write_bytes(image.numpy())
    shutil.copy(root / "photos" / "test" / "dog" / "0.jpg", root / "some.jpg")
    return root


@pytest.fixture
def folder(miniature, photographs, tmp_path, monkeypatch, request):
    config, mirror = miniature
    if Path(request.node.callspec.params["page"]).stem == "costs":
        config = configs.VIT_VARIANTS[VARIANT]  # Counted there, not built.
    name = configs.builder_name(VARIANT)
    for table in (configs.VARIANTS, configs.VIT_VARIANTS):
        monkeypatch.setitem(table, VARIANT, config)
    monkeypatch.setitem(configs.VARIANTS, name, config)
    small = applications.ViTBuilder(VARIANT, config)
    monkeypatch.setattr(applications, name, small)
    monkeypatch.setattr(keras_vit, name, small)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(mirror))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    here = tmp_path / "here"
    shutil.copytree(photographs, here)
    (here / "tests").symlink_to(ROOT / "tests")
    (here / "examples").symlink_to(ROOT / "examples")
    shutil.copy(mirror / "imagenet21k+imagenet2012" / "ViT-B_16.npz", here)
    monkeypatch.chdir(here)
    return here


def check(words):
    """What is not run here is there: a target, a script, a command's options."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words[1:] if "=" not in word} <= {*targets}
    elif words[0] == "pip":
        about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
            known = {*about["optional-dependencies"], "cuda12", "tpu"}  # jax[tpu]
            assert set(extras.split(",")) <= known
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file()
    elif words[0] == "keras-vit":
        if "--" in words:  # keras-vit launch --workers 2 -- finetune ...
            at = words.index("--")
            check(words[:at])
            return check(["keras-vit", *words[at + 1 :]])
        names, command, arguments = leaf(words)
        if names and "--help" not in arguments:  # Options and choices, not only names.
            with mock.patch.object(options, "variant_named", variant_named):
                command.make_context(" ".join(names), list(arguments))


def variant_named(variant, folders=False):
    """As the command line's; accepts runs that other blocks of a page write."""
    is_run = folders and Path(variant).parts[0] in ("runs", "demo")
    return variant if is_run else _variant_named(variant, folders)


@pytest.mark.tensorflow_only
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # A page's reader sees them; a test need not.
@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_blocks_run(page, folder, shell, capsys, monkeypatch):
    namespace = {}
    for language, code, is_run in blocks(page):
        if language == "python" and is_run and page != "README.md":
            run_python(code, str(page), namespace, capsys)
        for words in commands(code) if language == "bash" else ():
            if not is_run or words[0] in CHECKED:
                check(words)
            elif words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))
            elif words[:2] == ["keras-vit", "launch"]:  # It takes its process's place.
                program = [sys.executable, "-m", "keras_vit.cli", *shortened(words)]
                subprocess.run(program, check=True)
            elif words[0] == "saved_model_cli":
                program = Path(sys.executable).with_name(words[0])
                subprocess.run([program, *words[1:]], check=True)
            else:
                status, out, err = shell(*shortened(words))
                assert status == 0, f"{page}: {shlex.join(words)}: {err or out}"


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_blocks_are_of_known_kinds(page):
    fences = re.findall(r"^\s*```", (ROOT / page).read_text(), re.M)
    assert len(fences) == 2 * len(list(blocks(page)))
    for language, code, is_run in blocks(page):
        assert language in ("python", "bash", "text", "yaml", "json")
        if language == "bash":
            for words in commands(code):
                known = ("keras-vit", "export", "saved_model_cli", *CHECKED)
                assert not is_run or words[0] in known
                check(words)
