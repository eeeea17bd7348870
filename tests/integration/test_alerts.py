"""Reports and alerts are written when they are due, once, and arrive once whatever is down meanwhile."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from jobs.problem import Refusal
from jobs.spec import Gate, JobSpec
from scheduler.clock import SchedulerClock, system_clock
from scheduler.core.job import Cancelled, Done, Failed, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.notify.deliver import DeliveryFailed
from scheduler.notify.mail import Mailing, mail, post
from scheduler.notify.rules import NotificationRule, alert_message, alerts_in
from scheduler.service.requests import queue
from scheduler.store import due, events, jobs, outbox, plans
from scheduler.store.engine import Database
from scheduler.store.errors import Fenced
from scheduler.store.events import Event
from scheduler.views.needs import needs, watch_needs

NOW = 1_795_000_000
REAL = system_clock()


class Silent:
    """A log that keeps nothing."""

    def __getattr__(self, level: str) -> Any:
        return lambda *_, **__: None


def ports_on(database: Database, clock: SchedulerClock = REAL) -> Any:
    return cast(
        "Any",
        SimpleNamespace(
            database=database, epoch=0, write=database.write, log=Silent(), pools={}, clock=clock, redact=str
        ),
    )


class Box:
    """A channel that keeps what it carries, and takes nothing while it is ``away``."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.bodies: list[Any] = []
        self.away = ""

    def send(self, key: str, body: Any) -> None:
        """Keep the key."""
        if self.away:
            raise DeliveryFailed(self.away)
        self.sent.append(key)
        self.bodies.append(body)


def test_a_deadline_that_comes_to_be_at_risk_is_told_once_and_again_when_it_was_safe_between(
    database: Database,
) -> None:
    box = Box()
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    spec = JobSpec(
        name="ufm", role="manager", command=("x",), target_step=100, steps_per_hour=10.0, deadline=NOW + 20 * HOUR
    )
    with database.write() as tx:
        jobs.add(tx, spec, NOW)
    ports = ports_on(database)

    def look(at: int, planned_hours: int) -> list[str]:
        with database.write() as tx:
            place = Placement("p", at, at + planned_hours * HOUR, (PlannedLane("ufm", 1, 10 * planned_hours),))
            plans.save(tx, Plan(at, (place,), ()), at)
        for later in (at, at + HOUR):
            watch_needs(ports, later, 0)
            mail(ports, mailing, later)
        with database.read() as tx:
            found = events.tail(tx, kinds=("need.raised", "need.settled"))
        assert {event.data["what"] for event in found} <= {"deadline at risk"}
        return [event.kind.removeprefix("need.") for event in found]

    mail(ports, mailing, NOW)
    assert look(NOW + HOUR, 10) == [], "done after 11 hours, after 15 at the latest"
    assert look(NOW + 8 * HOUR, 10) == ["raised"], "after 18 hours, after 22 at the latest"
    assert look(NOW + 10 * HOUR, 10) == ["raised"], "told once"
    assert look(NOW + 12 * HOUR, 0) == ["raised"], "nothing is planned at all"
    with database.write() as tx:
        jobs.note_progress(tx, "ufm", 90, None)
    assert look(NOW + 14 * HOUR, 5) == ["raised", "settled"]
    assert len(box.sent) == 1


def test_a_gate_that_can_no_longer_open_is_told_once_and_again_when_it_could_between(database: Database) -> None:
    box = Box()
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    main = JobSpec(name="uff-main", role="main", command=("x",), target_step=100, steps_per_hour=10.0)
    near, far = (
        replace(main, name=name, role="manager", gate=Gate("uff-main", at))
        for name, at in (("near", 0.3), ("far", 0.5))
    )
    with database.write() as tx:
        for spec in (main, near, far):
            jobs.add(tx, spec, NOW)
        jobs.note_progress(tx, "uff-main", 30, None)
    ports = ports_on(database)

    def become(state: Any, at: int) -> list[tuple[str, str]]:
        with database.write() as tx:
            jobs.change_state(tx, "uff-main", jobs.get(tx, "uff-main").state, state, "prepared", at)
        for later in (0, HOUR):
            watch_needs(ports, at + later, 0)
            mail(ports, mailing, at + later)
        with database.read() as tx:
            return [
                (each.kind.removeprefix("need."), each.subject)
                for each in events.tail(tx, kinds=("need.raised", "need.settled"))
                if each.data["what"] == "dependency cannot be met"
            ]

    mail(ports, mailing, NOW)
    told = [("raised", "far")]
    assert become(Failed("oom", "out of memory", NOW), NOW + HOUR) == told, "near has what it waits for"
    assert len(box.sent) == 1
    assert become(Queued(NOW), NOW + 8 * HOUR) == [*told, ("settled", "far")]
    assert become(Cancelled("mia", NOW), NOW + 16 * HOUR)[2:] == told
    assert len(box.sent) == 2


def test_a_night_of_a_thousand_alerts_loses_none_of_them(database: Database) -> None:
    messages: list[Any] = []
    box = cast("Any", SimpleNamespace(send=lambda _, body: messages.append(body)))
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    mail(ports_on(database), mailing, NOW)
    with database.write() as tx:
        for number in range(1_200):
            events.append(tx, "job.fail", f"job-{number}", NOW + 1 + number // 10)
    mail(ports_on(database), mailing, NOW + HOUR)
    (message,) = messages
    assert message["text"].startswith("job-0: the job failed")
    assert "and 1180 more" in message["text"]


def test_a_report_goes_out_once_a_week_across_clock_changes_and_down_time(database: Database) -> None:
    box = Box()
    zone = "America/New_York"
    mailing = Mailing({"box": box}, zone, Calendar("week", zone, 0, 8 * HOUR), 900, None)
    start = 1_793_000_000
    for step in range(40 * 4):
        if not 50 <= step < 75:  # switched off when one is due
            mail(ports_on(database), mailing, start + step * 6 * HOUR)
    weeks = [key for key in box.sent if key.startswith("weekly-report")]
    assert len(weeks) == len(set(weeks)) == 6
    assert "weekly-report-2026-W44" in weeks  # the week in which the clock goes back


def test_one_look_after_weeks_of_down_time_brings_the_report_of_each_of_them(database: Database) -> None:
    """Seed 2008766 of the simulation: one report with each look, and the daemon was down again before the third."""
    box = Box()
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC", 0, 8 * HOUR), 900, None)
    for at in (NOW, NOW + 20 * DAY, NOW + 21 * DAY):
        mail(ports_on(database), mailing, at)
    assert [key for key in box.sent if key.startswith("weekly")] == [
        "weekly-report-2026-W47",
        "weekly-report-2026-W48",
        "weekly-report-2026-W49",
    ]


def test_a_report_that_cannot_be_made_is_not_skipped_for_that_of_the_next_week(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it is tried: its week is that which was due, and those after it follow in their order."""
    box = Box()
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC", 0, 8 * HOUR), 900, None)
    ports = ports_on(database)
    mail(ports, mailing, NOW)
    late = NOW + 14 * DAY
    with monkeypatch.context() as patch:
        patch.setattr("scheduler.notify.mail.make_report", lambda *_: 1 / 0)
        for minute in range(120):
            mail(ports, mailing, late + minute * 60)
    with database.read() as tx:
        failed = [event.subject for event in events.tail(tx) if event.kind == "report.failed"]
    assert failed == ["2026-W47"] * 2, "once an hour"
    mail(ports, mailing, late + 2 * HOUR)
    assert [key for key in box.sent if key.startswith("weekly")] == ["weekly-report-2026-W47", "weekly-report-2026-W48"]


def test_a_report_that_cannot_be_made_is_seen_and_comes_later_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box()
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    with database.write() as tx:
        due.set_due(tx, "weekly-report", NOW)
    with monkeypatch.context() as patch:
        patch.setattr("scheduler.notify.mail.make_report", lambda *_: 1 / 0)
        mail(ports_on(database), mailing, NOW)
    with database.read() as tx:
        assert [(event.kind, event.data) for event in events.tail(tx)] == [
            ("report.failed", {"why": "ZeroDivisionError: division by zero"})
        ]
        assert [need.what for need in needs(tx, (), 0, NOW)] == ["report not made"]
    for later in (HOUR - 1, HOUR, 2 * HOUR):
        mail(ports_on(database), mailing, NOW + later)
    assert [key for key in box.sent if key.startswith("weekly")] == ["weekly-report-2026-W46"]
    with database.read() as tx:
        assert needs(tx, (), 0, NOW + 2 * HOUR) == []


def test_a_report_that_another_daemon_writes_is_no_failure(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any) -> Any:
        raise Fenced(0)

    monkeypatch.setattr("scheduler.notify.mail.make_report", lose)
    mailing = Mailing({"box": Box()}, "UTC", Calendar("week", "UTC"), 900, None)
    with database.write() as tx:
        due.set_due(tx, "weekly-report", NOW)
    with pytest.raises(Fenced):
        mail(ports_on(database), mailing, NOW)
    with database.read() as tx:
        assert events.tail(tx) == []


def test_quiet_hours_include_their_first_second_and_not_their_end(database: Database) -> None:
    box, ports, midnight = Box(), ports_on(database), NOW - NOW % DAY
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, DailyHours("UTC", 0, 7 * HOUR))
    mail(ports, mailing, midnight - HOUR)
    with database.write() as tx:
        events.append(tx, "job.fail", "ufm", midnight - 1)
    for at in (midnight, midnight + 7 * HOUR - 1):
        mail(ports, mailing, at)
        assert box.sent == []
    mail(ports, mailing, midnight + 7 * HOUR)
    assert len(box.sent) == 1


def test_alerts_of_quiet_hours_come_in_one_message_afterwards(database: Database) -> None:
    box = Box()
    midnight = NOW - NOW % DAY
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, DailyHours("UTC", 0, 7 * HOUR))
    ports = ports_on(database)
    mail(ports, mailing, midnight)
    for hour in range(12):
        with database.write() as tx:
            events.append(tx, "job.fail", f"job-{hour}", midnight + hour * HOUR + 1)
            events.append(tx, "job.fail", "same", midnight + hour * HOUR + 1)
        mail(ports, mailing, midnight + hour * HOUR + 1_800)
        assert bool(box.sent) == (hour >= 7)
    assert len(box.sent) == len(set(box.sent)) == 5


def test_an_alert_tells_what_happened_to_whom_and_why() -> None:
    """Whatever words a platform used, a message holds no markup of theirs and no control characters."""
    failed = {"from": {}, "to": {"why": "oom", "message": "CUDA out of <memory>\x1b[2J", "at": NOW}}
    news = [
        Event(1, NOW, "job.fail", "ufm", "daemon", failed),
        Event(2, NOW, "quota.orphan_suspected", "kaggle", "daemon", {"seconds": 2_700}),
        Event(3, NOW, "checkpoint.quarantined", "jobs/ucm/manifests/1.json", "daemon", {"why": "x" * 999}),
        *(Event(number, NOW, "daemon.started", "daemon", "daemon", {"pid": 7}) for number in range(4, 24)),
    ]
    message = alert_message(news)
    lines = message["text"].splitlines()
    assert message["subject"] == "Training: ufm: the job failed"
    assert lines[0] == "ufm: the job failed: CUDA out of  memory  [2J. Begin with: schedctl queue show ufm"
    used, begin = "the account was used by something that is not ours: +0.75 h", "schedctl runs list --pool kaggle"
    assert lines[1] == f"kaggle: {used}. Begin with: {begin}"
    assert lines[2].endswith(f": a checkpoint is damaged: {'x' * 200}. Begin with: schedctl checkpoints verify")
    assert lines[3] == "daemon: the daemon started: Begin with: schedctl status"
    assert lines[20:] == ["and 3 more", "", "See: schedctl status"]


def test_the_same_alert_is_told_once_in_six_hours() -> None:
    found = [Event(n, NOW + n * HOUR, "job.fail", "ufm", "daemon", {}) for n in range(13)]
    assert [event.id for event in alerts_in(found, -1)] == [0, 6, 12]
    assert [event.id for event in alerts_in(found, 0)] == [6, 12]


def test_a_mail_server_away_for_two_days_and_a_slack_out_of_order_make_the_report_late_seen_and_sent_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that cannot be made on top of it; nothing of all this raises, so the daemon goes on."""
    mailbox, slack, friend = Box(), Box(), Box()
    mailbox.away, slack.away = "connection refused", "Slack answered 500"
    channels = {"email": mailbox, "slack": slack, "friend": friend}
    ports, mailing = ports_on(database), Mailing(channels, "UTC", Calendar("week", "UTC"), 900, None)
    with database.write() as tx:
        due.set_due(tx, "weekly-report", NOW)
    with monkeypatch.context() as patch:
        patch.setattr("scheduler.notify.mail.make_report", lambda *_: 1 / 0)
        mail(ports, mailing, NOW)
    for minute in range(0, 2 * 24 * 60, 10):
        mail(ports, mailing, NOW + minute * 60)
    with database.read() as tx:
        late = {
            need.subject: need.why for need in needs(tx, (), 0, NOW + 2 * DAY) if need.what == "message not delivered"
        }
        tried = {message.channel: message.attempts for message in outbox.pending(tx, NOW + 3 * DAY)}
    assert late["email"].endswith("connection refused")
    assert late["slack"].endswith("Slack answered 500")
    assert 47 <= tried["email"] <= 60, "once an hour in the end"
    mailbox.away = slack.away = ""
    for hour in range(48, 72):
        mail(ports, mailing, NOW + hour * HOUR)
    for box in (mailbox, slack, friend):
        assert box.sent.count("weekly-report-2026-W46") == 1
        assert len(box.sent) == len(set(box.sent)) == 2, "the report, and one alert that it had failed"
    with database.read() as tx:
        assert not [need for need in needs(tx, (), 0, NOW + 3 * DAY) if need.what == "message not delivered"]


@pytest.mark.parametrize("at", [NOW - 10, NOW + 4_000])
def test_what_is_committed_late_under_an_earlier_instant_is_told(database: Database, at: int) -> None:
    """Events are read in the order of their commits; a cycle that took long wrote what lay before the last look."""
    box, ports = Box(), ports_on(database)
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    mail(ports, mailing, NOW)
    mail(ports, mailing, NOW + 2_000)
    with database.write() as tx:
        events.append(tx, "job.fail", "ufm", at)
    mail(ports, mailing, NOW + 2_899)
    assert box.sent == [], "looked for every 15 minutes"
    mail(ports, mailing, NOW + 4_001)
    mail(ports, mailing, NOW + 9_000)
    assert len(box.sent) == 1


def test_alerts_that_begin_after_reports_tell_what_is_committed_late(database: Database) -> None:
    box, ports = Box(), ports_on(database)
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    with database.write() as tx:
        due.set_due(tx, "weekly-report", NOW + 30 * DAY)
    mail(ports, mailing, NOW)
    with database.write() as tx:
        events.append(tx, "job.fail", "ufm", NOW - 10)
    mail(ports, mailing, NOW + 900)
    assert box.sent == [f"alerts-{NOW}"]


def test_what_is_due_is_written_once_and_each_channel_delivers_apart_from_the_others(database: Database) -> None:
    groups: list[tuple[str, list[str]]] = []
    apart: list[str] = []

    def gather(group: str, works: dict[str, Any]) -> None:
        groups.append((group, list(works)))
        for work in works.values():
            work()

    def run(work: Any) -> None:
        apart.append(groups[-1][0])
        work()

    boxes = {name: Box() for name in ("email", "slack", "webhook-board")}
    rule = NotificationRule("board", ("*",), ("*",), ("webhook-board",), webhook=True)
    channels = {name: boxes[name] for name in ("email", "slack")}
    hooks = {"webhook-board": boxes["webhook-board"]}
    mailing = Mailing(channels, "UTC", Calendar("week", "UTC"), 900, None, (rule,), hooks)
    ports = ports_on(database)
    ports.calls = SimpleNamespace(gather=gather)
    post(ports, mailing, run, NOW)
    with database.write() as tx:
        number = events.append(tx, "job.fail", "ufm", NOW + 1)
    post(ports, mailing, run, NOW + HOUR)
    assert [box.sent for box in boxes.values()] == [[f"alerts-{NOW}"], [f"alerts-{NOW}"], [f"webhook-{number}"]]
    assert groups == [("letters", [""]), ("mail", list(boxes))] * 2
    assert apart == ["letters", "mail", "mail", "mail"] * 2


def test_mail_that_was_just_set_up_tells_what_happened_in_its_first_minute(database: Database) -> None:
    box, ports = Box(), ports_on(database)
    rule = NotificationRule("all", ("job.*",), ("*",), ("box",))
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None, (rule,))
    with database.write() as tx:
        events.append(tx, "job.fail", "before", NOW - 60)
        events.append(tx, "daemon.started", "daemon", NOW)
        events.append(tx, "job.fail", "ufm", NOW + 5)
    mail(ports, mailing, NOW + 60)
    assert [key.partition("-")[0] for key in box.sent] == ["rules"], "at once"
    mail(ports, mailing, NOW + 960)
    assert len(box.sent) == 2
    texts = " ".join(str(body["text"]) for body in box.bodies)
    assert "daemon: the daemon started" in texts
    assert "ufm: the job failed" in texts
    assert "before" not in texts


def event(kind: str, at: int, **data: Any) -> Event:
    return Event(at, at, kind, "ufm", "daemon", data)


def test_the_same_about_the_same_is_told_again_after_six_hours_and_not_before() -> None:
    first, early, later = (event("job.fail", at) for at in (NOW, NOW + 6 * HOUR - 1, NOW + 6 * HOUR))
    assert alerts_in([first, early], NOW - 1) == [first]
    assert alerts_in([first, later], NOW - 1) == [first, later]
    assert alerts_in([first, later], NOW) == [later]
    assert alerts_in([first, early], NOW) == [], "what was told before counts"


@pytest.mark.parametrize(("seconds", "told"), [(599, 0), (600, 1), (-599, 0), (-600, 1)])
def test_books_that_differ_by_ten_minutes_are_told(seconds: int, told: int) -> None:
    assert len(alerts_in([event("quota.adjusted", NOW, seconds=seconds)], 0)) == told


def test_a_done_job_whose_last_checkpoint_is_damaged_is_listed_and_goes_on_when_released(database: Database) -> None:
    with database.write() as tx:
        for name in ("lost", "kept"):
            jobs.add(
                tx, JobSpec(name=name, role="manager", command=("train",), target_step=100, steps_per_hour=10), NOW
            )
            jobs.change_state(tx, name, Queued(NOW), Done(NOW), "finish", NOW)
        jobs.note_progress(tx, "kept", 100, None)
    with database.read() as tx:
        listed = [need for need in needs(tx, (), NOW, NOW) if need.what == "result lost"]
    assert [(need.subject, need.remedy) for need in listed] == [("lost", "schedctl queue release lost")]
    assert isinstance(queue.release(database, "lost", NOW, "anna").state, Queued)
    with pytest.raises(Refusal):
        queue.release(database, "kept", NOW, "anna")
    with database.read() as tx:
        assert [need.what for need in needs(tx, (), NOW, NOW)] == []
