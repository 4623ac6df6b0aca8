"""One process of a distributed training: `worker.py WORD FOLDER CASE...`.

Trains on FOLDER/data.npz from one weights file, case after case, and writes what came
of each to FOLDER/CASE.json: worker 0 alone, where there are several.
"""

import json
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.recipes import Recipe
from keras_vit.self_supervision import MaskedPatchPredictor
from keras_vit.training import distribution, fit, optim, rendezvous, resume

MINI = Path(__file__).parents[1] / "fixtures/reference/vit_mini.npz"
SETTINGS = {
    "total_steps": 20,
    "base_lr": (0.1,),
    "held_out": 0.1,
    "warmup_steps": 2,
    "batch_size": 8,
    "image_size": (32, 32),
    "augment": "none",
}
CASES = {
    "plain": {},
    "accumulation": {"accumulation_steps": 2},
    "SAM": {"sam_rho": 0.1},
    "SAM in parts": {"sam_rho": 0.1, "accumulation_steps": 2, "freeze": True},
    "ema": {"ema": 0.9, "optimizer": "adam", "base_lr": (0.01,), "weight_decay": 0.1},
    "mixup": {"mixup": 0.2, "loss": "sigmoid", "freeze": True},
    "ready": {},
    "lora": {"lora_rank": 2, "remat": True},
    "masked patches": {"accumulation_steps": 2},
    "bfloat16": {},
    "float16": {},
    "float16 in parts": {"accumulation_steps": 2, "ema": 0.9, "clip_norm": 0.1},
    "dropout": {"dropout_rate": 0.5},
    "bfloat16 momentum": {"momentum_dtype": "bfloat16"},
    "unseeded": {},
    "kept": {"ema": 0.9, "accumulation_steps": 2},
    "told to end": {"ema": 0.9, "accumulation_steps": 2},
    "clipped before the sum": {},
}


def build(case):
    """The model of a case, from the weights file."""
    policy = case.split(" ")[0]
    mixed = policy in ("bfloat16", "float16") and case != "bfloat16 momentum"
    keras.config.set_dtype_policy(f"mixed_{policy}" if mixed else "float32")
    if case == "unseeded":  # The processes' weights have to begin equal all the same.
        config = keras_vit.ViTConfig(
            patch_size=8, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2
        )
        return keras_vit.vit(config, image_size=(32, 32), num_classes=3)
    keras.utils.set_random_seed(0)  # LoRA begins with draws.
    options = {"dropout_rate": 0.5} if case == "dropout" else {}
    model = keras_vit.from_checkpoint(str(MINI), image_size=(32, 32), **options)
    if case == "masked patches":  # All of them: replicas draw otherwise than one does.
        return MaskedPatchPredictor(model, corrupt=1.0, mask=1.0, replace=0.0, keep=0.0)
    return keras_vit.for_task(model, 3)


def train(case, folder, workers):
    """The history of a case."""
    if case == "clipped before the sum":  # As Keras does.
        optim.sum_over_replicas = list
        del optim._Decoupled._all_reduce_sum_gradients
    if case == "told to end" and workers.index == workers.count - 1:
        end_at(9)
    options = {"save_steps": 4} if case in ("kept", "told to end") else {}
    output = folder / "run" if options else None
    recipe = Recipe(**SETTINGS | CASES[case])
    data = str(folder / "data.npz")
    if case == "ready":
        with np.load(data) as file:
            images = file["x_train"][:96].astype("float32") / 127.5 - 1
            labels = file["y_train"][:96]
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
    try:
        result = fit(build(case), recipe, data, output=output, verbose=0, **options)
    except resume.Preempted as end:
        return {"step": end.step, "code": end.code}
    return result.history


def end_at(step):
    """This process is told to end after so many updates."""
    real = resume.CheckpointCallback._check_finite

    def then(keeper, loss):
        real(keeper, loss)
        if keeper.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    resume.CheckpointCallback._check_finite = then


def evaluated_to_its_end(strategy):
    """Keras's loss of a distributed dataset, read to its end and by steps."""
    with strategy.scope():
        numbers = keras.Input((1,))
        model = keras.Model(numbers, keras.layers.Identity()(numbers))
        model.compile(loss="mse")
    values = np.arange(12.0, dtype="float32").reshape(6, 2, 1)
    data = tf.data.Dataset.from_tensor_slices((values, 0 * values))
    spread = strategy.distribute_datasets_from_function(lambda _: data)
    return {
        "mean": float(np.mean(values**2)),
        "to its end": model.evaluate(spread, verbose=0),
        "by steps": model.evaluate(spread, steps=3, verbose=0),
    }


def accumulated_by_keras(strategy):
    """What Keras says of its own accumulation on several replicas."""
    with strategy.scope():
        numbers = keras.Input((1,))
        model = keras.Model(numbers, keras.layers.Dense(1)(numbers))
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        model.compile(optimizer, loss="mse")
    try:
        model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=4, verbose=0)
    except RuntimeError as error:
        return str(error)
    return "it works"


def overflow_on_the_second_replica(strategy):
    """A weight, and the loss scale, after a step in which one replica overflowed."""
    found = {}
    for kind in (keras.optimizers.LossScaleOptimizer, optim.LossScale):
        with strategy.scope():
            weight = keras.Variable(1.0)
            optimizer = kind(optim.MomentumSGD(0.1), initial_scale=4.0)
            optimizer.build([weight])

        def step(gradient, optimizer=optimizer, weight=weight):
            optimizer.apply([gradient], [weight])

        gradients = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([4.0, np.inf])[context.replica_id_in_sync_group]
        )
        tf.function(lambda step=step, values=gradients: strategy.run(step, (values,)))()
        scale = float(optimizer.dynamic_scale.numpy())
        found[kind.__name__] = [float(weight.numpy()), scale]
    return found


def metric_of_each_replica(strategy):
    """A metric's numbers, kept and put back: as they were, and those of one replica."""
    workers = distribution.Workers.under(strategy)
    with strategy.scope():
        total = keras.metrics.Mean().total
    parts = strategy.experimental_local_results(total.value)
    for part, value in zip(parts, (0.1, 0.7), strict=True):
        part.assign(value)
    kept = workers.each(total)
    total.assign(0.0)
    workers.give(total, kept)
    again = [float(part.numpy()) for part in parts]
    workers.give(total, np.float32(3.0))
    return {"again": again, "of one": [float(part.numpy()) for part in parts]}


def units_that_replicas_drop(strategy):
    """How many of 1,000 two replicas drop both: alike by Keras, a quarter by us."""
    workers = distribution.Workers.under(strategy)
    with strategy.scope():
        units = keras.Input((1000,))
        dropout = keras.layers.Dropout(0.5, seed=3)
        model = keras.Model(units, dropout(units))

    @tf.function
    def dropped():
        return strategy.run(lambda: model(tf.ones((1, 1000)), training=True))

    def both():
        first, second = strategy.experimental_local_results(dropped())
        return int(tf.reduce_sum(tf.cast((first == 0) & (second == 0), tf.int32)))

    by_keras = both()
    workers.draw_apart(resume.generator_states(model))
    return {"by Keras": by_keras, "apart": [both(), both()]}


def reduced_by_keras(strategy):
    """What Keras says of a training in several processes."""
    with strategy.scope():
        numbers = keras.Input((1,))
        model = keras.Model(numbers, keras.layers.Dense(1)(numbers))
        model.compile("sgd", loss="mse")
    try:
        model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=4, verbose=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it works"


def moments_apart_from_weights(strategy):
    """Which weights are cut over devices, and which of their moments otherwise."""
    with strategy.scope():
        model = build("plain")
        optimizer = optim.DecoupledAdam()
        optimizer.build(model.trainable_variables)
    cut, apart = [], []
    moments = zip(optimizer.momentums, optimizer.velocities, strict=True)
    for weight, both in zip(model.trainable_variables, moments, strict=True):
        if not weight.value.sharding.is_fully_replicated:
            cut.append(weight.path)
        if any(moment.value.sharding != weight.value.sharding for moment in both):
            apart.append(weight.path)
    return {"cut": cut, "apart": apart}


def pretend():
    """Another version of Keras, and less patience, where the environment wants it."""
    wait, real = rendezvous.wait_for, distribution.versions
    seconds = float(os.environ.get("PATIENCE", "600"))
    keras_version = {"keras": os.environ.get("KERAS_VERSION", keras.__version__)}
    distribution.versions = lambda: real() | keras_version
    distribution.wait_for = lambda *peers, **options: wait(
        *peers, seconds=seconds, **options
    )


UPSTREAM = {
    "moments apart from weights": moments_apart_from_weights,
    "evaluated to its end": evaluated_to_its_end,
    "accumulated by Keras": accumulated_by_keras,
    "overflow on the second replica": overflow_on_the_second_replica,
    "metric of each replica": metric_of_each_replica,
    "units that replicas drop": units_that_replicas_drop,
    "reduced by Keras": reduced_by_keras,
}


def main(word, folder, *cases):
    """Every case in turn."""
    pretend()
    if word == "mirrored" and keras.backend.backend() == "tensorflow":
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    if word == "as TensorFlow has it":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        try:
            distribution.Workers.under(strategy)
        except ValueError as refusal:
            (folder / "refusal.json").write_text(json.dumps(str(refusal)))
        workers = distribution.Workers.under(tf.distribute.OneDeviceStrategy("CPU:0"))
    else:
        parallel = int(os.environ.get("MODEL_PARALLEL", "1"))
        strategy = distribution.strategy(word, model_parallel=parallel)
        workers = distribution.Workers.under(strategy)
    for case in cases:
        if case in UPSTREAM:
            told = UPSTREAM[case](strategy)
        else:
            with strategy.scope():
                told = train(case, folder, workers)
        if workers.chief:
            (folder / f"{case}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
