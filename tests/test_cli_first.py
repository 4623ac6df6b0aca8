"""`keras-vit` as a shell starts it: alone, its help, its completion, how it ends."""

import contextlib
import fcntl
import json
import os
import platform
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import typer.main

import keras_vit
from keras_vit.cli import app, completion, shell, welcome
from tests.terminal import screen

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "keras_vit_command"]
COMMANDS = typer.main.get_command(app).commands


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `keras-vit` in an empty folder, as its console script does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")

    def start(*words, program=PROGRAM, **variables):
        return subprocess.run(
            [*program, *words],
            capture_output=True,
            text=True,
            env=os.environ | variables,
        )

    return start


def exist(lines):
    """Asserts that commands and options exist; returns how many lines have one."""
    seen = 0
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] != ["keras-vit"] or not words[1:] or words[1] == "COMMAND":
            continue
        named = COMMANDS[words[1]]
        if hasattr(named, "commands"):
            named = named.commands[words[2]]
        options = {opt for param in named.params for opt in param.opts}
        assert {word for word in words if word.startswith("--")} <= options
        seen += 1
    return seen


def test_alone_it_says_what_to_do_next(run):
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    commands = [line.strip().partition("  ")[0] for line in lines if line[:2] == "  "]
    assert exist(commands) == len(commands) == 10
    assert "keras-vit COMMAND --help" in lines[-1]
    assert "runs/finetune is" not in done.stdout


def test_alone_it_knows_the_newest_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("masked", "my photos", "cut")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        begun = tmp_path / "runs" / name / "begun.json"
        begun.write_text("{}")
        os.utime(begun, (age, age))
    assert "runs/cut is not finished" in welcome.page()
    assert "\n  keras-vit runs show runs/cut\n" in welcome.page()
    (tmp_path / "runs" / "cut" / "run.json").write_text('{"details": null}')
    assert "runs/cut is not finished" in welcome.page()
    for name, details in (
        ("cut", {}),
        ("my photos", {}),
        ("masked", {"objective": "masked-patches"}),
    ):
        folder = tmp_path / "runs" / name
        (folder / "run.json").write_text(json.dumps({"details": details}))
        quoted = shlex.quote(f"runs/{name}")
        expected = "finetune" if details else "predict"
        assert f"\n  keras-vit {expected} --model {quoted} " in welcome.page()
        shutil.rmtree(folder)
    assert welcome.page().count("runs/") == 3


TAB = {"_KERAS_VIT_COMPLETE": "complete_bash", "COMP_CWORD": "5"}


# Prints the imported modules on standard error when the process ends.
WATCHED = """
import atexit, runpy, sys
atexit.register(lambda: print("modules:", *sys.modules, file=sys.stderr))
sys.argv[0] = "keras-vit"
{start}
"""
STARTS = {
    "console script": "import keras_vit_command; keras_vit_command.main()",
    "python -m": "runpy.run_module('keras_vit_command', run_name='__main__')",
}
HEAVY = {"tensorflow", "keras", "jax", "torch", "numpy"}


def watched(start):
    """A Python program: the command line, whose imported modules are printed last."""
    return [sys.executable, "-c", WATCHED.format(start=STARTS[start])]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", 0),
        ("--version", 0),
        ("--help", 0),
        ("finetune --help", 0),
        ("finetun", 2),
        ("finetune", 2),
        ("finetune --model ViT-B/61", 1),
        ("predict --model ViT-B/61 image.jpg", 1),
        ("export ViT-B/61 exported", 1),
        ("pretrain --model ViT-B/61 --data photos", 1),
        ("recipes", 0),
        ("recipes cifar10", 0),
        ("recipes no-such-recipe", 1),
        ("weights list", 0),
        ("weights list --variant ViT-B/16 --urls", 0),
        ("paper", 0),
        ("paper table5", 0),
        ("paper table8 --json", 0),
        ("paper figure5 --json", 0),
        ("costs ViT-L/16", 0),
        ("costs BiT-R50x1 --batch 8 --by-layer", 0),
        ("costs R50+ViT-B/16 --image-size 384", 0),
        ("costs ViT-B/61", 1),
        ("costs --table6", 0),
        ("costs --plan 'ViT-L/16 imagenet21k 30 epochs on 8xH100'", 0),
    ],
)
def test_what_imports_no_keras(run, line, code):
    """Nor NumPy: these commands only print constants."""
    done = run(*shlex.split(line), program=watched("console script"))
    printed, _, modules = done.stderr.rpartition("modules:")
    assert done.returncode == code, printed
    names = set(modules.split())
    assert "keras_vit.cli.training" in names
    assert not names & HEAVY
    if code == 1:
        assert printed.startswith("keras-vit: Expected ")
    assert done.stdout or code


@pytest.mark.parametrize("start", STARTS)
def test_completion_imports_no_keras(run, start):
    words = "keras-vit finetune --model ViT-L/32 --weights "
    done = run(program=watched(start), **TAB, COMP_WORDS=words)
    assert done.stdout.split() == ["imagenet21k", "imagenet21k+imagenet2012", "sam"]
    names = set(done.stderr.rpartition("modules:")[2].split())
    assert "keras_vit.weights.registry" in names
    assert not names & HEAVY


def test_help_has_every_command_in_one_section(run):
    lines = run("--help").stdout.splitlines()
    assert sorted(" ".join(shell.SECTIONS.values()).split()) == sorted(COMMANDS)
    assert max(map(len, lines)) <= 80
    for title in shell.SECTIONS:
        assert f"{title}:" in lines
    for name, command in COMMANDS.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        summary = line.split(None, 1)[1]
        assert summary.endswith(".")
        assert not summary.endswith("...")
        assert len(summary) < 60
        for inner in getattr(command, "commands", {}).values():
            assert not inner.get_short_help_str(60).endswith("...")


@pytest.mark.parametrize(
    "name", ["vit_b16", "ViTB16", "vit-b/16", "keras_vit.vit_b16", "ViT_B16"]
)
def test_names_are_forgiving(run, name):
    expected = run("costs", "ViT-B/16", "--json").stdout
    done = run("costs", name, "--json")
    assert (done.returncode, done.stdout) == (0, expected)
    assert json.loads(expected)["parameters"] == 86_567_656


def test_every_name_is_found_in_every_spelling():
    for name in keras_vit.VARIANTS:
        found = keras_vit.configs.find_variant(name)
        assert keras_vit.VARIANTS[found] == keras_vit.VARIANTS[name]
        if "-" in name:
            assert found == name
            for spelling in (name.lower(), name.replace("/", ""), name.upper()):
                assert keras_vit.configs.find_variant(spelling) == name


def test_costs_json(run):
    rows = json.loads(run("costs", "--table6", "--json").stdout)
    assert {"model": "ViT-H/14", "epochs": 14} in [
        {key: row[key] for key in ("model", "epochs")} for row in rows
    ]
    plan = "ViT-L/16 imagenet21k 30 epochs on 8xH100"
    values = json.loads(run("costs", "--plan", plan, "--json").stdout)
    assert values["device_hours"] == pytest.approx(8 * values["hours"])


def test_runs_list(run, tmp_path):
    assert run("runs", "list").returncode == 1
    for name in ("done", "cut", "new", "bad", "transfer/run-0"):
        (tmp_path / "runs" / name / "start").mkdir(parents=True)
        begun = tmp_path / "runs" / name / "begun.json"
        begun.write_text('{"recipe": {"total_steps": 20}}')
        if name != "new":
            row = '{"step": 10, "val_accuracy": 0.5}\n'
            begun.with_name("history.jsonl").write_text(row)
        if name in ("done", "transfer/run-0"):
            begun.with_name("history.json").write_text("{}")
    (tmp_path / "runs" / "bad" / "begun.json").write_text("damaged")
    (tmp_path / "runs" / "transfer" / "begun.json").write_text("{}")
    writer = {"host": platform.node(), "pid": os.getpid(), "started": "now"}
    (tmp_path / "runs" / "cut" / ".writer.json").write_text(json.dumps(writer))
    (tmp_path / "runs" / "cut" / "checkpoints").mkdir()
    (tmp_path / "runs" / "cut" / "checkpoints" / "step-0000000013.json").touch()
    done = run("runs", "list", program=watched("console script"))
    assert not set(done.stderr.rpartition("modules:")[2].split()) & HEAVY
    rows = {
        line.split()[0]: line.split()[1:-2] for line in done.stdout.splitlines()[1:]
    }
    assert rows == {
        "runs/done": ["finished", "10/20", "50.00", "%"],
        "runs/cut": ["training", "13/20", "50.00", "%"],
        "runs/new": ["interrupted", "0/20"],
        "runs/bad": ["damaged"],
        "runs/transfer/run-0": ["finished", "10/20", "50.00", "%"],
    }
    (tmp_path / "runs" / "cut" / ".writer.json").write_text('{"pid": "x"}')
    assert "interrupted  13/20" in re.sub(" +", "  ", run("runs", "list").stdout)
    listed = json.loads(run("runs", "list", "runs/cut", "--json").stdout)
    assert [listed[0][key] for key in ("state", "step", "test_accuracy")] == [
        *("interrupted", 13, 0.5),
    ]


@pytest.mark.slow
def test_a_terminal_of_80_columns_wraps_no_progress_line(tmp_path, monkeypatch):
    """The demo in a real terminal, replayed."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [*PROGRAM, "demo", "--steps", "40", "--output", tmp_path],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        os.close(its)
        recorded = b""
        with contextlib.suppress(OSError):  # Linux: the terminal is closed.
            while some := os.read(ours, 2**16):
                recorded += some
    os.close(ours)
    assert process.returncode == 0
    lines = [
        part for part in re.split(r"[\r\n]+", recorded.decode()) if part[:5] == "step "
    ]
    assert "step 0/40  compiling the training step" in map(str.rstrip, lines)
    assert len(lines) > 20
    assert max(map(len, lines)) < 80
    shown = [line for line in screen(recorded.decode()) if line[:5] == "step "]
    assert [line.split()[1] for line in shown] == [f"{n}/40" for n in range(4, 41, 4)]
    assert not re.search(r"[IWE]\d{4} \d\d:", recorded.decode())  # TensorFlow's lines.


def test_a_misspelled_model_is_named_first(run):
    """Before missing data, a missing option, and seconds of imports."""
    done = run("finetune", "--model", "ViT-B/61")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "Received: ViT-B/61. Did you mean ViT-B/16" in line


def test_a_command_registers_what_a_saved_model_needs(run):
    """In a process whose `import keras_vit` does not; TensorFlow's lines are held."""
    model = keras_vit.vit(
        keras_vit.ViTConfig(
            patch_size=8, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1
        ),
        image_size=(16, 16),
        num_classes=2,
    )
    model.compile(keras_vit.training.optim.MomentumSGD(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save("model.keras")
    done = run("convert", "model.keras", "model.npz", "--to", "npz")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("model.npz").is_file()


def test_what_is_no_chatter_is_not_held_back(monkeypatch, capfd):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    with shell._without_chatter():
        os.write(2, b"I0000 00:00:17 port.cc:153] oneDNN\nE0000 00:00:17 a.cc:1] bad\n")
        os.write(2, b"2026-01-02 03:04:05.6: W tensorflow/x.cc:1] y\nIllegal\n")
    assert capfd.readouterr().err == "E0000 00:00:17 a.cc:1] bad\nIllegal\n"


def test_every_offer_is_one_line(run):
    """fish takes each line of the output for an offer."""
    offers = complete(run, "fish", "keras-vit finetune --")
    assert set(offers) >= {"--model", "--data", "--on-corrupt", "--remat", "--help"}
    assert all(offer.startswith("--") for offer in offers)


def complete(run, shell, line):
    """What TAB offers at the end of a line."""
    variables = {"_KERAS_VIT_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        words = line.split(" ")
        place = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        place = {
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
    done = run(**variables, **place)
    assert (done.returncode, done.stderr) == (0, "")
    if shell == "zsh":
        return re.findall(r'^(?:_arguments \'\*: :\(\()?"([^"]+)"', done.stdout, re.M)
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines() if offer]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run, shell):
    def offers(line):
        return complete(run, shell, line)

    assert offers("keras-vit fin") == ["finetune"]
    assert offers("keras-vit weights ") == ["list", "fetch", "lock", "show", "push"]
    assert offers("keras-vit finetune --mod") == ["--model", "--model-parallel"]
    assert offers("keras-vit finetune --augment ") == ["inception", "flip", "none"]
    assert offers("keras-vit finetune --model ViT-L") == ["ViT-L/16", "ViT-L/32"]
    line = "keras-vit predict --model ViT-L/32 --weights "
    assert offers(line) == ["imagenet21k", "imagenet21k+imagenet2012", "sam"]
    assert offers("keras-vit recipes vit_s") == ["vit_s16_i1k"]
    assert offers("keras-vit vtab clevr") == ["clevr-count", "clevr-dist"]
    assert offers("keras-vit finetune --data photo") == []  # Shells have the files.
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/run.json").touch()
    Path("runs/mine/begun.json").touch()
    assert offers("keras-vit export r") == ["runs/mine"]
    assert offers("keras-vit runs show ") == ["runs/mine"]


def test_bash_itself_completes(run, tmp_path):
    """With the script that --show-completion prints for it."""
    stub = tmp_path / "keras-vit"
    stub.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    stub.chmod(0o755)
    script = run("--show-completion", "bash", SHELL="/bin/bash").stdout
    if "complete -o default" not in script:  # It looks at who called it.
        variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        script = run("--show-completion", "bash", **variables).stdout
    typed = """
COMP_WORDS=(keras-vit costs R50+ViT-L); COMP_CWORD=2
_keras_vit_completion keras-vit; echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "-c", script + typed],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert (done.stdout, done.stderr) == ("R50+ViT-L/16 R50+ViT-L/32\n", "")


def test_what_is_offered_is_taken():
    from keras_vit.data import vtab

    assert completion.tasks() == [task.word for task in vtab.TASKS]
    for variant in completion.variants():
        assert hasattr(keras_vit, keras_vit.configs.builder_name(variant))


def test_a_reader_that_leaves_is_no_error(run):
    for words in ("recipes", "recipes --json", "", "--help"):
        command = f"{shlex.join(PROGRAM)} {words} | true"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
@pytest.mark.parametrize("words", [["recipes"], []])
def test_a_full_disk_is_one_line(run, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line


@pytest.mark.parametrize("seconds", [0.3, 0.6, 1.5])
def test_ctrl_c_is_silent(run, seconds):
    """As the package is imported."""
    with subprocess.Popen(
        [*PROGRAM, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode in (130, -signal.SIGINT)
    assert err == ""


def test_commands_of_the_page_exist():
    text = (ROOT / "docs/howto/command-line.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace(" --help ", " ").splitlines()
    lines = [line.removeprefix("TF_CPP_MIN_LOG_LEVEL=0 ") for line in lines]
    roots = ("keras-vit  ", "keras-vit --")
    assert exist(line for line in lines if not line.startswith(roots)) == 5
