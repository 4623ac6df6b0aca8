"""Time, money and plans against Tables 2 and 6 and arithmetic by hand."""

import math

import pytest

from keras_vit import paper
from keras_vit.inspection import costs
from keras_vit.inspection.devices import (
    DEVICES,
    PAPERS_UTILISATION,
    device_of,
    paper_utilisation,
)
from keras_vit.inspection.planning import (
    USABLE,
    USABLE_REMATERIALIZED,
    Plan,
    plan,
)
from keras_vit.recipes import IMAGES

pytestmark = pytest.mark.tensorflow_only

SENTENCE = "ViT-L/16 imagenet21k 30 epochs on 8xH100"
BLOCKS = ("query, key, value", "attention", "attention output", "MLP")
JFT = 14 * IMAGES["jft300m"]


# GB as sold, rounded; half a chip for a TPUv3 core.
GIGABYTES = {
    "TPUv3-core": 16,
    "TPUv4": 32,
    "TPUv5e": 16,
    "TPUv5p": 95,
    "TPUv6e": 32,
    "A100-40GB": 40,
    "A100-80GB": 80,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "L4": 24,
    "RTX4090": 24,
    "T4": 16,
}


def test_memory_of_devices_is_about_the_printed_one():
    assert GIGABYTES.keys() == DEVICES.keys()
    for name, gigabytes in GIGABYTES.items():
        memory = DEVICES[name].memory / 1e9
        assert memory == pytest.approx(gigabytes, rel=0.08), name


def test_utilisation_is_the_papers():
    """Table 6's 1567 and 4262 exaFLOPs in Table 2's 680 and 2500 core-days."""
    share = 1567e18 / (680 * 86_400 * 61.5e12)
    assert paper_utilisation("ViT-L/16") == pytest.approx(share)
    assert share == pytest.approx(0.434, abs=5e-4)
    assert paper_utilisation("ViT-H/14") == pytest.approx(0.321, abs=5e-4)
    assert round(PAPERS_UTILISATION, 3) == 0.345


@pytest.mark.parametrize("model", ["ViT-L/16", "ViT-H/14"])
def test_core_days_are_table_2s(model):
    published = paper.CORE_DAYS[model, "jft300m"]
    own = costs(model).core_days(JFT, utilisation=paper_utilisation(model))
    assert own == pytest.approx(published, rel=0.01)
    # With one utilisation for both: a third off at most.
    assert costs(model).core_days(JFT) == pytest.approx(published, rel=1 / 3)


def test_hours_and_euros_by_hand():
    counted = costs("ViT-B/16")
    seconds = 6 * counted.multiply_adds * 1e9 / (989e12 * 0.4)
    hours = counted.gpu_hours(1e9, "H100", utilisation=0.4)
    assert hours == pytest.approx(seconds / 3600)
    euros = counted.euros(1e9, price=2.5, device="h100", utilisation=0.4)
    assert euros == pytest.approx(2.5 * hours)
    tpu = counted.hours(1e9, "TPUv3-core", 0.4)
    assert counted.core_days(1e9, 0.4) == pytest.approx(tpu / 24)


@pytest.mark.parametrize(
    ("arguments", "law"),
    [
        ({"device": "H1000"}, "Expected one of TPUv3-core"),
        ({"utilisation": 0}, r"Expected a utilisation in \(0, 1\]"),
        ({"utilisation": 40}, r"Expected a utilisation in \(0, 1\]"),
        ({"price": -1}, "Expected a price"),
        ({"price": math.nan}, "Expected a price"),
        ({"price": math.inf}, "Expected a price"),
    ],
)
def test_impossible_costs_are_refused(arguments, law):
    with pytest.raises(ValueError, match=law):
        costs("ViT-B/16").euros(1.0, **{"price": 1.0} | arguments)


def test_a_plan():
    run = plan(SENTENCE, price=2.5)
    assert run.recipe[0] == "ViT-L/16-imagenet21k-30ep"
    assert run.images_seen == 30 * IMAGES["imagenet21k"]
    assert run.updates == run.recipe[1].for_images(IMAGES["imagenet21k"]).total_steps
    whole = costs("ViT-L/16", num_classes=21_843)
    assert run.exaflops == whole.exaflops(run.images_seen)
    assert run.device_hours == 8 * run.hours == whole.gpu_hours(run.images_seen)
    assert run.euros == 2.5 * run.device_hours


def test_a_plan_fits_its_devices():
    run = plan(SENTENCE)
    memory = DEVICES["H100"].memory
    room = USABLE * memory
    for rematerialized, share in ((False, USABLE), (True, USABLE_REMATERIALIZED)):
        fit = run.fit(rematerialized)
        assert fit.memory <= share * memory
        assert 512 % fit.parts == 0
    assert run.fit(True).parts < run.fit(False).parts
    counted = run.counted(512 // (run.fit(False).parts // 2)).memory
    assert counted.training_total > room  # In half as many parts it does not.
    assert (
        run.fit(False).memory
        > run.counted(512 // run.fit(False).parts).memory.training_total
    )


def test_a_plan_that_does_not_fit(shell):
    code, out, _ = shell(
        "costs", "--plan", "ViT-H/14 jft300m 1 epoch on 1xT4", "--image-size", 1400
    )
    assert code == 0
    assert "does not fit" in out


def test_without_a_row_of_table_3():
    run = plan("ViT-S/16 imagenet2012 90 epochs on 1xA100-40GB")
    assert run.recipe[0] == "ViT-B/16-imagenet2012"
    assert plan("BiT-R50x1 jft300m 7 epochs on 1xT4").recipe[0] == "R50x1-jft300m"


@pytest.mark.parametrize(
    ("sentence", "law"),
    [
        (
            "ViT-L/16 on 8xH100",
            "Expected a plan of the form 'MODEL DATA N epochs on COUNTxDEVICE",
        ),
        (SENTENCE.replace("8xH100", "H100x8"), "Expected a plan of the form"),
        (SENTENCE.replace("ViT-L/16", "ViT-L/17"), "Expected a model.*ViT-L/17"),
        (SENTENCE.replace("imagenet21k", "cifar10"), "data to be one of jft300m"),
        (SENTENCE.replace("H100", "H1000"), "Expected one of .*H1000"),
        (SENTENCE.replace("30", "0"), "positive epochs"),
        (SENTENCE.replace("30", "9" * 400), "less than 1,000,000 epochs"),
        (SENTENCE.replace("8x", "0x"), "positive epochs, devices"),
        (SENTENCE.replace("8x", "3x"), "multiple of the devices"),
    ],
)
def test_other_sentences_are_refused(sentence, law):
    with pytest.raises(ValueError, match=law):
        plan(sentence)


@pytest.mark.parametrize("batch", [0, -8])
def test_impossible_batches_are_refused(batch):
    with pytest.raises(ValueError, match=f"Received: .*batch={batch}"):
        plan(SENTENCE, batch=batch)


@pytest.mark.parametrize(
    ("start", "row"),
    [
        ("ViT_L16 imagenet21k 30", "ViT-L/16-imagenet21k-30ep"),
        ("ViT-L/16 imagenet21k 0.5", "ViT-L/16-imagenet21k-30ep"),
        ("ViT-L/16 imagenet21k 80", "ViT-L/16-imagenet21k-90ep"),
        ("R50_ViT_L16 jft300m 14", "R50+ViT-L/16-jft300m-14ep"),
        ("BiT_R50x1 jft300m 7", "R50x1-jft300m"),
    ],
)
def test_the_row_is_the_models_own(start, row):
    assert plan(f"{start} epochs on 8xH100").recipe[0] == row


def test_core_days_are_at_the_papers_share_whatever_the_gpus():
    own = costs("ViT-L/16", num_classes=21_843).core_days(30 * IMAGES["imagenet21k"])
    line = f"TPUv3-core-days {own:>26,.1f}   at the paper's utilization"
    for utilisation in (0.2, 0.6):
        assert line in str(plan(SENTENCE, utilisation=utilisation))


def test_rematerialization_computes_the_blocks_once_more():
    """A third more of a ViT's time; of a hybrid, less: its ResNet is kept."""
    assert plan(SENTENCE).rematerialized_hours == pytest.approx(
        4 / 3 * plan(SENTENCE).hours, rel=0.01
    )
    hybrid = plan(SENTENCE.replace("ViT-L/16", "R50+ViT-B/16"))
    blocks = costs("R50+ViT-B/16").by_operation
    share = sum(blocks[name] for name in BLOCKS) / sum(blocks.values())
    assert share == pytest.approx(0.815, abs=0.001)
    more = hybrid.rematerialized_hours / hybrid.hours
    assert more == pytest.approx(1 + share / 3, rel=0.01)


def test_what_stands_around_the_devices():
    """By hand: images a second, and a checkpoint with Adam's m and v."""
    run = plan("ViT-L/16 jft300m 14 epochs on 64xH100")
    counted = costs("ViT-L/16", num_classes=18_291)
    rate = 64 * 989e12 * PAPERS_UTILISATION / (6 * counted.multiply_adds)
    assert run.images_a_second == pytest.approx(rate)
    assert 960 * (run.decoding_cores - 1) < rate <= 960 * run.decoding_cores
    assert run.checkpoint == 3 * 4 * counted.parameters
    assert f"{rate * 110e3 / 1e9:.2g} GB/s from storage" in str(run)


def test_command(shell):
    code, out, _ = shell("costs", "--plan", SENTENCE, "--price", 2.5)
    run = plan(SENTENCE, price=2.5)
    assert (code, out) == (0, f"{run}\n")
    assert f"{run.euros:,.0f}   at 2.5 per device-hour" in out
    changed = plan(SENTENCE, batch=1024, image_size=(384, 384), utilisation=0.5)
    words = ("--batch", 1024, "--image-size", 384, "--utilisation", 0.5)
    assert shell("costs", "--plan", SENTENCE, *words)[1] == f"{changed}\n"
    assert isinstance(changed, Plan)
    assert "euros" not in str(changed)


TUNED = "finetune ViT-B/16 on 720 photos on 1xT4"


def test_a_plan_of_a_fine_tuning_by_hand():
    """Table 4: four learning rates and the best of them, 500 updates of 512 at 384."""
    run = plan(TUNED)
    assert run.recipe[0] == "oxford_flowers102"  # The shortest row, of any folder.
    assert (run.trainings, run.updates) == (5, 2500)
    multiply_adds = costs("ViT-B/16", (384, 384), num_classes=10).multiply_adds
    seconds = 6 * multiply_adds * 2500 * 512 / (65e12 * PAPERS_UTILISATION)
    assert run.hours == run.device_hours == pytest.approx(seconds / 3600)
    fast, slow = run.hours_measured
    assert fast * 0.44 == pytest.approx(run.hours * PAPERS_UTILISATION)
    assert slow * 0.23 == pytest.approx(run.hours * PAPERS_UTILISATION)
    assert 512 // run.fit(False).parts == 16  # docs/howto/colab.md: 32 do not fit.
    lines = str(run).splitlines()
    assert lines[0] == f"Table 4 on 1 x T4 with 720 photos: {run.hours:.1f} hours"
    assert "at 44 % to 23 %, the reported spread of ViT training runs" in str(run)


def test_a_plan_of_a_row_of_table_4():
    run = plan("finetune ViT_L16 on 50,000 cifar10 on 8xTPUv5e")
    assert (run.images, run.recipe[0]) == (50_000, "cifar10")
    assert run.updates == 5 * 10_000
    one = plan("finetune ViT-L/16 on 1000 vtab on 8xTPUv5e")
    assert (one.trainings, one.updates) == (1, 2500)


def test_only_the_epochs_depend_on_the_number_of_photos():
    more = plan(TUNED.replace("720", "7200"))
    assert more.hours == plan(TUNED).hours
    assert "epochs per run                        35.6" in str(more)


def test_a_fine_tuning_in_the_shell(shell):
    code, out, _ = shell("costs", "--plan", TUNED, "--classes", 5, "--price", 0.4)
    assert (code, out) == (0, f"{plan(TUNED, classes=5, price=0.4)}\n")
    code, _, err = shell("costs", "--plan", SENTENCE, "--classes", 5)
    assert code == 1
    assert "Expected --classes with a plan to fine-tune" in err


@pytest.mark.parametrize(
    ("sentence", "law"),
    [
        ("finetune ViT-B/16 on photos on 1xT4", "finetune MODEL on N DATA"),
        (TUNED.replace("720", "0"), "Expected positive images"),
        (TUNED.replace("1xT4", "0xT4"), "Expected positive images, classes, devices"),
        (TUNED.replace("1xT4", "3xT4"), "multiple of the devices"),
        (TUNED.replace("T4", "T5"), "Expected one of .*T5"),
        (TUNED.replace("ViT-B/16", "ViT-B/15"), "Expected a model.*ViT-B/15"),
    ],
)
def test_other_fine_tunings_are_refused(sentence, law):
    with pytest.raises(ValueError, match=law):
        plan(sentence)


@pytest.mark.parametrize(
    "name",
    ["L4", "T4", "A100", "H100", "H200", "B200", "TPUv5e", "TPUv5p", "TPUv6e"],
)
def test_devices_that_users_rent_have_hours(name):
    assert plan(TUNED.replace("T4", name)).hours > 0
    assert device_of(name.lower()) == device_of(name)
