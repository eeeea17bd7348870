"""An agent with limits in hours: over MCP with the SDK's own client, over the port, and what a person then decides."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from jobs.problem import Refusal
from scheduler.app import load_app
from scheduler.core.job import Held
from scheduler.service.requests import agents
from scheduler.store import events, jobs
from scheduler.verbs.arguments import CommandFailed
from scheduler.verbs.proposals import approve
from tests.lab.mcp_client import refused, state, talk, used
from tests.lab.port import command, talking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcp.client import Client

    from tests.lab.web.world import World


@pytest.fixture(autouse=True)
def limits(world: World) -> Iterator[None]:
    """Let agents use an hour without asking, and two in a day."""
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(f"agents = {{ hours_per_day = 2 }}\n{text}", encoding="utf-8")
    yield
    world.config.write_text(text, encoding="utf-8")


def definition(name: str, hours: float, **keys: Any) -> dict[str, Any]:
    usual = {"name": name, "command": ["{python}", "-c", "pass"], "pools": ["desk"], "setup": "0s", "checkpoint": "0s"}
    return {**usual, "target_step": round(100 * hours), "steps_per_hour": 100, **keys}


def schedctl(world: World, *words: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        command(world.config, *words, "--json"), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout if not code else done.stderr.splitlines()[-1])
    return document


async def confirmed(client: Client, tool: str, **args: Any) -> dict[str, Any]:
    """Make a change after its preview, as an agent does that has shown it."""
    return await used(client, tool, **args, confirm=(await used(client, tool, **args))["confirm"])


async def proposed(client: Client, tool: str, **args: Any) -> str:
    """Return the ID of the proposal that a change becomes."""
    shown = await used(client, tool, **args)
    why = await refused(client, tool, **args, confirm=shown["confirm"])
    assert "nothing was done yet" in why
    return why.partition("agents approve ")[2].split()[0]


def test_over_the_port_an_agent_changes_its_own_jobs_and_asks_for_those_of_others(world: World) -> None:
    with world.database.read() as tx:
        theirs = jobs.everything(tx, {"queued"})[-1].spec.name
    with talking(world.config, ("port", "--agent", "elias")) as port:
        port.ask("queue.add", definition=definition("own", 0.5))
        assert port.ask("queue.hold", job="own")["job"]["state"] == "held"
        assert port.ask("queue.release", job="own")["job"]["state"] == "queued"
        error = port.refused("queue.hold", job=theirs, why="mine first")
        assert (error["kind"], error["exit_code"]) == ("NeedsApproval", 6)
        assert state(world, theirs) == "queued"
        schedctl(world, "queue", "hold", "own", "--reason", "wait")
        assert port.refused("queue.release", job="own")["kind"] == "NeedsApproval", "a person holds it"
        assert port.ask("queue.cancel", job="own")["job"]["state"] == "cancelled"
        assert port.refused("queue.release", job="own")["kind"] == "NeedsApproval", "its hours went back"
        assert port.ask("queue.add", definition=definition("dry", 90), dry_run=True)["jobs"], "a preview asks nobody"
    waiting = {(one["verb"], one["args"]["job"]): one["id"] for one in schedctl(world, "agents", "list")["proposals"]}
    schedctl(world, "agents", "approve", waiting["queue.hold", theirs], "--yes")
    with world.database.read() as tx:
        held = jobs.get(tx, theirs).state
    assert isinstance(held, Held)
    assert (held.by, held.why) == ("agent:elias", "mine first")


def test_without_limits_an_agent_acts_as_before_under_its_name(world: World) -> None:
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(text.partition("\n")[2], encoding="utf-8")
    with talking(world.config, ("port", "--agent", "elias")) as port:
        port.ask("queue.add", definition=definition("huge", 90))
        assert port.hello["user"] == "agent:elias"
    with world.database.read() as tx:
        spec = jobs.get(tx, "huge").spec
    assert (spec.agent, spec.budget_seconds) == ("agent:elias", None)


def test_an_agent_trains_within_its_hours_and_asks_above_them(world: World) -> None:
    ids: list[str] = []

    async def work(client: Client) -> None:
        await confirmed(client, "queue_add", definition=definition("small", 1))
        ids.append(await proposed(client, "queue_add", definition=definition("large", 1.5)))
        await confirmed(client, "queue_add", definition=definition("half", 9, budget="59m"))  # it ends with its budget
        ids.append(await proposed(client, "queue_add", definition=definition("late", 0.1)))
        needs = (await used(client, "status"))["data"]["needs"]
        assert {need["subject"] for need in needs if need["what"] == "agent asks"} >= set(ids)

    talk(world, work, "--allow-changes", "--agent", "claude")
    listed = schedctl(world, "agents", "list")
    assert {one["id"] for one in listed["proposals"] if one["agent"] == "agent:claude"} == set(ids)
    assert listed["reserved_seconds"] == 3_600 + 59 * 60
    schedctl(world, "agents", "approve", ids[0], code=6)  # without a terminal nobody can answer
    approved = schedctl(world, "agents", "approve", ids[0], "--yes")
    assert approved["proposal"]["preview"]["jobs"][0]["budget"] == "1h 30m"
    schedctl(world, "agents", "reject", ids[1], "--reason", "too late")
    schedctl(world, "agents", "approve", ids[1], "--yes", code=5)
    with world.database.read() as tx:
        specs = [jobs.get(tx, name).spec for name in ("small", "half", "large")]
        (added,) = events.tail(tx, kinds=("job.added",), subject="large")
        (agreed,) = events.tail(tx, kinds=("agent.approved",), subject=ids[0])
        assert jobs.find(tx, "late") is None
    assert [spec.budget_seconds for spec in specs] == [3_600, 59 * 60, 5_400]
    assert {added.by, agreed.data["agent"], *(spec.agent for spec in specs)} == {"agent:claude"}

    async def again(client: Client) -> None:
        args = {"definition": definition("late", 0.1)}
        shown = await used(client, "queue_add", **args)
        assert "too late" in await refused(client, "queue_add", **args, confirm=shown["confirm"])

    talk(world, again, "--allow-changes", "--agent", "claude")


def test_an_approval_after_the_contents_changed_is_refused(world: World, tmp_path: Path) -> None:
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("print('good')\n")
    ids: list[str] = []

    async def work(client: Client) -> None:
        args = {"script": str(script), "target_step": 500, "steps_per_hour": 100.0, "name": "swapped"}
        ids.append(await proposed(client, "submit", **args))

    talk(world, work, "--allow-changes")
    script.write_text("print('evil')\n")
    error = schedctl(world, "agents", "approve", ids[0], "--yes", code=6)["error"]
    assert "changed since it was proposed" in error["message"]
    script.write_text("print('good')\n")
    assert schedctl(world, "agents", "approve", ids[0], "--yes")["answer"]["jobs"][0]["name"] == "swapped"
    with world.database.read() as tx:
        assert jobs.get(tx, "swapped").spec.agent == "agent:mcp"


class Died(BaseException):
    """Stands for a command that is killed."""


def test_a_crash_after_a_change_and_before_its_record_repeats_no_change(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "twice" / "train.py"
    script.parent.mkdir()
    script.write_text("print('good')\n")
    with world.database.read() as tx:
        theirs = next(one.spec.name for one in jobs.everything(tx, {"queued"}) if not one.spec.agent)

    ids = []

    async def work(client: Client) -> None:
        ids.append(await proposed(client, "queue_add", definition=definition("added", 1.5)))
        sweep = {"name": "swept", "sweep": ["LR=1,2"]}
        given = {"script": str(script), "target_step": 500, "steps_per_hour": 100.0, **sweep}
        ids.append(await proposed(client, "submit", **given))
        ids.append(await proposed(client, "queue_hold", job=theirs, why="mine first"))

    def killed(*_args: object, **_keywords: object) -> None:
        raise Died

    talk(world, work, "--allow-changes")
    app = load_app(world.config)
    with world.database.read() as tx:
        waiting = [one for one in agents.waiting(tx) if one.id in ids]
    with monkeypatch.context() as patch:
        patch.setattr(agents, "close", killed)
        for proposal in waiting:
            with pytest.raises(Died):
                approve(app, proposal, "ann", world.config, lambda: None)
    with world.database.read() as tx:
        before = jobs.everything(tx)
        assert [one for one in agents.waiting(tx) if one.id in ids] == waiting
    for proposal in waiting:
        with pytest.raises((Refusal, CommandFailed)):
            approve(app, proposal, "ann", world.config, lambda: None)
    with world.database.read() as tx:
        assert [(one.spec, one.state) for one in jobs.everything(tx)] == [(one.spec, one.state) for one in before]
        assert {one.id for one in agents.waiting(tx)} >= {*ids}, "they stay for a person to reject"
    assert len(waiting) == 3


if not TYPE_CHECKING:
    pytest.importorskip("mcp")
