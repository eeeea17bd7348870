"""The calls of Kaggle's API that the adapter needs: kernels, datasets, uploads, quota, and published models."""

import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from jobs.inputs.folder import TreeError
from jobs.payload.store.tree import BadListing, Entry
from platforms.base import Misconfigured, QuotaReading, Unreachable
from platforms.kaggle.api.wire import Answer, Denied, NoAnswer, Throttled, TooLarge, Wire, has_no_error, plain

_Result = TypeVar("_Result")
_WAIT_SECONDS_MAX = 30.0  # instead of a longer wait, the next poll tries again
_DATASETS = "datasets.DatasetApiService"
_MODELS = "models.ModelApiService"
_FILES_PAGE, _PAGES_MAX = 200, 1_000
_ADDRESSES = 3  # a signed address expires; a new one starts the file again
_SILENCE_SECONDS = 120
_KERNELS = "kernels.KernelsApiService"
_PAGE = 100
_PAGE_MIN = 20  # fewer than Kaggle returns by default, so there is no further page
_LIST_PAGES = 25
_WEEK_SECONDS = 604_800
_STATES = frozenset({"QUEUED", "RUNNING", "COMPLETE", "ERROR", "CANCEL_REQUESTED", "CANCEL_ACKNOWLEDGED", "NEW_SCRIPT"})
_SOURCES = ("Dataset", "Kernel", "Model", "Competition")
_SAVED_FIELDS = ("ref", "url", "kernelId", "versionNumber")  # fields of the answer about a saved kernel
_ROUNDS_WITHOUT_PROGRESS = 10
_DATASET_PAGES = 20
_DATASET_STATES = frozenset({
    "NOT_YET_PERSISTED", "BLOBS_RECEIVED", "BLOBS_DECOMPRESSED", "BLOBS_COPIED_TO_SDS", "INDIVIDUAL_BLOBS_COMPRESSED",
    "READY", "FAILED", "DELETED", "REPROCESSING",
})  # fmt: skip


def _listed(name: str, answer: Answer, *, may_be_empty: bool) -> tuple[list[Answer], str]:
    """Return one page of a list and the token of the next. An empty page may lack every field."""
    parts = answer.parts(name)
    if not parts and not (may_be_empty and (parts is not None or answer.is_empty())):
        raise NoAnswer(f"{name} is missing")
    return parts or [], answer.text("nextPageToken")


def _active_user(answer: Answer) -> str:
    """Return the account name of a token; "" if Kaggle reports it as no longer valid."""
    active = answer.flag("active")
    if active is None:
        raise NoAnswer("active is missing")
    return answer.needed_text("username") if active else ""


def require_missing(error: Denied) -> None:
    """Raise Unreachable unless this is Kaggle's answer for missing objects."""
    if not error.missing:
        raise Unreachable("kaggle", "read", str(error)) from None


class KagglePublished:
    """Models and datasets on Kaggle; ``source`` is ``kaggle-model:...`` or ``kaggle-dataset:...``."""

    def __init__(self, caller: "KaggleClient") -> None:
        self._caller = caller

    def pin(self, source: str) -> tuple[str, list[Entry]]:
        """Return ``source`` with its version added, and its files without digests, because Kaggle reports none.

        Raises TreeError for a source that is missing or not visible to this account; Unreachable, Misconfigured.
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
            remedy = "Check name and version, accept its terms in the browser, or ask its owner to share it with you"
            raise TreeError(source, why, remedy) from None
        if not sum(entry.bytes for entry in entries):
            raise TreeError(source, "Kaggle lists no file that has content", "Give another version")
        return pinned, sorted(entries)

    def fetch(self, source: str, entry: Entry, place: Path) -> None:
        """Download a file of a pinned source. Raises BadListing, Denied, Unreachable, Misconfigured, OSError."""
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
        if (size := place.stat().st_size) != entry.bytes:
            raise BadListing(f"{entry.path!a} arrived with {size:,} bytes, but Kaggle lists {entry.bytes:,}")

    def _newest(self, owner: str, slug: str) -> int:
        fields = {"owner_slug": owner, "dataset_slug": slug}
        number = self._caller.read(
            _DATASETS, "GetDataset", fields, lambda answer: answer.number("currentVersionNumber")
        )
        if not number:
            raise Unreachable("kaggle", "GetDataset", f"the answer has no version of {owner}/{slug}")
        return number

    def _files(self, source: str) -> list[Entry]:
        if source.startswith("kaggle-dataset:"):
            service, name, fields = _DATASETS, "ListDatasetFiles", _of_dataset(source)
        else:
            service, name, fields = _MODELS, "ListModelInstanceVersionFiles", _of_model(source)
        fields["page_size"] = _FILES_PAGE
        result: list[Entry] = []
        for _ in range(_PAGES_MAX):
            entries, token = self._caller.read(service, name, fields, _page)
            result += entries
            if not token:
                return result
            fields["page_token"] = token
        raise Unreachable("kaggle", name, f"the list of {source} has more than {_PAGES_MAX} pages")


def _page(answer: Answer) -> tuple[list[Entry], str]:
    if error := answer.text("errorMessage"):
        raise NoAnswer(plain(error))
    field, size = ("datasetFiles", "totalBytes") if answer.has("datasetFiles") else ("files", "size")
    files = answer.parts(field)
    if files is None:
        raise NoAnswer("it lists no files")
    entries = [Entry(file.needed_text("name"), "file", "", file.number(size)) for file in files]
    return entries, answer.text("nextPageToken")


def _download(source: str, path: str) -> tuple[str, str, dict[str, Any]]:
    if source.startswith("kaggle-dataset:"):
        # Without ``raw`` Kaggle compresses tables, which changes their size.
        return _DATASETS, "DownloadDataset", {**_of_dataset(source), "file_name": path, "raw": True}
    return _MODELS, "DownloadModelInstanceVersion", {**_of_model(source), "path": path}


def _of_dataset(source: str) -> dict[str, Any]:
    owner, slug, version = source.partition(":")[2].split("/")
    return {"owner_slug": owner, "dataset_slug": slug, "dataset_version_number": int(version)}


def _of_model(source: str) -> dict[str, Any]:
    """Return the request fields of a model's version. Raises TreeError for a framework that Kaggle does not know."""
    from kagglesdk.models.types.model_enums import ModelFramework

    owner, model, framework, variation, version = source.partition(":")[2].split("/")
    frameworks = {each.name.removeprefix("MODEL_FRAMEWORK_").replace("_", "").lower(): each for each in ModelFramework}
    if framework.lower() not in frameworks or framework.lower() == "unspecified":
        listing = ", ".join(sorted(frameworks.keys() - {"unspecified"}))
        raise TreeError(source, f"Kaggle has no framework {framework}", f"Its frameworks are {listing}")
    return {
        "owner_slug": owner,
        "model_slug": model,
        "instance_slug": variation,
        "framework": frameworks[framework.lower()],
        "version_number": int(version),
    }


@dataclass(frozen=True, slots=True)
class Push:
    """A kernel to save and run, and its inputs.

    ``datasets`` are ``owner/slug``, optionally with a version; ``models`` have all five parts.
    """

    slug: str
    title: str
    source: str
    datasets: tuple[str, ...]
    machine_shape: str
    timeout_seconds: int
    internet: bool
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push. ``error`` is a refusal; ``invalid`` are inputs the kernel runs WITHOUT.

    ``slug`` and ``version`` identify the kernel; empty and 0 if Kaggle did not report them.
    """

    slug: str
    version: int
    error: str
    invalid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputPage:
    """One page of an ended session's output: names with signed addresses, and the log as JSON text."""

    files: tuple[tuple[str, str], ...]
    log: str
    next_page: str


class KaggleClient:
    """A client of Kaggle's API for one account, with plain values as arguments and results.

    A read is attempted at most ``tries`` times, with pauses of ``pause_seconds`` or longer. ``quota`` is the weekly
    quota of the account that its sessions use.
    """

    def __init__(self, wire: Wire, tries: int, pause_seconds: float, quota: Literal["gpu", "tpu"] = "gpu") -> None:
        self.quota = quota
        self.wire = wire
        self._username = wire.credentials.username
        self._tries = tries
        self.pause_seconds = pause_seconds
        self.patience = threading.Event()
        self.datasets = Datasets(self)
        self.published = KagglePublished(self)

    def owner(self) -> str:
        """Return the account's name; a token's is queried once. Raises Misconfigured, Unreachable."""
        if not self._username:
            try:
                fields = {"token": self.wire.credentials.token}
                username = self.read("security.OAuthService", "IntrospectToken", fields, _active_user)
            except Denied as error:
                why = f"Kaggle refused the access token: {error}"
                raise Misconfigured("kaggle", "log in", why, "Create a new one") from None
            if not username:
                raise Misconfigured("kaggle", "log in", "the access token is not active", "Create a new one")
            self._username = username
        return self._username

    def own(self, ref: object) -> str | None:
        """Return the slug in the address of a kernel or dataset; None if it belongs to another owner."""
        *_, owner, slug = ["", "", *str(ref or "").split("/")]
        return slug if owner.lower() == self.owner().lower() else None

    def read(self, service: str, name: str, fields: Mapping[str, Any], read: Callable[[Answer], _Result]) -> _Result:
        """Make a call that changes nothing; repeat it while there is no answer. Raises what Wire.call raises."""
        for round_number in range(self._tries - 1):
            try:
                return self.wire.call(service, name, fields, read)
            except Unreachable as error:
                wait_seconds = error.wait_seconds if isinstance(error, Throttled) else 0.0
                self.patience.wait(max(self.pause_seconds * 2**round_number, min(wait_seconds, _WAIT_SECONDS_MAX)))
        return self.wire.call(service, name, fields, read)

    def find(
        self, service: str, name: str, fields: Mapping[str, Any], read: Callable[[Answer], _Result]
    ) -> _Result | None:
        """Read one object; return None if it is missing or not ours. Raises Unreachable."""
        try:
            return self.read(service, name, fields, read)
        except Denied as error:
            require_missing(error)
            return None

    def pages(
        self, service: str, name: str, field: str, fields: Mapping[str, Any], most: int, never_empty: Mapping[str, Any]
    ) -> Iterator[tuple[list[Answer], str]]:
        """Yield the pages of a list, at most ``most`` of them: the entries, and the token of the next page, if any.

        A page is requested by number, or by token if the service returned one. An empty answer means an empty list or
        a failure, so it is accepted only if the same call returns entries for the fields ``never_empty``. The server
        decides how long a page is and how a list ends. Raises Unreachable.
        """
        token = ""
        for number in range(1, most + 1):
            wanted = {**fields, **({"page_token": token} if token else {"page": number})}
            try:
                entries, token = self.read(service, name, wanted, partial(_listed, field, may_be_empty=True))
                if number == 1 and not entries:
                    self.read(service, name, never_empty, partial(_listed, field, may_be_empty=False))
            except Denied as error:
                raise Unreachable("kaggle", name, str(error)) from None
            yield entries, token

    def push(self, push: Push, seconds: int) -> Pushed:
        """Save and run a kernel. Raises Denied if nothing was saved; after Unreachable it may run."""
        fields = {
            "slug": f"{self.owner()}/{push.slug}",
            "new_title": push.title,
            "text": push.source,
            "language": "python",
            "kernel_type": "script",
            "dataset_data_sources": list(push.datasets),
            "model_data_sources": list(push.models),
            "is_private": True,
            "enable_gpu": bool(push.machine_shape) and self.quota == "gpu",
            "enable_tpu": self.quota == "tpu",
            "enable_internet": push.internet,
            "docker_image_pinning_type": "original",
            "session_timeout_seconds": push.timeout_seconds,
            **({"machine_shape": push.machine_shape} if push.machine_shape else {}),
        }
        try:
            return self.wire.call(_KERNELS, "SaveKernel", fields, self._pushed, seconds)
        except TooLarge as error:
            raise Unreachable("kaggle", "SaveKernel", str(error)) from None  # it may be saved

    def _pushed(self, answer: Answer) -> Pushed:
        """Parse the answer to a push: a refusal, or the kernel's name."""
        error, version = plain(answer.text("error")), answer.number("versionNumber")
        if not error and not answer.has(*_SAVED_FIELDS):
            raise NoAnswer("it contains neither a refusal nor the saved kernel")
        answer.number("kernelId")
        *_, owner, slug = ["", "", *(answer.text("ref") or answer.text("url")).rstrip("/").split("/")]
        if owner and owner.lower() != self.owner().lower():
            raise NoAnswer("the saved kernel belongs to another account")
        invalid = [plain(source) for kind in _SOURCES for source in answer.texts(f"invalid{kind}Sources")]
        return Pushed(slug, version, error, tuple(invalid))

    def status(self, slug: str) -> tuple[str, str] | None:
        """Return the state of version 1 and its failure message; None if it is missing or not ours."""
        return self.find(_KERNELS, "GetKernelSessionStatus", self._first_version(slug), _status)

    def source(self, slug: str) -> str | None:
        """Return the source of a kernel's version 1; None if it is missing or not ours."""
        return self.find(_KERNELS, "GetKernel", self._first_version(slug), partial(self._source, slug))

    def _first_version(self, slug: str) -> dict[str, object]:
        return {"user_name": self.owner(), "kernel_slug": slug, "version_label": "v1"}

    def _source(self, slug: str, answer: Answer) -> str:
        """Parse a kernel's source. It proves whose kernel it is, so the answer must be about the requested one."""
        if self.own(answer.needed_part("metadata").needed_text("ref")) != slug:
            raise NoAnswer("it is about another kernel")
        return answer.needed_part("blob").needed_text("source")

    def last_run(self, slug: str) -> float | None:
        """Return when a kernel's newest session began (UTC seconds); None if the list of our kernels lacks it.

        The list is sorted by the newest run and ends after _LIST_PAGES pages. It is not searched by name, because it is
        unknown how names with hyphens match.
        """
        return next((began for kernel, began in self.kernels() if kernel == slug), None)

    def kernels(self) -> Iterator[tuple[str, float]]:
        """Yield our kernels, the newest run first: slug and start of that run in UTC seconds (0 if not reported)."""
        from kagglesdk.kernels.types.kernels_enums import KernelsListSortType, KernelsListViewType

        newest_run_first = {
            "group": KernelsListViewType.PROFILE,
            "sort_by": KernelsListSortType.DATE_RUN,
            "page_size": _PAGE,
        }
        public = {"group": KernelsListViewType.EVERYONE, "page_size": 1}
        for kernels, token in self.pages(_KERNELS, "ListKernels", "kernels", newest_run_first, _LIST_PAGES, public):
            try:
                for kernel in kernels:
                    if (slug := self.own(kernel.needed_text("ref"))) is not None:
                        yield slug, kernel.instant("lastRunTime") or 0.0
            except NoAnswer as error:
                raise Unreachable("kaggle", "ListKernels", f"an entry is not valid: {error}") from None
            if not kernels or (not token and len(kernels) < _PAGE_MIN):
                break

    def output(self, slug: str, page: str) -> OutputPage | None:
        """Return a page of the output of version 1; None if the kernel is missing.

        Raises Denied if the log, which is part of every page, exceeds the size limit of an answer; Unreachable.
        """
        fields = {**self._first_version(slug), "page_size": 200, "page_token": page}
        try:
            return self.read(_KERNELS, "ListKernelSessionOutput", fields, _output)
        except TooLarge:
            raise
        except Denied as error:
            require_missing(error)
            return None

    def stream_log(self, slug: str, idle_seconds: float, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
        """Yield the log of version 1 from its beginning as (content type, piece); nothing if it is missing."""
        path = f"kernels/logs/stream/{self.owner()}/{slug}?versionLabel=v1"
        try:
            yield from self.wire.stream(path, idle_seconds, limit_bytes)
        except Denied as error:
            require_missing(error)

    def cancel(self, session_id: int) -> bool:
        """Cancel a session by its own ID; return False if Kaggle rejects that or does not know the session."""
        fields = {"kernel_session_id": session_id}
        try:
            return self.wire.call(_KERNELS, "CancelKernelSession", fields, has_no_error)
        except Denied:
            return False

    def delete(self, slug: str) -> bool:
        """Delete a kernel, which ends its session; return False if it is missing or Kaggle rejects it."""
        fields = {"user_name": self.owner(), "kernel_slug": slug}
        try:
            return self.wire.call(_KERNELS, "DeleteKernel", fields, has_no_error)
        except Denied as error:
            require_missing(error)
            return False

    def week(self) -> QuotaReading:
        """Return this week's time of GPUs, or of TPUs. Raises Unreachable, also if Kaggle's report is incomplete."""
        name = "GetAcceleratorQuotaStatistics"
        try:
            return self.read(_KERNELS, name, {}, partial(_week, f"{self.quota}Quota"))
        except Denied as error:
            raise Unreachable("kaggle", name, str(error), "Check that the credentials are still valid") from None


def _status(answer: Answer) -> tuple[str, str]:
    return answer.word("status", "KERNEL_WORKER_STATUS", _STATES), plain(answer.text("failureMessage"))


def _output(answer: Answer) -> OutputPage:
    """Parse a page of output. An answer without files, log and page token is not valid, even without output."""
    if not answer.has("files", "log", "nextPageToken"):
        raise NoAnswer("it contains neither files nor a log")
    files = tuple((file.needed_text("fileName"), file.text("url")) for file in answer.parts("files") or ())
    log = answer.raw("log")
    if log is not None and not isinstance(log, str | list):
        raise NoAnswer("log is of another type")
    return OutputPage(files, log if isinstance(log, str) else json.dumps(log or []), answer.text("nextPageToken"))


def _week(part: str, answer: Answer) -> QuotaReading:
    quota, refresh = answer.needed_part(part), answer.instant("quotaRefreshTime")
    allowed, used, reserved = (quota.duration(name) for name in ("totalTimeAllowed", "timeUsed", "timeReserved"))
    if refresh is None or allowed is None:
        raise NoAnswer("the usage report is incomplete")
    if used is None and quota.flag("hasEverRun"):
        raise NoAnswer("the usage report lacks the time used")
    end = round(refresh)
    return QuotaReading(
        quota="week",
        start=end - _WEEK_SECONDS,
        end=end,
        limit_seconds=int(allowed),
        used_seconds=math.ceil(used or 0.0),
        reserved_seconds=math.ceil(reserved or 0.0),
    )


# Calls about datasets and uploads.
class Datasets:
    """An account's datasets."""

    def __init__(self, caller: KaggleClient) -> None:
        self._caller = caller

    def status(self, slug: str) -> str | None:
        """Return the state of a dataset's newest version, such as READY; None if it is missing or not visible yet."""
        fields = {"owner_slug": self._caller.owner(), "dataset_slug": slug}
        return self._caller.find(
            _DATASETS,
            "GetDatasetStatus",
            fields,
            lambda answer: answer.word("status", "DATABUNDLE_VERSION_STATUS", _DATASET_STATES),
        )

    def own(self) -> Iterator[str]:
        """Yield the slugs of our private datasets."""
        from kagglesdk.datasets.types.dataset_enums import DatasetSelectionGroup

        ours = {"group": DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY_PRIVATE}
        tokens: set[str] = set()
        public = {"group": DatasetSelectionGroup.DATASET_SELECTION_GROUP_PUBLIC}
        for datasets, _ in self._caller.pages(_DATASETS, "ListDatasets", "datasets", ours, _DATASET_PAGES, public):
            owned = [self._caller.own(dataset.text("ref")) for dataset in datasets]
            # The list ends with a page without new entries.
            slugs = [slug for slug in owned if slug is not None and slug not in tokens]
            if not slugs:
                return
            tokens.update(slugs)
            yield from slugs

    def upload(self, source: Path, name: str, seconds: int, advanced: Callable[[int], object] = lambda _: None) -> str:
        """Upload a file and return its token; ``advanced`` is called with the number of bytes uploaded.

        An upload may last any time while it makes progress; after its last byte the answer must come within
        ``seconds``. Raises Denied, Unreachable, OSError.
        """
        from kagglesdk.blobs.types.blob_api_service import ApiBlobType

        stat = source.stat()
        fields = {
            "type": ApiBlobType.DATASET,
            "name": name,
            "content_length": stat.st_size,
            "last_modified_epoch_seconds": int(stat.st_mtime),
        }
        token, address = self._caller.read(
            "blobs.BlobApiService",
            "StartBlobUpload",
            fields,
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
                first = None  # query how many bytes arrived
            else:
                break
        raise Unreachable("kaggle", "upload", f"{name} was not accepted (HTTP {status}, {furthest} bytes had arrived)")

    def create(self, slug: str, title: str, tokens: list[str]) -> str:
        """Create a private dataset of uploaded files; return the error, or "". Raises Denied, Unreachable."""
        from kagglesdk.datasets.types.dataset_api_service import ApiDatasetNewFile

        files = [ApiDatasetNewFile() for _ in tokens]
        for file, token in zip(files, tokens, strict=True):
            file.token = token
        fields = {
            "owner_slug": self._caller.owner(),
            "slug": slug,
            "title": title,
            "license_name": "unknown",
            "is_private": True,
            "files": files,
        }
        return self._caller.wire.call(_DATASETS, "CreateDataset", fields, _creation_error)

    def delete(self, slug: str) -> None:
        """Delete a dataset; a missing one is no error."""
        fields = {"owner_slug": self._caller.owner(), "dataset_slug": slug}
        try:
            self._caller.wire.call(_DATASETS, "DeleteDataset", fields, has_no_error)
        except Denied as error:
            require_missing(error)


def _address(answer: Answer) -> str:
    address = answer.needed_text("createUrl")
    if not address.startswith(("https://", "http://")):
        raise NoAnswer("createUrl is not an address")
    return address


def _creation_error(answer: Answer) -> str:
    """Return the error of a dataset's creation; "" if the answer reports success."""
    if answer.text("status").lower() == "ok":
        return ""
    return plain(answer.needed_text("error"))
