"""Long work: background work of the daemon that takes more than a moment, with its failures, for display.

Its state is written as one event whenever it changes, so that status, page and needs read one row. The work of a daemon
that has ended counts as over; the next daemon starts it again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from scheduler.service.outside.ports import Ports
from scheduler.store import events

WORK = "daemon.work"
_SHOWN_WALL_SECONDS, _DATA_SHOWN_WALL_SECONDS = 60.0, 5.0
_KEPT_WALL_SECONDS = 120.0  # work that starts again within this time after its end counts as the same piece
_STANDS_WALL_SECONDS = 1_800.0
_WHY_CHARACTERS = 300
# Names of calls by kind, for people. Platforms that do not answer are reported by service/faults/places.py.
_WORDS = {
    "data": "training data of {}",
    "inputs": "input {}",
    "wheels": "packages of {}",
    "plan": "planning",
    "launch": "launch of {}",
    "version": "test set of {}",
    "verdict": "verdict on {}",
    "deploy": "deployment of {}",
    "target": "look at {}",
    "collect": "what {} left",
    "open": "access to {}",
    "letters": "messages",
    "mail": "messages by {}",
    "exports": "exported files",
    "duty": "housekeeping: {}",
    "reports": "artifact store",
    "manifests": "artifact store",
    "flag": "artifact store",
    "components": "artifact store",
    "catch up": "look back after a restore",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work: ``state`` is under way, standing still (no progress for half an hour) or failed.

    ``since`` is the scheduled second of its start; ``told`` is its progress, or why it failed.
    """

    what: str
    state: str
    since: int
    told: str


@dataclass(slots=True)
class _Last:
    since: int
    progress: str
    changed_at: int
    seen_at: int


class LongWork:
    """Watches the long work of one daemon. Its state need not survive a restart."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._failed_since: dict[str, int] = {}
        self._written: list[Work] = []

    def note(self, ports: Ports, now: int) -> None:
        """Write an event with running and failed work if it has changed."""
        second = ports.clock.wall_seconds(1.0)
        for one in ports.calls.slow(_DATA_SHOWN_WALL_SECONDS):
            if one.kind not in _WORDS or (
                one.kind not in {"data", "wheels", "deploy"} and one.wall_seconds < _SHOWN_WALL_SECONDS
            ):
                continue
            began = now - round(one.wall_seconds / second)
            state = self._last.setdefault(_named(one.kind, one.name), _Last(began, one.progress, now, now))
            state.seen_at = now
            if state.progress != one.progress:
                state.progress, state.changed_at = one.progress, now
        going = {(_named(kind, name)) for kind in _WORDS for name in ports.calls.under_way(kind)}
        for what, state in list(self._last.items()):
            kept = what == _WORDS["reports"] and (now - state.seen_at) * second < _KEPT_WALL_SECONDS
            if what not in going and not kept:
                del self._last[what]
        failures = {_named(kind, name): why for (kind, name), why in ports.calls.failures().items() if kind in _WORDS}
        self._failed_since = {what: self._failed_since.get(what, now) for what in failures}
        running = [
            Work(
                what,
                "standing still" if (now - state.changed_at) * second >= _STANDS_WALL_SECONDS else "under way",
                state.since,
                state.progress,
            )
            for what, state in sorted(self._last.items())
        ]
        running += [
            Work(what, "failed", self._failed_since[what], ports.redact(why)[:_WHY_CHARACTERS])
            for what, why in sorted(failures.items())
            if what not in self._last
        ]
        if running != self._written:
            with ports.write() as tx:
                events.append(tx, WORK, "daemon", now, work=[asdict(one) for one in running])
            ports.log.info(WORK, work=[f"{one.what}: {one.state} {one.told}".strip() for one in running])
            self._written = running


def long_work(tx: Connection) -> Sequence[Work]:
    """Return the long work of the current or last daemon."""
    newest = events.tail(tx, limit=1, kinds=(WORK, "daemon.started"), subject="daemon")
    return [Work(**one) for one in newest[0].data.get("work", ())] if newest else []


def _named(kind: str, name: str) -> str:
    return _WORDS[kind].format(name)
