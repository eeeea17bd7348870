"""Local sessions under a real systemd: in units of their own, outside the daemon's sandbox, longer lived than it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Machine = Any  # see conftest.py
UNIT = "uff-scheduler.service"
TRAINING = """
import os, pathlib, signal, sys
folder = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"])

def save(*_):
    making = folder / "making"
    making.mkdir()
    (making / "weights").write_bytes(b"7" * 100)
    (making / "meta.json").write_text('{"step": 7, "metrics": {}}')
    making.rename(folder / "step-00000007")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("devices", os.path.exists("/dev/uff-probe"), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def session(installed: Machine) -> Iterator[dict[str, Any]]:
    """A session that runs: its claim and key. It is cancelled afterwards."""
    installed.write("/opt/train.py", TRAINING)
    installed.write("/dev/uff-probe", "")
    installed.run("touch", "/dev/uff-probe")
    name = f"long{len(installed.jobs())}"
    installed.schedctl(
        *("queue", "add", "--name", name, "--command", "/opt/uff-scheduler/bin/python /opt/train.py"),
        *("--target-step", "100000", "--steps-per-hour", "100"),
    )
    key = f"uff-{name}-0001"
    records = installed.root / "var/lib/uff-scheduler/sessions/desk" / key
    installed.until(lambda: "devices" in _output(records), "a session that trains")
    yield {"key": key, "job": name, "records": records, **json.loads((records / "claim.json").read_text())}
    installed.until_working()
    installed.schedctl("queue", "cancel", name)
    installed.until((records / "ended.json").exists, "the end of the session")
    installed.until(lambda: installed.jobs()[name]["state"] in {"cancelled", "done"}, "the job's end")


def _output(records: Path) -> str:
    log = records / "output.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.nightly
def test_a_session_has_a_unit_of_its_own_and_sees_the_devices(installed: Machine, session: dict[str, Any]) -> None:
    keeper, agent = str(session["keeper"]), str(session["agent"])
    unit = installed.run("ps", "-o", "unit=", "-p", keeper).strip()
    assert unit.startswith("uff-local@")
    assert installed.run("ps", "-o", "unit=", "-p", agent).strip() == unit
    assert installed.run("ps", "-o", "user:20=", "-p", agent).strip() == "uff-scheduler"
    assert "devices True" in _output(session["records"])
    daemon = installed.show("MainPID")
    installed.run("nsenter", "--target", daemon, "--mount", "test", "-e", "/dev/uff-probe", code=1)
    assert unit in installed.schedctl("service", "status")


def test_a_session_survives_restart_kill_upgrade_and_a_stopped_daemon(
    installed: Machine, session: dict[str, Any]
) -> None:
    installed.restart()
    installed.run("kill", "-KILL", installed.show("MainPID"))
    installed.until(lambda: installed.show("MainPID") != "0", "another daemon")
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install")  # as after an upgrade
    installed.run("systemctl", "stop", UNIT)
    installed.run("kill", "-0", str(session["agent"]))
    installed.restart()
    shown = json.loads(installed.schedctl("runs", "show", session["key"], "--json"))["run"]
    assert shown["state"] == "running"
    assert not (session["records"] / "ended.json").exists()


@pytest.mark.nightly
def test_a_session_whose_unit_is_stopped_saves_first(installed: Machine, session: dict[str, Any]) -> None:
    unit = installed.run("ps", "-o", "unit=", "-p", str(session["keeper"])).strip()
    installed.run("systemctl", "stop", unit)
    assert (session["records"] / "ended.json").exists()
    installed.until(lambda: installed.jobs()[session["job"]]["done_step"] == 7, "the checkpoint")


@pytest.mark.nightly
def test_without_the_socket_a_launch_is_refused_with_the_remedy(installed: Machine) -> None:
    installed.run("systemctl", "stop", "uff-local.socket")
    installed.schedctl(
        *("queue", "add", "--name", "nowhere", "--command", "/bin/true", "--target-step", "10"),
        *("--steps-per-hour", "100"),
    )
    installed.until(lambda: "systemctl start uff-local.socket" in installed.journal(), "a refusal")
    installed.schedctl("queue", "cancel", "nowhere")
    installed.run("systemctl", "start", "uff-local.socket")


LOOKING = """
import json, pathlib, socket, sqlite3, sys
asked = json.loads(pathlib.Path("/opt/asked.json").read_text())
found = {}
for path in asked["read"]:
    try:
        place = pathlib.Path(path)
        found[path] = place.read_bytes()[:50].decode("latin-1")
    except OSError as error:
        found[path] = ""
for path in asked["write"]:
    try:
        pathlib.Path(path).write_text("forged")
        found["write " + path] = "done"
    except OSError:
        found["write " + path] = ""
try:
    sqlite3.connect(asked["database"]).execute("CREATE TABLE forged (x)")
    found["database"] = "done"
except sqlite3.Error:
    found["database"] = ""
try:
    socket.socket(socket.AF_UNIX).connect("/run/uff-local.sock")
    found["runner"] = "connected"
except OSError:
    found["runner"] = ""
print("looked", json.dumps(found), flush=True)
"""


def test_a_session_sees_no_credential_no_database_and_no_object_of_another_job(installed: Machine) -> None:
    state, canary = "/var/lib/uff-scheduler", "canary-93ae-never-shown"
    daemon = installed.until_working()
    for file in (f"{state}/credentials/HF_CANARY", f"{state}/artifacts/jobs/other/blobs/aa", f"{state}/.pgpass"):
        installed.write(file, canary, 0o600)
    kept = "/run/credentials/probe.service/HF_OTHER"  # as systemd keeps them for a unit of this user
    installed.run("install", "-d", "-o", "uff-scheduler", "/run/credentials/probe.service")
    installed.run("install", "-o", "uff-scheduler", "-m", "400", f"{state}/.pgpass", kept)
    installed.run(
        *("chown", "-R", "uff-scheduler:", f"{state}/credentials", f"{state}/artifacts/jobs", f"{state}/.pgpass")
    )
    assert canary in installed.run("cat", kept, user="uff-scheduler"), "a session of before could read it"
    reads = [f"{state}/credentials/HF_CANARY", f"{state}/scheduler.db", f"{state}/artifacts/jobs/other/blobs/aa"]
    reads += [f"{state}/.pgpass", kept, "/etc/uff-scheduler/config.toml", f"/proc/{daemon}/environ"]
    reads += [f"/proc/{daemon}/root{state}/scheduler.db", f"/proc/{daemon}/root{state}/credentials/HF_CANARY"]
    writes = [f"{state}/scheduler.db-wal", f"{state}/artifacts/jobs/other/blobs/aa", f"{state}/credentials/NEW"]
    writes += [f"/proc/{daemon}/root{state}/artifacts/jobs/other/blobs/aa", "/etc/uff-scheduler/config.toml"]
    asked = {"read": reads, "write": writes, "database": f"{state}/scheduler.db"}
    installed.write("/opt/asked.json", json.dumps(asked))
    installed.write("/opt/look.py", LOOKING)
    printed = _printed(installed, "looker", "/opt/look.py", "looked {")
    found = json.loads(printed[printed.index("{") :])
    assert {what for what, got in found.items() if got} == set()
    assert (installed.root / f"{state}/artifacts/jobs/other/blobs/aa".lstrip("/")).read_text() == canary
    installed.run("rm", kept, f"{state}/credentials/HF_CANARY", f"{state}/.pgpass")


SANDBOX = """
from jobs.payload.scorers.sandbox.confine import SandboxMissing
from jobs.payload.scorers.sandbox.sandbox import check_sandbox
try:
    print("tried:", check_sandbox(), flush=True)
except SandboxMissing as missing:
    print("tried: none,", missing, flush=True)
"""


def test_code_that_a_model_wrote_is_run_in_the_sandbox_inside_a_session(installed: Machine) -> None:
    """The unit filters namespaces and covers parts of /proc, and so does the container around it."""
    installed.write("/opt/sandbox.py", SANDBOX)
    assert "tried: bubblewrap, seccomp, memory" in _printed(installed, "scorer", "/opt/sandbox.py", "tried:")


def test_where_user_namespaces_are_forbidden_session_and_doctor_say_so(installed: Machine) -> None:
    drop_in = "/etc/systemd/system/uff-local@.service.d/test.conf"
    installed.write("/opt/sandbox.py", SANDBOX)
    installed.write(drop_in, "[Service]\nRestrictNamespaces=yes\n")
    installed.run("systemctl", "daemon-reload")
    try:
        assert "tried: none, bubblewrap cannot make" in _printed(installed, "bare", "/opt/sandbox.py", "tried:")
    finally:
        installed.run("rm", drop_in)
        installed.run("systemctl", "daemon-reload")
    first = _output(installed.root / "var/lib/uff-scheduler/sessions/desk/uff-bare-0001").splitlines()[0]
    assert "this session can read the files of the daemon (unshare is refused here" in first
    forbidden = (
        "systemd-run",
        "--quiet",
        "--pipe",
        "--wait",
        "-p",
        "User=uff-scheduler",
        "-p",
        "RestrictNamespaces=yes",
    )
    doctor = installed.run(*forbidden, "/opt/uff-scheduler/bin/schedctl", "doctor", "--json")
    checks = {one["check"]: one for one in json.loads(doctor.splitlines()[0])["checks"]}
    assert checks["isolation"]["grade"] == "warning"
    assert checks["sandbox"]["found"].startswith("none (bubblewrap cannot make a sandbox here")


def _printed(machine: Machine, name: str, script: str, words: str) -> str:
    """Run a script as a session of a job and return the line with ``words`` that it prints; cancel the job."""
    machine.until_working()
    machine.schedctl(
        *("queue", "add", "--name", name, "--command", f"/opt/uff-scheduler/bin/python {script}"),
        *("--target-step", "10", "--steps-per-hour", "100"),
    )
    records = machine.root / f"var/lib/uff-scheduler/sessions/desk/uff-{name}-0001"
    machine.until(lambda: words in _output(records), f"what {script} prints")
    machine.schedctl("queue", "cancel", name)
    machine.until((records / "ended.json").exists, "the end of the session")
    return next(line for line in _output(records).splitlines() if words in line)
