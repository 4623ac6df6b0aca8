"""Reading the official npz files, which are not to be trusted."""

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from keras_vit.weights import names


class Npz(Mapping[str, np.ndarray]):
    """The tensors of an npz under canonical names, in float32, read as asked for.

    A context manager: `with Npz(path) as tensors`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a whole npz of plain arrays.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(
                f"Expected a checkpoint file. Received: {str(path)!r}, which does not "
                "exist. A published one is named by a tag, e.g. weights='imagenet21k'"
            )
        if not zipfile.is_zipfile(self.path):
            raise ValueError(_not_an_npz(self.path))
        self._file = np.load(self.path, allow_pickle=False)
        if not self._file.files or "config.json" in self._file.files:
            raise ValueError(_not_an_npz(self.path))  # Another zip, e.g. a .keras.
        self._names = names.canonical(self._file.files)
        self._read: dict[str, np.ndarray] = {}

    def __enter__(self) -> "Npz":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._read:
            self._read[name] = self._tensor(self._names[name])
        return self._read[name]

    def _tensor(self, original: str) -> np.ndarray:
        try:
            tensor = self._file[original]
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise ValueError(
                f"Expected a whole npz. Received: {str(self.path)!r}, damaged at "
                f"{original!r} ({error}). Delete it and download it again"
            ) from error
        except ValueError as error:
            raise ValueError(
                "Expected plain arrays (pickled objects are never loaded: they can "
                f"run code). Received: {str(self.path)!r} with {original!r} ({error})"
            ) from error
        if tensor.dtype == np.dtype("V2"):  # bfloat16, as numpy.load returns it.
            tensor = (tensor.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if not np.issubdtype(tensor.dtype, np.floating):
            raise ValueError(
                f"Expected floating-point tensors. Received: {str(self.path)!r} with "
                f"{original!r} of dtype {tensor.dtype}"
            )
        return np.asarray(tensor, np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _not_an_npz(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(256)
    size = path.stat().st_size
    if start.lstrip()[:1] == b"<":
        what = "a web page saved under that name"
    elif zipfile.is_zipfile(path):
        what = "another kind of zip (of a .keras file: keras.models.load_model)"
    elif start[:2] == b"PK":
        what = "the beginning of one: the file is truncated"
    elif start[:6] == b"\x93NUMPY":
        what = "a single array (.npy)"
    else:
        what = f"something else, beginning with {start[:8]!r}"
    return (
        f"Expected an npz of named tensors. Received: {str(path)!r}, {size} bytes, "
        f"{what}. Delete it and download it again, or give another file"
    )
