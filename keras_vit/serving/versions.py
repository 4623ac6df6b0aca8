"""The versions in a folder; the newest that can be loaded is served."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from keras_vit.serving.servable import Batching, Servable, version_numbers

Files: TypeAlias = tuple[tuple[str, int, int], ...]  # Name, size and time of change.


class Versions:
    """The newest version in a folder that can be loaded and warmed up.

    A version that cannot be loaded, for example because it is incomplete, is reported
    and skipped until its files change. `refresh` follows the folder like TensorFlow
    Serving's default policy: the greatest number is served, also after a greater one is
    removed.

    Args:
        path: folder with a subfolder for each version, 1, 2, ..., as `export` writes.
        batching: options for batching concurrent requests; default: no batching.
        report: function that is called with a message for each version that is loaded
            or skipped later.

    Attributes:
        current: version to serve.
        played: number of its warm-up requests.

    Raises:
        ValueError: if there are no versions, or none can be loaded.
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
        self._unread = ""  # The last error of reading the folder.
        for version in _numbers(path):
            if (servable := self._loaded(version)) is not None:
                self.current = servable
                return
        count = f"{len(self._skipped)} that cannot be loaded (see the reports above)"
        raise ValueError(
            f"Expected a version that can be loaded, {path}/VERSION/saved_model.pb. "
            f"Received: {count if self._skipped else 'no version there'}. To write "
            "one, run `keras-vit export MODEL OUT --format savedmodel`"
        )

    def refresh(self) -> Servable:
        """Returns the version to serve now.

        A version is loaded when its files are unchanged between two calls, so that a
        version that is being copied is not loaded. If the folder cannot be read, which
        is reported once, the current version stays.
        """
        try:
            self._follow()
            self._unread = ""
        except OSError as error:
            if str(error) != self._unread:
                self._unread = str(error)
                self._report(
                    f"{self._path} cannot be read, so new versions are not found: "
                    f"{error}. It is tried again"
                )
        return self.current

    def _follow(self) -> None:
        """Loads the newest version that has arrived."""
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
                    f"{servable.folder} is served from now on, warmed up with "
                    f"{self.played} requests"
                )
                break

    def _loaded(self, version: int) -> Servable | None:
        """Loads and warms up a version; reports it and returns None if that fails."""
        try:
            servable = Servable(self._path, version, self._batching)
            self.played = servable.warm_up()
        # TensorFlow raises a dozen types for damaged files.
        except Exception as error:
            self._skipped[version] = self._seen[version]
            self._report(
                f"{self._path / str(version)} is skipped until its files change. "
                "Expected a complete version, as written by `keras-vit export`. "
                f"Received: {type(error).__name__}: {error}"
            )
            return None
        return servable


def _numbers(path: Path) -> list[int]:
    """Returns the numbers of the version folders, the newest first."""
    numbers = reversed(version_numbers(path))
    return [number for number in numbers if (path / str(number)).is_dir()]


def _files(path: Path, version: int) -> Files:
    entries = []
    # Not `rglob`, which raises for a folder that is removed in the meantime.
    for folder, _, names in os.walk(path / str(version)):
        for name in names:
            file = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                facts = os.stat(file)
                entries.append((file, facts.st_size, facts.st_mtime_ns))
    return tuple(sorted(entries))
