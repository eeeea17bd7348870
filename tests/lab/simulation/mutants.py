"""Mutants: daemons broken on purpose. A harness that lets one of them live would let the same bug of ours live."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jobs.nouns.window import DAY
from platforms.base import Observed, SessionState, Unreachable
from scheduler.core import job as job_arrows
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind
from scheduler.core.reconcile import Finish, ForceStop, reconcile
from scheduler.core.run import Reserved, Running, Stopping, Submitting
from scheduler.service.cycle import cycle, late_sessions, stops
from scheduler.service.facts import apply, early_stops, halvings, observation, observe, snapshot, verification
from scheduler.service.faults.places import Postponements
from scheduler.service.launch import launch
from scheduler.service.quota import audit
from scheduler.service.upkeep import housekeeping
from scheduler.store import checkpoints, jobs, ledger, outbox, watched
from tests.lab.simulation.lane import Lane
from tests.lab.simulation.place import SimulatedPlatform
from tests.lab.simulation.scenario import draw_scenario
from tests.lab.simulation.simulation import Failure, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.lab.simulation.database import Laboratory


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken daemon: what is replaced where, and what it breaks, in words."""

    name: str
    breaks: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]  # takes the real thing, returns the broken one
    first_seed: int = 1  # tried first: few worlds show some mutants
    beside: tuple[Any, str, Callable[[Any], Any]] | None = (
        None  # a change that breaks nothing, and makes the bug matter
    )

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let the mutant live for a while."""
        with ExitStack() as stack:
            changes = [(self.owner, self.attribute, self.make), *([self.beside] if self.beside else ())]
            for owner, attribute, make in changes:
                stack.enter_context(patch.object(owner, attribute, make(getattr(owner, attribute))))
            yield


def _without(kind: EntryKind) -> Callable[[Any], Any]:
    def make(real: Any) -> Any:
        return lambda tx, entries: real(tx, [entry for entry in entries if entry.kind is not kind])

    return make


def _changed(kind: EntryKind, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def make(real: Any) -> Any:
        return lambda tx, entries: real(tx, [change(entry) if entry.kind is kind else entry for entry in entries])

    return make


def _as_it_is(real: Any) -> Any:
    """Return the snapshot as it is."""
    del real
    return lambda _, snapshot: snapshot


def _silent(real: Any) -> Any:
    """Do nothing at all."""
    del real
    return lambda *_, **__: None


def _hopes(real: Any) -> Any:
    """Wait for nothing that a session left with its platform, whether it failed to come or only half of it came."""
    return lambda seen, run: real(replace(seen, awaited={}), run)


def _settled(real: Any) -> Any:
    return lambda charges, _live, window, now: real(charges, [], window, now)


def _sees_none(real: Any) -> Any:
    """List the manifests of every job asked for, and find none."""
    del real
    return lambda _ports, jobs, _known, seen: seen.listed.update(jobs)


def _empty(real: Any) -> Any:
    """Find nothing at all."""
    del real
    return lambda *_, **__: {}


def _unsuspecting(real: Any) -> Any:
    """Know the conditions, but no checkpoint that a session refused."""
    return SimpleNamespace(**{**vars(real), "reasons": lambda *_, **__: {}})


def _daily(real: Any) -> Any:
    """Look once a day, as if reading a checkpoint took so long."""

    def look(self: Any, now: int) -> None:
        if now >= getattr(self, "looks_at", 0):
            self.looks_at = now + DAY
            real(self, now)

    return look


def _steps(change: Callable[[list[Any], Any, int], list[Any]]) -> Callable[[Any], Any]:
    """Change what reconcile decides."""

    def make(real: Any) -> Any:
        def broken(facts: Any, now: int) -> list[Any]:
            known = list(facts)
            return change(real(known, now), known, now)

        return broken

    return make


def _facts(**changes: Any) -> Callable[[Any], Any]:
    return lambda real: lambda facts, now: real([replace(fact, **changes) for fact in facts], now)


_ALL = frozenset(range(8))


def _impatient(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    """Void every intent that is not seen at once."""
    doomed = [fact for fact in facts if isinstance(fact.run.state, Submitting) and fact.sighting is None]
    lost = [replace(fact, visibility_seconds=0, overdue_seconds=-1_000_000, reachable=True) for fact in doomed]
    return steps + [replace(step, proven=True) for step in _REAL_RECONCILE(lost, now) if isinstance(step, Finish)]


def _silence_is_death(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    """Take a platform that does not answer for one that lost the session."""
    silent = [fact for fact in facts if fact.sighting is None and not isinstance(fact.run.state, Reserved)]
    dead = [
        replace(fact, reachable=True, complete=True, visibility_seconds=-(10**9), overdue_seconds=0)
        for fact in silent
        if not fact.reachable
    ]
    finished = {step.run.key for step in steps if isinstance(step, Finish)}
    more = [step for step in _REAL_RECONCILE(dead, now) if isinstance(step, Finish) and step.run.key not in finished]
    return steps + more


def _force_on_silence(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    """End by force what is past its deadline and was not seen, which may be over."""
    unseen = [fact for fact in facts if fact.sighting is None and isinstance(fact.run.state, Running | Stopping)]
    late = [fact.run for fact in unseen if now > fact.run.deadline + fact.overdue_seconds]
    return steps + [ForceStop(run, "past its deadline") for run in late]


_REAL_RECONCILE = reconcile


def _oldest_first(real: Any) -> Any:
    return lambda tx, job, limit=5: list(reversed(real(tx, job, limit)))


def _relaunched_under_a_new_name(real: Any) -> Any:
    """Repeat a launch whose answer did not come, under another key."""

    def broken(self: SimulatedPlatform, request: Any, now: int) -> Observed:
        try:
            answer: Observed = real(self, request, now)
        except Unreachable:
            answer = real(self, replace(request, key=f"{request.key}-again"), now)
        return answer

    return broken


def _list_is_proof(real: Any) -> Any:
    """An adapter that takes a key missing in a list for one that never started."""

    def broken(self: SimulatedPlatform, keys: Sequence[str], now: int) -> Any:
        found = dict(real(self, keys, now))
        return {key: found.get(key) or Observed(key, SessionState.ABSENT, "") for key in keys}

    return broken


def _failed_read_is_ended(real: Any) -> Any:
    """An adapter that turns a failed read into a state."""

    def broken(self: SimulatedPlatform, keys: Sequence[str], now: int) -> Any:
        try:
            return real(self, keys, now)
        except Unreachable:
            return {key: Observed(key, SessionState.ENDED, "", now - 60, now) for key in keys}

    return broken


def _never_finishes_unseen(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    del facts, now
    return [step for step in steps if not (isinstance(step, Finish) and step.started is None)]


def _charges_planned(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    del facts, now
    return [
        replace(step, ended=step.run.held_until) if isinstance(step, Finish) and step.started is not None else step
        for step in steps
    ]


def _starts_from_scratch(real: Any) -> Any:
    def broken(self: Lane) -> bool:
        self.order = {**self.order, "restore": []}
        return bool(real(self))

    return broken


def _never_done(real: Any) -> Any:
    del real
    return lambda _, now: Queued(now)


def _stays(real: Any) -> Any:
    del real
    return lambda state, *_: state


def _first_attempt(real: Any) -> Any:
    def broken(tx: Any, name: str, pool: str) -> int:
        real(tx, name, pool)
        return 1

    return broken


def _forgets_the_intent(real: Any) -> Any:
    """Take a run that was being submitted for one that was never sent: what "launch first, record later" does."""
    return lambda facts, now: real(
        [
            replace(fact, run=replace(fact.run, state=Reserved(0))) if isinstance(fact.run.state, Submitting) else fact
            for fact in facts
        ],
        now,
    )


def _releases_everything(entry: Any) -> Any:
    return replace(entry, kind=EntryKind.RELEASE)


def _late_start(entry: Any) -> Any:
    return replace(entry, start=min(entry.end, entry.start + 60))


def _fresh_keys(real: Any) -> Any:
    """Treat every start of the daemon as the first: a key is found to be free though it was used."""
    return lambda prefix, job, attempt: real(prefix, job, 1 + attempt % 2)


def _endless_room(real: Any) -> Any:
    """Find room for any session, however much is used."""
    return lambda *arguments: replace(real(*arguments), seconds=10**9)


def _unfenced(real: Any) -> Any:
    del real
    return lambda _, steps, __: list(steps)


def _none(real: Any) -> Any:
    """Count nothing."""
    del real
    return lambda *_: 0


def _no(real: Any) -> Any:
    """Answer no to everything."""
    del real
    return lambda *_: False


def _nothing(real: Any) -> Any:
    """Have nothing to say."""
    del real
    return lambda *_: ""


def _nothing_stays(real: Any) -> Any:
    return lambda *known: {key: replace(said, stays=False) for key, said in real(*known).items()}


def _unnamed(real: Any) -> Any:
    """Find no component named by any manifest."""
    return lambda *known: real(*known) and set()


def _all_proven(steps: list[Any], facts: list[Any], now: int) -> list[Any]:
    """Take the passing of time for the platform's word."""
    del facts, now
    return [replace(step, proven=True) if isinstance(step, Finish) else step for step in steps]


def _stops_at_once(real: Any) -> Any:
    """Take the second checkpoint for one too many."""
    return lambda rule, history, target_step: real(replace(rule, patience=1, least=9.0), history, target_step)


def _best_is_the_newest(real: Any) -> Any:
    def progress(rule: Any, history: Iterable[Any], target_step: int) -> Any:
        seen = list(history)
        return replace(real(rule, seen, target_step), best=seen[-1] if seen else None)

    return progress


def _no_budget(real: Any) -> Any:
    del real
    return lambda *_: None


def _all_promoted(real: Any) -> Any:
    def decide(rule: Any, candidates: Any) -> Any:
        waiting = sorted(one.name for one in candidates if one.state == "waits")
        return replace(real(rule, candidates), promoted=tuple(waiting), dropped=())

    return decide


MUTANTS: tuple[Mutant, ...] = (
    Mutant("no hold", "quota is not set aside", ledger, "append", _without(EntryKind.HOLD)),
    Mutant("no spend", "what ran is not charged", ledger, "append", _without(EntryKind.SPEND)),
    Mutant("no release", "a hold that never ran stays", ledger, "append", _without(EntryKind.RELEASE)),
    Mutant(
        "short hold",
        "the overrun is not held",
        ledger,
        "append",
        _changed(EntryKind.HOLD, lambda entry: replace(entry, end=entry.start + (entry.end - entry.start) // 2)),
    ),
    Mutant(
        "half spend",
        "half of what ran is charged",
        ledger,
        "append",
        _changed(EntryKind.SPEND, lambda entry: replace(entry, end=entry.start + (entry.end - entry.start) // 2)),
    ),
    Mutant("charge the plan", "the hold is charged, not the bill", cycle, "reconcile", _steps(_charges_planned)),
    Mutant("forget charges", "admission sees an empty ledger", ledger, "charges", _empty),
    Mutant("impatient", "an intent is void at once", cycle, "reconcile", _steps(_impatient)),
    Mutant("silence is death", "no answer ends a run", cycle, "reconcile", _steps(_silence_is_death)),
    Mutant("force on silence", "what is not seen is ended by force", cycle, "reconcile", _steps(_force_on_silence)),
    Mutant("waits are nobody's", "a billed wait is charged to no session", audit, "book_waits", _none),
    Mutant("blind store", "an outage of the store counts as empty", cycle, "reconcile", _facts(complete=True)),
    Mutant("list is proof", "missing in a list is never started", SimulatedPlatform, "find", _list_is_proof),
    Mutant("failed read ended", "a failed read is an end", SimulatedPlatform, "find", _failed_read_is_ended),
    Mutant(
        "new key",
        "an unknown launch is repeated by a new key",
        SimulatedPlatform,
        "launch",
        _relaunched_under_a_new_name,
    ),
    Mutant("never void", "an intent that came to nothing stays", cycle, "reconcile", _steps(_never_finishes_unseen)),
    Mutant("oldest checkpoint", "the oldest checkpoint is restored", checkpoints, "newest", _oldest_first),
    Mutant("from scratch", "the payload restores nothing", Lane, "_restore", _starts_from_scratch),
    Mutant("no manifests", "published checkpoints are not read", observe, "read_manifests", _sees_none),
    Mutant("no progress", "a checkpoint does not count", jobs, "note_progress", _silent),
    Mutant("no lane closed", "a lane's end frees no job", apply, "close_lane", _silent),
    Mutant("no requeue", "a finished job is never done", job_arrows, "finish", _never_done),
    Mutant("attempt reused", "an attempt's number is used again", jobs, "note_launch", _first_attempt),
    Mutant("forgotten intent", "a launch on its way is released", cycle, "reconcile", _forgets_the_intent),
    Mutant("refund all", "what ran is given back", ledger, "append", _changed(EntryKind.SPEND, _releases_everything)),
    Mutant("late start", "the first minute is not charged", ledger, "append", _changed(EntryKind.SPEND, _late_start)),
    Mutant("keys reused", "attempts share launch keys", launch, "launch_key", _fresh_keys),
    Mutant("never quarantine", "a damaged checkpoint is offered again", apply, "quarantine", _silent),
    Mutant("refusal unheard", "a refused launch goes on as if unknown", launch, "_refused", _silent),
    Mutant("admit all", "whatever is planned is reserved", launch, "room", _endless_room),
    Mutant("no watch", "what was given up is forgotten", late_sessions.LateSessions, "look", _silent),
    Mutant("no watching", "a run settled without proof is not watched", watched, "add", _silent),
    Mutant("no fence", "an intent is given up without a stop flag", stops.Stops, "fenced", _unfenced),
    Mutant("deaf to signs of life", "what writes is given up", observation.Observation, "wrote", _no),
    Mutant("stops too early", "a job that still learns is stopped", early_stops, "progress", _stops_at_once),
    Mutant("newest result", "a job ends at its newest checkpoint", early_stops, "progress", _best_is_the_newest),
    Mutant("budget unseen", "a sweep takes more hours than it may", halvings, "longest", _no_budget, first_seed=28),
    Mutant(
        "all promoted", "candidates train on that are not the best", halvings, "decide", _all_promoted, first_seed=15
    ),
    Mutant("messages again", "a delivery is not written down", outbox, "sent", _silent),
    Mutant("messages lost", "a report is due and not written", outbox, "add", _no),
    Mutant("nothing kept", "retention keeps no newest", housekeeping, "verdicts", _nothing_stays),
    Mutant("blobs swept", "components go though a manifest names them", housekeeping, "_named", _unnamed),
    Mutant("gone is proven", "a session that vanished is not looked for", cycle, "reconcile", _steps(_all_proven)),
    Mutant("nothing brought home", "what a platform keeps is left there", observe, "_collect_outputs", _silent),
    Mutant(
        "end before home", "an end is believed though nothing came home", observation.Observation, "is_complete", _hopes
    ),
    Mutant("books read late", "what live sessions use is called unexplained", audit, "explained_seconds", _settled),
    Mutant("never held", "a job burns session after session for nothing", apply, "hold_reason", _nothing),
    Mutant("endless patience", "no session is ended for burning hours", launch, "patience", _empty),
    Mutant("jobs blamed", "a wrong accelerator is held against the job", apply, "_blames_pool", _no),
    Mutant("never postponed", "plans keep what cannot be launched", Postponements, "applied", _as_it_is, first_seed=49),
    Mutant(
        "parent again",
        "a refused parent is given to the next child while it is verified",
        snapshot,
        "conditions",
        _unsuspecting,
        first_seed=2932,
        beside=(verification.Suspects, "look", _daily),
    ),
    Mutant("parent unread", "a refused parent is never verified", verification.Suspects, "look", _silent),
    Mutant("jobs pay for places", "a session that never trained is a failure", cycle, "reconcile", _facts(begun=_ALL)),
    Mutant("hold stays behind", "a session that began late holds hours that are past", apply, "_move", _silent),
    Mutant("no activation", "a job with a lane stays queued", job_arrows, "activate", _stays),
)


# What a sound daemon needs for the first seeds; mutants that never come to an end are given up sooner.
HUNT_LIVENESS_WEEKS = 4


def hunt(laboratory: Laboratory, mutant: Mutant, seeds: Iterable[int], weeks: float = 2.0) -> Failure | None:
    """Return the first failure by which ``mutant`` is caught, or None when it survives all seeds."""
    for seed in (mutant.first_seed, *seeds):
        with mutant.alive():
            try:
                Simulation(laboratory, draw_scenario(seed, weeks), liveness_weeks=HUNT_LIVENESS_WEEKS).run()
            except Failure as failure:
                return failure
    return None
