"""Certificate: run each strike on a script, and write the results as a document and a badge beside the script."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.certify.curves import digests, uninterrupted
from jobs.certify.findings import EXACT, LEVELS, REPAIRS, SAME_STATE, worst
from jobs.certify.script_run import ScriptRun, ScriptUnderTest
from jobs.certify.strikes import STRIKES, Strike, StrikePlan, StrikeResult, When, judge_strike
from jobs.code.pack import names, read
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.store.tree import CODE_LIMITS
from jobs.problem import Refusal
from jobs.spec import Code

FORMAT = 1
_FILE_ENDS = (".certificate.json", ".certificate.svg")
_LEAST_SECONDS = 0.3  # the shortest training that a strike can interrupt in the middle
_STEPS_MAX = 5_000
_CONTRACT = "The three changes that a script needs are in docs/your-own-training.md"
_COLOURS = {"E0": "#2e7d32", "E1": "#558b2f", "E2": "#b26a00", "failed": "#b00020"}
_BADGE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="112" height="20" role="img" aria-label="resume: {0}">'
    '<rect width="56" height="20" fill="#444"/><rect x="56" width="56" height="20" fill="{1}"/>'
    '<g fill="#fff" text-anchor="middle" font-family="sans-serif" font-size="12">'
    '<text x="28" y="14">resume</text><text x="84" y="14">{0}</text></g></svg>\n'
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """How a script resumes; ``level`` is the worst of all strikes, ``deterministic``: two runs are equal."""

    level: str
    target_step: int
    deterministic: bool
    results: tuple[StrikeResult, ...]
    skipped: tuple[str, ...]

    def document(self, script: str, words: tuple[str, ...], code: str, now: int) -> dict[str, Any]:
        """Return the certificate for JSON; ``code`` is the digest of the folder, ``now`` is in UTC seconds."""
        strikes = [
            {
                "name": result.strike.name,
                "level": result.level,
                "resumed_from": result.resumed_from,
                "findings": [{**each._asdict(), "repair": REPAIRS[each.kind].remedy} for each in result.findings],
            }
            for result in self.results
        ]
        head = {"format": FORMAT, "script": script, "command": list(words), "code": code, "certified_at": now}
        figures = {"level": self.level, "target_step": self.target_step, "deterministic": self.deterministic}
        return {**head, **figures, "strikes": strikes, "skipped": list(self.skipped)}


def certify(
    script: ScriptUnderTest, tell: Callable[[str], None], *, adapt: bool, strikes: tuple[Strike, ...] = STRIKES
) -> Certificate:
    """Run the script without and with each strike; return the certificate, and report each result by ``tell``.

    ``adapt`` raises the target step until training takes long enough to be interrupted. Raises Refusal for a script
    that breaks the training contract without any strike, and OSError.
    """
    script, plan = _planned(script, tell, adapt=adapt)
    results: list[StrikeResult] = []
    skipped: list[str] = []
    for number, strike in enumerate(strikes, 1):
        why = _obstacle(strike, script, plan)
        result = None if why else judge_strike(script, strike, plan)
        if result is None:
            skipped.append(strike.name)
            outcome = f"skipped, {why or f'it reached step {script.target_step} and had nothing to resume'}"
        else:
            results.append(result)
            outcome = f"{result.level} {'; '.join(finding.message for finding in result.findings)}".rstrip()
        tell(f"{number}/{len(strikes)} {strike.name}: {outcome}")
    if not results:
        raise Refusal(
            "not certified", f"it never had to resume on its way to step {script.target_step}", "Give more --steps"
        )
    level = worst([*(result.level for result in results), EXACT if plan.straight.deterministic else SAME_STATE])
    return Certificate(level, script.target_step, plan.straight.deterministic, tuple(results), tuple(skipped))


def _planned(
    script: ScriptUnderTest, tell: Callable[[str], None], *, adapt: bool
) -> tuple[ScriptUnderTest, StrikePlan]:
    """Return the script with the target step of all runs, and the comparison of two uninterrupted runs."""
    while True:
        tell(f"Without an interruption, to step {script.target_step}, twice ...")
        first, files, setup, seconds = _straight(script)
        if not adapt or seconds >= _LEAST_SECONDS or script.target_step >= _STEPS_MAX:
            break
        more = max(2.0, 1.5 * _LEAST_SECONDS / max(seconds, 0.01))
        script = replace(script, target_step=min(_STEPS_MAX, round(script.target_step * more)))
    second, others, again, _ = _straight(script)
    reported = sorted(first)
    steps: dict[When, int] = {"middle": script.target_step // 3, "save": script.target_step // 2}
    later = (step for step in reported if step > steps["middle"] and "held_out_loss" in first[step])
    if (evaluated := next(later, None)) is not None:
        steps["evaluation"] = max(step for step in reported if step < evaluated)
    script = replace(script, run_seconds=min(script.run_seconds, 10 * (setup + seconds) + 30))
    return script, StrikePlan(min(setup, again), steps, uninterrupted(first, second, files, others))


def _straight(script: ScriptUnderTest) -> tuple[dict[int, dict[str, float]], dict[str, str], float, float]:
    """Return the values and the digests of an uninterrupted run, and the seconds of its set-up and of its training."""
    run = ScriptRun(script)
    try:
        in_time = run.end()
        saved = run.whole().get(script.target_step)
        if run.exit_code == 0 and in_time and run.first_at is not None and saved is not None:
            return run.values, digests(saved), run.first_at, run.seconds - run.first_at
        if not in_time:
            why = f"it takes more than {script.run_seconds:.0f} s to step {script.target_step}"
            raise Refusal("not certified", why, "Give a smaller --steps or a larger --limit")
        why = f"it ended with status {run.exit_code}, at step {run.step}, without a checkpoint of its target step"
        raise Refusal("not certified", f"without any interruption {why}: {run.log_line[:300]}".rstrip(": "), _CONTRACT)
    finally:
        run.close()


def _obstacle(strike: Strike, script: ScriptUnderTest, plan: StrikePlan) -> str:
    """Return why a strike cannot be tried; "" if it can."""
    if max(strike.devices) > len(script.devices):
        return "there are no two devices here"
    return "no held_out_loss is reported" if strike.when not in {*plan.steps, "import", "first"} else ""


def devices_here(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the numbers of this machine's devices that a script may use; ("0",) if none can be listed."""
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(visible.split(","))
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ("0",)
    return tuple(str(number) for number, _ in enumerate(listing.splitlines())) or ("0",)


def folder_digest(folder: Path) -> str:
    """Return a digest of those files of a folder that a job would get as its code. Raises CodeError."""
    digest = hashlib.sha256()
    for name in sorted(names(Code(str(folder)))):
        kind, data = read(folder, os.fsencode(name), CODE_LIMITS.bytes) or ("", b"")
        digest.update(json.dumps([name, kind, hashlib.sha256(data).hexdigest()]).encode())
    return digest.hexdigest()


def files_of(script: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield the paths of a certificate's document and badge: in ``folder``, or else beside the script."""
    return ((folder or script.parent) / f"{script.name}{end}" for end in _FILE_ENDS)


def write_certificate(document: Mapping[str, Any], script: Path, folder: Path | None) -> list[Path]:
    """Write the document and the badge of a certificate; return their paths. Raises OSError."""
    paths = list(files_of(script, folder))
    level = document["level"]
    paths[0].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(_BADGE.format(level, _COLOURS[level]), encoding="utf-8")
    return paths


def lacks_certificate(script: Path, folder: Path) -> str:
    """Return why a script lacks a valid certificate, as the rest of a sentence after its name; "" if it has one.

    Raises CodeError if the folder cannot be read.
    """
    try:
        document = read_json(read_bounded(next(files_of(script))))
        level, code = document["level"], document["code"]
    except (OSError, ValueError, KeyError, TypeError):
        return "has no certificate that it resumes"
    if code != folder_digest(folder):
        return "has changed since it was certified, or a file beside it"
    return "" if level in LEVELS[:2] else f"has a certificate that says: {level}"
