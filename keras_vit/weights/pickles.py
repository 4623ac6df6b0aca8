"""Convert torch pickles (.bin, .pt, .pth) to safetensors, in a separate process.

A pickle can run code. This process therefore never opens one. A second process loads
it with `torch.load(weights_only=True)` and writes its tensors.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from keras_vit.files import replacing

ENDINGS = (".bin", ".pt", ".pth")
CHILD = Path(__file__).with_name("torch_state.py")
LINES = """\
  import torch, safetensors.torch
  state = torch.load({path!r}, map_location="cpu", weights_only=True)
  safetensors.torch.save_file(state, {output!r})  # If nested: state["model"]."""


def is_pickle(source: str | os.PathLike[str]) -> bool:
    """Whether a path is a torch pickle, by its suffix: "x.pth", "x.pth:teacher"."""
    return _split(source)[0].suffix.lower() in ENDINGS


def convert(
    source: str | os.PathLike[str], output: str | os.PathLike[str]
) -> tuple[str, int]:
    """Writes the tensors of a pickle under their original names.

    Args:
        source: a file; "x.pth:teacher" selects one of several mappings of tensors.
        output: path of the .safetensors file.

    Returns:
        The key of the mapping that was written ("" for the whole file), and the number
        of its tensors.

    Raises:
        FileNotFoundError: if the file does not exist.
        ImportError: if torch is not installed.
        ValueError: if `output` is not a .safetensors file, torch rejects the pickle, or
            the pickle has no mapping of tensors or several.
    """
    path, key = _split(source)
    output = Path(output)
    if output.suffix.lower() != ".safetensors":
        raise ValueError(
            "Expected an output that ends in .safetensors for a pickle. Received: "
            f"{str(output)!r}. Convert the .safetensors file in a second step"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a torch pickle. Received: {str(path)!r}, which does not exist"
        )
    lines = LINES.format(path=str(path), output=str(output))
    if importlib.util.find_spec("torch") is None:
        raise ImportError(
            f"Expected torch 2.6 or newer to read {path}. Received: no torch. Run pip "
            f"install torch, or run these lines where torch is installed:\n{lines}"
        )
    with replacing(output) as temporary:
        child = subprocess.run(
            [sys.executable, "-P", CHILD, path.resolve(), temporary, key],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
        if child.returncode:
            last = child.stderr.strip().rpartition("\n")[2]
            raise ValueError(
                "Expected a pickle of tensors that torch.load(weights_only=True) "
                f"accepts. Received: {str(path)!r}, {last or 'a crash of torch'}. To "
                "select one of several mappings, use FILE:KEY. Otherwise run these "
                f"lines where the file was made:\n{lines}"
            )
    printed = json.loads(child.stdout)
    return printed["key"], printed["tensors"]


def _split(source: str | os.PathLike[str]) -> tuple[Path, str]:
    """Splits "x.pth:teacher" into the file and the key."""
    path, colon, key = os.fspath(source).rpartition(":")
    if colon and not os.path.exists(source) and re.fullmatch(r"\w+", key):
        return Path(path), key
    return Path(source), ""
