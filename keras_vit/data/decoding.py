"""Image decoder for training, prediction, evaluation and served graphs.

It accepts JPEG, PNG, GIF (the first frame), BMP and WebP, and applies the EXIF
orientation of JPEG, PNG and WebP, all inside a TensorFlow graph. Every use rejects the
same images for the same reasons.

Glossary of shapes: H, W are an image's height and width as a viewer shows it. "Stored"
sides and boxes are those before the EXIF orientation is applied.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

__all__ = [
    "Header",
    "as_written",
    "decode",
    "decode_accepted",
    "decode_crop",
    "inspect",
    "reason",
]

Tensor: TypeAlias = Any
Function = TypeVar("Function", bound=Callable[..., Any])

MAX_PIXELS = 2**26  # 192 MiB decoded.

OK = "ok"
UNREADABLE = "not a whole JPEG, PNG, GIF, BMP or WebP image"
HEIF = "a HEIF image (HEIC, AVIF), which is not supported: convert it to JPEG"
ANIMATED_WEBP = "an animated WebP image, which is not supported: save one frame of it"
BMP_KIND = "a BMP image of a kind that is not supported: save it with 24 bits per pixel"
EMPTY = "an image without pixels: its width or height is 0"

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"avif", b"avis")
ORIENTATION = 0x0112  # Exif 2.32, 4.6.4: tag 274, a SHORT from 1 to 8.
# Limits for the loops over a file's segments. A GIF may have 16 MiB of pieces.
MOST_PIECES, MOST_EXTENSIONS, MOST_SEGMENTS = 2**16, 64, 256


def as_written(function: Function) -> Function:
    """Traces a function without AutoGraph, for functions that do not need it.

    AutoGraph converts Python's `if` and `for` over tensors. For functions without them
    it only takes time, which was most of the time of an evaluation's first batch.
    """
    written: Function = tf.autograph.experimental.do_not_convert(function)
    return written


@as_written
def decode(encoded: Tensor, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decodes an image as a viewer shows it: bytes -> uint8 [H, W, 3].

    vit_jax's input pipeline decodes the same pixels, but ignores the orientation. Gray
    values are repeated over three channels, alpha is dropped, and 16 bits per channel
    are reduced to 8. The function works eagerly and in graphs.

    Args:
        encoded: scalar string, the bytes of a file.
        max_pixels: largest H * W that is decoded.

    Returns:
        uint8 [H, W, 3].

    Raises:
        tf.errors.InvalidArgumentError: if the image is rejected. `reason` returns the
            reason as text.
    """
    return decode_accepted(_accepted(encoded, max_pixels))


@as_written
def decode_crop(
    encoded: Tensor, box_of: Callable[[Tensor], Tensor], max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Decodes a part of an image: bytes -> uint8 [h, w, 3].

    For a JPEG, only the crop is decoded.

    Args:
        encoded: scalar string, the bytes of a file.
        box_of: function from the shape (H, W, 3) of the whole image as a viewer shows
            it, int32 [3], to the crop's (top, left, h, w), int32 [4].
        max_pixels: largest H * W that is decoded.

    Returns:
        uint8 [h, w, 3].

    Raises:
        tf.errors.InvalidArgumentError: if the image is rejected.
    """
    image = _accepted(encoded, max_pixels)

    def of_jpeg() -> Tensor:
        stored = tf.image.extract_jpeg_shape(image.encoded)
        shape = tf.where(image.orientation >= 5, tf.gather(stored, [1, 0, 2]), stored)
        box = _stored_box(box_of(shape), shape, image.orientation)
        crop = tf.image.decode_and_crop_jpeg(image.encoded, box, channels=3)
        return _oriented(crop, image.orientation)

    def of_other() -> Tensor:
        whole = decode_accepted(image)
        top, left, height, width = tf.unstack(box_of(tf.shape(whole)))
        return whole[top : top + height, left : left + width]

    crop = tf.cond(tf.io.is_jpeg(image.encoded), of_jpeg, of_other)
    return tf.ensure_shape(crop, (None, None, 3))


def reason(encoded: bytes, max_pixels: int = MAX_PIXELS) -> str | None:
    """Returns the reason why an image is rejected; None if it can be decoded.

    Args:
        encoded: the bytes of a file.
        max_pixels: largest H * W that is decoded.
    """
    try:
        header = inspect(tf.constant(encoded), max_pixels)
        status = str(header.status.numpy().decode())
        if status == OK:
            decode_accepted(header)
    except tf.errors.OpError:
        return UNREADABLE
    return None if status == OK else status


class Header(NamedTuple):
    """Properties of an encoded image, read from its header.

    Attributes:
        encoded: string, the bytes to decode; for a GIF, only the first frame.
        pixels: int64, stored height times width.
        orientation: int32, EXIF's, 1 to 8.
        status: string, `OK` or the reason to reject the image.
    """

    encoded: Tensor
    pixels: Tensor
    orientation: Tensor
    status: Tensor


@as_written
def inspect(encoded: Tensor, max_pixels: int = MAX_PIXELS) -> Header:
    """Reads the header of an image: bytes -> `Header`.

    An image with a valid header can still be damaged; then `decode_accepted` raises.
    For the usual JPEG and PNG, without metadata between the first segment and the
    pixels, there is a fast path.

    Args:
        encoded: scalar string, the bytes of a file.
        max_pixels: largest H * W that is accepted.

    Raises:
        tf.errors.InvalidArgumentError: for the damaged header of a JPEG or a GIF.
    """
    encoded = tf.convert_to_tensor(encoded)
    head = tf.strings.join([_part(encoded, 0, 41), tf.constant(bytes(41))])
    is_jpeg = tf.equal(tf.strings.substr(head, 0, 4), b"\xff\xd8\xff\xe0") & tf.equal(
        tf.strings.substr(head, 20, 2), b"\xff\xdb"
    )
    is_png = tf.equal(tf.strings.substr(head, 0, len(PNG)), PNG) & tf.equal(
        tf.strings.substr(head, 37, 4), b"IDAT"
    )

    def of_jpeg() -> Tensor:
        sides = tf.image.extract_jpeg_shape(encoded, tf.int64)
        return sides[0] * sides[1]

    def of_other() -> Tensor:
        raw = tf.strings.substr(head, 16, 8)
        sides = tf.io.decode_raw(raw, tf.int32, little_endian=False)
        pixels = tf.reduce_prod(tf.cast(sides, tf.int64))
        return tf.where(is_png, pixels, 0)

    pixels = tf.cond(is_jpeg, of_jpeg, of_other)
    limit = tf.constant(max_pixels, tf.int64)
    header: Header = tf.cond(
        (pixels > 0) & (pixels <= limit),
        lambda: _header(encoded, pixels, 1, OK),
        lambda: Header(*_header_of_any_kind(encoded, limit)),
    )
    return header._replace(encoded=tf.ensure_shape(header.encoded, ()))


@as_written
def decode_accepted(header: Header) -> Tensor:
    """Decodes an image with a header whose status is `OK`: -> uint8 [H, W, 3].

    Args:
        header: the result of `inspect`.

    Raises:
        tf.errors.InvalidArgumentError: if the image is damaged.
    """
    magic = _part(header.encoded, 0, 2)

    def stored() -> Tensor:
        return tf.io.decode_image(header.encoded, channels=3, expand_animations=False)

    decoded = tf.cond(
        tf.reduce_any(tf.equal(magic, [b"BM", b"RI"])),
        lambda: _bmp_or_webp(header.encoded),
        stored,
    )
    decoded = _oriented(tf.ensure_shape(decoded, (None, None, 3)), header.orientation)
    return tf.ensure_shape(decoded, (None, None, 3))


def _header(encoded: Tensor, pixels: Tensor, orientation: Any, status: Any) -> Header:
    return Header(
        encoded,
        tf.cast(pixels, tf.int64),
        tf.cast(orientation, tf.int32),
        tf.convert_to_tensor(status, tf.string),
    )


def _accepted(encoded: Tensor, max_pixels: int) -> Header:
    """Returns the header of an image; raises if it is rejected."""
    header = inspect(encoded, max_pixels)
    message = ["Expected an image that can be decoded. Received:", header.status]
    accepted = tf.debugging.Assert(tf.equal(header.status, OK), message)
    with tf.control_dependencies([] if accepted is None else [accepted]):
        return header._replace(encoded=tf.identity(header.encoded))


def _called(spec: Sequence[tf.TensorSpec]) -> Callable[..., Any]:
    """Compiles a function into a single node of the graphs that call it.

    Otherwise, TensorFlow spends time on every node of a branch that is not taken.
    """
    return tf.function(  # type: ignore[no-any-return]
        input_signature=spec,
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


@_called([tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64)])
def _header_of_any_kind(encoded: Tensor, max_pixels: Tensor) -> Header:
    length = tf.strings.length(encoded)

    def begins(magic: bytes, at: int = 0) -> Tensor:
        return tf.equal(_part(encoded, at, len(magic)), magic)

    def of_stranger() -> Header:
        heif = tf.reduce_any([begins(b"ftyp" + brand, 4) for brand in HEIF_BRANDS])
        return _header(encoded, 1, 1, tf.where(heif, HEIF, UNREADABLE))

    kinds = (
        (begins(b"\xff\xd8\xff"), _jpeg),
        (begins(PNG) & (length >= 33), _png),
        (begins(b"GIF8"), _gif),
        (begins(b"BM") & (length >= 54), _bmp),
        (begins(b"RIFF") & begins(b"WEBP", 8) & (length >= 30), _webp),
    )
    numbers = [tf.where(is_it, n, 0) for n, (is_it, _) in enumerate(kinds, start=1)]
    readers = [functools.partial(reader, encoded) for _, reader in kinds]
    header: Header = tf.switch_case(tf.add_n(numbers), [of_stranger, *readers])
    limit = tf.strings.as_string(max_pixels)
    large = tf.strings.join(["more than ", limit, " pixels"])
    empty = tf.equal(header.status, OK) & tf.equal(header.pixels, 0)
    status = tf.where(empty, EMPTY, header.status)
    return header._replace(status=tf.where(header.pixels > max_pixels, large, status))


def _jpeg(encoded: Tensor) -> Header:
    """Reads size and orientation; EXIF is in an APP1 segment before the tables."""

    def is_metadata(at: Tensor, _: Tensor) -> Tensor:
        marker = _number(encoded, at, 2, little=False)
        is_application = (marker >= 0xFFE0) & (marker <= 0xFFEF)
        return is_application | (marker >= 0xFFFE)  # A comment or a fill byte.

    def following(at: Tensor, exif: Tensor) -> tuple[Tensor, Tensor]:
        is_fill = tf.equal(_part(encoded, at, 2), b"\xff\xff")  # T.81, B.1.1.2.
        size = _number(encoded, at + 2, 2, little=False)
        segment = _part(encoded, at + 4, tf.where(is_fill, 0, size - 2))
        name = _part(segment, 0, 6)
        is_exif = tf.equal(name, b"Exif\0\0") & tf.equal(exif, b"")
        at += tf.where(is_fill, 1, 2 + size)
        return at, tf.where(is_exif, segment, exif)

    shape = tf.cast(tf.image.extract_jpeg_shape(encoded), tf.int64)
    with tf.control_dependencies([shape]):  # Raises for a damaged header.
        start = tf.constant(2)
    _, exif = tf.while_loop(
        is_metadata,
        following,
        (start, tf.constant(b"")),
        maximum_iterations=MOST_SEGMENTS,
    )
    return _header(encoded, shape[0] * shape[1], _orientation(exif), OK)


def _png(encoded: Tensor) -> Header:
    """Reads size and orientation; the chunk eXIf precedes the pixels (PNG 3, 5.6)."""
    exif = _chunk(encoded, b"eXIf", (b"IDAT", b"IEND"), start=8, little=False)
    pixels = _sides(encoded, 16, little=False)
    return _header(encoded, pixels, _orientation(exif), OK)


def _webp(encoded: Tensor) -> Header:
    """Reads size and orientation by the kind of the first chunk (RFC 9649)."""
    kind = _part(encoded, 12, 4)
    extended = tf.equal(kind, b"VP8X")
    bits = _number(encoded, 21, 4, dtype=tf.int64)
    sides = tf.where(
        extended,
        [_number(encoded, at, 3, dtype=tf.int64) + 1 for at in (24, 27)],
        [bits % 2**14 + 1, bits // 2**14 % 2**14 + 1],  # VP8L
    )
    lossy = [_number(encoded, at, 2, dtype=tf.int64) % 2**14 for at in (26, 28)]
    sides = tf.where(tf.equal(kind, b"VP8 "), lossy, sides)
    animated = extended & (_number(encoded, 20, 1) % 4 >= 2)
    known = tf.reduce_any(tf.equal(kind, [b"VP8X", b"VP8 ", b"VP8L"]))
    status = tf.where(animated, ANIMATED_WEBP, tf.where(known, OK, UNREADABLE))
    exif = _chunk(encoded, b"EXIF", (), start=12, little=True)
    return _header(encoded, sides[0] * sides[1], _orientation(exif), status)


def _bmp(encoded: Tensor) -> Header:
    """Reads the size; accepts 24 or 32 bits per pixel, or indexes of a palette."""
    bits, packing = _number(encoded, 28, 2), _number(encoded, 30, 4, dtype=tf.int64)
    masks = _part(encoded, 54, 12)
    bgr = tf.equal(masks, b"\0\0\xff\0\0\xff\0\0\xff\0\0\0")
    plain = tf.equal(packing, 0) & tf.reduce_any(tf.equal(bits, [1, 2, 4, 8, 24, 32]))
    masked = tf.equal(packing, 3) & tf.equal(bits, 32) & bgr
    known = (plain | masked) & (_number(encoded, 14, 4, dtype=tf.int64) >= 40)
    known &= _number(encoded, 18, 4, dtype=tf.int64) < 2**31  # A width is positive.
    pixels = _sides(encoded, 18, little=True)
    return _header(encoded, pixels, 1, tf.where(known, OK, BMP_KIND))


@_called([tf.TensorSpec((), tf.string)])
def _bmp_or_webp(encoded: Tensor) -> Tensor:
    """Decodes the formats that TensorFlow does not convert to RGB: uint8 [H, W, 3].

    It refuses `channels=3` for a WebP with transparency, and 4 for one without.
    """

    def stored(channels: int) -> Tensor:
        return tf.io.decode_image(encoded, channels, expand_animations=False)

    def bmp() -> Tensor:
        bits = _number(encoded, 28, 2)
        return tf.cond(bits <= 8, lambda: _palette_bmp(encoded), lambda: stored(3))

    is_bmp = tf.equal(_part(encoded, 0, 2), b"BM")
    decoded = tf.cond(is_bmp, bmp, lambda: stored(0)[:, :, :3])
    return tf.ensure_shape(decoded, (None, None, 3))


@_called([tf.TensorSpec((), tf.string)])
def _palette_bmp(encoded: Tensor) -> Tensor:
    """Decodes a BMP with 1, 2, 4 or 8 bits per pixel: uint8 [H, W, 3].

    TensorFlow reads the indexes of a palette as gray values, and only with 8 bits.
    """
    raw = tf.io.decode_raw(encoded, tf.uint8)
    start, header, width = (_number(encoded, at, 4) for at in (10, 14, 18))
    height, bits = _signed(encoded, 22), _number(encoded, 28, 2)
    used = _number(encoded, 46, 4)
    colors = tf.where(tf.equal(used, 0), tf.bitwise.left_shift(1, bits), used)
    palette = tf.reshape(raw[14 + header : 14 + header + 4 * colors], (colors, 4))
    stride = (width * bits + 31) // 32 * 4  # Rows are padded to four bytes.
    rows = tf.cast(tf.abs(height), tf.int32)
    lines = tf.reshape(raw[start : start + rows * stride], (rows, stride, 1))
    shifts = tf.cast(tf.range(8 - bits, -1, -bits), tf.uint8)
    mask = tf.cast(tf.bitwise.left_shift(1, bits) - 1, tf.uint8)
    indexes = tf.bitwise.bitwise_and(tf.bitwise.right_shift(lines, shifts), mask)
    indexes = tf.reshape(indexes, (rows, stride * 8 // bits))[:, :width]
    indexes = indexes[:: tf.where(height > 0, -1, 1)]  # The bottom row comes first.
    return tf.gather(palette[:, 2::-1], tf.cast(indexes, tf.int32))


def _gif(encoded: Tensor) -> Header:
    """Cuts a GIF to its first frame; counts the larger of its and the screen's pixels.

    TensorFlow decodes all frames before it drops the others, and 1.5 MB can contain 400
    of 2,000 x 2,000 pixels. In GIF89a, a header of 13 bytes, a table of colors and
    extensions (0x21) precede a frame of 10 bytes, colors, and data in pieces that begin
    with their length. The last length is 0.
    """
    raw = tf.io.decode_raw(encoded, tf.uint8)

    def byte(place: Tensor) -> Tensor:
        return tf.cast(tf.gather(raw, place), tf.int32)

    def colors(flags: Tensor) -> Tensor:
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def after_pieces(place: Tensor) -> Tensor:
        (last,) = tf.while_loop(
            lambda at: byte(at) > 0,
            lambda at: (at + byte(at) + 1,),
            (place,),
            maximum_iterations=MOST_PIECES,
        )
        return last + 1

    def pixels(place: Tensor) -> Tensor:
        width, height = (byte(at) + 256 * byte(at + 1) for at in (place, place + 2))
        return tf.cast(width, tf.int64) * tf.cast(height, tf.int64)

    (frame,) = tf.while_loop(
        lambda at: tf.equal(byte(at), 0x21),
        lambda at: (after_pieces(at + 2),),
        (13 + colors(byte(10)),),
        maximum_iterations=MOST_EXTENSIONS,
    )
    end = after_pieces(frame + 11 + colors(byte(frame + 9)))
    whole = tf.equal(byte(frame), 0x2C) & tf.equal(byte(end - 1), 0)
    first = tf.strings.join([_part(encoded, 0, end), b";"])
    of_frame = pixels(frame + 5)
    status = tf.where(tf.equal(of_frame, 0), EMPTY, OK)
    status = tf.where(whole, status, UNREADABLE)
    return _header(first, tf.maximum(pixels(6), of_frame), 1, status)


def _chunk(
    encoded: Tensor, name: bytes, last: tuple[bytes, ...], start: int, little: bool
) -> Tensor:
    """Returns the data of the first chunk with a name before the `last` ones, or b"".

    PNG has (length, name, data, CRC), big-endian; RIFF has (name, length, data, padding
    to an even length), little-endian.
    """
    name_at, size_at = (0, 4) if little else (4, 0)

    def another(at: Tensor) -> Tensor:
        here = _part(encoded, at + name_at, 4)
        return tf.reduce_all(tf.not_equal(here, [name, *last, b""]))

    def size(at: Tensor) -> Tensor:
        whole = tf.cast(tf.strings.length(encoded), tf.int64)
        stated = _number(encoded, at + size_at, 4, little, tf.int64)
        return tf.cast(tf.minimum(stated, whole), tf.int32)

    def following(at: Tensor) -> tuple[Tensor]:
        stated = size(at)
        return (at + 8 + stated + (stated % 2 if little else 4),)

    (at,) = tf.while_loop(
        another, following, (tf.constant(start),), maximum_iterations=MOST_SEGMENTS
    )
    found = tf.equal(_part(encoded, at + name_at, 4), name)
    return _part(encoded, at + 8, tf.where(found, size(at), 0))


@_called([tf.TensorSpec((), tf.string)])
def _orientation(exif: Tensor) -> Tensor:
    r"""Returns the orientation in EXIF bytes, int32 from 1 to 8; 1 if there is none.

    EXIF is a TIFF header, "II*\0" or "MM\0*" and the offset of a table with rows of
    tag, type, count and value in 2, 2, 4 and 4 bytes.
    """
    prefixed = tf.equal(_part(exif, 0, 6), b"Exif\0\0")
    raw = tf.io.decode_raw(exif, tf.uint8)[tf.where(prefixed, 6, 0) :]
    size = tf.size(raw, tf.int64)
    raw = tf.pad(tf.cast(raw, tf.int64), [[0, 12]])
    little = tf.equal(raw[0], ord("I"))

    def number(digits: Tensor) -> Tensor:
        digits = tf.where(little, digits, digits[..., ::-1])
        powers = [256**power for power in range(digits.shape[-1])]
        return tf.reduce_sum(digits * tf.constant(powers, tf.int64), axis=-1)

    at = tf.minimum(number(tf.ensure_shape(raw[4:8], (4,))), size)
    rows = number(tf.ensure_shape(raw[at : at + 2], (2,)))
    rows = tf.clip_by_value((size - at - 2) // 12, 0, rows)
    table = tf.reshape(raw[at + 2 : at + 2 + 12 * rows], (-1, 12))
    is_short = tf.equal(number(table[:, 2:4]), 3)
    is_orientation = tf.equal(number(table[:, :2]), ORIENTATION) & is_short
    values = tf.boolean_mask(number(table[:, 8:10]), is_orientation)
    value = tf.concat([values, [1]], axis=0)[0]
    return tf.cast(tf.where((value >= 1) & (value <= 8), value, 1), tf.int32)


def _oriented(image: Tensor, orientation: Tensor) -> Tensor:
    """Applies an orientation to a stored image (Exif 2.32, 4.6.4): -> [H, W, 3]."""
    return tf.cond(
        tf.equal(orientation, 1), lambda: image, lambda: _turned(image, orientation)
    )


@_called([tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int32)])
def _turned(image: Tensor, orientation: Tensor) -> Tensor:
    upright = tf.cond(
        orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image
    )
    from_bottom, from_right = _mirrored(orientation)
    axes = tf.boolean_mask([0, 1], tf.stack([from_bottom, from_right]))
    return tf.reverse(upright, axes)


def _mirrored(orientation: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whether to reverse rows and columns, after swapping axes (5 to 8)."""
    from_bottom = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    from_right = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    return from_bottom, from_right


def _stored_box(box: Tensor, shape: Tensor, orientation: Tensor) -> Tensor:
    """Maps a box of the oriented image to the stored one: int32 [4] -> int32 [4]."""
    top, left, height, width = tf.unstack(box)
    from_bottom, from_right = _mirrored(orientation)
    top = tf.where(from_bottom, shape[0] - top - height, top)
    left = tf.where(from_right, shape[1] - left - width, left)
    stored = tf.stack([top, left, height, width])
    return tf.where(orientation >= 5, tf.gather(stored, [1, 0, 3, 2]), stored)


def _sides(encoded: Tensor, at: int, little: bool) -> Tensor:
    """Returns width * height, of four bytes each; a BMP's height may be negative."""
    width, height = (_signed(encoded, place, little) for place in (at, at + 4))
    return tf.abs(width) * tf.abs(height)


def _signed(encoded: Tensor, at: int, little: bool = True) -> Tensor:
    number = _number(encoded, at, 4, little, tf.int64)
    return tf.where(number < 2**31, number, number - 2**32)


def _part(encoded: Tensor, at: Any, size: Any) -> Tensor:
    """Returns at most `size` bytes of a string from a position.

    `tf.strings.substr` raises beyond the end, with the whole string in the message.
    """
    at = tf.clip_by_value(at, 0, tf.strings.length(encoded))
    return tf.strings.substr(encoded, at, tf.maximum(size, 0))


def _number(
    encoded: Tensor, at: Any, size: int, little: bool = True, dtype: Any = tf.int32
) -> Tensor:
    """Reads an unsigned integer of `size` bytes at a position; 0 beyond the end.

    It never raises: an error in one called function cancels the others, and the
    cancellation may be reported first.
    """
    return tf.cast(_unsigned(encoded, at, size, little), dtype)


@_called(
    [
        tf.TensorSpec((), tf.string),
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((), tf.bool),
    ]
)
def _unsigned(encoded: Tensor, at: Tensor, size: Tensor, little: Tensor) -> Tensor:
    filled = tf.strings.join([_part(encoded, at, size), tf.constant(bytes(8))])
    raw = tf.io.decode_raw(tf.strings.substr(filled, 0, size), tf.uint8)
    digits = tf.cast(raw, tf.int64)
    shifts = 8 * tf.cast(tf.range(size), tf.int64)
    shifts = tf.where(little, shifts, tf.reverse(shifts, (0,)))
    return tf.reduce_sum(tf.bitwise.left_shift(digits, shifts))
