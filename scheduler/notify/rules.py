"""Rules and alerts: which events go to which people and channels; webhooks get them as JSON.

The event log is read up to an event that is kept in the database, and what matches is put into the outbox: an event
is written once for each receiver, whatever crashes, and delivered at least once. The same alert about the same subject
is repeated after six hours at the earliest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from sqlalchemy import Connection

from config.settings import RuleSettings, WebhookSettings
from scheduler.notify.deliver import WEBHOOK_PREFIX, redacted
from scheduler.service.faults.places import NEVER_BEGAN, WRONG_DEVICE
from scheduler.service.outside.ports import Ports
from scheduler.store import due, events, outbox, runs
from scheduler.store.events import Event
from scheduler.store.runs import UnknownRun
from scheduler.views.needs import RAISED

_TOLD_ONCE_SECONDS = 6 * 3_600
_EVENTS_AT_ONCE = 500
_LINES_MAX = 20
_WHY_MAX = 200
_SURPRISE_SECONDS = 600


class _Alert(NamedTuple):
    """What an event tells, the command to begin with, and what a need that tells the same is called."""

    words: str
    command: str = ""
    need: str = ""


_JOB, _RUN = "schedctl queue show {}", "schedctl runs show {}"
_DEVICE = "it gave another accelerator than it promises and is closed for a while; no job is blamed"
_ALERTS = {
    "quota.orphan_suspected": _Alert(
        "the account was used by something that is not ours", "schedctl runs list --pool {}", "use by others suspected"
    ),
    WRONG_DEVICE: _Alert(_DEVICE, "schedctl pools open {}", "wrong accelerator"),
    NEVER_BEGAN: _Alert(
        "its session ended before the command had begun, and it is closed for a while; no job is blamed"
    ),
    "session.offered": _Alert(
        "a session waits for a person to take it", "schedctl handover claim {}", "session offered"
    ),
    "session.late": _Alert("a session ran after it had been given up, and what it was billed is booked", _RUN),
    "session.lost": _Alert("what a session left did not come home", _RUN),
    "session.orphan": _Alert(
        "a session of ours runs that no run names, and its time is not settled",
        "schedctl doctor",
        "session without a run",
    ),
    "quota.adjusted": _Alert("the platform counts otherwise than our books", "schedctl quota"),
    "job.stalled": _Alert("its session made no progress and was ended", _JOB),
    "job.crashes": _Alert("two sessions in a row failed within a minute of their start"),
    "job.fail": _Alert("the job failed", _JOB, "job failed"),
    "job.park": _Alert("the job is held until a person releases it", _JOB, "job held"),
    "checkpoint.quarantined": _Alert("a checkpoint is damaged", "schedctl checkpoints verify", "checkpoint damaged"),
    "daemon.started": _Alert("the daemon started", "schedctl status"),
    "report.failed": _Alert("the weekly report could not be made", "schedctl report weekly", "report not made"),
    RAISED: _Alert("needs a person"),
}
# What rules tell besides; other kinds of events are named as they are.
_ALSO = {"job.finish": "the job is done", "run.accept": "its session began", "run.end": "its session ended"}
RULES = "rules"
_READ = "{}-read"  # of a reader of the event log: the id of the newest event that it has read, kept among what is due
_BEGINS = ("daemon.started", "daemon.reloaded")
WEBHOOK = "webhook"
_OURS = frozenset({"letter.failed", "letter.given_up"})  # a message about a message would never end
_READ_AT_ONCE = 2_000  # the others come with the next look


def events_since(tx: Connection, since: int) -> list[Event]:
    """Return the events that alerts since ``since`` are made of; in a bad night they are many."""
    instant = since - _TOLD_ONCE_SECONDS
    limit = _EVENTS_AT_ONCE
    while True:
        recent = events.tail(tx, limit=limit, kinds=_ALERTS)
        if len(recent) < limit or recent[0].at < instant:
            return recent
        limit *= 4


def alerts_in(recent: Sequence[Event], read: int) -> list[Event]:
    """Return the events after the one ``read`` that are to be sent.

    An event is left out if one was sent about the same subject in the six hours before. An action
    required is reported where no other event of its subject is: a job that failed is one line.
    """
    data: dict[tuple[str, str], int] = {}
    news = []
    happened = {(_alert_of(event).need, event.subject) for event in recent}
    for event in recent:
        if event.kind == "quota.adjusted" and abs(event.data.get("seconds", 0)) < _SURPRISE_SECONDS:
            continue
        if event.kind == RAISED and (event.data.get("what"), event.subject) in happened:
            continue
        at = event.kind + str(event.data.get("what", "")), event.subject
        if event.at - data.get(at, -_TOLD_ONCE_SECONDS) >= _TOLD_ONCE_SECONDS:
            data[at] = event.at
            if event.id > read:
                news.append(event)
    return news


def alert_message(news: Sequence[Event]) -> dict[str, Any]:
    """Return one message about all of ``news``, one at least: what happened to which job, and why if that is known."""
    text = "\n".join([*lines_about(news), "", "See: schedctl status", ""])
    return {"subject": f"Training: {_line(news[0])}", "text": text}


def lines_about(news: Sequence[Event]) -> list[str]:
    """Return a line for each event of any kind, and how many more there are where they are too many."""
    lines = [_line(event) + (f": {why}" if (why := _why(event)) else "") for event in news[:_LINES_MAX]]
    return lines if len(news) <= _LINES_MAX else [*lines, f"and {len(news) - _LINES_MAX} more"]


def _line(event: Event) -> str:
    return f"{_printable(event.subject)}: {_printable(_alert_of(event).words)}"


def _alert_of(event: Event) -> _Alert:
    if event.kind == RAISED:
        return _Alert(str(event.data.get("what")), str(event.data.get("next")))
    alert = _ALERTS.get(event.kind) or _Alert(_ALSO.get(event.kind, event.kind))
    return alert._replace(command=alert.command.format(event.subject))


def _why(event: Event) -> str:
    """Return what the event tells of its cause, which is a platform's or a program's own words in places."""
    after = event.data.get("to")
    reason = event.data.get("why") or (after.get("message") or after.get("why") if isinstance(after, dict) else "")
    if not reason and "seconds" in event.data:
        reason = f"{event.data['seconds'] / 3_600:+.2f} h"
    line = _printable(str(reason or ""))[:_WHY_MAX].strip()
    command = _alert_of(event).command
    return f"{line}{'. ' * bool(line)}Begin with: {_printable(command)}" if command else line


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>&" else " " for c in text)


@dataclass(frozen=True, slots=True)
class NotificationRule:
    """Events whose kind matches one of ``events`` and whose job one of ``jobs``, patterns like ``job.*``, go ``to``.

    ``to`` are names of channels; ``webhook`` sends each event by itself instead of one message about all.
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


def write_rule_messages(ports: Ports, rules: Sequence[NotificationRule], now: int) -> None:
    """Put into the outbox what happened since the last time. Raises StoreFailure."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
        read = read_up_to(tx, planned, RULES)
        unread = events.after(tx, read, _READ_AT_ONCE) if rules else []
        names = {event.id: _names(tx, event) for event in unread}
    if not rules:
        if RULES in planned or _READ.format(RULES) in planned:  # events before the first rule are not sent
            with ports.write() as tx:
                forget_reader(tx, RULES)
        return
    if not unread and _READ.format(RULES) in planned:
        return
    with ports.write() as tx:
        for rule in rules:
            wanted = [event for event in unread if rule.wants(event, names[event.id])]
            for event in wanted if rule.webhook else ():
                body = redacted({"event": document(event, names[event.id])}, ports.redact)
                outbox.add(tx, WEBHOOK, str(event.id), rule.to[0], body, now)
            for channel in rule.to if wanted and not rule.webhook else ():
                body = redacted(rule_message(rule, wanted), ports.redact)
                outbox.add(tx, RULES, f"{rule.name}-{read}", channel, body, now)
        forget_reader(tx, RULES)
        set_read(tx, RULES, unread[-1].id if unread else read)


def document(event: Event, names: Collection[str]) -> dict[str, Any]:
    """Return an event as webhooks get it; ``jobs`` are those it is about, as far as it is about any."""
    return {**asdict(event), "jobs": sorted(names)}


def rule_message(rule: NotificationRule, wanted: Sequence[Event]) -> dict[str, Any]:
    """Return one message about all events of a rule, one at least."""
    lines = lines_about(wanted)
    return {
        "subject": f"Training: {lines[0]}"[:200],
        "text": "\n".join([*lines, "", f"Rule {rule.name}.", ""]),
    }


def read_up_to(tx: Connection, planned: Mapping[str, int], reader: str) -> int:
    """Return up to which event a reader has read. Events are read in the order of their commits, so none is missed.

    A new reader begins with the daemon that has its settings: what happens in its first minute is reported as well.
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


def rules_of(
    rules: Iterable[RuleSettings], webhooks: Iterable[WebhookSettings], channels: Iterable[str]
) -> tuple[NotificationRule, ...]:
    """Return the rules of the settings, each with the names of the ``channels`` that it sends to."""
    names = list(channels)
    chosen = [
        # Apprise's channels are named by their addresses, which the settings keep to themselves.
        NotificationRule(
            rule.name,
            rule.events,
            rule.jobs,
            tuple(name for name in names if name in rule.to or name.partition("-")[0] in rule.to),
        )
        for rule in rules
    ]
    hooks = [
        NotificationRule(one.name, one.events, one.jobs, (WEBHOOK_PREFIX + one.name,), webhook=True) for one in webhooks
    ]
    return (*chosen, *hooks)
