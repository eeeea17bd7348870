"""The emulated Kaggle for tests: with models and datasets of others, and with faults on demand."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from jobs.payload.clock import Clock
from platforms.emulators.kaggle.place import EmulatedSession, KaggleAccount, Kernel, KernelVersion, Kind
from platforms.emulators.kaggle.server import Body, Handler, KaggleServer
from platforms.emulators.kaggle.storage import KaggleRefusal, KaggleRules, denied
from tests.lab.faults import Fault, Faults

_JSON = "application/json"
_PAGE = b"<html><body><h1>Too many requests</h1></body></html>"
_HANG_WALL_SECONDS = 30.0
_Thing = TypeVar("_Thing")
_LINKED = "published:"  # before the version that a link to one of its files is for


class Elsewhere(KaggleRefusal):
    """An answer that sends whoever asks on to another address."""

    def __init__(self, address: str) -> None:
        super().__init__(302, "Found", {"Location": address})


class Published:
    """Versions by name: ``owner/name`` for datasets, ``owner/model/framework/variation`` for models.

    ``root`` holds them as folders named by their version numbers, so that a place that starts again has them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, name: str, files: Mapping[str, bytes]) -> int:
        """Publish the next version; return its number."""
        number = self.newest(name) + 1
        for path, data in files.items():
            place = self._folder(name, number) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return number

    def newest(self, name: str) -> int:
        """Return the number of the newest version; 0: there is none."""
        numbers = self._folder(name, 0).parent.glob("*")
        return max((int(folder.name) for folder in numbers if folder.name.isdigit()), default=0)

    def files(self, name: str, number: int) -> dict[str, Path]:
        """Return the files of a version, or of the newest (0), by path. Raises KaggleRefusal."""
        folder = self._folder(name, number or self.newest(name))
        if not folder.is_dir():
            raise denied("models.get" if name.count("/") == 3 else "datasets.get")
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def attach(self, name: str, number: int, target: Path) -> bool:
        """Copy a version to where kernels see it; return whether there is one."""
        folder = self._folder(name, number)
        if not folder.is_dir():
            return False
        *above, last = name.split("/")
        if len(above) == 1:
            place = target / "datasets" / above[0] / last
        else:
            place = target.joinpath("models", above[0], above[1], above[2].lower(), last, str(number))
        shutil.copytree(folder, place)
        return True

    def _folder(self, name: str, number: int) -> Path:
        return self._root / name.lower().replace("/", "_") / str(number)


def name_of_model(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return which version of a model a call means."""
    framework = str(body.get("framework", "")).removeprefix("MODEL_FRAMEWORK_").replace("_", "")
    parts = (str(body.get("ownerSlug", "")), str(body.get("modelSlug", "")), framework, str(body.get("instanceSlug")))
    return "/".join(parts), int(body.get("versionNumber") or 0)


def name_of_dataset(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return which version of a dataset a call means; 0: none in particular."""
    name = f"{body.get('ownerSlug', '')}/{body.get('datasetSlug', '')}"
    return name, int(body.get("datasetVersionNumber") or 0)


@dataclass(slots=True)
class Habits(KaggleRules):
    """How a place behaves where the protocol leaves a choice, or where nobody has measured what Kaggle does.

    ``timeout_ignored`` is the wedged kernel that outlives its limit. ``reserves`` fills timeReserved with what live
    sessions may still use. ``last_run_is_push`` tells as a kernel's last run when it was pushed, not when it began,
    ``last_run_is_end`` when it ended once it is over; ``bills_queue`` bills the time in which it waited. ``page_max``
    caps what a list hands out at once, ``pages_by_token`` goes on by token alone, ``output_redirects`` sends the
    request for a link on to another address, ``kernel_hidden_wall_seconds`` is how long a new kernel is not shown.
    Without ``tells_landing`` the answer to a push names neither kernel nor version, without ``tells_deleted`` a deleted
    dataset is denied like one that never was. ``unannounced_extra_seconds`` of the week no kernel explains.

    ``keeps_failed_output``: a session that failed or was cut leaves its files. ``waits_as_running``: a queued session
    says RUNNING. ``bare_when_empty``: a list without kernels is ``{}``. ``books_whole_sessions``: a session counts in
    the week in which it began. ``mounts_below`` is one more folder above each input. ``refused_leaves_kernel``: a
    refused push leaves a kernel without a session. ``refuses_cancel`` and ``delete_spares_sessions``: these do not end
    a session. ``tpu_counts_as_gpu``: sessions with a TPU count among those with GPUs, of which only so many may run.
    """

    timeout_ignored: bool = False
    reserves: bool = False
    page_max: int = 200
    pages_by_token: bool = False
    output_redirects: bool = False
    kernel_hidden_wall_seconds: float = 0.0
    tells_landing: bool = True
    tells_deleted: bool = True
    last_run_is_push: bool = False
    last_run_is_end: bool = False
    bills_queue: bool = False
    unannounced_extra_seconds: int = 0
    keeps_failed_output: bool = False
    waits_as_running: bool = False
    bare_when_empty: bool = False
    books_whole_sessions: bool = False
    mounts_below: str = ""
    refused_leaves_kernel: bool = False
    refuses_cancel: bool = False
    delete_spares_sessions: bool = False
    tpu_counts_as_gpu: bool = False


FLIPPED: dict[str, dict[str, Any]] = {
    "files of failed sessions are kept": {"keeps_failed_output": True},
    "the queue is billed": {"bills_queue": True},
    "running sessions reserve": {"reserves": True},
    "lastRunTime is the push": {"last_run_is_push": True},
    "lastRunTime is the end": {"last_run_is_end": True},
    "a waiting session says RUNNING": {"waits_as_running": True},
    "an empty list is {}": {"bare_when_empty": True},
    "a session belongs to the week of its start": {"books_whole_sessions": True},
    "inputs are mounted elsewhere": {"mounts_below": "versions"},
    "a refused push leaves a kernel": {"refused_leaves_kernel": True},
    "a cancel is refused": {"refuses_cancel": True},
    "a deleted kernel goes on": {"delete_spares_sessions": True},
    "a new kernel is hidden": {"kernel_hidden_wall_seconds": 0.5},
    "a log has 64 kB": {"log_bytes_max": 1 << 16},
    "pages are short": {"page_max": 2, "pages_by_token": True},
    "TPUs count among GPU sessions": {"tpu_counts_as_gpu": True},
    "an answer to a push is terse": {"tells_landing": False, "output_redirects": True},
}
"""The other answer to each question that only an account settles (docs/kaggle.md), as Habits."""
SPARED = "a deleted kernel goes on"
"""With this answer only a cancel ends a session by force, which needs the session's first words."""


def drawn_answers(seed: int, without: str = "", answers: Mapping[str, Mapping[str, Any]] = FLIPPED) -> dict[str, Any]:
    """Return some of the other answers together, those that one seed draws, as rules of the emulator."""
    dice = random.Random(seed)
    drawn = {question for question in answers if dice.random() < 0.4} - {without}
    return {name: value for question in sorted(drawn) for name, value in answers[question].items()}


class PublishingPlace(KaggleAccount):
    """An account with habits that sees what others have published, and with which things go wrong on demand."""

    rules: Habits

    def __init__(self, root: Path, clock: Clock, owner: str, key: str, rules: Habits | None = None) -> None:
        super().__init__(root, clock, owner, key, rules or Habits())
        self.published = Published(root / "published")
        self.faults = Faults()

    def attach_session(self, session: EmulatedSession) -> EmulatedSession:
        """See KaggleAccount.attach_session."""
        if self.rules.timeout_ignored:
            session.terms.limit_seconds = None
        if self.rules.bills_queue:
            since = self.clock.now()
            own = session.billed_within

            def billed_within(start: float, end: float) -> float:
                waited = max(
                    0.0, min(session.started_at or session.ended_at or self.clock.now(), end) - max(since, start)
                )
                return own(start, end) + waited

            setattr(session, "billed_within", billed_within)  # noqa: B010 - a method is replaced
        if self.rules.books_whole_sessions:
            by_time = session.billed_within

            def billed_whole(start: float, end: float) -> float:
                began = session.started_at
                return by_time(0.0, math.inf) if began is not None and start <= began < end else 0.0

            setattr(session, "billed_within", billed_whole)  # noqa: B010
        if self.rules.keeps_failed_output:
            over = session._end
            setattr(session, "_end", lambda status, failure, **_: over(status, failure, kept=True))  # noqa: B010
        return super().attach_session(session)

    def refusal(self, kind: Kind) -> str:
        """See KaggleAccount.refusal."""
        with_gpus = [session for session in self.sessions() if session.live and session.terms.kind != "CPU"]
        if self.rules.tpu_counts_as_gpu and kind != "CPU" and len(with_gpus) >= self.rules.gpu_sessions_max:
            return super().refusal("GPU") or f"Maximum batch GPU session count of {len(with_gpus)} reached."
        return super().refusal(kind)

    def cancel(self, session_id: object) -> dict[str, Any]:
        """See KaggleAccount.cancel."""
        if self.rules.refuses_cancel:
            raise denied("kernelSessions.cancel")
        return super().cancel(session_id)

    def delete(self, owner: str, slug: str) -> dict[str, Any]:
        """See KaggleAccount.delete."""
        if not self.rules.delete_spares_sessions:
            return super().delete(owner, slug)
        with self.lock:
            if owner != self.owner or slug not in self.kernels:
                raise denied("kernels.delete")
            self.deleted[slug] = self.kernels.pop(slug)
        return {}

    def seconds_used(self, start: float, end: float, kind: Kind = "GPU") -> float:
        """See KaggleAccount.seconds_used."""
        extra = self.rules.unannounced_extra_seconds if (start, end) == self.week(self.clock.now()) else 0
        return super().seconds_used(start, end, kind) + (extra if kind == "GPU" else 0)

    def quota(self) -> dict[str, Any]:
        """See KaggleAccount.quota."""
        answer, now = super().quota(), self.clock.now()
        for kind in ("GPU", "TPU") if self.rules.reserves else ():
            ends = [
                (one.started_at or now) + (one.terms.limit_seconds or 0)
                for one in self.sessions()
                if one.live and one.terms.kind == kind
            ]
            answer[f"{kind.lower()}Quota"]["timeReserved"] = f"{sum(max(0.0, end - now) for end in ends):.9f}s"
        return answer

    def last_run_at(self, kernel: Kernel) -> float:
        """See KaggleAccount.last_run_at."""
        newest = kernel.versions[-1]
        if self.rules.last_run_is_end and newest.session and newest.session.ended_at is not None:
            return newest.session.ended_at
        return newest.pushed_at if self.rules.last_run_is_push else super().last_run_at(kernel)

    def push(self, body: dict[str, Any]) -> dict[str, Any]:
        """See KaggleAccount.push."""
        answer = super().push(body)
        if "error" in answer and self.rules.refused_leaves_kernel:
            super().push({**body, "kernelExecutionType": "QUICK_SAVE"})
        hidden = () if self.rules.tells_landing else ("ref", "url", "versionNumber")
        return {name: value for name, value in answer.items() if name not in hidden}

    def shows(self, kernel: Kernel) -> bool:
        """Return whether a kernel can be seen already: what was made just now may not be known everywhere."""
        age = self.clock.wall_seconds(self.clock.now() - kernel.versions[0].pushed_at)
        return age >= self.rules.kernel_hidden_wall_seconds

    def version(self, owner: str, slug: str, label: str | None) -> tuple[Kernel, KernelVersion]:
        """See KaggleAccount.version."""
        kernel, version = super().version(owner, slug, label)
        if not self.shows(kernel):
            raise denied("kernels.get")
        return kernel, version

    def attach(self, source: str, target: Path) -> bool:
        """See KaggleAccount.attach."""
        target /= self.rules.mounts_below
        owner, slug, *version = source.split("/")
        name = f"{owner}/{slug}"
        number = int(version[0]) if version else self.published.newest(name)
        return super().attach(source, target) or self.published.attach(name, number, target)

    def attach_model(self, source: str, target: Path) -> bool:
        """See KaggleAccount.attach_model."""
        name, _, version = source.rpartition("/")
        return version.isdigit() and self.published.attach(name, int(version), target)


class FaultyHandler(Handler):
    """Lets ordered faults come between a call and its answer, and a link lead on to where its file is stored."""

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        """See Handler.do_GET."""
        redirects = cast("PublishingPlace", self.server.place).rules.output_redirects
        if redirects and self.path.startswith("/output/"):
            self.send(302, b"", "text/html", {"Location": self.path.replace("/output/", "/stored/", 1)})
            return
        self.path = self.path.replace("/stored/", "/output/", 1)
        super().do_GET()

    fault: Fault | None = None

    @property
    def faults(self) -> Faults:
        """The faults of the place."""
        return cast("PublishingPlace", self.server.place).faults

    def begins(self, call: str) -> bool:
        """See Handler.begins."""
        fault = self.fault = self.faults.take(call)
        path = urlsplit(self.path).path
        if call == "PUT" and fault is Fault.SERVER_ERROR:
            self.receive(path.removeprefix("/upload/"), interrupt=True)
        elif call == "Output" and fault is Fault.DROP_AFTER_COMMIT:
            self.send_output(path.removeprefix("/api"), interrupt=True)
        else:
            return not self._happens(fault)
        return False

    def conclude(
        self, call: str, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """See Handler.conclude."""
        if status == 200 and self.fault is Fault.DROP_AFTER_COMMIT:
            self.close_connection = True
        elif status == 200 and self.fault is Fault.ERROR_AFTER_COMMIT:
            self.answer(500, {"code": 500, "message": "Internal error"})
        elif (twisted := self.faults.twist(call, body)) is not None:
            self.send(200, twisted, _JSON)
        else:
            super().conclude(call, status, body, headers)

    def _happens(self, fault: Fault | None) -> bool:
        """Let a fault happen that keeps the call from being looked at; return whether one did."""
        match fault:
            case Fault.THROTTLED:
                self.answer(429, {"code": 429, "message": "Too many requests"})
            case Fault.THROTTLED_LATER:
                self.answer(429, {"code": 429, "message": "Too many requests"}, {"Retry-After": "1"})
            case Fault.THROTTLED_PAGE:
                self.send(429, _PAGE, _JSON)
            case Fault.SERVER_ERROR:
                self.answer(500, {"code": 500, "message": "Internal error"})
            case Fault.FORBIDDEN:
                self.answer(403, {"code": 403, "message": "Permission 'kernels.get' was denied"})
            case Fault.PAGE:
                self.send(200, _PAGE, "text/html")
            case Fault.EMPTY:
                self.answer(200, {})
            case Fault.HANG:
                self.server.closing.wait(_HANG_WALL_SECONDS)
                self.close_connection = True
            case Fault.DROP:
                self.close_connection = True
            case _:
                return False
        return True


class PublishingServer(KaggleServer):
    """Serves a PublishingPlace, with the calls about what others have published."""

    def __init__(self, place: PublishingPlace, port: int = 0) -> None:
        super().__init__(place, port, FaultyHandler)
        self._published = place
        own = self.table["datasets.DatasetApiService/GetDataset"]
        status, kernels = "datasets.DatasetApiService/GetDatasetStatus", "kernels.KernelsApiService/ListKernels"
        session = "kernels.KernelsApiService/GetKernelSessionStatus"
        of_dataset, of_kernels, of_session = self.table[status], self.table[kernels], self.table[session]

        def dataset_status(body: Body) -> Body:
            answer = of_dataset(body)
            if answer["status"] == "DELETED" and not place.rules.tells_deleted:
                raise denied("datasets.get")
            return answer

        def list_kernels(body: Body) -> Body:
            answer = of_kernels(body)
            if "kernels" not in answer or body.get("group") == "EVERYONE":
                return answer
            shown = [one for one in answer["kernels"] if place.shows(place.kernels[one["slug"]])]
            return {**answer, "kernels": shown} if shown or not place.rules.bare_when_empty else {}

        def session_status(body: Body) -> Body:
            answer = of_session(body)
            hidden = place.rules.waits_as_running and answer.get("status") == "QUEUED"
            return {**answer, "status": "RUNNING"} if hidden else answer

        self.table |= {status: dataset_status, kernels: list_kernels, session: session_status}

        def get_dataset(body: Body) -> Body:
            name, _ = name_of_dataset(body)
            newest = place.published.newest(name)
            return {"ref": name, "isPrivate": False, "currentVersionNumber": newest} if newest else own(body)

        self.table |= {
            "datasets.DatasetApiService/GetDataset": get_dataset,
            "datasets.DatasetApiService/ListDatasetFiles": self._list_dataset_files,
            "datasets.DatasetApiService/DownloadDataset": self._download_dataset,
            "models.ModelApiService/ListModelInstanceVersionFiles": self._list_model_files,
            "models.ModelApiService/DownloadModelInstanceVersion": self._download_model,
        }

    def paged(self, things: Sequence[_Thing], body: Body, size: int) -> tuple[Sequence[_Thing], Body]:
        """See KaggleServer.paged."""
        self.page_max = self._published.rules.page_max
        if not self._published.rules.pages_by_token:
            return super().paged(things, body, size)
        page, following = self.page(things, {**body, "pageSize": size})
        return page, following or {"nextPageToken": ""}

    def page(self, things: Sequence[_Thing], body: Body) -> tuple[Sequence[_Thing], Body]:
        """See KaggleServer.page."""
        self.page_max = self._published.rules.page_max
        return super().page(things, body)

    def file(self, version: str, name: str) -> Path:
        """See Server.file."""
        if not version.startswith(_LINKED):
            return super().file(version, name)
        thing, _, number = version.removeprefix(_LINKED).rpartition("/")
        return self._published.published.files(thing, int(number))[name]

    def _list_dataset_files(self, body: Body) -> Body:
        files, following = self._files(name_of_dataset(body), body)
        return {"datasetFiles": [{"name": name, "totalBytes": size} for name, size in files], **following}

    def _list_model_files(self, body: Body) -> Body:
        files, following = self._files(name_of_model(body), body)
        return {"files": [{"name": name, "size": size} for name, size in files], **following}

    def _files(self, version: tuple[str, int], body: Body) -> tuple[Sequence[tuple[str, int]], Body]:
        """Return a page of what a version has, and how to ask for the next."""
        found = [(path, place.stat().st_size) for path, place in self._published.published.files(*version).items()]
        return self.page(found, body)

    def _download_dataset(self, body: Body) -> Body:
        raise self._sent_to(name_of_dataset(body), str(body.get("fileName", "")))

    def _download_model(self, body: Body) -> Body:
        raise self._sent_to(name_of_model(body), str(body.get("path", "")))

    def _sent_to(self, version: tuple[str, int], path: str) -> KaggleRefusal:
        """Return the address of a file, which it is handed out from."""
        if path not in self._published.published.files(*version):
            return KaggleRefusal(404, "Not found")
        return Elsewhere(self.link(f"{_LINKED}{version[0]}/{version[1]}", path))
