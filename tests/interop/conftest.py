"""Run by `make interop`, in an environment with timm, transformers and keras-cv."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

from tests.interop import making  # noqa: F401  First: it lets torchvision be imported.
