"""Input pipelines in which every random choice depends on (seed, epoch, place) only.

The examples of a training run are an endless sequence of epochs, each with the split in
the order given by (seed, epoch). Step n trains on places n B to (n + 1) B of that
sequence. A batch therefore depends only on the seed and n, and a run can start at any
step. Of W workers, the w-th reads the w-th B / W examples of each global batch; the
workers' batches together equal a single worker's, bit for bit. Transformations of
images are those of vit_jax and big_vision.

Glossary of shapes: B is the global batch, W the number of workers, G a group of
`batch_op`, [H, W, C] an image.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import tensorflow as tf

from keras_vit.data import preprocessing as functions
from keras_vit.data.decoding import as_written
from keras_vit.data.preprocessing import Size
from keras_vit.data.splits import Split
from keras_vit.facts import OFFICIAL, Preprocessing

__all__ = ["BatchOptions", "endless", "eval_pipeline", "train_pipeline"]

Shard: TypeAlias = tuple[int, int]  # This worker's index, and the number of workers.
ImageOp: TypeAlias = Callable[[Any, Any], Any]  # uint8 [H, W, C], seed -> same type.
BatchOp: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]


class BatchOptions(TypedDict, total=False):
    """Keyword arguments that `train_pipeline` passes to `endless` (big_vision).

    Attributes:
        batch_op: transformation of batches, such as mixup: (images [G, H, W, C], labels
            [G], seed int [2]) -> (images, labels), each of length G.
        group_size: G, a divisor of B; `batch_op` is applied to consecutive groups of
            the batch. The default B mixes over the global batch. A worker reads every
            group that contains one of its examples: if G divides B / W, nothing is read
            twice; if G = B, every worker reads the whole batch.
        start_step: step of the first batch, from 0. Indexable splits do not read
            earlier images; streams skip those of the same epoch without decoding.
        shard: (w, W), the index of this worker and the number of workers; W divides B.
    """

    batch_op: BatchOp | None
    group_size: int | None
    start_step: int
    shard: Shard


def train_pipeline(
    split: Split,
    *,
    image_size: Size,
    batch_size: int,
    seed: int,
    preprocessing: Preprocessing = OFFICIAL,
    channels: int = 3,
    augment: Literal["inception", "crop", "crop_only", "flip", "none"] = "inception",
    before_crop: Size | None = None,
    image_ops: Sequence[ImageOp] = (),
    transform: Callable[[Any], Any] | None = None,
    **batching: Unpack[BatchOptions],
) -> tf.data.Dataset:
    """Builds endless shuffled batches: (images float32 [B, H, W, C], labels int64 [B]).

    The order of an epoch depends on (seed, epoch), random draws for an example on
    (seed, epoch, its place), and draws for a batch on (seed, step). Two pipelines with
    the same seed are bitwise equal on any number of workers and threads. Crop and flip
    are vit_jax's (input_pipeline.py), which fine-tunes as described in section 4.1.

    Args:
        split: images to read.
        image_size: (H, W) in pixels.
        batch_size: B, for all workers together; each gets B / W. A batch may extend
            into the next epoch.
        seed: seed of order and augmentation.
        preprocessing: the model's; training uses its mean and std.
        channels: C; gray images are repeated, see `preprocessing.to_channels`.
        augment: "inception", the official random crop and flip; "crop", BiT's: resized
            to `before_crop`, cropped at random, flipped; "crop_only", the same without
            flips; "flip"; or "none".
        before_crop: (H, W) in pixels, only for "crop" and "crop_only".
        image_ops: operations after crop and flip, each (uint8 [H, W, C], seed int [2])
            -> uint8 [H, W, C]. If there are any, pixels are truncated to uint8 after
            the crop's resize, as in big_vision before RandAugment.
        transform: any callable after those: float32 [H, W, C] in 0..255 to the same.
            Its random draws are not reproducible.
        **batching: `batch_op`, `group_size`, `start_step` and `shard`; see
            `BatchOptions`.

    Returns:
        An endless `tf.data.Dataset`; each of W workers gets B / W examples per batch.

    Raises:
        ValueError: if the split is empty, `augment` is unknown, or the sizes do not fit
            together.
    """
    if augment not in ("inception", "crop", "crop_only", "flip", "none"):
        raise ValueError(
            "Expected augment 'inception', 'crop', 'crop_only', 'flip' or 'none'. "
            f"Received: augment={augment!r}"
        )
    crops = augment in ("crop", "crop_only")
    larger = before_crop is not None and _holds(before_crop, image_size)
    if not (larger if crops else before_crop is None):
        raise ValueError(
            "Expected before_crop of at least image_size for augment='crop' or "
            f"'crop_only', and None otherwise. Received: augment={augment!r}, "
            f"before_crop={before_crop}, image_size={image_size}"
        )
    fold_in = tf.random.experimental.stateless_fold_in

    def example(key: Any, item: dict[str, Any]) -> tuple[Any, Any]:
        image = item["image"]
        if augment == "inception":
            image = functions.inception_crop(image, image_size, fold_in(key, 0))
        else:
            size = before_crop or image_size
            image = functions.resize(_decoded(image), size)
        if crops:
            cropped = (*image_size, image.shape[-1])
            image = tf.image.stateless_random_crop(image, cropped, fold_in(key, 0))
        if augment not in ("crop_only", "none"):
            image = functions.random_flip(image, fold_in(key, 1))
        image = functions.to_channels(image, channels)
        if image_ops:
            image = tf.cast(image, tf.uint8)
        for number, image_op in enumerate(image_ops):
            image = image_op(image, fold_in(key, 2 + number))
        if transform is not None:
            image = tf.cast(transform(tf.cast(image, tf.float32)), tf.float32)
        image = tf.ensure_shape(image, (*image_size, channels))
        image = functions.normalize(image, preprocessing.mean, preprocessing.std)
        return image, item["label"]

    return endless(
        split,
        example,
        batch_size=batch_size,
        seed=seed,
        **batching,
    )


def endless(
    split: Split,
    example: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
    *,
    batch_size: int,
    seed: int,
    batch_op: BatchOp | None = None,
    group_size: int | None = None,
    start_step: int = 0,
    shard: Shard = (0, 1),
) -> tf.data.Dataset:
    """Builds endless shuffled batches of the outputs of a function.

    The sequence is that of `train_pipeline`.

    Args:
        split: images to read.
        example: function from (key int64 [2], item of `split.item`) to (image, label).
            The key depends only on (seed, epoch, place), so that draws from it are
            reproducible.
        batch_size: B, for all workers together.
        seed: seed of order and augmentation.
        batch_op: see `BatchOptions`.
        group_size: G; see `BatchOptions`.
        start_step: step of the first batch; see `BatchOptions`.
        shard: (w, W); see `BatchOptions`.

    Returns:
        An endless `tf.data.Dataset` of the examples, B / W at a time.

    Raises:
        ValueError: if the split is empty, or the sizes do not fit together.
    """
    if not len(split):
        raise ValueError(
            "Expected images to train on. Received: an empty split. Check the source"
        )
    if start_step < 0:
        raise ValueError(f"Expected a step >= 0. Received: start_step={start_step}")
    begin, end = _share(batch_size, shard)
    group = _group(batch_size, group_size) if batch_op else 1
    first, last = begin // group * group, -(-end // group) * group  # Whole groups.

    def keyed(seeds: Any, place: Any, handle: Any) -> tuple[Any, Any]:
        key = tf.random.experimental.stateless_fold_in(seeds, place)
        return example(key, split.item(handle))

    places = split.endless(seed, batch_size, start_step, (first, last))
    examples = split.fetch(places).map(
        keyed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    if batch_op is None:
        batches = examples.batch(end - begin, drop_remainder=True)
    else:
        batches = _in_groups(
            examples, batch_op, seed, start_step, group, (first, last), (begin, end)
        )
    return _placed(batches.prefetch(tf.data.AUTOTUNE), shard)


def _in_groups(
    examples: tf.data.Dataset,
    batch_op: BatchOp,
    seed: int,
    start_step: int,
    group: int,
    groups: tuple[int, int],
    own: tuple[int, int],
) -> tf.data.Dataset:
    """Yields batches of the places `own`, from the examples of whole groups."""
    first, last = groups
    count = (last - first) // group  # Groups with an example of this worker.
    fold_in = tf.random.experimental.stateless_fold_in

    def mixed(number: Any, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        # No example has epoch -1, so these keys are not used for examples.
        step = fold_in(tf.constant([seed, -1], tf.int64), start_step + number // count)
        return batch_op(*batch, fold_in(step, first // group + number % count))

    @as_written
    def own_part(*parts: Any) -> tuple[Any, ...]:
        flat = [tf.reshape(part, (last - first, *part.shape[2:])) for part in parts]
        return tuple(part[own[0] - first : own[1] - first] for part in flat)

    return (
        examples.batch(group, drop_remainder=True)
        .enumerate()
        .map(mixed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(count, drop_remainder=True)
        .map(own_part)
    )


def eval_pipeline(
    split: Split,
    *,
    image_size: Size,
    batch_size: int,
    preprocessing: Preprocessing = OFFICIAL,
    channels: int = 3,
    before_crop: Size | None = None,
    pad: bool = False,
    shard: Shard = (0, 1),
) -> tf.data.Dataset:
    """Builds one ordered pass: (images float32 [B, H, W, C], labels int64 [B]).

    The last batch contains the remaining images; vit_jax (input_pipeline.py) drops it.

    Args:
        split: images to read.
        image_size: (H, W) in pixels.
        batch_size: B, for all workers together; each gets B / W.
        preprocessing: scaling of the images.
        channels: C.
        before_crop: (H, W) in pixels to which images are resized and truncated to
            uint8 before the center crop to `image_size`, as in big_vision's evaluation.
            None resizes to `image_size`, as in the official code.
        pad: whether to pad the last batch to B and yield a third element, float32 [B]:
            1 for an image, 0 for padding. Keras uses it as sample weights.
        shard: (w, W), the index of this worker and the number of workers. Each yields
            its B / W examples of every batch, and all yield the same number of batches.
            Requires `pad`.

    Returns:
        A `tf.data.Dataset` of one pass.

    Raises:
        ValueError: if the sizes do not fit together, `before_crop` is smaller than
            `image_size`, or there are several workers without `pad`.
    """
    begin, end = _share(batch_size, shard)
    if shard[1] > 1 and not pad:
        raise ValueError(
            "Expected pad=True with several workers, because their last batches would "
            f"differ in number. Received: shard={shard}, pad={pad}"
        )
    if before_crop is not None and not _holds(before_crop, image_size):
        raise ValueError(
            "Expected before_crop of at least image_size. Received: "
            f"before_crop={before_crop}, image_size={image_size}"
        )

    if before_crop is not None:  # Images then have the model's size.
        preprocessing = dataclasses.replace(preprocessing, crop=None)

    @as_written
    def example(place: Any, handle: Any) -> tuple[Any, ...]:
        item = split.item(handle)
        image = _decoded(item["image"])
        if before_crop is not None:
            image = functions.resize_uint8(image, before_crop)
            image = functions.central_crop(image, image_size)
        image = functions.prepare(image, image_size, preprocessing, channels)
        mask = [tf.constant(1.0)] if pad else []
        return image, item["label"], *mask

    @as_written
    def keep(place: Any) -> Any:
        in_batch = place % batch_size
        return (in_batch >= begin) & (in_batch < end)

    places = split.places(keep=keep if shard[1] > 1 else None)
    examples = split.fetch(places).map(
        example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    if pad:
        left = len(split) % batch_size
        # This worker has min(max(left - begin, 0), share) images of the last batch.
        missing = min(max(end - left, 0), end - begin) if left else 0
        filling = (tf.zeros((*image_size, channels)), tf.constant(0, tf.int64), 0.0)
        examples = examples.concatenate(
            tf.data.Dataset.from_tensors(filling).repeat(missing)
        )
    batches = examples.batch(end - begin, drop_remainder=pad)
    return _placed(batches.prefetch(tf.data.AUTOTUNE), shard)


def _holds(before: Size, after: Size) -> bool:
    """Returns whether an image of size `after` can be cropped from size `before`."""
    return all(b >= a for b, a in zip(before, after, strict=True))


def _share(batch_size: int, shard: Shard) -> tuple[int, int]:
    """Returns the start and end of this worker's examples in a global batch."""
    index, count = shard
    if batch_size < 1 or count < 1 or batch_size % count or not 0 <= index < count:
        raise ValueError(
            "Expected shard=(index, count) with index from 0 to count - 1, and a "
            "batch_size that is a multiple of count. "
            f"Received: shard={shard}, batch_size={batch_size}"
        )
    share = batch_size // count
    return index * share, (index + 1) * share


def _group(batch_size: int, group_size: int | None) -> int:
    group = batch_size if group_size is None else group_size
    if group < 1 or batch_size % group:
        raise ValueError(
            "Expected group_size to divide batch_size. Received: "
            f"group_size={group_size}, batch_size={batch_size}"
        )
    return group


def _placed(batches: tf.data.Dataset, shard: Shard) -> tf.data.Dataset:
    """Prevents tf.distribute from dividing the batches among the workers again."""
    if shard[1] == 1:
        return batches
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return batches.with_options(options)


@as_written
def _decoded(image: Any) -> Any:
    return functions.decode(image) if image.dtype == tf.string else image
