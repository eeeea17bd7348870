"""The emulated SageMaker for tests: with faults on demand."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from platforms.emulators.sagemaker.place import Job, SageMakerAccount, SageMakerRules
from platforms.emulators.sagemaker.server import CREDENTIALS, SageMakerServer, operation_of, say
from tests.lab.faults import Fault, Faults


@dataclass(slots=True)
class Shortages(SageMakerRules):
    """What an account may meet with; all seconds are scheduled.

    Jobs named in ``no_capacity`` never get a machine, nor do any on ``no_capacity_types``. An image among
    ``no_images`` cannot be pulled. A bill shows ``bill_delay_seconds`` after the end. Spot jobs lose their instance
    ``spot_seconds`` after they begin to train, if that is set, and start again on another ``spot_back_seconds`` later,
    or never.
    """

    bill_delay_seconds: float = 0.0
    spot_seconds: float | None = None
    spot_back_seconds: float | None = None
    no_capacity: set[str] = field(default_factory=set)
    no_capacity_types: set[str] = field(default_factory=set)
    no_images: set[str] = field(default_factory=set)


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
        return document

    def _live_on(self, instance_type: str) -> tuple[str, str, str]:
        available = [name for name in self._types() if name not in self.rules.no_capacity_types]
        if self.name in self.rules.no_capacity or not available:
            reason = "CapacityError: Unable to provision requested ML compute capacity. Please retry later."
            return ("Failed", "Failed", reason)
        image = self.request["AlgorithmSpecification"]["TrainingImage"]
        if image in self.rules.no_images:
            return ("Failed", "Failed", f"ClientError: Cannot find repository: {image}. Please check its name")
        return super()._live_on(available[0])

    def _limits(self) -> dict[str, float]:
        limits = super()._limits()
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


class FaultyServer(SageMakerServer):
    """Lets ordered faults come between a call and its answer. Of moto's calls some only fail."""

    def __init__(self, place: FaultyPlace, port: int = 0) -> None:
        super().__init__(place, port)
        self._faults = place.faults

    def __exit__(self, *words: object) -> None:
        """Let nothing go wrong any more, and end."""
        self._faults.always.clear()
        super().__exit__(*words)

    def answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """See Server.answer."""
        operation = operation_of(environ)
        if environ["PATH_INFO"] == CREDENTIALS:
            return super().answer(environ, start)
        fault = self._faults.take(operation)
        if fault is not None and operation not in self.operations and fault is not Fault.DROP:
            fault = Fault.SERVER_ERROR
        if fault in {Fault.THROTTLED, Fault.SERVER_ERROR, Fault.DROP}:
            self.heard += 1
        match fault:
            case Fault.THROTTLED:
                return say(start, 400, {"__type": "ThrottlingException", "message": "Rate exceeded"})
            case Fault.SERVER_ERROR:
                return say(start, 500, {"__type": "InternalFailure", "message": "as ordered"})
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
                return say(start, 500, {"__type": "InternalFailure", "message": "as ordered, after it was done"})
        return say(start, status, document, self._faults.twist(operation, document) if status == 200 else None)


def _hang_up(environ: Mapping[str, Any]) -> Iterable[bytes]:
    """Close the connection without a word."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("hung up, as ordered")
