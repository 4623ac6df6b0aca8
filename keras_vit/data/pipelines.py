"""From a split to batches, every random choice a function of (seed, epoch, place).

The examples of a training run are one endless sequence: epoch after epoch, in each the
split in the order that (seed, epoch) gives. Step n trains on places n B to (n + 1) B of
that sequence, so a batch is a function of the seed and n alone: a run starts at any
step, and of W workers the w-th reads the w-th B / W examples of each global batch. Put
side by side, the workers' batches are the single worker's, bit for bit. That is not
in the paper; what is done to an image is vit_jax's and big_vision's.

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

Shard: TypeAlias = tuple[int, int]  # This worker's index, and how many there are.
ImageOp: TypeAlias = Callable[[Any, Any], Any]  # uint8 [H, W, C], seed -> the same.
BatchOp: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]


class BatchOptions(TypedDict, total=False):
    """Keyword arguments that `train_pipeline` passes on to `endless` (big_vision).

    Attributes:
        batch_op: what is done to whole batches, as mixup: (images [G, H, W, C], labels
            [G], seed int [2]) -> (images, labels), each of length G.
        group_size: G, a divisor of B; the batch is cut into groups in order and
            `batch_op` sees one at a time. The default B mixes over the global batch. A
            worker reads every group that it has a part in: with G a divisor of B / W
            nothing is read twice, with G = B every worker reads the whole batch.
        start_step: the step of the first batch, from 0. Indexable splits read nothing
            of what comes before it, streams skip its epoch's part without decoding.
        shard: (w, W), which worker of how many this is; W divides B.
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
    """Endless shuffled batches: (images float32 [B, H, W, C], labels int64 [B]).

    An epoch's order is a function of (seed, epoch), what is drawn for an example of
    (seed, epoch, its place), what is drawn for a batch of (seed, step): two pipelines
    of one seed are equal to the bit, on any number of workers and threads. Crop and
    flip are vit_jax's (input_pipeline.py), which fine-tunes as section 4.1 says.

    Args:
        split: what to read.
        image_size: (H, W) in pixels.
        batch_size: B, of all workers, of whom each gets B / W; a batch may reach into
            the next epoch.
        seed: seed of order and augmentation.
        preprocessing: the model's; training uses its mean and std.
        channels: C; gray images are repeated, see `preprocessing.to_channels`.
        augment: "inception", the official random crop and flip; "crop", BiT's: resized
            to `before_crop`, cropped anywhere, flipped; "crop_only", the same without
            flips; "flip"; or "none".
        before_crop: (H, W) in pixels, of "crop" and "crop_only" alone.
        image_ops: what follows crop and flip, each (uint8 [H, W, C], seed int [2]) ->
            uint8 [H, W, C]. With any, pixels are cut to uint8 after the crop's resize,
            as big_vision does before RandAugment.
        transform: any callable, after those: float32 [H, W, C] in 0..255 to the same.
            What it draws at random is its own affair and need not repeat.
        **batching: `batch_op`, `group_size`, `start_step` and `shard`; see
            `BatchOptions`.

    Returns:
        A `tf.data.Dataset` without end; of W workers each has B / W of a batch's B.

    Raises:
        ValueError: if the split is empty, `augment` unknown, or a number does not fit
            another.
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
            f"'crop_only', and for no other. Received: augment={augment!r}, "
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
    """Endless shuffled batches of what a function makes.

    The sequence is `train_pipeline`'s.

    Args:
        split: what to read.
        example: a function of (key int64 [2], item of `split.item`) to (image, label).
            The key is a function of (seed, epoch, place): whatever is drawn from it
            repeats.
        batch_size: B, of all workers.
        seed: seed of order and augmentation.
        batch_op: see `BatchOptions`, as for the next ones.
        group_size: G.
        start_step: the step of the first batch.
        shard: (w, W).

    Returns:
        A `tf.data.Dataset` without end of the examples, B / W at a time.

    Raises:
        ValueError: if the split is empty, or a number does not fit another.
    """
    if not len(split):
        raise ValueError(
            "Expected images to train on. Received: a split of none. Check the source"
        )
    if start_step < 0:
        raise ValueError(f"Expected a step from 0. Received: start_step={start_step}")
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
    """Batches of the places `own`, from examples of the whole groups around them."""
    first, last = groups
    count = (last - first) // group  # Groups that this worker has a part in.
    fold_in = tf.random.experimental.stateless_fold_in

    def mixed(number: Any, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        # No example is of epoch -1, so no example draws from these keys.
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
    """Every image once, in order: (images float32 [B, H, W, C], labels int64 [B]).

    The last batch holds what is left; vit_jax (input_pipeline.py) drops it.

    Args:
        split: what to read.
        image_size: (H, W) in pixels.
        batch_size: B, of all workers, of whom each gets B / W.
        preprocessing: how images become input.
        channels: C.
        before_crop: (H, W) in pixels, to which images are resized, pixels cut to uint8,
            before the middle of `image_size` is cut out: big_vision's evaluation. None
            resizes to `image_size`, as the official code does.
        pad: fill the last batch up to B and yield a third element, float32 [B]: 1 for
            an image, 0 for filling. Keras takes it as sample weights.
        shard: (w, W), which worker of how many this is. Each yields its B / W examples
            of every batch, and all the same number of batches; it needs `pad`.

    Returns:
        A `tf.data.Dataset` of one pass.

    Raises:
        ValueError: if a number does not fit another, `before_crop` is smaller than
            `image_size`, or there are several workers without `pad`.
    """
    begin, end = _share(batch_size, shard)
    if shard[1] > 1 and not pad:
        raise ValueError(
            "Expected pad=True with several workers, whose last batches would differ "
            f"in number. Received: shard={shard}, pad={pad}"
        )
    if before_crop is not None and not _holds(before_crop, image_size):
        raise ValueError(
            "Expected before_crop of at least image_size. Received: "
            f"before_crop={before_crop}, image_size={image_size}"
        )

    if before_crop is not None:  # Images are then of the model's size.
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
        # Of the last batch this worker has min(max(left - begin, 0), share) images.
        missing = min(max(end - left, 0), end - begin) if left else 0
        filling = (tf.zeros((*image_size, channels)), tf.constant(0, tf.int64), 0.0)
        examples = examples.concatenate(
            tf.data.Dataset.from_tensors(filling).repeat(missing)
        )
    batches = examples.batch(end - begin, drop_remainder=pad)
    return _placed(batches.prefetch(tf.data.AUTOTUNE), shard)


def _holds(before: Size, after: Size) -> bool:
    """Whether an image of size `after` can be cut out of one of size `before`."""
    return all(b >= a for b, a in zip(before, after, strict=True))


def _share(batch_size: int, shard: Shard) -> tuple[int, int]:
    """Where in a global batch this worker's examples begin and end."""
    index, count = shard
    if batch_size < 1 or count < 1 or batch_size % count or not 0 <= index < count:
        raise ValueError(
            "Expected shard=(index, count) with index from 0 to count - 1, and a "
            "batch_size that is a multiple of count: the workers' shares are equal. "
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
    """Batches that tf.distribute does not divide once more among the workers."""
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
