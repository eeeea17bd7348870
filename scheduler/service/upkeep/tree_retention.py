"""Tree retention: jobs' code, inputs and corpora that nobody names any more leave the store, after a grace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.payload.store.listing import LISTING
from platforms.artifacts.base import StoreError
from scheduler.store import trees

if TYPE_CHECKING:
    from scheduler.service.outside.ports import Ports


def retain_trees(ports: Ports, now: int) -> None:
    """Mark what nobody needs, unmark what is needed after all, and delete what has waited out its grace.

    What is being deleted is noted before, so that no job can come to need it meanwhile; a crash in between is made good
    by the next pass.
    """
    corpora = ports.corpora() if ports.corpora is not None else None
    kept = corpora.kept() if corpora is not None else set()
    with ports.write() as tx:
        needed = trees.needed(tx) | kept
        going = []
        for tree in trees.everything(tx):
            if tree.going:
                going.append(tree)
            elif {tree.digest, tree.origin} & needed:
                if tree.delete_at is not None:
                    trees.note(tx, tree.kind, tree.digest, None)
            elif tree.delete_at is None:
                trees.note(tx, tree.kind, tree.digest, now + ports.policy.retention.grace_seconds)
            elif tree.delete_at <= now:
                trees.let_go(tx, tree.digest, now)
                going.append(tree)
    for tree in going:
        try:
            if tree.kind == trees.CORPUS and corpora is not None:
                corpora.delete(tree.digest)  # what sessions elsewhere got of it is in the store
            ports.artifacts.delete(f"{tree.prefix}/{LISTING}")  # first: without it nothing counts as there
            for key in ports.artifacts.keys(f"{tree.prefix}/"):
                ports.artifacts.delete(key)
        except (StoreError, OSError) as error:
            ports.log.warning(
                "retention.failed", tree=tree.prefix, why=str(error), next="tried again with the next pass"
            )
            return
        with ports.write() as tx:
            trees.forget(tx, tree.digest)
        ports.log.info("retention.deleted", tree=tree.prefix)
