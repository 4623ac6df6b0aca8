"""What a training or a command can do, by backend, and the test of each cell.

`docs/backends.md` shows this table: `python -m tests.features` writes it there.
`test_backends_page` checks that the tests exist and run on their backend.
"""

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/backends.md"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
BEGIN, END = "<!-- begin: tests/features.py -->\n", "<!-- end -->\n"


@dataclasses.dataclass(frozen=True)
class Refused:
    """A cell that the backend itself cannot fill: why, by whose words, and the test."""

    why: str
    link: str
    test: str


@dataclasses.dataclass(frozen=True)
class Feature:
    """A row: the name, the fields of `Recipe` or the command, and a test by backend.

    Attributes:
        name: in words.
        test: that runs on every backend, in `tests`.
        fields: of `Recipe`, that it covers.
        command: of `keras-vit`, if the row is one.
        cells: a backend's own test, or its refusal, in place of `test`.
    """

    name: str
    test: str = ""
    fields: tuple[str, ...] = ()
    command: str = ""
    cells: dict[str, str | Refused] = dataclasses.field(default_factory=dict)

    def cell(self, backend: str) -> str | Refused:
        return self.cells.get(backend, self.test)


STEP = "training/test_train_step.py::"
FEATURE = "training/test_features.py::"
MASKED = "training/test_masked_patches.py::"
DEVICES = "training/test_devices.py::"
SEVERAL = "training/test_distribution.py::"
PROCESSES = "training/test_jax_processes.py::"
COMMAND = "test_backend_commands.py::"
# Tests that start processes of another backend than their own; `make slow` runs them.
STARTED = {"training/test_jax_processes.py": "jax"}

EPIC = "https://github.com/keras-team/keras/issues/23418"
GUIDE = "https://keras.io/guides/distribution/"
COLLECTIVES = (
    "https://github.com/tensorflow/tensorflow/blob/v2.21.0/"
    "tensorflow/core/ops/collective_ops.cc"
)
TORCH_DEVICES = Refused(
    "Keras 3.15 has no `keras.distribution` on torch. `--distribute none` and "
    "`auto` train on one device.",
    EPIC,
    DEVICES + "test_torch_refuses_several_devices",
)
TORCH_PROCESSES = Refused(
    "Keras 3.15 has no `keras.distribution` on torch; `keras-vit launch` ends with "
    "the error of every worker.",
    EPIC,
    DEVICES + "test_torch_refuses_several_processes",
)
TRAINING = (
    Feature(
        "Loss and clipping of the whole batch",
        STEP + "test_an_update_is_the_formulas",
        ("clip_norm", "base_lr", "batch_size", "total_steps", "warmup_steps"),
    ),
    Feature(
        "Accumulation",
        STEP + "test_an_update_is_the_formulas",
        ("accumulation_steps",),
    ),
    Feature("SAM", STEP + "test_an_update_is_the_formulas", ("sam_rho",)),
    Feature(
        "SGD, Adam, Adafactor and their momentum",
        "training/test_optim.py::test_five_steps_of_big_visions_optimizers",
        (
            *("optimizer", "momentum", "beta1", "beta2", "weight_decay"),
            "momentum_dtype",
        ),
    ),
    Feature(
        "Schedules of the learning rate",
        "training/test_optim.py::test_the_schedule_of_table_7s_sgd",
        ("decay", "boundaries"),
    ),
    Feature(
        "EMA (Polyak averaging)",
        FEATURE + "test_ema_is_the_polyak_average_of_the_trajectory",
        ("ema",),
    ),
    Feature(
        "float16 with loss scaling",
        FEATURE + "test_float16_leaves_an_update_out_that_overflows",
    ),
    Feature(
        "bfloat16",
        FEATURE + "test_mixed_precision_is_float32_but_for_its_rounding",
    ),
    Feature(
        "Rematerialization",
        FEATURE + "test_rematerialization_changes_nothing_but_memory",
        ("remat",),
    ),
    Feature("LoRA", FEATURE + "test_lora_and_the_head_alone_train", ("lora_rank",)),
    Feature("Freezing", FEATURE + "test_freeze_trains_the_head_alone", ("freeze",)),
    Feature(
        "Freezing with cached features",
        FEATURE + "test_features_computed_once_change_nothing",
        ("freeze",),
    ),
    Feature("Masked patch prediction", MASKED + "test_a_run"),
    Feature(
        "Masked patches in parts, rematerialized",
        MASKED + "test_in_parts_or_twice_is_the_same_training",
    ),
    Feature(
        "Layer decay",
        FEATURE + "test_layer_decay_slows_the_layers_below",
        ("layer_decay",),
    ),
    Feature(
        "Dropout",
        FEATURE + "test_seed_repeats_to_the_bit",
        ("dropout_rate",),
    ),
    Feature(
        "Stochastic depth",
        "layers/test_stochastic_depth.py::"
        "test_a_branch_of_an_image_is_left_out_or_divided_by_its_chance",
        ("stochastic_depth",),
    ),
    Feature(
        "Options of the model",
        FEATURE + "test_models_are_built_with_the_recipes_options",
        ("head_bias_init", "dropout_rate", "stochastic_depth"),
    ),
    Feature(
        "Sigmoid loss, label smoothing",
        FEATURE + "test_losses_are_the_recipes",
        ("loss", "label_smoothing"),
    ),
    Feature(
        "RandAugment, mixup, CutMix, random erasing",
        FEATURE + "test_augmented_batches",
        ("augment", "randaugment", "mixup", "cutmix", "random_erasing"),
    ),
    Feature(
        "Crops of the model's size",
        FEATURE + "test_a_crop_shows_the_recipes_share_at_every_size",
        ("image_size", "resize"),
    ),
    Feature(
        "Epochs instead of updates",
        FEATURE + "test_epochs_are_counted_in_images",
        ("epochs",),
    ),
    Feature(
        "Sweep of learning rates",
        FEATURE + "test_sweep_takes_the_better_rate_from_the_same_start",
        ("base_lr", "held_out"),
    ),
    Feature(
        "Resume to the same bits",
        "training/test_resume.py::test_cut_anywhere",
    ),
    Feature(
        "Save at SIGTERM",
        "training/test_resume.py::test_asked_to_end",
    ),
    Feature(
        "Certificate and replay",
        "training/test_replaying.py::test_a_segment_is_bit_equal",
    ),
    Feature(
        "Several devices of one process",
        cells={
            "tensorflow": SEVERAL + "test_two_devices_train_as_one",
            "jax": DEVICES + "test_copies_on_devices_of_jax_train_as_one",
            "torch": TORCH_DEVICES,
        },
    ),
    Feature(
        "SAM and accumulation on several devices",
        cells={
            "tensorflow": SEVERAL + "test_two_devices_train_as_one",
            "jax": STEP + "test_eight_devices_of_jax_equal_one",
            "torch": TORCH_DEVICES,
        },
    ),
    Feature(
        "Several processes",
        cells={
            "tensorflow": SEVERAL + "test_two_processes_train_as_one",
            "jax": PROCESSES + "test_two_processes_train_as_one",
            "torch": TORCH_PROCESSES,
        },
    ),
    Feature(
        "Momentum in bfloat16 in several processes",
        fields=("momentum_dtype",),
        cells={
            "tensorflow": Refused(
                "Its broadcast between processes has no bfloat16. "
                "`momentum_dtype='float32'` trains.",
                COLLECTIVES,
                "training/test_strategies.py::test_recipes_that_cannot_be_divided",
            ),
            "jax": PROCESSES + "test_two_processes_train_as_one",
            "torch": TORCH_PROCESSES,
        },
    ),
    Feature(
        "A model cut over devices (`--model-parallel`)",
        cells={
            "tensorflow": Refused(
                "`keras.distribution` cuts models on JAX only. A smaller batch, "
                "accumulation and rematerialization save memory.",
                GUIDE,
                DEVICES + "test_other_backends_than_jax_refuse_to_cut_a_model",
            ),
            "jax": DEVICES + "test_a_model_cut_over_devices_of_jax_trains_as_one",
            "torch": Refused(
                "`keras.distribution` cuts models on JAX only. A smaller batch, "
                "accumulation and rematerialization save memory.",
                EPIC,
                DEVICES + "test_other_backends_than_jax_refuse_to_cut_a_model",
            ),
        },
    ),
)
COMMANDS = tuple(
    Feature(name, COMMAND + test, command=name.split(" ")[0], cells=cells)
    for name, test, cells in (
        (
            "finetune",
            "test_finetune",
            {"tensorflow": "test_cli.py::test_finetune_writes_the_run"},
        ),
        (
            "pretrain",
            "test_pretrain",
            {"tensorflow": "test_cli.py::test_pretrain_from_scratch_goes_on"},
        ),
        (
            "pretrain --objective masked-patches",
            "test_pretrain_masked_patches",
            {"tensorflow": MASKED + "test_the_commands"},
        ),
        (
            "transfer",
            "test_transfer",
            {
                "tensorflow": "test_cli.py::"
                "test_transfer_prints_sweep_runs_and_differences"
            },
        ),
        (
            "fewshot",
            "test_fewshot",
            {
                "tensorflow": "test_cli_fewshot.py::"
                "test_fewshot_prints_and_writes_what_the_library_returns"
            },
        ),
        (
            "data-size",
            "test_data_size",
            {"tensorflow": "evaluation/test_subsets.py::test_the_command"},
        ),
        (
            "evaluate",
            "test_evaluate",
            {"tensorflow": "test_cli.py::test_evaluate_counts_every_image"},
        ),
        (
            "predict",
            "test_predict",
            {"tensorflow": "test_cli.py::test_predict_prints_a_table"},
        ),
        (
            "embed",
            "test_embed_and_search",
            {
                "tensorflow": "test_cli_embedding.py::"
                "test_embeddings_are_the_tokens_of_the_equations"
            },
        ),
        (
            "search",
            "test_embed_and_search",
            {
                "tensorflow": "test_cli_embedding.py::"
                "test_search_prints_cosines_and_writes_thumbnails"
            },
        ),
        (
            "inspect",
            "test_inspect",
            {"tensorflow": "test_cli_inspect.py::test_of_a_run"},
        ),
        (
            "export (a SavedModel)",
            "test_export",
            {
                "tensorflow": "serving/test_formats.py::"
                "test_export_writes_a_savedmodel_and_evaluates_it"
            },
        ),
        (
            "export (a file)",
            "test_export_file_scores_as_this_backend_does",
            {"tensorflow": "serving/test_formats.py::test_files_say_what_keras_says"},
        ),
    )
)
FEATURES = TRAINING + COMMANDS
# Commands without a model, or without Keras's backend: they are the same everywhere.
SAME_EVERYWHERE = {
    *("recipes", "paper", "compare", "costs", "serve", "doctor", "convert"),
    *("runs", "data", "weights"),
}
# Commands made of commands of the table; their tests run on TensorFlow.
MADE_OF_OTHERS = {"demo": "finetune, export", "vtab": "finetune", "launch": "finetune"}


def table() -> str:
    """The table and its notes in Markdown."""
    lines = ["| | TensorFlow | JAX | torch | tests |", "|---|---|---|---|---|"]
    notes: list[str] = []
    for feature in FEATURES:
        cells, tests = [], {}
        for backend in BACKENDS:
            cell = feature.cell(backend)
            if isinstance(cell, Refused):
                note = f"{cell.why} [{_source(cell.link)}]({cell.link})"
                if note not in notes:
                    notes.append(note)
                cells.append(f"refused ({1 + notes.index(note)})")
                tests[backend] = cell.test
            else:
                cells.append("yes")
                tests[backend] = cell
        name = f"`keras-vit {feature.name}`" if feature.command else feature.name
        name = re.sub(r"^`(.*) \((.*)\)`$", r"`\1` (\2)", name)
        lines.append(f"| {name} | {' | '.join(cells)} | {_named(tests)} |")
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", "Refused, with the reason:", "", *numbered, ""])


def _named(tests: dict[str, str]) -> str:
    """Each test once, behind the backends that run it if they run different ones."""
    if len(set(tests.values())) == 1:
        return _code(tests["jax"])
    users: dict[str, list[str]] = {}
    for backend, test in tests.items():
        users.setdefault(test, []).append(BACKENDS[backend])
    return "; ".join(f"{', '.join(of)}: {_code(test)}" for test, of in users.items())


def _code(test: str) -> str:
    return f"`{test.rpartition('/')[2]}`"


def _source(link: str) -> str:
    found = re.search(r"keras-team/keras/issues/(\d+)", link)
    if found:
        return f"keras#{found[1]}"
    return "collective_ops.cc" if "collective_ops" in link else "Keras's guide"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
