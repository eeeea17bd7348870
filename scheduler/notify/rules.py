"""Rules and alerts: which events are sent to which people and channels. Webhooks get events as JSON.

The position in the event log is stored in the transaction of the messages. So each matching event is written to the
outbox once per receiver, and delivered at least once. An alert about one subject is repeated after six hours or more.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection

from config.settings import RuleSettings, WebhookSettings
from scheduler.notify.deliver import WEBHOOK_PREFIX, redacted
from scheduler.service.outside.ports import Ports
from scheduler.store import due, events, outbox, runs
from scheduler.store.events import Event
from scheduler.store.runs import UnknownRun
from scheduler.views.needs import RAISED

_SILENCE_SECONDS = 6 * 3_600
_EVENTS_AT_ONCE = 500
_LINES_MAX = 20
_WHY_MAX = 200
_SURPRISE_SECONDS = 600


class _Alert(NamedTuple):
    """The text of an event's alert, the command to begin with, and the name of the same action in the list of needs."""

    words: str
    command: str = ""
    need: str = ""


_TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("alerts.toml").read_text(encoding="utf-8"))
_ALERTS = {kind: _Alert(*words) for kind, words in _TEXTS.items()} | {RAISED: _Alert("an action is required")}
# Texts of events that only rules send. All other kinds of events are shown by their names.
_ALSO = {"job.finish": "the job is done", "run.accept": "its session began", "run.end": "its session ended"}
RULES = "rules"
_READ = "{}-read"  # key of a reader's position: the ID of the newest event that it has read
_BEGINS = ("daemon.started", "daemon.reloaded")
WEBHOOK = "webhook"
_OURS = frozenset({"letter.failed", "letter.given_up"})  # a message about a failed message could fail as well
_READ_AT_ONCE = 2_000  # further events are read in the next round


def events_since(tx: Connection, since: int) -> list[Event]:
    """Return the events of alerts from ``since`` on, and those of the six hours before, which may silence some."""
    instant = since - _SILENCE_SECONDS
    limit = _EVENTS_AT_ONCE
    while True:
        recent = events.tail(tx, limit=limit, kinds=_ALERTS)
        if len(recent) < limit or recent[0].at < instant:
            return recent
        limit *= 4


def alerts_in(recent: Sequence[Event], read: int) -> list[Event]:
    """Return the events after event ``read`` that are to be sent.

    An event is left out if an event of the same kind about the same subject was sent in the six hours before. A need is
    left out if another event about its subject says the same, so that a failed job is one line.
    """
    sent_at: dict[tuple[str, str], int] = {}
    news = []
    happened = {(_alert_of(event).need, event.subject) for event in recent}
    for event in recent:
        if event.kind == "quota.adjusted" and abs(event.data.get("seconds", 0)) < _SURPRISE_SECONDS:
            continue
        if event.kind == RAISED and (event.data.get("what"), event.subject) in happened:
            continue
        at = event.kind + str(event.data.get("what", "")), event.subject
        if event.at - sent_at.get(at, -_SILENCE_SECONDS) >= _SILENCE_SECONDS:
            sent_at[at] = event.at
            if event.id > read:
                news.append(event)
    return news


def alert_message(news: Sequence[Event]) -> dict[str, Any]:
    """Return one message about all events of ``news`` (at least one): subject and text with a line for each event."""
    text = "\n".join([*lines_about(news), "", "See: schedctl status", ""])
    return {"subject": f"Training: {_line(news[0])}", "text": text}


def lines_about(news: Sequence[Event]) -> list[str]:
    """Return one line for each of the first 20 events, and a line with the number of the others."""
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
    """Return the reason of an event, which may be text of a platform or a program, and the command to begin with."""
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
    """Sends events whose kind matches one of ``events`` and whose job matches one of ``jobs``, patterns like ``job.*``.

    ``to`` are names of channels. A ``webhook`` gets one message per event, other channels one about all events.
    """

    name: str
    events: tuple[str, ...]
    jobs: tuple[str, ...]
    to: tuple[str, ...]
    webhook: bool = False

    def wants(self, event: Event, names: Collection[str]) -> bool:
        """Return whether the rule applies to an event; ``names`` are its subject and the jobs of its run."""
        if event.kind in _OURS or not any(fnmatchcase(event.kind, pattern) for pattern in self.events):
            return False
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.jobs)


def write_rule_messages(ports: Ports, rules: Sequence[NotificationRule], now: int) -> None:
    """Write messages about the events since the last call to the outbox. Raises StoreFailure."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
        read = read_up_to(tx, planned, RULES)
        unread = events.tail(tx, read, _READ_AT_ONCE) if rules else []
        names = {event.id: _names(tx, event) for event in unread}
    if not rules:
        if RULES in planned or _READ.format(RULES) in planned:  # a later rule must not send earlier events
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
    """Return the JSON document of an event for webhooks; ``jobs`` are the jobs that it is about."""
    return {**asdict(event), "jobs": sorted(names)}


def rule_message(rule: NotificationRule, wanted: Sequence[Event]) -> dict[str, Any]:
    """Return one message about all events of a rule (at least one)."""
    lines = lines_about(wanted)
    return {"subject": f"Training: {lines[0]}"[:200], "text": "\n".join([*lines, "", f"Rule {rule.name}.", ""])}


def read_up_to(tx: Connection, planned: Mapping[str, int], reader: str) -> int:
    """Return the ID of the last event that a reader has read. IDs follow the order of commits, so no event is missed.

    A new reader begins with the event of the daemon's start or reload that brought its settings.
    """
    if (read := planned.get(_READ.format(reader))) is not None:
        return read
    if reader in planned:  # an older version stored the instant
        return events.newest_id(tx, before=planned[reader])
    began = events.tail(tx, limit=1, kinds=_BEGINS)
    return began[0].id - 1 if began else events.newest_id(tx)


def set_read(tx: Connection, reader: str, read: int) -> None:
    """Store the ID of the last event that a reader has read."""
    due.set_due(tx, _READ.format(reader), read)


def forget_reader(tx: Connection, reader: str) -> None:
    """Delete the position of a reader."""
    due.forget(tx, reader)
    due.forget(tx, _READ.format(reader))


def _names(tx: Connection, event: Event) -> list[str]:
    """Return the names that rules match: the subject of an event, and the jobs of its run if it is about a run."""
    if event.kind.partition(".")[0] in {"run", "session"}:
        with suppress(UnknownRun):
            return [event.subject, *(lane.job for lane in runs.get(tx, event.subject).lanes)]
    return [event.subject]


def rules_of(
    rules: Iterable[RuleSettings], webhooks: Iterable[WebhookSettings], channels: Iterable[str]
) -> tuple[NotificationRule, ...]:
    """Return the rules of the settings, each with the names of its channels."""
    names = list(channels)
    chosen = [
        # Channels of Apprise are named by a digest of their addresses, which are secret.
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
