"""One decoder: the same bytes give the same pixels, or refusal, on every path.

`python -m tests.data.test_decoding` prints the table of formats and paths.
"""

import io
import os
import re
import struct
import tempfile
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.cli import loaders
from keras_vit.data import decoding, open_source, pipelines, preprocessing
from keras_vit.data.packing import pack
from keras_vit.data.splits import Arrays
from keras_vit.facts import OFFICIAL
from keras_vit.serving import graph

pytestmark = pytest.mark.tensorflow_only

HEIGHT, WIDTH = 23, 37


def photo(height=HEIGHT, width=WIDTH, seed=0):
    colors = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)


def transparent(height=HEIGHT, width=WIDTH):
    """A photo with many alphas; its upper third is fully transparent."""
    image = photo(height, width)
    image.putalpha(photo(height, width, seed=1).convert("L"))
    pixels = np.array(image)
    pixels[: height // 3, :, 3] = 0
    return Image.fromarray(pixels)


def encoded(image, kind, **options):
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x010F] = "a maker"  # A row before the orientation's.
    tags[0x0112] = orientation
    return tags


def filled(jpeg):
    """Fill bytes before the markers of the first segments (T.81, B.1.1.2)."""
    parts, at = [jpeg[:2]], 2
    for count in (1, 2, 40):
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        parts.append(count * b"\xff" + jpeg[at:end])
        at = end
    return b"".join([*parts, jpeg[at:]])


def big_endian_exif(orientation):
    """EXIF as Apple's cameras write it: the first byte of a number first."""
    row = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + row + bytes(4)


def bmp(bits, palette=b"", rows=b"", height=HEIGHT, packing=0, masks=b""):
    """A BMP with a header of 40 bytes."""
    start = 54 + len(masks) + len(palette)
    head = struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start)
    sides = struct.pack("<IiiHHII", 40, WIDTH, height, 1, bits, packing, len(rows))
    return head + sides + bytes(16) + masks + palette + rows


def two_bits():
    """A palette of four colors, rows from the top, and its pixels."""
    indexes = np.random.default_rng(1).integers(0, 4, (HEIGHT, 40), np.uint8)
    bytes_ = indexes.reshape(HEIGHT, 10, 4) @ np.array([64, 16, 4, 1], np.uint8)
    rows = np.pad(bytes_.astype(np.uint8), ((0, 0), (0, 2))).tobytes()
    colors = np.array([[9, 8, 7], [250, 0, 3], [1, 200, 90], [77, 78, 79]], np.uint8)
    bgr = np.pad(colors[:, ::-1], ((0, 0), (0, 1))).tobytes()
    return bmp(2, bgr, rows, height=-HEIGHT), colors[indexes[:, :WIDTH]]


def frames(kind):
    images = [photo(seed=seed) for seed in range(3)]
    if kind == "GIF":
        images = [image.quantize(64) for image in images]
    options = {"lossless": True} if kind == "WEBP" else {}
    return encoded(images[0], kind, save_all=True, append_images=images[1:], **options)


def gray16():
    values = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 70
    pixels = np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=-1)
    return encoded(Image.fromarray(values), "PNG"), pixels


MODES = {  # By name: Pillow's mode, kind and options.
    "JPEG": ("RGB", "JPEG", {}),
    "JPEG, progressive": ("RGB", "JPEG", {"progressive": True}),
    "JPEG, gray": ("L", "JPEG", {}),
    "JPEG, CMYK": ("CMYK", "JPEG", {}),
    "PNG": ("RGB", "PNG", {}),
    "PNG, alpha": ("RGBA", "PNG", {}),
    "PNG, gray": ("L", "PNG", {}),
    "PNG, one bit": ("1", "PNG", {}),
    "PNG, palette": ("P", "PNG", {}),
    "PNG, dots per inch": ("RGB", "PNG", {"dpi": (72, 72)}),
    "GIF": ("P", "GIF", {}),
    "BMP, 24 bits": ("RGB", "BMP", {}),
    "BMP, 32 bits": ("RGBA", "BMP", {}),
    "BMP, 8 bits": ("P", "BMP", {}),
    "BMP, gray": ("L", "BMP", {}),
    "BMP, 1 bit": ("1", "BMP", {}),
    "WebP": ("RGB", "WEBP", {}),
    "WebP, lossless": ("RGB", "WEBP", {"lossless": True}),
    "WebP, opaque alpha": ("RGBA", "WEBP", {"lossless": True}),
}
GOOD = {
    name: encoded(photo().convert(mode), kind, **options)
    for name, (mode, kind, options) in MODES.items()
}
GOOD |= {
    f"{kind}, orientation {value}": encoded(photo(), kind, exif=exif(value), **options)
    for kind, options in (("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True}))
    for value in range(1, 9)
}
GOOD |= {
    "WebP, alpha": encoded(transparent(), "WEBP", lossless=True, exact=True),
    "WebP, lossy alpha": encoded(transparent(), "WEBP"),
    "WebP, alpha, orientation 6": encoded(transparent(), "WEBP", exif=exif(6)),
    "PNG, transparent": encoded(transparent(), "PNG"),
    "JPEG, EXIF of an iPhone": encoded(photo(), "JPEG", exif=big_endian_exif(6)),
    "JPEG, EXIF after a comment": encoded(
        photo(),
        "JPEG",
        exif=exif(8),
        comment=b"\xff\xe1 Exif",
        icc_profile=b"x" * 70000,
    ),
    "JPEG, EXIF after fill bytes": filled(
        encoded(photo(), "JPEG", exif=exif(6), comment=b"a comment")
    ),
    "JPEG, damaged EXIF": encoded(
        photo(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"
    ),
    "JPEG, orientation 9": encoded(photo(), "JPEG", exif=big_endian_exif(9)),
    "BMP, 4 bits": encoded(photo().quantize(11), "BMP"),
    "BMP, 2 bits, from the top": two_bits()[0],
    "PNG, 16 bits": gray16()[0],
    "GIF, animated": frames("GIF"),
}
LOSSLESS = {"BMP, 2 bits, from the top": two_bits()[1], "PNG, 16 bits": gray16()[1]}

REFUSED = {
    "nothing": (b"", decoding.UNREADABLE),
    "text": (b"<html>404 not found</html>", decoding.UNREADABLE),
    "TIFF": (encoded(photo(), "TIFF"), decoding.UNREADABLE),
    "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", decoding.HEIF),
    "AVIF": (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf", decoding.HEIF),
    "animated WebP": (frames("WEBP"), decoding.ANIMATED_WEBP),
    "BMP, 16 bits": (bmp(16, rows=bytes(HEIGHT * 76)), decoding.BMP_KIND),
    "BMP, run lengths": (bmp(8, bytes(1024), b"\0\1", packing=1), decoding.BMP_KIND),
    "BMP, other masks": (
        bmp(32, rows=bytes(HEIGHT * WIDTH * 4), packing=3, masks=bytes(12)),
        decoding.BMP_KIND,
    ),
    "BMP, height 0": (bmp(24, rows=bytes(99), height=0), decoding.EMPTY),
    "BMP, an index beyond the palette": (
        bmp(8, bytes(40), b"\xff" * HEIGHT * 40).replace(
            struct.pack("<II", 0, 0) + bytes(40), struct.pack("<II", 10, 0) + bytes(40)
        ),
        decoding.UNREADABLE,
    ),
}
REFUSED |= {
    f"half of: {name}": (GOOD[name][: len(GOOD[name]) // 2], decoding.UNREADABLE)
    for name in (
        *("JPEG", "PNG", "GIF", "BMP, 24 bits", "BMP, 8 bits"),
        *("WebP", "WebP, alpha", "WebP, lossy alpha"),
    )
}
REFUSED |= {
    f"{length} bytes of: {name}": (GOOD[name][:length], decoding.UNREADABLE)
    for name in ("JPEG", "PNG", "GIF", "BMP, 8 bits", "WebP", "WebP, alpha")
    for length in (3, 12, 20, 27)
}


def viewed(name, data):
    """The pixels that a viewer shows: Pillow's, or TensorFlow's of a JPEG."""
    if name in LOSSLESS:
        return LOSSLESS[name]
    if name == "JPEG, damaged EXIF":
        return tf.io.decode_jpeg(data, channels=3).numpy()
    image = Image.open(io.BytesIO(data))
    if image.format == "JPEG":  # Another DCT than Pillow's.
        stored = Image.fromarray(tf.io.decode_jpeg(data, channels=3).numpy())
        orientation = image.getexif().get(0x0112, 1)
        plain = encoded(stored, "PNG", exif=exif(orientation))
        image = Image.open(io.BytesIO(plain))
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def of_pipeline(build, **options):
    def path(images, size, folder):
        split = Arrays(images, np.arange(len(images)))
        batches = build(split, image_size=size, batch_size=len(images), **options)
        pixels, labels = next(iter(batches.as_numpy_iterator()))
        return pixels[np.argsort(labels)]

    return path


def of_crop(images, size, folder):
    """The crop of the whole image, as the Inception crop reads it."""

    def crop(image):
        whole = decoding.decode_crop(
            image, lambda shape: tf.concat([[0, 0], shape[:2]], axis=0)
        )
        return preprocessing.normalize(whole)

    crops = tf.data.Dataset.from_tensor_slices(images).map(crop)
    return np.stack(list(crops.as_numpy_iterator()))


def of_predict(images, size, folder):
    images_in = types.SimpleNamespace(shape=(None, *size, 3))
    network = types.SimpleNamespace(
        input_shape=images_in.shape, inputs=[images_in], preprocessing=OFFICIAL
    )
    file = folder / "image"
    pixels = []
    for image in images:
        file.write_bytes(image)
        pixels.append(loaders.read_image(file, network))
    return np.stack(pixels)


def of_preprocess(images, size, folder):
    """`VisionModel.preprocess` of encoded bytes."""
    return preprocessing.prepare_all(images, size, OFFICIAL, 3)


def of_packed(images, size, folder):
    for number, image in enumerate(images):
        name = "ab"[number >= len(images) / 2]
        (folder / "set" / "train" / name).mkdir(parents=True, exist_ok=True)
        (folder / "set" / "train" / name / f"{number:03}.jpg").write_bytes(image)
    packed = open_source(pack(open_source(folder / "set"), folder / "packed"))
    batches = pipelines.eval_pipeline(
        packed.train, image_size=size, batch_size=len(images)
    )
    return next(iter(batches.as_numpy_iterator()))[0]


def of_served(images, size, folder):
    """The graph of an export, saved and loaded."""
    pixels, status = served(size, folder)(images)
    assert set(status.numpy()) == {b"ok"}
    return pixels.numpy()


def test_served_decoding_is_refused_in_eager_mode():
    images = tf.constant([GOOD["JPEG"]])
    with pytest.raises(RuntimeError, match=r"inside a tf\.function"):
        graph.decode_each(images, (8, 8), OFFICIAL, 3, decoding.MAX_PIXELS)


def served(size, folder):
    module = tf.Module()
    module.read = tf.function(
        lambda images: graph.decode_each(
            images, size, OFFICIAL, 3, decoding.MAX_PIXELS
        ),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(folder / "served"))
    return tf.saved_model.load(str(folder / "served")).read


PATHS = {
    "training": of_pipeline(pipelines.train_pipeline, seed=0, augment="none"),
    "training, crop": of_crop,
    "evaluation": of_pipeline(pipelines.eval_pipeline),
    "predict, inspect": of_predict,
    "model.preprocess": of_preprocess,
    "packed": of_packed,
    "served": of_served,
}
VIEWED = {name: viewed(name, data) for name, data in GOOD.items()}


def is_turned(name):
    """Whether the orientation of an image exchanges its sides."""
    return VIEWED[name].shape[:2] == (WIDTH, HEIGHT)


def test_the_images_are_of_both_shapes():
    assert sum(map(is_turned, GOOD)) == 16
    assert {viewed.shape for viewed in VIEWED.values()} == {
        (HEIGHT, WIDTH, 3),
        (WIDTH, HEIGHT, 3),
    }


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_same_bytes_same_pixels(path, turned, tmp_path):
    names = [name for name in GOOD if is_turned(name) == turned]
    size = (WIDTH, HEIGHT) if turned else (HEIGHT, WIDTH)
    scaled = PATHS[path]([GOOD[name] for name in names], size, tmp_path)
    for name, pixels in zip(names, 127.5 * scaled + 127.5, strict=True):
        # A graph may multiply by 1 / std where NumPy divides.
        np.testing.assert_allclose(pixels, VIEWED[name], atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(np.rint(pixels), VIEWED[name], err_msg=name)


@pytest.mark.parametrize("name", GOOD)
def test_decode_shows_what_a_viewer_shows(name):
    np.testing.assert_array_equal(preprocessing.decode(GOOD[name]), VIEWED[name])
    assert decoding.reason(GOOD[name]) is None


BAD = [data for data, _ in REFUSED.values()]
REASONS = [reason for _, reason in REFUSED.values()]


def test_same_bytes_same_refusal_in_words(tmp_path):
    assert [decoding.reason(data) for data in BAD] == REASONS
    pixels, status = served((HEIGHT, WIDTH), tmp_path)(BAD)
    assert [text.decode() for text in status.numpy()] == REASONS
    assert not pixels.numpy().any()
    for data, reason in REFUSED.values():
        with pytest.raises(ValueError, match=re.escape(f"({reason})")):
            of_predict([data], (HEIGHT, WIDTH), tmp_path)
        with pytest.raises(ValueError, match=re.escape(f"Received: {reason}")):
            of_preprocess([data], (HEIGHT, WIDTH), tmp_path)


def test_same_bytes_same_refusal_of_a_folder(tmp_path):
    """Training and packing open a folder first, which prints ten reasons."""
    for start in range(0, len(BAD), 10):
        folder = tmp_path / str(start)
        for name in "ab":  # A good one in each class.
            (folder / name).mkdir(parents=True)
            (folder / name / "good.png").write_bytes(GOOD["PNG"])
        for number, data in enumerate(BAD[start : start + 10]):
            file = folder / "ab"[number % 2] / f"{number}.jpg"
            file.write_bytes(data)
        with pytest.raises(ValueError, match="that cannot be decoded") as error:
            open_source(folder)
        for number, reason in enumerate(REASONS[start : start + 10]):
            assert f"/{number}.jpg ({reason})" in str(error.value)


@pytest.mark.parametrize("path", ["training", "training, crop", "evaluation"])
def test_same_bytes_same_refusal_in_pipelines(path, tmp_path):
    """The same number of images is dropped, all of them."""
    split = Arrays(BAD, np.arange(len(BAD)))
    options = {"image_size": (HEIGHT, WIDTH), "batch_size": 1}
    examples = {
        "training": lambda: split.dataset().map(
            lambda item: preprocessing.decode(item["image"])
        ),
        "training, crop": lambda: split.dataset().map(
            lambda item: preprocessing.inception_crop(
                item["image"], (HEIGHT, WIDTH), (0, 0)
            )
        ),
        "evaluation": lambda: pipelines.eval_pipeline(split, **options),
    }
    left = examples[path]().ignore_errors()
    assert list(left) == []


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_size_is_limited_before_anything_is_decoded(kind):
    data = encoded(photo(40, 50).convert("P" if kind == "GIF" else "RGB"), kind)
    assert decoding.reason(data, 2000) is None
    assert decoding.reason(data, 1999) == "more than 1999 pixels"
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1999 pixels"):
        decoding.decode(data, 1999)


@pytest.mark.parametrize("name", GOOD)
def test_pixels_are_counted_before_anything_is_decoded(name):
    height, width, _ = decoding.decode(GOOD[name]).shape
    assert decoding.inspect(GOOD[name]).pixels == height * width


@pytest.mark.parametrize("name", MODES)
def test_pixels_are_counted_at_every_size(name):
    mode, kind, options = MODES[name]
    for height, width in [(1, 1), (1, 300), (517, 2), (130, 260)]:
        data = encoded(photo(height, width).convert(mode), kind, **options)
        assert decoding.inspect(data).pixels == height * width


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_crops_are_of_the_oriented_image(kind, value):
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    if kind == "WEBP":
        options = {"lossless": True}
    data = encoded(photo(), kind, exif=exif(value), **options)
    whole = decoding.decode(data).numpy().astype(int)
    for top, left, height, width in ((0, 0, 5, 9), (3, 11, 17, 2), (6, 4, 8, 12)):
        crop = decoding.decode_crop(
            data, lambda _, box=(top, left, height, width): tf.constant(box)
        )
        expected = whole[top : top + height, left : left + width]
        assert crop.shape == expected.shape
        assert np.abs(crop.numpy() - expected).max() <= (2 if kind == "JPEG" else 0)


@pytest.mark.parametrize("colors", [2, 16, 256])
@pytest.mark.parametrize("transparent", [False, True])
def test_a_gif_is_its_first_frame(colors, transparent):
    """To the pixel TensorFlow's first frame of the whole file."""
    images = [photo(61, 87, seed).quantize(colors) for seed in range(3)]
    extra = {"transparency": 0, "disposal": 2} if transparent else {}
    data = encoded(
        images[0],
        "GIF",
        save_all=True,
        append_images=images[1:],
        comment=b"x" * 999,
        loop=0,
        **extra,
    )
    every_frame = tf.io.decode_gif(data)
    assert len(every_frame) == 3
    np.testing.assert_array_equal(decoding.decode(data), every_frame[0])


def test_metadata_of_any_bytes_never_hides_an_image():
    """Random EXIF, of any offsets and counts, leaves the pixels as they are stored."""
    rng = np.random.default_rng(0)
    stored = np.asarray(photo())
    for length in rng.integers(0, 60, 100):
        noise = b"Exif\0\0" + [b"II*\0", b"MM\0*"][length % 2] + rng.bytes(length)
        data = encoded(photo(), "PNG", exif=noise)
        pixels = decoding.decode(data).numpy()
        assert pixels.shape in (stored.shape, (WIDTH, HEIGHT, 3))
        np.testing.assert_array_equal(np.sort(pixels.ravel()), np.sort(stored.ravel()))


def test_a_png_of_many_chunks_is_read():
    """A walk over chunks ends, and the pixels are there whatever their number."""
    png = encoded(photo(), "PNG")
    body = b"teXt" + b"x\0y"
    chunk = struct.pack(">I", 3) + body + struct.pack(">I", zlib.crc32(body))
    data = png[:33] + 1000 * chunk + png[33:]
    np.testing.assert_array_equal(decoding.decode(data), np.asarray(photo()))


def test_a_phone_photo_trains_as_it_is_seen(tmp_path):
    """Two files of one view, one stored upright and one turned, are one image."""
    upright = np.asarray(photo())
    turned = Image.fromarray(np.rot90(upright).copy())
    for name, image, value in (("a", photo(), 1), ("b", turned, 6)):
        (tmp_path / name).mkdir()
        for number in range(2):
            file = tmp_path / name / f"{number}.png"
            file.write_bytes(encoded(image, "PNG", exif=exif(value)))
    source = open_source(tmp_path)
    batches = pipelines.eval_pipeline(
        source.train, image_size=(HEIGHT, WIDTH), batch_size=2
    )
    images, _ = next(iter(batches.as_numpy_iterator()))
    np.testing.assert_array_equal(images[0], images[1])


def test_webp_is_an_image_of_a_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number}.webp").write_bytes(GOOD["WebP"])
    assert len(open_source(tmp_path).train) == 2
    assert {
        os.path.splitext(file)[1] for file in open_source(tmp_path).train.images
    } == {".webp"}


def differences(path):
    """Each good image's largest difference from a viewer's pixels, on one path."""
    found = {}
    for turned in (False, True):
        names = [name for name in GOOD if is_turned(name) == turned]
        size = (WIDTH, HEIGHT) if turned else (HEIGHT, WIDTH)
        with tempfile.TemporaryDirectory() as folder:
            scaled = PATHS[path]([GOOD[name] for name in names], size, Path(folder))
        for name, image in zip(names, np.rint(127.5 * scaled + 127.5), strict=True):
            found[name] = f"{np.abs(image - VIEWED[name]).max():g}"
    return found


def refusals(path):
    """Whether a path refuses each bad image."""
    with tempfile.TemporaryDirectory() as folder:
        if path == "served":
            _, status = served((HEIGHT, WIDTH), Path(folder))(BAD)
            refused = [text != b"ok" for text in status.numpy()]
        else:
            refused = [refuses(path, data, Path(folder)) for data in BAD]
    return ["refused" if at else "ACCEPTED" for at in refused]


def refuses(path, data, folder):
    try:
        PATHS[path]([data, data], (HEIGHT, WIDTH), folder)  # Packing wants two classes.
    except (ValueError, StopIteration, tf.errors.OpError):
        return True
    return False


def print_table():
    """Formats and paths: the largest difference of any pixel, or "refused"."""
    good = {path: differences(path) for path in PATHS}
    bad = {path: refusals(path) for path in PATHS}
    print(f"| image | {' | '.join(PATHS)} |\n|---|{'---|' * len(PATHS)}")
    for name in GOOD:
        print(f"| {name} | {' | '.join(good[path][name] for path in PATHS)} |")
    for place, (name, reason) in enumerate(zip(REFUSED, REASONS, strict=True)):
        cells = " | ".join(bad[path][place] for path in PATHS)
        print(f"| {name}: {reason} | {cells} |")


if __name__ == "__main__":
    print_table()
