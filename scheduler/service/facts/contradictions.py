"""Contradictions: facts about pools (:mod:`platforms.facts`) that a session shows to be wrong.

Each one requires an action of a person, but changes no decision. It ends when the fact is replaced or set by hand.
"""

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection

from jobs.duration import show_duration
from jobs.nouns.values import key_of
from platforms.facts import OPTION
from scheduler.core.reconcile import ForceStop, Sighting, Step
from scheduler.core.run import Run, Stopping, Submitting
from scheduler.service.facts.observation import Observation
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, events

BILL_SECONDS = 60  # a smaller difference between bill and ledger contradicts nothing
# The settings by the names of the probes that observe these facts.
_SETTINGS = {"visible": "visibility_seconds", "stop-session": f"{OPTION}force_stop"}


def contradict(ports: Ports, tx: Connection, pool: str, name: str, run: str, evidence: str, now: int) -> None:
    """Require an action about the fact ``name`` of a pool, once, if it exists; ``evidence`` is what the run showed."""
    subject, fact = f"{name} of {pool}", _described(ports, name, pool)
    required = {one.subject: one.what for one in conditions.standing(tx, conditions.CONTRADICTED)}
    if fact and required.get(subject) != fact:
        why = f"{fact}, but {run} shows otherwise: {evidence}"
        events.append(tx, conditions.CONTRADICTED, subject, now, what=fact, why=why, run=run)


def settle(ports: Ports, now: int) -> None:
    """End the required actions about facts that a newer observation or a setting has replaced."""
    with ports.database.read() as tx:
        required = conditions.standing(tx, conditions.CONTRADICTED)
    settled = [one for one in required if _described(ports, *one.subject.split(" of ")) != one.what]
    if settled:
        with ports.write() as tx:
            for one in settled:
                events.append(tx, "fact.settled", one.subject, now, what=one.what)


def _described(ports: Ports, name: str, pool_name: str) -> str:
    """Return a fact with its value and source as text; "" if the pool has no such fact."""
    pool, facts, setting = ports.pools.get(pool_name), ports.facts().get(pool_name, {}), _SETTINGS.get(name, name)
    fact = facts.get(setting) or facts.get(name)
    if pool is None or fact is None:
        return ""
    value = pool.options.get(setting.removeprefix(OPTION)) or getattr(pool, setting, None) or fact["value"]
    text = show_duration(value) if isinstance(value, int) else value
    return f"{key_of(setting)} is {text} ({fact['source']})"


def visibility_seconds(ports: Ports, pool_name: str) -> int:
    """Return the number of seconds within which a pool's platform lists a launched session."""
    platform, pool = ports.platforms.get(pool_name), ports.pools.get(pool_name)
    return max(platform.capabilities.visibility_seconds if platform else 0, pool.visibility_seconds if pool else 0)


class Contradictions:
    """Compares live sessions with the facts of their pools. Its state may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._unlisted: dict[str, int] = {}  # by run ID of an unanswered launch: when it was last not listed

    def look(self, live: Sequence[Run], observed: Observation, steps: Sequence[Step], now: int) -> None:
        """Require an action for each fact that a live session shows to be wrong."""
        forced = {step.run.key for step in steps if isinstance(step, ForceStop) and now <= step.run.deadline}
        listed = [(run, observed.sightings[run.key]) for run in live if run.key in observed.sightings]
        evidence = [(run, *one) for run, sighting in listed for one in self._evidence(run, sighting, forced, now)]
        self._unlisted = {
            run.key: observed.asked_at[run.key] if observed.is_reached(run) else self._unlisted.get(run.key, 0)
            for run in live
            if isinstance(run.state, Submitting) and run.key not in observed.sightings
        }
        if evidence:
            with self._ports.write() as tx:
                for run, name, text in evidence:
                    contradict(self._ports, tx, run.pool, name, run.key, text, now)

    def _evidence(self, run: Run, sighting: Sighting, forced: Collection[str], now: int) -> Iterator[tuple[str, str]]:
        """Yield (name of the fact, evidence) for each fact that a session contradicts."""
        yield from sighting.contradicts.items()
        if isinstance(run.state, Submitting):
            late = self._unlisted.get(run.key, 0) - run.state.since
            if late > visibility_seconds(self._ports, run.pool):
                yield "visible", f"its platform did not list it {late} s after its launch"
        elif isinstance(run.state, Stopping) and run.key in forced and sighting.stop_channel != "none":
            yield "stop-flag", f"it still ran {now - run.state.since} s after it was asked to stop"
