"""Executes notebooks of examples/ and writes them with their outputs.

    python benchmarks/notebooks.py                       # All of them.
    python benchmarks/notebooks.py dense_features --file vit_s14.npz

Each notebook runs in an empty folder, where `--file` puts copies of files. Pictures are
reduced to 680 columns and 128 colors. `metadata.keras_vit` has the times and a digest
of the code cells, which tests/test_notebooks.py compares with the committed code. The
dense features are those of the ViT-S/14 that benchmarks/pictures.py names.
"""

import argparse
import base64
import hashlib
import io
import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
COLUMNS, COLORS = 680, 128
LOG = re.compile(
    r"INFO:tensorflow:|I\d{4} .*\.cc:\d+\]|WARNING: All log messages before absl::Init"
)


def code_cells(notebook: Any) -> list[Any]:
    """Returns the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: Any) -> str:
    """Returns the sha256 of the sources of all code cells."""
    sources = "\0".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(sources.encode()).hexdigest()


def execute(notebook: Any, folder: Path, timeout: int = 900) -> None:
    """Runs a notebook in a folder, in place, in a kernel that imports this checkout."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("MPLBACKEND", None)  # Jupyter's own puts pictures into outputs.
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    client.execute(env=environment)  # Raises with the traceback of a failed cell.
    for cell in code_cells(notebook):
        cell.outputs = printed(cell.outputs)


def printed(outputs: list[Any]) -> list[Any]:
    """Joins consecutive pieces of text; removes TensorFlow's lines of information."""
    result: list[Any] = []
    for output in outputs:
        name = output.get("name")
        if name and result and result[-1].get("name") == name:
            result[-1]["text"] += output["text"]
        else:
            result.append(output)
    for output in result:
        if "name" in output:
            lines = output["text"].splitlines(keepends=True)
            output["text"] = "".join(line for line in lines if not LOG.match(line))
    return [output for output in result if output.get("text", "more").strip()]


def reduced(picture: str) -> str:
    """Returns a PNG, in base64, with at most COLUMNS columns and COLORS colors."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    if image.width > COLUMNS:
        height = round(image.height * COLUMNS / image.width)
        image = image.resize((COLUMNS, height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.quantize(COLORS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def cpu_seconds() -> float:
    """Returns the CPU time of ended child processes, such as kernels."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def publish(path: Path, files: Sequence[Path]) -> int:
    """Runs a notebook and writes it with its outputs; returns the seconds."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    metadata = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            shutil.copy(file, folder)
        start, used = time.perf_counter(), cpu_seconds()
        execute(notebook, Path(folder))
        seconds = round(time.perf_counter() - start)
        used = cpu_seconds() - used
    for cell in code_cells(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = reduced(data["image/png"])
    facts = {"code": digest(notebook), "seconds": seconds, "cpu_seconds": round(used)}
    notebook.metadata = metadata | {"keras_vit": facts}
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return seconds


def main() -> None:
    """Runs the named notebooks, or all, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="such as quickstart; default: all")
    parser.add_argument(
        "--file", type=Path, action="append", default=[], help="a file to copy"
    )
    options = parser.parse_args()
    paths = sorted((ROOT / "examples").glob("*.ipynb"))
    for path in paths:
        if not options.names or path.stem in options.names:
            seconds = publish(path, options.file)
            print(f"{path.stem}: {seconds} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
