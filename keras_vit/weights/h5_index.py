"""Prints the contents of an HDF5 file and the locations of its bytes as JSON.

`tensors.py` runs this file in a separate process: libhdf5 1.14.6 has known memory
errors on crafted files (CVE-2025-6269, -2915 and others), and a crash cannot be caught.
Values are never read here, links are never followed, and no filter is ever loaded.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import h5py

MAX_MEMORY = 2**31
MAX_OBJECTS = 100_000  # ViT-H/14 has 1,000 groups and datasets.
FILTERS = {1: "deflate", 2: "shuffle"}  # HDF5's own numbers.
FLOATS = {
    "<f2": h5py.h5t.IEEE_F16LE,
    ">f2": h5py.h5t.IEEE_F16BE,
    "<f4": h5py.h5t.IEEE_F32LE,
    ">f4": h5py.h5t.IEEE_F32BE,
    "<f8": h5py.h5t.IEEE_F64LE,
    ">f8": h5py.h5t.IEEE_F64BE,
}
OTHERS = {h5py.h5t.INTEGER: "int", h5py.h5t.ENUM: "bool", h5py.h5t.FLOAT: "float"}


def datasets(root: Any) -> Iterator[tuple[str, Any]]:
    """Yields every dataset below `root` with its path, each object once."""
    seen = {h5py.h5o.get_info(root).addr}
    groups = [("", root)]
    while groups:
        path, group = groups.pop()
        for link in group:
            name = path + link.decode()
            if group.links.get_info(link).type != h5py.h5l.TYPE_HARD:
                sys.exit(f"a soft or external link at {name!r}, which is not followed")
            node = h5py.h5o.open(group, link)
            address = h5py.h5o.get_info(node).addr
            if address in seen:
                sys.exit(f"{name!r}, an object that is linked more than once")
            seen.add(address)
            if len(seen) > MAX_OBJECTS:
                sys.exit(f"more than {MAX_OBJECTS} groups and datasets")
            if isinstance(node, h5py.h5g.GroupID):
                groups.append((f"{name}/", node))
            elif isinstance(node, h5py.h5d.DatasetID):
                yield name, node
            else:
                sys.exit(f"{name!r}, which is neither a group nor a dataset")


def describe(name: str, dataset: Any) -> dict[str, Any]:
    """Describes one dataset: its dtype, its shape and the locations of its bytes."""
    created = dataset.get_create_plist()
    layout = created.get_layout()
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
        sys.exit(f"{name!r}, stored virtually or compactly")
    if created.get_external_count():
        sys.exit(f"{name!r}, stored in another file")
    dtype = dtype_of(name, dataset.get_type())
    if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return {"dtype": "nothing", "shape": [], "chunk": None, "parts": []}
    row = {"dtype": dtype, "shape": dataset.shape}
    if layout == h5py.h5d.CONTIGUOUS:
        place = (dataset.get_offset() or 0, dataset.get_storage_size(), 0, ())
        return row | {"chunk": None, "filters": [], "parts": [place]}
    filters = [created.get_filter(i)[0] for i in range(created.get_nfilters())]
    if unknown := set(filters) - FILTERS.keys():
        sys.exit(f"{name!r}, stored through the HDF5 filters {sorted(unknown)}")
    if dataset.get_num_chunks() > MAX_OBJECTS:
        sys.exit(f"{name!r}, stored in more than {MAX_OBJECTS} chunks")
    chunks = (dataset.get_chunk_info(i) for i in range(dataset.get_num_chunks()))
    return row | {
        "chunk": created.get_chunk(),
        "filters": [FILTERS[number] for number in filters],
        "parts": [
            (chunk.byte_offset, chunk.size, chunk.filter_mask, chunk.chunk_offset)
            for chunk in chunks
        ],
    }


def dtype_of(name: str, kind: Any) -> str:
    """NumPy's code for the supported floats; a word for types that are not weights."""
    for code, ieee in FLOATS.items():
        if kind == ieee:
            return code
    if kind.get_class() == h5py.h5t.OPAQUE and kind.get_size() == 2:
        return "bfloat16"  # The format that Keras writes.
    if kind.get_class() not in OTHERS:
        sys.exit(
            f"{name!r}, which holds text, references or records (objects are never "
            "loaded)"
        )
    return f"{OTHERS[kind.get_class()]}{8 * kind.get_size()}"


def main(path: str) -> None:
    """Prints {name: description}; exits with a message for unsupported contents."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with h5py.File(path, "r") as file:
        root = h5py.h5o.open(file.id, b"/")
        index = {name: describe(name, dataset) for name, dataset in datasets(root)}
    print(json.dumps(index))


if __name__ == "__main__":
    main(sys.argv[1])
