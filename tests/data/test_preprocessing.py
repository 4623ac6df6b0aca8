"""Preprocessing against the official pipeline's arrays, eagerly and inside tf.data."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import normalization
from keras_vit.data import preprocessing
from tests.conftest import reference

pytestmark = pytest.mark.tensorflow_only

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def fixture(*keys):
    with np.load(reference("preprocess")) as file:
        return [file[key] for key in keys]


def eagerly(function, *args):
    return function(*map(tf.constant, args)).numpy()


def in_pipeline(function, *args):
    dataset = tf.data.Dataset.from_tensors(args).map(function)
    return next(dataset.as_numpy_iterator())


both_ways = pytest.mark.parametrize("run", [eagerly, in_pipeline])


def photo(height, width, seed=0):
    """A smooth uint8 image, so that JPEG keeps it nearly."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def encoded(image, kind, **options):
    file = io.BytesIO()
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    image.save(file, kind, **options)
    return file.getvalue()


def evaluated(size):
    return lambda image: preprocessing.normalize(
        preprocessing.resize(image, (size, size))
    )


# The official evaluation.


@both_ways
@pytest.mark.parametrize("case", ["a_32", "a_48", "b_32", "b_48", "c_32", "c_48"])
def test_evaluation_is_the_official_one(agree, run, case):
    name, size = case.split("_")
    image, expected = fixture(f"in/{name}", f"vit_eval/{case}")
    ours = run(evaluated(int(size)), image)
    assert ours.dtype == np.float32
    agree(f"preprocess: vit_eval/{case}", ours, expected, 1e-5)


# big_vision's and LiT's evaluation.


def scaled(image_size, resized):
    return lambda image: preprocessing.normalize(
        preprocessing.central_crop(resized(image), image_size)
    )


BIG_VISION = {
    "bv/resize32": lambda x: preprocessing.resize_uint8(x, (32, 32)),
    "bv/resize32_antialias": lambda x: preprocessing.resize_uint8(
        x, (32, 32), antialias=True
    ),
    "bv/resize_bicubic_aa": lambda x: preprocessing.resize_uint8(
        x, (20, 20), method="bicubic", antialias=True
    ),
    "bv/resize_small32": lambda x: preprocessing.resize_small(x, 32),
    "bv/resize_small24_central16": lambda x: preprocessing.central_crop(
        preprocessing.resize_small(x, 24), (16, 16)
    ),
    "bv/fewshot": scaled((28, 28), lambda x: preprocessing.resize_uint8(x, (32, 32))),
    "bv/eval": scaled((28, 28), lambda x: preprocessing.resize_small(x, 32)),
    "lit": scaled((32, 32), lambda x: preprocessing.resize_uint8(x, (32, 32))),
    "lit_crop": scaled(
        (32, 32), lambda x: preprocessing.resize_small(x, 32, method="bilinear")
    ),
}


@both_ways
@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("case", BIG_VISION)
def test_evaluation_is_big_visions(agree, run, case, name):
    key = f"{case}/{name}" if case.startswith("bv/") else f"{case}/{name}_32"
    image, expected = fixture(f"in/{name}", key)
    ours = run(BIG_VISION[case], image)
    assert ours.dtype == expected.dtype
    kind, atol = ("uint8", 0) if expected.dtype == np.uint8 else ("scaled", 1e-6)
    agree(f"preprocess {kind}: {case}/{name}", ours, expected, atol)


@both_ways
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (31, 30), (480, 17)])
def test_resize_small_keeps_the_aspect(run, shape):
    ours = run(lambda x: preprocessing.resize_small(x, 8), photo(*shape))
    expected = np.round(np.float32(shape) * (np.float32(8) / np.float32(min(shape))))
    assert ours.shape == (*expected, 3)
    assert min(ours.shape[:2]) == 8


def test_resize_small_rounds_half_to_even():
    # 5 * 2 / 4 = 2.5, 7 * 2 / 4 = 3.5.
    assert preprocessing.resize_small(photo(4, 5), 2).shape == (2, 2, 3)
    assert preprocessing.resize_small(photo(4, 7), 2).shape == (2, 4, 3)


@both_ways
@pytest.mark.parametrize(("shape", "begin"), [((5, 8), (1, 2)), ((2, 3), (0, 0))])
def test_central_crop_rounds_down(run, shape, begin):
    image = photo(*shape)
    ours = run(lambda x: preprocessing.central_crop(x, (2, 3)), image)
    top, left = begin
    np.testing.assert_array_equal(ours, image[top : top + 2, left : left + 3])


def test_central_crop_of_less_is_refused():
    with pytest.raises(ValueError, match=r"Expected .* \(4, 4\).*Received: \(9, 3\)"):
        preprocessing.central_crop(tf.constant(photo(9, 3)), (4, 4))


def test_central_crop_of_less_is_refused_where_it_is_found_late():
    images = tf.data.Dataset.from_generator(
        lambda: [photo(9, 3)], output_signature=tf.TensorSpec((None, None, 3), tf.uint8)
    )
    crops = images.map(lambda x: preprocessing.central_crop(x, (4, 4)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(crops.as_numpy_iterator())


def test_uint8_is_what_resize_uint8_takes():
    with pytest.raises(ValueError, match=r"Expected a uint8 image .*Received: float32"):
        preprocessing.resize_small(np.zeros((4, 4, 3), np.float32), 2)


@both_ways
@pytest.mark.parametrize("size", [(40, 31), (17, 90), (64, 64), (200, 150)])
def test_resize_is_of_floats_whatever_is_cast(run, size):
    """Whether an image shrinks or grows: the bits of the official cast before it."""
    seeded = np.random.default_rng(0)
    image = seeded.integers(0, 256, (*size, 3), np.uint8)
    cast = tf.cast(image, tf.float32)
    official = tf.image.resize(cast, (64, 64), method="bilinear", antialias=False)
    ours = run(lambda x: preprocessing.resize(x, (64, 64)), image)
    np.testing.assert_array_equal(ours, official)


@both_ways
def test_resize_takes_height_first(run):
    image = photo(20, 30)
    assert run(lambda x: preprocessing.resize(x, (8, 12)), image).shape == (8, 12, 3)


# normalize


@both_ways
def test_normalize_default_is_the_official_scaling(run):
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None, None], 3, axis=-1)
    expected = (every.astype(np.float64) - 127.5) / 127.5
    np.testing.assert_allclose(
        run(preprocessing.normalize, every), expected, rtol=0, atol=1e-6
    )


def test_normalize_default_meets_minus_one_and_one():
    ends = preprocessing.normalize(tf.constant([[[0] * 3, [255] * 3]], tf.uint8))
    assert ends.numpy().tolist() == [[[-1.0] * 3, [1.0] * 3]]


@both_ways
def test_normalize_with_imagenet_statistics(run):
    image = photo(7, 9)
    mean, std = map(np.array, IMAGENET)
    ours = run(lambda x: preprocessing.normalize(x, *IMAGENET), image)
    # float32 of values up to 2.7
    np.testing.assert_allclose(ours, (image / 255 - mean) / std, rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(3,), (9, 3), (7, 9, 3), (2, 7, 9, 3)])
def test_normalize_is_the_same_at_any_rank(shape):
    """Rows are put together for speed; that changes no bit."""
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
    offset, scale = ([255.0 * x for x in values] for values in IMAGENET)
    expected = eagerly(lambda x: (x - offset) / scale, image)
    ours = eagerly(lambda x: preprocessing.normalize(x, *IMAGENET), image)
    np.testing.assert_array_equal(ours, expected)
    shapeless = tf.function(
        lambda x: preprocessing.normalize(x, *IMAGENET),
        input_signature=[tf.TensorSpec([None] * (len(shape) - 1) + [3])],
    )
    np.testing.assert_allclose(shapeless(image), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_normalize_serves_any_number_of_channels(channels):
    image = np.full((2, 2, channels), 255, np.uint8)
    assert (preprocessing.normalize(image).numpy() == 1).all()


@pytest.mark.parametrize(
    ("values", "channels", "expected"),
    [
        ((0.5,), 1, (0.5,)),
        ((0.5,), 3, (0.5, 0.5, 0.5)),
        ((0.5, 0.5, 0.5), 1, (0.5,)),
        ((0.5, 0.5, 0.5), 4, (0.5, 0.5, 0.5, 0.5)),
        ((0.1, 0.2, 0.3), 3, (0.1, 0.2, 0.3)),
        ((0.1, 0.2, 0.3, 0.4), 4, (0.1, 0.2, 0.3, 0.4)),
    ],
)
def test_per_channel(values, channels, expected):
    assert normalization.per_channel(values, channels) == expected


@pytest.mark.parametrize("channels", [1, 4])
def test_per_channel_does_not_guess(channels):
    with pytest.raises(
        ValueError, match=rf"Expected one value .*0\.485.* for {channels} channels"
    ):
        normalization.per_channel(IMAGENET[0], channels)


def test_value_range():
    assert normalization.value_range() == (-1.0, 1.0)
    assert normalization.value_range((0.0,), (1.0,)) == (0.0, 1.0)
    low, high = normalization.value_range(*IMAGENET)
    assert low == pytest.approx(-0.485 / 0.229)
    assert high == pytest.approx((1 - 0.406) / 0.225)


def test_value_range_is_what_normalize_reaches():
    ends = np.array([[[0] * 3, [255] * 3]], np.uint8)
    values = preprocessing.normalize(ends, *IMAGENET).numpy()
    expected = normalization.value_range(*IMAGENET)
    assert (values.min(), values.max()) == pytest.approx(expected, abs=1e-6)


# decode


@both_ways
@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_decode_lossless(run, kind):
    image = photo(11, 17)
    np.testing.assert_array_equal(
        run(preprocessing.decode, encoded(image, kind)), image
    )


@both_ways
def test_decode_jpeg(run):
    image = photo(33, 47)
    data = encoded(image, "JPEG", subsampling=0)
    ours = run(preprocessing.decode, data)
    assert ours.dtype == np.uint8
    theirs = np.asarray(Image.open(io.BytesIO(data)), int)
    # Pillow takes libjpeg's accurate DCT, TensorFlow its fast one.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4)


@both_ways
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_decode_gray_gives_three_equal_channels(run, kind):
    gray = Image.fromarray(photo(9, 13)[..., 0])
    ours = run(preprocessing.decode, encoded(gray, kind))
    assert ours.shape == (9, 13, 3)
    assert (ours == ours[..., :1]).all()


@both_ways
def test_decode_drops_alpha(run):
    image = photo(9, 13)
    alpha = np.dstack([image, np.full((9, 13), 7, np.uint8)])
    np.testing.assert_array_equal(
        run(preprocessing.decode, encoded(alpha, "PNG")), image
    )


@both_ways
def test_decode_palette(run):
    palette = Image.fromarray(photo(9, 13)).quantize(8)
    np.testing.assert_array_equal(
        run(preprocessing.decode, encoded(palette, "PNG")),
        np.asarray(palette.convert("RGB")),
    )


@both_ways
def test_decode_takes_the_first_frame_of_a_gif(run):
    red = Image.new("RGB", (13, 9), (255, 0, 0))
    blue = Image.new("RGB", (13, 9), (0, 0, 255))
    animation = encoded(red, "GIF", save_all=True, append_images=[blue])
    ours = run(preprocessing.decode, animation)
    assert ours.shape == (9, 13, 3)
    assert (ours == [255, 0, 0]).all()


# The random crop and flip.


@both_ways
def test_same_seed_same_crop(run):
    image = photo(50, 60)

    def crop(seed):
        return run(lambda x: preprocessing.inception_crop(x, (16, 24), seed), image)

    first, again, other = crop([3, 4]), crop([3, 4]), crop([3, 5])
    assert first.shape == (16, 24, 3)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_crop_is_the_same_eagerly_and_in_a_pipeline():
    image = photo(50, 60)

    def crop(image):
        return preprocessing.inception_crop(image, (16, 24), [3, 4])

    np.testing.assert_array_equal(eagerly(crop, image), in_pipeline(crop, image))


@both_ways
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_crop_of_bytes_is_the_crop_of_pixels(run, kind):
    options = {"subsampling": 0} if kind == "JPEG" else {}
    data = encoded(photo(90, 120), kind, **options)
    pixels = preprocessing.decode(data).numpy()
    for seed in range(5):

        def crop(image, seed=seed):
            return preprocessing.inception_crop(image, (32, 32), [0, seed])

        np.testing.assert_allclose(
            run(crop, data), run(crop, pixels), rtol=0, atol=2 if kind == "JPEG" else 0
        )


@pytest.mark.parametrize("subsampling", [0, 2])
def test_jpeg_crop_is_within_two_gray_levels_of_the_pixels(subsampling):
    data = encoded(photo(90, 120), "JPEG", subsampling=subsampling)
    pixels = preprocessing.decode(data).numpy().astype(int)
    shape = tf.image.extract_jpeg_shape(data)
    # At half the colour resolution libjpeg interpolates colours from neighbours, and
    # a crop's outermost pixels have none.
    edge = 2 if subsampling else 0
    for seed in range(20):
        box = preprocessing.crop_box(shape, [1, seed])
        top, left, height, width = box.numpy()
        crop = tf.image.decode_and_crop_jpeg(data, box, channels=3).numpy()
        difference = np.abs(crop - pixels[top : top + height, left : left + width])
        inside = difference[edge : height - edge, edge : width - edge]
        assert inside.max() <= 2


@pytest.mark.parametrize("shape", [(300, 400, 3), (400, 300, 3), (224, 224, 3)])
def test_crop_box_keeps_the_laws_of_area_and_aspect(shape):
    seeds = tf.data.Dataset.range(300).map(
        lambda seed: preprocessing.crop_box(
            tf.constant(shape), tf.stack([tf.constant(9, tf.int64), seed])
        )
    )
    boxes = np.stack(list(seeds.as_numpy_iterator()))
    top, left, height, width = boxes.T
    assert (boxes >= 0).all()
    assert (top + height <= shape[0]).all()
    assert (left + width <= shape[1]).all()
    area = height * width / (shape[0] * shape[1])
    aspect = width / height
    # Sides are whole pixels: the smallest is 58, so 1/58 of either ratio.
    assert area.min() >= 0.05 * (1 - 1 / 58)
    assert area.max() <= 1
    assert aspect.min() >= 0.75 * (1 - 1 / 58)
    assert aspect.max() <= 1.33 * (1 + 1 / 58)
    # And it uses the whole of both laws, at every place.
    assert area.min() < 0.06
    assert area.max() > 0.7
    assert aspect.min() < 0.8
    assert aspect.max() > 1.25
    assert len(np.unique(boxes, axis=0)) > 290


def test_crop_of_one_pixel():
    image = np.full((1, 1, 3), 9, np.uint8)
    crop = preprocessing.inception_crop(tf.constant(image), (4, 4), [0, 0])
    assert (crop.numpy() == 9).all()


def test_random_flip_mirrors_half_of_the_time():
    image = photo(4, 6)
    flips = tf.data.Dataset.range(400).map(
        lambda seed: preprocessing.random_flip(
            image, tf.stack([tf.constant(5, tf.int64), seed])
        )
    )
    mirrored = 0
    for ours in flips.as_numpy_iterator():
        if (ours == image[:, ::-1]).all():
            mirrored += 1
        else:
            np.testing.assert_array_equal(ours, image)
    assert 160 <= mirrored <= 240  # Four standard deviations around 200.
