"""A checkpoint's source: a local path, a URL, or a repository of the Hugging Face Hub.

Repositories are read through huggingface_hub, with its cache and its settings: HF_HOME,
HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE. Only the required files are downloaded.
"""

import contextlib
import dataclasses
import errno
import fnmatch
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from keras_vit import arguments
from keras_vit.callers import warn
from keras_vit.files import cache_dir, file_sha256, parse_json
from keras_vit.weights import hashes
from keras_vit.weights.download import download
from keras_vit.weights.mirrors import DownloadError, commit_of

LicenseAllow: TypeAlias = str | Sequence[str] | None
_SCHEMES = re.compile(r"(hf|https?):/{1,2}(?=[^/])|timm:")  # `Path` makes "//" one "/".
_NAME = r"[A-Za-z0-9](?:[\w-]|\.(?!\.))*"
_REPOSITORY = re.compile(rf"{_NAME}/{_NAME}", re.ASCII)
_REVISION = re.compile(r"\w(?:[\w/-]|\.(?!\.))*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
ENDINGS = (".npz", ".safetensors", ".h5")
INDEX = "model.safetensors.index.json"
# In order of preference; safetensors first, as in transformers.
WEIGHTS = ("model.safetensors", INDEX, "tf_model.h5", "model.weights.h5")
# Files that are read next to the weights: a config, a preprocessing, keras-hub's head.
BESIDE = (
    *("config.json", "preprocessor_config.json"),
    *("task.json", "task.weights.h5"),
)
HUB_FILES = "https://huggingface.co/{}/resolve/{}/"  # Independent of HF_ENDPOINT.
MODEL_CARD = "README.md"  # Its metadata has the license.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint on this machine, and its origin.

    Attributes:
        path: path of the file or of the folder.
        name: name in messages and in the provenance.
        subtree: one tower of a file with several, such as "img" of "lit.npz:img".
        revision: commit of the repository; None for a local file or a URL.
        file: name of the weights file, or of the index of its shards; None: local.
        license: license that the repository states; None: not stated.
        sha256: SHA-256 of the weights file, if it has been computed.
    """

    path: Path
    name: str
    subtree: str | None = None
    revision: str | None = None
    file: str | None = None
    license: str | None = None
    sha256: str | None = None


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a URL or a repository's name, not a local path."""
    return not os.path.exists(source) and _SCHEMES.match(os.fspath(source)) is not None


def spelling(source: str | os.PathLike[str]) -> str:
    """A hint for a repository's name without its scheme, else an empty string."""
    text = os.fspath(source)
    is_file = text.lower().endswith((*ENDINGS, ".keras", ".json", ".bin", ".pth"))
    if is_file or not _REPOSITORY.fullmatch(text.partition("@")[0]):
        return ""
    return f". For a repository of the Hugging Face Hub, use {'hf://' + text!r}"


def resolve(
    source: "str | os.PathLike[str] | Source", license_allow: LicenseAllow = None
) -> Source:
    """Finds a checkpoint's local file or folder; downloads it if it is remote.

    Args:
        source: a path; "file.npz:img" for one tower; "hf://ORG/NAME[@REVISION]";
            "timm:NAME" for "hf://timm/NAME"; or the URL of a weights file (the
            config.json in the same folder is downloaded, too).
        license_allow: accepted licenses, such as ["apache-2.0", "mit"]; None: any.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if the name is malformed, the repository has no supported weights,
            or its license is not allowed.
        DownloadError: if the checkpoint cannot be downloaded or stored, or a file in
            the cache is damaged.
    """
    if isinstance(source, Source):
        return source
    if is_remote(source):
        text = os.fspath(source)
        if text.startswith("http"):
            check_license(None, license_allow, text)
            return _from_url(text)
        return _from_hub(*repository_of(text), license_allow)
    check_license(None, license_allow, os.fspath(source))
    path, colon, subtree = os.fspath(source).rpartition(":")
    if colon and not os.path.exists(source) and re.fullmatch(r"\w+", subtree):
        return Source(path=Path(path), name=os.fspath(source), subtree=subtree)
    if not os.path.exists(source) and (hint := spelling(source)):
        raise FileNotFoundError(
            "Expected a checkpoint file. Received: "
            f"{os.fspath(source)!r}, which does not exist{hint}"
        )
    return Source(path=Path(source), name=os.fspath(source))


def accepted_licenses(allowed: LicenseAllow) -> list[str] | None:
    """Returns the names in `license_allow` in lowercase; None for any license.

    Raises:
        ValueError: if it has no names, or something other than names.
    """
    if allowed is None:
        return None
    listed = allowed.split(",") if isinstance(allowed, str) else allowed
    names = listed if isinstance(listed, list | tuple | set | frozenset) else ()
    if any(names) and all(isinstance(at, str) for at in names):
        return [at.strip().lower() for at in names]
    raise ValueError(
        'Expected license_allow to be names of licenses, such as ["apache-2.0", '
        f'"mit"]. Received: license_allow={arguments.shown(allowed)}'
    )


def check_license(license: str | None, allowed: LicenseAllow, name: str) -> None:
    """Raises unless a checkpoint's license is among the allowed ones."""
    accepted = accepted_licenses(allowed)
    if accepted is None:
        return
    if (license or "").lower() not in accepted or not license:
        stated = f"license {license!r}" if license else "no stated license"
        raise ValueError(
            f"Expected a checkpoint under {' or '.join(accepted)} (license_allow). "
            f"Received: {name} with {stated}. Choose a different checkpoint, or allow "
            "its license after reading it"
        )


def _from_url(text: str) -> Source:
    """Downloads the weights file at a URL, and the JSON files in the same folder."""
    scheme, rest = re.split(":/+", text, maxsplit=1)
    url = f"{scheme}://{rest}"
    parts = urlsplit(url)
    file = unquote(PurePosixPath(parts.path).name)
    if not file.lower().endswith(ENDINGS) or not re.fullmatch(r"[\w.+-]+", file):
        raise ValueError(
            f"Expected the URL of a weights file ({', '.join(ENDINGS)}). Received: "
            f"{url!r}. For a repository of the Hugging Face Hub, use 'hf://ORG/NAME'. "
            "Download shards into one folder and pass its path"
        )
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    folder = cache_dir() / "urls" / key
    for name in BESIDE[:2]:
        own = parts.path.rpartition("/")[0] + f"/{name}"
        beside = urlunsplit(parts._replace(path=own))
        try:
            download([beside], folder / name)
        except DownloadError as error:
            if not any("HTTP 40" in reason for _, reason in error.failures):
                raise
    path = download([url], folder / file)
    return Source(path=path, name=url, file=file, sha256=file_sha256(path))


def repository_of(text: str) -> tuple[str, str | None]:
    """ORG/NAME and the revision of "hf://ORG/NAME@REVISION" or "timm:NAME"."""
    scheme, _, rest = text.partition(":")
    repository, at, revision = rest.lstrip("/").partition("@")
    if scheme == "timm":
        repository = f"timm/{repository}"
    elif scheme != "hf":
        repository = ""
    if not _REPOSITORY.fullmatch(repository) or (
        at and not _REVISION.fullmatch(revision)
    ):
        raise ValueError(
            "Expected hf://ORG/NAME, hf://ORG/NAME@REVISION or timm:NAME, with "
            f"letters, digits, '-', '_' and '.'. Received: {text!r}"
        )
    return repository, revision or None


def hub_name(source: str) -> str | None:
    """ORG/NAME of a repository's source; None for other sources."""
    return repository_of(source)[0] if source.startswith(("hf:", "timm:")) else None


def _from_hub(
    repository: str, revision: str | None, license_allow: LicenseAllow
) -> Source:
    """Downloads a repository's required files into huggingface_hub's cache."""
    name = f"hf://{repository}" + (f"@{revision}" if revision else "")
    urls = HUB_FILES.format(repository, quote(revision or "main", safe=""))
    commit, entries = hashes.locked_repository(name, urls)
    with explain_hub_error(repository, commit or revision):
        found = _Repository.find(repository, commit or revision)
        card = found.get([MODEL_CARD])
        license = _license(card[0]) if card else None
        check_license(license, license_allow, name)
        weights = _weights(found, name)
        beside = [file for file in BESIDE if file in found.files]
        shards: list[str] = []
        if weights == INDEX:
            (index,) = found.get([INDEX])
            shards = _shards(index, found.files, name)
        paths = found.get([weights, *shards, *beside])
    digests = [_verified(path) for path in paths]
    for file, at, digest in zip(
        [weights, *shards, *beside], paths, digests, strict=True
    ):
        entry = hashes.Entry(
            sha256=digest, size=at.stat().st_size, commit=commit_of(found.commit)
        )
        _check_lock(urls + quote(file), entry, entries)
    hashes.warn_if_unlocked(entries, name)
    path = paths[0]
    return Source(
        path=path.parent if beside or path.name in WEIGHTS else path,
        name=name,
        revision=found.commit,
        file=weights,
        license=license,
        sha256=None if shards else digests[0],
    )


def _check_lock(
    url: str, found: hashes.Entry, entries: Mapping[str, hashes.Entry]
) -> None:
    """Compares a file of the Hub with the lock file, and writes its record."""
    locked = {url: entries[url]} if url in entries else {}
    if problem := hashes.problem_of(found, locked):
        raise DownloadError(
            f"Expected {url} to match its entry in {hashes.lock_path()}. Received: "
            f"{problem}. Delete the entry to accept this file"
        )
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    record = cache_dir() / "hub" / f"{key}.sha256"
    try:
        hashes.write_record(record, unquote(url.rpartition("/")[2]), url, found)
    except OSError as error:  # The weights can be used anyway.
        warn(f"{error}. `keras-vit weights lock` will not find {url}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Repository:
    """One commit of a repository, online or in the cache.

    Attributes:
        name: ORG/NAME.
        revision: requested revision; None: the main branch.
        commit: commit of the revision.
        files: each file's size in bytes; None: not stated.
        folder: folder of the commit in the cache; None: online.
    """

    name: str
    revision: str | None
    commit: str
    files: Mapping[str, int | None]
    folder: Path | None = None

    @classmethod
    def find(cls, name: str, revision: str | None) -> "_Repository":
        """The Hub's listing; without a connection, the cache's files."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            info = HfApi().model_info(name, revision=revision, files_metadata=True)
        except HfHubHTTPError:
            raise
        except (ConnectionError, _http_error()) as error:
            try:
                found = cls.cached(name, revision)
            except LocalEntryNotFoundError:
                raise error from None
            if not isinstance(error, ConnectionError):  # HF_HUB_OFFLINE was not set.
                warn(
                    f"No connection to the Hub ({error}): hf://{name} is read from the "
                    f"cache, at commit {found.commit}",
                )
            return found
        files = {file.rfilename: file.size for file in info.siblings or ()}
        return cls(name=name, revision=revision, commit=str(info.sha), files=files)

    @classmethod
    def cached(cls, name: str, revision: str | None) -> "_Repository":
        """The repository's files in huggingface_hub's cache."""
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        files = {
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file()
        }
        return cls(
            name=name, revision=revision, commit=folder.name, files=files, folder=folder
        )

    def get(self, files: Iterable[str]) -> list[Path]:
        """The local paths of those files that exist; downloads uncached files."""
        from huggingface_hub import hf_hub_download

        files = [file for file in files if file in self.files]
        if self.folder is not None:
            return [self.folder / file for file in files]
        self._check_room(files)
        # Once by the revision's name, so that HF_HUB_OFFLINE=1 finds the commit.
        for file in files[:1]:
            hf_hub_download(self.name, file, revision=self.revision)
        return [
            Path(hf_hub_download(self.name, file, revision=self.commit))
            for file in files
        ]

    def _check_room(self, files: Iterable[str]) -> None:
        """Raises if the cache's disk does not have enough space for the files."""
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_CACHE

        missing = [
            self.files[file] or 0
            for file in files
            if not isinstance(
                try_to_load_from_cache(self.name, file, revision=self.commit), str
            )
        ]
        cache = Path(HF_HUB_CACHE)
        disk = next(at for at in (cache, *cache.parents) if at.exists())
        if sum(missing) > (free := shutil.disk_usage(disk).free):
            raise DownloadError(
                f"Expected {sum(missing):,} bytes of free disk for hf://{self.name}. "
                f"Received: {free:,} bytes free in {cache}. Free some space, or set "
                "HF_HOME to a folder on a different disk"
            )


def _license(card: Path) -> str | None:
    """The license in a model card's metadata; for "other", the license's name."""
    from huggingface_hub import metadata_load

    try:
        stated: Any = metadata_load(card) or {}
    except Exception as error:  # Errors of YAML; a license is never guessed.
        raise ValueError(
            "Expected a model card with metadata in YAML. Received: "
            f"{str(card)!r} ({str(error)[:200]})"
        ) from error
    license = stated.get("license")
    named = stated.get("license_name") if license == "other" else None
    found = named or license
    return found if isinstance(found, str) else None


def _http_error() -> type[Exception]:
    """The base of httpx's errors in the copy that huggingface_hub contains."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__bases__[0]
    return base


def _weights(repository: _Repository, name: str) -> str:
    """The weights file to read from a repository."""
    files = repository.files
    for file in WEIGHTS:
        if file in files:
            return file
    others = [at for at in files if at.endswith(ENDINGS) and "/" not in at]
    others = [at for at in others if not fnmatch.fnmatch(at, "*-of-*")]
    if len(others) == 1:
        return others[0]
    held = ", ".join(sorted(files)[:12]) or "no files"
    if repository.folder is not None:
        reason = f"no connection, and a cache with {held}"
        raise _offline(repository.name, repository.revision, reason)
    pickles = any(at.endswith((".bin", ".pt", ".pth")) for at in files)
    raise ValueError(
        f"Expected a repository with {', '.join(WEIGHTS)}, or one .npz or .safetensors "
        f"file. Received: {name} with {held}. "
        + (
            "Pickles (.bin, .pt, .pth) are not read from the Hub: download one and run "
            "keras-vit convert FILE"
            if pickles
            else "Download one of its files and pass its path"
        )
    )


def _shards(index: Path, files: Mapping[str, int | None], name: str) -> list[str]:
    """The shards of an index, all of which the repository must have."""
    try:
        places = parse_json(index.read_text("utf-8"))["weight_map"]
        shards = sorted(set(map(str, places.values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected an index of shards. Received: {INDEX} of {name} "
            f"({type(error).__name__}: {error})"
        ) from error
    if missing := [shard for shard in shards if shard not in files]:
        raise ValueError(
            f"Expected the {len(shards)} shards of {INDEX} in {name}. Received: a "
            f"repository without {', '.join(missing[:4])}. Ask its owner to upload "
            "them, or use an earlier revision: hf://ORG/NAME@REVISION"
        )
    return shards


def _verified(path: Path) -> str:
    """The sha256 of a file in the cache; it must be the name of its blob."""
    digest = file_sha256(path)
    stated = Path(os.readlink(path)).name if path.is_symlink() else ""
    if _SHA256.fullmatch(stated) and digest != stated:
        raise DownloadError(
            f"Expected {path} to have sha256={stated}, as on the Hub. Received: "
            f"sha256={digest}, {path.stat().st_size:,} bytes: truncated or damaged. "
            f"Delete {path.resolve()} to download it again"
        )
    return digest


@contextlib.contextmanager
def explain_hub_error(
    repository: str, revision: str | None, *, writing: bool = False
) -> Iterator[None]:
    """Turns huggingface_hub's errors into one message with a remedy."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"
    name = f"hf://{repository}" + (f"@{revision}" if revision else "")
    token = (
        "a token is read from the environment variable HF_TOKEN, or from "
        "`hf auth login`"
    )
    try:
        yield
    except DownloadError:
        raise
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"Expected access to {name}, which is gated. Received: HTTP "
            f"{error.response.status_code}. Accept its conditions on {page}; {token}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadError(
            f"Expected a branch, a tag or a commit of {repository}. Received: "
            f"{revision!r}. {page}/commits/main lists its commits"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"Expected a repository of {constants.ENDPOINT}. Received: {name}, which "
            f"does not exist or is private. Check its spelling; for a private one "
            f"{token}"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        reason = str(error).partition("\n")[0]
        if constants.is_offline_mode():
            reason = "HF_HUB_OFFLINE is set"
        raise _offline(repository, revision, reason, writing) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise DownloadError(
                f"Expected access to {name}. Received: HTTP {status}. Access is "
                f"granted on {page}; {token}"
            ) from error
        raise DownloadError(
            f"Expected {constants.ENDPOINT} to deliver {name}. Received: HTTP "
            f"{status}. Try again later"
        ) from error
    except (_http_error(), ConnectionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _offline(repository, revision, reason, writing) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise DownloadError(
            f"Expected {constants.HF_HUB_CACHE} to be writable, with free space for "
            f"{name}. Received: {error}. Free some space, or set HF_HOME to a folder "
            "on a different disk"
        ) from error


def _offline(
    repository: str, revision: str | None, reason: str, writing: bool = False
) -> DownloadError:
    if writing:
        return DownloadError(
            f"Expected a connection to the Hub to write hf://{repository}. Received: "
            f"{reason}. No file was uploaded: run the command again"
        )
    at = f" --revision {revision}" if revision else ""
    return DownloadError(
        f"Expected hf://{repository} in huggingface_hub's cache, or a connection to "
        f"the Hub. Received: {reason}. On a connected machine run\n"
        f"  hf download {repository}{at} --include '*.json' '*.safetensors' "
        "--local-dir FOLDER\n"
        "copy FOLDER, and pass its path"
    )
