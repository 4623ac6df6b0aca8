"""The model on paper: FLOPs, core-days and bytes against the paper's tables."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/scaling.md").read_text()


@pytest.fixture
def scaling(script):
    return script("scaling")


def test_flops_are_table_6s(scaling):
    for (variant, epochs), exa in scaling.TABLE_6.items():
        run = scaling.pretraining(variant, "jft300m", epochs)
        assert run.flops / 1e18 == pytest.approx(exa, rel=0.025)


def test_core_days_are_table_2s(scaling):
    """Each row from the others, which know nothing of it: 0.76, 1.33 and 1.12."""
    for name, (_, days) in scaling.TABLE_2.items():
        assert 0.75 <= scaling.core_days(name) / days <= 1.34
    assert scaling.utilization() == pytest.approx(0.348, abs=1e-3)


def test_a_day_on_512_cores_is_table_2s(scaling):
    """Where compute is all, device-days are FLOPs over what a device does."""
    run, days = scaling.TABLE_2["ViT-L/16, JFT-300M"]
    device = scaling.DEVICES["tpu-v3"]
    step = scaling.step(run, 512, device, storage=1e15, overlap=1)
    assert step.seconds == pytest.approx(step.compute, rel=1e-3)
    told = 512 * run.steps * step.seconds / scaling.DAY
    assert told / days == pytest.approx(1.25, abs=0.01)


def test_bytes_of_an_all_reduce(scaling):
    gradients = 4 * 86_567_656  # ViT-B/16, 1000 classes.
    assert scaling.ring_bytes(gradients, 1) == 0
    assert scaling.ring_bytes(gradients, 2) == gradients
    assert scaling.ring_bytes(gradients, 8) == 605_973_592
    run = scaling.ROWS[-1]
    assert (run.variant, run.recipe.batch_size) == ("ViT-B/16", 512)
    # At 384 px it has 577 positions in the place of 197.
    assert run.gradient_bytes == gradients + 4 * (577 - 197) * 768
    one = scaling.step(run, 64, scaling.DEVICES["a100"], storage=1e10, overlap=0)
    assert one.all_reduce == pytest.approx(2 * 63 / 64 * run.gradient_bytes / 12.5e9)
    assert one.input == 512 * 110_000 / 1e10


@pytest.mark.parametrize(
    "arguments", [["--devices", "0"], ["--storage", "0"], ["--overlap", "2"]]
)
def test_what_cannot_be_is_refused(arguments, scaling, capsys):
    with pytest.raises(SystemExit):
        scaling.main(arguments)
    assert "error: " in capsys.readouterr().err


def test_the_page_prints_what_the_command_prints(scaling, capsys):
    blocks = re.findall(
        r"```text\n\$ python benchmarks/scaling\.py([^\n]*)\n(.*?)```", PAGE, re.DOTALL
    )
    assert len(blocks) == 3
    for arguments, printed in blocks:
        scaling.main(shlex.split(arguments))
        assert printed.strip() in capsys.readouterr().out


def script(language, name):
    """The page's file of this name, which its first comment tells."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = (block for block in blocks if f"# {name}\n" in block)
    return found


def told(program, folder, **variables):
    """The TF_CONFIG with which a script ends in `keras-vit`."""
    stub = folder / "keras-vit"
    stub.write_text('#!/bin/sh\nprintf %s "$TF_CONFIG"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    result = subprocess.run(
        ["bash", "-c", program],
        env=path | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)


def test_tf_config_of_slurm(tmp_path):
    """With a stand-in for keras-vit; there is no SLURM here."""
    variables = {"NODES": "n1\nn2\nn3", "SLURM_JOB_ID": "70123", "SLURM_PROCID": "2"}
    config = told(script("bash", "worker.sh"), tmp_path, **variables)
    workers = ["n1:20123", "n2:20123", "n3:20123"]
    assert config["cluster"] == {"worker": workers}
    assert config["task"] == {"type": "worker", "index": 2}


def test_tf_config_of_a_jobset(tmp_path):
    """Likewise; the manifest is YAML, and its parts agree."""
    yaml = pytest.importorskip("yaml")
    jobset = yaml.safe_load(script("yaml", "jobset.yaml"))
    name, (job,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completions"] == spec["parallelism"] == 4
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    given = {one["name"]: one["value"] for one in container["env"]}
    assert container["command"][:2] == ["bash", "-c"]
    config = told(container["command"][2], tmp_path, JOB_COMPLETION_INDEX="3", **given)
    hosts = [f"{name}-{job['name']}-0-{index}.{name}:2222" for index in range(4)]
    assert config["cluster"] == {"worker": hosts}
    assert config["task"] == {"type": "worker", "index": 3}
