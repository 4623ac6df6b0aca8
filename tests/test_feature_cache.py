"""Features of frozen models on disk: read once, and never another's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import pytest

import keras_vit

tf = pytest.importorskip("tensorflow")

from keras_vit import evaluation, feature_cache, features  # noqa: E402
from keras_vit.data import Arrays  # noqa: E402
from keras_vit.data.splits import TFDS  # noqa: E402
from keras_vit.evaluation import imagenet  # noqa: E402
from keras_vit.training import fit, transfer  # noqa: E402
from tests.training.test_fitting import recipe, tiny  # noqa: E402

PROJECT = Path(__file__).parents[1]
FREEZE = {"freeze": True, "augment": "none", "total_steps": 2, "warmup_steps": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("KERAS_VIT_CACHE_BYTES", raising=False)
    return tmp_path / "keras/keras_vit/features"


@pytest.fixture
def photos(tmp_path):
    """Photographs of three colors: 4 and 2 of each."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for at, name in enumerate(("blue", "green", "red")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 200, (32, 32, 3), dtype=np.uint8)
                pixels[..., at] += 55
                (folder / f"{number}.png").write_bytes(tf.io.encode_png(pixels).numpy())
    return tmp_path / "photos"


@pytest.fixture
def read(monkeypatch):
    """How many images went through a network so far."""
    counted = []
    real = features.pipelines.eval_pipeline

    def eval_pipeline(split, **options):
        counted.append(len(split))
        return real(split, **options)

    monkeypatch.setattr(features.pipelines, "eval_pipeline", eval_pipeline)
    return lambda: sum(counted)


def folders(cache):
    return sorted(path.name for path in cache.iterdir())


def test_a_second_learning_rate_reads_no_image(photos, read):
    first, second = tiny(), tiny()
    fit(first, recipe(**FREEZE, base_lr=(0.1,)), photos, verbose=0)
    assert read() == 18
    fit(second, recipe(**FREEZE, base_lr=(0.1,)), photos, verbose=0)
    fit(tiny(), recipe(**FREEZE, base_lr=(0.3,)), photos, verbose=0)
    assert read() == 18
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_resume_reads_no_image(photos, read, tmp_path, capsys):
    settings = recipe(**FREEZE)
    fit(tiny(), settings, photos, output=tmp_path / "run", verbose=0)
    assert read() == 18
    fit(tiny(), settings, photos, output=tmp_path / "run", verbose=2)
    assert read() == 18
    assert "features of 12 training images, from the disk" in capsys.readouterr().out


def test_few_shot_transfer_and_probes_share_them(photos, read):
    model = tiny()
    fit(model, recipe(**FREEZE), photos, verbose=0)  # The head is no part of them.
    result = evaluation.fewshot(model, photos, shots=(1, 2), seeds=(0, 1))
    evaluation.knn(model, photos, k=3)
    evaluation.extract(model, evaluation.features.sources.open_source(photos).test)
    assert read() == 18
    settings = recipe(**FREEZE, image_size=(32, 32), base_lr=(0.1, 0.2), held_out=0.3)
    transfer(model, photos, recipe=settings, runs=2, verbose=0)
    assert read() == 18
    feature_cache.clear()
    alone = evaluation.fewshot(model, photos, shots=(1, 2), seeds=(0, 1))
    assert alone == result
    assert read() > 18


def test_few_shot_reads_the_drawn_images_alone(photos, read):
    for _ in range(2):
        evaluation.fewshot(tiny(), photos, shots=(1,), seeds=(0,))
        assert read() == 3 + 6


def test_another_process_reads_no_image(photos, tmp_path, cache):
    model = tmp_path / "model.keras"
    tiny().save(model)
    words = [sys.executable, "-m", "keras_vit.cli", "fewshot", "--data", str(photos)]
    words += ["--model", str(model), "--shots", "all"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = [
        subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    told = [process.communicate() for process in done]
    assert [process.returncode for process in done] == [0, 0], told
    assert told[0][0] == told[1][0]
    names = folders(cache)
    assert len(names) == 2  # Of training and test images, without locks.
    before = [(cache / name / "features.npy").stat().st_mtime_ns for name in names]
    assert subprocess.run(words, env=environment, capture_output=True).stdout
    assert folders(cache) == names
    after = [(cache / name / "features.npy").stat().st_mtime_ns for name in names]
    assert before == after


def images(seed=0, count=6):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (count, 40, 40, 3), dtype=np.uint8)
    return Arrays(pixels, np.arange(count) % 3)


def changed_weight():
    model = tiny()
    kernel = model.get_layer("embedding").weights[0]
    kernel.assign(kernel + 1e-6)
    return model


def larger():
    return keras_vit.at_resolution(tiny(), (48, 48))


def exact_gelu():
    return tiny(gelu="erf")


@pytest.mark.parametrize(
    ("model", "split", "options"),
    [
        (changed_weight, images, {}),
        (larger, images, {}),
        (exact_gelu, images, {}),
        (tiny, lambda: images(1), {}),
        (tiny, lambda: images(count=5), {}),
        (tiny, lambda: images().take(np.array([1, 0, 2, 3, 4, 5])), {}),
        (tiny, images, {"before_crop": (36, 36)}),
        (tiny, images, {"batch_size": 2}),
        (tiny, images, {"preprocessing": keras_vit.Preprocessing(mean=(0.4,))}),
        (tiny, images, {"preprocessing": keras_vit.Preprocessing(crop=0.9)}),
        (tiny, images, {"preprocessing": keras_vit.Preprocessing(antialias=True)}),
    ],
)
def test_whatever_decides_the_features_is_part_of_their_name(
    model, split, options, cache
):
    evaluation.extract(tiny(), images())
    assert len(folders(cache)) == 1
    found, _ = evaluation.extract(model(), split(), **options)
    assert len(folders(cache)) == 2
    again, _ = evaluation.extract(model(), split(), **options)
    np.testing.assert_array_equal(found, again)
    assert len(folders(cache)) == 2


def test_names_of_layers_and_the_head_are_no_part(cache, read):
    for classes in (None, 3, 5):
        evaluation.extract(tiny(classes), images())
    assert read() == 6
    assert len(folders(cache)) == 1


def test_a_changed_file_is_other_data(photos, read):
    evaluation.extract(tiny(), evaluation.features.sources.open_source(photos).test)
    source = evaluation.features.sources.open_source(photos)
    file = photos / "test/red/1.png"
    file.write_bytes((photos / "test/blue/0.png").read_bytes())
    evaluation.extract(tiny(), source.test)
    assert read() == 12


def test_files_are_described_as_they_were_read(photos):
    """Small files are read once: later changes on the disk are not in the features."""
    split = evaluation.features.sources.open_source(photos).test
    evaluation.extract(tiny(), split)
    fingerprint = split.fingerprint()
    assert split.fingerprint_as_read() == fingerprint
    (photos / "test/red/1.png").write_bytes(b"something else")
    assert split.fingerprint_as_read() == fingerprint
    assert split.fingerprint() != fingerprint


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("spec", ["train", "train[:3]", "train[3:]+train[:1]"])
def test_a_tfds_set_that_was_built_again_is_other_data(spec, tmp_path, read):
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyPhotos(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        url_infos: ClassVar = {}  # Nothing is downloaded.
        seed = 0

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(40, 40, 3)),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            made = images(self.seed)
            for number, (image, label) in enumerate(
                zip(made.images, made.labels, strict=True)
            ):
                yield number, {"image": image, "label": (label + self.seed) % 3}

    def built(seed):
        TinyPhotos.seed = seed
        shutil.rmtree(tmp_path / "tfds", ignore_errors=True)
        builder = TinyPhotos(data_dir=str(tmp_path / "tfds"))
        builder.download_and_prepare()
        return TFDS(builder, spec)

    before = built(0)
    first, labels = evaluation.extract(tiny(), before)
    again = built(1)
    assert again.fingerprint() == before.fingerprint()  # A copy resumes runs.
    other, other_labels = evaluation.extract(tiny(), again)
    assert read() == len(first) + len(other)
    assert np.abs(other - first).max() > 0
    assert labels.tolist() != other_labels.tolist()
    evaluation.extract(tiny(), TFDS(again.builder, spec))
    assert read() == len(first) + len(other)
    shutil.rmtree(tmp_path / "tfds")
    with pytest.raises(OSError, match=r"tiny_photos-train\.tfrecord"):
        again.fingerprint_as_read()


def test_files_that_change_while_they_are_read_are_not_kept(cache, monkeypatch):
    split = images()
    told = iter("abcdef")
    monkeypatch.setattr(split, "fingerprint_as_read", lambda: next(told))
    evaluation.extract(tiny(), split)
    assert folders(cache) == []


def test_what_is_written_to_features_stays_in_memory():
    found, labels = evaluation.extract(tiny(), images())
    for _ in range(2):
        again, same = evaluation.extract(tiny(), images())
        np.testing.assert_array_equal(found, again)
        np.testing.assert_array_equal(labels, same)
        assert type(again) is np.ndarray
        again += 1


@pytest.mark.parametrize("file", ["features.npy", "labels.npy", "facts.json"])
@pytest.mark.parametrize("fault", ["flipped", "cut", "gone"])
def test_damage_is_a_warning_and_computed_again(cache, file, fault, read):
    found, _ = evaluation.extract(tiny(), images())
    (name,) = folders(cache)
    path = cache / name / file
    content = bytearray(path.read_bytes())
    if fault == "gone":
        path.unlink()
    else:
        # Of JSON the first quarter is of the sizes; the end of the facts.
        content[-5 if file == "facts.json" else len(content) - 1] ^= 1
        path.write_bytes(content if fault == "flipped" else content[:-7])
    with pytest.warns(UserWarning, match="Damaged features are computed again"):
        again, _ = evaluation.extract(tiny(), images())
    np.testing.assert_array_equal(found, again)
    evaluation.extract(tiny(), images())
    assert read() == 12
    assert folders(cache) == [name]


def test_the_least_recently_used_goes_first(cache, monkeypatch):
    keys = []
    for seed in range(3):
        evaluation.extract(tiny(), images(seed))
        (new,) = set(folders(cache)) - set(keys)
        keys.append(new)
        os.utime(cache / new / "facts.json", (seed + 1, seed + 1))
    evaluation.extract(tiny(), images(0))  # Used now.
    size = sum(entry.bytes for entry in feature_cache.entries())
    monkeypatch.setenv("KERAS_VIT_CACHE_BYTES", str(size))
    evaluation.extract(tiny(), images(3))
    kept = set(folders(cache))
    assert keys[1] not in kept
    assert {keys[0], keys[2]} < kept
    assert len(kept) == 3


def test_more_than_all_of_the_cache_is_not_kept(cache, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE_BYTES", "100")
    with pytest.warns(UserWarning, match="are not kept on disk: KERAS_VIT_CACHE_BYTES"):
        evaluation.extract(tiny(), images())
    assert folders(cache) == []


def test_zero_keeps_nothing_and_nonsense_is_refused(cache, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE_BYTES", "0")
    evaluation.extract(tiny(), images())
    assert not cache.exists()
    monkeypatch.setenv("KERAS_VIT_CACHE_BYTES", "10 GB")
    with pytest.raises(ValueError, match=r"a number of bytes.*'10 GB'"):
        evaluation.extract(tiny(), images())


def test_a_folder_that_cannot_be_written_is_a_warning(cache, read):
    cache.parent.mkdir(parents=True)
    cache.write_text("no folder")
    with pytest.warns(UserWarning, match="Features are not kept on disk"):
        evaluation.extract(tiny(), images())
    assert read() == 6


def test_a_full_disk_is_a_warning(cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    expected, _ = evaluation.extract(tiny(), images())
    feature_cache.clear()
    monkeypatch.setattr(np, "save", full)
    with pytest.warns(UserWarning, match="not kept on disk.*No space left"):
        found, _ = evaluation.extract(tiny(), images())
    np.testing.assert_array_equal(found, expected)
    assert folders(cache) == []


class Inverted(Arrays):
    """Images in memory that are read in the user's own way."""

    def item(self, handle):
        item = super().item(handle)
        return item | {"image": 255 - item["image"]}


def test_splits_of_others_are_not_kept(cache):
    plain, labels = evaluation.extract(tiny(), images())
    (name,) = folders(cache)
    split = Inverted(images().images, labels)
    assert split.fingerprint_as_read() == images().fingerprint_as_read()
    inverted, _ = evaluation.extract(tiny(), split)
    expected, _ = evaluation.extract(tiny(), Arrays(255 - split.images, labels))
    np.testing.assert_array_equal(inverted, expected)
    assert np.abs(inverted - plain).max() > 0
    assert name in folders(cache)
    assert len(folders(cache)) == 2


def test_images_without_their_border_are_other_images(photos, cache):
    """The runs' and cards' fingerprint is of the files, and remains."""
    split = evaluation.features.sources.open_source(photos).test
    bordered = imagenet._Bordered(split.images, split.labels)
    assert bordered.fingerprint() == split.fingerprint()
    inside, _ = evaluation.extract(tiny(), bordered)
    whole, labels = evaluation.extract(tiny(), split)
    assert len(folders(cache)) == 2
    pixels = [tf.io.decode_png(tf.io.read_file(file)) for file in split.images]
    expected, _ = evaluation.extract(tiny(), Arrays(np.stack(pixels), labels))
    np.testing.assert_array_equal(whole, expected)
    cropped = np.stack(pixels)[:, 2:-2, 2:-2]
    expected, _ = evaluation.extract(tiny(), Arrays(cropped, labels))
    np.testing.assert_array_equal(inside, expected)


class Doubling(keras.layers.Layer):
    """A layer of the user's own, whose code may change."""

    def call(self, x):
        return 2 * x


def test_layers_of_others_and_data_without_a_fingerprint_are_not_kept(
    cache, monkeypatch
):
    tail = tiny(classes=None)
    for layer in (Doubling(), keras.layers.Lambda(lambda x: 2 * x)):
        model = keras.Model(tail.input, layer(tail.output))
        evaluation.extract(model, images())
    split = images()

    def without():
        raise NotImplementedError

    monkeypatch.setattr(split, "fingerprint_as_read", without)
    evaluation.extract(tiny(), split)
    assert not cache.exists()


def test_augmented_images_are_not_kept(photos, cache):
    fit(tiny(), recipe(freeze=True, augment="flip"), photos, verbose=0)
    assert not cache.exists()


@pytest.mark.tensorflow_only
def test_the_command_lists_and_clears(shell, cache, photos):
    evaluation.extract(tiny(), evaluation.features.sources.open_source(photos).test)
    evaluation.extract(tiny(), images())
    code, out, err = shell("data", "cache", "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        "size",
        "images",
        "model",
        "data",
        "last",
        "use",
        "facts",
    ]
    assert any(str(photos / "test") in line for line in lines)
    assert any("6 images in memory" in line for line in lines)
    assert "2 entries, 0.0 MiB of at most 10240.0 MiB (KERAS_VIT_CACHE_BYTES)" in out
    (cache / lines[1].split()[-1]).parent.is_dir()
    name = folders(cache)[0]
    facts = json.loads((cache / name / "facts.json").read_text())["facts"]
    assert {"graph", "weights", "preprocessing", "data", "environment"} < facts.keys()
    (cache / name / "facts.json").write_text("{")
    assert "damaged" in shell("data", "cache", "list")[1]
    assert "removed 2 entries" in shell("data", "cache", "clear")[1]
    assert folders(cache) == []
    assert shell("data", "cache", "list")[1].startswith("0 entries")
    assert "removed 0 entries" in shell("data", "cache", "clear")[1]
