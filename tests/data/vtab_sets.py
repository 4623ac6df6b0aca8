"""TFDS's own builders of the 19 tasks' data sets, with a few made-up records each.

Features, names, configs and versions are TFDS's; what is written and read is real. Only
the records are made up, by the features, and the slices are cut to their number.
"""

import dataclasses
import re

import numpy as np

from keras_vit.data import vtab

TRAIN, OTHER = 16, 8  # Records of a split called train, and of any other.
DEPTHS = (4.0, 8.0, 8.25, 8.5, 9.0, 9.25, 9.75, 10.0, 20.0, 30.0)


def small(task):
    """The task with slices for so few records: 8 and 2 to train on, 4 or 8 to test."""

    def inside(spec, train, other):
        base = re.match(r"\w+", spec).group()
        return base + (train if base == "train" else other)

    sliced = "[" in task.test
    test = inside(task.test, "[12:]", "[4:]") if sliced else task.test
    return dataclasses.replace(
        task,
        train800="train[:8]",
        val200=inside(task.val200, "[10:12]", "[:2]"),
        test=test,
        test_images=4 if sliced else OTHER,
    )


def records(builder, count, seed):
    """Records that the features allow; objects like those of CLEVR and KITTI."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.testing import mocking

    features = builder.info.features
    plain = tfds.features.FeaturesDict(
        {key: of for key, of in features.items() if not _is_sequence(of)}
    )
    rng = np.random.default_rng(seed)
    made = mocking.RandomFakeGenerator(plain, count, seed=seed)
    for number, record in enumerate(made):
        if builder.name == "oxford_iiit_pet":
            record["head_bbox"] = tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
        if builder.name == "dsprites":
            record["image"] = record["image"] % 2
        if builder.name == "clevr":
            record["objects"] = [
                scene_object(depth) for depth in rng.choice(DEPTHS, 3 + number % 8)
            ]
            record["question_answer"] = [{"question": "?", "answer": "!"}]
        if builder.name == "kitti":
            record["objects"] = [
                road_object(int(rng.integers(8)), depth)
                for depth in rng.choice(DEPTHS, number % 4)
            ]
        yield f"{number:03}", record


def _is_sequence(feature):
    return type(feature).__name__ in ("Sequence", "BBoxFeature")


def scene_object(depth):
    """An object of CLEVR at a depth in its `pixel_coords`."""
    return {
        "color": "red",
        "material": "metal",
        "shape": "cube",
        "size": "small",
        "rotation": 0.0,
        "3d_coords": [0.0, 0.0, 0.0],
        "pixel_coords": [100.0, 100.0, depth],
    }


def road_object(kind, depth):
    """An object of KITTI of a type, by number, so many meters before the camera."""
    import tensorflow_datasets as tfds

    return {
        "type": kind,
        "truncated": 0.0,
        "occluded": 0,
        "alpha": 0.0,
        "bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
        "dimensions": [1.0, 1.0, 1.0],
        "location": [0.0, 0.0, depth],
        "rotation_y": 0.0,
    }


def prepare(folder, tasks=vtab.TASKS):
    """Writes the data sets of tasks under `folder`, as TFDS would."""
    import tensorflow_datasets as tfds

    names = {task.tfds: set() for task in tasks}
    for task in tasks:
        specs = (task.train800, task.val200, task.test)
        names[task.tfds] |= {re.match(r"\w+", spec).group() for spec in specs}
    for name, splits in names.items():
        builder = tfds.builder(name, data_dir=str(folder))

        def generators(dl_manager, builder=builder, splits=splits):
            return {
                split: records(builder, TRAIN if split == "train" else OTHER, seed)
                for seed, split in enumerate(sorted(splits))
            }

        builder._split_generators = generators
        builder.download_and_prepare()
