"""Trees: folders in the artifact store that jobs use, and the times at which unneeded trees may be deleted.

The kind of a tree is ``code`` for a job's own code, ``input`` for its inputs, ``hub`` for the listing of a repository
whose files are elsewhere, ``corpus`` for a version of the corpus with its mixtures, ``lock`` for the list of packages
that a job requires, and ``wheels`` for the files of these packages for one target (the digest depends on both). An
``input`` may have the files of a listing; the listing is then its ``origin``. A row is written before the upload of a
tree and deleted after all its objects.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, false, insert, select, true, update

from jobs.payload.store.lock import wheels_digest
from jobs.payload.store.tree import tree_prefix
from jobs.spec import JobSpec
from scheduler.store import codec, jobs
from scheduler.store.errors import Refused
from scheduler.store.schema import checkpoints, lanes, trees

CORPUS = "corpus"


@dataclass(frozen=True, slots=True)
class StoredTree:
    """A tree that may be deleted at ``delete_at`` (UTC seconds; None: needed). ``going``: its deletion has begun."""

    digest: str
    delete_at: int | None
    going: bool
    kind: str
    origin: str | None

    @property
    def prefix(self) -> str:
        """The key prefix of its objects in the artifact store."""
        return tree_prefix(self.kind, self.digest)


_ALL = select(trees).order_by(trees.c.digest)
_ONE = _ALL.where(trees.c.digest == bindparam("digest"))
_COPIES = select(trees.c.origin, trees.c.digest).where(trees.c.origin.is_not(None), trees.c.going == false())
_OF_ATTEMPT = select(lanes.c.code, lanes.c.trees).where(
    lanes.c.job == bindparam("job"), lanes.c.attempt == bindparam("attempt")
)
_LIVE = select(lanes.c.code, lanes.c.trees).where(lanes.c.live == true())
_OF_CHECKPOINTS = (
    select(lanes.c.code, lanes.c.trees)
    .join(checkpoints, (checkpoints.c.job == lanes.c.job) & (checkpoints.c.attempt == lanes.c.attempt))
    .where(checkpoints.c.state != "expired")
)


def everything(tx: Connection) -> list[StoredTree]:
    """Return all trees that may be in the artifact store."""
    return codec.records(StoredTree, tx.execute(_ALL))


def record(tx: Connection, kind: str, digest: str, delete_at: int | None, origin: str | None = None) -> None:
    """Record a tree before its upload, or a new ``delete_at``. Raises Refused while the tree is being deleted."""
    stored = tx.execute(_ONE, {"digest": digest}).one_or_none()
    if stored is None:
        row = {"digest": digest, "delete_at": delete_at, "going": False, "kind": kind, "origin": origin}
        tx.execute(insert(trees), row)
    elif stored.going:
        why = "no job needed it any more, and its files are being deleted from the artifact store"
        remedy = "Try again in a minute; a daemon must run to finish the deletion"
        raise Refused(f"{kind} not accepted", digest[:12], why, remedy)
    else:
        tx.execute(update(trees).where(trees.c.digest == digest).values(delete_at=delete_at, going=False))


def copies(tx: Connection) -> dict[str, str]:
    """Return the digest of the tree with the files of each origin, by origin; a tree may not be complete yet."""
    return dict(tuple(row) for row in tx.execute(_COPIES))


def begin_deletion(tx: Connection, digest: str, now: int) -> None:
    """Record that the deletion of a tree begins; no job can use the tree any more."""
    tx.execute(update(trees).where(trees.c.digest == digest).values(delete_at=now, going=True))


def forget(tx: Connection, digest: str) -> None:
    """Delete the row of a deleted tree."""
    tx.execute(delete(trees).where(trees.c.digest == digest))


def of_attempt(tx: Connection, job: str, attempt: int) -> tuple[str | None, str | None]:
    """Return the digests of an attempt's code and of its package lock; None if it has none."""
    row = tx.execute(_OF_ATTEMPT, {"job": job, "attempt": attempt}).one_or_none()
    return (row.code, _lock(row.trees)) if row is not None else (None, None)


def needed(tx: Connection) -> set[str]:
    """Return the digests that jobs of the queue and live sessions use, and code and lock of all kept checkpoints."""
    digests: set[str] = set()
    for record in jobs.everything(tx):
        digests |= named_by(record.spec)
    for code, inputs in tx.execute(_LIVE):
        digests |= {code} if code else set()
        digests |= {prefix.rpartition("/")[2] for prefix in codec.texts(inputs).values()}
    for code, inputs in tx.execute(_OF_CHECKPOINTS):
        digests |= {digest for digest in (code, _lock(inputs)) if digest}
    return digests


def _lock(requirements: str | None) -> str | None:
    return codec.texts(requirements).get("lock", "").rpartition("/")[2] or None


def named_by(spec: JobSpec) -> set[str]:
    """Return the digests of all trees in a job's definition."""
    corpus = spec.mixture.corpus if spec.mixture else ""
    test_set = spec.evaluation.test_set.digest if spec.evaluation else ""
    inputs = {one.digest for one in spec.inputs}
    digests = {spec.code.digest if spec.code else "", corpus, test_set, *inputs} - {""}
    if spec.requirements is not None:
        lock = spec.requirements.digest
        digests |= {lock, *(wheels_digest(lock, target) for target in spec.requirements.targets)}
    return digests
