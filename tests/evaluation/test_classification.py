"""Models on every image of a source, once, on any backend; pixels are the logits."""

import dataclasses
import itertools
import re

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras_vit
from keras_vit.data import Arrays, Source
from keras_vit.evaluation.classification import Task, classify, task_of

PLAIN = {
    "preprocessing": keras_vit.Preprocessing(mean=(0.0,), std=(1.0,)),
    "verbose": False,
}
SIZE = (1, 1, 3)
CLASSES = ("red", "green", "blue")


@pytest.fixture(scope="module")
def model():
    images = keras.Input(SIZE)
    return keras.Model(images, keras.layers.Flatten()(images))


@pytest.fixture(scope="module")
def source():
    pixels = np.random.default_rng(0).permutation(3 * 37).reshape(37, 1, 1, 3)
    labels = np.random.default_rng(1).integers(3, size=37)
    split = Arrays(pixels.astype(np.uint8), labels)
    return Source("colors:train/test", CLASSES, split, split)


@pytest.mark.parametrize("batch_size", [1, 8, 37, 100])
def test_every_image_counts_once(batch_size, model, source):
    task = task_of(source)
    found = classify(model, task, batch_size=batch_size, keep_logits=True, **PLAIN)
    logits = source.test.images[:, 0, 0] / np.float32(255)
    np.testing.assert_allclose(found.logits, logits, atol=1e-7)
    np.testing.assert_array_equal(found.images.label, source.test.labels)
    np.testing.assert_array_equal(found.images.prediction, logits.argmax(1))
    assert (task.name, task.classes, found.without_label) == ("colors", CLASSES, 0)


def test_outputs_that_do_not_compete_and_sets_of_answers(model, source):
    """Green is not looked at; label 1 is both others, label 2 has no answer."""
    answers = np.array([[True, False], [True, True], [False, False]])
    task = Task(
        name="colors",
        split=source.test,
        classes=("red", "blue"),
        model_outputs=3,
        outputs=np.array([0, 2]),
        answers=answers,
    )
    found = classify(model, task, **PLAIN)
    labels, pixels = source.test.labels, source.test.images[:, 0, 0]
    kept = labels < 2
    right = (labels == 1) | (pixels[:, 0] > pixels[:, 2])
    np.testing.assert_array_equal(found.images.right, right[kept])
    assert found.without_label == (~kept).sum() > 0
    for answers in (np.array([0, 1, -1]), np.array([0, 1])):
        task = dataclasses.replace(task, answers=answers)
        with pytest.raises(ValueError, match=r"2 classes of colors\. .* label 2"):
            classify(model, task, **PLAIN)


def with_labels(model, labels):
    facts = keras_vit.facts.Facts(labels=labels)
    return keras_vit.models.VisionModel(model.input, model.output, facts=facts)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_outputs_are_found_by_their_labels(order, model, source):
    """Any order of the labels is the same model; so are cards of its results."""
    images = keras.Input(SIZE)
    outputs = keras.ops.take(model(images), np.array(order), axis=1)
    shuffled = keras.Model(images, outputs)
    named = with_labels(shuffled, tuple(CLASSES[i] for i in order))
    task = task_of(source)
    ours = classify(named, task, keep_logits=True, **PLAIN)
    theirs = classify(model, task, keep_logits=True, **PLAIN)
    np.testing.assert_array_equal(ours.logits, theirs.logits)
    np.testing.assert_array_equal(ours.images.prediction, theirs.images.prediction)
    assert ours.task.fingerprint() == theirs.task.fingerprint()


def test_labels_with_other_names(model, source, recwarn):
    task = task_of(source)
    for labels in (("blue", "red", "sky"), ("sky", "blue", "green")):
        with pytest.raises(
            ValueError, match=r"is output \d of the model; not in .*sky"
        ):
            classify(with_labels(model, labels), task, **PLAIN)
    assert not recwarn
    expected = classify(model, task, **PLAIN).images.right
    for labels, place in ((("rot", "green", "blue"), 0), (("a", "b", "c"), 0)):
        with pytest.warns(UserWarning, match=f"by index: output {place}, "):
            found = classify(with_labels(model, labels), task, **PLAIN)
        np.testing.assert_array_equal(found.images.right, expected)
    numbers = dataclasses.replace(source, classes=("0", "1", "2"))  # Without names.
    recwarn.clear()
    classify(with_labels(model, ("a", "b", "c")), task_of(numbers), **PLAIN)
    assert not recwarn


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda x: keras.layers.Dense(10)(x), "10 outputs for the 3 classes of colors"),
        (lambda x: keras.layers.Dense(3, activation="softmax")(x), "ends in softmax"),
        (lambda x: keras.layers.Softmax()(x), "ends in softmax"),
        (lambda x: keras.ops.softmax(x), "ends in softmax"),
        (lambda x: keras.ops.softmax(x) * 1, r"sum of 1 .*classifier_activation=None"),
        (lambda x: keras.layers.Reshape((3, 1))(x), re.escape("output (None, 3, 1)")),
        (lambda x: x / 0.0, "NaN or infinity for image 0"),
    ],
)
def test_models_that_do_not_fit(logits, message, source):
    images = keras.Input(SIZE)
    model = keras.Model(images, logits(keras.layers.Flatten()(images)))
    with pytest.raises(ValueError, match=message):
        classify(model, task_of(source), **PLAIN)


def test_a_nested_model_of_probabilities_does_not_fit(model, source):
    inner = keras.Model(model.input, keras.ops.softmax(model.output))
    for layers in ([inner], [model, keras.layers.Softmax()]):
        nested = keras.Sequential([keras.Input(SIZE), *layers])
        with pytest.raises(ValueError, match="ends in softmax"):
            classify(nested, task_of(source), **PLAIN)


@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_logits_may_look_like_probabilities_for_a_few_images(batch_size, source):
    """The first image's logits sum to 1, the others' do not."""
    pixels = source.test.images.copy()
    pixels[0] = np.reshape([51, 51, 153], SIZE)
    split = Arrays(pixels, source.test.labels)
    task = task_of(dataclasses.replace(source, test=split))
    images = keras.Input(SIZE)
    model = keras.Model(images, keras.layers.Flatten()(images))
    found = classify(model, task, batch_size=batch_size, keep_logits=True, **PLAIN)
    np.testing.assert_allclose(found.logits[0].sum(), 1, atol=1e-6)


@pytest.mark.parametrize("count", [1, 20, 37])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_probabilities_of_any_number_of_images_are_refused(count, batch_size, source):
    images = keras.Input(SIZE)
    shares = keras.ops.softmax(keras.layers.Flatten()(images)) * 1
    task = task_of(dataclasses.replace(source, test=source.test.take(range(count))))
    with pytest.raises(ValueError, match="sum of 1 for each image"):
        classify(keras.Model(images, shares), task, batch_size=batch_size, **PLAIN)


def test_models_of_any_size_do_not_fit(source):
    images = keras.Input((None, None, 3))
    pooled = keras.Model(images, keras.layers.GlobalAveragePooling2D()(images))
    with pytest.raises(ValueError, match="without a fixed size"):
        classify(pooled, task_of(source), **PLAIN)


def test_sources_without_test_images(source):
    alone = dataclasses.replace(source, test=None)
    with pytest.raises(ValueError, match="Expected a data set with test images"):
        task_of(alone)


def test_fingerprints_are_of_images_and_what_is_right(source):
    task = task_of(source)
    less = Arrays(source.test.images[:-1], source.test.labels[:-1])
    others = [
        dataclasses.replace(task, split=less),
        dataclasses.replace(task, classes=("red", "green", "yellow")),
        dataclasses.replace(task, answers=np.array([0, 1, 2])),
        dataclasses.replace(task, answers=np.array([0, 2, 1])),
        dataclasses.replace(task, outputs=np.array([0, 1])),
        dataclasses.replace(task, class_of_output=np.array([0, 1])),
    ]
    prints = [found.fingerprint() for found in (task, *others)]
    assert len(set(prints)) == len(prints)
    assert dataclasses.replace(task, name="other").fingerprint() == prints[0]
