"""The deployer: all that a deployment needs, the same for the daemon and for a person's command."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar, assert_never

from sqlalchemy import Connection

from config.credentials import credential_file, read_secret
from config.errors import ConfigError
from config.settings import Settings, TargetSettings
from jobs.payload.store.manifest import Component, Manifest, blob_key, sha256_file
from platforms.artifacts.base import BlobStore
from platforms.targets.base import (
    BadRelease,
    Deployed,
    DeployOutcome,
    Release,
    Target,
    TargetBusy,
    TargetContext,
    TargetError,
    TargetUnreachable,
)
from platforms.targets.release import WEIGHTS, is_weights, leaves, open_release, seal
from platforms.targets.vllm import MAX_BYTES as PROBE_BYTES_MAX
from platforms.targets.vllm import NAME as PROBE
from scheduler.core.version import Deployment, DeploymentRule, Due, Waits, decide, paused_by
from scheduler.service.faults.isolation import gather_apart
from scheduler.service.outside.calls import tell
from scheduler.service.outside.ports import Ports, ServedAt
from scheduler.store import checkpoints, deployments, evaluations, jobs, versions
from scheduler.store.deployments import DAEMON
from scheduler.store.errors import Refused
from scheduler.store.versions import Version

FOLDER = "deployments"  # below what is on its way


@dataclass(frozen=True, slots=True)
class Deployer:
    """Where deployments are carried out from.

    ``write`` opens a transaction that only the leader can commit; ``folder`` of this machine holds files on
    their way and the locks that keep two processes of it apart. ``now`` tells scheduled UTC seconds.
    """

    read: Callable[[], AbstractContextManager[Connection]]
    write: Callable[[], AbstractContextManager[Connection]]
    artifacts: BlobStore
    targets: Mapping[str, ServedAt]
    folder: Path
    now: Callable[[], int]
    redact: Callable[[str], str] = str  # takes known secrets out of what a target said

    @classmethod
    def of(cls, ports: Ports) -> Deployer:
        """Return the daemon's."""
        folder = ports.scratch / FOLDER
        read, now = ports.database.read, ports.clock.now
        return cls(read, ports.write, ports.artifacts, ports.targets, folder, now, ports.redact)

    def staging(self, target: str) -> Path:
        """Return the folder of what is on its way to one target: another's comes and goes without it."""
        return self.folder / target

    @contextmanager
    def alone(self, target: str, model: str) -> Iterator[None]:
        """Keep other processes of this machine from the same work. Raises TargetBusy at once when one is at it.

        The lock is the operating system's: it ends with the process, however that ends.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / f"{target}--{model}.lock").open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"another process of this machine deploys {model} there"
                raise TargetBusy(target, "deploy", why, "Try again when it is done") from None
            yield


# Targets of the settings, each opened when it is used, with credentials looked up when they are needed.
_Opened = TypeVar("_Opened")


def targets_of(settings: Settings, environ: Mapping[str, str]) -> dict[str, ServedAt]:
    """Return where versions are served, by name. Nothing is opened, imported or read yet."""
    return {
        target.name: ServedAt(
            DeploymentRule(target.name, target.models, target.automatic, target.first, target.watch_seconds),
            partial(_open, target, settings.state_dir, environ),
        )
        for target in settings.targets
    }


def _open(target: TargetSettings, state_dir: Path, environ: Mapping[str, str]) -> Target:
    from platforms.targets.base import open_target

    def load(read: Callable[[str, Mapping[str, str], Path], _Opened], name: str) -> _Opened:
        try:
            return read(name, environ, state_dir)
        except ConfigError as error:
            problem = error.problems[0]
            raise TargetError(target.name, f"use the credential {name}", problem.why, problem.remedy) from None

    context = TargetContext(lambda name: load(credential_file, name), lambda name: load(read_secret, name))
    return open_target(target.name, target.kind, target.options, context)


# The files of a version that leave the house: its checkpoint as the store has it, without what only training needs.
class Recorded(NamedTuple):
    """What an evaluation wrote down of a version beside its scores: a file, and the job whose it is."""

    job: str
    component: Component


def probe_of_version(tx: Connection, version: Version) -> Recorded | None:
    """Return the answer to a fixed prompt that the newest scored evaluation recorded, or None."""
    for evaluation in reversed(evaluations.of_version(tx, version)):
        record = jobs.find(tx, evaluation.job) if evaluation.state == "scored" else None
        saved = checkpoints.find(tx, record.checkpoint) if record is not None and record.checkpoint else None
        for component in saved.manifest.components if saved is not None else ():
            if component.name == f"output/{PROBE}" and component.bytes <= PROBE_BYTES_MAX:
                return Recorded(evaluation.job, component)
    return None


def release_of(
    artifacts: BlobStore, version: Version, manifest: Manifest, folder: Path, probe: Recorded | None = None
) -> Release:
    """Return the release of a version below ``folder``; what an earlier try has fetched is used again.

    A ``probe`` goes along as ``probe.json``, unless the checkpoint has one. Raises BadRelease for files that are
    damaged and weights that are never served; StoreError, OSError.
    """
    place = folder / version.model / f"{version.number}-{version.digest[:12]}"
    if not place.is_dir():

        def add(fresh: Path) -> None:
            if probe is not None and not (fresh / PROBE).exists():
                fetch_part(artifacts, version, probe.job, probe.component, fresh / PROBE)

        make_release(artifacts, version, manifest, place, add)
    return open_release(version.model, version.number, place)


def make_release(
    artifacts: BlobStore, version: Version, manifest: Manifest, place: Path, add: Callable[[Path], None] | None = None
) -> None:
    """Make the new folder ``place`` of a version's files, sealed; it appears only when it is whole.

    ``add`` puts more into it before it is sealed. Raises as release_of.
    """
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    served = served_parts(manifest)
    if not any(is_weights(component.name) for component in served):
        why = f"its checkpoint has no weights in a format that runs no code when it is loaded ({', '.join(WEIGHTS)})"
        raise BadRelease(version.name, "prepare it", why, "Let its training save safetensors, and evaluate that")
    for component in served:
        fetch_part(artifacts, version, manifest.job, component, fresh / component.name)
    if add is not None:
        add(fresh)
    seal(fresh)
    fresh.replace(place)


def fetch_part(artifacts: BlobStore, version: Version, job: str, component: Component, part: Path) -> None:
    """Copy one file of a job's to ``part``. Raises BadRelease if it is damaged; StoreError, OSError."""
    part.parent.mkdir(parents=True, exist_ok=True)
    artifacts.fetch(blob_key(job, component.sha256), part)
    if sha256_file(part) != component.sha256:
        why = f"{component.name} is damaged in the artifact store"
        raise BadRelease(version.name, "prepare it", why, f"Look at it: schedctl checkpoints verify {job}")


def served_parts(manifest: Manifest) -> list[Component]:
    """Return the files of a checkpoint that leave the house."""
    return [component for component in manifest.components if leaves(component.name)]


# Look: what is promoted and not where it should be is brought there, and what was cut off is carried out again.
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
        work = {name: partial(self._drift, deployments_by_name[name]) for name in self._asking}
        for name, drift in gather_apart(ports, "target", "target.unknown", work, "", "version").items():
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
            deployments.end(tx, row, "failed", now, "the settings do not name this target any more")
        return True

    def _carry(self, rows: list[Deployment], now: int) -> None:
        ready = {f"{row.version} to {row.target}": row for row in rows if self._rests.get(row.id, (0, 0))[0] <= now}
        work = {name: partial(self._carried, row) for name, row in ready.items()}
        answers = gather_apart(self._ports, "deploy", "deployment.unknown", work, False, "deployment")  # noqa: FBT003
        for name, over in answers.items():
            number = ready[name].id
            _, tries = self._rests.pop(number, (0, 0))
            if not over:
                rest = min(_LONGEST_REST_SECONDS, _FIRST_REST_SECONDS << min(tries, 10))
                self._rests[number] = (now + rest, tries + 1)

    def _carried(self, row: Deployment) -> bool:
        """Carry one out; return that it is over. Raises as carry_out."""
        done = carry_out(self._deployer, row)
        write = self._ports.log.info if done.state == "serving" else self._ports.log.error
        write(f"deployment.{done.state}", version=done.version, target=done.target, why=done.why)
        return True


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
                deployments.end(
                    tx, open_deployment, "failed", deployer.now(), f"{by} deploys {version.name} in its place"
                )
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
            return deployments.end(
                tx, deployment, "failed", deployer.now(), deployer.redact(f"{error.why}. {error.remedy}".strip())
            )
    return _record(deployer, deployment, done, digest)


def _take_back(deployer: Deployer, unwanted: Deployment) -> Deployment:
    """Undo what may have been begun; nothing is touched where the version never came."""
    target = deployer.targets[unwanted.target].open()
    tell("rolls back what was begun")
    target.go_back(unwanted.model, unwanted.number)
    with deployer.write() as tx:
        return deployments.end(tx, unwanted, "failed", deployer.now(), "another version was promoted meanwhile")


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
                    deployments.end(
                        tx,
                        before,
                        "returned",
                        now,
                        f"{wanted.version} was tried again without success",
                        before.evidence,
                    )
                return deployments.end(tx, wanted, "returned", now, detail, evidence)
            case DeployOutcome.DOWN:
                before = deployments.serving(tx, wanted.model, wanted.target)
                if before is not None:
                    why = f"it answers no more since {wanted.version} was tried"
                    deployments.end(tx, before, "returned", now, why, before.evidence)
                return deployments.end(tx, wanted, "returned", now, f"nothing answers there: {detail}", evidence)
            case _:
                assert_never(done.outcome)
