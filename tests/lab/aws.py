"""The emulated SageMaker for tests: with faults on demand."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from platforms.emulators.sagemaker.place import Job, SageMakerAccount, SageMakerRefusal, SageMakerRules
from platforms.emulators.sagemaker.server import CREDENTIALS, SageMakerServer, operation_of, respond
from scheduler.clock import real_now
from tests.lab.faults import Fault, Faults


@dataclass(slots=True)
class Shortages(SageMakerRules):
    """What an account may meet with; all seconds are scheduled.

    Jobs named in ``no_capacity`` never get a machine, nor do any on ``no_capacity_types``. An image among
    ``no_images`` cannot be pulled. A bill shows ``bill_delay_seconds`` after the end. Spot jobs lose their instance
    ``spot_seconds`` after they begin to train, if that is set, and start again on another ``spot_back_seconds`` later,
    or never.

    Where nobody has asked AWS: ``runtime_after_download``: MaxRuntimeInSeconds counts from the start of the container.
    ``bills_early``: a running job shows a bill that grows. Without ``knows_preferences`` a request with several types
    is refused, and so is one of ``gone_types``. An address that was signed more than ``signed_seconds`` ago is
    refused. Without ``hands_credentials`` containers do not get those of their role.
    """

    bill_delay_seconds: float = 0.0
    spot_seconds: float | None = None
    spot_back_seconds: float | None = None
    no_capacity: set[str] = field(default_factory=set)
    no_capacity_types: set[str] = field(default_factory=set)
    no_images: set[str] = field(default_factory=set)
    runtime_after_download: bool = False
    bills_early: bool = False
    knows_preferences: bool = True
    gone_types: frozenset[str] = frozenset()
    signed_seconds: float = math.inf
    hands_credentials: bool = True


FLIPPED_AWS: dict[str, dict[str, Any]] = {
    "the download is no runtime": {"runtime_after_download": True},
    "a bill grows while a job runs": {"bills_early": True},
    "a bill comes late": {"bill_delay_seconds": 1.0},
    "there are no instance preferences": {"knows_preferences": False},
    "p3 is gone": {"gone_types": frozenset({"ml.p3.2xlarge"})},
    "signed addresses live shorter": {"signed_seconds": 5_400.0},
    "containers get no credentials": {"hands_credentials": False},
    "a stop leaves no time to save": {"grace_seconds": 0.0},
}
"""The other answer to each question that only an account settles (docs/sagemaker.md), as Shortages."""


class InterruptedJob(Job):
    """A job that may find no machine or no image, and may lose the one that it has."""

    rules: Shortages
    lost_at: float | None = None  # when a spot job lost its instance, until it has another
    idle_seconds = 0.0  # how long it had none

    @property
    def billed_seconds(self) -> int:
        """See Job.billed_seconds."""
        if self.started_at is None:
            return 0
        until = self.lost_at or self.ended_at or self.clock.now()
        share = self.rules.spot_share if self.request.get("EnableManagedSpotTraining") else 1.0
        return round((until - self.started_at - self.idle_seconds) * share)

    def describe(self) -> dict[str, Any]:
        """See Job.describe."""
        document = super().describe()
        if self.ended_at is not None and self.clock.now() < self.ended_at + self.rules.bill_delay_seconds:
            document.pop("BillableTimeInSeconds", None)
        if self.rules.bills_early and self.live and self.started_at is not None:
            document["BillableTimeInSeconds"] = document["TrainingTimeInSeconds"] = self.billed_seconds
        return document

    def _run_on_instance(self, instance_type: str) -> tuple[str, str, str]:
        available = [name for name in self._types() if name not in self.rules.no_capacity_types]
        if self.name in self.rules.no_capacity or not available:
            reason = "CapacityError: Unable to provision requested ML compute capacity. Please retry later."
            return ("Failed", "Failed", reason)
        image = self.request["AlgorithmSpecification"]["TrainingImage"]
        if image in self.rules.no_images:
            return ("Failed", "Failed", f"ClientError: Cannot find repository: {image}. Please check its name")
        return super()._run_on_instance(available[0])

    def _limits(self) -> dict[str, float]:
        limits = super()._limits()
        if self.rules.runtime_after_download and self.started_at is not None:
            limits["MaxRuntimeExceeded"] += self.transitions[-1][1] - self.started_at
        if self.request.get("EnableManagedSpotTraining") and self.rules.spot_seconds is not None:
            limits["Interrupted"] = self.transitions[-1][1] + self.rules.spot_seconds  # from this container's start on
        return limits

    def _train(self) -> tuple[int, str]:
        exit_code, why = super()._train()
        while why == "Interrupted":
            if why := self._wait_for_another_instance():
                break
            self._download()
            if self._paused(self.rules.download_seconds):
                break
            exit_code, why = super()._train()
        return exit_code, why

    def _wait_for_another_instance(self) -> str:
        """Wait until another instance is there, and start again on its empty disk; or return how the job ended."""
        with self._lock:
            self.lost_at = self.clock.now()
            self._move("Interrupted")
        latest = self.created_at + self.request["StoppingCondition"]["MaxWaitTimeInSeconds"]
        back = latest if self.rules.spot_back_seconds is None else self.lost_at + self.rules.spot_back_seconds
        if self._stop.wait(max(0.0, self.clock.wall_seconds_until(min(back, latest)))):
            return "Stopped"
        if back >= latest:
            self._stop.set()
            return "MaxWaitTimeExceeded"
        shutil.rmtree(self.folder, ignore_errors=True)
        with self._lock:
            self.idle_seconds += self.clock.now() - self.lost_at
            self.lost_at = None
            self._move("Restarting")
        return ""


class FaultyPlace(SageMakerAccount):
    """A place with which things go wrong on demand."""

    job_kind = InterruptedJob
    rules: Shortages

    def __init__(self, folder: Path, clock: Clock, rules: Shortages | None = None) -> None:
        super().__init__(folder, clock, rules or Shortages())
        self.faults = Faults()

    def wall_seconds(self, seconds: float) -> float:
        """Return how many real seconds so many of the account's clock are."""
        return seconds if math.isinf(seconds) else self._clock.wall_seconds(seconds)

    def create(self, request: Mapping[str, Any], region: str = "") -> dict[str, Any]:
        """See SageMakerAccount.create."""
        resources = request.get("ResourceConfig", {})
        if "InstancePreferences" in resources and not self.rules.knows_preferences:
            raise SageMakerRefusal("1 validation error detected: InstancePreferences is not supported in this region")
        if (wanted := resources.get("InstanceType")) in self.rules.gone_types:
            raise SageMakerRefusal(f"1 validation error detected: {wanted} is not available")
        return super().create(request, region)


class FaultyServer(SageMakerServer):
    """Lets ordered faults come between a call and its answer. Of moto's calls some only fail."""

    def __init__(self, place: FaultyPlace, port: int = 0) -> None:
        super().__init__(place, port)
        self._faults, self._rules, self._place = place.faults, place.rules, place

    def __exit__(self, *words: object) -> None:
        """Let nothing go wrong any more, and end."""
        self._faults.always.clear()
        super().__exit__(*words)

    def answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """See Server.answer."""
        operation = operation_of(environ)
        if environ["PATH_INFO"] == CREDENTIALS:
            return super().answer(environ, start) if self._rules.hands_credentials else respond(start, 400, {})
        if _age(environ) > self._place.wall_seconds(self._rules.signed_seconds):
            return respond(
                start, 403, {}, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
            )
        fault = self._faults.take(operation)
        if fault is not None and operation not in self.operations and fault is not Fault.DROP:
            fault = Fault.SERVER_ERROR
        if fault in {Fault.THROTTLED, Fault.SERVER_ERROR, Fault.DROP}:
            self.calls_received += 1
        match fault:
            case Fault.THROTTLED:
                return respond(start, 400, {"__type": "ThrottlingException", "message": "Rate exceeded"})
            case Fault.SERVER_ERROR:
                return respond(start, 500, {"__type": "InternalFailure", "message": "as ordered"})
            case Fault.DROP:
                return _hang_up(environ)
        if operation not in self.operations:
            return super().answer(environ, start)
        told: list[str] = []
        body = b"".join(super().answer(environ, lambda status, _headers: told.append(status)))
        document, status = json.loads(body), int(told[0].split()[0])
        match fault:
            case Fault.DROP_AFTER_COMMIT:
                return _hang_up(environ)
            case Fault.ERROR_AFTER_COMMIT:
                return respond(start, 500, {"__type": "InternalFailure", "message": "as ordered, after it was done"})
        return respond(start, status, document, self._faults.twist(operation, document) if status == 200 else None)


def _age(environ: dict[str, Any]) -> float:
    """Return how many real seconds ago the address or the form of a call was signed; 0 for other calls."""
    signed = re.search(r"X-Amz-Date=(\w{16})&", environ.get("QUERY_STRING", "") + "&")
    if environ["REQUEST_METHOD"] == "POST" and "form-data" in environ.get("CONTENT_TYPE", ""):
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
        signed = re.search(r'name="x-amz-date"\s+(\w{16})\s', body[:65_536].decode(errors="replace"), re.IGNORECASE)
    if signed is None:
        return 0.0
    return real_now() - datetime.strptime(signed[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _hang_up(environ: Mapping[str, Any]) -> Iterable[bytes]:
    """Close the connection without a word."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("hung up, as ordered")
