"""Verbs: the one table of what programs may ask. The port, its document and MCP's tools are all made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from scheduler.bridge import arguments as given
from scheduler.bridge import changes, commands, reads

PROTOCOL = 1
"""Grows when something that was promised goes; what is new is named in the capabilities."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that may be asked: its name, what it takes and who answers.

    ``changes`` something; is ``slow``, so that others are answered meanwhile; an answer is given again for
    ``kept_seconds`` unless something was changed here.
    """

    name: str
    takes: type[given.Arguments]
    answer: Callable[[Any, Any], Any]
    changes: bool = False
    slow: bool = False
    kept_seconds: float = 0.0

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().splitlines()[0]


_TABLE = (
    Verb("status", given.Nothing, reads.status, kept_seconds=0.25),
    Verb("training", given.Nothing, reads.training, kept_seconds=0.25),
    Verb("queue.list", given.QueueList, reads.queue_list),
    Verb("queue.show", given.OneJob, reads.queue_show),
    Verb("queue.add", given.AddJob, commands.add, changes=True, slow=True),
    Verb("queue.hold", given.Hold, changes.hold, changes=True),
    Verb("queue.release", given.OneJob, changes.release, changes=True),
    Verb("queue.cancel", given.OneJob, changes.cancel, changes=True),
    Verb("queue.priority", given.Priority, changes.priority, changes=True),
    Verb("submit", given.Submit, commands.submit, changes=True, slow=True),
    Verb("plan.show", given.Nothing, reads.plan_show),
    Verb("plan.difference", given.Since, reads.plan_difference, slow=True),
    Verb("plan.explain", given.OneJob, commands.explain, slow=True),
    Verb("plan.preview", given.Preview, commands.preview, slow=True),
    Verb("quota", given.Nothing, reads.quotas, kept_seconds=0.25),
    Verb("runs.list", given.RunsList, reads.runs_list),
    Verb("runs.show", given.OneRun, reads.runs_show),
    Verb("runs.log", given.ReadLog, reads.runs_log, slow=True),
    Verb("runs.stop", given.StopRun, changes.stop, changes=True, slow=True),
    Verb("models.list", given.Nothing, reads.models_list),
    Verb("models.show", given.OneVersion, reads.models_show),
    Verb("models.promote", given.Promote, commands.promote, changes=True, slow=True),
    Verb("models.deploy", given.Deploy, commands.deploy, changes=True, slow=True),
    Verb("models.sync", given.SyncTarget, commands.sync, changes=True, slow=True),
    Verb("report.weekly", given.ReportWeek, reads.report_weekly, slow=True),
    Verb("events.list", given.EventsList, reads.events_list),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _TABLE}


def document(of_the_port: Mapping[str, type[given.Arguments]]) -> dict[str, Any]:
    """Return the table as one JSON document: of each verb its arguments and its answer, as JSON schemas.

    ``of_the_port`` are the verbs that only a port has, with their arguments.
    """
    verbs: dict[str, dict[str, Any]] = {
        name: {"summary": (takes.__doc__ or "").splitlines()[0], "arguments": takes.model_json_schema(), "answer": {}}
        for name, takes in of_the_port.items()
    }
    for verb in _TABLE:
        answers = get_type_hints(verb.answer, _names())["return"]
        schema = (
            answers.model_json_schema() if isinstance(answers, type) and hasattr(answers, "model_json_schema") else {}
        )
        verbs[verb.name] = {
            "summary": verb.summary,
            "changes": verb.changes,
            "arguments": verb.takes.model_json_schema(),
            "answer": schema,  # {}: an object as the command's --json has it
        }
    return {"protocol": PROTOCOL, "verbs": dict(sorted(verbs.items()))}


def _names() -> dict[str, Any]:
    """Return what annotations of answers may name; most modules import it for the type checker alone."""
    from scheduler.bridge.surface import Surface
    from scheduler.web import models, shapes

    found: dict[str, Any] = {"Surface": Surface, "given": given, "Any": Any}
    for module in (shapes, models, reads, changes):
        found |= {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return found
