"""Table 4, row CIFAR-10: 10,000 steps of 512 images at 384 px, with a rate sweep.

The paper reports 98.95 % for ViT-B/16 from ImageNet-21k (Table 5). Requires an
accelerator, `pip install '.[tfds]'`, and a network for data and weights:

    python examples/finetune_cifar10.py
"""

import dataclasses

import keras_vit
from keras_vit import recipes, training


def main(data: str = "cifar10", smoke: bool = False) -> float:
    """Fine-tunes ViT-B/16; returns the test accuracy."""
    recipe = dataclasses.replace(
        recipes.FINETUNE["cifar10"],
        accumulation_steps=8,  # As in vit_jax/configs/common.py: 64 images at a time.
    )
    if smoke:
        recipe = dataclasses.replace(
            recipe,
            total_steps=2,
            warmup_steps=1,
            batch_size=8,
            accumulation_steps=2,
            base_lr=(0.01,),
        )
        model = keras_vit.ViT_Ti16(
            weights=None, input_shape=(32, 32, 3), include_top=False, pooling="token"
        )
    else:
        model = keras_vit.ViT_B16(
            weights="imagenet21k",
            input_shape=(*recipe.image_size, 3),
            include_top=False,
            pooling="token",
        )
    model = keras_vit.for_task(model, 10)
    result = training.fit(model, recipe, data, output="runs/cifar10")
    print(f"test accuracy {result.test_accuracy:.2%}; the paper's is 98.95 %")
    return result.test_accuracy


if __name__ == "__main__":
    main()
