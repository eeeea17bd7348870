"""Why requirements cannot be used."""

from __future__ import annotations


class RequirementsError(Exception):
    """What ``source`` asks for cannot be had as it is; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        self.why = why
        self.remedy = remedy
        super().__init__(f"the requirements in {source} cannot be locked: {why}. {remedy}")
