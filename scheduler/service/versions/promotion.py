"""Promotion of versions, their creation from checkpoints, and their evaluation by jobs."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection

from jobs.definition import written_table
from jobs.payload.scorers.given import shipped_digest
from jobs.payload.store.manifest import Manifest
from jobs.problem import Refusal
from jobs.spec import EVALUATE, TEST_SET, Input, JobSpec, Stall, StartFrom
from scheduler.core.throughput import PRIOR_SIGMA, SURENESS
from scheduler.service.launch.inputs import note
from scheduler.store import codec, evaluations, generations, jobs, rates, trees, versions
from scheduler.store.evaluations import Overrule
from scheduler.store.jobs import JobRecord
from scheduler.store.rates import RateRecord
from scheduler.store.versions import Promotion, Version


def promote(tx: Connection, version: Version, why: str, now: int, by: str) -> Version:
    """Promote a version; the previous one is retired and can be promoted again. Raises Refusal."""
    if version.state not in {"accepted", "retired"}:
        remedy = "See why" if version.state in {"rejected", "inconclusive"} else "Wait for its verdict"
        raise Refusal(
            f"{version.name} is {version.state}, only an accepted version can be promoted",
            remedy=f"{remedy}: schedctl models show {version.name}",
        )
    before = versions.in_force(tx, version.model)
    if before is not None and before.number == version.number:
        raise Refusal(f"{version.name} is promoted already", remedy=f"See: schedctl models show {version.model}")
    if before is not None and before.state == "accepted":
        versions.move(tx, before, "replace", f"replaced by {version.name}", now, by)
    if version.state == "retired":
        version = versions.move(tx, version, "recall", why, now, by)
    was = before.number if before else None
    versions.note_promotion(tx, Promotion(version.model, "promote", version.number, was, by, why, now))
    return version


def promote_by_itself(tx: Connection, version: Version, now: int) -> bool:
    """Promote an accepted version, unless a newer one is promoted or a person rolled one back since then."""
    newest = next(iter(versions.promotions_of(tx, version.model)), None)
    if newest is not None and (newest.kind == "rollback" or (newest.number or 0) >= version.number):
        return False
    promote(tx, version, "its gates accepted it", now, "daemon")
    return True


def rollback(tx: Connection, model: str, why: str, now: int, by: str) -> tuple[Version, Version | None]:
    """Roll back the promoted version: it is rejected, and the previous one, if any, is promoted again.

    Automatic promotion stops until a person promotes a version. Returns the version that was rolled back, and the one
    that is promoted now. Raises Refusal.
    """
    withdrawn = versions.in_force(tx, model)
    if withdrawn is None:
        raise Refusal(f"no version of {model} is promoted", remedy=f"See: schedctl models list {model}")
    if withdrawn.state == "accepted":  # a person may have overruled it meanwhile
        withdrawn = versions.move(tx, withdrawn, "return", f"rolled back: {why}", now, by)
    before = _before(tx, withdrawn)
    if before is not None and before.state == "retired":
        before = versions.move(tx, before, "recall", f"{withdrawn.name} was rolled back", now, by)
    number = before.number if before else None
    versions.note_promotion(tx, Promotion(model, "rollback", number, withdrawn.number, by, why, now))
    return withdrawn, before


def overrule(
    tx: Connection, version: Version, verdict: Literal["accepted", "rejected"], why: str, now: int, by: str
) -> Version:
    """Replace the result of an evaluation by a person's decision; both are kept. Raises Refusal."""
    name = version.name
    if version.state == verdict:
        raise Refusal(f"{name} is {verdict} already", remedy=f"See: schedctl models show {name}")
    if version.state == "evaluating":
        raise Refusal(f"{name} is being evaluated", remedy=f"Wait for its verdict: schedctl models show {name}")
    force = versions.in_force(tx, version.model)
    if verdict == "rejected" and force is not None and force.number == version.number:
        raise Refusal(f"{name} is promoted", remedy=f"Roll back: schedctl models rollback {version.model} --reason WHY")
    if verdict == "accepted" and version.state == "retired":
        raise Refusal(f"{name} was accepted", remedy=f"Promote it: schedctl models promote {name}")
    arrow = "overrule_accept" if verdict == "accepted" else "overrule_reject"
    evaluations.overrule(tx, Overrule(version.model, version.number, version.state, verdict, by, why, now))
    return versions.move(tx, version, arrow, f"overruled: {why}", now, by)


def _before(tx: Connection, withdrawn: Version) -> Version | None:
    """Return the last version promoted before this one that may be promoted again, None if there is none."""
    for past in versions.promotions_of(tx, withdrawn.model):
        earlier = versions.find(tx, withdrawn.model, past.was) if past.was is not None else None
        if earlier is not None and earlier.number != withdrawn.number and earlier.state in {"accepted", "retired"}:
            return earlier
    return None


# Creation of a version from a checkpoint, and of the job that evaluates it.
_NAME_MAX = 40  # characters of a job's name
_SHIPPED = "{payload}/scorers"


def version_of(tx: Connection, record: JobRecord, manifest: Manifest, now: int, by: str) -> Version:
    """Return the version of a checkpoint; it is created unless one with the same content exists."""
    mixture = record.spec.mixture
    began = generations.of_attempt(tx, manifest.job, manifest.attempt)
    parent = versions.of_checkpoint(tx, began.parent_key) if began and began.parent_key else None
    code, lock = trees.of_attempt(tx, manifest.job, manifest.attempt)
    version = Version(
        model=manifest.job,
        number=0,
        checkpoint=manifest.key,
        digest=manifest.digest,
        step=manifest.step,
        state="candidate",
        why="",
        created_at=now,
        code=code,
        environment=lock,
        corpus=mixture.corpus or None if mixture else None,
        mixture=f"{mixture.extra_share:.0%} of {mixture.domain} on top" if mixture and mixture.domain else None,
        parent=began.parent if began else None,
        parent_number=parent.number if parent else None,
        parent_key=began.parent_key if began else None,
    )
    return versions.add(tx, version, now, by)


def evaluate(
    tx: Connection, record: JobRecord, version: Version, test_set: Input, bundle: Path, now: int, by: str
) -> str:
    """Queue a job that scores a version by the present definition of its model; return the job's name.

    Raises Refusal if an evaluation is open, or if an equal one has a result.
    """
    earlier = evaluations.of_version(tx, version)
    if earlier and earlier[-1].state == "open":
        raise Refusal(f"{version.name} is being evaluated by {earlier[-1].job}: schedctl queue show {earlier[-1].job}")
    scorer = scorer_digest(record.spec, bundle)
    earlier_verdict = evaluations.same_verdict(tx, version, gates_digest(record.spec, scorer), test_set.digest)
    if earlier_verdict is not None:
        raise Refusal(
            f"these gates have judged {version.name} on this test set already: it was {earlier_verdict.verdict}",
            remedy="Change the gates, the scorer or the set, or overrule the verdict: "
            f"schedctl models overrule {version.name} --reason WHY",
        )
    name = _free_name(tx, version)
    spec = _job(record.spec, version, test_set, name, scorer, now)
    note(tx, spec)
    jobs.add(tx, spec, now, by)
    beginning = generations.begin(tx, name, 1, now)
    generations.pin(tx, beginning, version.model, version.step, version.checkpoint, now, by)
    _expect(tx, name, evaluations.similar_jobs(tx, scorer, test_set.digest), now)
    evaluations.begin(tx, version, name, test_set.digest, scorer, now)
    if version.state not in {"accepted", "retired"}:  # these are scored for comparison only and keep their state
        versions.move(tx, version, "evaluate", "", now, by, job=name)
    return name


def scorer_digest(spec: JobSpec, bundle: Path) -> str:
    """Return the digest of a model's scorer: command, code, packages, and the files of shipped scorers."""
    wanted = spec.evaluation
    words = wanted.command if wanted else ()
    shipped = any(_SHIPPED in word for word in words)
    parts = {
        "command": words,
        "code": spec.code.digest if spec.code else "",
        "requirements": spec.requirements.digest if spec.requirements else "",
        "image": spec.image,
        "inputs": {one.name: one.digest for one in spec.inputs},
        "shipped": shipped_digest(bundle / "payload/scorers") if shipped else "",
    }
    return hashlib.sha256(codec.dump(parts).encode()).hexdigest()


def gates_digest(spec: JobSpec, scorer: str) -> str:
    """Return the digest of a model's gates and scorer."""
    document = {"gates": list(map(written_table, spec.gates)), "scorer": scorer}
    return hashlib.sha256(codec.dump(document).encode()).hexdigest()


def _job(spec: JobSpec, version: Version, test_set: Input, name: str, scorer: str, now: int) -> JobSpec:
    """Return the job that evaluates a version: that of its model with another command."""
    wanted = spec.evaluation
    assert wanted is not None  # noqa: S101 - the caller guarantees it
    data = {"EVALUATION_MODEL": version.model, "EVALUATION_CHECKPOINT": version.digest, "EVALUATION_SCORER": scorer}
    return replace(
        spec,
        name=name,
        role=EVALUATE,
        command=wanted.command,
        target_step=1,
        steps_per_hour=3_600 / wanted.longest_seconds,
        needs=wanted.needs,
        mixture=None,
        gate=None,  # the checkpoint of its parent exists
        share=None,
        start_from=StartFrom(version.model, "newest"),
        pools=wanted.pools,
        device_speedup=(1.0,),
        environment={**spec.environment, **data},
        not_before=None,
        deadline=now + wanted.within_seconds if wanted.within_seconds else None,
        stall=Stall(),
        inputs=(*(one for one in spec.inputs if one.name != TEST_SET), replace(test_set, name=TEST_SET)),
        sweep=f"{version.model[: _NAME_MAX - 5]}-eval",
        whole=True,
        budget_seconds=None,  # that budget is for training
        agent="",
        evaluation=None,
        gates=(),
    )


def _expect(tx: Connection, name: str, alike: Sequence[str], now: int) -> None:
    """Store the expected duration of an evaluation: the 90 % quantile of earlier ones, else ``longest`` applies.

    If the evaluation is cut off within that time, ``longest`` applies from then on.
    """
    rates_by_pool: dict[str, RateRecord] = {}
    for earlier in alike:
        for rate in rates.of_job(tx, earlier):
            if rate.samples:
                rates_by_pool.setdefault(rate.pool, rate)
    for rate in rates_by_pool.values():
        surely = rate.steps_per_second / (1 + SURENESS * PRIOR_SIGMA)
        rates.put(tx, replace(rate, job=name, steps_per_second=surely, sigma=PRIOR_SIGMA, at=now))


def _free_name(tx: Connection, version: Version) -> str:
    """Return an unused job name: ``ufm-eval-3``, or ``ufm-eval-3-2`` for the second evaluation."""
    again = 1
    while True:
        end = f"-eval-{version.number}" + (f"-{again}" if again > 1 else "")
        name = version.model[: _NAME_MAX - len(end)] + end
        if jobs.find(tx, name) is None:
            return name
        again += 1
