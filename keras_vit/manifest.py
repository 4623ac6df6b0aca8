"""The manifest of a finished run or export: the size and SHA-256 of every file.

    FOLDER/manifest.json   files, versions, the data's fingerprint, and its own hash
    FILE.manifest.json     the same for a single file and its companion files

A subfolder with its own manifest is represented only by that manifest.

A manifest protects against damage, not against a person who changes both a file and its
hash.
"""

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit._version import __version__
from keras_vit.callers import warn
from keras_vit.files import file_sha256, json_sha256, parse_json, write_json

__all__ = ["Verification", "inside", "verify"]

FILE = "manifest.json"
# A run's lock files, and files of `keras-vit runs show`, `data-size` and `inspect`.
_LOCKS = {".lock", ".lock.held", ".writer.json"}
_PICTURES = {f"figure_{number}.png" for number in (6, 7, 14)}
_PICTURES |= {"curves.png", "data_size.png", "reconstructions.png", "inspect.html"}
_LEFT_OUT = {FILE} | _LOCKS | _PICTURES
_LIBRARIES = ("keras", "tensorflow", "jax", "torch", "numpy")


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        files: number of files in the manifest.
        changed: names of files with a different size or SHA-256.
        missing: names of files that do not exist.
        additional: names of files in a folder that are not in its manifest.
        versions: versions of the libraries that wrote the files.
        data: name and fingerprint of the data; None for an export.
    """

    files: int
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    additional: tuple[str, ...]
    versions: dict[str, str]
    data: Any

    @property
    def whole(self) -> bool:
        """Whether all files are unchanged, and there are no others."""
        return not (self.changed or self.missing or self.additional)


def write(folder: Path) -> None:
    """Writes the manifest of a finished folder."""
    _write(folder, {name: _entry(folder / name) for name in _names(folder)})


def add(folder: Path, name: str) -> None:
    """Adds a file that was written after the others.

    If the parent folder's manifest contains this manifest, it is updated too.
    """
    files = _read(folder)["files"]
    _write(folder, files | {name: _entry(folder / name)})
    entry, around = f"{folder.name}/{FILE}", folder.parent
    if (around / FILE).exists() and entry in _read(around)["files"]:
        add(around, entry)


def beside(file: Path) -> Path:
    """Returns the path of a single file's manifest."""
    return file.with_name(f"{file.name}.{FILE}")


def write_beside(file: Path, *others: Path) -> None:
    """Writes the manifest of a single file and of other files in its folder."""
    write_files(beside(file), {at.name: at for at in (file, *others)})


def write_files(path: Path, files: Mapping[str, Path]) -> None:
    """Writes a manifest of files by name; their present paths may differ."""
    _write_content(path, {name: _entry(at) for name, at in files.items()}, None)


def discard(folder: Path) -> None:
    """Removes the manifest of a run that is continued and will write a new one.

    Warns of damaged files, because the new manifest would accept them.
    """
    if not (folder / FILE).exists():
        return
    try:
        verification = verify(folder)
        damage = ", ".join((*verification.changed, *verification.missing))
    except ValueError as error:
        damage = str(error)
    if damage:
        warn(
            f"Damaged since {str(folder)!r} was written: {damage}. This call rewrites "
            "the files that it needs. Restore the others from a copy, or delete the "
            "folder",
        )
    (folder / FILE).unlink()


def verify(path: str | os.PathLike[str]) -> Verification:
    """Compares a finished run or export with its manifest.

    Args:
        path: folder of a run, of several runs of one command, or of a version of an
            export; or an exported or converted file.

    Returns:
        A `Verification`. In a folder of several runs, only the manifests of the runs
        are compared; `inside` finds the runs.

    Raises:
        ValueError: if there is no manifest, or it is damaged.
    """
    path = Path(path)
    content = _read(path)
    files, folder = content["files"], path
    if path.is_dir():
        there = set(_names(path))
    else:
        folder = path.parent
        there = {name for name in files if (folder / name).is_file()}
    return Verification(
        files=len(files),
        changed=tuple(
            name
            for name in sorted(there & files.keys())
            if _entry(folder / name) != files[name]
        ),
        missing=tuple(sorted(files.keys() - there)),
        additional=tuple(sorted(there - files.keys())),
        versions=content["versions"],
        data=content["data"],
    )


def inside(path: str | os.PathLike[str]) -> tuple[list[Path], list[str]]:
    """Finds the runs, exports and files with a manifest in a folder.

    Args:
        path: a folder of runs, of exports or of exported files; or one of these.

    Returns:
        The paths to verify, `path` itself if there are none. If the folder has no
        manifest, also the names of files that are in none of the manifests.
    """
    path = Path(path)
    sidecars = sorted(path.rglob(f"*.{FILE}"))
    files = [at.with_name(at.name.removesuffix(f".{FILE}")) for at in sidecars]
    folders = sorted(at.parent for at in path.rglob(FILE))
    if path in folders or not (folders or files):
        return [path, *(at for at in (*folders, *files) if at != path)], []
    known = {at.relative_to(path).as_posix() for at in sidecars}
    known |= {(at / FILE).relative_to(path).as_posix() for at in folders}
    for file in files:
        around = file.parent.relative_to(path)
        known |= {(around / name).as_posix() for name in _read(file)["files"]}
    return [*folders, *files], [at for at in _names(path) if at not in known]


def _names(folder: Path) -> list[str]:
    """Returns the relative names of all files in a folder and its subfolders.

    A subfolder with its own manifest is represented only by that manifest.
    """
    folders = {at.parent for at in folder.rglob(FILE)} - {folder}
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        around = folders.intersection(path.parents)
        shown = not around or (path.name == FILE and around == {path.parent})
        if shown and str(name) not in _LEFT_OUT and path.is_file():
            names.append(name.as_posix())
    return sorted(names)


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def _write(folder: Path, files: dict[str, Any]) -> None:
    begun = folder / "begun.json"
    data = parse_json(begun.read_text()).get("data") if begun.exists() else None
    _write_content(folder / FILE, files, data)


def _write_content(path: Path, files: dict[str, Any], data: Any) -> None:
    content = {"files": files, "versions": _versions(), "data": data}
    write_json(path, content | {"sha256": json_sha256(content)})


def _versions() -> dict[str, str]:
    """Returns the versions of the libraries that this process has imported."""
    versions = {"keras_vit": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        if (version := getattr(sys.modules.get(name), "__version__", None)) is not None:
            versions[name] = version
    if (keras := sys.modules.get("keras")) is not None:
        versions["backend"] = keras.backend.backend()
    return versions


def _read(place: Path) -> dict[str, Any]:
    path = beside(place) if place.is_file() else place / FILE
    if not place.exists() and beside(place).exists():  # The file is missing.
        path = beside(place)
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        expected = content.pop("sha256")
        if json_sha256(content) != expected or not isinstance(content["files"], dict):
            raise ValueError("its own sha256 differs")
    except FileNotFoundError as error:
        begun = (place / "begun.json").is_file()
        hint = (
            f"The run has not ended; run `keras-vit runs show {place}`"
            if begun
            else "Pass the folder of a run or of one version of an export, or a file "
            "that export or convert wrote"
        )
        raise ValueError(
            f"Expected {str(path)!r}, which is written when a run or an export ends. "
            f"Received: {str(place)!r} without a manifest. {hint}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The manifest is damaged: {str(path)!r} ({error}). Restore it from a copy"
        ) from error
    return dict(content)
