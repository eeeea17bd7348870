"""Paging: long lists are shown page by page."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Paging:
    """Page ``number``, from 1, of a list that is shown ``rows`` at a time."""

    number: int = 1
    rows: int = PAGE_ROWS

    @property
    def offset(self) -> int:
        """How many rows come before."""
        return (self.number - 1) * self.rows

    def pages(self, total: int) -> int:
        """Return how many pages ``total`` rows fill; an empty list has one."""
        return max(1, -(-total // self.rows))
