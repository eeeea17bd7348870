"""Strikes: interrupt a script in many ways, and check what it has saved and how it continues."""

import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from jobs.certify.curves import Uninterrupted, compare, digests
from jobs.certify.findings import ResumeFinding, worst
from jobs.certify.script_run import ScriptRun, ScriptUnderTest

When = Literal["import", "first", "middle", "evaluation", "save"]
Action = Literal["SIGTERM", "SIGKILL", "SIGUSR1", "full disk"]

_ASK_SECONDS = 1.0  # pause before SIGUSR1 is repeated
_SIGNALS = 100  # how many SIGUSR1 the strike "many SIGUSR1" sends
_SUDDEN_SECONDS = 0.0002  # interval of polls for the beginning of a save


class Strike(NamedTuple):
    """One interruption; ``devices`` has the number of devices before and after it."""

    name: str
    action: Action
    when: When
    devices: tuple[int, int] = (1, 1)


STRIKES = (
    Strike("SIGTERM during import", "SIGTERM", "import"),
    Strike("SIGKILL during import", "SIGKILL", "import"),
    Strike("SIGTERM at the first step", "SIGTERM", "first"),
    Strike("SIGKILL at the first step", "SIGKILL", "first"),
    Strike("SIGTERM in the middle", "SIGTERM", "middle"),
    Strike("SIGKILL in the middle", "SIGKILL", "middle"),
    Strike("SIGTERM at an evaluation", "SIGTERM", "evaluation"),
    Strike("SIGKILL at an evaluation", "SIGKILL", "evaluation"),
    Strike("SIGTERM during a save", "SIGTERM", "save"),
    Strike("SIGKILL during a save", "SIGKILL", "save"),
    Strike("many SIGUSR1", "SIGUSR1", "first"),
    Strike("full disk", "full disk", "middle"),
    Strike("from 1 to 2 devices", "SIGTERM", "middle", (1, 2)),
    Strike("from 2 to 1 devices", "SIGTERM", "middle", (2, 1)),
)


class StrikePlan(NamedTuple):
    """What the strikes need of the uninterrupted run: the seconds of its set-up, and the steps at which to strike."""

    setup_seconds: float
    steps: Mapping[When, int]
    straight: Uninterrupted


class StrikeResult(NamedTuple):
    """The result of one strike; ``resumed_from`` is the step of the checkpoint, None if there was none."""

    strike: Strike
    level: str
    findings: tuple[ResumeFinding, ...]
    resumed_from: int | None = None


def judge_strike(script: ScriptUnderTest, strike: Strike, plan: StrikePlan) -> StrikeResult | None:
    """Interrupt a run, resume it, and return the comparison; None if the strike came too late. Raises OSError."""
    run = ScriptRun(script, devices=strike.devices[0])
    try:
        findings = _interrupt(run, strike, plan)
        since, newest = max(run.whole().items(), default=(None, None))
        if run.damaged():
            findings.append(ResumeFinding("damaged_save", f"{run.damaged()[0]} has no meta.json of its step"))
        if since == script.target_step and not findings and strike.action != "SIGUSR1":
            return None
        if strike.action == "SIGUSR1":
            level, more = ("", []) if findings else _judge_end(run, strike, plan, None)
        elif findings and since in {None, script.target_step}:
            level, more = "", []  # no step is left to train, or there is no checkpoint to resume from
        else:
            level, more = _resume(script, strike, plan, since, newest)
    finally:
        run.close()
    findings += more
    levels = [*filter(None, [level]), *(finding.level for finding in findings)]
    return StrikeResult(strike, worst(levels), tuple(findings), since)


def _resume(
    script: ScriptUnderTest, strike: Strike, plan: StrikePlan, since: int | None, newest: Path | None
) -> tuple[str, list[ResumeFinding]]:
    """Return level and findings of a run that resumes from a checkpoint, or from scratch without one."""
    run = ScriptRun(script, newest, devices=strike.devices[1])
    try:
        run.end()
        return _judge_end(run, strike, plan, since)
    finally:
        run.close()


def _judge_end(run: ScriptRun, strike: Strike, plan: StrikePlan, since: int | None) -> tuple[str, list[ResumeFinding]]:
    """Return level and findings of a run that should have reached the target; the level of a failed run is ""."""
    target, first = run.script.target_step, min(run.values, default=None)
    checkpoints = run.whole()
    if run.exit_code != 0 or target not in checkpoints:
        which = f"resumed from the checkpoint of step {since}" if since is not None else "started again"
        text = f"{which}, it ended with status {run.exit_code} at step {run.step} and did not save step {target}"
        damaged = since is not None and strike.action != "SIGTERM"  # after SIGTERM the save was complete
        return "", [ResumeFinding("damaged_save" if damaged else "crashed", text, run.log_line)]
    begins = since or 0
    if first is not None and first not in (begins, begins + 1):
        text = f"the checkpoint is of step {begins}, and the resumed run counts from step {first}"
        return "", [ResumeFinding("wrong_step", text, f'{{"step": {first}}}')]
    moved = strike.devices[0] != strike.devices[1]
    return compare(run.values, digests(checkpoints[target]), begins, plan.straight, moved=moved)


def _interrupt(run: ScriptRun, strike: Strike, plan: StrikePlan) -> list[ResumeFinding]:
    """Wait for the strike's moment, strike, and return the findings about how the run ended."""
    if strike.when == "import":
        run.until(lambda: run.seconds >= plan.setup_seconds / 2 or run.values)
    elif strike.when == "first":
        run.until(lambda: run.values)
    else:
        at = plan.steps[strike.when]
        run.until(lambda: run.step is not None and run.step >= at)
    if run.exit_code:
        text = f"on {strike.devices[0]} devices it ended with status {run.exit_code} at step {run.step}"
        return [ResumeFinding("crashed", text, run.log_line)]
    return _ACTIONS[strike.action](run, strike)


def _stop_run(run: ScriptRun, strike: Strike) -> list[ResumeFinding]:
    """Ask a run to save and end by SIGTERM; return the findings."""
    if strike.when == "save":
        _request_save(run, lambda: run.saving or any(run.checkpoints.iterdir()))
    asked_at, target = run.step, run.script.target_step
    run.signal(signal.SIGTERM)
    in_time = run.end(run.script.grace_seconds)
    if asked_at is None or asked_at >= target:  # the contract applies from the first report to the last
        return []
    if not in_time or run.step == target:
        text = f"after SIGTERM at step {asked_at} it trained on to step {run.step}"
        return [ResumeFinding("ignored_sigterm", text, run.log_line)]
    saved, step = max(run.whole(), default=None), run.step or 0
    if run.exit_code != 0 or (saved is None and not run.saving):
        text = f"SIGTERM at step {step} ended it with status {run.exit_code}; the newest checkpoint is of step {saved}"
        return [ResumeFinding("not_saved_at_sigterm", text, run.log_line)]
    if run.saving:
        text = f"it ended while step {step} was being saved; the newest checkpoint is of step {saved}"
        return [ResumeFinding("unfinished_save", text, run.log_line)]
    if saved is not None and saved < step:
        return [ResumeFinding("lost_steps", f"{step - saved} steps: it reported step {step} and saved step {saved}")]
    return []


def _kill(run: ScriptRun, strike: Strike) -> list[ResumeFinding]:
    """Kill a run; in the middle and at an evaluation wait for a checkpoint first. Return the findings."""
    findings: list[ResumeFinding] = []
    if strike.when == "save":
        _request_save(run, lambda: run.saving or any(run.checkpoints.iterdir()))
    elif strike.when not in {"import", "first"}:
        findings = _save(run)
    run.command.kill()
    run.end()
    return findings


def _send_many_signals(run: ScriptRun, _strike: Strike) -> list[ResumeFinding]:
    """Request many saves, after which the run must still reach its target; return the findings."""
    for _ in range(_SIGNALS):
        run.signal(signal.SIGUSR1)
        run.until(lambda: False, _SUDDEN_SECONDS, _SUDDEN_SECONDS)
    run.end()
    return _ended_by_signal(run)


def _simulate_full_disk(run: ScriptRun, strike: Strike) -> list[ResumeFinding]:
    """Let a save fail in the middle of a file, then remove the limit and ask the run to save and end.

    A limit of the file size simulates a full disk, since only root can create a small disk. The script gets the error
    "File too large" instead of "No space left on device". It may fail, if its older checkpoint stays complete.
    """
    findings = _save(run)
    if findings:
        return findings
    sizes = [path.stat().st_size for folder in run.whole().values() for path in folder.rglob("*") if path.is_file()]
    _limit_file_size(run, max(sizes) // 2)
    count = len(run.whole())
    _request_save(run, lambda: run.save_failed or len(run.whole()) > count, 2 * _ASK_SECONDS)
    _limit_file_size(run, resource.RLIM_INFINITY)
    findings = _stop_run(run, strike)
    return findings if run.exit_code == 0 else []


def _limit_file_size(run: ScriptRun, size: int) -> None:
    with suppress(ProcessLookupError):
        _, most = resource.prlimit(run.command.process_id, resource.RLIMIT_FSIZE)
        soft = size if most == resource.RLIM_INFINITY else most if size == resource.RLIM_INFINITY else min(size, most)
        resource.prlimit(run.command.process_id, resource.RLIMIT_FSIZE, (soft, most))


def _save(run: ScriptRun) -> list[ResumeFinding]:
    """Request a checkpoint; return a finding if none is saved."""
    if _request_save(run, lambda: any(step < run.script.target_step for step in run.whole())):
        return []
    text = f"asked by SIGUSR1, it saved nothing until step {run.step}"
    return _ended_by_signal(run) or [ResumeFinding("never_saved", text, run.log_line)]


def _ended_by_signal(run: ScriptRun) -> list[ResumeFinding]:
    if run.exit_code == -signal.SIGUSR1:
        return [ResumeFinding("sigusr1_ended_it", f"SIGUSR1 ended it at step {run.step}", run.log_line)]
    return []


def _request_save(run: ScriptRun, done: Callable[[], object], seconds: float = 0.0) -> bool:
    """Send SIGUSR1 repeatedly, as the runner does, until ``done`` or the time is over; return whether it is done."""
    asked_at = run.seconds
    while not done():
        run.signal(signal.SIGUSR1)
        if run.until(done, _ASK_SECONDS, _SUDDEN_SECONDS) or run.exit_code is not None:
            break
        if run.seconds - asked_at > (seconds or run.script.grace_seconds):
            break
    return bool(done())


_ACTIONS: Mapping[Action, Callable[[ScriptRun, Strike], list[ResumeFinding]]] = {
    "SIGTERM": _stop_run,
    "SIGKILL": _kill,
    "SIGUSR1": _send_many_signals,
    "full disk": _simulate_full_disk,
}
