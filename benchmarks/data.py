"""Images per second of the training pipeline, of a decoder, and of other libraries.

    python benchmarks/data.py [--images FOLDER] [--enlarge 500x375] [--image-size 224]
                              [--seconds S] [--rounds N] [--threads T]
    python benchmarks/data.py --hash

All read the same JPEGs with the same number of threads (torch: of processes), in turns,
so that other load on the machine affects all of them. Ratios are within a round. At the
start of a turn, batches that were prefetched during other turns are discarded before
the clock starts.

`--images` is a folder of train/CLASS/*.jpg. Without it, 720 crops of scikit-learn's two
photographs are used, 224x224, for which decoding takes about as long as resizing.
`--enlarge` rewrites the photos in a different size; most of ImageNet's are 500x375.

- decode: `tf.io.decode_jpeg` of whole images from memory, without anything else, not
  even batching.
- ours: random crop (only the crop is decoded), resize, flip, scale, batch.
- ours, packed: the same, from TFRecord shards read with `os.pread` at every step.
- keras: `image_dataset_from_directory`, `RandomCrop`, `RandomFlip`, `Rescaling`. The
  crop has a fixed size, because Keras has no random resized crop.
- torch: `DataLoader` with the same random resized crop and flip, by PIL and, if it is
  installed, by torchvision's transforms v2.

`--hash` prints the SHA-256 of 1,000 batches read on 1, 2 and 4 workers, with 1 and 4
threads, and after restarts at several steps; it fails unless they are equal.
"""

import argparse
import functools
import hashlib
import importlib
import importlib.util
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from photographs import crops

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BATCH = 32


class Photos:
    """A torch data set of files, with the official crop and flip.

    Args:
        files: files of the images.
        size: side of the result, in pixels.
        with_torchvision: whether to use transforms v2 instead of PIL.
    """

    def __init__(self, files: list[str], size: int, with_torchvision: bool) -> None:
        self.files = files
        self.transform: Any = functools.partial(_crop_by_pil, size=size)
        if with_torchvision:
            self.transform = _transforms_v2(size)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def _crop_by_pil(image: Any, size: int) -> Any:
    """Crops, resizes and flips at random: -> [3, size, size] in [-1, 1]."""
    import numpy as np
    import torch
    from PIL import Image

    width, height = image.size
    while True:
        area = random.uniform(0.05, 1) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    x, y = random.randint(0, width - w), random.randint(0, height - h)
    image = image.resize(
        (size, size), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h)
    )
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels.float() - 127.5) / 127.5


def _transforms_v2(size: int) -> Any:
    import torch

    v2 = importlib.import_module("torchvision.transforms.v2")
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size, scale=(0.05, 1), antialias=False),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


def _threaded(dataset: Any, threads: int) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def contenders(
    folder: Path, packed: Path, size: int, threads: int
) -> dict[str, Callable[[], Iterator[Any]]]:
    """Returns, by name, functions that start endless batches of `BATCH` images."""
    import keras
    import tensorflow as tf
    import torch

    from keras_vit.data import open_source, pipelines

    source = open_source(folder)
    options: dict[str, Any] = {"image_size": (size, size), "batch_size": BATCH}
    options["seed"] = 0
    files = [str(file) for file in source.train.images]  # type: ignore[attr-defined]

    def decode() -> Iterator[Any]:
        with tf.device("CPU:0"):
            contents = tf.constant([Path(file).read_bytes() for file in files])
        order = tf.data.Dataset.range(len(files)).shuffle(len(files)).repeat()
        sizes = order.map(
            lambda i: tf.size(tf.io.decode_jpeg(tf.gather(contents, i), channels=3)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return iter(_threaded(sizes.batch(BATCH).prefetch(tf.data.AUTOTUNE), threads))

    def ours() -> Iterator[Any]:
        dataset = pipelines.train_pipeline(source.train, **options)
        return iter(_threaded(dataset, threads))

    def ours_packed() -> Iterator[Any]:
        split: Any = open_source(packed).train
        split._is_small = lambda: False  # As for a set larger than memory.
        return iter(_threaded(pipelines.train_pipeline(split, **options), threads))

    def of_keras() -> Iterator[Any]:
        dataset = keras.utils.image_dataset_from_directory(
            folder / "train",
            image_size=(size * 8 // 7, size * 8 // 7),  # 256 for 224.
            batch_size=BATCH,
            verbose=False,
        )
        layers = keras.Sequential(
            [
                keras.layers.RandomCrop(size, size),
                keras.layers.RandomFlip("horizontal"),
                keras.layers.Rescaling(1 / 127.5, offset=-1),
            ]
        )
        dataset = dataset.repeat().map(
            lambda x, y: (layers(x, training=True), y),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return iter(_threaded(dataset.prefetch(tf.data.AUTOTUNE), threads))

    def of_torch(with_torchvision: bool) -> Iterator[Any]:
        photos: Any = Photos(files, size, with_torchvision)
        loader = torch.utils.data.DataLoader(
            photos,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=threads,
            persistent_workers=True,
            multiprocessing_context="spawn",
        )
        while True:
            yield from loader

    found: dict[str, Callable[[], Iterator[Any]]] = {
        "decode": decode,
        "ours": ours,
        "ours, packed": ours_packed,
        "keras": of_keras,
        "torch, PIL": lambda: of_torch(False),
    }
    if importlib.util.find_spec("torchvision"):
        found["torch, torchvision v2"] = lambda: of_torch(True)
    return found


def images_per_second(batches: Iterator[Any], seconds: float) -> float:
    """Measures one turn, after a third of it as warm-up."""
    start = time.perf_counter()
    while time.perf_counter() < start + seconds / 3:
        next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - start)


def speed(folder: Path, packed: Path, given: argparse.Namespace) -> None:
    """Prints the table."""
    made = contenders(folder, packed, given.image_size, given.threads)
    batches = {name: make() for name, make in made.items()}
    rates: dict[str, list[float]] = {name: [] for name in made}
    for each in batches.values():
        images_per_second(each, 0.1)  # Starts processes, traces functions.
    for turn in range(given.rounds):
        names = list(made)
        random.Random(turn).shuffle(names)
        for name in names:
            rates[name].append(images_per_second(batches[name], given.seconds))
    print(
        f"photos of {given.enlarge or 'their own size'} to {given.image_size} px, "
        f"{given.threads} threads, {given.rounds} rounds of {given.seconds:g} s"
    )
    print(f"{'':22} images/s   of decode (least to greatest)   ours / it")
    for name, values in rates.items():
        of_decode = [a / b for a, b in zip(values, rates["decode"], strict=True)]
        ahead = [a / b for a, b in zip(rates["ours"], values, strict=True)]
        print(
            f"{name:22} {statistics.median(values):8.0f}   "
            f"{statistics.median(of_decode):5.2f} "
            f"({min(of_decode):.2f} to {max(of_decode):.2f})"
            f"{'':15}{statistics.median(ahead):5.2f}"
        )


def hashes(folder: Path, packed: Path) -> None:
    """Prints the hash of 1,000 batches; raises unless it is the same in every way."""
    import numpy as np

    from keras_vit.data import open_source, pipelines

    def run(split: Any, threads: int, workers: int, starts: tuple[int, ...]) -> str:
        digest = hashlib.sha256()
        for start, end in zip(starts, (*starts[1:], 1000), strict=True):
            parts = [
                _threaded(
                    pipelines.train_pipeline(
                        split,
                        image_size=(32, 32),
                        batch_size=16,
                        seed=7,
                        start_step=start,
                        shard=(worker, workers),
                    ),
                    threads,
                )
                .take(end - start)
                .as_numpy_iterator()
                for worker in range(workers)
            ]
            for step in zip(*parts, strict=True):
                for part in zip(*step, strict=True):
                    digest.update(np.concatenate(part).tobytes())
        return digest.hexdigest()

    shards: Any = open_source(packed).train
    shards._is_small = lambda: False
    splits = {"folder": open_source(folder).train, "packed": shards}
    found = set()
    for name, split in splits.items():
        for threads, workers, starts in (
            (1, 1, (0,)),
            (4, 1, (0,)),
            (2, 2, (0,)),
            (2, 4, (0,)),
            (2, 1, (0, 1, 333, 700)),
            (2, 4, (0, 613)),
        ):
            found.add(value := run(split, threads, workers, starts))
            print(
                f"{value[:16]}  {name}, {threads} threads, {workers} workers, "
                f"starts at {', '.join(map(str, starts))}"
            )
    if len(found) > 1:
        raise SystemExit("the batches differ")
    print("1,000 batches, the same in every way")


def enlarged(folder: Path, size: str, output: Path) -> Path:
    """Writes a copy of the training photos in a size, "width x height"."""
    from PIL import Image

    width, height = map(int, size.split("x"))
    for file in folder.glob("train/*/*.jpg"):
        copy = output / file.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as image:
            image.resize((width, height)).save(copy, quality=90)
    return output


def main() -> None:
    """Prints the table, or the hashes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, help="folder of train/CLASS/*.jpg")
    parser.add_argument("--enlarge", metavar="WIDTHxHEIGHT")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--hash", action="store_true")
    given = parser.parse_args()

    from keras_vit.data import open_source
    from keras_vit.data.packing import pack

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = given.images or crops(folder / "crops")
        if given.enlarge:
            images = enlarged(images, given.enlarge, folder / "photos")
        packed = pack(open_source(images), folder / "packed", shards=4)
        if given.hash:
            hashes(images, packed)
        else:
            speed(images, packed, given)


if __name__ == "__main__":
    main()
