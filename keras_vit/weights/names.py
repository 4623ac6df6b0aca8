"""Tables that map every published dialect of checkpoints to our canonical names.

A dialect is a list of rules: our name, the library's name, and the difference in axes.
`{i}` is a number; `{b-1}` is a number that counts from 0 there and from 1 here.
`{query,key,value}` in our name are the parts of one tensor there, in this order.

| dialect | written by | distinctive features |
|---|---|---|
| official | vit_jax | one counter for all sub-modules, or one for each class |
| big_vision | big_vision | positions before the class token; blocks may be stacked |
| bit | big_transfer | `resnet/block1/unit01/a/standardized_conv2d` |
| timm | timm | torch axes; query, key and value in one tensor |
| hf | transformers | torch axes |
| hf-tf | transformers on TensorFlow | hf's modules in a tf_model.h5, Keras axes |
| tfvit | tfvit | Keras axes; LayerScale; registers in one token tensor |
| keras-hub | keras-hub | Keras axes, one number for each layer |
| torchvision | torchvision | query, key and value in one tensor |
| open_clip | OpenAI's CLIP, OpenCLIP | the image tower, under `visual.` |
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.callers import warn
from keras_vit.weights import renaming
from keras_vit.weights.timm_names import WIDTHS
from keras_vit.weights.variables import POSITIONS

LINEN = {  # pre-linen: linen, inside an encoder block (official checkpoint.py).
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
PRE_LINEN = {linen: pre_linen for pre_linen, linen in LINEN.items()}

_BLOCK = re.compile(r"^(Transformer/encoderblock_\d+/)([^/]+)(/.*)$")


def renumber(name: str, table: Mapping[str, str]) -> str:
    """A tensor's name with its block's sub-module renamed by `LINEN` or `PRE_LINEN`."""
    match = _BLOCK.match(name)
    if match is None:
        return name
    block, module, rest = match.groups()
    return f"{block}{table.get(module, module)}{rest}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Conversion of a tensor from the library's axes to ours and back; k heads."""

    read: Callable[[np.ndarray, int], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


SAME = Layout(lambda t, k: t, lambda t: t)
DENSE = Layout(lambda t, k: t.T, lambda t: t.T)  # (out, in) -> (in, out)
CONV = Layout(  # OIHW -> HWIO
    lambda t, k: t.transpose(2, 3, 1, 0), lambda t: t.transpose(3, 2, 0, 1)
)
HEADS_KERNEL = Layout(  # (k D_h, D) -> (D, k, D_h)
    lambda t, k: t.T.reshape(t.shape[1], k, -1), lambda t: t.reshape(len(t), -1).T
)
HEADS_BIAS = Layout(lambda t, k: t.reshape(k, -1), lambda t: t.reshape(-1))
OUT_KERNEL = Layout(  # (D, k D_h) -> (k, D_h, D)
    lambda t, k: t.T.reshape(k, -1, len(t)), lambda t: t.reshape(-1, t.shape[-1]).T
)
NORM = Layout(  # (1, 1, 1, C), in the official files, -> (C,)
    lambda t, k: t.reshape(-1), lambda t: t.reshape(1, 1, 1, -1)
)
KERAS_HEADS = Layout(  # (D, k D_h) -> (D, k, D_h)
    lambda t, k: t.reshape(len(t), k, -1), lambda t: t.reshape(len(t), -1)
)
KERAS_OUT = Layout(  # (k D_h, D) -> (k, D_h, D)
    lambda t, k: t.reshape(k, -1, t.shape[-1]), lambda t: t.reshape(-1, t.shape[-1])
)
FLAT = Layout(lambda t, k: t.reshape(-1), lambda t: t)
ADD_AXIS = Layout(lambda t, k: t[None], lambda t: t[0])
TOKEN = Layout(lambda t, k: t[None, None], lambda t: t[0, 0])  # (D,) -> (1, 1, D)
HEAD_HWIO = Layout(lambda t, k: t[0, 0], lambda t: t[None, None])
HEAD_OIHW = Layout(lambda t, k: t[:, :, 0, 0].T, lambda t: t.T[:, :, None, None])


def _patches(t: np.ndarray, k: int) -> np.ndarray:
    """(D, P P C), P rows of P pixels of C = 3, or OIHW, -> HWIO."""
    if t.ndim != 2:
        return CONV.read(t, k)
    side = math.isqrt(t.shape[1] // 3)
    return t.T.reshape(side, side, 3, len(t))


CONV_OR_PATCHES = Layout(_patches, CONV.write)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule: our name, the library's name, and the layout."""

    ours: str
    theirs: str
    layout: Layout = SAME

    @functools.cached_property
    def parts(self) -> list[str]:
        """Our names for the parts of the library's tensor."""
        match = re.search(r"\{(\w+(?:,\w+)+)\}", self.ours)
        if match is None:
            return [self.ours]
        return [self.ours.replace(match[0], part) for part in match[1].split(",")]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One library's names and axes for the tensors of one family of models."""

    name: str
    rules: tuple[Rule, ...]
    numerics: str = "paper"  # The library's key in `configs.NUMERICS`.
    prefixes: tuple[str, ...] = ()  # Prefixes of most names in some of its classes.
    ignored: str = r"$^"  # Names of tensors that are not weights of the model.
    placed: bool = True  # Whether every checkpoint has a table of positions.

    @property
    def is_fused(self) -> bool:
        """Whether the axes of query, key and value do not show the heads."""
        return any(rule.layout in (HEADS_KERNEL, KERAS_HEADS) for rule in self.rules)

    def translate(
        self,
        tensors: Mapping[str, np.ndarray],
        heads: int,
        where: str,
        map_heads: int | None = None,
    ) -> dict[str, np.ndarray]:
        """The tensors under canonical names; raises for a tensor without a rule."""
        prefix = next(
            (p for p in self.prefixes if any(n.startswith(p) for n in tensors)), ""
        )
        found: dict[str, np.ndarray] = {}
        used: set[str] = set()
        for theirs in tensors:
            rule, numbers = self._rule(theirs.removeprefix(prefix))
            if rule is None:
                continue
            value = tensors[theirs]
            used.add(theirs)
            names = [_fill(part, numbers) for part in rule.parts]
            try:
                parts = np.split(value, len(names)) if len(names) > 1 else [value]
                for name, part in zip(names, parts, strict=True):
                    if name in found:
                        raise ValueError(f"{name} occurs twice")
                    own = map_heads if name.startswith("MAPHead_0/") else None
                    found[name] = rule.layout.read(part, own or heads)
            except (ValueError, IndexError, TypeError) as error:
                raise ValueError(
                    f"Expected {theirs} to have the axes of {', '.join(names)} for "
                    f"{heads} heads. Received: shape {value.shape} in {where} ({error})"
                ) from error
        unknown = [
            n for n in tensors if n not in used and not re.search(self.ignored, n)
        ]
        if unknown:
            raise ValueError(
                f"Expected the names of a {self.name} checkpoint. Received: {where} "
                f"with {', '.join(sorted(unknown)[:4])}, which the table in "
                "keras_vit/weights/names.py does not contain"
            )
        return found

    def write(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Our tensors under the library's names; KeyError(name) if there is none."""
        written: dict[str, np.ndarray] = {}
        for ours in tensors:
            rule, numbers = self._rule_of_ours(ours, tensors)
            if rule is None:
                raise KeyError(ours)
            theirs = _fill(rule.theirs, numbers)
            if theirs not in written:
                parts = [
                    rule.layout.write(tensors[_fill(part, numbers)])
                    for part in rule.parts
                ]
                is_head = ours.startswith(("head/", "head_dist/"))
                bare = is_head or not self.prefixes
                prefix = "" if bare else self.prefixes[0]
                written[prefix + theirs] = np.ascontiguousarray(np.concatenate(parts))
        return written

    def _rule(self, theirs: str) -> tuple[Rule | None, dict[str, int]]:
        for rule in self.rules:
            if (numbers := _match(rule.theirs, theirs)) is not None:
                return rule, numbers
        return None, {}

    def _rule_of_ours(
        self, ours: str, tensors: Mapping[str, np.ndarray]
    ) -> tuple[Rule | None, dict[str, int]]:
        """The first rule for our tensor for which all parts exist."""
        for rule in self.rules:
            for part in rule.parts:
                numbers = _match(part, ours)
                if numbers is not None and all(
                    _fill(other, numbers) in tensors for other in rule.parts
                ):
                    return rule, numbers
        return None, {}

    def spelled(self, prefixes: tuple[str, ...], *rules: Rule) -> "Dialect":
        """A dialect that writes some tensors by these rules, with these prefixes."""
        return dataclasses.replace(self, prefixes=prefixes, rules=(*rules, *self.rules))


_PLACE = re.compile(r"\{(\w)([+-]\d)?(:02)?\}")


@functools.cache
def _pattern(template: str) -> tuple[re.Pattern[str], dict[str, int]]:
    """A template as a pattern, and the offset to subtract from each number."""
    offsets = {m[1]: int(m[2] or 0) for m in _PLACE.finditer(template)}
    pattern, end = "", 0
    for place in _PLACE.finditer(template):
        again = f"(?P<{place[1]}>" in pattern
        number = f"(?P={place[1]})" if again else f"(?P<{place[1]}>[0-9]{{1,4}})"
        pattern += re.escape(template[end : place.start()]) + number
        end = place.end()
    return re.compile(pattern + re.escape(template[end:])), offsets


def _match(template: str, name: str) -> dict[str, int] | None:
    """The numbers in `name` if it matches `template`."""
    pattern, offsets = _pattern(template)
    match = pattern.fullmatch(name)
    if match is None:
        return None
    return {letter: int(match[letter]) - offsets[letter] for letter in offsets}


def _fill(template: str, numbers: Mapping[str, int]) -> str:
    def number(place: re.Match[str]) -> str:
        value = numbers[place[1]] + int(place[2] or 0)
        return f"{value:02}" if place[3] else str(value)

    return _PLACE.sub(number, template)


def _dense(
    ours: str,
    theirs: str,
    layout: Layout = DENSE,
    bias: Layout = SAME,
    endings: tuple[str, str] = (".weight", ".bias"),
) -> list[Rule]:
    return [
        Rule(f"{ours}/kernel", theirs + endings[0], layout),
        Rule(f"{ours}/bias", theirs + endings[1], bias),
    ]


def _norm(
    ours: str, theirs: str, endings: tuple[str, str] = (".weight", ".bias")
) -> list[Rule]:
    return [
        Rule(f"{ours}/scale", theirs + endings[0]),
        Rule(f"{ours}/bias", theirs + endings[1]),
    ]


BLOCK = "Transformer/encoderblock_{i}"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_0"
MLP = f"{BLOCK}/MlpBlock_0"
SCALE = f"{BLOCK}/LayerScale_{{s}}/gamma"
MAP = "MAPHead_0/MultiHeadDotProductAttention_0"
_GAMMA = ("/gamma", "/beta")


def _projections(theirs: str) -> list[Rule]:
    """Query, key and value as q_proj, k_proj and v_proj."""
    return [
        rule
        for matrix in ("query", "key", "value")
        for rule in _dense(
            f"{ATTENTION}/{matrix}",
            f"{theirs}.{matrix[0]}_proj",
            HEADS_KERNEL,
            HEADS_BIAS,
        )
    ]


def _units(theirs: str) -> list[Rule]:
    """The bottleneck units of a torch ResNet: conv1, norm1, ..., downsample."""
    unit = "block{b}/unit{u}"
    rules: list[Rule] = []
    for n in (1, 2, 3):
        rules.append(Rule(f"{unit}/conv{n}/kernel", f"{theirs}.conv{n}.weight", CONV))
        rules += _norm(f"{unit}/gn{n}", f"{theirs}.norm{n}")
    projection = f"{theirs}.downsample.conv.weight"
    return [
        *rules,
        Rule(f"{unit}/conv_proj/kernel", projection, CONV),
        *_norm(f"{unit}/gn_proj", f"{theirs}.downsample.norm"),
    ]


def _root(theirs: str, norm: str) -> list[Rule]:
    return [
        Rule("conv_root/kernel", f"{theirs}.weight", CONV),
        *_norm("gn_root", norm),
    ]


def _bit_units() -> list[Rule]:
    """big_transfer's units: a, b and c each have a norm, then a convolution."""
    ours, theirs = "block{b}/unit{u}", "resnet/block{b}/unit{u:02}"
    rules: list[Rule] = []
    for n, letter in ((1, "a"), (2, "b"), (3, "c")):
        conv = f"{theirs}/{letter}/standardized_conv2d/kernel"
        rules.append(Rule(f"{ours}/conv{n}/kernel", conv))
        rules += _norm(f"{ours}/gn{n}", f"{theirs}/{letter}/group_norm", _GAMMA)
    projection = f"{theirs}/a/proj/standardized_conv2d/kernel"
    return [*rules, Rule(f"{ours}/conv_proj/kernel", projection)]


BIT = Dialect(
    "bit",
    (
        Rule("conv_root/kernel", "resnet/root_block/standardized_conv2d/kernel"),
        *_bit_units(),
        *_norm("gn_final", "resnet/group_norm", _GAMMA),
        Rule("head/kernel", "resnet/head/conv2d/kernel", HEAD_HWIO),
        Rule("head/bias", "resnet/head/conv2d/bias"),
    ),
)

_GAMMA_1 = Rule(SCALE, "blocks.{i}.gamma_{s+1}")  # Eva's and Beit's LayerScale.
_TIMM_SPLIT_GATE = (
    *_dense(f"{MLP}/Gate", "blocks.{i}.mlp.fc1_g"),
    *_dense(f"{MLP}/Dense_0", "blocks.{i}.mlp.fc1_x"),
)
# cls_token and similar tokens keep their names; `_join_tokens` joins them as `cls`.
TIMM = Dialect(
    "timm",
    (
        Rule("cls_token", "cls_token"),
        Rule("dist_token", "dist_token"),
        Rule("reg_token", "reg_token"),
        Rule("pos_embed", "pos_embed"),
        *_dense("embedding", "patch_embed.proj", CONV),
        *_norm(f"{BLOCK}/LayerNorm_0", "blocks.{i}.norm1"),
        *_dense(
            ATTENTION + "/{query,key,value}",
            "blocks.{i}.attn.qkv",
            HEADS_KERNEL,
            HEADS_BIAS,
        ),
        Rule(f"{ATTENTION}/query/bias", "blocks.{i}.attn.q_bias", HEADS_BIAS),
        Rule(f"{ATTENTION}/value/bias", "blocks.{i}.attn.v_bias", HEADS_BIAS),
        *_projections("blocks.{i}.attn"),
        *_norm(f"{ATTENTION}/query_norm", "blocks.{i}.attn.q_norm"),
        *_norm(f"{ATTENTION}/key_norm", "blocks.{i}.attn.k_norm"),
        *_norm(f"{ATTENTION}/LayerNorm_0", "blocks.{i}.attn.norm"),
        Rule(f"{ATTENTION}/frequencies", "blocks.{i}.attn.rope_freqs"),
        Rule(
            f"{ATTENTION}/relative_position_bias",
            "blocks.{i}.attn.relative_position_bias_table",
        ),
        *_dense(f"{ATTENTION}/out", "blocks.{i}.attn.proj", OUT_KERNEL),
        Rule(SCALE, "blocks.{i}.ls{s+1}.gamma"),
        _GAMMA_1,
        *_norm(f"{BLOCK}/LayerNorm_1", "blocks.{i}.norm2"),
        *_dense(MLP + "/{Gate,Dense_0}", "blocks.{i}.mlp.fc1_packed"),
        *_dense(f"{MLP}/Dense_0", "blocks.{i}.mlp.fc1"),
        *_TIMM_SPLIT_GATE,
        *_norm(f"{MLP}/LayerNorm_0", "blocks.{i}.mlp.norm"),
        *_dense(f"{MLP}/Dense_1", "blocks.{i}.mlp.fc2"),
        *_norm("embedding_norm", "patch_embed.norm"),
        *_norm("Transformer/pre_norm", "norm_pre"),
        *_norm("Transformer/encoder_norm", "norm"),
        *_norm("head_norm", "fc_norm"),
        Rule("MAPHead_0/probe", "attn_pool.latent"),
        *_dense(f"{MAP}/query", "attn_pool.q", HEADS_KERNEL, HEADS_BIAS),
        *_dense(MAP + "/{key,value}", "attn_pool.kv", HEADS_KERNEL, HEADS_BIAS),
        *_dense(f"{MAP}/out", "attn_pool.proj", OUT_KERNEL),
        *_norm("MAPHead_0/LayerNorm_0", "attn_pool.norm"),
        *_dense("MAPHead_0/MlpBlock_0/Dense_0", "attn_pool.mlp.fc1"),
        *_dense("MAPHead_0/MlpBlock_0/Dense_1", "attn_pool.mlp.fc2"),
        *_dense("head", "head"),
        *_dense("head_dist", "head_dist"),
        *_root("patch_embed.backbone.stem.conv", "patch_embed.backbone.stem.norm"),
        *_root("patch_embed.backbone.conv", "patch_embed.backbone.norm"),
        *_units("patch_embed.backbone.stages.{b-1}.blocks.{u-1}"),
    ),
    numerics="timm",
    ignored=r"\.relative_position_index$",  # The index into Beit's table.
    placed=False,
)
TIMM_EVA = TIMM.spelled((), _GAMMA_1)  # For writing: LayerScale of Eva and Beit.
TIMM_EVA_SPLIT = TIMM_EVA.spelled((), *_TIMM_SPLIT_GATE)  # With a separate gate.
TIMM_BIT = Dialect(
    "timm",
    (
        Rule("conv_root/kernel", "stem.conv.weight", CONV),
        *_units("stages.{b-1}.blocks.{u-1}"),
        *_norm("gn_final", "norm"),
        *_dense("head", "head.fc", HEAD_OIHW),
    ),
    numerics="timm",
)


def _hf_block(
    block: str,
    attention: tuple[str, str, str, str],
    norms: tuple[str, str],
    mlp: tuple[str, str],
) -> list[Rule]:
    """An encoder layer of transformers; only the names vary."""
    rules = _norm(f"{BLOCK}/LayerNorm_0", f"{block}.{norms[0]}")
    for matrix, name in zip(("query", "key", "value"), attention[:3], strict=True):
        theirs = f"{block}.attention.{name}"
        rules += _dense(f"{ATTENTION}/{matrix}", theirs, HEADS_KERNEL, HEADS_BIAS)
    return [
        *rules,
        *_dense(f"{ATTENTION}/out", f"{block}.attention.{attention[3]}", OUT_KERNEL),
        Rule(SCALE, f"{block}.layer_scale{{s+1}}.lambda1"),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{block}.{norms[1]}"),
        *_dense(f"{MLP}/Dense_0", f"{block}.{mlp[0]}"),
        *_dense(f"{MLP}/Dense_1", f"{block}.{mlp[1]}"),
    ]


_CLASSIC = ("attention.query", "attention.key", "attention.value", "output.dense")
_NEW = ("q_proj", "k_proj", "v_proj", "o_proj")  # transformers 5, in memory.
_BEFORE_AFTER = ("layernorm_before", "layernorm_after")
_HF_STEM = "embeddings.patch_embeddings.backbone.bit"
_DINOV2 = (("norm1", "norm2"), ("mlp.fc1", "mlp.fc2"))
_DINOV2_GATED = (
    *_dense(MLP + "/{Gate,Dense_0}", "encoder.layer.{i}.mlp.weights_in"),
    *_dense(f"{MLP}/Dense_1", "encoder.layer.{i}.mlp.weights_out"),
)
_LAMBDA = Rule(SCALE, "encoder.layer.{i}.lambda_{s+1}")  # BEiT's LayerScale.

# The first name of each tensor is written: the one in ViT's published files.
HF = Dialect(
    "hf",
    (
        Rule("cls_token", "embeddings.cls_token"),
        Rule("dist_token", "embeddings.distillation_token"),
        Rule("reg_token", "embeddings.register_tokens"),
        Rule("pos_embed", "embeddings.position_embeddings"),
        *_dense("embedding", "embeddings.patch_embeddings.projection", CONV),
        *_hf_block(
            "encoder.layer.{i}",
            _CLASSIC,
            _BEFORE_AFTER,
            ("intermediate.dense", "output.dense"),
        ),
        *_hf_block("layers.{i}", _NEW, _BEFORE_AFTER, ("mlp.fc1", "mlp.fc2")),
        *(
            rule
            for attention in (_CLASSIC, _NEW)  # DINOv2
            for rule in _hf_block("encoder.layer.{i}", attention, *_DINOV2)
        ),
        *_DINOV2_GATED,
        _LAMBDA,
        Rule(
            f"{ATTENTION}/relative_position_bias",
            "encoder.layer.{i}.attention.attention.relative_position_bias."
            "relative_position_bias_table",
        ),
        *_norm("head_norm", "pooler.layernorm"),
        *_norm("Transformer/encoder_norm", "layernorm"),
        *_dense("pre_logits", "pooler.dense"),
        *_root(f"{_HF_STEM}.embedder.convolution", f"{_HF_STEM}.embedder.norm"),
        *_units(_HF_STEM + ".encoder.stages.{b-1}.layers.{u-1}"),
        *_dense("head", "classifier"),
        *_dense("head", "cls_classifier"),
        *_dense("head_dist", "distillation_classifier"),
    ),
    numerics="hf",
    prefixes=(
        *("vit.", "deit.", "dinov2.", "dinov2_with_registers."),
        *("beit.", "data2vec_vision.", "ijepa."),
    ),
    # Tensors of pre-training, and the index into BEiT's table.
    ignored=r"embeddings\.mask_token$|^decoder\.|\.relative_position_index$",
)
HF_DEIT = dataclasses.replace(  # For writing: DeiT's prefix and heads.
    HF,
    prefixes=("deit.",),
    rules=tuple(rule for rule in HF.rules if not rule.theirs.startswith("classifier.")),
)
# Also for writing: each family's names in its published files.
HF_IJEPA = HF.spelled(("ijepa.",))
HF_BEIT = HF.spelled(("beit.",), _LAMBDA)
HF_DINOV2 = HF.spelled(
    ("dinov2.",), *_hf_block("encoder.layer.{i}", _CLASSIC, *_DINOV2)
)
HF_DINOV2_GATED = HF_DINOV2.spelled(HF_DINOV2.prefixes, *_DINOV2_GATED)


def _hf_attention(theirs: str, out: str) -> list[Rule]:
    """Attention with the four layers q_proj, k_proj, v_proj and the output."""
    return [
        *_projections(theirs),
        *_dense(f"{ATTENTION}/out", f"{theirs}.{out}", OUT_KERNEL),
    ]


_DINOV3 = "layer.{i}"
HF_DINOV3 = Dialect(
    "hf",
    (
        Rule("cls_token", "embeddings.cls_token"),
        Rule("reg_token", "embeddings.register_tokens"),
        *_dense("embedding", "embeddings.patch_embeddings", CONV),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_DINOV3}.norm1"),
        *_hf_attention(f"{_DINOV3}.attention", "o_proj"),
        Rule(SCALE, f"{_DINOV3}.layer_scale{{s+1}}.lambda1"),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_DINOV3}.norm2"),
        *_dense(f"{MLP}/Gate", f"{_DINOV3}.mlp.gate_proj"),
        *_dense(f"{MLP}/Dense_0", f"{_DINOV3}.mlp.up_proj"),
        *_dense(f"{MLP}/Dense_1", f"{_DINOV3}.mlp.down_proj"),
        *_norm("Transformer/encoder_norm", "norm"),
        *_dense("head", "classifier"),
    ),
    numerics="hf",
    prefixes=("dinov3_vit.model.", "dinov3_vit.", "model."),
    ignored=r"embeddings\.mask_token$|inv_freq$",
    placed=False,
)
_CLIP = "encoder.layers.{i}"
# torch.nn.MultiheadAttention has one tensor for query, key and value.
_IN_ONE = ("_weight", "_bias")
HF_CLIP = Dialect(  # CLIP, SigLIP and SigLIP 2.
    "hf",
    (
        Rule("cls_token", "embeddings.class_embedding", TOKEN),
        Rule("pos_embed", "embeddings.position_embedding.weight", ADD_AXIS),
        *_dense("embedding", "embeddings.patch_embedding", CONV_OR_PATCHES),
        *_norm("Transformer/pre_norm", "pre_layrnorm"),
        *_norm("Transformer/pre_norm", "pre_layernorm"),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_CLIP}.layer_norm1"),
        *_hf_attention(f"{_CLIP}.self_attn", "out_proj"),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_CLIP}.layer_norm2"),
        *_dense(f"{MLP}/Dense_0", f"{_CLIP}.mlp.fc1"),
        *_dense(f"{MLP}/Dense_1", f"{_CLIP}.mlp.fc2"),
        *_norm("Transformer/encoder_norm", "post_layernorm"),
        Rule("MAPHead_0/probe", "head.probe"),
        *_dense(
            MAP + "/{query,key,value}",
            "head.attention.in_proj",
            HEADS_KERNEL,
            HEADS_BIAS,
            endings=_IN_ONE,
        ),
        *_dense(f"{MAP}/out", "head.attention.out_proj", OUT_KERNEL),
        *_norm("MAPHead_0/LayerNorm_0", "head.layernorm"),
        *_dense("MAPHead_0/MlpBlock_0/Dense_0", "head.mlp.fc1"),
        *_dense("MAPHead_0/MlpBlock_0/Dense_1", "head.mlp.fc2"),
        Rule("head/kernel", "visual_projection.weight", DENSE),
        *_dense("head", "classifier"),
    ),
    numerics="hf",
    prefixes=("vision_model.vision_model.", "vision_model."),
    ignored=r"^(text_model|text_projection|logit_scale|logit_bias)|position_ids$",
    placed=False,
)
_TORCHVISION = "encoder.layers.encoder_layer_{i}"
_OPEN_CLIP = "transformer.resblocks.{i}"
TORCHVISION = Dialect(
    "torchvision",
    (
        Rule("cls_token", "class_token"),
        Rule("pos_embed", "encoder.pos_embedding"),
        *_dense("embedding", "conv_proj", CONV),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_TORCHVISION}.ln_1"),
        *_dense(
            ATTENTION + "/{query,key,value}",
            f"{_TORCHVISION}.self_attention.in_proj",
            HEADS_KERNEL,
            HEADS_BIAS,
            endings=_IN_ONE,
        ),
        *_dense(
            f"{ATTENTION}/out", f"{_TORCHVISION}.self_attention.out_proj", OUT_KERNEL
        ),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_TORCHVISION}.ln_2"),
        *_dense(f"{MLP}/Dense_0", f"{_TORCHVISION}.mlp.0"),
        *_dense(f"{MLP}/Dense_1", f"{_TORCHVISION}.mlp.3"),
        *_dense(f"{MLP}/Dense_0", f"{_TORCHVISION}.mlp.linear_1"),  # Its first files.
        *_dense(f"{MLP}/Dense_1", f"{_TORCHVISION}.mlp.linear_2"),
        *_norm("Transformer/encoder_norm", "encoder.ln"),
        *_dense("pre_logits", "heads.pre_logits"),
        *_dense("head", "heads.head"),
    ),
    numerics="timm",  # The exact GELU, 1e-6.
)
OPEN_CLIP = Dialect(  # The image tower of OpenAI's CLIP and of OpenCLIP.
    "open_clip",
    (
        Rule("cls_token", "class_embedding", TOKEN),
        Rule("pos_embed", "positional_embedding", ADD_AXIS),
        Rule("embedding/kernel", "conv1.weight", CONV),
        *_norm("Transformer/pre_norm", "ln_pre"),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_OPEN_CLIP}.ln_1"),
        *_dense(
            ATTENTION + "/{query,key,value}",
            f"{_OPEN_CLIP}.attn.in_proj",
            HEADS_KERNEL,
            HEADS_BIAS,
            endings=_IN_ONE,
        ),
        *_dense(f"{ATTENTION}/out", f"{_OPEN_CLIP}.attn.out_proj", OUT_KERNEL),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_OPEN_CLIP}.ln_2"),
        *_dense(f"{MLP}/Dense_0", f"{_OPEN_CLIP}.mlp.c_fc"),
        *_dense(f"{MLP}/Dense_1", f"{_OPEN_CLIP}.mlp.c_proj"),
        *_norm("Transformer/encoder_norm", "ln_post"),
        Rule("head/kernel", "proj"),
    ),
    numerics="hf",
)
HF_BIT = Dialect(
    "hf",
    (
        Rule("conv_root/kernel", "embedder.convolution.weight", CONV),
        *_units("encoder.stages.{b-1}.layers.{u-1}"),
        *_norm("gn_final", "norm"),
        *_dense("head", "classifier.1"),
    ),
    numerics="hf",
    prefixes=("bit.",),
)

_KERAS = ("/kernel:0", "/bias:0")
_KERAS_NORM = ("/gamma:0", "/beta:0")
_TF_BLOCK = "vit/encoder/layer_._{i}"

# transformers on TensorFlow; the groups of the model's class are removed before.
HF_TF = Dialect(
    "hf-tf",
    (
        Rule("cls_token", "vit/embeddings/cls_token:0"),
        Rule("pos_embed", "vit/embeddings/position_embeddings:0"),
        *_dense(
            "embedding",
            "vit/embeddings/patch_embeddings/projection",
            SAME,
            endings=_KERAS,
        ),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_TF_BLOCK}/layernorm_before", _KERAS_NORM),
        *(
            rule
            for matrix in ("query", "key", "value")
            for rule in _dense(
                f"{ATTENTION}/{matrix}",
                f"{_TF_BLOCK}/attention/attention/{matrix}",
                KERAS_HEADS,
                HEADS_BIAS,
                endings=_KERAS,
            )
        ),
        *_dense(
            f"{ATTENTION}/out",
            f"{_TF_BLOCK}/attention/output/dense",
            KERAS_OUT,
            endings=_KERAS,
        ),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_TF_BLOCK}/layernorm_after", _KERAS_NORM),
        *_dense(
            f"{MLP}/Dense_0", f"{_TF_BLOCK}/intermediate/dense", SAME, endings=_KERAS
        ),
        *_dense(f"{MLP}/Dense_1", f"{_TF_BLOCK}/output/dense", SAME, endings=_KERAS),
        *_norm("Transformer/encoder_norm", "vit/layernorm", _KERAS_NORM),
        *_dense("pre_logits", "vit/pooler/dense", SAME, endings=_KERAS),
        *_dense("head", "classifier", SAME, endings=_KERAS),
    ),
    numerics="hf",
)


def _twice(name: str) -> str:
    """Tfvit's group and dataset have the same name."""
    return f"{name}/{name}"


_LAYER = "layer_{i}"
TFVIT = Dialect(
    "tfvit",
    (
        Rule("cls", _twice("patch/cls") + "/token:0"),
        Rule("pos_embed", _twice("patch/pos") + "/embedding:0"),
        *_dense("embedding", _twice("patch/embed"), SAME, endings=_KERAS),
        *_norm(f"{BLOCK}/LayerNorm_0", _twice(f"{_LAYER}/attn/norm"), _KERAS_NORM),
        *(
            rule
            for ours, theirs in (
                ("query", "query"),
                ("key", "key"),
                ("value", "value"),
                ("out", "attention_output"),
            )
            for rule in _dense(
                f"{ATTENTION}/{ours}",
                f"{_twice(f'{_LAYER}/attn/mhsa')}/{theirs}",
                SAME,
                endings=_KERAS,
            )
        ),
        *(
            Rule(
                SCALE.replace("{s}", str(number)),
                _twice(f"{_LAYER}/{branch}/scale") + "/gamma:0",
                FLAT,
            )
            for number, branch in enumerate(("attn", "mlp"))
        ),
        *_norm(f"{BLOCK}/LayerNorm_1", _twice(f"{_LAYER}/mlp/norm"), _KERAS_NORM),
        *_dense(f"{MLP}/Dense_0", _twice(f"{_LAYER}/mlp/expand"), SAME, endings=_KERAS),
        *_dense(
            f"{MLP}/Dense_1", _twice(f"{_LAYER}/mlp/squeeze"), SAME, endings=_KERAS
        ),
        *_norm("Transformer/encoder_norm", _twice("head/norm"), _KERAS_NORM),
        *_dense("head", _twice("head/proj"), SAME, endings=_KERAS),
    ),
    numerics="timm",
)

_VARS = ("/vars/0", "/vars/1")
_HUB = "layers/vi_t_patching_and_embedding"
_HUB_BLOCK = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}"
KERAS_HUB = Dialect(
    "keras-hub",
    (
        Rule("cls_token", f"{_HUB}/vars/0"),
        Rule("pos_embed", f"{_HUB}/position_embedding/vars/0", ADD_AXIS),
        *_dense("embedding", f"{_HUB}/patch_embedding", SAME, endings=_VARS),
        *_norm(f"{BLOCK}/LayerNorm_0", f"{_HUB_BLOCK}/layer_norm_1", _VARS),
        *(
            rule
            for ours, theirs in (
                ("query", "query"),
                ("key", "key"),
                ("value", "value"),
                ("out", "output"),
            )
            for rule in _dense(
                f"{ATTENTION}/{ours}",
                f"{_HUB_BLOCK}/mha/{theirs}_dense",
                SAME,
                endings=_VARS,
            )
        ),
        *_norm(f"{BLOCK}/LayerNorm_1", f"{_HUB_BLOCK}/layer_norm_2", _VARS),
        *_dense(f"{MLP}/Dense_0", f"{_HUB_BLOCK}/mlp/dense_1", SAME, endings=_VARS),
        *_dense(f"{MLP}/Dense_1", f"{_HUB_BLOCK}/mlp/dense_2", SAME, endings=_VARS),
        *_norm("Transformer/encoder_norm", "layers/vi_t_encoder/layer_norm", _VARS),
        *_dense("pre_logits", "pre_logits", SAME, endings=_VARS),
        *_dense("head", "predictions", SAME, endings=_VARS),
    ),
    numerics="timm",
    ignored=r"^optimizer/",
)

PREFIXES = ("opt/target/", "params/")  # Checkpoints saved with optimizer state.
_STACKED = "Transformer/encoderblock/"
_GROUP_NORM = re.compile(r"(^|/)gn(_root|_final|_proj|\d)/(scale|bias)$")
# Names that only one dialect has; None is Flax, which has the canonical names.
MARKS: tuple[tuple[str, Dialect | None], ...] = (
    (r"^(Transformer/|embedding/kernel$|conv_root/kernel$)", None),
    (r"^resnet/root_block/", BIT),
    (r"^patch_embed\.proj\.weight$", TIMM),
    (r"^stem\.conv\.weight$", TIMM_BIT),
    (r"(^|\.)embeddings\.patch_embeddings\.projection\.weight$", HF),
    (r"(^|\.)embeddings\.patch_embeddings\.weight$", HF_DINOV3),
    (r"(^|\.)embeddings\.patch_embedding\.weight$", HF_CLIP),
    (r"^(bit\.)?embedder\.convolution\.weight$", HF_BIT),
    (r"^conv_proj\.weight$", TORCHVISION),
    (r"^conv1\.weight$", OPEN_CLIP),
    (r"/vit/embeddings/patch_embeddings/projection/kernel:0$", HF_TF),
    (r"^patch/embed/patch/embed/kernel:0$", TFVIT),
    (r"^layers/vi_t_patching_and_embedding/", KERAS_HUB),
)
# Meaningless parts of names: a counter, a class, a missing number of the first block.
SPELLINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "bit": ((r"(standardized_conv2d|group_norm|conv2d)_\d+/", r"\1/"),),
    "hf-tf": ((r"^[^/]+/[^/]+/", ""),),
    "keras-hub": ((r"vi_t_encoder_block/", "vi_t_encoder_block_0/"),),
}
# Parts that no model of this library has, by a pattern of their names.
REFUSED = {
    r"\.(lambda_q1|lambda_a)$": "differential attention",
    r"\.(attns|ffns)\.[0-9]": "parallel attentions and MLPs in a block",
    r"\.(in_proj|attn_out_proj)\.": "attention and MLP in parallel (ViT-22B)",
    r"\.running_mean$": "BatchNorm",
    r"encoder\.relative_position_bias\.": "relative positions shared by all blocks",
}


# Parts that are not weights of the encoder, with the report's note.
LEFT_OUT = {
    r"^decoder\.": "the decoder of pre-training is ignored",
    r"^text_model\.": "the text tower is ignored",
}


@dataclasses.dataclass(frozen=True)
class Canonical:
    """A checkpoint under canonical names, and the other facts of its dialect."""

    tensors: dict[str, np.ndarray]
    dialect: str
    numerics: str  # A key of `configs.NUMERICS`.
    hints: dict[str, Any]  # Fields of a config that only the names show.
    notes: tuple[str, ...] = ()  # Assumptions and ignored parts.
    # Facts that only the original names show, under the names of `Stated.facts`.
    traits: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_translated(self) -> bool:
        """Whether the names came from another library."""
        return self.dialect not in ("official", "big_vision")


def canonical(
    tensors: Mapping[str, np.ndarray],
    where: str,
    *,
    heads: int | None = None,
    map_heads: int | None = None,
    patches: int | None = None,
    embedded: bool | None = None,
    architecture: str | None = None,
    subtree: str | None = None,
    renamed: renaming.Renaming | None = None,
) -> Canonical:
    """Reads a checkpoint of any dialect under canonical names.

    Args:
        tensors: tensors under the names in the file.
        where: the file, for messages.
        heads: k, if known; torch's axes do not show it.
        map_heads: number of heads of attention pooling, if different.
        patches: N, if known; it shows which tokens have no position.
        embedded: whether the tokens before the patches have positions, if known.
        architecture: a timm name that `timm_names` does not contain.
        subtree: the part of a larger model to read, such as "img" (big_vision's LiT).
        renamed: new names by the names in the file, or rules that produce them.

    Raises:
        ValueError: if the names match no dialect or several, or the number of heads is
            not known.
    """
    names = _without_prefix(tensors, subtree)
    names, notes = renaming.rename(names, renamed, where)
    names, removed = renaming.unwrap(names, lambda at: bool(_dialects(at)), where)
    notes += removed
    for pattern, what in REFUSED.items():
        if refused := [name for name in names if re.search(pattern, name)]:
            raise ValueError(
                f"Expected a ViT or a ResNet that this library's layers can compute. "
                f"Received: {where} with {what}: {refused[0]}"
            )
    if is_of_keras(names):
        raise ValueError(
            "Expected a checkpoint with tensors that determine the architecture. "
            f"Received: {where}, a file of Keras's model.save_weights, in which they "
            "do not. Build the model and call model.load_weights(path), or pass the "
            "file to a builder as weights="
        )
    if any(name.startswith("model_weights/") for name in names):
        raise ValueError(
            f"Expected a weights file. Received: {where}, a whole model in Keras's "
            "legacy format, written by model.save('model.h5'). Read it with "
            "keras.models.load_model(path)"
        )
    dialects = _dialects(names)
    if len(dialects) != 1:
        what = "several dialects" if dialects else "no known dialect"
        if not dialects and any(name.startswith("img/") for name in names):
            what += f" (to read the image tower: {where}:img)"
        raise ValueError(
            "Expected the tensors of one ViT or ResNet under the names of one dialect "
            "(official, big_vision, BiT, timm, Hugging Face, torchvision, OpenCLIP, "
            "TFViT or keras-hub). "
            f"Received: {where}, of {what}, with {', '.join(sorted(names)[:4])}, ... "
            "Use from_checkpoint(names=) to rename them"
        )
    (dialect,) = dialects
    found: dict[str, np.ndarray]
    if dialect is None:
        found = {name: tensors[original] for name, original in names.items()}
        _check_filled(found, where)
        read = _flax(found, where)
        return dataclasses.replace(read, notes=(*read.notes, *notes))
    found = {}
    for name, original in names.items():
        for pattern, replacement in SPELLINGS.get(dialect.name, ()):
            name = re.sub(pattern, replacement, name)
        if name in found:
            raise ValueError(
                f"Expected each tensor once. Received: {name} twice in {where}"
            )
        if not re.search(dialect.ignored, name):
            found[name] = tensors[original]
    _check_filled(found, where)
    notes += tuple(
        note
        for pattern, note in LEFT_OUT.items()
        if any(re.search(pattern, name) for name in names)
    )
    if heads is None and dialect.is_fused:
        heads = _usual_heads(dialect, found, where, architecture)
        told = f"num_heads={heads} assumed from hidden_size"
        read = _translated(dialect, found, where, heads, patches, embedded, map_heads)
        hints = {"num_heads": heads} | read.hints
        return dataclasses.replace(read, hints=hints, notes=(told, *read.notes, *notes))
    if architecture is not None and dialect is TIMM_BIT:
        raise ValueError(
            "Expected a timm BiT, such as resnetv2_50x1_bit. Received: "
            f"architecture={architecture!r} in the config.json of {where}"
        )
    read = _translated(dialect, found, where, heads or 1, patches, embedded, map_heads)
    return dataclasses.replace(read, notes=(*read.notes, *notes))


def _dialects(names: Iterable[str]) -> list[Dialect | None]:
    """The dialects with a distinctive name among the names."""
    return [
        dialect
        for mark, dialect in MARKS
        if any(re.search(mark, name) for name in names)
    ]


def _check_filled(tensors: Mapping[str, np.ndarray], where: str) -> None:
    """Raises for empty tensors: the other axes could have any size without data."""
    for name, tensor in tensors.items():
        if not tensor.size:
            raise ValueError(
                f"Expected tensors with values. Received: {name} of shape "
                f"{tensor.shape} in {where}"
            )


def _check_shape(
    tensors: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int | None, ...],
    where: str,
) -> None:
    """Raises unless a tensor has this shape, in which None is any size."""
    found = tensors[name].shape if name in tensors else None
    if (
        found is None
        or len(found) != len(shape)
        or any(
            wanted not in (None, size)
            for size, wanted in zip(found, shape, strict=True)
        )
    ):
        words = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"Expected {name} of shape ({words}). "
            f"Received: {found or 'none'} in {where}"
        )


_KERAS_WEIGHTS = re.compile(r"layers/(patch_embedding/projection|std_conv2d)/vars/0")


def is_of_keras(names: Iterable[str]) -> bool:
    """Whether Keras's `model.save_weights` wrote these names for one of our models."""
    return any(_KERAS_WEIGHTS.fullmatch(name) for name in names)


def is_group_norm(name: str) -> bool:
    """Whether a canonical name belongs to a ResNet's norm."""
    return _GROUP_NORM.search(name) is not None


def _without_prefix(names: Iterable[str], subtree: str | None) -> dict[str, str]:
    """Maps names without the prefixes of optimizers and larger models to originals."""
    found = {name: name for name in names}
    for prefix in (*PREFIXES, *([f"{subtree}/"] if subtree else [])):
        if any(name.startswith(prefix) for name in found):
            found = {
                name.removeprefix(prefix): original
                for name, original in found.items()
                if name.startswith(prefix)
            }
    return found


def _flax(tensors: dict[str, np.ndarray], where: str) -> Canonical:
    """Reads the official files, in either numbering, and big_vision's."""
    tensors = _unstacked(tensors, where)
    blocks = [match for name in tensors if (match := _BLOCK.match(name))]
    if any(match[2] in LINEN for match in blocks):
        tensors = {renumber(name, LINEN): value for name, value in tensors.items()}
    tensors = {
        name: NORM.read(value, 1) if is_group_norm(name) else value
        for name, value in tensors.items()
    }
    placed = any(name.startswith("Transformer/posembed_") for name in tensors)
    dialect = "official" if placed else "big_vision"
    if "pos_embedding" in tensors:
        # Positions are added before the class token is, so that the token has none.
        table = tensors.pop("pos_embedding")
        if "cls" in tensors and table.ndim == 3:
            table = np.pad(table, ((0, 0), (1, 0), (0, 0)))
        tensors[POSITIONS] = table
    return Canonical(tensors, dialect, "paper", {})


def _unstacked(tensors: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Splits big_vision's scan layout, with blocks on axis 0, into one per block."""
    stacks = [value for name, value in tensors.items() if name.startswith(_STACKED)]
    lengths = {value.shape[:1] for value in stacks}
    if stacks and (len(lengths) != 1 or () in lengths):
        raise ValueError(
            "Expected stacked tensors with the same number of blocks. Received: "
            f"{where} with {_STACKED}... of {[value.shape for value in stacks][:8]}"
        )
    found: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        if not name.startswith(_STACKED):
            found[name] = value
            continue
        rest = name.removeprefix(_STACKED)
        found |= {
            f"Transformer/encoderblock_{layer}/{rest}": part
            for layer, part in enumerate(value)
        }
    return found


def _translated(
    dialect: Dialect,
    tensors: dict[str, np.ndarray],
    where: str,
    heads: int,
    patches: int | None,
    embedded: bool | None,
    map_heads: int | None,
) -> Canonical:
    """Reads a file of another library by its table, then joins tokens and heads."""
    hints: dict[str, Any] = {}
    notes: list[str] = []
    found = dialect.translate(_unpacked(tensors), heads, where, map_heads)
    traits = _traits(found, tensors)
    if not traits["positions"] and "embedding/kernel" in found:
        if dialect.placed and not traits["relative_position"]:
            raise ValueError(
                "Expected position embeddings, which every "
                f"{dialect.name} checkpoint has. Received: {where} without any"
            )
        hints["position"] = "none"
    hints |= _join_tokens(found, patches, where, dialect is TIMM, embedded)
    head, embedding = found.get("head/kernel"), found.get("embedding/kernel")
    if head is not None:
        _check_shape(found, "head/kernel", (None, None), where)
    if embedding is not None:
        _check_shape(found, "embedding/kernel", (None,) * 4, where)
    if {"head/kernel", "head_dist/kernel"} <= found.keys():
        # DeiT averages two heads: equal to one head on both tokens, with halved values.
        classes = found["head/kernel"].shape[-1]
        for name in ("head", "head_dist"):
            _check_shape(found, f"{name}/kernel", found["head/kernel"].shape, where)
            _check_shape(found, f"{name}/bias", (classes,), where)
        halves = {
            part: [found.pop(f"{name}/{part}") / 2 for name in ("head", "head_dist")]
            for part in ("kernel", "bias")
        }
        found["head/kernel"] = np.concatenate(halves["kernel"])
        found["head/bias"] = np.asarray(sum(halves["bias"]))
        hints |= {"classifier": "distilled", "num_registers": 0}
    elif head is not None and embedding is not None and "gn_final/scale" not in found:
        if len(head) == 2 * embedding.shape[-1]:
            hints["classifier"] = "token_gap"
        elif dialect in (HF_CLIP, OPEN_CLIP):
            hints |= _clip_head(found)
        elif dialect is HF and "pre_logits/kernel" in found:
            # ViTForImageClassification has no pooler; old files contain an unused one.
            found = _without(found, "pre_logits")
            notes.append("the pooler, which the classifier does not use, is ignored")
    if dialect in (HF_CLIP, OPEN_CLIP):  # CLIP's epsilon, or SigLIP's.
        hints["layer_norm_epsilon"] = 1e-5 if traits["pre_norm"] else 1e-6
    told = tuple(notes)
    name, numerics = dialect.name, dialect.numerics
    return Canonical(found, name, numerics, hints, told, traits)


# Names of timm's Eva, which may have rotary positions that no tensor shows.
_OF_EVA = re.compile(r"^blocks\.0\.(gamma_1$|attn\.(q_bias|q_proj)|mlp\.fc1_g)")


def _clip_head(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Hints for the head of a CLIP or a SigLIP; drops the layers it does not use."""
    if "head/bias" not in found:  # CLIP's projection of the class token.
        return {"head_bias": False}
    hints: dict[str, Any] = {"classifier": "gap"}  # The mean of the patches.
    if "cls_token" in found or "cls" in found:
        for part in ("scale", "bias"):  # The norm of the class token, not used.
            found.pop(f"Transformer/encoder_norm/{part}", None)
        hints |= {"final_norm": False, "num_registers": 1}
    for name in [at for at in found if at.startswith("MAPHead_0/")]:
        del found[name]
    return hints


def _unpacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Splits timm's tensors of several blocks or layers into one per name."""
    found = dict(tensors)
    if (frequencies := found.pop("rope.freqs", None)) is not None:
        for layer in range(frequencies.shape[1] if frequencies.ndim == 4 else 0):
            found[f"blocks.{layer}.attn.rope_freqs"] = frequencies[:, layer]
    for name in tensors:  # A gate, then the layer that it multiplies.
        if not (match := re.fullmatch(r"(blocks\.\d+\.mlp\.)fc1\.(weight|bias)", name)):
            continue
        units, second = tensors[name].shape[:1], tensors.get(f"{match[1]}fc2.weight")
        if second is not None and second.ndim == 2 and units == (2 * second.shape[1],):
            found[f"{match[1]}fc1_packed.{match[2]}"] = found.pop(name)
    return found


def packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Timm's tensors in the form of its files: the inverse of `_unpacked`."""
    found = {
        name.replace(".mlp.fc1_packed.", ".mlp.fc1."): tensor
        for name, tensor in tensors.items()
        if not name.endswith(".rope_freqs")
    }
    count = len(tensors) - len(found)
    layers = [tensors[f"blocks.{layer}.attn.rope_freqs"] for layer in range(count)]
    return found | ({"rope.freqs": np.stack(layers, axis=1)} if layers else {})


def _traits(
    found: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Facts to compare with a config.json, before tokens and biases are joined."""
    first = ATTENTION.replace("{i}", "0")
    registers = found.get("reg_token")
    cls = found.get("cls")  # TFViT's, which contains all tokens.
    traits: dict[str, Any] = {
        "class_token": "cls_token" in found or cls is not None,
        "qkv_bias": f"{first}/query/bias" in found,
        "layer_scale": any("/LayerScale_" in name for name in found),
        "positions": "pos_embed" in found,
        "map_head": "MAPHead_0/probe" in found,
        "qk_norm": f"{first}/query_norm/scale" in found,
        "pre_norm": "Transformer/pre_norm/scale" in found,
        "final_norm": bool(
            {"Transformer/encoder_norm/scale", "head_norm/scale"} & found.keys()
        ),
        "head_norm": "head_norm/scale" in found,
        "attention_norm": f"{first}/LayerNorm_0/scale" in found,
        "mlp_norm": MLP.replace("{i}", "0") + "/LayerNorm_0/scale" in found,
        "gated_mlp": MLP.replace("{i}", "0") + "/Gate/kernel" in found,
        "relative_position": f"{first}/relative_position_bias" in found,
        "of_eva": any(_OF_EVA.search(name) for name in tensors),
    }
    if cls is None:
        traits["num_registers"] = 0
        if registers is not None and registers.ndim == 3:
            traits["num_registers"] = registers.shape[1]
    return traits


def _without(tensors: Mapping[str, np.ndarray], layer: str) -> dict[str, np.ndarray]:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(f"{layer}/")
    }


def _usual_heads(
    dialect: Dialect,
    tensors: Mapping[str, np.ndarray],
    where: str,
    architecture: str | None,
) -> int:
    """The usual number of heads for this hidden size; raises if there is none."""
    if (shown := _shown_heads(tensors)) is not None:
        return shown
    theirs = tuple(
        rule.theirs.replace("{i}", "0")
        for rule in dialect.rules
        if rule.ours == f"{BLOCK}/LayerNorm_0/scale"
    )
    found = [value for name, value in tensors.items() if name.endswith(theirs)]
    hidden_size = found[0].shape[0] if found and found[0].ndim else None
    if hidden_size in WIDTHS and architecture is None:
        return WIDTHS[hidden_size]
    remedy = "Set num_heads= (--num-heads on the command line), or num_heads in "
    if architecture is not None:
        raise ValueError(
            "Expected a timm architecture with a known number of heads, or the "
            f"number. Received: architecture={architecture!r}, num_heads=None for "
            f"{where}. {remedy}the model_args of config.json"
        )
    raise ValueError(
        "Expected the number of attention heads, which the tensors and "
        f"hidden_size={hidden_size} do not show. Received: num_heads=None for {where}. "
        f"{remedy}a config.json next to the file"
    )


def _shown_heads(tensors: Mapping[str, np.ndarray]) -> int | None:
    """The heads in tables with an axis for them: BEiT's and rotary frequencies."""
    for name, axis, axes in (
        ("relative_position_bias_table", 1, 2),
        ("rope.freqs", 2, 4),
    ):
        for found, value in tensors.items():
            if found.endswith(name) and value.ndim == axes:
                return int(value.shape[axis])
    return None


def _join_tokens(
    tensors: dict[str, np.ndarray],
    patches: int | None,
    where: str,
    bare: bool,
    embedded: bool | None,
) -> dict[str, Any]:
    """Joins cls, dist and reg_token as `cls`; the hints count tokens with a position.

    The table has positions for all tokens, for all but the registers (DINOv2 in
    transformers), or, if tokens may be `bare`, for the patches only (timm's
    `no_embed_class`). If the number of patches is unknown, it is the first of these
    counts that is a square.
    """
    order = ("cls_token", "dist_token", "reg_token")
    depth = None
    for name in (*order, "pos_embed"):
        if name in tensors:
            _check_shape(tensors, name, (1, None, depth), where)
            depth = tensors[name].shape[-1]
    hints: dict[str, Any] = {}
    tokens = {name: tensors.pop(name) for name in order if name in tensors}
    registers = tokens["reg_token"].shape[1] if "reg_token" in tokens else 0
    leading = sum(token.shape[1] for token in tokens.values()) - registers
    if tokens:
        tensors["cls"] = np.concatenate(list(tokens.values()), axis=1)
    if "pos_embed" in tensors:
        table = tensors.pop("pos_embed")
        rows = table.shape[-2]
        choices = dict.fromkeys((rows - leading, rows - leading - registers))
        if bare:
            choices[rows] = None
            if embedded is not None:  # timm: all tokens have positions, or none.
                choices = {rows - (leading + registers if embedded else 0): None}
        counts = [n for n in choices if n > 0 and n == (patches or math.isqrt(n) ** 2)]
        places = (counts or list(choices))[0]
        placed = rows - places  # Tokens with a position.
        usual = rows - leading - (registers if bare else 0)
        if patches is None and embedded is None and places != usual:
            warn(
                f"{where} has {rows} positions and {leading + registers} tokens before "
                f"the patches. A square grid of {places} patches is assumed, with "
                f"{placed} positions for tokens. If the grid has {usual} patches, set "
                "grid=(rows, columns)",
            )
        tensors[POSITIONS] = table
        if placed != leading + registers:
            hints["position_tokens"] = placed
    # A distillation token without a separate head is one more register.
    registers += int("dist_token" in tokens)
    return hints | ({"num_registers": registers} if registers else {})


def as_paper(found: Canonical) -> Canonical:
    """The tensors for the paper's block.

    Tokens without a position get a row of zeros, and so do missing biases of attention
    and of the patch embedding.
    """
    tensors, hints = dict(found.tensors), dict(found.hints)
    placed = hints.pop("position_tokens", None)
    if placed is not None:
        table, tokens = tensors[POSITIONS], tensors["cls"].shape[1]
        nothing = np.zeros((1, tokens - placed, table.shape[-1]), table.dtype)
        parts = (table[:, :placed], nothing, table[:, placed:])
        tensors[POSITIONS] = np.concatenate(parts, axis=1)
    notes = found.notes
    if bare := _add_biases(tensors):
        notes += (f"zeros as the missing biases of {bare} projections",)
    return dataclasses.replace(found, tensors=tensors, hints=hints, notes=notes)


def _add_biases(tensors: dict[str, np.ndarray]) -> int:
    """Adds zeros for missing biases (`qkv_bias=False`); returns their number."""
    bare = [
        name.removesuffix("kernel")
        for name in tensors
        if re.search(r"(/(query|key|value|out)|^embedding)/kernel$", name)
        and name.removesuffix("kernel") + "bias" not in tensors
    ]
    for name in bare:
        kernel = tensors[f"{name}kernel"]
        per_head = re.search("/(query|key|value)/$", name)
        shape = kernel.shape[1:] if per_head else kernel.shape[-1:]
        tensors[f"{name}bias"] = np.zeros(shape, np.float32)
    return len(bare)
