"""Versions, evaluations, verdicts, promotions and deployments in the database, and what it refuses."""

import pytest

from jobs.payload.store.manifest import Component, Manifest
from jobs.problem import NotFound
from jobs.spec import JobSpec
from scheduler.core.job import IllegalArrow
from scheduler.core.version import split_version, version_name
from scheduler.store import checkpoints, deployments, evaluations, events, jobs, versions
from scheduler.store.engine import Database
from scheduler.store.errors import Refused, Stale
from scheduler.store.verify import verify
from scheduler.store.versions import Promotion, Version

NOW = 1_795_000_000


def save(database: Database, step: int, job: str = "ufm") -> Version:
    """Let a job have a checkpoint; return what a version of it would be."""
    manifest = Manifest(job, step, 1, "uff-ufm-0001", 0, None, NOW, 1, {}, (Component("w", f"{step:064x}", 3),))
    with database.write() as tx:
        if jobs.find(tx, job) is None:
            jobs.add(tx, JobSpec(job, "manager", ("train",), 1_000, 1.0), NOW)
        checkpoints.record(tx, manifest, NOW)
    return Version(job, 0, manifest.key, f"{step:064x}", step, "candidate", "", NOW)


def made(database: Database, step: int) -> Version:
    wanted = save(database, step)
    with database.write() as tx:
        return versions.add(tx, wanted, NOW, "somebody")


def test_a_number_is_given_once_and_the_same_content_is_the_same_version(database: Database) -> None:
    assert [made(database, 10).name, made(database, 20).name, made(database, 10).name] == ["ufm@1", "ufm@2", "ufm@1"]
    other = save(database, 30, "ucm")
    with database.write() as tx:
        assert versions.add(tx, other, NOW, "somebody").name == "ucm@1"
        assert [event.subject for event in events.tail(tx, kinds={"version.made"})] == ["ufm@1", "ufm@2", "ucm@1"]
        assert versions.kept(tx, "ufm") == {
            "jobs/ufm/manifests/000000000010-000001.json": "it is ufm@1",
            "jobs/ufm/manifests/000000000020-000001.json": "it is ufm@2",
        }
        with pytest.raises(NotFound, match="ufm@3"):
            versions.get(tx, "ufm", 3)


def test_a_version_moves_along_its_arrows_alone_and_from_where_it_is(database: Database) -> None:
    candidate = made(database, 10)
    with database.write() as tx:
        evaluating = versions.move(tx, candidate, "evaluate", "", NOW)
        with pytest.raises(Stale):
            versions.move(tx, candidate, "overrule_accept", "", NOW)
        with pytest.raises(IllegalArrow):
            versions.move(tx, evaluating, "replace", "", NOW)
        accepted = versions.move(tx, evaluating, "accept", "all gates", NOW)
        assert (accepted.state, accepted.why) == ("accepted", "all gates")
        assert versions.newest_accepted(tx, "ufm") == accepted
        told = events.tail(tx, kinds={"version.accept"})[0]
    assert (told.subject, told.data["from"], told.data["to"]) == ("ufm@1", "evaluating", "accepted")


def test_a_verdict_is_written_once_and_stays(database: Database) -> None:
    version = made(database, 10)
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm-eval-1", "evaluate", ("score",), 1, 1.0), NOW)
        evaluations.begin(tx, version, "ufm-eval-1", "a" * 64, "b" * 64, NOW)
        (evaluation,) = evaluations.open_ones(tx)
        evaluations.add_verdict(tx, evaluation, "c" * 64, "rejected", {"gates": []}, NOW)
        evaluations.end(tx, evaluation, "scored", NOW)
    with database.write() as tx, pytest.raises(Stale):
        evaluations.end(tx, evaluation, "failed", NOW, "late")
    with pytest.raises(Refused), database.write() as tx:
        evaluations.add_verdict(tx, evaluation, "c" * 64, "accepted", {}, NOW)
    with pytest.raises(Refused, match="append-only"), database.write() as tx:
        tx.exec_driver_sql("UPDATE verdicts SET verdict = 'accepted'")
    with database.read() as tx:
        (said,) = evaluations.verdicts_of(tx, version)
        assert (said.verdict, said.evidence) == ("rejected", {"gates": []})
        assert evaluations.same_verdict(tx, version, "c" * 64, "a" * 64) == said
        assert evaluations.uses(tx, "a" * 64) == 1
    assert verify(database) == []


def test_one_evaluation_of_a_version_is_open_at_a_time(database: Database) -> None:
    version = made(database, 10)
    with database.write() as tx:
        for name in ("ufm-eval-1", "ufm-eval-1-2"):
            jobs.add(tx, JobSpec(name, "evaluate", ("score",), 1, 1.0), NOW)
        evaluations.begin(tx, version, "ufm-eval-1", "a" * 64, "b" * 64, NOW)
    with pytest.raises(Refused), database.write() as tx:
        evaluations.begin(tx, version, "ufm-eval-1-2", "a" * 64, "b" * 64, NOW)


def test_what_is_in_force_is_what_the_newest_promotion_says(database: Database) -> None:
    first, second = made(database, 10), made(database, 20)
    with database.write() as tx:
        assert versions.in_force(tx, "ufm") is None
        versions.note_promotion(tx, Promotion("ufm", "promote", 2, None, "daemon", "accepted", NOW))
        assert versions.in_force(tx, "ufm") == second
        versions.note_promotion(tx, Promotion("ufm", "rollback", 1, 2, "somebody", "it lies", NOW))
        assert versions.in_force(tx, "ufm") == first
        assert [found.kind for found in versions.promotions_of(tx, "ufm")] == ["rollback", "promote"]


def test_one_version_serves_at_a_target_and_one_is_on_its_way(database: Database) -> None:
    first, second = made(database, 10), made(database, 20)
    with database.write() as tx:
        one = deployments.serve(tx, deployments.intend(tx, first, "griffith", NOW, "somebody"), NOW + 1)
        two = deployments.intend(tx, second, "griffith", NOW + 2, "somebody")
        elsewhere = deployments.intend(tx, second, "here", NOW + 2, "somebody")
    with pytest.raises(Refused), database.write() as tx:
        deployments.intend(tx, first, "griffith", NOW + 3, "somebody else")
    with database.write() as tx:
        assert deployments.intended(tx, "ufm", "griffith") == two
        two = deployments.serve(tx, two, NOW + 4, {"digest": "ab"})
        assert deployments.get(tx, one.id).state == "replaced"
        assert deployments.serving(tx, "ufm", "griffith") == two
        deployments.move(tx, elsewhere, "failed", NOW + 5, "the disk is full")
        deployments.move(tx, two, "returned", NOW + 6, "the health check hangs")
        found = [(one.version, one.target, one.state, one.served_at) for one in deployments.of_model(tx, "ufm")]
        assert deployments.live(tx) == []
    assert found == [
        ("ufm@1", "griffith", "replaced", NOW + 1),
        ("ufm@2", "griffith", "returned", NOW + 4),
        ("ufm@2", "here", "failed", None),
    ]
    assert verify(database) == []


@pytest.mark.parametrize("name", ["ufm", "@1", "ufm@", "ufm@0", "ufm@-1", "ufm@1.5", "ufm@1234567890", "ufm@x"])
def test_what_is_no_version_is_none(name: str) -> None:
    assert split_version(name) is None


def test_a_version_is_named_by_model_and_number() -> None:
    assert split_version(version_name("uff.main-2", 12)) == ("uff.main-2", 12)
