"""`schedctl acceptance sagemaker` on the emulator, driven through the real adapter and boto3."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock
from scheduler.app import load_app
from scheduler.host.acceptance import JOB, PROBES, Bench, ProbeFinding, Trial, run_probes
from tests.lab.aws import FaultyPlace, FaultyServer, Shortages
from tests.lab.clocks import starting_now
from tests.lab.faults import Fault

EPOCH, SCALE = 1_800_000_000, 20.0
SETTINGS = """
state_dir = "{folder}/state"

[artifacts]
kind = "s3"
root = "{folder}/store"
options = {{ bucket = "uff-acceptance", region = "us-east-1", endpoint = "{address}" }}

[clock]
epoch = {epoch}
origin = {origin}
scale = {scale}

[[pools]]
name = "aws"
platform = "sagemaker"
overrun = "1m"
price_per_hour = "$0.7364"

[pools.options]
endpoint = "{address}"
region = "us-east-1"
bucket = "uff-acceptance"
role = "arn:aws:iam::123456789012:role/uff-execution"
image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10"
instance_types = "ml.g4dn.xlarge"
"""


@dataclass
class Account:
    """An emulated account and a daemon's settings for it."""

    folder: Path
    place: FaultyPlace
    settings: Path

    def bench(self, dollars: float = 1.0) -> Bench:
        """Return a bench, as the command makes it."""
        app = load_app(self.settings, {})
        (app.settings.state_dir / JOB / "aws").mkdir(parents=True, exist_ok=True)
        return Bench(app, "aws", (36_000, round(dollars * 1e6)), print)

    def tried(self, bench: Bench, *names: str) -> dict[str, ProbeFinding]:
        """Run the probes named, or all."""
        mine = [probe for probe in PROBES if not probe.platforms or "sagemaker" in probe.platforms]
        run_probes(bench, [probe for probe in mine if not names or probe.name in names])
        return bench.state.findings

    def assert_nothing_is_left(self, bench: Bench) -> None:
        """Look past our own code."""
        assert list(self.place.jobs) == []
        assert list(bench.base.artifacts.keys("")) == []


@pytest.fixture
def account(tmp_path: Path, aws_credentials: None) -> Iterator[Account]:
    clock = starting_now(EPOCH, SCALE)
    rules = Shortages(queue_seconds=10, download_seconds=10, upload_seconds=10, grace_seconds=120)
    place = FaultyPlace(tmp_path / "emulator", Clock(**clock.payload_clock()), rules)
    with FaultyServer(place) as server:
        server.make_bucket("uff-acceptance")
        server.make_role("uff-execution")
        settings = tmp_path / "settings.toml"
        settings.write_text(SETTINGS.format(folder=tmp_path, address=server.address, **clock.payload_clock()))
        yield Account(tmp_path, place, settings)
    assert [job.name for job in place.jobs.values() if job.live] == []


def test_all_answers_are_as_assumed_and_nothing_is_left(account: Account) -> None:
    bench = account.bench()
    findings = account.tried(bench)
    assert {name: one for name, one in findings.items() if one.verdict != "as assumed"} == {}
    account.assert_nothing_is_left(bench)
    quota, money = bench.cost(bench.state.trials.values())
    assert (quota > 0, 0 < money <= 1_000_000) == (True, True)
    assert findings["job"].evidence["second"]["resumed"] == findings["job"].evidence["first"]["saved"] > 0


def test_a_session_has_its_minutes_after_the_start_that_its_pool_assumes(account: Account) -> None:
    """An instance and its image take some minutes to come; they do not count as the session's."""
    account.place.rules.queue_seconds = account.place.rules.download_seconds = 120
    bench = account.bench()
    finding = account.tried(bench, "session")["session"]
    assert finding.verdict == "as assumed", finding
    assert bench.cost([Trial()])[0] == 600 + bench.pool.start_delay_seconds + bench.pool.overrun_seconds


def test_a_session_that_ends_early_is_open_with_its_last_words(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = next(one for one in PROBES if one.name == "session")
    monkeypatch.setattr(mine, "trial", {"seconds": 40})
    account.place.rules.queue_seconds = 150
    finding = account.tried(account.bench(), "session")["session"]
    assert finding.verdict == "open"
    assert "its log ends with: [agent lane 0] yielded: deadline" in finding.answer


@pytest.mark.parametrize(("probe", "instance"), [("session", "ml.m5.large"), ("device", "ml.g4dn.xlarge")])
def test_a_session_without_a_machine_is_open(
    account: Account, monkeypatch: pytest.MonkeyPatch, probe: str, instance: str
) -> None:
    account.place.rules.no_capacity_types.add(instance)
    bench = account.bench()
    mine = next(one for one in PROBES if one.name == probe)
    monkeypatch.setattr(mine, "trial", {**mine.trial, "seconds": 200})
    assert account.tried(bench, probe)[probe].verdict == "open"
    account.assert_nothing_is_left(bench)


def test_a_full_session_is_a_spot_job_and_a_small_one_is_not(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Mapping[str, Any]] = []
    create = account.place.create

    def noted(request: Mapping[str, Any], region: str = "") -> dict[str, Any]:
        requests.append(request)
        return create(request, region)

    monkeypatch.setattr(account.place, "create", noted)
    account.tried(account.bench(), "session", "device")
    kinds = [(one["ResourceConfig"]["InstanceType"], one["EnableManagedSpotTraining"]) for one in requests]
    assert kinds == [("ml.m5.large", False), ("ml.g4dn.xlarge", True)]
    assert all(one["StoppingCondition"]["MaxRuntimeInSeconds"] <= 1_200 for one in requests)


def test_a_stop_that_is_not_answered_is_open_and_the_deadline_ends_the_session(account: Account) -> None:
    account.place.faults.always["StopTrainingJob"] = Fault.SERVER_ERROR
    bench = account.bench()
    assert account.tried(bench, "stop-force")["stop-force"].verdict == "open"
    account.assert_nothing_is_left(bench)


def test_money_bounds_what_is_started(account: Account) -> None:
    bench = account.bench(dollars=0.0001)
    findings = account.tried(bench, "session", "device")
    assert {name: one.verdict for name, one in findings.items()} == {"session": "open"}
    assert "budget" in findings["session"].answer
    assert list(account.place.jobs) == []
