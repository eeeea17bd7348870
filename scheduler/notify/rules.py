"""Rules: which events go to whom beyond alerts, by kind of event and by job; webhooks get them as JSON.

The event log is read up to an instant that is kept in the database, and what matches is put into the outbox: an event
is written once for each receiver, whatever crashes, and delivered at least once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from scheduler.clock import at_least
from scheduler.notify.letter import redacted
from scheduler.store import due, events, outbox, runs
from scheduler.store.runs import UnknownRun

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from scheduler.service.outside.ports import Ports
    from scheduler.store.events import Event

RULES = "rules"
"""What is due: the instant up to which the event log was read for rules."""
WEBHOOK = "webhook"
_OURS = frozenset({"letter.failed"})  # telling of a letter by a letter would never end
_EVENTS_AT_ONCE = 500
_EVENTS_MAX = 20_000  # of one time: what is beyond is told by none, and logged
_SETTLED_SECONDS, _SETTLED_WALL_SECONDS = 60, 2.0  # in which what has happened is committed


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
    """Put into the outbox what happened since the last time and is settled. Raises StoreFailure."""
    with ports.database.read() as tx:
        since = due.next_due(tx).get(RULES)
    if not rules or since is None:
        if (since is None) == bool(rules):  # events from before there was a rule are told to nobody
            with ports.write() as tx:
                due.set_due(tx, RULES, now) if rules else due.forget(tx, RULES)
        return
    # What happened just now may not be committed yet; it is told next time.
    until = max(since, now - at_least(ports.clock, _SETTLED_SECONDS, _SETTLED_WALL_SECONDS))
    if until == since:
        return
    with ports.database.read() as tx:
        found = [event for event in _since(tx, since) if since <= event.at < until]
        names = {event.id: _names(tx, event) for event in found}
    if len(found) == _EVENTS_MAX:
        ports.log.warning("rules.too_many_events", told=_EVENTS_MAX, since=since, until=until)
    with ports.write() as tx:
        for rule in rules:
            wanted = [event for event in found if rule.wants(event, names[event.id])]
            for event in wanted if rule.webhook else ():
                body = redacted({"event": document(event, names[event.id])}, ports.redact)
                outbox.add(tx, WEBHOOK, str(event.id), rule.to[0], body, now)
            for channel in rule.to if wanted and not rule.webhook else ():
                body = redacted(letter_of(rule, wanted), ports.redact)
                outbox.add(tx, RULES, f"{rule.name}-{since}", channel, body, now)
        due.set_due(tx, RULES, until)


def document(event: Event, names: Collection[str]) -> dict[str, Any]:
    """Return an event as webhooks get it; ``jobs`` are those it is about, as far as it is about any."""
    return {
        "id": event.id,
        "at": event.at,
        "kind": event.kind,
        "subject": event.subject,
        "jobs": sorted(names),
        "by": event.by,
        "data": dict(event.data),
    }


def letter_of(rule: Rule, wanted: Sequence[Event]) -> dict[str, Any]:
    """Return one letter about all events of a rule, one at least."""
    from scheduler.notify.alerts import lines_about

    lines = lines_about(wanted)
    return {"subject": f"Training: {lines[0]}"[:200], "text": "\n".join([*lines, "", f"Rule {rule.name}.", ""])}


def _since(tx: Connection, since: int) -> list[Event]:
    limit = _EVENTS_AT_ONCE
    while True:
        found = events.tail(tx, limit=limit)
        if len(found) < limit or found[0].at < since or limit == _EVENTS_MAX:
            return found
        limit = min(4 * limit, _EVENTS_MAX)


def _names(tx: Connection, event: Event) -> list[str]:
    """Return the names that rules look at: of a job's event the job, of a run's also its jobs."""
    if event.kind.partition(".")[0] in {"run", "session"}:
        with suppress(UnknownRun):
            return [event.subject, *(lane.job for lane in runs.get(tx, event.subject).lanes)]
    return [event.subject]
