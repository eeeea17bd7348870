"""Errors: what a program that asks is told apart from the errors of what it asked for."""

from __future__ import annotations

from typing import Any


class BadRequest(Exception):
    """A request that cannot be understood; nothing was done. The message says why, ``remedy`` what to do."""

    def __init__(self, why: str, remedy: str = "The verbs and their arguments: schedctl port --describe") -> None:
        super().__init__(why)
        self.remedy = remedy


class Busy(Exception):
    """Too much was asked at the same time; nothing was done."""

    remedy = "Ask again when earlier requests are answered"


class CommandFailed(Exception):
    """A command of ``schedctl`` refused; ``document`` is its error as ``--json`` has it."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("message", "")))
        self.document = document
