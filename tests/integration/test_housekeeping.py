"""Recurring duties: late after down time, never lost, never doubled, and not put off by a clock that was wrong."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.core.window import DAY
from scheduler.service import housekeeping
from scheduler.store.engine import Database

NOW = 1_795_000_000


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When the only duty, a daily one, was done."""
    instants: list[int] = []
    monkeypatch.setattr(housekeeping, "_TASKS", {"duty": (lambda _, now: instants.append(now), DAY)})
    return instants


def keep_house(database: Database, *instants: int) -> None:
    ports = cast("Any", SimpleNamespace(database=database, write=database.write))
    for now in instants:
        housekeeping.run_due(ports, now)


def test_a_duty_is_done_when_due_and_once_after_down_time(database: Database, done: list[int]) -> None:
    keep_house(database, NOW, NOW + 60, NOW + DAY - 1, NOW + DAY, NOW + 10 * DAY, NOW + 10 * DAY + 60)
    assert done == [NOW, NOW + DAY, NOW + 10 * DAY]


def test_a_duty_set_while_the_clock_was_ahead_is_not_put_off_for_years(database: Database, done: list[int]) -> None:
    keep_house(database, NOW, NOW + 3_000 * DAY, NOW + 60, NOW + DAY, NOW + DAY + 60)
    assert done == [NOW, NOW + 3_000 * DAY, NOW + 60, NOW + DAY + 60]
