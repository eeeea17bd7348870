"""`schedctl acceptance kaggle` on the emulator, driven through the real adapter and its client."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.facts import FACTS
from scheduler.app import App, load_app
from scheduler.host import acceptance
from scheduler.host.acceptance import PROBES, Bench, ProbeFinding, Trial, conclude, run_probes, shared
from scheduler.store.engine import open_database
from tests.lab.faults import Fault
from tests.lab.patience import PATIENCE_SECONDS, until

Account = Any
SCALE = 20.0
SETTINGS = """
state_dir = "{folder}/state"

[artifacts]
kind = "directory"
root = "{folder}/store"

[clock]
epoch = {epoch}
origin = {origin}
scale = {scale}

[[pools]]
name = "t4"
platform = "kaggle"
devices_per_session = 2
overrun = "1m"

[pools.options]
emulator = "{address}"
credentials = "{key}"
pause_milliseconds = "0"
idle_milliseconds = "100"
call_seconds = "5"
push_seconds = "3"
settle_seconds = "0"
upload_seconds = "3"
"""


@pytest.fixture
def account(account_at: Callable[..., Account]) -> Account:
    return account_at(SCALE)


def app_of(account: Account) -> App:
    clock = account.clock.payload_clock()
    key = account.folder / "kaggle.json"
    file = account.folder / "settings.toml"
    file.write_text(SETTINGS.format(folder=account.folder, address=account.server.address, key=key, **clock))
    app = load_app(file, {})
    app.settings.state_dir.mkdir(exist_ok=True)
    open_database(app.settings.database_url, create=True).close()
    (app.settings.state_dir / acceptance.JOB / "t4").mkdir(parents=True, exist_ok=True)
    return app


def bench_of(account: Account, quota: int = 3_600) -> Bench:
    return Bench(app_of(account), "t4", (quota, 1_000_000), print)


def probes(*names: str) -> list[Any]:
    mine = [probe for probe in PROBES if not probe.platforms or "kaggle" in probe.platforms]
    return [probe for probe in mine if not names or probe.name in names]


def tried(bench: Bench, *names: str) -> dict[str, ProbeFinding]:
    run_probes(bench, probes(*names))
    return bench.state.findings


def assert_nothing_is_left(account: Account) -> None:
    assert account.place.kernels == {}
    assert [slug for slug, one in account.place.storage.datasets.items() if not one.deleted] == []
    assert [session for session in account.place.sessions() if session.live] == []


def test_all_answers_are_as_assumed_and_nothing_is_left(account: Account) -> None:
    bench = bench_of(account)
    findings = tried(bench)
    assert {name: one.verdict for name, one in findings.items()} == dict.fromkeys(
        [probe.name for probe in probes()], "as assumed"
    ), findings
    assert findings["stop-flag"].evidence["asked"] == "platform"
    assert findings["device"].evidence["devices"] == ["Tesla T4", "Tesla T4"]
    assert findings["job"].evidence["second"]["resumed"] == findings["job"].evidence["first"]["saved"] > 0
    assert_nothing_is_left(account)
    quota, money = bench.cost(bench.state.trials.values())
    assert (0 < quota <= 3_600, money) == (True, 0)
    assert abs(quota - account.place.seconds_used(0, account.now())) < 60


def test_wrong_credentials_end_a_run_before_it_starts_anything(account: Account) -> None:
    (account.folder / "kaggle.json").write_text(json.dumps({"username": "alice", "key": "canary"}))
    bench = bench_of(account)
    run_probes(bench, probes())
    assert bench.state.done == ["account"]
    assert bench.state.findings["account"].verdict == "differs"
    assert "are refused" in bench.state.findings["account"].answer
    assert account.place.sessions() == []


def test_unreadable_books_are_open(account: Account) -> None:
    account.place.faults.always["GetAcceleratorQuotaStatistics"] = Fault.SERVER_ERROR
    bench = bench_of(account)
    assert tried(bench, "books")["books"].verdict == "open"


def test_a_session_that_is_refused_is_open_and_ends_the_run(account_at: Callable[..., Account]) -> None:
    account = account_at(SCALE, source_bytes_max=10)
    findings = tried(bench_of(account), "session", "visible")
    assert (findings["session"].verdict, "visible" in findings) == ("open", False)
    assert_nothing_is_left(account)


@pytest.mark.parametrize(
    ("name", "seen", "facts"),
    [
        ("visible", {"visible": 121}, {"visibility_seconds": 242}),
        ("start", {"start": 181}, {"start_delay_seconds": 362}),
        ("log", {"log": 61}, {}),
        ("mounts", {"mounts": []}, {}),
    ],
)
def test_what_a_session_shows_late_or_elsewhere_differs(
    account: Account, name: str, seen: dict[str, Any], facts: dict[str, int]
) -> None:
    bench = bench_of(account)
    bench.state.findings["session"] = ProbeFinding("as assumed", "", seen)
    finding = tried(bench, name)[name]
    assert (finding.verdict, finding.facts) == ("differs", facts)


def test_without_a_small_session_its_times_are_open(account: Account) -> None:
    assert tried(bench_of(account), "visible")["visible"].verdict == "open"


def test_a_session_that_cannot_be_asked_differs(account_at: Callable[..., Account]) -> None:
    account = account_at(SCALE, lets_kernels_in=False)
    findings = tried(bench_of(account), "stop-flag")
    assert (findings["stop-flag"].verdict, "a way to ask" in findings["stop-flag"].answer) == ("differs", True)
    assert_nothing_is_left(account)


def test_a_cancel_that_does_nothing_becomes_a_fact_of_the_pool(account: Account) -> None:
    account.place.faults.always["CancelKernelSession"] = Fault.FORBIDDEN
    bench = bench_of(account)
    assert tried(bench, "stop-session")["stop-session"].facts == {"options.force_stop": "delete"}
    state_dir = app_of(account).settings.state_dir
    conclude(bench, state_dir)
    assert app_of(account).pools["t4"].options["force_stop"] == "delete"
    fact = json.loads((state_dir / FACTS).read_text())["t4"]["options.force_stop"]
    assert (fact["assumed"], "stop-session" in fact["source"]) == ("yes: force_stop = cancel", True)
    assert_nothing_is_left(account)
    settings = account.folder / "settings.toml"
    settings.write_text(settings.read_text() + 'force_stop = "cancel"\n')
    assert load_app(settings, {}).pools["t4"].options["force_stop"] == "cancel"  # settings override
    account.place.faults.always.clear()
    assert tried(bench_of(account), "stop-session")["stop-session"].verdict == "as assumed"
    conclude(bench_of(account), state_dir)
    app = app_of(account)
    assert "force_stop" not in app.pools["t4"].options
    confirmed = app.facts()["t4"]
    assert set(confirmed) == {"session_cap_seconds", "stop-session"}
    assert confirmed["stop-session"]["value"] == "yes: force_stop = cancel"


def test_a_session_that_never_starts_says_nothing_of_its_stop(account: Account) -> None:
    """The pool would delete kernels from then on, for no reason."""
    account.place.rules.queue_seconds = 100_000
    finding = tried(bench_of(account), "stop-session")["stop-session"]
    assert (finding.verdict, finding.facts) == ("open", {})
    assert_nothing_is_left(account)


def test_a_job_that_cannot_be_asked_to_stop_is_resumed_all_the_same(account_at: Callable[..., Account]) -> None:
    account = account_at(SCALE, lets_kernels_in=False)
    bench = bench_of(account)
    bench.state.findings["stop-flag"] = ProbeFinding("differs", "")
    finding = tried(bench, "job")["job"]
    assert finding.verdict == "as assumed", finding
    assert finding.evidence["first"]["saved"] == 20


def test_a_deletion_that_does_nothing_differs(account: Account) -> None:
    account.place.faults.add("DeleteKernel", Fault.FORBIDDEN)
    assert tried(bench_of(account), "stop-delete")["stop-delete"].verdict == "differs"
    assert_nothing_is_left(account)


def test_a_log_that_is_cut_differs(account_at: Callable[..., Account]) -> None:
    account = account_at(2 * SCALE, log_bytes_max=1 << 20)
    assert tried(bench_of(account), "log-limit")["log-limit"].verdict == "differs"
    assert_nothing_is_left(account)


def test_a_bill_for_the_wait_differs(account_at: Callable[..., Account]) -> None:
    account = account_at(SCALE, bills_queue=True, queue_seconds=100)
    assert tried(bench_of(account), "device")["device"].verdict == "differs"
    assert_nothing_is_left(account)


def test_the_budget_is_never_exceeded(account: Account) -> None:
    bench = bench_of(account, quota=1_259)  # the session and its overrun need a second more
    findings = tried(bench, "device", "job")  # of a job there is room for the first half alone
    assert {name: one.verdict for name, one in findings.items()} == {"device": "open", "job": "open"}
    assert all("budget" in one.answer for one in findings.values())
    assert account.place.seconds_used(0, account.now()) <= 1_259
    bench = bench_of(account, quota=1_260)
    bench.state.trials["uff-acc-00000000"] = Trial(small=False, ran=1)  # of the same run, before an interruption
    bench.state.run = bench.now
    used = account.place.sessions()
    finding = tried(bench, "device")["device"]
    assert (finding.verdict, account.place.sessions()) == ("open", used)


def test_an_export_names_no_account(account: Account) -> None:
    bench = bench_of(account)
    tried(bench, "account", "session", "mounts")
    result = conclude(bench, account.folder)
    assert "alice" in json.dumps(result)
    text = shared(result, ["alice", *bench.pool.options.values()])
    assert not [name for name in ("alice", "kaggle.json", account.server.address) if name in text]
    assert [answer["name"] for answer in json.loads(text)["answers"]] == ["account", "session", "mounts"]
    page = next(bench.folder.glob("*.md")).read_text()
    assert page.count("## ") == 3
    assert "Where are inputs mounted?" in page


# Ends the process by SIGKILL right before or after it writes its state for the n-th time, launches or cleans up.
KILLED = """
import os, signal, sys
from pathlib import Path
from scheduler.app import load_app
from scheduler.host import acceptance
from scheduler.host.acceptance import PROBES, Bench
from scheduler.host.acceptance import run_probes
write, number, moment, count = acceptance.write_whole, int(sys.argv[2]), sys.argv[3], 0
launch = Bench._launch
def launching(bench, trial):
    global count
    count -= bool(trial.called_at)  # a launch that is tried again writes the same state again
    return launch(bench, trial)
Bench._launch = launching
def writing(*arguments, **options):
    global count
    count += 1
    if (count, moment) == (number, "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    write(*arguments, **options)
    if (count, moment) == (number, "after"):
        os.kill(os.getpid(), signal.SIGKILL)
acceptance.write_whole = writing
def killing(name):
    call = getattr(Bench, name)
    def killed(*arguments, **options):
        if moment == f"before {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **options)
        if moment == f"after {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(Bench, name, killed)
killing("_document")
killing("sweep")
bench = Bench(load_app(Path(sys.argv[1])), "t4", (3600, 0), print)
run_probes(bench, [probe for probe in PROBES if probe.name == "session"])
print("writes", count)
"""
WRITES = 4


def killed(account: Account, number: int, moment: str) -> subprocess.CompletedProcess[str]:
    app_of(account)
    words = [sys.executable, "-c", KILLED, str(account.folder / "settings.toml"), str(number), moment]
    environment = {"PATH": os.environ["PATH"], "HOME": str(account.folder)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_all_writes_are_among_those_at_which_it_is_killed(account: Account) -> None:
    done = killed(account, 0, "after")
    assert done.stdout.splitlines()[-1] == f"writes {WRITES}", done
    assert_nothing_is_left(account)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((number, moment) for number in range(1, WRITES + 1) for moment in ("before", "after")),
        *((0, moment) for moment in ("after _document", "before sweep", "after sweep")),
    ],
)
def test_what_a_killed_run_leaves_the_next_one_removes(account: Account, number: int, moment: str) -> None:
    assert killed(account, number, moment).returncode == -9
    findings = tried(bench_of(account), "session")
    assert findings["session"].verdict == "as assumed"
    assert_nothing_is_left(account)


def command_of(account: Account, *words: str) -> list[str]:
    return [sys.executable, "-m", "scheduler", "--config", str(account.folder / "settings.toml"), *words]


def schedctl(account: Account, *words: str) -> subprocess.CompletedProcess[str]:
    command = command_of(account, *words)
    environment = {"PATH": os.environ["PATH"], "HOME": str(account.folder)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def test_the_command_asks_tries_tells_and_exports(account: Account, tmp_path: Path) -> None:
    app_of(account)
    asked = schedctl(account, "acceptance", "kaggle")
    assert (asked.returncode, account.place.sessions()) == (6, [])
    assert "stop-session" in asked.stdout
    assert "for at most 1h 00m of quota and $1.00" in asked.stderr
    assert schedctl(account, "acceptance", "kaggle", "--only", "nonsense").returncode == 5
    assert schedctl(account, "acceptance", "elsewhere").returncode == 5
    assert schedctl(account, "acceptance", "t4", "--export", str(tmp_path / "x.json")).returncode == 5
    done = schedctl(account, "acceptance", "t4", "--only", "session", "--yes", "--json", "--budget", "10m")
    assert done.returncode == 0, done.stderr
    assert [answer["verdict"] for answer in json.loads(done.stdout)["answers"]] == ["as assumed"]
    assert schedctl(account, "acceptance", "t4", "--export", str(tmp_path / "x.json")).returncode == 0
    assert json.loads((tmp_path / "x.json").read_text())["platform"] == "kaggle"
    assert_nothing_is_left(account)
    checks = json.loads(schedctl(account, "doctor", "kaggle", "--json").stdout)["checks"]
    found = {check["check"]: check["found"] for check in checks}
    assert found["t4: acceptance"] == "1 as assumed, 0 days ago"


def test_doctor_runs_a_small_session_when_it_is_asked_to(account: Account) -> None:
    app_of(account)
    checks = json.loads(schedctl(account, "doctor", "kaggle", "--probe", "--json").stdout)["checks"]
    assert next(check["grade"] for check in checks if check["check"] == "t4: probe") == "ok", checks
    assert account.place.seconds_used(0, account.now()) == 0
    assert_nothing_is_left(account)


def test_an_interrupted_run_leaves_nothing_and_the_next_one_continues(account: Account) -> None:
    app_of(account)
    command = command_of(account, "acceptance", "t4", "--yes", "--json")
    environment = {"PATH": os.environ["PATH"], "HOME": str(account.folder)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: any(session.status == "RUNNING" for session in account.place.sessions()), "a session")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
    assert_nothing_is_left(account)
    bench = bench_of(account)
    assert (sorted(bench.state.done), bench.state.run > 0) == (["account", "books"], True)
    assert set(tried(bench, "account", "session")) == {"account", "books", "session"}
