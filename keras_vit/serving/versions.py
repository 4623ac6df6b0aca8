"""The versions of a folder: the newest that can be loaded is served."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from keras_vit.serving.servable import Batching, Servable

Files: TypeAlias = tuple[tuple[str, int, int], ...]  # Name, size and time of change.


class Versions:
    """The newest version of a folder that can be loaded and warmed up.

    One that cannot, as it is half written, is reported and skipped until its files
    change. `refresh` follows the folder, as TensorFlow Serving's default policy does:
    the greatest number is served, also after a greater one was removed.

    Args:
        path: a folder with a folder for each version, 1, 2, ..., as `export` writes.
        batching: gathers the requests of concurrent callers; none by default.
        report: called with a sentence for each version that is loaded or skipped later.

    Attributes:
        current: the version to serve.
        played: the number of its warm-up requests.

    Raises:
        ValueError: if there is no version, or none that can be loaded.
    """

    def __init__(
        self,
        path: Path,
        batching: Batching | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        self._path, self._batching, self._report = path, batching, report
        self._seen = {version: _files(path, version) for version in _numbers(path)}
        self._skipped: dict[int, Files] = {}
        self.played = 0
        for version in _numbers(path):
            if (servable := self._loaded(version)) is not None:
                self.current = servable
                return
        told = f"{len(self._skipped)} that cannot, as reported"
        raise ValueError(
            f"Expected a version that can be loaded, {path}/VERSION/saved_model.pb. "
            f"Received: {told if self._skipped else 'no version there'}. "
            "keras-vit export MODEL OUT --format savedmodel writes one"
        )

    def refresh(self) -> Servable:
        """The version to serve now.

        A version is loaded when its files were the same at two calls, so that one that
        is being copied is left alone.
        """
        for version in _numbers(self._path):
            if version == self.current.version:
                break
            files = _files(self._path, version)
            settled = self._seen.get(version) == files
            self._seen[version] = files
            if not settled or self._skipped.get(version) == files:
                continue
            if (servable := self._loaded(version)) is not None:
                self.current = servable
                self._report(
                    f"{servable.folder} is served from now on, warmed up by "
                    f"{self.played} requests"
                )
                break
        return self.current

    def _loaded(self, version: int) -> Servable | None:
        """A version that is ready; None, and a report, if it cannot be."""
        try:
            servable = Servable(self._path, version, self._batching)
            self.played = servable.warm_up()
        # TensorFlow raises a dozen types for damaged files.
        except Exception as error:
            self._skipped[version] = self._seen[version]
            self._report(
                f"{self._path / str(version)} is skipped, and tried again when its "
                "files change: expected a whole version, as `keras-vit export` "
                f"writes. Received: {type(error).__name__}: {error}"
            )
            return None
        return servable


def _numbers(path: Path) -> list[int]:
    """The folders that are named as versions, the newest first."""
    folders = path.iterdir() if path.is_dir() else ()
    numbers = (int(at.name) for at in folders if at.name.isdecimal() and at.is_dir())
    return sorted(numbers, reverse=True)


def _files(path: Path, version: int) -> Files:
    found = []
    for file in sorted((path / str(version)).rglob("*")):
        try:
            facts = file.stat()
        except FileNotFoundError:  # Removed meanwhile.
            continue
        found.append((str(file), facts.st_size, facts.st_mtime_ns))
    return tuple(found)
