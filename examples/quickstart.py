"""Section 3.2 in twenty lines: fine-tune a ViT with `model.fit`, export it, serve it.

Trains ViT-Ti/16 on scikit-learn's digits at 32 px from random weights, so that it runs
without a download. With a network, `weights="augreg-imagenet21k"` starts from the
published weights. Not tuned. Takes about a minute on two cores:

    python examples/quickstart.py
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_vit


def main(smoke: bool = False) -> float:
    """Trains, exports, serves; returns the accuracy on held-out digits."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = np.repeat(digits.images[..., None] * 255 / 16, 3, axis=-1)
    images = keras.ops.image.resize(keras_vit.preprocess_input(images), (32, 32))
    images, labels = np.asarray(images), digits.target

    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=10)
    model.compile(
        keras.optimizers.AdamW(5e-4),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    images, labels = (images[:96], labels[:96]) if smoke else (images, labels)
    split = len(images) * 4 // 5
    model.fit(
        images[:split],
        labels[:split],
        batch_size=32,
        epochs=1 if smoke else 5,
        validation_data=(images[split:], labels[split:]),
    )
    model.export("runs/quickstart", verbose=False)
    served = tf.saved_model.load("runs/quickstart")
    probabilities = served.serve(images[split:])
    accuracy = float(np.mean(np.argmax(probabilities, -1) == labels[split:]))
    print(f"served accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
