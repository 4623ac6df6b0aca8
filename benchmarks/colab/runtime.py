"""Rebuilds a Colab runtime from its published pins, and checks an installation in it.

Run it with the Python of the environment to fill. The standard library and pip's own
`packaging` suffice.

    python benchmarks/colab/runtime.py build colab      # Installs pinned packages.
    python benchmarks/colab/runtime.py install colab    # As docs/howto/colab.md does.
    python benchmarks/colab/runtime.py build colab-tpu  # The TPU runtime.

`build` installs without the resolver, because the pins are what a runtime has, whether
or not a resolver would choose them. `install` fails if a pinned package has a different
version afterwards.
"""

import argparse
import importlib.metadata
import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pip._vendor.packaging.requirements import InvalidRequirement, Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/howto/colab.md"
# What Colab runs notebooks with, and what these tests import. Frameworks are roots
# too: a runtime has all of them, whichever the library requires. The last line is what
# TensorFlow imports, for the runtime without it.
ROOTS = (
    *("ipykernel", "jax", "jaxlib", "libtpu", "nbclient", "nbformat", "packaging"),
    *("pip", "pytest", "pyyaml", "scikit-image", "setuptools", "tensorboard"),
    *("tensorflow", "wheel"),
    *("absl-py", "gast", "opt-einsum", "six", "termcolor", "wrapt"),
)
PINS = {"colab": "pins-2026-08-19.txt", "colab-tpu": "pins-tpu-2026-08-19.txt"}
OURS = "keras-vit-paper"
# `dev` and `backends` are not installed in Colab; keras-cv is not in its runtimes.
EXTRAS = ("demo", "plots", "tfds", "serving", "server", "litert", "onnx", "openvino")
SHOWN = ("keras", "tensorflow", "jax", "jaxlib", "numpy", "protobuf", "ml-dtypes")


def read_pins(path: Path) -> dict[str, str]:
    """Reads `name==version` lines: versions by canonical name."""
    lines = path.read_text(encoding="utf-8").split()
    pairs = (line.split("==") for line in lines)
    return {str(canonicalize_name(name)): version for name, version in pairs}


def installed() -> dict[str, str]:
    """Versions of the packages of this environment, by canonical name."""
    return {
        str(canonicalize_name(dist.metadata["Name"])): dist.version
        for dist in importlib.metadata.distributions()
        if dist.metadata["Name"]
    }


def required(name: str, extras: Iterable[str]) -> list[Requirement]:
    """Requirements of an installed package on this Python, with these extras."""
    found = []
    for line in importlib.metadata.requires(name) or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(
            marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            found.append(requirement)
    return found


def roots() -> list[str]:
    """Names of the packages that the library and its extras require, and `ROOTS`."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(about["dependencies"])
    for extra in EXTRAS:
        lines += about["optional-dependencies"][extra]
    names = {str(canonicalize_name(Requirement(line).name)) for line in lines}
    return sorted(names | set(ROOTS) - {OURS})


def pip(*arguments: str, quiet: bool = False) -> bool:
    """Runs this environment's pip; whether it succeeded."""
    command = [sys.executable, "-m", "pip", *arguments]
    pipe = subprocess.PIPE if quiet else None
    done = subprocess.run(command, check=False, stdout=pipe, stderr=pipe)
    return done.returncode == 0


def build(pins: dict[str, str]) -> int:
    """Installs the roots and all that they require, at their pinned versions."""
    wanted: dict[str, set[str]] = {name: set() for name in roots() if name in pins}
    unpinned = {name for name in roots() if name not in pins}
    seen: set[tuple[str, frozenset[str]]] = set()
    failed: dict[str, str] = {}
    while True:
        new = [
            name
            for name in sorted(wanted)
            if name not in failed and installed().get(name) != pins[name]
        ]
        failed |= install_pinned({name: pins[name] for name in new})
        present = installed()
        todo = [
            (name, frozenset(extras))
            for name, extras in wanted.items()
            if name in present and (name, frozenset(extras)) not in seen
        ]
        if not todo:
            break
        seen.update(todo)
        for name, extras in todo:
            for requirement in required(name, extras):
                needed = str(canonicalize_name(requirement.name))
                if needed in pins:
                    wanted.setdefault(needed, set()).update(requirement.extras)
                else:
                    unpinned.add(needed)
    print(f"installed at their pinned versions: {len(wanted) - len(failed)} packages")
    print(f"pinned, and required by none of these: {len(pins) - len(wanted)} packages")
    print(f"not in this runtime: {', '.join(sorted(unpinned)) or 'none'}")
    print(f"cannot be installed here: {', '.join(sorted(failed)) or 'none'}")
    for name, version in sorted(failed.items()):
        print(f"  {name}=={version}")
    missing = {"jax", "keras", "numpy"} - set(installed())
    return 1 if missing else 0


def install_pinned(versions: dict[str, str]) -> dict[str, str]:
    """Installs these, together or else one by one; returns those that failed."""
    lines = [f"{name}=={version}" for name, version in versions.items()]
    options = ("install", "--quiet", "--no-deps")
    if not lines or pip(*options, *lines, quiet=True):
        return {}
    return {
        name: version
        for name, version in versions.items()
        if not pip(*options, f"{name}=={version}", quiet=True)
    }


def documented(page: str, target: str) -> list[str]:
    """Lines of the code blocks whose comment names a make target."""
    pattern = (
        rf"<!-- not run: [^\n]*`make {re.escape(target)}`[^\n]* -->\n```\w*\n(.*?)```"
    )
    blocks = re.findall(pattern, page, re.DOTALL)
    if not blocks:
        raise ValueError(f"Expected a block for `make {target}`. Received: {PAGE}")
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def clone(folder: Path) -> None:
    """Writes the tracked files of the working tree to a folder, as a clone has them."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=ROOT,
        input=names,
        check=True,
        capture_output=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def run_line(line: str, folder: Path, environment: dict[str, str]) -> int:
    """Runs a line of a notebook, `%pip ...` or `!...`, in this environment."""
    word, *rest = shlex.split(line.lstrip("%!"))
    print(f"$ {line}", flush=True)
    if word == "git":
        clone(folder / "keras-vit")
        return 0
    if word == "env":
        environment |= dict([rest[0].split("=", 1)])
        return 0
    programs = Path(sys.executable).parent
    command = [sys.executable, "-m", "pip"] if word == "pip" else [programs / word]
    done = subprocess.run([*command, *rest], cwd=folder, env=environment, check=False)
    return done.returncode


def install(pins: dict[str, str], target: str) -> int:
    """Runs the documented lines; prints versions before and after."""
    earlier = sorted(name for name in installed() if name not in pins)
    if earlier and not pip("uninstall", "--quiet", "--yes", *earlier):
        return 1
    before = installed()
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as name:
        for line in documented(PAGE.read_text(encoding="utf-8"), target):
            if status := run_line(line, Path(name), environment):
                print(f"this line ended with status {status}: {line}")
                return status
    after = installed()
    names = sorted(after | before)
    changed = [name for name in names if before.get(name) != after.get(name)]
    print(f"{'package':28}{'Colab':>12}{'before':>12}{'after':>12}")
    for name in sorted({*SHOWN, *changed} & set(names)):
        versions = (at.get(name, "-") for at in (pins, before, after))
        print(f"{name:28}" + "".join(f"{version:>12}" for version in versions))
    both = {name for name in pins if name in after}
    moved = sorted(name for name in both if after[name] != pins[name])
    lost = sorted(name for name in before if name not in after)
    print(f"{len(both) - len(moved)} of {len(both)} pinned packages are as in Colab")
    print(f"added: {', '.join(sorted(set(after) - set(before)))}")
    if moved or lost:
        print(f"changed or removed: {', '.join([*moved, *lost])}")
    return 1 if moved or lost else 0


def main() -> int:
    """Runs a command of the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("build", "install"))
    parser.add_argument("target", choices=PINS)
    given = parser.parse_args()
    pins = read_pins(Path(__file__).with_name(PINS[given.target]))
    return build(pins) if given.command == "build" else install(pins, given.target)


if __name__ == "__main__":
    sys.exit(main())
