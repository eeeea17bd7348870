"""The promises, checked against the world's truth while a simulation runs and when it has come to rest."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlalchemy import select

from scheduler.core.job import Active, Held, Queued
from scheduler.core.ledger import EntryKind
from scheduler.core.reasons import Outbid
from scheduler.core.run import Ended, Running, lane_seconds
from scheduler.service.facts import halvings
from scheduler.service.facts.overheads import Overheads
from scheduler.service.quota.audit import SETTLED_SECONDS
from scheduler.store import checkpoints, conditions, events, jobs, ledger, plans, rates, runs, schema, watched
from scheduler.store.codec import run_state
from tests.lab.planner.idle import idle
from tests.lab.simulation.bills import calendar_windows, check_bills
from tests.lab.simulation.blame import check_blame
from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from jobs.spec import StopRule
    from scheduler.core.ledger import Charge
    from scheduler.core.plan import Plan
    from scheduler.core.run import Run
    from scheduler.core.snapshot import Snapshot
    from scheduler.store.engine import Database
    from tests.lab.simulation.bills import Bill
    from tests.lab.simulation.place import Place
    from tests.lab.simulation.session import Session
    from tests.lab.simulation.world import World

# A clock that is wrong by so much at the start and again at the end moves a hold against the bill.
_SKEW_SECONDS = 90
_READ_WITHIN_SECONDS = 600  # from reading what sessions write to a decision, with every delay on the way
_LEAVES_WITHIN_SECONDS = 120  # from the moment a session is given up: it finds its stop flag
_TOLD_OF_WAITS_SECONDS = 360  # what a look leaves while sessions live, and what slow calls took before the launch
_NEVER = 1 << 62
_SAID_OF_RUNS = select(schema.ledger.c.kind, schema.ledger.c.run)
_ENDED = select(schema.runs.c.key, schema.runs.c.state_detail).where(schema.runs.c.state == "ended")


def check_database(database: Database) -> None:
    """Raise Violation when the tables contradict each other. Holds at every instant between two transactions."""
    with database.read() as tx:
        live = {run.key: run for run in runs.live(tx)}
        for record in jobs.everything(tx):
            match record.state:
                case Active(run=key):
                    run = live.get(key)
                    if run is None or not any(
                        lane.job == record.spec.name and lane.outcome is None for lane in run.lanes
                    ):
                        raise Violation("every job reachable", f"{record.spec.name} is active in {key}, which is over")
                case Held(why=why) if not why:
                    raise Violation("every job explained", f"{record.spec.name} is held without a reason")
                case _:
                    pass
        _check_holds(tx, set(live))


def _check_holds(tx: Connection, live: set[str]) -> None:
    held, settled = set(), set()
    for kind, run in tx.execute(_SAID_OF_RUNS):
        if kind == EntryKind.HOLD:
            held.add(run)
        elif kind in {EntryKind.SPEND, EntryKind.RELEASE}:
            settled.add(run)
    orphans = held - settled - live
    if orphans:
        raise Violation("no orphan reservation", f"{sorted(map(str, orphans))} hold quota and are over")
    if missing := live - held:
        raise Violation("no launch without a hold", f"{sorted(missing)} hold nothing")


def check_refused(world: World, database: Database) -> None:
    """Raise Violation when a run goes on whose launch was refused. Holds after a cycle that went through."""
    if not any(place.refused for place in world.places.values()):
        return
    with database.read() as tx:
        live = runs.live(tx)
    for run in live:
        if run.key in world.places[run.pool].refused:
            raise Violation("a refusal frees at once", f"{run.key} was refused and holds its quota and its jobs")


def check_waiting(world: World, database: Database, known: Collection[str], began: int) -> frozenset[str]:
    """Return the runs that are running by our books. Raise Violation when one that waits in a queue loses time.

    ``known`` were running before the cycle, which went through and ``began`` then. What is reserved for a session that
    this cycle saw waiting must last as long as the session may run, counted from that look.
    """
    with database.read() as tx:
        running = {run.key: run for run in runs.live(tx) if isinstance(run.state, Running)}
    for key in running.keys() & known:
        run, place = running[key], world.places[running[key].pool]
        if not place.extends or place.waiting_at.get(key, -1) < began:
            continue
        world.sometimes("waited and kept its time")
        needed = began + place.sessions[key].length - _SKEW_SECONDS * bool(world.scenario.mood.clock_jumps_per_week)
        if run.deadline < needed:
            raise Violation("what waits loses no time", f"{key} waits, needs until {needed} and has {run.deadline}")
    return frozenset(running)


def check_busy(world: World, snapshot: Snapshot, plan: Plan) -> None:
    """Raise Violation when a plan leaves a pool idle now that a waiting job could use, or says a price of nothing."""
    if plan.made_by == "incumbent":
        world.sometimes("plan in force carried on")
    if found := idle(snapshot, plan):
        raise Violation("no pool stands still that somebody could use", found[0])
    for deferral in plan.deferrals:
        if isinstance(deferral.reason, Outbid) and deferral.reason.price == 0.0:
            raise Violation("every job explained", f"{deferral.job} is outbid at a price of nothing")


def check_explained(database: Database) -> None:
    """Raise Violation when a job waits without a reason in the newest plan. Holds after a cycle that went through."""
    with database.read() as tx:
        plan = plans.newest(tx)
        if plan is None:
            return
        known = {deferral.job for deferral in plan.deferrals}
        known.update(planned_lane.job for placement in plan.placements for planned_lane in placement.lanes)
        for record in jobs.everything(tx):
            if isinstance(record.state, Queued) and record.spec.name not in known:
                raise Violation("every job explained", f"{record.spec.name} waits and the newest plan does not say why")


def check_learned(world: World, database: Database) -> None:
    """Raise Violation when a job expects a longer set-up than any has, from what another never reached."""
    with database.read() as tx:
        overheads = Overheads(rates.everything(tx))
    for place in world.places.values():
        real = [world.setup_seconds(name, place.name) for name in world.specs]
        declared = [spec.setup_seconds + place.pool.setup_seconds for spec in world.specs.values()]
        longest = max(*real, *declared)
        for spec in world.specs.values():
            expected = overheads.prior(spec, place.pool).setup_seconds
            if expected > longest + 1:
                raise Violation(
                    "what was never reached is no measure",
                    f"{spec.name} expects a set-up of {expected} s on {place.name}, where none takes {longest} s",
                )


def check_truth(world: World, database: Database) -> None:
    """Raise Violation when a session runs that the daemon does not know of, or a pool was billed too much."""
    mood = world.scenario.mood
    tolerance = 0
    with database.read() as tx:
        known = {run.key for run in runs.live(tx)} | {one.run.key for one in watched.everything(tx)}
        given_up = {} if mood.honest and not mood.rates.stall else _given_up(tx)
        _check_budgets(world, tx, given_up)
    for place in world.places.values():
        if mood.clock_jumps_per_week:
            tolerance = 2 * _SKEW_SECONDS * (1 + len(place.sessions))
        # What starts after all that was held for it may lie beyond a quota: its platform broke its promise.
        broken = {key for key, one in place.sessions.items() if key in given_up or one.fate.stays_seconds}
        billed = [(key, one.places, bill) for key, one in place.sessions.items() if (bill := one.bill())]
        expected = [bill for key, places, bill in billed if key not in broken for _ in range(places)]
        hidden = [bill for key, _, bill in billed if key in broken]
        check_bills(place.pool, expected, tolerance, hidden)
        for key in place.sessions.keys() & given_up.keys():
            _check_late(world, place.sessions[key], given_up[key])
    for session in world.live_sessions():
        if session.key not in known:
            raise Violation("no orphan session", f"{session.key} runs and the daemon does not know")


def _check_budgets(world: World, tx: Connection, given_up: Collection[str]) -> None:
    """Raise Violation when a job, or a sweep, was billed more than its budget, on all devices together."""
    budgets = {
        account: halvings.budget_of(spec) for spec in world.specs.values() if (account := halvings.account(spec))
    }
    used: Counter[str] = Counter()
    tolerance: Counter[str] = Counter()
    for run in runs.since(tx, 0) if budgets else ():
        session = world.places[run.pool].sessions.get(run.key)
        if session is None or session.fate.stays_seconds or run.key in given_up or (bill := session.bill()) is None:
            continue
        parts = lane_seconds(run.lanes, *bill)
        for lane in run.lanes:
            if account := halvings.account(world.specs[lane.job]):
                used[account] += parts[lane.index]
                tolerance[account] += 2 * _SKEW_SECONDS * bool(world.scenario.mood.clock_jumps_per_week)
    for account, budget in budgets.items():
        if used[account] > budget + tolerance[account]:
            raise Violation("a budget is kept", f"{account}: {used[account]} device seconds were billed, of {budget}")


def _check_halvings(world: World, tx: Connection) -> None:
    """Raise Violation when more than one in so many candidates of a rung was promoted."""
    rule = next((spec.halving for spec in world.specs.values() if spec.halving is not None), None)
    if rule is None:
        return
    steps = [event.data["step"] for event in events.tail(tx, 0, limit=10**6, kinds=("job.promote",))]
    for level, step in enumerate(rule.rungs[1:], 1):
        most = rule.candidates // rule.factor**level
        world.sometimes("promoted", step in steps)
        if steps.count(step) > most:
            raise Violation("the best alone train on", f"{steps.count(step)} train to {step}, {most} may")


def _given_up(tx: Connection) -> dict[str, int]:
    """Return when each run was given up that was thought never to have started."""
    ended = ((key, run_state("ended", detail)) for key, detail in tx.execute(_ENDED))
    return {key: state.at for key, state in ended if isinstance(state, Ended) and state.started is None}


def _check_late(world: World, session: Session, given_up_at: int) -> None:
    """Raise Violation when a session goes on that was given up, or had given a sign of life before it was."""
    bill = session.bill()
    if bill is None:
        return
    world.sometimes("given up and billed")
    for lane in session.lanes:
        said = world.shelves.objects.get(f"runs/{session.key}/lane-{lane.index}/heartbeat.json")
        if said is not None and json.loads(said)["at"] < given_up_at - _READ_WITHIN_SECONDS:
            raise Violation("what writes is not given up", f"{session.key} wrote at {json.loads(said)['at']}")
    beyond = bill[1] - max(bill[0], given_up_at) - session.fate.stays_seconds
    if beyond > _LEAVES_WITHIN_SECONDS + _SKEW_SECONDS * bool(world.scenario.mood.clock_jumps_per_week):
        raise Violation("what is given up leaves", f"{session.key} was billed for {beyond} s after it was given up")


def _check_parents(world: World, tx: Connection) -> None:
    """Raise Violation when a session is told to start from what another could not, before the daemon verified it."""
    refused: set[str] = set()
    kinds = ("job.parent_refused", "checkpoint.verified", "run.submit")
    for event in events.tail(tx, 0, limit=10**6, kinds=kinds):
        match event.kind:
            case "job.parent_refused":
                refused.add(event.data["checkpoint"])
            case "checkpoint.verified":
                if world.checkpoints.is_whole(event.subject):
                    refused.discard(event.subject)
            case _:
                if given := refused & set(event.data["parents"].values()):
                    raise Violation("what is damaged is not offered again", f"{event.subject} is offered {given}")


def check_at_rest(world: World, database: Database) -> None:
    """Raise Violation unless, with everything over, the books equal the bills exactly."""
    check_database(database)
    check_truth(world, database)
    with database.read() as tx:
        charges = ledger.charges(tx, 0)
        live = runs.live(tx)
        over = {run.key: run for run in runs.since(tx, 0)}
        spent_at = {str(entry.run): entry.at for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND}
        late = [one.run.key for one in watched.everything(tx)]
        suspected = [known.subject for known in conditions.standing(tx, conditions.SUSPECTED)]
        check_blame(world, tx)
        _check_parents(world, tx)
        _check_early_stops(world, tx)
        _check_halvings(world, tx)
    if suspected:
        raise Violation("what is suspected is verified", f"{suspected} were never read")
    if late:
        raise Violation("every watch ends", f"{late} are still watched")
    if live:
        raise Violation("no orphan reservation", f"{[run.key for run in live]} are live, and nothing is left to do")
    mood = world.scenario.mood
    for place in world.places.values():
        by_run: dict[str, list[Charge]] = {}
        for charge in charges.get(place.name, ()):
            # Where waits are billed, what is left of them is by no run's name; how much of it counts, not when.
            if (charge.run is not None and not charge.waited) or not place.bills_wait:
                by_run.setdefault(str(charge.run), []).append(charge)
        _check_waits(world, place, charges.get(place.name, ()), over, spent_at)
        booked = {key: net for key, mine in by_run.items() if (net := net_of(mine))}
        for key, session in place.sessions.items():
            _check_parts(world, session, over.get(key))
            billed = _must_be_booked(session, over.get(key))
            skew = None if place.tells_times else _SKEW_SECONDS * bool(world.scenario.mood.clock_jumps_per_week)
            mine = booked.pop(key, [])
            _compare(f"{place.name}: {key}", skew, billed, mine)
            untaken = key in over and len(over[key].lanes) > len(session.lanes)  # for all we know it was
            if skew is not None and mood.honest and not mood.rates.stall and not untaken:
                _check_last_word(world, session, mine, skew)
        if booked:
            raise Violation("ledger equals the bill", f"{place.name}: {booked} was never billed")
    for key, run in over.items():
        if not isinstance(run.state, Ended):
            raise Violation("every run ends", f"{key} is {run.state}")
    with database.read() as tx:
        _check_told(world, tx)  # at last: books that are wrong raise alarms, and the books themselves say more


def _check_waits(
    world: World, place: Place, charges: Sequence[Charge], over: Mapping[str, Run], spent_at: Mapping[str, int]
) -> None:
    """Raise Violation unless each session's billed wait is charged to it, once, in full and just before it began.

    In full where the books were read after it was charged and had settled, in the window in which it waited, and no
    other session waited then: its seconds are explained as soon as it waits and billed once it began, and a total does
    not tell them apart. Nor does it tell a launch from its intent, or a bill from what is held for a run of that window
    whose end is not known yet.
    """
    if place.counted is None or not place.bills_wait:
        return
    by_run: dict[str | None, list[Charge]] = {}
    for charge in charges:
        by_run.setdefault(charge.run if charge.waited else None, []).append(charge)
    most = 0
    for key, session in place.sessions.items():
        run, wait = over.get(key), session.wait()
        if run is None or wait is None or not isinstance(run.state, Ended) or run.state.started is None:
            continue
        booked, longest = net_of(by_run.get(key, [])), wait[1] - min(run.planned_start, wait[0])
        seconds, settled = sum(end - start for start, end in booked), max(run.state.at + SETTLED_SECONDS, spent_at[key])
        most += longest
        world.sometimes("wait booked", bool(booked))
        seen = [at for at in place.read_at if at > settled]
        window = next(calendar_windows(place.counted.calendar, wait[0], wait[0] + 1))
        others = [one for one in place.sessions.values() if one is not session]
        unknown = [
            (one.planned_start, spent_at.get(other, _NEVER))
            for other, one in over.items()
            if other != key and one.pool == place.name and one.held_until > window[0]
        ]
        alone = [
            at
            for at in seen
            if not any(one.waits_at(at) for one in others) and not any(start <= at < end for start, end in unknown)
        ]
        told = bool(alone) and window[0] <= run.planned_start and max(alone[0], wait[1]) < window[1]
        if len(booked) > 1 or (booked and booked[0][1] != wait[1]) or seconds > longest:
            raise Violation("a billed wait is its session's", f"{key} waited {wait} and is booked {booked}")
        if told and seconds < longest - _TOLD_OF_WAITS_SECONDS:
            raise Violation("a billed wait is its session's", f"{key} waited {wait}, was seen, and is booked {booked}")
    nobodys = sum(charge.sign * (charge.end - charge.start) for charge in by_run.get(None, ()) if charge.run is None)
    if sum(end - start for key, mine in by_run.items() if key for start, end in net_of(mine)) + nobodys > most:
        raise Violation("a billed wait is its session's", f"{place.name}: more than all waits is booked as such")


def _check_last_word(world: World, session: Session, booked: list[Bill], skew: int) -> None:
    """Raise Violation when more is booked than a session's last words leave open, however late somebody looked."""
    said = [f"runs/{session.key}/lane-{lane.index}/result.json" in world.shelves.objects for lane in session.lanes]
    bill = session.bill()
    if not booked or bill is None or not said or not all(said):
        return
    waits = session.chain["wait_seconds"] if session.chain else 0  # it may have left sooner, told that nothing follows
    latest = bill[1] + waits + session.place.pool.overrun_seconds + 2 * skew
    if booked[-1][1] > latest:
        raise Violation(
            "nothing is booked past the last word",
            f"{session.key} ended by {latest} and is booked until {booked[-1][1]}",
        )


def _check_early_stops(world: World, tx: Connection) -> None:
    """Raise Violation when a job was stopped early that still learned, or ended at another checkpoint than its best."""
    for record in jobs.everything(tx):
        rule = record.spec.stop
        if not record.stopped_early or rule is None or record.checkpoint is None:
            continue
        world.sometimes("stopped early")
        saved = checkpoints.everything(tx, record.spec.name)[::-1]
        losses = [one.manifest.metrics["loss"] for one in saved]
        whole = all(one.state != "quarantined" for one in saved)
        if whole and not any(_has_learned_enough(rule, losses[:last]) for last in range(1, len(losses) + 1)):
            raise Violation("stops only by its rule", f"{record.spec.name} had {losses}, and was stopped by {rule}")
        if any(one.seen_at > record.state.at for one in saved):  # type: ignore[union-attr] # it is done
            continue  # what came later is no result
        best = min(one.manifest.metrics["loss"] for one in saved if one.state == "good")
        if checkpoints.get(tx, record.checkpoint).manifest.metrics["loss"] > best:
            raise Violation("ends at its best", f"{record.spec.name} ended at {record.checkpoint}, the best is {best}")


def _has_learned_enough(rule: StopRule, losses: Sequence[float]) -> bool:
    if rule.value is not None:
        return losses[-1] <= rule.value
    earlier, last = losses[: -rule.patience], losses[-rule.patience :]
    return bool(earlier) and min(last) > min(earlier) - rule.least


def _check_told(world: World, tx: Connection) -> None:
    """Raise Violation when something went wrong of which nobody was told, or when strangers were blamed for our use."""
    for place in world.places.values():
        alarms = events.tail(tx, kinds=["quota.orphan_suspected"], subject=place.name)
        if alarms and place.counted is not None:
            raise Violation("no false alarm", f"{place.name} is used by nobody else, and {alarms[0].data} was told")
    for key in sorted(world.shelves.met):
        job = key.split("/")[1]
        if not events.tail(tx, limit=1, kinds=["report.refused"], subject=job):
            raise Violation("what cannot be read is told", f"{key} could not be read, and nobody heard of it")


def net_of(charges: Sequence[Charge]) -> list[Bill]:
    """Return where charges are left once credits are taken off. Raises Violation when a second counts otherwise."""
    edges = sorted({edge for charge in charges for edge in (charge.start, charge.end)})
    found: list[Bill] = []
    for start, end in pairwise(edges):
        density = sum(charge.sign for charge in charges if charge.start <= start and end <= charge.end)
        if density not in {0, 1}:
            raise Violation("ledger equals the bill", f"{charges[0].run} counts {density} times from {start} to {end}")
        if density and found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif density:
            found.append((start, end))
    return found


def _check_parts(world: World, session: Session, run: Run | None) -> None:
    """Raise Violation unless the jobs of a session share its bill to the second, each from where the last one left."""
    bill = session.bill()
    if bill is None or run is None:
        return
    parts = lane_seconds(run.lanes, *bill)
    firsts = [
        lane for lane in run.lanes if lane.begun_at and not any(map(lane.continues, run.lanes))
    ]  # on free devices
    began = [max(bill[0], lane.begun_at or 0) for lane in firsts for _ in lane.devices]
    if sum(parts.values()) != run.devices * (bill[1] - bill[0]) + sum(max(0, bill[1] - at) for at in began):
        raise Violation("the parts are the bill", f"{session.key} was billed {bill}, its lanes {parts}")
    skew = 2 * _SKEW_SECONDS * bool(world.scenario.mood.clock_jumps_per_week)
    lanes = {lane.index: lane for lane in session.lanes}
    for lane in run.lanes:
        world.sometimes("chained lane", lane.begun_at is not None)
        before = [lanes[other.index] for other in run.lanes if lane.continues(other) and other.index in lanes]
        left = max((other.left_at for other in before if other.left_at is not None), default=None)
        if lane not in firsts and lane.begun_at is not None and (left is None or lane.begun_at + skew < left):
            raise Violation("who works is charged", f"{session.key}: {lane.job} pays from {lane.begun_at}, not {left}")


def _must_be_booked(session: Session, run: Run | None) -> list[Bill]:
    """Return the interval that the books of a session must equal or cover, if it was billed.

    If a platform reports no times, and a session began after the end of its hold, the books cover the hold at least:
    nobody knows how much longer the session ran.
    """
    bill = session.bill()
    if bill is None or bill[1] <= bill[0]:
        return []
    if session.fate.stays_seconds and not session.place.tells_times and run is not None and run.held_until <= bill[0]:
        return [(run.held_until, run.held_until)]
    return [bill]


def _compare(what: str, skew: int | None, billed: list[Bill], booked: list[Bill]) -> None:
    """Booked must equal billed; where the platform tells no times (``skew`` is not None) it must cover it."""
    if billed == booked:
        return
    if skew is not None and booked:
        covers = not billed or (booked[0][0] - skew <= billed[0][0] and booked[0][1] + skew >= billed[0][1])
        if covers:
            return
    raise Violation("ledger equals the bill", f"{what} was billed {billed} and is booked {booked}")
