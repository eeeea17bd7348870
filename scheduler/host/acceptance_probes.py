"""How each probe of acceptance.toml finds its answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jobs.problem import UserError
from platforms.base import Checked
from platforms.registry import checkup
from scheduler.app import App
from scheduler.clock import real_now
from scheduler.host.acceptance import JOB, PROBES, Bench, ProbeFinding, ProbeTimeout, Trial, opened
from scheduler.host.doctor import examine

_LATE_SECONDS = 60  # of a log, and between a bill and our own count
_STOP_SECONDS = 110  # less than until a stop that is not obeyed becomes another one
_MORE_STEPS = 20


def _finding(probe: Any, answer: str, evidence: Mapping[str, Any], *, holds: object, value: int = 0) -> ProbeFinding:
    facts = {probe.setting: None if holds else value or probe.otherwise} if probe.setting else {}
    return ProbeFinding("as assumed" if holds else "differs", answer, dict(evidence), facts)


def _account(bench: Bench, probe: Any) -> ProbeFinding:
    """Ask what doctor asks of the platform."""
    checks = examine(checkup(bench.pool.platform, bench.pool.options, os.environ, real_now(), probe=False))
    bad = [f"{name}: {checked.found}. {checked.remedy}" for name, checked in checks.items() if checked.grade == "bad"]
    evidence = {name: f"{checked.grade}: {checked.found}" for name, checked in checks.items()}
    return _finding(probe, "; ".join(bad) or f"{len(checks)} checks passed", evidence, holds=not bad)


def _books(bench: Bench, probe: Any) -> ProbeFinding:
    """Ask for what is used, and for live sessions of ours that are unknown."""
    used = bench.used()
    live = len(bench.idle.orphans((), bench.now)) if bench.idle.capabilities.finds_orphans else 0
    return _finding(probe, f"used: {used} s; unknown sessions: {live}", {"used": used, "live": live}, holds=not live)


def _trained(bench: Bench, probe: Any, act: str, **changes: Any) -> dict[str, Any]:
    """Let a session run to its end, ended in a way if one is meant, and return what it showed; times are in seconds.

    Raises ProbeTimeout when it does not start, and PlatformError. What does not come after that is ``missing``.
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
        ended = bench.over(_STOP_SECONDS if act == "force" else trial.seconds)
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
    """Let a session run and end as the probe says, and judge what it showed by the probe's own measure."""
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
    """Compare a time of the small session with a setting of the pool."""
    seconds, most = _small_session(bench)[probe.name], getattr(bench.pool, probe.setting, _LATE_SECONDS)
    answer = f"after {seconds} s; {most} s are assumed"
    return _finding(probe, answer, {"seconds": seconds}, holds=seconds <= most, value=2 * seconds)


def _mounts(bench: Bench, probe: Any) -> ProbeFinding:
    """Look where the small session saw its inputs."""
    paths = _small_session(bench)["mounts"]
    return _finding(probe, ", ".join(paths) or "at no known place", {"paths": paths}, holds=paths)


def _job(bench: Bench, probe: Any) -> ProbeFinding:
    """Stop a job, bring home what it left, continue it in another session, and compare the bills of both.

    Where sessions do not see that they are asked to stop, the first one ends by itself.
    """
    store, manifests, heard = bench.base.artifacts, f"jobs/{JOB}/manifests/", bench.state.findings.get("stop-flag")
    older, deaf = set(store.keys(manifests)), heard is not None and heard.verdict == "differs"
    first = _trained(bench, probe, "", steps=_MORE_STEPS) if deaf else _trained(bench, probe, "ask")
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


_RUNNERS = {
    "account": _account,
    "books": _books,
    "session": _session,
    "within": _within,
    "mounts": _mounts,
    "job": _job,
}


def run_probes(bench: Bench, probes: Sequence[Any], *, again: bool = False) -> None:
    """Run the probes that this run has not done yet, or all ``again``. Clean up after each, and before the first."""
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
        finding = _RUNNERS[probe.run](bench, probe)
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
    """Run a small session, and return what came of it."""
    with opened(app, pool, (3_600, 1_000_000), lambda _: None) as bench:
        run_probes(bench, [probe for probe in PROBES if probe.name == "session"], again=True)
        finding = bench.state.findings["session"]
    good = finding.verdict == "as assumed"
    return Checked("ok" if good else "bad", finding.answer, "" if good else f"See: schedctl acceptance {pool}")
