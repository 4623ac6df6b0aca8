"""Requests that a server has to survive, and what it has to say to each."""

import base64
import io
import json
import struct
import zlib

import numpy as np
from PIL import Image

MAX_MIB = 1  # The server's limit in these tests.


def photo(seed, size=(40, 30)):
    """A JPEG that looks like no other seed's."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return encoded(small.resize(size, Image.Resampling.BICUBIC), "JPEG")


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def vast_png():
    """The header of a PNG of 20000x20000 pixels, and next to nothing of them."""

    def chunk(name, data):
        crc = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels


def vast_jpeg():
    """A JPEG whose frame header says 20000x20000."""
    whole = bytearray(photo(0))
    frame = whole.index(b"\xff\xc0")
    whole[frame + 5 : frame + 9] = struct.pack(">HH", 20000, 20000)
    return bytes(whole)


def images():
    """Encoded images by what is odd about them."""
    plain = Image.open(io.BytesIO(photo(1)))
    frames = [Image.open(io.BytesIO(photo(seed))) for seed in (2, 3, 4)]
    deep = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    return {
        "truncated": photo(5)[: len(photo(5)) // 2],
        "zero bytes": b"",
        "1x1": encoded(Image.new("RGB", (1, 1), (200, 10, 30)), "PNG"),
        "20000x20000 PNG": vast_png(),
        "20000x20000 JPEG": vast_jpeg(),
        "CMYK": encoded(plain.convert("CMYK"), "JPEG"),
        "16-bit": encoded(deep, "PNG"),
        "animated": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "text": b"not an image, but a letter to the editor",
    }


def b64(data):
    return {"b64": base64.b64encode(data).decode("ascii")}


def row(*files, **fields):
    """A body of row format."""
    return json.dumps({"instances": list(map(b64, files)), **fields}).encode()


def column(*files, **fields):
    """A body of column format."""
    return json.dumps({"inputs": list(map(b64, files)), **fields}).encode()


def bodies():
    """REST bodies that no signature takes, and the status of each refusal."""
    good = b64(photo(0))
    refused = {
        "no body": b"",
        "no JSON": b"\xff\xd8\xff\xe0",
        "half a body": row(photo(0))[:300],
        "nested without end": b'{"instances":' + b"[" * 100_000,
        "no image in it": b'{"instances": []}',
        "bad base64": b'{"instances": [{"b64": "=?"}]}',
        "wrong field name": _dumped({"instances": [{"image": good}]}),
        "wrong key": _dumped({"images": [good]}),
        "wrong dtype": b'{"instances": [1.5]}',
        "pixels for bytes": b'{"instances": [[[0, 1, 2], [3, 4, 5]]]}',
        "wrong signature": row(photo(0), signature_name="segment"),
        "wrong shape": b'{"signature_name": "images_float32", "inputs": [[[[0.5]]]]}',
        "ragged": b'{"signature_name": "images", "inputs": [[[[1, 2, 3]], [[1, 2]]]]}',
    }
    statuses = dict.fromkeys(refused, 400)
    refused["too long"] = b" " * (MAX_MIB * 2**20 + 1)
    return {
        name: (body, {**statuses, "too long": 413}[name])
        for name, body in refused.items()
    }


def _dumped(value):
    return json.dumps(value).encode()
