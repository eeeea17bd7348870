"""Versions of models: their checkpoints, their states, and which one is promoted."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, insert, select, update

from jobs.problem import NotFound
from scheduler.core.version import VersionState, next_state, split_version, version_name
from scheduler.store import codec, events
from scheduler.store.errors import Stale
from scheduler.store.schema import model_versions, models, promotions


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    ``digest`` is the digest of its checkpoint's content. ``code`` and ``environment`` are the digests that its training
    used. ``mixture`` describes the data besides ``corpus``. The version was initialised from the checkpoint
    ``parent_key`` of the job ``parent``; ``parent_number`` is the version of that checkpoint, None without a version.
    """

    model: str
    number: int
    checkpoint: str
    digest: str
    step: int
    state: VersionState
    why: str
    created_at: int
    code: str | None = None
    environment: str | None = None
    corpus: str | None = None
    mixture: str | None = None
    parent: str | None = None
    parent_number: int | None = None
    parent_key: str | None = None

    @property
    def name(self) -> str:
        """The name of the version, such as ``ufm@3``."""
        return version_name(self.model, self.number)


@dataclass(frozen=True, slots=True)
class Promotion:
    """A change of the promoted version from ``was`` to ``number``; None means no version."""

    model: str
    kind: Literal["promote", "rollback"]
    number: int | None
    was: int | None
    by: str
    why: str
    at: int


_ALL = select(model_versions).order_by(model_versions.c.model, model_versions.c.number)
_OF_MODEL = _ALL.where(model_versions.c.model == bindparam("model"))
_ONE = _OF_MODEL.where(model_versions.c.number == bindparam("number"))
_OF_DIGEST = _OF_MODEL.where(model_versions.c.digest == bindparam("digest"))
_OF_CHECKPOINT = _ALL.where(model_versions.c.checkpoint == bindparam("key"))
_ACCEPTED = _OF_MODEL.where(model_versions.c.state == "accepted").order_by(None)
_NEWEST_ACCEPTED = _ACCEPTED.order_by(model_versions.c.number.desc()).limit(1)
_PROMOTIONS = (
    select(promotions).where(promotions.c.model == bindparam("model")).order_by(promotions.c.id.desc()).limit(500)
)


def add(tx: Connection, version: Version, now: int, by: str) -> Version:
    """Store a version with the next number of its model; return the existing one if its content is the same.

    ``version.number`` is ignored. Event ``version.made``.
    """
    if (before := of_digest(tx, version.model, version.digest)) is not None:
        return before
    counted = update(models).where(models.c.name == version.model).values(counter=models.c.counter + 1)
    number = tx.execute(counted.returning(models.c.counter)).scalar_one_or_none()
    if number is None:
        number = 1
        tx.execute(insert(models).values(name=version.model, counter=number))
    tx.execute(insert(model_versions), {**asdict(version), "number": number})
    created = get(tx, version.model, number)
    events.append(tx, "version.made", created.name, now, by, step=created.step, checkpoint=created.checkpoint)
    return created


def find(tx: Connection, model: str, number: int) -> Version | None:
    """Return one version, or None."""
    return codec.single(Version, tx.execute(_ONE, {"model": model, "number": number}))


def get(tx: Connection, model: str, number: int) -> Version:
    """Return one version. Raises NotFound."""
    return named(tx, version_name(model, number))


def named(tx: Connection, name: str) -> Version:
    """Return the version with a name such as ``ufm@3``. Raises NotFound."""
    parts = split_version(name)
    version = find(tx, *parts) if parts else None
    if version is None:
        raise NotFound("unknown version", "no version has this name", "See `schedctl models list`", name)
    return version


def everything(tx: Connection, model: str | None = None) -> list[Version]:
    """Return all versions (of one model if given), sorted by model and number."""
    return codec.records(Version, tx.execute(_ALL) if model is None else tx.execute(_OF_MODEL, {"model": model}))


def of_checkpoint(tx: Connection, key: str) -> Version | None:
    """Return the version of a checkpoint, or None."""
    row = tx.execute(_OF_CHECKPOINT, {"key": key}).first()
    return None if row is None else codec.record_of(Version, row)


def of_digest(tx: Connection, model: str, digest: str) -> Version | None:
    """Return the version of a model with this content digest, or None."""
    return codec.single(Version, tx.execute(_OF_DIGEST, {"model": model, "digest": digest}))


def newest_accepted(tx: Connection, model: str) -> Version | None:
    """Return the accepted version with the highest number, or None."""
    return codec.single(Version, tx.execute(_NEWEST_ACCEPTED, {"model": model}))


def move(tx: Connection, version: Version, arrow: str, why: str, now: int, by: str = "daemon", **data: Any) -> Version:
    """Store the state after ``arrow`` and write the event ``version.<arrow>``. Raises IllegalArrow, or Stale."""
    state = next_state(version.state, arrow)
    columns = model_versions.c
    still = (columns.model == version.model, columns.number == version.number, columns.state == version.state)
    if not tx.execute(update(model_versions).where(*still).values(state=state, why=why)).rowcount:
        raise Stale(f"version {version.name}", version.state, get(tx, version.model, version.number).state)
    changes = {**data, "why": why, "from": version.state, "to": state}
    events.write(tx, f"version.{arrow}", version.name, now, by, changes)
    return get(tx, version.model, version.number)


def kept(tx: Connection, job: str) -> dict[str, str]:
    """Return why checkpoints of a job must be kept for its versions, by checkpoint key."""
    return {version.checkpoint: f"it is {version.name}" for version in everything(tx, job)}


def promotions_of(tx: Connection, model: str) -> list[Promotion]:
    """Return the newest promotions and rollbacks of a model, newest first."""
    return codec.records(Promotion, tx.execute(_PROMOTIONS, {"model": model}))


def in_force(tx: Connection, model: str) -> Version | None:
    """Return the promoted version, or None."""
    newest = next(iter(promotions_of(tx, model)), None)
    return find(tx, model, newest.number) if newest is not None and newest.number is not None else None


def note_promotion(tx: Connection, promotion: Promotion) -> None:
    """Store which version is promoted from now on; event ``model.promote`` or ``model.rollback``."""
    tx.execute(insert(promotions), asdict(promotion))
    changes = {"number": promotion.number, "was": promotion.was, "why": promotion.why}
    events.write(tx, f"model.{promotion.kind}", promotion.model, promotion.at, promotion.by, changes)
