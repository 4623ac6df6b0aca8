"""Tiny checkpoints of every dialect and format, as the libraries write them."""

import functools
import hashlib
import json
import shutil

import h5py
import numpy as np
from safetensors.numpy import save_file

from keras_vit.configs import ResNetConfig, ViTConfig
from keras_vit.families import family_of
from keras_vit.weights import names, variables
from tests.conftest import FIXTURES

VIT = ViTConfig(patch_size=4, num_layers=2, hidden_size=8, mlp_dim=16, num_heads=2)
STEM = ResNetConfig(num_layers=(1,), width=32, unit="v1")
BIT = ResNetConfig(num_layers=(1,), width=32)
PREPROCESSOR = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
HF = {
    "model_type": "vit",
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 8,
    "patch_size": 4,
}


@functools.cache
def _canonical(config):
    build = family_of(config).build
    model = build(config, image_size=(8, 8), num_classes=3)
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(tensor.shape).astype(np.float32)
        for entry in variables.entries(model)
        for name, tensor in entry.split().items()
    }


def canonical(config=VIT):
    """A model's tensors, none of them at its initial value."""
    return dict(_canonical(config))


def vit(**changes):
    return canonical(ViTConfig(**{**vars(VIT), **changes}))


def tokens(tensors, registers=0):
    """`cls` and the positions under the names that torch libraries know."""
    tensors = dict(tensors)
    cls = tensors.pop("cls")
    tensors["cls_token"] = cls[:, :1]
    if registers:
        tensors["reg_token"] = cls[:, 1:]
    tensors["pos_embed"] = tensors.pop(variables.POSITIONS)
    return tensors


def pre_linen(tensors):
    return {names.renumber(n, names.PRE_LINEN): t for n, t in tensors.items()}


def as_json(path, value):
    path.write_text(json.dumps(value, indent=2))


def npz(folder):
    np.savez(folder / "vit.npz", **pre_linen(canonical()))


def npz_linen(folder):
    np.savez(folder / "vit.npz", **canonical())
    own = {"gelu": "erf", "mean": [0.4] * 3, "std": [0.2] * 3, "grid": [2, 2]}
    as_json(folder / "config.json", own | {"num_heads": 2, "layer_norm_epsilon": 1e-5})


def npz_compressed(folder):
    np.savez_compressed(folder / "vit.npz", **pre_linen(canonical()))


def npz_bit(folder):
    np.savez(folder / "vit.npz", **names.BIT.write(canonical(BIT)))


def npz_big_vision_map(folder):
    tensors = vit(classifier="map")
    tensors["pos_embedding"] = tensors.pop(variables.POSITIONS)
    np.savez(folder / "vit.npz", **{f"params/{n}": t for n, t in tensors.items()})


def npz_big_vision_scan(folder):
    tensors = canonical()
    tensors["pos_embedding"] = tensors.pop(variables.POSITIONS)[:, 1:]
    first = "Transformer/encoderblock_0/"
    for name in [name for name in tensors if name.startswith(first)]:
        rest = name.removeprefix(first)
        both = [tensors.pop(f"Transformer/encoderblock_{i}/{rest}") for i in (0, 1)]
        tensors[f"Transformer/encoderblock/{rest}"] = np.stack(both)
    np.savez(folder / "vit.npz", **tensors)


def safetensors(folder, tensors, name="model.safetensors"):
    save_file(tensors, folder / name, {"format": "pt"})


def known_sha256(folder):
    safetensors(folder, canonical(), "vit.safetensors")
    digest = hashlib.sha256((folder / "vit.safetensors").read_bytes()).hexdigest()
    record = folder / "vit.safetensors.sha256"
    record.write_text(f"{digest}  vit.safetensors\n")


def timm_config(architecture, size=8, **arguments):
    pretrained = {"input_size": [3, size, size], "interpolation": "bicubic"}
    return {
        "architecture": architecture,
        "num_classes": 3,
        "global_pool": "token",
        "model_args": arguments,
        "pretrained_cfg": pretrained | {"mean": [0.5] * 3, "std": [0.5] * 3},
    }


def timm_vit(folder):
    safetensors(folder, names.TIMM.write(tokens(canonical())))
    size = {"img_size": [8, 8], "patch_size": 4, "num_heads": 2}
    config = timm_config("vit_base_patch16_224", **size, act_layer="gelu_tanh")
    as_json(folder / "config.json", config)


def timm_hybrid(folder):
    hybrid = ViTConfig(**{**vars(VIT), "patch_size": 1, "resnet": STEM})
    safetensors(folder, names.TIMM.write(tokens(canonical(hybrid))))
    config = timm_config("vit_small_r26_s4_224", img_size=8, num_heads=2)
    as_json(folder / "config.json", config)


def timm_bit(folder):
    safetensors(folder, names.TIMM_BIT.write(canonical(BIT)))
    config = timm_config("resnetv2_50x1_bit", channels=[128], stem_chs=32)
    config["global_pool"] = "avg"
    as_json(folder / "config.json", config)


def hf(folder, config):
    as_json(folder / "config.json", config)
    as_json(folder / "preprocessor_config.json", PREPROCESSOR)


def hf_vit(folder):
    safetensors(folder, names.HF.write(tokens(canonical())))
    hf(folder, HF)


def hf_sharded(folder):
    tensors = names.HF.write(tokens(canonical()))
    where = {n: f"model-0000{i % 2 + 1}.safetensors" for i, n in enumerate(tensors)}
    for shard in set(where.values()):
        held = {n: t for n, t in tensors.items() if where[n] == shard}
        safetensors(folder, held, shard)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    as_json(folder / "model.safetensors.index.json", index)
    hf(folder, HF | {"image_size": [8, 8]})


def hf_bit(folder):
    safetensors(folder, names.HF_BIT.write(canonical(BIT)))
    hf(folder, {"model_type": "bit", "depths": [1], "global_padding": None})


def hf_dinov2(folder):
    tensors = tokens(vit(num_registers=2), registers=2)
    table = tensors["pos_embed"]
    tensors["pos_embed"] = np.concatenate([table[:, :1], table[:, 3:]], axis=1)
    written = names.HF.write(tensors)
    for i in range(2):
        for n in (1, 2):
            scale = f"vit.encoder.layer.{i}.layer_scale{n}.lambda1"
            written[scale] = np.full(8, 0.5, np.float32)
    spelt = {
        n.replace("vit.", "dinov2_with_registers.")
        .replace("layernorm_before", "norm1")
        .replace("layernorm_after", "norm2")
        .replace("intermediate.dense", "mlp.fc1"): tensor
        for n, tensor in written.items()
    }
    spelt = {
        n if ".attention." in n else n.replace("output.dense", "mlp.fc2"): tensor
        for n, tensor in spelt.items()
    }
    safetensors(folder, spelt)
    hf(folder, HF | {"model_type": "dinov2_with_registers", "num_register_tokens": 2})


def h5_file(path, tensors, compressed=False, **options):
    packed = {"compression": "gzip", "shuffle": True} if compressed else {}
    with h5py.File(path, "w", **options) as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor, **packed)


def h5(folder):
    h5_file(folder / "vit.h5", vit(num_layers=1))


def h5_compressed(folder):
    h5_file(folder / "vit.h5", vit(num_layers=1), compressed=True)


def h5_latest(folder):
    h5_file(folder / "vit.h5", vit(num_layers=1), libver="latest")


def hf_tf(folder):
    own = "tf_vi_t_for_image_classification"
    written = names.HF_TF.write(tokens(canonical()))
    tensors = {f"{n.split('/')[0]}/{own}/{n}": t for n, t in written.items()}
    h5_file(folder / "tf_model.h5", tensors)
    as_json(folder / "config.json", HF)


def tfvit(folder):
    tensors = canonical()
    tensors["pos_embed"] = tensors.pop(variables.POSITIONS)
    h5_file(folder / "vit.h5", names.TFVIT.write(tensors))


def keras_hub(folder):
    written = {
        name.replace("encoder_block_0/", "encoder_block/"): tensor
        for name, tensor in names.KERAS_HUB.write(tokens(canonical())).items()
    }
    head = {name: written.pop(name) for name in list(written) if "predictions" in name}
    h5_file(folder / "model.weights.h5", written)
    task = {n.replace("predictions", "layers/dense"): t for n, t in head.items()}
    h5_file(folder / "task.weights.h5", task)
    backbone = {"image_shape": [8, 8, 3], "patch_size": [4, 4], "num_heads": 2}
    backbone |= {"layer_norm_epsilon": 1e-6, "use_class_token": True}
    config = {"class_name": "ViTBackbone", "config": backbone}
    as_json(folder / "config.json", config)
    as_json(folder / "task.json", {"config": {"backbone": config, "pooling": "token"}})


def fixture(name):
    """A writer of a fixture's files, of a plain ViT of a later paper."""

    def write(folder):
        for file in (FIXTURES / "dialects" / name).iterdir():
            if file.name != "io.npz":
                shutil.copy(file, folder)

    write.__name__ = name
    return write


LATER = (
    *("timm_clip", "timm_eva02", "timm_dinov3", "timm_beit", "timm_pe_core"),
    *("timm_rope_mixed", "timm_aimv2", "hf_clip", "hf_siglip", "hf_dinov3"),
    *("torchvision_vit", "open_clip"),
)
DIALECTS = [
    *map(fixture, LATER),
    npz,
    npz_linen,
    npz_compressed,
    npz_bit,
    npz_big_vision_map,
    npz_big_vision_scan,
    known_sha256,
    timm_vit,
    timm_hybrid,
    timm_bit,
    hf_vit,
    hf_sharded,
    hf_bit,
    hf_dinov2,
    h5,
    h5_compressed,
    h5_latest,
    hf_tf,
    tfvit,
    keras_hub,
]
