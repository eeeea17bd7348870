"""Lock: what a requirement file comes to, at one version each, on every platform that a session may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.environment.demands import Demands
from jobs.environment.errors import RequirementsError
from jobs.environment.target import Target
from jobs.environment.tool import NoWheel, find_tools, resolve
from jobs.payload.store.lock import Lock


def make_lock(
    source: Path, demands: Demands, targets: Mapping[Target, Sequence[str]], variables: Mapping[str, str]
) -> Lock:
    """Ask the package index what the demands come to; ``targets`` tells which pools have each.

    ``variables`` are the job's, which may name another index.
    Raises RequirementsError, which names the package for which there is no wheel, and OSError.
    """
    tools = find_tools()
    found = {}
    for target, pools in sorted(targets.items()):
        where = f"{', '.join(pools)} ({target})"
        leave_out = 'name the pools that can have them: pools = ["..."]'
        if not demands.runs_on(target.python):
            raise RequirementsError(
                str(source), f"they want Python {demands.python}, which is not that of {where}", f"Or {leave_out}"
            )
        try:
            found[target.name] = resolve(tools, demands, target, variables)
        except NoWheel as error:
            why = f"{tools.name} finds no wheels for {where}:\n{error}\n"
            raise RequirementsError(str(source), why, f"Ask for another version, or {leave_out}") from None
    return Lock(demands.lines, demands.exact, found)
