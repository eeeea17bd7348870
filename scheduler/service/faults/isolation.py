"""Isolation: a fault of one run, job or pool is recorded and reported, and everything else continues.

Database errors are raised unchanged. So are errors that cannot be attributed to a single run, job or pool.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from jobs.payload.bounds import clean
from scheduler.core import job as arrows
from scheduler.core.job import Active, Queued
from scheduler.core.plan import Placement, Plan
from scheduler.core.reasons import Cause, HeldByPerson
from scheduler.core.run import Run
from scheduler.core.snapshot import Snapshot
from scheduler.service.outside.calls import fail
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, events, jobs, limits, runs, watched
from scheduler.store.errors import Refused, Stale, StoreFailure

_Answer = TypeVar("_Answer")

POISONED, RECOVERED = conditions.RUN_POISONED, "run.mended"
CLEAR = "run.clear"
JOB_POISONED, JOB_RECOVERED = conditions.JOB_POISONED, "job.mended"
BY = "the scheduler"
UNPLANNABLE = "planning fails with it"  # shown to people, never read by code
_WHY_MAX = 300
_CULPRITS_MAX = 20  # the most jobs and pools that are left out of one plan; more of them are a fault of this program


def why(error: BaseException) -> str:
    """Return an error as text for storage and display."""
    return clean(f"{type(error).__name__}: {error}", _WHY_MAX)


@contextmanager
def isolated(faults: dict[str, str], name: str) -> Iterator[None]:
    """Record an exception of the body under ``name`` and continue. Does not catch StoreFailure and OSError."""
    try:
        yield
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - that is what isolation is
        faults[name] = why(error)


@contextmanager
def isolated_run(faults: dict[str, str], key: str) -> Iterator[None]:
    """Like :func:`isolated`, but a write that the database refuses (Stale, Refused) is recorded, too."""
    try:
        with isolated(faults, key):
            yield
    except (Stale, Refused) as error:
        faults[key] = why(error)


def apart(ports: Ports, event: str, work: Callable[[], _Answer], otherwise: _Answer, **facts: str) -> _Answer:
    """Return the result of ``work``. If it fails, log ``event`` and return ``otherwise``; the caller tries again later.

    An OSError, such as a full disk, counts as a failure, too. Raises StoreFailure.
    """
    try:
        return work()
    except StoreFailure:
        raise
    except Exception as error:  # noqa: BLE001 - an error in one piece of work must not stop the others
        reason = ports.redact(why(error))
        ports.log.warning(event, **facts, why=reason, next="tried again")
        fail(reason)
        return otherwise


def gather_apart(
    ports: Ports, kind: str, event: str, work: Mapping[str, Callable[[], _Answer]], otherwise: _Answer, fact: str
) -> dict[str, _Answer]:
    """Run each work as :func:`apart` does; return the results by name. The log has the name in the field ``fact``."""
    alone = {name: partial(apart, ports, event, do, otherwise, **{fact: name}) for name, do in work.items()}
    return ports.calls.gather(kind, alone) if alone else {}


def succeeds(ports: Ports, event: str, work: Callable[[], object], **facts: str) -> bool:
    """Run ``work`` as :func:`apart` does; return whether it succeeded."""

    def do() -> bool:
        work()
        return True

    return apart(ports, event, do, otherwise=False, **facts)


def ready(
    ports: Ports, kind: str, due: Sequence[Placement], needs: Callable[[Placement], Mapping[str, Callable[[], object]]]
) -> list[Placement]:
    """Return the placements whose required work is done; ``needs`` returns it by name. Other work continues."""
    wanted = [needs(placement) for placement in due]
    work = {name: do for needed in wanted for name, do in needed.items()}
    done = ports.calls.gather(kind, work) if work else {}
    return [placement for placement, needed in zip(due, wanted, strict=True) if all(done.get(name) for name in needed)]


def each_alone(
    ports: Ports, handled: Sequence[Run], suspects: Collection[str], write: Callable[..., None]
) -> dict[str, str]:
    """Write all runs except ``suspects`` in one transaction; if that fails, each run in its own.

    ``write`` gets the transaction, the runs, and whether to use the reports of their sessions; without these a run can
    still be settled. Each transaction is complete for its runs, so a crash between two of them is like one between two
    cycles. Returns the error of each run that could not be written. Raises Fenced and other StoreFailures that concern
    no single run.
    """
    together = [run for run in handled if run.key not in suspects]
    faults: dict[str, str] = {}
    alone = [run for run in handled if run.key in suspects]
    if together:
        try:
            with ports.write() as tx:
                write(tx, together, regarded=True)
        except (Stale, Refused) as error:
            ports.log.warning("cycle.divided", why=str(error))
            alone = list(handled)
        except (StoreFailure, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - each run is tried alone next
            ports.log.warning("cycle.divided", why=why(error))
            alone = list(handled)
    for run in alone:
        for regarded in (True, False):
            wrong: dict[str, str] = {}
            with isolated_run(wrong, run.key):
                try:
                    with ports.write() as tx:
                        write(tx, [run], regarded=regarded)
                except Stale as error:
                    ports.log.warning("run.changed", run=run.key, why=str(error))  # the next cycle decides again
            faults = wrong | faults
            if not wrong:
                break
    return faults


class Poisoned:
    """The runs that have a fault. An event reports when a run gets a fault, and another when the fault is gone.

    ``kind`` and ``over`` are these two kinds of events; by default those of runs that cannot be handled.
    """

    def __init__(self, ports: Ports, kind: str = POISONED, over: str = RECOVERED) -> None:
        self._ports = ports
        self._kind, self._over = kind, over
        self.runs: dict[str, str] | None = None  # not read yet

    def reported_runs(self) -> Collection[str]:
        """Return the runs that had a fault before, in this daemon or the previous one."""
        if self.runs is None:
            with self._ports.database.read() as tx:
                self.runs = poisoned_runs(tx, self._kind)
        return self.runs

    def note(self, handled: Collection[str], faults: Mapping[str, str], now: int) -> None:
        """Write the events of ``handled`` runs that have a new fault, or whose fault is gone."""
        names = dict.fromkeys(self.reported_runs(), "")
        fresh = sorted(set(faults) - set(names))
        over = sorted(set(names) - set(faults))
        if fresh or over:
            with self._ports.write() as tx:
                for key in fresh:
                    events.append(tx, self._kind, key, now, why=faults[key])
                for key in set(over) & set(handled):
                    events.append(tx, self._over, key, now)
        for key in fresh:
            next_ = f"schedctl runs show {key}; all other runs continue"
            self._ports.log.error(self._kind, run=key, why=faults[key], next=next_)
        self.runs = dict(faults)


def poisoned_runs(tx: Connection, kind: str = POISONED) -> dict[str, str]:
    """Return the runs that had a fault when last handled, with the error."""
    handled = {run.key for run in runs.live(tx)} | watched.keys(tx)
    return {key: why for key, why in conditions.reasons(tx, kind).items() if key in handled}


# Planning.


@dataclass(slots=True)
class LeftOut:
    """The jobs and pools with which planning fails, by name with the error."""

    jobs: dict[str, str] = field(default_factory=dict)
    pools: dict[str, str] = field(default_factory=dict)

    def add(self, other: "LeftOut") -> None:
        """Add jobs and pools that are left out."""
        self.jobs |= other.jobs
        self.pools |= other.pools


def without(snapshot: Snapshot, names: Collection[str], pools: Collection[str]) -> Snapshot:
    """Return a snapshot without some jobs and pools; gates on such a job see its progress."""
    if not names and not pools:
        return snapshot
    progress = {view.name: view.done_step / max(1, view.target_step) for view in snapshot.jobs if view.name in names}
    return replace(
        snapshot,
        jobs=tuple(view for view in snapshot.jobs if view.name not in names),
        pools=tuple(view for view in snapshot.pools if view.pool.name not in pools),
        finished={**snapshot.finished, **progress},
    )


def known_faulty(tx: Connection, snapshot: Snapshot) -> LeftOut:
    """Return the jobs and pools with which planning failed earlier, and which a person has not released."""
    held = {view.name for view in snapshot.jobs if isinstance(view.blocked, HeldByPerson)}
    return LeftOut(
        {name: why for name, why in conditions.reasons(tx, JOB_POISONED).items() if name in held},
        {pool: closure.why for pool, closure in limits.standing(tx).items() if closure.cause is Cause.PLANNING},
    )


def planned_again(tx: Connection, names: Collection[str], now: int) -> None:
    """Write the event ``job.mended`` for jobs with which planning succeeds again; it closes their condition."""
    for name in conditions.reasons(tx, JOB_POISONED):
        if name in names:
            events.append(tx, JOB_RECOVERED, name, now)


def plan_around(make: Callable[[Snapshot], Plan], snapshot: Snapshot) -> tuple[Plan, LeftOut]:
    """Return a plan without the jobs and pools with which ``make`` fails; bisection finds them.

    Raises what ``make`` raised if no job or pool causes it.
    """
    left_out = LeftOut()
    plan, error = _tried(make, snapshot)
    while plan is None:
        if error is None or len(left_out.jobs) + len(left_out.pools) >= _CULPRITS_MAX:
            raise error or AssertionError("neither a plan nor an error")
        culprit = _culprit(make, snapshot)
        if culprit is None:
            raise error
        left_out.add(culprit)
        snapshot = without(snapshot, culprit.jobs, culprit.pools)
        plan, error = _tried(make, snapshot)
    return plan, left_out


def _culprit(make: Callable[[Snapshot], Plan], snapshot: Snapshot) -> LeftOut | None:
    """Return one job with which planning fails, or else one pool: leaving out a job harms fewer others."""
    names = [view.name for view in snapshot.jobs]
    pools = [view.pool.name for view in snapshot.pools]
    job = _first(make, names, lambda rest: without(snapshot, rest, ()))
    if job is not None and _tried(make, without(snapshot, [job[0]], ()))[0] is not None:
        return LeftOut(jobs=dict([job]))
    pool = _first(make, pools, lambda rest: without(snapshot, () if job else names, rest))
    if pool is not None and (job is None or _tried(make, without(snapshot, (), [pool[0]]))[0] is not None):
        return LeftOut(pools=dict([pool]))
    return None if job is None else LeftOut(jobs=dict([job]))


def _first(
    make: Callable[[Snapshot], Plan], names: Sequence[str], but: Callable[[Sequence[str]], Snapshot]
) -> tuple[str, str] | None:
    """Return the first name with which planning fails when names are added one by one, with the error."""
    if _tried(make, but(names))[0] is not None:
        good, bad, reason = 0, len(names), _tried(make, but(()))[1]
        while bad - good > 1:
            middle = (good + bad) // 2
            error = _tried(make, but(names[middle:]))[1]
            if error is None:
                good = middle
            else:
                bad, reason = middle, error
        if reason is not None and names:
            return names[bad - 1], f"{UNPLANNABLE}: {why(reason)}"
    return None


def _tried(make: Callable[[Snapshot], Plan], snapshot: Snapshot) -> tuple[Plan | None, Exception | None]:
    try:
        return make(snapshot), None
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - bisection finds the job or pool
        return None, error


def wait_for_person(ports: Ports, left_out: LeftOut, now: int) -> None:
    """Hold jobs and close pools until a person releases them. A job that trains continues and is held afterwards.

    Raises Fenced and other StoreFailures.
    """
    for name, reason in sorted(left_out.jobs.items()):
        with ports.write() as tx:
            state = jobs.get(tx, name).state
            if isinstance(state, Queued):
                held = arrows.ask_hold(state, BY, reason, now)
                jobs.change_state(tx, name, state, held, "hold", now, BY, why=reason)
                conditions.put(tx, JOB_POISONED, name, at=now, why=reason)
            elif name in conditions.reasons(tx, JOB_POISONED):
                continue
            else:
                events.append(tx, JOB_POISONED, name, now, why=reason, trains=isinstance(state, Active))
        ports.log.error(JOB_POISONED, job=name, why=reason, next=f"schedctl queue show {name}; all other jobs continue")
    for name, reason in sorted(left_out.pools.items()):
        with ports.write() as tx:
            limits.close_pool(tx, name, None, reason, now, BY, Cause.PLANNING)
        ports.log.error("pool.poisoned", pool=name, why=reason, next=f"after the repair: schedctl pools open {name}")
