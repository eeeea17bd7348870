"""Rules for messages: which events they report, in which words, and where they begin to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.window import HOUR, Calendar
from jobs.spec import JobSpec
from scheduler.core.run import Lane, Run, Running
from scheduler.notify.mail import Mailing, mail
from scheduler.notify.rules import NotificationRule, alerts_in, document, lines_about, rule_message
from scheduler.store import due, events, jobs, runs
from scheduler.store.events import Event
from scheduler.views.needs import RAISED
from tests.lab.outbox import NOW, happen, ports_on

if TYPE_CHECKING:
    from scheduler.store.engine import Database

ALL = NotificationRule("all", ("*",), ("*",), ("slack",))


class Box:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, key: str, body: Any) -> None:
        """Keep a message."""
        self.sent.append(dict(body))


def lines_sent(database: Database, box: Box, *rules: NotificationRule, now: int) -> list[str]:
    """Return the lines that a round of mail brings, of rules alone."""
    before = len(box.sent)
    mailing = Mailing({"slack": box}, "UTC", Calendar("week", "UTC", 0, 0), 10 * HOUR, None, rules)
    mail(ports_on(database), mailing, now)
    return [line for message in box.sent[before:] for line in message["text"].splitlines() if ": " in line]


def event(number: int, kind: str, subject: str = "ufm", **data: Any) -> Event:
    return Event(number, NOW, kind, subject, "daemon", data)


def test_an_action_that_another_alert_tells_of_is_no_line_of_its_own() -> None:
    failed, raised = event(1, "job.fail"), event(2, RAISED, what="job failed", next="schedctl queue show ufm")
    elsewhere = event(3, RAISED, "ucm", what="job failed", next="schedctl queue show ucm")
    assert alerts_in([failed, raised, elsewhere], 0) == [failed, elsewhere]
    assert alerts_in([raised], 0) == [raised]


@pytest.mark.parametrize(("count", "last"), [(20, "ufm: the job is done"), (21, "and 1 more")])
def test_twenty_lines_are_sent_whole(count: int, last: str) -> None:
    lines = lines_about([event(number, "job.finish") for number in range(count)])
    assert (len(lines), lines[-1]) == (20 + (count > 20), last)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"to": {"message": "CUDA", "why": "oom"}}, ": CUDA"),
        ({"to": {"why": "oom"}}, ": oom"),
        ({"why": "mine", "to": {"why": "oom"}, "seconds": 7_200}, ": mine"),
        ({"seconds": 7_200}, ": +2.00 h"),
        ({"why": "  spaces  "}, ": spaces"),
        ({"to": "text"}, ""),
        ({}, ""),
    ],
)
def test_the_reason_is_the_events_own_words(data: dict[str, Any], words: str) -> None:
    assert lines_about([event(1, "pool.closed", "kaggle", **data)]) == [f"kaggle: pool.closed{words}"]


def test_a_subject_line_is_cut_and_names_are_in_order() -> None:
    message = rule_message(ALL, [event(1, "pool.closed", "kaggle", why="x" * 300)])
    assert message["subject"] == f"Training: kaggle: pool.closed: {'x' * 169}"
    assert len(message["subject"]) == 200
    assert document(event(1, "run.end"), ["urm", "ufm"])["jobs"] == ["ufm", "urm"]


def test_a_runs_event_is_one_of_its_jobs(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), NOW)
        lanes = (Lane(0, "ufm", 1, (0,), None),)
        runs.insert(tx, Run("uff-1", "kaggle", lanes, NOW, NOW + HOUR, NOW + HOUR, Running("r", NOW)), NOW)
    box, rule = Box(), NotificationRule("ufm", ("run.*", "pool.*"), ("ufm",), ("slack",))
    assert lines_sent(database, box, rule, now=NOW) == []
    for kind, subject in (("run.end", "uff-1"), ("run.end", "uff-2"), ("pool.closed", "uff-1")):
        happen(database, kind, subject, NOW + 1)
    assert lines_sent(database, box, rule, now=NOW + 60) == ["uff-1: its session ended"]


def test_a_rule_begins_with_what_happens_after_it_was_made(database: Database) -> None:
    """Also one that was removed for a while."""
    box = Box()
    happen(database, "job.finish", "before", NOW)
    assert lines_sent(database, box, ALL, now=NOW + 60) == []
    happen(database, "job.finish", "ufm", NOW + 61)
    assert lines_sent(database, box, ALL, now=NOW + 120) == ["ufm: the job is done"]
    assert lines_sent(database, box, ALL, now=NOW + 180) == [], "once"
    assert lines_sent(database, box, now=NOW + 240) == []
    happen(database, "job.finish", "between", NOW + 241)
    assert lines_sent(database, box, now=NOW + 300) == []
    assert lines_sent(database, box, ALL, now=NOW + 360) == []
    happen(database, "job.finish", "ucm", NOW + 361)
    assert lines_sent(database, box, ALL, now=NOW + 420) == ["ucm: the job is done"]


def test_a_rule_reads_on_where_an_older_version_kept_an_instant(database: Database) -> None:
    happen(database, "job.finish", "before", NOW)
    happen(database, "job.finish", "ufm", NOW + 1)
    with database.write() as tx:
        due.set_due(tx, "rules", NOW + 1)
        newest = events.newest_id(tx)
    box = Box()
    assert lines_sent(database, box, ALL, now=NOW + 60) == ["ufm: the job is done"]
    with database.read() as tx:
        planned = due.next_due(tx)
    assert planned["rules-read"] >= newest
    assert "rules" not in planned, "which a second reader would begin with"
