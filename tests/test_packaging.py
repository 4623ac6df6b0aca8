"""What is built, what of it is installed, and the workflows that publish it."""

import email
import importlib.metadata
import json
import os
import re
import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
NAME = "keras_vit_paper"
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github/workflows").glob("*.yml")
}
SECTION = """# Changelog

## [Unreleased]

## [9.8.7] - 2026-11-22

### Added

- A thing.

## [9.8.6] - 2026-11-21

- Another.
"""


@pytest.fixture
def dist():
    """Where `make wheels` put the archives; it runs what asks for this."""
    if "KERAS_VIT_DIST" not in os.environ:
        pytest.skip("of `make wheels`")
    return Path(os.environ["KERAS_VIT_DIST"])


@pytest.fixture
def version():
    namespace = {}
    exec((ROOT / "keras_vit/_version.py").read_text(), namespace)
    return namespace["__version__"]


def tracked(*paths):
    """The files of the package as git knows them, so that none is forgotten."""
    command = ["git", "ls-files", *paths]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(found.stdout.splitlines())


def test_archive_of_the_wheel(dist, version):
    (path,) = dist.glob("*.whl")
    assert path.name == f"{NAME}-{version}-py3-none-any.whl"
    assert path.stat().st_size < 2**20
    wheel = zipfile.ZipFile(path)
    info = f"{NAME}-{version}.dist-info/"
    files = {name for name in wheel.namelist() if not name.startswith(info)}
    assert files == tracked("keras_vit", "keras_vit_command.py")
    for name in (
        "py.typed",
        "inspection/page.css",
        "labels/imagenet2012.txt",
        "templates/card.html",
    ):
        assert f"keras_vit/{name}" in files
    assert wheel.read(f"{info}licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert b"keras-vit = keras_vit_command:main" in wheel.read(
        f"{info}entry_points.txt"
    )
    metadata = email.message_from_bytes(wheel.read(f"{info}METADATA"))
    assert metadata["Version"] == version
    assert metadata["License-Expression"] == "Apache-2.0"
    # An index's page has nothing beside it: every link is one to this version.
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", metadata.get_payload())
    assert all(link.startswith("https://") for _, link in links)
    ours = [(image, link) for image, link in links if "keras-vit/keras-vit/" in link]
    assert len(ours) > 10
    for image, link in ours:
        folder = "raw.githubusercontent.com" if image else "github.com"
        folder += "/keras-vit/keras-vit/" + ("" if image else "blob/") + f"v{version}/"
        path = link.removeprefix(f"https://{folder}").partition("#")[0]
        assert (ROOT / path).is_file(), link


def test_archive_of_the_source(dist, version):
    (path,) = dist.glob("*.tar.gz")
    assert path.name == f"{NAME}-{version}.tar.gz"
    assert path.stat().st_size < 2**20
    with tarfile.open(path) as archive:
        members = {member.name for member in archive if member.isfile()}
    top = f"{NAME}-{version}/"
    made = {f"{top}PKG-INFO", f"{top}setup.cfg"}
    made |= {name for name in members if name.startswith(f"{top}{NAME}.egg-info/")}
    at_root = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
    ours = tracked("keras_vit", "keras_vit_command.py", *at_root)
    assert members - made == {top + name for name in ours}


def test_what_is_imported_is_what_is_installed():
    """site-packages' where a wheel was installed; here where that is editable."""
    import keras_vit

    site = sysconfig.get_path("purelib")
    (installed,) = importlib.metadata.distributions(name=NAME, path=[site])
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    home = ROOT if editable else Path(site)
    assert Path(keras_vit.__file__) == home / "keras_vit/__init__.py"


def steps(workflow):
    """(The job, its step) of a workflow, in order."""
    for job in WORKFLOWS[workflow]["jobs"].values():
        for step in job["steps"]:
            yield job, step


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_actions_are_pinned(workflow):
    """GitHub's own by version, others', which could publish as us, by commit."""
    used = [step["uses"] for _, step in steps(workflow) if "uses" in step]
    assert used
    for action in used:
        pin = r"v\d+" if action.startswith("actions/") else r"[0-9a-f]{40}"
        assert re.fullmatch(rf"[\w-]+/[\w-]+@{pin}", action), action


@pytest.mark.parametrize("workflow", ["ci", "release"])
def test_make_targets_of_workflows_exist(workflow):
    makefile = (ROOT / "Makefile").read_text()
    targets = "|".join(
        re.escape(target).replace("%", ".+")
        for line in re.findall(r"^([\w.% -]+):", makefile, re.M)
        for target in line.split()
    )
    called = []
    for job, step in steps(workflow):
        script = step.get("run", "")
        if ".ci/run" in script:
            script += (ROOT / ".ci/run").read_text()
        for python in job.get("strategy", {}).get("matrix", {}).get("python", [""]):
            filled = script.replace("${{ matrix.python }}", python)
            for line in re.findall(r"^make (.+)$", filled, re.M):
                called += line.split()
    assert called
    for target in called:
        assert re.fullmatch(targets, target), target


def test_a_release_is_tested_on_the_pythons_that_it_names():
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert WORKFLOWS["release"]["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert f"PYTHONS ?= {' '.join(named)}\n" in (ROOT / "Makefile").read_text()
    assert f'requires-python = ">={named[0]}"' in text


def test_nothing_is_published_untested():
    jobs = WORKFLOWS["release"]["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "floor"}
    assert jobs["test"]["needs"] == jobs["floor"]["needs"] == "build"
    assert jobs["announce"]["needs"] == "publish"
    writes = {name for name, job in jobs.items() if "write" in str(job["permissions"])}
    assert writes == {"publish", "announce"}
    assert WORKFLOWS["release"]["permissions"] == {}


def script(named):
    return next(
        step["run"] for _, step in steps("release") if step.get("name") == named
    )


def run(script, folder, tag):
    """As GitHub runs a step: bash, which ends at the first failure."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"GITHUB_REF_NAME": tag},
        capture_output=True,
    ).returncode


def released(folder, version):
    (folder / "keras_vit").mkdir()
    (folder / "keras_vit/_version.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(SECTION)


@pytest.mark.parametrize(
    ("version", "tag", "code"),
    [
        ("9.8.7", "v9.8.7", 0),
        ("9.8.7", "v9.8.6", 1),  # Another version.
        ("9.8.8", "v9.8.8", 1),  # Not in the changelog.
        ("9.8.7", "9.8.7", 1),
    ],
)
def test_a_tag_is_the_version_and_in_the_changelog(tmp_path, version, tag, code):
    released(tmp_path, version)
    check = script("The tag is the package's version, and the changelog has it")
    assert run(check, tmp_path, tag) == code


def test_a_release_has_its_section_of_the_changelog(tmp_path):
    released(tmp_path, "9.8.7")
    notes = script("The changelog's section")
    assert run(notes, tmp_path, "v9.8.7") == 0
    text = (tmp_path / "notes.md").read_text()
    assert text.strip() == "### Added\n\n- A thing."
    assert run(notes, tmp_path, "v9.8.8") == 1
