"""Reads damaged copies of a checkpoint: `python fuzzing.py FOLDER COPIES`.

Run by `test_fuzz.py` in a process of its own, without TensorFlow: a crash is then seen,
memory can be limited, and the process that reads HDF5 can be a fork, not a new Python.
"""

import collections
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np

WEIGHTS = Path(__file__).parents[2] / "keras_vit" / "weights"
SECONDS = 5
MEMORY = 200 * 2**20


def module(name):
    """A module of keras_vit.weights alone, without the package's own imports."""
    spec = importlib.util.spec_from_file_location(name, WEIGHTS / f"{name}.py")
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


tensors, h5_index = module("tensors"), module("h5_index")


def fork(command, **_):
    """`subprocess.run` of h5_index.py, a hundred times faster."""
    path = command[-1]
    outputs = [
        path.parent.with_name(f"fuzz-{name}").open("w+") for name in ("out", "err")
    ]
    pid = os.fork()
    if not pid:
        for stream, descriptor in zip(outputs, (1, 2), strict=True):
            os.dup2(stream.fileno(), descriptor)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS - 1)
        code = 0
        try:
            h5_index.main(str(path))
        except SystemExit as refusal:
            print(refusal, file=sys.stderr)
            code = 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for stream in outputs:
        stream.seek(0)
        texts.append(stream.buffer.read().decode(errors="replace"))
        stream.close()
    return subprocess.CompletedProcess(command, code, *texts)


def damage(content, rng):
    """One to four bytes changed in place; of every third copy, parts moved as well."""
    content = bytearray(content)
    in_place = rng.randrange(3)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(content)), rng.randint(1, 64)
        if in_place:
            flipped = content[at] ^ 1 << rng.randrange(8)
            content[at] = rng.choice((flipped, 0, 255, rng.randrange(256)))
            continue
        kind = rng.choice(("cut", "insert", "delete", "repeat"))
        if kind == "cut":
            del content[max(at, 1) :]
        elif kind == "insert":
            content[at:at] = rng.randbytes(size)
        elif kind == "delete":
            del content[at : at + min(size, len(content) - 1)]
        else:
            content[at:at] = content[at : at + size]
    return bytes(content)


def read(path):
    with tensors.open_tensors(path) as file:
        return {name: file[name] for name in file}


def outcome(path, expected):
    """ "equal", "changed" or an error's kind; raises what no file may cause."""
    try:
        found = read(path)
    except (ValueError, OSError) as error:
        if "Expected" not in str(error) or "Received" not in str(error):
            raise
        return "crash" if "crashes" in str(error) else "refused"
    same = all(
        np.array_equal(value, expected[name], equal_nan=True)
        for name, value in found.items()
        if name in expected
    )
    if same and found.keys() == expected.keys():
        return "equal"
    return "renamed" if same else "changed"


def give_up(*_):
    raise TimeoutError(f"a file took more than {SECONDS} s")


def main(folder, copies):
    """Prints how many copies came to what; exits with the first that must not be."""
    tensors.subprocess = SimpleNamespace(
        run=fork, TimeoutExpired=subprocess.TimeoutExpired
    )
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    source = folder if len(files) > 1 else folder / next(iter(files))
    expected = read(source)
    spoilt = folder.with_name(f"{folder.name}-spoilt")
    shutil.copytree(folder, spoilt)
    source = spoilt / source.relative_to(folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, give_up)
    counts, slowest, descriptors = (
        collections.Counter(),
        0.0,
        os.listdir("/proc/self/fd"),
    )
    for seed in range(copies):
        rng = random.Random(seed)
        name = rng.choice(list(files))
        (spoilt / name).write_bytes(damage(files[name], rng))
        start = time.perf_counter()
        signal.alarm(SECONDS)
        try:
            result = outcome(source, expected)
        except Exception as error:
            traceback.print_exc()
            sys.exit(f"{name} with seed {seed}: {type(error).__name__}: {error}")
        signal.alarm(0)
        slowest = max(slowest, time.perf_counter() - start)
        counts[result] += 1
        (spoilt / name).write_bytes(files[name])
    assert len(os.listdir("/proc/self/fd")) == len(descriptors), "descriptors leak"
    print(json.dumps(counts | {"slowest": round(slowest, 3)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
