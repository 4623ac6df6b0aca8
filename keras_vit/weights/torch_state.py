"""Writes the tensors of a torch pickle as safetensors, in a separate process.

`pickles.py` runs this file. `weights_only=True` rejects everything but tensors and
plain containers. Before torch 2.6 a crafted file could still run code (CVE-2025-32434).
"""

import json
import sys
from collections.abc import Mapping
from typing import Any


def state_dicts(loaded: Any) -> dict[str, dict[str, Any]]:
    """The mappings of names to tensors, by key; "" is the whole file."""
    if not isinstance(loaded, Mapping):
        return {}
    nested = {
        str(key): value for key, value in loaded.items() if isinstance(value, Mapping)
    }
    found = {"": loaded, **nested}
    tensors = {key: _tensors(value) for key, value in found.items()}
    return {key: value for key, value in tensors.items() if value}


def _tensors(values: Mapping[Any, Any]) -> dict[str, Any]:
    import torch

    return {
        name: value
        for name, value in values.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor)
    }


def main(path: str, output: str, key: str) -> None:
    """Prints the result as JSON; exits with a message for unsupported contents."""
    import torch
    from safetensors.torch import save_file

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < (2, 6):
        sys.exit(f"torch {torch.__version__}; 2.6 or newer is required")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # From pickle, zipfile and torch.
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:300]}")
    found = state_dicts(loaded)
    if key not in found and (key or len(found) != 1):
        keys = ", ".join(map(repr, found)) or "none"
        sys.exit(f"{len(found)} mappings of tensors ({keys}) and the key {key!r}")
    chosen = key if key in found else next(iter(found))
    tensors = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in found[chosen].items()
    }
    save_file(tensors, output, {"format": "pt"})
    print(json.dumps({"key": chosen, "tensors": len(tensors)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
