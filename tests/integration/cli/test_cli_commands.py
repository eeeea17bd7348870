"""What the commands do and show to people."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.store.manifest import sha256_file
from jobs.spec import JobSpec
from platforms.local.spawn import obstacle
from scheduler.cli.shell.exits import Exit
from scheduler.core import run as arrows
from scheduler.core.job import Active, Cancelled, Held, Queued
from scheduler.core.run import Outcome, Stopping
from scheduler.service.requests.sessions import followed_log
from scheduler.store import checkpoints, events, jobs, limits, runs
from scheduler.store.engine import Database
from scheduler.wake import Waker
from tests.lab.patience import PATIENCE_SECONDS

Schedctl = Callable[..., Any]
KEY = "uff-uff-main-0001"
MANIFEST = "jobs/ulm/manifests/000000000500-000001.json"


def test_the_queue_is_listed_in_order_with_what_each_waits_for(world: Database, schedctl: Schedctl) -> None:
    lines = schedctl("queue", "list").out.splitlines()
    assert [line.split()[1] for line in lines] == ["JOB", "uff-main", "ufm", "ucm", "urm", "ulm"]
    assert lines[1].endswith("kaggle  runs as uff-uff-main-0001")
    # Mon 16:13 UTC is two hours later on a Berlin summer clock.
    assert lines[3].endswith("kaggle: no GPU hours of the week left, room again Mon 21 Sep 18:13 CEST")
    assert lines[4].endswith("by tester: data are being cleaned")


@pytest.mark.parametrize("flags", [(), ("--json",), ("--state", "held"), ("--state=held", "--state=done", "--json")])
def test_the_fast_listing_answers_exactly_as_the_command_tree(
    flags: tuple[str, ...], world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = schedctl("queue", "list", *flags)
    monkeypatch.setattr("scheduler.cli.main.parse_plain_command", lambda words: None)
    slow = schedctl("queue", "list", *flags)
    assert fast == slow
    assert fast.code == 0


def test_a_removed_command_says_what_serves_in_its_place(schedctl: Schedctl) -> None:
    done = schedctl("man")
    assert done.code == Exit.USAGE
    assert 'no command "man": the manual page was removed' in done.err
    assert "docs/reference/commands.md" in done.err


def test_the_listing_through_the_engine_is_the_same(
    world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL is read by the engine; the query and what is made of it are shared."""
    fast = schedctl("queue", "list", "--json")
    monkeypatch.setattr("scheduler.store.listing._from_sqlite", lambda url: None)
    assert schedctl("queue", "list", "--json") == fast


def test_a_thousand_jobs_are_listed(database: Database, schedctl: Schedctl) -> None:
    with database.write() as tx:
        for number in range(1_000):
            spec = JobSpec(f"job-{number:04d}", "manager", ("python",), 100, 10.0)
            jobs.add(tx, spec, 1_790_000_000)
    listed = schedctl("queue", "list", "--json").document["jobs"]
    assert [job["name"] for job in listed] == [f"job-{number:04d}" for number in range(1_000)]
    assert len(schedctl("queue", "list").out.splitlines()) == 1_001


def test_hostile_names_and_messages_do_not_steer_the_terminal(database: Database, schedctl: Schedctl) -> None:
    name = "evil\x1b[2J\x1b]0;title\x07\r\n\u202ename\u200b"
    with database.write() as tx:
        jobs.add(tx, JobSpec(name, "manager", ("rm\x1b[31m", "-rf\n"), 100, 10.0), 1_790_000_000)
        held = Held("mallory\x9b31m", "why\x07\0not", 1_790_000_000)
        jobs.change_state(tx, name, Queued(1_790_000_000), held, "hold", 1_790_000_000)
    for words in (["queue", "list"], ["queue", "show", name], ["plan", "explain", name]):
        typed = schedctl(*words)
        assert typed.code == 0
        assert all(line.isprintable() for line in typed.out.splitlines())
        assert "evil  name" in typed.out
    assert schedctl("queue", "list", "--json").document["jobs"][0]["name"] == name
    assert schedctl("queue", "show", "evil\x1b[2J").err.isprintable() is False  # only its line end is not
    assert all(line.isprintable() for line in schedctl("queue", "show", "evil\x1b[2J").err.splitlines())


def test_show_tells_all_about_a_job(world: Database, schedctl: Schedctl) -> None:
    shown = schedctl("queue", "show", "ufm").out
    for words in ("30% more of ufm", "uff-main at 20%", "runs as uff-uff-main-0001", "180", "3 times", KEY):
        assert words in shown


def test_secrets_that_a_database_holds_from_before_are_not_shown(database: Database, schedctl: Schedctl) -> None:
    """Definitions like this one are refused by now."""
    with database.write() as tx:
        old = {"HF_TOKEN": "canary", "WANDB_MODE": "offline"}
        jobs.add(tx, JobSpec("old", "manager", ("python",), 100, 10.0, environment=old), 1_790_000_000)
    spec = schedctl("queue", "show", "old", "--json").document["job"]["spec"]
    assert spec["environment"] == {"HF_TOKEN": "[secret]", "WANDB_MODE": "offline"}


def test_models_are_added_once(database: Database, schedctl: Schedctl) -> None:
    assert schedctl("queue", "add", "--models").out == "Added uff-main, ufm.\n"
    assert schedctl("queue", "add", "--models").out == "All models are in the queue already.\n"


def test_settings_without_models_are_told_as_that(
    database: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDCTL_MODELS", "[]")
    assert schedctl("queue", "add", "--models").out.startswith("The settings name no models")


def test_a_job_file_and_options_that_change_it(database: Database, home: Path, schedctl: Schedctl) -> None:
    (home / "job.toml").write_text(
        'name = "tiny"\nrole = "main"\ncommand = ["train"]\ntarget_step = 5\nsteps_per_hour = 10\n'
    )
    added = schedctl("queue", "add", str(home / "job.toml"), "--weight", "3", "--command", "train 'a b'", "--json")
    (job,) = added.document["jobs"]
    assert (job["name"], job["weight"], job["spec"]["command"]) == ("tiny", 3.0, ["train", "a b"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--vram-gib", "80"], "needs 1 x 80 GiB, fp32; the best pool offers"),
        (["--pool", "desk", "--vram-gib", "25"], "needs 1 x 25 GiB, fp32; the best pool offers"),
    ],
)
def test_a_job_that_can_never_run_is_added_with_a_warning(
    flags: list[str], words: str, world: Database, schedctl: Schedctl
) -> None:
    typed = schedctl("queue", "add", "--name", "big", "--command", "train", "--target-step", "500", *flags)
    assert typed.code == 0
    assert typed.out == "Added big.\n"
    assert "warning: big can never start here" in typed.err
    assert words in typed.err


def test_a_job_that_only_has_to_wait_gets_no_warning(world: Database, schedctl: Schedctl) -> None:
    typed = schedctl("queue", "add", "--name", "fine", "--command", "true", "--target-step", "500")
    assert "warning" not in typed.err


def test_a_gate_on_an_unknown_job_is_refused_and_nothing_is_added(
    database: Database, home: Path, schedctl: Schedctl
) -> None:
    (home / "job.toml").write_text(
        'name = "x"\nrole = "main"\ncommand = ["a"]\ntarget_step = 5\nsteps_per_hour = 10\n'
        'gate = { parent = "nobody", fraction = 0.5 }\n'
    )
    assert schedctl("queue", "add", str(home / "job.toml")).code == 6
    assert schedctl("queue", "list", "--json").document == {"jobs": []}


def test_hold_release_and_cancel_leave_their_name_in_the_log(world: Database, schedctl: Schedctl) -> None:
    schedctl("queue", "hold", "ucm", "--why", "later")
    with world.read() as tx:
        assert jobs.get(tx, "ucm").state == Held("tester", "later", 1_790_000_000)
    schedctl("queue", "release", "ucm")
    schedctl("queue", "cancel", "ucm")
    with world.read() as tx:
        assert isinstance(jobs.get(tx, "ucm").state, Cancelled)
        history = events.tail(tx, subject="ucm")
    assert [(event.kind, event.by) for event in history[-3:]] == [
        ("job.hold", "tester"),
        ("job.release", "tester"),
        ("job.cancel", "tester"),
    ]


def test_a_running_job_is_held_when_its_session_has_ended(world: Database, schedctl: Schedctl) -> None:
    typed = schedctl("queue", "hold", "ufm")
    assert typed.out == "ufm is held as soon as uff-uff-main-0001 has saved and ended.\n"
    with world.read() as tx:
        state = jobs.get(tx, "ufm").state
    assert isinstance(state, Active)
    assert (state.wish, state.by) == ("hold", "tester")


def test_priority_and_place_are_changed(world: Database, schedctl: Schedctl) -> None:
    assert schedctl("queue", "priority", "ucm", "2.5").out == "ucm has priority 2.5.\n"
    assert schedctl("queue", "move", "ulm", "1").out == "ulm is at position 1.\n"
    listed = schedctl("queue", "list", "--json").document["jobs"]
    assert [job["name"] for job in listed] == ["ulm", "uff-main", "ufm", "ucm", "urm"]
    assert [job["position"] for job in listed] == [1, 2, 3, 4, 5]
    assert listed[3]["weight"] == 2.5


def test_a_change_wakes_the_daemon_and_says_so_when_none_listens(
    world: Database, home: Path, schedctl: Schedctl
) -> None:
    assert "No daemon runs here" in schedctl("queue", "hold", "ucm").err
    woken = threading.Event()
    waker = Waker(home / "state", woken.set)
    try:
        assert schedctl("queue", "release", "ucm").err == ""
        assert woken.wait(PATIENCE_SECONDS)
    finally:
        waker.close()


def test_the_plan_is_shown_with_sessions_a_picture_and_reasons(world: Database, schedctl: Schedctl) -> None:
    typed = schedctl("plan", "show")
    assert ": value 12.50 of at most 14.00 (89.3%), in hours times priority." in typed.out
    assert "5h 33m  desk  ucm" in typed.out
    assert ".[=]..." in typed.out  # 5.5 h of a week
    assert "room again Mon 21 Sep 18:13 CEST" in typed.out
    assert "the linear layer is not installed" in typed.err


@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ("uff-main", "uff-main: active, runs as uff-uff-main-0001."),
        ("ucm", "ucm: kaggle: no GPU hours of the week left, room again Mon 21 Sep 18:13 CEST."),
        ("urm", "urm: held, by tester: data are being cleaned."),
        ("ulm", "ulm: done."),
    ],
)
def test_there_is_always_one_answer(job: str, answer: str, world: Database, schedctl: Schedctl) -> None:
    assert schedctl("plan", "explain", job).out.splitlines()[0] == answer


def test_a_job_younger_than_the_plan_is_told_so(world: Database, schedctl: Schedctl) -> None:
    schedctl("queue", "add", "--name", "new", "--command", "train", "--target-step", "5")
    assert "queued after the newest plan" in schedctl("plan", "explain", "new").out


def test_quota_counts_what_is_used_and_held(world: Database, schedctl: Schedctl) -> None:
    (meter,) = schedctl("quota", "--json").document["quotas"]
    assert (meter["limit"], meter["used"], meter["held"]) == (108_000, 0, 10_800)
    assert meter["free"] == 108_000 - 10_800
    assert meter["resets_at"] == meter["end"] == 1_790_380_800
    line = schedctl("quota").out.splitlines()[1]
    assert "30h 00m 0h 00m 3h 00m 27h 00m Sat 26 Sep 02:00" in " ".join(line.split())


def test_pools_show_where_limits_come_from_and_what_is_closed(
    world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "mia")
    lines = schedctl("pools").out.splitlines()
    assert "outside hours" in lines[1]
    assert "20:00-08:00 Europe/Berlin" in lines[1]
    assert "1 of 2" in lines[2]
    assert "docs 2026-11-21" in lines[2]
    assert schedctl("pools", "close", "kaggle", "--for", "2h", "--why", "checking").code == 0
    with world.read() as tx:
        assert limits.closures(tx) == {"kaggle": (1_790_007_200, "checking")}
    assert "checking (until Mon 21 Sep 18:13)" in schedctl("pools").out
    assert schedctl("pools", "open", "kaggle").out == "kaggle is open.\n"
    with world.read() as tx:
        assert limits.closures(tx) == {}
        told = events.tail(tx, kinds=["pool.closed", "pool.opened"])
    assert [event.by for event in told] == ["mia", "mia"], "not the daemon"


def test_facts_are_listed_with_their_sources(world: Database, home: Path, schedctl: Schedctl) -> None:
    assert schedctl("pools", "facts").err == "No facts: settings and defaults hold.\n"
    fact = {"value": 7_200, "assumed": 1_800, "source": "acceptance 2026-11-21, visible"}
    (home / "state" / "facts.json").write_text(json.dumps({"kaggle": {"visibility_seconds": fact}}))
    assert schedctl("pools", "facts").out.splitlines()[1].split(maxsplit=4) == [
        "kaggle", "visibility", "2h", "30m", "acceptance 2026-11-21, visible",
    ]  # fmt: skip
    (listed,) = schedctl("pools", "facts", "--json").document["facts"]
    assert listed == {"pool": "kaggle", "name": "visibility_seconds", **fact}


def test_runs_are_listed_the_newest_first_and_filtered(world: Database, schedctl: Schedctl) -> None:
    lines = schedctl("runs", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [KEY, "uff-ulm-0001"]
    for flags in (["--live"], ["--pool", "kaggle"], ["--job", "ufm"], ["--limit", "1"]):
        found = schedctl("runs", "list", *flags, "--json").document["runs"]
        assert [run["key"] for run in found] == [KEY]


def test_a_run_is_shown_with_its_lanes_and_history(world: Database, schedctl: Schedctl) -> None:
    shown = schedctl("runs", "show", KEY).out
    for words in ("uff-main, ufm", "120", "2.2500", "training", "run.reserved", "run.accept"):
        assert words in shown


def test_logs_are_whole_or_of_one_lane(world: Database, schedctl: Schedctl) -> None:
    assert len(schedctl("runs", "logs", KEY).out.splitlines()) == 5
    lane = schedctl("runs", "logs", KEY, "--lane", "0").out
    assert lane == "step 1\nstep 2\n"
    typed = schedctl("runs", "logs", "uff-ulm-0001")
    assert (typed.out, typed.err) == ("", "uff-ulm-0001 has printed nothing that is kept.\n")


def test_a_followed_log_ends_with_its_run_and_misses_nothing(world: Database, home: Path) -> None:
    log = home / "state" / "sessions" / "kaggle" / KEY / "output.log"

    class Files:
        def logs(self, key: str, offset: int, limit_bytes: int) -> list[bytes]:
            return [log.read_bytes()[offset : offset + limit_bytes]]

    def pause() -> None:
        with log.open("ab") as stream:
            stream.write(b"one more\n")
        with world.write() as tx:
            run = runs.get(tx, KEY)
            runs.change_state(tx, KEY, run.state, arrows.end(run.state, Outcome.LOST, 1, 0), "end_lost", 1)

    before = log.read_bytes()
    seen = b"".join(followed_log(world, Files(), KEY, pause))  # type: ignore[arg-type]
    assert seen == before + b"one more\n"


def test_stop_asks_the_session_itself_even_without_a_daemon(world: Database, home: Path, schedctl: Schedctl) -> None:
    typed = schedctl("runs", "stop", KEY, "--why", "wrong data")
    assert typed.code == 0
    with world.read() as tx:
        state = runs.get(tx, KEY).state
        last = events.tail(tx, subject=KEY)[-1]
    assert isinstance(state, Stopping)
    assert (state.why, last.kind, last.by) == ("wrong data", "run.stop", "tester")
    flag = home / "state" / "artifacts" / "runs" / KEY / "stop"
    assert flag.read_text() == '{"reason": "wrong data", "lane": null}'
    assert schedctl("runs", "stop", KEY).code == 0  # asking twice is as good as once


def test_a_checkpoint_is_listed_verified_and_pulled(world: Database, home: Path, schedctl: Schedctl) -> None:
    line = schedctl("checkpoints", "list", "ulm").out.splitlines()[1]
    assert line.split()[:3] == ["ulm", "500", "good"]
    assert MANIFEST in line
    assert schedctl("checkpoints", "verify", MANIFEST).out == f"{MANIFEST}  good\n"
    assert schedctl("checkpoints", "pull", "ulm", str(home / "copy"), "--step", "500").code == 0
    assert (home / "copy" / "weights.npz").read_text() == "weights at 500"
    assert len(sha256_file(home / "copy" / "optimizer" / "state.json")) == 64
    assert sorted(path.name for path in home.iterdir()) == ["config.toml", "copy", "models.toml", "state"]


def test_pins_are_kept(world: Database, schedctl: Schedctl) -> None:
    schedctl("checkpoints", "pin", MANIFEST)
    with world.read() as tx:
        assert checkpoints.get(tx, MANIFEST).pinned
    schedctl("checkpoints", "unpin", MANIFEST)
    with world.read() as tx:
        assert not checkpoints.get(tx, MANIFEST).pinned


def test_db_makes_checks_copies_and_restores(home: Path, schedctl: Schedctl) -> None:
    assert "and new" in schedctl("db", "init").out
    assert "already" in schedctl("db", "upgrade").out
    assert schedctl("db", "verify").err == "The database is in order.\n"
    schedctl("queue", "add", "--models")
    assert schedctl("db", "backup", str(home / "copy.db")).code == 0
    schedctl("queue", "cancel", "ufm")
    assert schedctl("db", "restore", str(home / "copy.db")).code == 0
    states = {job["name"]: job["state"] for job in schedctl("queue", "list", "--json").document["jobs"]}
    assert states == {"uff-main": "queued", "ufm": "queued"}


def test_config_shows_what_set_a_value_and_hides_passwords(
    home: Path, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDCTL_DATABASE_URL", "postgresql+psycopg://me:hunter2secret@db/x")
    typed = schedctl("config", "show")
    assert "hunter2secret" not in typed.out
    assert "environment variable SCHEDCTL_DATABASE_URL" in typed.out
    (zone,) = schedctl("config", "show", "zone", "--json").document["settings"]
    assert zone == {"key": "zone", "value": "Europe/Berlin", "source": str(home / "config.toml")}


def test_doctor_finds_all_well_and_a_missing_daemon_no_disaster(world: Database, schedctl: Schedctl) -> None:
    checks = {found["check"]: found for found in schedctl("doctor", "--json").document["checks"]}
    doubtful = {"daemon", "isolation"} if obstacle() else {"daemon"}  # root's sessions see all files
    assert {name: found["grade"] for name, found in checks.items() if found["grade"] != "ok"} == dict.fromkeys(
        doubtful, "warning"
    )
    assert set(checks) >= {"settings", "models", "database", "disk", "artifact store", "clock", "package names"}
    assert {"platform of desk", "platform of kaggle"} <= set(checks)


def test_doctor_blames_only_the_pool_that_is_misconfigured(world: Database, home: Path, schedctl: Schedctl) -> None:
    with (home / "config.toml").open("a") as settings:
        settings.write('options = { colour = "red" }\n')
    checks = {found["check"]: found for found in schedctl("doctor", "--json").document["checks"]}
    assert (checks["platform of desk"]["grade"], checks["platform of kaggle"]["grade"]) == ("bad", "ok")
    assert "colour" in checks["platform of desk"]["found"]
    assert schedctl("runs", "logs", KEY).code == 0


def test_doctor_works_while_nothing_else_does(home: Path, schedctl: Schedctl) -> None:
    (home / "models.toml").write_text("jobs = 3")
    typed = schedctl("doctor")
    assert typed.code == 9
    grades = {line.split()[1]: line.split()[0] for line in typed.out.splitlines()[1:]}
    assert (grades["models"], grades["database"], grades["settings"]) == ("bad", "bad", "ok")
    (home / "config.toml").write_text("zone = 3")
    assert schedctl("doctor", "--json").code == 9


def test_a_daemon_runs_until_it_is_told_to_stop(world: Database, schedctl: Schedctl, home: Path) -> None:
    """stop_at lies in the past: the daemon takes the lease, drains, and ends by itself."""
    with world.write() as tx:
        run = runs.get(tx, KEY)
        ended = arrows.end(run.state, Outcome.LOST, 1_790_000_000, 1_789_996_400)
        for lane in run.lanes:
            runs.close_lane(tx, KEY, lane.index, Outcome.LOST, None, None, "", 1_790_000_000)
        runs.change_state(tx, KEY, run.state, ended, "end_lost", 1_790_000_000)
    settings = (home / "config.toml").read_text()
    clock = settings.partition("[clock]")[2].partition("[[pools]]")[0]
    settings = settings.replace(clock, "\n[daemon]\nstop_at = 2026-09-21T00:00:00Z\n\n")
    (home / "config.toml").write_text(settings)
    typed = schedctl("daemon")
    assert (typed.code, typed.out) == (0, "")
    with world.read() as tx:
        assert [event.kind for event in events.tail(tx, subject="daemon")] == ["daemon.started", "daemon.stopped"]
