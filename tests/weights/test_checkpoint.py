"""Loading and saving checkpoints: what fits, what is made to fit, what raises."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
from safetensors import SafetensorError

import keras_vit
from keras_vit import weights
from keras_vit.configs import ViTConfig
from keras_vit.weights import checkpoint, writing
from tests.conftest import REFERENCE
from tests.weights import dialects

MINI = REFERENCE / "vit_mini.npz"
CONFIG = ViTConfig(patch_size=16, num_layers=2, hidden_size=32, mlp_dim=64, num_heads=4)


def mini(image_size=(64, 64), num_classes=10, num_channels=3, **overrides):
    return keras_vit.vit(
        dataclasses.replace(CONFIG, **overrides),
        image_size=image_size,
        num_classes=num_classes,
        num_channels=num_channels,
    )


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def values(model):
    return [np.array(value) for value in model.get_weights()]


def same(one, two):
    return all((a == b).all() for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("name", "numbering"),
    [
        ("vit_mini", "pre-linen"),
        ("vit_mini_linen_names", "linen"),
        ("vit_mini_rep", "pre-linen"),
        ("vit_mini_gap", "pre-linen"),
        ("testing", "pre-linen"),
    ],
)
def test_load_save_load_is_bit_equal(name, numbering, tmp_path):
    source = REFERENCE / f"{name}.npz"
    model = keras_vit.from_checkpoint(source)
    weights.save(model, tmp_path / "saved.npz", numbering=numbering)
    original, saved = arrays(source), arrays(tmp_path / "saved.npz")
    assert saved.keys() == original.keys()
    for key, value in original.items():
        assert saved[key].dtype == value.dtype
        np.testing.assert_array_equal(saved[key], value, err_msg=key)
    again = keras_vit.from_checkpoint(tmp_path / "saved.npz")
    assert same(values(again), values(model))


@pytest.mark.parametrize(
    ("classifier", "registers"),
    [("gap", 0)]  # `save` warns of others: a register looks like a class token.
    + [(kind, count) for kind in ("token", "map", "distilled") for count in range(3)],
)
def test_tensors_show_the_classifier_and_the_registers(classifier, registers, tmp_path):
    model = mini(classifier=classifier, num_registers=registers)
    weights.save(model, tmp_path / "saved.npz")
    assert keras_vit.from_checkpoint(tmp_path / "saved.npz").config == model.config


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_prefixes_and_optimizer_state(prefix, tmp_path):
    tensors = {f"{prefix}{key}": value for key, value in arrays(MINI).items()}
    tensors["opt/state/step"] = np.int32(7)
    np.savez(tmp_path / "prefixed.npz", **tensors)
    model = keras_vit.from_checkpoint(tmp_path / "prefixed.npz")
    assert same(values(model), values(keras_vit.from_checkpoint(MINI)))


def test_bfloat16_stored_as_void16(tmp_path):
    tensors = arrays(MINI)
    kernel = tensors["head/kernel"]
    # The upper half of a float32, which is what a bfloat16 is; numpy writes it as V2.
    halves = (kernel.view(np.uint32) >> 16).astype(np.uint16)
    tensors["head/kernel"] = halves.view(np.dtype("V2"))
    np.savez(tmp_path / "bf16.npz", **tensors)
    model = keras_vit.from_checkpoint(tmp_path / "bf16.npz")
    loaded = model.get_layer("head").get_weights()[0]
    expected = (kernel.view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(loaded, expected)


def test_report_says_what_became_of_every_tensor():
    model = mini(image_size=(96, 96), num_classes=7, num_channels=1)
    report = weights.load(model, REFERENCE / "vit_mini_rep.npz")
    assert report.names("resized") == [
        "embedding/kernel",
        "Transformer/posembed_input/pos_embedding",
    ]
    assert report.names("fresh") == ["head/kernel", "head/bias"]
    assert report.names("unused") == ["pre_logits/bias", "pre_logits/kernel"]
    assert len(report.names("loaded")) == len(arrays(MINI)) - 4
    text = str(report)
    assert "2 resized, 2 fresh, 2 unused" in text
    assert re.search(
        r"resized +Transformer/posembed.* \(1, 17, 32\) -> \(1, 37, 32\)", text
    )
    assert "grid 4x4 to 6x6" in text


def test_other_channel_counts_embed_gray_images_as_before():
    kernel = arrays(MINI)["embedding/kernel"]
    for channels in (1, 2, 3, 4, 6, 7):
        adapted = checkpoint.adapt_channels(kernel, channels)
        assert adapted.shape == (16, 16, channels, 32)
        np.testing.assert_allclose(adapted.sum(2), kernel.sum(2), atol=1e-6)
    np.testing.assert_array_equal(checkpoint.adapt_channels(kernel, 3), kernel)
    four = checkpoint.adapt_channels(kernel, 4)
    np.testing.assert_array_equal(four[:, :, 1], kernel[:, :, 1])  # Green stays green.


@pytest.mark.parametrize(
    "wrong",
    [
        *({"image_size": at} for at in (224, (), (32,), (32, 48, 3), (32.0, 48))),
        *({"grid": at} for at in (6, (2, 3, 1), (0, 4))),
        *({"classes": at} for at in (True, -1, "5", 2.5)),
    ],
    ids=str,
)
def test_impossible_arguments_are_named(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^Expected {name} .*Received: {name}="):
        keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz", **wrong)


def test_non_square_positions(tmp_path):
    model = mini(image_size=(48, 96), classifier="gap")
    weights.save(model, tmp_path / "rect.npz")
    with pytest.raises(ValueError, match=r"grid=\(rows, columns\)"):
        keras_vit.from_checkpoint(tmp_path / "rect.npz", image_size=(96, 96))
    again = keras_vit.from_checkpoint(tmp_path / "rect.npz", grid=(3, 6))
    assert again.input_shape == (None, 48, 96, 3)
    assert same(values(again), values(model))
    wide = keras_vit.from_checkpoint(
        tmp_path / "rect.npz", grid=(3, 6), image_size=(48, 192)
    )
    table = wide.get_layer("posembed_input").get_weights()[0].reshape(3, 12, 32)
    old = model.get_layer("posembed_input").get_weights()[0].reshape(3, 6, 32)
    for column in range(12):  # Aligned corners, written out by hand.
        place = column * 5 / 11
        low, high = int(place), min(int(place) + 1, 5)
        mixed = old[:, low] * (1 - place + low) + old[:, high] * (place - low)
        np.testing.assert_allclose(table[:, column], mixed, atol=1e-6)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_relative_offsets_give_the_number_of_patches(classifier, tmp_path):
    """T tokens have 2T - 1 offsets (D.4)."""
    model = mini(image_size=(48, 48), classifier=classifier, position="relative")
    weights.save(model, tmp_path / "relative.npz")
    assert checkpoint.read(tmp_path / "relative.npz").num_positions == 9
    again = keras_vit.from_checkpoint(tmp_path / "relative.npz")
    assert again.input_shape == (None, 48, 48, 3)
    assert same(values(again), values(model))


@pytest.mark.parametrize(("old", "new"), [(28, 14), (32, 16), (16, 30), (24, 22)])
def test_sizes_for_which_scipy_zoom_writes_zeros(old, new):
    ones = np.ones((1, old * old, 2), np.float32)
    resized = keras_vit.layers.resize_position_embeddings(
        ones, (old, old), (new, new), 0
    )
    np.testing.assert_array_equal(resized, np.ones((1, new * new, 2), np.float32))


def test_config_beside_the_file(tmp_path):
    np.savez(tmp_path / "w.npz", **arrays(MINI))
    (tmp_path / "config.json").write_text(
        json.dumps({"gelu": "erf", "mean": [0.4] * 3})
    )
    model = keras_vit.from_checkpoint(tmp_path / "w.npz")
    assert model.get_layer("encoderblock_0").gelu == "erf"
    assert weights.config_beside(tmp_path / "w.npz")["mean"] == [0.4] * 3
    images = np.load(REFERENCE / "vit_mini_io.npz")["images"]
    exact = keras.ops.convert_to_numpy(model(images))
    tanh = keras.ops.convert_to_numpy(keras_vit.from_checkpoint(MINI)(images))
    # extra/mutations.json: exact GELU moves vit_mini's logits by 4.04e-4.
    assert np.abs(exact - tanh).max() == pytest.approx(4.04e-4, rel=0.02)
    (tmp_path / "config.json").write_text(json.dumps({"jelu": "erf"}))
    with pytest.raises(ValueError, match="jelu"):
        keras_vit.from_checkpoint(tmp_path / "w.npz")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"mean": [0.4, 0.5]}, r"3 channels in mean .*Received: mean=\[0\.4, 0\.5\]"),
        ({"std": [0.5] * 4}, "3 channels in std"),
        ({"labels": ["one"]}, "labels in the config.json.*Received: 1 labels"),
        ({"labels": []}, "Received: 0 labels"),
    ],
)
def test_a_config_of_other_channels_or_classes_is_refused(stated, message, tmp_path):
    np.savez(tmp_path / "w.npz", **arrays(MINI))
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=message):
        keras_vit.from_checkpoint(tmp_path / "w.npz")


def other(tmp_path, **changes):
    """vit_mini.npz with tensors changed, or left out (None)."""
    tensors = arrays(MINI) | changes
    path = tmp_path / "other.npz"
    np.savez(path, **{k: v for k, v in tensors.items() if v is not None})
    return path


def refuses(path, match, model=None, kind=ValueError):
    """Loading raises one clear error and leaves the model as it was."""
    model = model or mini()
    before = values(model)
    with pytest.raises(kind, match=match) as caught:
        weights.load(model, path)
    assert "Received" in str(caught.value)
    assert same(values(model), before)


def test_a_built_model_tells_the_heads_that_a_file_does_not(tmp_path):
    dialects.hf_vit(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="num_heads"):
        keras_vit.from_checkpoint(tmp_path)
    model = keras_vit.from_checkpoint(tmp_path, num_heads=2)
    built = keras_vit.vit(model.config, image_size=(8, 8), num_classes=3)
    weights.load(built, tmp_path)
    assert same(values(built), values(model))


def test_missing_file(tmp_path):
    refuses(tmp_path / "no.npz", "does not exist", kind=FileNotFoundError)


def test_truncated_npz(tmp_path):
    path = tmp_path / "cut.npz"
    path.write_bytes(MINI.read_bytes()[:100_000])
    refuses(path, "truncated")


def test_a_flipped_bit(tmp_path):
    content = bytearray(MINI.read_bytes())
    content[len(content) // 2] ^= 1
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    refuses(path, "damaged")


def test_web_page_saved_as_npz(tmp_path):
    path = tmp_path / "page.npz"
    path.write_text("<!DOCTYPE html><title>404</title>")
    refuses(path, "a web page")


def test_empty_file_and_text(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"")
    refuses(path, "0 bytes")
    path.write_bytes(b"hello")
    refuses(path, "hello")


def test_pickled_objects_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    path = other(tmp_path, cls=np.array([Bomb()], dtype=object))
    refuses(path, "pickled")
    assert not (tmp_path / "boom").exists()


def test_nan(tmp_path):
    kernel = arrays(MINI)["Transformer/encoderblock_1/MlpBlock_3/Dense_1/kernel"]
    kernel[3, 5] = np.nan
    path = other(
        tmp_path, **{"Transformer/encoderblock_1/MlpBlock_3/Dense_1/kernel": kernel}
    )
    refuses(path, "NaN or infinity in Transformer/encoderblock_1/MlpBlock_0/Dense_1")


def test_integers_where_weights_should_be(tmp_path):
    refuses(other(tmp_path, cls=np.zeros((1, 1, 32), np.int32)), "int32")


def test_another_architecture(tmp_path):
    large = mini(hidden_size=64)
    refuses(MINI, r"hidden_size=64.*hidden_size=32.*from_checkpoint", large)
    deep = mini(num_layers=3)
    refuses(MINI, "encoderblock_2.* is missing", deep)
    shallow = mini(num_layers=1)
    refuses(MINI, "the model has no Transformer/encoderblock_1/", shallow)
    refuses(MINI, "has no class token", mini(classifier="gap"))
    refuses(REFERENCE / "vit_mini_gap.npz", "cls is missing")


def test_hybrid_into_vit(tmp_path):
    path = other(tmp_path, **{"conv_root/kernel": np.zeros((7, 7, 3, 32), np.float32)})
    refuses(path, "hybrid")
    with pytest.raises(ValueError, match="hybrid"):
        keras_vit.from_checkpoint(path)


def test_a_head_trained_behind_pre_logits_is_not_taken_alone():
    refuses(
        REFERENCE / "vit_mini_rep.npz",
        "representation_size=24",
        mini(representation_size=None),
    )


def test_another_class_count_keeps_the_new_head():
    model = mini(num_classes=3)
    head = model.get_layer("head").get_weights()
    report = weights.load(model, MINI)
    assert report.names("fresh") == ["head/kernel", "head/bias"]
    assert same(model.get_layer("head").get_weights(), head)


def test_save_refuses_what_it_cannot_name(tmp_path):
    model = mini()
    longer = keras.Model(model.input, keras.layers.Dense(2)(model.output))
    with pytest.raises(ValueError, match=r"model\.keras"):
        weights.save(longer, tmp_path / "x.npz")
    with pytest.raises(ValueError, match="format="):
        weights.save(model, tmp_path / "x.npz", format="pickle")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.npz"
    path.write_bytes(b"old")

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(OSError, match="Free some space"):
        weights.save(mini(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("format", ["timm", "hf"])
def test_a_full_disk_leaves_the_old_folder(tmp_path, monkeypatch, format):
    """The tensors are written first; no config.json of them is left without them."""
    weights.save(mini(), tmp_path, format)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(OSError, match=r"model\.safetensors, .*Free some space"):
        weights.save(mini(num_layers=3), tmp_path, format)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="Choose another folder"):
        weights.save(mini(), tmp_path / "file" / "w.npz")


def test_lora_and_int8_models_are_loaded_first():
    model = mini()
    model.get_layer("encoderblock_0").attention.qkv.enable_lora(2)
    refuses(MINI, "LoRA", model)


def test_a_keras_file_is_not_an_npz(tmp_path):
    mini().save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"a different kind of zip.*load_model"):
        keras_vit.from_checkpoint(tmp_path / "model.keras")


def test_a_grid_that_could_pass_for_a_square_is_named(tmp_path):
    model = mini(image_size=(16, 64))
    with pytest.warns(UserWarning, match=r"Read .*strip\.npz back with grid=\(1, 4\)"):
        weights.save(model, tmp_path / "strip.npz")
    again = keras_vit.from_checkpoint(tmp_path / "strip.npz", grid=(1, 4))
    assert again.input_shape == (None, 16, 64, 3)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_file_for_other_channels(channels):
    """The first kernel is adapted, as in builders: gray images keep their logits."""
    path = REFERENCE / "vit_mini.npz"
    expected = keras_vit.from_checkpoint(path, image_size=(64, 64))
    model = keras_vit.from_checkpoint(path, image_size=(64, 64), num_channels=channels)
    assert model.input_shape == (None, 64, 64, channels)
    assert model.provenance.resized == ("embedding/kernel",)
    gray = np.random.default_rng(0).standard_normal((2, 64, 64, 1)).astype("float32")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(model(np.repeat(gray, channels, -1))),
        keras.ops.convert_to_numpy(expected(np.repeat(gray, 3, -1))),
        atol=1e-5,
    )


@pytest.mark.parametrize("channels", [0, -1, 2.5, True])
def test_channels_that_no_image_has(channels):
    with pytest.raises(ValueError, match=r"num_channels.*Received: num_channels="):
        keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz", num_channels=channels)


@pytest.mark.parametrize("name", ["x.safetensors", "x.SafeTensors"])
@pytest.mark.parametrize("format", ["timm", "hf"])
def test_a_path_that_ends_in_safetensors_is_a_file(format, name, tmp_path):
    model = mini(num_classes=4, gelu="erf")
    path = tmp_path / "mine" / name
    weights.save(model, path, format=format)
    assert path.is_file()
    assert (path.parent / "config.json").is_file()
    again = keras_vit.from_checkpoint(path)
    assert same(values(again), values(model))
    weights.save(model, path, format=format)  # Again: its own config.json is replaced.


@pytest.mark.parametrize("format", ["timm", "hf"])
def test_a_file_beside_another_models_config(format, tmp_path):
    """One config.json describes one checkpoint of a folder."""
    weights.save(
        mini(num_classes=4, gelu="erf"), tmp_path / "a.safetensors", format=format
    )
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"config\.json.*a different folder"):
        weights.save(
            mini(num_classes=5, gelu="erf"), tmp_path / "b.safetensors", format=format
        )
    assert (tmp_path / "config.json").read_bytes() == before
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("timm", "x.npz"),
        ("hf", "x.h5"),
        ("timm", "x.keras"),
        ("npz", "x.safetensors"),
        ("npz", "x.keras"),
        ("npz", "x.weights.h5"),
    ],
)
def test_a_path_of_another_formats_ending(format, name, tmp_path):
    with pytest.raises(ValueError, match=f"Received: format='{format}'.*{name}"):
        weights.save(mini(num_classes=4, gelu="erf"), tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())
