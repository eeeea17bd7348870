"""The manual platform: a launch is an offer; a person claims it, runs it and returns its result.

It serves platforms that no program may control. The daemon plans, accounts and checkpoints as on other platforms;
docs/studio-lab.md describes what the person does. This adapter never contacts the platform.
"""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from jobs.payload.bounded_file import read_below
from jobs.payload.store.manifest import sha256_file
from jobs.payload.whole_file import write_whole
from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore, StoreError
from platforms.artifacts.directory import DirectoryStore
from platforms.base import (
    Capabilities,
    LaunchRequest,
    Observed,
    Platform,
    Refused,
    SessionState,
    StopChannel,
    Unreachable,
)
from platforms.bundle import BundleLimits, build_bundle, extract
from platforms.folders import Folders, is_folder_name
from platforms.local.records import publish
from platforms.manual import bootstrap
from platforms.options import read_options
from platforms.record_file import DamagedRecord, read_record
from platforms.registry import PlatformContext
from platforms.relay import Intake, checkpoint_keys, folder_keys, launch_with_attached, pack_objects
from platforms.remote import payload_of

OFFER = "offer.json"
CLAIM = "claim.json"
END = "ended.json"
STOP = "stop.json"
LOG = "output.log"
RESULT = "given"  # the result that a person returned, until it is collected

_Record = TypeVar("_Record")
_ABOUT = """\
# {key}

Trains {jobs}. Everything is in this notebook{beside}.

1. Start a runtime with a GPU, and run the cell below. It trains until its time is over, saves and ends by itself.
2. To end earlier, interrupt the cell: it saves first.
3. Download `{key}-result.zip` and hand it in: `schedctl handover submit {key} {key}-result.zip`

If the kernel dies, run the cell again: it trains nothing, and packs what was saved.
"""
_LAPSED = ".lapsed"  # contains when the last offer lapsed, in UTC seconds
_REPORT_BYTES = 1 << 20
_LIMITS = BundleLimits(files=10_000, file_bytes=32 << 30, total_bytes=64 << 30)


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a person may claim until ``lapses_at``. Times are UTC seconds.

    ``files`` are the files that the person must upload to the runtime, the notebook first. With ``reaches_store`` the
    session polls the stop flag itself; otherwise the person is asked to interrupt it.
    """

    offered_at: int
    lapses_at: int
    deadline: int
    jobs: tuple[str, ...]
    files: tuple[str, ...]
    reaches_store: bool


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim by the person ``by``. The session counts against the quota from ``at`` (UTC seconds) on."""

    at: int
    by: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Proof that an offer was not claimed and can never be claimed."""

    at: int
    why: str


_DECIDED: Any = Claimed | Withdrawn


@dataclass(frozen=True, slots=True)
class ManualEnd:
    """How a session ended. The time from ``started`` to ``ended`` (UTC seconds) counts against the quota."""

    started: int
    ended: int
    why: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The folder of one launch key. Reads raise OSError or DamagedRecord: a failed read does not mean absent."""

    key: str
    folder: Path

    def offer(self) -> Offer | None:
        """Return the offer, or None if it does not exist."""
        return self._read(OFFER, Offer)

    def claim(self) -> Claimed | Withdrawn | None:
        """Return the claim or the withdrawal of the offer, or None while it is open."""
        return self._read(CLAIM, _DECIDED)

    def end(self) -> ManualEnd | None:
        """Return how the session ended, or None while it has not."""
        return self._read(END, ManualEnd)

    def decide(self, claim: Claimed | Withdrawn) -> bool:
        """Record a claim or a withdrawal; return False if another call was first."""
        return publish(str(self.folder), CLAIM, json.dumps(asdict(claim)))

    def close(self, end: ManualEnd) -> bool:
        """Record the end of the session; return False if an end was recorded before."""
        return publish(str(self.folder), END, json.dumps(asdict(end)))

    def observe(self, now: int, result_seconds: int) -> Observed | None:
        """Return the state at ``now``, or None if there is no session; record a lapsed offer and a lost session.

        A claimed session counts as running until its result is returned, at most ``result_seconds`` past its deadline.
        """
        offer = self.offer()
        if offer is None:
            return None
        claim = self.claim()
        if claim is None:
            if now < offer.lapses_at:
                waits = "waits for a person to take it"
                return Observed(self.key, SessionState.QUEUED, "", detail=waits, stop_channel=StopChannel.PLATFORM)
            self.decide(Withdrawn(now, f"it was not claimed within {offer.lapses_at - offer.offered_at} s"))
            claim = self.claim()
        if not isinstance(claim, Claimed):
            return Observed(self.key, SessionState.ABSENT, "", detail=claim.why if claim else "withdrawn")
        end = self.end()
        if end is None and now > offer.deadline + result_seconds:
            self.close(ManualEnd(claim.at, max(claim.at, offer.deadline), "no result was submitted"))
            end = self.end()
        remote_id = f"taken by {claim.by}"
        if end is None:
            stop_channel = StopChannel.STORE if offer.reaches_store else StopChannel.PLATFORM
            return Observed(
                self.key, SessionState.RUNNING, remote_id, claim.at, detail="a person has it", stop_channel=stop_channel
            )
        return Observed(self.key, SessionState.ENDED, remote_id, end.started, end.ended, end.why)

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        return read_record(self.folder.parent, f"{self.key}/{name}", kind)


def pack(request: LaunchRequest, context: PlatformContext, folder: Path) -> tuple[str, ...]:
    """Write the files that a person must upload into ``folder``; return their names, the notebook first.

    A session cannot reach a store in a folder of this machine, so the files then contain its data, code and newest
    checkpoints. Raises Misconfigured, StoreError, OSError.
    """
    payload = payload_of("manual", request, context)
    with tempfile.TemporaryDirectory(prefix="uff-manual-") as temporary:
        code = base64.b64encode(build_bundle(payload, Path(temporary)).path.read_bytes()).decode()
    launch: dict[str, Any] = dict(request.launch)
    store = launch.get("store") or {}
    order: dict[str, Any] = {
        "key": request.key,
        "launch": launch,
        "code": code,
        "relays": store.get("kind") == "directory",
        "objects": None,
    }
    files = [f"{request.key}.ipynb"]
    if order["relays"]:
        keys, attached = _needed_keys(DirectoryStore(Path(store["root"])), launch)
        order["launch"] = launch_with_attached(launch, attached)
        if keys:
            archive = folder / f"{request.key}-objects.tar"
            pack_objects(DirectoryStore(Path(store["root"])), keys, archive)
            order["objects"] = {"name": archive.name, "sha256": sha256_file(archive)}
            files.append(archive.name)
    (folder / files[0]).write_bytes(_notebook(request.key, order))
    return tuple(files)


def _needed_keys(store: DirectoryStore, launch: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the keys of each lane's data, code and newest checkpoint, and the manifests among them."""
    keys = {key for checkpoints in folder_keys(store, launch.get("lanes", ())).values() for key in checkpoints}
    attached: set[str] = set()
    for lane in launch.get("lanes", ()):
        checkpoints = checkpoint_keys(store, lane)
        keys |= set(checkpoints)
        attached |= set(checkpoints[:1])
    return keys, attached


def _notebook(key: str, order: Mapping[str, Any]) -> bytes:
    """Return the notebook (nbformat 4.5) of the launch ``key``; ``order`` is the argument of bootstrap.main."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    objects = order["objects"]
    about = _ABOUT.format(
        key=key,
        jobs=" and ".join(str(lane["job"]) for lane in order["launch"].get("lanes", ())) or "nothing",
        beside=f", and in `{objects['name']}`, which must lie beside it" if objects else "",
    )
    call = f"main(json.loads({json.dumps(order, ensure_ascii=True)!r}))"
    notebook = json.loads(Path(__file__).with_name("notebook.json").read_text(encoding="utf-8"))
    for cell, text in zip(notebook["cells"], (about, f"{program}\n\n{call}\n"), strict=True):
        cell["source"] = text.rstrip("\n").splitlines(keepends=True)
    return json.dumps(notebook, indent=1).encode()


@dataclass(frozen=True, slots=True)
class ManualSettings:
    """The settings of a pool."""

    take_within_seconds: int = 1_800  # after this time the offer lapses, and other pools can run its jobs
    rest_seconds: int = 14_400  # no new offer for this time after an offer lapsed
    result_within_seconds: int = 43_200  # a claimed session without a result counts as lost so long after its deadline


class ManualPlatform(Platform):
    """Offers sessions to a person."""

    capabilities = Capabilities(sees_stop_flag=False, needs_person=True)

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        self._settings = read_options("manual", ManualSettings, settings)
        self._context = context
        self._folders = Folders("manual", context.state_folder.absolute())

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Offer a session; see Platform.launch. It starts when a person claims it."""
        if not is_folder_name(request.key):
            why = f"{request.key!r} cannot be a file's name"
            raise Refused("manual", "launch", why, "Use A-Z a-z 0-9 . _ -", permanent=True)
        hand_over = self._hand_over(request.key)
        with self._folders.answering("launch"), self._folders.lock():
            standing = hand_over.observe(now, self._settings.result_within_seconds)
            if standing is not None:
                return standing
            if request.secrets or any(lane.get("secrets") for lane in request.launch.get("lanes", ())):
                why = "a person copies the files of its sessions, so they must not contain secrets"
                raise Refused("manual", "launch", why, "Let jobs with secrets run on other pools", permanent=True)
            self._admit(request, now)
            try:
                self._make(request, now)
            except (StoreError, OSError) as error:
                raise Refused("manual", "launch", str(error), f"Check the disk of {self._folders.root}") from error
            observed = hand_over.observe(now, self._settings.result_within_seconds)
        if observed is None:
            raise Unreachable("manual", "launch", f"{hand_over.folder} vanished")
        return observed

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return the sessions by key; see Platform.find."""
        with self._folders.answering("find"):
            sessions = self._folders.observed(keys, lambda key: self._observe(key, now))
            for key, session in sessions.items():
                if session.state is SessionState.ABSENT:
                    self._note_lapse(self._hand_over(key))
        return sessions

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Withdraw an offer that was not claimed; ask the person who claimed it, who alone can end it, to do so."""
        if not is_folder_name(key):
            return
        hand_over = self._hand_over(key)
        with self._folders.answering("stop"):
            self._folders.check_root()
            if hand_over.offer() is None or hand_over.end() is not None:
                return
            if hand_over.decide(Withdrawn(now, "withdrawn before anybody took it")):
                return
            if isinstance(hand_over.claim(), Claimed):
                publish(str(hand_over.folder), STOP, json.dumps({"at": now, "force": force}))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the log that was returned with the result; see Platform.logs."""
        if not is_folder_name(key):
            return
        with self._folders.answering("logs"):
            yield from self._folders.read(key, LOG, offset, limit_bytes)

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Import the returned result; see Platform.collect."""
        del now
        if not is_folder_name(key):
            return
        hand_over = self._hand_over(key)
        with self._folders.answering("collect"):
            offer, store = hand_over.offer(), hand_over.folder / RESULT / "store"
            if offer is None or hand_over.end() is None or not store.is_dir():
                return
            intake = Intake(key, frozenset(offer.jobs))
            names = [path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()]
            try:
                for name in intake.in_import_order(names):
                    if intake.matches_key(name, store / name):
                        into.create(name, store / name)
            except StoreError as error:
                raise Unreachable("manual", "collect", str(error)) from error
            shutil.rmtree(hand_over.folder / RESULT)

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the folders of the sessions in ``over`` that have ended; return their keys."""
        with self._folders.answering("sweep"):
            with self._folders.lock():
                removed = self._folders.over(over, lambda key: self._observe(key, now))
                self._folders.remove(removed)
            self._folders.clear()
        return removed

    def keys(self) -> set[str]:
        """Return the launch keys of all folders."""
        return self._folders.keys()

    def show(self, key: str, now: int) -> tuple[Offer, Observed, bool] | None:
        """Return an offer, its state and whether the daemon asks for its end; None if it does not exist."""
        with self._folders.answering("find"):
            hand_over = self._hand_over(key)
            offer, observed = hand_over.offer(), hand_over.observe(now, self._settings.result_within_seconds)
            if offer is None or observed is None:
                return None
            return offer, observed, (hand_over.folder / STOP).exists()

    def take(self, key: str, by: str, into: Path, now: int) -> Sequence[Path]:
        """Claim an open offer and copy its files into the folder ``into``; from ``now`` on its quota counts.

        Raises Refusal if it is not open, OSError if the files cannot be written.
        """
        hand_over, offer = self._offered("claim", key)
        observed = hand_over.observe(now, self._settings.result_within_seconds)
        if observed is None or observed.state is not SessionState.QUEUED:
            raise Refusal("manual: claim failed", f"{key} is not open: {observed.detail if observed else 'gone'}")
        into.mkdir(parents=True, exist_ok=True)
        copies = [into / name for name in offer.files]
        for copy in copies:
            shutil.copyfile(hand_over.folder / copy.name, copy)
        if not hand_over.decide(Claimed(now, by)):
            for copy in copies:
                copy.unlink()
            raise Refusal("manual: claim failed", f"{key} was claimed or withdrawn in this moment")
        return copies

    def give(self, key: str, archive: Path, store: BlobStore, now: int) -> ManualEnd:
        """Accept the result of a claimed session, the archive of its notebook; return the seconds that count as quota.

        ``store`` is the artifact store, where sessions that reach it have reported their end. Raises Refusal if no
        result is expected or it belongs to another session, BadArchive, OSError. A refusal changes nothing.
        """
        hand_over, offer = self._offered("submit", key)
        claim = hand_over.claim()
        if not isinstance(claim, Claimed):
            raise Refusal("manual: submit failed", f"{key} was never claimed", f"Use: schedctl handover claim {key}")
        if (end := hand_over.end()) is not None:
            raise Refusal("manual: submit failed", f"{key} is over already: {end.why}", "See: schedctl handover list")
        fresh = self._folders.fresh(f"given-{key}-{os.urandom(4).hex()}")
        try:
            extract(archive, fresh, _LIMITS)
            if not (fresh / key).is_file():
                raise Refusal(
                    "manual: submit failed", f"{archive.name} is not the result of {key}", "Submit its own file"
                )
            ends = [
                _lane_end(fresh / "store", store, f"runs/{key}/lane-{lane}/result.json")
                for lane in range(len(offer.jobs))
            ]
            ended = max((end_at for end_at in ends if end_at is not None), default=offer.deadline)
            if (fresh / LOG).is_file():
                (fresh / LOG).replace(hand_over.folder / LOG)
            shutil.rmtree(hand_over.folder / RESULT, ignore_errors=True)  # left by a call that died before its end
            fresh.rename(hand_over.folder / RESULT)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        end = ManualEnd(claim.at, max(claim.at, min(ended, now)), "its result was handed in")
        hand_over.close(end)
        return hand_over.end() or end

    def drop(self, key: str, why: str, now: int) -> None:
        """Withdraw an open offer, or end a claimed session without a result.

        Raises Refusal if there is no such offer, or if it is over already, for example because of a returned result.
        """
        hand_over, offer = self._offered("release", key)
        if hand_over.decide(Withdrawn(now, why)):
            return
        claim = hand_over.claim()
        if isinstance(claim, Claimed) and hand_over.close(
            ManualEnd(claim.at, max(claim.at, min(now, offer.deadline)), why)
        ):
            return
        over = hand_over.end() or claim
        why = f"{key} is over already: {over.why if isinstance(over, ManualEnd | Withdrawn) else 'gone'}"
        raise Refusal("manual: release failed", why, "See: schedctl handover list")

    def _offered(self, action: str, key: str) -> tuple[HandOver, Offer]:
        """Return an existing offer with its folder. Raises Refusal if there is none."""
        hand_over = self._hand_over(key)
        offer = hand_over.offer() if is_folder_name(key) else None
        if offer is None:
            raise Refusal(f"manual: {action} failed", f"there is no hand-over {key}", "See: schedctl handover list")
        return hand_over, offer

    def _admit(self, request: LaunchRequest, now: int) -> None:
        if request.deadline <= now:
            raise Refused("manual", "launch", f"the deadline {request.deadline} is not after {now}")
        lapsed_at = self._lapsed_at()
        if lapsed_at is not None and now < lapsed_at + self._settings.rest_seconds:
            raise Refused(
                "manual", "launch", "nobody took the last offer", wait_until=lapsed_at + self._settings.rest_seconds
            )
        live = self._folders.live(lambda key: self._observe(key, now))
        if len(live) >= self._context.sessions_max:
            why = f"{len(live)} of at most {self._context.sessions_max} hand-overs are open"
            unclear = [session.detail for session in live.values() if session.state is SessionState.UNCLEAR]
            raise Refused("manual", "launch", "; ".join([why, *unclear]), "Hand in a result, or drop one")

    def _make(self, request: LaunchRequest, now: int) -> None:
        """Create the folder of an offer atomically. The caller holds the lock. Raises what pack raises."""

        def fill(folder: Path) -> None:
            files = pack(request, self._context, folder)
            offer: dict[str, Any] = {
                "offered_at": now,
                "lapses_at": min(request.deadline, now + self._settings.take_within_seconds),
                "deadline": request.deadline,
                "jobs": [str(lane["job"]) for lane in request.launch.get("lanes", ())],
                "files": files,
                "reaches_store": (request.launch.get("store") or {}).get("kind") != "directory",
            }
            (folder / OFFER).write_text(json.dumps(offer))

        self._folders.make(request.key, fill)

    def _note_lapse(self, hand_over: HandOver) -> None:
        """Record that the offer lapsed, so that the next one waits."""
        claim, offer = hand_over.claim(), hand_over.offer()
        if isinstance(claim, Withdrawn) and offer is not None and claim.at >= offer.lapses_at:
            lapsed_at = self._lapsed_at()
            if lapsed_at is None or lapsed_at < claim.at:
                write_whole(self._folders.root / _LAPSED, str(claim.at))

    def _lapsed_at(self) -> int | None:
        """Return when the last offer lapsed; None, which means no pause, if no offer did or the record is damaged."""
        with suppress(FileNotFoundError, DamagedRecord):
            return read_record(self._folders.root, _LAPSED, int)
        return None

    def _observe(self, key: str, now: int) -> Observed | None:
        return self._hand_over(key).observe(now, self._settings.result_within_seconds)

    def _hand_over(self, key: str) -> HandOver:
        return HandOver(key, self._folders.root / key)


def _lane_end(folder: Path, store: BlobStore, key: str) -> int | None:
    """Return when a lane ended by its own report, in scheduled UTC seconds; None without a report."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, StoreError):
        try:
            report = read_below(folder, key, _REPORT_BYTES)
        except FileNotFoundError:
            report = store.read(key, _REPORT_BYTES)
        ended = json.loads(report)["ended_at"]
        return ended if isinstance(ended, int) else None
    return None
