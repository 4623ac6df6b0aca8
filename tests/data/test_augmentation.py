"""Augmentations against big_vision's arrays, Pillow's, and the laws of their draws."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.data import augmentation
from tests.conftest import reference

pytestmark = pytest.mark.tensorflow_only

stats = pytest.importorskip("scipy.stats")  # Comes with scikit-learn.

POSITIVE, NEGATIVE = [0.7, 0.5, 0.5], [0.2, 0.5, 0.5]
SIZES = [(1, 1), (1, 5), (5, 1), (2, 2), (2, 7), (3, 3), (33, 17)]
# A right law gives a smaller p-value once in 10,000 choices of these seeds.
LEAST_P = 1e-4


def eagerly(function, *args):
    return function(*map(tf.constant, args)).numpy()


# AutoGraph takes half of the tracing's time; `test_shapes_stay_known` goes through it.
plainly = tf.autograph.experimental.do_not_convert


def in_pipeline(function, *args):
    dataset = tf.data.Dataset.from_tensors(args).map(plainly(function))
    return next(dataset.as_numpy_iterator())


def in_pipeline_of_unknown_shape(function, image):
    signature = tf.TensorSpec((None, None, 3), tf.uint8)
    dataset = tf.data.Dataset.from_generator(
        lambda: [image], output_signature=signature
    )
    return next(dataset.map(plainly(function)).as_numpy_iterator())


every_way = pytest.mark.parametrize(
    "run", [eagerly, in_pipeline, in_pipeline_of_unknown_shape]
)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def over_seeds(function, number, calls=2):
    """`function(seed)` for `number` seeds, in a map."""

    @plainly
    def seeded(i):
        return function(tf.stack([tf.constant(7, tf.int64), i]))

    seeds = tf.data.Dataset.range(number).map(seeded, num_parallel_calls=calls)
    results = list(seeds.as_numpy_iterator())
    if isinstance(results[0], tuple):
        return tuple(map(np.stack, zip(*results, strict=True)))
    return np.stack(results)


# big_vision's operations.

DETERMINISTIC = [n for n in augmentation.randaugment_operations(0) if n != "Cutout"]


@every_way
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_operations_are_the_reference_ones(agree, run, name):
    with np.load(reference("preprocess")) as file:
        image = file["in/a"]
        keys = [f"randaug/{name}/{level}" for level in (0, 5, 10, 15, 20)]
        expected = {key: file[key] for key in keys if key in file.files}
    operations = [
        augmentation.randaugment_operations(int(key.split("/")[-1]))[name]
        for key in expected
    ]
    ours = run(lambda x: tf.stack([f(x, POSITIVE) for f in operations]), image)
    assert ours.dtype == np.uint8
    for key, image, theirs in zip(expected, ours, expected.values(), strict=True):
        agree(f"preprocess uint8: {key}", image, theirs, 0)


def test_operations_are_the_sixteen():
    with np.load(reference("preprocess")) as file:
        names = {key.split("/")[1] for key in file.files if key.startswith("randaug/")}
    operations = list(augmentation.randaugment_operations(10))
    assert set(operations) == names | {"Cutout"}
    assert len(operations) == 16


def pillow(function):
    return lambda image: np.asarray(function(Image.fromarray(image)))


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (40, 23), (224, 160)])
@pytest.mark.parametrize("values", [1, 2, 60, 256])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (augmentation.equalize, ImageOps.equalize),
        (augmentation.invert, ImageOps.invert),
        (lambda x: augmentation.posterize(x, 3), lambda x: ImageOps.posterize(x, 3)),
        (lambda x: augmentation.solarize(x, 99), lambda x: ImageOps.solarize(x, 99)),
    ],
    ids=["equalize", "invert", "posterize", "solarize"],
)
def test_pillow_has_the_same_integers(ours, theirs, values, shape):
    rng = np.random.default_rng(values)
    image = (rng.integers(0, values, (*shape, 3)) + (256 - values) // 2).astype(
        np.uint8
    )
    np.testing.assert_array_equal(eagerly(ours, image), pillow(theirs)(image))


def test_autocontrast_by_channel():
    image = np.zeros((4, 6, 3), np.uint8) + np.array([7, 0, 100], np.uint8)
    image[0, 0] += np.array([0, 255, 100], np.uint8)
    image[3, 5, 2] += 50
    ours = eagerly(augmentation.autocontrast, image)
    np.testing.assert_array_equal(ours[..., :2], image[..., :2])
    assert np.unique(ours[..., 2]).tolist() == [0, 127, 255]


def test_gray_is_tensorflows():
    """To the bit where its matmul adds in order; elsewhere hardly a color differs."""
    image = np.stack(np.meshgrid(*[np.arange(0, 256, 3)] * 3, indexing="ij"), axis=-1)
    image = image.reshape(86, -1, 3).astype(np.uint8)
    theirs = tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image)).numpy()
    ours = eagerly(lambda x: augmentation.color(x, 0.0), image)
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1
    assert difference.mean() < 1e-5


def moved(image, rows, columns):
    """By hand: the pixel at (y + rows, x + columns), gray outside."""
    height, width = image.shape[:2]
    result = np.full_like(image, 128)
    for y in range(height):
        for x in range(width):
            if 0 <= y + rows < height and 0 <= x + columns < width:
                result[y, x] = image[y + rows, x + columns]
    return result


@every_way
@pytest.mark.parametrize(
    ("translate", "axis"),
    [(augmentation.translate_y, 0), (augmentation.translate_x, 1)],
)
def test_translations_by_hand(run, translate, axis):
    image = noise(9, 8, 3)
    distances = (-200, -9, -8, -3, 0, 1, 8, 9, 10, 200)
    ours = run(lambda x: tf.stack([translate(x, float(d)) for d in distances]), image)
    for distance, result in zip(distances, ours, strict=True):
        expected = moved(image, *((distance, 0) if axis == 0 else (0, distance)))
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("slope", [-2, -1, 1, 2])
def test_shears_by_hand(slope):
    image = noise(6, 7, 3)
    by_row = [moved(row[np.newaxis], 0, y * slope)[0] for y, row in enumerate(image)]
    ours = eagerly(lambda x: augmentation.shear_x(x, float(slope)), image)
    np.testing.assert_array_equal(ours, np.stack(by_row))
    turned = eagerly(
        lambda x: augmentation.shear_y(x, float(slope)), image.transpose(1, 0, 2)
    )
    np.testing.assert_array_equal(turned.transpose(1, 0, 2), np.stack(by_row))


@pytest.mark.parametrize("side", [4, 5])
def test_both_directions(side):
    image = noise(side, side, 3)
    operations = augmentation.randaugment_operations(30)  # Rotate: 90 degrees.

    def applied(name, draws):
        return eagerly(lambda x: operations[name](x, draws), image)

    np.testing.assert_array_equal(applied("Rotate", NEGATIVE), np.rot90(image, -1))
    np.testing.assert_array_equal(applied("Rotate", POSITIVE), np.rot90(image))
    operations = augmentation.randaugment_operations(0.2)  # Translate: 2 pixels.
    for draws, pixels in ((NEGATIVE, -2), (POSITIVE, 2)):
        np.testing.assert_array_equal(
            applied("TranslateX", draws), moved(image, 0, pixels)
        )
        np.testing.assert_array_equal(
            applied("TranslateY", draws), moved(image, pixels, 0)
        )


@every_way
@pytest.mark.parametrize("half", [0, 2, 50])
def test_cutout_by_hand(run, half):
    image = noise(11, 8, 3)
    middles = [(0.0, 0.0), (0.5, 0.5), (0.99, 0.0), (0.3, 0.99)]

    def cut(image):
        return tf.stack(
            [augmentation.cutout(image, half, tf.constant(m)) for m in middles]
        )

    for middle, ours in zip(middles, run(cut, image), strict=True):
        y, x = int(middle[0] * 11), int(middle[1] * 8)
        expected = image.copy()
        expected[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 128
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("shape", SIZES)
def test_every_operation_at_every_size(shape):
    image = noise(*shape, 3)
    for magnitude in (0, 3.7, 10, 30):
        operations = augmentation.randaugment_operations(magnitude)
        for operation in operations.values():
            for draws in (tf.constant(POSITIVE), tf.constant(NEGATIVE)):
                ours = operation(tf.constant(image), draws)
                assert ours.dtype == tf.uint8
                assert ours.shape == image.shape


# randaugment


def randaugmented(image, layers=2, magnitude=10):
    return lambda seed: augmentation.randaugment(
        image, seed, layers=layers, magnitude=magnitude
    )


@pytest.mark.parametrize("magnitude", [10, 15])
def test_randaugment_chains_the_operations_it_draws(magnitude):
    image = noise(12, 15, 3)
    operations = list(augmentation.randaugment_operations(magnitude).values())
    results = over_seeds(randaugmented(image, 2, magnitude), 40)
    for i, ours in enumerate(results):
        expected = tf.constant(image)
        for choice, *draws in tf.random.stateless_uniform([2, 4], [7, i]).numpy():
            expected = operations[int(choice * 16)](expected, tf.constant(draws))
        np.testing.assert_array_equal(ours, expected.numpy())


def test_operations_and_directions_are_equally_likely():
    image, number = noise(40, 40, 3), 3200
    operations = augmentation.randaugment_operations(2)
    outcomes = {}
    for name in DETERMINISTIC:
        for draws in (NEGATIVE, POSITIVE):
            ours = operations[name](tf.constant(image), tf.constant(draws))
            outcomes.setdefault(ours.numpy().tobytes(), []).append(name)
    # Of two directions each its own result, of the others one.
    assert sorted(map(len, outcomes.values())) == [1] * 10 + [2] * 10
    counts = dict.fromkeys([*outcomes, "Cutout"], 0)
    for ours in over_seeds(randaugmented(image, 1, 2), number):
        counts[ours.tobytes() if ours.tobytes() in outcomes else "Cutout"] += 1
    expected = [number / 32 * len(outcomes.get(key, "12")) for key in counts]
    assert stats.chisquare(list(counts.values()), expected).pvalue > LEAST_P


def test_cutout_is_equally_likely_everywhere():
    """The middles of the squares that lie inside, by what they grayed."""
    image, places = np.zeros((20, 20, 3), np.uint8), np.zeros((20, 20))
    cutout = augmentation.randaugment_operations(0.25)["Cutout"]  # Side 2.
    for ours in over_seeds(
        lambda seed: cutout(tf.constant(image), tf.random.stateless_uniform([3], seed)),
        4000,
    ):
        bottom, right = np.argwhere(ours[..., 0]).max(axis=0)
        places[bottom, right] += 1
    assert stats.chisquare(places.sum(axis=0)).pvalue > LEAST_P
    assert stats.chisquare(places.sum(axis=1)).pvalue > LEAST_P


@pytest.mark.parametrize(
    "function",
    [
        randaugmented(noise(20, 23, 3), 2, 15),
        lambda seed: augmentation.random_erasing(noise(20, 23, 3), seed),
        lambda seed: augmentation.mixup(IMAGES, ONE_HOT, seed, 0.2)[0],
        lambda seed: augmentation.cutmix(IMAGES, ONE_HOT, seed)[0],
    ],
    ids=["randaugment", "random_erasing", "mixup", "cutmix"],
)
def test_one_seed_gives_the_same_bits(function):
    alone = [function(tf.constant([7, i], tf.int64)).numpy() for i in range(8)]
    for calls in (None, 1, 4):
        np.testing.assert_array_equal(over_seeds(function, 8, calls), np.stack(alone))
    assert (
        len({result.tobytes() for result in alone}) > 2
    )  # Erasing spares every other.


def test_no_layers_no_change():
    image = noise(5, 4, 3)
    ours = eagerly(lambda x: augmentation.randaugment(x, [0, 0], layers=0), image)
    np.testing.assert_array_equal(ours, image)


def test_shapes_stay_known():
    images = tf.data.Dataset.from_tensors(noise(9, 8, 3))
    for function in (augmentation.randaugment, augmentation.random_erasing):
        assert images.map(lambda x, f=function: f(x, [0, 0])).element_spec.shape == (
            9,
            8,
            3,
        )


# mixup

IMAGES = np.random.default_rng(0).normal(size=(4, 6, 5, 3)).astype(np.float32)
ONE_HOT = np.eye(4, dtype=np.float32)


def mixed(p, number):
    """First images' weights, from mixup's labels."""
    labels = over_seeds(
        lambda seed: augmentation.mixup(IMAGES[:2, :1, :1], ONE_HOT[:2], seed, p)[1],
        number,
    )
    assert np.isfinite(labels).all()
    np.testing.assert_allclose(labels.sum(axis=-1), 1, rtol=0, atol=1e-6)
    return labels[:, 0, 0]


@pytest.mark.parametrize("run", [eagerly, in_pipeline])
@pytest.mark.parametrize("name", ["x", "y"])
def test_mix_is_the_reference_one(agree, run, name):
    with np.load(reference("optim_loss_mixup")) as file:
        a, batch, expected = (
            file[f"mixup/{key}"] for key in ("a", name, f"{name}_out")
        )
    ours = run(lambda x: augmentation.mix(x, a), batch)
    agree(f"optim_loss_mixup mixup: {name}", ours, expected, 1e-6)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 1.0, 8.0])
def test_mixup_weighs_by_beta(p):
    weights = mixed(p, 1500)
    assert weights.min() >= 0.5
    # As float32, which is 1 for a fifth of Beta(0.1, 0.1).
    theirs = np.random.default_rng(0).beta(p, p, 100_000).astype(np.float32)
    theirs = np.maximum(theirs, 1 - theirs)
    assert stats.ks_2samp(weights, theirs).pvalue > LEAST_P


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_mixup_weighs_as_big_vision(p):
    with np.load(reference("optim_loss_mixup")) as file:
        theirs = file[f"mixup/a_samples_p{p}"]
    assert stats.ks_2samp(mixed(p, 500), theirs).pvalue > LEAST_P


@pytest.mark.parametrize("p", [1e-6, 1e-3, 0.01, 1e6])
def test_mixup_at_the_ends_of_floats(p):
    weights = mixed(p, 100)
    if p < 1:
        assert np.median(weights) == 1
    else:
        np.testing.assert_allclose(weights, 0.5, rtol=0, atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mixup_mixes_images_and_labels_alike(dtype):
    images = tf.cast(IMAGES, dtype)
    ours, labels = augmentation.mixup(images, ONE_HOT, [0, 1], 0.5)
    assert (ours.dtype, labels.dtype) == (images.dtype, tf.float32)
    a = labels.numpy()[0, 0]
    assert 0.5 < a < 1
    expected = a * IMAGES + (1 - a) * np.roll(IMAGES, 1, axis=0)
    atol = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 4e-2}[dtype]  # 2 to 4 ulp.
    np.testing.assert_allclose(tf.cast(ours, "float32"), expected, rtol=0, atol=atol)


def test_mixup_by_zero_is_none():
    images, labels = augmentation.mixup(IMAGES, ONE_HOT, [0, 0], 0.0)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, ONE_HOT)


# cutmix


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("shape", [*SIZES[:4], (16, 23)])
def test_cutmix_labels_are_the_areas(shape, dtype):
    values = np.arange(4, dtype=dtype)[:, np.newaxis, np.newaxis, np.newaxis]
    images = np.broadcast_to(values, (4, *shape, 3))
    ours, labels = over_seeds(
        lambda seed: augmentation.cutmix(images, ONE_HOT, seed), 50
    )
    assert ours.dtype == dtype
    for batch, weights in zip(ours, labels, strict=True):
        box = batch[1, ..., 0] == 0
        inside = np.argwhere(box)
        if len(inside):
            (top, left), (bottom, right) = inside.min(axis=0), inside.max(axis=0)
            assert box[top : bottom + 1, left : right + 1].all()
        for i in range(4):
            assert (batch[i] == np.where(box, (i - 1) % 4, i)[..., np.newaxis]).all()
            assert weights[i, (i - 1) % 4] == pytest.approx(box.mean(), abs=1e-6)
            assert weights[i, i] == pytest.approx(1 - box.mean(), abs=1e-6)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_cutmix_areas_follow_their_law(alpha):
    height, width, number = 32, 48, 1500
    images = np.zeros((2, height, width, 1), np.uint8)
    labels = over_seeds(
        lambda seed: augmentation.cutmix(images, ONE_HOT[:2], seed, alpha)[1], number
    )
    rng = np.random.default_rng(1)
    share = np.sqrt(1 - rng.beta(alpha, alpha, 100 * number))
    sides = []
    for side in (height, width):
        half, middle = (
            (share * side).astype(int) // 2,
            rng.integers(0, side, share.shape),
        )
        sides.append(np.minimum(middle + half, side) - np.maximum(middle - half, 0))
    areas = sides[0] * sides[1] / (height * width)
    assert stats.ks_2samp(labels[:, 0, 1], areas).pvalue > LEAST_P


# random_erasing


def boxes(image, results):
    """[top, left, height, width] of what changed; the image must be of no noise."""
    for ours in results:
        changed = np.argwhere((ours != image).any(axis=-1))
        if len(changed):
            low, high = changed.min(axis=0), changed.max(axis=0)
            yield (*low, *(high - low + 1))


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_erasing_is_as_probable_as_asked(probability):
    image, number = noise(12, 12, 3), 800
    results = over_seeds(
        lambda seed: augmentation.random_erasing(image, seed, probability), number
    )
    erased = len(list(boxes(image, results)))
    assert stats.binomtest(erased, number, probability).pvalue > LEAST_P


def algorithm_1(rng, height, width):
    """The paper's loop in NumPy: the erased box."""
    while True:
        area, aspect = (
            rng.uniform(0.02, 0.4) * height * width,
            rng.uniform(0.3, 1 / 0.3),
        )
        h, w = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        y, x = rng.integers(0, height), rng.integers(0, width)
        if y + h <= height and x + w <= width:
            return y, x, h, w


@pytest.mark.parametrize("shape", [(32, 32), (48, 20)])
def test_erased_boxes_follow_their_law(shape):
    image = np.zeros((*shape, 3), np.uint8)
    ours = over_seeds(lambda seed: augmentation.erased_box(image, seed), 1500)
    assert (ours[:, 2] > 0).all()
    rng = np.random.default_rng(0)
    theirs = np.array([algorithm_1(rng, *shape) for _ in range(20000)])
    for measure in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 2] / box[:, 3],
    ):
        assert stats.ks_2samp(measure(ours), measure(theirs)).pvalue > LEAST_P


def test_erasing_fills_with_every_value():
    image = np.zeros((40, 40, 3), np.uint8)
    counts = np.zeros(256)
    for ours in over_seeds(
        lambda seed: augmentation.random_erasing(image, seed, 1.0), 100
    ):
        ((top, left, height, width),) = boxes(image, [ours])
        box = ours[top : top + height, left : left + width]
        assert (np.delete(ours.any(axis=-1), slice(top, top + height), 0) == 0).all()
        counts += np.bincount(box.ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > LEAST_P


@pytest.mark.parametrize("shape", [*SIZES, (1, 400)])
def test_erasing_at_every_size(shape):
    image = noise(*shape, 3)
    results = over_seeds(lambda seed: augmentation.random_erasing(image, seed, 1.0), 20)
    assert results.shape == (20, *image.shape)
    assert results.dtype == np.uint8


# What is refused.


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int32),
        np.zeros((4, 4, 1), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)
@pytest.mark.parametrize(
    "function", [augmentation.randaugment, augmentation.random_erasing]
)
def test_only_uint8_images(function, image):
    with pytest.raises(
        ValueError, match=r"Expected a uint8 image \[H, W, 3\].*Received"
    ):
        function(image, [0, 0])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("layers", -1),
        ("layers", 1.5),
        ("layers", True),
        ("magnitude", -0.1),
        ("magnitude", float("nan")),
        ("magnitude", float("inf")),
    ],
)
def test_randaugment_names_what_is_wrong(argument, value):
    with pytest.raises(
        ValueError, match=f"Expected {argument} .*Received: {argument}="
    ):
        augmentation.randaugment(noise(4, 4, 3), [0, 0], **{argument: value})


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_erasing_names_what_is_wrong(probability):
    with pytest.raises(
        ValueError, match=r"Expected probability .*Received: probability="
    ):
        augmentation.random_erasing(noise(4, 4, 3), [0, 0], probability)


@pytest.mark.parametrize("p", [-0.1, float("nan"), float("inf")])
def test_mixup_and_cutmix_name_what_is_wrong(p):
    with pytest.raises(ValueError, match=r"Expected p .*Received: p="):
        augmentation.mixup(IMAGES, ONE_HOT, [0, 0], p)
    with pytest.raises(ValueError, match=r"Expected alpha .*Received: alpha="):
        augmentation.cutmix(IMAGES, ONE_HOT, [0, 0], p)


def test_cutmix_needs_an_alpha():
    with pytest.raises(
        ValueError, match=r"Expected alpha .*above 0. Received: alpha=0"
    ):
        augmentation.cutmix(IMAGES, ONE_HOT, [0, 0], 0)


@pytest.mark.parametrize("function", [augmentation.mixup, augmentation.cutmix])
def test_batches_are_checked(function):
    with pytest.raises(ValueError, match=r"one-hot float labels \[B, K\].*tf.one_hot"):
        function(IMAGES, np.arange(4), [0, 0], 0.2)
    with pytest.raises(
        ValueError, match=r"images \[B, H, W, C\].*Received: \(6, 5, 3\)"
    ):
        function(IMAGES[0], ONE_HOT, [0, 0], 0.2)


def test_mixup_refuses_integers():
    with pytest.raises(ValueError, match=r"Expected float images. Received: uint8"):
        augmentation.mixup(IMAGES.astype(np.uint8), ONE_HOT, [0, 0], 0.2)
