"""Reads damaged copies of checkpoints: `python fuzzing.py SEED COPIES FOLDER...`.

Every folder is one checkpoint with all its files. COPIES times some bytes of one of
them are damaged, or a value of a JSON; as often, the tensors of a whole file are
renamed, reshaped and left out. Each tensor is a scalar once. Each copy is read and
assigned to a model. The outcomes of a folder are printed as a line of JSON.

Run by `test_fuzz.py` in a process of its own, without TensorFlow: a crash is then seen,
memory can be limited, and the process that reads HDF5 can be a fork, not a new Python.
"""

import collections
import contextlib
import copy
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))
# Found, not imported; it may be installed elsewhere.
PACKAGE = Path(importlib.util.find_spec("keras_vit").origin).parent
SECONDS = 5
MEMORY = 200 * 2**20
# In memory, where there is such a place: a disk takes longer than reading does.
SHM = "/dev/shm"
SCRATCH = Path(tempfile.mkdtemp(dir=SHM if os.access(SHM, os.W_OK) else None))
HOSTILE = (
    *(None, True, False, 0, 1, 2, 3, 7, -3, 16, 10**9, 2**63, 0.5, 1e-12, 1e400),
    *(float("nan"), "", "abc", "gelu", "8", "\x00", "é" * 300),
    *([], [[]], [None], [0, 0], [-8, 8], [10**9] * 2, [8.5, 8], ["8", 8], [1] * 40),
    *({}, {"": None}, {"a": {"b": []}}),
)


def fork_server():
    """A process that forks a child for every path it reads, before keras is here."""
    sys.path[:0] = [str(PACKAGE / "weights")]
    import h5_index

    sys.path.pop(0)
    (ask, to_ask), (to_answer, answer) = os.pipe(), os.pipe()
    if os.fork():
        os.close(ask)
        os.close(answer)
        return os.fdopen(to_ask, "wb", 0), os.fdopen(to_answer, "rb", 0)
    os.close(to_ask)
    os.close(to_answer)
    for line in os.fdopen(ask, "rb", 0):
        path = Path(os.fsdecode(line.rstrip(b"\n")))
        pid = os.fork()
        if not pid:
            index(h5_index.main, path)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answer, b"%d\n" % code)
    os._exit(0)


def index(main, path):
    """What h5_index.py does as a program; ends the process."""
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(SCRATCH / f"fuzz-{name}", os.O_CREAT | os.O_RDWR)
        os.truncate(file, 0)
        os.dup2(file, descriptor)
    signal.alarm(SECONDS - 1)
    code = 0
    try:
        main(str(path))
    except SystemExit as refusal:
        print(refusal, file=sys.stderr)
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


SERVER = fork_server()
os.environ["KERAS_BACKEND"] = "numpy"

import numpy as np  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit.weights import (  # noqa: E402
    checkpoint,
    download,
    hashes,
    reading,
    tensors,
)
from tests.weights.damage import damage  # noqa: E402

OPEN = reading._open


def fork(command, **_):
    """`subprocess.run` of h5_index.py, a hundred times faster."""
    path = command[-1]
    SERVER[0].write(os.fsencode(path) + b"\n")
    code = int(SERVER[1].readline())
    out, err = (
        (SCRATCH / f"fuzz-{name}").read_text(errors="replace")
        for name in ("out", "err")
    )
    return subprocess.CompletedProcess(command, code, out, err)


def misled(content, rng):
    """A JSON with one or two values replaced, left out or added."""
    value = {"": json.loads(content)}
    for _ in range(rng.randint(1, 2)):
        at, key = value, ""
        while isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
            at = at[key]
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if isinstance(at, dict) and at is not value and rng.random() < 0.1:
            del at[key]
        else:
            at[key] = copy.deepcopy(rng.choice(HOSTILE))
            if at is value:
                break
    return json.dumps(value[""]).encode()


def tampered(found, rng):
    """A checkpoint whose tensors are whole, and not those of the model."""
    found = dict(found)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(list(found))
        tensor = np.atleast_1d(found[name])
        match rng.randrange(7):
            case 0:
                del found[name]
                if not found:
                    break
            case 1:  # Another block, stage or layer.
                number = str(rng.choice((0, 1, 2, 7, 99, 9999, 10**6)))
                places = list(re.finditer(r"\d+", name))
                if places:
                    place = rng.choice(places)
                    other = name[: place.start()] + number + name[place.end() :]
                    found[other] = found.pop(name) if rng.randrange(2) else tensor
            case 2:
                other = rng.choice(list(found))
                found[name], found[other] = found[other], found[name]
            case 3:
                parts = name.split("/") if "/" in name else name.split(".")
                parts[rng.randrange(len(parts))] = rng.choice(("", "x", "kernel", "0"))
                found["/".join(parts)] = found.pop(name)
            case 4:
                found[name] = rng.choice(
                    (
                        tensor.T,
                        tensor[None],
                        tensor[..., None],
                        tensor.reshape(-1),
                        tensor[..., :-1],
                        tensor[1:],
                        np.concatenate([tensor, tensor], axis=-1),
                        np.concatenate([tensor, tensor], axis=0),
                    )
                )
            case 5:
                empty = (0, 10**9), (10**9, 0), (0,), (), (1,), (0, 2, 2, 10**9)
                found[name] = np.empty(rng.choice(empty), np.float32)
            case 6:
                shape = list(tensor.shape)
                axis = rng.randrange(len(shape))
                shape[axis] = 0
                if len(shape) > 1 and max(shape) < 10**9:
                    shape[axis - 1] = rng.choice((shape[axis - 1], 10**9))
                found[name] = np.empty(shape, np.float32)
    return found


def outcome(source, expected, raw, model):
    """What a copy came to; raises what no file may cause.

    "equal"; "renamed", of other tensors or another config; "changed", with other
    values under a name; "refused"; "crash", of libhdf5.
    """
    before = None
    try:
        if hashes.recorded(source) is not None:
            download._verify(source, None, ())
        found = reading.read(source)
        if architecture(found) == architecture(expected):
            before = model.get_weights()
            checkpoint.assign(model, found)
        else:
            keras_vit.from_checkpoint(source)
    except (ValueError, OSError) as error:
        if before is not None:
            same = map(np.array_equal, before, model.get_weights())
            assert all(same), "a refused file has changed the model"
        if "Expected" not in str(error) or "Received" not in str(error):
            raise
        return "crash" if "crashes" in str(error) else "refused"
    held, wanted = found.tensors, expected.tensors
    if raw is not None:
        with tensors.open_tensors(source) as file:
            held, wanted = dict(file), raw
    same = all(
        np.array_equal(value, wanted[name], equal_nan=True)
        for name, value in held.items()
        if name in wanted
    )
    if not same:
        return "changed"
    told = architecture(found) == architecture(expected)
    return "equal" if told and held.keys() == wanted.keys() else "renamed"


def architecture(found):
    return found.config, found.num_channels, found.num_classes, found.num_positions


def give_up(*_):
    raise TimeoutError(f"a file took more than {SECONDS} s")


def attempt(counts, bugs, what, *arguments):
    """Counts the outcome of one copy, or prints, once, what none may come to."""
    start = time.perf_counter()
    signal.alarm(SECONDS)
    try:
        counts[outcome(*arguments)] += 1
    except BaseException as error:
        signal.alarm(0)
        *_, last = traceback.extract_tb(error.__traceback__)
        bug = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if bug not in bugs:
            traceback.print_exc()
            print(f"{arguments[0]}, {what}: {bug}", file=sys.stderr)
        bugs[bug] += 1
    signal.alarm(0)
    return time.perf_counter() - start


def case(folder, seeds):
    """Prints what the copies of one checkpoint came to; ends the process."""
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    spoilt = SCRATCH / folder.name
    shutil.copytree(folder, spoilt)
    source = next(iter(sorted(spoilt.glob("vit.*"))), spoilt)
    expected = reading.read(source)
    model = keras_vit.from_checkpoint(source)
    raw = None
    if source.suffix == ".npz":
        with tensors.open_tensors(source) as file:
            raw = dict(file)
    with OPEN(source) as file:
        whole = dict(file)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, give_up)
    descriptors = os.listdir("/proc/self/fd")
    in_bytes, in_tensors, scalars, bugs = (collections.Counter() for _ in range(4))
    slowest, began = 0.0, time.perf_counter()
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(list(files))
        change = misled if name.endswith(".json") and rng.randrange(2) else damage
        (spoilt / name).write_bytes(change(files[name], rng))
        arguments = f"{name} with seed {seed}", source, expected, raw, model
        slowest = max(slowest, attempt(in_bytes, bugs, *arguments))
        (spoilt / name).write_bytes(files[name])
    for seed in seeds:
        other = tampered(whole, random.Random(seed))
        reading._open = lambda path, other=other: contextlib.nullcontext(other)
        arguments = f"tensors with seed {seed}", source, expected, None, model
        slowest = max(slowest, attempt(in_tensors, bugs, *arguments))
    for name in whole:
        other = whole | {name: np.float32(1)}
        reading._open = lambda path, other=other: contextlib.nullcontext(other)
        arguments = f"a scalar {name}", source, expected, None, model
        slowest = max(slowest, attempt(scalars, bugs, *arguments))
    if len(os.listdir("/proc/self/fd")) != len(descriptors):
        bugs["descriptors leak"] += 1
    report = {
        "bytes": in_bytes,
        "tensors": in_tensors,
        "scalars": scalars,
        "bugs": bugs,
    }
    seconds = round(time.perf_counter() - began, 1)
    report |= {"slowest": round(slowest, 3), "seconds": seconds}
    print(json.dumps({"name": folder.name, **report}), flush=True)
    os._exit(0)


def main(seeds, folders):
    """Runs every case in a process of its own; one that crashes prints nothing."""
    warnings.simplefilter("ignore")  # RuntimeWarning: values have overflowed.
    tensors.subprocess = SimpleNamespace(
        run=fork, TimeoutExpired=subprocess.TimeoutExpired
    )
    try:
        for folder in folders:
            pid = os.fork()
            if not pid:
                case(folder, seeds)
            os.waitpid(pid, 0)
    finally:
        shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    seed, copies, *names = sys.argv[1:]
    seeds = range(int(seed), int(seed) + int(copies))
    main(seeds, [Path(name) for name in names])
