"""The layer below names: every kind of tensor file, whole or bad."""

import itertools
import json
import os
import pickle
import resource
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit.weights import tensors
from keras_vit.weights.tensors import open_tensors
from tests.conftest import REFERENCE

pytestmark = pytest.mark.tensorflow_only

VALUES = np.array([[0.5, -2.0, 3.25], [1e-3, 65504.0, -0.0]])
INDEX = "model.safetensors.index.json"


def all_of(path):
    with open_tensors(path) as file:
        return {name: file[name] for name in file}


def refuses(path, match, kind=ValueError):
    """Opening and reading everything raises one clear error, and closes the file."""
    with pytest.raises(kind, match=match) as caught:
        all_of(path)
    message = str(caught.value)
    assert message.startswith("Expected ")
    assert "Received: " in message
    assert str(path) in message or str(Path(path).parent) in message
    assert len(message) < 2000
    assert not open_files(path)


def open_files(path):
    here = Path("/proc/self/fd")
    if not here.is_dir():
        return []
    links = [link.readlink() for link in here.iterdir() if link.is_symlink()]
    return [link for link in links if Path(path).parent in link.parents]


def safetensors(path, header, data=b""):
    """A safetensors file with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_npz(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def npy(header, data=b""):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def plain(shape, descr="<f4"):
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


def sharded(folder, **changes):
    """Two shards and their index, with fields of the index changed."""
    save_file({"a": np.ones(2, np.float32)}, folder / "model-1.safetensors")
    save_file({"b": np.full(3, 2.0, np.float32)}, folder / "model-2.safetensors")
    index = {
        "metadata": {"total_size": 20},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"},
    } | changes
    (folder / INDEX).write_text(json.dumps(index))
    return folder / INDEX


# Whole files.


def test_more_shards_than_files_may_be_open(tmp_path):
    """A system's limit is often 256 or 1024; shards are opened one at a time."""
    shards = {f"t{i}": f"model-{i:03}.safetensors" for i in range(40)}
    for i, (name, shard) in enumerate(shards.items()):
        save_file({name: np.full(2, i, np.float32)}, tmp_path / shard)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": shards}))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    present = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (present + 20, limits[1]))
    try:
        read = all_of(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [read[name].tolist() for name in shards] == [[i, i] for i in range(40)]


def test_a_shard_that_changes_while_it_is_read(tmp_path):
    with open_tensors(sharded(tmp_path)) as file:
        changed = {"a": np.zeros(2, np.float32)}
        save_file(changed, tmp_path / "other")
        (tmp_path / "other").replace(tmp_path / "model-1.safetensors")
        with pytest.raises(ValueError, match="changed while it was read"):
            file["a"]
        np.testing.assert_array_equal(file["b"], np.full(3, 2, np.float32))


@pytest.mark.parametrize("format", ["npz", "safetensors", "h5"])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
)
def test_every_float_is_read_as_float32(format, dtype, tmp_path):
    values, path = VALUES.astype(dtype), tmp_path / "any.name"
    if format == "npz":
        with path.open("wb") as file:
            np.savez(file, **{"a/kernel": values, "scalar": values[0, 0]})
    elif format == "safetensors":
        save_file({"a/kernel": values, "scalar": values[0, 0, None]}, path)
    else:
        with h5py.File(path, "w") as file:
            file["a/kernel"] = values
            file["scalar"] = values[0, 0]
    with open_tensors(path) as file:
        assert file.format == format
        assert file.path == path
        assert sorted(file) == ["a/kernel", "scalar"]
        assert file.shape("a/kernel") == (2, 3)
        read = file["a/kernel"]
        assert read.dtype == np.float32
        assert read.flags.writeable
        np.testing.assert_array_equal(read, values.astype(np.float32))
        assert file["scalar"].ravel() == values[0, 0].astype(np.float32)
    assert not open_files(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_orders(save, tmp_path):
    columns = np.asfortranarray(VALUES, dtype=np.float32)
    save(tmp_path / "a.npz", f=columns, b=VALUES.astype(">f4"), e=np.ones((0, 4), "f4"))
    read = all_of(tmp_path / "a.npz")
    np.testing.assert_array_equal(read["f"], columns)
    np.testing.assert_array_equal(read["b"], columns)
    assert read["e"].shape == (0, 4)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_header_versions(version, compression, tmp_path):
    values = VALUES.astype("f4")
    archive = zipfile.ZipFile(tmp_path / "a.npz", "w", compression)
    with archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array(member, values, version)
    np.testing.assert_array_equal(all_of(tmp_path / "a.npz")["x"], values)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_h5_in_chunks(libver, compression, shuffle, tmp_path):
    values = np.random.default_rng(0).normal(size=(10, 7, 3)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        for group, dtype in itertools.product("abcdefghijkl", ("f4", ">f2")):
            file.create_dataset(
                f"{group}/kernel_{dtype[-2:]}",
                data=values.astype(dtype),
                chunks=(4, 7, 2),
                compression=compression,
                shuffle=shuffle,
            )
    read = all_of(tmp_path / "a.h5")
    assert len(read) == 24
    np.testing.assert_array_equal(read["l/kernel_f4"], values)
    np.testing.assert_array_equal(read["l/kernel_f2"], np.float16(values))


@pytest.mark.parametrize("skipped", range(4))
def test_h5_chunks_written_without_a_filter(skipped, tmp_path):
    """A writer may skip a filter for a chunk, and says so in the chunk's mask."""
    values = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset(
            "x", values.shape, "f4", chunks=(2, 6), compression="gzip", shuffle=True
        )
        for row in (0, 2):
            content = values[row : row + 2].tobytes()
            if not skipped & 1:
                content = np.frombuffer(content, "u1").reshape(-1, 4).T.tobytes()
            if not skipped & 2:
                content = zlib.compress(content)
            x.id.write_direct_chunk((row, 0), content, filter_mask=skipped)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["x"], values)
    np.testing.assert_array_equal(all_of(tmp_path / "a.h5")["x"], values)


def test_numbers_that_are_no_weights_are_listed(tmp_path):
    step = {"w": np.ones(2, np.float32), "step": np.array([7])}
    np.savez(tmp_path / "a.npz", **step, mask=np.array([True]))
    save_file(step | {"mask": np.array([True])}, tmp_path / "a.safetensors")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, value in (step | {"mask": np.array([True])}).items():
            file[name] = value
        file["empty"] = h5py.Empty("f4")
    for name in ("a.npz", "a.safetensors", "a.h5"):
        with open_tensors(tmp_path / name) as file:
            assert file.shape("step") == (1,)
            assert file["w"].tolist() == [1, 1]
            for bad, dtype in (("step", r"(int|I)64"), ("mask", r"bool|BOOL")):
                with pytest.raises(
                    ValueError, match=rf"floating.*'{bad}' of .*{dtype}"
                ):
                    file[bad]


def test_shards_and_directories(tmp_path):
    expected = {"a": [1, 1], "b": [2, 2, 2]}
    for source in (sharded(tmp_path), tmp_path):
        with open_tensors(source) as file:
            assert file.format == "safetensors"
            assert {name: file[name].tolist() for name in file} == expected
    sharded(tmp_path, metadata={})
    assert len(all_of(tmp_path)) == 2
    save_file({"whole": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    assert list(all_of(tmp_path)) == ["whole"]


def test_a_file_of_keras(tmp_path):
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    model.save_weights(tmp_path / "m.weights.h5")
    read = all_of(tmp_path / "m.weights.h5")
    kernel = model.get_layer("head").get_weights()[0]
    assert any(np.array_equal(value, kernel) for value in read.values())
    assert len(read) == len(model.weights)


def test_float64_beyond_float32_is_infinite_without_a_warning(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([1e300]))
    assert np.isinf(all_of(tmp_path / "a.npz")["a"]).all()


def test_a_mapping_that_closes(tmp_path):
    np.savez(tmp_path / "a.npz", a=VALUES)
    file = open_tensors(tmp_path / "a.npz")
    assert open_files(tmp_path / "a.npz")
    assert "b" not in file
    with pytest.raises(KeyError):
        file["b"]
    file.close()
    file.close()
    assert not open_files(tmp_path / "a.npz")
    assert file.shape("a") == (2, 3)
    with pytest.raises(ValueError, match="closed"):
        file["a"]


# Other kinds of files.


def torch_zip():
    return [("archive/data.pkl", pickle.dumps({})), ("archive/data/0", b"\0" * 8)]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "0 bytes, an empty file"),
        (b"hello", "begins with b'hello'"),
        (b"\x89PNG\r\n\x1a\n", "an unknown format"),
        (b" <!DOCTYPE html><title>404</title>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (pickle.dumps({"a": 1}, 2), "never unpickled.*safetensors copy"),
        (b"\x81\xa6params\x81\xa4head", "msgpack"),
        (b"\xde\x00\x20\xa6params", "msgpack"),
        (b"\0" * 90 + bytes.fromhex("57fb808b247547db"), "part of a TensorFlow"),
        (b"PK\3\4 and no more", "truncated"),
        (b"\x89HDF\r\n\x1a\n", "(?i)truncated|unable"),
        (struct.pack("<Q", 900) + b'{"a":', "truncated: the header"),
        (b'{"hidden_size": 768}', "weight_map"),
        (b'{"weight_map": ', "damaged"),
    ],
)
def test_another_kind_of_file(content, match, tmp_path):
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    refuses(path, match)


def test_no_file(tmp_path):
    refuses(tmp_path / "no.safetensors", "does not exist", FileNotFoundError)
    refuses(tmp_path, "a directory with nothing.*Pass the path")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refuses(tmp_path, "a directory with pytorch_model.bin")


def test_a_single_npy(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    refuses(tmp_path / "a.npy", r"single array \(\.npy\)")


def test_zips_of_others(tmp_path):
    refuses(write_npz(tmp_path / "a.pt", torch_zip()), "never unpickled")
    refuses(write_npz(tmp_path / "a.keras", [("config.json", "{}")]), "load_model")
    refuses(write_npz(tmp_path / "a.npz", []), "contains none")


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refuses(tmp_path / "pipe", "not a regular file")


# npz.


@pytest.mark.parametrize(
    ("member", "match"),
    [
        (npy(plain("(3,)"), b"\0" * 8), r"declares .*\(3,\).* and has 8 bytes"),
        (npy(plain("(1,)"), b"\0" * 8), "has 8 bytes"),
        (npy(plain("(99999999999, 99999999999)")), "declares"),
        (npy(plain("(0, 99999999999, 99999999999)")), "that fit in memory"),
        (npy(plain("(1,)", "|O"), b"\0" * 8), "pickled"),
        (npy(plain("(1,)", "<M8[s]"), b"\0" * 8), "with the header"),
        (npy("{'descr': __import__('os')}"), "with the header"),
        (npy("(" * 5000), "with the header"),
        (b"\x93NUMPY\1\0\xff\xff{", "with the header"),
        (b"not an array", "with the header"),
        (b"", "with the header"),
    ],
)
def test_npz_headers_that_lie(member, match, tmp_path):
    refuses(write_npz(tmp_path / "a.npz", [("x.npy", member)]), match)


def test_npz_pickles_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object))
    refuses(tmp_path / "a.npz", "'x' of Python objects")
    assert not (tmp_path / "boom").exists()


def test_npz_damage(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(1000, np.float32))
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    refuses(path, "truncated")
    flipped = bytearray(whole)
    flipped[2000] ^= 1
    path.write_bytes(flipped)
    refuses(path, "damaged at 'x.npy'.*CRC")


def test_npz_member_twice(tmp_path):
    members = [("x.npy", npy(plain("(0,)")))] * 2
    with pytest.warns(UserWarning, match="Duplicate"):
        path = write_npz(tmp_path / "a.npz", members)
    refuses(path, "'x.npy' twice")


def central(path, offset, format, *values):
    """Overwrites a field of the first entry of a zip's central directory."""
    content = bytearray(path.read_bytes())
    struct.pack_into(format, content, content.index(b"PK\1\2") + offset, *values)
    path.write_bytes(content)


def test_npz_encrypted(tmp_path):
    path = write_npz(tmp_path / "a.npz", [("x.npy", npy(plain("(0,)")))])
    central(path, 8, "<H", 1)
    refuses(path, "'x' is encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, 97])
def test_npz_unknown_compression(method, tmp_path):
    path = write_npz(tmp_path / "a.npz", [("x.npy", npy(plain("(0,)")))])
    central(path, 10, "<H", method)
    refuses(path, f"compression method {method}")


def test_npz_bombs(tmp_path, monkeypatch):
    content = npy(plain("(1000000,)"), b"\0" * 4_000_000)
    path = tmp_path / "a.npz"
    write_npz(path, [("x.npy", content)], zipfile.ZIP_DEFLATED)
    assert not all_of(path)["x"].any()  # An all-zero head is 1,000 times smaller.
    monkeypatch.setattr(tensors, "BOMB", (2**20, 20))
    refuses(path, "bytes of tensors in a file of")
    monkeypatch.undo()
    central(path, 24, "<I", 2**32 - 2)
    refuses(path, "4294967294 bytes of tensors in")


# safetensors.


@pytest.mark.parametrize(
    ("header", "size", "match"),
    [
        ({"x": entry([2], 0, 4)}, 4, r"'x' is declared .*'shape': \[2\]"),
        ({"x": entry([2], 0, 8)}, 4, "truncated: 'x' is declared to end at byte"),
        ({"x": entry([1], 0, 4)}, 8, "4 declared bytes, 8 bytes of data"),
        ({"x": entry([1], 4, 8)}, 8, "4 declared bytes, 8 bytes of data"),
        ({"x": entry([1], 0, 4), "y": entry([1], 2, 6)}, 6, "'y' is declared at byte"),
        ({"x": entry([1], 0, 4), "y": entry([1], 0, 4)}, 4, "'x' ends at"),
        ({"x": entry([-1], 0, -4)}, 0, "'x' is declared"),
        ({"x": entry([1], -4, 0)}, 0, "'x' is declared"),
        ({"x": entry([True], 0, 4)}, 4, "'x' is declared"),
        ({"x": entry([1.0], 0, 4)}, 4, "'x' is declared"),
        ({"x": entry(["1"], 0, 4)}, 4, "'x' is declared"),
        ({"x": entry([1], 0, 4, "F31")}, 4, "a known dtype.*'F31'"),
        ({"x": {"dtype": "F32", "shape": [1]}}, 4, "'x' is declared"),
        ({"x": [1]}, 4, r"'x' is declared \[1\]"),
        ({"x": entry([0, 2**40, 2**40], 0, 0)}, 0, "that fit in memory"),
        ({"x": entry([1] * 33, 0, 4)}, 4, "'x' is declared"),
        ({"x": entry([2**64], 0, 0)}, 0, "'x' is declared"),
        ({"x\n": entry([1], 0, 4)}, 4, "readable names"),
        ({"": entry([1], 0, 4)}, 4, "readable names"),
        ({}, 0, "contains none"),
        ({"__metadata__": {"format": "pt"}}, 0, "contains none"),
        (b'{"x": 1, "x": 2}', 0, "'x' twice"),
        (b"{" + b'"":1,' * 100_000 + b'"":1}', 0, "'' twice"),
        (b'{"x": ', 0, "damaged"),
        (b'{"\xff": 1}', 0, "damaged"),
        (b'{"x":' + b"[" * 50_000, 0, "damaged"),
        (b'{"x": ' + b"9" * 5000 + b"}", 0, "damaged"),
    ],
)
def test_safetensors_headers_that_lie(header, size, match, tmp_path):
    refuses(safetensors(tmp_path / "a.safetensors", header, b"\0" * size), match)


def test_safetensors_header_of_any_length(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    refuses(path, "truncated: the header")
    safetensors(path, b"{" + b" " * 2**24 + b"}")
    refuses(path, "a header of at most")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"weight_map": {"a": "model-1.safetensors"}, "metadata": None}, None),
        ({"metadata": {"total_size": 21}}, "total_size 21, but the shards have 20"),
        ({"weight_map": {"a": "model-9.safetensors"}}, "does not exist"),
        (
            {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}},
            "'b', which is listed for but not in the shard 'model-1",
        ),
        (
            {"weight_map": {"x": "model-1.safetensors"}},
            "'a', which is not listed for the shard 'model-1",
        ),
        ({"weight_map": {"a": "../model-1.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "/etc/x.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "..\\x.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "C:x.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "x\0.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "x" * 300 + ".safetensors"}}, "next to it"),
        ({"weight_map": {"a": "model-1.bin"}}, "next to it"),
        ({"weight_map": {"a": 1}}, "next to it"),
        ({"weight_map": []}, "next to it"),
        ({"weight_map": {}, "metadata": {}}, "contains none"),
    ],
)
def test_indexes_that_lie(changes, match, tmp_path):
    path = sharded(tmp_path, **changes)
    if match is None:
        assert list(all_of(path)) == ["a"]
    else:
        kind = FileNotFoundError if "exist" in match else ValueError
        refuses(path, match, kind)


def test_a_tensor_in_two_shards(tmp_path):
    path = sharded(tmp_path)
    both = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    save_file(both, tmp_path / "model-2.safetensors")
    refuses(path, "'a', which is not listed for the shard 'model-2")


def test_a_shard_of_another_kind(tmp_path):
    path = sharded(tmp_path)
    np.savez(tmp_path / "x.npz", a=VALUES)
    (tmp_path / "x.npz").replace(tmp_path / "model-2.safetensors")
    refuses(path, "a different kind of file")
    (tmp_path / "model-2.safetensors").write_text("version https://git-lfs.github.com")
    refuses(path, "git lfs pull")


# HDF5.


@pytest.fixture
def h5(tmp_path):
    """A path and an open file to spoil; a good dataset is in it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["good/w"] = np.ones(3, np.float32)
    return path


def virtual(file):
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
    file.create_virtual_dataset("x", layout)


def external(file):
    file.create_dataset("x", (3,), "f4", external=[("/etc/passwd", 0, 12)])


def unwritten_chunk(file):
    file.create_dataset("x", (4,), "f4", chunks=(2,))[:2] = 1


def compact(file):
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, created)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda f: f.__setitem__("x", h5py.ExternalLink("/etc/x.h5", "/")), "link"),
        (lambda f: f.__setitem__("x", h5py.SoftLink("/good")), "link at 'x'"),
        (lambda f: f.__setitem__("x", f["good"]), "linked more than once"),
        (lambda f: f["good"].__setitem__("x", f["/"]), "linked more than once"),
        (lambda f: f.__setitem__("x", np.dtype("f4")), "neither a group nor"),
        (virtual, "virtually"),
        (compact, "compactly"),
        (external, "in another file"),
        (lambda f: f.__setitem__("x", "text"), "text, references or records"),
        (lambda f: f.create_dataset("x", (1,), h5py.ref_dtype), "references"),
        (lambda f: f.create_dataset("x", (1,), "f4,i4"), "records"),
        (lambda f: f.create_dataset("x", (9,), "f4"), "36 bytes, and stores 0"),
        (lambda f: f.create_dataset("x", (2**50,), "f4", chunks=(2**20,)), "stores 0"),
        (unwritten_chunk, "stores 8"),
        (
            lambda f: f.create_dataset("x", data=VALUES, compression="lzf"),
            "through the HDF5 filters",
        ),
        (lambda f: f.__setitem__("x\n", VALUES), "readable names"),
    ],
)
def test_h5_files_that_reach_out_or_lie(spoil, match, h5):
    with h5py.File(h5, "a") as file:
        spoil(file)
    refuses(h5, match)


def test_h5_without_datasets(h5):
    with h5py.File(h5, "w") as file:
        file.create_group("empty")
    refuses(h5, "contains none")


def test_h5_truncated(h5):
    h5.write_bytes(h5.read_bytes()[:-6])
    refuses(h5, "truncated file")


def test_h5_damaged_chunk(h5):
    with h5py.File(h5, "w") as file:
        x = file.create_dataset("x", data=VALUES, chunks=(2, 3), compression="gzip")
        chunk = x.id.get_chunk_info(0)
    content = bytearray(h5.read_bytes())
    content[chunk.byte_offset + chunk.size - 1] ^= 1
    h5.write_bytes(content)
    refuses(h5, "damaged at 'x'")


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("import os; os.abort()", "libhdf5 crashes"),
        ("import time; time.sleep(60)", "did not finish reading in 1 s"),
        ("raise KeyError('x')", "KeyError: 'x'"),
    ],
)
def test_a_crash_of_libhdf5_is_one_error(script, match, h5, tmp_path, monkeypatch):
    (tmp_path / "h5_index.py").write_text(script)
    monkeypatch.setattr(tensors, "H5_INDEX", tmp_path / "h5_index.py")
    monkeypatch.setattr(tensors, "H5_SECONDS", 1)
    refuses(h5, match)
