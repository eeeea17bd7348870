"""Requests about versions of models and deployment targets, with or without a running daemon."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection

from jobs.corpus.folder import CorpusFolder
from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore
from platforms.targets.base import Served, TargetError
from scheduler.core.version import Deployment, split_version
from scheduler.service.deploy.deployer import Deployer, deploy_now
from scheduler.service.requests.checkpoint_files import choose
from scheduler.service.versions import promotion
from scheduler.service.versions.item_sets import set_for
from scheduler.store import deployments, events, jobs, versions
from scheduler.store.engine import Database
from scheduler.store.versions import Version

_SERVED_STATES = {"accepted", "retired"}


def meant(tx: Connection, name: str) -> Version:
    """Return the version ``ufm@3``; for ``ufm`` the promoted or newest one. Raises NotFound, UnknownJob, Refusal."""
    named = split_version(name)
    if named is not None:
        return versions.get(tx, *named)
    jobs.get(tx, name, removed=True)
    version = versions.in_force(tx, name) or next(reversed(versions.everything(tx, name)), None)
    if version is None:
        raise Refusal(f"{name} has no version yet", remedy=f"Make one: schedctl models evaluate {name}")
    return version


def evaluate(  # noqa: PLR0913 - the stores, the request and its author
    database: Database,
    artifacts: BlobStore,
    corpora: Callable[[], CorpusFolder],
    bundle: Path,
    name: str,
    step: int | None,
    *,
    keep_seconds: int,
    now: int,
    by: str,
) -> tuple[Version, str]:
    """Queue the evaluation of a version, or of a new version of a model's newest checkpoint or that at ``step``.

    Returns the version and the evaluation job. Raises NotFound, UnknownJob, Refusal, Refused, CorpusError, StoreError.
    """
    named = split_version(name)
    with database.read() as tx:
        if named:
            versions.get(tx, *named)
        spec = jobs.get(tx, named[0] if named else name).spec
    test_set = set_for(spec, database, artifacts, corpora, now + keep_seconds)
    with database.write() as tx:
        record = jobs.get(tx, spec.name)
        version = (
            versions.get(tx, *named) if named else promotion.version_of(tx, record, choose(tx, name, step), now, by)
        )
        job = promotion.evaluate(tx, record, version, test_set, bundle, now, by)
        return versions.get(tx, version.model, version.number), job


@dataclass(frozen=True, slots=True)
class Compared:
    """One model at a target: the promoted version, the serving one, and their difference as ``drift``, "" if none.

    ``did`` is the action that was taken, "" for none. ``still``: the difference remains.
    """

    model: str
    wanted: int | None
    served: int | None
    proven: bool
    drift: str
    did: str = ""
    still: bool = False


def may_be_deployed(deployer: Deployer, version: Version, target: str) -> None:
    """Raise Refusal if a version must not be deployed to a target."""
    if version.state not in _SERVED_STATES:
        raise Refusal(
            f"{version.name} is {version.state}, only an accepted version is deployed",
            remedy=f"See why: schedctl models show {version.name}",
        )
    rule = deployer.targets[target].rule
    if not rule.serves(version.model):
        raise Refusal(f"{target} does not serve {version.model}", remedy=f"Add it to models of [[targets]] {target}")
    with deployer.read() as tx:
        in_force = versions.in_force(tx, version.model)
    if rule.automatic and (in_force is None or in_force.number != version.number):
        raise Refusal(
            f"{target} is automatic: it follows the promoted version, which {version.name} is not",
            remedy=f"Promote it: schedctl models promote {version.name}",
        )


def sync(deployer: Deployer, name: str, by: str, *, look_only: bool) -> Iterator[Compared]:
    """Compare a target with the promoted versions, file by file, and redeploy differences; yield each finished model.

    Idempotent: models without a difference are not touched. Raises TargetError if the target does not answer.
    """
    at = deployer.targets[name]
    target = at.open()
    with deployer.read() as tx:
        models = sorted({version.model for version in versions.everything(tx) if at.rule.serves(version.model)})
    for model in models:
        live = target.read(model, deep=True)
        with deployer.read() as tx:
            wanted, drift = versions.in_force(tx, model), _drift(tx, model, name, live)
        number = wanted.number if wanted else None
        compared = Compared(model, number, live.version, live.proven, drift, still=bool(drift))
        if drift and wanted is not None and not look_only and not live.damaged:
            compared = _redeployed(deployer, compared, wanted, name, by)
        if drift or live.version is not None or wanted is not None:
            yield compared


def resume(deployer: Deployer, model: str, by: str) -> list[Deployment]:
    """Resume the automatic deployment of a model; return the deployments that paused it. Raises Refusal if none did."""
    with deployer.write() as tx:
        paused = [one for one in deployments.stopped(tx) if one.model == model]
        if not paused:
            raise Refusal(f"the deployment of {model} is not paused", remedy=f"See: schedctl models list {model}")
        events.append(tx, deployments.RESUMED, model, deployer.now(), by, why=paused[-1].why)
    return paused


def _redeployed(deployer: Deployer, compared: Compared, wanted: Version, target: str, by: str) -> Compared:
    try:
        done = deploy_now(deployer, wanted, target, by, f"sync: {compared.drift}")
    except TargetError as error:
        return replace(compared, did=str(error), still=True)
    good = done.state == "serving"
    sentence = "deployed" if good else f"{done.state}: {done.why}"
    served = wanted.number if good else compared.served
    return replace(compared, served=served, proven=good, did=sentence, still=not good)


def _drift(tx: Connection, model: str, target: str, live: Served) -> str:
    """Return the difference of a target from the intended state as text; "" for none."""
    wanted, row = versions.in_force(tx, model), deployments.serving(tx, model, target)
    if live.damaged:
        return f"files were changed there: {'; '.join(live.damaged)}"
    if wanted is None:
        return "a version is deployed there, and none is promoted" if live.version is not None else ""
    if live.version != wanted.number:
        deployed = "nothing" if live.version is None else f"{model}@{live.version}"
        return f"{deployed} is deployed, {wanted.name} is promoted"
    if not live.proven:
        return f"{wanted.name} has not answered since it was deployed"
    if row is None or row.number != wanted.number:
        return f"our records do not say that {wanted.name} is deployed there"
    sent = str(row.evidence.get("digest", ""))
    return "its files differ from the deployed ones" if sent and sent != live.digest else ""
