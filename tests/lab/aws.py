"""The emulated SageMaker for tests: with faults on demand."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from platforms.emulators.sagemaker.job import SageMakerRules
from platforms.emulators.sagemaker.place import SageMakerAccount
from platforms.emulators.sagemaker.server import CREDENTIALS, SageMakerServer, operation_of, say
from tests.lab.faults import Fault, Faults


class FaultyPlace(SageMakerAccount):
    """A place with which things go wrong on demand."""

    def __init__(self, folder: Path, clock: Clock, rules: SageMakerRules | None = None) -> None:
        super().__init__(folder, clock, rules)
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
