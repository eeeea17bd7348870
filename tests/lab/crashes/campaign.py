"""The campaign: one rehearsal, killed with SIGKILL again and again at moments drawn from a seed, then audited."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.clock import stopwatch
from tests.lab.crashes.audit import Audit, audit
from tests.lab.crashes.processes import kill, working_for
from tests.lab.crashes.stage import Stage
from tests.lab.patience import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from platforms.local.adapter import Claim

_VICTIMS = ("daemon", "daemon", "daemon", "both", "rehearse", "agent", "keeper", "trainer")
_TRIES_PER_KILL = 4  # a victim may not be there at its moment
_HOURS = 12.0  # seconds of real time: room for the blows on a machine that has other work
_MOMENTS = ("time", "time", "launch", "checkpoint", "start")


@dataclass(slots=True)
class Outcome:
    """What one rehearsal under fire came to.

    ``adoption_seconds`` are real, from the start of the new daemon to its first look at what the old one left running;
    ``resume_seconds`` from the moment the command that starts it was typed.
    """

    seed: int
    kills: list[str] = field(default_factory=list)
    adopted: int = 0
    adoption_seconds: list[float] = field(default_factory=list)
    resume_seconds: list[float] = field(default_factory=list)
    findings: Audit = field(default_factory=Audit)
    failures: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was run twice, nothing lost, and every command did what it should."""
        return not self.findings.all and not self.failures


def attack(folder: Path, seed: int, kills: int | None = None) -> Outcome:
    """Rehearse in ``folder`` while killing what ``seed`` says, at most ``kills`` times; resume each time."""
    chance = random.Random(seed)
    outcome = Outcome(seed)
    stage = Stage(folder, hours=_HOURS)
    try:
        _fight(stage, chance, outcome, chance.randint(1, 3) if kills is None else kills)
        outcome.findings = audit(stage)
        verified = stage.type("db", "verify")
        if verified.code != 0:
            outcome.failures.append(f"db verify: {verified.out}{verified.err}")
    except (AssertionError, OSError, ValueError) as error:
        outcome.failures.append(f"{type(error).__name__}: {error}")
    finally:
        stage.close()
    return outcome


def _fight(stage: Stage, chance: random.Random, outcome: Outcome, kills: int) -> None:
    command = stage.begin()
    until(lambda: stage.has_begun() or command.poll() is not None, "the first daemon")
    for _ in range(_TRIES_PER_KILL * kills):
        if len(outcome.kills) == kills:
            break
        victim, moment = chance.choice(_VICTIMS), chance.choice(_MOMENTS)
        _await(stage, moment, chance.random(), command)
        if command.poll() is not None:
            break
        before = stage.live()
        if not _kill(stage, victim, command, chance):
            continue
        outcome.kills.append(f"{victim} at {moment}")
        if victim in {"daemon", "both"}:
            command = _adopt(stage, command, before, outcome)
        elif victim == "rehearse":
            command.wait()
            command = stage.resume()
    ended = stage.ended(command)
    if ended.code != 0:
        outcome.failures.append(f"the rehearsal ended with {ended.code}: {ended.err[-500:]}{stage.log[-500:]}")


def _await(stage: Stage, moment: str, fraction: float, command: subprocess.Popen[bytes]) -> None:
    """Wait for the moment to strike; ``fraction`` (0 to 1) says where in it."""
    begun, sessions, saved = stopwatch(), len(stage.sessions()), len(stage.manifests())
    waiting: dict[str, Callable[[], bool]] = {
        "time": lambda: stopwatch() > begun + 3.0 * fraction,
        "start": lambda: stopwatch() > begun + 0.2 * fraction,
        "launch": lambda: len(stage.sessions()) > sessions,
        "checkpoint": lambda: len(stage.manifests()) > saved,
    }
    until(lambda: waiting[moment]() or command.poll() is not None, f"a {moment} to strike at")


def _kill(stage: Stage, victim: str, command: subprocess.Popen[bytes], chance: random.Random) -> bool:
    """Kill; False when there was nothing of the kind."""
    if victim in {"daemon", "both"}:
        pid = stage.daemon_pid()
        if pid is None:
            return False
        if victim == "both":
            command.send_signal(signal.SIGKILL)
        kill(pid)
        until(lambda: pid not in working_for(stage.week), f"the end of {pid}")
        return True
    if victim == "rehearse":
        command.send_signal(signal.SIGKILL)
        return True
    live = stage.live()
    if not live:
        return False
    claim = live[chance.choice(sorted(live))]
    if victim == "trainer":
        trainers = [pid for pid in _kin(stage, claim) if pid not in {claim.agent, claim.keeper}]
        if trainers:
            kill(chance.choice(trainers))
        return bool(trainers)
    kill(claim.agent if victim == "agent" else claim.keeper)
    return True


def _kin(stage: Stage, claim: Claim) -> list[int]:
    """Return the trainers of a session: what runs in the agent's kernel session and trains."""
    found = []
    for pid, words in working_for(stage.week).items():
        try:
            same = os.getsid(pid) == claim.agent
        except ProcessLookupError:
            continue
        if same and "charlm" in words:
            found.append(pid)
    return found


def _adopt(
    stage: Stage, command: subprocess.Popen[bytes], before: dict[str, Claim], outcome: Outcome
) -> subprocess.Popen[bytes]:
    """Resume, and see how long it takes until the new daemon has looked at what the old one left running."""
    command.wait()
    looked = _beats(stage)
    typed = stopwatch()
    again = stage.resume()
    until(lambda: again.poll() is not None or stage.daemon_pid() is not None, "the next daemon")
    started = stopwatch()
    # A session that ended while nobody looked is settled instead; that is adoption as well.
    until(
        lambda: again.poll() is not None or not before or any(_beats(stage)[key] != looked[key] for key in looked),
        "the adoption of what ran",
    )
    if before:
        outcome.adoption_seconds.append(stopwatch() - started)
        outcome.resume_seconds.append(stopwatch() - typed)
        outcome.adopted += len(before)
    for key, claim in stage.live().items():
        if key in before and claim != before[key]:
            outcome.findings.duplicates.append(f"{key} was claimed again: {before[key]}, then {claim}")
    return again


def _beats(stage: Stage) -> dict[str, tuple[str, str | None]]:
    """Return what the database last saw of each run that it takes for live."""
    database = stage.database()
    try:
        with database.read() as tx:
            rows = tx.exec_driver_sql(
                "SELECT key, state, max(heartbeat) AS beat FROM runs JOIN lanes ON run = key GROUP BY key, state"
            )
            return {row.key: (row.state, row.beat) for row in rows}
    finally:
        database.close()
