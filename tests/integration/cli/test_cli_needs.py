"""What needs a person: one list, the same everywhere, whose commands work as typed and whose lines go when mended."""

import ast
import asyncio
import html
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog

from jobs.nouns.window import DAY, WEEK, Calendar
from jobs.payload.store.manifest import Component, Manifest
from jobs.spec import Gate
from scheduler.app import App, load_app
from scheduler.core import run as run_arrows
from scheduler.core.job import Active, Done, Failed, Held, Queued
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.reasons import Cause, DoesNotFit, SecretMissing
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.daemon import status_line
from scheduler.notify.mail import Mailing, mail
from scheduler.notify.rules import _ALERTS
from scheduler.service.faults.isolation import JOB_POISONED, POISONED, RECOVERED
from scheduler.service.requests import agents
from scheduler.service.versions import promotion
from scheduler.store import (
    checkpoints,
    conditions,
    deployments,
    due,
    evaluations,
    events,
    jobs,
    limits,
    outbox,
    runs,
    versions,
)
from scheduler.store.engine import Database
from scheduler.store.plans import save as save_plan
from scheduler.store.versions import Version
from scheduler.views import needs as service
from scheduler.views.long_work import WORK, Work
from tests.integration.cli.conftest import NOW, SETTINGS, Schedctl, spec
from tests.lab.judged import accept, fail_to_evaluate, reject, roll_back_while_deployed
from tests.lab.late import LATE, OFF, live_on, postpone, vanish

POOLS = ("odd", "desk-two", "unusable", "shut", "silent", "unread", "refusing", "shared")
BEFORE = NOW - 4_000
PLANNED = (Placement("desk", NOW + 20_000, NOW + 40_000, (PlannedLane("late", 1, 500),)),)
Change = Callable[[Any], object]


@dataclass(frozen=True)
class Kind:
    """One kind of need: how it comes up, about whom, and what mends it; None: its own command does."""

    subject: str
    comes: Change
    mended: Change | None = None
    after: int = 0  # seconds until it goes by itself
    typed: bool = True  # whether its command can be typed here; else another test does: tests/e2e/test_handover.py


def become(name: str, state: Any, **fields: Any) -> Change:
    def change(tx: Any) -> None:
        jobs.add(tx, spec(name, **fields), BEFORE)
        jobs.change_state(tx, name, jobs.get(tx, name).state, state, "prepared", BEFORE)

    return change


def wait_for_failed(tx: Any) -> None:
    become("parent", Failed("oom", "out of memory", BEFORE))(tx)
    jobs.add(tx, spec("child", gate=Gate("parent", 0.5)), BEFORE)


def misfit(tx: Any) -> None:
    jobs.add(tx, spec("wide"), BEFORE)
    jobs.add(tx, spec("late", deadline=NOW + DAY), BEFORE)
    jobs.add(tx, spec("sealed"), BEFORE)
    waiting = (
        Deferral("wide", DoesNotFit("8 x 80 GiB, fp16", "2 x 15 GiB")),
        Deferral("sealed", SecretMissing("HF_TOKEN", "", "there is no such credential", "put it there")),
    )
    save_plan(tx, Plan(BEFORE, (), waiting), BEFORE)


def replan(tx: Any) -> None:
    save_plan(tx, Plan(NOW, PLANNED, ()), NOW)


def refuse(tx: Any) -> None:
    """Let a pool refuse five launches in a row."""
    jobs.add(tx, spec("tried"), BEFORE)
    for number in range(5):
        run = reserved(tx, number, BEFORE + number)
        runs.close_lane(tx, run.key, 0, Outcome.REJECTED, None, None, "no capacity", BEFORE + number)
        ended = run_arrows.end(run.state, Outcome.REJECTED, BEFORE + number, None)
        runs.change_state(tx, run.key, run.state, ended, "end_rejected", BEFORE + number)


def take(tx: Any) -> None:
    """Let it take one: not before it says so is that known."""
    run = reserved(tx, 9, NOW)
    with_call = run_arrows.submit(run.state, NOW)
    runs.change_state(tx, run.key, run.state, with_call, "submit", NOW)
    assert len(service.refusals(tx, 0)["refusing"]) == 5
    runs.change_state(tx, run.key, with_call, run_arrows.accept(with_call, "remote", NOW), "accept", NOW)


def reserved(tx: Any, number: int, at: int) -> Run:
    lanes = (Lane(0, "tried", number + 1, (0,), None),)
    run = Run(f"uff-tried-{number}", "refusing", lanes, at, NOW + 9, NOW + 9, Reserved(at))
    runs.insert(tx, run, at)
    return run


def offer(tx: Any) -> None:
    """A session that nothing runs before a person takes it."""
    jobs.add(tx, spec("offered"), BEFORE)
    run = Run("uff-offer-0001", "desk-two", (Lane(0, "offered", 1, (0,), None),), BEFORE, NOW, NOW, Reserved(BEFORE))
    runs.insert(tx, run, BEFORE)
    events.append(tx, "session.offered", run.key, BEFORE, why="schedctl handover claim uff-offer-0001")


def poison_session(tx: Any) -> None:
    """A live session whose state nobody can handle, of a job that no plan can be made with."""
    jobs.add(tx, spec("odd-job"), BEFORE)
    jobs.change_state(tx, "odd-job", jobs.get(tx, "odd-job").state, Active("uff-odd-0001", BEFORE), "activate", BEFORE)
    run = Run("uff-odd-0001", "desk-two", (Lane(0, "odd-job", 1, (0,), None),), BEFORE, NOW, NOW, Reserved(BEFORE))
    runs.insert(tx, run, BEFORE)
    events.append(tx, POISONED, run.key, BEFORE, why="TypeError")


def rest(tx: Any) -> None:
    """The job's session ends; what it is then is judged anew."""
    jobs.change_state(tx, "odd-job", jobs.get(tx, "odd-job").state, Queued(NOW), "requeue", NOW)


def made_version(tx: Any, model: str) -> Version:
    jobs.add(tx, spec(model), BEFORE)
    manifest = Manifest(model, 1, 1, f"uff-{model}-0001", 0, None, BEFORE, 1, {}, (Component("w", "a" * 64, 3),))
    checkpoints.record(tx, manifest, BEFORE)
    made = versions.add(tx, Version(model, 0, manifest.key, "b" * 64, 1, "candidate", "", BEFORE), BEFORE, "tester")
    checkpoints.expire(tx, manifest.key, "its files are in no store here", BEFORE)
    return made


def fail_to_deploy(tx: Any) -> None:
    row = deployments.intend(tx, made_version(tx, "deployed"), "griffith", BEFORE, "daemon")
    deployments.move(tx, row, "returned", BEFORE, "the health check took too long")


def evaluating(tx: Any, model: str) -> Version:
    made = made_version(tx, model)
    evaluations.begin(tx, made, model, "c" * 64, "d" * 64, BEFORE)
    return versions.move(tx, made, "evaluate", "", BEFORE)


def judged(model: str, end: Callable[[Any, Version, int], object]) -> Change:
    return lambda tx: end(tx, evaluating(tx, model), BEFORE)


def accept_anyway(model: str) -> Change:
    return lambda tx: promotion.overrule(tx, versions.get(tx, model, 1), "accepted", "it will do", NOW, "mia")


def promote_voted(tx: Any) -> None:
    accept_anyway("voted")(tx)
    promotion.promote(tx, versions.get(tx, "voted", 1), "", NOW, "mia")


def vote_out(tx: Any) -> None:
    made_version(tx, "voted")
    promote_voted(tx)
    promotion.rollback(tx, "voted", "60 of 60 votes say that it is worse", BEFORE, "daemon")


def fail_to_deliver(tx: Any) -> None:
    outbox.add(tx, "alerts", "77", "email", {}, BEFORE)
    for _ in range(3):
        outbox.failed(tx, 1, BEFORE, "connection refused")


def fail_to_report(tx: Any) -> None:
    events.append(tx, "report.failed", "2026-W37", BEFORE, why="ZeroDivisionError")
    due.set_due(tx, service.REPORT_AGAIN, NOW)


def close(pool: str, until: int | None, why: str, cause: Cause = Cause.PERSON) -> Change:
    return lambda tx: limits.close_pool(tx, pool, until, why, BEFORE, cause=cause)


def happen(kind: str, subject: str, at: int = BEFORE, **data: Any) -> Change:
    return lambda tx: events.append(tx, kind, subject, at, **data)


def ask(tx: Any) -> None:
    """Let an agent propose what a person has to approve."""
    about = {"verb": "queue.hold", "args": {"job": "late"}, "digest": "", "preview": {}}
    events.append(tx, conditions.PROPOSED, "3f2a9c0d1b7e", BEFORE, "agent:mcp", why="more hours than today", **about)


FAILED = asdict(Work("letters", "failed", BEFORE, "connection refused"))
STANDING = asdict(Work("artifact store", "standing still", BEFORE, ""))
KINDS: dict[str, list[Kind]] = {
    "job held": [Kind("held", become("held", Held("the platform", "permanently refused", BEFORE)))],
    "job failed": [Kind("failed", become("failed", Failed("oom", "out of memory", BEFORE)))],
    "result lost": [Kind("lost", become("lost", Done(BEFORE)))],
    "dependency cannot be met": [Kind("child", wait_for_failed)],
    "job can never start": [Kind("wide", misfit, replan)],
    "secret missing": [Kind("sealed", lambda tx: None, replan)],
    "deadline at risk": [Kind("late", lambda tx: None, replan)],
    "pool cannot be used": [Kind("unusable", close("unusable", NOW + 9, "no credentials", Cause.CREDENTIALS))],
    "everything paused": [Kind("all pools", close(limits.EVERY, None, "power cut"))],
    "pool closed": [Kind("shut", close("shut", None, "account under review"))],
    "platform does not answer": [
        Kind(
            "silent", happen("pool.silent", "silent", since=BEFORE, why="no answer"), happen("pool.answers", "silent")
        ),
        Kind(
            "unread",
            close("unread", NOW + 600, "no answer", Cause.QUOTA_UNREADABLE),
            lambda tx: limits.open_pool(tx, "unread", NOW),
        ),
    ],
    "wrong accelerator": [Kind("odd", close("odd", NOW + 600, "a P100", Cause.WRONG_DEVICE))],
    "session offered": [Kind("uff-offer-0001", offer, happen("session.taken", "uff-offer-0001"), typed=False)],
    "session cannot be handled": [Kind("uff-odd-0001", poison_session, happen(RECOVERED, "uff-odd-0001"))],
    "session not known": [Kind(OFF, vanish, happen("run.clear", OFF), typed=False)],
    "session goes on unwanted": [Kind(LATE, lambda tx: live_on(tx, "desk-two", NOW), happen("session.left", LATE))],
    "job cannot be launched": [Kind("late-job", postpone, happen("job.activate", "late-job"))],
    "job cannot be planned": [Kind("odd-job", happen(JOB_POISONED, "odd-job", why="OverflowError"), rest)],
    "launches refused": [Kind("refusing", refuse, take)],
    "evaluation failed": [
        Kind("unscored@1", judged("unscored", fail_to_evaluate), accept_anyway("unscored"), typed=False)
    ],
    "version not accepted": [Kind("refused@1", judged("refused", reject), accept_anyway("refused"))],
    "version waits for promotion": [Kind("waiting@1", judged("waiting", accept))],
    "rolled back, still deployed": [
        Kind("served at griffith", judged("served", roll_back_while_deployed), accept_anyway("served"), typed=False)
    ],
    "version rolled back": [Kind("voted@1", vote_out, promote_voted)],
    "votes not read": [Kind("voted@1", happen("watch.blind", "voted@1", why="bad line"), after=WEEK, typed=False)],
    "deployment stopped": [Kind("deployed at griffith", fail_to_deploy)],
    "message not delivered": [Kind("email", fail_to_deliver, lambda tx: outbox.sent(tx, 1, NOW))],
    "report not made": [Kind("2026-W37", fail_to_report, lambda tx: due.forget(tx, service.REPORT_AGAIN))],
    "settings not reloaded": [
        Kind("daemon", happen("daemon.reload_refused", "daemon", why="bad"), happen("daemon.reloaded", "daemon"))
    ],
    "work failed": [Kind("letters", happen(WORK, "daemon", work=[FAILED, STANDING]), happen(WORK, "daemon", work=[]))],
    "work stands still": [Kind("artifact store", lambda tx: None, happen(WORK, "daemon", work=[]))],
    "use by others suspected": [Kind("shared", happen("quota.orphan_suspected", "shared", seconds=5_400), after=WEEK)],
    "session without a run": [
        Kind("uff-lost-0009", happen("session.orphan", "uff-lost-0009", pool="shared", remote_id="x"), after=7_200)
    ],
    "fact contradicted": [
        Kind(
            "session_cap_seconds of odd",
            happen("fact.contradicted", "session_cap_seconds of odd", what="12h", why="it was cut after 9h"),
            happen("fact.settled", "session_cap_seconds of odd", what="12h"),
        )
    ],
    "agent asks": [Kind("3f2a9c0d1b7e", ask, happen(agents.REJECTED, "3f2a9c0d1b7e", why=""), typed=False)],
    "checkpoint damaged": [
        Kind(
            "jobs/x/manifests/1.json",
            happen("checkpoint.quarantined", "jobs/x/manifests/1.json", why="bits"),
            after=WEEK,
        )
    ],
}
ALL = [(what, kind) for what, kinds in KINDS.items() for kind in kinds]


@dataclass
class Household:
    """A database in which everything that needs a person has come up."""

    app: App
    database: Database

    def found(self, at: int = NOW) -> dict[tuple[str, str], Any]:
        """Return the needs by kind and subject."""
        with self.database.read() as tx:
            found = service.needs(tx, self.app.pools, at - WEEK, at)
        return {(need.what, need.subject): need for need in found}

    def change(self, change: Change) -> None:
        """Let something happen."""
        with self.database.write() as tx:
            change(tx)

    def get(self, path: str) -> httpx.Response:
        """Ask the status page."""
        from scheduler.web.site import site

        async def ask() -> httpx.Response:
            guarded = site(self.app, None, structlog.get_logger())
            transport = httpx.ASGITransport(guarded, client=("127.0.0.1", 9))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
                return await client.get(path)

        return asyncio.run(ask())


@pytest.fixture
def household(home: Path, database: Database) -> Iterator[Household]:
    pools = "".join(f'\n[[pools]]\nname = "{name}"\nplatform = "local"\n' for name in POOLS)
    (home / "config.toml").write_text(SETTINGS + pools)
    made = Household(load_app(home / "config.toml", {}), database)
    assert made.found() == {}
    for _, kind in ALL:
        made.change(kind.comes)
    yield made
    made.app.reading.close()


def test_every_kind_of_need_that_there_is_is_tried_here() -> None:
    tree = ast.parse(Path(service.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Need"]
    loops = [
        node.iter.elts for node in ast.walk(tree) if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple)
    ]
    rows = [row.elts for rows in loops for row in rows if isinstance(row, ast.Tuple)]
    tried = [*(call.args[0] for call in calls), *(row[1] for row in rows)]  # of the table of standing conditions
    assert {word.value for word in tried if isinstance(word, ast.Constant)} == set(KINDS)


def test_whatever_needs_a_person_is_shown_everywhere_alike(household: Household, schedctl: Schedctl) -> None:
    found = household.found()
    expected = {(what, kind.subject) for what, kind in ALL} | {("job failed", "parent")}
    assert set(found) == expected
    timeless = {"result lost", "job can never start", "secret missing", "deadline at risk", "message not delivered"}
    assert all(need.why and (need.since or what in timeless) for (what, _), need in found.items())
    assert [need for (what, _), need in found.items() if what in need.why] == [], "what is said twice"
    messages: list[Any] = []
    box = SimpleNamespace(send=lambda _, body: messages.append(body))
    mailing = Mailing({"box": box}, "UTC", Calendar("week", "UTC"), 900, None)
    said: list[str] = []
    log = SimpleNamespace(warning=lambda event, **fields: said.append(str(fields)), info=lambda *_, **__: None)
    ports: Any = SimpleNamespace(
        database=household.database,
        epoch=0,
        write=household.database.write,
        log=log,
        pools=household.app.pools,
        clock=SimpleNamespace(wall_seconds=float),
        redact=str,
    )
    mail(ports, mailing, BEFORE - 60)
    with household.database.write() as tx:
        due.set_due(tx, "alerts-read", 0)  # it was there when all of this happened
    assert service.watch_needs(ports, NOW, NOW - WEEK) == len(found)
    assert service.watch_needs(ports, NOW, NOW - WEEK) == len(found), "and nothing is told twice"
    mail(ports, mailing, NOW + 900)
    told = "\n".join(message["text"] for message in messages)
    page, api = html.unescape(household.get("/").text), household.get("/api/v1/status").json()
    status, top = schedctl("status", "--all").out, schedctl("top", "--once").out
    report = schedctl("report", "weekly").out
    listed = {(need["what"], need["subject"], need["remedy"]) for need in api["needs"]}
    listed_too = {
        (need["what"], need["subject"], need["remedy"]) for need in schedctl("status", "--json").document["needs"]
    }
    assert listed == listed_too == {(what, about, need.remedy) for (what, about), need in found.items()}
    cut = 0
    for (what, about), need in found.items():
        for place in (page, status, report):
            assert what in place
            assert about in place
            assert need.remedy in place
        cut += f"{about}: " not in told  # a message has twenty lines and says how many more there are
        if f"{about}: " in told:
            assert (
                need.remedy in told or what in {one.need for one in _ALERTS.values()} or f"{about}: {what}" not in told
            )
        assert any(what in line and need.remedy in line for line in said)
    assert cut == 0 or f"and {cut} more" in told
    assert len(said) == len(found)
    assert "Actions required" in top
    assert f"uff_needs {len(found)}" in household.get("/metrics").text
    with household.database.read() as tx:
        assert f"{len(found)} actions required" in status_line(tx, len(found))


@pytest.mark.parametrize(("what", "kind"), ALL, ids=[f"{what}, {kind.subject}" for what, kind in ALL])
def test_the_command_works_as_typed_and_the_need_goes_when_it_is_mended(
    household: Household, schedctl: Schedctl, what: str, kind: Kind
) -> None:
    need = household.found()[what, kind.subject]
    program, *words = shlex.split(need.remedy)
    assert program == "schedctl"
    if kind.typed:
        typed = schedctl(*words)
        assert typed.code in ({0, 9} if words[0] == "doctor" else {0}), typed.err
    if kind.mended is not None:
        assert (what, kind.subject) in household.found(), "looking is not mending"
        household.change(kind.mended)
    elif kind.after:
        assert (what, kind.subject) in household.found()
    assert (what, kind.subject) not in household.found(NOW + kind.after)
    with household.database.read() as tx:
        assert [
            one
            for one in checkpoints.everything(tx)
            if one.manifest.job not in {"deployed", "unscored", "refused", "voted", "waiting", "served"}
        ] == []
        assert not isinstance(jobs.get(tx, "held").state, Queued) or what == "job held"
