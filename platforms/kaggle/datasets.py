"""Calls about datasets and uploads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from platforms.base import Unreachable
from platforms.kaggle.caller import Caller, require_missing
from platforms.kaggle.wire import Denied, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_DATASETS = "datasets.DatasetApiService"
_ROUNDS_WITHOUT_PROGRESS = 10
_LIST_PAGES = 20


class DatasetCalls(Caller):
    """An account's datasets."""

    def dataset_status(self, slug: str) -> str | None:
        """Return the state of a dataset's newest version, such as READY; None: missing, or not visible yet."""
        from kagglesdk.datasets.types.dataset_api_service import (
            ApiGetDatasetStatusRequest,
            ApiGetDatasetStatusResponse,
        )

        request = ApiGetDatasetStatusRequest()
        request.owner_slug, request.dataset_slug = self.owner(), slug
        try:
            answer = self._read(_DATASETS, "GetDatasetStatus", request, ApiGetDatasetStatusResponse)
        except Denied as error:
            require_missing(error)
            return None
        return str(answer.status.name)

    def own_datasets(self) -> Iterator[str]:
        """Yield the slugs of our private datasets."""
        from kagglesdk.datasets.types.dataset_api_service import ApiListDatasetsRequest, ApiListDatasetsResponse
        from kagglesdk.datasets.types.dataset_enums import DatasetSelectionGroup

        seen: set[str] = set()
        token = ""
        for page in range(1, _LIST_PAGES + 1):
            request = ApiListDatasetsRequest()
            request.group = DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY_PRIVATE
            if token:
                request.page_token = token
            else:
                request.page = page
            try:
                answer = self._read(_DATASETS, "ListDatasets", request, ApiListDatasetsResponse)
            except Denied as error:
                raise Unreachable("kaggle", "ListDatasets", str(error)) from None
            found = [self._own(dataset.ref) for dataset in answer.datasets]
            # How many a page holds is the server's business: the list ends with a page that brings nothing new.
            slugs = [slug for slug in found if slug is not None and slug not in seen]
            if not slugs:
                return
            seen.update(slugs)
            yield from slugs
            token = str(answer.next_page_token or "")

    def upload(self, source: Path, name: str, seconds: int, advanced: Callable[[int], object] = lambda _: None) -> str:
        """Upload a file and return the token that stands for it; ``advanced`` is told how many bytes have come.

        It may take any time while it goes on; ``seconds`` bound the silence after the last byte.
        Raises Denied, Unreachable, OSError.
        """
        from kagglesdk.blobs.types.blob_api_service import (
            ApiBlobType,
            ApiStartBlobUploadRequest,
            ApiStartBlobUploadResponse,
        )

        request = ApiStartBlobUploadRequest()
        request.type, request.name, request.content_length = ApiBlobType.DATASET, name, source.stat().st_size
        request.last_modified_epoch_seconds = int(source.stat().st_mtime)
        answer = self._read("blobs.BlobApiService", "StartBlobUpload", request, ApiStartBlobUploadResponse)
        first: int | None = 0
        furthest = rounds = status = 0
        while rounds < _ROUNDS_WITHOUT_PROGRESS:
            rounds += 1
            try:
                status, reached = self._wire.put(answer.create_url, source, first, seconds, advanced)
            except Unreachable:
                status, reached = 503, ""
            if status in {200, 201}:
                return str(answer.token)
            if status == 308:
                match = re.fullmatch(r"bytes=0-(\d+)", reached)
                first = int(match[1]) + 1 if match else 0
                if first > furthest:
                    furthest, rounds = first, 0
            elif status in {429, 503}:
                self._patience.wait(self._pause_seconds)
                first = None  # ask how far it has come
            else:
                break
        raise Unreachable("kaggle", "upload", f"{name} was not taken (HTTP {status}, {furthest} bytes had come)")

    def create_dataset(self, slug: str, title: str, tokens: list[str]) -> str:
        """Create a private dataset of uploaded files; return what is wrong, or nothing. Raises Denied, Unreachable."""
        from kagglesdk.datasets.types.dataset_api_service import (
            ApiCreateDatasetRequest,
            ApiCreateDatasetResponse,
            ApiDatasetNewFile,
        )

        files = []
        for token in tokens:
            file = ApiDatasetNewFile()
            file.token = token
            files.append(file)
        request = ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = self.owner(), slug, title
        request.license_name, request.is_private, request.files = "unknown", True, files
        answer = self._wire.call(_DATASETS, "CreateDataset", request, ApiCreateDatasetResponse)
        return plain(answer.error) if str(answer.status).lower() != "ok" else ""

    def delete_dataset(self, slug: str) -> None:
        """Delete a dataset; a missing one is fine."""
        from kagglesdk.datasets.types.dataset_api_service import ApiDeleteDatasetRequest, ApiDeleteDatasetResponse

        request = ApiDeleteDatasetRequest()
        request.owner_slug, request.dataset_slug = self.owner(), slug
        try:
            self._wire.call(_DATASETS, "DeleteDataset", request, ApiDeleteDatasetResponse)
        except Denied as error:
            require_missing(error)
