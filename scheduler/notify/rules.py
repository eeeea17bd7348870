"""Rules: which events go to whom beyond alerts, by kind of event and by job; webhooks get them as JSON.

The event log is read up to an event that is kept in the database, and what matches is put into the outbox: an event
is written once for each receiver, whatever crashes, and delivered at least once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection

from scheduler.notify.letter import redacted
from scheduler.service.outside.ports import Ports
from scheduler.store import due, events, outbox, runs
from scheduler.store.events import Event
from scheduler.store.runs import UnknownRun

RULES = "rules"
_READ = "{}-read"  # of a reader of the event log: the id of the newest event that it has read, kept among what is due
_BEGINS = ("daemon.started", "daemon.reloaded")
WEBHOOK = "webhook"
_OURS = frozenset({"letter.failed", "letter.given_up"})  # telling of a letter by a letter would never end
_EVENTS_AT_ONCE = 2_000  # the others come with the next look


@dataclass(frozen=True, slots=True)
class Rule:
    """Events whose kind matches one of ``events`` and whose job one of ``jobs``, patterns like ``job.*``, go ``to``.

    ``to`` are names of channels; ``webhook`` sends each event by itself instead of one letter about all.
    """

    name: str
    events: tuple[str, ...]
    jobs: tuple[str, ...]
    to: tuple[str, ...]
    webhook: bool = False

    def wants(self, event: Event, names: Collection[str]) -> bool:
        """Return whether an event about ``names``, its subject and the jobs of its run, is one of these."""
        if event.kind in _OURS or not any(fnmatchcase(event.kind, pattern) for pattern in self.events):
            return False
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.jobs)


def write_letters(ports: Ports, rules: Sequence[Rule], now: int) -> None:
    """Put into the outbox what happened since the last time. Raises StoreFailure."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
        read = read_up_to(tx, planned, RULES)
        found = events.after(tx, read, _EVENTS_AT_ONCE) if rules else []
        names = {event.id: _names(tx, event) for event in found}
    if not rules:
        if RULES in planned or _READ.format(RULES) in planned:  # what happens before there is a rule is told to nobody
            with ports.write() as tx:
                forget_reader(tx, RULES)
        return
    if not found and _READ.format(RULES) in planned:
        return
    with ports.write() as tx:
        for rule in rules:
            wanted = [event for event in found if rule.wants(event, names[event.id])]
            for event in wanted if rule.webhook else ():
                body = redacted({"event": document(event, names[event.id])}, ports.redact)
                outbox.add(tx, WEBHOOK, str(event.id), rule.to[0], body, now)
            for channel in rule.to if wanted and not rule.webhook else ():
                body = redacted(letter_of(rule, wanted), ports.redact)
                outbox.add(tx, RULES, f"{rule.name}-{read}", channel, body, now)
        forget_reader(tx, RULES)
        set_read(tx, RULES, found[-1].id if found else read)


def document(event: Event, names: Collection[str]) -> dict[str, Any]:
    """Return an event as webhooks get it; ``jobs`` are those it is about, as far as it is about any."""
    return {**asdict(event), "jobs": sorted(names)}


def letter_of(rule: Rule, wanted: Sequence[Event]) -> dict[str, Any]:
    """Return one letter about all events of a rule, one at least."""
    from scheduler.notify.alerts import lines_about

    lines = lines_about(wanted)
    return {"subject": f"Training: {lines[0]}"[:200], "text": "\n".join([*lines, "", f"Rule {rule.name}.", ""])}


def read_up_to(tx: Connection, planned: Mapping[str, int], reader: str) -> int:
    """Return up to which event a reader has read. Events are read in the order of their commits, so none is missed.

    A new reader begins with the daemon that has its settings: what happens in its first minute is told as well.
    """
    if (read := planned.get(_READ.format(reader))) is not None:
        return read
    if reader in planned:  # an older version kept the instant
        return events.newest_id(tx, before=planned[reader])
    began = events.tail(tx, limit=1, kinds=_BEGINS)
    return began[0].id - 1 if began else events.newest_id(tx)


def set_read(tx: Connection, reader: str, read: int) -> None:
    """Store up to which event a reader has read."""
    due.set_due(tx, _READ.format(reader), read)


def forget_reader(tx: Connection, reader: str) -> None:
    """Let a reader begin again."""
    due.forget(tx, reader)
    due.forget(tx, _READ.format(reader))


def _names(tx: Connection, event: Event) -> list[str]:
    """Return the names that rules look at: of a job's event the job, of a run's also its jobs."""
    if event.kind.partition(".")[0] in {"run", "session"}:
        with suppress(UnknownRun):
            return [event.subject, *(lane.job for lane in runs.get(tx, event.subject).lanes)]
    return [event.subject]
