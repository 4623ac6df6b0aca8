"""benchmarks/peers.py and sweep.py: ratios, tables, and their processes' answers."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_vit

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
SMALL = ["--variant", "ViT-Ti/16", "--image-size", "32", "--batch", "2"]
# Answers as peer_adapters.py does; dies at an update where told to.
STANDS_IN = """
import json, sys
print("what a library says", file=sys.stderr)
for line in sys.stdin:
    what = json.loads(line)["what"]
    if what == "training" and "dies" in sys.argv:
        raise ValueError("no such size")
    answers = {"facts": {"multiply_adds": 100, "versions": {}}, "memory": {"bytes": 5}}
    answers["facts"] |= {"device": "NVIDIA H100 80GB HBM3", "product": [10, 10, 10]}
    print(json.dumps(answers.get(what, {"seconds": 0.5})), flush=True)
"""


@pytest.fixture
def peers(script):
    return script("peers")


@pytest.fixture
def measured(peers):
    """The reference, a library of twice its speed and more, and one that failed."""
    seconds = {
        "ours-tensorflow": {"peak": [1, 2], "forward": [4, 8], "training": [12, 18]},
        "ours-openvino": {"peak": [1, 2], "forward": [1, 2]},
        "timm": {"peak": [1, 1], "forward": [2, 2], "training": [12, 12]},
    }
    rows = [
        peers.Figures(name, "timm" if name == "timm" else "ours", taken)
        for name, taken in seconds.items()
    ]
    for row in rows:
        row.compare(rows[0])
    failed = peers.Figures("keras-hub", "Keras", {}, failure="ValueError: no such size")
    return [*rows, failed]


@pytest.fixture
def work(peers):
    return peers.Work(batch=8, forward=3, product=96)


def started(peers, tmp_path, code, *arguments):
    return peers.Worker([sys.executable, "-c", code, *arguments], {}, tmp_path / "err")


def test_ratios_are_of_one_round(measured):
    reference, _, timm, _ = measured
    assert reference.relative == {"forward": [1, 1], "training": [1, 1]}
    assert timm.relative == {"forward": [2, 4], "training": [1, 1.5]}


def test_shares_are_of_the_peak_of_their_round(measured, work):
    reference = measured[0]
    assert work.images(reference, "forward") == [2, 1]
    assert work.peak(reference) == [192, 96]
    assert work.shares(reference, "forward") == [2 * 6 / 192, 6 / 96]
    assert work.shares(reference, "training")[0] == pytest.approx(8 / 12 * 18 / 192)


def test_the_table(peers, measured, work):
    assert peers.spread([1.02, 1.09, 1.05]) == "1.05 (1.02 to 1.09)"
    reference, openvino, timm, failed = (peers.line(row, work) for row in measured)
    assert "1.50 (1.00 to 2.00)  0.06" in reference
    assert reference.endswith("1.00 (1.00 to 1.00)   1.00 (1.00 to 1.00)")
    assert openvino.endswith("4.00 (4.00 to 4.00)                     -")
    assert "3.00 (2.00 to 4.00)   1.25 (1.00 to 1.50)" in timm
    assert failed.endswith("failed: ValueError: no such size")
    assert all(len(row) == len(reference) for row in (openvino, timm))
    assert {len(row) for row in peers.HEADER.split("\n")} == {len(reference)}


def test_the_verdicts(peers, measured):
    assert peers.verdicts(measured, "ours-tensorflow") == [
        "forward: ours-tensorflow has 0.38 (0.25 to 0.50) times the images/s of timm, "
        "timm's best",
        "forward: ours-openvino has 1.50 (1.00 to 2.00) times the images/s of timm, "
        "timm's best",
        "training: ours-tensorflow has 0.83 (0.67 to 1.00) times the images/s of timm, "
        "timm's best",
    ]


def test_the_plot(peers, measured, work, tmp_path):
    pytest.importorskip("matplotlib")
    peers.draw(measured, work, tmp_path / "peers.png", "title")
    assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_the_reference_is_in_every_group(peers):
    names = [[row.name for row in group] for group in peers.groups(peers.ROWS, 6)]
    timms = ["timm", "timm-compiled", "huggingface"]
    ours = ["ours-tensorflow", "ours-torch", "ours-openvino"]
    assert names[0] == [*ours, *timms]
    assert names[1][:2] == ["ours-tensorflow", "ours-tensorflow-xla"]
    assert sum(map(len, names)) == len(peers.ROWS) + len(names) - 1
    assert peers.groups(peers.ROWS[:1], 6) == [[peers.ROWS[0]]]


def test_what_is_not_installed_is_left_out(peers, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    rows = peers.chosen(peers.parse(["--only", "timm", "ours-jax"]))
    assert [row.name for row in rows] == ["ours-tensorflow", "ours-jax"]
    assert capsys.readouterr().out == (
        "timm is left out: there is no .venv-peers/torch/bin/python; "
        "`make peers` makes it\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--together", "1"], ["--rounds", "0"], ["--flax-checkout", "none"]]
)
def test_what_cannot_be_is_refused(arguments, peers, capsys):
    with pytest.raises(SystemExit):
        peers.parse(arguments)
    assert "error: " in capsys.readouterr().err


def test_a_worker_that_ends_is_told_of_in_a_line(peers, tmp_path, monkeypatch):
    def failure(code):
        worker = started(peers, tmp_path, code)
        with pytest.raises(peers.FailureError) as caught:
            worker.ask("forward", calls=1)
        worker.close()
        return str(caught.value)

    fails = "input(); print('says'); raise ValueError('no such size')"
    assert failure(f"import sys; sys.stdout = sys.stderr; {fails}") == (
        "ValueError: no such size"
    )
    assert failure("import os; os.kill(os.getpid(), 9)") == "ended by SIGKILL"
    assert failure("input(); raise SystemExit(3)") == "ended with 3, and said nothing"
    monkeypatch.setattr(peers, "PATIENCE", 0.1)
    assert failure("import time; time.sleep(60)") == "no answer within 0.1 s"


def test_the_others_go_on(peers, tmp_path, monkeypatch):
    bench = peers.Bench(peers.parse([*SMALL, "--starts", "0"]), tmp_path)

    def start(row):
        dies = ["dies"] * (row.name == "timm")
        return started(peers, tmp_path, STANDS_IN, *dies)

    monkeypatch.setattr(bench, "start", start)
    rows = {row.name: row for row in peers.ROWS}
    reference, timm, flax = rows["ours-tensorflow"], rows["timm"], rows["flax"]
    first, second, third = bench.group([reference, timm, flax])
    assert second.failure == "ValueError: no such size"
    assert first.seconds == dict.fromkeys(peers.TURN, [0.5] * 5)
    assert third.relative == {"forward": [1] * 5, "training": [1] * 5}
    assert (third.memory, third.latency, bench.multiply_adds) == (5, 0.5, 100)
    with pytest.raises(SystemExit, match="timm, the others' reference, failed: Val"):
        bench.group([timm, reference])


def test_a_worker_of_ours_answers(peers, tmp_path):
    bench = peers.Bench(peers.parse(SMALL), tmp_path)
    worker = bench.start(peers.ROWS[0])
    try:
        facts = worker.ask("facts")
        assert facts["multiply_adds"] == pytest.approx(5 * 12 * 12 * 192**2, rel=0.2)
        for what in ("forward", "training"):
            assert worker.ask(what, calls=1)["seconds"] > 0
        assert worker.ask("memory")["bytes"] > 1e8
    finally:
        worker.close()


def test_a_job_goes_through_json(peers, tmp_path):
    job = peers.Bench(peers.parse(SMALL), tmp_path).job(peers.ROWS[0])
    assert type(job)(**json.loads(json.dumps(dataclasses.asdict(job)))) == job
    assert job.product == (2 * 5, 192, 768)
    assert job.images(2).shape == (2, 32, 32, 3)


@pytest.mark.parametrize(
    ("variant", "parameters"), [("BiT-R50x1", 25.5e6), ("R50+ViT-B/16", 99e6)]
)
def test_variants_with_convolutions(variant, parameters, peers, tmp_path, capsys):
    """timm's numbers of parameters; libraries that were not adapted are left out."""
    options = peers.parse(["--variant", variant])
    assert {row.side for row in peers.chosen(options)} <= {"ours", "timm"}
    line = f"vit-keras is left out: it was not adapted to {variant}\n"
    assert line in capsys.readouterr().out
    job = peers.Bench(options, tmp_path).job(peers.ROWS[0])
    model = sys.modules["peer_adapters"].our_model(job)
    assert model.count_params() == pytest.approx(parameters, rel=0.01)


# The sweep of batches, which a GPU is for.


@pytest.fixture
def sweep(peers):
    """benchmarks/sweep.py, as peers.py imports it."""
    return peers.sweep


@pytest.mark.parametrize(
    ("room", "found"),
    [(0, (0, 1)), (3, (3, 4)), (32, (32, 36)), (100, (96, 104)), (9999, (256, None))],
)
def test_the_largest_batch_is_found_to_an_eighth(room, found, sweep):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= room

    assert sweep.search(fits, 32, 256) == found
    assert len(tried) == len(set(tried))
    largest, too_large = found
    assert not largest or not too_large or largest <= room < too_large


def test_devices_by_their_drivers_names(sweep):
    names = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA A100-SXM4-40GB": 312e12,
        "NVIDIA GeForce RTX 4090": 165.2e12,
        "Tesla T4": 65e12,
        "NVIDIA H200": 989e12,
        "Quadro": None,
    }
    assert {name: sweep.peak_of(name) for name in names} == names


def stands_in(peers, tmp_path, room):
    """A process that answers up to a batch, and has no memory beyond it."""

    def start(row, model, batch):
        code = STANDS_IN
        if batch > room:
            code = STANDS_IN.replace(
                '"no such size"', '"RESOURCE_EXHAUSTED: Out of memory"'
            )
        dies = ["dies"] * (batch > room or row.name == "timm")
        return started(peers, tmp_path, code, *dies)

    return start


def test_a_sweep_on_a_gpu_that_is_not_there(peers, sweep, tmp_path, capsys):
    """Figures of a process that takes half a second for everything."""
    file = tmp_path / "gpu.json"
    options = ["--device", "gpu", "--json", str(file), "--smallest", "4"]
    options = peers.parse([*options, "--most", "16", "--models", "ViT-B/16@224"])
    assert options.sweep
    rows = [row for row in peers.ROWS if row.name in ("ours-jax", "timm")]
    sweep.run(options, rows, stands_in(peers, tmp_path, 9), lambda told: None)
    written = json.loads(file.read_text())
    assert written["title"] == "NVIDIA H100 80GB HBM3 (989 TFLOP/s), bfloat16"
    series = {(row["row"], row["what"]): row for row in written["rows"]}
    ours = series["ours-jax", "training"]
    assert [point["batch"] for point in ours["points"]] == [4, 8, 9]
    assert (ours["largest"], ours["too_large"]) == (9, 10)
    last = ours["points"][-1]
    adds = keras_vit.inspection.costs("ViT-B/16").multiply_adds
    flops = 6 * adds
    assert last["images_per_second"] == 18
    assert last["mfu"] == pytest.approx(18 * flops / 989e12)
    assert last["share_of_product"] == pytest.approx(18 * flops / (2000 / 0.5))
    predicted = keras_vit.inspection.costs(
        "ViT-B/16", batch=9, dtype="bfloat16", optimizer="sgd"
    )
    assert last["predicted_memory"] == predicted.memory.training_total
    hours = predicted.hours(1e6, "H100")
    assert last["predicted_images_per_second"] == pytest.approx(1e6 / (3600 * hours))
    assert series["timm", "training"]["failure"] == "ValueError: no such size"
    assert series["timm", "forward"]["largest"] == 16
    out = capsys.readouterr().out
    assert f"ViT-B/16, 224 px, {adds:,} multiply-adds an image" in out
    assert "ours-jax             9" in out
    assert "timm              ValueError: no such size" in out


def test_a_sweeps_rows_and_models(peers, capsys):
    options = peers.parse(["--device", "gpu"])
    assert options.models == (
        *("ViT-S/16@224", "ViT-B/16@224", "ViT-L/16@224"),
        "ViT-B/16@384",
    )
    names = [row.name for row in peers.chosen(options)]
    assert set(names) >= {"ours-jax", "ours-torch"}
    assert set(names) <= set(peers.sweep.ROWS)
    for wrong in ("ViT-B/16", "ViT-B/16@10", "Mine@224"):
        with pytest.raises(SystemExit):
            peers.parse(["--sweep", "--models", wrong])
        assert "--models: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("row", ["ours-jax", "ours-torch"])
def test_a_sweep_of_ours_on_a_cpu(row, peers, tmp_path, capsys):
    file = tmp_path / "cpu.json"
    peers.main(
        [
            *("--sweep", "--only", row, "--models", "ViT-Ti/16@32", "--smallest", "2"),
            *("--most", "2", "--seconds", "0", "--peak", "0.1", "--json", str(file)),
        ]
    )
    written = json.loads(file.read_text())
    assert [(row["what"], row["largest"]) for row in written["rows"]] == [
        ("forward", 2),
        ("training", 2),
    ]
    for series in written["rows"]:
        (point,) = series["points"]
        assert 0 < point["mfu"] < 10
        assert point["memory"] > 1e8
    assert "training" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("row", ["ours-jax", "ours-torch"])
def test_one_library_in_a_minute(row):
    """On a CPU, where it needs no GPU."""
    command = [sys.executable, "benchmarks/gpu.py", row, *SMALL, "--device", "cpu"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    forward, training = told.stdout.splitlines()
    for line, what in ((forward, "forward"), (training, "training")):
        form = (
            rf"{row} +{what} +([\d.]+) ms \(from ([\d.]+)\), ([\d,]+) images/s, .* GiB"
        )
        middle, least, rate = re.fullmatch(form, line).groups()
        assert 0 < float(least) <= float(middle)
        assert float(rate.replace(",", "")) == pytest.approx(
            2000 / float(middle), rel=0.1
        )
