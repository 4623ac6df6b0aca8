"""One library's ViT in a separate process, which peers.py starts and sends requests to.

    .venv-peers/torch/bin/python benchmarks/peer_adapters.py JOB

JOB is a `Job` as JSON. A request is a line of JSON on standard input, its response one
on standard output. Output of the libraries goes to standard error.

    {"what": "forward", "calls": 2}     {"seconds": 1.5}, the mean of the calls
    {"what": "memory"}                  {"bytes": 2500000000}, the peak so far
    {"what": "facts"}                   {"multiply_adds": ..., "versions": ..., ...}
    {"what": "save", "folder": "..."}   {}, saves the weights in the library's format

"training", "latency" (a batch of one) and "peak" (one matrix product in the library's
framework) are requested like "forward". With `--first FOLDER` the process reads the
files of "save", predicts one image, prints {"best": class} and exits.

All use random weights, 1000 classes, no dropout, softmax cross entropy, SGD with
momentum 0.9 and a rate of 0.01, and gradients clipped to a global norm of 1.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 1000
RATE, MOMENTUM, NORM = 0.01, 0.9, 1.0
CONVOLUTIONAL = {  # Variants with convolutions that timm has, by its names.
    "BiT-R50x1": "resnetv2_50x1_bit",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a process; those of ViT-B/16 if the variant has convolutions."""

    library: str  # A name in PEERS.
    compiled: bool | str  # Keras's jit_compile, or whether torch.compile is used.
    device: str  # "cpu", in float32, or "gpu", in bfloat16.
    variant: str
    image_size: int
    batch: int
    patch_size: int
    num_layers: int
    hidden_size: int
    mlp_dim: int
    num_heads: int

    @property
    def product(self) -> tuple[int, int, int]:
        """Shapes of the peak's product: the first product of an MLP."""
        tokens = (self.image_size // self.patch_size) ** 2 + 1
        return self.batch * tokens, self.hidden_size, self.mlp_dim

    def images(self, count: int) -> np.ndarray:
        """float32 [count, H, W, 3]."""
        shape = (count, self.image_size, self.image_size, 3)
        return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)

    def labels(self) -> np.ndarray:
        """int32 [B]."""
        drawn = np.random.default_rng(1).integers(0, CLASSES, self.batch)
        return drawn.astype(np.int32)


class Peer:
    """A library's ViT. Methods return when their computation is complete."""

    packages: tuple[str, ...] = ()

    def __init__(self, job: Job) -> None:
        self.job = job

    def build(self) -> None:
        """Builds the model with random weights, and its optimizer."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Writes the weights as the library's users do."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Builds the model from the files of `save`, for prediction."""
        raise NotImplementedError

    def put(self, array: np.ndarray) -> Any:
        """Converts images [B, H, W, 3] or labels [B] for `forward` and `train`."""
        raise NotImplementedError

    def forward(self, images: Any) -> Any:
        """Computes logits [B, K]."""
        raise NotImplementedError

    def train(self, images: Any, labels: Any) -> None:
        """Performs one update."""
        raise NotImplementedError

    def first(self, images: Any) -> Any:
        """Computes logits in a process that predicts nothing else."""
        return self.forward(images)

    def product(self) -> Callable[[], object]:
        """Returns the matrix product of the peak, compiled if its framework does so."""
        raise NotImplementedError

    def memory(self) -> int:
        """Returns the peak bytes so far of the process or, with a GPU, on the GPU."""
        status = Path("/proc/self/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def multiply_adds(self) -> int | None:
        """Multiply-adds of one image's forward pass, if the library counts them."""
        return None

    def device(self) -> str:
        """Returns the name of the processor or GPU."""
        return platform.processor() or platform.machine()


def tensorflow_product(job: Job) -> Callable[[], object]:
    """Returns the product without XLA."""
    import tensorflow as tf

    rows, inner, columns = job.product
    a, b = tf.random.normal((rows, inner)), tf.random.normal((inner, columns))
    product = tf.function(lambda: tf.matmul(a, b))
    return lambda: product()[0, 0].numpy()


def jax_product(job: Job) -> Callable[[], object]:
    """Returns the product under jit."""
    import jax

    rows, inner, columns = job.product
    dtype = "bfloat16" if job.device == "gpu" else "float32"
    a, b = jax.numpy.ones((rows, inner), dtype), jax.numpy.ones((inner, columns), dtype)
    product = jax.jit(jax.numpy.matmul)
    return lambda: product(a, b).block_until_ready()


def torch_product(job: Job) -> Callable[[], object]:
    """Eager."""
    import torch

    rows, inner, columns = job.product
    dtype = torch.bfloat16 if job.device == "gpu" else torch.float32
    options: dict[str, Any] = {"device": torch_device(job), "dtype": dtype}
    a, b = torch.ones((rows, inner), **options), torch.ones((inner, columns), **options)

    def product() -> None:
        torch.matmul(a, b)
        torch_wait(job)

    return product


PRODUCTS = {
    "tensorflow": tensorflow_product,
    "jax": jax_product,
    "torch": torch_product,
}


def torch_device(job: Job) -> str:
    """Returns the device of tensors."""
    return "cuda" if job.device == "gpu" else "cpu"


def torch_wait(job: Job) -> None:
    """Waits until the GPU has finished."""
    if job.device == "gpu":
        import torch

        torch.cuda.synchronize()


def torch_memory() -> int:
    """Returns the peak bytes of this process on the GPU."""
    import torch

    return torch.cuda.max_memory_allocated()


def jax_memory() -> int:
    """Returns the peak bytes of this process on the GPU."""
    import jax

    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])


def torch_name() -> str:
    """Returns the name of the GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def jax_name() -> str:
    """Returns the name of the GPU."""
    import jax

    return str(jax.devices()[0].device_kind)


def require_gpu(framework: str) -> None:
    """Raises if a framework would compute on the CPU instead."""
    if framework == "torch":
        import torch

        found = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        import jax

        found = jax.default_backend()
    if found == "cpu":
        raise RuntimeError(
            f"Expected a GPU for {framework}. Received: backend={found!r}. Install the "
            f"{framework} that is built for it in {sys.prefix}"
        )


class KerasPeer(Peer):
    """A model in Keras 3, on any backend."""

    @property
    def backend(self) -> str:
        """Returns the backend of this process."""
        import keras

        return str(keras.backend.backend())

    def make(self) -> Any:
        """Returns the model, up to the logits."""
        raise NotImplementedError

    def optimizer(self) -> Any:
        """Returns the optimizer, Keras's by default."""
        import keras

        return keras.optimizers.SGD(RATE, momentum=MOMENTUM, global_clipnorm=NORM)

    def read(self, folder: Path) -> Any:
        """Reads the model from the files of `save`."""
        raise NotImplementedError

    def _prepare(self) -> None:
        import keras

        if self.job.device == "gpu":
            require_gpu(self.backend)
            keras.config.set_dtype_policy("mixed_bfloat16")

    def build(self) -> None:
        import keras

        self._prepare()
        self.model = self.make()
        self.model.compile(
            self.optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=self.job.compiled,
        )

    def load(self, folder: Path) -> None:
        self._prepare()
        self.model = self.read(folder)

    def put(self, array: np.ndarray) -> Any:
        import keras

        return keras.ops.convert_to_tensor(array)

    def forward(self, images: Any) -> Any:
        return self.model.predict_on_batch(images)

    def first(self, images: Any) -> Any:
        if self.backend == "jax":  # Otherwise compiles each operation separately.
            return self.forward(images)
        import keras

        return keras.ops.convert_to_numpy(self.model(images, training=False))

    def train(self, images: Any, labels: Any) -> None:
        self.model.train_on_batch(images, labels)

    def product(self) -> Callable[[], object]:
        return PRODUCTS[self.backend](self.job)

    def memory(self) -> int:
        if self.job.device == "cpu":
            return super().memory()
        return torch_memory() if self.backend == "torch" else jax_memory()

    def device(self) -> str:
        if self.job.device == "cpu":
            return super().device()
        return torch_name() if self.backend == "torch" else jax_name()


def our_model(job: Job) -> Any:
    """Returns a model of this library, without the dropout of L/16 and H/14."""
    import keras_vit

    config = keras_vit.VARIANTS[job.variant]
    size = (job.image_size, job.image_size)
    if isinstance(config, keras_vit.ResNetConfig):
        return keras_vit.resnet(config, image_size=size, num_classes=CLASSES)
    config = dataclasses.replace(config, dropout_rate=0.0)
    return keras_vit.vit(config, image_size=size, num_classes=CLASSES)


class KerasVit(KerasPeer):
    """This library."""

    packages = ("keras", "tensorflow", "jax", "torch")

    def make(self) -> Any:
        return our_model(self.job)

    def optimizer(self) -> Any:
        from keras_vit.training.optim import MomentumSGD

        return MomentumSGD(RATE, global_clipnorm=NORM)

    def save(self, folder: Path) -> None:
        import keras_vit

        keras_vit.weights.save(self.model, folder / "weights.npz")

    def read(self, folder: Path) -> Any:
        import keras_vit
        from keras_vit.configs import builder_name

        build = getattr(keras_vit, builder_name(self.job.variant))
        return build(
            weights=folder / "weights.npz",
            input_shape=(self.job.image_size, self.job.image_size, 3),
            classifier_activation=None,
        )

    def multiply_adds(self) -> int:
        from keras_vit.inspection import costs

        return costs(self.model).multiply_adds


class OpenVINO(Peer):
    """This library's exported file, which includes scaling of pixels and a softmax.

    Another process writes it, so that this one's memory is only OpenVINO's.
    """

    packages = ("openvino", "keras")

    def build(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        given = json.dumps(dataclasses.asdict(self.job))
        command = [sys.executable, __file__, given, "--export", self._folder.name]
        subprocess.run(command, check=True)
        self.load(Path(self._folder.name))

    @classmethod
    def export(cls, job: Job, folder: Path) -> None:
        """Writes the file."""
        import keras_vit

        path = folder / "model.xml"
        keras_vit.serving.export_file(our_model(job), path, verbose=False)

    def save(self, folder: Path) -> None:
        shutil.copytree(self._folder.name, folder, dirs_exist_ok=True)

    def load(self, folder: Path) -> None:
        self.compiled = self._compile(folder / "model.xml")

    def _compile(self, model: Any) -> Any:
        import openvino

        threads = {"INFERENCE_NUM_THREADS": os.cpu_count()}
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        return openvino.Core().compile_model(model, "CPU", threads | precision)

    def put(self, array: np.ndarray) -> Any:
        if array.ndim == 1:
            return array
        return np.uint8((array + 1) * 127.5)

    def forward(self, images: Any) -> Any:
        return self.compiled(images)["scores"]

    def product(self) -> Callable[[], object]:
        import openvino
        from openvino import opset13

        rows, inner, columns = self.job.product
        rng = np.random.default_rng(0)
        a = rng.standard_normal((rows, inner), np.float32)
        b = rng.standard_normal((inner, columns), np.float32)
        given = opset13.parameter([rows, inner], np.float32)
        product = opset13.matmul(given, opset13.constant(b), False, False)
        compiled = self._compile(openvino.Model([product], [given]))
        return lambda: compiled(a)


class KerasHub(KerasPeer):
    """keras-hub's ViTImageClassifier."""

    packages = ("keras-hub", "keras", "tensorflow")

    def make(self) -> Any:
        import keras_hub

        job = self.job
        backbone = keras_hub.models.ViTBackbone(
            image_shape=(job.image_size, job.image_size, 3),
            patch_size=job.patch_size,
            num_layers=job.num_layers,
            num_heads=job.num_heads,
            hidden_dim=job.hidden_size,
            mlp_dim=job.mlp_dim,
        )
        return keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES)

    def save(self, folder: Path) -> None:
        self.model.save_to_preset(str(folder))

    def read(self, folder: Path) -> Any:
        import keras_hub

        return keras_hub.models.ViTImageClassifier.from_preset(str(folder))


class VitKeras(KerasPeer):
    """vit-keras's `build_model`, which its `vit_b16` also calls; a dropout of 0.1.

    Version 0.2 is for Keras 3: its layers use `keras.ops`.
    """

    packages = ("vit-keras", "keras", "tensorflow")

    def make(self) -> Any:
        from vit_keras import vit

        job = self.job
        return vit.build_model(
            image_size=job.image_size,
            patch_size=job.patch_size,
            num_layers=job.num_layers,
            hidden_size=job.hidden_size,
            num_heads=job.num_heads,
            mlp_dim=job.mlp_dim,
            classes=CLASSES,
            dropout=0.0,
            name="vit",
        )

    def save(self, folder: Path) -> None:
        self.model.save_weights(folder / "vit.weights.h5")

    def read(self, folder: Path) -> Any:
        model = self.make()
        model.load_weights(folder / "vit.weights.h5")
        return model


class TorchPeer(Peer):
    """A model in torch, eager or compiled."""

    def make(self) -> Any:
        """Returns the model."""
        raise NotImplementedError

    def read(self, folder: Path) -> Any:
        """Reads the model from the files of `save`."""
        raise NotImplementedError

    def logits(self, images: Any) -> Any:
        """Returns the logits of a batch."""
        return self.called(images)

    def _prepare(self, make: Callable[[], Any]) -> None:
        let_torchvision_import()
        import torch

        if self.job.device == "gpu":
            require_gpu("torch")
        self.model = make().to(torch_device(self.job))
        if self.job.device == "gpu":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.called = torch.compile(self.model) if self.job.compiled else self.model
        self.autocast = functools.partial(
            torch.autocast,
            torch_device(self.job),
            torch.bfloat16,
            enabled=self.job.device == "gpu",
        )

    def build(self) -> None:
        self._prepare(self.make)
        import torch

        self.optimizer = torch.optim.SGD(
            self.model.parameters(), RATE, momentum=MOMENTUM
        )

    def load(self, folder: Path) -> None:
        self._prepare(lambda: self.read(folder))

    def put(self, array: np.ndarray) -> Any:
        import torch

        if array.ndim == 1:
            return torch.from_numpy(array.astype(np.int64)).to(torch_device(self.job))
        images = array.transpose(0, 3, 1, 2)
        if self.job.device == "gpu":  # Channels last, as given.
            return torch.from_numpy(images).to("cuda")
        return torch.from_numpy(np.ascontiguousarray(images))

    def forward(self, images: Any) -> Any:
        import torch

        if self.model.training:
            self.model.eval()
        with torch.inference_mode(), self.autocast():
            logits = self.logits(images)
        torch_wait(self.job)
        return logits.float().cpu().numpy()

    def train(self, images: Any, labels: Any) -> None:
        import torch

        if not self.model.training:
            self.model.train()
        with self.autocast():
            loss: Any = torch.nn.functional.cross_entropy(self.logits(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), NORM)
        self.optimizer.step()
        torch_wait(self.job)

    def product(self) -> Callable[[], object]:
        return torch_product(self.job)

    def memory(self) -> int:
        return super().memory() if self.job.device == "cpu" else torch_memory()

    def device(self) -> str:
        return super().device() if self.job.device == "cpu" else torch_name()


def let_torchvision_import() -> None:
    """Defines operators that timm and transformers use if torchvision does not load.

    PyPI's is built for CUDA; with a torch for CPUs its operators are missing.
    """
    import torch

    torchvision = importlib.util.find_spec("torchvision")
    if torchvision is None or torchvision.origin is None:
        return
    operators: Any = torch.ops
    try:
        for library in Path(torchvision.origin).parent.glob("_C*.so"):
            operators.load_library(library)
    except OSError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor"
            )


class Timm(TorchPeer):
    """timm's VisionTransformer."""

    packages = ("timm", "torch")

    def make(self, checkpoint: str = "") -> Any:
        import timm

        job = self.job
        timm.layers.set_fused_attn(True)  # scaled_dot_product_attention.
        options: dict[str, Any] = {}
        if job.variant not in CONVOLUTIONAL:
            options = {
                "patch_size": job.patch_size,
                "embed_dim": job.hidden_size,
                "depth": job.num_layers,
                "num_heads": job.num_heads,
                "mlp_ratio": job.mlp_dim / job.hidden_size,
            }
        if "ViT" in job.variant:
            options["img_size"] = job.image_size
        return timm.create_model(
            CONVOLUTIONAL.get(job.variant, "vit_base_patch16_224"),
            pretrained=False,
            checkpoint_path=checkpoint,
            num_classes=CLASSES,
            **options,
        )

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file(self.model.state_dict(), folder / "model.safetensors")

    def read(self, folder: Path) -> Any:
        return self.make(str(folder / "model.safetensors"))


class HuggingFace(TorchPeer):
    """transformers' ViTForImageClassification."""

    packages = ("transformers", "torch")

    def make(self) -> Any:
        import transformers

        job = self.job
        config = transformers.ViTConfig(
            image_size=job.image_size,
            patch_size=job.patch_size,
            hidden_size=job.hidden_size,
            num_hidden_layers=job.num_layers,
            num_attention_heads=job.num_heads,
            intermediate_size=job.mlp_dim,
            num_labels=CLASSES,
        )
        return transformers.ViTForImageClassification(config)

    def logits(self, images: Any) -> Any:
        return self.called(images).logits

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def read(self, folder: Path) -> Any:
        import transformers

        return transformers.ViTForImageClassification.from_pretrained(folder)


class Flax(Peer):
    """The paper's code, google-research/vision_transformer, with optax."""

    packages = ("flax", "jax", "optax")

    def _prepare(self) -> None:
        import jax
        from ml_collections import ConfigDict
        from vit_jax import models_vit

        job = self.job
        if job.device == "gpu":
            require_gpu("jax")
            # Its encoder does not pass dtype to its blocks, whose default is float32.
            models_vit.Encoder1DBlock = functools.partial(
                models_vit.Encoder1DBlock, dtype=jax.numpy.bfloat16
            )
        self.module = models_vit.VisionTransformer(
            num_classes=CLASSES,
            patches=ConfigDict({"size": (job.patch_size, job.patch_size)}),
            hidden_size=job.hidden_size,
            transformer={
                "num_layers": job.num_layers,
                "mlp_dim": job.mlp_dim,
                "num_heads": job.num_heads,
                "dropout_rate": 0.0,
                "attention_dropout_rate": 0.0,
            },
        )
        self.apply = jax.jit(functools.partial(self.module.apply, train=False))

    def build(self) -> None:
        self._prepare()
        import jax
        import optax

        start = jax.jit(functools.partial(self.module.init, train=False))
        self.variables = start(jax.random.key(0), self.job.images(1))
        optimizer = optax.chain(
            optax.clip_by_global_norm(NORM), optax.sgd(RATE, momentum=MOMENTUM)
        )
        self.state = optimizer.init(self.variables)

        def loss(variables: Any, images: Any, labels: Any) -> Any:
            logits = self.module.apply(variables, images, train=True)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean()

        def update(variables: Any, state: Any, images: Any, labels: Any) -> Any:
            gradients = jax.grad(loss)(variables, images, labels)
            changes, state = optimizer.update(gradients, state, variables)
            return optax.apply_updates(variables, changes), state

        self.update = jax.jit(update, donate_argnums=(0, 1))

    def save(self, folder: Path) -> None:
        from flax.traverse_util import flatten_dict

        np.savez(folder / "weights.npz", **flatten_dict(self.variables, sep="/"))

    def load(self, folder: Path) -> None:
        self._prepare()
        from flax.traverse_util import unflatten_dict

        with np.load(folder / "weights.npz") as arrays:
            self.variables = unflatten_dict(dict(arrays), sep="/")

    def put(self, array: np.ndarray) -> Any:
        import jax

        return jax.numpy.asarray(array)

    def forward(self, images: Any) -> Any:
        return np.asarray(self.apply(self.variables, images))

    def train(self, images: Any, labels: Any) -> None:
        import jax

        wait: Any = jax.block_until_ready
        updated = self.update(self.variables, self.state, images, labels)
        self.variables, self.state = wait(updated)

    def product(self) -> Callable[[], object]:
        return jax_product(self.job)

    def memory(self) -> int:
        return super().memory() if self.job.device == "cpu" else jax_memory()

    def device(self) -> str:
        return super().device() if self.job.device == "cpu" else jax_name()


PEERS: Mapping[str, type[Peer]] = {
    "keras_vit": KerasVit,
    "openvino": OpenVINO,
    "keras-hub": KerasHub,
    "vit-keras": VitKeras,
    "timm": Timm,
    "huggingface": HuggingFace,
    "flax": Flax,
}


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of the installed packages."""
    found = {}
    for package in packages:
        if importlib.util.find_spec(package.replace("-", "_")) is not None:
            found[package] = importlib.metadata.version(package)
    return found


def seconds(run: Callable[[], object], calls: int) -> float:
    """Returns the mean seconds of `calls` calls of `run`."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def serve(peer: Peer, answer: Callable[[dict[str, Any]], None]) -> None:
    """Responds to requests until there are no more."""
    job = peer.job
    peer.build()
    one, images, labels = (
        peer.put(array)
        for array in (job.images(1), job.images(job.batch), job.labels())
    )
    product = functools.cache(peer.product)  # Its arrays are created on first use.
    timed: dict[str, Callable[[], object]] = {
        "peak": lambda: product()(),
        "forward": lambda: peer.forward(images),
        "training": lambda: peer.train(images, labels),
        "latency": lambda: peer.forward(one),
    }
    for line in sys.stdin:
        request = json.loads(line)
        match request["what"]:
            case "facts":
                answer(
                    {
                        "multiply_adds": peer.multiply_adds(),
                        "versions": versions(peer.packages),
                        "device": peer.device(),
                        "product": job.product,
                    }
                )
            case "memory":
                answer({"bytes": peer.memory()})
            case "save":
                peer.save(Path(request["folder"]))
                answer({})
            case what:
                answer({"seconds": seconds(timed[what], request["calls"])})


def main() -> None:
    """Runs a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", metavar="JOB", help="a `Job` as JSON")
    parser.add_argument("--first", type=Path, metavar="FOLDER")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    job = Job(**json.loads(options.job))
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Redirects output of Python and C++.

    def answer(told: dict[str, Any]) -> None:
        print(json.dumps(told), file=channel, flush=True)

    peer = PEERS[job.library](job)
    if options.export:
        OpenVINO.export(job, options.export)
    elif options.first:
        peer.load(options.first)
        logits = peer.first(peer.put(job.images(1)))
        answer({"best": int(logits[0].argmax())})
    else:
        serve(peer, answer)


if __name__ == "__main__":
    main()
