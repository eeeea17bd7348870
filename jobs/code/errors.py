"""Why a folder cannot be a job's code."""

from __future__ import annotations

from jobs.problem import InvalidInput


class CodeError(InvalidInput):
    """``source`` cannot be taken as it is; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"the code in {source} cannot be taken", why, remedy)
