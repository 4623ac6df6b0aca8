"""Start several training processes on one machine: `keras-vit launch` (Linux, macOS).

The command line runs this file as a script, `launching.py WORKERS COMMAND...`, so that
the launcher, which may run for days, does not import TensorFlow as `import keras_vit`
does.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Events = SimpleQueue[tuple[int | None, int]]  # Worker, exit code; or None, signal.
NVIDIA = Path("/proc/driver/nvidia/gpus")  # NVIDIA's driver has a folder per GPU.
MOST_WORKERS = 256
_writing = threading.Lock()


def launch(
    command: Sequence[str], workers: int, grace: float = 10, saving: float = 60
) -> int:
    """Runs a command in `workers` processes of one cluster; returns an exit code.

    Each output line is prefixed with `[worker 0]`. Empty lines are omitted, and a
    carriage return ends a line. If a worker fails, the others receive SIGTERM. SIGTERM,
    SIGINT and SIGHUP are forwarded to all workers as one SIGTERM; a second signal kills
    them. When a worker ends, the rest of its process group is killed. If the launcher
    is killed, all process groups are killed.

    Args:
        command: the program and its arguments.
        workers: number of processes; each gets its share of cores and GPUs.
        grace: seconds from SIGTERM to SIGKILL after a worker has failed. It is short
            because the others may wait for that worker and cannot save.
        saving: seconds from SIGTERM to SIGKILL after the launcher has received a
            signal, so that all workers can save.

    Returns:
        0 if all workers ended with 0, else the code of the first that did not: 128 + n
        if signal n ended the worker or was sent to the launcher.

    Raises:
        ValueError: if there is no command or worker, fewer GPUs than workers, or
            TF_CONFIG is already set.
    """
    check(command, workers)
    events: Events = SimpleQueue()
    alive: dict[int, Popen[bytes]] = {}
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    for signum, handler in handlers.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP.
            signal.signal(signum, lambda signum, _: events.put((None, signum)))
    try:
        for index, variables in enumerate(environments(workers)):
            alive[index] = Popen(
                command,
                env=variables,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
            args = (index, alive[index], _watchdog(alive[index]), events)
            threading.Thread(target=_watch, args=args).start()
        return _supervise(alive, events, grace, saving)
    finally:
        for process in alive.values():
            _kill(process)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def check(command: Sequence[str], workers: int) -> None:
    """Raises ValueError if `launch` cannot start the command."""
    if workers < 1:
        raise ValueError(f"Expected 1 worker or more. Received: --workers {workers}")
    if workers > MOST_WORKERS:
        raise ValueError(
            f"Expected at most {MOST_WORKERS} workers on one machine. "
            f"Received: --workers {workers}"
        )
    if not command:
        raise ValueError(
            "Expected a command of keras-vit after --. Received: none. For example: "
            "keras-vit launch --workers 2 -- finetune --data photos"
        )
    if os.environ.get("TF_CONFIG"):
        raise ValueError(
            "Expected TF_CONFIG not to be set, because the launcher sets it. "
            f"Received: {os.environ['TF_CONFIG']}, from a scheduler or a different "
            "launcher. Run the command after -- directly"
        )
    if 0 < len(gpus()) < workers:
        raise ValueError(
            "Expected at least one GPU for each worker, or no GPUs. Received: "
            f"--workers {workers}, {len(gpus())} GPU. Use fewer workers, or put "
            "CUDA_VISIBLE_DEVICES= before the command to train on the CPU"
        )


def gpus() -> list[str]:
    """Returns the GPUs to divide among workers, as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return list(filter(None, chosen.split(",")))
    return [str(index) for index, _ in enumerate(NVIDIA.glob("*"))]


def environments(workers: int) -> list[dict[str, str]]:
    """Returns each worker's environment: a free port, a share of cores and GPUs."""
    # All sockets stay open until the last is chosen, so that all ports differ.
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(workers)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    linux = sys.platform == "linux"
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
    threads = str(max(1, cores // workers))
    shared = {"TF_NUM_INTRAOP_THREADS": threads, "OMP_NUM_THREADS": threads}
    shared |= os.environ | {"PYTHONUNBUFFERED": "1"}
    configs = (
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(workers)
    )
    variables = [shared | {"TF_CONFIG": json.dumps(config)} for config in configs]
    visible = gpus()
    if share := len(visible) // workers:
        for index, environment in enumerate(variables):
            part = visible[index * share : (index + 1) * share]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(part)
    return variables


def _watchdog(process: Popen[bytes]) -> Popen[bytes]:
    """Starts a shell that kills a worker's group when this process ends."""
    script = f"read line; kill -s KILL -- -{process.pid}"
    return Popen(
        ["/bin/sh", "-c", script],
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=DEVNULL,
        start_new_session=True,
    )


def _watch(
    index: int, process: Popen[bytes], survivor: Popen[bytes], events: Events
) -> None:
    """Forwards a worker's output, waits for its end and kills the rest of its group."""
    pairs = (process.stdout, sys.stdout), (process.stderr, sys.stderr)
    forwarding = [
        threading.Thread(target=_forward, args=(index, *pair), daemon=True)
        for pair in pairs
    ]
    for thread in forwarding:
        thread.start()
    with survivor:
        code = process.wait()
        _kill(process)
        survivor.kill()
    for thread in forwarding:  # Reads the last output; a daemon may keep the pipe open.
        thread.join(timeout=1)
    events.put((index, code))


def _forward(index: int, pipe: Any, stream: Any) -> None:
    rest = b""
    with pipe:
        while chunk := pipe.read1():
            *lines, rest = re.split(rb"[\r\n]", rest + chunk)
            for line in filter(None, lines):
                _write(stream, f"[worker {index}] {line.decode(errors='replace')}")
    if rest:
        _write(stream, f"[worker {index}] {rest.decode(errors='replace')}")


def _write(stream: Any, line: str) -> None:
    """Writes a line; if the stream is closed, later lines are discarded."""
    with _writing:
        try:
            stream.buffer.write(line.encode() + b"\n")
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def _kill(process: Popen[bytes]) -> None:
    """Sends SIGKILL to a worker's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # Ended; zombies.
        os.killpg(process.pid, signal.SIGKILL)


def _supervise(
    alive: dict[int, Popen[bytes]], events: Events, grace: float, saving: float
) -> int:
    """Waits until all workers have ended; returns the exit code of `launch`."""
    code = received = 0
    stopping = False

    def say(what: str) -> None:
        _write(sys.stderr, f"keras-vit launch: {what}")

    def stop(seconds: float) -> None:
        for process in alive.values():
            process.terminate()
        late = threading.Timer(seconds, events.put, [(None, signal.SIGALRM)])
        late.daemon = True
        late.start()

    while alive:
        index, number = events.get()
        if index is not None:
            del alive[index]
            if number == 0 or code:
                continue
            code = 128 + received if received else _exit_code(number)
            if not stopping:
                how = f"with {number}" if number > 0 else f"by {_name(-number)}"
                others = f"; stopping the other {len(alive)}" if alive else ""
                say(f"worker {index} ended {how}{others}")
                stop(grace)
        elif stopping:  # A second signal, or the time is over.
            say(f"killing {', '.join(f'worker {index}' for index in alive)}")
            for process in alive.values():
                _kill(process)
        else:
            received = number
            say(f"{_name(number)}: all workers save and end")
            stop(saving)
        stopping = True
    return code


def _exit_code(status: int) -> int:
    """Returns the exit code as a shell does: 128 + n if signal n ended the process."""
    return status if status > 0 else 128 - status


def _name(signum: int) -> str:
    return signal.Signals(signum).name


if __name__ == "__main__":
    sys.exit(launch(sys.argv[2:], int(sys.argv[1])))
