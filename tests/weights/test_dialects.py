"""Files that other libraries wrote, against the outputs that they computed."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import weights
from keras_vit.configs import (
    GELUS,
    NUMERICS,
    PlainViTConfig,
    ResNetConfig,
    ViTConfig,
)
from keras_vit.families import family_of
from keras_vit.models import plain_vit
from keras_vit.weights import timm_names, torch_layouts
from keras_vit.weights.architecture import config_of
from keras_vit.weights.tensors import open_tensors
from tests.conftest import REFERENCE
from tests.layers import by_hand
from tests.weights import dialects

DIALECTS = REFERENCE.parent / "dialects"


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the report is to say of a fixture."""

    dialect: str
    numerics: str
    gelu: str | None = "erf"
    epsilon: float | None = 1e-6
    notes: tuple[str, ...] = ()


HF = Expected("hf", "hf", epsilon=1e-12)
TIMM = Expected("timm", "timm")
BARE = "zeros as the missing biases of 6 projections"
FIXTURES = {
    "timm_vit": TIMM,
    "timm_vit_gap": TIMM,
    "timm_vit_map_cls": TIMM,
    "timm_dinov2_reg4": TIMM,
    "timm_deit_distilled": TIMM,
    "timm_hybrid_r": TIMM,
    "timm_bit": Expected("timm", "timm", None, None),
    "hf_vit_sharded": HF,
    "hf_vit_new_names": dataclasses.replace(HF, notes=(BARE,)),
    "hf_deit_distilled": HF,
    "hf_dinov2_reg_model": Expected("hf", "hf"),
    "hf_bit": Expected("hf", "hf", None, None),
    "hf_vit_hybrid": HF,
    "hf_tf_vit": dataclasses.replace(HF, dialect="hf-tf"),
    "keras_hub": Expected("keras-hub", "timm"),
    "tfvit_reg": Expected("tfvit", "timm"),
    "timm_clip": Expected("timm", "timm", "quick_gelu", 1e-5),
    "timm_eva02": Expected("timm", "timm", "silu"),
    "timm_dinov3": Expected("timm", "timm", epsilon=1e-5),
    "timm_beit": TIMM,
    "timm_pe_core": Expected("timm", "timm", epsilon=1e-5),
    "timm_rope_mixed": TIMM,
    "timm_aimv2": Expected("timm", "timm", "silu", 1e-5),
    "hf_clip": Expected("hf", "hf", "quick_gelu", 1e-5),
    "hf_siglip": Expected("hf", "hf", "tanh"),
    "hf_dinov3": Expected("hf", "hf", epsilon=1e-5),
    "torchvision_vit": Expected("torchvision", "timm"),
    "open_clip": Expected("open_clip", "hf", "quick_gelu", 1e-5),
}
SCALED = "images assumed to be scaled to [-1, 1]"
UNSCALED = {  # Without a file that states mean and std.
    *("hf_vit_hybrid", "hf_tf_vit", "keras_hub", "tfvit_reg", "torchvision_vit"),
    "open_clip",
}
ATOL = 1e-5
TINY = ViTConfig(patch_size=4, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=4)


def source(name):
    """What a user would name: the folder, but of tfvit, which has none, the file."""
    folder = DIALECTS / name
    return folder / "model.h5" if name == "tfvit_reg" else folder


def io(name):
    with np.load(DIALECTS / name / "io.npz") as file:
        return keras_vit.preprocess_input(file["images"]), file["outputs"]


def outputs(model, images):
    return keras.ops.convert_to_numpy(model(images))


def build(name, images, **arguments):
    if name == "tfvit_reg":  # Of it the outputs are kept that its head does not read.
        arguments |= {"classes": 0, "classifier": "token"}
    return keras_vit.from_checkpoint(
        source(name), image_size=images.shape[1:3], **arguments
    )


@pytest.mark.parametrize("name", FIXTURES)
def test_outputs_are_the_librarys(name, agree):
    """Measured: at most 1.2e-6, of outputs of order 1."""
    images, theirs = io(name)
    model = build(name, images)
    ours = outputs(model, images)
    if name == "keras_hub":  # Its classifier has a softmax; ours are always logits.
        ours = keras.ops.convert_to_numpy(keras.ops.softmax(ours))
    agree(f"{name}: outputs", ours, theirs, ATOL)
    report, expected = model.provenance, FIXTURES[name]
    head = ("head/bias", "head/kernel") if name == "tfvit_reg" else ()
    assert (report.left_out, report.fresh) == (head, ())
    assert report.dialect == expected.dialect
    assert report.numerics[0] == f"{expected.numerics} numerics"
    assert [word for word in report.numerics if word == BARE] == list(expected.notes)
    assumed = [word for word in report.numerics if "assumed" in word]
    assert assumed == ([SCALED] if name in UNSCALED else [])
    config = config_of(model)
    if not isinstance(config, ResNetConfig):
        activations = getattr(config, "gelu", None), getattr(config, "activation", None)
        assert activations in (
            (expected.gelu, None),
            (None, GELUS.get(expected.gelu, expected.gelu)),
        )
        assert config.layer_norm_epsilon == expected.epsilon
    resnet = getattr(config, "resnet", None)
    if resnet is not None or isinstance(config, ResNetConfig):
        resnet = resnet or config
        for field, value in NUMERICS["timm"][resnet.unit].items():
            assert getattr(resnet, field) == value


@pytest.mark.parametrize("name", FIXTURES)
def test_load_into_a_built_model(name):
    images, _ = io(name)
    expected = build(name, images)
    config, units = config_of(expected), expected.output_shape[-1]
    make = family_of(config).build
    has_head = "head" in {layer.name for layer in expected.layers}
    model = make(
        config, image_size=images.shape[1:3], num_classes=units if has_head else None
    )
    report = weights.load(model, source(name))
    unused = {"unused"} if name == "tfvit_reg" else set()
    assert {row.status for row in report.rows} - unused == {"loaded"}
    np.testing.assert_array_equal(outputs(model, images), outputs(expected, images))


@pytest.mark.parametrize("name", ["timm_hybrid_r", "hf_vit_sharded", "hf_bit"])
def test_paper_numerics(name):
    images, theirs = io(name)
    model = build(name, images, numerics="paper")
    assert model.provenance.numerics[0] == "paper numerics"
    config = config_of(model)
    resnet = config
    if isinstance(config, ViTConfig):
        assert (config.gelu, config.layer_norm_epsilon) == ("tanh", 1e-6)
        resnet = config.resnet
    if resnet is not None:
        for field, value in NUMERICS["paper"][resnet.unit].items():
            assert getattr(resnet, field) == value
    difference = np.abs(outputs(model, images) - theirs).max()
    if isinstance(config, ViTConfig):  # The two GELUs; the epsilons are below 1e-5.
        assert 1e-5 < difference < 2e-3
    else:
        assert difference < 1e-5


def test_a_built_model_keeps_its_numerics_and_says_so():
    images, theirs = io("timm_vit")
    paper = build("timm_vit", images, numerics="paper")
    with pytest.warns(UserWarning, match=r"requires gelu='erf' \(timm\)"):
        weights.load(paper, source("timm_vit"))
    assert np.abs(outputs(paper, images) - theirs).max() > 1e-5


def test_a_stems_numerics_are_said_too():
    images, _ = io("timm_hybrid_r")
    paper = build("timm_hybrid_r", images, numerics="paper")
    with pytest.warns(UserWarning, match="requires .*kernel_epsilon=1e-08"):
        weights.load(paper, source("timm_hybrid_r"))


def copy(name, tmp_path, **config):
    """A fixture to change; `config` changes its config.json."""
    folder = tmp_path / name
    shutil.copytree(DIALECTS / name, folder)
    if config:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def changed(name, tmp_path, **tensors):
    """A fixture with tensors added, changed, or left out (None)."""
    file = copy(name, tmp_path) / "model.safetensors"
    found = load_file(file) | tensors
    contiguous = {
        key: np.ascontiguousarray(value)
        for key, value in found.items()
        if value is not None
    }
    save_file(contiguous, file, {"format": "pt"})
    return file.parent


def refuses(path, match, **arguments):
    with pytest.raises(ValueError, match=match) as caught:
        keras_vit.from_checkpoint(path, image_size=(32, 32), **arguments)
    assert str(caught.value).startswith("Expected")
    assert "Received" in str(caught.value)


PROJECTION, FC1 = "blocks.1.attn.proj.weight", "blocks.1.mlp.fc1.weight"


def test_a_missing_tensor(tmp_path):
    refuses(
        changed("timm_vit", tmp_path, **{FC1: None}),
        "encoderblock_1/MlpBlock_0/Dense_0/kernel is missing",
    )


def test_an_extra_tensor(tmp_path):
    extra = np.zeros(16, np.float32)
    refuses(
        changed("timm_vit", tmp_path, **{"blocks.1.gate.weight": extra}),
        r"names of a timm checkpoint.*blocks\.1\.gate\.weight",
    )
    refuses(
        changed("hf_bit", tmp_path, **{"bit.embedder.norm.weight": extra}),
        r"names of a hf checkpoint.*embedder\.norm\.weight",
    )


def test_a_transposed_kernel_that_is_not_square(tmp_path):
    kernel = load_file(source("timm_vit") / "model.safetensors")[FC1]
    refuses(
        changed("timm_vit", tmp_path, **{FC1: kernel.T}),
        r"Dense_0/kernel is \(32, 16\), not \(16, 32\)",
    )


def test_a_transposed_square_kernel_passes_every_check(tmp_path):
    """Its names and shapes are right: only another's outputs, or a sha256, can tell."""
    kernel = load_file(source("timm_vit") / "model.safetensors")[PROJECTION]
    folder = changed("timm_vit", tmp_path, **{PROJECTION: kernel.T})
    images, theirs = io("timm_vit")
    model = keras_vit.from_checkpoint(folder, image_size=(32, 32))
    found = model.provenance
    assert found.loaded
    assert not (found.resized + found.fresh + found.left_out)
    assert np.abs(outputs(model, images) - theirs).max() > 0.01


def shards(folder):
    return sorted(folder.glob("model-*.safetensors"))


def test_mixed_shards(tmp_path):
    folder = copy("hf_vit_sharded", tmp_path)
    one, two = shards(folder)
    save_file(load_file(one) | {"stray": np.zeros(2, np.float32)}, one)
    refuses(folder, "an index that matches its shards")
    one.write_bytes(two.read_bytes())
    refuses(folder, "an index that matches its shards")
    one.unlink()
    with pytest.raises(FileNotFoundError, match="model-00001-of-00002"):
        keras_vit.from_checkpoint(folder)


def test_a_shard_of_another_model(tmp_path):
    """Of the same sizes nothing can tell; of others the index's total does."""
    folder = copy("hf_vit_sharded", tmp_path)
    one, _ = shards(folder)
    wider = {name: np.repeat(t, 2, axis=-1) for name, t in load_file(one).items()}
    save_file(wider, one)
    refuses(folder, r"with total_size \d+, but the shards have \d+ bytes")


H = np.zeros((8, 16), np.float32)
REFUSED = {  # A tensor that shows the part: the reason.
    "blocks.0.attn.lambda_q1": "differential attention",
    "blocks.0.attns.0.norm.weight": "parallel attentions and MLPs in a block",
    "blocks.0.in_proj.weight": r"attention and MLP in parallel \(ViT-22B\)",
    "patch_embed.backbone.0.bn.running_mean": "BatchNorm",
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_no_layer_here_has(name, tmp_path):
    refuses(
        changed("timm_vit", tmp_path, **{name: H}),
        f"this library's layers.*{REFUSED[name]}",
    )


def test_packed_swiglu_is_told_by_its_shapes(tmp_path):
    """timm's SwiGLUPacked has an MLP's names: fc1 is twice as wide as fc2 reads."""
    fc2 = np.zeros((16, 16), np.float32)
    refuses(
        changed("timm_vit", tmp_path, **{"blocks.0.mlp.fc2.weight": fc2}),
        r"Dense_0/kernel is \(16, 32\), not \(16, 16\)",
    )


@pytest.mark.parametrize(
    ("name", "config", "match"),
    [
        ("hf_vit_sharded", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("hf_vit_sharded", {"pooler_act": "relu"}, 'pooler_act="relu"'),
        ("hf_bit", {"global_padding": "same"}, 'global_padding="same"'),
        ("hf_bit", {"num_groups": 16}, "num_groups=16"),
        ("hf_bit", {"output_stride": 16}, "output_stride=16"),
        ("timm_vit", {"model_args": {"act_layer": "relu"}}, "act_layer='relu'"),
    ],
)
def test_configs_of_what_is_not_computed_here(name, config, match, tmp_path):
    refuses(copy(name, tmp_path, **config), match)


def test_a_mean_that_takes_the_class_token_in(tmp_path):
    folder = copy("keras_hub", tmp_path)
    task = json.loads((folder / "task.json").read_text())
    task["config"]["pooling"] = "gap"
    (folder / "task.json").write_text(json.dumps(task))
    refuses(folder, "keras-hub's 'gap', which includes the class token")


@pytest.mark.parametrize("other", ["hf_dinov2_reg_model", "hf_bit", "timm_bit"])
def test_two_dialects_in_one_file(other, tmp_path):
    more = load_file(source(other) / "model.safetensors")
    refuses(changed("timm_vit", tmp_path, **more), "one dialect.*of several dialects")


def test_safetensors_before_tensorflows_file(tmp_path):
    """Hub folders may hold both; transformers reads safetensors."""
    folder = shutil.copytree(source("hf_vit_sharded"), tmp_path / "both")
    shutil.copy(source("hf_tf_vit") / "tf_model.h5", folder)
    found = keras_vit.from_checkpoint(folder).provenance
    assert found.dialect == "hf"


def test_the_official_names_beside_anothers(tmp_path):
    with np.load(REFERENCE / "vit_mini.npz") as file:
        refuses(changed("timm_vit", tmp_path, **file), "of several dialects")


@pytest.mark.parametrize("name", ["timm_bit", "hf_vit_sharded", "hf_tf_vit"])
def test_into_the_builder_of_another_model(name):
    with pytest.raises(ValueError, match=r"ViT-Ti/16.*from_checkpoint") as caught:
        keras_vit.ViT_Ti16(weights=source(name), classes=5)
    assert "Received" in str(caught.value)


def test_timms_names_tell_what_its_files_do_not(tmp_path):
    """Of published timm files no tensor and no field tells heads or GELU."""
    for architecture, gelu, heads in (
        ("vit_so400m_patch14_siglip_224", None, 16),
        ("vit_so400m_patch16_siglip_gap_256", "tanh", 16),
        ("vit_base_patch32_siglip_256", "tanh", 12),
        ("vit_base_patch16_siglip_256", None, 12),
        ("vit_large_patch16_siglip_512", "tanh", 16),
        ("vit_huge_patch14_224.orig_in21k", None, 16),
        ("test_vit", None, 2),
        ("vit_giantopt_patch16_siglip_256", "tanh", 16),
        ("vit_base_patch16_gap_224", None, 16),
    ):
        config = {"architecture": architecture, "num_classes": 0}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = weights.config_beside(tmp_path)
        assert (found.get("gelu"), found.get("num_heads")) == (gelu, heads)
    arguments = {"act_layer": "gelu", "num_heads": 4}  # What is written is stronger.
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"model_args": arguments})
    )
    assert weights.config_beside(tmp_path) == {"gelu": "erf", "num_heads": 4}


def test_timms_mlp_ratio_is_rounded_down_by_timm():
    for mlp_dim, hidden_size in ((3072, 768), (61, 56), (4304, 1152), (1952, 112)):
        ratio = torch_layouts.ratio(mlp_dim, hidden_size)
        assert int(hidden_size * ratio) == mlp_dim
    assert torch_layouts.ratio(3072, 768) == 4


@pytest.mark.parametrize("format", ["timm", "hf"])
def test_a_written_config_has_the_channels_of_the_tensors(format, tmp_path):
    wide = keras_vit.VARIANTS["BiT-R50x1"]
    narrow = dataclasses.replace(wide, width=32, **NUMERICS[format][wide.unit])
    model = keras_vit.resnet(narrow, image_size=(32, 32), num_classes=3)
    weights.save(model, tmp_path, format=format)
    config = json.loads((tmp_path / "config.json").read_text())
    held = load_file(tmp_path / "model.safetensors")
    if format == "timm":
        stem, stages = "stem.conv.weight", "stages.{}.blocks.0.conv3.weight"
        stated = [config["model_args"]["stem_chs"], *config["model_args"]["channels"]]
    else:
        stem = "bit.embedder.convolution.weight"
        stages = "bit.encoder.stages.{}.layers.0.conv3.weight"
        stated = [config["embedding_size"], *config["hidden_sizes"]]
    assert stated == [len(held[at]) for at in (stem, *map(stages.format, range(4)))]


def test_timm_has_no_distilled_hybrid(tmp_path):
    resnet = ResNetConfig(num_layers=(), unit="v1", **NUMERICS["timm"]["v1"])
    config = dataclasses.replace(TINY, classifier="distilled", resnet=resnet)
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=3)
    with pytest.raises(ValueError, match="hybrid with a distillation token"):
        weights.save(model, tmp_path, format="timm")


def test_a_root_hybrids_grid_is_of_its_own_patches():
    """timm's r_s16_p8 here has patches of 4 places of a map of stride 4."""
    assert weights.config_beside(source("timm_hybrid_r"))["grid"] == (3, 4)
    model = keras_vit.from_checkpoint(source("timm_hybrid_r"))
    assert model.input_shape == (None, 48, 64, 3)


def test_a_published_root_hybrid_has_7_by_7_patches_at_224(tmp_path):
    """Its config.json on the Hub has no model_args; its name has patches of 8 x 4."""
    folder = shutil.copytree(source("timm_hybrid_r"), tmp_path / "model")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config["model_args"]
    config["pretrained_cfg"]["input_size"] = [3, 224, 224]
    file.write_text(json.dumps(config))
    assert weights.config_beside(folder)["grid"] == (7, 7)


def wide(hidden_size, num_heads):
    """A timm file of a model of one block: torch's axes do not show its heads."""
    config = dataclasses.replace(
        TINY, hidden_size=hidden_size, num_heads=num_heads, gelu="erf"
    )
    model = keras_vit.vit(config, image_size=(8, 8), num_classes=3)
    for variable in model.weights:
        rng = np.random.default_rng(len(variable.path))
        variable.assign(rng.standard_normal(variable.shape) / 5)
    return model


def timm_file(hidden_size, num_heads, tmp_path, **model_args):
    """`wide` as timm writes it; its config.json has these model_args only."""
    model = wide(hidden_size, num_heads)
    weights.save(model, tmp_path, format="timm")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"model_args": model_args}))
    return model, tmp_path / "model.safetensors"


HEADS = "num_heads=None.*Set num_heads="


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(128, 8), (96, 3), (64, 4)])
def test_heads_are_never_guessed(hidden_size, num_heads, tmp_path):
    """Widths that people train themselves: heads of 64 were assumed."""
    model, file = timm_file(hidden_size, num_heads, tmp_path)
    (tmp_path / "config.json").unlink()
    refuses(file, f"hidden_size={hidden_size}.*{HEADS}")
    told = keras_vit.from_checkpoint(file, image_size=(8, 8), num_heads=num_heads)
    assumed = [word for word in told.provenance.numerics if "assumed" in word]
    assert assumed == [SCALED]
    images = np.ones((1, 8, 8, 3), "float32")
    np.testing.assert_allclose(outputs(told, images), outputs(model, images), atol=ATOL)
    into = wide(hidden_size, num_heads)  # A built model states its heads.
    weights.load(into, file)
    np.testing.assert_allclose(outputs(into, images), outputs(model, images), atol=ATOL)
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": num_heads}))
    beside = keras_vit.from_checkpoint(file, image_size=(8, 8))
    assert config_of(beside).num_heads == num_heads


@pytest.mark.parametrize("name", ["hf_vit_sharded", "hf_tf_vit"])
def test_heads_of_transformers_files_are_never_guessed(name, tmp_path):
    folder = copy(name, tmp_path)
    (folder / "config.json").unlink()
    refuses(folder, f"hidden_size=16.*{HEADS}")
    assert config_of(keras_vit.from_checkpoint(folder, num_heads=4)).num_heads == 4


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(192, 3), (384, 6)])
def test_heads_of_a_known_width_are_assumed_and_said(hidden_size, num_heads, tmp_path):
    model, file = timm_file(hidden_size, num_heads, tmp_path)
    (tmp_path / "config.json").unlink()
    read = keras_vit.from_checkpoint(file, image_size=(8, 8))
    told = f"num_heads={num_heads} assumed from hidden_size"
    assert told in str(read.provenance)
    images = np.ones((1, 8, 8, 3), "float32")
    np.testing.assert_allclose(outputs(read, images), outputs(model, images), atol=ATOL)


def test_heads_of_known_widths():
    """Table 1, and its successors: So400m and g/14, G/14 (arXiv:2106.04560)."""
    later = {1152: 16, 1408: 16, 1664: 16}
    vits = keras_vit.VARIANTS.values()
    sizes = {at.hidden_size: at.num_heads for at in vits if isinstance(at, ViTConfig)}
    known = timm_names.WIDTHS
    assert known == later | {at: sizes[at] for at in (192, 384, 768, 1024, 1280)}
    for width in known.keys() & sizes.keys():
        assert known[width] == sizes[width]


def test_an_architecture_tells_its_heads(tmp_path):
    """timm's test_vit has 64 / 2: its config.json names it, and no head count."""
    copied = copy("timm_vit", tmp_path, architecture="test_vit", model_args={})
    assert config_of(keras_vit.from_checkpoint(copied)).num_heads == 2


def test_an_unknown_architecture_is_never_ignored(tmp_path):
    _, file = timm_file(192, 3, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architecture"] = "vit_new_patch16_224"
    (tmp_path / "config.json").write_text(json.dumps(config))
    refuses(file, f"architecture='vit_new_patch16_224', {HEADS}")
    with pytest.warns(UserWarning, match="vit_new_patch16_224.*is unknown"):
        told = keras_vit.from_checkpoint(file, num_heads=6)
    assert config_of(told).num_heads == 6
    config["model_args"] = {"num_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="vit_new_patch16_224.*is unknown"):
        told = keras_vit.from_checkpoint(file)
    assert config_of(told).num_heads == 3
    refuses(
        copy("timm_bit", tmp_path, architecture="resnetv2_50d_gn"),
        "architecture='resnetv2_50d_gn'",
    )


@pytest.mark.parametrize(
    "architecture",
    ["vit_dwee_patch16_reg1_gap_256", "vit_base_mci_224", "vit_1b_patch16_sapiens2"],
)
def test_architectures_of_other_layers(architecture, tmp_path):
    refuses(
        copy("timm_vit", tmp_path, architecture=architecture),
        f"architecture='{architecture}', with",
    )


def test_a_model_of_other_heads_than_the_file_states():
    model = keras_vit.vit(
        dataclasses.replace(TINY, patch_size=8, num_layers=2, num_heads=2),
        image_size=(32, 32),
        num_classes=5,
    )
    with pytest.raises(ValueError, match=r"query/kernel is \(16, 4, 4\), not"):
        weights.load(model, source("timm_vit"))


def test_no_positions_in_a_config(tmp_path):
    """timm's pos_embed="none" was read as big_vision's sincos2d."""
    config = dataclasses.replace(TINY, gelu="erf")
    with_table = keras_vit.vit(config, image_size=(8, 8), num_classes=3)
    bare = dataclasses.replace(config, position="none")
    model = keras_vit.vit(bare, image_size=(8, 8), num_classes=3)
    weights.save(with_table, tmp_path, format="timm")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("pos_embed")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    weights.load(model, tmp_path)
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype("float32")
    for kind in ("none", "", None):
        stated = json.loads((tmp_path / "config.json").read_text())
        stated["model_args"] |= {"pos_embed": kind}
        (tmp_path / "config.json").write_text(json.dumps(stated))
        read = keras_vit.from_checkpoint(tmp_path)
        assert config_of(read).position == "none"
        assert read.input_shape == (None, 8, 8, 3)
        np.testing.assert_allclose(
            outputs(read, images), outputs(model, images), atol=ATOL
        )
    stated["model_args"] |= {"pos_embed": "learn"}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    refuses(tmp_path, r"pos_embed \(a table\) False.*Received: True")
    refuses(
        changed("hf_deit_distilled", tmp_path, **{POSITIONS_HF: None}),
        "Expected position embeddings",
    )


POSITIONS_HF = "deit.embeddings.position_embeddings"
FACTS = [  # fixture, where in its config.json, what it states, the error.
    ("timm_vit", "model_args", {"class_token": False}, "class_token"),
    ("timm_vit", "model_args", {"reg_tokens": 4}, "register tokens"),
    ("timm_vit", "model_args", {"qkv_bias": False}, "qkv_bias True"),
    ("timm_vit", "model_args", {"init_values": 1e-5}, "init_values"),
    ("timm_dinov2_reg4", "model_args", {"init_values": None}, "init_values"),
    ("timm_vit", "model_args", {"global_pool": "map"}, "global_pool 'map'"),
    ("timm_vit_map_cls", "model_args", {"global_pool": "token"}, "global_pool 'map'"),
    ("timm_vit_gap", "model_args", {"global_pool": "token"}, "class_token"),
    ("timm_vit", "model_args", {"global_pool": "max"}, 'global_pool="max"'),
    ("timm_vit", "model_args", {"global_pool": "avgmax"}, 'global_pool="avgmax"'),
    ("timm_vit", "model_args", {"qk_norm": True}, "qk_norm False"),
    ("timm_vit", "model_args", {"pre_norm": True}, "pre_norm False"),
    ("timm_vit", "model_args", {"fc_norm": True}, "fc_norm False"),
    ("timm_vit", "model_args", {"final_norm": False}, "final_norm True"),
    ("timm_vit", "model_args", {"pool_include_prefix": True}, "pool_prefix=True"),
    ("timm_vit", "model_args", {"scale_mlp_norm": True}, "scale_mlp_norm False"),
    ("timm_vit", "model_args", {"norm_layer": "rmsnorm"}, "norm_layer 'layer_norm'"),
    ("timm_vit", "model_args", {"block_fn": "Parallel"}, 'block_fn="Parallel"'),
    ("timm_vit", "model_args", {"attn_layer": "diff"}, 'attn_layer="diff"'),
    ("timm_vit", "model_args", {"pos_embed": "rope"}, 'pos_embed="rope"'),
    ("timm_vit", "model_args", {"unheard_of": 3}, "unheard_of=3"),
    ("timm_vit", "model_args", {"patch_size": 16}, "patch_size 8"),
    ("timm_vit", "model_args", {"patch_size": [8, 4]}, "square patches"),
    ("timm_vit", "model_args", {"embed_dim": 32}, "hidden_size 16"),
    ("timm_vit", "model_args", {"depth": 3}, "num_layers 2"),
    ("timm_vit", "model_args", {"mlp_ratio": 4}, "mlp_ratio 2"),
    ("timm_vit", "model_args", {"in_chans": 1}, "num_channels 3"),
    ("timm_vit", None, {"num_classes": 7}, "num_classes 5"),
    ("timm_bit", "model_args", {"global_pool": "max"}, 'global_pool="max"'),
    ("timm_bit", "model_args", {"in_chans": 1}, "num_channels 3"),
    ("timm_bit", None, {"num_classes": 7}, "num_classes 5"),
    ("timm_bit", "model_args", {"stem_type": "deep"}, 'stem_type="deep"'),
    ("hf_vit_sharded", None, {"model_type": "swin"}, "model_type='swin', with windows"),
    ("hf_vit_sharded", None, {"hidden_size": 32}, "hidden_size 16"),
    ("hf_vit_sharded", None, {"num_hidden_layers": 3}, "num_layers 2"),
    ("hf_vit_sharded", None, {"intermediate_size": 64}, "mlp_dim 32"),
    ("hf_vit_sharded", None, {"qkv_bias": False}, "qkv_bias True"),
    ("hf_vit_sharded", None, {"num_channels": 1}, "num_channels 3"),
    ("hf_vit_sharded", None, {"patch_size": 4}, "patch_size 8"),
    ("hf_vit_sharded", None, {"id2label": {"0": "a"}}, "num_classes 5"),
    ("hf_dinov2_reg_model", None, {"num_register_tokens": 2}, "register tokens"),
    ("hf_dinov2_reg_model", None, {"use_swiglu_ffn": True}, "gated_mlp False"),
    ("hf_bit", None, {"num_channels": 1}, "num_channels 3"),
    ("hf_dinov3", None, {"num_channels": 1}, "num_channels 3"),
    ("hf_bit", None, {"layer_type": "bottleneck"}, 'layer_type="bottleneck"'),
    ("keras_hub", "config", {"hidden_dim": 32}, "hidden_size 16"),
    ("keras_hub", "config", {"num_layers": 3}, "num_layers 2"),
    ("keras_hub", "config", {"use_class_token": False}, "use_class_token=False"),
]


@pytest.mark.parametrize(("name", "inside", "stated", "match"), FACTS)
def test_a_config_is_never_ignored(name, inside, stated, match, tmp_path):
    """Each fact is honored, or the file is refused by the fact's name."""
    folder = copy(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (config if inside is None else config[inside]).update(stated)
    (folder / "config.json").write_text(json.dumps(config))
    refuses(folder, match)


def test_a_pooling_of_all_tokens(tmp_path):
    """timm's global_pool="" puts the head on every token."""
    folder = copy("timm_vit", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"]["global_pool"] = ""
    (folder / "config.json").write_text(json.dumps(config))
    images, theirs = io("timm_vit")
    model = keras_vit.from_checkpoint(folder)
    assert config_of(model).classifier == "token_unpooled"
    np.testing.assert_allclose(outputs(model, images)[:, 0], theirs, atol=ATOL)


def test_a_mean_beside_class_token_and_registers(tmp_path):
    """timm's global_pool="avg" leaves both out; all of them are registers here."""
    folder = copy("timm_dinov2_reg4", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"]["global_pool"] = "avg"
    (folder / "config.json").write_text(json.dumps(config))
    read = config_of(keras_vit.from_checkpoint(folder))
    assert (read.classifier, read.num_registers) == ("gap", 5)


@pytest.mark.parametrize(("embedded", "patches"), [(True, 4), (False, 9)])
def test_tokens_without_positions_are_as_stated(embedded, patches, tmp_path):
    """9 rows are a class token, 4 registers and 4 patches, or 9 patches."""
    config = dataclasses.replace(TINY, num_registers=4, gelu="erf")
    model = keras_vit.vit(config, image_size=(8, 8), num_classes=3)
    weights.save(model, tmp_path, format="timm")
    stated = json.loads((tmp_path / "config.json").read_text())
    stated["model_args"] |= {"no_embed_class": not embedded, "img_size": None}
    stated["pretrained_cfg"].pop("input_size")
    (tmp_path / "config.json").write_text(json.dumps(stated))
    side = 4 * round(patches**0.5)
    read = keras_vit.from_checkpoint(tmp_path)
    assert read.input_shape == (None, side, side, 3)


def test_a_square_that_counts_the_class_token_is_no_silent_guess(tmp_path):
    """25 rows: a class token and 4 x 6 patches were read as 5 x 5 patches."""
    config = dataclasses.replace(TINY, gelu="erf")
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=3)
    weights.save(model, tmp_path, format="timm")
    (tmp_path / "config.json").unlink()
    told = {"num_heads": 4, "image_size": (16, 24)}
    with pytest.warns(UserWarning, match=r"25 patches.* set grid=\(rows, columns\)"):
        keras_vit.from_checkpoint(tmp_path, **told)
    read = keras_vit.from_checkpoint(tmp_path, grid=(4, 6), **told)  # No warning.
    for ours, theirs in zip(model.get_weights(), read.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["timm_eva02", "timm_dinov3", "hf_dinov3"])
def test_rotary_positions_are_never_guessed(name, tmp_path):
    """Without its config.json no tensor shows them: they would be left out silently."""
    folder = copy(name, tmp_path)
    images, theirs = io(name)
    rotary = config_of(keras_vit.from_checkpoint(folder)).rotary
    (folder / "config.json").unlink()
    told = {"num_heads": 4, "image_size": images.shape[1:3]}
    if name != "hf_dinov3":
        told["grid"] = (4, 6)
    with pytest.raises(ValueError, match=r"may have rotary positions.*set rotary="):
        keras_vit.from_checkpoint(folder, **told)
    epsilon = 1e-6 if name == "timm_eva02" else 1e-5
    told |= {"layer_norm_epsilon": epsilon, "rotary": rotary}
    if name != "hf_dinov3":
        told["classifier"] = "gap"
    model = keras_vit.from_checkpoint(folder, **told)
    np.testing.assert_allclose(outputs(model, images), theirs, atol=ATOL)
    none = keras_vit.from_checkpoint(folder, **told | {"rotary": None})
    assert np.abs(outputs(none, images) - theirs).max() > 1e-3


@pytest.mark.parametrize("classes", [None, 5, 3])
def test_dinov2s_classifier_is_loaded(classes, tmp_path):
    """Its linear head reads the class token and the mean of the patches together."""
    kernel = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    head = {"classifier.weight": kernel, "classifier.bias": np.ones(5, np.float32)}
    folder = changed("hf_dinov2_reg_model", tmp_path, **head)
    images, _ = io("hf_dinov2_reg_model")
    model = keras_vit.from_checkpoint(folder, classes=classes)
    features = keras_vit.from_checkpoint(folder, classes=0)
    assert config_of(model).classifier == "token_gap"
    expected = outputs(features, images) @ kernel.T + 1
    if classes == 3:
        expected = np.zeros((len(images), 3))
    np.testing.assert_allclose(outputs(model, images), expected, atol=ATOL)
    into = plain_vit(config_of(model), image_size=(32, 32), num_classes=5)
    weights.load(into, folder)
    kept = keras_vit.from_checkpoint(folder)
    np.testing.assert_array_equal(outputs(into, images), outputs(kept, images))


def rewritten(name, tmp_path, rename, reshape=lambda name, value: value):
    """A fixture of the reference code under other names, and its inputs and logits."""
    with np.load(REFERENCE / f"{name}.npz") as file:
        tensors = {rename(key): reshape(key, value) for key, value in file.items()}
    np.savez(tmp_path / "rewritten.npz", **tensors)
    with np.load(REFERENCE / f"{name}_io.npz") as file:
        return tmp_path / "rewritten.npz", file["images"], file["logits"]


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
@pytest.mark.parametrize("name", ["bv_vit_mini_tok", "bv_vit_mini_scan_map"])
def test_big_vision_with_its_optimizer(name, prefix, tmp_path):
    path, images, logits = rewritten(name, tmp_path, lambda key: prefix + key)
    model = keras_vit.from_checkpoint(path, image_size=images.shape[1:3])
    np.testing.assert_allclose(outputs(model, images), logits, atol=ATOL)
    assert model.provenance.dialect == "big_vision"


def test_one_tower_of_big_vision(tmp_path):
    path, images, logits = rewritten(
        "bv_vit_mini_tok", tmp_path, lambda key: f"params/img/{key}"
    )
    with np.load(path) as file:
        text = {"params/txt/Embed_0/embedding": np.zeros((4, 8), np.float32)}
        np.savez(path, **file, **text, **{"params/t": np.zeros(1, np.float32)})
    model = keras_vit.from_checkpoint(f"{path}:img", image_size=images.shape[1:3])
    np.testing.assert_allclose(outputs(model, images), logits, atol=ATOL)
    refuses(path, "no known dialect")
    refuses(f"{path}:txt", "no known dialect")


def test_bit_with_keras_counters(tmp_path):
    """TF-Hub's copies number every layer: standardized_conv2d_17, group_norm_3."""
    counter = iter(range(10_000))

    def numbered(key):
        for module in ("standardized_conv2d", "group_norm", "head/conv2d"):
            key = key.replace(f"{module}/", f"{module}_{next(counter)}/")
        return key

    path, images, logits = rewritten("bit_mini", tmp_path, numbered)
    model = keras_vit.from_checkpoint(path, image_size=images.shape[1:3])
    np.testing.assert_allclose(outputs(model, images), logits, atol=ATOL)
    assert model.provenance.dialect == "bit"


@pytest.mark.parametrize("shape", [(-1,), (1, 1, 1, -1)])
def test_group_norms_in_either_shape(shape, tmp_path):
    def reshape(name, value):
        return value.reshape(shape) if "gn_" in name else value

    path, images, logits = rewritten("hybrid_mini_stem", tmp_path, str, reshape)
    model = keras_vit.from_checkpoint(path, image_size=images.shape[1:3])
    np.testing.assert_allclose(outputs(model, images), logits, atol=ATOL)


def test_every_fixture_is_read():
    folders = {path.name for path in DIALECTS.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == FIXTURES.keys()


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("timm_vit", {"qkv_bias": "none"}),
        ("timm_bit", {"classifier": "gap"}),
        ("timm_bit", {"activation": "gelu"}),
        ("timm_clip", {"representation_size": 8}),
    ],
)
def test_an_override_that_would_change_nothing_is_an_error(name, override):
    with pytest.raises(ValueError, match="have no effect"):
        keras_vit.from_checkpoint(source(name), **override)


@pytest.mark.parametrize("name", ["hf_clip", "open_clip"])
def test_a_clips_activation_is_not_guessed_silently(name, tmp_path):
    images, theirs = io(name)
    path = tmp_path / "model.safetensors"
    shutil.copy(DIALECTS / name / path.name, path)
    size = images.shape[1:3]
    with pytest.warns(UserWarning, match="does not state its activation"):
        keras_vit.from_checkpoint(path, image_size=size, num_heads=4)
    model = keras_vit.from_checkpoint(
        path, image_size=size, num_heads=4, activation="quick_gelu"
    )
    np.testing.assert_allclose(outputs(model, images), theirs, atol=ATOL)


def test_our_own_config_states_the_fields_of_later_papers(tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copy(DIALECTS / "open_clip" / path.name, path)
    stated = {"num_heads": 4, "activation": "quick_gelu", "layer_norm_epsilon": 1e-3}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    config = keras_vit.from_checkpoint(path).config
    assert (config.activation, config.layer_norm_epsilon) == ("quick_gelu", 1e-3)
    (tmp_path / "config.json").write_text(json.dumps(stated | {"gated_mlp": 1}))
    with pytest.raises(ValueError, match=r"gated_mlp .* to be true or false"):
        keras_vit.from_checkpoint(path)


@pytest.mark.parametrize(
    ("width", "ratio", "mlp_dim"),
    [(48, 4, 128), (48, 2, 64), (40, 4, 112), (24, 3, 48), (40, None, 100)],
)
def test_a_gated_dinov2_has_transformers_ratio(width, ratio, mlp_dim, tmp_path):
    """Two thirds of width * ratio, rounded up to a multiple of 8 (ViT-g: 4,096)."""
    config = PlainViTConfig(
        patch_size=8,
        num_layers=1,
        hidden_size=width,
        mlp_dim=mlp_dim,
        num_heads=2,
        gated_mlp=True,
        activation="silu",
        layer_scale=1e-5,
        classifier="token",
    )
    model = by_hand.randomize(
        plain_vit(config, image_size=(16, 16), num_classes=None), 0.2
    )
    if ratio is None:
        with pytest.raises(ValueError, match=r"mlp_dim=100, .*for a DINOv2"):
            weights.save(model, tmp_path, format="hf")
        return
    weights.save(model, tmp_path, format="hf")
    stated = json.loads((tmp_path / "config.json").read_text())
    assert (stated["mlp_ratio"], stated["use_swiglu_ffn"]) == (ratio, True)
    images, _ = io("hf_vit_sharded")
    images = images[:, :16, :16]
    again = keras_vit.from_checkpoint(tmp_path, image_size=(16, 16))
    np.testing.assert_allclose(
        outputs(again, images), outputs(model, images), atol=1e-5
    )


@pytest.mark.parametrize("name", ["timm_eva02", "timm_clip", "hf_dinov3"])
def test_an_npz_has_no_names_for_later_plain_vits(name, tmp_path):
    """EVA-02 lost its rotary positions in one, without a warning."""
    write = next(at for at in dialects.DIALECTS if at.__name__ == name)
    (tmp_path / "there").mkdir()
    write(tmp_path / "there")
    model = keras_vit.from_checkpoint(tmp_path / "there")
    with pytest.raises(ValueError, match=r"format='npz' can represent.*later paper"):
        keras_vit.weights.save(model, tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def shapes(folder):
    """Shapes by the names in a folder; timm's class token among its registers.

    A class token that the head does not use is a register to this library, and timm
    reads it as one.
    """
    with open_tensors(sorted(folder.glob("*.safetensors*"))[-1]) as file:
        found = {
            name.removeprefix("dinov2_with_registers."): file.shape(name)
            for name in file
        }
    if "reg_token" in found and (token := found.pop("cls_token", None)):
        _, rows, width = found["reg_token"]
        found["reg_token"] = (1, rows + token[1], width)
    elif "cls_token" in found:
        found["reg_token"] = found.pop("cls_token")
    return found


# Not: a BiT of two units, which timm cannot represent; an AIMv2, which is written for
# timm's DINOv2 with packed gates; TensorFlow's file; names of transformers 5.
@pytest.mark.parametrize(
    "name",
    [
        *("hf_bit", "hf_clip", "hf_deit_distilled", "hf_dinov2_reg_model", "hf_dinov3"),
        *("hf_siglip", "hf_vit_hybrid", "hf_vit_sharded", "timm_beit"),
        *("timm_clip", "timm_deit_distilled", "timm_dinov2_reg4", "timm_dinov3"),
        *("timm_eva02", "timm_hybrid_r", "timm_pe_core", "timm_rope_mixed", "timm_vit"),
        *("timm_vit_gap", "timm_vit_map_cls"),
    ],
)
def test_what_is_written_has_the_librarys_names_and_shapes(name, tmp_path):
    """Read and written again, a file has the tensors that the library wrote."""
    model = keras_vit.from_checkpoint(DIALECTS / name)
    weights.save(model, tmp_path / name, format=name.partition("_")[0])
    assert shapes(tmp_path / name) == shapes(DIALECTS / name)
