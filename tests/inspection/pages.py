"""A page whose every number is known, made without a model."""

import numpy as np

from keras_vit.inspection import Page

HOSTILE = (
    '</script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;' + "y" * 99
)
LAYERS, HEADS, ROWS, COLS = 3, 2, 4, 5


def page(**changes):
    """Two photos of 128 x 160 pixels, 3 layers, 2 heads, 4 x 5 patches."""
    rng = np.random.default_rng(0)
    attention = (
        rng.uniform(0, 1, (2, LAYERS, HEADS, ROWS, COLS)).astype(np.float32) ** 3
    )
    attention *= 0.9 / attention.sum((-2, -1), keepdims=True)
    rollout = rng.uniform(0, 0.05, (2, ROWS, COLS)).astype(np.float32)
    vectors = rng.normal(size=(ROWS * COLS, 8))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    known = {
        "title": "a model",
        "facts": [("parameters", "1,234"), ("layers", "3"), ("heads", "2")],
        "photos": rng.integers(0, 256, (2, 128, 160, 3), dtype=np.uint8),
        "names": ["cats/1.jpg", "dogs/2.jpg"],
        "predictions": [[("cat", 0.75), ("dog", 0.25)], [("dog", 0.9), ("cat", 0.1)]],
        "attention": attention,
        "rollout": rollout,
        "distance": rng.uniform(10, 90, (LAYERS, HEADS)),
        "filters": rng.normal(size=(28, 8, 8, 3)),
        "positions": (vectors @ vectors.T).reshape(ROWS, COLS, ROWS, COLS),
    }
    return Page(**{**known, **changes})


def bare(**changes):
    """The same photos and a model that has nothing to show of them."""
    fields = ("predictions", "attention", "distance", "filters", "positions")
    return page(
        **dict.fromkeys(fields),
        rollout=None,
        absent={field: f"No {field}: {HOSTILE}" for field in fields},
        **changes,
    )
