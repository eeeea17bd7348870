"""Calls about models and datasets of anybody: which files a version has, and how these are fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.inputs.folder import TreeError
from jobs.payload.store.listing import BadListing, Entry
from platforms.base import Unreachable
from platforms.kaggle.api.answers import Answer, NoAnswer
from platforms.kaggle.api.caller import Caller, require_missing
from platforms.kaggle.api.wire import Denied, plain

_DATASETS, _MODELS = "datasets.DatasetApiService", "models.ModelApiService"
_PAGE, _PAGES_MAX = 200, 1_000
_ADDRESSES = 3  # a signed address expires; the next one begins the file anew
_SILENCE_SECONDS = 120


class Published:
    """What Kaggle holds and an account may see; ``source`` is ``kaggle-model:...`` or ``kaggle-dataset:...``."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def pin(self, source: str) -> tuple[str, list[Entry]]:
        """Return a source with its version, and that version's files, whose digests Kaggle does not tell.

        Raises TreeError for what is not there or not shown to this account; Unreachable, Misconfigured.
        """
        kind, _, name = source.partition(":")
        parts = name.split("/")
        try:
            if kind == "kaggle-dataset" and len(parts) == 2:
                parts.append(str(self._newest(*parts)))
            pinned = f"{kind}:{'/'.join(parts)}"
            entries = self._files(pinned)
        except Denied as error:
            require_missing(error)
            why = f"Kaggle has no {name}, or does not show it to {self._caller.owner()} ({error})"
            remedy = "Check name and version; accept its terms in the browser; a private one must be shared with you"
            raise TreeError(source, why, remedy) from None
        if not sum(entry.bytes for entry in entries):
            raise TreeError(source, "Kaggle lists no file with anything in it", "Give another version")
        return pinned, sorted(entries)

    def fetch(self, source: str, entry: Entry, place: Path) -> None:
        """Bring a file of a pinned source here. Raises BadListing, Denied, Unreachable, Misconfigured, OSError."""
        service, name, fields = _download(source, entry.path)
        for left in reversed(range(_ADDRESSES)):
            place.unlink(missing_ok=True)
            address = self._caller.wire.location(service, name, fields)
            try:
                self._caller.wire.download(address, place, entry.bytes, _SILENCE_SECONDS)
                break
            except Denied:
                if not left:
                    raise
        if place.stat().st_size != entry.bytes:
            raise BadListing(f"{entry.path!a} came with {place.stat().st_size:,} bytes of the {entry.bytes:,} listed")

    def _newest(self, owner: str, slug: str) -> int:
        fields = {"owner_slug": owner, "dataset_slug": slug}
        number = self._caller.read(
            _DATASETS, "GetDataset", fields, lambda answer: answer.number("currentVersionNumber")
        )
        if not number:
            raise Unreachable("kaggle", "GetDataset", f"it tells no version of {owner}/{slug}")
        return number

    def _files(self, source: str) -> list[Entry]:
        service, name, fields = _listing(source)
        fields["page_size"] = _PAGE
        found: list[Entry] = []
        for _ in range(_PAGES_MAX):
            entries, token = self._caller.read(service, name, fields, _page)
            found += entries
            if not token:
                return found
            fields["page_token"] = token
        raise Unreachable("kaggle", name, f"the list of {source} has more than {_PAGES_MAX} pages")


def _page(answer: Answer) -> tuple[list[Entry], str]:
    """Read a page of files, of a dataset or a model."""
    if wrong := answer.text("errorMessage"):
        raise NoAnswer(plain(wrong))
    field, size = ("datasetFiles", "totalBytes") if answer.has("datasetFiles") else ("files", "size")
    files = answer.parts(field)
    if files is None:
        raise NoAnswer("it lists no files")
    entries = [Entry(file.needed_text("name"), "file", "", file.number(size)) for file in files]
    return entries, answer.text("nextPageToken")


def _listing(source: str) -> tuple[str, str, dict[str, Any]]:
    if source.startswith("kaggle-dataset:"):
        return _DATASETS, "ListDatasetFiles", _of_dataset(source)
    return _MODELS, "ListModelInstanceVersionFiles", _of_model(source)


def _download(source: str, path: str) -> tuple[str, str, dict[str, Any]]:
    if source.startswith("kaggle-dataset:"):
        # Without ``raw`` tables come packed, and of another size.
        return _DATASETS, "DownloadDataset", {**_of_dataset(source), "file_name": path, "raw": True}
    return _MODELS, "DownloadModelInstanceVersion", {**_of_model(source), "path": path}


def _of_dataset(source: str) -> dict[str, Any]:
    owner, slug, version = source.partition(":")[2].split("/")
    return {"owner_slug": owner, "dataset_slug": slug, "dataset_version_number": int(version)}


def _of_model(source: str) -> dict[str, Any]:
    """Return which version of a model is meant. Raises TreeError for a framework that Kaggle does not know."""
    from kagglesdk.models.types.model_enums import ModelFramework

    owner, model, framework, variation, version = source.partition(":")[2].split("/")
    known = {found.name.removeprefix("MODEL_FRAMEWORK_").replace("_", "").lower(): found for found in ModelFramework}
    if framework.lower() not in known or framework.lower() == "unspecified":
        told = ", ".join(sorted(known.keys() - {"unspecified"}))
        raise TreeError(source, f"Kaggle has no framework {framework}", f"It has {told}")
    return {
        "owner_slug": owner,
        "model_slug": model,
        "instance_slug": variation,
        "framework": known[framework.lower()],
        "version_number": int(version),
    }
