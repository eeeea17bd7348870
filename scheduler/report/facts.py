"""The facts of a week, as read from the database, and the productive part of its hours. Pure.

A bill may be shorter than its session (spot is billed at a discount), and the same steps may be trained twice. So the
productive share of a session is computed from the real time of the session, with each step of a job counted once. The
billed time is then multiplied by this share, so that the result never exceeds the bill.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.window import Window
from jobs.payload.store.manifest import Manifest, split_key
from scheduler.core.ledger import Charge, LedgerEntry, seconds_within
from scheduler.core.quota import ObservedLimit
from scheduler.core.run import Ended, Run, Running, Stopping


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job. ``why`` says why it is done, held or failed; ``starts_from`` is the key of its parent checkpoint."""

    name: str
    role: str
    target_step: int
    step: int
    state: str
    why: str = ""
    starts_from: str | None = None


@dataclass(frozen=True)  # no slots, because cached properties need a __dict__
class WeekFacts:
    """The facts of the week [start, end). ``runs`` overlap the week; ``manifests`` are good checkpoints.

    ``closed`` is the reason of each closed pool, ``last_signs`` the last sign of life of each session by run ID,
    ``firsts`` the attempts of each job that began at step 0, in order.
    """

    start: int
    end: int
    scale: float
    pools: Mapping[str, Pool]
    observed: Mapping[str, Sequence[ObservedLimit]]
    entries: Sequence[LedgerEntry]
    runs: Sequence[Run]
    manifests: Sequence[Manifest]
    jobs: Sequence[JobFacts]
    last_signs: Mapping[str, int] = field(default_factory=dict)
    firsts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def published(self) -> Mapping[str, Sequence[Manifest]]:
        """The checkpoints of the week's runs up to its end, by run."""
        keys = {run.key for run in self.runs}
        return grouped((each.run, each) for each in self.manifests if each.run in keys and each.created_at <= self.end)

    @cached_property
    def survivors(self) -> set[str]:
        """The keys of the newest checkpoint, and of its ancestors, of each job that the week's runs trained."""
        trained = {manifest.job for mine in self.published.values() for manifest in mine}
        return {manifest.key for manifest in surviving(each for each in self.manifests if each.job in trained)}

    @cached_property
    def saved(self) -> Mapping[str, Sequence[Manifest]]:
        """The checkpoints of each job, by step and attempt; jobs without one are absent."""
        by_step = sorted(self.manifests, key=lambda manifest: (manifest.step, manifest.attempt))
        return grouped((manifest.job, manifest) for manifest in by_step)


def metered(run: Run) -> tuple[int, int] | None:
    """Return the start and end of a run; None if it never started or has not ended."""
    if isinstance(run.state, Ended) and run.state.started is not None:
        return run.state.started, run.state.at
    return None


def started(run: Run) -> int | None:
    """Return when a session started; None if it has not started, or waits in its platform's queue."""
    if run.wait is not None:
        return None
    return run.state.started if isinstance(run.state, Running | Stopping | Ended) else None


def useful_by_run(facts: WeekFacts, pool: Pool, charges: Sequence[Charge]) -> dict[str, float]:
    """Return the productive seconds of each run of a pool in the week; ``charges`` are the pool's.

    Only the part inside the week counts. A session across the end of the week is split between both weeks, so the
    result does not depend on when it is computed. Time that the platform returned without naming a session reduces all
    runs in proportion.
    """
    week = Window(facts.start, facts.end)
    of_run = grouped((charge.run, charge) for charge in charges if not charge.waited)
    billed: dict[str, int] = {}
    useful: dict[str, float] = {}
    for run in facts.runs:
        if run.pool != pool.name or (began := started(run)) is None:
            continue
        billed[run.key] = max(0, seconds_within(of_run.get(run.key, ()), week))
        ended = metered(run)
        part = max(began, week.start), min(ended[1] if ended else week.end, week.end)
        published, last_sign = facts.published.get(run.key, ()), min(facts.last_signs.get(run.key, 0), week.end)
        share = _share(run, pool, part, published, facts.survivors, last_sign)
        useful[run.key] = billed[run.key] * share
    given_back = -seconds_within((charge for charge in of_run.get(None, ()) if charge.sign < 0), week)
    whole = sum(billed.values())
    left = max(0, whole - given_back) / whole if whole else 0.0
    return {key: seconds * left for key, seconds in useful.items()}


def surviving(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return each job's newest checkpoint and its ancestors, which together contain each trained step exactly once.

    If a parent is not among ``manifests``, the highest checkpoint below it is used.
    """
    result = []
    for mine in grouped((manifest.job, manifest) for manifest in manifests).values():
        by_key = {manifest.key: manifest for manifest in mine}
        ordered = sorted(mine, key=lambda manifest: (manifest.step, manifest.attempt), reverse=True)
        newest: Manifest | None = ordered[0]
        while newest is not None:
            result.append(newest)
            newest = _grew_out_of(newest, by_key, ordered)
    return result


def _grew_out_of(manifest: Manifest, by_key: Mapping[str, Manifest], ordered: Sequence[Manifest]) -> Manifest | None:
    """Return the checkpoint that ``manifest`` continued; ``ordered`` are all of the job, highest step first."""
    named = split_key(manifest.parent) if manifest.parent else None
    if named is None or named[1] >= manifest.step:
        return None
    return by_key.get(str(manifest.parent)) or next((one for one in ordered if one.step <= named[1]), None)


def _share(
    run: Run, pool: Pool, part: tuple[int, int], published: Sequence[Manifest], survivors: set[str], last_sign: int
) -> float:
    """Return the share (0 to 1) of the device time of a session in ``part`` whose training is in ``survivors``."""
    began, ended = part
    published = [manifest for manifest in published if manifest.created_at > began]
    if not published:
        return 0.0
    last = max(ended, last_sign, *(manifest.created_at for manifest in published))
    if last <= began:
        return 0.0
    trained = 0.0
    for lane in run.lanes:
        since = began
        mine = [manifest for manifest in published if manifest.lane == lane.index]
        for manifest in sorted(mine, key=lambda manifest: (manifest.created_at, manifest.step)):
            # A checkpoint cannot hold more training than the time since the previous one.
            seconds = min(manifest.trained_seconds, max(0, manifest.created_at - since))
            since = max(since, manifest.created_at)
            if manifest.key in survivors:
                trained += seconds * len(lane.devices)
    # The pool may have had more devices at the time of the session than its settings say now.
    devices = max(pool.held_devices(run.devices), run.devices)
    return trained / (devices * (last - began))
