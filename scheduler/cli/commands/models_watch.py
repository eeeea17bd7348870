"""The watch after promotion, by hand: what votes say of a version, and taking it back where they show harm."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from jobs.votes import VotesError
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Refusal, UsageFault, Violations
from scheduler.judge.watch import ALARM
from scheduler.service.requests.models import meant
from scheduler.service.versions.watching import Watch, read_watch, take_back
from scheduler.store import jobs, versions
from scheduler.store.versions import Version


def watch(cli: Cli, name: str, votes: Path | None, usual: float | None, *, rollback: bool) -> None:
    """Show what votes say of a version, and take it back if asked and they show harm.

    Raises UnknownVersion, UnknownJob, VersionRefused, UsageFault, Refusal for votes that cannot be read, Stale, and
    Violations where harm is shown.
    """
    with cli.app.database.read() as tx:
        version = meant(tx, name)
        record = jobs.find(tx, version.model)
    wanted = record.spec.evaluation if record else None
    path = votes or (Path(wanted.votes) if wanted and wanted.votes else None)
    if path is None:
        why = f"the definition of {version.model} names no file of votes"
        raise UsageFault("which votes?", why, "Give --votes FILE, or write votes in its evaluation: docs/models.md")
    share = usual if usual is not None else wanted.usual if wanted else 0.5
    try:
        seen = read_watch(version, path, share)
    except VotesError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        raise Refusal(f"{where} cannot be used", error.why, error.remedy.capitalize()) from None
    taken, back = _take_back(cli, version, seen) if rollback and seen.alarm else (False, None)
    told = {**asdict(seen), **asdict(seen.watched), "alarm": seen.alarm, "taken_back": taken}
    del told["watched"]
    cli.out.data({**told, "in_force": back.name if back else None} if taken else told)
    evidence = seen.watched.log_evidence
    strength = f"{math.exp(evidence):.3g}" if evidence < 50 else f"e^{evidence:.0f}"
    cli.out.line(f"{version.name}: {seen.told}.")
    cli.out.line(f"Evidence of harm {strength}; above {ALARM:g}, at any vote, is an alarm.")
    if taken:
        cli.out.line(f"{version.name} is rolled back; {f'{back.name} is' if back else 'no version is'} promoted.")
        cli.wake_daemon()
    if seen.alarm:
        then = f"See: schedctl models show {version.name}" if taken else f"Roll it back: {_again(name, votes, usual)}"
        raise Violations(f"{version.name} does harm", f"shown at vote {seen.watched.alarm_at}", then)


def _take_back(cli: Cli, version: Version, seen: Watch) -> tuple[bool, Version | None]:
    """Take a version back that is in force; one that is not stays as it is, since the alarm was heard before."""
    with cli.app.database.write() as tx:
        in_force = versions.in_force(tx, version.model)
        if in_force is None or in_force.number != version.number:
            return False, None
        return True, take_back(tx, version, seen, cli.now, cli.who)[1]


def _again(name: str, votes: Path | None, usual: float | None) -> str:
    words = [f"schedctl models watch {name}"]
    words += [f"--votes {votes}"] if votes else []
    words += [f"--usual {usual:g}"] if usual is not None else []
    return " ".join([*words, "--rollback"])
