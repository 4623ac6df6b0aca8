"""LiteRT, ONNX and OpenVINO files against Keras, each in its own runtime."""

import json
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import manifest
from keras_vit.facts import Facts
from keras_vit.layers import TransformerBlock
from tests.layers import by_hand
from tests.models import families
from tests.runs import save_run

tf = pytest.importorskip("tensorflow")
for package in ("ai_edge_litert", "onnx", "onnxruntime", "tf2onnx", "openvino"):
    pytest.importorskip(package)

from keras_vit.serving import (  # noqa: E402
    export,
    export_file,
    fastest,
    formats,
    isolated_run,
    quantize,
    savedmodel,
)
from keras_vit.serving.precision import in_float32  # noqa: E402
from keras_vit.serving.signatures import Served  # noqa: E402
from tests.training.test_fitting import noise_of_three_colors, recipe  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

LABELS = ["red", "green", "blue", "Weiß", "black"]
MEAN, STD = (0.4, 0.5, 0.45), (0.2, 0.25, 0.3)
SCALE = keras_vit.Preprocessing(mean=MEAN, std=STD)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, *families.SIZE, 3), np.uint8)
SUFFIXES = (".tflite", ".onnx", ".xml")


@pytest.fixture
def in_process(monkeypatch):
    """The proof without a process of its own: seconds less an export."""

    def run(kind, path, given):
        return isolated_run.KINDS[kind](str(path), given)

    monkeypatch.setattr(formats, "run_fresh", run)


def of_size(model):
    height, width = model.input_shape[1:3]
    return IMAGES[:, :height, :width]


def expected_of(model, images=IMAGES):
    """Keras's probabilities, scaled and summed up by NumPy."""
    scaled = (images / 255 - MEAN) / STD
    outputs = np.asarray(model(scaled.astype(np.float32), training=False), np.float64)
    if model.layers[-1].activation is keras.activations.softmax:
        return outputs
    powers = np.exp(outputs - outputs.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def with_lora():
    model = families.build("2d")
    rng = np.random.default_rng(1)
    for block in model.layers:
        if isinstance(block, TransformerBlock):
            for layer in block.projections():
                layer.enable_lora(2)
                shape = layer.lora_kernel_b.shape
                layer.lora_kernel_b.assign(0.1 * rng.standard_normal(shape))
    return model


def in_mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return families.build("hybrid")
    finally:
        keras.config.set_dtype_policy(before)


def fine_tuned():
    """A model that `fit` averaged (EMA), for another task than it was built for."""
    from keras_vit.data import sources

    model = keras_vit.for_task(families.build("2d", image_size=(32, 32)), 3)
    split = noise_of_three_colors(24, 0)
    source = sources.Source("colors", ("red", "green", "blue"), split, split)
    keras_vit.training.fit(model, recipe(ema=0.5), source, verbose=0)
    return model


def softmaxed():
    model = families.build("2d")
    head = keras.layers.Dense(5, activation="softmax", name="head")
    features = model.get_layer("head").input
    return by_hand.randomize(keras.Model(model.input, head(features)), 0.1)


def exact_gelu():
    config = families.vit(classifier="gap", gelu="erf")
    return by_hand.randomize(
        keras_vit.vit(config, image_size=families.SIZE, num_classes=5), 0.1
    )


MODELS = {
    "token": lambda: families.build("2d"),
    "gap, erf": exact_gelu,
    "map": lambda: families.build("map"),
    "distilled": lambda: families.build("distilled"),
    "relative": lambda: families.build("relative"),
    "axial": lambda: families.build("axial"),
    "hybrid": lambda: families.build("hybrid"),
    "bit": lambda: families.build("bit"),
    "axial resnet": lambda: families.build("axial resnet"),
    "softmax": softmaxed,
    "mixed precision": in_mixed_precision,
    "lora": with_lora,
    "ema": fine_tuned,
}
QUICK = {  # Each format and each family once; `make slow` has all of both.
    ("hybrid", ".tflite", "float32"),
    ("token", ".tflite", "float16"),
    ("bit", ".tflite", "int8"),
    ("bit", ".onnx", "float32"),
    ("gap, erf", ".onnx", "float32"),
    ("ema", ".onnx", "float32"),
    ("map", ".xml", "float32"),
    ("lora", ".xml", "float32"),
}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in (
        (name, suffix, precision)
        for name in MODELS
        for suffix, formats_of in formats.SUFFIXES.items()
        for precision in formats_of.tolerances
    )
]
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "int8": 0.05}


@pytest.mark.parametrize(("name", "suffix", "precision"), CASES)
def test_files_say_what_keras_says(tmp_path, in_process, name, suffix, precision):
    model = MODELS[name]()
    images = of_size(model)
    path = tmp_path / f"model{suffix}"
    done = export_file(
        model, path, precision=precision, preprocessing=SCALE, verbose=False
    )
    expected = expected_of(in_float32(model), images)
    found = isolated_run.KINDS[formats.format_of(path).kind](
        str(path), {"images": images}
    )
    assert found["scores"].dtype == np.float32
    assert np.ptp(expected, axis=0).max() > 1e-3  # It tells the images apart.
    atol = TOLERANCES[precision]
    np.testing.assert_allclose(found["scores"], expected, rtol=0, atol=atol)
    assert done.difference <= atol
    if suffix == ".tflite":
        assert_no_tensorflow_operators(path)


def operators(content):
    """(builtin code, custom name) of each operator of a LiteRT file."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    return [(code.BuiltinCode(), code.CustomCode()) for code in codes]


def assert_no_tensorflow_operators(path):
    found = operators(path.read_bytes())
    assert len(found) > 5
    assert [name for _, name in found if name is not None] == []


@pytest.mark.parametrize(
    ("write", "name"), [(export, "saved"), (export_file, "m.tflite")]
)
def test_tensorflow_names_no_temporary_folder(
    write, name, tmp_path, in_process, monkeypatch, caplog, model
):
    monkeypatch.setattr(savedmodel, "run_fresh", formats.run_fresh)
    logger = tf.get_logger()
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.INFO, logger.name)  # As it is in a notebook.
    logger.info("heard")
    write(model, tmp_path / name)
    logger.info("heard again")
    assert [record.getMessage() for record in caplog.records] == [
        "heard",
        "heard again",
    ]
    assert logger.level == logging.INFO


def test_tensorflow_operators_would_be_found():
    @tf.function(input_signature=[tf.TensorSpec([2])])
    def erf(x):
        return tf.math.erf(x)

    concrete = [erf.get_concrete_function()]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(concrete, erf)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.SELECT_TF_OPS]
    assert b"FlexErf" in [name for _, name in operators(converter.convert())]


@pytest.fixture(scope="module")
def model():
    return MODELS["token"]()


@pytest.fixture(scope="module")
def onnx_file(model, tmp_path_factory):
    """A file that a process of its own has proved, on images that were given."""
    path = tmp_path_factory.mktemp("onnx") / "flowers.onnx"
    return export_file(model, path, LABELS, preprocessing=SCALE, images=IMAGES)


def test_a_process_without_keras_proves_it(model, onnx_file):
    assert 0 < onnx_file.difference < 1e-5
    assert (onnx_file.agreement, onnx_file.images) == (1.0, 3)
    assert "flowers.onnx: 0.1 MiB; scores differ" in str(onnx_file)
    scores = formats.file_scores(onnx_file.path, IMAGES)
    np.testing.assert_allclose(scores, expected_of(model), rtol=0, atol=1e-5)
    folder = onnx_file.path.parent
    assert sorted(at.name for at in folder.iterdir()) == [
        "flowers.onnx",
        "flowers.onnx.facts.json",
        "flowers.onnx.labels.txt",
        "flowers.onnx.manifest.json",
    ]
    found = manifest.verify(onnx_file.path)
    assert (found.whole, found.files) == (True, 3)
    facts = Facts.from_json(
        json.loads((folder / "flowers.onnx.facts.json").read_text(encoding="utf-8"))
    )
    assert facts.provenance == model.provenance
    assert (facts.preprocessing, facts.labels) == (SCALE, tuple(LABELS))
    text = (folder / "flowers.onnx.labels.txt").read_text(encoding="utf-8")
    assert text.splitlines() == LABELS


def test_names_and_shapes_are_the_ones_it_says(onnx_file):
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file.path)
    (images,), (scores,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.type) == ("images", "tensor(uint8)")
    assert images.shape == ["batch", *families.SIZE, 3]
    assert (scores.name, scores.type) == ("scores", "tensor(float)")
    assert scores.shape == ["batch", 5]


def test_openvino_has_one_output(tmp_path, in_process):
    import openvino

    hybrid = families.build("root alone")  # Its norm leaves ends that nothing reads.
    export_file(hybrid, tmp_path / "m.xml", verbose=False)
    assert sorted(at.name for at in tmp_path.iterdir()) == [
        "m.bin",
        "m.xml",
        "m.xml.facts.json",
        "m.xml.labels.txt",
        "m.xml.manifest.json",
    ]
    assert manifest.verify(tmp_path / "m.xml").files == 4
    found = openvino.Core().read_model(tmp_path / "m.xml")
    assert [output.names for output in found.outputs] == [{"scores"}]
    assert found.input("images").partial_shape == openvino.PartialShape(
        [-1, *families.SIZE, 3]
    )


def test_openvino_sends_no_statistics(tmp_path, in_process, monkeypatch):
    """OpenVINO starts a process for each message, outside CI."""
    started = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(multiprocessing.Process, "start", lambda it: started.append(it))
    export_file(families.build("root alone"), tmp_path / "m.xml", verbose=False)
    assert (tmp_path / "m.xml").is_file()
    assert not started
    assert "CI" not in os.environ


def test_another_computation_is_not_written(tmp_path, in_process, monkeypatch, model):
    path = tmp_path / "m.tflite"

    def run(kind, path, given):
        found = isolated_run.KINDS[kind](str(path), given)
        return {"scores": found["scores"] + np.float32(2e-4)}

    monkeypatch.setattr(formats, "run_fresh", run)
    with pytest.raises(ValueError, match=r"within 1e-04 of .*2\.0.e-04.*nothing was"):
        export_file(model, path)
    assert list(tmp_path.iterdir()) == []


def test_mixed_precision_and_lora_are_taken_off_in_float32():
    for mixed in (with_lora(), in_mixed_precision()):
        plain = in_float32(mixed)
        assert {at.dtype_policy.name for at in plain.layers} == {"float32"}
        assert not any("lora" in v.path for v in plain.weights)
        by_mixed, by_plain = expected_of(mixed), expected_of(plain)
        is_lora = any("lora" in v.path for v in mixed.weights)
        atol = 1e-6 if is_lora else 0.05
        np.testing.assert_allclose(by_plain, by_mixed, rtol=0, atol=atol)
        assert is_lora or np.abs(by_plain - by_mixed).max() > 1e-4


def test_onnx_takes_kerass_int8(tmp_path, in_process):
    network = MODELS["token"]()
    blocks = [at for at in network.layers if isinstance(at, TransformerBlock)]
    kernels = [at.kernel for block in blocks for at in block.projections()]
    kernels.append(network.get_layer("head").kernel)
    of_matrices = sum(np.prod(kernel.shape) for kernel in kernels)
    before = expected_of(network)
    told = quantize(network)
    assert told.parameters == of_matrices < told.total
    done = export_file(
        network, tmp_path / "m.onnx", preprocessing=SCALE, images=IMAGES, verbose=False
    )
    assert done.difference < 0.02  # Where a number is rounded another way.
    scores = isolated_run.onnx(str(done.path), {"images": IMAGES})["scores"]
    assert 1e-4 < np.abs(scores - before).max() < 0.05
    with pytest.raises(ValueError, match=r"floating point for OpenVINO.*'vit"):
        export_file(network, tmp_path / "m.xml")
    with pytest.raises(ValueError, match="without LoRA or quantization"):
        quantize(network)


def test_what_cannot_be_written_says_why(tmp_path, in_process, monkeypatch, model):
    def says(error, pattern, *given, **options):
        with pytest.raises(error, match=pattern):
            export_file(*given, **options)

    out = tmp_path / "m.onnx"
    features = keras.Model(model.input, model.layers[-2].output)
    says(ValueError, "Add a head with keras_vit.for_task", features, out)
    says(ValueError, r"of \.tflite \(LiteRT\), .*m\.pb", model, tmp_path / "m.pb")
    says(ValueError, "float32 for ONNX.*'float16'", model, out, precision="float16")
    says(ValueError, "labels for the model's 5", model, out, ["one"])
    says(ValueError, r"images uint8 \[N, 32, 48, 3\]", model, out, images=IMAGES[:, 1:])
    says(ValueError, "Received: none", model, out, images=IMAGES[:0])
    (tmp_path / "file").write_text("")
    says(OSError, "Choose another folder", model, tmp_path / "file" / "m.onnx")
    out.write_text("old")
    says(ValueError, r"m\.onnx, which already exists.*--force", model, out)
    assert out.read_text() == "old"
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    says(
        ImportError,
        r"pip install '\.\[openvino\]'",
        model,
        out.with_suffix(".xml"),
    )
    assert sorted(at.name for at in tmp_path.iterdir()) == ["file", "m.onnx"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a run and its data: three colors, told apart by a model."""
    root = tmp_path_factory.mktemp("runs")
    split = noise_of_three_colors(12, 0)
    halves = {"x_train": split.images, "y_train": split.labels}
    halves |= {"x_test": split.images, "y_test": split.labels}
    np.savez(root / "colors.npz", **halves)
    network = keras_vit.for_task(families.build("2d", image_size=(32, 32)), 3)
    by_hand.randomize(network.get_layer("head"), 1.0)
    save_run(root / "run", network, ["red", "green", "blue"], SCALE)
    return root


def test_export_prints_what_int8_does_to_accuracy(root, shell, in_process):
    given = ("export", root / "run", root / "m.tflite", "--precision", "int8")
    code, out, err = shell(*given, "--data", root / "colors.npz")
    assert (code, err) == (0, "")
    assert (root / "m.tflite.labels.txt").read_text() == "red\ngreen\nblue\n"
    split = noise_of_three_colors(12, 0)
    network = keras.models.load_model(root / "run" / "model.keras")
    right = (expected_of(network, split.images).argmax(-1) == split.labels).sum()
    assert f"accuracy before {100 * right / 12:6.2f} % ({right} of 12)" in out
    by_file = formats.file_scores(root / "m.tflite", split.images).argmax(-1)
    right = (by_file == split.labels).sum()
    assert f"accuracy after  {100 * right / 12:6.2f} % ({right} of 12)" in out
    assert "change " in out
    assert "% of 12 images" in out
    code, _, err = shell(*given)
    assert code == 1
    assert "m.tflite" in err
    assert "--force" in err


class Paced:
    """Instead of a clock: images a second by name, 10 for the others."""

    def __init__(self, **speeds):
        self.speeds = {name.replace("_", " "): speed for name, speed in speeds.items()}

    def __call__(self, rows, images, *, rounds, seconds):
        for row in rows:
            speed = self.speeds.get(row.name, 10.0)
            row.batches, row.singles = [speed], [speed / 2]
            yield


def sees_colors(path, threads=None):
    """A runtime that is right about every image, and wrong with files in int8."""
    scores = np.roll(np.eye(3), "int8" in str(path), axis=1)
    return isolated_run.Opened(
        lambda images: scores[images.mean((1, 2)).argmax(-1)], (32, 32, 3)
    )


@pytest.fixture(scope="module")
def export_once():
    """`export_file`, of which each file is computed for the first test alone."""
    kept = {}

    def write(model, path, labels, *, precision, **options):
        of = (path.suffix, precision)
        if of not in kept:
            export_file(model, path, labels, precision=precision, **options)
            kept[of] = {at.name: at.read_bytes() for at in path.parent.iterdir()}
        for name, content in kept[of].items():
            path.with_name(name).write_bytes(content)

    return write


@pytest.mark.parametrize(
    ("speeds", "options", "written", "name"),
    [
        ({"LiteRT_float16": 90}, (), "m.tflite", "LiteRT float16"),
        ({"LiteRT_int8": 90, "ONNX_float32": 50}, (), "m.onnx", "ONNX float32"),
        ({"LiteRT_int8": 90}, ("--max-drop", 100), "m.tflite", "LiteRT int8"),
        ({"OpenVINO_float32": 11}, (), "m.xml", "OpenVINO float32"),
        ({"Keras_float32": 90}, (), "m", "Keras float32"),
    ],
)
def test_the_fastest_within_the_drop_is_written(
    root,
    tmp_path,
    shell,
    in_process,
    monkeypatch,
    export_once,
    speeds,
    options,
    written,
    name,
):
    monkeypatch.setattr(fastest, "take_turns", Paced(**speeds))
    monkeypatch.setattr(fastest, "_OPEN", dict.fromkeys(fastest._OPEN, sees_colors))
    keras_row = fastest.Measured(fastest.REFERENCE, sees_colors("").scores, 0.1)
    monkeypatch.setattr(fastest, "by_keras", lambda model: keras_row)
    monkeypatch.setattr(fastest, "export_file", export_once)
    monkeypatch.setattr(savedmodel, "run_fresh", lambda *given: {})
    data = ("--data", root / "colors.npz")
    given = ("export", root / "run", tmp_path / "out" / "m", "--fastest", *data)
    code, out, err = shell(*given, *options)
    assert (code, err) == (0, "")
    assert re.search(rf"^{name} \*  ", out, re.M)
    assert re.search(r"^LiteRT int8.* 0\.00 %  -100\.00 \(-100\.00 to -1", out, re.M)
    assert out.count(" 100.00 %  ") == 5
    path = tmp_path / "out" / written
    assert path.exists()
    assert {at.name.split(".")[0] for at in path.parent.iterdir()} == {"m"}
    if written == "m":
        return
    assert formats.file_scores(path, IMAGES[:, :32, :32]).shape == (3, 3)
    manifest.verify(path)
    (weights,) = {at.suffix for at in path.parent.iterdir()} & set(SUFFIXES)
    assert weights == path.suffix
    code, _, err = shell(*given)
    assert code == 1
    assert "already exists. --force" in err
    assert shell(*given, *options, "--force")[0] == 0


@pytest.mark.parametrize("name", ["token", "softmax"])
def test_the_reference_of_the_fastest_is_keras(name):
    model = MODELS[name]()
    model.preprocessing = SCALE
    row = fastest.by_keras(model)
    np.testing.assert_allclose(row.scores(IMAGES), expected_of(model), atol=1e-5)
    assert row.mebibytes == 4 * model.count_params() / 2**20


def test_each_candidate_for_the_fastest_scores_the_same(in_process, tmp_path):
    model = MODELS["token"]()
    model.preprocessing = SCALE
    most = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 0.03, "int8": 0.03}
    found = []
    for row in fastest.candidates(model, tmp_path, "m", images=IMAGES):
        assert isinstance(row, fastest.Measured), row
        difference = np.abs(row.scores(IMAGES) - expected_of(model)).max()
        assert difference <= most[row.name.split()[1]], row.name
        found.append(row.name)
    *others, openvino = found
    assert others == [
        *("LiteRT float32", "LiteRT float16", "LiteRT int8"),
        "ONNX float32",
    ]
    # The processor decides. Half precision has another name, and differs.
    assert openvino.removeprefix("OpenVINO ") in ("float32", "bfloat16", "float16")
    assert (difference > 1e-5) == (openvino != "OpenVINO float32")


def test_a_signal_after_openvinos_files_are_closed(tmp_path):
    """OpenVINO's own stack for signal handlers was freed with the second file."""
    export_file(MODELS["token"](), tmp_path / "m.xml", verbose=False)
    script = (
        "import gc, signal, sys\n"
        "from keras_vit.serving.isolated_run import open_openvino\n"
        "opened = [open_openvino(sys.argv[1]) for _ in range(3)]\n"
        "while opened:\n"
        "    opened.pop(0)\n"
        "    gc.collect()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    path = str(tmp_path / "m.xml")
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_formats_take_turns(root):
    """The measured numbers are a clock's: twice the work is half the images."""
    slow, quick = (
        fastest.Measured(name, lambda images, s=s: time.sleep(s * len(images)), 1.0)
        for name, s in (("slow", 0.02), ("quick", 0.01))
    )
    turns = fastest.take_turns([slow, quick], IMAGES, rounds=2, seconds=0.1)
    assert len(list(turns)) == 4
    for row, seconds in ((slow, 0.02), (quick, 0.01)):
        assert (len(row.batches), len(row.singles)) == (2, 2)
        assert row.images_a_second <= 1 / seconds
        assert row.milliseconds >= 1000 * seconds


def test_export_says_what_does_not_fit(root, shell):
    for words, told in {
        ("m.onnx", "--precision", "float16"): "--precision float32 or int8 with",
        ("m.onnx", "--top", "3"): "--on-bad-image and --version with --format saved",
        ("m.pb",): "OUT to end in .tflite, .onnx, .xml, or --format",
        ("m", "--format", "openvino", "--data", "none.npz"): "an .npz that exists",
        ("m", "--fastest"): "--data with --fastest",
        ("m.onnx", "--fastest", "--data", "none.npz"): "OUT without .onnx, which",
        ("m", "--fastest", "--data", "x", "--precision", "int8"): "--fastest chooses",
        ("m", "--max-drop", "1"): "Expected --max-drop with --fastest",
    }.items():
        code, _, err = shell("export", root / "run", root / words[0], *words[1:])
        assert code == 1
        assert told in err
    assert not list(root.glob("m.[opx]*"))


def test_export_writes_a_savedmodel_and_evaluates_it(root, shell, monkeypatch):
    """The accuracy after is the file's: one whose numbers are wrong is wrong."""
    right = Served.images_float32

    def least_for_greatest(served, images):
        said = right(served, images)
        return said | {"logits": -said["logits"]}

    monkeypatch.setattr(savedmodel, "run_fresh", lambda *given: {})
    monkeypatch.setattr(Served, "images_float32", least_for_greatest)
    given = ("export", root / "run", root / "served", "--data", root / "colors.npz")
    code, out, _ = shell(*given, "--top", 2, "--version", 4, "--on-bad-image", "fail")
    assert code == 0
    assert "the same class for 0.0 % of the images" in out
    loaded = tf.saved_model.load(str(root / "served" / "4"))
    assert loaded.signatures["image_bytes"].structured_outputs["scores"].shape[1] == 2
    code, _, err = shell(*given, "--version", 4)
    assert code == 1
    assert "version=4, which already exists" in err
    assert shell(*given[:3], "--version", 4, "--force")[0] == 0


@pytest.mark.slow
def test_kerass_int8_is_exported_as_a_savedmodel(root, shell):
    given = ("export", root / "run", root / "int8", "--precision", "int8")
    code, out, err = shell(*given)
    assert (code, err) == (0, "")
    assert "int8: 7,7" in out
    assert (root / "int8" / "1" / "saved_model.pb").is_file()
