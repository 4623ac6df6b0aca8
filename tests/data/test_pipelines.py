"""Batches: the same bits from the same seed, and every image once."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data import pipelines, preprocessing, splits
from keras_vit.facts import Preprocessing
from tests import photos

pytestmark = pytest.mark.tensorflow_only

OPTIONS = {"image_size": (8, 12), "batch_size": 4}
COUNT = 11


def _arrays():
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 10, 9, 3), np.uint8)
    return splits.Arrays(images, np.arange(COUNT))


@pytest.fixture(params=["arrays", "cached files", "files"])
def split(request, tmp_path, monkeypatch):
    """The same images in memory, and as PNG files read once or in every epoch."""
    arrays = _arrays()
    if request.param == "arrays":
        return arrays
    if request.param == "files":
        monkeypatch.setattr(splits, "CACHE_BYTES", 0)
    files = [str(tmp_path / f"{i}.png") for i in range(COUNT)]
    for file, image in zip(files, arrays.images, strict=True):
        tf.io.write_file(file, tf.io.encode_png(image))
    return splits.Arrays(files, arrays.labels)


def _batches(dataset, number=None):
    batches = dataset.take(-1 if number is None else number)
    return [(x.numpy(), y.numpy()) for x, y in batches]


def _equal(left, right):
    return all(
        np.array_equal(a, c) and np.array_equal(b, d)
        for (a, b), (c, d) in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("augment", ["inception", "flip", "none"])
def test_one_seed_gives_the_same_bits(split, augment):
    def run(seed):
        pipeline = pipelines.train_pipeline(
            split, seed=seed, augment=augment, **OPTIONS
        )
        return _batches(pipeline, 7)  # Two epochs and a half.

    first = run(3)
    x, y = first[0]
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((4, 8, 12, 3), "f4", (4,), "i8")
    assert -1 <= x.min() < -0.5 < 0.5 < x.max() <= 1
    assert _equal(first, run(3))
    assert not _equal(first, run(4))


def test_the_storage_of_the_images_does_not_matter(split):
    """PNGs lose nothing: files give the batches that arrays give."""
    ours, theirs = (
        _batches(pipelines.train_pipeline(s, seed=0, **OPTIONS), 4)
        for s in (split, _arrays())
    )
    assert _equal(ours, theirs)


def test_the_global_seed_has_no_say():
    runs = []
    for seed in (1, 2):
        tf.random.set_seed(seed)
        pipeline = pipelines.train_pipeline(_arrays(), seed=0, **OPTIONS)
        runs.append(_batches(pipeline, 3))
    assert _equal(*runs)


def test_every_epoch_is_whole_and_its_own():
    pipeline = pipelines.train_pipeline(
        _arrays(), image_size=(8, 12), batch_size=COUNT, seed=0
    )
    (x0, y0), (x1, y1), (_, y2) = _batches(pipeline, 3)
    for labels in (y0, y1, y2):
        np.testing.assert_array_equal(np.sort(labels), np.arange(COUNT))
    assert len({y.tobytes() for y in (y0, y1, y2)}) == 3
    # An image is cropped anew in every epoch.
    assert not any(np.array_equal(x0[y0 == i], x1[y1 == i]) for i in range(COUNT))


def test_batches_reach_into_the_next_epoch():
    pipeline = pipelines.train_pipeline(_arrays(), seed=0, **OPTIONS)
    labels = np.concatenate([y for _, y in _batches(pipeline, COUNT)])  # Four epochs.
    for epoch in labels.reshape(4, COUNT):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(COUNT))


def test_flips_are_drawn_for_every_image_and_epoch():
    options = {"image_size": (8, 12), "batch_size": COUNT}
    images = next(iter(pipelines.eval_pipeline(_arrays(), **options)))[0].numpy()
    train = pipelines.train_pipeline(_arrays(), seed=0, augment="flip", **options)
    epochs = []
    for x, y in _batches(train, 3):
        plain = (x == images[y]).all((1, 2, 3))
        mirrored = images[y][:, :, ::-1]
        np.testing.assert_array_equal(x[~plain], mirrored[~plain])
        assert 0 < plain.sum() < COUNT
        epochs.append(tuple(plain[np.argsort(y)]))
    assert len(set(epochs)) == 3


def test_without_augmentation_training_images_are_evaluation_images(split):
    evaluated = {
        label: image
        for x, y in _batches(pipelines.eval_pipeline(split, **OPTIONS))
        for image, label in zip(x, y, strict=True)
    }
    train = pipelines.train_pipeline(split, seed=0, augment="none", **OPTIONS)
    for x, y in _batches(train, 3):
        np.testing.assert_array_equal(x, [evaluated[label] for label in y])


def test_evaluation_counts_every_image_once_and_in_order(split):
    dataset = pipelines.eval_pipeline(split, **OPTIONS)
    for _ in range(2):
        batches = _batches(dataset)
        assert [len(y) for _, y in batches] == [4, 4, 3]
        labels = np.concatenate([y for _, y in batches])
        np.testing.assert_array_equal(labels, np.arange(COUNT))


def test_evaluation_equals_its_functions(split):
    images = np.concatenate(
        [x for x, _ in _batches(pipelines.eval_pipeline(split, **OPTIONS))]
    )
    resized = tf.image.resize(_arrays().images, (8, 12), antialias=False)
    np.testing.assert_allclose(images, (resized - 127.5) / 127.5, atol=1e-6)


def test_mean_and_std_are_used(split):
    scale = {"preprocessing": Preprocessing(mean=(0.0,), std=(1.0,))}
    for dataset in (
        pipelines.eval_pipeline(split, **OPTIONS, **scale),
        pipelines.train_pipeline(split, seed=0, **OPTIONS, **scale),
    ):
        x, _ = next(iter(dataset))
        assert tf.reduce_min(x) >= 0


def test_small_files_are_read_once(tmp_path):
    file = tmp_path / "image.png"
    tf.io.write_file(str(file), tf.io.encode_png(_arrays().images[0]))
    split = splits.Arrays([str(file)], np.array([0]))
    dataset = pipelines.train_pipeline(
        split, image_size=(4, 4), batch_size=1, seed=0, augment="none"
    )
    file.unlink()
    assert len(_batches(dataset, 3)) == 3


def test_encoded_bytes_keep_the_zeros_at_their_end():
    written = io.BytesIO()
    Image.new("RGB", (8, 8)).save(written, "BMP")
    given = [written.getvalue(), b"short"]
    split = splits.Arrays(given, np.array([0, 1]))
    assert [item["image"].numpy() for item in split.dataset()] == given


def test_a_batch_may_be_larger_than_the_split():
    dataset = pipelines.train_pipeline(
        _arrays(), image_size=(4, 4), batch_size=30, seed=0
    )
    assert next(iter(dataset))[0].shape[0] == 30


def test_nothing_to_train_on_is_an_error():
    empty = splits.Arrays(np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0))
    with pytest.raises(ValueError, match="Expected images to train on"):
        pipelines.train_pipeline(empty, seed=0, **OPTIONS)


def test_unknown_augmentation_is_an_error():
    with pytest.raises(ValueError, match=r"'none'\. Received: augment='zoom'"):
        pipelines.train_pipeline(_arrays(), seed=0, augment="zoom", **OPTIONS)


@pytest.mark.parametrize(("augment", "kinds"), [("crop", 24), ("crop_only", 12)])
def test_bits_crop_is_anywhere_in_the_resized_image(augment, kinds):
    """BiT-HyperRule: resized, cropped at random, mirrored or not; VTAB: or never."""
    arrays = _arrays()
    batches = pipelines.train_pipeline(
        arrays, seed=0, augment=augment, before_crop=(10, 15), **OPTIONS
    )
    seen = set()
    for images, labels in _batches(batches, 50):
        for image, label in zip(images, labels, strict=True):
            whole = preprocessing.resize(arrays.images[label], (10, 15))
            whole = preprocessing.normalize(whole).numpy()
            seen.update(
                (top, left, mirrored)
                for top in range(3)
                for left in range(4)
                for mirrored in (False, True)
                if np.array_equal(
                    image[:, :: -1 if mirrored else 1],
                    whole[top : top + 8, left : left + 12],
                )
            )
    assert len(seen) == kinds
    if augment == "crop_only":
        assert not any(mirrored for _, _, mirrored in seen)


@pytest.mark.parametrize(
    ("augment", "before_crop"),
    [
        *(("crop", None), ("crop", (8, 11)), ("crop_only", None)),
        *(("flip", (10, 15)), ("none", (4, 4))),
    ],
)
def test_what_is_cropped_is_larger(augment, before_crop):
    with pytest.raises(ValueError, match="before_crop of at least image_size"):
        pipelines.train_pipeline(
            _arrays(), seed=0, augment=augment, before_crop=before_crop, **OPTIONS
        )


@pytest.mark.parametrize("name", photos.FILES)
def test_crop_of_a_photo_decodes_the_crop_alone(name):
    """Decoding the crop alone equals cropping the decoded photo."""
    encoded = tf.constant(photos.jpeg(name))
    for seed in range(4):
        ours, theirs = (
            preprocessing.inception_crop(image, (64, 64), [0, seed])
            for image in (encoded, preprocessing.decode(encoded))
        )
        difference = np.abs(ours - theirs)
        # Colours are interpolated across the crop's border, but there alone.
        assert difference[2:-2, 2:-2].max() <= 2
        assert difference.mean() < 0.1
