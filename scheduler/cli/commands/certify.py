"""`schedctl certify`: interrupt a training script on this machine, and check whether it resumes correctly."""

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jobs.certify.findings import LEVELS, REPAIRS
from jobs.spec import JobSpec
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, UsageFault
from scheduler.clock import real_now

_STEPS = 60  # target step of the first try
_RUNNERS = {".py": "{python}", ".sh": "bash"}


@command(
    "schedctl certify train.py",
    "schedctl certify train.py --steps 2000 --accept E2 --output out -- --lr 3e-6",
    script="train.py",
)
def certify(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    script: Annotated[Path, argument("SCRIPT", "A Python or shell script.")],
    arguments: Annotated[list[str] | None, argument("[-- ARGS]...", "What the script is given.")] = None,
    steps: Annotated[int, option("--steps", "The target step of each run; 0: found by trying.", min=0, max=10**9)] = 0,
    grace: Annotated[float, option("--grace", "Seconds that it has for saving.", min=0.1, max=3_600)] = 30.0,
    limit: Annotated[float, option("--limit", "Seconds that one run may take.", min=1, max=86_400)] = 600.0,
    python: Annotated[str, option("--python", "The interpreter that runs it; default: that of schedctl.")] = "",
    accept: Annotated[str, option("--accept", "The worst level that is good enough: E0, E1 or E2.")] = "E1",
    output: Annotated[Path | None, option("--output DIR", "For document and badge; else beside the script.")] = None,
) -> None:
    """Interrupt a script in many ways on this machine, and check that it resumes as if nothing had happened.

    E0: bit for bit. E1: the same but for rounding. E2: it continues, as another training. failed: something is lost.
    Exits with 9 when the level is worse than --accept, 6 when the script does not run without an interruption. Its
    folder is copied for each run. Ctrl-C ends all that was started.
    """
    from jobs.certify import certificate
    from jobs.certify.script_run import ScriptUnderTest
    from platforms.local.spawn import of_sessions

    if accept not in LEVELS[:-1]:
        raise UsageFault(f"--accept {accept}", "there is no such level", f"Use: {', '.join(LEVELS[:-1])}")
    folder, words = command_of(script, arguments or [])
    path = script.expanduser().resolve()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    code = certificate.folder_digest(folder)
    interpreter = str(Path(python).expanduser().absolute()) if "/" in python else python or sys.executable
    with tempfile.TemporaryDirectory(prefix="schedctl-certify-") as work:
        tested = ScriptUnderTest(
            folder,
            tuple(word.replace("{python}", interpreter) for word in words),
            of_sessions(os.environ, [name for name in os.environ if name.startswith("SCHED_INPUT_")]),
            Path(work),
            steps or _STEPS,
            grace,
            limit,
            certificate.devices_here(os.environ),
        )
        result = certificate.certify(tested, cli.plain.say, adapt=not steps)
    document = result.document(path.name, tuple(words), code, round(real_now()))
    places = certificate.write_certificate(document, path, output)
    cli.plain.data(document)
    for one in result.results:
        for finding in one.findings:
            cli.plain.line(f"{one.strike.name}: {finding.message}.")
            cli.plain.line(f"  {REPAIRS[finding.kind].remedy}." + (f" Log: {finding.log}" if finding.log else ""))
    cli.plain.line(f"{path.name}: {result.level}. Written: {', '.join(map(str, places))}")
    if LEVELS.index(result.level) > LEVELS.index(accept):
        raise typer.Exit(Exit.VIOLATIONS)


def command_of(script: Path, arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder that is uploaded with a script, and the command to run the script there. Raises UsageFault."""
    path, here = script.expanduser().resolve(), Path.cwd()
    if not path.is_file():
        raise UsageFault(f"no script {script}", "there is no such file", "Give its path from here")
    if (runner := _RUNNERS.get(script.suffix)) is None:
        why = f"{script.name} is neither Python nor a shell script"
        raise UsageFault("nothing known to run it with", why, "Use: schedctl queue add --command ... --code .")
    folder = here if path.is_relative_to(here) else path.parent
    return folder, [runner, path.relative_to(folder).as_posix(), *arguments]


def warn_of_certificate(cli: Cli, spec: JobSpec, script: Path, folder: Path) -> None:
    """Warn if a job needs more than one session and its script has no certificate."""
    from jobs.certify.certificate import lacks_certificate

    pools = [pool for name, pool in cli.app.pools.items() if not spec.pools or name in spec.pools]
    hours = 0.0 if spec.whole else spec.target_step / spec.steps_per_hour  # on the reference device
    longest = max(((p.session_cap_seconds - p.setup_seconds) * p.speed / 3_600 for p in pools), default=hours)
    if hours > longest and (why := lacks_certificate(script, folder)):
        cli.out.warn(
            f"the job needs about {hours:,.0f} h, more than one session, and {script.name} {why}. "
            f"Try it here in minutes: schedctl certify {shlex.quote(script.relative_to(folder).as_posix())}"
        )
