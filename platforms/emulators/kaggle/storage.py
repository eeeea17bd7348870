"""The limits of the emulated account, and its storage: uploaded blobs by token, datasets and their versions."""

import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock

_FILES_MAX = 50
# The states of a version, each with the fraction of the time to READY after which it begins.
_STAGES = (
    (0.0, "NOT_YET_PERSISTED"),
    (0.2, "BLOBS_RECEIVED"),
    (0.5, "BLOBS_DECOMPRESSED"),
    (0.8, "BLOBS_COPIED_TO_SDS"),
    (1.0, "READY"),
)


@dataclass(slots=True)
class KaggleRules:
    """The limits of the account. Seconds are scheduled unless the name says ``wall``.

    ``lets_kernels_in`` gives kernels with internet a token of their own, for read-only access to the account.
    """

    gpu_sessions_max: int = 2
    tpu_sessions_max: int = 1
    cpu_sessions_max: int = 5
    session_cap_seconds: int = 43_200
    tpu_session_cap_seconds: int = 32_400
    gpu_seconds_per_week: int = 108_000
    tpu_seconds_per_week: int = 72_000
    queue_seconds: float = 16.0
    dataset_hidden_seconds: float = 0.0
    dataset_seconds: float = 5.0
    source_bytes_max: int = 1_000_000
    log_bytes_max: int = 64 << 20
    link_wall_seconds: float = 300.0
    stream_idle_wall_seconds: float = 120.0
    lets_kernels_in: bool = True


class KaggleRefusal(Exception):
    """A response with an HTTP status of 400 or above."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


def denied(permission: str) -> KaggleRefusal:
    """Return Kaggle's error for a thing that does not exist or belongs to another account: it does not say which."""
    return KaggleRefusal(403, f"Permission '{permission}' was denied")


@dataclass(slots=True)
class UploadedBlob:
    """One upload: ``size`` bytes are announced, ``path`` contains those received."""

    name: str
    size: int
    path: Path
    done: bool = False


@dataclass(slots=True)
class KaggleVersion:
    """One version of a dataset; ``folder`` contains its files as kernels see them."""

    number: int
    notes: str
    folder: Path
    created_at: float


@dataclass(slots=True)
class Dataset:
    """A private dataset. The name of a deleted one is never reused."""

    slug: str
    title: str
    versions: list[KaggleVersion] = field(default_factory=list)
    deleted: bool = False


@dataclass
class KaggleStorage:
    """All uploads and datasets of the account ``owner``. The caller holds the account's lock."""

    _owner: str
    _root: Path
    _clock: Clock
    _rules: KaggleRules
    blobs: dict[str, UploadedBlob] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)

    def start_upload(self, name: str, size: int, token: str) -> UploadedBlob:
        """Begin an upload of ``size`` bytes and return its blob, which is empty."""
        (self._root / "blobs").mkdir(parents=True, exist_ok=True)
        blob = self.blobs[token] = UploadedBlob(name, size, self._root / "blobs" / token)
        blob.path.touch()
        return blob

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer CreateDataset. Like Kaggle, it returns errors with HTTP 200."""
        slug, title = str(body.get("slug", "")), str(body.get("title", ""))
        if not 6 <= len(slug) <= 50 or not 6 <= len(title) <= 50:
            return {"status": "Error", "error": "The slug and the title must be between 6 and 50 characters"}
        if slug in self.datasets:
            return {"status": "Error", "error": f"The requested slug '{slug}' is already in use by a dataset"}
        dataset = Dataset(slug, title)
        error = self._add_version(dataset, body)
        if error:
            return {"status": "Error", "error": error}
        self.datasets[slug] = dataset
        return {"status": "Ok", "ref": f"{self._owner}/{slug}", "url": f"https://kaggle.invalid/{slug}", "error": ""}

    def create_version(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer CreateDatasetVersion. Raises KaggleRefusal, also while the newest version is being processed."""
        dataset = self.find(request.get("ownerSlug", ""), request.get("datasetSlug", ""))
        if dataset is None or self.status(dataset) != "READY":
            raise denied("datasets.update")
        error = self._add_version(dataset, request.get("body") or {})
        return {"status": "Error", "error": error} if error else {"status": "Ok", "ref": dataset.slug, "error": ""}

    def _add_version(self, dataset: Dataset, body: dict[str, Any]) -> str:
        blobs = [self.blobs.get(entry.get("token", "")) for entry in body.get("files") or ()]
        if not blobs or len(blobs) > _FILES_MAX:
            return f"A dataset has between 1 and {_FILES_MAX} files"
        number = len(dataset.versions) + 1
        folder = self._root / "datasets" / dataset.slug / str(number)
        folder.mkdir(parents=True)
        for blob in blobs:
            if blob is None or not blob.done:
                shutil.rmtree(folder)
                return "A file was not uploaded"
            _place(blob, folder)
        dataset.versions.append(KaggleVersion(number, str(body.get("versionNotes") or ""), folder, self._clock.now()))
        return ""

    def find(self, owner: str, slug: str) -> Dataset | None:
        """Return a dataset; None if it does not exist or is deleted."""
        dataset = self.datasets.get(slug) if owner == self._owner else None
        return None if dataset is None or dataset.deleted else dataset

    def status(self, dataset: Dataset) -> str:
        """Return the status of the newest version."""
        if dataset.deleted:
            return "DELETED"
        age = self._clock.now() - dataset.versions[-1].created_at - self._rules.dataset_hidden_seconds
        share = age / self._rules.dataset_seconds if self._rules.dataset_seconds > 0 else 1.0
        return [state for begins, state in _STAGES if share >= begins or begins == 0.0][-1]

    def visible(self, dataset: Dataset) -> bool:
        """Return whether Kaggle already reports the dataset; it does not just after the creation."""
        return (self._clock.now() - dataset.versions[0].created_at) >= self._rules.dataset_hidden_seconds

    def attach(self, source: str, target: Path) -> bool:
        """Copy a READY dataset named ``owner/slug`` below ``target``; return False if it cannot be attached."""
        owner, _, slug = source.partition("/")
        dataset = self.find(owner, slug.partition("/")[0])
        if dataset is None or self.status(dataset) != "READY":
            return False
        shutil.copytree(dataset.versions[-1].folder, target / "datasets" / owner / dataset.slug)
        return True

    def delete(self, owner: str, slug: str) -> dict[str, Any]:
        """Answer DeleteDataset. Raises KaggleRefusal."""
        dataset = self.find(owner, slug)
        if dataset is None:
            raise denied("datasets.delete")
        dataset.deleted = True
        shutil.rmtree(self._root / "datasets" / slug, ignore_errors=True)
        return {}

    def describe(self, owner: str, slug: str) -> dict[str, Any]:
        """Answer GetDataset. Raises KaggleRefusal."""
        dataset = self.find(owner, slug)
        if dataset is None:
            raise denied("datasets.get")
        return {
            "ref": f"{self._owner}/{slug}",
            "title": dataset.title,
            "isPrivate": True,
            "currentVersionNumber": len(dataset.versions),
            "versions": [
                {"versionNumber": version.number, "versionNotes": version.notes, "status": "Ready"}
                for version in dataset.versions
            ],
        }


def _place(blob: UploadedBlob, folder: Path) -> None:
    """Copy an uploaded file into the folder of a version; like Kaggle, unpack archives."""
    if blob.name.endswith((".tar", ".tar.gz", ".tgz")):
        with tarfile.open(blob.path) as archive:
            archive.extractall(folder, filter="data")
    elif blob.name.endswith(".zip"):
        with zipfile.ZipFile(blob.path) as archive:
            archive.extractall(folder)  # noqa: S202 - a folder of the emulator; zipfile drops '..' itself
    else:
        shutil.copyfile(blob.path, folder / Path(blob.name).name)
