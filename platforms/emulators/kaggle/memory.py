"""What an account must remember over a crash of the emulator: one file, replaced whole, and the folders beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platforms.emulators.kaggle.place import Kernel, KernelVersion
from platforms.emulators.kaggle.session import Session, Terms
from platforms.emulators.kaggle.storage import Blob, Dataset, Version

if TYPE_CHECKING:
    from platforms.emulators.kaggle.place import Place

_FILE = "account.json"
_TERMS = ("session_id", "is_gpu", "limit_seconds", "queue_seconds", "log_bytes_max", "token", "billed_from")
_STATE = ("status", "failure", "started_at", "ended_at", "kept", "pid", "ticks")


def save(place: Place) -> None:
    """Write down the account. Raises OSError."""
    with place.lock:
        document = {
            "clock": list(place.clock),
            "number": place.next_number(),
            "kernels": [_kernel(kernel) for kernel in place.kernels.values()],
            "deleted": [_kernel(kernel) for kernel in place.deleted.values()],
            "datasets": [
                {
                    "slug": dataset.slug,
                    "title": dataset.title,
                    "deleted": dataset.deleted,
                    "versions": [
                        [version.number, version.notes, str(version.folder), version.created_at]
                        for version in dataset.versions
                    ],
                }
                for dataset in place.storage.datasets.values()
            ],
            "blobs": [
                [token, blob.name, blob.size, str(blob.path), blob.done] for token, blob in place.storage.blobs.items()
            ],
        }
        fresh = place.root / f".{_FILE}"
        place.root.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(document))
        fresh.replace(place.root / _FILE)


def recall(place: Place) -> bool:
    """Fill an empty account with what the folder remembers of it, on this very clock; return whether there was any."""
    try:
        document = json.loads((place.root / _FILE).read_bytes())
    except FileNotFoundError:
        return False
    if document["clock"] != list(place.clock):
        return False
    place.count_from(document["number"])
    place.kernels = {entry["slug"]: _recalled(place, entry) for entry in document["kernels"]}
    place.deleted = {entry["slug"]: _recalled(place, entry) for entry in document["deleted"]}
    for entry in document["datasets"]:
        versions = [Version(number, notes, Path(folder), at) for number, notes, folder, at in entry["versions"]]
        place.storage.datasets[entry["slug"]] = Dataset(entry["slug"], entry["title"], versions, entry["deleted"])
    for token, name, size, path, done in document["blobs"]:
        place.storage.blobs[token] = Blob(name, size, Path(path), done)
    return True


def live_folders(place: Place) -> set[str]:
    """Return the folders of sessions that run on. One that waits has none yet, whatever an earlier start began."""
    sessions = [session for session in place.sessions() if session.live and session.started_at is not None]
    return {str(session.terms.folder) for session in sessions}


def _kernel(kernel: Kernel) -> dict[str, Any]:
    versions = [
        {
            "number": version.number,
            "body": version.body,
            "pushed_at": version.pushed_at,
            "session": _session(version.session) if version.session else None,
        }
        for version in kernel.versions
    ]
    return {"id": kernel.id, "slug": kernel.slug, "title": kernel.title, "versions": versions}


def _session(session: Session) -> dict[str, Any]:
    terms = {name: getattr(session.terms, name) for name in _TERMS}
    state = {name: getattr(session, name) for name in _STATE}
    return {"terms": {**terms, "folder": str(session.terms.folder), "gpus": session.terms.gpus}, "state": state}


def _recalled(place: Place, entry: dict[str, Any]) -> Kernel:
    kernel = Kernel(entry["id"], entry["slug"], entry["title"])
    for version in entry["versions"]:
        body, told = version["body"], version["session"]
        session = None
        if told:
            terms = {**told["terms"], "folder": Path(told["terms"]["folder"]), "gpus": tuple(told["terms"]["gpus"])}
            made = Terms(source=str(body.get("text") or ""), address=place.address, journals=True, **terms)
            session = place.new_session(made)
            for name, value in told["state"].items():
                setattr(session, name, value)
        kernel.versions.append(KernelVersion(version["number"], body, version["pushed_at"], session))
    return kernel
