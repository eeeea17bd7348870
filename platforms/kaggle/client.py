"""The calls the adapter needs, with plain values in and out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from platforms.base import Unreachable
from platforms.kaggle.caller import require_missing
from platforms.kaggle.datasets import DatasetCalls
from platforms.kaggle.wire import TOO_LARGE, Denied, plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

_KERNELS = "kernels.KernelsApiService"
_PAGE = 100
_PAGE_MIN = 20  # fewer than Kaggle hands out unasked: there is nothing behind
_LIST_PAGES = 25
_WEEK_SECONDS = 604_800


@dataclass(frozen=True, slots=True)
class Push:
    """A kernel to save and run. ``datasets`` are attached, as ``owner/slug``."""

    slug: str
    title: str
    source: str
    datasets: tuple[str, ...]
    machine_shape: str
    timeout_seconds: int
    internet: bool


@dataclass(frozen=True, slots=True)
class Pushed:
    """What came of a push. ``error`` is a refusal; ``invalid`` are inputs the kernel runs WITHOUT.

    ``slug`` and ``version`` are where it landed; empty and 0 when that was not told.
    """

    slug: str
    version: int
    error: str
    invalid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """One page of what an ended session left: names with signed addresses, and the log as JSON text."""

    files: tuple[tuple[str, str], ...]
    log: str
    next_page: str


@dataclass(frozen=True, slots=True)
class GpuWeek:
    """Kaggle's own books on GPU time of the current week, in seconds; ``end`` is UTC seconds."""

    end: int
    allowed_seconds: int
    used_seconds: int
    reserved_seconds: int

    @property
    def start(self) -> int:
        """When the week began."""
        return self.end - _WEEK_SECONDS


class Client(DatasetCalls):
    """Kaggle as one account sees it, with plain values in and out."""

    def push(self, push: Push, seconds: int) -> Pushed:
        """Save and run a kernel. Raises Denied when nothing was saved; after Unreachable it may run."""
        from kagglesdk.kernels.types.kernels_api_service import ApiSaveKernelRequest, ApiSaveKernelResponse

        request = ApiSaveKernelRequest()
        request.slug = f"{self.owner()}/{push.slug}"
        request.new_title = push.title
        request.text = push.source
        request.language = "python"
        request.kernel_type = "script"
        request.dataset_data_sources = list(push.datasets)
        request.is_private = True
        request.enable_gpu = bool(push.machine_shape)
        request.enable_tpu = False
        request.enable_internet = push.internet
        request.docker_image_pinning_type = "original"
        request.session_timeout_seconds = push.timeout_seconds
        if push.machine_shape:
            request.machine_shape = push.machine_shape
        answer = self._wire.call(_KERNELS, "SaveKernel", request, ApiSaveKernelResponse, seconds)
        invalid = [
            *answer.invalid_dataset_sources,
            *answer.invalid_kernel_sources,
            *answer.invalid_model_sources,
            *answer.invalid_competition_sources,
        ]
        slug = str(answer.ref or answer.url or "").rstrip("/").rpartition("/")[2]
        return Pushed(slug, int(answer.version_number or 0), plain(answer.error), tuple(map(plain, invalid)))

    def status(self, slug: str) -> tuple[str, str] | None:
        """Return the state of version 1 and its failure message; None: missing, or not ours."""
        from kagglesdk.kernels.types.kernels_api_service import (
            ApiGetKernelSessionStatusRequest,
            ApiGetKernelSessionStatusResponse,
        )

        request = ApiGetKernelSessionStatusRequest()
        request.user_name, request.kernel_slug, request.version_label = self.owner(), slug, "v1"
        try:
            answer = self._read(_KERNELS, "GetKernelSessionStatus", request, ApiGetKernelSessionStatusResponse)
        except Denied as error:
            require_missing(error)
            return None
        return answer.status.name, plain(answer.failure_message)

    def source(self, slug: str) -> str | None:
        """Return the source of a kernel's version 1; None: missing, or not ours."""
        from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelRequest, ApiGetKernelResponse

        request = ApiGetKernelRequest()
        request.user_name, request.kernel_slug, request.version_label = self.owner(), slug, "v1"
        try:
            answer = self._read(_KERNELS, "GetKernel", request, ApiGetKernelResponse)
        except Denied as error:
            require_missing(error)
            return None
        return str(answer.blob.source or "") if answer.blob else None

    def last_run(self, slug: str) -> float | None:
        """Return when a kernel's newest session began (UTC seconds) by our own list; None: it is not on it.

        The list is read from the newest run on, as far as a kernel of this week can be. Searching it by name is not
        relied on: how names with hyphens are matched is not known.
        """
        return next((began for found, began in self.kernels() if found == slug), None)

    def kernels(self) -> Iterator[tuple[str, float]]:
        """Yield our kernels, the newest run first: the slug and when that began, UTC seconds (0 when not told)."""
        from kagglesdk.kernels.types.kernels_api_service import ApiListKernelsRequest, ApiListKernelsResponse
        from kagglesdk.kernels.types.kernels_enums import KernelsListSortType, KernelsListViewType

        token = ""
        for page in range(1, _LIST_PAGES + 1):
            request = ApiListKernelsRequest()
            request.group = KernelsListViewType.PROFILE
            request.sort_by = KernelsListSortType.DATE_RUN
            request.page_size = _PAGE
            if token:
                request.page_token = token
            else:
                request.page = page
            try:
                answer = self._read(_KERNELS, "ListKernels", request, ApiListKernelsResponse)
            except Denied as error:
                raise Unreachable("kaggle", "ListKernels", str(error)) from None
            for kernel in answer.kernels:
                if (slug := self._own(kernel.ref)) is not None:
                    yield slug, _seconds(kernel.last_run_time) if kernel.last_run_time else 0.0
            # How many a page holds is the server's business, and whether it goes on by token or by number.
            token = str(answer.next_page_token or "")
            if not answer.kernels or (not token and len(answer.kernels) < _PAGE_MIN):
                break

    def output(self, slug: str, page: str) -> Output | None:
        """Return a page of the output of version 1; None: the kernel is missing.

        Raises Denied when the log, which comes with every page, is larger than an answer may be; Unreachable.
        """
        from kagglesdk.kernels.types.kernels_api_service import (
            ApiListKernelSessionOutputRequest,
            ApiListKernelSessionOutputResponse,
        )

        request = ApiListKernelSessionOutputRequest()
        request.user_name, request.kernel_slug, request.version_label = self.owner(), slug, "v1"
        request.page_size, request.page_token = 200, page
        try:
            answer = self._read(_KERNELS, "ListKernelSessionOutput", request, ApiListKernelSessionOutputResponse)
        except Denied as error:
            if error.status == TOO_LARGE:
                raise
            require_missing(error)
            return None
        files = tuple((str(file.file_name or ""), str(file.url or "")) for file in answer.files)
        log = answer.log or ""
        text = log if isinstance(log, str) else json.dumps(log)
        return Output(files, text, str(answer.next_page_token or ""))

    def stream_log(self, slug: str, idle_seconds: float, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
        """Yield (content type, piece) of the log of version 1, from its beginning; nothing when it is missing."""
        path = f"kernels/logs/stream/{self.owner()}/{slug}?versionLabel=v1"
        try:
            yield from self._wire.stream(path, idle_seconds, limit_bytes)
        except Denied as error:
            require_missing(error)

    def cancel(self, session_id: int) -> bool:
        """Cancel a session by its own id; False: there is no such session of ours."""
        from kagglesdk.kernels.types.kernels_api_service import (
            ApiCancelKernelSessionRequest,
            ApiCancelKernelSessionResponse,
        )

        request = ApiCancelKernelSessionRequest()
        request.kernel_session_id = session_id
        try:
            answer = self._wire.call(_KERNELS, "CancelKernelSession", request, ApiCancelKernelSessionResponse)
        except Denied:
            return False
        return not answer.error_message

    def delete(self, slug: str) -> bool:
        """Delete a kernel, which ends its session; False: it is missing, or Kaggle would not."""
        from kagglesdk.kernels.types.kernels_api_service import ApiDeleteKernelRequest, ApiDeleteKernelResponse

        request = ApiDeleteKernelRequest()
        request.user_name, request.kernel_slug = self.owner(), slug
        try:
            answer = self._wire.call(_KERNELS, "DeleteKernel", request, ApiDeleteKernelResponse)
        except Denied as error:
            require_missing(error)
            return False
        return not answer.error_message

    def gpu_week(self) -> GpuWeek:
        """Return Kaggle's books on GPU time. Raises Unreachable, also when they are incomplete."""
        from kagglesdk.kernels.types.kernels_api_service import (
            ApiGetAcceleratorQuotaStatisticsRequest,
            ApiGetAcceleratorQuotaStatisticsResponse,
        )

        name = "GetAcceleratorQuotaStatistics"
        request = ApiGetAcceleratorQuotaStatisticsRequest()
        try:
            answer = self._read(_KERNELS, name, request, ApiGetAcceleratorQuotaStatisticsResponse)
        except Denied as error:
            raise Unreachable("kaggle", name, str(error), "Check that the credentials are still good") from None
        gpu = answer.gpu_quota
        if gpu is None or answer.quota_refresh_time is None or gpu.total_time_allowed is None:
            raise Unreachable("kaggle", name, "the books are incomplete")
        if gpu.time_used is None and gpu.has_ever_run:
            raise Unreachable("kaggle", name, "the books do not tell what is used")
        used = gpu.time_used.total_seconds() if gpu.time_used else 0.0
        reserved = gpu.time_reserved.total_seconds() if gpu.time_reserved else 0.0
        return GpuWeek(
            end=round(_seconds(answer.quota_refresh_time)),
            allowed_seconds=int(gpu.total_time_allowed.total_seconds()),
            used_seconds=-int(-used // 1),
            reserved_seconds=-int(-reserved // 1),
        )

    def download(self, url: str, target: Path, limit_bytes: int, seconds: float) -> None:
        """See Wire.download."""
        self._wire.download(url, target, limit_bytes, seconds)


def _seconds(instant: datetime) -> float:
    """Return UTC seconds; the library's instants are naive and mean UTC."""
    return instant.replace(tzinfo=UTC).timestamp()
