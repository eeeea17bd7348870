"""Long work: background work of the daemon that takes a minute or fails, for display.

Its state is written as one event whenever it changes, so that status, page and needs read one row. When a daemon
starts, the work of the previous daemon counts as ended; the new daemon starts it again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from scheduler.service.outside.ports import Ports
from scheduler.store import events

WORK = "daemon.work"
_SHOWN_WALL_SECONDS, _DATA_SHOWN_WALL_SECONDS = 60.0, 5.0
_KEPT_WALL_SECONDS = 120.0  # work that starts again within this time counts as one piece of work
_STALLED_WALL_SECONDS = 1_800.0
_WHY_CHARACTERS = 300
# Descriptions of calls by kind, for people. Platforms that do not answer are reported elsewhere (service/faults).
_TEXTS = {
    "data": "training data of {}",
    "inputs": "input {}",
    "wheels": "packages of {}",
    "plan": "planning",
    "launch": "launch of {}",
    "version": "test set of {}",
    "verdict": "verdict on {}",
    "deploy": "deployment of {}",
    "target": "query of {}",
    "collect": "outputs of {}",
    "open": "access to {}",
    "letters": "messages",
    "mail": "messages by {}",
    "exports": "exported files",
    "duty": "housekeeping: {}",
    "reports": "artifact store",
    "manifests": "artifact store",
    "flag": "artifact store",
    "components": "artifact store",
    "catch up": "search for sessions after a restore",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work. ``state`` is "under way", "standing still" (no progress for half an hour) or "failed".

    ``since`` is its start in scheduled UTC seconds; ``told`` is its progress, or why it failed.
    """

    what: str
    state: str
    since: int
    told: str


@dataclass(slots=True)
class _Progress:
    since: int
    progress: str
    changed_at: int
    seen_at: int


class LongWork:
    """Watches the long work of one daemon. Its state is not needed after a restart."""

    def __init__(self) -> None:
        self._last: dict[str, _Progress] = {}
        self._failed_since: dict[str, int] = {}
        self._written: list[Work] = []

    def record(self, ports: Ports, now: int) -> None:
        """Write an event with the running and the failed work if it has changed since the last event."""
        second = ports.clock.wall_seconds(1.0)
        for one in ports.calls.slow(_DATA_SHOWN_WALL_SECONDS):
            if one.kind not in _TEXTS or (
                one.kind not in {"data", "wheels", "deploy"} and one.wall_seconds < _SHOWN_WALL_SECONDS
            ):
                continue
            began = now - round(one.wall_seconds / second)
            state = self._last.setdefault(_describe(one.kind, one.name), _Progress(began, one.progress, now, now))
            state.seen_at = now
            if state.progress != one.progress:
                state.progress, state.changed_at = one.progress, now
        running_now = {(_describe(kind, name)) for kind in _TEXTS for name in ports.calls.under_way(kind)}
        for what, state in list(self._last.items()):
            kept = what == _TEXTS["reports"] and (now - state.seen_at) * second < _KEPT_WALL_SECONDS
            if what not in running_now and not kept:
                del self._last[what]
        failures = {
            _describe(kind, name): why for (kind, name), why in ports.calls.failures().items() if kind in _TEXTS
        }
        self._failed_since = {what: self._failed_since.get(what, now) for what in failures}
        running = [
            Work(
                what,
                "standing still" if (now - state.changed_at) * second >= _STALLED_WALL_SECONDS else "under way",
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


def _describe(kind: str, name: str) -> str:
    return _TEXTS[kind].format(name)
