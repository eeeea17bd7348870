"""Proposals of coding agents: a change that an agent may not make alone waits, with a preview, for a person."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobs.problem import Refusal
from scheduler.app import App
from scheduler.core.job import Active, Failed, Held
from scheduler.service.requests import agents
from scheduler.service.requests.agents import NeedsApproval, Proposal
from scheduler.store import jobs, runs
from scheduler.verbs.arguments import CommandFailed
from scheduler.verbs.surface import Surface, Verb
from scheduler.verbs.table import VERBS, ask

_SHOWN_BY = {"job": "queue.show", "run": "runs.show", "version": "models.show"}
"""The verb that shows the subject of a change, by the name of the change's first argument."""
_JOB_FIELDS = ("name", "state", "why", "done_step", "target_step", "weight")  # of a job in a preview
_DIFFERS = "Violations"  # error of a dry run of models.sync that finds differences; its document is the preview
_LIMITED_BY_HOURS = {"queue.add", "submit"}
_CALL_ARGUMENTS = {"expect", "dry_run"}  # they belong to the call, not to the change


class AgentSurface(Surface):
    """The verbs for a coding agent called ``name``.

    If the setting ``agents`` has limits, the agent adds jobs within its hours and changes its own jobs. Every other
    change waits for a person, unless ``is_approved``.
    """

    def __init__(
        self,
        app: App,
        name: str,
        config: Path | None,
        tell: Callable[[BaseException], dict[str, Any]],
        *,
        is_approved: bool = False,
    ) -> None:
        who = agents.PREFIX + name.removeprefix(agents.PREFIX)
        approved = {agents.IS_APPROVED: "1"} if is_approved else {}
        super().__init__(app, who, config, tell, f"by {who}", {agents.AGENT: who, **approved})
        self._is_limited = app.settings.agents.limits is not None and not is_approved

    def perform(self, verb: Verb, arguments: Mapping[str, Any]) -> Any:
        """Return the answer; if a person must approve, store a proposal instead and raise NeedsApproval."""
        if not (self._is_limited and verb.changes) or arguments.get("dry_run"):
            return super().perform(verb, arguments)
        try:
            if verb.name not in _LIMITED_BY_HOURS and not self._is_own(verb, arguments):
                raise NeedsApproval("this is about more than jobs that the agent added")
            return super().perform(verb, arguments)
        except NeedsApproval as error:
            why = error.what
        except CommandFailed as error:
            if error.document.get("kind") != NeedsApproval.__name__:
                raise
            why = str(error.document["message"])
        self._propose(verb, arguments, why)
        raise NeedsApproval(
            "nothing was done yet", why, f"A person decides: schedctl agents approve {proposal_id(verb, arguments)}"
        )

    def _is_own(self, verb: Verb, arguments: Mapping[str, Any]) -> bool:
        """Return whether a change concerns only jobs of this agent, and releases no job that somebody else holds."""
        with self.read() as tx:
            if "run" in arguments:
                names = [lane.job for lane in runs.get(tx, arguments["run"]).lanes]
            else:
                names = [arguments["job"]] if "job" in arguments else []
            records = [jobs.get(tx, name) for name in names]
        for record in records:
            state = record.state
            kept = isinstance(state, Held | Active) and state.by != self.who
            if verb.name == "queue.release" and (kept or not isinstance(state, Held | Active | Failed)):
                return False
        return bool(records) and all(record.spec.agent == self.who for record in records)

    def _propose(self, verb: Verb, arguments: Mapping[str, Any], why: str) -> None:
        written = verb.takes.model_validate(arguments).model_dump_json(exclude=_CALL_ARGUMENTS)
        args = json.loads(self.app.redact(written))  # a change whose arguments had a secret can never be approved
        details, contents = preview(self, verb, args)
        brief = {name: details[name] for name in ("jobs", "changes", "warnings") if name in details} or details
        agents.propose(
            self.app.database,
            Proposal(proposal_id(verb, arguments), self.now, self.who, why, verb.name, args, contents, brief),
        )


def proposal_id(verb: Verb, arguments: Mapping[str, Any]) -> str:
    """Return the ID of a proposal: 12 hexadecimal digits, always the same for the same change."""
    args = {name: value for name, value in arguments.items() if name not in _CALL_ARGUMENTS}
    return hashlib.sha256(json.dumps([verb.name, args], sort_keys=True, default=str).encode()).hexdigest()[:12]


def preview(surface: Surface, verb: Verb, args: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a preview of a change, or the present state of its subject, and a digest of the contents it depends on.

    The digest is empty if there are no such contents. Raises what the verb raises.
    """
    name, subject = next(iter(args.items()), ("", ""))
    if "dry_run" in verb.takes.model_fields:
        try:
            details = ask(surface, verb.name, {**args, "dry_run": True})
        except CommandFailed as error:
            if error.document.get("kind") != _DIFFERS:
                raise
            details = error.document
        return details, details.get("fingerprint") or _digest(details)
    if name not in _SHOWN_BY:
        return args, ""
    details = ask(surface, _SHOWN_BY[name], {name: subject})
    if name != "job":
        return details, ""
    contents = _digest([details["created_at"], details["spec"]])  # another job may get the name of a removed one
    if verb.name == "queue.priority":
        return ask(surface, "plan.preview", {"weights": {args["job"]: args["weight"]}}), contents
    return {key: details[key] for key in _JOB_FIELDS} | {"command": details["spec"]["command"]}, contents


def _digest(details: Any) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()


def approve(app: App, proposal: Proposal, by: str, config: Path | None, confirm: Callable[[], None]) -> Any:
    """Make a proposed change and return the answer, unless its contents have changed or ``confirm`` raises an error.

    Raises Refusal if the contents have changed since the proposal, and what ``confirm`` and the verb raise. After an
    error the proposal stays open.
    """
    surface = AgentSurface(app, proposal.agent, config, lambda error: {"message": str(error)}, is_approved=True)
    verb = VERBS[proposal.verb]
    if preview(surface, verb, proposal.args)[1] != proposal.digest:
        why = "what it is about has changed since it was proposed"
        raise Refusal("not approved", why, f"Reject it: schedctl agents reject {proposal.id}", proposal.id)
    confirm()
    expected = {"expect": proposal.digest} if "expect" in verb.takes.model_fields else {}
    answer = ask(surface, verb.name, {**proposal.args, **expected})
    agents.close(app.database, proposal, surface.now, by, is_approved=True)
    return answer
