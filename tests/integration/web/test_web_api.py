"""The JSON API holds its own schema, says what schedctl says, and nothing else can be asked of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from scheduler.web.guard import PROBLEM
from tests.lab.night import share
from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.web.world import World


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: str(mode.value))
def test_every_answer_is_as_the_schema_says_whatever_is_asked(site: Any, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{site.address}/api/openapi.json")
    asked = []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # an invalid schema is a failure of this test
        asked.append(operation.path)
        if mode is schemathesis.GenerationMode.NEGATIVE and not list(operation.iter_parameters()):
            continue  # nothing can be asked wrongly

        @settings(max_examples=share(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            case.call_and_validate(timeout=PATIENCE_SECONDS)

        ask()
    assert len(asked) > 15


def typed(world: World, *words: str) -> Any:
    """Return what ``schedctl --json`` writes."""
    command = [sys.executable, "-m", "scheduler", "--config", str(world.config), "--json", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_api_and_the_command_line_say_the_same(site: Any) -> None:
    """Keys that both have hold the same values; the API's own are few and listed here."""
    queue = site.json("/api/v1/queue?rows=500")["jobs"]
    assert [{key: job[key] for key in job if key != "why"} for job in queue] == typed(site.world, "queue", "list")[
        "jobs"
    ]
    found = typed(site.world, "runs", "list", "--limit", "30")["runs"]
    shown = site.json("/api/v1/runs?rows=30")["runs"]
    for run in shown:
        for lane in run["lanes"]:
            lane.pop("heartbeat")
    assert shown == found
    plan = typed(site.world, "plan", "show")["plan"]
    assert site.json("/api/v1/plan")["plan"] == plan
    ours, shown = (site.json("/api/v1/plan/week")["week"], typed(site.world, "plan", "show")["week"])
    assert [(lane["pool"], lane["lane"]) for lane in ours["lanes"]] == [
        (lane["pool"], lane["lane"]) for lane in shown["lanes"]
    ]
    assert [gap["why"] for gap in ours["gaps"]] == [gap["why"] for gap in shown["gaps"]]
    name = queue[3]["name"]
    job, wanted = site.json(f"/api/v1/jobs/{name}"), typed(site.world, "queue", "show", name)["job"]
    for each in (job, wanted):  # of a job that trains it moves on with every second
        each["training"].pop("forecast")
    assert {key: job[key] for key in wanted if key not in {"rates", "runs"}} == {
        key: value for key, value in wanted.items() if key not in {"rates", "runs"}
    }
    meters, known = site.json("/api/v1/quota")["quotas"], typed(site.world, "quota")["quotas"]
    assert [(meter["pool"], meter["quota"], meter["limit"]) for meter in meters] == [
        (meter["pool"], meter["quota"], meter["limit"]) for meter in known
    ]
    difference, changes = site.json("/api/v1/plan/difference"), typed(site.world, "plan", "diff")
    assert difference["sessions"] == changes["sessions"]


def test_a_weeks_report_is_the_one_of_the_command_line(site: Any) -> None:
    week = site.json("/api/v1/reports")["reports"][2]["week"]
    mine, theirs = site.json(f"/api/v1/reports/{week}"), typed(site.world, "report", "weekly", "--week", week)
    for changes_with_the_hour in ("made_at", "quotas", "planned", "needs"):
        mine.pop(changes_with_the_hour)
        theirs.pop(changes_with_the_hour)
    assert {key: mine[key] for key in ("label", "total", "pools")} == {
        key: theirs[key] for key in ("label", "total", "pools")
    }
    text = site.get(f"/api/v1/reports/{week}/text").text
    assert week in text
    assert "|" in site.get(f"/api/v1/reports/{week}/text?form=markdown").text


def test_a_word_changes_when_anything_does(make_world: Callable[..., World], serve: Any) -> None:
    from scheduler.store import runs

    world = make_world()
    with serve(world) as site:

        def word() -> str:
            return str(site.json("/api/v1/revision")["revision"])

        first = word()
        assert word() == first
        world.change()
        second = word()
        with world.database.write() as tx:
            runs.note_heartbeat(tx, runs.live(tx)[0].key, 0, {"step": 99_999})
        assert len({first, second, word()}) == 3


def test_health_tells_whether_a_daemon_leads_and_finishes_cycles(make_world: Callable[..., World], serve: Any) -> None:
    from sqlalchemy import text

    from scheduler.store import due

    world = make_world()
    with serve(world) as site:
        assert site.get("/health/ready").json() == {"ok": True, "problems": []}
        with world.database.write() as tx:
            due.set_due(tx, due.CYCLE, world.now - 4 * 3_600)
        answer = site.get("/health/ready")
        assert answer.status_code == 503
        assert "finished no cycle for 26" in answer.json()["problems"][0]
        with world.database.write() as tx:
            tx.execute(text("UPDATE lease SET until = 1"))
        assert "No daemon runs" in site.get("/health/ready").json()["problems"][0]
        assert site.json("/health/live")["ok"]
        assert site.json("/livez")["ok"]
        assert site.get("/readyz").status_code == 503
        assert site.json("/api/v1/status")["leader"] is None


def test_a_parameter_that_is_given_twice_is_refused_unless_it_is_a_list(site: Any) -> None:
    answer = site.get("/api/v1/events?subject=one&subject=other")
    assert (answer.status_code, answer.json()["why"]) == (422, "subject is given more than once")
    assert site.get("/api/v1/events?kinds=job.add&kinds=job.hold").status_code == 200


def test_errors_are_problem_details(site: Any) -> None:
    answer = site.get("/api/v1/jobs/nobody")
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert (problem["type"], problem["status"]) == ("about:blank", answer.status_code)
    assert (problem["title"], problem["detail"]) == (problem["error"], problem["why"])
    assert problem["title"] == "unknown job"
    assert (problem["why"], problem["remedy"]) == ("nobody: no job has this name", "See `schedctl queue list`")


def test_the_token_guards_everything_that_tells_something(
    make_world: Callable[..., World], serve: Any, tmp_path: Any
) -> None:
    token = "0123456789abcdef" * 3
    (tmp_path / "web").write_text(token, encoding="utf-8")
    with serve(make_world(), CREDENTIALS_DIRECTORY=str(tmp_path)) as site:
        for path in ("/api/v1/status", "/api/openapi.json", "/metrics"):
            refused = site.get(path)
            assert refused.status_code == refused.json()["status"] == 401
            assert refused.headers["content-type"] == PROBLEM
            assert site.get(path, Authorization=f"Bearer {token}").status_code == 200
        assert site.get("/queue").status_code == 303
        assert site.get("/queue", host="evil.example", Authorization=f"Bearer {token}").status_code == 421
        assert site.get("/health/live").status_code == site.get("/livez").status_code == 200
    assert token not in site.world.config.with_name("web.log").read_text(encoding="utf-8")
