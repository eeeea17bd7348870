"""Rounds of delivery: who may send, what waits behind a failure, and what another daemon does meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.window import DAY
from scheduler.notify.deliver import DeliveryFailed, deliver, share_among_recipients
from scheduler.store import lease, outbox
from scheduler.store.errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.store.engine import Database

NOW = 1_795_000_000
BODY = {"subject": "Training report", "text": "goodput 93.2%\n"}


def ports_on(database: Database) -> Any:
    log = SimpleNamespace(warning=lambda *_, **__: None, info=lambda *_, **__: None)
    return SimpleNamespace(database=database, epoch=0, write=database.write, log=log, redact=str)


def put(database: Database, channel: str = "email") -> None:
    with database.write() as tx:
        assert outbox.add(tx, "weekly-report", "2026-W47", channel, BODY, NOW)


def waiting(database: Database) -> list[outbox.OutboxMessage]:
    with database.read() as tx:
        return outbox.pending(tx, NOW + DAY)


class Away:
    """A channel that never takes anything."""

    def send(self, key: str, body: Any) -> None:
        """Fail."""
        raise DeliveryFailed("nobody listens")


class Box(Away):
    """A channel that keeps what it carries."""

    def __init__(self, meanwhile: Callable[[], object] = list) -> None:
        self.keys: list[str] = []
        self._meanwhile = meanwhile

    def send(self, key: str, body: Any) -> None:
        """Keep it; something happens ``meanwhile``."""
        self.keys.append(key)
        self._meanwhile()


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ((), ["slack", "email"]),
        (("slack",), ["slack", "email"]),
        (("email",), ["slack", "email"]),
        (("email", "email-1"), ["slack", "email"]),
        (("slack", "email-1", "email-2"), ["slack", "email-1", "email-2"]),
    ],
)
def test_a_message_to_all_is_shared_among_recipients_that_have_channels_of_their_own(
    database: Database, names: tuple[str, ...], left: list[str]
) -> None:
    for channel in ("slack", "email"):
        put(database, channel)
    for _ in range(2):
        share_among_recipients(ports_on(database), dict.fromkeys(names, Away()), NOW)
        assert [message.channel for message in waiting(database)] == left


def test_a_channel_that_fails_or_is_gone_keeps_only_its_own_messages_waiting(database: Database) -> None:
    with database.write() as tx:
        for number, channel in enumerate(("email", "email", "gone", "slack")):
            outbox.add(tx, "alerts", str(number), channel, BODY, NOW)
    box = Box()
    deliver(ports_on(database), {"email": Away(), "slack": box}, NOW)
    assert box.keys == ["alerts-3"]
    assert [(message.channel, message.attempts) for message in waiting(database)] == [
        ("email", 1),
        ("email", 0),
        ("gone", 0),
    ]


def test_a_daemon_that_no_longer_leads_sends_nothing(database: Database) -> None:
    box, ports = Box(), ports_on(database)
    put(database)
    ports.epoch = 7
    with pytest.raises(Fenced):
        deliver(ports, {"email": box}, NOW)
    assert box.keys == []

    def fence() -> None:
        with database.read() as tx:
            lease.fence(tx, 7)

    with pytest.raises(Fenced):
        deliver(ports_on(database), {"email": Box(fence)}, NOW)
    assert [message.attempts for message in waiting(database)] == [0]


def test_what_another_daemon_does_while_a_message_is_sent_is_seen_before_the_next(database: Database) -> None:
    with database.write() as tx:
        for number in range(4):
            outbox.add(tx, "alerts", str(number), "email", BODY, NOW)
    second = waiting(database)[1]

    def deliver_second() -> None:
        with database.write() as tx:
            if outbox.waits(tx, second.id):
                outbox.sent(tx, second.id, NOW)

    def lead() -> None:
        assert lease.acquire(database, "another", 60) is not None

    box = Box(deliver_second)
    deliver(ports_on(database), {"email": box}, NOW)
    assert box.keys == ["alerts-0", "alerts-2", "alerts-3"]
    assert waiting(database) == []
    for channel in ("email", "slack"):
        put(database, channel)
    box = Box(lead)
    with pytest.raises(Fenced):
        deliver(ports_on(database), {"email": box, "slack": box}, NOW)
    assert len(box.keys) == 1
