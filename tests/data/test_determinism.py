"""The batch at step n: the same from any start, on any workers, threads and source."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import augmentation, packing, pipelines, sources, splits
from keras_vit.facts import Preprocessing

pytestmark = pytest.mark.tensorflow_only

COUNT = 23
BATCH = 8
STEPS = 60  # Twenty epochs; benchmarks/data.py --hash has 1,000 steps.
PLAIN = Preprocessing(mean=(0.0,), std=(1.0,))
OPTIONS = {"image_size": (6, 5), "batch_size": BATCH, "seed": 3}


@pytest.fixture(scope="module")
def images():
    """Photos as PNG bytes, of several sizes."""
    rng = np.random.default_rng(0)
    return [
        tf.io.encode_png(rng.integers(0, 256, (9 + i % 3, 12, 3), np.uint8)).numpy()
        for i in range(COUNT)
    ]


def _arrays(images, **_):
    pixels = [tf.image.resize(tf.io.decode_png(image), (9, 12)) for image in images]
    return splits.Arrays(np.asarray(pixels, np.uint8), np.arange(COUNT))


def _folder(images, tmp_path_factory, **_):
    folder = tmp_path_factory.mktemp("folder")
    files = [folder / f"{i}.png" for i in range(COUNT)]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    return splits.Arrays(list(map(str, files)), np.arange(COUNT))


def _tfds(images, tmp_path_factory, **_):
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyPhotos(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(num_classes=COUNT),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            decoded = [tf.io.decode_png(image).numpy() for image in images]
            pairs = enumerate(decoded)
            return {"train": [(i, {"image": x, "label": i}) for i, x in pairs]}

        def _generate_examples(self):
            raise NotImplementedError

    TinyPhotos.url_infos = {}
    builder = TinyPhotos(data_dir=str(tmp_path_factory.mktemp("tfds")))
    builder.download_and_prepare()
    return splits.TFDS(builder, "train")


def _packed(images, tmp_path_factory, **_):
    folder = _folder(images, tmp_path_factory)
    source = sources.Source("photos", tuple(map(str, range(COUNT))), folder, None)
    output = tmp_path_factory.mktemp("packed") / "photos"
    split = sources.open_source(packing.pack(source, output, shards=3)).train
    split._is_small = lambda: False  # Read from the shards at every step.
    return split


@pytest.fixture(scope="module", params=[_arrays, _folder, _tfds, _packed])
def split(request, images, tmp_path_factory):
    return request.param(images=images, tmp_path_factory=tmp_path_factory)


def _hash(batches):
    digest = hashlib.sha256()
    for parts in batches:
        for part in parts:
            digest.update(np.ascontiguousarray(part))
    return digest.hexdigest()


def _read(dataset, number, threads=None):
    options = tf.data.Options()
    if threads is not None:
        options.threading.private_threadpool_size = threads
    return list(dataset.with_options(options).take(number).as_numpy_iterator())


def _side_by_side(workers):
    """The workers' batches as the global ones."""
    for parts in zip(*workers, strict=True):
        yield tuple(np.concatenate(part) for part in zip(*parts, strict=True))


@pytest.fixture(scope="module")
def whole(split):
    """The batches of one worker from the beginning."""
    return _read(pipelines.train_pipeline(split, **OPTIONS), STEPS)


@pytest.mark.parametrize("count", [2, 4])
def test_workers_side_by_side_are_one_worker(split, whole, count):
    workers = [
        _read(pipelines.train_pipeline(split, shard=(i, count), **OPTIONS), STEPS)
        for i in range(count)
    ]
    assert workers[0][0][0].shape == (BATCH // count, 6, 5, 3)
    assert _hash(_side_by_side(workers)) == _hash(whole)


@pytest.mark.parametrize("threads", [1, 7])
def test_threads_do_not_matter(split, whole, threads):
    dataset = pipelines.train_pipeline(split, **OPTIONS)
    assert _hash(_read(dataset, STEPS, threads)) == _hash(whole)


@pytest.mark.parametrize("start", [1, 3, 46])
def test_a_jump_equals_reading_through(split, whole, start):
    dataset = pipelines.train_pipeline(split, start_step=start, **OPTIONS)
    assert _hash(_read(dataset, STEPS - start)) == _hash(whole[start:])


def test_a_late_start_of_one_of_four_workers(split, whole):
    dataset = pipelines.train_pipeline(split, start_step=31, shard=(2, 4), **OPTIONS)
    expected = [tuple(part[4:6] for part in batch) for batch in whole[31:]]
    assert _hash(_read(dataset, STEPS - 31)) == _hash(expected)


def test_a_jump_far_ahead_reads_nothing_before_it(images, tmp_path_factory):
    """Step a million of a folder: a reader through would take hours."""
    split = _folder(images, tmp_path_factory)
    options = {**OPTIONS, "batch_size": 3 * COUNT}
    dataset = pipelines.train_pipeline(split, start_step=10**6, **options)
    (_, labels), *_ = _read(dataset, 1)
    for epoch in labels.reshape(3, COUNT):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(COUNT))
    again = pipelines.train_pipeline(split, start_step=10**6, **options)
    assert _hash(_read(again, 1)) == _hash(_read(dataset, 1))


# What is done to images and batches.


def _noisy(image, seed):
    assert image.dtype == tf.uint8
    noise = tf.random.stateless_uniform(tf.shape(image), seed, 0, 99, tf.int32)
    return image ^ tf.cast(noise, tf.uint8)


def _mixup(images, labels, seed):
    """As `augmentation.mixup`, with a share that is computed by hand below."""
    share = tf.random.stateless_uniform([], seed)
    one_hot = tf.one_hot(labels, COUNT)
    return tuple(
        share * x + (1 - share) * tf.roll(x, 1, axis=0) for x in (images, one_hot)
    )


@pytest.mark.parametrize("group", [None, 4, 2])
def test_mixed_batches_are_the_same_on_any_workers(images, group):
    split = _arrays(images)
    options = {
        **OPTIONS,
        "image_ops": [_noisy, _noisy],
        "batch_op": _mixup,
        "group_size": group,
    }
    whole = _read(pipelines.train_pipeline(split, **options), 10)
    assert whole[0][1].shape == (BATCH, COUNT)
    for count in (2, 4) if group == 2 else (2,):
        workers = [
            _read(pipelines.train_pipeline(split, shard=(i, count), **options), 10)
            for i in range(count)
        ]
        assert _hash(_side_by_side(workers)) == _hash(whole)
    late = pipelines.train_pipeline(split, start_step=7, shard=(1, 2), **options)
    expected = [tuple(part[4:] for part in batch) for batch in whole[7:]]
    assert _hash(_read(late, 3)) == _hash(expected)


def test_augmentations_of_ours_are_hooks(images):
    """RandAugment and mixup on two workers, as on one."""

    def mixed(images, labels, seed):
        return augmentation.mixup(images, tf.one_hot(labels, COUNT), seed, 0.5)

    options = {"image_ops": [augmentation.randaugment], "batch_op": mixed, **OPTIONS}
    split = _arrays(images)
    runs = [
        _read(pipelines.train_pipeline(split, shard=shard, **options), 3)
        for shard in ((0, 1), (0, 2), (1, 2))
    ]
    assert _hash(_side_by_side(runs[1:])) == _hash(runs[0])


def test_groups_are_mixed_each_with_its_own_key(images):
    """By hand, from the batches without mixing."""
    split = _arrays(images)
    plain = _read(pipelines.train_pipeline(split, **OPTIONS), 3)
    mixed = pipelines.train_pipeline(split, batch_op=_mixup, group_size=4, **OPTIONS)
    fold_in = tf.random.experimental.stateless_fold_in
    shares = set()
    for step, ((x, y), (ours, targets)) in enumerate(
        zip(plain, _read(mixed, 3), strict=True)
    ):
        for group in range(2):
            key = tf.constant([3, -1], tf.int64)
            for number in (step, group):
                key = fold_in(key, tf.constant(number, tf.int64))
            share = tf.random.stateless_uniform([], key).numpy()
            shares.add(float(share))
            at = slice(4 * group, 4 * group + 4)
            one_hot = np.eye(COUNT)[y[at]]  # An image may be there twice.
            for found, single in ((ours[at], x[at]), (targets[at], one_hot)):
                expected = share * single + (1 - share) * np.roll(single, 1, axis=0)
                np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(shares) == 6


def test_image_ops_come_in_order_on_uint8(images):
    split = _arrays(images)
    options = {**OPTIONS, "image_size": (9, 12), "augment": "none"}
    options |= {"preprocessing": PLAIN}  # Whole numbers, when times 255.

    def half(image, seed):
        return image // 2

    def more(image, seed):
        return image + 3

    plain = _read(pipelines.train_pipeline(split, **options), 2)
    ours = _read(pipelines.train_pipeline(split, image_ops=[half, more], **options), 2)
    for (x, _), (y, _) in zip(plain, ours, strict=True):
        np.testing.assert_allclose(y * 255, np.round(x * 255) // 2 + 3, atol=1e-4)


def test_image_ops_see_pixels_cut_to_uint8(images):
    """As big_vision's cast after its resize: 7.9 is 7."""
    split = _arrays(images)
    options = {**OPTIONS, "preprocessing": PLAIN}
    plain = _read(pipelines.train_pipeline(split, **options), 2)
    same = pipelines.train_pipeline(split, image_ops=[lambda x, _: x], **options)
    for (x, _), (y, _) in zip(plain, _read(same, 2), strict=True):
        difference = 255 * (x - y)
        assert -1e-4 < difference.min() < 0.1 < 0.9 < difference.max() < 1


def dark_images_inverted(image):
    if tf.reduce_mean(image) < 128:  # AutoGraph's: a tensor is no Python bool.
        image = 255 - image
    return image


def test_a_transform_may_ask_with_if_what_a_tensor_is(images):
    """AutoGraph still rewrites what users give; the library's own it leaves alone."""
    split = _arrays(images)
    found = pipelines.train_pipeline(split, transform=dark_images_inverted, **OPTIONS)
    plain = pipelines.train_pipeline(split, **OPTIONS)
    for (changed, _), (kept, _) in zip(found.take(3), plain.take(3), strict=True):
        sign = np.where(kept.numpy().mean((1, 2, 3)) < 128 / 127.5 - 1, -1, 1)
        np.testing.assert_allclose(
            changed, sign[:, None, None, None] * kept, rtol=0, atol=1e-6
        )
        assert (changed.numpy().mean((1, 2, 3)) > -0.01).all()


def test_transform_is_any_callable_of_one_image(images):
    split = _arrays(images)
    plain = _read(pipelines.train_pipeline(split, **OPTIONS), 2)
    dataset = pipelines.train_pipeline(split, transform=lambda x: 255 - x, **OPTIONS)
    for (x, _), (y, _) in zip(plain, _read(dataset, 2), strict=True):
        np.testing.assert_allclose(y, -x, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": (2, 2)}, r"index from 0 to count - 1.*Received: shard=\(2, 2\)"),
        ({"shard": (0, 3)}, r"multiple of count.*shard=\(0, 3\), batch_size=8"),
        ({"start_step": -1}, r"Received: start_step=-1"),
        ({"batch_op": _mixup, "group_size": 3}, r"group_size=3, batch_size=8"),
    ],
)
def test_numbers_that_do_not_fit(images, changes, message):
    with pytest.raises(ValueError, match=message):
        pipelines.train_pipeline(_arrays(images), **OPTIONS, **changes)


# Evaluation.


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (8, 1), (24, 4), (8, 4)])
def test_padded_evaluation_counts_every_image_once(split, batch, count):
    options = {"image_size": (6, 5), "batch_size": batch}
    plain = _read(pipelines.eval_pipeline(split, **options), -1)
    workers = [
        _read(pipelines.eval_pipeline(split, pad=True, shard=(i, count), **options), -1)
        for i in range(count)
    ]
    padded = list(_side_by_side(workers))
    assert all(len(x) == len(y) == len(mask) == batch for x, y, mask in padded)
    assert len(padded) == -(-COUNT // batch)
    x, y, mask = (np.concatenate(part) for part in zip(*padded, strict=True))
    assert mask.sum() == COUNT
    np.testing.assert_array_equal(mask, np.arange(len(mask)) < COUNT)
    assert _hash([(x[:COUNT], y[:COUNT])]) == _hash(
        [tuple(np.concatenate(part) for part in zip(*plain, strict=True))]
    )


def test_keras_counts_as_the_mask_says(images):
    """Accuracy over 23 images in batches of 8, as over single ones."""
    import keras

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(COUNT)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, weighted_metrics=["accuracy"])
    split = _arrays(images)
    scores = [
        model.evaluate(
            pipelines.eval_pipeline(
                split, image_size=(6, 5), batch_size=size, pad=True
            ),
            verbose=0,
        )
        for size in (1, 8)
    ]
    np.testing.assert_allclose(scores[0][1], scores[1][1])


def test_workers_without_padding_are_an_error(images):
    with pytest.raises(ValueError, match="Expected pad=True with several workers"):
        pipelines.eval_pipeline(
            _arrays(images), image_size=(6, 5), batch_size=8, shard=(0, 2)
        )


# Labels and fingerprints.


@pytest.mark.parametrize("split", [_tfds], indirect=True)
def test_labels_outside_the_classes_of_tfds_stop(split, monkeypatch):
    """Other sources look at every label when they are opened."""
    label = split.builder.info.features["label"]
    monkeypatch.setattr(type(label), "num_classes", 20)
    message = r"Expected labels from 0 to 19\. Received: a label of tiny_photos:train"
    dataset = pipelines.eval_pipeline(split, image_size=(6, 5), batch_size=8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        _read(dataset, -1)


def test_fingerprints_tell_splits_apart(split):
    rest, held_out = (
        split.split(0.5, 0)
        if isinstance(split, splits.TFDS)
        else (split.take(np.arange(12)), split.take(np.arange(12, COUNT)))
    )
    prints = [part.fingerprint() for part in (split, rest, held_out)]
    assert len(set(prints)) == 3
    assert prints == [part.fingerprint() for part in (split, rest, held_out)]


@pytest.mark.parametrize("cache", [splits.CACHE_BYTES, 0])
def test_a_folder_that_changes_has_another_fingerprint(
    images, tmp_path_factory, monkeypatch, cache
):
    monkeypatch.setattr(splits, "CACHE_BYTES", cache)
    split = _folder(images, tmp_path_factory)
    before = split.fingerprint()
    assert split.fingerprint() == before
    assert splits.Arrays(split.images[::-1], split.labels).fingerprint() != before
    assert splits.Arrays(split.images, split.labels[::-1]).fingerprint() != before
    with open(split.images[4], "ab") as file:
        file.write(b"x")
    assert split.fingerprint() != before


def test_a_small_folder_may_move(images, tmp_path_factory):
    one, other = (_folder(images, tmp_path_factory) for _ in range(2))
    assert one.images[0] != other.images[0]
    assert one.fingerprint() == other.fingerprint()
