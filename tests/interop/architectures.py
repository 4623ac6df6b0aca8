"""Every architecture of timm's ViT and BiT modules, tiny, read by us and compared.

`python -m tests.interop.architectures [PATTERN]` prints the table: outputs, features
and gradients of each architecture, and how many of timm's pretrained tags they are.
"""

import collections
import dataclasses
import functools
import math
import os
import re
import sys
import tempfile
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

from tests.interop import making  # isort: skip  First: it lets torchvision be imported.

import keras
import numpy as np
import timm
import torch

import keras_vit
from keras_vit.weights import names, timm_names, variables

MODULES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "deit",
    "beit",
    "eva",
    "resnetv2",
)
BIT = {"layers": [1, 1, 1, 1], "channels": [128, 256, 512, 1024], "stem_chs": 32}
STEM = 1e-2  # A stem's GroupNorm of two places amplifies rounding (docs/exact.md).


@dataclasses.dataclass(frozen=True)
class Result:
    """How one architecture compares, or why it is refused."""

    architecture: str
    tags: int
    outputs: float | None = None
    features: float | None = None
    gradients: float | None = None
    family: str = ""
    refused: str = ""


@functools.cache
def tags():
    """timm's pretrained tags by architecture, in the order of the modules."""
    found = collections.Counter()
    for module in MODULES:
        for name in timm.list_models(module=module):
            found[name] += 0
        for name in timm.list_models(module=module, pretrained=True):
            found[name.partition(".")[0]] += 1
    return dict(found)


def arguments_of(name):
    """The architecture's own arguments, but for sizes: two blocks, 8 units a head."""
    if name.startswith("resnetv2"):
        return BIT | {"num_classes": 5}
    with torch.device("meta"):
        whole = timm.create_model(name)
    block = whole.blocks[0]
    if not hasattr(block, "attn"):
        return {"depth": 2, "num_classes": 5}
    heads = block.attn.num_heads
    patch = whole.patch_embed.patch_size[0]
    if hasattr(whole.patch_embed, "backbone"):
        side = 64
    elif hasattr(block.attn, "window_size"):
        side = 3 * patch
    else:
        side = [3 * patch, 4 * patch]
    pool = getattr(whole, "attn_pool", None)
    lcm = heads if pool is None else int(np.lcm(heads, pool.num_heads))
    size = {"embed_dim": 8 * lcm, "depth": 2, "num_classes": 5, "img_size": side}
    return size


def relative(ours, theirs):
    """The largest difference, in shares of the largest number."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def scaled(pixels):
    return (pixels.astype("float32") - 127.5) / 127.5


def their_gradients(model, pixels, upstream):
    """Outputs, and the gradients of all parameters, of a torch model."""
    images = np.ascontiguousarray(scaled(pixels).transpose(0, 3, 1, 2))
    model.zero_grad()
    outputs = model(torch.from_numpy(images))
    if upstream is None:
        upstream = torch.from_numpy(
            np.random.default_rng(1).normal(size=outputs.shape).astype("float32")
        )
    (outputs * upstream).sum().backward()
    named = {
        name: at.grad.numpy() if at.grad is not None else np.zeros(at.shape, "float32")
        for name, at in model.named_parameters()
    }
    return outputs.detach().numpy(), upstream, named


def our_gradients(model, pixels, upstream):
    """The same of ours: gradients by canonical name."""
    for variable in model.trainable_variables:
        variable.value.grad = None
    outputs = model(keras.ops.convert_to_tensor(scaled(pixels)), training=False)
    (outputs * upstream).sum().backward()
    found = {}
    for entry in variables.entries(model):
        gradient = entry.variable.value.grad
        gradient = (
            torch.zeros_like(entry.variable.value) if gradient is None else gradient
        )
        split = dataclasses.replace(entry, variable=gradient.numpy()).split()
        found |= split
    return outputs.detach().numpy(), found


def gradient_difference(ours, theirs, where, patches, config):
    """The largest difference of any tensor's gradient, in shares of its own scale.

    Theirs are brought under canonical names as the parameters were: the layouts
    are linear. A row that stands for no parameter of theirs is left out.
    """
    heads, map_heads = (
        getattr(config, "num_heads", 1),
        getattr(config, "map_heads", None),
    )
    read = names.canonical(
        theirs, where, heads=heads, map_heads=map_heads, patches=patches
    )
    if getattr(config, "layer_scale", None) is None and not isinstance(
        config, keras_vit.PlainViTConfig
    ):
        read = names.as_paper(read)
    scale = max(np.abs(at).max() for at in read.tensors.values())
    worst = 0.0
    for name, gradient in read.tensors.items():
        if name.endswith("/bias") and not gradient.any():
            continue  # Zeros that stand for a bias they do not have.
        if getattr(config, "classifier", "") == "distilled" and "head" in name:
            continue  # Two heads of theirs, each halved, are one of ours.
        own = ours[name]
        if name == variables.POSITIONS and own.shape == gradient.shape:
            used = np.abs(gradient).max(axis=(0, 2)) > 0
            if not used.any():
                continue  # MAE's are not trained.
            own, gradient = own[:, used], gradient[:, used]
        size = max(np.abs(gradient).max(), 0.05 * scale)
        worst = max(worst, float(np.abs(own - gradient).max() / size))
    return worst


def made(name, arguments):
    """A tiny model, and what `save_for_hf` is to be told of it."""
    if not re.match("resnetv2_.*_bit", name):
        return timm.create_model(name, **arguments), {}
    conv = functools.partial(timm.layers.StdConv2d, eps=1e-8)
    model = timm.models.resnetv2.ResNetV2(
        **arguments, stem_type="fixed", conv_layer=conv
    )
    with torch.device("meta"):
        model.pretrained_cfg = timm.create_model(name).pretrained_cfg
    return model, {"model_args": arguments}


def compare(name, folder, seed=3):
    """Writes the architecture by timm and reads it by us."""
    count = tags()[name]
    result = Result(name, count)
    arguments = arguments_of(name)
    try:
        model, saved = made(name, arguments)
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        return dataclasses.replace(
            result, refused=timm_names.family_refused(name) or f"not made tiny: {error}"
        )
    model = making.randomise(model, seed)
    timm.models.save_for_hf(model, folder, safe_serialization=True, **saved)
    side = arguments.get("img_size", 64)
    pixels = making.images(seed, *making._pair(side))
    try:
        ours = keras_vit.from_checkpoint(folder, image_size=pixels.shape[1:3])
        features = keras_vit.from_checkpoint(
            folder, image_size=pixels.shape[1:3], classes=0
        )
    except ValueError as error:
        family = timm_names.family_refused(name)
        return dataclasses.replace(result, refused=family or str(error))
    theirs, upstream, gradients = their_gradients(model, pixels, None)
    outputs, own = our_gradients(ours, pixels, upstream)
    with torch.no_grad():
        images = torch.from_numpy(
            np.ascontiguousarray(scaled(pixels).transpose(0, 3, 1, 2))
        )
        before = model.forward_head(model.forward_features(images), pre_logits=True)
    found = features.predict(scaled(pixels), verbose=0)
    before = (
        np.concatenate([np.asarray(at) for at in before], -1)
        if isinstance(before, tuple)
        else before.numpy()
    )
    if getattr(ours.config, "classifier", "") == "distilled":  # Theirs is the mean.
        found = found.reshape(len(found), 2, -1).mean(1)
    if before.ndim == 4:
        before = before.mean((2, 3))
    grid = [side // getattr(ours.config, "stride", 1) for side in pixels.shape[1:3]]
    return dataclasses.replace(
        result,
        outputs=relative(outputs, theirs),
        features=relative(found.reshape(before.shape), before),
        gradients=gradient_difference(
            own, gradients, name, math.prod(grid), ours.config
        ),
        family=type(ours.config).__name__,
    )


def table(results):
    """The lines of all results, and the counts below them."""
    lines = [f"{'architecture':44} tags   outputs  features gradients  config"]
    for at in results:
        if at.refused:
            reason = re.sub(r"\s+", " ", at.refused)
            lines.append(f"{at.architecture:44} {at.tags:4}   refused: {reason[:110]}")
        else:
            numbers = f"{at.outputs:.1e}   {at.features:.1e}   {at.gradients:.1e}"
            lines.append(f"{at.architecture:44} {at.tags:4}   {numbers}  {at.family}")
    read = sum(at.tags for at in results if not at.refused)
    lines.append(f"{read} of {sum(at.tags for at in results)} pretrained tags are read")
    return "\n".join(lines)


def main(pattern="."):
    results = []
    for name in tags():
        if re.search(pattern, name):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    results.append(compare(name, folder))
                except Exception as error:
                    text = f"FAILED {type(error).__name__}: {error}"
                    results.append(Result(name, tags()[name], refused=text))
            print(table(results[-1:]).splitlines()[1], flush=True)
    print(table(results).splitlines()[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
