"""What a local session sees of the daemon's files: nothing but its own, in the foreground and through the runner."""

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from platforms.artifacts.base import Grant
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, SessionState
from platforms.local import adapter, keeper, spawn, view
from platforms.local.records import VIEW
from platforms.registry import PlatformContext, load
from scheduler.host import doctor
from scheduler.host.doctor import check_isolation

Machine = Any  # see conftest.py
CANARY = "canary-41f0-never-shown"
# Tries every path of the document, in the ways that a hostile command has, and prints what it got.
AGENT = """
import json, os, pathlib, signal, socket, sys
launch = json.load(open(sys.argv[1]))
found = {}
for path in launch["read"]:
    try:
        place = pathlib.Path(path)
        found[path] = sorted(map(str, place.iterdir())) if place.is_dir() else place.read_text()
    except OSError as error:
        found[path] = type(error).__name__
for path in launch["write"]:
    try:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_text("by the session")
        found["w " + path] = "written"
    except OSError as error:
        found["w " + path] = "refused"
for path in launch["connect"]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        found["c " + path] = "connected"
    except OSError as error:
        found["c " + path] = "refused"
found["home"] = os.environ.get("HOME")
print(json.dumps(found), flush=True)
signal.pause()
"""


@pytest.fixture
def told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Launches a session in a state folder full of canaries and returns what it could do, and the folder."""
    monkeypatch.setattr(spawn, "obstacle", lambda: "")  # root's sessions have no view otherwise
    (machine.folder / "bundle" / "payload" / "agent.py").write_text(AGENT)
    home = machine.folder / "home"
    for place in ("home/credentials/TOKEN", "home/scheduler.db", "home/config.toml", "home/store/jobs/other/a"):
        (machine.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (machine.folder / place).write_text(CANARY)
    (home / "store/jobs/parent").mkdir()
    (home / "store/jobs/parent/weights").write_text("weights")
    (home / "store/jobs/other/link").symlink_to(home / "credentials" / "TOKEN")
    (home / "store/jobs/own").mkdir()
    (home / "store/jobs/own/earlier").write_text("earlier")
    (machine.folder / "pgpass").write_text(CANARY)
    monkeypatch.setenv("HOME", str(home))

    def launch(**document: Any) -> dict[str, Any]:
        store = DirectoryStore(home / "store")
        reads = ("jobs/parent/weights", "jobs/other/link", "jobs/none/there")
        context = PlatformContext(
            machine.state,
            machine.python,
            machine.folder / "bundle",
            machine.sessions_max,
            clock=machine.clock.payload_clock(),
            hidden=lambda: [home, machine.folder / "pgpass", machine.folder / "missing"],
        )
        now = machine.clock.now()
        body = {
            "format": 1,
            "run": "one",
            "lanes": [],
            "store": store.payload_address(Grant("one", ("own",), reads, (), 60)),
            "read": [],
            "write": [],
            "connect": [],
            **document,
        }
        request = LaunchRequest("one", "pool", 1, now + 3600, body, "", {})
        assert load("local", {}, context).launch(request, now).state in {SessionState.RUNNING, SessionState.ENDED}
        machine.until(lambda: b"\n" in re.sub(rb"this session .* doctor\n", b"", machine.output()))
        found: dict[str, Any] = json.loads(machine.output().splitlines()[-1])
        return found

    return launch


def test_a_session_sees_no_credential_no_database_no_settings_and_no_object_of_others(
    machine: Machine, told: Any
) -> None:
    home, keeper = machine.folder / "home", str(os.getpid())
    paths = ["credentials/TOKEN", "scheduler.db", "config.toml", "store/jobs/other/a", "store/jobs/other/link"]
    places = [str(home / path) for path in paths]
    places += [
        str(machine.folder / "pgpass"),
        f"/proc/{keeper}/root{home}/credentials/TOKEN",
        f"/proc/{keeper}/environ",
    ]
    places += ["../../home/credentials/TOKEN", "/proc/self/cwd/../../home/scheduler.db"]
    found = told(read=places)
    assert CANARY not in machine.output().decode()
    assert {
        path: found[path] for path in places if found[path] not in {"", "FileNotFoundError", "PermissionError"}
    } == {}


def test_a_session_reads_what_it_was_given_and_writes_its_own(machine: Machine, told: Any) -> None:
    store = machine.folder / "home" / "store"
    mine, work = store / "jobs/own/new", machine.state / "one" / "work" / "scratch"
    run, cache = store / "runs/one/heartbeat", machine.state / ".cache" / "inputs" / "tree"
    given, earlier = store / "jobs/parent/weights", store / "jobs/own/earlier"
    found = told(read=[str(given), str(earlier), str(store / "jobs")], write=list(map(str, (mine, work, run, cache))))
    assert [found[f"w {path}"] for path in (mine, work, run, cache)] == ["written"] * 4
    assert (found[str(given)], found[str(earlier)]) == ("weights", "earlier")
    assert found[str(store / "jobs")] == [str(store / "jobs" / name) for name in ("own", "parent")]
    assert mine.read_text() == run.read_text() == "by the session"
    assert found["home"] == str(machine.state / "one" / "work")


def test_a_session_writes_no_record_of_its_own_no_other_job_and_no_database(machine: Machine, told: Any) -> None:
    home = machine.folder / "home"
    places = [machine.state / "one" / "ended.json", machine.state / "one" / "launch.json", machine.state / "two" / "x"]
    places += [home / "store/jobs/other/a", home / "store/jobs/parent/weights", home / "scheduler.db"]
    places += [home / "scheduler.db-wal", home / "credentials/NEW", Path(adapter.__file__)]
    beside = [Path(doctor.__file__).with_name("probe"), Path(adapter.__file__).parents[2] / "probe"]
    found = told(write=list(map(str, places + beside)))
    for path in beside:
        path.unlink(missing_ok=True)
    assert {path for path, what in found.items() if what == "written"} == set()
    assert (home / "store/jobs/other/a").read_text() == (home / "scheduler.db").read_text() == CANARY
    assert not (home / "scheduler.db-wal").exists()


@pytest.mark.parametrize("spawned_by", ["unit"], indirect=True)
def test_a_session_reaches_no_socket_that_starts_programs_outside(machine: Machine, told: Any) -> None:
    runner = os.environ["UFF_LOCAL_RUNNER"]
    assert told(connect=[runner])[f"c {runner}"] == "refused"


def test_a_session_reaches_no_terminal_that_stays(
    machine: Machine, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon in the foreground often runs in tmux, whose socket starts any program outside the view."""
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    place = tmp_path / f"tmux-{os.geteuid()}" / "default"
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        assert told(connect=[str(place)])[f"c {place}"] == "refused"


def test_a_session_that_sees_little_is_stopped_as_any_other(machine: Machine, told: Any) -> None:
    told()
    machine.adapter().stop("one", machine.clock.now(), force=False)
    assert machine.until_ended().detail == f"killed by signal {signal.SIGTERM.value}"


def test_root_and_machines_without_user_namespaces_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert spawn.obstacle.__wrapped__() == "the daemon runs as root"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert spawn.obstacle.__wrapped__() == ""
    monkeypatch.setattr(spawn, "_TRY", "raise OSError('unshare is refused here')")
    assert spawn.obstacle.__wrapped__() == "OSError: unshare is refused here"


def test_doctor_says_whether_sessions_are_kept_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "obstacle", lambda: "")
    assert check_isolation().grade == "ok"
    monkeypatch.setattr(doctor, "obstacle", lambda: "unshare is refused here")
    refused = check_isolation()
    assert refused.grade == "warning"
    assert "can read credentials and write the database" in refused.found


@pytest.mark.parametrize("spawned_by", ["child"], indirect=True)
def test_where_a_machine_hides_nothing_sessions_run_as_before(
    machine: Machine, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "obstacle", lambda: "unshare is refused here")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    database = str(machine.folder / "home" / "scheduler.db")
    assert told(read=[database])[database] == CANARY
    first = machine.output().splitlines()[0]
    assert first == b"this session can read the files of the daemon (unshare is refused here): schedctl doctor"


@pytest.mark.parametrize("spawned_by", ["unit"], indirect=True)
def test_a_session_does_not_start_without_the_view_it_was_given(
    machine: Machine, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "view_of", lambda *_: f"hide {machine.state}\0read {'x' * 5000}\0")
    with pytest.raises(ValueError, match="Expecting value"):
        told()
    assert b"cannot start" in machine.output()
    assert machine.until_ended().detail == "exit code 127"


def test_a_machine_that_forbids_views_runs_sessions_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ubuntu gives the namespaces and forbids every mount in them; a session that never started would be worse."""

    def forbid(*_: object) -> None:
        raise PermissionError(13, "mount is refused here")

    monkeypatch.setattr(view, "_call", forbid)
    with pytest.raises(view.ViewRefused, match="mount is refused here"):
        view.enter("")
    (tmp_path / VIEW).write_text("hide /nowhere\0")
    monkeypatch.chdir(tmp_path)
    keeper._hide_files(str(tmp_path))
    assert "can read the files of the daemon (mount is refused here): schedctl doctor" in capfd.readouterr().err
