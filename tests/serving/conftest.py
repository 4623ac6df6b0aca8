"""An export that all tests of serving share, and a server of it."""

import numpy as np
import pytest

from tests.serving import hostile
from tests.serving.served import serving

CLASSES = ["daisy", "iris", "löwenzahn", "rose", "tulip"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A small ViT's export; its versions' folder."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=8, num_layers=2, hidden_size=24, mlp_dim=32, num_heads=3
    )
    model = keras_vit.vit(config, image_size=(32, 24), num_classes=5)
    head = model.get_layer("head")
    head.set_weights([np.random.default_rng(0).normal(size=(24, 5)), np.zeros(5)])
    path = tmp_path_factory.mktemp("exported") / "flowers"
    keras_vit.serving.export(model, path, labels=CLASSES, verbose=False)
    return path


@pytest.fixture(scope="session")
def server(exported, tmp_path_factory):
    """The same, served with batching, with few file descriptors and a log."""
    log = tmp_path_factory.mktemp("log") / "stderr"
    options = ("--batching", "--max-request-mib", hostile.MAX_MIB)
    with (
        log.open("wb") as stderr,
        serving(exported, *options, descriptors="256", stderr=stderr) as one,
    ):
        one.log = log
        yield one


@pytest.fixture(scope="module")
def servers(served):
    """URLs, by protocol, of servers of the module's `served`."""
    from tests.serving import loopback

    with loopback.rest_server(served) as rest, loopback.grpc_server(served) as rpc:
        yield {"REST": rest, "gRPC": rpc}
