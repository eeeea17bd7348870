"""Models on the status page: versions, what the gates found, and what a version took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.spec import JobSpec
from scheduler.clock import real_now
from scheduler.store import checkpoints, evaluations, jobs, versions
from scheduler.store.versions import Promotion, Version
from tests.integration.web.conftest import served
from tests.lab.web.world import write_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from tests.integration.web.conftest import Served

FINDING = {
    "gate": {"metric": "atomicity", "kind": "threshold", "minimum": 0.9},
    "outcome": "passed",
    "value": 0.95,
    "before": None,
    "items": 40,
    "clusters": 8,
    "low": 0.9,
    "high": 0.97,
    "smallest_effect": 0.02,
    "examples": [{"item": "item-7", "value": 0.0, "before": None, "text": "<b>bold</b>"}],
}


def judged(tx: Connection, now: int) -> Version:
    """Write a version of the first job that has a checkpoint, its verdict, and that it is in force."""
    saved = next(record for record in checkpoints.everything(tx) if record.state == "good").manifest
    wanted = Version(saved.job, 0, saved.key, saved.digest, saved.step, "candidate", "", now)
    made = versions.move(tx, versions.add(tx, wanted, now, "test"), "evaluate", "", now)
    jobs.add(tx, JobSpec(f"{saved.job}-eval-1", "evaluate", ("score",), 1, 1.0, whole=True), now)
    evaluations.begin(tx, made, f"{saved.job}-eval-1", "ab" * 32, "cd" * 32, now)
    (evaluation,) = evaluations.open_ones(tx)
    evaluations.end(tx, evaluation, "scored", now)
    evidence = {"reason": "<i>1 gate passed</i>", "findings": [FINDING]}
    evaluations.say(tx, evaluation, "ef" * 32, "accepted", evidence, now)
    made = versions.move(tx, made, "accept", "1 gate passed", now)
    versions.note_promotion(tx, Promotion(made.model, "promote", made.number, None, "test", "", now))
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The status page over a world of its own, in which one version is in force."""
    world = write_world(tmp_path_factory.mktemp("models"), 10, 40, int(real_now()))
    with world.database.write() as tx:
        judged(tx, world.now)
    with served(world) as found:
        yield found
    world.database.close()


@pytest.fixture
def version(site: Served) -> Version:
    """The version in force."""
    with site.world.database.read() as tx:
        return versions.everything(tx)[0]


def test_versions_are_listed_and_each_has_a_page(site: Served, version: Version) -> None:
    listed = site.get("/models").text
    assert f'<a href="/models/{version.model}%401">{version.name}</a>' in listed
    assert "in force" in listed
    shown = site.get(f"/models/{version.name}").text
    for part in ("atomicity threshold", "0.95", "item-7", "&lt;i&gt;1 gate passed&lt;/i&gt;"):
        assert part in shown
    assert "<i>1 gate" not in shown, "words of a judge are text"
    assert site.get("/models/nobody@7").status_code == 404


def test_the_api_says_the_same(site: Served, version: Version) -> None:
    (model,) = [one for one in site.json("/api/v1/models")["models"] if one["versions"]]
    assert (model["in_force"], model["paused"]) == (version.name, False)
    detail = site.json(f"/api/v1/models/{version.name}")["version"]
    assert (detail["state"], detail["verdicts"][0]["verdict"]) == ("accepted", "accepted")
    assert site.get("/api/v1/models/ufm").status_code == 404


def test_metrics_tell_what_the_version_in_force_took(site: Served, version: Version) -> None:
    text = site.get("/metrics").text
    assert f'uff_version_in_force{{model="{version.model}"}} 1\n' in text
    assert 'uff_versions{state="accepted"} 1\n' in text
    seconds = site.json(f"/api/v1/models/{version.name}")["version"]["training"]["seconds"]
    assert f'uff_version_cost_seconds{{model="{version.model}"}} {seconds}\n' in text
