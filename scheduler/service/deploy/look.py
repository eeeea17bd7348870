"""Look: what is promoted and not where it should be is brought there, and what was cut off is carried out again."""

from __future__ import annotations

import shutil
from functools import partial
from typing import assert_never

from sqlalchemy import Connection

from platforms.targets.base import Deployed, DeployOutcome, TargetBusy, TargetError, TargetUnreachable
from scheduler.core.deployment import Deployment, Due, Waits, decide, paused_by
from scheduler.service.deploy.deployer import Deployer
from scheduler.service.deploy.release_files import probe_of_version, release_of
from scheduler.service.faults.isolation import apart
from scheduler.service.outside.calls import tell
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, deployments, versions
from scheduler.store.deployments import DAEMON
from scheduler.store.errors import Refused
from scheduler.store.versions import Version

_ASK_EVERY_SECONDS = 600
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 60, 3_600


def decisions(tx: Connection, deployer: Deployer, now: int) -> list[Due | Waits]:
    """Return what is due or waits at the automatic targets now."""
    models = sorted({version.model for version in versions.everything(tx)})
    in_force = {model: promoted.number for model in models if (promoted := versions.in_force(tx, model)) is not None}
    rows = [row for model in in_force for row in deployments.of_model(tx, model)]
    return decide([at.rule for at in deployer.targets.values()], in_force, rows, deployments.resumed(tx), now)


def _settled(tx: Connection, deployer: Deployer) -> list[Deployment]:
    """Return what serves as it should at automatic targets, with nothing on its way and nothing to wait for."""
    live, since = deployments.live(tx), deployments.resumed(tx)
    under_way = {(row.model, row.target) for row in live if row.state == "intended"}
    settled = []
    for row in live:
        at, in_force = deployer.targets.get(row.target), versions.in_force(tx, row.model)
        wanted = in_force is not None and in_force.number == row.number
        if row.state != "serving" or at is None or not at.rule.automatic or not wanted:
            continue
        rows = deployments.of_model(tx, row.model)
        if (row.model, row.target) in under_way or paused_by(
            rows, row.model, row.target, row.number, since.get(row.model)
        ):
            continue
        settled.append(row)
    return settled


class Deployments:
    """Looks after deployments once a turn. Keeps only what may be lost: who rests after no answer, and how often."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._deployer = Deployer.of(ports)
        self._rests: dict[int, tuple[int, int]] = {}  # deployment -> (until, tries)
        self._asking: set[str] = set()  # targets that have not answered yet
        self._ask_again_at = 0

    def look(self, now: int) -> None:
        """Write down what is due, and begin or go on with all that is written down."""
        if not self._deployer.targets:
            return
        self._redeploy(now)
        ports = self._ports
        with ports.database.read() as tx:
            due = [one for one in decisions(tx, self._deployer, now) if isinstance(one, Due)]
            intended = [row for row in deployments.live(tx) if row.state == "intended"]
        for one in due:
            intended += self._intend(one, now)
        self._carry([row for row in intended if not self._is_absent(row, now)], now)

    def _redeploy(self, now: int) -> None:
        """Ask automatic targets now and then whether they serve what they should, and bring it there where not."""
        ports = self._ports
        with ports.database.read() as tx:
            deployments_by_name = {f"{row.version} at {row.target}": row for row in _settled(tx, self._deployer)}
        if not self._asking and now >= self._ask_again_at:
            self._asking, self._ask_again_at = set(deployments_by_name), now + _ASK_EVERY_SECONDS
        self._asking &= deployments_by_name.keys()
        work = {
            name: partial(
                apart, ports, "target.unknown", partial(self._drift, deployments_by_name[name]), "", version=name
            )
            for name in self._asking
        }
        for name, drift in ports.calls.gather("target", work).items() if work else ():
            self._asking.discard(name)
            if drift:
                row = deployments_by_name[name]
                ports.log.warning("target.drifted", version=row.version, target=row.target, why=drift)
                self._intend(Due(row.model, row.number, row.target), now, drift)

    def _drift(self, row: Deployment) -> str:
        """Return what a target serves in place of what it should; "" where all is well. Raises TargetError."""
        serving = self._deployer.targets[row.target].open().read(row.model)
        if serving.version != row.number:
            return f"{'nothing' if serving.version is None else f'{row.model}@{serving.version}'} served there"
        return "" if serving.proven else "it was not seen to answer any more"

    def _intend(self, due: Due, now: int, cause: str = "it is promoted") -> list[Deployment]:
        try:
            with self._ports.write() as tx:
                version = versions.get(tx, due.model, due.number)
                return [deployments.intend(tx, version, due.target, now, DAEMON, cause)]
        except Refused:  # a person was faster
            return []

    def _is_absent(self, row: Deployment, now: int) -> bool:
        """End what is on its way to a target that the settings do not name any more."""
        if row.target in self._deployer.targets:
            return False
        with self._ports.write() as tx:
            deployments.fail(tx, row, now, "the settings do not name this target any more")
        return True

    def _carry(self, rows: list[Deployment], now: int) -> None:
        ready = {row.id: row for row in rows if self._rests.get(row.id, (0, 0))[0] <= now}
        work = {
            f"{row.version} to {row.target}": partial(
                apart, self._ports, "deployment.unknown", partial(self._carried, row), (row.id, False),
                version=row.version, target=row.target,
            )
            for row in ready.values()
        }  # fmt: skip
        for number, over in self._ports.calls.gather("deploy", work).values():
            _, tries = self._rests.pop(number, (0, 0))
            if not over:
                rest = min(_LONGEST_REST_SECONDS, _FIRST_REST_SECONDS << min(tries, 10))
                self._rests[number] = (now + rest, tries + 1)

    def _carried(self, row: Deployment) -> tuple[int, bool]:
        """Carry one out; return its id, and that it is over. Raises as carry_out."""
        done = carry_out(self._deployer, row)
        write = self._ports.log.info if done.state == "serving" else self._ports.log.error
        write(f"deployment.{done.state}", version=done.version, target=done.target, why=done.why)
        return row.id, True


# Carry out: one deployment that was written down is done, and what came of it is written down.
#
# It may be cut off anywhere and carried out again: a target finishes what it began, and a version that serves already
# is left alone. So a process that finds an intended deployment that is not being carried out does it.
def carry_out(deployer: Deployer, wanted: Deployment) -> Deployment:
    """Bring a version to its target and record what came of it; one that is over already is returned as it is.

    Raises TargetBusy and TargetUnreachable, StoreError and OSError: nothing is known then, the deployment stays
    intended, and trying again later is safe.
    """
    with deployer.alone(wanted.target, wanted.model):
        return _carry_one(deployer, wanted.id)


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
        return _carry_one(deployer, open_deployment.id)


def _carry_one(deployer: Deployer, number: int) -> Deployment:
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
