"""Carry out: one deployment that was written down is done, and what came of it is written down.

It may be cut off anywhere and carried out again: a target finishes what it began, and a version that serves already is
left alone. So a process that finds an intended deployment that is not being carried out does it.
"""

from __future__ import annotations

import shutil
from typing import assert_never

from platforms.targets.base import Deployed, DeployOutcome, TargetBusy, TargetError, TargetUnreachable
from scheduler.core.deployment import Deployment
from scheduler.service.deploy.deployer import Deployer
from scheduler.service.deploy.release_files import probe_of_version, release_of
from scheduler.service.outside.calls import tell
from scheduler.store import checkpoints, deployments, versions
from scheduler.store.versions import Version

DAEMON = deployments.DAEMON


def carry_out(deployer: Deployer, wanted: Deployment) -> Deployment:
    """Bring a version to its target and record what came of it; one that is over already is returned as it is.

    Raises TargetBusy and TargetUnreachable, StoreError and OSError: nothing is known then, the deployment stays
    intended, and trying again later is safe.
    """
    with deployer.alone(wanted.target, wanted.model):
        return _carry(deployer, wanted.id)


def deploy_now(deployer: Deployer, version: Version, target: str, by: str, why: str) -> Deployment:
    """Write down what a person wants and carry it out; the same that is on its way already is carried on.

    Another that is on its way, which no process of this machine is at, makes room. Raises as carry_out.
    """
    with deployer.alone(target, version.model):
        with deployer.write() as tx:
            open_deployment = deployments.intended(tx, version.model, target)
            if open_deployment is not None and open_deployment.number != version.number:
                deployments.fail(tx, open_deployment, deployer.now(), f"{by} deploys {version.name} in its place")
                open_deployment = None
            if open_deployment is None:
                open_deployment = deployments.intend(tx, version, target, deployer.now(), by, why)
        return _carry(deployer, open_deployment.id)


def _carry(deployer: Deployer, number: int) -> Deployment:
    with deployer.read() as tx:
        deployment = deployments.get(tx, number)
        in_force = versions.in_force(tx, deployment.model)
    # The daemon wrote it down for a version that is not promoted any more.
    unwanted = deployment.by == DAEMON and (in_force is None or in_force.number != deployment.number)
    if deployment.state != "intended":
        return deployment
    try:
        if unwanted:
            return _take_back(deployer, deployment)
        done, digest = _bring(deployer, deployment)
    except (TargetBusy, TargetUnreachable):
        raise
    except TargetError as error:
        # The port promises that the version before serves on.
        with deployer.write() as tx:
            return deployments.fail(
                tx, deployment, deployer.now(), deployer.redact(f"{error.why}. {error.remedy}".strip())
            )
    return _record(deployer, deployment, done, digest)


def _take_back(deployer: Deployer, unwanted: Deployment) -> Deployment:
    """Undo what may have been begun; nothing is touched where the version never came."""
    target = deployer.targets[unwanted.target].open()
    tell("rolls back what was begun")
    target.go_back(unwanted.model, unwanted.number)
    with deployer.write() as tx:
        return deployments.fail(tx, unwanted, deployer.now(), "another version was promoted meanwhile")


def _bring(deployer: Deployer, wanted: Deployment) -> tuple[Deployed, str]:
    """Return what came of it, and the digest of what was sent; "" where nothing was."""
    target = deployer.targets[wanted.target].open()
    tell("asks what is deployed there")
    serving = target.read(wanted.model)
    if serving.before[:1] == (wanted.number,) and serving.version is not None:
        tell("goes back to it")  # it lies there still
        return target.go_back(wanted.model, serving.version), ""
    with deployer.read() as tx:
        version = versions.get(tx, wanted.model, wanted.number)
        manifest = checkpoints.get(tx, version.checkpoint).manifest
        probe = probe_of_version(tx, version)
    tell("fetches its files")
    release = release_of(deployer.artifacts, version, manifest, deployer.staging(wanted.target), probe)
    tell("copies, switches and checks")
    return target.deploy(release), release.digest


def _record(deployer: Deployer, wanted: Deployment, done: Deployed, digest: str) -> Deployment:
    now, detail = deployer.now(), deployer.redact(done.detail)
    evidence = {"outcome": done.outcome.value, "serves": done.version, "detail": detail, "digest": digest}
    shutil.rmtree(deployer.staging(wanted.target) / wanted.model, ignore_errors=True)  # its target has what was fetched
    with deployer.write() as tx:
        match done.outcome:
            case DeployOutcome.SERVING:
                return deployments.serve(tx, wanted, now, evidence)
            case DeployOutcome.RETURNED:
                before = deployments.serving(tx, wanted.model, wanted.target)
                if before is not None and before.number != done.version:
                    deployments.give_back(
                        tx, before, now, f"{wanted.version} was tried again without success", before.evidence
                    )
                return deployments.give_back(tx, wanted, now, detail, evidence)
            case DeployOutcome.DOWN:
                before = deployments.serving(tx, wanted.model, wanted.target)
                if before is not None:
                    why = f"it answers no more since {wanted.version} was tried"
                    deployments.give_back(tx, before, now, why, before.evidence)
                return deployments.give_back(tx, wanted, now, f"nothing answers there: {detail}", evidence)
            case _:
                assert_never(done.outcome)
