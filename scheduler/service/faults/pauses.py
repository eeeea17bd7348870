"""Pauses: what stays as it is gets into the log once, and then after pauses that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_FIRST_SECONDS, _LONGEST_SECONDS = 120, 3_600


class Pauses:
    """Remembers when each trouble is to be logged again. It may be lost."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[int, int]] = {}  # by name: the pause after the next line, and when that is due

    def is_due(self, name: str, now: int) -> bool:
        """Tell whether a trouble is to be logged now."""
        pause, at = self._next.get(name, (_FIRST_SECONDS, now))
        if now < at:
            return False
        self._next[name] = min(2 * pause, _LONGEST_SECONDS), now + pause
        return True

    def keep(self, names: Collection[str]) -> None:
        """Forget all troubles but these."""
        self._next = {name: known for name, known in self._next.items() if name in names}
