"""The account as it truly is: kernels, sessions, datasets and the quota, all on one scaled clock."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from platforms.emulators.kaggle.session import EmulatedSession, PushTerms
from platforms.emulators.kaggle.storage import KaggleRefusal, KaggleRules, KaggleStorage, denied

_WEEK = 604_800
_SATURDAY = 2 * 86_400  # 1970-01-03T00:00:00Z
_T4 = ("Tesla T4", "Tesla T4")
# What one gets for a machine shape; retired ones are silently replaced.
_SHAPES: dict[str, tuple[str, ...]] = {
    "NvidiaTeslaT4": _T4,
    "NvidiaTeslaP100": _T4,
    "NvidiaL4": ("NVIDIA L4",) * 4,
    "NvidiaL4X1": ("NVIDIA L4",),
}


@dataclass(slots=True)
class KernelVersion:
    """One push: what was sent, and its session (None when it was only saved)."""

    number: int
    body: dict[str, Any]
    pushed_at: float
    session: EmulatedSession | None


@dataclass(slots=True)
class Kernel:
    """A kernel by its slug."""

    id: int
    slug: str
    title: str
    versions: list[KernelVersion] = field(default_factory=list)


class KaggleAccount:
    """One account ``owner`` with the API key ``key``, whose files lie below ``root``."""

    def __init__(self, root: Path, clock: Clock, owner: str, key: str, rules: KaggleRules | None = None) -> None:
        self.root = root
        self.clock = clock
        self.owner = owner
        self.key = key
        self.rules = rules or KaggleRules()
        self.lock = threading.RLock()
        self.storage = KaggleStorage(owner, root, clock, self.rules)
        self.kernels: dict[str, Kernel] = {}
        self.deleted: dict[str, Kernel] = {}
        self.address = ""  # where the place is served, once it is
        self.note: Callable[[], None] = lambda: None  # called when what must outlive a crash has changed
        self.next_number = 355_193_088  # of the next kernel or session

    def sessions(self) -> list[EmulatedSession]:
        """Return every session there ever was, those of deleted kernels too."""
        with self.lock:
            kernels = [*self.kernels.values(), *self.deleted.values()]
            return [version.session for kernel in kernels for version in kernel.versions if version.session]

    def is_token(self, token: str) -> bool:
        """Return whether a kernel that runs now was given this token."""
        return bool(token) and any(session.live and session.terms.token == token for session in self.sessions())

    def week(self, instant: float) -> tuple[float, float]:
        """Return the quota week that holds an instant: Saturday 00:00 UTC to the next."""
        start = instant - (instant - _SATURDAY) % _WEEK
        return start, start + _WEEK

    def gpu_seconds_used(self, start: float, end: float) -> float:
        """Return the GPU bill of [start, end): wall clock per session, whatever its number of GPUs."""
        return sum(session.billed_within(start, end) for session in self.sessions() if session.terms.is_gpu)

    def gpu_seconds_left(self) -> float:
        """Return what is left of this week."""
        return self.rules.gpu_seconds_per_week - self.gpu_seconds_used(*self.week(self.clock.now()))

    def quota(self) -> dict[str, Any]:
        """GetAcceleratorQuotaStatistics."""
        start, end = self.week(self.clock.now())
        used = self.gpu_seconds_used(start, end)
        return {
            "quotaRefreshTime": instant_text(end),
            "gpuQuota": {
                "timeUsed": f"{used:.9f}s",
                "timeReserved": "0s",
                "totalTimeAllowed": f"{self.rules.gpu_seconds_per_week}s",
                "isPayToScaleEnabled": False,
                "hasEverRun": used > 0,
            },
        }

    def last_run_at(self, kernel: Kernel) -> float:
        """Return when the newest session began, or was pushed while it has not."""
        newest = kernel.versions[-1]
        started = newest.session.started_at if newest.session else None
        return newest.pushed_at if started is None else started

    def push(self, body: dict[str, Any]) -> dict[str, Any]:
        """SaveKernel. What is wrong comes back as ``error`` on HTTP 200, except a source that is too large."""
        text = str(body.get("text") or "")
        if len(text.encode()) > self.rules.source_bytes_max:
            raise KaggleRefusal(400, "Bad Request")
        owner, _, declared = str(body.get("slug") or "").partition("/")
        if owner != self.owner:
            raise denied("kernels.update")
        runs = body.get("kernelExecutionType") != "QUICK_SAVE"
        is_gpu = bool(body.get("enableGpu"))
        if runs and (error := self._refusal(is_gpu=is_gpu)):
            return {"error": error}
        kernel = self.kernels.get(declared)
        if kernel is None:
            title = str(body.get("newTitle") or "")
            slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
            if len(title) < 5 or len(slug) < 5 or len(title) > 50:
                return {"error": "The title must be between 5 and 50 characters"}
            kernel = self.kernels.setdefault(slug, Kernel(self._number(), slug, title))
        number = len(kernel.versions) + 1
        folder = self.root / "kernels" / f"{kernel.slug}.{number}.{self._number()}"
        (folder / "kaggle" / "working").mkdir(parents=True)
        (folder / "kaggle" / "input").mkdir()
        inputs = folder / "kaggle" / "input"
        invalid = [source for source in body.get("datasetDataSources") or () if not self.attach(source, inputs)]
        models = [source for source in body.get("modelDataSources") or () if not self.attach_model(source, inputs)]
        session = self._session(body, text, folder, is_gpu=is_gpu) if runs else None
        kernel.versions.append(KernelVersion(number, body, self.clock.now(), session))
        if session is not None:
            session.begin()
        return {
            "ref": f"/code/{self.owner}/{kernel.slug}",
            "url": f"https://kaggle.invalid/code/{self.owner}/{kernel.slug}",
            "versionNumber": number,
            "kernelId": kernel.id,
            "invalidDatasetSources": invalid,
            "invalidModelSources": models,
        }

    def attach(self, source: str, target: Path) -> bool:
        """Put a dataset before a kernel; return whether there is such a one."""
        owner, slug, *_ = source.split("/")
        return self.storage.attach(f"{owner}/{slug}", target)

    def attach_model(self, source: str, target: Path) -> bool:
        """Put a model before a kernel; return whether it exists: none is published here."""
        del source, target
        return False

    def _refusal(self, *, is_gpu: bool) -> str:
        live = sum(session.live and session.terms.is_gpu == is_gpu for session in self.sessions())
        most, kind = (self.rules.gpu_sessions_max, "GPU") if is_gpu else (self.rules.cpu_sessions_max, "CPU")
        if live >= most:
            return f"Maximum batch {kind} session count of {most} reached."
        if is_gpu and self.gpu_seconds_left() <= 0:
            return f"Maximum weekly GPU quota of {self.rules.gpu_seconds_per_week / 3600:.2f} hours reached."
        return ""

    def _session(self, body: dict[str, Any], text: str, folder: Path, *, is_gpu: bool) -> EmulatedSession:
        timeout = body.get("sessionTimeoutSeconds")
        limit = min(float(timeout or self.rules.session_cap_seconds), float(self.rules.session_cap_seconds))
        shape = str(body.get("machineShape") or "NvidiaTeslaT4")
        terms = PushTerms(
            session_id=self._number(),
            source=text,
            folder=folder,
            is_gpu=is_gpu,
            gpus=_SHAPES.get(shape, ()) if is_gpu else (),
            limit_seconds=limit,
            queue_seconds=self.rules.queue_seconds,
            log_bytes_max=self.rules.log_bytes_max,
            token=secrets.token_hex(16) if self.rules.lets_kernels_in and body.get("enableInternet") else "",
        )
        return self.attach_session(EmulatedSession(terms))

    def attach_session(self, session: EmulatedSession) -> EmulatedSession:
        """Return a session, new or of a place before this one, that lives here from now on."""
        session.terms.address = self.address
        return session.attach(self.clock, self.gpu_seconds_left, self.note)

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def version(self, owner: str, slug: str, label: str | None) -> tuple[Kernel, KernelVersion]:
        """Return the version that a label ``v<N>`` names, or the newest."""
        if owner == self.owner and slug in self.deleted and slug not in self.kernels:
            raise KaggleRefusal(404, "Not found")
        kernel = self.kernels.get(slug) if owner == self.owner else None
        if kernel is None:
            raise denied("kernels.get")
        if not label:
            return kernel, kernel.versions[-1]
        match = re.fullmatch(r"v(\d+)", label)
        if match is None or not 1 <= int(match[1]) <= len(kernel.versions):
            raise KaggleRefusal(404, "Not found")
        return kernel, kernel.versions[int(match[1]) - 1]

    def cancel(self, session_id: object) -> dict[str, Any]:
        """CancelKernelSession: only the id of a session will do, and nothing of ours tells it."""
        with self.lock:
            matching = [session for session in self.sessions() if str(session.terms.session_id) == str(session_id)]
        if not matching:
            raise denied("kernelSessions.cancel")
        if not matching[0].live:
            return {"errorMessage": "Kernel session is not running"}
        matching[0].cut("CANCEL_ACKNOWLEDGED", "Cancelled by the user")
        return {}

    def delete(self, owner: str, slug: str) -> dict[str, Any]:
        """DeleteKernel: all versions go, and a running session ends at once."""
        with self.lock:
            kernel = self.kernels.get(slug) if owner == self.owner else None
            if kernel is None:
                raise denied("kernels.delete")
            self.deleted[slug] = self.kernels.pop(slug)
        for version in kernel.versions:
            if version.session is not None and version.session.live:
                version.session.cut("CANCEL_ACKNOWLEDGED", "The notebook was deleted")
        return {}

    def close(self) -> None:
        """End every session."""
        for session in self.sessions():
            session.cut("CANCEL_ACKNOWLEDGED", "The emulator closes")


def instant_text(instant: float) -> str:
    """Return an instant as the place writes it."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
