"""What sessions tell of training, in MLflow and for Weights & Biases: the daemon's part against stand-ins of theirs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.credentials import usual_secret
from jobs.spec import JobSpec
from scheduler.core.job import Cancelled
from scheduler.host.doctor_channels import check_mlflow
from scheduler.notify.mirrors import Mirrors
from scheduler.notify.mlflow_mirror import EXPERIMENT, MlflowMirror, authorization
from scheduler.notify.wandb_mirror import write_ended
from scheduler.service.outside.ports import Ports
from scheduler.store import jobs, series
from scheduler.store.engine import Database
from tests.lab.mlflow import Mlflow, mlflow_server

NOW = 1_795_000_000
# The client as far as it is used: it writes what it is told where the real one does.
STAND_IN = """
import json, os, pathlib
class Settings:
    def __init__(self, **told): pass
class Run:
    def __init__(self, folder): self.folder = folder
    def log(self, values, step): (self.folder / "log").open("a").write(json.dumps([step, values]) + "\\n")
    def finish(self): (self.folder / "finished").write_text("")
def init(*, project, dir, mode, id, name, group, config, settings):
    if os.environ.get("WANDB_API_KEY"): raise SystemExit("it was given an account")
    if id.startswith("bad"): raise RuntimeError("no space left")
    folder = pathlib.Path(dir) / "wandb" / f"offline-run-20261123_120000-{id}"
    folder.mkdir(parents=True)
    (folder.parent / "debug.log").write_text("words")
    (folder.parent / "latest-run").symlink_to(folder.name)
    (folder / "config").write_text(json.dumps([project, mode, name, group, config]))
    return Run(folder)
"""


@pytest.fixture
def server() -> Iterator[Mlflow]:
    with mlflow_server() as found:
        yield found


@pytest.fixture
def ports(make_ports: Callable[..., Ports], database: Database) -> Ports:
    for name in ("ufm", "ucm", "uam"):
        with database.write() as tx:
            jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, 100.0), NOW)
    return make_ports(platforms={}, pools={})


def told(ports: Ports, job: str, *steps: int, attempt: int = 1, loss: float = 2.0) -> None:
    with ports.database.write() as tx:
        for step in steps:
            series.note(tx, series.Point(job, attempt, step, NOW + step, loss, None), 1_000)


def sent(server: Mlflow, key: str = "loss") -> dict[str, list[tuple[int, float, int]]]:
    """What the server has, by run."""
    return {
        str({tag["key"]: tag["value"] for tag in run["data"]["tags"]}["uff.job"]): [
            (one["step"], one["value"], one["timestamp"]) for one in run["data"]["metrics"] if one["key"] == key
        ]
        for run in server.runs.values()
    }


def test_every_job_is_a_run_that_is_told_each_point_once(server: Mlflow, ports: Ports) -> None:
    mirror = MlflowMirror(server.address)
    told(ports, "ufm", 10, 20)
    told(ports, "ucm", 10)
    mirror.tell(ports)
    assert list(server.experiments) == [EXPERIMENT]
    assert sent(server)["ufm"] == [(10, 2.0, (NOW + 10) * 1_000), (20, 2.0, (NOW + 20) * 1_000)]
    assert [step for step, *_ in sent(server)["ucm"]] == [10]
    assert "uam" not in sent(server), "of it nothing was told"
    server.calls.clear()
    mirror.tell(ports)
    assert server.calls == [], "nothing new, nothing asked"
    told(ports, "ufm", 30)
    mirror.tell(ports)
    assert server.calls == ["runs/log-batch"]
    assert [step for step, *_ in sent(server)["ufm"]] == [10, 20, 30]


def test_a_daemon_that_starts_anew_asks_the_server_how_far_it_was_told(server: Mlflow, ports: Ports) -> None:
    for name in ("ufm", "ucm", "uam"):  # more than a page
        told(ports, name, 10)
    MlflowMirror(server.address).tell(ports)
    told(ports, "uam", 20)
    server.calls.clear()
    MlflowMirror(server.address).tell(ports)
    assert server.calls.count("runs/create") == 0
    assert server.calls.count("runs/log-batch") == 1
    assert {name: [step for step, *_ in points] for name, points in sent(server).items()} == {
        "ufm": [10], "ucm": [10], "uam": [10, 20],
    }  # fmt: skip


def test_long_series_go_in_parts_and_a_loss_that_is_no_number_stays_here(server: Mlflow, ports: Ports) -> None:
    told(ports, "ufm", *range(1, 1_000, 2))
    told(ports, "ufm", 999, attempt=2, loss=float("nan"))
    MlflowMirror(server.address).tell(ports)
    assert [step for step, *_ in sent(server)["ufm"]] == list(range(1, 1_000, 2))
    assert (999, 2.0, (NOW + 999) * 1_000) in sent(server, "attempt")["ufm"]
    assert server.calls.count("runs/log-batch") == 2, "points of one instant stay together"


def test_a_run_ends_as_its_job_does(server: Mlflow, ports: Ports) -> None:
    mirror = MlflowMirror(server.address)
    told(ports, "ufm", 10)
    mirror.tell(ports)
    (run,) = server.runs.values()
    assert run["info"]["status"] == "RUNNING"
    with ports.database.write() as tx:
        jobs.change_state(tx, "ufm", jobs.get(tx, "ufm").state, Cancelled("ann", NOW), "cancelled", NOW)
    mirror.tell(ports)
    assert run["info"]["status"] == "KILLED"


def test_a_server_that_fails_is_told_and_gets_the_rest_later(server: Mlflow, ports: Ports) -> None:
    mirror = MlflowMirror(server.address)
    told(ports, "ufm", 10)
    server.down = True
    mirror.tell(ports)
    assert "mirror.failed" in ports.log.said  # type: ignore[attr-defined]
    server.down = False
    mirror.tell(ports)
    told(ports, "ufm", 20)
    server.runs.clear()  # somebody emptied it
    mirror.tell(ports)
    mirror.tell(ports)
    assert [step for step, *_ in sent(server)["ufm"]] == [10, 20]


def test_the_token_opens_the_server_and_is_in_no_word(
    server: Mlflow, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a-token-that-is-long"
    server.authorization = authorization(token, "", "")
    settings: Any = SimpleNamespace(export=SimpleNamespace(mlflow=server.address, wandb=None), state_dir=tmp_path)
    told(ports, "ufm", 10)
    (work,) = Mirrors().work(ports, settings).values()
    work()
    assert server.runs == {}
    assert check_mlflow(settings).grade == "bad"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
    assert usual_secret("MLFLOW_TRACKING_TOKEN", os.environ, tmp_path) == token
    mirrors = Mirrors()
    (work,) = mirrors.work(ports, settings).values()
    work()
    assert list(sent(server)) == ["ufm"]
    assert check_mlflow(settings).grade == "ok"
    assert token not in repr(mirrors)


def test_something_else_than_mlflow_is_no_answer(ports: Ports, server: Mlflow) -> None:
    told(ports, "ufm", 10)
    MlflowMirror(f"{server.address}/elsewhere").tell(ports)
    assert "mirror.failed" in ports.log.said  # type: ignore[attr-defined]
    assert authorization("", "ann", "secret") == "Basic YW5uOnNlY3JldA=="
    assert authorization("", "", "") == ""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in of wandb, as the child finds it, and an account that it must not see."""
    place = tmp_path / "client"
    place.mkdir()
    (place / "wandb.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    return place


@pytest.mark.usefixtures("client")
def test_each_session_that_ended_is_an_offline_run(ports: Ports, tmp_path: Path) -> None:
    told(ports, "ufm", 10, 20)
    told(ports, "ufm", 30, attempt=2)
    folder = tmp_path / "out" / "wandb"
    write_ended(ports, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["ufm"], "and no hidden folder"
    (run,) = (folder / "ufm" / "0001").iterdir()
    assert run.name == "offline-run-20261123_120000-ufm-0001"
    assert json.loads((run / "config").read_text()) == [
        "uff-scheduler", "offline", "ufm-0001", "ufm", {"job": "ufm", "attempt": 1},
    ]  # fmt: skip
    rows = [json.loads(line) for line in (run / "log").read_text().splitlines()]
    assert rows == [[10, {"loss": 2.0, "at": NOW + 10}], [20, {"loss": 2.0, "at": NOW + 20}]]
    before = (run / "log").stat().st_mtime_ns
    write_ended(ports, folder)
    assert (run / "log").stat().st_mtime_ns == before, "once written it stays"
    assert (folder / "ufm" / "0002").is_dir()


@pytest.mark.usefixtures("client")
def test_a_run_that_cannot_be_written_is_told_and_leaves_nothing(ports: Ports, tmp_path: Path) -> None:
    with ports.database.write() as tx:
        jobs.add(tx, JobSpec("bad", "manager", ("train",), 1_000, 100.0), NOW)
    told(ports, "bad", 10)
    folder = tmp_path / "wandb"
    write_ended(ports, folder)
    assert "mirror.failed" in ports.log.said  # type: ignore[attr-defined]
    assert list((folder / "bad").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["bad"]


def test_without_the_client_the_reason_says_what_to_install(ports: Ports, tmp_path: Path) -> None:
    told(ports, "ufm", 10)
    lacks = "import sys; sys.modules['wandb'] = None; from scheduler.notify.wandb_child import main; sys.exit(main())"
    write_ended(ports, tmp_path / "wandb", (sys.executable, "-c", lacks))
    assert "pip install 'uff-scheduler[wandb]'" in ports.log.lines[-1]  # type: ignore[attr-defined]
