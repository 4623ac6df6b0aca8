"""Every architecture of timm's ViT and BiT modules, tiny, read by us and compared.

`python -m tests.interop.architectures [PATTERN]` prints the table: outputs and features
in float32, outputs and gradients in float64, and how many of timm's pretrained tags
they are.
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
from tests.precision import in_float64

MODULES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "deit",
    "beit",
    "eva",
    "resnetv2",
)
BIT = {"layers": [1, 1, 1, 1], "channels": [128, 256, 512, 1024], "stem_chs": 32}
# A gradient that is zero in exact arithmetic, in shares of the model's largest: that
# of a key bias, which adds as much to all logits of a query.
ZERO = 1e-12


@dataclasses.dataclass(frozen=True)
class Result:
    """How one architecture compares, or why it is refused.

    Outputs and features are of float32, `exact` of outputs in float64, gradients of
    float64. `rotary`: timm and transformers compute its angles in float32 in any case.
    """

    architecture: str
    tags: int
    outputs: float | None = None
    features: float | None = None
    exact: float | None = None
    gradients: float | None = None
    rotary: bool = False
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


def channels_first(images):
    """A torch tensor of images of ours."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def their_gradients(model, function, images):
    """Outputs, the upstream gradient and the gradients of all parameters, in float64.

    `function` makes outputs of a torch model and images.
    """
    model = model.double()
    model.zero_grad()
    outputs = function(model, channels_first(images).double())
    upstream = torch.from_numpy(np.random.default_rng(1).normal(size=outputs.shape))
    (outputs * upstream).sum().backward()
    return (
        outputs.detach().numpy(),
        upstream,
        {
            name: np.zeros(at.shape) if at.grad is None else at.grad.numpy()
            for name, at in model.named_parameters()
        },
    )


def our_gradients(folder, images, upstream):
    """The config, outputs, and gradients by canonical name, in float64."""
    with in_float64():
        model = keras_vit.from_checkpoint(folder, image_size=images.shape[1:3])
        outputs = model(keras.ops.convert_to_tensor(images.astype("float64")))
        assert outputs.dtype == torch.float64
        (outputs * upstream).sum().backward()
    found = {}
    for entry in variables.entries(model):
        gradient = entry.variable.value.grad
        if gradient is None:
            gradient = torch.zeros_like(entry.variable.value)
        found |= dataclasses.replace(entry, variable=gradient.numpy()).split()
    return model.config, outputs.detach().numpy(), found


def gradient_difference(ours, theirs, where, patches, config):
    """The largest difference of any tensor's gradient, in shares of its own largest.

    Theirs are brought under canonical names as the parameters were: the layouts
    are linear. Zeros that stand for a parameter they do not have are left out.
    """
    read = names.canonical(
        theirs,
        where,
        heads=getattr(config, "num_heads", 1),
        map_heads=getattr(config, "map_heads", None),
        patches=patches,
    )
    own = read.tensors.keys()
    if not isinstance(config, keras_vit.PlainViTConfig):
        read = names.as_paper(read)
    expected = {name: read.tensors[name] for name in own}
    if getattr(config, "classifier", "") == "distilled" and "head/kernel" in own:
        # Our kernel is half of theirs, our bias half of the sum of their two.
        expected["head/kernel"] = 4 * expected["head/kernel"]
        expected["head/bias"] = 2 * expected["head/bias"]
    zero = ZERO * max(np.abs(at).max() for at in expected.values())
    worst = 0.0
    for name, gradient in expected.items():
        found = ours[name]
        if name == variables.POSITIONS:  # MAE's are not trained, others have no row.
            used = np.abs(gradient).max(axis=(0, 2)) > 0
            gradient, found = gradient[:, used], found[:, used]
        difference = np.abs(found - gradient).max(initial=0.0)
        size = np.abs(gradient).max(initial=0.0)
        if max(size, difference) > zero:
            worst = max(worst, float(difference / size))
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
    images = scaled(pixels)
    tensor = channels_first(images)
    with torch.no_grad():
        theirs = model(tensor).numpy()
        before = model.forward_head(model.forward_features(tensor), pre_logits=True)
    outputs = ours.predict(images, verbose=0)
    found = features.predict(images, verbose=0)
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
    double, upstream, gradients = their_gradients(model, lambda at, x: at(x), images)
    config, own_double, own = our_gradients(folder, images, upstream)
    return dataclasses.replace(
        result,
        outputs=relative(outputs, theirs),
        features=relative(found.reshape(before.shape), before),
        exact=relative(own_double, double),
        gradients=gradient_difference(own, gradients, name, math.prod(grid), config),
        rotary=getattr(config, "rotary", None) is not None,
        family=type(config).__name__,
    )


def table(results):
    """The lines of all results, and the counts below them."""
    lines = [f"{'architecture':44} tags   outputs  features exact    gradients  config"]
    for at in results:
        if at.refused:
            reason = re.sub(r"\s+", " ", at.refused)
            lines.append(f"{at.architecture:44} {at.tags:4}   refused: {reason[:110]}")
        else:
            compared = (at.outputs, at.features, at.exact, at.gradients)
            numbers = "  ".join(f"{number:.1e}" for number in compared)
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
