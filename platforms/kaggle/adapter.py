"""The Kaggle adapter: start, observe, stop and collect kernels by Kaggle's API. Its rules are in docs/kaggle.md."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.payload.clock import stopwatch
from jobs.payload.store.tree import MOUNTED
from platforms.artifacts.base import BlobStore, StoreError
from platforms.base import (
    BadOption,
    Capabilities,
    LaunchRequest,
    Misconfigured,
    Observed,
    PlatformError,
    QuotaReading,
    Refused,
    SessionState,
    StopChannel,
    Unfinished,
    Unreachable,
)
from platforms.kaggle.api.account import open_account, require_one_account
from platforms.kaggle.api.client import KaggleClient, Push, Pushed
from platforms.kaggle.api.wire import Denied, TooLarge
from platforms.kaggle.kernel.packing import BackgroundTasks, Inputs, Packed, TaskUnfinished, is_source_of, pack
from platforms.kaggle.session.observer import DELETED, LaunchRecords, Observer, Record, Tail, find_orphans
from platforms.kaggle.settings import KaggleSettings, read_settings
from platforms.record_file import DamagedRecord, unclear
from platforms.registry import PlatformContext
from platforms.relay import MANIFESTS, REPORTS, Intake, has_components

_STORE = "store/"
_PAGES_MAX = 100
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_SLUG_LENGTHS = range(5, 51)
_ANSWER_CALLS = 4  # after its last byte an upload may wait for its answer this many call timeouts
_WEEK_AND_SKEW_SECONDS = 8 * 86_400
_LIVE = frozenset({SessionState.QUEUED, SessionState.RUNNING})
_CANCEL_PATIENCE_SECONDS, _CANCEL_WALL_SECONDS = 120, 2.0  # a cancel's time to act, scheduled and real, before a delete


# Output of a session: names, sizes and contents are untrusted until checked.
@dataclass(frozen=True, slots=True)
class Caps:
    """Limits for the output of one session. ``seconds`` is the longest pause of a download, in real time."""

    files: int = 5_000
    file_bytes: int = 20 << 30
    total_bytes: int = 20 << 30
    report_bytes: int = 1 << 20
    seconds: float = 60.0


class Collector:
    """Imports the outputs of the launch ``key``, whose lanes train ``jobs``, into a store."""

    def __init__(self, client: KaggleClient, key: str, jobs: Collection[str], caps: Caps) -> None:
        self._client = client
        self._intake = Intake(key, frozenset(jobs))
        self._caps = caps
        self._total_bytes = 0

    def collect(self, slug: str, store: BlobStore, report: Callable[[str], None]) -> None:
        """Import the output of the kernel ``slug`` into ``store``; call ``report`` with the progress as text.

        Blobs are imported first, then manifests, then reports: each may refer to earlier ones. Damaged files are
        skipped; files that do not depend on them are imported. Raises Unreachable if a retry may help, Refused if the
        output exceeds a limit, StoreError, OSError.
        """
        wanted = self._wanted(slug)
        damaged: list[str] = []
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            for number, (key, url) in enumerate(wanted):
                report(f"{number} of {len(wanted)} files are imported, {self._total_bytes / 1e9:.2f} GB")
                if damaged and self._intake.rank(key) == REPORTS:
                    break  # reports are valid only with all files that they refer to
                if not self._import_file(key, url, Path(folder) / str(number), store):
                    damaged.append(key)
        if damaged:
            why = f"{len(damaged)} files came damaged or incomplete (first: {damaged[0]})"
            raise Unreachable("kaggle", "collect", why)

    def _wanted(self, slug: str) -> Sequence[tuple[str, str]]:
        result: dict[str, str] = {}
        count, page = 0, ""
        for _ in range(_PAGES_MAX):
            try:
                output = self._client.output(slug, page)
            except Denied as error:
                raise Refused("kaggle", "collect", f"the output of {slug}: {error}", permanent=True) from None
            if output is None:
                raise Unreachable("kaggle", "collect", f"{slug} has ended, but Kaggle does not show its output")
            for name, url in output.files:
                count += 1
                key = name.removeprefix(_STORE)
                if name.startswith(_STORE) and self._intake.rank(key) is not None:
                    result[key] = url
            if count > self._caps.files:
                why = f"the output of {slug} has more than {self._caps.files} files"
                raise Refused("kaggle", "collect", why, permanent=True)
            page = output.next_page
            if not page:
                break
        return [(key, result[key]) for key in self._intake.in_import_order(result)]

    def _import_file(self, key: str, url: str, file: Path, store: BlobStore) -> bool:
        """Download one file into the store; return False if it is damaged."""
        rank = self._intake.rank(key)
        limit = self._caps.file_bytes if rank == 0 else self._caps.report_bytes
        if rank == 0 and store.size(key) is not None:
            return True
        limit = min(limit, self._caps.total_bytes - self._total_bytes)
        try:
            self._client.wire.download(url, file, limit, self._caps.seconds)
        except Denied as error:
            if isinstance(error, TooLarge):
                raise Refused("kaggle", "collect", f"{key}: {error}", permanent=True) from None
            # Signed addresses expire during a long download; the next attempt lists the files again.
            raise Unreachable("kaggle", "collect", f"{key}: {error}") from None
        self._total_bytes += file.stat().st_size
        is_valid = self._intake.matches_key(key, file) and (rank != MANIFESTS or has_components(key, file, store))
        if is_valid:
            store.create(key, file)
        file.unlink()
        return is_valid


class KagglePlatform:
    """Runs payloads as private kernels of one account; docs/kaggle.md lists the settings."""

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        self._settings = chosen = read_settings(settings)
        self._context = context
        _check_kind(chosen, context)
        self._client = open_account(chosen, os.environ)
        root = context.state_folder.absolute()
        try:
            self._records = LaunchRecords(root / "launches")
            self._inputs = Inputs(
                self._client,
                root / "datasets",
                chosen.dataset_prefix,
                chosen.ready_seconds,
                chosen.call_seconds * _ANSWER_CALLS,
            )
        except OSError as error:
            raise Misconfigured("kaggle", "load", str(error), "It needs a state folder it may write to") from error
        self._tail = Tail(self._client, self._records, chosen.idle_seconds)
        scale = max(1.0, float(context.clock.get("scale", 1.0)))
        self._cancel_patience = max(_CANCEL_PATIENCE_SECONDS, math.ceil(_CANCEL_WALL_SECONDS * scale))
        self._observer = Observer(self._client, self._records, self._tail, scale)
        self._tasks: BackgroundTasks[None] = BackgroundTasks()
        self._secrets_deleted = False
        launch_seconds = chosen.upload_seconds + chosen.push_seconds + chosen.settle_seconds
        self.capabilities = Capabilities(
            reports_quota=True,
            tails_logs=True,
            sees_stop_flag=not chosen.relays(context.store_kind),
            takes_orders=not chosen.relays(context.store_kind),
            finds_orphans=True,
            internet=chosen.internet,
            mounts=frozenset({MOUNTED}),
            visibility_seconds=math.ceil(launch_seconds * scale),
        )

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Push a kernel whose slug is the key; see Platform.launch. Uploads its datasets first, which may take long."""
        slug = self._slug(request.key)
        if slug is None:
            why = f"{request.key!r} cannot be a kernel's name"
            raise Refused("kaggle", "launch", why, "Use a-z, 0-9 and single hyphens, 5 to 50 in all", permanent=True)
        with self._answering("launch"), self._giving_secrets(request), self._records.lock(request.key):
            record = self._records.read(request.key)
            if record is None:
                with _nothing_started():
                    record = self._observer.adopt(request.key, slug, now)
            if record is not None:
                session = self._observer.poll(record, now)
                if session is None:
                    raise Unreachable("kaggle", "launch", f"{slug} was pushed before, but Kaggle does not show it yet")
                return session
            if request.deadline <= now:
                raise Refused("kaggle", "launch", f"the deadline {request.deadline} is not after {now}")
            until = stopwatch() + self._settings.upload_seconds
            with _nothing_started():
                packed = pack(request, self._context, self._inputs, self._settings, now, until)
                owner = require_one_account(self._client, self._context)
            if stopwatch() > until + self._settings.call_seconds:
                # The caller may have timed out and recorded the launch as lost.
                why = "the preparation of its inputs took too long"
                raise Refused("kaggle", "launch", why, "The next launch continues with the inputs that are ready")
            push = Push(
                slug=slug,
                title=slug.replace("-", " "),
                source=packed.source,
                datasets=(*(f"{owner}/{dataset}" for dataset in packed.datasets), *_mounted_names(packed, "dataset")),
                models=_mounted_names(packed, "model"),
                machine_shape=self._settings.machine_shape,
                timeout_seconds=min(request.deadline - now, self._context.session_cap_seconds),
                internet=self._settings.internet,
            )
            intent = Record(
                key=request.key,
                slug=slug,
                state="intent",
                intended_at=now,
                void_from=now + self.capabilities.visibility_seconds,
                jobs=tuple(str(lane["job"]) for lane in request.launch.get("lanes", ())),
                relays=packed.relays,
                datasets=packed.datasets,
                timeout_seconds=push.timeout_seconds,
            )
            return self._push(self._records.write(intent), push, now)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return the sessions by key; see Platform.find."""
        result: dict[str, Observed] = {}
        with self._answering("find"):
            if not self._secrets_deleted:
                self._delete_secrets()  # those of a killed daemon, and those that Kaggle did not delete before
            if not keys:
                self._client.week()  # a call without keys checks that Kaggle answers
            for key in keys:
                slug = self._slug(key)
                if slug is None:
                    continue
                try:
                    record = self._records.read(key) or self._observer.adopt(key, slug, now)
                    observed = self._observer.poll(record, now) if record is not None else None
                except DamagedRecord as error:
                    result[key] = unclear(key, error)
                    continue
                if observed is not None:
                    result[key] = observed
                    if observed.state in {SessionState.ENDED, SessionState.ABSENT}:
                        self._delete_secrets()
                elif record is None:
                    self._client.week()  # proves access: without it "denied" does not prove absence
        return result

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Ask a session to stop; with ``force``, cancel it by the session ID in its log, and later delete the kernel.

        The stop flag asks a session that has access to the artifact store, a dataset asks other sessions. The caller
        repeats the call until ``find`` shows the end: an accepted call proves nothing. A session is cancelled or
        deleted only if Kaggle has just reported it as live, so that ended sessions keep their output.
        """
        slug = self._slug(key)
        if slug is None:
            return
        with self._answering("stop"):
            record = self._records.read(key)
            if record is None or record.state in {"ended", "void"}:
                self._client.week()  # nothing to stop; the call only proves access
                return
            if not force:
                # Create, once, the dataset that a relay session polls as its stop flag.
                if record.asked_at is None and self._observer.stop_channel(record) is StopChannel.PLATFORM:
                    self._inputs.create_stop_dataset(record.key, now)
                    self._records.write(replace(record, asked_at=now))
                return
            if record.cancelled_at is not None and now - record.cancelled_at < self._cancel_patience:
                return
            with suppress(Unreachable):  # the log is deleted with the kernel, and contains the session ID
                self._tail.catch_up(record)
            session = self._observer.poll(record, now)
            if session is None or session.state not in _LIVE:
                return
            record = self._records.read(key) or record
            session_id = self._records.report(key).session_id if self._settings.force_stop == "cancel" else None
            # An accepted cancel proves nothing: if the session goes on, the kernel is deleted later. After a refused
            # cancel it is deleted now, unless the session has just ended and left its output.
            if record.cancelled_at is None and session_id is not None and self._client.cancel(session_id):
                self._records.write(replace(record, cancelled_at=now))
            elif (live := self._observer.poll(record, now)) and live.state in _LIVE:
                self._client.delete(slug)
                result = "did not end it" if record.cancelled_at is not None else "was refused"
                evidence = {"stop-session": f"a cancel by its session id {result}"} if session_id is not None else {}
                self._records.write(replace(record, deleted_at=now, contradicts=record.contradicts | evidence))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the payload's output; see Platform.logs. For a running session each call streams it from the start."""
        if self._slug(key) is None:
            return
        with self._answering("logs"):
            record = self._records.read(key)
            if record is not None and record.state in {"intent", "pushed", "ended"}:
                yield from self._tail.read(record, offset, limit_bytes)

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Return the time of GPUs or TPUs of this week as Kaggle reports it."""
        with self._answering("read_quota"):
            require_one_account(self._client, self._context)
            week = self._client.week()
        if not now < week.end <= now + _WEEK_AND_SKEW_SECONDS:
            raise Unreachable(
                "kaggle", "read_quota", f"the report is about the week that ends at {week.end} (UTC seconds)"
            )
        return [week]

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Import the output of an ended session; see Platform.collect. Large output takes several calls."""
        del now
        with self._answering("collect"):
            record = self._records.read(key) if self._slug(key) is not None else None
            if record is None or record.state != "ended" or record.collected or not record.relays:
                return
            if record.detail == DELETED:
                return  # its output was deleted with the kernel
            collector = Collector(self._client, key, record.jobs, Caps())
            try:
                self._tasks.run(
                    key, lambda report: collector.collect(record.slug, into, report), self._settings.upload_seconds
                )
            except TaskUnfinished as unfinished:
                raise Unfinished("kaggle", "collect", f"in progress: {unfinished}") from None
            except Refused:
                self._records.write(replace(record, collected=True))
                raise
            except StoreError as error:
                raise Unreachable("kaggle", "collect", str(error)) from error

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return live kernels whose source names a launch that is not in ``our_keys``; see Platform.orphans."""
        with self._answering("orphans"):
            return find_orphans(self._client, self._settings.slug_prefix, our_keys, now)

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Delete kernels and records of the ended sessions in ``over``, then unused datasets; return the keys."""
        removed = []
        with self._answering("sweep"):
            self._client.week()
            in_use: set[str] = set()
            damaged = False
            for key in self._records.all_keys():
                try:
                    record = self._records.read(key)
                    if record is None:
                        continue
                    self._observer.poll(record, now)
                    record = self._records.read(key) or record
                except DamagedRecord:
                    damaged = True  # its datasets are unknown
                    continue
                if record.state in {"ended", "void"} and key in over:
                    self._client.delete(record.slug)
                    self._records.drop(key)
                    removed.append(key)
                elif record.state == "void":
                    self._client.delete(record.slug)  # in case a push arrives late
                elif record.state in {"intent", "pushed"}:
                    in_use |= set(record.datasets)
            self._inputs.record_orphans(now)
            if not damaged:
                self._inputs.sweep(in_use, now, self._settings.keep_inputs_seconds)
            self._inputs.delete_secrets(self._is_over)  # last: it may fail, and the error reports secrets that remain
        return removed

    @contextmanager
    def _giving_secrets(self, request: LaunchRequest) -> Iterator[None]:
        """Delete the launch's secrets from Kaggle if it fails; if it may have started, they stay until its end."""
        try:
            yield
        finally:
            if request.secrets:
                self._delete_secrets()

    def _delete_secrets(self) -> None:
        """Delete the secrets of ended sessions; later calls of find() retry after a failure."""
        self._secrets_deleted = False
        with suppress(PlatformError, Denied, OSError):
            self._inputs.delete_secrets(self._is_over)
            self._secrets_deleted = True

    def _is_over(self, key: str) -> bool:
        """Return whether a launch no longer needs its secrets because it ended or never started."""
        try:
            record = self._records.read(key)
        except DamagedRecord:
            return False
        return not self._records.is_locked(key) if record is None else record.state in {"ended", "void"}

    def _push(self, intent: Record, push: Push, now: int) -> Observed:
        """Push the kernel of a recorded intent. The caller holds the lock of the key."""
        try:
            pushed = self._client.push(push, self._settings.push_seconds)
        except Denied as error:
            self._undo(intent, str(error))
            why = f"the push was refused: {error}"
            raise Refused("kaggle", "launch", why, "See docs/kaggle.md", permanent=error.status == 400) from None
        except Misconfigured:
            self._records.drop(intent.key)
            raise
        if pushed.error:
            self._undo(intent, pushed.error)
            raise self._refusal(pushed.error, now)
        if pushed.slug not in {"", push.slug} or pushed.version > 1:
            why = f"it became {pushed.slug} version {pushed.version} instead of {push.slug} version 1"
            source = self._client.source(pushed.slug or push.slug)
            is_ours = source is not None and is_source_of(intent.key, source)
            if is_ours == (pushed.slug in {"", push.slug}):
                contradiction = f"the answer says that {why}, but the kernel's source contradicts it"
                raise Unreachable("kaggle", "launch", contradiction)
            return self._end_at_once(intent, pushed, why, now)
        if pushed.invalid:
            return self._end_at_once(intent, pushed, f"inputs not attached: {', '.join(pushed.invalid)}", now)
        return self._observer.observed(self._records.write(replace(intent, state="pushed")), SessionState.QUEUED)

    def _undo(self, intent: Record, why: str) -> None:
        """Delete the kernel without a session that a refused push may have left, then the record of the push.

        If the deletion fails, the record stays, and sweep() tries again.
        """
        try:
            self._client.delete(intent.slug)
        except (PlatformError, Denied):
            self._records.write(replace(intent, state="void", detail=f"the push was refused: {why}"))
        else:
            self._records.drop(intent.key)

    def _end_at_once(self, intent: Record, pushed: Pushed, why: str, now: int) -> Observed:
        """End a kernel that differs from the requested one. Raises Unreachable if it may still run."""
        slug = pushed.slug or intent.slug
        # A later version under our slug is not deleted: another person may have made the earlier versions.
        if (slug != intent.slug or pushed.version <= 1) and not self._client.delete(slug):
            raise Unreachable("kaggle", "launch", f"{why}, and {slug} could not be deleted", "Delete it in the browser")
        ended = replace(intent, state="ended", started=now, ended=now, detail=f"stopped at once: {why}", collected=True)
        return self._observer.observed(self._records.write(ended), SessionState.ENDED)

    def _refusal(self, error: str, now: int) -> Refused:
        """Return the refusal for an error text in a successful answer; the texts were observed on Kaggle."""
        error = error.strip().rstrip(".")
        if "session count" in error.lower():
            return Refused("kaggle", "launch", error, "Wait until a session ends")
        if "quota" in error.lower():
            try:
                refresh = self._client.week().end
            except PlatformError:
                refresh = 0
            until = refresh if refresh > now else None
            return Refused("kaggle", "launch", error, "Wait for the weekly refresh", wait_until=until, used_up=True)
        return Refused("kaggle", "launch", error, "See docs/kaggle.md", permanent=True)

    def _slug(self, key: str) -> str | None:
        """Return the slug of a key, which Kaggle must derive unchanged from the title; None if that is impossible."""
        slug = f"{self._settings.slug_prefix}{key}"
        return slug if key and _SLUG.fullmatch(slug) and len(slug) in _SLUG_LENGTHS else None

    @contextmanager
    def _answering(self, action: str) -> Iterator[None]:
        try:
            yield
        except Denied as error:
            raise Unreachable("kaggle", action, str(error)) from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            where = self._context.state_folder
            raise Unreachable("kaggle", action, f"{type(error).__name__}: {error}", f"Check {where}") from error


def _check_kind(settings: KaggleSettings, context: PlatformContext) -> None:
    """Raise BadOption if the pool declares other devices than its sessions will have."""
    is_tpu, shape = settings.quota == "tpu", settings.machine_shape
    if context.kind and shape and is_tpu != (context.kind == "tpu"):
        why = f"machine_shape = {shape} does not fit the pool's accelerator"
        raise BadOption("kaggle", "load", why, 'Leave it out; for a TPU write accelerator = "TPU v5e-8"')
    if is_tpu and context.devices_per_session > 1:
        why = "devices_per_session: all chips of a TPU together are one device, which trains one job"
        raise BadOption("kaggle", "load", why, "Leave it out")


def _mounted_names(packed: Packed, kind: str) -> tuple[str, ...]:
    prefix = f"kaggle-{kind}:"
    return tuple(name.removeprefix(prefix) for name in packed.mounted if name.startswith(prefix))


@contextmanager
def _nothing_started() -> Iterator[None]:
    """Translate Unreachable before a push into Refused, since no session can have started."""
    try:
        yield
    except Unreachable as error:
        raise Refused("kaggle", "launch", f"nothing was started: {error.why}", error.remedy) from error
    except (Denied, StoreError, OSError) as error:
        raise Refused("kaggle", "launch", f"nothing was started: {error}") from error
