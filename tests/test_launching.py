"""`keras-vit launch` and `keras_vit.launching`, with small scripts as workers."""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_vit import launching

pytestmark = pytest.mark.tensorflow_only

PACKAGE = Path(launching.__file__).parent
PATIENCE = 60  # Seconds until a test gives up on a busy machine.
PREAMBLE = f"""
import fcntl, json, os, signal, subprocess, sys, time
from pathlib import Path

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)

def on_sigterm(status):
    def save(*_):
        with open(f"saved_{{index}}", "a") as file:
            file.write("once ")
        sys.exit(status)
    signal.signal(signal.SIGTERM, save)
    Path(f"ready_{{index}}").touch()

def sleep():
    time.sleep({PATIENCE})
    sys.exit("slept to the end")

"""
# Has a lock, whose release tells its death, and ignores SIGTERM.
GRANDCHILD = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = open(f"lock_{index}", "w")
fcntl.flock(file, fcntl.LOCK_EX)
Path(f"locked_{index}").touch()
sleep()
"""
WITH_GRANDCHILD = f"""
script = {PREAMBLE + GRANDCHILD!r}
subprocess.Popen([sys.executable, "-c", script])
wait_for(f"locked_{{index}}")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def worker(script):
    return [sys.executable, "-c", PREAMBLE + script]


@pytest.fixture
def launcher():
    """Starts the launcher as the command line does: a process, with pipes."""
    started = []

    def start(script, workers, ignored=()):
        program = [sys.executable, "-P", launching.__file__, str(workers)]
        # A process begins with what its parent ignores, and no handler.
        handlers = {
            signum: signal.signal(
                signum, signal.SIG_IGN if signum in ignored else lambda *_: None
            )
            for signum in launching.SIGNALS
        }
        process = subprocess.Popen(
            [*program, *worker(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(*names):
    end = time.monotonic() + PATIENCE
    while not all(Path(name).exists() for name in names):
        assert time.monotonic() < end, names
        time.sleep(0.02)


def wait_until_dead(index):
    """Until nobody has the lock of a grandchild."""
    end = time.monotonic() + PATIENCE
    with open(f"lock_{index}") as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < end
                time.sleep(0.02)


def test_each_worker_has_its_place_in_one_cluster(capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
    script = """
names = "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"
told = [os.environ["TF_CONFIG"], *map(os.environ.get, names), sys.stdin.read()]
print(json.dumps(told))
"""
    assert launching.launch(worker(script), 3) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = sorted(out.splitlines())
    assert [line[:11] for line in lines] == [f"[worker {i}] " for i in range(3)]
    configs, threads, omp, unbuffered, read = zip(
        *(json.loads(line[11:]) for line in lines), strict=True
    )
    configs = [json.loads(config) for config in configs]
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]
    assert configs[0]["cluster"] == configs[1]["cluster"] == configs[2]["cluster"]
    assert list(configs[0]["cluster"]) == ["worker"]
    hosts, ports = zip(
        *(address.split(":") for address in configs[0]["cluster"]["worker"]),
        strict=True,
    )
    assert set(hosts) == {"127.0.0.1"}
    assert len(set(ports)) == 3
    assert min(map(int, ports)) > 0
    assert set(threads) == {"7"}  # The user's own.
    assert set(omp) == {str(max(1, len(os.sched_getaffinity(0)) // 3))}
    assert (set(unbuffered), set(read)) == ({"1"}, {""})


def test_each_worker_has_its_share_of_the_gpus(monkeypatch, tmp_path):
    def shares():
        return [own.get("CUDA_VISIBLE_DEVICES") for own in launching.environments(2)]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launching, "NVIDIA", tmp_path / "gpus")
    assert shares() == [None, None]
    for name in ("01", "02", "03", "04"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert shares() == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8,7")
    assert shares() == ["5", "GPU-8"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert shares() == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(ValueError, match=r"Received: --workers 2, 1 GPU\."):
        launching.check(["keras-vit"], 2)


def test_lines_of_both_streams_are_forwarded_apart(capfd):
    script = r"""
sys.stdout.buffer.write(b"1%\r2%\r\n\n\nd\xc3\xa9j\xc3\xa0 \xff\nlast")
sys.stderr.buffer.write(b"warning\n\r3%\r")
"""
    assert launching.launch(worker(script), 1) == 0
    out, err = capfd.readouterr()
    lines = ["1%", "2%", "déjà \ufffd", "last"]
    assert out == "".join(f"[worker 0] {line}\n" for line in lines)
    assert err == "[worker 0] warning\n[worker 0] 3%\n"


def test_a_progress_bar_is_seen_while_it_stands(launcher):
    script = "sys.stdout.write('10%\\r'); sys.stdout.flush(); wait_for('seen')"
    process = launcher(script, 1)
    assert process.stdout.readline() == "[worker 0] 10%\n"
    Path("seen").touch()
    assert process.wait(PATIENCE) == 0


def test_a_reader_that_leaves_stops_nothing(launcher):
    script = """
print("first", flush=True)
wait_for("left")
for _ in range(10_000):
    print("a line that nobody reads")
Path("done").touch()
"""
    process = launcher(script, 1)
    assert process.stdout.readline() == "[worker 0] first\n"
    process.stdout.close()
    Path("left").touch()
    assert process.wait(PATIENCE) == 0
    assert Path("done").exists()
    assert process.stderr.read() == ""


def test_a_worker_that_has_ended_well_ends_no_other(capfd):
    script = """
if index == 0:
    Path("ended").touch()
else:
    wait_for("ended")
    print("still here")
"""
    assert launching.launch(worker(script), 2) == 0
    assert capfd.readouterr() == ("[worker 1] still here\n", "")


def test_the_others_save_and_end_when_one_fails(capfd):
    script = """
if index == 1:
    wait_for("ready_0")
    wait_for("ready_2")
    sys.exit(3)
on_sigterm(143 if index == 0 else 0)
sleep()
"""
    assert launching.launch(worker(script), 3) == 3
    assert Path("saved_0").read_text() == Path("saved_2").read_text() == "once "
    line = "keras-vit launch: worker 1 ended with 3; stopping the other 2\n"
    assert capfd.readouterr() == ("", line)


def test_a_killed_worker_is_128_and_the_signal(capfd):
    script = """
if index == 1:
    wait_for("ready_0")
    os.kill(os.getpid(), signal.SIGKILL)
on_sigterm(4)
sleep()
"""
    assert launching.launch(worker(script), 2) == 137
    line = "keras-vit launch: worker 1 ended by SIGKILL; stopping the other 1\n"
    assert capfd.readouterr().err == line


def test_who_ignores_sigterm_is_killed_with_its_children(capfd):
    script = f"""
if index == 1:
    wait_for("locked_0")
    sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{WITH_GRANDCHILD}
sleep()
"""
    before = time.monotonic()
    assert launching.launch(worker(script), 2, grace=0.2) == 5
    assert time.monotonic() - before < PATIENCE
    wait_until_dead(0)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "keras-vit launch: killing worker 0"


def test_what_a_worker_leaves_behind_is_killed():
    assert launching.launch(worker(WITH_GRANDCHILD), 1) == 0
    wait_until_dead(0)


def test_no_child_is_left_and_signals_are_given_back():
    script = f"""
import os, signal, sys
sys.path.append({str(PACKAGE)!r})
import launching

before = [signal.getsignal(signum) for signum in launching.SIGNALS]
assert launching.launch(["/bin/sh", "-c", "exit 6"], 3) == 6
assert [signal.getsignal(signum) for signum in launching.SIGNALS] == before
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("none")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "none\n", done.stderr


@pytest.mark.parametrize("signum", launching.SIGNALS, ids=lambda signum: signum.name)
def test_a_signal_lets_all_workers_save(launcher, signum):
    process = launcher("on_sigterm(143); sleep()", 2)
    wait_for("ready_0", "ready_1")
    process.send_signal(signum)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum
    assert (out, err) == (
        "",
        f"keras-vit launch: {signum.name}: all workers save and end\n",
    )
    assert Path("saved_0").read_text() == Path("saved_1").read_text() == "once "


def test_a_training_that_ends_well_all_the_same_is_0(launcher):
    process = launcher("on_sigterm(0); sleep()", 2)
    wait_for("ready_0", "ready_1")
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_nohup_holds(launcher):
    process = launcher("on_sigterm(143); sleep()", 1, ignored=[signal.SIGHUP])
    wait_for("ready_0")
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert process.wait(PATIENCE) == 143
    assert Path("saved_0").exists()


def test_a_second_signal_kills(launcher):
    script = f"""
{WITH_GRANDCHILD}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"ready_{{index}}").touch()
sleep()
"""
    process = launcher(script, 2)
    wait_for("ready_0", "ready_1")
    process.terminate()
    assert process.stderr.readline().endswith("all workers save and end\n")
    process.terminate()
    assert process.wait(PATIENCE) == 143
    assert process.stderr.read() == "keras-vit launch: killing worker 0, worker 1\n"
    wait_until_dead(0)
    wait_until_dead(1)


def test_workers_end_with_a_launcher_that_is_killed(launcher):
    process = launcher(f"{WITH_GRANDCHILD}\nsleep()", 2)
    wait_for("locked_0", "locked_1")
    process.kill()
    process.wait(PATIENCE)
    wait_until_dead(0)
    wait_until_dead(1)


def test_a_program_that_is_not_there_leaves_nothing_running(capfd):
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        launching.launch(["no-such-program"], 2)


@pytest.mark.parametrize(
    ("command", "workers", "config", "message"),
    [
        (["true"], 0, None, "Expected 1 worker or more. Received: --workers 0"),
        ([], 2, None, "Expected a command of keras-vit after --. Received: none"),
        (["true"], 2, "{}", "Expected TF_CONFIG not to be set.*Received: {}.*directly"),
    ],
)
def test_what_cannot_be_started(command, workers, config, message, monkeypatch):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=message):
        launching.launch(command, workers)


def test_the_launcher_imports_no_tensorflow():
    program = [sys.executable, "-X", "importtime", "-P", launching.__file__, "1"]
    done = subprocess.run(
        [*program, "/bin/sh", "-c", "exit 0"], capture_output=True, text=True
    )
    assert done.returncode == 0
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "subprocess" in names
    assert not names & {"tensorflow", "keras", "keras_vit", "numpy"}


@pytest.fixture
def light_shell(monkeypatch):
    """Runs `python -m keras_vit_command`."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    monkeypatch.setenv("COLUMNS", "80")

    def run(words):
        return subprocess.run(
            [sys.executable, "-P", "-m", "keras_vit_command", *shlex.split(words)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def test_two_versions(light_shell):
    from keras_vit import __version__

    done = light_shell("launch --workers 2 -- --version")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        f"[worker 0] {__version__}",
        f"[worker 1] {__version__}",
    ]


def test_a_command_that_fails_has_its_exit_code(light_shell):
    done = light_shell("launch --workers 1 -- recipes no-such-recipe")
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first.startswith("[worker 0] keras-vit: Expected the name of a recipe")
    assert last == "keras-vit launch: worker 0 ended with 1"


def test_help_has_an_example(light_shell):
    done = light_shell("launch --help")
    assert done.returncode == 0
    assert "keras-vit launch --workers 2 -- finetune --data photos" in done.stdout
    assert "others are stopped and its exit code is returned" in " ".join(
        done.stdout.split()
    )


@pytest.fixture
def executed(shell, monkeypatch):
    """The words that the workers of `keras-vit launch ...` would be called with."""

    def words(line):
        programs = []

        def execv(path, program):
            programs.append((path, program))
            raise SystemExit

        monkeypatch.setattr(os, "execv", execv)
        assert shell(*shlex.split(line)) == (0, "", "")
        ((path, program),) = programs
        python = [sys.executable, "-P"]
        start = [*python, launching.__file__, "2", *python, "-m", "keras_vit_command"]
        assert (path, program[: len(start)]) == (sys.executable, start)
        return shlex.join(program[len(start) :])

    return words


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("recipes --json", "recipes --json"),
        ("finetune --data 'a b'", "finetune --data 'a b' --distribute multiworker"),
        ("pretrain -x --workers 9", "pretrain -x --workers 9 --distribute multiworker"),
        ("finetune --distribute mirrored", "finetune --distribute mirrored"),
        ("finetune --distribute=x -- --y", "finetune --distribute=x -- --y"),
    ],
)
def test_words_after_the_dashes_are_the_workers(executed, given, run):
    assert executed(f"launch --workers 2 -- {given}") == run
    assert executed(f"launch --workers 2 {given}") == run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("launch --workers 0 -- recipes", "keras-vit: Expected 1 worker or more."),
        ("launch --workers 2 --", "keras-vit: Expected a command of keras-vit"),
    ],
)
def test_errors_are_one_line(shell, line, message):
    code, out, err = shell(*line.split())
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1
