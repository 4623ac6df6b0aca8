"""Damaged files: one clear error or tensors, whatever byte has changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit import weights
from keras_vit.configs import ViTConfig

COPIES = int(os.environ.get("KERAS_VIT_FUZZ", "500"))
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits memory and forks as Linux does"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    config = ViTConfig(
        patch_size=4, num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(8, 8), num_classes=3)
    path = tmp_path_factory.mktemp("checkpoint") / "vit.npz"
    weights.save(model, path)
    with np.load(path) as file:
        return dict(file)


def npz(folder, tensors):
    np.savez(folder / "vit.npz", **tensors)


def npz_compressed(folder, tensors):
    np.savez_compressed(folder / "vit.npz", **tensors)


def safetensors(folder, tensors):
    save_file(tensors, folder / "vit.safetensors", {"format": "np"})


def sharded(folder, tensors):
    shards: dict[str, dict[str, np.ndarray]] = {
        "a.safetensors": {},
        "b.safetensors": {},
    }
    for i, (name, tensor) in enumerate(tensors.items()):
        list(shards.values())[i % 2][name] = tensor
    for shard, held in shards.items():
        save_file(held, folder / shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: s for s, held in shards.items() for name in held},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def h5(folder, tensors, **options):
    with h5py.File(folder / "vit.h5", "w", **options) as file:
        for name, tensor in tensors.items():
            file[name] = tensor


def h5_compressed(folder, tensors):
    with h5py.File(folder / "vit.h5", "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor, compression="gzip", shuffle=True)


def h5_latest(folder, tensors):
    h5(folder, tensors, libver="latest")


@pytest.mark.parametrize(
    "write",
    [npz, npz_compressed, safetensors, sharded, h5, h5_compressed, h5_latest],
    ids=lambda write: write.__name__,
)
def test_damaged_copies(write, checkpoint, tmp_path):
    folder = tmp_path / write.__name__
    folder.mkdir()
    write(folder, checkpoint)
    script = Path(__file__).with_name("fuzzing.py")
    run = subprocess.run(
        [sys.executable, "-P", script, folder, str(COPIES)],
        capture_output=True,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout.splitlines()[-1])
    print(f"\n{write.__name__}: {COPIES} copies, {counts}")
    assert counts["refused"]
    if write in (npz, npz_compressed):  # A CRC guards every value.
        assert "changed" not in counts
