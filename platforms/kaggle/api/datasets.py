"""Calls about datasets and uploads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from platforms.base import Unreachable
from platforms.kaggle.api.answers import NoAnswer, nothing_wrong
from platforms.kaggle.api.caller import require_missing
from platforms.kaggle.api.wire import Denied, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from platforms.kaggle.api.answers import Answer
    from platforms.kaggle.api.caller import Caller

_DATASETS = "datasets.DatasetApiService"
_ROUNDS_WITHOUT_PROGRESS = 10
_LIST_PAGES = 20
_STATES = frozenset(
    {
        "NOT_YET_PERSISTED",
        "BLOBS_RECEIVED",
        "BLOBS_DECOMPRESSED",
        "BLOBS_COPIED_TO_SDS",
        "INDIVIDUAL_BLOBS_COMPRESSED",
        "READY",
        "FAILED",
        "DELETED",
        "REPROCESSING",
    }
)


class Datasets:
    """An account's datasets."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def status(self, slug: str) -> str | None:
        """Return the state of a dataset's newest version, such as READY; None: missing, or not visible yet."""
        from kagglesdk.datasets.types.dataset_api_service import ApiGetDatasetStatusRequest

        request = ApiGetDatasetStatusRequest()
        request.owner_slug, request.dataset_slug = self._caller.owner(), slug
        try:
            return self._caller.read(
                _DATASETS,
                "GetDatasetStatus",
                request,
                lambda answer: answer.word("status", "DATABUNDLE_VERSION_STATUS", _STATES),
            )
        except Denied as error:
            require_missing(error)
            return None

    def own(self) -> Iterator[str]:
        """Yield the slugs of our private datasets."""
        from kagglesdk.datasets.types.dataset_api_service import ApiListDatasetsRequest
        from kagglesdk.datasets.types.dataset_enums import DatasetSelectionGroup

        def ours() -> ApiListDatasetsRequest:
            request = ApiListDatasetsRequest()
            request.group = DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY_PRIVATE
            return request

        seen: set[str] = set()
        for datasets, _ in self._caller.pages(_DATASETS, "ListDatasets", "datasets", ours, _LIST_PAGES):
            found = [self._caller.own(dataset.text("ref")) for dataset in datasets]
            # The list ends with a page that brings nothing new.
            slugs = [slug for slug in found if slug is not None and slug not in seen]
            if not slugs:
                return
            seen.update(slugs)
            yield from slugs

    def upload(self, source: Path, name: str, seconds: int, advanced: Callable[[int], object] = lambda _: None) -> str:
        """Upload a file and return the token that stands for it; ``advanced`` is told how many bytes have come.

        It may take any time while it goes on; ``seconds`` bound the silence after the last byte.
        Raises Denied, Unreachable, OSError.
        """
        from kagglesdk.blobs.types.blob_api_service import (
            ApiBlobType,
            ApiStartBlobUploadRequest,
        )

        request = ApiStartBlobUploadRequest()
        request.type, request.name, request.content_length = ApiBlobType.DATASET, name, source.stat().st_size
        request.last_modified_epoch_seconds = int(source.stat().st_mtime)
        token, address = self._caller.read(
            "blobs.BlobApiService",
            "StartBlobUpload",
            request,
            lambda answer: (answer.needed_text("token"), _address(answer)),
        )
        first: int | None = 0
        furthest = rounds = status = 0
        while rounds < _ROUNDS_WITHOUT_PROGRESS:
            rounds += 1
            try:
                status, reached = self._caller.wire.put(address, source, first, seconds, advanced)
            except Unreachable:
                status, reached = 503, ""
            if status in {200, 201}:
                return token
            if status == 308:
                match = re.fullmatch(r"bytes=0-(\d+)", reached)
                first = int(match[1]) + 1 if match else 0
                if first > furthest:
                    furthest, rounds = first, 0
            elif status in {429, 503}:
                self._caller.patience.wait(self._caller.pause_seconds)
                first = None  # ask how far it has come
            else:
                break
        raise Unreachable("kaggle", "upload", f"{name} was not taken (HTTP {status}, {furthest} bytes had come)")

    def create(self, slug: str, title: str, tokens: list[str]) -> str:
        """Create a private dataset of uploaded files; return what is wrong, or nothing. Raises Denied, Unreachable."""
        from kagglesdk.datasets.types.dataset_api_service import (
            ApiCreateDatasetRequest,
            ApiDatasetNewFile,
        )

        files = []
        for token in tokens:
            file = ApiDatasetNewFile()
            file.token = token
            files.append(file)
        request = ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = self._caller.owner(), slug, title
        request.license_name, request.is_private, request.files = "unknown", True, files
        return self._caller.wire.call(_DATASETS, "CreateDataset", request, _wrong)

    def delete(self, slug: str) -> None:
        """Delete a dataset; a missing one is fine."""
        from kagglesdk.datasets.types.dataset_api_service import ApiDeleteDatasetRequest

        request = ApiDeleteDatasetRequest()
        request.owner_slug, request.dataset_slug = self._caller.owner(), slug
        try:
            self._caller.wire.call(_DATASETS, "DeleteDataset", request, nothing_wrong)
        except Denied as error:
            require_missing(error)


def _address(answer: Answer) -> str:
    address = answer.needed_text("createUrl")
    if not address.startswith(("https://", "http://")):
        raise NoAnswer("createUrl is no address")
    return address


def _wrong(answer: Answer) -> str:
    """Return what is wrong with a dataset that was to be created; empty: it says that all is well."""
    if answer.text("status").lower() == "ok":
        return ""
    return plain(answer.needed_text("error"))
