"""Why a folder cannot be put into the store."""

from __future__ import annotations


class TreeError(Exception):
    """``source`` cannot be taken as it is; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        self.why = why
        self.remedy = remedy
        super().__init__(f"the files of {source} cannot be taken: {why}. {remedy}")
