"""Quota audit: compares the platforms' usage records with the ledger. For the past, the platform's records count.

Billed time that no run explains is entered as an ``adjust`` without a run, so that admission counts it. So is charged
time that the platform did not bill, after everything has settled. Without usage records a pool is closed, because
launches could exceed its quota.

Sessions continue while the records are read. So the time that the ledger explains is computed up to the instant after
each answer; with an earlier instant own sessions would count twice.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota
from jobs.nouns.window import DAY, EVER, Window
from platforms.base import Misconfigured, Observed, PlatformError, QuotaReading, SessionState, StopChannel, Unreachable
from scheduler.clock import SchedulerClock, at_least
from scheduler.core.ledger import Charge, EntryKind, corrections, device_seconds_within, fold, seconds_within
from scheduler.core.plan import Placement
from scheduler.core.quota import ACCOUNT, ObservedLimit
from scheduler.core.reasons import Cause
from scheduler.core.reconcile import started_of
from scheduler.core.run import Ended, Run, Running, stop
from scheduler.service.facts.contradictions import BILL_SECONDS, contradict
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import events, ledger, limits, prices, runs

READ_EVERY_SECONDS = 600
_READ_WALL_SECONDS = 2.0  # minimum interval between two readings of usage records
_FRESH_WALL_SECONDS = 60.0  # a late answer of this age is used instead of a new request
SETTLED_SECONDS = 600  # how long the bill of a run may grow after its end
_SETTLED_WALL_SECONDS = 2.0
# Starts of sessions are known from polls only, which take real time.
_LIVE_TOLERANCE_SECONDS, _LIVE_TOLERANCE_WALL_SECONDS = 120, 2.0
# A larger difference is not explained by polls and queues: the account has other users.
_ORPHAN_SECONDS, _ORPHAN_WALL_SECONDS = 900, 4.0


def settled_seconds(clock: SchedulerClock) -> int:
    """Return how long the bill of a run may grow after its end, in seconds."""
    return at_least(clock, SETTLED_SECONDS, _SETTLED_WALL_SECONDS)


def audit(ports: Ports, now: int) -> None:
    """Read the usage records of all pools that have them, and enter differences in the ledger."""
    del now  # the time when this duty was due; earlier duties may have taken long
    read_books(ports, sorted(ports.pools))


def close_books(ports: Ports, now: int) -> bool:
    """Read the usage records for the last time, with no live sessions; return False while a bill may still grow."""
    kept = {name for name, platform in ports.platforms.items() if platform.capabilities.reports_quota}
    with ports.database.read() as tx:
        if any(run.pool in kept for run in runs.since(tx, now - settled_seconds(ports.clock) - 1)):
            return False
    audit(ports, now)
    return True


def launchable(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Read the usage records of the pools of ``due`` launches; return the launches that they allow."""
    readable = read_books(ports, sorted({placement.pool for placement in due}))
    return [placement for placement in due if placement.pool in readable]


def read_books(ports: Ports, pools: Iterable[str]) -> set[str]:
    """Read the usage records of ``pools``; return the pools that answered or have no records.

    The other pools are closed, or have not answered yet; a late answer is entered when it arrives.
    """
    wanted, able = set(pools), {name: platform.capabilities for name, platform in ports.platforms.items()}
    kept = {name for name in wanted & able.keys() if able[name].reports_quota or able[name].tells_price}
    read_at = ports.calls.gather("quota", {name: partial(_read_one, ports, name) for name in sorted(kept)})
    fresh = ports.clock.now() - at_least(ports.clock, READ_EVERY_SECONDS, _FRESH_WALL_SECONDS)
    readable = {name for name, at in read_at.items() if at is not None and at >= fresh}
    return readable | (wanted - kept)


def _read_one(ports: Ports, name: str) -> int | None:
    """Read and enter the usage records of one pool; return the time of entry, None if they cannot be read."""
    try:
        readings, price = border.usage_records(ports, name)
        pool = ports.pools[name]
        in_money = any(isinstance(quota, MoneyQuota) for quota in pool.quotas)
        if price is None and not pool.price_microdollars_per_hour and in_money:
            why, remedy = "the platform does not report the price of an hour", "Set price_per_hour of the pool"
            raise Unreachable(pool.platform, "read the price", why, remedy)
    except PlatformError as error:
        now = ports.clock.now()
        ports.log.warning("quota.unreadable", pool=name, why=str(error))
        with ports.write() as tx:
            waits = isinstance(error, Misconfigured)
            why = f"quota unreadable{', waits for a person' * waits}: {error}"[:500]
            cause = Cause.QUOTA_REFUSED if waits else Cause.QUOTA_UNREADABLE
            limits.close_pool(tx, name, now + READ_EVERY_SECONDS, why, now, cause=cause)
        return None
    now = ports.clock.now()
    with ports.write() as tx:
        closure = limits.standing(tx).get(name)
        if closure is not None and closure.cause.of_quota_reading:
            limits.open_pool(tx, name, now)
        if price is not None:
            prices.record(tx, pool, price.microdollars, price.source, now)
        for reading in readings:
            enter = _enter_shared if reading.shared else _enter
            enter(ports, tx, pool, reading, now)
        if not any(reading.shared for reading in readings):
            limits.forget(tx, name, _shared_source(pool), now)
    for reading in readings:
        _stop_sessions(ports, pool, reading, now)
    return now


def _stop_sessions(ports: Ports, pool: Pool, reading: QuotaReading, now: int) -> None:
    """Ask sessions to save in time if other users have used up their quota.

    At the end of the quota the platform may kill them. Sessions without a stop channel continue.
    """
    window = Window(reading.start, reading.end)
    with ports.database.read() as tx:
        running = [run for run in runs.live(tx) if run.pool == pool.name and isinstance(run.state, Running)]
    left = max(0, reading.limit_seconds - reading.used_seconds)
    wanted = sum(window.overlap(now, run.deadline) for run in running)
    until_next_reading = at_least(ports.clock, READ_EVERY_SECONDS, _READ_WALL_SECONDS)
    if left >= wanted or left > len(running) * (until_next_reading + pool.stop_margin_seconds):
        return
    try:
        sessions, _ = border.find(ports, pool.name, {run.key: run.planned_start for run in running})
    except PlatformError as error:
        ports.log.warning("quota.sessions_unknown", pool=pool.name, why=str(error))
        return
    why = f"the quota is nearly used up: {left} s are left, and the running sessions have planned {wanted} s"
    for run in running:
        if run.key in sessions and sessions[run.key].stop_channel is not StopChannel.NONE:
            with ports.write() as tx:
                runs.change_state(tx, run.key, run.state, stop(run.state, why, now), "stop", now)


def _enter(ports: Ports, tx: Connection, pool: Pool, reading: QuotaReading, now: int) -> None:
    """Enter one reading: the limit that remains for us, and the difference between reported and charged use."""
    window = Window(reading.start, reading.end)
    recent = [run for run in runs.since(tx, reading.start) if run.pool == pool.name]
    live = [run for run in recent if not isinstance(run.state, Ended)]
    charges = ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
    last_read_at = max((one.at for one in limits.observed(tx).get(pool.name, ())), default=window.start)
    counted = _counted_by(pool, reading, now)
    if counted is not None:
        quota, ours = counted
        foreign = max(0, reading.reserved_seconds - sum(window.overlap(now, run.held_until) for run in live))
        limit = reading.limit_seconds - foreign
        if ours != window:
            # The platform's week is not the declared one: the remaining limit applies nevertheless.
            limit += explained_seconds(charges, live, ours, now) - reading.used_seconds
        limits.observe(tx, pool.name, ObservedLimit(quota, ours.start, ours.end, max(0, limit), now, pool.platform))
    difference = reading.used_seconds - explained_seconds(charges, live, window, now)
    quiet_since = now - settled_seconds(ports.clock)
    settled = not live and all(run.state.at < quiet_since for run in recent if isinstance(run.state, Ended))
    tolerated = at_least(ports.clock, _LIVE_TOLERANCE_SECONDS, _LIVE_TOLERANCE_WALL_SECONDS)
    if settled or difference > tolerated:
        # A difference that had not settled at the last reading, or was too small then, may appear only now.
        since = _hidden_since(recent, last_read_at, now) - settled_seconds(ports.clock)
        difference -= book_waits(ports, tx, pool, charges, reading, difference, since, now)
    if difference > 0:  # holds of live sessions include their waiting time
        difference = max(0, difference - sum(window.overlap(run.planned_start, started_of(run)) for run in live))
    if difference == 0 or (not settled and difference <= tolerated):
        return
    alarming = difference > at_least(ports.clock, _ORPHAN_SECONDS, _ORPHAN_WALL_SECONDS)
    # Only the amount matters, within the window. A correction of own sessions is entered at the end of the last one, so
    # that reports over that time include it; use by others is entered up to now.
    ours_until = max((charge.end for charge in charges if not charge.held and charge.end <= now), default=now)
    seconds = min(abs(difference), window.seconds)
    begins = max(window.start, min(now if alarming else ours_until, window.end) - seconds)
    explained = f"{reading.used_seconds} s used, {reading.used_seconds - difference} s are explained"
    evidence = f"unattributed: {pool.platform} reports {explained}"
    interval = (begins, begins + seconds, difference < 0)
    ledger.adjust(tx, pool.name, None, [interval], now, prices.of(tx, pool), evidence)
    kind = "quota.orphan_suspected" if alarming else "quota.adjusted"
    events.append(tx, kind, pool.name, now, seconds=difference, quota=reading.quota)
    if alarming:
        following = "look for sessions on the account that are not ours"
        ports.log.error(kind, pool=pool.name, seconds=difference, next=following)
    else:
        ports.log.info(kind, pool=pool.name, seconds=difference)


def _enter_shared(ports: Ports, tx: Connection, pool: Pool, reading: QuotaReading, now: int) -> None:
    """Enter the remaining limit of a budget that is shared with others; their use is not entered in the ledger.

    Records in minutes vary a little between readings, so the lower limit is kept.
    """
    declared = (quota for quota in pool.quotas if isinstance(quota, CalendarQuota) and quota.name == ACCOUNT)
    window = next((quota.calendar.window_at(now) for quota in declared), EVER)
    charges = ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
    live = [run for run in runs.live(tx) if run.pool == pool.name]
    ours = sum(pool.places_of(run.devices) * max(0, run.held_until - max(now, started_of(run))) for run in live)
    left = reading.limit_seconds - reading.used_seconds - max(0, reading.reserved_seconds - ours)
    limit = max(0, left + explained_seconds(charges, live, window, now, by_device=bool(pool.device_counts)))
    earlier = [one.limit for one in limits.observed(tx).get(pool.name, ()) if one.quota == ACCOUNT and now < one.end]
    tolerated = at_least(ports.clock, _LIVE_TOLERANCE_SECONDS, _LIVE_TOLERANCE_WALL_SECONDS)
    if earlier and earlier[-1] <= limit <= earlier[-1] + tolerated:
        limit = earlier[-1]
    current = ObservedLimit(ACCOUNT, window.start, window.end, limit, now, _shared_source(pool))
    limits.observe(tx, pool.name, current)


def _shared_source(pool: Pool) -> str:
    return f"{pool.platform} account"


def explained_seconds(
    charges: Iterable[Charge], live: Iterable[Run], window: Window, now: int, *, by_device: bool = False
) -> int:
    """Return the seconds in ``window`` that the ledger explains: settled charges, and live sessions until now."""
    settled = (charge for charge in charges if not charge.held)
    ran = sum(
        (run.devices if by_device else 1) * window.overlap(started_of(run), min(now, run.held_until)) for run in live
    )
    return ran + (device_seconds_within if by_device else seconds_within)(settled, window)


def _hidden_since(recent: Iterable[Run], last_read_at: int, now: int) -> int:
    """Return the UTC second since which a difference may have existed unnoticed.

    A session that waits for its machine counts from its launch. If the platform does not report it yet, that much use
    by others may have been hidden at the last reading.
    """
    hiding = (
        run.planned_start
        for run in recent
        if run.planned_start <= last_read_at and not (isinstance(run.state, Ended) and run.state.at <= last_read_at)
    )
    return min(last_read_at, now - 2 * READ_EVERY_SECONDS, *hiding)


def _counted_by(pool: Pool, reading: QuotaReading, now: int) -> tuple[str, Window] | None:
    """Return the quota of a reading, and its window: matched by name, by equal window, or by length."""
    quotas = [quota for quota in pool.quotas if isinstance(quota, CalendarQuota)]
    reported = Window(reading.start, reading.end)
    for quota in quotas:
        if quota.name == reading.quota or list(quota.calendar.windows(reported.start, reported.end)) == [reported]:
            return quota.name, reported
    for quota in quotas:
        window = quota.calendar.window_at(now)
        if window.seconds == reported.seconds:
            return quota.name, window
    return None


# Billed waiting time in a platform's queue, charged to the sessions that waited.
#
# Platforms do not report which session a second belongs to. The part of the total beyond the ledger, up to the waiting
# time of sessions charged since the last reading, is theirs. The wait of a live session is covered by its hold.
def book_waits(
    ports: Ports,
    tx: Connection,
    pool: Pool,
    charges: Sequence[Charge],
    reading: QuotaReading,
    difference: int,
    since: int,
    now: int,
) -> int:
    """Charge waits in ``difference`` to sessions charged since ``since``; return their seconds in the reading's window.

    If it is less than they waited, each is charged the same share. A total proves nothing about an earlier window: the
    part of a wait before that window is charged in full if the pool is known to bill waits.
    """
    window = Window(reading.start, reading.end)
    booked = {charge.run: charge.start for charge in reversed(charges) if charge.waited}  # the booked start of the wait
    oldest = min(window.start, since)
    entries = ledger.entries(tx, since=oldest, pool=pool.name)
    charged = {entry.run for entry in entries if entry.kind is EntryKind.SPEND and entry.at >= since}
    waits = {
        run.key: (run.planned_start, booked.get(run.key, run.state.started))
        for run in runs.since(tx, oldest)
        if run.key in charged and isinstance(run.state, Ended) and run.state.started is not None
    }
    inside = {key: window.overlap(*wait) for key, wait in waits.items() if wait[1] > wait[0]}
    unbooked, total = min(max(0, difference), sum(inside.values())), sum(inside.values())
    intervals: list[tuple[str, int, int]] = []
    expected = passed = 0
    for key, seconds in inside.items():
        passed += seconds
        part = unbooked * passed // total - expected if total else 0  # the rounded parts add up exactly
        expected += part
        begins, began = waits[key]
        if part:
            intervals.append((key, min(began, window.end) - part, min(began, window.end)))
        if begins < window.start and (2 * part > seconds if seconds else booked):
            intervals.append((key, begins, min(began, window.start)))
    price = prices.of(tx, pool)
    explained = f"{reading.used_seconds} s used, {reading.used_seconds - difference} s are explained"
    evidence = f"billed while it waited: {pool.platform} reports {explained}"
    for key, start, end in intervals:
        ledger.adjust(tx, pool.name, key, [(start, end, False)], now, price, evidence)
        if end - start > BILL_SECONDS:
            contradict(ports, tx, pool.name, "device", key, f"{end - start} s of its wait were billed", now)
    return unbooked


# Late bills: a session's time as the platform reports it an hour after its end is compared with the ledger.
#
# The difference is an ``adjust`` entry with the platform's report as evidence; charges are never rewritten.
CHECK_EVERY_SECONDS = 600
_SETTLED_SECONDS = 3_600  # after its end; the bill is final long before
_CHECKED = "bill.checked"


def recheck(ports: Ports, now: int) -> None:
    """Query the cost of each session that ended an hour to a day ago, once, and enter differences."""
    late = [name for name, platform in sorted(ports.platforms.items()) if platform.capabilities.bills_late]
    due = {name: runs for name in late if (runs := _unchecked(ports, name, now))}
    ports.calls.gather("bills", {name: partial(_recheck_pool, ports, name, runs, now) for name, runs in due.items()})


def _recheck_pool(ports: Ports, pool: str, due: Sequence[Run], now: int) -> None:
    try:
        sessions, _ = border.find(ports, pool, {run.key: run.planned_start for run in due})
    except PlatformError as error:
        ports.log.warning("bill.unknown", pool=pool, why=str(error))
        return
    for run in due:
        session = sessions.get(run.key)
        if session is not None and session.state is SessionState.ENDED:
            _settle(ports, run, session, now)


def _unchecked(ports: Ports, pool: str, now: int) -> Sequence[Run]:
    """Return the charged runs of the pool whose bill is final and has not been checked yet."""
    with ports.database.read() as tx:
        over = [
            run
            for run in runs.since(tx, now - DAY)
            if run.pool == pool
            and isinstance(run.state, Ended)
            and run.state.started is not None
            and run.state.at <= now - _SETTLED_SECONDS
        ]
        checked = {event.subject for event in events.latest(tx, [run.key for run in over], _CHECKED)}
    return [run for run in over if run.key not in checked]


def _settle(ports: Ports, run: Run, session: Observed, now: int) -> None:
    if session.started is None or session.ended is None:
        return
    with ports.write() as tx:
        entries = [entry for entry in ledger.entries(tx, since=now - 2 * DAY, pool=run.pool) if entry.run == run.key]
        missing = corrections(fold(entries).get(run.pool, ()), session.started, session.ended)
        price = next((entry.price_microdollars_per_hour for entry in entries if entry.kind is EntryKind.SPEND), 0)
        evidence = f"the platform bills {session.ended - session.started} s: {session.detail}"[:500]
        ledger.adjust(tx, run.pool, run.key, missing, now, price, evidence)
        seconds = sum((-1 if credit else 1) * (end - start) for start, end, credit in missing)
        events.append(tx, _CHECKED, run.key, now, pool=run.pool, seconds=seconds)
        if abs(seconds) > BILL_SECONDS:
            contradict(ports, tx, run.pool, "device", run.key, f"its bill differs from our count by {seconds} s", now)
    if missing:
        ports.log.info("bill.corrected", run=run.key, pool=run.pool, seconds=seconds)
