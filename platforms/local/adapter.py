"""The adapter of the local platform. Each launch key has a folder; records.py lists the files in it.

``launch`` creates the complete folder atomically, then starts a keeper (keeper.py), which claims the session. After
that the daemon may die: another adapter on the same folder sees and stops the same sessions. The sessions in one folder
belong to one pool, whose limits the adapter enforces like a remote platform.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import platforms
from jobs.payload.bounded_file import read_below
from jobs.payload.lane.environment import FOLDER, MARK
from jobs.payload.lane.secret_values import VARIABLE
from jobs.payload.store.tree import sweep_trees
from jobs.size import counted
from platforms import base
from platforms.folders import Folders, is_folder_name, try_lock
from platforms.local import spawn
from platforms.local.processes import boot_id, kill_members, members, start_ticks, works_for
from platforms.local.records import CACHE, CLAIM, END, KEEPER_LOG, LAUNCH, ORDER, OUTPUT, VIEW, WORK, publish
from platforms.options import Written, read_options
from platforms.record_file import read_record
from platforms.registry import PlatformContext
from platforms.remote import payload_of

__all__ = ["FOLDER", "KEPT_SECONDS", "sweep_environments"]
KEPT_SECONDS = 14 * 86_400  # how long an unused environment is kept, in real time
_Record = TypeVar("_Record")
_KILL_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The settings of a pool.

    ``devices`` are the numbers of its accelerators; a session gets a share of them, and the ``devices`` of its lanes
    are translated. ``pass_environment`` names further variables that payloads get.
    """

    devices: str = ""
    log_bytes: int = 8 << 20  # output kept per session
    nice: int = 10  # added to the nice value of payloads
    keep_inputs_seconds: Annotated[int, Written("keep_inputs_days", 86_400)] = 7 * 86_400  # after their last use
    pass_environment: tuple[str, ...] = ()


class LocalPlatform(base.Platform):
    """Runs payloads as detached processes on this machine.

    If the environment names a runner, which is a socket of the service manager, each session runs in a systemd unit.
    Otherwise sessions are processes detached from the daemon. Sessions cannot see files that the context hides. Without
    a runner this needs a machine on which this user may hide files; elsewhere they see every file that the user can
    read.
    """

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        self._settings = read_options("local", LocalSettings, settings)
        self._context = context
        self._runner = os.environ.get(spawn.RUNNER_VARIABLE, "")
        self._devices = _read_devices(self._settings.devices)
        self._passed = frozenset(self._settings.pass_environment)
        self._clock = {"epoch": 0.0, "origin": 0.0, "scale": 1.0, **context.clock}
        if not Path("/proc/self/stat").exists():
            raise base.Misconfigured("local", "load", "there is no /proc", "It needs Linux")
        self._folders = Folders("local", context.state_folder.absolute())

    @property
    def capabilities(self) -> base.Capabilities:
        """Return its features. A session's view of the store's folder is fixed at launch."""
        return base.Capabilities(
            tails_logs=True, takes_orders=self._context.store_kind not in {"", "directory"} or not self._has_views()
        )

    def launch(self, request: base.LaunchRequest, now: int) -> base.Observed:
        """Start a session; see Platform.launch. Refuses more than ``sessions_max`` sessions."""
        if not is_folder_name(request.key):
            raise base.Refused(
                "local", "launch", f"{request.key!r} cannot be a folder's name", "Use A-Z a-z 0-9 . _ -", permanent=True
            )
        agent = payload_of("local", request, self._context) / "agent.py"
        session = self._session(request.key)
        with self._folders.answering("launch"), self._folders.lock():
            observed = session.observe(now)
            if observed is not None:
                return observed
            self._admit(request, agent, now)
        return self._start(session, request, agent, now)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, base.Observed]:
        """Return the sessions by key; see Platform.find."""
        with self._folders.answering("find"):
            return self._folders.observed(keys, lambda key: self._session(key).observe(now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Send SIGTERM to the agent or, with ``force``, SIGKILL to every process; an unclaimed session becomes void."""
        if not is_folder_name(key):
            return
        session = self._session(key)
        with self._folders.answering("stop"):
            self._folders.check_root()
            never = session.claim() is None
            if never and (session.order() is None or session.void(now, "stopped before it started")):
                return
            if force:
                session.kill()
            elif (agent := session.agent()) is not None:
                try:
                    os.kill(agent, signal.SIGTERM)
                except ProcessLookupError:
                    return

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the output kept of a session; see Platform.logs."""
        if not is_folder_name(key):
            return
        with self._folders.answering("logs"):
            yield from self._folders.read(key, OUTPUT, offset, limit_bytes)

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the folders of the sessions in ``over`` that ended or never started; return their keys.

        Environments not used by any session for a long time are removed too.
        """
        with self._folders.answering("sweep"):
            with self._folders.lock():
                removed = self._folders.over(over, lambda key: self._session(key).observe(now))
                self._folders.remove(removed)
            self._folders.clear()
            wall = self._clock["origin"] + (now - self._clock["epoch"]) / self._clock["scale"]
            sweep_trees(self._folders.root / CACHE, wall - self._settings.keep_inputs_seconds)
            sweep_environments(self._folders.root / CACHE / FOLDER, wall - KEPT_SECONDS)
        return removed

    def _admit(self, request: base.LaunchRequest, agent: Path, now: int) -> None:
        """Create the session's folder, or raise Refused. The caller holds the lock."""
        if request.deadline <= now:
            raise base.Refused("local", "launch", f"the deadline {request.deadline} is not after {now}")
        live = self._folders.live(lambda key: self._session(key).observe(now))
        unclear = next((each.detail for each in live.values() if each.state is base.SessionState.UNCLEAR), "")
        if len(live) >= self._context.sessions_max:
            why = f"{len(live)} of at most {self._context.sessions_max} sessions are live"
            note = f", of which at least one is in an unknown state: {unclear}" if unclear else ""
            raise base.Refused("local", "launch", why + note, "Wait until one ends")
        if unclear and self._devices:
            raise base.Refused("local", "launch", f"it is unknown which devices are free: {unclear}")
        devices = self._share(request, [self._session(key) for key in live])
        launch = {**request.launch, "work_dir": WORK, "cache": str(self._folders.root / CACHE)}
        if devices:
            launch["lanes"] = [_translate(lane, devices) for lane in launch.get("lanes", ())]
        if devices and launch.get("chain"):
            free = [[lane, [devices[index] for index in own]] for lane, own in launch["chain"].get("free", ())]
            launch["chain"] = {**launch["chain"], "free": free}
        order = {
            "launched_at": now,
            "claim_by": now + round(spawn.CLAIM_SECONDS * max(self._clock["scale"], 1.0)),
            "deadline": request.deadline,
            "devices": devices,
        }

        def fill(folder: Path) -> None:
            (folder / WORK).mkdir()
            (folder / LAUNCH).write_text(json.dumps(launch))
            (folder / ORDER).write_text(json.dumps(order))
            if view := self._view(request, agent):
                (folder / VIEW).write_text(view, errors="surrogateescape")
            elif self._context.hidden() and os.geteuid():
                (folder / OUTPUT).write_text(f"{spawn.UNHIDDEN} ({spawn.obstacle()}): schedctl doctor\n")

        try:
            self._folders.make(request.key, fill)
        except OSError as error:
            raise base.Refused("local", "launch", str(error), f"Check the disk of {self._folders.root}") from error

    def _view(self, request: base.LaunchRequest, agent: Path) -> str:
        """Return the view of a new session; empty if sessions see all files."""
        if not self._has_views():
            return ""
        hidden = self._context.hidden()
        (self._folders.root / CACHE).mkdir(mode=0o700, exist_ok=True)
        hidden = [*hidden, *spawn.outside(os.environ, self._runner), self._folders.root]
        programs = [Path(sys.prefix), Path(sys.base_prefix), Path(platforms.__file__).parent, agent.parent]
        home = Path(platforms.__file__).parent.parent.resolve()
        if not any(home.is_relative_to(place.resolve()) for place in hidden):
            programs.append(home)  # in a checkout, files next to our packages are imported as well
        return spawn.view_of(self._folders.root / request.key, hidden, programs, request.launch.get("store", {}))

    def _has_views(self) -> bool:
        return bool(self._context.hidden()) and (bool(self._runner) or not spawn.obstacle())

    def _share(self, request: base.LaunchRequest, live: "Sequence[Session]") -> Sequence[int]:
        """Return the device numbers of a new session; empty if the pool lists no devices."""
        if not self._devices:
            return ()
        busy = {device for session in live if (order := session.order()) for device in order.devices}
        free = [device for device in self._devices if device not in busy]
        if len(free) < request.devices:
            raise base.Refused("local", "launch", f"{counted(len(free), 'device')} free, {request.devices} needed")
        return free[: request.devices]

    def _start(self, session: "Session", request: base.LaunchRequest, agent: Path, now: int) -> base.Observed:
        """Start the keeper; if it does not claim the session, make sure that it never will."""
        try:
            claimed, why = self._spawn(session.folder, request, agent), "the keeper did not claim the session"
        except OSError as error:
            claimed, why = False, str(error)
        with self._folders.answering("launch"):
            if not claimed and session.void(now, why):
                log_end = read_below(session.folder, KEEPER_LOG).decode("utf-8", "replace").strip()[-500:]
                raise base.Refused("local", "launch", "; ".join(filter(None, [why, log_end])))
            observed = session.observe(now)
        if observed is None:
            raise base.Unreachable("local", "launch", f"{session.folder} vanished")
        return observed

    def _spawn(self, folder: Path, request: base.LaunchRequest, agent: Path) -> bool:
        """Start the keeper of a session and wait until it has claimed it; return whether it reported that."""
        clock = {**self._clock, **request.launch.get("clock", {})}
        arguments = [
            folder,
            request.deadline,
            self._context.session_cap_seconds,
            *(repr(float(clock[part])) for part in ("epoch", "origin", "scale")),
            self._settings.log_bytes,
            self._settings.nice,
            self._context.python,
            agent,
        ]
        environment = spawn.of_sessions(os.environ, self._passed)
        if (folder / VIEW).exists() and spawn.home_in((folder / VIEW).read_text(errors="surrogateescape"), environment):
            environment["HOME"] = str(folder / WORK)
        if request.secrets:
            environment[VARIABLE] = json.dumps(dict(request.secrets))
        words = list(map(str, arguments))
        if self._runner:
            return spawn.through_runner(self._runner, folder, words, environment)
        return spawn.as_child(self._context.python, folder, words, environment)

    def _session(self, key: str) -> "Session":
        return Session(key, self._folders.root / key)


def _read_devices(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(name.isascii() and name.isdigit() for name in names) or len(set(names)) != len(names):
        raise base.BadOption("local", "load", f"devices = {text!r} is not a list of device numbers such as 0,1")
    return tuple(map(int, names))


def _translate(lane: Mapping[str, Any], share: Sequence[int]) -> dict[str, Any]:
    try:
        return {**lane, "devices": [share[index] for index in lane.get("devices", ())]}
    except IndexError:
        raise base.Refused(
            "local", "launch", f"a lane asks for devices {lane['devices']} of {len(share)}", permanent=True
        ) from None


load = LocalPlatform  # the name that plug-ins of contract 1 know


def sweep_environments(folder: Path, before: float) -> list[str]:
    """Remove environments not used since ``before`` (real UTC seconds) and unfinished ones; return their names.

    An environment that a session uses or builds is locked and stays. Raises OSError.
    """
    removed = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not place.is_dir():
            continue
        mark = place / MARK
        with os.fdopen(os.open(folder / f"{place.name}.lock", os.O_RDWR | os.O_CREAT, 0o600), "rb") as handle:
            if try_lock(handle) and (not mark.exists() or mark.stat().st_mtime < before):
                mark.unlink(missing_ok=True)  # first, so that a partly removed environment does not count as complete
                shutil.rmtree(place)
                removed.append(place.name)
    return removed


# The state of a session: its records, and the process table.
@dataclass(frozen=True, slots=True)
class LocalOrder:
    """What the adapter recorded at launch. After ``claim_by`` (UTC seconds) it no longer waits for the keeper."""

    launched_at: int
    claim_by: int
    deadline: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The processes of a session: pids with their start times in ticks, valid within one boot."""

    keeper: int
    keeper_ticks: int
    agent: int
    agent_ticks: int
    boot: str
    started_at: int
    ends_by: int


@dataclass(frozen=True, slots=True)
class Void:
    """Proof that the session never starts: its claim file was written before a keeper could."""

    at: int
    why: str


@dataclass(frozen=True, slots=True)
class _Voided:
    void: Void


_CLAIMED: Any = Claim | _Voided


@dataclass(frozen=True, slots=True)
class LocalEnd:
    """How a session ended, written by its keeper, or by an observer if the keeper is gone."""

    started_at: int
    ended_at: int
    exit_code: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Session:
    """The folder of one launch key. Reads raise OSError or DamagedRecord: a failed read does not mean absent."""

    key: str
    folder: Path

    def order(self) -> LocalOrder | None:
        """Return the order, or None if there is no such session."""
        return self._read(ORDER, LocalOrder)

    def claim(self) -> Claim | Void | None:
        """Return the claim or the proof that no process will ever start, or None while neither exists."""
        record: Claim | _Voided | None = self._read(CLAIM, _CLAIMED)
        return record.void if isinstance(record, _Voided) else record

    def end(self) -> LocalEnd | None:
        """Return how the session ended, or None while it has not."""
        return self._read(END, LocalEnd)

    def void(self, now: int, why: str) -> bool:
        """Claim the session so that no keeper can; return False if it was claimed already."""
        return publish(str(self.folder), CLAIM, json.dumps({"void": {"at": now, "why": why}}) + "\n")

    def observe(self, now: int) -> base.Observed | None:
        """Return the state of the session at ``now``, or None if there is no such session.

        It records ends, so that later calls return the same answer: an unclaimed session past its time becomes void,
        and a session whose processes are all gone gets an end record.
        """
        end = self.end()
        if end is not None:
            return self._ended(end)
        claim = self.claim()
        if claim is None:
            order = self.order()
            if order is None:
                return None
            if now <= order.claim_by:
                return base.Observed(self.key, base.SessionState.QUEUED, "", detail="starting")
            try:
                self.void(now, "no keeper claimed the session in time")
            except OSError as error:
                return base.Observed(
                    self.key, base.SessionState.QUEUED, "", detail=f"overdue, but cannot be made void: {error}"
                )
            claim = self.claim()
        match claim:
            case Void(why=why):
                return base.Observed(self.key, base.SessionState.ABSENT, "", detail=why)
            case Claim():
                return self._observe_claimed(claim, now)
            case None:
                return None  # swept at this moment

    def agent(self) -> int | None:
        """Return the pid of the live agent, which receives SIGTERM, or None."""
        claim = self.claim()
        if not isinstance(claim, Claim) or self._rebooted(claim):
            return None
        return claim.agent if start_ticks(claim.agent) == claim.agent_ticks else None

    def kill(self) -> None:
        """End every process of the session except the keeper, which must still record the end."""
        claim = self.claim()
        if isinstance(claim, Claim) and not self._rebooted(claim):
            kill_members(claim.agent, claim.agent_ticks, str(self.folder), rounds=_KILL_ROUNDS)
            if start_ticks(claim.keeper) == claim.keeper_ticks:
                os.kill(claim.keeper, signal.SIGCONT)  # a stopped keeper cannot write

    def _observe_claimed(self, claim: Claim, now: int) -> base.Observed:
        running = base.Observed(
            self.key, base.SessionState.RUNNING, f"pid {claim.agent}", claim.started_at, detail="running"
        )
        if not self._rebooted(claim):
            Path("/proc/self/stat").stat()  # without a process table, "gone" would be a guess
            if start_ticks(claim.keeper) == claim.keeper_ticks:
                return running
            if members(claim.agent, claim.agent_ticks, str(self.folder)):
                return base.Observed(
                    self.key, base.SessionState.RUNNING, running.remote_id, claim.started_at, detail="keeper lost"
                )
        end = self.end()  # a keeper that exited normally wrote it before
        if end is None:
            ended_at = max(claim.started_at, min(now, claim.ends_by))
            end = self._record(LocalEnd(claim.started_at, ended_at, None, "all processes gone without a report"))
        return self._ended(end)

    def _record(self, end: LocalEnd) -> LocalEnd:
        try:
            publish(str(self.folder), END, json.dumps(asdict(end)) + "\n")
        except OSError:
            return end  # the session has ended even if the disk is full; the next call writes the record
        return self.end() or end

    def _ended(self, end: LocalEnd) -> base.Observed:
        return base.Observed(self.key, base.SessionState.ENDED, "", end.started_at, end.ended_at, end.why)

    def _rebooted(self, claim: Claim) -> bool:
        """Return whether the claim is from an earlier boot, so that its pids are meaningless.

        Sandboxes and containers may report a boot identity of their own, so a live agent with the mark of this folder
        counts as stronger evidence.
        """
        current = boot_id()
        if not (claim.boot and current) or claim.boot == current:
            return False
        return not works_for(claim.agent, str(self.folder))

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        return read_record(self.folder.parent, f"{self.key}/{name}", kind)
