"""Read tensor files without trusting them: npz, safetensors, HDF5.

Every file is first reduced to a table: name, dtype, shape and location of the bytes.
Each row is checked against the file's actual size. Values are then read from those
locations, never more bytes than exist. Nothing is unpickled, and no link or filter is
followed.
"""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

import numpy as np

from keras_vit import files

FLOATS = {  # A dtype in our tables: NumPy's dtype for its bytes.
    **{code: code for code in ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8")},
    "bfloat16": "<u2",
}
SAFETENSORS = {  # A dtype in a header: (ours, bytes).
    "F64": ("<f8", 8),
    "F32": ("<f4", 4),
    "F16": ("<f2", 2),
    "BF16": ("bfloat16", 2),
    **{name: (name, 8) for name in ("I64", "U64", "C64")},
    **{name: (name, 4) for name in ("I32", "U32")},
    **{name: (name, 2) for name in ("I16", "U16")},
    **{name: (name, 1) for name in ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2")},
}
INDEX_SUFFIX = ".safetensors.index.json"
MAX_JSON = 2**24  # The format allows 100 MB, which become 3 GB of Python objects.
MAX_NPY_HEADER = 10_000  # The limit of numpy.load.
MAX_PIECE = 2**20  # Bytes per read from a zip, so that a piece stays in the CPU cache.
MAX_DIMENSIONS = 32
MAX_DEFLATE = 1032  # The maximum expansion of one byte of deflate, in bytes.
BOMB = 2**30, 20  # Limits of declared bytes: absolute, and as a multiple of the file.
H5_INDEX = Path(__file__).with_name("h5_index.py")
H5_SECONDS = 60
H5_ENVIRONMENT = {  # No plugins, no locks on read-only disks, no idle threads.
    "HDF5_PLUGIN_PRELOAD": "::",
    "HDF5_USE_FILE_LOCKING": "FALSE",
    "OPENBLAS_NUM_THREADS": "1",
}
AGAIN = "Delete it and download it again, or give another file"
PICKLE = (
    "a torch pickle (.bin, .pt, .pth), which is never unpickled: it can run code",
    "Use the .safetensors copy of the same weights, or convert the file where torch is "
    "installed: keras-vit convert FILE.pth FILE.safetensors",
)
# Exceptions of zipfile for damaged bytes, depending on the position of the damage.
BROKEN_ZIP = (*files.BROKEN_ZIP, OSError)
NPY_HEADER = re.compile(
    r"\{'descr': *'([<>|])([?a-zA-Z])(\d{0,5})', *'fortran_order': *(True|False), *"
    r"'shape': *\(([\d, ]*)\),? *\} *\n?"
)


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """One row of a file's table."""

    dtype: str  # A key of `FLOATS`, or the name of a dtype that is no weight.
    shape: tuple[int, ...]
    size: int  # Bytes of the values.
    read: Callable[[], Any]  # Returns a writable buffer of the values.
    order: Literal["C", "F"] = "C"


class TensorFile(Mapping[str, np.ndarray]):
    """The tensors of one checkpoint under the names in the file, as float32.

    A context manager, created by `open_tensors`. Values are read on access.

    Raises:
        ValueError: on access, if values are damaged or not floating-point numbers.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        tensors: dict[str, _Tensor],
        files: contextlib.ExitStack,
    ) -> None:
        self.path = path
        self.format = format
        self._tensors = tensors
        self._files = files

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; names and shapes stay."""
        self._files.close()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading its values."""
        return self._tensors[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        if tensor.dtype not in FLOATS:
            what = f"{name!r} of dtype {tensor.dtype}"
            raise _refused(self.path, "floating-point tensors", what, "Remove it")
        values = np.frombuffer(tensor.read(), FLOATS[tensor.dtype])
        if tensor.dtype == "bfloat16":  # The upper half of a float32.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(all="ignore"):  # A float64 beyond float32 becomes infinity.
            values = values.astype(np.float32, copy=False)
        return values.reshape(tensor.shape, order=tensor.order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def open_tensors(path: str | os.PathLike[str]) -> TensorFile:
    """Opens a checkpoint; its format is detected from its content.

    Args:
        path: an .npz file; a .safetensors file; the `.safetensors.index.json` of shards
            in the same folder; a directory with `model.safetensors` or its index; an
            HDF5 file.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not a complete file in one of these formats.
    """
    path = Path(path)
    file = _in_directory(path) if path.is_dir() else path
    kind = _kind(file)
    reader = {"npz": _npz, "safetensors": _safetensors, "json": _shards, "h5": _h5}
    with contextlib.ExitStack() as files:
        tensors = reader[kind](file, files)
        _check_table(file, tensors)
        format = "safetensors" if kind == "json" else kind
        return TensorFile(path, format, tensors, files.pop_all())


def _refused(
    path: Path, expected: str, received: str, remedy: str = AGAIN
) -> ValueError:
    return ValueError(
        f"Expected {expected}. Received: {str(path)!r}, {received[:600]}. {remedy}"
    )


def _in_directory(directory: Path) -> Path:
    for name in ("model.safetensors", f"model{INDEX_SUFFIX}"):
        if (directory / name).is_file():
            return directory / name
    held = ", ".join(sorted(file.name for file in directory.iterdir())[:8])
    raise _refused(
        directory,
        f"model.safetensors or model{INDEX_SUFFIX} in a directory",
        f"a directory with {held or 'nothing'}",
        "Pass the path of one of its checkpoint files",
    )


def _kind(path: Path) -> str:
    """One of npz, safetensors, json and h5, detected from the first bytes."""
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a checkpoint file. Received: {str(path)!r}, which does not "
            "exist. For published weights use a tag, e.g. weights='imagenet21k'"
        )
    if not path.is_file():
        raise _refused(path, "a checkpoint file", "which is not a regular file")
    with path.open("rb") as file:
        start = file.read(512)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read()
    if start[:2] == b"PK":
        return "npz"
    if start[:8] == b"\x89HDF\r\n\x1a\n":
        return "h5"
    if start.lstrip()[:1] == b"{" and b"\0" not in start[:8]:
        return "json"
    if start[8:9] == b"{":
        return "safetensors"
    what, remedy = _stranger(path.name, start, end)
    kinds = "an .npz, .safetensors or .h5 checkpoint"
    raise _refused(path, kinds, f"{size} bytes, {what}", remedy)


def _stranger(name: str, start: bytes, end: bytes) -> tuple[str, str]:
    """A description of an unsupported file, and the remedy."""
    if not start:
        return "an empty file", AGAIN
    if start.lstrip()[:1] == b"<":
        return "a web page saved under that name", AGAIN
    if start.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer", "Run `git lfs pull` to download the file itself"
    if re.match(rb"\x80[\x02-\x05]", start):
        return PICKLE
    if start.startswith(b"\x93NUMPY"):
        return "a single array (.npy)", "Pass the .npz with all tensors"
    if re.match(rb"([\x81-\x8f]|\xde..)[\xa1-\xbf\xd9]", start, re.DOTALL):
        return "Flax's msgpack", "Save its parameters with numpy.savez"
    if end == b"\x57\xfb\x80\x8b\x24\x75\x47\xdb" or ".data-0" in name:
        return "a part of a TensorFlow checkpoint", "Save its variables as .npz or .h5"
    return f"an unknown format that begins with {start[:8]!r}", AGAIN


def _check_table(path: Path, tensors: dict[str, _Tensor]) -> None:
    if not tensors:
        raise _refused(path, "named tensors", "which contains none")
    for name, tensor in tensors.items():
        if not name.isprintable() or not name:
            raise _refused(path, "tensors with readable names", f"one named {name!r}")
        elements = math.prod(max(size, 1) for size in tensor.shape)
        if len(tensor.shape) > MAX_DIMENSIONS or elements > 2**40:
            what = f"{name!r} of shape {tensor.shape}"
            raise _refused(path, "tensors that fit in memory", what)


def _check_places(
    path: Path, places: list[tuple[int, int, str]], start: int, end: int
) -> None:
    """Checks that every (offset, bytes, tensor) is in start..end, without overlaps."""
    expected = "a whole file without overlapping tensors"
    last = "the header"
    for offset, size, name in sorted(places):
        if offset + size > end:
            what = f"{name!r} is declared to end at byte {offset + size} of {end}"
            raise _refused(path, expected, f"truncated: {what}")
        if offset < start:
            what = f"{name!r} is declared at byte {offset}; {last!r} ends at {start}"
            raise _refused(path, expected, what)
        start, last = offset + size, name


def _check_bomb(path: Path, declared: int, present: int) -> None:
    if declared > max(BOMB[0], BOMB[1] * present):
        what = f"{declared} bytes of tensors in a file of {present} bytes"
        raise _refused(path, "tensors of about the file's size", what)


def _size(file: io.BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def _read_at(path: Path, file: io.BufferedReader, offset: int, size: int) -> bytearray:
    content = bytearray(size)
    file.seek(offset)
    if file.readinto(content) != size:
        raise _refused(path, "a whole file", "truncated while it was open")
    return content


def _repeated(names: list[str]) -> str | None:
    (name, count), *_ = collections.Counter(names).most_common(1) or [("", 0)]
    return name if count > 1 else None


def _npz(path: Path, files: contextlib.ExitStack) -> dict[str, _Tensor]:
    file = files.enter_context(path.open("rb"))
    size = _size(file)
    try:
        archive = files.enter_context(zipfile.ZipFile(file))
    except BROKEN_ZIP as error:
        what = f"a truncated file of {size} bytes ({error})"
        raise _refused(path, "a whole npz", what) from error
    members = archive.infolist()
    _check_zip(path, [member.filename for member in members])
    _check_bomb(path, sum(member.file_size for member in members), size)
    return {
        member.filename.removesuffix(".npy"): _npy(path, archive, member)
        for member in members
    }


def _check_zip(path: Path, names: list[str]) -> None:
    expected = "an npz of named tensors"
    if any(name.endswith("data.pkl") for name in names):
        raise _refused(path, expected, *PICKLE)
    if not all(name.endswith(".npy") for name in names):
        what = f"a different kind of zip, with {', '.join(names[:4])}"
        remedy = "Read a .keras file with keras.models.load_model"
        raise _refused(path, expected, what, remedy)
    if (twice := _repeated(names)) is not None:
        raise _refused(path, expected, f"a zip with {twice!r} twice")


def _npy(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Tensor:
    """The row for one member of an npz; reading its values checks its CRC."""
    name = member.filename.removesuffix(".npy")
    stored, present = member.compress_size, member.file_size
    if member.flag_bits & 1:
        raise _refused(path, "plain arrays", f"{name!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        what = f"{name!r} has compression method {member.compress_type}"
        raise _refused(path, "stored or deflated arrays", what, "Save it again")
    if present > MAX_DEFLATE * stored:
        what = f"{name!r} declares {present} bytes in {stored}"
        raise _refused(path, "a whole npz", what)
    head = _member(path, archive, member, min(present, MAX_NPY_HEADER))
    width = 2 if head[6:7] == b"\1" else 4
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    text = head[8 + width : start].decode("latin-1")
    match = NPY_HEADER.fullmatch(text)
    if not head.startswith(b"\x93NUMPY") or match is None:
        what = f"{name!r} with the header {text or head!r}"
        raise _refused(path, "plain arrays", what)
    order, kind, digits, fortran, sizes = match.groups()
    if kind == "O":
        raise _refused(
            path,
            "plain arrays (pickled objects are never loaded: they can run code)",
            f"{name!r} of Python objects",
        )
    shape = tuple(int(size) for size in re.findall(r"\d+", sizes[:400]))
    itemsize = int(digits or 1) * (4 if kind == "U" else 1)
    if start + itemsize * math.prod(shape) != present:
        what = f"{name!r} declares {text.strip()} and has {present - start} bytes"
        raise _refused(path, "a whole npz", what)
    return _Tensor(
        _dtype(order, kind, itemsize),
        shape,
        present - start,
        functools.partial(_member, path, archive, member, present, start),
        "F" if fortran == "True" else "C",
    )


def _dtype(order: str, kind: str, itemsize: int) -> str:
    code = f"{order}{kind}{itemsize}"
    if (kind, itemsize) == ("V", 2):  # NumPy's code for bfloat16.
        return "bfloat16"
    if code in FLOATS:
        return code
    words = {"i": "int", "u": "uint", "b": "bool", "c": "complex", "f": "float"}
    return f"{words[kind]}{8 * itemsize}" if kind in words else code


def _member(
    path: Path,
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    end: int,
    start: int = 0,
) -> bytearray:
    """The bytes of a zip's member to `end`; the last byte completes the CRC check."""
    content = bytearray(end - start)
    try:
        with archive.open(member) as stream:
            read = len(stream.read(start))
            while read < end:  # In pieces that stay in the CPU cache until copied.
                piece = stream.read(min(MAX_PIECE, end - read))
                if not piece:
                    raise EOFError(f"{read} of {end} bytes")
                content[read - start : read - start + len(piece)] = piece
                read += len(piece)
    except BROKEN_ZIP as error:
        what = f"damaged at {member.filename!r} ({error})"
        raise _refused(path, "a whole npz", what) from error
    return content


def _json_object(path: Path, content: bytes | bytearray) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if (twice := _repeated([name for name, _ in pairs])) is not None:
            raise ValueError(f"{twice!r} twice")
        return dict(pairs)

    try:
        value = json.loads(content.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        what = f"damaged or a different kind of file ({error})"
        raise _refused(path, "a JSON object of named tensors", what) from error
    if not isinstance(value, dict):
        raise _refused(path, "a JSON object of named tensors", repr(value))
    return value


def _safetensors(path: Path, files: contextlib.ExitStack) -> dict[str, _Tensor]:
    file = files.enter_context(path.open("rb"))
    return _in_safetensors(path, file, functools.partial(_read_at, path, file))


def _shard(path: Path) -> dict[str, _Tensor]:
    """One shard, closed between reads: there may be more shards than open files."""
    with path.open("rb") as file:
        read = functools.partial(_read_from, path, _stamp(file))
        return _in_safetensors(path, file, read)


def _stamp(file: io.BufferedReader) -> tuple[int, ...]:
    """The file's identity and state."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_from(path: Path, stamp: tuple[int, ...], offset: int, size: int) -> bytearray:
    with path.open("rb") as file:
        if _stamp(file) != stamp:
            raise _refused(path, "a whole file", "changed while it was read")
        return _read_at(path, file, offset, size)


def _in_safetensors(
    path: Path, file: io.BufferedReader, read_at: Callable[[int, int], bytearray]
) -> dict[str, _Tensor]:
    """The table of an open file; `read_at` reads (offset, size) later."""
    size = _size(file)
    length = int.from_bytes(_read_at(path, file, 0, 8), "little")
    start = 8 + length
    if start > size:
        what = f"truncated: the header should end at byte {start}, the file has {size}"
        raise _refused(path, "a whole safetensors file", what)
    if length > MAX_JSON:
        what = f"a header of {length} bytes"
        raise _refused(path, f"a header of at most {MAX_JSON} bytes", what)
    header = _json_object(path, _read_at(path, file, 8, length))
    header.pop("__metadata__", None)
    tensors, places = {}, []
    for name, entry in header.items():
        dtype, shape, begin, end = _declared(path, name, entry)
        places.append((start + begin, end - begin, name))
        read = functools.partial(read_at, start + begin, end - begin)
        tensors[name] = _Tensor(dtype, shape, end - begin, read)
    _check_places(path, places, start, size)
    declared = sum(tensor.size for tensor in tensors.values())
    if declared != size - start:
        what = f"{declared} declared bytes, {size - start} bytes of data"
        raise _refused(path, "tensors without gaps up to the file's end", what)
    return tensors


def _declared(
    path: Path, name: str, entry: Any
) -> tuple[str, tuple[int, ...], int, int]:
    """The dtype, shape, begin and end of an entry of a safetensors header."""
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [begin, end]}:
            numbers = [begin, end, *shape]
        case _:
            code, numbers = "", []
    if (
        code not in SAFETENSORS
        or len(numbers) > 2 + MAX_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 2**63 for n in numbers)
        or SAFETENSORS[code][1] * math.prod(shape) != end - begin
    ):
        law = "a known dtype and a shape that matches data_offsets for every tensor"
        raise _refused(path, law, f"{name!r} is declared {entry}")
    return SAFETENSORS[code][0], tuple(shape), begin, end


def _shards(path: Path, files: contextlib.ExitStack) -> dict[str, _Tensor]:
    """The tensors of the shards listed in a `.safetensors.index.json`."""
    with path.open("rb") as file:
        index = _json_object(path, file.read(MAX_JSON))
    shard_of = index.get("weight_map")
    if not isinstance(shard_of, dict) or not all(map(_is_name, shard_of.values())):
        law = "an index with a weight_map of tensors to .safetensors files next to it"
        raise _refused(path, law, f"with {json.dumps(index)}")
    tensors: dict[str, _Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        file_path = path.with_name(shard)
        if _kind(file_path) != "safetensors":
            what = f"with the shard {shard!r}, which is a different kind of file"
            raise _refused(path, "shards of safetensors", what)
        held = _shard(file_path)
        listed = {name for name, value in shard_of.items() if value == shard}
        if wrong := sorted(listed ^ held.keys()):
            where = "listed for but not in" if wrong[0] in listed else "not listed for"
            what = f"with {wrong[0]!r}, which is {where} the shard {shard!r}"
            raise _refused(path, "an index that matches its shards", what)
        tensors |= held
    metadata = index.get("metadata")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    held_bytes = sum(tensor.size for tensor in tensors.values())
    if declared is not None and declared != held_bytes:
        what = f"with total_size {declared}, but the shards have {held_bytes} bytes"
        raise _refused(path, "an index that matches its shards", what)
    return tensors


def _is_name(shard: Any) -> bool:
    """Whether a shard's name is a file name without a folder, on any system."""
    return (
        isinstance(shard, str)
        and shard.isprintable()
        and shard.endswith(".safetensors")
        and len(shard) < 200
        and shard == PurePosixPath(shard).name == PureWindowsPath(shard).name
    )


def _h5(path: Path, files: contextlib.ExitStack) -> dict[str, _Tensor]:
    file = files.enter_context(path.open("rb"))
    index = _json_object(path, _h5_index(path).encode())
    places = [
        (offset, size, name)
        for name, row in index.items()
        for offset, size, _, _ in row["parts"]
    ]
    _check_places(path, places, 0, _size(file))
    tensors = {name: _h5_tensor(path, file, name, row) for name, row in index.items()}
    _check_bomb(path, sum(tensor.size for tensor in tensors.values()), _size(file))
    return tensors


def _h5_index(path: Path) -> str:
    """The output of `h5_index.py` for a file, from a process that may crash."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", H5_INDEX, path],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=H5_SECONDS,
            env=os.environ | H5_ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as error:
        what = f"libhdf5 did not finish reading in {H5_SECONDS} s"
        raise _refused(path, "a whole HDF5 file", what) from error
    if child.returncode:
        last = child.stderr.strip().rpartition("\n")[2]
        what = last if child.returncode > 0 else f"libhdf5 crashes on it ({last})"
        raise _refused(path, "a whole HDF5 file of plain tensors", what)
    return child.stdout


def _h5_tensor(
    path: Path, file: io.BufferedReader, name: str, row: dict[str, Any]
) -> _Tensor:
    """The row for one dataset; its declared size is checked against the stored one."""
    dtype, shape, chunk = row["dtype"], tuple(row["shape"]), row["chunk"]
    if dtype not in FLOATS:
        return _Tensor(dtype, shape, 0, bytearray)
    itemsize = np.dtype(FLOATS[dtype]).itemsize
    size = itemsize * math.prod(shape)
    stored = sum(part[1] for part in row["parts"])
    read: Callable[[], Any]
    if chunk is None:
        whole = size == stored
        offset = row["parts"][0][0]
        read = functools.partial(_read_at, path, file, offset, size)
    else:
        pieces = _Chunks(name, shape, itemsize, tuple(chunk), row["filters"])
        whole = pieces.cover(row["parts"])
        read = functools.partial(pieces.read, path, file, row["parts"])
    if not whole:
        what = f"{name!r} declares {shape}, {size} bytes, and stores {stored}"
        raise _refused(path, "complete datasets", what)
    return _Tensor(dtype, shape, size, read)


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """An HDF5 dataset in chunks, all with the same filters."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    chunk: tuple[int, ...]
    filters: list[str]

    @property
    def size(self) -> int:
        return self.itemsize * math.prod(self.chunk)

    def cover(self, parts: list[Any]) -> bool:
        """Whether the parts are all chunks, each once and with a possible size."""
        if 0 in self.chunk:
            return False
        counts = [-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True)]
        if math.prod(counts) != len(parts):
            return False
        most = MAX_DEFLATE if "deflate" in self.filters else 1
        corners = itertools.product(
            *(range(0, n, c) for n, c in zip(self.shape, self.chunk, strict=True))
        )
        return {tuple(part[3]) for part in parts} == set(corners) and all(
            self.size <= most * stored for _, stored, _, _ in parts
        )

    def read(self, path: Path, file: io.BufferedReader, parts: list[Any]) -> np.ndarray:
        whole = np.empty(self.shape, f"V{self.itemsize}")
        for offset, stored, mask, corner in parts:
            content = self.unfiltered(_read_at(path, file, offset, stored), mask)
            if len(content) != self.size:
                what = f"damaged at {self.name!r}: {stored} bytes cannot be unpacked"
                raise _refused(path, "a whole HDF5 file", what)
            piece = np.frombuffer(content, whole.dtype).reshape(self.chunk)
            edges = zip(corner, self.chunk, strict=True)
            place = whole[tuple(slice(at, at + extent) for at, extent in edges)]
            place[...] = piece[tuple(slice(extent) for extent in place.shape)]
        return whole

    def unfiltered(self, content: bytes | bytearray, mask: int) -> bytes | bytearray:
        """A chunk with its filters undone; b"" if it is damaged."""
        for i, name in reversed(list(enumerate(self.filters))):
            if mask >> i & 1:  # This chunk was written without the filter.
                continue
            if name == "deflate":
                stream = zlib.decompressobj()
                try:
                    content = stream.decompress(content, self.size + 1)
                except zlib.error:
                    return b""
                if not stream.eof:  # The checksum is at the end.
                    return b""
            elif len(content) == self.size:
                bytes_apart = np.frombuffer(content, np.uint8)
                content = bytes_apart.reshape(self.itemsize, -1).T.tobytes()
        return content
