"""The deployer: carries out deployments, for the daemon and for commands."""

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
from platforms.folders import try_lock
from platforms.targets import base
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

FOLDER = "deployments"  # the folder of deployments in progress


@dataclass(frozen=True, slots=True)
class Deployer:
    """What deployments need: settings, database, artifact store and folders.

    ``write`` opens a transaction that only the leader can commit. ``folder`` is a local folder with files in transfer
    and with locks between processes of this machine. ``now`` returns scheduled UTC seconds.
    """

    read: Callable[[], AbstractContextManager[Connection]]
    write: Callable[[], AbstractContextManager[Connection]]
    artifacts: BlobStore
    targets: Mapping[str, ServedAt]
    folder: Path
    now: Callable[[], int]
    redact: Callable[[str], str] = str  # redacts known secrets in messages of targets

    @classmethod
    def of(cls, ports: Ports) -> "Deployer":
        """Return the deployer of the daemon."""
        folder = ports.scratch / FOLDER
        read, now = ports.database.read, ports.clock.now
        return cls(read, ports.write, ports.artifacts, ports.targets, folder, now, ports.redact)

    def staging(self, target: str) -> Path:
        """Return the transfer folder of one target; targets have separate folders."""
        return self.folder / target

    @contextmanager
    def alone(self, target: str, model: str) -> Iterator[None]:
        """Lock the target against other processes of this machine. Raises TargetBusy at once if one has the lock.

        It is a lock of the operating system, which ends with the process.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / f"{target}--{model}.lock").open("ab") as handle:
            if not try_lock(handle):
                why = f"another process of this machine deploys {model} there"
                raise base.TargetBusy(target, "deploy", why, "Try again when it is done")
            yield


# Targets of the settings. A target is opened, and its credentials are read, when it is used.
_Opened = TypeVar("_Opened")


def targets_of(settings: Settings, environ: Mapping[str, str]) -> dict[str, ServedAt]:
    """Return the deployment targets by name. Nothing is opened, imported or read yet."""
    return {
        target.name: ServedAt(
            DeploymentRule(target.name, target.models, target.automatic, target.first, target.watch_seconds),
            partial(_open, target, settings.state_dir, environ),
        )
        for target in settings.targets
    }


def _open(target: TargetSettings, state_dir: Path, environ: Mapping[str, str]) -> base.Target:
    from platforms.targets.base import open_target

    def load(read: Callable[[str, Mapping[str, str], Path], _Opened], name: str) -> _Opened:
        try:
            return read(name, environ, state_dir)
        except ConfigError as error:
            problem = error.problems[0]
            raise base.TargetError(target.name, f"use the credential {name}", problem.why, problem.remedy) from None

    context = base.TargetContext(lambda name: load(credential_file, name), lambda name: load(read_secret, name))
    return open_target(target.name, target.kind, target.options, context)


# The files of a release: those of the version's checkpoint, without the files that only training needs.
class Recorded(NamedTuple):
    """A file that an evaluation recorded besides the scores, and the job that it belongs to."""

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
) -> base.Release:
    """Return the release of a version below ``folder``; files downloaded by an earlier try are used again.

    ``probe`` is added as ``probe.json`` if the checkpoint has none. Raises BadRelease for damaged files and for
    weights in formats that are never served; StoreError, OSError.
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
    """Create the read-only folder ``place`` with a version's files, atomically.

    ``add`` adds files before it is sealed. Raises what ``release_of`` raises.
    """
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    served = served_parts(manifest)
    if not any(is_weights(component.name) for component in served):
        why = f"its checkpoint has no weights in a format that runs no code when it is loaded ({', '.join(WEIGHTS)})"
        raise base.BadRelease(version.name, "prepare it", why, "Let its training save safetensors, and evaluate that")
    for component in served:
        fetch_part(artifacts, version, manifest.job, component, fresh / component.name)
    if add is not None:
        add(fresh)
    seal(fresh)
    fresh.replace(place)


def fetch_part(artifacts: BlobStore, version: Version, job: str, component: Component, part: Path) -> None:
    """Copy one file of a job from the store to ``part``. Raises BadRelease if it is damaged; StoreError, OSError."""
    part.parent.mkdir(parents=True, exist_ok=True)
    artifacts.fetch(blob_key(job, component.sha256), part)
    if sha256_file(part) != component.sha256:
        why = f"{component.name} is damaged in the artifact store"
        raise base.BadRelease(version.name, "prepare it", why, f"Check its files: schedctl checkpoints verify {job}")


def served_parts(manifest: Manifest) -> list[Component]:
    """Return the files of a checkpoint that belong to a release."""
    return [component for component in manifest.components if leaves(component.name)]


# The daemon's round: deploys promoted versions to automatic targets and resumes interrupted deployments.
_CHECK_EVERY_SECONDS = 600
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 60, 3_600  # after a deployment whose result is unknown


def decisions(tx: Connection, deployer: Deployer, now: int) -> list[Due | Waits]:
    """Return the deployments of automatic targets that are due, and those that wait."""
    models = sorted({version.model for version in versions.everything(tx)})
    in_force = {model: promoted.number for model in models if (promoted := versions.in_force(tx, model)) is not None}
    rows = [row for model in in_force for row in deployments.of_model(tx, model)]
    return decide([at.rule for at in deployer.targets.values()], in_force, rows, deployments.resumed(tx), now)


def _settled(tx: Connection, deployer: Deployer) -> list[Deployment]:
    """Return the deployments at automatic targets that serve the promoted version, with no other one in progress."""
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
    """Starts and continues deployments, once per cycle. Its state, such as pauses, may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._deployer = Deployer.of(ports)
        self._pauses: dict[int, tuple[int, int]] = {}  # by deployment: (end of the pause, failed tries)
        self._checking: set[str] = set()  # targets whose check has not been answered yet
        self._check_again_at = 0

    def look(self, now: int) -> None:
        """Store deployments that are due, and start or continue all stored ones."""
        if not self._deployer.targets:
            return
        self._redeploy(now)
        ports = self._ports
        with ports.database.read() as tx:
            due = [one for one in decisions(tx, self._deployer, now) if isinstance(one, Due)]
            intended = [row for row in deployments.live(tx) if row.state == "intended"]
        for one in due:
            intended += self._intend(one, now)
        self._deploy_all([row for row in intended if not self._is_absent(row, now)], now)

    def _redeploy(self, now: int) -> None:
        """Check every ten minutes whether automatic targets serve the promoted versions, and redeploy if not."""
        ports = self._ports
        with ports.database.read() as tx:
            deployments_by_name = {f"{row.version} at {row.target}": row for row in _settled(tx, self._deployer)}
        if not self._checking and now >= self._check_again_at:
            self._checking, self._check_again_at = set(deployments_by_name), now + _CHECK_EVERY_SECONDS
        self._checking &= deployments_by_name.keys()
        work = {name: partial(self._drift, deployments_by_name[name]) for name in self._checking}
        for name, drift in gather_apart(ports, "target", "target.unknown", work, "", "version").items():
            self._checking.discard(name)
            if drift:
                row = deployments_by_name[name]
                ports.log.warning("target.drifted", version=row.version, target=row.target, why=drift)
                self._intend(Due(row.model, row.number, row.target), now, drift)

    def _drift(self, row: Deployment) -> str:
        """Return the version that a target serves if it is not the intended one, else "". Raises TargetError."""
        serving = self._deployer.targets[row.target].open().read(row.model)
        if serving.version != row.number:
            return f"{'nothing' if serving.version is None else f'{row.model}@{serving.version}'} served there"
        return "" if serving.proven else "the target no longer proves that it answers"

    def _intend(self, due: Due, now: int, cause: str = "it is promoted") -> list[Deployment]:
        try:
            with self._ports.write() as tx:
                version = versions.get(tx, due.model, due.number)
                return [deployments.intend(tx, version, due.target, now, DAEMON, cause)]
        except Refused:  # a person has changed the deployment since
            return []

    def _is_absent(self, row: Deployment, now: int) -> bool:
        """Return whether the target is not in the settings any more; the deployment is then ended."""
        if row.target in self._deployer.targets:
            return False
        with self._ports.write() as tx:
            deployments.move(tx, row, "failed", now, "this target is no longer in the settings")
        return True

    def _deploy_all(self, rows: list[Deployment], now: int) -> None:
        ready = {f"{row.version} to {row.target}": row for row in rows if self._pauses.get(row.id, (0, 0))[0] <= now}
        work = {name: partial(self._deploy, row) for name, row in ready.items()}
        answers = gather_apart(self._ports, "deploy", "deployment.unknown", work, False, "deployment")  # noqa: FBT003
        for name, over in answers.items():
            number = ready[name].id
            _, tries = self._pauses.pop(number, (0, 0))
            if not over:
                pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS << min(tries, 10))
                self._pauses[number] = (now + pause, tries + 1)

    def _deploy(self, row: Deployment) -> bool:
        """Carry out a deployment, log its result and return True. Raises what ``carry_out`` raises."""
        done = carry_out(self._deployer, row)
        write = self._ports.log.info if done.state == "serving" else self._ports.log.error
        write(f"deployment.{done.state}", version=done.version, target=done.target, why=done.why)
        return True


# Carries out one stored deployment and stores its result.
#
# This may be interrupted anywhere and repeated: a target completes a started deployment, and a version that serves is
# left alone. So any process may carry out an intended deployment that no other process works on.
def carry_out(deployer: Deployer, wanted: Deployment) -> Deployment:
    """Deploy a version to its target and store the result; a finished deployment is returned unchanged.

    Raises TargetBusy, TargetUnreachable, StoreError and OSError: the result is then unknown, the deployment stays
    intended, and a retry is safe.
    """
    with deployer.alone(wanted.target, wanted.model):
        return _deploy_or_roll_back(deployer, wanted.id)


def deploy_now(deployer: Deployer, version: Version, target: str, by: str, why: str) -> Deployment:
    """Store and carry out a deployment that a person requested; if the same one is in progress, it is continued.

    Another one in progress is ended if no process of this machine works on it. Raises what ``carry_out`` raises.
    """
    with deployer.alone(target, version.model):
        with deployer.write() as tx:
            intended = deployments.intended(tx, version.model, target)
            if intended is not None and intended.number != version.number:
                deployments.move(tx, intended, "failed", deployer.now(), f"{by} deploys {version.name} in its place")
                intended = None
            if intended is None:
                intended = deployments.intend(tx, version, target, deployer.now(), by, why)
        return _deploy_or_roll_back(deployer, intended.id)


def _deploy_or_roll_back(deployer: Deployer, number: int) -> Deployment:
    with deployer.read() as tx:
        deployment = deployments.get(tx, number)
        in_force = versions.in_force(tx, deployment.model)
    # The daemon stored it for a version that is not promoted any more.
    unwanted = deployment.by == DAEMON and (in_force is None or in_force.number != deployment.number)
    if deployment.state != "intended":
        return deployment
    try:
        if unwanted:
            return _roll_back(deployer, deployment)
        done, digest = _send(deployer, deployment)
    except (base.TargetBusy, base.TargetUnreachable):
        raise
    except base.TargetError as error:
        # By the contract of targets the previous version continues to serve.
        why = deployer.redact(f"{error.why}. {error.remedy}".strip())
        with deployer.write() as tx:
            return deployments.move(tx, deployment, "failed", deployer.now(), why)
    return _record(deployer, deployment, done, digest)


def _roll_back(deployer: Deployer, unwanted: Deployment) -> Deployment:
    """Roll back a deployment that may have started; nothing happens if the version never arrived."""
    target = deployer.targets[unwanted.target].open()
    tell("rolls back the deployment")
    target.go_back(unwanted.model, unwanted.number)
    with deployer.write() as tx:
        return deployments.move(tx, unwanted, "failed", deployer.now(), "another version was promoted meanwhile")


def _send(deployer: Deployer, wanted: Deployment) -> tuple[base.Deployed, str]:
    """Bring a version to its target. Return the result, and the digest of the sent release, "" if nothing was sent."""
    target = deployer.targets[wanted.target].open()
    tell("reads which version is deployed")
    serving = target.read(wanted.model)
    if serving.before[:1] == (wanted.number,) and serving.version is not None:
        tell("switches back to the version")  # its files are still there
        return target.go_back(wanted.model, serving.version), ""
    with deployer.read() as tx:
        version = versions.get(tx, wanted.model, wanted.number)
        manifest = checkpoints.get(tx, version.checkpoint).manifest
        probe = probe_of_version(tx, version)
    tell("fetches the files of the version")
    release = release_of(deployer.artifacts, version, manifest, deployer.staging(wanted.target), probe)
    tell("copies the files, switches to them and checks the answer")
    return target.deploy(release), release.digest


def _record(deployer: Deployer, wanted: Deployment, done: base.Deployed, digest: str) -> Deployment:
    now, detail = deployer.now(), deployer.redact(done.detail)
    evidence = {"outcome": done.outcome.value, "serves": done.version, "detail": detail, "digest": digest}
    shutil.rmtree(
        deployer.staging(wanted.target) / wanted.model, ignore_errors=True
    )  # the target has the downloaded files
    with deployer.write() as tx:
        match done.outcome:
            case base.DeployOutcome.SERVING:
                return deployments.serve(tx, wanted, now, evidence)
            case base.DeployOutcome.RETURNED:
                why, serves = f"{wanted.version} was tried again without success", done.version
            case base.DeployOutcome.DOWN:
                why, serves = f"the target does not answer since {wanted.version} was deployed", None
                detail = f"the target does not answer: {detail}"
            case _:
                assert_never(done.outcome)
        before = deployments.serving(tx, wanted.model, wanted.target)
        if before is not None and before.number != serves:
            deployments.move(tx, before, "returned", now, why, before.evidence)
        return deployments.move(tx, wanted, "returned", now, detail, evidence)
