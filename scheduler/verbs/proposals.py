"""Proposals: what a coding agent may change only with a person's approval, with previews of changes."""

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
"""What shows the subject of a change, which is its first argument."""
_OF_A_JOB = ("name", "state", "why", "done_step", "target_step", "weight")
_DIFFERS = "Violations"  # what a dry run of models.sync fails with: its message is the preview
_LIMITED_BY_HOURS = {"queue.add", "submit"}
_TOKEN = {"expect", "dry_run"}  # these arguments are of the call, not of the change


class AgentSurface(Surface):
    """The verbs for an agent called ``name``.

    With the setting ``agents`` it adds jobs within its hours and changes its own; everything else waits for a person,
    unless the change ``is_approved``.
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
        """Return the answer, or propose the change to a person. Raises NeedsApproval then."""
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
        """Return whether a change is about the agent's own jobs, and releases none that others keep from running."""
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
        written = verb.takes.model_validate(arguments).model_dump_json(exclude=_TOKEN)
        args = json.loads(self.app.redact(written))  # with a secret the change is another one, and is never made
        details, contents = preview(self, verb, args)
        brief = {name: details[name] for name in ("jobs", "changes", "warnings") if name in details} or details
        agents.propose(
            self.app.database,
            Proposal(proposal_id(verb, arguments), self.now, self.who, why, verb.name, args, contents, brief),
        )


def proposal_id(verb: Verb, arguments: Mapping[str, Any]) -> str:
    """Return the ID of a proposal, the same for the same change."""
    args = {name: value for name, value in arguments.items() if name not in _TOKEN}
    return hashlib.sha256(json.dumps([verb.name, args], sort_keys=True, default=str).encode()).hexdigest()[:12]


def preview(surface: Surface, verb: Verb, args: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a preview of a change, or the present state of its subject, and the digest of what the change is about.

    Raises what the verb raises.
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
    return {key: details[key] for key in _OF_A_JOB} | {"command": details["spec"]["command"]}, contents


def _digest(details: Any) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()


def approve(app: App, proposal: Proposal, by: str, config: Path | None, confirm: Callable[[], None]) -> Any:
    """Make a proposed change if it is still what its preview showed and ``confirm`` returns; return the answer.

    Raises Refusal where something has changed since, and what the verb raises. The proposal is then still open.
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
