"""The commands that the pages have for JAX, run on eight devices of its host platform.

A small model and two updates; a TPU's eight cores are as many devices. Those of several
hosts run in two processes of four devices.
"""

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import REFERENCE, skip_without

skip_without("jax")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
JAX = tuple(map(int, metadata.version("jax").split(".")[:2]))
PAGES = ("docs/howto/tpu.md", "docs/scaling.md", "docs/howto/colab.md")
EVERY = {"--data": "digits", "--batch-size": "64", "--image-size": "32"}
EVERY |= {"--steps": "2", "--warmup": "0", "--lr": "0.01"}
SMALL = {
    "finetune": {**EVERY, "--weights": str(REFERENCE / "vit_mini.npz")},
    "pretrain": {
        **EVERY,
        "--layers": "1",
        "--hidden-size": "16",
        "--mlp-dim": "32",
        "--heads": "4",
    },
}


def commands():
    """(page, words) of each training that a page has for JAX."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for block in re.findall(r"```bash\n(.*?)```", text, re.S):
            lines = block.replace("\\\n", " ").splitlines()
            if "KERAS_BACKEND=jax" in block or "--model-parallel" in block:
                for line in lines:
                    words = shlex.split(line, comments=True)
                    if words[:1] == ["keras-vit"] and words[1] in SMALL:
                        yield page, words[1:]


def shrunk(words, output):
    """The same command for a small model, on devices that are there."""
    command, *rest = words
    options = {}
    while rest:
        name = rest.pop(0)
        options[name] = rest.pop(0) if rest and not rest[0].startswith("--") else None
    if options.get("--distribute") == "tpu":
        options["--distribute"] = "mirrored"
    if command == "finetune":  # The weights' own model.
        options.pop("--model")
    options |= SMALL[command] | {"--output": str(output)}
    return [command, *(at for pair in options.items() for at in pair if at is not None)]


def test_there_are_some():
    found = [words for _, words in commands()]
    assert {words[0] for words in found} == set(SMALL)
    assert sum("--parts" in words for words in found) >= 3
    assert sum("--model-parallel" in words for words in found) >= 2
    assert any("multiworker" in words for words in found)


@pytest.mark.parametrize(
    ("page", "words"),
    commands(),
    ids=lambda at: at if isinstance(at, str) else " ".join(at),
)
def test_it_trains_on_eight_devices(page, words, tmp_path):
    line = shrunk(words, tmp_path / "run")
    hosts = 2 if "multiworker" in line else 1
    if hosts > 1:
        line = ["launch", "--workers", str(hosts), "--", *line]
    flags = f"--xla_force_host_platform_device_count={8 // hosts}"
    done = subprocess.run(
        [sys.executable, "-m", "keras_vit.cli", *line],
        env=os.environ
        | {
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": flags,
        },
        capture_output=True,
        text=True,
    )
    if hosts > 1 and JAX < (0, 10):
        assert done.returncode == 1
        assert "in one process, which uses all devices" in done.stderr
        return
    assert done.returncode == 0, (page, line, done.stderr[-3000:])
    assert "test accuracy" in done.stdout
    assert (tmp_path / "run/model.keras").is_file()
