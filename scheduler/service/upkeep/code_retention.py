"""Code retention: jobs' code that nobody names any more leaves the artifact store, after a grace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.payload.store.code import CONTENT, LISTING, code_prefix
from platforms.artifacts.base import StoreError
from scheduler.store import codes

if TYPE_CHECKING:
    from scheduler.service.outside.ports import Ports


def retain_code(ports: Ports, now: int) -> None:
    """Mark what nobody needs, unmark what is needed after all, and delete what has waited out its grace.

    What is being deleted is noted before, so that no job can come to need it meanwhile; a crash in between is made good
    by the next pass.
    """
    with ports.write() as tx:
        needed = codes.needed(tx)
        going = []
        for code in codes.everything(tx):
            if code.going:
                going.append(code.digest)
            elif code.digest in needed:
                if code.delete_at is not None:
                    codes.note(tx, code.digest, None)
            elif code.delete_at is None:
                codes.note(tx, code.digest, now + ports.policy.retention.grace_seconds)
            elif code.delete_at <= now:
                codes.let_go(tx, code.digest, now)
                going.append(code.digest)
    for digest in going:
        try:
            for name in (LISTING, CONTENT):  # the listing first: without it nothing counts as there
                ports.artifacts.delete(f"{code_prefix(digest)}/{name}")
        except StoreError as error:
            ports.log.warning("retention.failed", code=digest, why=str(error), next="tried again with the next pass")
            return
        with ports.write() as tx:
            codes.forget(tx, digest)
        ports.log.info("retention.deleted", code=digest)
