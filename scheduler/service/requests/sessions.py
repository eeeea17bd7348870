"""Requests about one run, with or without a running daemon: stop it, declare it lost, read its output."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy import Connection

from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore, StoreError
from platforms.base import Platform
from scheduler.core import run as arrows
from scheduler.core.reasons import show
from scheduler.core.reconcile import started_of
from scheduler.core.run import Ended, Reserved, Run, Running, Stopping, Submitting
from scheduler.service.facts.observation import DECLARED
from scheduler.service.launch.launch_document import put_stop_flag
from scheduler.store import conditions, events, runs, watched
from scheduler.store.engine import Database

_PIECE_BYTES = 1 << 20
_LINE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The run, and whether its session has received the stop; if not, the daemon delivers it."""

    run: Run
    flag_written: bool


def stop(database: Database, artifacts: BlobStore, key: str, why: str, now: int, by: str) -> StopAsked:
    """Request that a run saves and ends; idempotent. Raises UnknownRun, Refusal, Stale.

    The request is committed first. The stop flag for the payload is written here too, so that it works without a
    daemon.
    """
    with database.write() as tx:
        run = runs.get(tx, key)
        match run.state:
            case Running():
                stopping = arrows.stop(run.state, why, now)
                runs.change_state(tx, key, run.state, stopping, "stop", now, by)
                run = replace(run, state=stopping)
            case Stopping():
                pass
            case Reserved() | Submitting():
                raise Refusal(
                    f"cannot stop {key}",
                    "it is being launched and no session is known yet",
                    f"Try again in a minute, or hold its job: schedctl queue hold {run.lanes[0].job}",
                )
            case Ended(outcome=outcome):
                raise Refusal(f"cannot stop {key}", f"it has ended, {outcome}", f"See: schedctl runs show {key}")
            case _:
                assert_never(run.state)
    try:
        put_stop_flag(artifacts, key, why)
    except StoreError:
        return StopAsked(run, flag_written=False)
    return StopAsked(run, flag_written=True)


@dataclass(frozen=True, slots=True)
class DeclaredLost:
    """What declaring a run lost would do: charge it until ``ended`` (UTC seconds), or with None only end its watch."""

    run: Run
    ended: int | None
    because: str


def lost(tx: Connection, key: str, ended: int | None, now: int) -> DeclaredLost:
    """Return the effect of declaring a run lost; ``ended`` is the end that the person states.

    By default it is charged until its last sign of life, or without one until the end of its reservation. Raises
    UnknownRun, Refusal.
    """
    run = runs.get(tx, key)
    if isinstance(run.state, Ended):
        if key in watched.keys(tx):
            return DeclaredLost(run, None, "its run is over and charged already")
        raise Refusal(f"{key} has ended, {run.state.outcome}", remedy=f"See: schedctl runs show {key}")
    if isinstance(run.state, Reserved):
        raise Refusal(f"{key} was not sent to its platform yet", remedy="Try again in a minute")
    began = started_of(run)
    if ended is not None:
        if not began <= ended <= now:
            raise Refusal(f"{key} cannot have ended then: it began at {show(began)}, and nothing ends after now")
        return DeclaredLost(run, ended, "the end that you stated")
    signs = [report.at for report in runs.heartbeats(tx, [key]).values() if report.at is not None]
    if signs:
        return DeclaredLost(run, max(began, min(now, max(signs))), "its last sign of life")
    until = max(began, min(now, run.held_until))
    return DeclaredLost(run, until, "it gave no sign of life, so all of its reservation so far is charged")


def declare_lost(tx: Connection, lost_run: DeclaredLost, proof: str, now: int, by: str) -> None:
    """Record that a person declared a session dead. The daemon then ends its run, or stops watching it."""
    if lost_run.ended is None:
        events.append(tx, DECLARED, lost_run.run.key, now, by, why=proof)
        events.append(tx, "session.left", lost_run.run.key, now, by, why=proof)
        watched.remove(tx, lost_run.run.key)
    else:
        events.append(tx, DECLARED, lost_run.run.key, now, by, ended=lost_run.ended, why=proof)


def unreachable(tx: Connection, run: Run) -> str:
    """Return why a run's session cannot be reached now; "" if no reason is known."""
    reasons = conditions.reasons(tx, conditions.RUN_POISONED) | conditions.reasons(tx, conditions.RUN_UNCLEAR)
    return reasons.get(run.key, conditions.reasons(tx, conditions.SILENT).get(run.pool, ""))


def log_pieces(platform: Platform, key: str, offset: int = 0) -> Iterator[bytes]:
    """Yield the output of the session so far, from a byte on. Raises PlatformError."""
    while True:
        read = 0
        for piece in platform.logs(key, offset, _PIECE_BYTES):
            read += len(piece)
            yield piece
        offset += read
        if read < _PIECE_BYTES:
            return


def followed_log(database: Database, platform: Platform, key: str, pause: Callable[[], object]) -> Iterator[bytes]:
    """Yield the output of the session until it has ended; ``pause`` waits between two requests."""
    offset = 0
    while True:
        with database.read() as tx:
            ended = isinstance(runs.get(tx, key).state, Ended)
        # The state is read before the log, so output printed just before the end is not missed.
        for piece in log_pieces(platform, key, offset):
            offset += len(piece)
            yield piece
        if ended:
            return
        pause()


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of the pieces with their line ends; the last may have none. Very long lines split at blanks."""
    tail = b""
    for piece in pieces:
        *whole, tail = (tail + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(tail) > _LINE_MAX_BYTES:
            at = tail.rfind(b" ") + 1 or len(tail)
            yield tail[:at]
            tail = tail[at:]
    if tail:
        yield tail


def lane_lines(pieces: Iterable[bytes], run: Run, index: int) -> Iterator[bytes]:
    """Yield the lines of one lane; in sessions with several lanes the agent marks each line."""
    lane = next((lane for lane in run.lanes if lane.index == index), None)
    if lane is None:
        listing = ", ".join(str(lane.index) for lane in run.lanes)
        raise Refusal(f"{run.key} has no lane {index}, only {listing}", remedy=f"See: schedctl runs show {run.key}")
    printed, agent = f"{lane.job}| ".encode(), f"[agent lane {index}] ".encode()
    if [other for other in run.lanes if other.begun_at is None] == [lane]:
        # The session started with this job only, so its lines have no mark; those of later jobs have one.
        later = [other for other in run.lanes if other is not lane]
        marks = [mark for other in later for mark in (f"{other.job}| ", f"[agent lane {other.index}] ")]
        yield from (line for line in lines(pieces) if not line.startswith(tuple(mark.encode() for mark in marks)))
        return
    for line in lines(pieces):
        if line.startswith(printed):
            yield line.removeprefix(printed)
        elif line.startswith(agent):
            yield line
