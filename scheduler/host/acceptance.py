"""Acceptance runs: probes that run small sessions on a real account, to check what the program assumes of a platform.

Each session is recorded in a file before its launch, so that the next run finds and removes it after any interruption.
"""

import json
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from config.layers import shipped
from jobs.payload.store.manifest import blob_key, parse_manifest
from jobs.payload.store.tree import code_prefix
from jobs.payload.whole_file import write_whole
from jobs.problem import UserError
from jobs.size import counted
from jobs.spec import Code
from jobs.toml_file import read_toml
from platforms.artifacts.base import Grant
from platforms.base import (
    Checked,
    LaunchRequest,
    Observed,
    Platform,
    QuotaReading,
    Refused,
    SessionState,
    StopChannel,
    Unreachable,
)
from platforms.facts import FACTS, read_facts
from platforms.record_file import read_record
from platforms.registry import checkup
from platforms.wrap import Guarded
from scheduler.app import App
from scheduler.clock import real_now, stopwatch
from scheduler.host.doctor import examine
from scheduler.report.document import ReportDocument, ReportSection
from scheduler.report.renderings import markdown_of
from scheduler.service.requests.stored import keep_code
from scheduler.store.lease import FileLock

_T = TypeVar("_T")
JOB, STATE = "acceptance", "state.json"
_ANSWER_SECONDS, _ASK_SECONDS, _LONG_SECONDS = 600, 180, 1_800
_PAUSE, _PAUSE_MAX = 0.05, 5.0
_TICK_WALL_SECONDS = 1.1  # longer than a second, so that the next session has another launch time
_SLACK_SECONDS = 900  # a session's access to the store lasts this much longer than the session
_LOG_BYTES = 1 << 24
_LINE_MAX = 200  # characters
_NAME_MIN = 4  # characters; shorter option values are not hidden as names
_DATA = read_toml(shipped("acceptance.toml"))  # the key that explains the other fields
SITES = {name: SimpleNamespace(**{**_DATA["site"], **site}) for name, site in _DATA["sites"].items()}
PROBES = [SimpleNamespace(**{**_DATA["probe"], **probe}) for probe in _DATA["probes"]]


class ProbeTimeout(UserError):
    """The expected state was not reached in time."""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """The result of a probe. ``facts`` are values of the pool's settings by name; None: the assumed value is right."""

    verdict: Literal["as assumed", "differs", "open"]
    answer: str
    evidence: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, int | str | None] = field(default_factory=dict)
    at: int = 0


@dataclass(slots=True)
class Trial:
    """One session. ``called_at`` is the time of its last launch call; ``ran`` are its seconds, None before clean-up."""

    steps: int = 1
    seconds: int = 600  # at most
    small: bool = True
    megabytes: int = 0  # lines that it prints
    options: dict[str, str] = field(default_factory=dict)
    restore: str = ""  # the manifest from which it resumes
    called_at: int = 0
    ran: int | None = None


@dataclass(slots=True)
class AcceptanceState:
    """The stored state: start of the unfinished run (0: none), its sessions, and the newest findings."""

    run: int = 0
    trials: dict[str, Trial] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    findings: dict[str, ProbeFinding] = field(default_factory=dict)


class Bench:
    """Runs the probes of a pool, one session at a time. ``budget`` is in seconds of quota and microdollars.

    Methods that wait for the session raise ProbeTimeout and PlatformError.
    """

    adapter: Platform
    key: str

    def __init__(self, app: App, pool: str, budget: tuple[int, int], say: Callable[[str], None]) -> None:
        self.budget, self.say, self._app = budget, say, app
        self.site = SITES[app.pools[pool].platform]
        self.folder = app.settings.state_dir / JOB / pool
        self.base = app.apart(pool, self.folder, self.site.every)
        self.pool = self.base.pools[pool]
        self.state = read_record(self.folder, STATE, AcceptanceState) or AcceptanceState()

    @property
    def now(self) -> int:
        """Scheduled UTC seconds."""
        return self.base.clock.now()

    @cached_property
    def idle(self) -> Platform:
        """The adapter for calls without a session. Raises PlatformError."""
        return self._adapter()

    def save(self) -> None:
        """Store the state."""
        write_whole(self.folder / STATE, json.dumps(asdict(self.state)), sync=True)

    def cost(self, trials: Iterable[Trial]) -> tuple[int, int]:
        """Return the cost of the sessions, for live ones the maximum: seconds of quota and microdollars."""
        metered = money = 0
        for trial in trials:
            seconds = self.longest(trial) + self.pool.overrun_seconds if trial.ran is None else trial.ran
            cheap = trial.small and self.site.small_price >= 0
            money += seconds * (self.site.small_price if cheap else self.pool.price_microdollars_per_hour)
            metered += seconds if self.site.small_metered or not trial.small else 0
        return metered, money // 3_600

    def longest(self, trial: Trial) -> int:
        """Return the seconds from a launch to the deadline; a small session also gets the usual time of a start."""
        return trial.seconds + (self.pool.start_delay_seconds if trial.small else 0)

    def used(self) -> int | None:
        """Return the used seconds by the platform's usage records; None if it has no records."""
        readings = self.idle.read_quota(self.now) if self.idle.capabilities.reports_quota else ()
        used = [reading.used_seconds for reading in readings if isinstance(reading, QuotaReading)]
        return sum(used) if used else None

    def start(self, trial: Trial) -> None:
        """Launch a session. Raises Refused, also if the budget does not allow it."""
        most = self.cost([*self.state.trials.values(), trial])
        if any(cost > limit for cost, limit in zip(most, self.budget, strict=True)):
            raise Refused(self.pool.name, "launch", "the budget does not allow it", "Raise --budget", permanent=True)
        self.key, self.adapter = f"uff-acc-{secrets.token_hex(4)}", self._adapter(trial)
        self.state.trials[self.key] = trial
        self.until(partial(self._launch, trial), "the launch", _LONG_SECONDS)

    def _launch(self, trial: Trial) -> bool:
        """Call the platform to launch; return False while it is not ready. The call may be repeated for one session."""
        trial.called_at = self.now
        self.save()
        deadline = trial.called_at + self.longest(trial)
        devices = 0 if trial.small else self.pool.devices_per_session
        launch, pool = self._document(trial, deadline, devices), self.pool
        request = LaunchRequest(self.key, pool.name, devices, deadline, launch, str(self.base.bundle), pool.options)
        try:
            self.adapter.launch(request, self.now)
        except Refused as error:
            if error.permanent or error.used_up:
                raise
            return False
        return True

    def _document(self, trial: Trial, deadline: int, devices: int) -> dict[str, Any]:
        """Return the launch document of a session: the script of acceptance.toml as its code, with an input."""
        store, clock, run, lane = self.base.artifacts, self.base.clock, f"runs/{self.key}", _DATA["lane"]
        store.put(f"{lane['data']}/input.txt", b"input\n")
        code = code_prefix(keep_code(None, store, Code(str(shipped("own_folder"))), 0).digest)
        lasts = round(clock.wall_seconds(self.longest(trial))) + _SLACK_SECONDS
        reads = [f"{run}/stop", f"{run}/lane-0/heartbeat.json", f"{run}/lane-0/result.json"]
        if trial.restore:
            parts = parse_manifest(trial.restore, store.read(trial.restore)).components
            reads += [trial.restore, *(blob_key(JOB, part.sha256) for part in parts)]
        own = {
            "attempt": len(self.state.trials),
            "devices": list(range(devices)),
            "target_step": trial.steps,
            "command": ["{python}", "-c", _DATA["script"], str(trial.megabytes)],
            "code": code,
            "restore": [trial.restore] if trial.restore else [],
        }
        device = self.pool.options.get("expected_device")
        return {
            **_DATA["launch"],
            "run": self.key,
            "clock": clock.payload_clock(),
            "deadline": deadline,
            "store": store.payload_address(Grant(self.key, (JOB,), tuple(reads), (lane["data"], code), lasts)),
            "expected_devices": {"count": devices, "name": device} if device and devices else None,
            "lanes": [lane | own],
        }

    def _adapter(self, trial: Trial | None = None) -> Platform:
        """Return an adapter with the options of ``trial``, or with the common options of all. Raises PlatformError."""
        options, dropped = dict(self.site.every), ()
        if trial:
            own, dropped = (self.site.small, self.site.dropped) if trial.small else (self.site.full, ())
            options |= own | trial.options
        app, name = self._app.apart(self.pool.name, self.folder, options, dropped), self.pool.name
        return Guarded(app.platform(name), name, redact=app.redact, stopwatch=stopwatch, note=lambda *_: None)

    def until(self, look: Callable[[], _T | None], what: str, seconds: int = _ANSWER_SECONDS) -> _T:
        """Call ``look`` until it returns a true value, and return that value. A call without an answer is repeated."""
        ends, pause = self.now + seconds, _PAUSE
        while True:
            with suppress(Unreachable):
                if answer := look():
                    return answer
            if self.now >= ends:
                raise ProbeTimeout(f"{what} of {self.key} did not come within {seconds} s")
            threading.Event().wait(pause)
            pause = min(_PAUSE_MAX, 1.5 * pause)

    def find(self, wanted: Callable[[Observed], bool] = lambda _: True) -> Observed | None:
        """Return the session as reported by the platform if ``wanted`` accepts it, else None."""
        observed = self.adapter.find([self.key], self.now).get(self.key)
        return observed if observed and wanted(observed) else None

    def over(self, seconds: int) -> Observed:
        """Wait until the platform proves that the session has ended, and return it."""
        return self.until(partial(self.find, lambda one: one.state is SessionState.ENDED), "the end", seconds)

    def output_with(self, words: str) -> str:
        """Wait until the output contains ``words``, and return it."""
        text = ""

        def look() -> str:
            nonlocal text
            self.find()
            text = b"".join(self.adapter.logs(self.key, 0, _LOG_BYTES)).decode(errors="replace")
            return text if words in text else ""

        try:
            return self.until(look, f"{words!r} in the log")
        except ProbeTimeout as error:
            last = text.rstrip().rpartition("\n")[2][:_LINE_MAX]
            raise ProbeTimeout(f"{error}; its log ends with: {last}" if last else str(error)) from None

    def ask(self) -> str:
        """Ask the session to save and end; return the stop channel that was used."""
        able = partial(self.find, lambda one: one.stop_channel is not StopChannel.NONE)
        channel = self.until(able, "a way to ask for the end", _ASK_SECONDS).stop_channel
        if channel is StopChannel.PLATFORM:
            self.adapter.stop(self.key, self.now, force=False)
        else:
            self.base.artifacts.put(f"runs/{self.key}/stop", b'{"reason": "acceptance", "lane": null}')
        return channel

    def clean(self) -> None:
        """End and remove all sessions. It may be called again after an error."""
        for key, trial in self.state.trials.items():
            if trial.ran is None:
                self.key, self.adapter = key, self._adapter(trial)
                (over,) = self.until(partial(self._ended, trial), "the end", _LONG_SECONDS)
                self.adapter.sweep([key], self.now)
                began, ended = (over.started, over.ended) if over else (None, None)
                trial.ran = 0 if began is None else max(0, (ended or self.now) - began)
                self.save()

    def _ended(self, trial: Trial) -> list[Observed | None]:
        """Return [ended session], or [None] if it never existed; empty while it runs, after a call to stop it."""
        observed = self.find()
        if observed is None:  # it may be launched but not visible yet
            return [None] if self.now >= trial.called_at + self.adapter.capabilities.visibility_seconds else []
        if observed.state in {SessionState.ENDED, SessionState.ABSENT}:
            return [observed]
        self.adapter.stop(self.key, self.now, force=True)
        return []

    def sweep(self) -> None:
        """Remove uploads without a session, and this run's objects of the artifact store."""
        for _ in range(2):  # the second call removes what the first call could only list
            threading.Event().wait(_TICK_WALL_SECONDS)
            self.idle.sweep(list(self.state.trials), self.now)
        for key in list(self.base.artifacts.keys("")):
            self.base.artifacts.delete(key)


@contextmanager
def opened(app: App, pool: str, budget: tuple[int, int], say: Callable[[str], None]) -> Iterator[Bench]:
    """Yield the bench of a pool, locked against other processes. Raises AlreadyRunning."""
    folder = app.settings.state_dir / JOB / pool
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(FileLock(folder / "lock")):
        yield Bench(app, pool, budget, say)


def conclude(bench: Bench, state_dir: Path) -> dict[str, Any]:
    """Finish a run: write its result as JSON and Markdown, and the facts that it proved; return the result."""
    state, pool, date = bench.state, bench.pool, _day(bench.now)
    facts, answers = read_facts(state_dir), []
    for probe in PROBES:
        if finding := state.findings.get(probe.name):
            words = {name: getattr(probe, name) for name in ("name", "question", "assumption", "use")}
            answers.append(words | asdict(finding))
            confirmed = {probe.name: probe.assumption if finding.verdict == "as assumed" else None}
            settled = probe.name in state.done and finding.verdict != "open"
            for name, value in {**confirmed, **finding.facts}.items() if settled else ():
                source = f"acceptance {_day(finding.at)}, {probe.name}"
                facts.setdefault(pool.name, {}).pop(name, None)
                if value is not None:
                    facts[pool.name][name] = {"value": value, "assumed": probe.assumption, "source": source}
    write_whole(state_dir / FACTS, json.dumps(facts, indent=1), sync=True)
    quota, money = bench.cost(state.trials.values())
    about = {"format": 1, "pool": pool.name, "platform": pool.platform, "date": date, "at": bench.now}
    result = {**about, "quota_seconds": quota, "dollars": money / 1e6, "answers": answers}
    title, spent = f"Acceptance of {pool.name}", f"{date}: {quota} s of quota and ${money / 1e6:.2f} were used"
    page = markdown_of(ReportDocument(title, spent, tuple(map(_section, answers)), title))
    for ending, text in (("json", json.dumps(result, indent=1)), ("md", page)):
        write_whole(bench.folder / f"{date}.{ending}", text)
    state.run = 0
    bench.save()
    return result


def _day(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _section(answer: Mapping[str, Any]) -> ReportSection:
    used = [f"{name} is now {value}" for name, value in answer["facts"].items() if value is not None]
    lines = (
        f"Assumed: {answer['assumption']}",
        f"Answer of {_day(answer['at'])}: {answer['verdict']}. {answer['answer']}",
        f"Evidence: {json.dumps(answer['evidence'])}",
        f"What the program does with it: {'; '.join([answer['use'], *used])}",
    )
    return ReportSection(answer["question"], lines)


def shared(result: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return a result as JSON that can be shared: without ``names``, account numbers and credential checks."""
    hidden = {"answer": "", "evidence": {}}
    answers = [answer | hidden if answer["name"] == "account" else answer for answer in result["answers"]]
    text = json.dumps({**result, "answers": answers}, indent=1)
    for name in sorted({name for name in names if len(name) >= _NAME_MIN}, key=len, reverse=True):
        text = text.replace(json.dumps(name)[1:-1], "(name)")
    return re.sub(r"\d{12}", "(account)", text)


def newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest readable result in the folder of a pool; None if there is none."""
    with suppress(OSError, ValueError):
        return dict(json.loads(max(folder.glob("????-??-??.json")).read_text()))
    return None


def check(folder: Path, now: int) -> Checked:
    """Return the doctor's finding on the newest acceptance run of a pool: its verdicts and its age."""
    result = newest(folder) or {"answers": [], "at": 0, "date": ""}
    counts = Counter(answer["verdict"] for answer in result["answers"])
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    words = f"{words}, {counted(max(0, now - result['at']) // 86_400, 'day')} ago"
    good = set(counts) == {"as assumed"}
    return Checked("ok" if good else "warning", words, "" if good else f"Read {folder / result['date']}.md")


# The functions of the probes in acceptance.toml.
_LATE_SECONDS = 60  # tolerance in a log, and between a bill and the ledger
_STOP_SECONDS = 110  # shorter than the time after which an ignored stop is escalated
_MORE_STEPS = 20


def _finding(probe: Any, answer: str, evidence: Mapping[str, Any], *, holds: object, value: int = 0) -> ProbeFinding:
    facts = {probe.setting: None if holds else value or probe.otherwise} if probe.setting else {}
    return ProbeFinding("as assumed" if holds else "differs", answer, dict(evidence), facts)


def _account(bench: Bench, probe: Any) -> ProbeFinding:
    """Run the doctor's check of the platform."""
    checks = examine(checkup(bench.pool.platform, bench.pool.options, os.environ, real_now(), probe=False))
    bad = [f"{name}: {checked.found}. {checked.remedy}" for name, checked in checks.items() if checked.grade == "bad"]
    evidence = {name: f"{checked.grade}: {checked.found}" for name, checked in checks.items()}
    return _finding(probe, "; ".join(bad) or f"{len(checks)} checks passed", evidence, holds=not bad)


def _books(bench: Bench, probe: Any) -> ProbeFinding:
    """Read the platform's usage records, and count live sessions of ours that this program does not know."""
    used = bench.used()
    live = len(bench.idle.orphans((), bench.now)) if bench.idle.capabilities.finds_orphans else 0
    return _finding(
        probe,
        f"used: {'unknown' if used is None else f'{used} s'}; unknown sessions: {live}",
        {"used": used, "live": live},
        holds=not live,
    )


def _trained(bench: Bench, probe: Any, act: str, **changes: Any) -> dict[str, Any]:
    """Run a session to its end, stopped by ``act`` ("ask", "force" or ""), and return its measurements in seconds.

    Raises ProbeTimeout if it does not start, and PlatformError. A later state that it does not reach is ``missing``.
    """
    before, trial = bench.used(), replace(Trial(**probe.trial), **changes)
    bench.start(trial)
    launched = bench.now
    bench.until(bench.find, "the status")
    evidence: dict[str, Any] = {"visible": bench.now - launched}
    line = re.search(rf"^{JOB} (\{{.*)$", bench.output_with(f"{JOB} {{"), re.MULTILINE)
    evidence |= json.loads(line[1]) if line else {}
    try:
        if act == "ask":
            evidence["asked"] = bench.ask()
        elif act == "force":
            bench.adapter.stop(bench.key, bench.now, force=True)
        ended = bench.over(_STOP_SECONDS if act == "force" else bench.longest(trial))
        over_at = bench.now
        if act != "force":
            text = bench.output_with(f"{JOB} ended")
            evidence |= {"bytes": len(text), "saved": int(re.findall(rf"^{JOB} ended (\d+)", text, re.MULTILINE)[-1])}
    except ProbeTimeout as error:
        return evidence | {"missing": str(error)}
    began, used = ended.started or launched, bench.used()
    billed = None if used is None or before is None else used - before
    times = {"start": max(0, began - launched), "log": bench.now - over_at, "ran": (ended.ended or began) - began}
    return {**evidence, **times, "billed": billed, "detail": ended.detail}


def _session(bench: Bench, probe: Any) -> ProbeFinding:
    """Run a session as the probe specifies, and return whether it behaved as the probe assumes."""
    evidence = _trained(bench, probe, probe.act)
    names = ("missing", "devices", "asked", "bytes", "ran", "billed", "detail")
    answer = ", ".join(f"{name}: {evidence[name]}" for name in names if evidence.get(name) is not None)
    enough = evidence.get("bytes", 0) >= 1_000_000 * probe.trial.get("megabytes", 0)
    as_meant = probe.word in evidence.get("detail", "") and (not probe.billed or _is_billed(evidence))
    return _finding(probe, answer, evidence, holds=not evidence.get("missing") and enough and as_meant)


def _is_billed(evidence: Mapping[str, Any]) -> bool:
    return evidence.get("billed") is None or abs(evidence["billed"] - evidence["ran"]) <= _LATE_SECONDS


def _small_session(bench: Bench) -> dict[str, Any]:
    finding = bench.state.findings.get("session")
    if finding is None or not finding.evidence:
        raise ProbeTimeout("no small session has run", "", "Try the probe session first")
    return finding.evidence


def _within(bench: Bench, probe: Any) -> ProbeFinding:
    """Compare a time that the small session measured with a setting of the pool."""
    seconds, most = _small_session(bench)[probe.name], getattr(bench.pool, probe.setting, _LATE_SECONDS)
    answer = f"after {seconds} s; {most} s are assumed"
    return _finding(probe, answer, {"seconds": seconds}, holds=seconds <= most, value=2 * seconds)


def _mounts(bench: Bench, probe: Any) -> ProbeFinding:
    """Return where the small session found its inputs."""
    paths = _small_session(bench)["mounts"]
    return _finding(probe, ", ".join(paths) or "at no known place", {"paths": paths}, holds=paths)


def _job(bench: Bench, probe: Any) -> ProbeFinding:
    """Stop a job, fetch its checkpoint, resume it in another session, and compare the bills of both.

    If sessions cannot see stop requests, the first one ends by itself.
    """
    store, manifests, stop_flag = bench.base.artifacts, f"jobs/{JOB}/manifests/", bench.state.findings.get("stop-flag")
    older, ignores_stop = set(store.keys(manifests)), stop_flag is not None and stop_flag.verdict == "differs"
    first = _trained(bench, probe, "", steps=_MORE_STEPS) if ignores_stop else _trained(bench, probe, "ask")
    bench.until(partial(_collect, bench), "what it left")
    steps, restore = first.get("saved", 0) + _MORE_STEPS, max(set(store.keys(manifests)) - older, default="")
    second = _trained(bench, probe, "", steps=steps, restore=restore)
    resumed = first.get("saved") == second["resumed"] > 0 and second.get("saved") == steps
    answer = f"saved step {first.get('saved')}, resumed at {second['resumed']}, ended at {second.get('saved')}"
    holds = resumed and _is_billed(first) and _is_billed(second)
    return _finding(probe, answer, {"first": first, "second": second}, holds=holds)


def _collect(bench: Bench) -> bool:
    bench.adapter.collect(bench.key, bench.base.artifacts, bench.now)
    return True


_RUNS = {"account": _account, "books": _books, "session": _session, "within": _within, "mounts": _mounts, "job": _job}


def run_probes(bench: Bench, probes: Sequence[Any], *, again: bool = False) -> None:
    """Run the remaining probes of this run, or with ``again`` all; clean up before the first and after each."""
    state = bench.state
    bench.clean()
    if not state.run:
        state.run, state.trials, state.done = bench.now, {}, []
        bench.save()
    try:
        for probe in probes:
            if again or probe.name not in state.done:
                finding = _run_probe(bench, probe)
                if probe.needed and finding.verdict != "as assumed":
                    break
    finally:
        if state.trials:
            bench.sweep()


def _run_probe(bench: Bench, probe: Any) -> ProbeFinding:
    bench.say(f"{probe.name}: {probe.question}")
    try:
        finding = _RUNS[probe.run](bench, probe)
    except UserError as error:
        finding = ProbeFinding("open", str(error))
    finally:
        bench.clean()
    bench.state.findings[probe.name] = replace(finding, at=bench.now)
    bench.state.done = list(dict.fromkeys([*bench.state.done, probe.name]))
    bench.save()
    bench.say(f"  {finding.verdict}: {finding.answer}")
    return finding


def try_session(app: App, pool: str) -> Checked:
    """Run a small session and return its findings."""
    with opened(app, pool, (3_600, 1_000_000), lambda _: None) as bench:
        run_probes(bench, [probe for probe in PROBES if probe.name == "session"], again=True)
        finding = bench.state.findings["session"]
    good = finding.verdict == "as assumed"
    return Checked("ok" if good else "bad", finding.answer, "" if good else f"See: schedctl acceptance {pool}")
