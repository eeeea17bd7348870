"""Read the reports of a lane from untrusted documents.

Heartbeats and results (``result.json``) have the same form; only a result has an outcome. Documents of older payloads
are read too: missing fields are None. docs/your-own-training.md lists what is accepted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from jobs.payload import bounds
from jobs.payload.lane.ending import FORMAT, Outcome, Phase
from jobs.payload.lane.failure import ErrorClass
from jobs.payload.store.manifest import split_key

PHASES = frozenset(get_args(Phase))
OUTCOMES = frozenset(get_args(Outcome))
ERROR_CLASSES = frozenset(get_args(ErrorClass))
_DEVICES_MAX = 64
_ACCUSED_MAX = 20
_WHY_MAX = 500
_LAST_WORD = ("outcome", "why", "error_class", "trained_seconds", "ended_at", "waits_until")


def _answer_of(*reader: Any) -> Any:
    """Return an optional field; ``reader`` is the function of ``bounds`` that validates it, with its arguments."""
    return field(default=None, metadata={"reader": reader})


def _metric(name: str) -> Any:
    """Return an optional field for one of the metrics of bounds.TELEMETRY."""
    return _answer_of(bounds.number, 0.0, bounds.TELEMETRY[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetrics:
    """What the driver reports about GPUs; None: not reported. Shares are 0 to 1.

    ``gpu_memory_bytes`` is the peak of one GPU, ``gpu_busy`` the mean share of the last minute in which they worked,
    ``gpu_watts`` the power of all GPUs together. ``gpu_throttled`` is the share of the samples, one per minute, in
    which heat or the power brake of the hardware slowed a GPU down.
    """

    gpu_memory_bytes: int | None = _answer_of(bounds.whole, 0, bounds.BYTES_MAX)
    gpu_busy: float | None = _metric("gpu_busy")
    gpu_watts: float | None = _metric("gpu_watts")
    gpu_throttled: float | None = _metric("gpu_throttled")


GPU_METRICS = tuple(entry.name for entry in fields(GpuMetrics))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse(GpuMetrics):
    """Metrics of GPUs with ``vram_gib`` of memory each; 0: unknown."""

    vram_gib: float = 0.0

    @property
    def gpu_use(self) -> str:
        """The use as text, such as ``41 % busy, 6.1 of 15 GiB, 210 W, throttled 12 % of the time``; "" if unknown."""
        total = f" of {self.vram_gib:g}" if self.vram_gib else ""
        words = [
            "" if self.gpu_busy is None else f"{self.gpu_busy:.0%} busy",
            "" if self.gpu_memory_bytes is None else f"{self.gpu_memory_bytes / 2**30:.1f}{total} GiB",
            "" if self.gpu_watts is None else f"{self.gpu_watts:,.0f} W",
            f"throttled {self.gpu_throttled:.0%} of the time" if self.gpu_throttled else "",
        ]
        return ", ".join(filter(None, words)).replace("%", " %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(GpuMetrics):
    """Metrics of training steps.

    ``tokens_per_second`` counts the tokens of whole rows, ``padding`` is the share of these tokens that is not trained
    on. 90 % of the last steps took at most ``step_seconds_p90``.
    """

    tokens_per_second: float | None = _metric("tokens_per_second")
    step_seconds_p90: float | None = _metric("step_seconds_p90")
    padding: float | None = _metric("padding")
    gradient_norm: float | None = _metric("gradient_norm")


@dataclass(frozen=True, slots=True)
class Accusation:
    """A checkpoint that a session found damaged; ``manifest`` is its key, of the session's own job."""

    manifest: str
    why: str


@dataclass(frozen=True, slots=True)
class LaneReport(Telemetry):
    """What a lane reported. Instants are UTC seconds, spans seconds, both of the scheduled clock; None: not reported.

    ``setup_seconds`` end with the first step, ``checkpoint_seconds`` is the mean time of a save, ``command_at`` is the
    start of the command. ``longest_quiet_seconds`` is the longest time between new steps. ``outcome`` and all fields
    after it are only in a result: ``waits_until`` is until when the lane waits for the order of another job.
    """

    run: str
    lane: int
    job: str
    seq: int | None = _answer_of(bounds.whole)
    started_at: int | None = _answer_of(bounds.whole, 0, bounds.INSTANT_MAX)
    at: int | None = _answer_of(bounds.whole, 0, bounds.INSTANT_MAX)
    phase: str = ""
    step: int | None = _answer_of(bounds.whole)
    loss: float | None = _answer_of(bounds.measure)
    held_out_loss: float | None = _answer_of(bounds.measure)
    steps_per_second: float | None = _answer_of(bounds.speed)
    setup_seconds: float | None = _answer_of(bounds.number, 0.0, bounds.SPAN_MAX)
    checkpoint_seconds: float | None = _answer_of(bounds.number, 0.0, bounds.SPAN_MAX)
    checkpoint_step: int | None = _answer_of(bounds.whole)
    restored_step: int | None = _answer_of(bounds.whole)
    restored_from: str | None = None
    bad_manifests: tuple[Accusation, ...] = ()
    devices: tuple[str, ...] = ()
    training_data: dict[str, Any] | None = field(default=None, hash=False, metadata={"reader": (bounds.training_data,)})
    message: str = ""
    command_at: int | None = _answer_of(bounds.whole, 0, bounds.INSTANT_MAX)
    longest_quiet_seconds: float | None = _answer_of(bounds.number, 0.0, bounds.SPAN_MAX)
    outcome: str | None = None
    why: str = ""
    error_class: str | None = _answer_of(bounds.word, ERROR_CLASSES)
    trained_seconds: int | None = _answer_of(bounds.whole, 0, bounds.SPAN_MAX)
    ended_at: int | None = _answer_of(bounds.whole, 0, bounds.INSTANT_MAX)
    waits_until: int | None = _answer_of(bounds.whole, 0, bounds.INSTANT_MAX)

    def document(self) -> dict[str, Any]:
        """Return the report as the payload writes it, in plain JSON types."""
        result = {"format": FORMAT, **{entry.name: getattr(self, entry.name) for entry in fields(self)}}
        result["bad_manifests"] = [{"manifest": bad.manifest, "why": bad.why} for bad in self.bad_manifests]
        result["devices"] = list(self.devices)
        if self.outcome is None:
            for name in _LAST_WORD:
                del result[name]
        return result


def read_report(
    document: Any, run: str, lane: int, job: str, *, last_word: bool = False
) -> tuple[LaneReport, Sequence[bounds.Rejection]]:
    """Return a lane's report (``last_word``: its result) and the rejected fields. Raises Unfit for another lane."""
    if not isinstance(document, dict):
        raise bounds.Unfit("not an object")
    for name, own in (("format", FORMAT), ("run", run), ("lane", lane), ("job", job)):
        value = document.get(name)
        if value is not None and (type(value) is not type(own) or value != own):
            raise bounds.Unfit(f"{name} is {bounds.brief(value)} instead of {bounds.brief(own)}")
    reader = bounds.Reader(document)
    values: dict[str, Any] = {
        entry.name: reader.read(entry.name, *entry.metadata["reader"])
        for entry in fields(LaneReport)
        if "reader" in entry.metadata and (last_word or entry.name not in _LAST_WORD)
    }
    report = LaneReport(
        run=run,
        lane=lane,
        job=job,
        **values,
        phase=reader.read("phase", bounds.word, PHASES) or "",
        restored_from=reader.read("restored_from", _own_manifest, job),
        bad_manifests=_accusations(reader, document.get("bad_manifests"), job),
        devices=_devices(reader, document.get("devices")),
        message=reader.text("message"),
    )
    if last_word:
        report = _last_word(reader, report, document.get("outcome"))
    return report, reader.refused


def longest_wait(reports: Iterable[LaneReport]) -> int:
    """Return the longest time, in seconds, that a lane of a session waits for the order of another job; or 0."""
    waits = (report.waits_until - report.ended_at for report in reports if report.waits_until and report.ended_at)
    return max(waits, default=0)


def kept_report(document: Any, run: str, lane: int, job: str) -> LaneReport | None:
    """Return a report that our database has stored, perhaps in an older version; None if it is invalid."""
    try:
        last_word = isinstance(document, dict) and "outcome" in document
        return read_report(document, run, lane, job, last_word=last_word)[0]
    except bounds.Unfit:
        return None


def _last_word(reader: bounds.Reader, report: LaneReport, value: Any) -> LaneReport:
    outcome = reader.read("outcome", bounds.word, OUTCOMES)
    why = reader.text("why", _WHY_MAX)
    if outcome is None:
        # Lost, rejected and cancelled are outcomes that only the daemon decides.
        outcome, why = "failed", f"the payload of {report.run} reported {bounds.brief(value)}"
    return replace(report, outcome=outcome, why=why)


def _own_manifest(value: Any, job: str) -> str:
    parts = split_key(value) if isinstance(value, str) else None
    if parts is None or parts[0] != job:
        raise bounds.Unfit(f"not a manifest of {job}")
    return str(value)


def _accusations(reader: bounds.Reader, value: Any, job: str) -> tuple[Accusation, ...]:
    accusations: list[Accusation] = []
    for entry in _entries(reader, "bad_manifests", value, _ACCUSED_MAX):
        try:
            if not isinstance(entry, dict):
                raise bounds.Unfit("not an object")
            why = entry.get("why")
            reason = bounds.clean(why, _WHY_MAX) if isinstance(why, str) else ""
            accusations.append(Accusation(_own_manifest(entry.get("manifest"), job), reason))
        except bounds.Unfit as error:
            reader.refuse("bad_manifests", str(error), entry)
    return tuple(accusations)


def _devices(reader: bounds.Reader, value: Any) -> tuple[str, ...]:
    names = _entries(reader, "devices", value, _DEVICES_MAX)
    if any(not isinstance(name, str) for name in names):
        reader.refuse("devices", "not a list of names", value)
        return ()
    return tuple(bounds.clean(name, bounds.NAME_MAX) for name in names)


def _entries(reader: bounds.Reader, name: str, value: Any, most: int) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > most:
        reader.refuse(name, f"not a list of at most {most}", value)
        return ()
    return value
