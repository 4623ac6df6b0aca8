"""ImageNet's family, on images whose pixels are the logits: every number is known."""

import contextlib
import hashlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.evaluation import imagenet, imagenet_classes
from keras_vit.evaluation.imagenet import evaluate_imagenet, open_task

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.filterwarnings("ignore:imagenet:UserWarning"),
    pytest.mark.filterwarnings("ignore:objectnet:UserWarning"),
]

SIZE = (20, 17, 3)  # 1,020 pixels, of which the first 1,000 are the logits.
WNIDS = imagenet_classes.wnids()
PLAIN = {
    "preprocessing": keras_vit.Preprocessing(mean=(0.0,), std=(1.0,)),
    "verbose": False,
}


@pytest.fixture(scope="module")
def model():
    images = keras.Input(SIZE)
    return keras.Model(images, keras.layers.Flatten()(images)[:, :1000])


def write(path, best, border=0):
    """A PNG whose logits are greatest at `best[0]`, then at `best[1]`, and so on."""
    pixels = np.zeros(np.prod(SIZE), np.uint8)
    pixels[list(best)] = np.arange(255, 255 - len(best), -1)
    image = np.full((SIZE[0] + 2 * border, SIZE[1] + 2 * border, 3), (255, 0, 0))
    image[border : SIZE[0] + border, border : SIZE[1] + border] = pixels.reshape(SIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(image.astype(np.uint8)).numpy())


def real_json(path, right, length=50_000):
    """Labels for the images of these numbers, from 1; the others have none."""
    lists = [[] for _ in range(length)]
    for number, labels in right.items():
        lists[number - 1] = labels
    path.write_text(json.dumps(lists))
    return path


# Facts.


def test_classes_are_those_of_tfds_and_of_the_published_sets():
    tfds = pytest.importorskip("tensorflow_datasets")
    for name in ("imagenet2012", "imagenet_a", "imagenet_r", "imagenet_sketch"):
        assert tuple(tfds.builder(name).info.features["label"].names) == WNIDS
    assert list(WNIDS) == sorted(set(WNIDS))
    assert len(WNIDS) == len(imagenet_classes.names()) == 1000
    for known in (imagenet_classes.IMAGENET_A, imagenet_classes.IMAGENET_R):
        assert len(known) == 200
        assert list(known) == sorted(set(known))
    objects = imagenet_classes.OBJECTNET
    outputs = [output for own in objects.values() for output in own]
    assert (len(objects), len(outputs), len(set(outputs))) == (113, 125, 125)
    assert list(objects) == sorted(objects)


def digest(values):
    """SHA-256 of a list or table as compact JSON: it changes with any one entry."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def names_of(places):
    """As ObjectNet's mapping lists a folder's classes."""
    return "; ".join(imagenet_classes.names()[place] for place in places)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # The list of google-research/robustness_metrics@0bc4dd1, datasets/tfds.py, and
        # the keys of hendrycks/natural-adv-examples@2f866f5, eval.py: both agree.
        (
            imagenet_classes.IMAGENET_A,
            "e5ce3e8a08365ce06111d9762b64b11eba26be290d3283c92e1d68c31b38d963",
        ),
        # The list of robustness_metrics, and that of hendrycks/imagenet-r@44d3a1d,
        # eval.py: both agree.
        (
            imagenet_classes.IMAGENET_R,
            "3e907704eb85df5dc454d4c1a68429f9d71a4711555026eccd8bdf7b568ed6f2",
        ),
        # The same by wnid, as eval.py has it.
        (
            [WNIDS[place] for place in imagenet_classes.IMAGENET_R],
            "dd62e9413ab14ffe4f41035d8dc0c9ba29f07d7c2463bed436a1d1056e6ad385",
        ),
        # ObjectNet's own objectnet_to_imagenet_1k.json, by the folders of its
        # folder_to_objectnet_label.json (mlfoundations/wise-ft@4639a39,
        # src/datasets/objectnet_metadata): the names of each folder's classes.
        (
            {
                folder: names_of(places)
                for folder, places in sorted(imagenet_classes.OBJECTNET.items())
            },
            "769be3a8e2ba27750a9a117447abfdd269be7e0e8c216b913140a47be81dac83",
        ),
        # TFDS's wnids, which test_classes_are_those_of_tfds compares where it is.
        (
            WNIDS,
            "5e738e464c43c92037bbb4252eeb6ba2c306091861443ae7e182e28c9662324e",
        ),
        # big_transfer's ilsvrc2012_wordnet_lemmas.txt.
        (
            imagenet_classes.names(),
            "4e48e3093b51975e4f34254f137f16b9d9355597a82f2632f2ea10b4bd99d654",
        ),
    ],
    ids=["a", "r", "r-wnids", "objectnet", "wnids", "names"],
)
def test_whole_lists_are_the_published_ones(values, expected):
    """The digests are of the sources' lists, not of ours."""
    assert digest(values) == expected


def test_images_of_each_set():
    """As the sets' papers and TFDS count them."""
    assert {name: found.images for name, found in imagenet.SETS.items()} == {
        "val": 50_000,
        "real": 50_000,
        "v2": 10_000,
        "a": 7_500,
        "r": 30_000,
        "sketch": 50_889,
        "objectnet": 18_574,
    }


def test_one_name_is_that_of_two_classes():
    names = imagenet_classes.names()
    shared = {name: n for name in names if (n := names.count(name)) > 1}
    assert shared == {"crane": 2}  # The bird and the machine.
    assert [WNIDS[i] for i, name in enumerate(names) if name == "crane"] == [
        "n02012849",
        "n03126707",
    ]


@pytest.mark.parametrize(
    ("known", "places"),
    [  # hendrycks/natural-adv-examples, eval.py: thousand_k_to_200.
        (
            imagenet_classes.IMAGENET_A,
            {6: 0, 105: 25, 207: 38, 445: 89, 607: 120, 763: 143, 859: 168, 988: 199},
        ),
        # hendrycks/imagenet-r, eval.py: imagenet_r_wnids, of which these are some.
        (
            imagenet_classes.IMAGENET_R,
            {WNIDS.index("n01443537"): 0, WNIDS.index("n12267677"): 199},
        ),
    ],
)
def test_places_among_the_200(known, places):
    for number, place in places.items():
        assert known.index(number) == place


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("alarm_clock", ["analog clock", "digital clock"]),
        ("chair", ["barber chair", "folding chair", "rocking chair, rocker"]),
        ("full_sized_towel", ["bath towel"]),
        ("pen", ["ballpoint, ballpoint pen", "quill, quill pen", "fountain pen"]),
        ("tv", ["television, television system"]),
        ("wheel", ["car wheel", "paddlewheel, paddle wheel"]),
    ],
)
def test_objects_are_the_imagenet_classes_of_their_names(folder, names):
    """As ObjectNet's objectnet_to_imagenet_1k.json spells them."""
    known = imagenet_classes.names()
    own = [known[output] for output in imagenet_classes.OBJECTNET[folder]]
    for name, found in zip(names, own, strict=True):
        assert found.startswith(name)


# Folders.


def test_val_counts_every_image(model, tmp_path):
    write(tmp_path / WNIDS[3] / "a.JPEG", [3])
    write(tmp_path / WNIDS[3] / "b.png", [9, 3])
    write(tmp_path / WNIDS[999] / "c.png", [1, 2, 3, 4, 5, 999])
    (tmp_path / "readme").mkdir()
    with pytest.warns(UserWarning, match="imagenet2012 has 50,000 images, .* 3"):
        found = evaluate_imagenet(model, "val", data=tmp_path, batch_size=2, **PLAIN)
    images = found.images
    assert images.label.tolist() == [3, 3, 999]
    assert images.prediction.tolist() == [3, 9, 1]
    assert images.rank.tolist() == [0, 1, 5]
    assert (images.top(1).value, images.top(5).value) == (1 / 3, 2 / 3)
    total = np.exp([1, 254 / 255]).sum() + 998
    assert images.nll[1] == pytest.approx(np.log(total) - 254 / 255, abs=1e-6)
    assert found.task.classes == imagenet_classes.names()


def test_v2_goes_by_numbers(model, tmp_path):
    """Folders 0 to 999, as it is packed: 10 is not 1 and 0."""
    write(tmp_path / "2" / "a.png", [2])
    write(tmp_path / "10" / "a.png", [10])
    images = evaluate_imagenet(model, "v2", data=tmp_path, **PLAIN).images
    assert sorted(images.label.tolist()) == [2, 10]
    assert images.right.all()


@pytest.mark.parametrize(("name", "own", "other"), [("a", 6, 7), ("r", 1, 3)])
def test_200_classes_alone_compete(name, own, other, model, tmp_path):
    """A better logit of a class that the set does not have is not looked at."""
    outputs = imagenet.SETS[name].outputs
    assert other not in outputs
    write(tmp_path / WNIDS[own] / "a.png", [other, own])
    write(tmp_path / WNIDS[outputs[-1]] / "b.png", [own, outputs[-1]])
    found = evaluate_imagenet(model, name, data=tmp_path, **PLAIN)
    assert found.images.label.tolist() == [0, 199]
    assert found.images.prediction.tolist() == [0, 0]
    assert found.images.rank.tolist() == [0, 1]
    total = np.exp(254 / 255) + 199
    assert found.images.nll[0] == pytest.approx(np.log(total) - 254 / 255, abs=1e-6)
    assert found.task.classes[199] == imagenet_classes.names()[outputs[-1]]
    (tmp_path / WNIDS[other]).mkdir()
    with pytest.raises(ValueError, match=f"the 200 classes.*{WNIDS[other]} in"):
        open_task(name, data=tmp_path)


def test_real_takes_any_of_its_labels(model, tmp_path):
    """Of any folder by their names; what has no label is left out."""
    names = "ILSVRC2012_val_{:08d}.JPEG"
    write(tmp_path / "val" / names.format(1), [5])
    write(tmp_path / "val" / names.format(2), [5])
    write(tmp_path / "val" / names.format(4), [5, 6, 7])
    write(tmp_path / "val" / "n01440764" / names.format(50_000), [9])
    right = {1: [4, 5], 4: [7, 8], 50_000: [8]}
    labels = real_json(tmp_path / "real.json", right)
    found = evaluate_imagenet(
        model, "real", data=tmp_path / "val", labels=labels, **PLAIN
    )
    assert found.without_label == 1
    assert found.images.rank.tolist()[:2] == [0, 2]
    assert (found.images.top(1).value, found.images.top(5).value) == (1 / 3, 2 / 3)
    total = np.exp(1.0) + 999
    assert found.images.nll[0] == pytest.approx(
        np.log(total) - np.log(np.exp(1.0) + 1), abs=1e-6
    )
    assert (found.images.label == -1).all()


def test_objectnet_takes_any_class_of_an_object_and_no_border(model, tmp_path):
    """D.9; objects that ImageNet does not have are left out."""
    write(tmp_path / "images" / "alarm_clock" / "a.png", [530], border=2)
    write(tmp_path / "images" / "alarm_clock" / "b.png", [1, 2, 409], border=2)
    write(tmp_path / "images" / "wok" / "c.png", [409, 1, 2, 3, 4, 909], border=2)
    write(tmp_path / "images" / "air_freshener" / "d.png", [0], border=2)
    found = evaluate_imagenet(model, "objectnet", data=tmp_path, **PLAIN)
    assert found.images.rank.tolist() == [0, 2, 5]
    assert found.task.classes[found.images.prediction[0]] == "alarm_clock"
    assert found.images.prediction.tolist() == [0, -1, 0]
    confusion = found.images.confusion(113)
    assert confusion[0, [0, 113]].tolist() == [1, 1]
    assert confusion[112, 0] == 1
    total = np.exp(1.0) + 999
    assert found.images.nll[0] == pytest.approx(
        np.log(total) - np.log(np.exp(1.0) + 1), abs=1e-6
    )
    with pytest.raises(ValueError, match="license that allows tuning"):
        evaluate_imagenet(
            model, "objectnet", data=tmp_path / "images", keep_logits=True, **PLAIN
        )


# TFDS.


def examples(features, labels):
    """What `as_dataset` gives of a data set: encoded images, these labels."""

    def as_dataset(self, *args, **kwargs):
        assert {*kwargs["decoders"]} == {"image"}
        image = tf.io.encode_png(np.zeros(SIZE, np.uint8))
        return tf.data.Dataset.from_generator(
            lambda: ({"image": image, **label} for label in labels),
            output_signature={"image": tf.TensorSpec((), tf.string), **features},
        )

    return as_dataset


@pytest.fixture
def mocked(monkeypatch):
    """TFDS's own builders, with records of ours."""
    tfds = pytest.importorskip("tensorflow_datasets")

    @contextlib.contextmanager
    def mock(features, labels):
        def prepare(builder, **_):
            named = "validation" if "2012" in builder.name else "test"
            split = tfds.core.SplitInfo(
                name=named,
                shard_lengths=[len(labels)],
                num_bytes=0,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=builder.data_path,
                    dataset_name=builder.name,
                    filetype_suffix="tfrecord",
                ),
            )
            builder.info.set_splits(tfds.core.splits.SplitDict([split]))

        with (
            tfds.testing.mock_data(as_dataset_fn=examples(features, labels)),
            monkeypatch.context() as patch,  # Undone before the mock of TFDS's own.
        ):
            patch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
            yield

    return mock


def test_tfds_sets_have_labels_of_1000_classes(model, mocked):
    """All logits are equal: the first class among the 200 is predicted."""
    features = {"label": tf.TensorSpec((), tf.int64)}
    with mocked(features, [{"label": 6}, {"label": 988}]):
        images = evaluate_imagenet(model, "a", **PLAIN).images
        assert images.label.tolist() == [0, 199]
        assert images.prediction.tolist() == [0, 0]
        assert images.rank.tolist() == [0, 199]
    with (
        mocked(features, [{"label": 6}, {"label": 7}]),
        pytest.raises(
            ValueError, match=r"200 classes of imagenet_a\. Received: label 7"
        ),
    ):
        evaluate_imagenet(model, "a", **PLAIN)
    with mocked(features, [{"label": 7}]):
        for name in ("val", "v2", "sketch"):
            assert evaluate_imagenet(model, name, **PLAIN).images.rank.tolist() == [7]


def test_tfds_has_real_labels_inside(model, mocked):
    features = {"real_label": tf.TensorSpec((None,), tf.int64)}
    labels = [{"real_label": found} for found in ([3, 2], [], [0])]
    with mocked(features, labels):
        found = evaluate_imagenet(model, "real", **PLAIN)
        assert found.images.rank.tolist() == [2, 0]
        assert found.without_label == 1
        with pytest.raises(ValueError, match="imagenet2012_real, which contains them"):
            open_task("real", labels="real.json")


def test_real_json_goes_with_tfds_imagenet_by_file_names(model, mocked, tmp_path):
    """In the order of its records, which is not that of the names."""
    features = {
        "label": tf.TensorSpec((), tf.int64),
        "file_name": tf.TensorSpec((), tf.string),
    }
    labels = [
        {"label": 9, "file_name": f"ILSVRC2012_val_{number:08d}.JPEG"}
        for number in (50_000, 1, 7)
    ]
    file = real_json(tmp_path / "real.json", {1: [1], 50_000: [4, 5]})
    with mocked(features, labels):
        found = evaluate_imagenet(
            model, "real", data="imagenet2012", labels=file, **PLAIN
        )
        assert found.images.rank.tolist() == [4, 1]
        with pytest.raises(ValueError, match="imagenet2012:validation, which the lab"):
            open_task("real", data="imagenet2012:train", labels=file)


# Bad input.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps([[1]] * 49_999), "50,000 lists.* with 49,999"),
        (json.dumps({"a": [1]}), "with dict"),
        ("[[1], [2", "which is not JSON"),
        (json.dumps([[1]] * 49_999 + [[1000]]), r"with \[1000\] at position 49999"),
        (json.dumps([[True]] + [[1]] * 49_999), r"with \[True\] at position 0"),
        (json.dumps([3] * 50_000), "with 3 at position 0"),
        (None, "No such file"),
    ],
    ids=["short", "dict", "cut", "out of range", "bool", "flat", "missing"],
)
def test_bad_real_files(text, message, tmp_path):
    file = tmp_path / "real.json"
    if text is not None:
        file.write_text(text)
    write(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", [0])
    with pytest.raises(ValueError, match=message) as error:
        open_task("real", data=tmp_path / "val", labels=file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["a.png"],
        ["ILSVRC2012_val_00000000.JPEG"],
        ["ILSVRC2012_val_00050001.JPEG"],
        ["x/ILSVRC2012_val_00000001.JPEG", "y/ILSVRC2012_val_00000001.JPEG"],
    ],
)
def test_real_images_of_other_names(names, tmp_path):
    file = real_json(tmp_path / "real.json", {})
    (tmp_path / "val").mkdir()
    for name in names:
        write(tmp_path / "val" / name, [0])
    with pytest.raises(ValueError, match="validation images by their names"):
        open_task("real", data=tmp_path / "val", labels=file)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("c", {}, "Expected one of val, real, .* with unknown classes"),
        ("objectnet", {}, "Expected a folder for 'objectnet'"),
        ("objectnet", {"data": "objectnet"}, "'objectnet', no folder"),
        ("objectnet", {"data": "."}, "alarm_clock, backpack, banana.* without any"),
        ("val", {"labels": "real.json"}, "labels only with 'real'"),
        ("val", {"data": "."}, "class folders by wnid"),
        ("real", {"data": "."}, "Expected labels for 'real'"),
        ("real", {"data": "imagenet2012"}, "Expected labels for 'real'"),
        ("val", {"data": "digits"}, "a TFDS name or a folder|TFDS name"),
    ],
)
def test_bad_tasks(name, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        open_task(name, **options)


def test_empty_class_folders(tmp_path):
    (tmp_path / WNIDS[0]).mkdir()
    with pytest.raises(ValueError, match="in the class folders"):
        open_task("val", data=tmp_path)


def test_corrupt_images_stop_or_are_skipped(model, tmp_path):
    write(tmp_path / WNIDS[0] / "a.png", [0])
    (tmp_path / WNIDS[0] / "b.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"cannot be decoded: .*b\.png"):
        open_task("val", data=tmp_path)
    with pytest.warns(UserWarning, match=r"b\.png"):
        task = open_task("val", data=tmp_path, on_corrupt="skip")
    assert len(task.split) == 1


def test_fingerprints_are_of_images_and_labels(tmp_path):
    write(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", [0])
    prints = []
    for labels in ([1], [2], [1]):
        file = real_json(tmp_path / "real.json", {1: labels})
        task = open_task("real", data=tmp_path / "val", labels=file)
        prints.append(task.fingerprint())
    assert prints[0] == prints[2] != prints[1]
